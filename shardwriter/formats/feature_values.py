"""Encode one Python value as a ``Feature`` of the kind that its type has.

The result is the value half of a map entry (the other half is the key)::

    12 <size> | 1a <size> | 0a <size> <varints>             int64: bool, int, integer arrays
    12 <size> | 12 <size> | 0a <size> <float32 LE ...>      float: float, float arrays
    12 <size> | 0a <size> | (0a <size> <bytes>) ...         bytes: str (UTF-8), bytes, buffers,
                                                            and the bytes of `raw` arrays
    12 00                                                   unset: a Feature with no kind
    value       Feature     the list

Raw arrays (`raw`) are one bytes value in C order, little-endian; dtype and shape are in the schema
only.

A Feature stores floats as float32. Rounding to its 24 bits is expected for measured values. A
number is *inexact* here where more is lost: one from 2**24 on that changes (a time stamp, an id),
or one so small that most of its digits go. It is encoded all the same, and :data:`PRECISION`
records that it happened, so a caller can warn. The same rule holds for other float types with their
numbers of bits: integers from 2**53 on may be inexact in float64.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, MissingExtra
from shardwriter.formats.media import EncodedImage
from shardwriter.formats.varint import encode_varint, encode_varints

Kind: TypeAlias = Literal["bytes", "float", "int64"]


def leaf_kind(leaf_type: type) -> Kind | None:
    """Return the kind of single values of a type; None if a Feature can not hold them."""
    if issubclass(leaf_type, str | bytes | bytearray | memoryview):
        return "bytes"
    if issubclass(leaf_type, int | np.bool_) or issubclass(leaf_type, np.integer):
        return None if issubclass(leaf_type, np.timedelta64) else "int64"
    return "float" if issubclass(leaf_type, float | np.floating) else None


def no_place(value: Any, kind: Kind | None, *, inside: bool = False) -> FeatureError:
    """Return the error for a value of an unsupported type, or of another kind than planned."""
    where = "a list holds " if inside else ""
    if kind is not None and leaf_kind(type(value)) is not None:
        return FeatureError(f"{where}{type_name(value)}, but the schema says {kind}")
    if any(each.__module__.startswith("PIL.") for each in type(value).__mro__):
        return FeatureError(
            f"{where}{type_name(value)}, but a Feature holds bytes, not an image object",
            hint="give sw.png(image) or sw.jpeg(image) for a file, np.asarray(image) for pixels",
        )
    hints = {
        "set": "sort it into a list",
        "dict": "make each of its values a separate feature",
        "NoneType": "remove it from the list, or replace it with a value",
    }
    hint = hints.get(
        type(value).__name__,
        "give a bool, int, float, str, bytes, a flat list of one of these, or a numpy array",
    )
    if type(value).__module__.partition(".")[0] == "PIL":
        hint = (
            "convert it in a map: sw.png(image) or sw.jpeg(image) for a file, "
            "numpy.asarray(image) for pixels"
        )
    return FeatureError(f"{where}{type_name(value)}, which a Feature can not hold", hint=hint)


def no_place_for_dtype(dtype: np.dtype[Any], kind: Kind | None) -> FeatureError:
    """Return the error for an array of an unsupported dtype, or of another kind than planned."""
    if kind is not None and dtype.kind in "fiubUS":
        hint = "give array.tobytes()" if kind == "bytes" else None
        return FeatureError(f"numpy {dtype.name} values, but the schema says {kind}", hint=hint)
    hints = {
        "S": "numpy drops trailing NULs from these: give a list of bytes, or declare it as bytes",
        "O": "give a list of str or bytes, or an array of numbers",
        "M": "give .astype('datetime64[ms]').astype('int64'), or a str",
        "m": "give .astype('timedelta64[ms]').astype('int64')",
        "c": "give the real and the imaginary part as two features",
    }
    return FeatureError(
        f"numpy {dtype.name} values, which a Feature can not hold",
        hint=hints.get(dtype.kind, "convert it, for example .astype('float32')"),
    )


def mixed_numbers(kind: Kind | None) -> FeatureError:
    """Return the error for int and float in one list."""
    if kind == "int64":
        return FeatureError("a list holds a float, but the schema says int64")
    return FeatureError(
        "a list mixes int and float",
        hint="make all of them float, or declare the feature as float",
    )


def overflow(value: Any) -> FeatureError:
    """Return the error for a finite number that would become infinite in float32."""
    return FeatureError(
        f"a finite number is too large for float32 (over 3.4e38): {_short(value)}",
        hint="clip or scale it, or store it as bytes",
    )


def out_of_int64(value: int) -> FeatureError:
    """Return the error for an integer outside of int64."""
    return FeatureError(
        f"an integer is outside int64: {_short(value)}",
        hint="store it as a str or bytes, or take it modulo 2**64 as a signed number",
    )


def ragged(what: str) -> FeatureError:
    """Return the error for nested lists that are not rectangular."""
    return FeatureError(
        f"a nested list is not rectangular: {what}",
        hint="pad the rows, or store the flat values and the row lengths as two features",
    )


def type_name(value: Any) -> str:
    """Return the name of a value's type, with its module unless it is a builtin."""
    module, name = type(value).__module__, type(value).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def _short(value: Any) -> str:
    # By default Python refuses to convert a huge int to decimal (sys.set_int_max_str_digits).
    if isinstance(value, int) and value.bit_length() > 128:
        return f"of {value.bit_length()} bits"
    return str(value)


