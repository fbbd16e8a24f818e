"""Counting without reading: the index of a dataset has the size of every record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwriter.errors import ManifestError, StorageError
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.inspect.scan import FileScan, ScanOptions
from shardwriter.sources.shard_sets import ShardSet
from shardwriter.storage.inputs import inputs_for
from shardwriter.storage.local import storage_errors
from shardwriter.writing.index_files import open_index


def counted(sets: Sequence[ShardSet], options: ScanOptions) -> dict[str, FileScan]:
    """Return what indices tell of shards that need not be read, by path.

    That is when nothing has to be proven and no record looked at. The index has to be the
    manifest's, and the file of the size that it says; of compressed shards it tells too little.

    Args:
        sets: The shard sets.
        options: What scans are to prove and look for.
    """
    if options.check != "none" or options.features or options.label is not None:
        return {}
    return {scan.path: scan for shard_set in sets for scan in _counted(shard_set)}


def _counted(shard_set: ShardSet) -> list[FileScan]:
    manifest = shard_set.manifest
    if manifest is None or manifest.compression["type"] != "none":
        return []
    try:
        index = open_index(shard_set.directory, manifest)
    except (ManifestError, StorageError):
        return []
    with storage_errors(shard_set.directory):
        found = inputs_for(shard_set.directory).stats([path for _, path in shard_set.shards])
    scans = []
    for (shard, path), stat in zip(shard_set.shards, found, strict=True):
        ends = index.ends(shard).astype(np.uint64)
        if stat.st_size != (ends[-1] if len(ends) else 0):
            continue  # reading it tells why
        scan = FileScan(path, stat.st_size)
        scan.sizes.add(np.diff(ends, prepend=np.uint64(0)) - np.uint64(FRAME_BYTES))
        scans.append(scan)
    return scans
