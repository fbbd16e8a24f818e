"""The index of a dataset that lies there: proving it, and making it anew from the shards."""

from __future__ import annotations

import os
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    KINDS,
    Index,
    Manifest,
    dali_index,
    index_chunks,
    index_head,
    is_url,
)
from shardwriter.errors import ManifestError, OptionError, StorageError
from shardwriter.formats import (
    FRAME_BYTES,
    ZLIB_TAIL_BYTES,
    Compression,
    extend_crc32c,
    read_frames,
    zlib_blocks,
)
from shardwriter.sources import ShardSet, find_one
from shardwriter.storage import LocalStorage, inputs_for, open_plain, open_stream, storage_errors
from shardwriter.writing.publication import finish_committed, is_committed
from shardwriter.writing.run_directory import RunDirectory

_READ_BYTES: Final = 1 << 20
_GROWING: Final = "index.remade"  # a name that no run has for its own files


def open_index(directory: str, manifest: Manifest) -> Index:
    """Open the index of a dataset once it is known to be the manifest's.

    Raises:
        ManifestError: It is not there, or is not the one that was written with the manifest.
        StorageError: It can not be read.
    """
    path = os.path.join(directory, manifest.index.file)
    if not inputs_for(path).exists(path) and not os.path.islink(path):
        raise ManifestError(
            "it is not there",
            path=path,
            hint="`shardwriter index` makes it from the shards",
        )
    if not is_url(path):
        return _open_index(path, path, manifest)
    # What is at a URL can not be mapped.
    with storage_errors(path), tempfile.NamedTemporaryFile() as copy:
        with inputs_for(path).open(path) as file:
            shutil.copyfileobj(file, copy, _READ_BYTES)
        copy.flush()
        return _open_index(copy.name, path, manifest)


def _open_index(file: str, path: str, manifest: Manifest) -> Index:
    """Open the index that a file holds; errors call it by its path."""
    with storage_errors(path):
        size, crc = _size_and_crc(file)
    told = manifest.index
    if (size, crc) != (told.file_bytes, told.crc32c):
        raise ManifestError(
            f"{size:,} bytes with CRC {crc:08x}, the manifest says {told.file_bytes:,} with "
            f"{told.crc32c:08x}",
            path=path,
            hint="`shardwriter index` makes it from the shards",
        )
    with storage_errors(path):
        index = Index(file, path)
    if index.compression != manifest.compression["type"]:
        raise ManifestError(f"it is of shards whose compression is {index.compression}", path=path)
    if len(index.counts) != manifest.num_shards:
        raise ManifestError(f"it is of {len(index.counts)} shards", path=path)
    for shard, entry in enumerate(manifest.shards):
        ends, num_records = index.ends(shard), index.num_records(shard)
        last = int(ends[-1]) if len(ends) else 0
        end = entry.file_bytes
        if index.compression == "zlib":
            end = end - ZLIB_TAIL_BYTES if num_records else 0
        if num_records != entry.num_records or last != end:
            raise ManifestError(
                f"{num_records:,} records that end at {last:,}, and the manifest says "
                f"{entry.num_records:,} that end at {end:,}",
                path=path,
                shard=shard,
                hint="`shardwriter verify` says what is wrong with the shard",
            )
        index.check_order(shard, entry.file_bytes)
    return index


def _size_and_crc(path: str) -> tuple[int, int]:
    size = crc = 0
    with open(path, "rb", buffering=0, opener=open_plain) as file:
        while data := file.read(_READ_BYTES):
            size += len(data)
            crc = extend_crc32c(crc, data)
    return size, crc


def make_index(path: str, *, dali: bool = False) -> dict[str, Any]:
    """Make the index of a shard set anew from its shards; ``.idx`` files too if asked.

    The dataset is held against writers meanwhile, and a publication that was interrupted is
    finished first.

    Args:
        path: The dataset.
        dali: Write ``<shard>.idx`` beside every shard.

    Returns:
        ``{"index": file, "num_records": n, "idx": [files]}``.

    Raises:
        OutputBusy: Somebody writes this dataset right now.
        CorruptFile: A shard is damaged, or is a zlib file that is not cut into blocks.
        OptionError: ``.idx`` files of compressed shards are asked for.
        ManifestError: The shards are not those of the manifest, not all of one compression, or
            compressed with records that go over the end of a member.
    """
    found = _whole_set(path)
    with _claimed(found) as run:
        # What was found before the lock may have been replaced since.
        return _remake(_whole_set(path), run, dali=dali)


def _whole_set(path: str) -> ShardSet:
    if is_url(path):
        raise OptionError("an index is made beside local shards, and this is a URL", path=path)
    shard_set = find_one(path)
    if not shard_set.is_complete:
        raise ManifestError(
            "an index needs all shards of one set", path=path, hint="shard-stats says what is there"
        )
    return shard_set


@contextmanager
def _claimed(shard_set: ShardSet) -> Iterator[RunDirectory]:
    """Hold a dataset's run directory; what an unfinished run has in it stays."""
    with RunDirectory.claim(shard_set.directory, shard_set.name, LocalStorage()) as run:
        try:
            finish_committed(run)
            yield run
        finally:
            if run.is_resumable or is_committed(run):
                run.storage.delete(os.path.join(run.path, _GROWING))
            else:
                run.discard()


