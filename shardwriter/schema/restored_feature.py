"""One feature's way back: from the list that an Example holds to the type that a schema tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, ManifestError
from shardwriter.formats.example_bodies import SingleBlobs
from shardwriter.formats.example_columns_wire import PlainColumn
from shardwriter.formats.example_wire import KIND_OF_TAG, Values, check_packed, unpack
from shardwriter.formats.feature_errors import Kind
from shardwriter.formats.feature_values import UNSET
from shardwriter.formats.raw_array import dtype_named
from shardwriter.schema.feature_types import FeatureType, Shape


class _Absent:
    """In a column, where a record has no such feature; None there is an unset one."""


ABSENT: Final = _Absent()


class RestoredFeature:
    """One feature's way back.

    Args:
        name: Of the feature, for errors.
        feature_type: What it was when it was written; of no kind where that is not known.

    Raises:
        ManifestError: The dtype is none of numpy's.
        MissingExtra: It is ``bfloat16``, and there is no ``ml_dtypes``.
    """

    def __init__(self, name: str, feature_type: FeatureType) -> None:
        self.name = name
        self.kind: Kind | None = feature_type.kind
        self.shape: Shape | None = feature_type.shape
        self.is_text = feature_type.dtype == "string"
        self.is_raw = feature_type.encoding == "raw" and feature_type.dtype not in _BLOBS
        self.dtype: np.dtype[Any] | None = None
        if feature_type.dtype is not None and (self.kind != "bytes" or self.is_raw):
            self.dtype = _dtype(name, feature_type.dtype)
        self._limits = _limits(self.dtype)
        self.num_values = (
            None if self.shape is None or None in self.shape else prod(cast(Any, self.shape))
        )
        self._scalar_tag = 0
        if self.shape == () and not self.is_raw and self.kind is not None:
            self._scalar_tag = next(tag for tag, kind in KIND_OF_TAG.items() if kind == self.kind)
        self._integer = self.dtype.type if self.dtype is not None and self.kind == "int64" else None
        self._is_plain_float = self.kind == "float" and self.dtype == np.float32
        self._is_blob = self.kind == "bytes" and not self.is_text

    def content(self, content: bytes, tag: int, offset: int) -> Any:
        """Return what one record holds, whose list is one field with this content."""
        if tag == self._scalar_tag:
            if self._is_blob:
                return content
            if self.is_text:
                return self._texts((content,))[0]
            if self._integer is not None and content[-1] < 0x80 and len(content) < 3:
                value = content[0] & 0x7F | (content[-1] << 7 if len(content) == 2 else 0)
                # Over two bytes, and what the dtype does not hold, is for the long way.
                if (
                    self._limits[0] <= value <= self._limits[1]
                    and content[0] >> 7 == len(content) - 1
                ):
                    return self._integer(value)
            if self._is_plain_float and len(content) == 4:
                return np.frombuffer(content, "<f4")[0]
        kind = KIND_OF_TAG[tag]
        if kind == "bytes":
            return self._one_of_bytes([content])
        check_packed(content, 0, len(content), kind)
        return self.one(unpack(content, kind, offset))

    def one(self, values: Values) -> Any:
        """Return what one record holds."""
        if isinstance(values, list):
            return self._one_of_bytes(values)
        array = self._cast(values)
        if self.shape is None:
            return array
        if not self.shape:
            self._check_count(array.size)
            return array[0]
        return array.reshape(self._full_shape(array.size))

    def stacked(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a column ``[n, k]`` as ``[n, *shape]``."""
        num_rows, num_values = column.shape
        array = self._cast(column)
        if self.shape is None:
            return array
        return array.reshape(num_rows, *self._full_shape(num_values))

    def stacked_raw(self, column: SingleBlobs) -> NDArray[Any] | None:
        """Return raw bytes as ``[n, *shape]``; None where they are not of one fixed size."""
        if not self.is_raw or not self.num_values or not len(column):
            return None
        dtype = cast("np.dtype[Any]", self.dtype)
        stored = dtype.newbyteorder("<")
        if set(map(len, column)) != {self.num_values * stored.itemsize}:
            return None
        values = np.frombuffer(b"".join(column), stored).astype(dtype)
        return values.reshape(len(column), *cast("tuple[int, ...]", self.shape))

    def listed(self, column: PlainColumn) -> list[Any]:
        """Return a column as a list by rows: `ABSENT` where there is nothing, None for unset."""
        if isinstance(column, np.ndarray):
            stacked = self.stacked(column)
            return list(stacked) if stacked.ndim == 1 else list(map(_copy, stacked))
        if isinstance(column, SingleBlobs):
            stacked_raw = self.stacked_raw(column)
            if stacked_raw is not None:
                return list(stacked_raw) if stacked_raw.ndim == 1 else list(map(_copy, stacked_raw))
            if self.kind == "bytes" and self.shape == () and not self.is_raw:
                return self._texts(column) if self.is_text else list(column)
            column = column.in_lists()
        listed: list[Any] = []
        for values in column:
            if values is None:
                listed.append(ABSENT)
            elif values is UNSET:
                listed.append(None)
            else:
                value = self.one(cast("Values", values))
                # It may be a part of what all rows share.
                own = not isinstance(value, np.ndarray) or value.base is None
                listed.append(value if own else value.copy())
        return listed

    def _one_of_bytes(self, blobs: list[bytes]) -> Any:
        if self.kind is None:
            return blobs
        if self.kind != "bytes":
            raise self._contradiction("bytes")
        if self.is_raw:
            return self._raw(blobs)
        values: list[Any] = self._texts(blobs) if self.is_text else blobs
        if self.shape is None:
            return values
        if not self.shape:
            self._check_count(len(values))
            return values[0]
        shape = self._full_shape(len(values))
        if len(shape) == 1:
            return values
        nested = np.empty(len(values), object)
        nested[:] = values
        return nested.reshape(shape).tolist()

    def _raw(self, blobs: list[bytes]) -> Any:
        if len(blobs) != 1:
            raise self._wrong_count(len(blobs), 1, "blob")
        dtype = cast("np.dtype[Any]", self.dtype)
        stored = dtype.newbyteorder("<")
        num_values, rest = divmod(len(blobs[0]), stored.itemsize)
        if rest:
            raise FeatureError(
                f"{len(blobs[0]):,} raw bytes are no whole number of {dtype}", feature=self.name
            )
        array = np.frombuffer(blobs[0], stored).astype(dtype)
        if self.shape is None:
            return array
        if not self.shape:
            self._check_count(num_values)
            return array[0]
        return array.reshape(self._full_shape(num_values))

    def _texts(self, blobs: Sequence[bytes]) -> list[str]:
        try:
            return [blob.decode() for blob in blobs]
        except UnicodeDecodeError as error:
            wrong = FeatureError(
                f"bytes that are no UTF-8, and the schema says text: {error.reason}",
                feature=self.name,
            )
            raise wrong from None

    def _cast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Give numbers their dtype, if it can hold them."""
        dtype = self.dtype
        if self.kind is None:
            return array
        kind = "float" if array.dtype.kind == "f" else "int64"
        if kind != self.kind:
            raise self._contradiction(kind)
        if dtype is None or array.dtype == dtype:
            return array
        if kind == "int64":
            if array.size:
                low, high = self._limits
                least, most = int(array.min()), int(array.max())
                if least < low or most > high:
                    raise FeatureError(
                        f"{least if least < low else most} is here, and the schema says {dtype}",
                        feature=self.name,
                    )
            return array.astype(dtype)
        try:
            with np.errstate(over="raise"):
                return array.astype(dtype)
        except FloatingPointError:
            raise FeatureError(
                f"a number here is too large for the {dtype} of the schema", feature=self.name
            ) from None

    def _full_shape(self, num_values: int) -> tuple[int, ...]:
        """Return the shape of a record's array."""
        shape = cast(Shape, self.shape)
        if self.num_values is not None:
            self._check_count(num_values)
            return cast("tuple[int, ...]", shape)
        if shape.count(None) > 1:
            return (num_values,)  # which shape it has stands beside it, if anywhere
        known = prod(n for n in shape if n is not None)
        varies, rest = divmod(num_values, known) if known else (0, num_values)
        if rest:
            raise self._wrong_count(num_values, known, "value", "a multiple of ")
        return tuple(varies if n is None else n for n in shape)

    def _check_count(self, num_values: int) -> None:
        if num_values != self.num_values:
            raise self._wrong_count(num_values, cast(int, self.num_values), "value")

    def _wrong_count(self, found: int, expected: int, noun: str, how: str = "") -> FeatureError:
        shape = [] if self.shape is None else ["null" if n is None else n for n in self.shape]
        told = ", ".join(map(str, shape))
        return FeatureError(
            f"{found:,} {noun}{'' if found == 1 else 's'} here, and the schema's shape [{told}] "
            f"has {how}{expected:,}",
            hint="is the manifest that of these shards? `shardwriter verify` tells",
            feature=self.name,
        )

    def _contradiction(self, found: str) -> FeatureError:
        return FeatureError(
            f"{found} here, and the schema says {self.kind}",
            hint="is the manifest that of these shards? `shardwriter verify` tells",
            feature=self.name,
        )


_BLOBS: Final = (None, "bytes", "string")
_copy: Final[Callable[[NDArray[Any]], NDArray[Any]]] = np.ndarray.copy


def _dtype(name: str, dtype: str) -> np.dtype[Any]:
    try:
        return dtype_named(dtype)
    except (TypeError, ValueError):
        raise ManifestError(f"{dtype!r} is no dtype of numpy", feature=name) from None


def _limits(dtype: np.dtype[Any] | None) -> tuple[int, int]:
    """Return the least and the greatest integer that a dtype holds, as far as that matters."""
    if dtype is None or dtype.kind not in "biu":
        return -(1 << 63), (1 << 63) - 1
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
