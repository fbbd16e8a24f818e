"""Findings and notes about file names: wrong suffixes, stale generations, equal content."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from shardwriter.dataset import ShardPattern
from shardwriter.formats import SUFFIXES, Compression
from shardwriter.inspect.findings import Finding
from shardwriter.sources import ShardSet
from shardwriter.storage import absolute, inputs_for, split, storage_errors

# The last number of a name, before its suffixes; not the time in the name of an event file.
_NUMBERED = re.compile(
    r"(?P<before>(?!.*tfevents).*?)(?P<number>[0-9]{1,9})(?P<after>[^0-9.]*(\.[A-Za-z0-9_]+)*)",
    re.DOTALL,
)


def misnamed(path: str, compression: Compression, file_bytes: int) -> str | None:
    """Return how a file's name contradicts its content: the detail of a defect ``misnamed``.

    Args:
        path: The file.
        compression: The compression by content.
        file_bytes: Its size; an empty file may have any name.

    Returns:
        The detail; None if name and content agree.
    """
    says_gzip = path.endswith(SUFFIXES["gzip"])
    if compression == "gzip" and not says_gzip:
        return "gzip, but the name does not end in .gz: readers treat it as plain"
    if compression != "gzip" and says_gzip and file_bytes:
        what = "plain" if compression == "none" else compression
        return f"{what}, but the name ends in .gz: readers treat it as gzip and fail"
    return None


def same_content(shards: Sequence[tuple[str, int | None, int]]) -> list[str]:
    """Return a note for each group of shards with the same records.

    Args:
        shards: Path, CRC of the uncompressed stream (None if unknown) and number of records; shards
            with fewer than two records are ignored.
    """
    groups: dict[tuple[int, int], list[str]] = {}
    for path, crc, num_records in shards:
        if crc is not None and num_records > 1:
            groups.setdefault((crc, num_records), []).append(path)
    notes = []
    for (_, num_records), paths in groups.items():
        if len(paths) > 1:
            others = ", ".join(split(path)[1] for path in paths[1:4])
            others += f" and {len(paths) - 4:,} more" if len(paths) > 4 else ""
            notes.append(
                f"{paths[0]} has the same {num_records:,} records as {others}: if a shard was "
                "copied over another one, the other's records are lost"
            )
    return notes


def numbered_together(sets: Sequence[ShardSet]) -> list[ShardSet]:
    """Return sets in which files whose names differ only in a number are one set.

    Names such as ``train_0.tfrecord``, ``train_1.tfrecord`` do not give the number of shards, so
    missing ones can not be found; but they are compared as shards of one dataset.

    Args:
        sets: All sets that are inspected, in order.
    """
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    result: list[ShardSet] = []
    for shard_set in sets:
        numbered = None
        if shard_set.pattern is None and len(shard_set.shards) == 1:
            path = shard_set.shards[0][1]
            numbered = _NUMBERED.fullmatch(split(path)[1])
        if numbered is None:
            result.append(shard_set)
            continue
        key = absolute(shard_set.directory), f"{numbered['before']}*{numbered['after']}"
        if key not in groups:
            groups[key] = []
            result.append(ShardSet(shard_set.directory, None, groups[key]))
        groups[key].append((int(numbered["number"]), path))
    for shard_set in result:
        shard_set.shards.sort()
    return result


def beyond_last(shard_set: ShardSet) -> Finding | None:
    """Return a finding for a shard ``x-00003-of-00003``, as written by tools that count from 1.

    Shards are numbered from 0, so this file is not part of the set and its records are not counted.

    Args:
        shard_set: The set; only complete sets are checked.

    Raises:
        StorageError: The folder can not be read.
    """
    pattern = shard_set.pattern
    if pattern is None or not shard_set.whole:
        return None
    num_shards = pattern.num_shards
    path = os.path.join(shard_set.directory, pattern.shard_file(num_shards))
    with storage_errors(path):
        if not inputs_for(path).is_file(path):
            return None
    detail = f"{num_shards} shards are numbered from 0 to {num_shards - 1}: this one is not read"
    if 0 in shard_set.missing:
        first = pattern.shard_file(0)
        detail += f"; the tool has counted from 1, rename it to {first}"
    return Finding("beyond-last", path, detail)


def generations_together(sets: Sequence[ShardSet]) -> list[tuple[int, Finding]]:
    """Return findings for sets that are several runs (generations) of one dataset.

    A glob such as ``train-*`` matches all generations in a folder, also in a training program. Sets
    that already list their other generations are skipped.

    Args:
        sets: All sets that are inspected.

    Returns:
        Pairs of the set's position in ``sets`` and the finding.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number, shard_set in enumerate(sets):
        if shard_set.pattern is not None and shard_set.whole and not shard_set.others:
            key = absolute(shard_set.directory), shard_set.name
            groups.setdefault(key, []).append(number)
    findings = []
    for numbers in groups.values():
        first = sets[numbers[0]].pattern
        if first is not None:
            findings += [(number, _stale(sets[number], first)) for number in numbers[1:]]
    return findings


def _stale(shard_set: ShardSet, first: ShardPattern) -> Finding:
    shown = first.template.replace("{shard}", "*")
    num_shards = len(shard_set.shards)
    detail = f"{num_shards:,} shard(s) of another run than {shown}: reading both repeats records"
    return Finding("stale-generation", shard_set.shards[0][1], detail, num_lost=0)
