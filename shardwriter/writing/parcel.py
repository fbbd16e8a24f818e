"""Sending objects to the processes of a pool.

What a script or a notebook defines (functions, classes, lambdas, closures) goes by value, as
cloudpickle does it, so no process has to import the program that started it. Open files of ours go
as open files. A memory-mapped array goes as the name of its file, and not as its content.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np

from shardwriter.storage.descriptor import Descriptor
from shardwriter.writing.unparcel import class_of, map_again, take_descriptor

_PROTOCOL: Final = 5
_SMALL_TENSOR: Final = 256  # bytes that are sent in vain rather than copied


class ParcelTooLarge(Exception):
    """An object takes more bytes than may be sent."""


class _Sink(io.RawIOBase):
    """Takes bytes up to a limit."""

    def __init__(self, max_bytes: int) -> None:
        self.parts: list[bytes] = []
        self._left = max_bytes

    def write(self, data: Any, /) -> int:
        size = len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise ParcelTooLarge
        self.parts.append(bytes(data))
        return size


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self.descriptors: list[int] = []

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Descriptor:
            self.descriptors.append(obj.fileno())
            return take_descriptor, (len(self.descriptors) - 1,)
        if type(obj) in (np.memmap, np.ndarray):
            mapped = _where_mapped(obj)
            if mapped is not None:
                return map_again, mapped
        return super().reducer_override(obj)


def pack(obj: Any, max_bytes: int) -> tuple[bytes, list[int]]:
    """Return an object's bytes, and the descriptors to send with them.

    Raises:
        ParcelTooLarge: It takes more than ``max_bytes``.
        Exception: Something in it can not be pickled; says what.
    """
    sink = _Sink(max_bytes)
    packer = _Packer(sink)
    packer.dump(obj)
    return b"".join(sink.parts), packer.descriptors


def _where_mapped(view: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """Return what maps an array again; None for one that is not in a file as it is."""
    base: Any = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    if type(base) is not np.memmap or base.filename is None or base.mode not in ("r", "r+"):
        return None  # a copy-on-write map has what the file has not
    if not view.size:
        return None
    spans = [stride * (n - 1) for stride, n in zip(view.strides, view.shape, strict=True)]
    before = -sum(span for span in spans if span < 0)
    num_bytes = before + sum(span for span in spans if span > 0) + view.itemsize
    begin = base.offset + _address(view) - before - _address(base)
    path = os.path.abspath(base.filename)
    try:
        there = os.stat(path)
    except OSError:
        return None  # a file that was deleted is still mapped here
    if there.st_size < begin + num_bytes or there.st_ino != _mapped_inode(_address(view)):
        return None  # and so is one that another has replaced
    # What the user's code changes in place stays in the process that does it.
    mode = "r" if base.mode == "r" else "c"
    return path, mode, begin, num_bytes, before, view.dtype, view.shape, view.strides


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _mapped_inode(address: int) -> int | None:
    """Return the file that is mapped at an address; None where the system does not tell."""
    try:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, _, _, inode, *_ = line.split()
            low, high = (int(end, 16) for end in span.split("-"))
            if low <= address < high:
                return int(inode)
    except (OSError, ValueError):
        pass
    return None


class ItemPacker:
    """Packs the items that go to one worker.

    A class that the program itself defines goes by value, as another process has another
    ``__main__``; with the first item that needs it, and once.
    """

    def __init__(self) -> None:
        self._sent: dict[type, int] = {}

    def pack(self, item: Any) -> bytes:
        """Return an item's bytes; items are packed one by one, so that a bad one can be named.

        Raises:
            Exception: It can not be pickled; says what.
        """
        try:
            data = _pickled(item)
        except (pickle.PicklingError, AttributeError, TypeError):
            pass  # a lambda, or a class in a function
        else:
            if b"__main__" not in data:
                return data
        file = io.BytesIO()
        _ItemPickler(file, self._sent).dump(item)
        return file.getvalue()


class _ItemPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: io.BytesIO, sent: dict[type, int]) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self._sent = sent

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__":
            number = self._sent.get(obj)
            if number is not None:
                return class_of, (number,)
            number = self._sent[obj] = len(self._sent)
            return class_of, (number, bytes(cloudpickle.dumps(obj, _PROTOCOL)))
        copied = _without_its_rest(obj)
        return super().reducer_override(obj) if copied is None else copied


def _pickled(item: Any) -> bytes:
    if "torch" not in sys.modules:
        return pickle.dumps(item, _PROTOCOL)
    file = io.BytesIO()
    _TensorPickler(file, _PROTOCOL).dump(item)
    return file.getvalue()


class _TensorPickler(pickle.Pickler):
    """Sends of a tensor that is a part of another (a row of a dataset, say) that part alone."""

    def reducer_override(self, obj: Any) -> Any:
        copied = _without_its_rest(obj)
        return NotImplemented if copied is None else copied


def _without_its_rest(obj: Any) -> Any:
    """Return how to pickle a part of a tensor; None for anything else."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or type(obj) is not tensor or obj.layout is not sys.modules["torch"].strided:
        return None
    if obj.untyped_storage().nbytes() <= 2 * obj.numel() * obj.element_size() + _SMALL_TENSOR:
        return None
    return obj.clone().__reduce_ex__(_PROTOCOL)
