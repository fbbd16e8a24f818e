"""What is wrong with the names of files, whatever is in them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from shardwriter.dataset import ShardPattern
from shardwriter.formats import SUFFIXES, Compression
from shardwriter.inspect.findings import Finding
from shardwriter.sources import ShardSet
from shardwriter.storage import absolute, inputs_for, split, storage_errors

# The last number of a name, in front of its endings; the time in the name of an event file is none.
_NUMBERED = re.compile(
    r"(?P<before>(?!.*tfevents).*?)(?P<number>[0-9]{1,9})(?P<after>[^0-9.]*(\.[A-Za-z0-9_]+)*)",
    re.DOTALL,
)


def misnamed(path: str, compression: Compression, file_bytes: int) -> str | None:
    """Say how a file's name and its content contradict each other.

    Args:
        path: The file.
        compression: What it is, by content.
        file_bytes: Its size; an empty file is no contradiction.

    Returns:
        The detail of a defect ``misnamed``; None where name and content agree.
    """
    says_gzip = path.endswith(SUFFIXES["gzip"])
    if compression == "gzip" and not says_gzip:
        return "gzip, and the name does not end in .gz: readers take it for plain"
    if compression != "gzip" and says_gzip and file_bytes:
        what = "plain" if compression == "none" else compression
        return f"{what}, and the name ends in .gz: readers take it for gzip and fail"
    return None


def same_content(shards: Sequence[tuple[str, int | None, int]]) -> list[str]:
    """Say which shards hold the same records, as they do when a file was copied over another.

    Args:
        shards: Path, CRC of the uncompressed stream (None where unknown) and number of records.

    Returns:
        A note for each group; none for shards without records, or of one record.
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
    """Make one set of files that differ in one number alone: ``train_0.tfrecord``, ``train_1...``.

    They follow no pattern that says how many there are, so none can be missing; but they are of one
    dataset, and have to be held against each other.

    Args:
        sets: All that were asked for, in their order.
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
    """Find the shard ``x-00003-of-00003`` of tools that count from 1.

    It follows no pattern, as shards are numbered from 0, so its records are not counted.

    Args:
        shard_set: A set that was asked for as a whole; of others nothing is said.

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
    detail = f"shards of {num_shards} are numbered from 0 to {num_shards - 1}: this one is not read"
    if 0 in shard_set.missing:
        first = pattern.shard_file(0)
        detail += f"; the tool has counted from 1, rename it to {first}"
    return Finding("beyond-last", path, detail)


def generations_together(sets: Sequence[ShardSet]) -> list[tuple[int, Finding]]:
    """Find shards of several runs of one dataset among files that were named one by one.

    A glob such as ``train-*`` matches all generations in a folder, and so it does in the program
    that trains. Sets that know of their other generations have said so themselves.

    Args:
        sets: All that were asked for.

    Returns:
        Which of the sets a defect belongs to, and the defect.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number, shard_set in enumerate(sets):
        if shard_set.pattern is not None and shard_set.whole and not shard_set.others:
            place = absolute(shard_set.directory), shard_set.name
            groups.setdefault(place, []).append(number)
    findings = []
    for numbers in groups.values():
        first = sets[numbers[0]].pattern
        if first is not None:
            findings += [(number, _stale(sets[number], first)) for number in numbers[1:]]
    return findings


def _stale(shard_set: ShardSet, first: ShardPattern) -> Finding:
    shown = first.template.replace("{shard}", "*")
    num_shards = len(shard_set.shards)
    detail = (
        f"{num_shards:,} shard(s) of another run than {shown}: a reader of both sees records twice"
    )
    return Finding("stale-generation", shard_set.shards[0][1], detail, num_lost=0)
