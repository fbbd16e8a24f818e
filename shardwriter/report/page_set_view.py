"""What the page shows of one shard set: its shards, labels, features and how training splits it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from shardwriter.report.feature_table import (
    drift_file,
    kind_text,
    presence_text,
    range_texts,
    shape_text,
    top_text,
)
from shardwriter.report.page_charts import box_chart, heat_chart, rank_bars, strip_chart
from shardwriter.report.render import bytes_text, number_text, plural, share_text
from shardwriter.report.tables import most_telling, named_labels, shard_name

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
    """Return the first entries, and how many more there are."""
    return {"shown": list(entries[:limit]), "more": max(0, len(entries) - limit)}


def set_view(
    shard_set: Mapping[str, Any],
    shards: Sequence[Mapping[str, Any]],
    damaged: Collection[str],
    num_sets: int = 1,
) -> View:
    """Return what the template fills in for a set.

    Args:
        shard_set: The report's entry.
        shards: The report's entries of its shards.
        damaged: Paths of files with a defect.
        num_sets: How many sets the page has room for; of several each gets less of it.
    """

    def room(limit: int) -> int:
        return max(_MIN_ROWS, limit // num_sets)

    num_shown = room(_MAX_SHARDS)
    shown = most_telling(shards, damaged, num_shown, num_each=num_shown * 2 // 5)
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
    told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    if told:
        facts.append(told + (" in a sample" if shard_set.get("kinds_sampled") else ""))
    return facts


def _balance_view(balance: Mapping[str, Any]) -> list[View]:
    rows = []
    for what in ("records", "bytes"):
        told = balance.get(what)
        if not told:
            continue
        text = bytes_text if what == "bytes" else number_text
        rows.append(
            {
                "what": what,
                "min": text(told["min"]),
                "mean": text(told["mean"]),
                "max": text(told["max"]),
                "std": text(told["std"]),
                "cv": number_text(balance.get(f"{what}_cv")),
                "largest": os.path.basename(told["largest"] or ""),
                "smallest": os.path.basename(told["smallest"] or ""),
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
