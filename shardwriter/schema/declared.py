"""An explicit schema, in each of the forms that people give it, as types and vocabularies.

===============================  ==============================================================
``"id=string,x=uint8[28,28]"``   the short form (:mod:`shardwriter.schema.schema_text`)
``"first.manifest.json"``        a file: a manifest, its ``schema``, or a mapping as below
``{"x": "uint8[28,28]"}``        by feature: a type's text, a ``FeatureType``, or an entry as a
                                 manifest has it: ``{"dtype": "uint8", "shape": [28, 28]}``
``{"features": {...}}``          a manifest's ``schema``
===============================  ==============================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypedDict, cast, get_args

from shardwriter.errors import OptionError, ShardwriterError, reason
from shardwriter.formats import canonical, json_shape
from shardwriter.formats.feature_errors import Kind
from shardwriter.schema.feature_types import FeatureType, Shape, needs_shape
from shardwriter.schema.schema_text import (
    IMAGE,
    exact_type,
    list_type,
    parse_schema_option,
    parse_type,
    raw_type,
    time_type,
)
from shardwriter.schema.shape_features import shape_feature, shape_feature_type

SchemaLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""What `declare` understands."""

_KEYS: Final = frozenset({"dtype", "encoding", "format", "kind", "shape", "vocabulary"})
_COUNTED: Final = frozenset({"present", "unset"})  # an entry that a write has made has these
_DEFAULT_DTYPES: Final = {"int64": "int64", "float": "float32", "bytes": "bytes"}


@dataclass(frozen=True)
class Declared:
    """What a person declared.

    Attributes:
        types: By feature.
        vocabularies: Names of the values of integer features, by feature.
    """

    types: Mapping[str, FeatureType] = field(default_factory=dict)
    vocabularies: Mapping[str, list[str]] = field(default_factory=dict)


def declare(schema: SchemaLike | None) -> Declared:
    """Read a schema.

    Raises:
        OptionError: It is none; says which feature, or where in the text.
    """
    if schema is None:
        return Declared()
    path: str | None = None
    if isinstance(schema, str | os.PathLike):
        text = os.fspath(schema)
        if isinstance(schema, str) and "=" in text and not text.endswith(".json"):
            return Declared(parse_schema_option(text))
        path = text
        schema = _read(text)
    if not isinstance(schema, Mapping):
        raise OptionError(
            f"the schema is of type {type(schema).__name__}",
            path=path,
            hint="give NAME=TYPE,..., a JSON file, or a mapping from features to types",
        )
    types: dict[str, FeatureType] = {}
    words: dict[str, list[str]] = {}
    for name, entry in _entries(schema, path).items():
        if not isinstance(name, str):
            raise OptionError(f"the schema has {name!r}, which is no name of a feature", path=path)
        try:
            if path is not None:
                json_shape.check(entry, cast("type[Any]", str | _Entry))
            found, vocabulary = _read_entry(entry)
        except ValueError as error:
            raise OptionError(f"the schema of {name!r}: {reason(error)}", path=path) from None
        if found.kind is not None:
            types[name] = found
        if vocabulary is not None:
            words[name] = vocabulary
    return Declared(_without_shape_features(types, path), words)


class _Entry(TypedDict, total=False):
    """A feature in a JSON file."""

    dtype: str | None
    encoding: str | None
    format: str | None
    kind: str | None
    shape: list[int | None] | None
    vocabulary: list[str] | None


