"""Items of an iterator that can be read once, kept in a temporary file to be read again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Final

from shardwriter.errors import SourceError
from shardwriter.sources.source import Item
from shardwriter.storage.descriptor import Scratch

_LENGTH_BYTES: Final = 8
_BUFFER_BYTES: Final = 1 << 18


class SpooledItems:
    """Items, one after the other, in a temporary file; at most 256 KiB of them in memory."""

    def __init__(self) -> None:
        self._file = Scratch()
        self._waiting = bytearray()

    def add(self, item: Item, place: int) -> None:
        """Append an item.

        Args:
            item: The item; it has to pickle.
            place: Its number in the source.

        Raises:
            SourceError: It can not be pickled.
            StorageError: The file can not grow.
        """
        try:
            data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise SourceError(
                f"an item of type {type(item).__name__} can not be kept until its split is "
                f"written: {error}",
                index=place,
                hint="give a function that makes a new iterator each time: it is called for every "
                "split",
            ) from error
        self._waiting += len(data).to_bytes(_LENGTH_BYTES, "little")
        self._waiting += data
        if len(self._waiting) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.append(bytes(self._waiting))
        self._waiting.clear()

    def __iter__(self) -> Iterator[Item]:
        self._flush()
        at = 0
        while at < self._file.num_bytes:
            stop = at + _LENGTH_BYTES
            length = int.from_bytes(self._file.read(at, _LENGTH_BYTES), "little")
            yield pickle.loads(self._file.read(stop, length))
            at = stop + length
