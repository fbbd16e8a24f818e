"""One Python value -> one ``Feature`` on the wire. Which value has which kind: FORMATS.md, F9.

What is made here is the second half of a map entry (the first is the key)::

    12 <size> | 1a <size> | 0a <size> <varints>             int64: bool, int, integer arrays
    12 <size> | 12 <size> | 0a <size> <float32 LE ...>      float: float, float arrays
    12 <size> | 0a <size> | (0a <size> <bytes>) ...         bytes: str (UTF-8), bytes, buffers,
                                                            and the bytes of `raw` arrays
    12 00                                                   unset: a Feature with no kind
    value       Feature     the list
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError
from shardwriter.formats.encoded import EncodedImage
from shardwriter.formats.feature_errors import (
    Kind,
    leaf_kind,
    list_up,
    mixed_numbers,
    no_place,
    no_place_for_dtype,
    out_of_int64,
    overflow,
    ragged,
    type_name,
)
from shardwriter.formats.float32 import (
    EXACT,
    NOTED,
    SMALLEST,
    as_float32,
    integers_as_float64,
    note_float,
)
from shardwriter.formats.raw_array import RawArray
from shardwriter.formats.varint import encode_varint, encode_varints

# Ready bytes; or, for what is too large to be copied twice, (number of bytes, the buffers).
Encoded: TypeAlias = "bytes | tuple[int, list[bytes | memoryview]]"
Encoder: TypeAlias = Callable[[Any], Encoded]

KINDS: Final[tuple[Kind, ...]] = ("bytes", "float", "int64")
UNSET_FEATURE: Final = b"\x12\x00"

_LIST_TAGS: Final[dict[Kind, bytes]] = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}
_PACK_FLOAT: Final = struct.Struct("<6sf").pack
_FLOAT_HEAD: Final = b"\x12\x08\x12\x06\x0a\x04"
# Below this, one more copy is cheaper than one more buffer in the join.
_COPIED_BYTES: Final = 4096
_MAX_NESTING: Final = 32


class Unset:
    """The type of `UNSET`; there is one instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Its name."""
        return "UNSET"

    def __reduce__(self) -> str:
        """Pickle and copy by name, which gives the same object back."""
        return "UNSET"


#: A Feature that is there and has no kind: an empty CSV cell, a null.
UNSET: Final = Unset()


def encode_value(value: Any, kind: Kind | None = None) -> Encoded:
    """Write one value as the value half of a map entry.

    Args:
        value: Anything that F9 gives a kind; not None, which is no Feature at all.
        kind: The kind that the plan gives, or None to take it from the value.

    Returns:
        ``12 <size> <Feature>``.

    Raises:
        FeatureError: The value has no place in a Feature, or not in one of this kind.
    """
    encode = ENCODERS[kind].get(type(value))
    return encode(value) if encode is not None else encode_any(value, kind)


def encode_any(value: Any, kind: Kind | None) -> Encoded:
    """Write a value of any type: what `ENCODERS` has no short way for."""
    if value is UNSET:
        return UNSET_FEATURE
    if isinstance(value, np.ndarray):
        return encode_array(value, kind)
    if isinstance(value, list | tuple):
        return _encode_sequence(value, kind)
    if isinstance(value, str | bytes | bytearray | memoryview):
        return _encode_blobs([_as_bytes(value, kind)])
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        return encode_array(_as_array(value), kind)
    if isinstance(value, int):
        # int(): a subclass (IntEnum) may hash as it likes.
        number = int(value)
        return _INT_FEATURES[number] if kind in (None, "int64") else _int_elsewhere(number, kind)
    if isinstance(value, float) and kind in (None, "float"):
        return _encode_float(value)
    if isinstance(value, RawArray):
        raise FeatureError(f"an array of raw bytes, and the plan says {kind}")
    raise no_place(value, kind)


def encode_array(array: NDArray[Any] | np.generic, kind: Kind | None = None) -> Encoded:
    """Write an array of any shape, in C order, with the kind of its dtype or of the plan."""
    if type(array) is not np.ndarray:
        if isinstance(array, np.ma.MaskedArray):
            raise FeatureError("a masked array", hint="give array.filled(value)")
        array = np.asarray(array)
    code = array.dtype.kind
    if code == "f" and kind in (None, "float"):
        return packed_feature("float", _contiguous(as_float32(array)).data, 4 * array.size)
    if code in "iub" and kind in (None, "int64"):
        varints = encode_varints(as_integers(array).ravel())  # ravel: contiguous
        return packed_feature("int64", varints.data, varints.size)
    if code in "iub" and kind == "float":
        return encode_array(integers_as_float64(array), kind)
    if code == "U" and kind in (None, "bytes"):
        return _encode_blobs([_utf8(text) for text in array.reshape(-1).tolist()])
    if code == "S" and kind == "bytes":
        return _encode_blobs(array.reshape(-1).tolist())
    raise no_place_for_dtype(array.dtype, kind)


def packed_feature(kind: Kind, packed: memoryview, size: int) -> Encoded:
    """Put a packed list (contiguous, of ``size`` bytes) into its Feature."""
    head = packed_head(kind, size)
    if size <= _COPIED_BYTES:
        return head + packed
    return len(head) + size, [head, packed]


@lru_cache(maxsize=4096)
def packed_head(kind: Kind, size: int) -> bytes:
    """Write what comes before ``size`` bytes of packed varints or floats."""
    if size == 0:
        return b"\x12\x02" + _LIST_TAGS[kind] + b"\x00"  # an empty list has no packed field
    head = b"\x0a" + encode_varint(size)
    return _feature_head(kind, head, size)


@lru_cache(maxsize=4096)
def blob_head(size: int) -> bytes:
    """Write what comes before the only item, of ``size`` bytes, of a bytes list."""
    return _feature_head("bytes", b"\x0a" + encode_varint(size), size)


def as_integers(array: NDArray[Any]) -> NDArray[Any]:
    """Check that integers or bools fit int64, and bring them into native byte order.

    Raises:
        FeatureError: A uint64 is over 2**63 - 1.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.uint64 and array.size and not _fits_int64(array.max()):
        raise out_of_int64(int(array.max()))
    return array


