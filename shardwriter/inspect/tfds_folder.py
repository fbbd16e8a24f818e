"""A TFDS folder as a whole: splits that are not there, and what keeps TFDS from reading it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardwriter.dataset.names import FEATURES_FILE
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.tfds import DatasetInfo, Split, read_dataset_info
from shardwriter.sources.shard_sets import Folder, ShardSet, says_records
from shardwriter.storage.inputs import absolute, inputs_for, split


def judge_folders(sets: Sequence[ShardSet]) -> list[tuple[int, Finding]]:
    """Say which splits of a TFDS folder are not there, or are called so that TFDS misses them.

    A missing split counts where all sets of the folder were asked for.

    Args:
        sets: All that were asked for.

    Returns:
        Which of the sets a defect belongs to, and the defect.
    """
    findings = []
    for directory, mine in _by_directory(sets).items():
        info = read_dataset_info(directory)
        if info is None or not info.splits:
            continue
        here = {p for p in Folder(directory).patterns if says_records(p)}
        absent = [s for s in info.splits if not any(s.is_of(pattern) for pattern in here)]
        for number in mine:
            renamed = _renamed(sets[number], info, absent)
            if renamed is not None:
                findings.append((number, renamed[1]))
                absent.remove(renamed[0])
        if here <= {sets[number].pattern for number in mine}:
            findings += [(mine[0], _absent(directory, info, told)) for told in absent]
    return findings


def _by_directory(sets: Sequence[ShardSet]) -> dict[str, list[int]]:
    """Group sets that were asked for as wholes by the folder that they lie in."""
    found: dict[str, list[int]] = {}
    for number, shard_set in enumerate(sets):
        if shard_set.pattern is not None and shard_set.whole:
            found.setdefault(absolute(shard_set.directory), []).append(number)
    return found


def _renamed(
    shard_set: ShardSet, info: DatasetInfo, absent: Sequence[Split]
) -> tuple[Split, Finding] | None:
    pattern = shard_set.pattern
    if pattern is None or info.split_of(pattern) is not None:
        return None
    for told in absent:
        dataset = told.dataset_in(pattern)
        if dataset is not None:
            detail = (
                f"the dataset is called {info.name!r} here and {dataset!r} in names of shards: "
                f"TFDS looks for {told.shard_file(0)} and finds no file"
            )
            return told, Finding("tfds-name", info.path, detail)
    return None


def _absent(directory: str, info: DatasetInfo, told: Split) -> Finding:
    total, num_shards = sum(told.lengths), len(told.lengths)
    source = split(info.path)[1]
    detail = (
        f"all {num_shards:,} shards of split {told.name!r} are missing, {source} says that they "
        f"have {total:,} records"
    )
    path = os.path.join(directory, told.shard_file(0))
    return Finding("missing-shard", path, detail, shard_index=0, num_lost=total)


def folder_notes(sets: Sequence[ShardSet]) -> list[tuple[int, str]]:
    """Say what keeps TFDS from reading a folder, and is no fault of the shards.

    Args:
        sets: All that were asked for.

    Returns:
        Which of the sets a note belongs to, and the note.
    """
    notes = []
    for directory, mine in _by_directory(sets).items():
        info = read_dataset_info(directory)
        if info is None:
            continue
        features = os.path.join(directory, FEATURES_FILE)
        if info.problem is not None:
            notes.append((mine[0], f"{info.path} is {info.problem}"))
        elif info.splits and not inputs_for(features).is_file(features):
            notes.append((mine[0], f"{features} is not there: TFDS can not read this folder"))
    return notes
