"""The files of an open dataset for readers that open them themselves, and class resampling.

If W ranks divide N shards, rank r can read the files r, r + W, ... alone, provided these hold as
many records as its partition (:mod:`shardwriter.dataset.rank_partition`).

Resampling is planned from label counts, which are known before anything is read. With p the share
of a class in the data and q its target share, its records must be repeated q / p times, multiplied
by a factor s common to all classes:

- s = 1 / max(q / p): records of the rarest class (relative to its target) occur once, those of
  other classes are dropped at random. This is rejection sampling: everything is read, and a share s
  of it is used; 0.2% for two classes at 1 to 1,000 and equal targets.
- A larger s uses more records of every class, and repeats those of rare classes within a pass.
  Repeats come one after the other, so a shuffle buffer has to separate them.

``max_repeats`` bounds the mean number of repeats of any class. s is at most 1: a pass yields at
most as many records as it reads.
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
        paths: One per shard, in order.
        counts: ``int64[N]`` records of each shard.
        mean_bytes: Mean payload size of a record.
        compression: Compression of all files.
        gaps: ``int64[g]`` sorted items without a record.
        starts: Returns ``int64[n]`` byte offsets of a shard's records; None for compressed shards.
    """

    paths: tuple[str, ...]
    counts: NDArray[np.int64]
    mean_bytes: int
    compression: Compression
    gaps: NDArray[np.int64]
    starts: Callable[[int], NDArray[np.int64]] | None

    @property
    def num_records(self) -> int:
        """The number of records in all shards."""
        return int(self.counts.sum())

    @property
    def is_regular(self) -> bool:
        """Whether reading one record of each shard in turn gives the source order."""
        total, num_shards = self.num_records, len(self.paths)
        expected = [num_shard_items(total, num_shards, shard) for shard in range(num_shards)]
        return not len(self.gaps) and self.counts.tolist() == expected

    def of_rank(self, rank: int, world: int) -> RecordFiles:
        """Return the files r, r + W, ... of a rank; valid only without gaps."""
        starts = self.starts
        return replace(
            self,
            paths=self.paths[rank::world],
            counts=self.counts[rank::world],
            starts=None if starts is None else lambda shard: starts(rank + shard * world),
        )


def can_assign_files(files: RecordFiles, share: RankPartition, in_order: bool) -> bool:
    """Return whether each rank can read whole files and get exactly its number of records."""
    world = share.world
    if len(files.paths) % world:
        return False
    if in_order:
        return files.is_regular
    counts = files.counts.reshape(-1, world).sum(axis=0)
    expected = [num_shard_items(files.num_records, world, rank) for rank in range(world)]
    return bool((counts == expected).all())


def reads_all_note(files: RecordFiles, world: int) -> str:
    """Return the note that every rank reads all shards, with numbers of shards that avoid it."""
    num_shards = len(files.paths)
    good = [n for n in good_num_shards(files.num_records, num_shards, world) if n != num_shards][:2]
    note = f"every rank reads all {num_shards:,} shards and uses one record in {world:,}"
    if not good:
        return note
    return f"{note}; with {' or '.join(f'{n:,}' for n in good)} shards it would read only its own"


def as_dataset(
    data: str | os.PathLike[str] | Dataset, notify: Callable[[str], None] | None = None
) -> Dataset:
    """Return an open dataset as it is, or open the one at a path."""
    return data if isinstance(data, Dataset) else open_dataset(data, notify=notify)