def list_text(values: Sequence[Any]) -> str:
    """Return the first few values as text."""
    texts = [str(value) for value in values[:4]]
    return " and ".join(texts) if len(values) <= 4 else ", ".join(texts) + ", ..."


RAW_DTYPES: Final = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bfloat16",
)
"""The dtypes of raw arrays. ``bfloat16`` is that of the package ``ml_dtypes``."""

_HINTS: Final = {
    "O": "give an array of numbers; Python objects can not be stored as bytes",
    "U": "give a list of str, which is stored as text",
    "S": "give a list of bytes",
    "M": "give .astype('datetime64[ms]').astype('int64')",
    "m": "give .astype('timedelta64[ms]').astype('int64')",
    "V": "give each field as a separate feature",
    "f": "give .astype('float64')",
    "c": "give .astype('complex128')",
}


class RawArray:
    """An array to be stored as its bytes; the result of `raw`.

    Attributes:
        array: The array in C order, little-endian.
    """

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    @property
    def signature(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """A hashable key of the facts that decide its feature type."""
        return "raw", self.array.dtype, self.array.shape

    @property
    def data(self) -> memoryview:
        """The bytes of the array."""
        return self.array.reshape(-1).view(np.uint8).data

    def __repr__(self) -> str:
        return f"raw({self.array.dtype.name}{list(self.array.shape)})"


def raw(array: Any) -> RawArray:
    """Return an array marked to be stored as one bytes value instead of a list of numbers.

    Args:
        array: A numpy array of any shape, or an object that converts to one (a CPU tensor): bools,
            integers, floats, complex numbers, or ``bfloat16`` of ``ml_dtypes``. It is copied only
            if it is not in C order and little-endian.

    Returns:
        A value for a feature of an item. Reading returns the array, since dtype and shape are in
        the manifest.

    Raises:
        FeatureError: The dtype can not be stored as bytes.
    """
    if isinstance(array, RawArray):
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise FeatureError("a masked array", hint="give array.filled(value)")
    try:
        found = np.asarray(array)
    except Exception as error:  # torch: RuntimeError or TypeError; other libraries: their own
        raise FeatureError(
            f"{type_name(array)} can not be converted to a numpy array: {error}",
            hint="for torch: tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)"
            if "BFloat16" in str(error)
            else "give a numpy array (for torch: tensor.detach().cpu().numpy())",
        ) from error
    if found.dtype.name not in RAW_DTYPES:
        raise FeatureError(
            f"an array of {found.dtype} can not be stored as raw bytes",
            hint=_HINTS.get(found.dtype.kind),
        )
    if not found.flags.c_contiguous:
        found = found.copy()
    return RawArray(found.astype(found.dtype.newbyteorder("<"), copy=False))


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of a name in a schema.

    Raises:
        TypeError: The name is unknown.
        MissingExtra: It is ``bfloat16``, and ``ml_dtypes`` is not installed.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise MissingExtra(
                "arrays of bfloat16 need the package ml_dtypes", hint="pip install ml_dtypes"
            ) from None
        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(name)
    return found


EXACT: Final = 2.0**24
"""float32 represents all whole numbers up to here."""

EXACT_FLOAT64: Final = 2.0**53
"""float64 represents all whole numbers up to here."""

SMALLEST: Final = 2.0**-126
"""float32 has fewer bits for smaller numbers."""

BITS: Final = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Bits of the significand, by dtype."""

_FLOAT32: Final = np.dtype("<f4")


class _Precision(threading.local):
    """Precision loss while encoding, per thread.

    Attributes:
        has_lost: Whether an inexact number was encoded since this was last set to False.
    """

    has_lost = False


PRECISION: Final = _Precision()


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return floats as little-endian float32, and record inexact numbers in `PRECISION`.

    Args:
        array: ``float*[...]``; float32 is returned unchanged.

    Raises:
        FeatureError: A finite number is too large for float32.
    """
    if array.dtype == _FLOAT32:
        return array
    if array.itemsize <= 4:
        return array.astype(_FLOAT32)
    wide = array if array.itemsize == 8 else _as_float64(array)
    try:
        with np.errstate(over="raise", under="raise", invalid="ignore"):
            narrow = wide.astype(_FLOAT32)
    except FloatingPointError:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            narrow = wide.astype(_FLOAT32)
    else:
        # fmax ignores NaN; if all are NaN the comparison is false.
        if not narrow.size or np.fmax.reduce(np.abs(narrow), None) < EXACT:
            return narrow
    infinite = np.isinf(narrow) & np.isfinite(array)
    if infinite.any():
        raise overflow(array[infinite].flat[0])
    if first_inexact(wide) is not None:
        PRECISION.has_lost = True
    return narrow


def _as_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """Return longdoubles as float64."""
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(np.float64)


def note_float(value: float) -> None:
    """Record in `PRECISION` whether a single number is inexact in float32."""
    if first_inexact(np.array([value])) is not None:
        PRECISION.has_lost = True


def integers_as_float64(integers: NDArray[Any] | Sequence[Any]) -> NDArray[np.float64]:
    """Return integers, or a list of numbers, as float64; record inexact ones in `PRECISION`.

    Raises:
        OverflowError: An integer is too large for float64.
    """
    wide = np.asarray(integers, np.float64)
    if wide.size and not np.abs(wide).max() < EXACT_FLOAT64:
        exact = integers if isinstance(integers, np.ndarray) else np.array(integers, object)
        if first_inexact(exact, "float64") is not None:
            PRECISION.has_lost = True
    return wide


def first_inexact(values: NDArray[Any], dtype: str = "float32") -> int | None:
    """Return the position of the first inexact number in the flat array; None if there is none.

    Args:
        values: Numbers of any dtype and shape; of dtype object if integers and floats are mixed.
        dtype: The dtype in which they are stored, one of :data:`BITS`.
    """
    flat = values.reshape(-1)
    bits = BITS[dtype]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wide = flat.astype(np.float64)
        narrow = wide.astype(dtype_named(dtype)).astype(np.float64)
        size = np.abs(wide)
        is_lost = (size >= 2.0**bits) | (np.abs(narrow - wide) > size * 2.0**-bits)
        is_lost &= (narrow != wide) & np.isfinite(wide)
    first = int(is_lost.argmax()) if is_lost.any() else len(flat)
    if flat.dtype.kind in "iuO":  # the conversion to float64 may have changed earlier integers
        for row in map(int, np.flatnonzero(size[:first] >= EXACT_FLOAT64)):
            number = flat[row]
            if isinstance(number, int | np.integer) and int(number) != float(narrow[row]):
                return row
    return first if first < len(flat) else None


# The bytes; or, for values too large to copy twice, (number of bytes, the buffers).
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
        """Return the name."""
        return "UNSET"

    def __reduce__(self) -> str:
        """Return the name, so pickling and copying give the same object."""
        return "UNSET"


#: A Feature that is present and has no kind: an empty CSV cell, a null.
UNSET: Final = Unset()


def encode_value(value: Any, kind: Kind | None = None) -> Encoded:
    """Return one value as the value half of a map entry: ``12 <size> <Feature>``.

    Args:
        value: A value of a type that has a kind; not None, which means no Feature at all.
        kind: The declared kind, or None to take it from the value.

    Raises:
        FeatureError: A Feature, or one of this kind, can not hold the value.
    """
    encode = ENCODERS[kind].get(type(value))
    return encode(value) if encode is not None else encode_any(value, kind)


def encode_any(value: Any, kind: Kind | None) -> Encoded:
    """Return a value of any type as `encode_value` does; for types without a fast encoder."""
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
        # int(): a subclass (IntEnum) may define its own hash.
        number = int(value)
        return (
            _INT_FEATURES[number] if kind in (None, "int64") else _encode_planned_int(number, kind)
        )
    if isinstance(value, float) and kind in (None, "float"):
        return _encode_float(value)
    if isinstance(value, RawArray):
        raise FeatureError(f"a raw array, but the schema says {kind}")
    raise no_place(value, kind)


def encode_array(array: NDArray[Any] | np.generic, kind: Kind | None = None) -> Encoded:
    """Return an array of any shape, in C order, with the kind of its dtype or the declared one."""
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
    """Return the Feature of a packed list, which is contiguous and has ``size`` bytes."""
    head = packed_head(kind, size)
    if size <= _COPIED_BYTES:
        return head + packed
    return len(head) + size, [head, packed]


@lru_cache(maxsize=4096)
def packed_head(kind: Kind, size: int) -> bytes:
    """Return the bytes before ``size`` bytes of packed varints or floats."""
    if size == 0:
        return b"\x12\x02" + _LIST_TAGS[kind] + b"\x00"  # an empty list has no packed field
    head = b"\x0a" + encode_varint(size)
    return _feature_head(kind, head, size)


@lru_cache(maxsize=4096)
def blob_head(size: int) -> bytes:
    """Return the bytes before the only item, of ``size`` bytes, of a bytes list."""
    return _feature_head("bytes", b"\x0a" + encode_varint(size), size)


def as_integers(array: NDArray[Any]) -> NDArray[Any]:
    """Return integers or bools in native byte order, after checking that they fit int64.

    Raises:
        FeatureError: A uint64 is over 2**63 - 1.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.uint64 and array.size and not _fits_int64(array.max()):
        raise out_of_int64(int(array.max()))
    return array


def as_blob(value: Any) -> bytes:
    """Return the bytes stored for a str, bytes, bytearray or memoryview."""
    return _utf8(value) if isinstance(value, str) else bytes(value)


class _IntFeatures(dict[int, bytes]):
    """A cache of Features of single integers: labels, sizes and flags repeat."""

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


def _encode_planned_int(value: int, kind: Kind | None) -> Encoded:
    """Return an int encoded as another kind than int64."""
    if kind != "float":
        raise no_place(value, kind)
    try:
        wide = float(value)
    except OverflowError:
        raise overflow(value) from None
    if wide != value:
        PRECISION.has_lost = True
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
    """Return the value tag, the Feature's tag and both sizes, followed by ``head``."""
    head = _LIST_TAGS[kind] + encode_varint(len(head) + size) + head
    return b"\x12" + encode_varint(len(head) + size) + head


def _encode_sequence(values: Sequence[Any], kind: Kind | None) -> Encoded:
    if len(values) == 1 and type(values[0]) in _LEAF_TYPES:
        return encode_value(values[0], kind)  # a list of one is encoded like its item
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
            f"a list mixes {list_text(sorted(t.__name__ for t in types))}",
            hint="a Feature holds one kind: bytes, float or int64",
        )
    if kinds == {"bytes"}:
        return _encode_blobs([_as_bytes(leaf, kind) for leaf in leaves])
    if kinds == {"int64"} and kind != "float":
        return encode_array(_int_array(leaves, types), kind)
    return encode_array(_float_array(leaves, types), kind)


