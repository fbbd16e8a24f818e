"""Sending a job to workers: its source, options and callables, packed once.

Every process unpacks it once.

::

    u64 number of parts | u64 bytes of each part | pickle | temporary files of the source, ...

Sources keep what they have found (where rows begin, say) in temporary files. A pool sends these as
open files; here their content goes along. What is small travels inside of the pipeline; the rest
lies as one file beside the output, named by its content, so that every attempt has the same.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import IO, Any, Final

from shardwriter.engines.parcel import ParcelTooLarge, pack
from shardwriter.engines.unparcel import unpack
from shardwriter.errors import OptionError, RunError
from shardwriter.storage.choose import storage_for

_U64: Final = struct.Struct("<Q")
_BLOCK_BYTES: Final = 1 << 20
_INLINE_BYTES: Final = 1 << 18  # every step has it, and Dataflow takes graphs of some megabytes
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
            RunError: It can not be unpacked here: a module is missing, say.
        """
        with _lock:
            if self.digest not in _unpacked:
                _unpacked.clear()  # one job at a time needs one
                _unpacked[self.digest] = self._unpacked()
            return _unpacked[self.digest]

    def _unpacked(self) -> Any:
        if self.inline is not None:
            return _read(BytesIO(zlib.decompress(self.inline)))
        assert self.path is not None
        with storage_for(self.path).open(self.path) as file:
            return _read(file)


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


def _read(file: IO[bytes]) -> Any:
    (count,) = _U64.unpack(file.read(_U64.size))
    sizes = [_U64.unpack(file.read(_U64.size))[0] for _ in range(count)]
    pickled = file.read(sizes[0])
    descriptors = []
    for size in sizes[1:]:
        with tempfile.TemporaryFile() as copy:
            left = size
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                copy.write(block)
                left -= len(block)
            copy.flush()
            descriptors.append(os.dup(copy.fileno()))
    try:
        return unpack(pickled, descriptors)
    except (Exception, SystemExit) as error:
        raise RunError(
            f"the source and the map can not be set up in a worker: {type(error).__name__}: "
            f"{error}",
            hint="what they use must be importable there: send it with --extra_package or "
            "--setup_file, or put it into the container",
        ) from error