def _read(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return canonical.loads(file.read())
    except OSError as error:
        raise OptionError(
            f"the schema can not be read: {error.strerror}",
            path=path,
            hint="--schema takes NAME=TYPE,... or a JSON file",
        ) from None
    except (ValueError, RecursionError, ShardwriterError) as error:
        raise OptionError(f"the schema is no JSON: {reason(error)}", path=path) from None


def _entries(schema: Mapping[str, Any], path: str | None) -> Mapping[str, Any]:
    """Return the entries by feature, out of what they may be wrapped in."""
    if str(schema.get("format", "")).startswith("shardwriter.manifest/"):
        schema = schema.get("schema", {})
        if not isinstance(schema, Mapping):
            raise OptionError("the manifest's schema is no JSON object", path=path)
    if schema.get("feature_lists"):
        raise OptionError(
            "this is the schema of SequenceExamples, and only features of Examples can be declared",
            path=path,
            hint="give the values of SequenceExamples their types in a map",
        )
    inner = schema.get("features")
    if isinstance(inner, Mapping) and all(isinstance(e, Mapping) for e in inner.values()):
        return inner
    return schema


def _read_entry(entry: Any) -> tuple[FeatureType, list[str] | None]:
    if isinstance(entry, FeatureType):
        return exact_type(entry), None
    if isinstance(entry, str):
        return parse_type(entry), None
    if not isinstance(entry, Mapping):
        raise ValueError(f"{entry!r} is no type")
    unknown = sorted(set(map(str, entry)) - _KEYS)
    if unknown and not entry.keys() >= _COUNTED:
        raise ValueError(f"{unknown[0]!r} is unknown; an entry has {', '.join(sorted(_KEYS))}")
    kind, dtype = entry.get("kind"), entry.get("dtype")
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"the kind is {kind!r}: int64, float or bytes")
    if dtype is None and kind is not None:
        dtype = _DEFAULT_DTYPES.get(kind)
    if dtype is None:
        if kind is None and entry.keys() >= _COUNTED:
            return FeatureType(), None  # it had no value in any record
        raise ValueError("it has no dtype")
    shape, vocabulary = _shape(entry.get("shape")), _vocabulary(entry.get("vocabulary"))
    encoding = entry.get("encoding", "raw" if dtype == "float64" else "list")
    if encoding == "raw" and dtype == "float64" and "encoding" not in entry:
        kind = None  # whoever says float64 means all of its digits
    if encoding == "image":
        found = IMAGE if shape in (None, ()) else FeatureType("bytes", "bytes", shape, "image")
    elif encoding == "raw":
        found = raw_type(str(dtype), shape)
    elif encoding == "list":
        found = list_type(str(dtype), shape)
        if entry.get("format") is not None and dtype == "int64":
            found = time_type(str(entry["format"]), shape)
    else:
        raise ValueError(f"the encoding is {encoding!r}: list, raw or image")
    if kind not in (None, found.kind):
        raise ValueError(f"{dtype} values, encoded as {encoding}, are {found.kind}, not {kind}")
    if vocabulary is not None and found.kind != "int64":
        raise ValueError(f"a vocabulary names integers, and these are {dtype}")
    return found, vocabulary


def _shape(sizes: Any) -> Shape | None:
    if sizes is None:
        return None
    if not isinstance(sizes, list | tuple):
        raise ValueError(f"the shape is {sizes!r}, not a list")
    for size in sizes:
        if size is not None and (type(size) is not int or size < 0):
            raise ValueError(f"{size!r} in the shape is no size: a number, or null")
    return tuple(sizes)


def _vocabulary(words: Any) -> list[str] | None:
    if words is None:
        return None
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("the vocabulary is not a list of names")
    return list(words)


def _without_shape_features(
    types: dict[str, FeatureType], path: str | None
) -> dict[str, FeatureType]:
    """Leave out the features that hold shapes: they are made, and not given."""
    kept = dict(types)
    for name, found in types.items():
        helper = shape_feature(name)
        if not needs_shape(found.shape) or helper not in types:
            continue
        assert found.shape is not None
        if types[helper] != shape_feature_type(len(found.shape)):
            raise OptionError(
                f"{helper!r} is where the shapes of {name!r} are stored, and the schema declares "
                "it as a feature of its own",
                path=path,
                hint="call one of the two something else",
            )
        del kept[helper]
    return kept