def as_blob(value: Any) -> bytes:
    """Turn a str, bytes, bytearray or memoryview into the bytes that are written."""
    return _utf8(value) if isinstance(value, str) else bytes(value)


class _IntFeatures(dict[int, bytes]):
    """Ready Features of single integers. Labels, sizes and flags are the same ones all the time."""

    def __missing__(self, value: int) -> bytes:
        if not _fits_int64(value):
            raise out_of_int64(value)
        varint = encode_varint(value)
        feature = packed_head("int64", len(varint)) + varint
        if len(self) < 8192:
            self[value] = feature
        return feature


_INT_FEATURES: Final = _IntFeatures()


def _encode_numpy_int(value: np.int64) -> bytes:
    return _INT_FEATURES[int(value)]


def _int_elsewhere(value: int, kind: Kind | None) -> Encoded:
    """Write an int where the plan says something else than int64."""
    if kind != "float":
        raise no_place(value, kind)
    try:
        wide = float(value)
    except OverflowError:
        raise overflow(value) from None
    if wide != value:
        NOTED.has_lost = True
    return _encode_float(wide)


def _encode_float(value: float) -> bytes:
    if not (SMALLEST <= value < EXACT or value == 0 or -EXACT < value <= -SMALLEST):
        note_float(value)
    try:
        return _PACK_FLOAT(_FLOAT_HEAD, value)
    except OverflowError:
        raise overflow(value) from None


def _encode_str(value: str) -> Encoded:
    return _encode_blob(_utf8(value))


