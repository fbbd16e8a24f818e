"""The label mix of a set: how often each label is there, and whether every shard has its share.

It comes from the records, or from a manifest alone. A shard deviates in a label where dealing the
records out at random would hardly ever give it so many or so few (:mod:`.label_tests`), and the
difference is large enough to matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.manifest import Manifest
from shardwriter.inspect.label_scan import LabelScan
from shardwriter.inspect.label_tests import Cell, deviating_cells
from shardwriter.schema.labels import MAX_CELLS, MAX_LABELS

_MAX_TESTED: Final = 20_000_000  # shards x labels that are tested
_MAX_TOLD: Final = 100  # deviating cells that are told of


@dataclass(frozen=True)
class LabelTable:
    """Counts of C labels in N shards.

    Attributes:
        feature: Name of the feature.
        source: ``records`` or ``manifest``.
        names: The C labels as they are spelled, in order.
        counts: ``int64[C]``: how often each is there.
        num_labelled: ``int64[N]``: records of each shard with a label; None where unknown.
        num_unlabelled: Records without one.
        rows: N columns of labels' numbers and how often the shard has each; None where unknown.
        records: The same in records that have the label; None where unknown.
    """

    feature: str
    source: str
    names: Sequence[str]
    counts: NDArray[np.int64]
    num_labelled: NDArray[np.int64] | None
    num_unlabelled: int
    rows: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]] | None
    records: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]] | None

    @property
    def num_shards(self) -> int:
        """N; 0 where nothing is known of shards."""
        return 0 if self.rows is None else len(self.rows)

    @property
    def num_cells(self) -> int:
        """N x C."""
        return self.num_shards * len(self.names)

    def dense_records(self) -> Iterator[NDArray[np.int64]]:
        """Yield ``int64[C]`` for each shard: its records with each label."""
        for codes, counts in self.records or ():
            row = np.zeros(len(self.names), np.int64)
            row[codes] = counts
            yield row


def table_of_scans(scans: Sequence[LabelScan]) -> LabelTable | None:
    """Return the counts that scans of the files of a set give, one a shard in their order.

    Returns:
        None where there are no labels, or too many for a label.

    Raises:
        ValueError: The scans are of different features.
    """
    features = {scan.feature for scan in scans}
    if len(features) > 1:
        raise ValueError(f"scans of {len(features)} features: {sorted(features)}")
    names = _in_order(set().union(*(scan.names for scan in scans)))
    if not names or len(names) > MAX_LABELS or any(scan.too_many for scan in scans):
        return None
    places = {name: place for place, name in enumerate(names)}
    rows, records = [], []
    totals = np.zeros(len(names), np.int64)
    for scan in scans:
        codes = np.array([places[name] for name in scan.names], np.int64)
        rows.append((codes, scan.counts))
        records.append((codes, scan.num_with))
        totals[codes] += rows[-1][1]
    return LabelTable(
        features.pop(),
        "records",
        names,
        totals,
        np.array([scan.num_labelled for scan in scans], np.int64),
        sum(scan.num_unlabelled for scan in scans),
        rows,
        records,
    )


def table_of_manifest(manifest: Manifest) -> LabelTable | None:
    """Return the counts that a manifest has; None where it has none.

    It counts labels and not records, so where some records have several labels nothing can be said
    of how the records with a label were dealt out.
    """
    entry = manifest.labels
    if not entry or not entry["counts"]:
        return None
    names = _in_order(entry["counts"])
    totals = np.array([entry["counts"][name] for name in names], np.int64)
    feature = manifest.schema.get("features", {}).get(entry["feature"])
    present = manifest.num_records
    if feature is not None:
        present = feature["present"] - feature["unset"]
    total = int(totals.sum())
    num_unlabelled = max(0, manifest.num_records - min(present, total))
    shards = entry.get("shards")
    if shards is None:
        return LabelTable(
            entry["feature"], "manifest", names, totals, None, num_unlabelled, None, None
        )
    cells = np.array([shards[name] for name in names], np.int64)
    rows = [(np.flatnonzero(row), row[np.flatnonzero(row)]) for row in cells.T]
    in_shard = cells.sum(axis=0)
    is_single = total <= present and all(
        count <= shard.num_records
        for count, shard in zip(in_shard.tolist(), manifest.shards, strict=True)
    )
    return LabelTable(
        entry["feature"],
        "manifest",
        names,
        totals,
        in_shard if is_single else None,
        num_unlabelled,
        rows,
        rows if is_single else None,
    )


def label_mix(table: LabelTable | None, shards: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """Return the report's ``labels`` of a set; ``{}`` where there is no table.

    Args:
        table: Of :func:`table_of_scans`, with one row for each of ``shards``; or of
            :func:`table_of_manifest`, with one row for each shard index.
        shards: Index and path of the files that are there, as a ShardSet has them.
    """
    if table is None:
        return {}
    total = int(table.counts.sum())
    mix: dict[str, Any] = {
        "counts": dict(zip(table.names, table.counts.tolist(), strict=True)),
        "deviating": [],
        "feature": table.feature,
        "initial_dist": {
            name: count / total
            for name, count in zip(table.names, table.counts.tolist(), strict=True)
        },
        "num_deviating": 0,
        "num_unlabelled": table.num_unlabelled,
        "source": table.source,
    }
    if table.rows is not None and table.num_cells <= MAX_CELLS:
        cells = np.zeros((len(table.names), table.num_shards), np.int64)
        for shard, (codes, counts) in enumerate(table.rows):
            cells[codes, shard] = counts
        mix["shards"] = dict(zip(table.names, cells.tolist(), strict=True))
    files = dict(shards) if table.source == "manifest" else dict(enumerate(p for _, p in shards))
    found = _deviating(table)
    if found is not None:
        cells_found, mix["evenness"] = found
        here = [cell for cell in cells_found if cell.shard in files]
        mix["num_deviating"] = len(here)
        mix["deviating"] = [
            {
                "count": cell.count,
                "expected": cell.expected,
                "label": table.names[cell.label],
                "p_value": cell.p_value,
                "path": files[cell.shard],
                "ratio": cell.count / cell.expected,
                "shard_index": cell.shard if table.source == "manifest" else shards[cell.shard][0],
            }
            for cell in here[:_MAX_TOLD]
        ]
    return mix


def _deviating(table: LabelTable) -> tuple[list[Cell], dict[str, Any]] | None:
    """Return the cells that deviate, the worst first; None where that can not be told."""
    if table.records is None or table.num_labelled is None or table.num_shards < 2:
        return None
    if len(table.names) < 2 or table.num_cells > _MAX_TESTED:
        return None
    return deviating_cells(table.dense_records, table.num_labelled)


def initial_dist_text(mix: Mapping[str, Any], max_labels: int = 1000) -> str:
    """Return the label mix as a line of Python, as tf.data's ``rejection_resample`` takes it.

    Labels that are the numbers of classes stand at their places, with 0 for those that no record
    has; others are listed, and a comment names them.
    """
    dist: Mapping[str, float] = mix["initial_dist"]
    places = {_class_number(name): share for name, share in dist.items()}
    if None not in places and max(n for n in places if n is not None) < 2 * len(dist) + 10:
        shares = [places.get(n, 0.0) for n in range(max(n for n in places if n is not None) + 1)]
        comment = f"labels 0 to {len(shares) - 1}"
    else:
        shares = list(dist.values())
        comment = "of " + ", ".join(map(repr, dist))
    if len(shares) > max_labels:
        return f"# initial_dist has {len(shares):,} labels: take it from --json"
    return f"initial_dist = [{', '.join(f'{share:.6g}' for share in shares)}]  # {comment}"


def label_note(mix: Mapping[str, Any]) -> str | None:
    """Return one line that says in which shards the mix is off; None where it is not."""
    if not mix.get("num_deviating"):
        return None
    worst = mix["deviating"][0]
    places = mix["num_deviating"]
    rest = "" if places == 1 else f", and {places - 1:,} more such place{'s' * (places > 2)}"
    return (
        f"labels are not dealt evenly: {worst['path']} has label {worst['label']!r} of "
        f"{mix['feature']!r} in {worst['count']:,} records, {worst['expected']:,.1f} would be its "
        f"share{rest}; `shardwriter write --shuffle --seed 0` writes every shard with the same mix"
    )


def _in_order(names: Any) -> list[str]:
    """Sort labels: numbers by size, then the others as text."""

    def key(name: str) -> tuple[bool, float, str]:
        try:
            number = float(name)
        except ValueError:
            return True, 0.0, name
        return (False, number, name) if number == number else (True, 0.0, name)

    return sorted(names, key=key)


def _class_number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name else None
