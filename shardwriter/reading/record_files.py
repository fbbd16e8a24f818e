"""The files of an open dataset, for readers that open them by themselves.

n records go to W ranks as :mod:`shardwriter.dataset.rank_partition` has it. Where W divides N,
rank r may read the files r, r + W, ... and nothing else, if these hold as many records as its
share.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import Index, RankPartition, good_num_shards, num_shard_items
from shardwriter.errors import OptionError
from shardwriter.formats import Compression
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.opening import open_dataset
from shardwriter.schema import FeatureType
from shardwriter.storage import absolute


@dataclass(frozen=True)
class RecordFiles:
    """The files of a dataset.

    Attributes:
        paths: One for each shard, in order.
        counts: ``int64[N]`` records of each.
        mean_bytes: Of a record's payload.
        compression: Of all of them.
        gaps: ``int64[g]`` sorted items without a record.
        starts: Gives the byte where each record of a shard begins; None where they are compressed.
    """

    paths: tuple[str, ...]
    counts: NDArray[np.int64]
    mean_bytes: int
    compression: Compression
    gaps: NDArray[np.int64]
    starts: Callable[[int], NDArray[np.int64]] | None

    @property
    def num_records(self) -> int:
        """The records of all shards."""
        return int(self.counts.sum())

    @property
    def is_regular(self) -> bool:
        """Whether the shards in turn are the source order, shard by shard of the right length."""
        total, num_shards = self.num_records, len(self.paths)
        law = [num_shard_items(total, num_shards, shard) for shard in range(num_shards)]
        return not len(self.gaps) and self.counts.tolist() == law

    def dealt(self, rank: int, world: int) -> RecordFiles:
        """Return the files r, r + W, ...; only where there are no gaps."""
        starts = self.starts
        return replace(
            self,
            paths=self.paths[rank::world],
            counts=self.counts[rank::world],
            starts=None if starts is None else lambda shard: starts(rank + shard * world),
        )


def deals_files(files: RecordFiles, share: RankPartition, in_order: bool) -> bool:
    """Say whether whole files can be dealt to ranks, so that each has its share of the records."""
    world = share.world
    if len(files.paths) % world:
        return False
    if in_order:
        return files.is_regular
    held = files.counts.reshape(-1, world).sum(axis=0)
    shares = [num_shard_items(files.num_records, world, rank) for rank in range(world)]
    return bool((held == shares).all())


def reading_all(files: RecordFiles, world: int) -> str:
    """Say that ranks read more than their own records, and which N would be better."""
    num_shards = len(files.paths)
    good = [n for n in good_num_shards(files.num_records, num_shards, world) if n != num_shards][:2]
    told = f"every rank reads all {num_shards:,} shards and keeps one record of {world:,}"
    if not good:
        return told
    return f"{told}; of {' or '.join(f'{n:,}' for n in good)} shards it would read only its own"


def opened_dataset(
    data: str | os.PathLike[str] | Dataset, notify: Callable[[str], None] | None = None
) -> Dataset:
    """Return a dataset that is open already, or open the one at a path."""
    return data if isinstance(data, Dataset) else open_dataset(data, notify=notify)


def files_of(data: Dataset) -> RecordFiles:
    """Return the files of a dataset.

    Raises:
        OptionError: It is a view of some of the records, or of another order.
    """
    if data._steps:
        raise OptionError(
            "whole files are to be read, and this is a view of some records or in another order",
            hint="give the dataset as it was opened; shuffle=, rank= and world= are options here",
        )
    core = data._core
    index = core.reader.index
    counts = [index.num_records(shard) for shard in range(data.num_shards)]
    if data.manifest is not None:
        total = data.manifest.payload_bytes
    else:
        total = sum(state.num_bytes for state in core.reader.pool.states)
    return RecordFiles(
        tuple(map(absolute, core.reader.pool.paths)),
        np.array(counts, np.int64),
        mean_bytes=max(1, total // max(1, data.num_source_records)),
        compression=index.compression,
        gaps=_gaps(data, index),
        starts=_starts(index) if index.compression == "none" else None,
    )


def _gaps(data: Dataset, index: Index) -> NDArray[np.int64]:
    """Return the items without a record; those behind the last record change no order."""
    last = data.num_source_records - 1
    if last < 0 or data.source_index(last) == last:
        return np.zeros(0, np.int64)
    gaps = index.gaps if data.manifest is None else data.manifest.gaps
    return np.asarray(gaps, np.int64)


def _starts(index: Index) -> Callable[[int], NDArray[np.int64]]:
    """Return a function that says where each record of a plain shard begins."""

    def starts(shard: int) -> NDArray[np.int64]:
        ends = index.ends(shard).astype(np.int64)
        return np.concatenate((np.zeros(1, np.int64), ends[:-1]))

    return starts


# Class resampling planned from label counts: how often a record of each class comes.
#
# Counts are known before anything is read, so nothing has to be estimated. With p the share of a
# class in the data and q the share that is wanted, its records have to come q / p times as often as
# now, times a factor s that is the same for all classes. s says what it costs:
#
# - s = 1 / max(q / p): the class that is wanted most keeps every record, of the others some are
#   dropped. No record comes twice in a pass. This is rejection sampling, with everything read and
#   ``s`` of it kept: at 1 to 1,000 and two classes in equal shares, 0.2%.
# - a larger s keeps more of every class, and records of wanted classes come several times in a
#   pass. Copies leave together, so a shuffle buffer has to part them.
#
# ``max_repeats`` bounds the mean number of copies of any class, and s is at most 1, where a pass
# gives as many records as it reads.

Target = Mapping[Any, float] | Literal["uniform"]


@dataclass(frozen=True)
class Resampling:
    """A plan of resampling.

    Attributes:
        label: Name of the feature.
        counts: Records of each class; a class is spelled as its ``str``.
        target: The share of each class that is aimed at; they sum up to 1.
        copies: How often a record of each class comes in a pass, on average.
    """

    label: str
    counts: Mapping[str, int]
    target: Mapping[str, float]
    copies: Mapping[str, float]

    @property
    def expected_records(self) -> float:
        """How many records a pass over the data gives on average."""
        return math.fsum(self.counts[name] * copies for name, copies in self.copies.items())

    @property
    def reads_per_record(self) -> float:
        """How many records are read for one that comes out."""
        return sum(self.counts.values()) / self.expected_records


def class_mix(
    data: str | os.PathLike[str] | Dataset,
    target: Target = "uniform",
    *,
    label: str | None = None,
    counts: Mapping[Any, int] | None = None,
    max_repeats: float = 1.0,
) -> Resampling:
    """Plan a resampling of classes from label counts, for ``tf_dataset(resample=...)``.

    See :mod:`shardwriter.reading.record_files` for what it does and costs; ``expected_records`` and
    ``reads_per_record`` of the plan say so for this dataset.

    Args:
        data: A path as `shardwriter.open` takes it, or what it returned.
        target: The share of each class that is wanted, or ``"uniform"`` for the same of all. A
            class is its label, or its name where the schema has names of the numbers (those of
            folders of images).
        label: The feature that holds the class; None for the one that was counted when the dataset
            was written.
        counts: Records of each class; None for those in the manifest.
        max_repeats: How often a record comes in a pass at most, on average. 1 only drops records.

    Raises:
        OptionError: The manifest has no counts of that feature, or the target can not be had.
    """
    opened = opened_dataset(data)
    told = opened.manifest.labels if opened.manifest is not None else None
    if counts is None:
        if told is None or label not in (None, told["feature"]):
            there = f"; it has those of {told['feature']!r}" if told else ""
            raise OptionError(
                f"the manifest has no counts of {'a label' if label is None else repr(label)}"
                + there,
                hint="write the dataset with --label NAME, or give counts={class: records}, which "
                "`shard-stats --label NAME --json` finds out",
                path=opened.path,
            )
        label, counts = told["feature"], told["counts"]
    elif label is None:
        label = told["feature"] if told else None
    feature = opened.features.get(label or "")
    if label is None or feature is None:
        raise OptionError(f"there is no feature {label!r}", hint="name the one that is the label")
    if feature.type.kind == "float" or (feature.type.shape or ()) not in ((), (1,)):
        raise OptionError(
            f"a record's {label!r} is no single integer or string, so it has no class of its own",
            hint="resample by a feature with one label",
        )
    spelled = {_spelled(name): int(count) for name, count in counts.items()}
    if isinstance(target, Mapping) and feature.vocabulary is not None:
        numbers = {name: number for number, name in enumerate(feature.vocabulary)}
        target = {numbers.get(name, name): share for name, share in target.items()}
    plan = plan_resampling(label, spelled, target, max_repeats)
    _check_classes(plan, feature.type)
    return plan


def _check_classes(plan: Resampling, feature: FeatureType) -> None:
    """Refuse classes that are not to be found by how they are spelled: they would never come."""
    for name in plan.copies:
        if feature.kind == "int64":
            if not re.fullmatch("-?[0-9]+", name):
                raise OptionError(f"no record has {plan.label!r} = {name!r}: it is an integer")
        elif feature.dtype != "string" and "\\x" in name:
            raise OptionError(
                f"{plan.label!r} = {name!r} is the spelling of bytes that are no text",
                hint="resample by a label that is text or an integer",
            )


def plan_resampling(
    label: str,
    counts: Mapping[str, int],
    target: Target = "uniform",
    max_repeats: float = 1.0,
) -> Resampling:
    """Plan how often records of each class come.

    Args:
        label: Name of the feature.
        counts: Records of each class that there are.
        target: The share of each class that is wanted, in any unit: shares are divided by their
            sum. Classes that are not named are dropped. ``"uniform"`` wants the same of all.
        max_repeats: How often a record of any class comes in a pass at most, on average.

    Raises:
        OptionError: Shares are negative or all 0, a class has no records, or ``max_repeats`` is not
            over 0.
    """
    there = {name: count for name, count in counts.items() if count}
    if not there:
        raise OptionError(f"no record has a label {label!r}")
    shares = _shares(label, there, target)
    if not 0 < max_repeats < math.inf:
        raise OptionError(f"max_repeats is {max_repeats}", hint="1 for no record twice in a pass")
    num_labelled = sum(there.values())
    ratios = {name: shares[name] * num_labelled / there[name] for name in shares}
    scale = min(1.0, max_repeats / max(ratios.values()))
    copies = {name: ratio * scale for name, ratio in ratios.items()}
    return Resampling(label, there, shares, copies)


def _shares(label: str, counts: Mapping[str, int], target: Target) -> dict[str, float]:
    if isinstance(target, str):
        if target != "uniform":
            raise OptionError(
                f"target is {target!r}", hint='give "uniform", or {class: share} for the classes'
            )
        return {name: 1 / len(counts) for name in counts}
    wanted = {_spelled(name): float(share) for name, share in target.items()}
    bad = [name for name, share in wanted.items() if not 0 <= share < math.inf]
    total = math.fsum(wanted.values()) if not bad else 0.0
    if not total:
        what = f"the share of {bad[0]!r} is {wanted[bad[0]]}" if bad else "all shares are 0"
        raise OptionError(f"target: {what}", hint="give {class: share}, as in {0: 0.5, 1: 0.5}")
    unknown = [name for name, share in wanted.items() if share and name not in counts]
    if unknown:
        known = ", ".join(sorted(counts)[:8])
        raise OptionError(
            f"no record has the label {label!r} = {unknown[0]}", hint=f"there are: {known}"
        )
    return {name: share / total for name, share in wanted.items() if share}


def _spelled(name: Any) -> str:
    """Spell a class as the manifest does; what was a bool is an int in an Example."""
    if isinstance(name, (bool, np.bool_)):
        return str(int(name))
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
