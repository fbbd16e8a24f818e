"""The type of a feature: of one value, the join of two types, and the text form of a schema.

The join is commutative, associative and idempotent, so any order and partition of the records gives
the same type:

=========  ====================================================================================
kind       unset < int64, float, bytes < conflict (an error: int and float in one feature)
dtype      equal, else the widest of the kind; raw bytes: equal, or a conflict
shape      equal, else one dimension becomes null; a scalar and a list become [null]
format     (images) equal, else "image"; units of times: equal, or a conflict
=========  ====================================================================================

The text form is that of ``--schema image=uint8[28,28],tokens=int64[null],mask=raw:uint8[4,4]``::

    schema   feature, feature, ...
    feature  NAME=TYPE            NAME has no comma
    TYPE     image                the bytes of an image file
             DTYPE                of any shape
             DTYPE[SIZE,...]      of this shape: [] a single value, null a dimension that varies
             int64:UNIT           times of a table's column as integers: days, s, ms, us or ns
             raw:DTYPE[...]       one bytes value: the array's bytes, in C order, little-endian
    DTYPE    bytes, string, float (float32), or bool, int8 ... uint64, float16, float32, float64;
             raw takes complex64, complex128 and bfloat16 too

Floats in an Example are float32, so ``float64`` means ``raw:float64``.

If two dimensions of a feature vary, the number of values does not determine its shape. Then each
record has the shape in a feature ``<name>/shape``, an ``int64[rank]``. Writing adds it for a
declared shape, and reading removes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, OptionError, SchemaConflict
from shardwriter.formats import RAW_DTYPES, UNSET, EncodedImage, Kind, RawArray, image_format

Encoding = Literal["list", "raw", "image"]
Shape = tuple[int | None, ...]

TIME_UNITS: Final = ("days", "s", "ms", "us", "ns")
"""Units of times stored as integers."""

WIDEST: Final[dict[str, str]] = {"int64": "int64", "float": "float32", "bytes": "bytes"}


def float_dtype(dtype: str) -> str:
    """Return the dtype of floats once they are in a list of an Example: float32 at most.

    Only raw arrays store float64.
    """
    return dtype if dtype == "float16" else "float32"


@dataclass(frozen=True)
class FeatureType:
    """The type of a feature.

    Attributes:
        kind: The list of ``tf.train.Feature`` that stores it; None if only unset values were seen.
        dtype: A numpy name, ``"bytes"`` or ``"string"``.
        shape: ``()`` for a scalar; None for the one dimension that varies.
        encoding: ``list`` (one list entry per value), ``raw`` (C-order little-endian bytes of an
            array) or ``image`` (an image file's bytes).
        format: For images ``jpeg``, ``png``, ..., or ``image`` if they differ. For times stored as
            integers their unit, one of TIME_UNITS; None if it is not declared.
    """

    kind: Kind | None = None
    dtype: str | None = None
    shape: Shape | None = None
    encoding: Encoding = "list"
    format: str | None = None

    def join(self, other: FeatureType) -> FeatureType:
        """Return the least type that covers both.

        Raises:
            ValueError: There is none; the message names the difference.
        """
        if self == other or other.kind is None:
            return self
        if self.kind is None:
            return other
        if self.kind != other.kind:
            raise ValueError(f"{self.kind} and {other.kind}")
        if self.encoding != other.encoding:
            raise ValueError(f"encodings {self.encoding} and {other.encoding}")
        if self.encoding == "raw" and self.dtype != other.dtype:
            raise ValueError(f"raw bytes of {self.dtype} and of {other.dtype}")
        if self.encoding != "image" and None is not self.format != other.format is not None:
            raise ValueError(f"times in {self.format} and in {other.format}")
        return FeatureType(
            self.kind,
            self.dtype if self.dtype == other.dtype else WIDEST[self.kind],
            _join_shapes(self.shape, other.shape),
            self.encoding,
            _join_formats(self.format, other.format),
        )


def _join_formats(a: str | None, b: str | None) -> str | None:
    if a is None or b is None:
        return a or b
    return a if a == b else "image"


def _join_shapes(a: Shape | None, b: Shape | None) -> Shape | None:
    if a == b or b is None:
        return a
    if a is None:
        return b
    if len(a) + len(b) == 1 or (len(a) == len(b) == 1):
        return (None,)
    if len(a) != len(b):
        raise ValueError(f"shapes {list(a)} and {list(b)}")
    joined = tuple(m if m == n else None for m, n in zip(a, b, strict=True))
    # Such a shape is valid only if it was declared; then it is one of the two.
    if needs_shape(joined) and joined not in (a, b):
        why = "two dimensions vary" if joined.count(None) > 1 else "an empty value has no shape"
        raise ValueError(f"shapes {list(a)} and {list(b)} ({why})")
    return joined


def needs_shape(shape: Shape | None) -> bool:
    """Return whether the number of values does not determine the shape of a value.

    That is so if two dimensions vary, or one varies and another is 0.
    """
    if shape is None or None not in shape:
        return False
    return shape.count(None) > 1 or 0 in shape


def signature(value: Any) -> object:
    """Return a hashable key of the facts that decide a value's type; None for lists and others."""
    value_type = type(value)
    if value_type is np.ndarray or value_type is np.memmap:
        return value.dtype, value.shape
    if value_type in _SCALAR_DTYPES or value_type in _NUMPY_SCALARS:
        return value_type
    if value_type is EncodedImage:
        return value_type, value.format
    return value.signature if value_type is RawArray else None


_NUMPY_SCALARS: Final = frozenset(
    [np.bool_, *(np.dtype(code).type for code in np.typecodes["AllInteger"] + "efd")]
)
_SCALAR_DTYPES: Final[dict[type, tuple[Kind, str]]] = {
    bool: ("int64", "bool"),
    int: ("int64", "int64"),
    float: ("float", "float32"),
    str: ("bytes", "string"),
    bytes: ("bytes", "bytes"),
    bytearray: ("bytes", "bytes"),
    memoryview: ("bytes", "bytes"),
}


def describe(name: str, value: Any, kind: Kind | None = None) -> FeatureType:
    """Return the type of one value.

    Args:
        name: Name of the feature, for errors.
        value: Its value.
        kind: The declared kind; a list of a declared float may have ints.

    Raises:
        FeatureError: An Example can not store the value.
    """
    scalar = _SCALAR_DTYPES.get(type(value))
    if scalar is not None:
        return FeatureType(*scalar, ())
    if isinstance(value, (list, tuple)):
        return _describe_list(name, value, kind)
    if isinstance(value, Steps):
        return _describe_steps(name, value.steps)
    if isinstance(value, RawArray):
        return FeatureType("bytes", value.array.dtype.name, value.array.shape, "raw")
    if isinstance(value, EncodedImage):
        return FeatureType("bytes", "bytes", (), "image", value.format)
    for base, (kind, dtype) in _SCALAR_DTYPES.items():
        if isinstance(value, base) and not isinstance(value, np.generic):
            return FeatureType(kind, dtype, ())
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        return _describe_array(name, np.asarray(value))
    raise FeatureError(
        f"an Example can not store a value of type {type(value).__name__}", feature=name
    )


class Steps:
    """The steps of a feature list, whose type is the joined type of its steps."""

    __slots__ = ("steps",)

    def __init__(self, steps: Any) -> None:
        self.steps = steps


def _describe_steps(name: str, steps: Any) -> FeatureType:
    if isinstance(steps, np.ndarray):
        steps = steps[:1]  # one dtype, one shape
    by_signature: dict[object, Any] = {}
    others = []
    for step in steps:
        if step is None or step is UNSET:
            continue
        key = signature(step)
        if key is None:
            others.append(step)
        else:
            by_signature[key] = step
    joined = FeatureType()
    try:
        for step in [*by_signature.values(), *others]:
            joined = joined.join(describe(name, step))
    except ValueError as conflict:
        raise FeatureError(
            f"the steps of one feature list differ: {conflict}",
            hint="give all steps one type, and one shape except for one dimension",
            feature=name,
        ) from None
    return joined


def _describe_list(
    name: str, values: list[Any] | tuple[Any, ...], kind: Kind | None
) -> FeatureType:
    if not values:
        return FeatureType()
    types = {describe(name, value, kind) for value in values} if len(values) < 64 else None
    if types is None:
        # Long lists of plain scalars are common (tokens); the set of their classes is enough.
        classes = set(map(type, values))
        if classes <= _SCALAR_DTYPES.keys():
            types = {FeatureType(*_SCALAR_DTYPES[c], ()) for c in classes}
        else:
            types = {describe(name, value, kind) for value in values}
    if kind == "float" and len(types) > 1:
        types = {replace(t, kind=kind) if t.kind == "int64" else t for t in types}
    joined = FeatureType()
    try:
        for found in types:
            joined = joined.join(found)
    except ValueError as conflict:
        raise FeatureError(
            f"one list has {conflict}", hint="give all its values the same type", feature=name
        ) from None
    inner = joined.shape or ()
    if None in inner:
        raise FeatureError(
            "a ragged nested list has no shape",
            hint="pad the rows, or store the flat values and the row lengths as two features",
            feature=name,
        )
    return replace(joined, shape=(len(values), *inner))


def _describe_array(name: str, array: np.ndarray[Any, Any]) -> FeatureType:
    code = array.dtype.kind
    if code in "biu":
        return FeatureType("int64", array.dtype.name, array.shape)
    if code == "f":
        return FeatureType("float", float_dtype(array.dtype.name), array.shape)
    if code in "SU":
        return FeatureType("bytes", "string" if code == "U" else "bytes", array.shape)
    raise FeatureError(f"an Example can not store an array of {array.dtype}", feature=name)


def as_planned(found: FeatureType, planned: FeatureType, value: Any) -> FeatureType:
    """Return the type of a value as planned: ints of a planned float are floats.

    Numbers get the plan's dtype. The caller has checked that it can represent them: the source, or
    :mod:`shardwriter.schema.declared` for a declared schema.
    """
    if found.kind is None:
        return replace(planned, shape=(0,))
    if found.encoding == "raw":
        return found
    is_number = found.kind == planned.kind and planned.kind in ("int64", "float")
    dtype = planned.dtype if is_number and planned.dtype is not None else found.dtype
    if planned.kind == "float" and found.kind == "int64":
        found, dtype = replace(found, kind="float"), planned.dtype
    if planned.encoding == "image" and isinstance(value, (bytes, bytearray, memoryview)):
        return replace(found, encoding="image", format=image_format(bytes(value[:16])))
    return replace(found, dtype=dtype, encoding=planned.encoding, format=planned.format)


# -- the text form ---------------------------------------------------------------------------------

LIST_DTYPES: Final = {
    "bytes": ("bytes", "bytes"),
    "string": ("bytes", "string"),
    "float": ("float", "float32"),
    **{f"float{bits}": ("float", f"float{bits}") for bits in (16, 32)},
    "float64": ("float", "float32"),  # in manifests of older versions; see `exact_type`
    **{f"int{bits}": ("int64", f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": ("int64", f"uint{bits}") for bits in (8, 16, 32, 64)},
    "bool": ("int64", "bool"),
}
"""Kind and dtype by the name in a schema, for values in a list."""

IMAGE: Final = FeatureType("bytes", "bytes", (), "image")

_FEATURE: Final = re.compile(
    r"\s*(?P<name>[^,]*?)\s*=\s*(?P<type>[^=,\[\]]*(\[[^\[\]=]*\])?)\s*(?:,|$)"
)
_TYPE: Final = re.compile(
    r"(?P<raw>raw:)?\s*(?P<dtype>\w+)(:(?P<unit>\w+))?\s*(?P<shape>\[[^\[\]]*\])?"
)
_HINT: Final = (
    "a type is int64, float, bytes, string, image (an image file), or a dtype and a shape, "
    "as in id=string,image=uint8[28,28],tokens=int64[null],mask=raw:uint8[null,null]"
)


def parse_schema_option(text: str) -> dict[str, FeatureType]:
    """Return the types of ``--schema NAME=TYPE,...``; see the module's docstring.

    Raises:
        OptionError: The text is malformed; the message has the position.
    """
    types: dict[str, FeatureType] = {}
    at = 0
    while True:
        found = _FEATURE.match(text, at)
        if found is None or not found["name"]:
            part = text[at:].split(",")[0]
            raise _syntax_error(f"{part!r} is not NAME=TYPE", at)
        name = found["name"]
        if name in types:
            raise _syntax_error(f"{name!r} is declared twice", at)
        try:
            types[name] = parse_type(found["type"])
        except ValueError as error:
            text = f"{name}={found['type']}"
            raise _syntax_error(
                f"{text!r} is not NAME=TYPE: {error}", found.start("type")
            ) from None
        at = found.end()
        if at >= len(text) and not text.endswith(","):
            return types


def _syntax_error(what: str, at: int) -> OptionError:
    return OptionError(f"--schema, character {at + 1}: {what}", hint=_HINT)


def parse_type(text: str) -> FeatureType:
    """Return the type of one TYPE text.

    Raises:
        ValueError: It is malformed; the message says why.
    """
    found = _TYPE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a type")
    dtype, shape = found["dtype"], _parse_shape(found["shape"])
    if found["unit"]:
        if found["raw"] or dtype != "int64":
            raise ValueError(f"{text.strip()!r}: only int64 has a unit, as in int64:ms")
        return time_type(found["unit"], shape)
    if found["raw"] or dtype == "float64":
        return raw_type(dtype, shape)
    if dtype == "image":
        if shape is not None:
            raise ValueError("an image file is one value, so image takes no shape")
        return IMAGE
    return list_type(dtype, shape)


def list_type(dtype: str, shape: Shape | None) -> FeatureType:
    """Return the type of values stored in a list.

    Raises:
        ValueError: A list can not store this dtype.
    """
    known = LIST_DTYPES.get(dtype)
    if known is None:
        only_raw = dtype in RAW_DTYPES
        raise ValueError(
            f"a list can not store {dtype!r} values; raw:{dtype} stores their bytes"
            if only_raw
            else f"{dtype!r} is not a dtype"
        )
    return FeatureType(known[0], known[1], shape)  # type: ignore[arg-type]


def time_type(unit: str, shape: Shape | None) -> FeatureType:
    """Return the type of times stored as integers.

    Raises:
        ValueError: The unit is unknown.
    """
    if unit not in TIME_UNITS:
        raise ValueError(f"{unit!r} is not a unit of time: {', '.join(TIME_UNITS)}")
    return FeatureType("int64", "int64", shape, format=unit)


def exact_type(found: FeatureType) -> FeatureType:
    """Return a type without precision loss: raw float64 in place of float64 in a list."""
    is_wide = (found.kind, found.dtype, found.encoding) == ("float", "float64", "list")
    return raw_type("float64", found.shape) if is_wide else found


def raw_type(dtype: str, shape: Shape | None) -> FeatureType:
    """Return the type of an array stored as its bytes.

    Raises:
        ValueError: Raw arrays can not have this dtype.
    """
    if dtype not in RAW_DTYPES:
        raise ValueError(f"{dtype!r} is not a dtype of raw bytes: {', '.join(RAW_DTYPES)}")
    return FeatureType("bytes", dtype, shape, "raw")


def type_text(feature_type: FeatureType) -> str:
    """Return a type in the text form of ``--schema``."""
    if feature_type.encoding == "image":
        return "image"
    shape = feature_type.shape
    sizes = "" if shape is None else f"[{','.join('null' if n is None else str(n) for n in shape)}]"
    unit = f":{feature_type.format}" if feature_type.format in TIME_UNITS else ""
    is_raw = feature_type.encoding == "raw" and feature_type.dtype != "float64"
    return f"{'raw:' if is_raw else ''}{feature_type.dtype}{unit}{sizes}"


def summary_text(feature_type: FeatureType) -> str:
    """Return a short description of a type: ``float32``, ``uint8[28,28]``, ``encoded jpeg``."""
    if feature_type.encoding == "image":
        return f"encoded {feature_type.format or 'image'}"
    if feature_type.kind is None:
        return "never set"
    return type_text(feature_type).removesuffix("[]")


def _parse_shape(text: str | None) -> Shape | None:
    if text is None:
        return None
    sizes = text[1:-1].strip()
    if not sizes:
        return ()
    shape: list[int | None] = []
    for size in map(str.strip, sizes.split(",")):
        if size != "null" and not (size.isascii() and size.isdigit()):
            raise ValueError(
                f"{size!r} in {text} is not a size: give a number, or null for one that varies"
            )
        shape.append(None if size == "null" else int(size))
    return tuple(shape)


# -- shapes in a separate feature ------------------------------------------------------------------

_SUFFIX: Final = "/shape"


def shape_feature(name: str) -> str:
    """Return the name of the feature that stores the shapes of another."""
    return name + _SUFFIX


def shape_feature_type(rank: int) -> FeatureType:
    """Return the type of a feature that stores shapes of ``rank`` dimensions."""
    return FeatureType("int64", "int64", (rank,))


def shape_features(types: Mapping[str, FeatureType]) -> dict[str, FeatureType]:
    """Return the types of the shape features that declared types need, by name."""
    return {
        shape_feature(name): shape_feature_type(len(found.shape))
        for name, found in types.items()
        if found.shape is not None and needs_shape(found.shape)
    }


def shape_feature_names(types: Mapping[str, FeatureType]) -> dict[str, str]:
    """Return the name of its shape feature for each feature that has one."""
    return {name: shape_feature(name) for name in types if _has_shape_feature(name, types)}


def _has_shape_feature(name: str, types: Mapping[str, FeatureType]) -> bool:
    shape, holder = types[name].shape, types.get(shape_feature(name))
    if holder is None or shape is None or not needs_shape(shape):
        return False
    return holder == shape_feature_type(len(shape))


def check_same_shape_features(
    feature: str,
    first: tuple[str, Mapping[str, FeatureType]],
    second: tuple[str, Mapping[str, FeatureType]],
) -> None:
    """Raise if only one of two sets of records has a shape feature for ``feature``.

    They would share one schema, which could not say which records have it.

    Args:
        feature: The feature of both.
        first: Name of a set of records for messages, and the types of its features.
        second: The same for the other set.

    Raises:
        SchemaConflict: Only one of them has the shape feature.
    """
    (name, types), (other_name, other_types) = first, second
    has_shapes = _has_shape_feature(feature, types)
    if has_shapes is _has_shape_feature(feature, other_types):
        return
    if not has_shapes:
        name, types, other_name, other_types = other_name, other_types, name, types
    if other_types[feature].kind is None:
        return  # the feature has no value there
    raise SchemaConflict(
        f"the records of {name} have their shapes in {shape_feature(feature)!r}, but those of "
        f"{other_name} do not",
        hint=f"write {other_name} with --schema '{feature}={type_text(types[feature])}' too",
        feature=feature,
    )


def reshaped(name: str, flat: Any, sizes: Any, declared: Shape) -> Any:
    """Return the values of one record with the shape from the shape feature.

    Args:
        name: Name of the feature, for errors.
        flat: Its values, one-dimensional; None for a feature with no kind.
        sizes: The shape, ``int64[rank]``; None if the shape feature is missing.
        declared: The schema's shape.

    Raises:
        FeatureError: The shape is missing, or contradicts the values or the schema.
    """
    if flat is None:
        return None
    shape = None if sizes is None else tuple(np.asarray(sizes).reshape(-1).tolist())
    # An empty value may have sizes of 0 in any dimensions.
    values: NDArray[Any] = flat if isinstance(flat, np.ndarray) else np.array(flat, object)
    if shape is None or not _is_shape_of(shape, declared, values.size):
        raise FeatureError(
            f"{values.size:,} values, but {shape_feature(name)!r} "
            f"{'is missing' if shape is None else f'is {list(shape)}'}",
            hint="did another program change one without the other?",
            feature=name,
        )
    shaped = values.reshape(shape)
    return shaped if isinstance(flat, np.ndarray) else shaped.tolist()


def _is_shape_of(shape: Iterable[int], declared: Shape, num_values: int) -> bool:
    sizes = list(shape)
    if len(sizes) != len(declared) or any(size < 0 for size in sizes):
        return False
    fits = all(known in (None, size) for size, known in zip(sizes, declared, strict=True))
    return fits and int(np.prod(sizes, dtype=object)) == num_values
