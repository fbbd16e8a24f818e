"""The report of a repair: what was done with each shard, and every lost record."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np

from shardwriter.dataset import Gaps, lost_items_file, manifest_file, to_runs
from shardwriter.formats import Defect, canonical, clean, html_table
from shardwriter.inspect.survey import DamagedDataset, ShardSurvey

SCHEMA: Final = "shardwriter.repair/1"

Action = Literal["copied", "kept", "rewritten", "remade", "left-out"]
"""What was done with a shard.

``copied``: copied unchanged. ``kept``: good, and not touched. ``rewritten``: written from its good
records. ``remade``: written again from the source. ``left-out``: missing, with unknown content.
"""

_RECORD_KINDS: Final = frozenset(["payload-crc", "no-crc", "unmasked-crc"])
"""Defects of single records, after which the next record is known: losses are counted exactly."""
_HARMLESS: Final = frozenset(["torn-tail", "misnamed"])


@dataclass(frozen=True)
class Lost:
    """A lost record; or an unknown number of records behind a break.

    Attributes:
        kind: The kind of defect, as in the findings of ``shard-stats``.
        shard: Its shard.
        position: Its index in the shard, or that of the first lost record.
        item: Its index in source order; None if unknown.
        offset: Offset of its frame in the uncompressed stream; None if unknown.
        num_lost: 1, or None for an unknown number.
    """

    kind: str
    shard: int
    position: int
    item: int | None
    offset: int | None = None
    num_lost: int | None = 1

    def to_json(self) -> dict[str, Any]:
        """Return the line of the ledger."""
        return {
            "index": self.item,
            "kind": self.kind,
            "num_lost": self.num_lost,
            "offset": self.offset,
            "record_index": self.position,
            "shard_index": self.shard,
        }


@dataclass(frozen=True)
class ShardResult:
    """The result of a repair for one shard.

    Attributes:
        shard: Its index.
        path: The damaged shard.
        action: What was done.
        state: What was found; see :data:`shardwriter.inspect.survey.State`.
        num_records: Records of the repaired shard.
        num_lost: Lost records; None if unknown.
        num_unplaced: Good records that were left out, because their items are unknown.
        detail: The first defect.
    """

    shard: int
    path: str
    action: Action
    state: str
    num_records: int
    num_lost: int | None = 0
    num_unplaced: int = 0
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "action": self.action,
            "detail": self.detail,
            "num_lost": self.num_lost,
            "num_records": self.num_records,
            "num_unplaced": self.num_unplaced,
            "path": self.path,
            "shard_index": self.shard,
            "state": self.state,
        }


@dataclass(frozen=True)
class RepairReport:
    """The report of a repair, or of a dry run.

    Attributes:
        path: The damaged dataset.
        out: The folder of the repaired dataset.
        name: The dataset's name.
        num_items: Number of items; None if unknown.
        shards: The result for each shard.
        lost: Lost records, in order of shards and records.
        has_manifest: Whether the repaired dataset has a manifest.
        is_dry_run: Whether nothing was written.
        notes: Remarks for people, one line each.
    """

    path: str
    out: str
    name: str
    num_items: int | None
    shards: Sequence[ShardResult]
    lost: Sequence[Lost]
    has_manifest: bool
    is_dry_run: bool = False
    notes: Sequence[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<RepairReport {clean(repr(self.name))} {clean(self.verdict)}>"

    def _repr_html_(self) -> str:
        rows = [("from", self.path), ("to", self.out), *(("note", note) for note in self.notes[:3])]
        return html_table(self.verdict, rows)

    @property
    def num_records(self) -> int:
        """Records of the repaired dataset."""
        return sum(shard.num_records for shard in self.shards)

    @property
    def num_lost(self) -> int | None:
        """Number of lost records; None if some losses can not be counted."""
        counts = [entry.num_lost for entry in self.lost]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost

    @property
    def manifest(self) -> str | None:
        """Path of the repaired dataset's manifest; None without one."""
        return os.path.join(self.out, manifest_file(self.name)) if self.has_manifest else None

    @property
    def ledger(self) -> str | None:
        """Path of the list of lost records; None if nothing is lost."""
        return os.path.join(self.out, lost_items_file(self.name)) if self.lost else None

    @property
    def verdict(self) -> str:
        """One line: what was done, and what is lost."""
        count = dict.fromkeys(get_args(Action), 0)
        for shard in self.shards:
            count[shard.action] += 1
        shards = ", ".join(f"{n:,} {action}" for action, n in count.items() if n)
        would = "would be " if self.is_dry_run else ""
        if self.is_whole:
            return f"WHOLE: {self.num_records:,} records; shards: {would}{shards}"
        items = [entry.item for entry in self.lost if entry.num_lost and entry.item is not None]
        runs = to_runs(sorted(items))
        named = ", ".join(_run_text(run) for run in runs[:5]) + (", ..." if len(runs) > 5 else "")
        lost = "an unknown number of" if self.num_lost is None else f"{self.num_lost:,}"
        lost += " record" if self.num_lost == 1 else " records"
        which = f" (items {named})" if named else ""
        left = f"{self.num_records:,} are left; shards: {would}{shards}"
        return f"INCOMPLETE: {lost} lost{which}; {left}"

    def ledger_lines(self) -> bytes:
        """Return the lines of ``<name>.lost.jsonl``."""
        return "".join(canonical.dumps(entry.to_json()) for entry in self.lost).encode("ascii")

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        items = [entry.item for entry in self.lost if entry.num_lost and entry.item is not None]
        return {
            "dry_run": self.is_dry_run,
            "ledger": None if self.is_dry_run else self.ledger,
            "lost": {
                "count": self.num_lost,
                "from": [entry.to_json() for entry in self.lost if entry.num_lost is None],
                "runs": to_runs(sorted(items)),
            },
            "manifest": None if self.is_dry_run else self.manifest,
            "name": self.name,
            "notes": list(self.notes),
            "num_items": self.num_items,
            "num_records": self.num_records,
            "num_shards": len(self.shards),
            "out": self.out,
            "path": self.path,
            "schema": SCHEMA,
            "shards": [shard.to_json() for shard in self.shards],
            "verdict": self.verdict,
        }


