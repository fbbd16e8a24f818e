"""Messages between the program and its worker processes: framing, pickling, errors.

A message on a socket is ``u8 kind | u64 length | bytes``. A worker waits for each message
(:class:`Channel`); the program serves many workers and never waits for one (:class:`Mailbox`).

:func:`pack` pickles the job. Functions and classes of a script or notebook go by value, with
cloudpickle, so no worker has to import the program's main module. Open files of this package go as
file descriptors, and a memory-mapped array as the name of its file. :class:`ItemPacker` pickles
items. :func:`pack_failure` pickles any error, with its cause and traceback.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import cloudpickle
import numpy as np

from shardwriter import errors
from shardwriter.errors import RunError, ShardwriterError, WorkerDied
from shardwriter.storage import Descriptor

_HEAD: Final = struct.Struct("<BQ")
_READ_BYTES: Final = 1 << 18
_MAX_DESCRIPTORS: Final = 64  # per message; the kernel takes 253
_MAX_ERROR_BYTES: Final = 16 << 20
_PROTOCOL: Final = 5
_MAX_WASTE: Final = (
    256  # bytes of a tensor's storage to send needlessly rather than copy the tensor
)


# -- sockets ---------------------------------------------------------------------------------------


def avoid_standard_streams(end: socket.socket) -> socket.socket:
    """Return the socket with a descriptor above those of standard input, output and error."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))


class Channel:
    """A blocking end of a socket."""

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
        """Send a short message, or drop it if the other side does not read.

        Raises:
            OSError: The other side is gone.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        if poll.poll(0):  # writable: a good part of the socket's buffer is free
            self.send(kind, data)

    def receive(self) -> tuple[int, bytes] | None:
        """Wait for a message and return (kind, data); None if the other side has closed."""
        head = self._receive_exactly(_HEAD.size)
        if head is None:
            return None
        kind, length = _HEAD.unpack(head)
        data = self._receive_exactly(length)
        return None if data is None else (kind, data)

    def _receive_exactly(self, size: int) -> bytes | None:
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
        """Send open files; the other side must know how many."""
        for first in range(0, len(descriptors), _MAX_DESCRIPTORS):
            chunk = descriptors[first : first + _MAX_DESCRIPTORS]
            socket.send_fds(self._socket, [b"."], chunk)

    def receive_descriptors(self, count: int) -> list[int]:
        """Wait for open files, and return their descriptors.

        Raises:
            EOFError: The other side has closed.
            OSError: This process may not have that many open files.
        """
        found: list[int] = []
        while len(found) < count:
            data, received, flags, _ = socket.recv_fds(self._socket, 1, _MAX_DESCRIPTORS)
            for descriptor in received:
                # Programs that the user's code starts must not inherit them (the run's lock).
                os.set_inheritable(descriptor, False)
            if not data:
                raise EOFError
            found += received
            if flags & socket.MSG_CTRUNC or not received:
                # The kernel passes as many as fit and drops the others.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return found


class Mailbox:
    """A non-blocking end of a socket, with a queue of messages to send.

    Attributes:
        pending_bytes: Queued bytes that the socket has not accepted yet.
        closed: Whether the other side has closed.
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
        """Queue a message, send what the socket accepts; do not reuse a bytearray afterwards."""
        for part in (_HEAD.pack(kind, sum(map(len, parts))), *parts):
            if part:
                self._queue.append(memoryview(part))
                self.pending_bytes += len(part)
        self.send()

    def send(self) -> None:
        """Send as much of the queue as the socket accepts."""
        while self._queue:
            first = self._queue[0]
            try:
                sent = self._socket.send(first)
            except BlockingIOError:
                return
            except OSError:  # the other side has closed; what it sent before can still be read
                self._queue.clear()
                self.pending_bytes = 0
                return
            self.pending_bytes -= sent
            if sent == len(first):
                self._queue.popleft()
            else:
                self._queue[0] = first[sent:]

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield the messages (kind, data) that have arrived completely."""
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


# -- objects ---------------------------------------------------------------------------------------


class MessageTooLarge(Exception):
    """An object has more bytes than may be sent."""


class _Sink(io.RawIOBase):
    """A file in memory that raises MessageTooLarge above a limit."""

    def __init__(self, max_bytes: int) -> None:
        self.parts: list[bytes] = []
        self._left = max_bytes

    def write(self, data: Any, /) -> int:
        size = len(data) if isinstance(data, bytes) else memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise MessageTooLarge
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
    """Return the pickled object, and the file descriptors to send with it.

    Raises:
        MessageTooLarge: It has more than ``max_bytes``.
        Exception: Something in it cannot be pickled; says what.
    """
    sink = _Sink(max_bytes)
    packer = _Packer(sink)
    packer.dump(obj)
    return b"".join(sink.parts), packer.descriptors


def _where_mapped(view: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """Return the arguments of :func:`map_again`; None for an array that no file holds."""
    base: Any = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    if type(base) is not np.memmap or base.filename is None or base.mode not in ("r", "r+"):
        return None  # a copy-on-write map may differ from its file
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
        return None  # deleted, but still mapped here
    if there.st_size < begin + num_bytes or there.st_ino != _mapped_inode(_address(view)):
        return None  # replaced by another file, but still mapped here
    # In-place changes stay in the process that makes them.
    mode = "r" if base.mode == "r" else "c"
    return path, mode, begin, num_bytes, before, view.dtype, view.shape, view.strides


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _mapped_inode(address: int) -> int | None:
    """Return the inode of the file mapped at an address; None if the system does not provide it."""
    try:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, _, _, inode, *_ = line.split()
            low, high = (int(end, 16) for end in span.split("-"))
            if low <= address < high:
                return int(inode)
    except (OSError, ValueError):
        pass
    return None


_received: list[int] = []  # descriptors

_classes: dict[int, type] = {}  # classes of the main module, by number


def unpack(data: bytes, descriptors: Sequence[int]) -> Any:
    """Return the object that :func:`pack` pickled, with its open files in ``descriptors``."""
    _received[:] = descriptors
    return pickle.loads(data)


def take_descriptor(number: int) -> Descriptor:
    """Return an open file that was sent with the object."""
    return Descriptor(_received[number])


def map_again(
    path: str,
    mode: Literal["r", "c"],
    begin: int,
    num_bytes: int,
    first: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    """Return a memory-mapped array, mapped in this process."""
    mapped = np.memmap(path, np.uint8, mode, begin, (num_bytes,))
    return np.ndarray(shape, dtype, mapped, first, strides)


def class_of(number: int, data: bytes | None = None) -> type:
    """Return a class of the program by number; ``data`` defines it the first time."""
    if data is not None:
        _classes[number] = pickle.loads(data)
    return _classes[number]


# -- items -----------------------------------------------------------------------------------------


class ItemPacker:
    """Pickles the items for one worker.

    A class of the program's ``__main__`` goes by value, with the first item that needs it.
    """

    def __init__(self) -> None:
        self._sent: dict[type, int] = {}

    def pack(self, item: Any) -> bytes:
        """Return a pickled item.

        Raises:
            Exception: It cannot be pickled; says what.
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
    """A pickler that copies a view of a tensor instead of sending the whole storage."""

    def reducer_override(self, obj: Any) -> Any:
        copied = _without_its_rest(obj)
        return NotImplemented if copied is None else copied