def _remake(shard_set: ShardSet, run: RunDirectory, *, dali: bool) -> dict[str, Any]:
    assert shard_set.pattern is not None
    compression = shard_compression(shard_set)
    if dali and compression != "none":
        raise OptionError(
            f".idx files are of plain shards only, and these are {compression}",
            path=shard_set.directory,
            hint="leave --idx off: the dataset's own index has the members of compressed shards",
        )
    rows = [shard_rows(shard_path, compression) for _, shard_path in shard_set.shards]
    manifest = shard_set.manifest
    gaps = [] if manifest is None else manifest.gaps
    head = index_head([numbers.shape[1] for numbers in rows], KINDS[compression], len(gaps))
    crc = 0
    for chunk in index_chunks(rows, head, gaps):
        crc = extend_crc32c(crc, chunk)
    if manifest is not None and crc != manifest.index.crc32c:
        raise ManifestError(
            "the shards are not those of the manifest, so its index can not be made from them",
            path=shard_set.directory,
            hint="`shardwriter verify` says what is wrong with them",
        )
    target = os.path.join(shard_set.directory, shard_set.pattern.index_file)
    _replace(run, target, index_chunks(rows, head, gaps))
    written = []
    if dali:
        for (_, shard_path), numbers in zip(shard_set.shards, rows, strict=True):
            _replace(run, shard_path + DALI_INDEX_SUFFIX, [dali_index(numbers[0])])
            written.append(shard_path + DALI_INDEX_SUFFIX)
    run.storage.sync_directory(shard_set.directory)
    num_records = sum(_num_records(numbers) for numbers in rows)
    return {"idx": written, "index": target, "num_records": num_records}


def _num_records(rows: NDArray[np.uint64]) -> int:
    if len(rows) == 1:
        return len(rows[0])
    return int(rows[1, -1]) if len(rows[0]) else 0


def shard_compression(shard_set: ShardSet) -> Compression:
    """Return what all shards of a set are compressed with, by content.

    An empty file says nothing: it is a shard without records, whatever the others are.
    """
    found = {}
    for _, path in shard_set.shards:
        with storage_errors(path), open_stream(path) as stream:
            if stream.compression != "none" or stream.read(1):
                found[stream.compression] = path
    if len(found) > 1:
        raise ManifestError(
            f"shards of one set are of several compressions: {', '.join(sorted(found))}",
            path=shard_set.directory,
            hint="an index is of shards of one kind",
        )
    return next(iter(found), "none")


def shard_rows(path: str, compression: Compression) -> NDArray[np.uint64]:
    """Return what the index has of a shard, every CRC proven; see :func:`read_rows`."""
    return read_rows(path, compression)[0]


def read_rows(path: str, compression: Compression) -> tuple[NDArray[np.uint64], int]:
    """Return what the index has of a shard, every CRC proven.

    Args:
        path: The shard.
        compression: What it is compressed with.

    Returns:
        uint64[1, n]: the offset behind each frame. Of a compressed shard uint64[2, n]: the offset
        behind each member or block, and the records up to there. Behind it the bytes of the
        largest member, uncompressed; 0 of a plain shard.

    Raises:
        CorruptFile: The shard is damaged, or is a zlib file that is not cut into blocks.
        ManifestError: Its records go over the ends of members.
        StorageError: It can not be read.
    """
    members: list[tuple[int, int]] = []  # offset behind it: in the file, in the stream
    if compression == "zlib" and is_url(path):
        raise ManifestError(
            "the blocks of a zlib shard can only be found where it lies on a disk",
            path=path,
            hint="copy the dataset, with its manifest and index",
        )
    with storage_errors(path):
        with open_stream(path) as stream:
            stream.on_members(lambda *ends: members.append(ends))
            frames = read_frames(stream, path=path)
            sizes = array("Q", (len(record) + FRAME_BYTES for record in frames))
        if compression == "zlib":
            members = list(zlib_blocks(path))
    ends = np.cumsum(np.frombuffer(sizes, np.uint64), dtype=np.uint64)
    if compression == "none":
        return ends.reshape(1, -1), 0
    file_ends, stream_ends = np.array(members, np.uint64).reshape(-1, 2).T
    records = np.searchsorted(ends, stream_ends, side="right")
    behind = np.concatenate((np.zeros(1, np.uint64), ends))[records]
    if not np.array_equal(behind, stream_ends):
        raise ManifestError(
            f"records go over the ends of {compression} members, so none can be entered by itself",
            path=path,
            hint="write the records again: members of our shards end with a record",
        )
    largest = int(np.diff(stream_ends, prepend=np.uint64(0)).max(initial=0))
    return np.stack((file_ends, records.astype(np.uint64))), largest


def _replace(run: RunDirectory, path: str, chunks: Iterable[bytes]) -> None:
    """Give a file new bytes in one step."""
    if os.path.isdir(path):
        raise StorageError("a folder of this name is in the way", path=path)
    growing = os.path.join(run.path, _GROWING)
    file = run.storage.create(growing)
    for chunk in chunks:
        file.write(chunk)
    run.storage.sync(growing)
    file.close()
    run.storage.publish(growing, path)