def record_files(data: Dataset) -> RecordFiles:
    """Return the files of a dataset.

    Raises:
        OptionError: The dataset is a view (a slice, shuffle or split).
    """
    if data._steps:
        raise OptionError(
            "this reader reads whole files, and the dataset is a view (a slice, shuffle or split)",
            hint="give the dataset as it was opened, and use shuffle=, rank= and world= here",
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
    """Return the items without a record; [] if none of them comes before the last record."""
    last = data.num_source_records - 1
    if last < 0 or data.source_index(last) == last:
        return np.zeros(0, np.int64)
    gaps = index.gaps if data.manifest is None else data.manifest.gaps
    return np.asarray(gaps, np.int64)


def _starts(index: Index) -> Callable[[int], NDArray[np.int64]]:
    """Return a function from an uncompressed shard to the byte offsets of its records."""

    def starts(shard: int) -> NDArray[np.int64]:
        ends = index.ends(shard).astype(np.int64)
        return np.concatenate((np.zeros(1, np.int64), ends[:-1]))

    return starts


Target = Mapping[Any, float] | Literal["uniform"]


@dataclass(frozen=True)
class Resampling:
    """A resampling plan; see the module for its arithmetic.

    Attributes:
        label: Name of the feature.
        counts: Records of each class; a class is the ``str`` of its value.
        target: The target share of each class; they sum to 1.
        copies: Mean number of times a record of each class is yielded in a pass.
    """

    label: str
    counts: Mapping[str, int]
    target: Mapping[str, float]
    copies: Mapping[str, float]

    @property
    def expected_records(self) -> float:
        """The mean number of records that a pass yields."""
        return math.fsum(self.counts[name] * copies for name, copies in self.copies.items())

    @property
    def reads_per_record(self) -> float:
        """The number of records read per record yielded."""
        return sum(self.counts.values()) / self.expected_records


def class_mix(
    data: str | os.PathLike[str] | Dataset,
    target: Target = "uniform",
    *,
    label: str | None = None,
    counts: Mapping[Any, int] | None = None,
    max_repeats: float = 1.0,
) -> Resampling:
    """Return a resampling plan for ``tf_dataset(resample=...)``, from label counts.

    See :mod:`shardwriter.reading.record_files` for the arithmetic; ``expected_records`` and
    ``reads_per_record`` of the plan give its cost for this dataset.

    Args:
        data: A path or an open dataset; see `shardwriter.open`.
        target: The target share of each class, or ``"uniform"`` for equal shares. A class is given
            by its label, or by its name if the schema has class names.
        label: The feature that holds the class; None for the label in the manifest.
        counts: Records of each class; None for those in the manifest.
        max_repeats: Bound of the mean number of times a record is yielded in a pass; with 1,
            records are only dropped.

    Raises:
        OptionError: The manifest has no counts of that feature, or the target is impossible.
    """
    opened = as_dataset(data)
    labels = opened.manifest.labels if opened.manifest is not None else None
    if counts is None:
        if labels is None or label not in (None, labels["feature"]):
            there = f"; it has those of {labels['feature']!r}" if labels else ""
            raise OptionError(
                f"the manifest has no counts of {'a label' if label is None else repr(label)}"
                + there,
                hint="write the dataset with --label NAME, or give counts={class: records}, as "
                "counted by `shard-stats --label NAME --json`",
                path=opened.path,
            )
        label, counts = labels["feature"], labels["counts"]
    elif label is None:
        label = labels["feature"] if labels else None
    feature = opened.features.get(label or "")
    if label is None or feature is None:
        raise OptionError(f"there is no feature {label!r}", hint="give label=FEATURE")
    if feature.type.kind == "float" or (feature.type.shape or ()) not in ((), (1,)):
        raise OptionError(
            f"{label!r} is not a single integer or string per record, so it can not be a class",
            hint="resample by a feature with one integer or string",
        )
    spelled = {_spelled(name): int(count) for name, count in counts.items()}
    if isinstance(target, Mapping) and feature.vocabulary is not None:
        numbers = {name: number for number, name in enumerate(feature.vocabulary)}
        target = {numbers.get(name, name): share for name, share in target.items()}
    plan = plan_resampling(label, spelled, target, max_repeats)
    _check_classes(plan, feature.type)
    return plan


def _check_classes(plan: Resampling, feature: FeatureType) -> None:
    """Raise on classes that match no record: their text is not that of a label."""
    for name in plan.copies:
        if feature.kind == "int64":
            if not re.fullmatch("-?[0-9]+", name):
                raise OptionError(f"no record has {plan.label!r} = {name!r}: it is an integer")
        elif feature.dtype != "string" and "\\x" in name:
            raise OptionError(
                f"{plan.label!r} = {name!r} stands for bytes that are not text",
                hint="resample by a label that is text or an integer",
            )


def plan_resampling(
    label: str,
    counts: Mapping[str, int],
    target: Target = "uniform",
    max_repeats: float = 1.0,
) -> Resampling:
    """Return how often records of each class are yielded.

    Args:
        label: Name of the feature.
        counts: Records of each class.
        target: The target share of each class, in any unit: shares are divided by their sum.
            Classes that are not named are dropped. ``"uniform"`` gives equal shares.
        max_repeats: Bound of the mean number of times a record of any class is yielded in a pass.

    Raises:
        OptionError: Shares are negative or all 0, a class has no records, or ``max_repeats`` is not
            over 0.
    """
    there = {name: count for name, count in counts.items() if count}
    if not there:
        raise OptionError(f"no record has a label {label!r}")
    shares = _shares(label, there, target)
    if not 0 < max_repeats < math.inf:
        raise OptionError(f"max_repeats is {max_repeats}", hint="give 1 to repeat no record")
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
    """Return a class as the manifest spells it; a bool is stored as an int."""
    if isinstance(name, (bool, np.bool_)):
        return str(int(name))
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
