"""Index files of published datasets: open and check one, or make it again from the shards."""

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
_TEMPORARY: Final = "index.remade"  # no run uses this name


def open_index(directory: str, manifest: Manifest) -> Index:
    """Return the open index of a dataset, checked against the manifest.

    Raises:
        ManifestError: The index is missing, or not the one that was written with the manifest.
        StorageError: It cannot be read.
    """
    path = os.path.join(directory, manifest.index.file)
    if not inputs_for(path).exists(path) and not os.path.islink(path):
        raise ManifestError(
            "the index is missing",
            path=path,
            hint="`shardwriter index` makes it from the shards",
        )
    if not is_url(path):
        return _open_index_file(path, path, manifest)
    # A remote file cannot be memory-mapped.
    with storage_errors(path), tempfile.NamedTemporaryFile() as copy:
        with inputs_for(path).open(path) as file:
            shutil.copyfileobj(file, copy, _READ_BYTES)
        copy.flush()
        return _open_index_file(copy.name, path, manifest)


def _open_index_file(file: str, path: str, manifest: Manifest) -> Index:
    """Return the open index in a local file; errors name ``path``."""
    with storage_errors(path):
        size, crc = _size_and_crc(file)
    expected = manifest.index
    if (size, crc) != (expected.file_bytes, expected.crc32c):
        raise ManifestError(
            f"the index has {size:,} bytes with CRC {crc:08x}; the manifest says "
            f"{expected.file_bytes:,} with {expected.crc32c:08x}",
            path=path,
            hint="`shardwriter index` makes it from the shards",
        )
    with storage_errors(path):
        index = Index(file, path)
    if index.compression != manifest.compression["type"]:
        raise ManifestError(
            f"the index is of shards with compression {index.compression}; the manifest says "
            f"{manifest.compression['type']}",
            path=path,
        )
    if len(index.counts) != manifest.num_shards:
        raise ManifestError(
            f"the index is of {len(index.counts)} shards; the manifest says {manifest.num_shards}",
            path=path,
        )
    for shard, entry in enumerate(manifest.shards):
        ends, num_records = index.ends(shard), index.num_records(shard)
        last = int(ends[-1]) if len(ends) else 0
        end = entry.file_bytes
        if index.compression == "zlib":
            end = end - ZLIB_TAIL_BYTES if num_records else 0
        if num_records != entry.num_records or last != end:
            raise ManifestError(
                f"the index has {num_records:,} records that end at offset {last:,}; the manifest "
                f"says {entry.num_records:,} that end at {end:,}",
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
    """Make the index of a dataset from its shards, and ``.idx`` files if asked.

    The dataset is locked, and an interrupted publication is completed first.

    Args:
        path: The dataset.
        dali: Whether to write ``<shard>.idx`` beside every shard.

    Returns:
        ``{"index": file, "num_records": n, "idx": [files]}``.

    Raises:
        OutputBusy: Another process writes this dataset.
        CorruptFile: A shard is damaged, or is a zlib file without blocks.
        OptionError: ``dali`` is set, and the shards are compressed.
        ManifestError: The shards are not those of the manifest, differ in compression, or have
            records that cross the end of a compressed member.
    """
    found = _complete_set(path)
    with _claim(found) as run:
        # Search again: the dataset may have been replaced before it was locked.
        return _make_index(_complete_set(path), run, dali=dali)


def _complete_set(path: str) -> ShardSet:
    if is_url(path):
        raise OptionError(
            "an index can only be made for local shards, and this is a URL", path=path
        )
    shard_set = find_one(path)
    if not shard_set.is_complete:
        raise ManifestError(
            "shards are missing; an index needs all of them",
            path=path,
            hint="`shardwriter shard-stats` lists them",
        )
    return shard_set


@contextmanager
def _claim(shard_set: ShardSet) -> Iterator[RunDirectory]:
    """Yield the locked run directory of a dataset; the files of an unfinished run stay."""
    with RunDirectory.claim(shard_set.directory, shard_set.name, LocalStorage()) as run:
        try:
            finish_committed(run)
            yield run
        finally:
            if run.is_resumable or is_committed(run):
                run.storage.delete(os.path.join(run.path, _TEMPORARY))
            else:
                run.discard()


def _make_index(shard_set: ShardSet, run: RunDirectory, *, dali: bool) -> dict[str, Any]:
    assert shard_set.pattern is not None
    compression = shard_compression(shard_set)
    if dali and compression != "none":
        raise OptionError(
            f".idx files are for uncompressed shards only, and these are {compression}",
            path=shard_set.directory,
            hint="run without --idx: the dataset's own index covers compressed shards",
        )
    rows = [shard_rows(shard_path, compression) for _, shard_path in shard_set.shards]
    manifest = shard_set.manifest
    gaps = [] if manifest is None else manifest.gaps
    head = index_head(
        [rows_of_shard.shape[1] for rows_of_shard in rows], KINDS[compression], len(gaps)
    )
    crc = 0
    for chunk in index_chunks(rows, head, gaps):
        crc = extend_crc32c(crc, chunk)
    if manifest is not None and crc != manifest.index.crc32c:
        raise ManifestError(
            "the shards are not those of the manifest, so its index can not be made",
            path=shard_set.directory,
            hint="`shardwriter verify` says what is wrong with them",
        )
    target = os.path.join(shard_set.directory, shard_set.pattern.index_file)
    _replace(run, target, index_chunks(rows, head, gaps))
    written = []
    if dali:
        for (_, shard_path), rows_of_shard in zip(shard_set.shards, rows, strict=True):
            _replace(run, shard_path + DALI_INDEX_SUFFIX, [dali_index(rows_of_shard[0])])
            written.append(shard_path + DALI_INDEX_SUFFIX)
    run.storage.sync_directory(shard_set.directory)
    num_records = sum(_num_records(rows_of_shard) for rows_of_shard in rows)
    return {"idx": written, "index": target, "num_records": num_records}


def _num_records(rows: NDArray[np.uint64]) -> int:
    if len(rows) == 1:
        return len(rows[0])
    return int(rows[1, -1]) if len(rows[0]) else 0


def shard_compression(shard_set: ShardSet) -> Compression:
    """Return the compression of a shard set, detected from the content.

    An empty file, a shard without records, is compatible with any compression.
    """
    found = {}
    for _, path in shard_set.shards:
        with storage_errors(path), open_stream(path) as stream:
            if stream.compression != "none" or stream.read(1):
                found[stream.compression] = path
    if len(found) > 1:
        raise ManifestError(
            f"the shards have different compressions: {', '.join(sorted(found))}",
            path=shard_set.directory,
            hint="write the dataset again with one --compression",
        )
    return next(iter(found), "none")


def shard_rows(path: str, compression: Compression) -> NDArray[np.uint64]:
    """Return the index rows of a shard, after a check of every CRC; see :func:`read_rows`."""
    return read_rows(path, compression)[0]


def read_rows(path: str, compression: Compression) -> tuple[NDArray[np.uint64], int]:
    """Return the index rows of a shard and its largest member, after a check of every CRC.

    Args:
        path: The shard.
        compression: Its compression.

    Returns:
        uint64[1, n]: the end offset of each frame. Of a compressed shard uint64[2, n]: the end
        offset of each member or block, and the number of records up to there. Then the
        uncompressed bytes of the largest member; 0 for an uncompressed shard.

    Raises:
        CorruptFile: The shard is damaged, or is a zlib file without blocks.
        ManifestError: Records cross the end of a member.
        StorageError: It cannot be read.
    """
    members: list[tuple[int, int]] = []  # its end in the file, and in the stream
    if compression == "zlib" and is_url(path):
        raise ManifestError(
            "the index of a zlib shard can only be made from a local file",
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
    record_ends = np.concatenate((np.zeros(1, np.uint64), ends))[records]
    if not np.array_equal(record_ends, stream_ends):
        raise ManifestError(
            f"records cross the ends of {compression} members, so the shard has no index",
            path=path,
            hint="write the dataset again with shardwriter, whose members end with a record",
        )
    largest = int(np.diff(stream_ends, prepend=np.uint64(0)).max(initial=0))
    return np.stack((file_ends, records.astype(np.uint64))), largest


def _replace(run: RunDirectory, path: str, chunks: Iterable[bytes]) -> None:
    """Replace a file atomically."""
    if os.path.isdir(path):
        raise StorageError("a folder of this name is in the way", path=path)
    temporary_path = os.path.join(run.path, _TEMPORARY)
    file = run.storage.create(temporary_path)
    for chunk in chunks:
        file.write(chunk)
    run.storage.sync(temporary_path)
    file.close()
    run.storage.publish(temporary_path, path)
