"""Sending a job to workers: its source, options and callables, packed once.

Every process unpacks it once.

::

    u64 number of parts | u64 bytes of each part | pickle | temporary files of the source, ...

Sources keep what they have found (where rows begin, say) in temporary files. A pool sends these as
open files; here their content goes along. What is small travels inside of the pipeline; the rest
lies as one file beside the output, named by its content, so that every attempt has the same.
Unpacking runs code, and others may be able to write there: a worker compares all of the file with
the SHA-256 that came with the pipeline first, and unpacks its own copy of it.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import IO, Any, Final

from shardwriter.errors import OptionError, RunError
from shardwriter.storage.choose import storage_for
from shardwriter.writing.parcel import ParcelTooLarge, pack
from shardwriter.writing.unparcel import unpack

_U64: Final = struct.Struct("<Q")
_BLOCK_BYTES: Final = 1 << 20
_INLINE_BYTES: Final = 1 << 18  # every step has it, and Dataflow takes graphs of some megabytes
_MAX_PARTS: Final = 1 << 16
_MAX_BYTES: Final = 256 << 20  # of what is pickled: data in memory, or a million paths

_lock = threading.Lock()  # runners have several threads in a worker
_unpacked: dict[str, Any] = {}  # by digest


@dataclass(frozen=True)
class Cargo:
    """An object for workers.

    Attributes:
        digest: SHA-256 of what was packed.
        inline: All of it, compressed; None where it lies in a file.
        path: That file.
    """

    digest: str
    inline: bytes | None
    path: str | None

    def get(self) -> Any:
        """Return the object; the same one each time that it is asked for in a process.

        Raises:
            RunError: It can not be unpacked here: a module is missing, say; or its file is not
                the one that was packed.
        """
        with _lock:
            if self.digest not in _unpacked:
                _unpacked.clear()  # one job at a time needs one
                _unpacked[self.digest] = self._unpacked()
            return _unpacked[self.digest]

    def _unpacked(self) -> Any:
        if self.inline is not None:
            return _unpack(*_read(BytesIO(zlib.decompress(self.inline)), self.digest))
        assert self.path is not None
        with storage_for(self.path).open(self.path) as file:
            try:
                pickled, descriptors = _read(file, self.digest)
            except ValueError:
                raise RunError(
                    "it is not the file that was packed for workers when the job was launched",
                    path=self.path,
                    hint="nothing in it was run; see who else may write there, and start the job "
                    "again",
                ) from None
        return _unpack(pickled, descriptors)


def load_cargo(obj: Any, path_prefix: str | None = None) -> Cargo:
    """Pack an object.

    Args:
        obj: What workers need.
        path_prefix: Where its file goes if it is large; the digest is appended. None: there is no
            such place, and all of it travels inside of the pipeline.

    Raises:
        OptionError: It can not be sent.
    """
    try:
        pickled, descriptors = pack(obj, _MAX_BYTES)
    except ParcelTooLarge:
        raise OptionError(
            f"the source holds more than {_MAX_BYTES:,} bytes in memory, which would have to be "
            "sent to every worker",
            hint="give module:callable, or an object that reads its items itself",
        ) from None
    except Exception as error:
        raise OptionError(
            f"the source, the map or the filter can not be sent to workers: "
            f"{type(error).__name__}: {error}",
            hint="what they hold must be picklable; give module:callable",
        ) from error
    sizes = [len(pickled), *(os.fstat(number).st_size for number in descriptors)]
    head = b"".join(map(_U64.pack, (len(sizes), *sizes)))
    total_bytes = len(head) + sum(sizes)
    if path_prefix is None or total_bytes <= 64 * _INLINE_BYTES:
        data = b"".join((head, pickled, *_blocks(descriptors)))
        digest = sha256(data).hexdigest()
        packed = zlib.compress(data, 6)
        if path_prefix is None or len(packed) <= _INLINE_BYTES:
            return Cargo(digest, packed, None)
    digest = _digest(head, pickled, descriptors)
    path = f"{path_prefix}{digest[:16]}"
    storage = storage_for(path)
    storage.make_directory(os.path.dirname(path))
    file = storage.create(path)
    file.write(head)
    file.write(pickled)
    for block in _blocks(descriptors):
        file.write(block)
    storage.sync(path)
    file.close()
    return Cargo(digest, None, path)


def _digest(head: bytes, pickled: bytes, descriptors: Sequence[int]) -> str:
    digest = sha256(head)
    digest.update(pickled)
    for block in _blocks(descriptors):
        digest.update(block)
    return digest.hexdigest()


def _blocks(descriptors: Sequence[int]) -> Iterator[bytes]:
    """Yield the content of files, one after the other."""
    for number in descriptors:
        begin = 0
        while block := os.pread(number, _BLOCK_BYTES, begin):
            yield block
            begin += len(block)


def _read(file: IO[bytes], digest: str) -> tuple[bytes, list[int]]:
    """Copy what was packed, and prove that it is that.

    Args:
        file: All of it.
        digest: Its SHA-256.

    Returns:
        The pickle, and descriptors of the temporary files, which are open.

    Raises:
        ValueError: It is something else.
    """
    found = sha256()

    def take(num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            block = file.read(min(_BLOCK_BYTES, num_bytes - len(data)))
            if not block:
                raise ValueError
            data += block
        found.update(data)
        return bytes(data)

    count = _U64.unpack(take(_U64.size))[0]
    if not 1 <= count <= _MAX_PARTS:
        raise ValueError
    sizes = [_U64.unpack(take(_U64.size))[0] for _ in range(count)]
    if sizes[0] > _MAX_BYTES:
        raise ValueError
    pickled = take(sizes[0])
    with ExitStack() as copies:
        descriptors = []
        for size in sizes[1:]:
            copy = copies.enter_context(tempfile.TemporaryFile())
            for begin in range(0, size, _BLOCK_BYTES):
                copy.write(take(min(_BLOCK_BYTES, size - begin)))
            copy.flush()
            descriptors.append(copy.fileno())
        if file.read(1) or found.hexdigest() != digest:
            raise ValueError
        return pickled, [os.dup(number) for number in descriptors]


def _unpack(pickled: bytes, descriptors: list[int]) -> Any:
    try:
        return unpack(pickled, descriptors)
    except (Exception, SystemExit) as error:
        raise RunError(
            f"the source and the map can not be set up in a worker: {type(error).__name__}: "
            f"{error}",
            hint="what they use must be importable there: send it with --extra_package or "
            "--setup_file, or put it into the container",
        ) from error