def _without_its_rest(obj: Any) -> Any:
    """Return how to pickle a small view of a large tensor; None for anything else."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is None or type(obj) is not tensor or obj.layout is not sys.modules["torch"].strided:
        return None
    if obj.untyped_storage().nbytes() <= 2 * obj.numel() * obj.element_size() + _MAX_WASTE:
        return None
    return obj.clone().__reduce_ex__(_PROTOCOL)


# -- errors ----------------------------------------------------------------------------------------


class RemoteTraceback(Exception):
    """The traceback of an error in a worker, as text; the ``__cause__`` of that error."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def pack_failure(error: BaseException) -> bytes:
    """Return an error as bytes; as text alone if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    parts = [_dumps(error), _dumps(error.__cause__), _dumps(_plain(error))]
    return pickle.dumps((parts, _summary(error), text))


def unpack_failure(data: bytes, worker: str, shard: Callable[[int], int]) -> BaseException:
    """Return an error of :func:`pack_failure`, with its worker, shard, cause and traceback.

    Args:
        data: The result of :func:`pack_failure`.
        worker: Name of the worker.
        shard: Returns the shard of an item.
    """
    parts, summary, text = pickle.loads(data)
    error, cause, plain = map(_loads, parts)
    remote = RemoteTraceback(f"{worker}\n{text}")
    if error is None:
        error = plain or RunError(f"it raised {summary}", hint="the traceback is shown with -v")
    if cause is not None:
        cause.__cause__ = remote
    error.__cause__ = cause or remote
    if isinstance(error, ShardwriterError):
        error.worker = worker
        if error.index is not None:
            error.shard = shard(error.index)
    return error


def _summary(error: BaseException) -> str:
    try:
        text = errors.reason(error)
    except Exception:  # noqa: BLE001 - a class of the user
        text = ""
    return type(error).__name__ + (f": {text}" if text else "")


def _plain(error: BaseException) -> ShardwriterError | None:
    """Return an error of a class of this package for one of a subclass; None for other errors."""
    if not isinstance(error, ShardwriterError):
        return None
    base = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    assert issubclass(base, ShardwriterError)
    plain = base(f"{type(error).__name__}: {error.message}")
    fields = {**vars(error), "path": error.path}
    vars(plain).update({name: fields[name] for name in vars(plain) if name in fields})
    plain.path, plain.message = error.path, f"{type(error).__name__}: {error.message}"
    return plain


def _dumps(error: BaseException | None) -> bytes | None:
    """Return a pickled error; None if it cannot be pickled and unpickled."""
    if error is None:
        return None

    try:
        # With a limit, as an error may hold the user's whole dataset.
        data, descriptors = pack(error, _MAX_ERROR_BYTES)
        pickle.loads(data)  # many exceptions can be pickled but not unpickled
    except BaseException:  # noqa: BLE001 - a class of the user; its text is sent in any case
        return None
    return None if descriptors else data


def _loads(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except BaseException:  # noqa: BLE001 - a class that this process can not import
        return None
    return error if isinstance(error, BaseException) else None


def worker_died(worker: str, status: int | None, index: int | None, shards: str) -> WorkerDied:
    """Return the error for a worker that died.

    Args:
        worker: Name of the worker.
        status: Its wait status, as of ``waitpid``; None if unknown.
        index: Its current item; None for none.
        shards: The shards it was writing, as text.
    """
    how, hint = describe_exit(status)
    doing = f"while it wrote {shards}" if index is None else "at this item"
    return WorkerDied(f"{how} {doing}", hint=hint, index=index, worker=worker)


def describe_exit(status: int | None) -> tuple[str, str]:
    """Return how a process ended, and a hint what to do about it."""
    trace = "use --engine serial to see it happen in this process"
    if status is None:
        return "the process is gone", trace
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return (
            "the process was killed (SIGKILL)",
            "the system may be out of memory: use fewer workers (-j), or smaller items",
        )
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        return (
            f"the process was ended by {name}",
            f"native code called by the map or the source may crash; {trace}",
        )
    return f"the process ended itself with code {code}", f"look for os._exit in the map; {trace}"
