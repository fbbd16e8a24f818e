"""Class resampling planned from label counts: how often a record of each class comes.

Counts are known before anything is read, so nothing has to be estimated. With p the share of a
class in the data and q the share that is wanted, its records have to come q / p times as often as
now, times a factor s that is the same for all classes. s says what it costs:

- s = 1 / max(q / p): the class that is wanted most keeps every record, of the others some are
  dropped. No record comes twice in a pass. This is rejection sampling, with everything read and
  ``s`` of it kept: at 1 to 1,000 and two classes in equal shares, 0.2%.
- a larger s keeps more of every class, and records of wanted classes come several times in a pass.
  Copies leave together, so a shuffle buffer has to part them.

``max_repeats`` bounds the mean number of copies of any class, and s is at most 1, where a pass
gives as many records as it reads.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardwriter.errors import OptionError
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.record_files import opened_dataset
from shardwriter.schema.feature_types import FeatureType

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

    See :mod:`shardwriter.reading.resampling` for what it does and costs; ``expected_records`` and
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