def _encode_blob(data: bytes) -> Encoded:
    size = len(data)
    if size <= _COPIED_BYTES:
        return blob_head(size) + data
    head = blob_head(size)
    return len(head) + size, [head, data]


def _encode_raw(value: RawArray) -> Encoded:
    data = value.data
    head = blob_head(data.nbytes)
    if data.nbytes <= _COPIED_BYTES:
        return head + data
    return len(head) + data.nbytes, [head, data]


def _encode_blobs(blobs: Sequence[bytes]) -> Encoded:
    if len(blobs) == 1:
        return _encode_blob(blobs[0])
    parts: list[bytes | memoryview] = [b""]
    for data in blobs:
        parts += (b"\x0a" + encode_varint(len(data)), data)
    size = sum(map(len, parts))
    parts[0] = _feature_head("bytes", b"", size)
    return len(parts[0]) + size, parts


def _feature_head(kind: Kind, head: bytes, size: int) -> bytes:
    """Put the value tag, the Feature's tag and both sizes before ``head`` and ``size`` bytes."""
    head = _LIST_TAGS[kind] + encode_varint(len(head) + size) + head
    return b"\x12" + encode_varint(len(head) + size) + head


def _encode_sequence(values: Sequence[Any], kind: Kind | None) -> Encoded:
    if len(values) == 1 and type(values[0]) in _LEAF_TYPES:
        return encode_value(values[0], kind)  # a list of one is written as its item is
    leaves, types = _flatten(values)
    if isinstance(leaves, np.ndarray):
        return encode_array(leaves, kind)
    if not leaves:
        return UNSET_FEATURE if kind is None else packed_head(kind, 0)
    kinds = {leaf_kind(leaf_type) for leaf_type in types}
    if RawArray in types:
        raise FeatureError(
            "a list of raw arrays", hint="store one array: sw.raw(numpy.stack(arrays))"
        )
    if None in kinds:
        raise no_place(next(v for v in leaves if leaf_kind(type(v)) is None), kind, inside=True)
    if kinds == {"float", "int64"} and kind in (None, "int64"):
        raise mixed_numbers(kind)
    if len(kinds) > 1 and kinds != {"float", "int64"}:
        raise FeatureError(
            f"a list mixes {list_up(sorted(t.__name__ for t in types))}",
            hint="a Feature holds one kind: bytes, float or int64",
        )
    if kinds == {"bytes"}:
        return _encode_blobs([_as_bytes(leaf, kind) for leaf in leaves])
    if kinds == {"int64"} and kind != "float":
        return encode_array(_int_array(leaves, types), kind)
    return encode_array(_float_array(leaves, types), kind)


