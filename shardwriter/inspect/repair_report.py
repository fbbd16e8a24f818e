"""What a repair has done, or would do: shard by shard, and every item that is lost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np

from shardwriter.dataset import Gaps, lost_items_file, manifest_file, to_runs
from shardwriter.formats import Defect, canonical, clean, html_table
from shardwriter.inspect.survey import Known, ShardSurvey

SCHEMA: Final = "shardwriter.repair/1"

Action = Literal["copied", "kept", "rewritten", "remade", "left-out"]
"""What became of a shard.

``copied``: as it was. ``kept``: it was good and stays where it is. ``rewritten``: made of its good
records. ``remade``: made anew from the source. ``left-out``: it is not there, and nobody knows what
was in it.
"""

_RECORD_KINDS: Final = frozenset(["payload-crc", "no-crc", "unmasked-crc"])
"""Defects behind which the next record is known, so that what is lost is counted exactly."""
_HARMLESS: Final = frozenset(["torn-tail", "misnamed"])


@dataclass(frozen=True)
class Lost:
    """A record that could not be brought back; or of a place behind a break, nobody knows how many.

    Attributes:
        kind: What broke it: a kind of defect, as ``shard-stats`` names them.
        shard: Its shard.
        place: Which of the shard's records it is, or was the first of them.
        item: Its index in source order; None where the file's name does not tell.
        offset: Of its frame in the uncompressed stream, where that is known.
        num_lost: 1, or None for a number that is not known.
    """

    kind: str
    shard: int
    place: int
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
            "record_index": self.place,
            "shard_index": self.shard,
        }


@dataclass(frozen=True)
class ShardResult:
    """What became of one shard.

    Attributes:
        shard: Its number.
        path: Where it was.
        action: What was done.
        state: What was found; see :data:`shardwriter.inspect.survey.State`.
        num_records: Records that it has now.
        num_lost: Records that it has lost; None for a number that is not known.
        num_unplaced: Good records that were left out, as nobody knows which items they are.
        detail: The first thing that was wrong with it.
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
        """Return it as JSON."""
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
    """What a repair has done, or would do.

    Attributes:
        path: The dataset that was damaged.
        out: The folder of the repaired one.
        name: Its name.
        num_items: T; None where that is not known.
        shards: What became of each shard.
        lost: What could not be brought back, in order of shards and records.
        is_lawful: Whether the repaired dataset has a manifest.
        is_dry_run: Whether nothing was written.
        notes: What a person should know, one line each.
    """

    path: str
    out: str
    name: str
    num_items: int | None
    shards: Sequence[ShardResult]
    lost: Sequence[Lost]
    is_lawful: bool
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
        """Records that are lost; None where some of them can not be counted."""
        counts = [entry.num_lost for entry in self.lost]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost

    @property
    def manifest(self) -> str | None:
        """Path of the repaired dataset's manifest; None where it has none."""
        return os.path.join(self.out, manifest_file(self.name)) if self.is_lawful else None

    @property
    def ledger(self) -> str | None:
        """Path of the list of what is lost; None where nothing is."""
        return os.path.join(self.out, lost_items_file(self.name)) if self.lost else None

    @property
    def verdict(self) -> str:
        """What was done and what is lost, in a line."""
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


def lost_of(known: Known, found: ShardSurvey) -> list[Lost]:
    """Return what of a shard is lost, in order."""
    if found.is_good:
        return []
    if known.is_lawful:
        return list(_lost_items(known, found))
    return _lost_records(known, found)


def _lost_items(known: Known, found: ShardSurvey) -> Iterable[Lost]:
    """Yield the lost records of a shard of which it is known what it had."""
    gaps = Gaps(known.gaps, known.num_shards)
    rows = known.rows(found.shard)
    is_plain = rows is not None and known.compression == "none"
    starts = np.concatenate(([0], rows[0])) if is_plain and rows is not None else None
    for place in found.lost_places.tolist():
        yield Lost(
            _kind(found, place),
            found.shard,
            place,
            gaps.item_index(found.shard, place),
            None if starts is None else int(starts[place]),
        )


def _lost_records(known: Known, found: ShardSurvey) -> list[Lost]:
    """Return the lost records of a shard of which nobody has told what it had."""

    def item(place: int) -> int | None:
        return None if known.pattern is None else found.shard + known.num_shards * place

    if found.places is None:
        return [Lost("missing-shard", found.shard, 0, item(0), None, None)]
    lost = []
    is_found = set(found.places.tolist())
    for defect in found.defects:
        first = defect.record_index
        if defect.kind in _RECORD_KINDS and first is not None:
            for place in range(first, first + (defect.num_records or 0)):
                if place in is_found:
                    continue  # nothing was lost with it
                offset = defect.offset if place == first else None
                lost.append(Lost(defect.kind, found.shard, place, item(place), offset))
            continue
        if defect.kind == "misnamed":
            continue
        # Nobody knows how many there were from here on, nor which records are those behind it.
        # Zeros at the end may stand where records were.
        counted = [place for place in found.places.tolist() if place >= 0]
        place = max([counted[-1] + 1 if counted else 0, *(entry.place + 1 for entry in lost)])
        lost.append(Lost(defect.kind, found.shard, place, item(place), defect.offset, None))
        break
    return lost


def _kind(found: ShardSurvey, place: int) -> str:
    """Return what is to blame for the loss of a record."""
    if found.state != "damaged":
        return "missing-shard" if found.state == "missing" else found.state
    before = [d for d in found.defects if _covers(d, place)]
    return before[-1].kind if before else "record-count"


def _covers(defect: Defect, place: int) -> bool:
    if defect.kind in _HARMLESS or defect.record_index is None or defect.record_index > place:
        return False
    is_exact = defect.kind in _RECORD_KINDS
    return not is_exact or place < defect.record_index + (defect.num_records or 0)


def result_of(
    known: Known, found: ShardSurvey, action: Action, lost: Sequence[Lost]
) -> ShardResult:
    """Say what became of a shard."""
    counts = [entry.num_lost for entry in lost]
    unplaced = found.num_unplaced if known.is_lawful else 0
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
