"""Proving a finished dataset: every shard, every count and the index, against the manifest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shardwriter.crc32c import crc32c
from shardwriter.errors import ManifestError
from shardwriter.index import Index, dali_index, index_chunks, index_head
from shardwriter.locate import ShardSet, find_one
from shardwriter.manifest import Manifest
from shardwriter.naming import DALI_INDEX_SUFFIX, parse_shard_file
from shardwriter.stats import Finding, Report, stats
from shardwriter.storage import LocalStorage
from shardwriter.tfrecord import FRAME_BYTES, read_records


def verify(path: str, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Prove a dataset that has a manifest.

    Args:
        path: The dataset: ``out/train``, ``out/train@16``, its manifest, or its folder.
        progress: Called with (bytes of files read, bytes of all files).

    Raises:
        ManifestError: There is no manifest, or it can not be used.
    """
    shard_set = find_one(path)
    manifest = _required_manifest(shard_set)
    report = stats(
        os.path.join(shard_set.directory, manifest.pattern.manifest_file), progress=progress
    )
    set_report = report.sets[0]
    for finding in check_index(shard_set.directory, manifest):
        set_report.note(finding)
    return report


def _required_manifest(shard_set: ShardSet) -> Manifest:
    if shard_set.manifest is None:
        raise ManifestError(
            f"{shard_set.name!r} has no manifest, so there is nothing to hold it against",
            path=shard_set.directory,
            hint="a dataset without one is unfinished, or another tool's: shard-stats proves its "
            "checksums",
        )
    return shard_set.manifest


def check_index(directory: str, manifest: Manifest) -> list[Finding]:
    """Hold the index file against the manifest and against its own shards' sizes."""
    path = os.path.join(directory, manifest.index.file)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return [Finding("index", path, "the index is not there; `shardwriter index` makes it")]
    if len(data) != manifest.index.file_bytes or crc32c(data) != manifest.index.crc32c:
        return [
            Finding(
                "index",
                path,
                f"{len(data):,} bytes with CRC {crc32c(data):08x}, the manifest says "
                f"{manifest.index.file_bytes:,} with {manifest.index.crc32c:08x}",
            )
        ]
    try:
        index = Index(path)
    except ManifestError as error:
        return [Finding("index", path, error.message)]
    for shard, told in enumerate(manifest.shards):
        ends = index.ends(shard)
        last = int(ends[-1]) if len(ends) else 0
        if len(ends) != told.num_records or last != told.file_bytes:
            return [Finding("index", path, f"shard {shard}: it ends at {last:,}")]
    return []


def make_index(path: str, *, dali: bool = False) -> dict[str, Any]:
    """Make the index of a shard set anew from its shards; ``.idx`` files too if asked.

    Args:
        path: The dataset.
        dali: Write ``<shard>.idx`` beside every shard.

    Returns:
        ``{"index": file, "num_records": n, "idx": [files]}``.

    Raises:
        CorruptFile: A shard is damaged.
        ManifestError: The shards are not those of the manifest.
    """
    shard_set = find_one(path)
    if shard_set.pattern is None or shard_set.missing:
        raise ManifestError(
            "an index needs all shards of one set", path=path, hint="shard-stats says what is there"
        )
    ends: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
    for _, shard_path in shard_set.shards:
        sizes = [len(record) + FRAME_BYTES for record in read_records(shard_path)]
        if parse_shard_file(os.path.basename(shard_path)) and shard_path.endswith(".gz"):
            raise ManifestError("compressed shards have no record offsets", path=shard_path)
        ends.append(np.cumsum(np.array(sizes, np.uint64), dtype=np.uint64))
    gaps = [] if shard_set.manifest is None else list(shard_set.manifest.gaps)
    head = index_head([len(e) for e in ends], 0, len(gaps))
    data = b"".join(index_chunks(ends, head, gaps))
    if shard_set.manifest is not None and crc32c(data) != shard_set.manifest.index.crc32c:
        raise ManifestError(
            "the shards are not those of the manifest, so its index can not be made from them",
            path=shard_set.directory,
            hint=f"shardwriter verify {path}",
        )
    storage = LocalStorage()
    target = os.path.join(shard_set.directory, shard_set.pattern.index_file)
    _replace(storage, target, data)
    written = []
    if dali:
        for (_, shard_path), shard_ends in zip(shard_set.shards, ends, strict=True):
            _replace(storage, shard_path + DALI_INDEX_SUFFIX, dali_index(shard_ends))
            written.append(shard_path + DALI_INDEX_SUFFIX)
    return {"idx": written, "index": target, "num_records": sum(len(e) for e in ends)}


def _replace(storage: LocalStorage, path: str, data: bytes) -> None:
    growing = f"{path}.new"
    file = storage.create(growing)
    file.write(data)
    storage.sync(growing)
    file.close()
    storage.publish(growing, path)
