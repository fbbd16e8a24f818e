"""The report as one HTML file, without network access or scripts; light, dark and printable.

`page_view` turns the JSON document into what the templates ``page.html`` and ``page_parts.html``
fill in: selected, limited in size, and formatted as text. Charts are paths and rectangles in boxes
of their own, which the page stretches.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final

from shardwriter.dataset import parse_shard_file
from shardwriter.formats import clean, read_header
from shardwriter.reading import Sample
from shardwriter.report.render import bytes_text, number_text, plural, share_text
from shardwriter.report.tables import (
    aftermath,
    drift_file,
    kind_text,
    named_labels,
    presence_text,
    range_texts,
    remedies,
    select_shards,
    shape_text,
    shard_name,
    top_text,
)
from shardwriter.storage import storage_errors, storage_for

# -- charts --------------------------------------------------------------------------------------

_HEIGHT: Final = 100.0
_MAX_HEAT_ROWS: Final = 12
_MAX_HEAT_COLUMNS: Final = 48
_LEVELS: Final = (2.0, 4.0, 8.0)  # limits of a cell's colour levels, in standard deviations


def strip_chart(
    values: Sequence[int],
    is_bad: Sequence[bool],
    unit: str,
    *,
    what: str = "shard",
    max_columns: int = 400,
) -> dict[str, Any]:
    """Return a bar chart of all shards; of many, each bar is a range of shards.

    The dark part of a bar is the smallest value of its range, the light part the largest.

    Args:
        values: One value per shard.
        is_bad: Whether each shard is damaged.
        unit: ``records`` or ``bytes``.
        what: What each value belongs to.
        max_columns: The most bars.
    """
    count, most = len(values), max(values, default=0)
    mean = sum(values) / count if count else 0.0
    num_columns = min(count, max_columns)
    gap = 0.0 if num_columns > 120 else 0.2
    paths = {"low": "", "high": "", "bad": ""}
    for column in range(num_columns):
        first = column * count // num_columns
        last = (column + 1) * count // num_columns
        run = values[first:last]
        low, high = _height(min(run), most), _height(max(run), most)
        which = "bad" if any(is_bad[first:last]) else "low"
        paths[which] += _bar(column, 1 - gap, low)
        if high > low:
            paths["high"] += _bar(column, 1 - gap, high)
    text = bytes_text if unit == "bytes" else "{:,.0f}".format
    least = min(values, default=0)
    spread = f"{text(least)} to {text(most)}, mean {text(mean)}"
    even = f"{text(least)} each" if least == most else spread
    return {
        "unit": unit,
        "width": num_columns,
        "paths": paths,
        "mean_y": round(_HEIGHT - _height(mean, most), 2),
        "summary": f"{plural(count, what)}, {even}",
        "num_bad": sum(is_bad),
        "is_merged": count > num_columns,
    }


def _height(value: float, most: float) -> float:
    return _HEIGHT * value / most if most else 0.0


def _bar(column: int, width: float, height: float) -> str:
    return f"M{column} {_HEIGHT:g}v{-height:.2f}h{width:g}v{height:.2f}z"


def rank_bars(values: Sequence[int], max_columns: int) -> dict[str, Any] | None:
    """Return a small bar chart of the ranks' samples; None for less than two ranks."""
    if len(values) < 2:
        return None
    return strip_chart(
        values, [False] * len(values), "records", what="rank", max_columns=max_columns
    )


