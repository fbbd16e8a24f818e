"""Arrays that are stored as their bytes: one bytes value, C order, little-endian (FORMATS.md, F8).

The record holds nothing but the bytes; dtype and shape stand in the schema.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, MissingExtra
from shardwriter.formats.feature_errors import type_name

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
"""What can be stored so. ``bfloat16`` is that of the package ``ml_dtypes``."""

_HINTS: Final = {
    "O": "give an array of numbers: the objects of this one have no bytes of their own",
    "U": "give a list of str, which is a feature of text",
    "S": "give a list of bytes",
    "M": "give .astype('int64') of a stated unit",
    "m": "give .astype('int64') of a stated unit",
    "V": "give each field as a feature of its own",
    "f": "give .astype('float64')",
    "c": "give .astype('complex128')",
}


class RawArray:
    """An array that is written as its bytes; made by `raw`.

    Attributes:
        array: In C order, little-endian.
    """

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    @property
    def look(self) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        """What decides its type."""
        return "raw", self.array.dtype, self.array.shape

    @property
    def data(self) -> memoryview:
        """Its bytes."""
        return self.array.reshape(-1).view(np.uint8).data

    def __repr__(self) -> str:
        return f"raw({self.array.dtype.name}{list(self.array.shape)})"


def raw(array: Any) -> RawArray:
    """Store an array as one bytes value, and not as a list of numbers.

    Args:
        array: A numpy array of any shape, or what turns into one (a CPU tensor): bools, integers,
            floats, complex numbers, or ``bfloat16`` of ``ml_dtypes``. It is copied only where it
            is not in C order and little-endian.

    Returns:
        What stands for it among the features of an item. It comes back as the array: dtype and
        shape are in the manifest.

    Raises:
        FeatureError: Its dtype has no bytes that would tell its values.
    """
    if isinstance(array, RawArray):
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise FeatureError("a masked array", hint="give array.filled(value)")
    try:
        found = np.asarray(array)
    except Exception as error:  # torch: RuntimeError or TypeError; other libraries: their own
        raise FeatureError(
            f"{type_name(array)} does not turn into a numpy array: {error}",
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
        TypeError: There is none of that name.
        MissingExtra: It is ``bfloat16``, and there is no ``ml_dtypes``.
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
