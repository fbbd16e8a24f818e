"""What is said of a write when it has ended, well or not, wherever its output lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwriter.dataset.manifest import Manifest
    from shardwriter.dataset.naming import Output


def summary_json(
    manifest: Manifest, directory: str, elapsed_s: float, stages_s: Mapping[str, float]
) -> dict[str, Any]:
    """Return what ``--json`` prints of a dataset that was written."""
    return {
        "elapsed_s": elapsed_s,
        "errors": _num_errors(manifest, directory),
        "file_bytes": manifest.file_bytes,
        "manifest": os.path.join(directory, manifest.pattern.manifest_file),
        "num_items": manifest.num_items,
        "num_records": manifest.num_records,
        "num_shards": manifest.num_shards,
        "payload_bytes": manifest.payload_bytes,
        "schema": "shardwriter.write/1",
        "skipped": len(manifest.gaps),
        "stages_s": dict(stages_s),
    }


def _num_errors(manifest: Manifest, directory: str) -> int:
    from shardwriter.dataset.naming import ledger_file
    from shardwriter.storage.choose import storage_for

    ledger = os.path.join(directory, ledger_file(manifest.name))
    return (storage_for(ledger).read(ledger) or b"").count(b"\n")


def what_is_left(output: Output) -> str | None:
    """Say what a write that was stopped has left; None where that is nothing, or not known."""
    from shardwriter.dataset.naming import manifest_file, partial_dir
    from shardwriter.errors import ShardwriterError
    from shardwriter.storage.choose import storage_for

    run = os.path.join(output.directory, partial_dir(output.name))
    manifest = os.path.join(output.directory, manifest_file(output.name))
    try:
        storage = storage_for(output.directory)
        names = storage.list(run)
        is_there = storage.size(manifest) is not None
    except ShardwriterError:
        return None  # the place itself is what failed
    if "commit.json" in names:
        return f"all is written, and --resume finishes the publication of {output.name!r}"
    if names:
        return f"nothing was published, and what was done is kept in {run}: --resume goes on"
    if is_there:
        return f"nothing is left of a run, and the dataset of {manifest} is whole"
    return None