def _run_text(run: list[int]) -> str:
    first, count = run
    return f"{first:,}" if count == 1 else f"{first:,} to {first + count - 1:,}"


def lost_of(known: DamagedDataset, found: ShardSurvey) -> list[Lost]:
    """Return the lost records of a shard, in order."""
    if found.is_good:
        return []
    if known.items_known:
        return list(_lost_items(known, found))
    return _lost_records(known, found)


def _lost_items(known: DamagedDataset, found: ShardSurvey) -> Iterable[Lost]:
    """Yield the lost records of a shard with a known number of records."""
    gaps = Gaps(known.gaps, known.num_shards)
    rows = known.rows(found.shard)
    is_plain = rows is not None and known.compression == "none"
    starts = np.concatenate(([0], rows[0])) if is_plain and rows is not None else None
    for position in found.lost_positions.tolist():
        yield Lost(
            _kind(found, position),
            found.shard,
            position,
            gaps.item_index(found.shard, position),
            None if starts is None else int(starts[position]),
        )


def _lost_records(known: DamagedDataset, found: ShardSurvey) -> list[Lost]:
    """Return the lost records of a shard with an unknown number of records."""

    def item(position: int) -> int | None:
        return None if known.pattern is None else found.shard + known.num_shards * position

    if found.positions is None:
        return [Lost("missing-shard", found.shard, 0, item(0), None, None)]
    lost = []
    is_found = set(found.positions.tolist())
    for defect in found.defects:
        first = defect.record_index
        if defect.kind in _RECORD_KINDS and first is not None:
            for position in range(first, first + (defect.num_records or 0)):
                if position in is_found:
                    continue  # the record was recovered
                offset = defect.offset if position == first else None
                lost.append(Lost(defect.kind, found.shard, position, item(position), offset))
            continue
        if defect.kind == "misnamed":
            continue
        # From here on neither the number of lost records nor the positions of later ones are known;
        # zeros at the end may have replaced records.
        counted = [position for position in found.positions.tolist() if position >= 0]
        position = max([counted[-1] + 1 if counted else 0, *(entry.position + 1 for entry in lost)])
        lost.append(Lost(defect.kind, found.shard, position, item(position), defect.offset, None))
        break
    return lost


def _kind(found: ShardSurvey, position: int) -> str:
    """Return the kind of defect that lost a record."""
    if found.state != "damaged":
        return "missing-shard" if found.state == "missing" else found.state
    before = [d for d in found.defects if _covers(d, position)]
    return before[-1].kind if before else "record-count"


def _covers(defect: Defect, position: int) -> bool:
    if defect.kind in _HARMLESS or defect.record_index is None or defect.record_index > position:
        return False
    is_exact = defect.kind in _RECORD_KINDS
    return not is_exact or position < defect.record_index + (defect.num_records or 0)


def result_of(
    known: DamagedDataset, found: ShardSurvey, action: Action, lost: Sequence[Lost]
) -> ShardResult:
    """Return the result for a shard."""
    counts = [entry.num_lost for entry in lost]
    unplaced = found.num_unplaced if known.items_known else 0
    detail = found.defects[0].detail if found.defects else None
    expected = found.num_expected
    num_records = found.num_records - unplaced
    if action in ("remade", "kept") and expected is not None:
        num_records = expected
    return ShardResult(
        found.shard,
        known.path(found.shard),
        action,
        found.state,
        0 if action == "left-out" else num_records,
        None if None in counts else sum(count or 0 for count in counts),
        unplaced,
        detail,
    )
