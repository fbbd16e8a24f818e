"""A schema declared by the user: read it from any of its forms, and validate values against it.

===============================  ==============================================================
``"id=string,x=uint8[28,28]"``   the text form (:mod:`shardwriter.schema.feature_types`)
``"first.manifest.json"``        a file: a manifest, its ``schema``, or a mapping as below
``{"x": "uint8[28,28]"}``        by feature: a type's text, a ``FeatureType``, or an entry as in a
                                 manifest: ``{"dtype": "uint8", "shape": [28, 28]}``
``{"features": {...}}``          a manifest's ``schema``
===============================  ==============================================================

Validation looks at one record at a time, before it is encoded. A feature may be missing from a
record, or have no kind; features that are not declared are not checked.

===============  =======================================================================
declared         effect on a value
===============  =======================================================================
a shape          another shape is an error
an integer type  a float, or a number out of range, is an error
a float type     integers become floats; a number that would become infinite is an error
``raw:``         an array, a list of numbers, or bytes become raw bytes of this dtype
a vocabulary     an integer outside of it is an error
two or more      the value's shape is written to ``<name>/shape``
varying sizes
===============  =======================================================================
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

_ENCODER_DTYPES: Final = frozenset({None, "int64", "float32", "float64", "bytes", "string"})


def needs_validation(declared: FeatureType) -> bool:
    """Return whether a declared type needs a `Validator`; the encoder itself checks the kind."""
    if declared.kind is None or declared.encoding == "image":
        return False
    is_raw = declared.encoding == "raw"
    return is_raw or declared.shape is not None or declared.dtype not in _ENCODER_DTYPES


def column_types(types: Mapping[str, FeatureType]) -> dict[str, FeatureType]:
    """Return the declared types for a source of columns, which converts values to their kinds.

    Shapes and narrow dtypes are omitted, as the `Validator` checks them in each record. Raw arrays
    are omitted too, except for float64, so the source parses text as float64.
    """
    widest = {"int64": "int64", "float": "float32"}
    wanted = {}
    for name, found in types.items():
        if found.encoding == "raw":
            if found.dtype == "float64":
                wanted[name] = FeatureType("float", "float64")
            continue
        if needs_validation(found):
            dtype = widest.get(found.kind or "", found.dtype)
            found = FeatureType(found.kind, dtype, None, found.encoding, found.format)
        wanted[name] = found
    return wanted


class Validator:
    """Checks the values of records against declared types, and converts them.

    Args:
        types: By feature; those for which `needs_validation` is true.
        num_classes: The length of a declared vocabulary, by feature.

    Attributes:
        float_dtypes: The dtype of each feature declared with a float dtype.
        lost: The features of the last record with numbers that are inexact in their dtype; see
            :mod:`shardwriter.formats.feature_values`.
    """

    def __init__(self, types: Mapping[str, FeatureType], num_classes: Mapping[str, int]) -> None:
        names = [*types, *(name for name in num_classes if name not in types)]
        integer = FeatureType("int64", "int64")
        self._features = [
            _FeatureValidator(name, types.get(name, integer), num_classes.get(name))
            for name in names
        ]
        self.float_dtypes = {n: t.dtype for n, t in types.items() if t.dtype in BITS}
        self.lost: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._features)

    def validate(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record's features with values of the declared types.

        Raises:
            FeatureError: A value contradicts the declared type; the message has both.
        """
        validated = dict(features)
        self.lost = []
        for feature in self._features:
            value = validated.get(feature.name)
            if value is None or value is UNSET:
                continue
            value, shape = feature.validate(value)
            validated[feature.name] = value
            if feature.has_lost:
                feature.has_lost = False
                self.lost.append(feature.name)
            if feature.has_shape_feature and value is not UNSET:
                shape_name = shape_feature(feature.name)
                if shape_name in features:
                    raise FeatureError(
                        f"the name is reserved for the shape of {feature.name!r}, but the record "
                        "has a feature of this name",
                        hint="rename one of the two features",
                        feature=shape_name,
                    )
                validated[shape_name] = np.array(shape, np.int64)
        return validated