def _flatten(values: Sequence[Any]) -> tuple[Sequence[Any] | NDArray[Any], set[type]]:
    """Return nested lists, tuples and arrays as one flat list in C order.

    Returns:
        The leaves and their types; or, if the innermost level consists of arrays, one array and
        no types.
    """
    for depth in range(_MAX_NESTING):
        types = set(map(type, values))
        if depth and any(leaf_kind(leaf_type) == "bytes" for leaf_type in types):
            raise FeatureError("a nested list of strings", hint="give one flat list")
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
            raise ragged(f"rows of {list_text(sorted(lengths))} values")
        values = list(chain.from_iterable(values))
    raise FeatureError(f"a list is nested more than {_MAX_NESTING} levels deep")


def _join_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ragged(f"arrays of the shapes {list_text(sorted(shapes))}")
    kinds = {leaf_kind(array.dtype.type) for array in arrays}
    if kinds == {"int64"}:
        # Converted one by one: numpy would stack uint64 and int64 as float64.
        return np.stack([as_integers(array).astype(np.int64) for array in arrays])
    if kinds == {"float", "int64"}:
        raise mixed_numbers(None)
    if len(kinds) > 1 or kinds == {"bytes"}:
        raise FeatureError("a list of arrays that are not all numbers", hint="give one array")
    return np.stack(arrays)


