"""Messages between two processes over a socket, framed: u8 kind, u64 length, bytes.

The side that runs the user's code waits for each message (:class:`Channel`). The side that looks
after many others never waits for one of them (:class:`Mailbox`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

_HEAD: Final = struct.Struct("<BQ")
_READ_BYTES: Final = 1 << 18
_MAX_DESCRIPTORS: Final = 64  # sent at once; the kernel takes 253


def above_standard(end: socket.socket) -> socket.socket:
    """Return a socket whose number is none of standard input, output and error."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


class Channel:
    """The end of a socket that waits."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, kind: int, data: bytes = b"") -> None:
        """Send a message.

        Raises:
            OSError: The other side is gone.
        """
        self._socket.sendall(_HEAD.pack(kind, len(data)))
        self._socket.sendall(data)

    def offer(self, kind: int, data: bytes) -> None:
        """Send a short message that may be lost: it is, when the other side does not read.

        Raises:
            OSError: The other side is gone.
        """
        waits = select.poll()
        waits.register(self._socket, select.POLLOUT)
        if waits.poll(0):  # then there is room for a good part of all that fits
            self.send(kind, data)

    def receive(self) -> tuple[int, bytes] | None:
        """Wait for a message; None when the other side has closed."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        kind, length = _HEAD.unpack(head)
        data = self._exactly(length)
        return None if data is None else (kind, data)

    def _exactly(self, size: int) -> bytes | None:
        if not size:
            return b""
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) == size:
            return data
        parts = [data]
        missing = size - len(data)
        while data and missing:
            data = self._socket.recv(missing, socket.MSG_WAITALL)
            parts.append(data)
            missing -= len(data)
        return None if missing else b"".join(parts)

    def send_descriptors(self, descriptors: Sequence[int]) -> None:
        """Send open files; the other side knows how many."""
        for first in range(0, len(descriptors), _MAX_DESCRIPTORS):
            some = descriptors[first : first + _MAX_DESCRIPTORS]
            socket.send_fds(self._socket, [b"."], some)

    def receive_descriptors(self, count: int) -> list[int]:
        """Wait for that many open files.

        Raises:
            EOFError: The other side has closed.
            OSError: This process may not have so many open files.
        """
        found: list[int] = []
        while len(found) < count:
            data, some, flags, _ = socket.recv_fds(self._socket, 1, _MAX_DESCRIPTORS)
            for descriptor in some:
                # What the user's code starts must not have them: the lock of the run, for one.
                os.set_inheritable(descriptor, False)
            if not data:
                raise EOFError
            found += some
            if flags & socket.MSG_CTRUNC or not some:
                # The kernel gives those for which there is room, and drops the others.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return found


class Mailbox:
    """The end of a socket that does not wait: messages are queued, and read as they come.

    Attributes:
        pending_bytes: Queued and not yet taken by the socket.
        closed: The other side is gone.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._queue: deque[memoryview] = deque()
        self._read = bytearray()
        self.pending_bytes = 0
        self.closed = False

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def put(self, kind: int, *parts: bytes | bytearray) -> None:
        """Queue a message, and send what the socket takes at once; a bytearray is given away."""
        for part in (_HEAD.pack(kind, sum(map(len, parts))), *parts):
            if part:
                self._queue.append(memoryview(part))
                self.pending_bytes += len(part)
        self.send()

    def send(self) -> None:
        """Send what the socket takes."""
        while self._queue:
            first = self._queue[0]
            try:
                sent = self._socket.send(first)
            except BlockingIOError:
                return
            except OSError:  # the other side is gone: what it still said can be read
                self._queue.clear()
                self.pending_bytes = 0
                return
            self.pending_bytes -= sent
            if sent == len(first):
                self._queue.popleft()
            else:
                self._queue[0] = first[sent:]

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that have arrived whole."""
        while not self.closed:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.closed = not data
            self._read += data
        while len(self._read) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._read)
            end = _HEAD.size + length
            if len(self._read) < end:
                return
            message = bytes(self._read[_HEAD.size : end])
            del self._read[:end]
            yield kind, message

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self._socket.close()