def _flatten(values: Sequence[Any]) -> tuple[Sequence[Any] | NDArray[Any], set[type]]:
    """Bring nested lists, tuples and arrays into one flat list in C order.

    Returns:
        The leaves, and their types; or one array and no types, where the innermost level is
        made of arrays.
    """
    for depth in range(_MAX_NESTING):
        types = set(map(type, values))
        if depth and any(leaf_kind(leaf_type) == "bytes" for leaf_type in types):
            raise FeatureError("a nested list of strings", hint="make it one flat list")
        if types <= _LEAF_TYPES:
            return values, types
        values = [_as_array(v) if _is_array_like(v) else v for v in values]
        sequences = [isinstance(v, list | tuple) or getattr(v, "ndim", 0) > 0 for v in values]
        if not any(sequences):
            values = [v[()] if isinstance(v, np.ndarray) else v for v in values]
            return values, set(map(type, values))
        if not all(sequences):
            raise ragged("lists and single values side by side")
        if all(isinstance(v, np.ndarray) for v in values):
            return _join_arrays(values), set()
        values = [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
        lengths = set(map(len, values))
        if len(lengths) > 1:
            raise ragged(f"rows of {list_up(sorted(lengths))} values")
        values = list(chain.from_iterable(values))
    raise FeatureError(f"a list is nested over {_MAX_NESTING} deep")


def _join_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ragged(f"arrays of the shapes {list_up(sorted(shapes))}")
    kinds = {leaf_kind(array.dtype.type) for array in arrays}
    if kinds == {"int64"}:
        # One by one: numpy would join uint64 and int64 as float64.
        return np.stack([as_integers(array).astype(np.int64) for array in arrays])
    if kinds == {"float", "int64"}:
        raise mixed_numbers(None)
    if len(kinds) > 1 or kinds == {"bytes"}:
        raise FeatureError("a list of arrays that are not all numbers", hint="make it one array")
    return np.stack(arrays)


def _int_array(leaves: Sequence[Any], types: set[type]) -> NDArray[np.int64]:
    if not types <= _LEAF_TYPES:
        leaves = list(map(int, leaves))  # numpy would let a np.uint64 wrap around
    try:
        return np.array(leaves, np.int64)
    except OverflowError:
        raise out_of_int64(next(v for v in leaves if not _fits_int64(v))) from None


def _float_array(leaves: Sequence[Any], types: set[type]) -> NDArray[Any]:
    if all(issubclass(leaf_type, np.floating) for leaf_type in types):
        return np.array(leaves)  # of their own dtype: float32 keeps its bits
    try:
        return np.array(leaves, np.longdouble) if np.longdouble in types else _wide(leaves, types)
    except OverflowError:
        raise FeatureError("an int in a list is too large for float32") from None


def _wide(leaves: Sequence[Any], types: set[type]) -> NDArray[np.float64]:
    return np.array(leaves, np.float64) if types == {float} else integers_as_float64(leaves)


_LEAF_TYPES: Final = frozenset({int, float, bool, str, bytes, bytearray, memoryview})


def _fits_int64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _is_array_like(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def _as_array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # torch: RuntimeError or TypeError; other libraries: their own
        raise FeatureError(
            f"{type_name(value)} does not turn into a numpy array: {error}",
            hint="give tensor.float(): every bfloat16 is a float32"
            if "BFloat16" in str(error)
            else "give a numpy array (for torch: tensor.detach().cpu().numpy())",
        ) from error


def _contiguous(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FeatureError(
            "a str holds a lone surrogate, which UTF-8 can not hold",
            hint='give bytes, such as text.encode("utf-8", "surrogateescape")',
        ) from None


def _as_bytes(value: Any, kind: Kind | None) -> bytes:
    if kind not in (None, "bytes"):
        raise no_place(value, kind)
    if isinstance(value, np.bytes_) and kind is None:
        raise no_place_for_dtype(np.dtype("S"), kind)
    return as_blob(value)


_INTS: Final[dict[type, Encoder]] = {
    int: _INT_FEATURES.__getitem__,
    bool: _INT_FEATURES.__getitem__,
    np.int64: _encode_numpy_int,
}
_FLOATS: Final[dict[type, Encoder]] = {float: _encode_float, np.float64: _encode_float}
_BLOBS: Final[dict[type, Encoder]] = {
    str: _encode_str,
    bytes: _encode_blob,
    RawArray: _encode_raw,
    EncodedImage: _encode_blob,
}


class _Encoders(dict["Kind | None", "dict[type, Encoder]"]):
    def __missing__(self, kind: object) -> dict[type, Encoder]:
        raise FeatureError(f"the plan says {kind!r}", hint=f"a kind is one of {list_up(KINDS)}")


#: For each planned kind, and for None, the short ways by exact type. Others: `encode_any`.
ENCODERS: Final = _Encoders(
    {
        None: {**_INTS, **_FLOATS, **_BLOBS, np.ndarray: encode_array},
        "int64": {**_INTS, np.ndarray: partial(encode_array, kind="int64")},
        "float": {**_FLOATS, np.ndarray: partial(encode_array, kind="float")},
        "bytes": _BLOBS,
    }
)