def _int_array(leaves: Sequence[Any], types: set[type]) -> NDArray[np.int64]:
    if not types <= _LEAF_TYPES:
        leaves = list(map(int, leaves))  # numpy would wrap around a np.uint64
    try:
        return np.array(leaves, np.int64)
    except OverflowError:
        raise out_of_int64(next(v for v in leaves if not _fits_int64(v))) from None


def _float_array(leaves: Sequence[Any], types: set[type]) -> NDArray[Any]:
    if all(issubclass(leaf_type, np.floating) for leaf_type in types):
        return np.array(leaves)  # of their own dtype, so float32 stays exact
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
            f"{type_name(value)} can not be converted to a numpy array: {error}",
            hint="give tensor.float(): float32 holds every bfloat16 exactly"
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
            "a str has a lone surrogate, which UTF-8 can not encode",
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
        raise FeatureError(f"the schema says {kind!r}", hint=f"a kind is one of {list_text(KINDS)}")


#: For each declared kind, and for None, the fast encoders by exact type. Others: `encode_any`.
ENCODERS: Final = _Encoders(
    {
        None: {**_INTS, **_FLOATS, **_BLOBS, np.ndarray: encode_array},
        "int64": {**_INTS, np.ndarray: partial(encode_array, kind="int64")},
        "float": {**_FLOATS, np.ndarray: partial(encode_array, kind="float")},
        "bytes": _BLOBS,
    }
)