class _FeatureValidator:
    """Checks and converts the values of one feature."""

    def __init__(self, name: str, declared: FeatureType, num_classes: int | None) -> None:
        self.name = name
        self._declared = declared
        self._num_classes = num_classes
        self.has_lost = False  # whether a number was inexact since this was last set to False
        self.has_shape_feature = needs_shape(declared.shape)
        is_number = declared.kind != "bytes" or declared.encoding == "raw"
        self._dtype = dtype_named(declared.dtype) if is_number and declared.dtype else None

    def validate(self, value: Any) -> tuple[Any, tuple[int, ...]]:
        """Return the converted value and its shape."""
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
            raise self._error("a raw array")
        if found.kind != self._declared.kind and (found.kind, self._declared.kind) != (
            "int64",
            "float",
        ):
            raise self._error(f"{found.dtype} values")
        shape = self._checked_shape(_sizes(found.shape))
        if self._dtype is None:
            return value, shape
        return self._number(value), shape

    def _empty(self) -> tuple[Any, tuple[int, ...]]:
        """Return the value and shape for an empty list, which has no type or inner dimensions.

        If no value of the declared shape can be empty, it has no kind, as without a declaration.
        """
        declared = (None,) if self._declared.shape is None else self._declared.shape
        shape = (0, *(size or 0 for size in declared[1:]))
        if not _fits(shape, declared):
            return UNSET, ()
        return ([] if self._dtype is None else np.zeros(shape, self._dtype)), shape

    def _checked_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        declared = self._declared.shape
        if declared is not None and not _fits(shape, declared):
            raise self._error(f"a value of shape {list(shape)}")
        return shape

    def _number(self, value: Any) -> Any:
        """Return numbers in the declared dtype; single ones may stay Python numbers."""
        if self._declared.dtype == "float32":
            if type(value) in (float, int, bool):
                return value  # the encoder checks it
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
                self._note_lost(value)  # numpy converts an integer next to a float to float64
            return array
        if array.dtype == object:  # integers of more than 64 bits
            leaves = array.reshape(-1).tolist()
            self._check_range(min(leaves), max(leaves))
        to_integer, to_complex = dtype.kind in "biu", dtype.kind == "c"
        if to_integer and array.dtype.kind == "f" and isinstance(value, list | tuple):
            exact = np.array(value, object)  # numpy converts a mix of uint64 and int64 to float64
            if all(isinstance(leaf, int | np.integer | np.bool_) for leaf in exact.flat):
                array = exact
        if to_integer:
            if array.dtype.kind not in "biuO":
                raise self._error(f"{array.dtype} values")
            if array.size:
                self._check_range(int(array.min()), int(array.max()))
            return array.astype(dtype)
        if array.dtype.kind == "c" and not to_complex:
            raise self._error(f"{array.dtype} values")
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = array.astype(dtype)
        if array.dtype.kind in "fcO" or dtype.itemsize < 4:
            wide = array.astype(np.complex128 if to_complex else np.float64)
            is_overflow = ~np.isfinite(narrow) & np.isfinite(wide)
            if is_overflow.any():
                raise self._error(f"{wide[is_overflow].flat[0]:g} (out of range)")
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
        first, last = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if low < first or high > last:
            raise self._error(f"{low if low < first else high} (out of range)")
        if self._num_classes is not None and (low < 0 or high >= self._num_classes):
            number = low if low < 0 else high
            raise FeatureError(
                f"{number} has no name in the schema's vocabulary, which has names for 0 to "
                f"{self._num_classes - 1}",
                feature=self.name,
            )

    def _raw(self, value: Any) -> NDArray[Any]:
        dtype = self._dtype
        assert dtype is not None
        if isinstance(value, bytes | bytearray | memoryview):
            return self._from_bytes(bytes(value), dtype)
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
            describe(self.name, value, "float")  # raises if it is ragged or not numeric
        array = np.asarray(value)
        if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
            raise self._error(f"a {type(value).__name__}")
        return array

    def _from_bytes(self, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the array of the declared shape that has these bytes."""
        declared = self._declared.shape
        if declared is None or needs_shape(declared):
            raise FeatureError(
                f"the shape of {len(data):,} bytes is not known, since the schema says "
                f"{type_text(self._declared)}",
                hint="give the array instead of its bytes",
                feature=self.name,
            )
        known = prod(size for size in declared if size is not None) * dtype.itemsize
        count, rest = divmod(len(data), known) if known else (0, len(data))
        if rest or (None not in declared and count != 1 and known):
            raise self._error(f"{len(data):,} bytes")
        shape = tuple(count if size is None else size for size in declared)
        return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)

    def _error(self, found: str) -> FeatureError:
        return FeatureError(
            f"{found} here, but the schema says {type_text(self._declared)}",
            hint="change the value in a map, or --schema; null in a shape allows any size",
            feature=self.name,
        )


def _sizes(shape: Shape | None) -> tuple[int, ...]:
    return tuple(size or 0 for size in shape or ())


def _fits(shape: Sequence[int], declared: Shape) -> bool:
    return len(shape) == len(declared) and all(
        known in (None, size) for size, known in zip(shape, declared, strict=True)
    )


SchemaLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""The forms of a schema that `declare` accepts."""

_KEYS: Final = frozenset({"dtype", "encoding", "format", "kind", "shape", "vocabulary"})
_COUNTED: Final = frozenset({"present", "unset"})  # keys of an entry in a written manifest
_DEFAULT_DTYPES: Final = {"int64": "int64", "float": "float32", "bytes": "bytes"}


@dataclass(frozen=True)
class DeclaredSchema:
    """A schema declared by the user.

    Attributes:
        types: Types by feature.
        vocabularies: Names of the values of integer features, by feature.
    """

    types: Mapping[str, FeatureType] = field(default_factory=dict)
    vocabularies: Mapping[str, list[str]] = field(default_factory=dict)


def declare(schema: SchemaLike | None) -> DeclaredSchema:
    """Return a declared schema from any of its forms; an empty one for None.

    Raises:
        OptionError: It is malformed; the message has the feature, or the position in the text.
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
            raise OptionError(f"the schema has {name!r}, which is not a feature name", path=path)
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
            hint="give --schema NAME=TYPE,... or a JSON file",
        ) from None
    except (ValueError, RecursionError, ShardwriterError) as error:
        raise OptionError(f"the schema is not valid JSON: {reason(error)}", path=path) from None


def _entries(schema: Mapping[str, Any], path: str | None) -> Mapping[str, Any]:
    """Return the entries by feature, from a manifest, its ``schema`` or a bare mapping."""
    if str(schema.get("format", "")).startswith("shardwriter.manifest/"):
        schema = schema.get("schema", {})
        if not isinstance(schema, Mapping):
            raise OptionError("the manifest's schema is not a JSON object", path=path)
    if schema.get("feature_lists"):
        raise OptionError(
            "this schema is of SequenceExamples, but only features of Examples can be declared",
            path=path,
            hint="omit --schema, and convert the values of SequenceExamples in a map",
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
        raise ValueError(f"{entry!r} is not a type")
    unknown = sorted(set(map(str, entry)) - _KEYS)
    if unknown and not entry.keys() >= _COUNTED:
        raise ValueError(f"{unknown[0]!r} is unknown; an entry has {', '.join(sorted(_KEYS))}")
    kind, dtype = entry.get("kind"), entry.get("dtype")
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"the kind is {kind!r}, expected int64, float or bytes")
    if dtype is None and kind is not None:
        dtype = _DEFAULT_DTYPES.get(kind)
    if dtype is None:
        if kind is None and entry.keys() >= _COUNTED:
            return FeatureType(), None  # no record had a value
        raise ValueError("it has no dtype")
    shape, vocabulary = _shape(entry.get("shape")), _vocabulary(entry.get("vocabulary"))
    encoding = entry.get("encoding", "raw" if dtype == "float64" else "list")
    if encoding == "raw" and dtype == "float64" and "encoding" not in entry:
        kind = None  # float64 means all digits, so the array is stored raw
    if encoding == "image":
        found = IMAGE if shape in (None, ()) else FeatureType("bytes", "bytes", shape, "image")
    elif encoding == "raw":
        found = raw_type(str(dtype), shape)
    elif encoding == "list":
        found = list_type(str(dtype), shape)
        if entry.get("format") is not None and dtype == "int64":
            found = time_type(str(entry["format"]), shape)
    else:
        raise ValueError(f"the encoding is {encoding!r}, expected list, raw or image")
    if kind not in (None, found.kind):
        raise ValueError(f"{dtype} values, encoded as {encoding}, are {found.kind}, not {kind}")
    if vocabulary is not None and found.kind != "int64":
        raise ValueError(f"a vocabulary is for integers, not for {dtype}")
    return found, vocabulary


def _shape(sizes: Any) -> Shape | None:
    if sizes is None:
        return None
    if not isinstance(sizes, list | tuple):
        raise ValueError(f"the shape is {sizes!r}, not a list")
    for size in sizes:
        if size is not None and (type(size) is not int or size < 0):
            raise ValueError(f"{size!r} in the shape is not a size: give a number, or null")
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
    """Return types without shape features, which are written automatically."""
    remaining = dict(types)
    for name, found in types.items():
        helper = shape_feature(name)
        if not needs_shape(found.shape) or helper not in types:
            continue
        assert found.shape is not None
        if types[helper] != shape_feature_type(len(found.shape)):
            raise OptionError(
                f"{helper!r} is reserved for the shapes of {name!r}, but the schema declares it as "
                "another feature",
                path=path,
                hint="rename one of the two features",
            )
        del remaining[helper]
    return remaining