def box_chart(quantiles: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Return the marks of a box plot between the 1st and the 99th percentile, each of 0 to 100."""
    if not quantiles:
        return None
    names = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
    values = [quantiles.get(name) for name in names]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        return None
    numbers = [float(value) for value in values if value is not None]
    # Halved, since the span of two finite numbers may overflow.
    low, span = numbers[0] / 2, numbers[-1] / 2 - numbers[0] / 2
    if span <= 0:
        return None
    marks = [round(100 * min(1.0, max(0.0, (value / 2 - low) / span)), 2) for value in numbers]
    return dict(zip(("q01", "q05", "q25", "q50", "q75", "q95", "q99"), marks, strict=True))


def heat_chart(labels: Mapping[str, Any], *, num_shards: int) -> dict[str, Any] | None:
    """Return a heat map of how each shard's label mix differs, for the most frequent labels.

    A cell's level is its distance from the expected count in standard deviations, so that small
    shards do not stand out. Of many shards, each column is a range.
    """
    shards, counts = labels.get("shards") or {}, labels.get("counts") or {}
    if num_shards < 2 or len(counts) < 2 or not shards:
        return None
    if any(len(row) != num_shards for row in shards.values()):
        return None
    num_columns = min(num_shards, _MAX_HEAT_COLUMNS)
    edges = [column * num_shards // num_columns for column in range(num_columns + 1)]
    sums = {label: [sum(row[a:b]) for a, b in pairwise(edges)] for label, row in shards.items()}
    in_column = [sum(column) for column in zip(*sums.values(), strict=True)]
    total = sum(in_column)
    if not total:
        return None
    most = sorted(sums, key=lambda label: (-sum(sums[label]), label))[:_MAX_HEAT_ROWS]
    rows = []
    for label in most:
        share = sum(sums[label]) / total
        cells = [
            _level(found, share * here) for found, here in zip(sums[label], in_column, strict=True)
        ]
        rows.append({"label": label, "cells": cells})
    return {
        "rows": rows,
        "width": num_columns,
        "is_merged": num_columns < num_shards,
        "num_far": sum(abs(level) > 1 for row in rows for level in row["cells"]),
    }


def _level(found: int, expected: float) -> int:
    """Return -3 (far fewer than expected) to 3 (far more)."""
    distance = (found - expected) / math.sqrt(max(expected, 1.0))
    level = sum(abs(distance) > limit for limit in _LEVELS)
    return level if distance > 0 else -level


# -- one shard set -------------------------------------------------------------------------------

_MAX_SHARDS: Final = 50
_MAX_LABELS: Final = 20
_MAX_DEVIATING: Final = 50
_MAX_FEATURES: Final = 100
_MAX_DRIFT: Final = 100
_MAX_STRIP_COLUMNS: Final = 400
_MAX_RANK_COLUMNS: Final = 48
_MIN_ROWS: Final = 10

View = dict[str, Any]


def cut(entries: Sequence[Any], limit: int) -> View:
    """Return the first entries, and the number of further ones."""
    return {"shown": list(entries[:limit]), "more": max(0, len(entries) - limit)}


def set_view(
    shard_set: Mapping[str, Any],
    shards: Sequence[Mapping[str, Any]],
    damaged: Collection[str],
    num_sets: int = 1,
) -> View:
    """Return the template's values for a set.

    Args:
        shard_set: The report's entry.
        shards: The report's entries of its shards.
        damaged: Paths of files with a defect.
        num_sets: Number of sets on the page; the limits of rows are divided by it.
    """

    def room(limit: int) -> int:
        return max(_MIN_ROWS, limit // num_sets)

    num_shown = room(_MAX_SHARDS)
    shown = select_shards(shards, damaged, num_shown, num_each=num_shown * 2 // 5)
    labels = named_labels(shard_set)
    return {
        "files": shard_set.get("files", ""),
        "directory": shard_set.get("directory", ""),
        "facts": _facts(shard_set),
        "strips": _strips(shards, damaged, room(_MAX_STRIP_COLUMNS)),
        "balance": _balance_view(shard_set.get("balance") or {}),
        "shards": [_shard_row(shard, damaged) for shard in shown],
        "num_shards": len(shards),
        "labels": _labels_view(labels),
        "heat": heat_chart(labels, num_shards=len(shards)),
        "deviating": cut(
            [_deviation(entry) for entry in labels.get("deviating") or []], room(_MAX_DEVIATING)
        ),
        "shuffle": shard_set.get("shuffle") or None,
        "features": _features_view(shard_set, room(_MAX_FEATURES)),
        "drift": cut(
            [{**entry, "file": drift_file(entry)} for entry in shard_set.get("drift") or []],
            room(_MAX_DRIFT),
        ),
        "plan": _plan_view(shard_set.get("plan") or {}, room(_MAX_RANK_COLUMNS)),
    }


def _strips(
    shards: Sequence[Mapping[str, Any]], damaged: Collection[str], max_columns: int
) -> list[View]:
    if len(shards) < 2:
        return []
    is_bad = [shard["path"] in damaged for shard in shards]
    return [
        strip_chart([shard[key] for shard in shards], is_bad, unit, max_columns=max_columns)
        for key, unit in (("num_records", "records"), ("file_bytes", "bytes"))
    ]


def _facts(shard_set: Mapping[str, Any]) -> list[str]:
    facts = []
    if "has_manifest" in shard_set:
        facts.append("with a manifest" if shard_set["has_manifest"] else "without a manifest")
    if shard_set.get("num_records") is not None:
        facts.append(plural(shard_set["num_records"], "record"))
        facts.append(plural(shard_set["num_shards"], "shard"))
        facts.append(bytes_text(shard_set["file_bytes"]))
    packed = [name for name in shard_set.get("compressions") or [] if name != "none"]
    if packed:
        facts.append(", ".join(shard_set["compressions"]))
    kinds = shard_set.get("kinds") or {}
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    if counts:
        facts.append(counts + (" in a sample" if shard_set.get("kinds_sampled") else ""))
    return facts


def _balance_view(balance: Mapping[str, Any]) -> list[View]:
    rows = []
    for what in ("records", "bytes"):
        spread = balance.get(what)
        if not spread:
            continue
        text = bytes_text if what == "bytes" else number_text
        rows.append(
            {
                "what": what,
                "min": text(spread["min"]),
                "mean": text(spread["mean"]),
                "max": text(spread["max"]),
                "std": text(spread["std"]),
                "cv": number_text(balance.get(f"{what}_cv")),
                "largest": os.path.basename(spread["largest"] or ""),
                "smallest": os.path.basename(spread["smallest"] or ""),
            }
        )
    return rows


def _shard_row(shard: Mapping[str, Any], damaged: Collection[str]) -> View:
    sizes = shard["record_bytes"]
    return {
        "name": shard_name(shard),
        "path": shard["path"],
        "records": f"{shard['num_records']:,}",
        "bytes": bytes_text(shard["file_bytes"]),
        "sizes": [bytes_text(sizes[key]) for key in ("min", "mean", "max")],
        "compression": shard["compression"],
        "damaged": shard["path"] in damaged,
    }


def _labels_view(labels: Mapping[str, Any]) -> View | None:
    counts = labels.get("counts")
    if not counts:
        return None
    total = sum(counts.values())
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "feature": labels.get("feature"),
        "source": labels.get("source"),
        "num_values": len(counts),
        "num_unlabelled": labels.get("num_unlabelled") or 0,
        "rows": [
            {
                "label": label,
                "count": f"{count:,}",
                "percent": share_text(count / total if total else 0),
                "share": count / most[0][1] if most[0][1] else 0,
            }
            for label, count in most[:_MAX_LABELS]
        ],
        "more": max(0, len(most) - _MAX_LABELS),
    }


def _deviation(entry: Mapping[str, Any]) -> View:
    p_value = entry.get("p_value")
    return {
        "shard": shard_name(entry),
        "label": entry["label"],
        "count": f"{entry['count']:,}",
        "expected": number_text(entry["expected"]),
        "ratio": number_text(entry["ratio"]),
        "p": "" if p_value is None else f"{p_value:.1g}",
    }


def _features_view(shard_set: Mapping[str, Any], max_rows: int) -> View:
    features = shard_set.get("features") or {}
    rows = []
    for name in sorted(features)[:max_rows]:
        feature = features[name]
        low, high, mean = range_texts(feature)
        distinct, numbers = feature.get("distinct"), feature.get("numbers") or {}
        odd = [("num_nan", "NaN"), ("num_inf", "infinite")]
        remarks = [f"{numbers[key]:,} {what}" for key, what in odd if numbers.get(key)]
        if (feature.get("images") or {}).get("num_broken"):
            remarks.append(f"{feature['images']['num_broken']:,} broken")
        top = [] if feature.get("images") else feature.get("top") or []
        about = "" if distinct and distinct.get("exact") else "~"
        rows.append(
            {
                "name": name,
                "kind": kind_text(feature),
                "shape": shape_text(feature),
                "present": presence_text(feature, shard_set.get("num_records")),
                "low": low,
                "high": high,
                "mean": mean,
                "box": box_chart(numbers.get("quantiles")),
                "distinct": about + number_text(round(distinct["estimate"])) if distinct else "",
                "top": [(top_text(t["value"], 28), f"{t['count']:,}") for t in top[:3]],
                "remarks": remarks,
            }
        )
    return {
        "rows": rows,
        "more": max(0, len(features) - max_rows),
        "has_values": any("lengths" in feature for feature in features.values()),
    }


def _plan_view(plan: Mapping[str, Any], max_columns: int) -> View | None:
    if not plan:
        return None
    return {
        "advice": plan.get("advice") or "",
        "world": plan["world"],
        "loader_workers": plan["loader_workers"],
        "batch_size": plan["batch_size"],
        "policies": [_policy_row(policy, max_columns) for policy in plan["policies"]],
    }


_VERDICTS: Final = {
    "ok": ("good", "even"),
    "uneven": ("warn", "uneven"),
    "loses": ("warn", "loses records"),
    "hangs": ("bad", "hangs"),
    "error": ("bad", "refuses"),
}


def _policy_row(policy: Mapping[str, Any], max_columns: int) -> View:
    samples = policy["samples"] or []
    style, words = _VERDICTS.get(_policy_verdict(policy), ("warn", policy.get("verdict")))
    repeated, padded = policy["num_repeated"], policy.get("num_padded")
    return {
        "title": policy["title"],
        "framework": policy["framework"],
        "verdict": words,
        "style": style,
        "words": [policy[key] for key in ("error", "detail", "remedy") if policy.get(key)],
        "samples": _between(policy, "samples"),
        "steps": _between(policy, "steps"),
        "bars": rank_bars(samples, max_columns),
        "idle": number_text(policy["idle_workers"]),
        "dropped": number_text(policy["num_dropped"]),
        "repeated": number_text(repeated),
        "padded": number_text(padded),
    }


def _policy_verdict(policy: Mapping[str, Any]) -> str:
    if policy.get("error"):
        return "error"
    if policy.get("hangs"):
        return "hangs"
    samples = policy["samples"] or [0]
    return policy.get("verdict") or ("ok" if min(samples) == max(samples) else "uneven")


def _between(policy: Mapping[str, Any], what: str) -> str:
    values = policy[what] or []
    if not values:
        return ""
    low = policy.get(f"{what}_min", min(values, default=None))
    high = policy.get(f"{what}_max", max(values, default=None))
    if low is None or high is None:
        return ""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# -- the whole report ----------------------------------------------------------------------------

_MAX_SETS: Final = 12
_MAX_DEFECTS: Final = 200
_MAX_NOTES: Final = 100
_MAX_PICTURES: Final = 24
_MAX_PICTURE_BYTES: Final = 200_000
_MAX_PICTURES_BYTES: Final = 500_000  # of all together, before base64
_TINY_PIXELS: Final = 96


def page_view(report: Mapping[str, Any], samples: Sequence[Sample] = ()) -> View:
    """Return the template's values for a report."""
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
    """Return the key figures: name, value, and a remark."""
    sizes, balance = report["record_bytes"], report["balance"]
    checked = {"crc": "all CRCs match", "length": "framing checked", "none": "not checked"}
    if report["num_defects"]:
        checked = dict.fromkeys(checked, "readable; see Defects")
    spread = f"{bytes_text(sizes['min'])} to {bytes_text(sizes['max'])}"
    even = f"bytes {balance['bytes_max_over_mean']:.2f}"
    return [
        ("Records", f"{report['num_records']:,}", checked.get(report["check"], "")),
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


_POLICY = (
    "default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
    "form-action 'none'"
)


def write_page(
    report: Mapping[str, Any], path: str | os.PathLike[str], *, samples: Sequence[Sample] = ()
) -> None:
    """Write a report as an HTML page; the file is replaced atomically.

    Args:
        report: The JSON document; missing sections are left out.
        path: The file, or a URL.
        samples: Images to show, up to the limits of the page.

    Raises:
        StorageError: The file can not be written.
    """
    path = os.fspath(path)
    data = page_html(report, samples).encode("utf-8")
    storage = storage_for(path)
    folder, name = os.path.split(path)
    working = path
    if not storage.appears_whole:
        working = os.path.join(folder, f".{name}.{os.getpid()}.partial")
    with storage_errors(path):
        try:
            file = storage.create(working)
            try:
                file.write(data)
                storage.sync(working)
            finally:
                file.close()
            if working != path:
                storage.publish(working, path)
        except BaseException:  # also on Ctrl-C: leave no truncated page
            if working != path:
                storage.delete(working)
            raise


def page_html(report: Mapping[str, Any], samples: Sequence[Sample] = ()) -> str:
    """Return the HTML page of a report."""
    # Imported here, since most commands need no page.
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    def escape_controls(value: Any) -> Any:
        return clean(value) if type(value) is str else value

    here = files("shardwriter.report")
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    templates = {
        name: here.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page_parts.html")
    }
    environment = Environment(
        loader=DictLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escape_controls,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    environment.filters["breakable"] = _breakable
    digest = base64.b64encode(hashlib.sha256(css.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template("page.html").render(
        page_view(report, samples), css=Markup(css), policy=_POLICY.format(digest=digest)
    )


def _breakable(name: str) -> Any:
    """Return a name as HTML that may be wrapped after its separators only."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[/._-])", clean(name)))


def _code(text: str) -> Any:
    """Return a sentence as HTML, with text in backticks as code."""
    from markupsafe import Markup, escape

    parts = [escape(clean(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    marked = (Markup("<code>{}</code>").format(p) if k % 2 else p for k, p in enumerate(parts))
    return Markup("").join(marked)
