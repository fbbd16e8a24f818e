"""An explicit schema, in each of the forms that people give it, as types and vocabularies.

===============================  ==============================================================
``"id=string,x=uint8[28,28]"``   the short form (:mod:`shardwriter.schema.feature_types`)
``"first.manifest.json"``        a file: a manifest, its ``schema``, or a mapping as below
``{"x": "uint8[28,28]"}``        by feature: a type's text, a ``FeatureType``, or an entry as a
                                 manifest has it: ``{"dtype": "uint8", "shape": [28, 28]}``
``{"features": {...}}``          a manifest's ``schema``
===============================  ==============================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, TypeAlias, TypedDict, cast, get_args

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, OptionError, ShardwriterError, reason
from shardwriter.formats import (
    BITS,
    EXACT_FLOAT64,
    UNSET,
    Kind,
    RawArray,
    canonical,
    dtype_named,
    first_inexact,
    json_shape,
    raw,
)
from shardwriter.schema.feature_types import (
    IMAGE,
    FeatureType,
    Shape,
    describe,
    exact_type,
    list_type,
    needs_shape,
    parse_schema_option,
    parse_type,
    raw_type,
    shape_feature,
    shape_feature_type,
    time_type,
    type_text,
)

# Values that are held to what a person declared: dtype, shape, encoding, the number of classes.
#
# It is a function of one record and of the declaration, done before the record is encoded.
#
# ===============  =======================================================================
# declared         what happens to a value
# ===============  =======================================================================
# a shape          it is refused where it has another one
# an integer type  it is refused where the type does not hold it, as is a float
# a float type     integers become floats; what would become infinite is refused
# ``raw:``         an array, a list of numbers, or its bytes become bytes of this dtype
# a vocabulary     an integer that names no word is refused
# nulls that the   the value's shape is written beside it, as ``<name>/shape``
# values hide
# ===============  =======================================================================
#
# A feature may be missing from a record, or have no kind. What is not declared goes its own way.

_UNBOUND_DTYPES: Final = frozenset({None, "int64", "float32", "float64", "bytes", "string"})


def needs_validation(declared: FeatureType) -> bool:
    """Say whether more is declared than a kind, which the encoder itself binds values to."""
    if declared.kind is None or declared.encoding == "image":
        return False
    is_raw = declared.encoding == "raw"
    return is_raw or declared.shape is not None or declared.dtype not in _UNBOUND_DTYPES


def column_types(types: Mapping[str, FeatureType]) -> dict[str, FeatureType]:
    """Return what a source of columns is told of declared types: kinds, which it converts to.

    Shapes and narrow types are looked at when a row has become a record. Of raw bytes a source
    is told nothing, as the numbers are its own; but of float64, whose text becomes numbers.
    """
    widest = {"int64": "int64", "float": "float32"}
    told = {}
    for name, found in types.items():
        if found.encoding == "raw":
            if found.dtype == "float64":
                told[name] = FeatureType("float", "float64")
            continue
        if needs_validation(found):
            dtype = widest.get(found.kind or "", found.dtype)
            found = FeatureType(found.kind, dtype, None, found.encoding, found.format)
        told[name] = found
    return told


class Validator:
    """Holds the values of records to declared types.

    Args:
        types: By feature; those of which `needs_validation` says so.
        num_classes: The length of a declared vocabulary, by feature.

    Attributes:
        float_dtypes: The dtype of each feature that is bound to floats.
        lost: The features of the last record that have numbers which their dtype does not hold; see
            :mod:`shardwriter.formats.feature_values`.
    """

    def __init__(self, types: Mapping[str, FeatureType], num_classes: Mapping[str, int]) -> None:
        names = [*types, *(name for name in num_classes if name not in types)]
        whole = FeatureType("int64", "int64")
        self._bound = [
            _BoundFeature(name, types.get(name, whole), num_classes.get(name)) for name in names
        ]
        self.float_dtypes = {n: t.dtype for n, t in types.items() if t.dtype in BITS}
        self.lost: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._bound)

    def bind(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record's features as they are declared.

        Raises:
            FeatureError: A value is not what was declared; says both.
        """
        bound = dict(features)
        self.lost = []
        for feature in self._bound:
            value = bound.get(feature.name)
            if value is None or value is UNSET:
                continue
            value, shape = feature.bind(value)
            bound[feature.name] = value
            if feature.has_lost:
                feature.has_lost = False
                self.lost.append(feature.name)
            if feature.has_shape_beside and value is not UNSET:
                holder = shape_feature(feature.name)
                if holder in features:
                    raise FeatureError(
                        f"it is where the shape of {feature.name!r} is stored, and the record has "
                        "a feature of this name",
                        hint="call one of the two something else",
                        feature=holder,
                    )
                bound[holder] = np.array(shape, np.int64)
        return bound


