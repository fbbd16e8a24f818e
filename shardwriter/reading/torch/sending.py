"""Batches on their way from a loader worker to the loader.

A worker pickles its batch before torch's queue does. There, what can not be sent (a lambda, or a
tensor for which no file is left) would be lost in a thread, and the loader would wait for ever.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
from dataclasses import dataclass
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch
from torch.utils.data._utils.pin_memory import pin_memory

import shardwriter.writing.parcel  # noqa: F401 - packs failures: no file may be left then
from shardwriter.errors import OptionError, RunError

_NO_FILES: Final = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE), "items of ancdata")

_SPARE_FILES: Final = 8


@dataclass(frozen=True)
class Sent:
    """A batch as the bytes that are sent of it.

    Attributes:
        data: The bytes.
    """

    data: bytes

    def load(self) -> Any:
        """Return the batch.

        Raises:
            RunError: This process has too many open files.
        """
        try:
            return pickle.loads(self.data)
        except (OSError, RuntimeError) as error:
            if not any(text in str(error) for text in _NO_FILES):
                raise
            raise _no_files("the process of the loader") from error

    def pin_memory(self) -> Any:
        """Return the batch in pinned memory; torch's thread calls this."""
        return pin_memory(self.load())


def send(batch: Any) -> Sent:
    """Return a batch as what a worker sends.

    Raises:
        OptionError: It can not be pickled.
        RunError: Its tensors need more open files than there may be.
    """
    held = _held()
    before = set(held)
    try:
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(batch)
        _check_room(_SPARE_FILES)
        return Sent(buffer.getvalue())
    except Exception as error:
        for key in set(held) - before:  # nobody will ask for what is held of this batch
            held.pop(key)[1]()
        if any(text in str(error) for text in _NO_FILES):  # torch's have no number
            raise _no_files("a loader worker") from error
        raise OptionError(
            f"what map or collate returned can not be sent by a loader worker: {error}",
            hint="return tensors, arrays, numbers, texts, lists and dicts; or num_workers=0",
        ) from error


def _no_files(who: str) -> RunError:
    return RunError(
        f"{who} has too many open files: each tensor of a batch that is on its way is one",
        hint="ulimit -n with a larger number, torch.multiprocessing.set_sharing_strategy("
        "'file_system'), a smaller prefetch_factor, or fewer tensors in a batch",
    )


def _held() -> dict[Any, Any]:
    """Return the files that this process holds until the loader takes them."""
    return getattr(getattr(resource_sharer, "_resource_sharer", None), "_cache", {})


def _check_room(num_files: int) -> None:
    """Raise where no files are left, also for connections: the loader would wait for ever."""
    with open(os.devnull, "rb") as file:
        spare = []
        try:
            for _ in range(num_files):
                spare.append(os.dup(file.fileno()))
        finally:
            for number in spare:
                os.close(number)


@dataclass(frozen=True)
class _Joined:
    """A list of tensors as one, since each would be an open file on its way."""

    values: torch.Tensor
    shapes: tuple[tuple[int, ...] | None, ...]

    def pin_memory(self) -> list[torch.Tensor | None]:
        """Return the list in pinned memory; torch's thread calls this."""
        return [None if part is None else part.pin_memory() for part in self.parts()]

    def parts(self) -> list[torch.Tensor | None]:
        sizes = [0 if shape is None else torch.Size(shape).numel() for shape in self.shapes]
        parts = zip(self.values.split(sizes), self.shapes, strict=True)
        return [None if shape is None else part.view(shape) for part, shape in parts]


def packed(batch: Any) -> Any:
    """Return a batch of our own, which can be pickled, with one tensor for a list of tensors.

    Raises:
        RunError: There is no room for its tensors among the open files.
    """
    if not isinstance(batch, dict):
        return batch
    batch = {name: _joined(value) for name, value in batch.items()}
    try:
        _check_room(len(batch) + _SPARE_FILES)
    except OSError as error:
        raise _no_files("a loader worker") from error
    return batch


def unpacked(batch: Any) -> Any:
    """Return what `packed` was given; anything else as it is."""
    if type(batch) is not dict or not any(type(value) is _Joined for value in batch.values()):
        return batch
    return {n: v.parts() if type(v) is _Joined else v for n, v in batch.items()}


def _joined(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    there = [part for part in value if part is not None]
    tensors = [part for part in there if isinstance(part, torch.Tensor)]
    if not tensors or len(tensors) < len(there) or len({part.dtype for part in tensors}) > 1:
        return value
    shapes = (None if part is None else tuple(part.shape) for part in value)
    return _Joined(torch.cat([part.reshape(-1) for part in tensors]), tuple(shapes))
