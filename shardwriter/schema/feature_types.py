"""The type of a feature: what a value is, and what covers two values.

The join is commutative, associative and idempotent, so any order and any division of the records
gives the same type:

=========  ====================================================================================
kind       unset < int64, float, bytes < conflict (an error: int and float in one feature)
dtype      equal, else the widest of the kind; raw bytes: equal, or a conflict
shape      equal, else one dimension becomes null; a scalar and a list become [null]
format     (images) equal, else "image"; units of times: equal, or a conflict
=========  ====================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from shardwriter.errors import FeatureError
from shardwriter.formats.encoded import EncodedImage
from shardwriter.formats.example import UNSET, Kind
from shardwriter.formats.images import image_format
from shardwriter.formats.raw_array import RawArray

Encoding = Literal["list", "raw", "image"]
Shape = tuple[int | None, ...]

TIME_UNITS: Final = ("days", "s", "ms", "us", "ns")
"""Units of times that are stored as integers."""

WIDEST: Final[dict[str, str]] = {"int64": "int64", "float": "float32", "bytes": "bytes"}


def float_dtype(dtype: str) -> str:
    """Return what floats of a dtype are once they stand in a list of an Example: float32 at most.

    Only raw bytes hold float64.
    """
    return dtype if dtype == "float16" else "float32"


@dataclass(frozen=True)
class FeatureType:
    """The type of a feature.

    Attributes:
        kind: The list of ``tf.train.Feature`` that holds it; None while only unset ones were seen.
        dtype: A numpy name, ``"bytes"`` or ``"string"``.
        shape: ``()`` for a scalar; None for the one dimension that varies.
        encoding: ``list`` (one list entry a value), ``raw`` (C-order little-endian bytes of an
            array) or ``image`` (an image file's bytes).
        format: Of an image: ``jpeg``, ``png``, ...; ``image`` when they differ. Of an integer that
            is a time: its unit, one of TIME_UNITS; None where nobody declared it.
    """

    kind: Kind | None = None
    dtype: str | None = None
    shape: Shape | None = None
    encoding: Encoding = "list"
    format: str | None = None

    def join(self, other: FeatureType) -> FeatureType:
        """Return the least type that covers both.

        Raises:
            ValueError: There is none; the message says what differs.
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
    # Such a shape was declared, or is none: then the declared one covers the other.
    if needs_shape(joined) and joined not in (a, b):
        why = "two dimensions vary" if joined.count(None) > 1 else "without values none is told"
        raise ValueError(f"shapes {list(a)} and {list(b)} ({why})")
    return joined


def needs_shape(shape: Shape | None) -> bool:
    """Say whether the number of values does not tell a value's shape.

    That is where two dimensions vary, or one beside a dimension of 0. Where that was declared each
    record has the shape in a feature of its own; see :mod:`shardwriter.schema.shape_features`.
    """
    if shape is None or None not in shape:
        return False
    return shape.count(None) > 1 or 0 in shape


def signature(value: Any) -> object:
    """What decides a value's type, where that is cheap to say; None for lists and the like."""
    kind = type(value)
    if kind is np.ndarray or kind is np.memmap:
        return value.dtype, value.shape
    if kind in _SCALAR_DTYPES or kind in _NUMPY_SCALARS:
        return kind
    if kind is EncodedImage:
        return kind, value.format
    return value.look if kind is RawArray else None


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
        name: Of the feature, for errors.
        value: What the record has.
        kind: What a plan binds the feature to: a list of floats may hold ints then.

    Raises:
        FeatureError: The value has no place in an Example.
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
    raise FeatureError(f"{type(value).__name__} has no place in an Example", feature=name)


class Steps:
    """The steps of a feature list, which have one type together: that of a step."""

    __slots__ = ("steps",)

    def __init__(self, steps: Any) -> None:
        self.steps = steps


def _describe_steps(name: str, steps: Any) -> FeatureType:
    if isinstance(steps, np.ndarray):
        steps = steps[:1]  # one dtype, one shape
    kinds: dict[object, Any] = {}
    others = []
    for step in steps:
        if step is None or step is UNSET:
            continue
        look = signature(step)
        if look is None:
            others.append(step)
        else:
            kinds[look] = step
    joined = FeatureType()
    try:
        for step in [*kinds.values(), *others]:
            joined = joined.join(describe(name, step))
    except ValueError as conflict:
        raise FeatureError(
            f"the steps of one list are {conflict}",
            hint="make all of them one type, and one shape but for one dimension",
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
            f"one list holds {conflict}", hint="make all its values the same type", feature=name
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
    raise FeatureError(f"an array of {array.dtype} has no place in an Example", feature=name)


def as_planned(found: FeatureType, planned: FeatureType, value: Any) -> FeatureType:
    """See a value as the plan has it: ints are floats under a float plan, a list has its kind.

    Numbers have the plan's dtype. Whether it holds them was looked at by who made the plan: a
    source, or :mod:`shardwriter.schema.bound_values` for what a person declared.
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
