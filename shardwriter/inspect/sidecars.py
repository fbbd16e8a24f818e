"""Whole records or shards that are gone, found by what other files say of them.

A shard from which the last record is missing is a good file. Our manifest knows better; where there
is none, so may an index of ours that lies beside, a text file of frame offsets
(:mod:`~shardwriter.inspect.frame_tables`), or TFDS's ``dataset_info.json``
(:mod:`~shardwriter.inspect.tfds`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.naming import is_url
from shardwriter.errors import ManifestError
from shardwriter.formats.compression import Compression
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.frame_tables import (
    MAX_BYTES,
    first_wrong_frame,
    open_own_index,
    read_table,
    table_names,
)
from shardwriter.inspect.tfds import DatasetInfo, read_dataset_info
from shardwriter.sources.shard_sets import ShardSet
from shardwriter.storage.inputs import inputs_for, split
from shardwriter.storage.local import storage_errors

By = Literal["index", "idx", "tfds"]


@dataclass(frozen=True)
class Told:
    """What another file says of one shard.

    Attributes:
        by: What sort of file says it: our index, a text file of offsets, TFDS.
        source: That file.
        path: The shard; where ``problem`` is set, the first that it would be of.
        num_records: Records that it should have.
        shard_index: Of the shard, by its name.
        ends: uint64[n], the offset behind each frame in the plain file, where told.
        split: Name of the split, where TFDS tells.
        problem: Why the file is of no use; then it tells nothing.
    """

    by: By
    source: str
    path: str
    num_records: int
    shard_index: int | None = None
    ends: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)
    split: str = ""
    problem: str | None = None


class Found(NamedTuple):
    """What a scan has found in one shard.

    Attributes:
        num_records: Records that can be read.
        compression: What the file is.
        is_damaged: Whether records are lost to a defect, which says more than a count.
    """

    num_records: int
    compression: Compression = "none"
    is_damaged: bool = False


def read_told_counts(shard_set: ShardSet) -> Iterator[Told]:
    """Yield what files beside a set say of its shards, those that are missing included.

    A set with a manifest is not held against its index, which ``shardwriter verify`` proves.
    Tables of offsets are read one by one as they are asked for, so only one is in memory.

    Args:
        shard_set: The shards.

    Raises:
        StorageError: A file can not be read.
    """
    directory = shard_set.directory
    with storage_errors(directory):
        names = {entry.name for entry in inputs_for(directory).listing(directory, "")}
    if shard_set.manifest is None:
        yield from _by_index(shard_set, names)
    yield from _by_tables(shard_set, names)
    if (info := read_dataset_info(directory)) is not None:
        yield from _by_tfds(shard_set, info)


def _shards(shard_set: ShardSet) -> list[tuple[int | None, str]]:
    """Return index and path of the shards, with those that are missing."""
    if shard_set.pattern is None:
        return [(None, path) for _, path in shard_set.shards]
    missing = [
        (s, os.path.join(shard_set.directory, shard_set.pattern.shard_file(s)))
        for s in shard_set.missing
    ]
    return sorted([*shard_set.shards, *missing])


def _by_index(shard_set: ShardSet, names: set[str]) -> Iterator[Told]:
    pattern = shard_set.pattern
    if pattern is None or pattern.index_file not in names:
        return
    source = os.path.join(shard_set.directory, pattern.index_file)
    first = os.path.join(shard_set.directory, pattern.shard_file(0))
    try:
        index = open_own_index(source)
        if len(index.counts) != pattern.num_shards:
            if any(len(index.counts) == other.num_shards for other in shard_set.others):
                return  # of another run, whose shards have been blamed
            problem = f"it is of {len(index.counts)} shards, and these are {pattern.num_shards}"
            yield Told("index", source, first, 0, problem=problem)
            return
        for number in range(pattern.num_shards):
            index.check_order(number, MAX_BYTES)
        for shard, path in _shards(shard_set):
            assert shard is not None
            ends = np.array(index.ends(shard), np.uint64) if index.compression == "none" else None
            yield Told("index", source, path, index.num_records(shard), shard, ends)
    except ManifestError as error:
        if read_table(source) is None:  # a text file by this name tells of frames, not of ours
            yield Told("index", source, first, 0, problem=error.message)


def _by_tables(shard_set: ShardSet, names: set[str]) -> Iterator[Told]:
    for shard, path in _shards(shard_set):
        for name in table_names(split(path)[1]):
            table = None
            if name in names:
                table = read_table(os.path.join(shard_set.directory, name))
            if table is not None:
                num_records = len(table.ends)
                yield Told(
                    "idx", table.source, path, num_records, shard, table.ends, "", table.problem
                )


def _by_tfds(shard_set: ShardSet, info: DatasetInfo) -> Iterator[Told]:
    told = info.split_of(shard_set.pattern)
    if told is None or shard_set.pattern is None:
        return
    num_shards = len(told.lengths)
    if num_shards != shard_set.pattern.num_shards:
        first = os.path.join(shard_set.directory, told.shard_file(0))
        problem = (
            f"it has {num_shards} shards of split {told.name!r}, and these are "
            f"{shard_set.pattern.num_shards}"
        )
        yield Told("tfds", info.path, first, 0, split=told.name, problem=problem)
        return
    for shard, path in _shards(shard_set):
        assert shard is not None
        yield Told("tfds", info.path, path, told.lengths[shard], shard, split=told.name)


# -- held against the files ------------------------------------------------------------------------


class Held(NamedTuple):
    """A set, held against what is told of it.

    Attributes:
        findings: In what its shards are not what others tell.
        expected: How many records a shard should have, by its path; for shards that are missing
            or damaged that is how many are lost. Shards that nothing is told of are not in it.
    """

    findings: list[Finding]
    expected: dict[str, int]


def hold_set(shard_set: ShardSet, found: Mapping[str, Found]) -> Held:
    """Hold a set against all that files beside it say of its shards.

    Args:
        shard_set: The shards.
        found: What there is, by the path of the shard.

    Raises:
        StorageError: A file can not be read.
    """
    expected: dict[str, int] = {}

    def told() -> Iterator[Told]:
        for entry in read_told_counts(shard_set):
            if entry.problem is None:
                expected.setdefault(entry.path, entry.num_records)
            yield entry

    findings = hold_against_told(told(), found)
    return Held(findings, expected)


def hold_against_told(told: Iterable[Told], found: Mapping[str, Found]) -> list[Finding]:
    """Say where shards are not what other files tell of them.

    Args:
        told: From :func:`read_told_counts`.
        found: What there is, by the path of the shard. A shard that is not there, or is damaged,
            has said so itself.

    Raises:
        StorageError: A shard can not be read, to find where a table of offsets goes wrong.
    """
    findings: list[Finding] = []
    of_tfds: list[tuple[Told, Found]] = []
    for entry in told:
        there = found.get(entry.path)
        if entry.problem is not None:
            findings.append(Finding(f"{entry.by}-broken", entry.source, entry.problem))
        elif there is None or there.is_damaged:
            continue
        elif entry.by == "tfds":
            of_tfds.append((entry, there))
        elif (finding := _other_frames(entry, there)) is not None:
            findings.append(finding)
    return findings + _other_lengths(of_tfds)


def _other_frames(told: Told, found: Found) -> Finding | None:
    """Hold a shard against a table of its frames: the first that differs, or how many are gone."""
    source = split(told.source)[1]
    counts = f"{found.num_records:,} records, {source} says {told.num_records:,}"
    if told.ends is not None and found.compression == "none" and not is_url(told.path):
        common = told.ends[: found.num_records]
        wrong = first_wrong_frame(told.path, common)
        if wrong is not None:
            start = int(common[wrong - 1]) if wrong else 0
            is_other = f"{source} is of other content: record {wrong:,} at offset {start:,} should"
            size = int(common[wrong]) - start
            detail = f"{is_other} take {size:,} bytes and does not"
            if found.num_records != told.num_records:
                detail += f" ({counts})"
            return Finding(
                f"{told.by}-offset", told.path, detail, wrong, None, start, told.shard_index
            )
    if found.num_records == told.num_records:
        return None
    return _count(told, found, counts, " at the end")


def _count(told: Told, found: Found, counts: str, where: str) -> Finding:
    lost = told.num_records - found.num_records
    if lost > 0:
        detail = f"{counts}: {lost:,} {'is' if lost == 1 else 'are'} missing{where}"
    else:
        detail = f"{counts}: {-lost:,} more than told"
    return Finding(
        f"{told.by}-count",
        told.path,
        detail,
        record_index=min(told.num_records, found.num_records) if where else None,
        shard_index=told.shard_index,
        num_lost=max(0, lost),
    )


def _other_lengths(of_tfds: Sequence[tuple[Told, Found]]) -> list[Finding]:
    """Hold shards against ``dataset_info.json``, which has no more than counts."""
    if not of_tfds:
        return []
    findings = []
    source = split(of_tfds[0][0].source)[1]
    packed = [(told, there) for told, there in of_tfds if there.compression != "none"]
    if packed:
        told, there = packed[0]
        detail = (
            f"{there.compression}, as are {len(packed):,} of {len(of_tfds):,} shards of split "
            f"{told.split!r}: TFDS reads plain TFRecord files only"
        )
        findings.append(
            Finding("tfds-compression", told.path, detail, shard_index=told.shard_index)
        )
    is_swapped = sorted(told.num_records for told, _ in of_tfds) == sorted(
        there.num_records for _, there in of_tfds
    )
    for told, there in of_tfds:
        if told.num_records == there.num_records:
            continue
        counts = f"{there.num_records:,} records, {source} says {told.num_records:,}"
        if is_swapped:
            detail = (
                f"{counts}: the lengths of split {told.split!r} stand there in another order, so "
                "TFDS reads all of it and fails on a part such as train[:50%]"
            )
            findings.append(
                Finding("tfds-count", told.path, detail, shard_index=told.shard_index, num_lost=0)
            )
        else:
            findings.append(_count(told, there, counts, ""))
    return findings
