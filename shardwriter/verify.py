"""Proving a finished dataset: every shard, every count and the index, against the manifest."""

from __future__ import annotations

import os

from shardwriter.dataset.manifest import Manifest
from shardwriter.errors import ManifestError, StorageError
from shardwriter.indexing import open_index
from shardwriter.progress_bar import Reading, reading_progress
from shardwriter.shards.locate import find_one, required_manifest
from shardwriter.stats import Finding, Report, stats


def verify(path: str | os.PathLike[str], *, progress: Reading | bool | None = None) -> Report:
    """Prove a dataset that has a manifest.

    Args:
        path: The dataset: ``out/train``, ``out/train@16``, its manifest, or its folder.
        progress: True shows a bar; or a function called with (bytes of files read, bytes of all
            files).

    Raises:
        OptionError: The path names nothing, or several datasets.
        ManifestError: There is no manifest, or it can not be used.
    """
    shard_set = find_one(os.fspath(path))
    manifest = required_manifest(shard_set)
    path = os.path.join(shard_set.directory, manifest.pattern.manifest_file)
    with reading_progress(progress, "proving") as told:
        report = stats(path, progress=told)
    set_report = report.sets[0]
    for finding in _index_findings(shard_set.directory, manifest):
        set_report.note(finding)
    return report


def _index_findings(directory: str, manifest: Manifest) -> list[Finding]:
    try:
        open_index(directory, manifest)
    except (ManifestError, StorageError) as error:
        path = os.path.join(directory, manifest.index.file)
        return [Finding("index", path, error.message)]
    return []