class _BoundFeature:
    def __init__(self, name: str, declared: FeatureType, num_classes: int | None) -> None:
        self.name = name
        self._declared = declared
        self._num_classes = num_classes
        self.has_lost = False  # a number was lost since this was last set to False
        self.has_shape_beside = needs_shape(declared.shape)
        is_number = declared.kind != "bytes" or declared.encoding == "raw"
        self._dtype = dtype_named(declared.dtype) if is_number and declared.dtype else None

    def bind(self, value: Any) -> tuple[Any, tuple[int, ...]]:
        """Return the value and its shape."""
        if self._declared.encoding == "raw":
            if isinstance(value, list | tuple) and not len(value):
                empty, shape = self._empty()
                return (empty if empty is UNSET else raw(empty)), shape
            array = self._raw(value)
            return RawArray(array), array.shape
        found = describe(self.name, value, self._declared.kind)
        if found.kind is None:
            return self._empty()
        if found.encoding == "raw":
            raise self._refused("an array of raw bytes")
        if found.kind != self._declared.kind and (found.kind, self._declared.kind) != (
            "int64",
            "float",
        ):
            raise self._refused(f"{found.dtype} values")
        shape = self._checked_shape(_sizes(found.shape))
        if self._dtype is None:
            return value, shape
        return self._number(value), shape

    def _empty(self) -> tuple[Any, tuple[int, ...]]:
        """Return what an empty list is, which tells neither type nor inner dimensions.

        Where no value of the declared shape is empty it has no kind, as without a declaration.
        """
        declared = (None,) if self._declared.shape is None else self._declared.shape
        shape = (0, *(size or 0 for size in declared[1:]))
        if not _fits(shape, declared):
            return UNSET, ()
        return ([] if self._dtype is None else np.zeros(shape, self._dtype)), shape

    def _checked_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        declared = self._declared.shape
        if declared is not None and not _fits(shape, declared):
            raise self._refused(f"a value of shape {list(shape)}")
        return shape

    def _number(self, value: Any) -> Any:
        """Return a value, or values, as numbers that the declared dtype holds."""
        if self._declared.dtype == "float32":
            if type(value) in (float, int, bool):
                return value  # which the encoder looks at
        elif self._declared.kind == "int64" and type(value) in (int, bool):
            self._check_range(value, value)
            return value
        return self._converted(value)

    def _converted(self, value: Any) -> NDArray[Any]:
        dtype = self._dtype
        assert dtype is not None
        array = np.asarray(value)
        if array.dtype == dtype and self._num_classes is None:
            if isinstance(value, list | tuple) and (np.abs(array) >= EXACT_FLOAT64).any():
                self._note_lost(value)  # numpy makes float64 of an integer beside a float
            return array
        if array.dtype == object:  # integers that 64 bits do not hold
            leaves = array.reshape(-1).tolist()
            self._check_range(min(leaves), max(leaves))
        to_integer, to_complex = dtype.kind in "biu", dtype.kind == "c"
        if to_integer and array.dtype.kind == "f" and isinstance(value, list | tuple):
            exact = np.array(value, object)  # numpy joins uint64 and int64 as float64
            if all(isinstance(leaf, int | np.integer | np.bool_) for leaf in exact.flat):
                array = exact
        if to_integer:
            if array.dtype.kind not in "biuO":
                raise self._refused(f"{array.dtype} values")
            if array.size:
                self._check_range(int(array.min()), int(array.max()))
            return array.astype(dtype)
        if array.dtype.kind == "c" and not to_complex:
            raise self._refused(f"{array.dtype} values")
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = array.astype(dtype)
        if array.dtype.kind in "fcO" or dtype.itemsize < 4:
            wide = array.astype(np.complex128 if to_complex else np.float64)
            lost = ~np.isfinite(narrow) & np.isfinite(wide)
            if lost.any():
                raise self._refused(f"{wide[lost].flat[0]:g} (out of range)")
        if dtype.name in BITS:
            self._note_lost(value)
        return narrow

    def _note_lost(self, value: Any) -> None:
        assert self._dtype is not None
        exact = np.array(value, object) if isinstance(value, list | tuple) else np.asarray(value)
        self.has_lost = first_inexact(exact, self._dtype.name) is not None

    def _check_range(self, low: int, high: int) -> None:
        dtype = self._dtype
        if dtype is None or dtype.kind not in "biu":
            return
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if low < least or high > most:
            raise self._refused(f"{low if low < least else high} (out of range)")
        if self._num_classes is not None and (low < 0 or high >= self._num_classes):
            number = low if low < 0 else high
            raise FeatureError(
                f"{number} here, and the schema's vocabulary has {self._num_classes} names, from 0 "
                "on",
                feature=self.name,
            )

    def _raw(self, value: Any) -> NDArray[Any]:
        dtype = self._dtype
        assert dtype is not None
        if isinstance(value, bytes | bytearray | memoryview):
            return self._of_bytes(bytes(value), dtype)
        array = self._array(value)
        if isinstance(value, list | tuple):
            array = self._converted(value)
        elif array.dtype != dtype.newbyteorder("<"):
            array = self._converted(array)
        self._checked_shape(array.shape)
        return raw(array).array

    def _array(self, value: Any) -> NDArray[Any]:
        if isinstance(value, RawArray):
            return value.array
        if isinstance(value, list | tuple):
            describe(self.name, value, "float")  # refuses what is ragged, or no numbers
        array = np.asarray(value)
        if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
            raise self._refused(f"a {type(value).__name__}")
        return array

    def _of_bytes(self, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array whose bytes are given, where the declared shape says what it is."""
        declared = self._declared.shape
        if declared is None or needs_shape(declared):
            raise FeatureError(
                f"{len(data):,} bytes do not tell a shape, and the schema says "
                f"{type_text(self._declared)}",
                hint="give the array",
                feature=self.name,
            )
        known = prod(size for size in declared if size is not None) * dtype.itemsize
        count, rest = divmod(len(data), known) if known else (0, len(data))
        if rest or (None not in declared and count != 1 and known):
            raise self._refused(f"{len(data):,} bytes")
        shape = tuple(count if size is None else size for size in declared)
        return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)

    def _refused(self, found: str) -> FeatureError:
        return FeatureError(
            f"{found} here, and the schema says {type_text(self._declared)}",
            hint="a map can change the value; null in a shape lets a dimension vary",
            feature=self.name,
        )


def _sizes(shape: Shape | None) -> tuple[int, ...]:
    return tuple(size or 0 for size in shape or ())


def _fits(shape: Sequence[int], declared: Shape) -> bool:
    return len(shape) == len(declared) and all(
        known in (None, size) for size, known in zip(shape, declared, strict=True)
    )


SchemaLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""What `declare` understands."""

_KEYS: Final = frozenset({"dtype", "encoding", "format", "kind", "shape", "vocabulary"})
_COUNTED: Final = frozenset({"present", "unset"})  # an entry that a write has made has these
_DEFAULT_DTYPES: Final = {"int64": "int64", "float": "float32", "bytes": "bytes"}


@dataclass(frozen=True)
class DeclaredSchema:
    """What a person declared.

    Attributes:
        types: By feature.
        vocabularies: Names of the values of integer features, by feature.
    """

    types: Mapping[str, FeatureType] = field(default_factory=dict)
    vocabularies: Mapping[str, list[str]] = field(default_factory=dict)


def declare(schema: SchemaLike | None) -> DeclaredSchema:
    """Read a schema.

    Raises:
        OptionError: It is none; says which feature, or where in the text.
    """
    if schema is None:
        return DeclaredSchema()
    path: str | None = None
    if isinstance(schema, str | os.PathLike):
        text = os.fspath(schema)
        if isinstance(schema, str) and "=" in text and not text.endswith(".json"):
            return DeclaredSchema(parse_schema_option(text))
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
    return DeclaredSchema(_without_shape_features(types, path), words)


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
