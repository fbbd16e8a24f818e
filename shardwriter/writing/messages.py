"""Messages between two processes over a socket, framed: u8 kind, u64 length, bytes.

The side that runs the user's code waits for each message (:class:`Channel`). The side that looks
after many others never waits for one of them (:class:`Mailbox`).
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

# The other side of :mod:`shardwriter.writing.messages`: what a worker makes of what it is sent.

_received: list[int] = []  # descriptors

_classes: dict[int, type] = {}  # of the program, by number


def unpack(data: bytes, descriptors: Sequence[int]) -> Any:
    """Return the object; its open files are those of ``descriptors``."""
    _received[:] = descriptors
    return pickle.loads(data)


def take_descriptor(number: int) -> Descriptor:
    """Return an open file that was sent."""
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
    """Map the file of a memory-mapped array again."""
    mapped = np.memmap(path, np.uint8, mode, begin, (num_bytes,))
    return np.ndarray(shape, dtype, mapped, first, strides)


def class_of(number: int, data: bytes | None = None) -> type:
    """Return a class of the program; the first time with what it is made of."""
    if data is not None:
        _classes[number] = pickle.loads(data)
    return _classes[number]


# Sending objects to the processes of a pool.
#
# What a script or a notebook defines (functions, classes, lambdas, closures) goes by value, as
# cloudpickle does it, so no process has to import the program that started it. Open files of ours
# go as open files. A memory-mapped array goes as the name of its file, and not as its content.

_PROTOCOL: Final = 5
_SMALL_TENSOR: Final = 256  # bytes that are sent in vain rather than copied


class MessageTooLarge(Exception):
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
    """Return an object's bytes, and the descriptors to send with them.

    Raises:
        MessageTooLarge: It takes more than ``max_bytes``.
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


# Errors on their way from one process to another, and what is said of a worker that died.

_MAX_BYTES: Final = 16 << 20


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text; found as its ``__cause__``."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def pack_failure(error: BaseException) -> bytes:
    """Return the bytes of an error; whatever it is, there are some."""
    text = "".join(traceback.format_exception(error))
    parts = [_dumps(error), _dumps(error.__cause__), _dumps(_plain(error))]
    return pickle.dumps((parts, _summary(error), text))


def unpack_failure(data: bytes, worker: str, shard: Callable[[int], int]) -> BaseException:
    """Return the error, with its cause, its place, and the traceback of where it was raised.

    Args:
        data: What :func:`pack_failure` has made of it.
        worker: The name of the process that it comes from.
        shard: Tells to which shard the item of an index belongs.
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
    except Exception:  # noqa: BLE001 - of the user's own making
        text = ""
    return type(error).__name__ + (f": {text}" if text else "")


def _plain(error: BaseException) -> ShardwriterError | None:
    """Return an error of ours that stands for one of a class that was derived from ours."""
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
    """Return the bytes of an error that another process can make use of; None where it can not."""
    if error is None:
        return None

    try:
        # One may hold the user's whole dataset.
        data, descriptors = pack(error, _MAX_BYTES)
        pickle.loads(data)  # many exceptions pickle and do not come back
    except BaseException:  # noqa: BLE001 - of the user's own making; its text is there all the same
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


def died(worker: str, status: int | None, index: int | None, shards: str) -> WorkerDied:
    """Say how a worker ended that should not have.

    Args:
        worker: Its name.
        status: As ``waitpid`` gives it; None where nobody knows.
        index: The item at hand; None for none.
        shards: Which it was writing.
    """
    how, hint = describe_exit(status)
    doing = f"while it wrote {shards}" if index is None else "at this item"
    return WorkerDied(f"{how} {doing}", hint=hint, index=index, worker=worker)


def describe_exit(status: int | None) -> tuple[str, str]:
    """Say how a process ended, and what to do about it."""
    trace = "--engine serial has it happen where you can see it"
    if status is None:
        return "the process is gone", trace
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return (
            "the process was killed (SIGKILL)",
            "the system does this when memory runs out: use fewer workers (-j), or smaller items",
        )
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        return (
            f"the process was ended by {name}",
            f"native code that is called from a map or a source does this; {trace}",
        )
    return f"the process ended itself with code {code}", f"look for os._exit in the map; {trace}"


_HEAD: Final = struct.Struct("<BQ")
_READ_BYTES: Final = 1 << 18
_MAX_DESCRIPTORS: Final = 64  # sent at once; the kernel takes 253


def avoid_standard_streams(end: socket.socket) -> socket.socket:
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
