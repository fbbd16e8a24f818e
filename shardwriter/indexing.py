"""The index of a dataset that lies there: proving it, and making it anew from the shards."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.compression import open_stream
from shardwriter.crc32c import extend_crc32c
from shardwriter.errors import ManifestError, StorageError
from shardwriter.index import KINDS, Index, dali_index, index_chunks, index_head
from shardwriter.locate import ShardSet, find_one
from shardwriter.manifest import Manifest
from shardwriter.naming import DALI_INDEX_SUFFIX
from shardwriter.rundir import RunDirectory
from shardwriter.storage import LocalStorage
from shardwriter.storage.local import storage_errors
from shardwriter.tfrecord import FRAME_BYTES
from shardwriter.tfrecord_reader import read_records

_READ_BYTES: Final = 1 << 20
_GROWING: Final = "index.remade"  # a name that no run has for its own files


def open_index(directory: str, manifest: Manifest) -> Index:
    """Open the index of a dataset once it is known to be the manifest's.

    Raises:
        ManifestError: It is not there, or is not the one that was written with the manifest.
        StorageError: It can not be read.
    """
    path = os.path.join(directory, manifest.index.file)
    if not os.path.lexists(path):
        raise ManifestError(
            "it is not there",
            path=path,
            hint="`shardwriter index` makes it from the shards",
        )
    with storage_errors(path):
        size, crc = _size_and_crc(path)
    told = manifest.index
    if (size, crc) != (told.file_bytes, told.crc32c):
        raise ManifestError(
            f"{size:,} bytes with CRC {crc:08x}, the manifest says {told.file_bytes:,} with "
            f"{told.crc32c:08x}",
            path=path,
            hint="`shardwriter index` makes it from the shards",
        )
    with storage_errors(path):
        index = Index(path)
    if len(index.counts) != manifest.num_shards:
        raise ManifestError(f"it is of {len(index.counts)} shards", path=path)
    for shard, entry in enumerate(manifest.shards):
        ends = index.ends(shard)
        last = int(ends[-1]) if len(ends) else 0
        if len(ends) != entry.num_records or last != entry.file_bytes:
            raise ManifestError(
                f"shard {shard}: {len(ends):,} records that end at {last:,}", path=path
            )
    return index


def _size_and_crc(path: str) -> tuple[int, int]:
    size = crc = 0
    with open(path, "rb", buffering=0) as file:
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
        CorruptFile: A shard is damaged.
        ManifestError: The shards are compressed, or not those of the manifest.
    """
    found = _whole_set(path)
    with _claimed(found) as run:
        # What was found before the lock may have been replaced since.
        return _remake(_whole_set(path), run, dali=dali)


def _whole_set(path: str) -> ShardSet:
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
            if run.is_committed:
                run.roll_forward()
            yield run
        finally:
            if run.is_unfinished or run.is_committed:
                run.storage.delete(os.path.join(run.path, _GROWING))
            else:
                run.discard()


def _remake(shard_set: ShardSet, run: RunDirectory, *, dali: bool) -> dict[str, Any]:
    assert shard_set.pattern is not None
    for _, shard_path in shard_set.shards:
        _refuse_compressed(shard_path)
    ends = [_ends(shard_path) for _, shard_path in shard_set.shards]
    manifest = shard_set.manifest
    gaps = [] if manifest is None else manifest.gaps
    head = index_head([len(e) for e in ends], KINDS["none"], len(gaps))
    crc = 0
    for chunk in index_chunks(ends, head, gaps):
        crc = extend_crc32c(crc, chunk)
    if manifest is not None and crc != manifest.index.crc32c:
        raise ManifestError(
            "the shards are not those of the manifest, so its index can not be made from them",
            path=shard_set.directory,
            hint="`shardwriter verify` says what is wrong with them",
        )
    target = os.path.join(shard_set.directory, shard_set.pattern.index_file)
    _replace(run, target, index_chunks(ends, head, gaps))
    written = []
    if dali:
        for (_, shard_path), shard_ends in zip(shard_set.shards, ends, strict=True):
            _replace(run, shard_path + DALI_INDEX_SUFFIX, [dali_index(shard_ends)])
            written.append(shard_path + DALI_INDEX_SUFFIX)
    run.storage.sync_directory(shard_set.directory)
    return {"idx": written, "index": target, "num_records": sum(len(e) for e in ends)}


def _refuse_compressed(path: str) -> None:
    with storage_errors(path), open_stream(path) as stream:
        if stream.compression != "none":
            raise ManifestError(
                f"a {stream.compression} shard has no record offsets, so there is no index of it",
                path=path,
            )


def _ends(path: str) -> NDArray[np.uint64]:
    """Return uint64[n]: the offset behind each frame of a plain shard, every CRC proven."""
    with storage_errors(path):
        sizes = array("Q", (len(record) + FRAME_BYTES for record in read_records(path)))
    return np.cumsum(np.frombuffer(sizes, np.uint64), dtype=np.uint64)


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
