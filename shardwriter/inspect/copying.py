"""Bringing shards into a run directory: copied as they are, or made of their good records."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from contextlib2 import ExitStack

from shardwriter.dataset.manifest import SealedShard
from shardwriter.errors import StorageError
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.formats.packing import Packing
from shardwriter.formats.tfrecord_reader import Defect
from shardwriter.inspect.known import Known
from shardwriter.inspect.salvage import Salvage
from shardwriter.inspect.survey import ShardSurvey
from shardwriter.storage.local import storage_errors
from shardwriter.writing.index_files import shard_rows
from shardwriter.writing.open_shards import GrowingShards
from shardwriter.writing.run_directory import RunDirectory

_FICLONE: Final = 0x40049409  # of linux/fs.h: both files have the same blocks until one is changed
_COPY_BYTES: Final = 1 << 27
_READ_BYTES: Final = 1 << 20


def copy_file(source: str, target: str, num_bytes: int) -> int:
    """Copy the first bytes of a file, within the file system where it can, and bring them to disk.

    Args:
        source: The file.
        target: The file to make.
        num_bytes: How many bytes.

    Returns:
        CRC-32C of what stands in the new file.

    Raises:
        StorageError: It can not be read or written, or has fewer bytes.
    """
    with (
        storage_errors(source),
        open(source, "rb", buffering=0) as old,
        storage_errors(target),
        open(target, "w+b", buffering=0) as new,
    ):
        _copy(old.fileno(), new.fileno(), num_bytes)
        os.fsync(new.fileno())
        crc = size = 0
        new.seek(0)
        while data := new.read(_READ_BYTES):
            crc = extend_crc32c(crc, data)
            size += len(data)
    if size != num_bytes:
        raise StorageError(f"it has {size:,} bytes now, and had {num_bytes:,}", path=source)
    return crc


def _copy(old: int, new: int, num_bytes: int) -> None:
    try:
        fcntl.ioctl(new, _FICLONE, old)
        os.ftruncate(new, num_bytes)
        return
    except OSError:
        pass  # most file systems can not, and none does it from one to another
    done = 0
    try:
        while done < num_bytes:
            count = os.copy_file_range(old, new, min(_COPY_BYTES, num_bytes - done), done, done)
            if not count:
                break
            done += count
    except (OSError, AttributeError):
        pass  # on, by the program itself
    while done < num_bytes:
        data = os.pread(old, min(_READ_BYTES, num_bytes - done), done)
        if not data:
            return
        done += os.pwrite(new, data, done)


def copy_shard(known: Known, found: ShardSurvey, run: RunDirectory) -> SealedShard:
    """Copy a shard that is good, and note its index.

    Raises:
        StorageError: It is not what it was when it was surveyed.
    """
    path = known.path(found.shard)
    target = run.shard_path(found.shard)
    crc = copy_file(path, target, found.file_bytes)
    if crc != found.file_crc32c:
        raise StorageError(
            "it was changed while it was copied",
            path=path,
            hint="repair it again when nobody writes it",
        )
    if known.is_lawful or known.has_dali_index_of(found.shard):
        write_rows(known, found, run, target)
    if known.manifest is not None:
        return known.manifest.shards[found.shard]
    is_plain = found.compression == "none"
    return SealedShard(
        found.num_records,
        found.payload_bytes,
        found.file_bytes,
        found.crc32c,
        None if is_plain else crc,
    )


def write_rows(known: Known, found: ShardSurvey, run: RunDirectory, path: str) -> None:
    """Note the index of a shard in the run directory: what is known of it, or what it is found.

    Args:
        known: The dataset.
        found: The shard.
        run: The run directory.
        path: Where the shard lies.
    """
    rows = known.rows(found.shard)
    if rows is None:
        rows = shard_rows(path, found.compression)
    index_path = run.index_path(found.shard)
    file = run.storage.create(index_path)
    file.write(np.ascontiguousarray(rows.T).astype("<u8").tobytes())
    run.storage.sync(index_path)
    file.close()


def rewrite_shard(
    known: Known,
    found: ShardSurvey,
    run: RunDirectory,
    packing: Packing,
    *,
    trust_no_crc: bool = False,
    keep_unplaced: bool = False,
    on_record: Callable[[int, bytes], None] | None = None,
) -> SealedShard:
    """Make a shard of the good records of a damaged one.

    Args:
        known: The dataset.
        found: The shard.
        run: Where it grows.
        packing: How it is compressed.
        trust_no_crc: As the shard was surveyed.
        keep_unplaced: Whether records are kept of which nobody knows which they are.
        on_record: Told of the place and the payload of each record.

    Raises:
        StorageError: It is not what it was when it was surveyed.
    """
    with ExitStack() as stack:
        growing = GrowingShards(stack, run, [found.shard], packing)
        write = growing.files[found.shard].write
        for place, payload in _good(known, found, trust_no_crc=trust_no_crc):
            if place < 0 and not keep_unplaced:
                continue
            write(payload)
            if on_record is not None:
                on_record(place, payload)
        sealed = growing.seal()
        growing.files.clear()
    return sealed[found.shard]


def _good(known: Known, found: ShardSurvey, *, trust_no_crc: bool) -> Iterable[tuple[int, bytes]]:
    if found.state != "damaged" or found.places is None:
        return
    path = known.path(found.shard)
    salvage = Salvage(
        path,
        known.compression,
        known.rows(found.shard),
        trust_no_crc=trust_no_crc and not known.is_lawful,
    )
    count = 0
    for record in salvage.records(_ignore):
        if count == len(found.places):
            count += 1
            break
        yield int(found.places[count]), record.payload
        count += 1
    if count != len(found.places):
        raise StorageError(
            "it was changed while it was read",
            path=path,
            hint="repair it again when nobody writes it",
        )


def _ignore(_defect: Defect) -> None:
    return
