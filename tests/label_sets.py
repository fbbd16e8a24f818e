"""Scans of labels for tests: dealt to shards, from memory or from shards on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shardwriter import Manifest, read_records
from shardwriter.formats.example_columns import decode_columns
from shardwriter.inspect.label_scan import MAX_SEQUENCE, LabelScan


def scan_of(labels, max_sequence=MAX_SEQUENCE, batch=4096):
    """Scan integer labels of one file."""
    scan = LabelScan("y", max_sequence)
    column = np.asarray(labels, np.int64).reshape(-1, 1)
    for start in range(0, len(column), batch):
        scan.add(column[start : start + batch], len(column[start : start + batch]))
    return scan


def dealt(labels, num_shards, max_sequence=MAX_SEQUENCE):
    """Scan labels that were dealt round-robin."""
    return [scan_of(labels[shard::num_shards], max_sequence) for shard in range(num_shards)]


def shards(num_shards):
    return [(shard, f"s{shard}") for shard in range(num_shards)]


def paths_of(folder: Path, manifest: Manifest):
    pattern = manifest.pattern
    return [(s, str(folder / pattern.shard_file(s))) for s in range(pattern.num_shards)]


def scanned(paths, feature, batch=100):
    """Scan the records of files."""
    scans = []
    for _, path in paths:
        scan = LabelScan(feature)
        payloads = list(read_records(path))
        for start in range(0, len(payloads), batch):
            rows = payloads[start : start + batch]
            scan.add(decode_columns(rows).get(feature), len(rows))
        scans.append(scan)
    return scans


def through_buffer(labels, size, rng):
    """Return labels in the order in which a shuffle buffer gives them out."""
    held = list(labels[:size])
    out = []
    for label in labels[size:]:
        place = int(rng.integers(size))
        out.append(held[place])
        held[place] = label
    return np.array([*out, *rng.permutation(held)])
