"""A place in a stream of frames, and what was read around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from shardwriter.errors import CorruptFile, OutOfMemory
from shardwriter.formats.crc32c import extend_crc32c

READ_BYTES: Final = 1 << 20  # stays in a core's cache between the copy and the two checksums
_MOST_BYTES: Final = 64 << 20
MEMORY_HINT: Final = "give the process more memory; `shard-stats` checks records of any size"


class ByteStream(Protocol):
    """What a reader needs of a file: up to ``size`` bytes, none of them at the end."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; b"" at the end of the stream."""


class Cursor:
    """Reads a stream forwards and knows the place at which reading stands.

    Args:
        stream: Uncompressed bytes; read in large pieces.
        read_at: Returns the bytes of a plain file by number and offset. With it a tail that was
            read too early is read again, which is cheaper than joining it to what follows, and
            payloads can be hopped over.
        size: Bytes of the stream, where they are known.
        with_crc: Keep the CRC of all that was passed.
        on_read: Called when something was read.

    Attributes:
        buffer: What was read and is not yet given up.
        start: The place, in ``buffer``.
        base: Offset of ``buffer[0]`` in the stream.
        record_index: Of the frame at the place.
        broken: Why the stream can not go on; None while it can.
        crc32c: Of all that was passed and given up; None once something was hopped over.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        read_at: Callable[[int, int], bytes] | None = None,
        size: int | None = None,
        with_crc: bool = False,
        on_read: Callable[[], None] | None = None,
    ) -> None:
        self.buffer = b""
        self.start = 0
        self.base = 0
        self.record_index = 0
        self.broken: CorruptFile | None = None
        self.crc32c: int | None = 0 if with_crc else None
        self.read_at = read_at
        self.size = size
        self._stream = stream
        self._on_read = on_read

    @property
    def offset(self) -> int:
        """Offset of the place in the stream."""
        return self.base + self.start

    def ensure(self, num_bytes: int) -> bool:
        """Have that many bytes behind the place in ``buffer``; False where the stream ends before.

        No memory is taken that the stream does not fill, whatever is asked for.

        Raises:
            OutOfMemory: There is not enough for a record that is asked for.
        """
        if len(self.buffer) - self.start >= num_bytes:
            return True
        try:
            return self._fill(num_bytes)
        except MemoryError:
            self.buffer = b""
            raise OutOfMemory(
                f"a record of {num_bytes:,} bytes does not fit into memory",
                record_index=self.record_index,
                offset=self.offset,
                hint=MEMORY_HINT,
            ) from None

    def _fill(self, num_bytes: int) -> bool:
        rereads = self.read_at is not None and num_bytes <= READ_BYTES
        self.give_up(keep_rest=not rereads)
        pieces = [self.buffer] if self.buffer else []
        have = sum(map(len, pieces))
        while have < num_bytes:
            piece = self._read(have, min(max(num_bytes - have, READ_BYTES), _MOST_BYTES))
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        if self._on_read is not None:
            self._on_read()
        self.buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return have >= num_bytes

    def _read(self, have: int, num_bytes: int) -> bytes:
        if self.broken is not None:
            return b""
        try:
            if self.read_at is not None:
                return self.read_at(num_bytes, self.base + have)
            return self._stream.read(num_bytes)
        except CorruptFile as error:
            self.broken = error
            return b""

    def peek(self, num_bytes: int) -> bytes:
        """Return what ``buffer`` has of the next bytes."""
        return self.buffer[self.start : self.start + num_bytes]

    def give_up(self, *, keep_rest: bool = True) -> None:
        """Drop what was passed, and the rest of what was read too where it is read again."""
        if self.crc32c is not None and self.start:
            self.crc32c = extend_crc32c(
                self.crc32c, np.frombuffer(self.buffer, np.uint8, self.start)
            )
        self.buffer = self.buffer[self.start :] if keep_rest else b""
        self.base += self.start
        self.start = 0

    def move_to(self, offset: int, buffer: bytes) -> None:
        """Hop over what lies between; ``buffer`` is what stands at ``offset``."""
        self.crc32c = None
        self.buffer, self.base, self.start = buffer, offset, 0
