"""What the page shows of a report: chosen, cut to size and put into words, without any markup."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwriter.dataset.naming import parse_shard_file
from shardwriter.formats.images import read_header
from shardwriter.reading.pictures import Sample
from shardwriter.report.page_set_view import View, cut, set_view
from shardwriter.report.remedies import aftermath, remedies
from shardwriter.report.render import bytes_text

_MAX_SETS: Final = 12
_MAX_DEFECTS: Final = 200
_MAX_NOTES: Final = 100
_MAX_PICTURES: Final = 24
_MAX_PICTURE_BYTES: Final = 200_000
_MAX_PICTURES_BYTES: Final = 500_000  # of all; a third more as text
_TINY_PIXELS: Final = 96


def page_view(report: Mapping[str, Any], samples: Sequence[Sample] = ()) -> View:
    """Return what the template fills in."""
    sets = report.get("sets") or [{"balance": report["balance"]}]
    shards: list[list[Mapping[str, Any]]] = [[] for _ in sets]
    for shard in report["shards"]:
        shards[shard.get("set", 0)].append(shard)
    damaged = {defect["path"] for defect in report["defects"]}
    gates = report.get("gates") or []
    failed = [gate for gate in gates if not gate["passed"]]
    views = [
        set_view(shard_set, files, damaged, min(len(sets), _MAX_SETS))
        for shard_set, files in list(zip(sets, shards, strict=True))[:_MAX_SETS]
    ]
    return {
        "schema": report["schema"],
        "title": _title(sets),
        "is_good": not report["num_defects"] and not failed,
        "status": _status(report["num_defects"], len(failed)),
        "verdict": report["verdict"],
        "figures": _figures(report),
        "gates": gates,
        "defects": _defects_view(report),
        "sizes": _histogram(report),
        "sets": views,
        "other_sets": [_set_row(shard_set) for shard_set in sets[_MAX_SETS:]],
        "notes": cut(report["notes"], _MAX_NOTES),
        "pictures": _pictures(samples),
    }


def _title(sets: Sequence[Mapping[str, Any]]) -> str:
    if len(sets) > 1:
        return f"{len(sets):,} shard sets"
    return sets[0].get("files") or "TFRecord shards"


def _status(num_defects: int, num_failed: int) -> str:
    if num_defects:
        return "Damaged"
    return "Gate failed" if num_failed == 1 else "Gates failed" if num_failed else "Good"


def _figures(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the key figures: name, value, and a word on it."""
    sizes, balance = report["record_bytes"], report["balance"]
    proven = {"crc": "every CRC proven", "length": "framing proven", "none": "nothing proven"}
    if report["num_defects"]:
        proven = dict.fromkeys(proven, "that can be read; see Defects")
    spread = f"{bytes_text(sizes['min'])} to {bytes_text(sizes['max'])}"
    even = f"bytes {balance['bytes_max_over_mean']:.2f}"
    return [
        ("Records", f"{report['num_records']:,}", proven.get(report["check"], "")),
        ("Shards", f"{report['num_shards']:,}", f"{bytes_text(report['file_bytes'])} in files"),
        ("Payload", bytes_text(report["payload_bytes"]), "without framing and compression"),
        ("Record", bytes_text(sizes["mean"]), spread if sizes["min"] is not None else ""),
        ("Balance", f"{balance['records_max_over_mean']:.2f}", f"largest over mean; {even}"),
        ("Defects", f"{report['num_defects']:,}", ""),
    ]


def _defects_view(report: Mapping[str, Any]) -> View:
    rows = [
        {
            "kind": defect["kind"],
            "file": os.path.basename(defect["path"]),
            "path": defect["path"],
            "record": _place(defect["record_index"]),
            "item": _place(defect["global_index"]),
            "offset": _place(defect["offset"]),
            "detail": defect["detail"],
            "aftermath": aftermath(defect),
        }
        for defect in report["defects"][:_MAX_DEFECTS]
    ]
    return {
        "shown": rows,
        "more": report["num_defects"] - len(rows),
        "remedies": remedies(report["defects"]),
    }


def _place(index: int | None) -> str:
    return "" if index is None else f"{index:,}"


def _histogram(report: Mapping[str, Any]) -> list[View]:
    parts = report["record_bytes"]["histogram"]
    if not parts:
        return []
    counts = {part["below"]: part["count"] for part in parts}
    most, below = max(counts.values()), min(counts)
    rows = []
    while below <= max(counts):
        count = counts.get(below, 0)
        rows.append(
            {
                "name": f"{bytes_text(below >> 1)} to {bytes_text(below)}",
                "count": f"{count:,}",
                "share": count / most if most else 0,
            }
        )
        below *= 2
    return rows


def _set_row(shard_set: Mapping[str, Any]) -> View:
    return {
        "files": shard_set["files"],
        "records": f"{shard_set['num_records']:,}",
        "shards": f"{shard_set['num_shards']:,}",
        "bytes": bytes_text(shard_set["file_bytes"]),
    }


def _pictures(samples: Sequence[Sample]) -> View:
    shown: list[View] = []
    left_bytes, num_left_out = _MAX_PICTURES_BYTES, 0
    for sample in samples:
        size = len(sample.data)
        try:
            header = read_header(sample.data)
        except ValueError:
            num_left_out += 1
            continue
        if size > min(left_bytes, _MAX_PICTURE_BYTES) or len(shown) == _MAX_PICTURES:
            num_left_out += 1
            continue
        left_bytes -= size
        encoded = base64.b64encode(sample.data).decode("ascii")
        shown.append(
            {
                "url": f"data:image/{sample.format};base64,{encoded}",
                "width": header.width,
                "height": header.height,
                "is_tiny": max(header.width, header.height) <= _TINY_PIXELS,
                "label": sample.label,
                "file": os.path.basename(sample.path),
                "shard": _shard_text(sample.path),
                "record": f"{sample.record_index:,}",
                "feature": sample.feature,
            }
        )
    return {"shown": shown, "num_left_out": num_left_out}


def _shard_text(path: str) -> str:
    parsed = parse_shard_file(os.path.basename(path))
    return os.path.basename(path) if parsed is None else f"shard {parsed.shard_index:,}"
