"""The table of a set's features, and what differs between its shards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwriter.formats.text import clean
from shardwriter.report.render import bytes_text, max_cells, number_text, share_text, shorten

_MAX_FEATURES: Final = 60
_MAX_DRIFT: Final = 20

Feature = Mapping[str, Any]


def print_features(
    console: Console, features: Mapping[str, Feature], num_records: int | None
) -> None:
    """Print the features: their types, and what ``--features`` has found of their values.

    Args:
        console: Where to print.
        features: The report's entries, by name.
        num_records: Of the set, where an entry does not tell; None where nothing does.
    """
    if not features:
        return
    console.print()
    has_values = any("lengths" in feature for feature in features.values())
    extra = max(0, console.width - 80)
    table = Table(box=None, pad_edge=False)
    table.add_column("feature", no_wrap=True)
    table.add_column("kind")
    table.add_column("shape", overflow="fold")
    table.add_column("present", justify="right")
    if has_values:
        table.add_column("range", overflow="fold")
        table.add_column("mean", justify="right")
        table.add_column("distinct, most frequent", overflow="fold")
    name_cells = 14 if has_values else 32
    for name in sorted(features)[:_MAX_FEATURES]:
        feature = features[name]
        row: list[str | Text] = [
            Text(shorten(name, name_cells + extra // 3)),
            Text(kind_text(feature)),
            Text(shape_text(feature)),
            presence_text(feature, num_records),
        ]
        if has_values:
            low, high, mean = range_texts(feature)
            spread = low if low == high else f"{low} to {high}"
            row += [Text(spread), Text(mean), Text(values_text(feature, 14 + extra // 2))]
        table.add_row(*row)
    console.print(table)
    if len(features) > _MAX_FEATURES:
        rest = f"... and {len(features) - _MAX_FEATURES:,} more features; --json lists them"
        console.print(Text(rest, style="dim"))


def kind_text(feature: Feature) -> str:
    """Return what a feature's values are: ``int64``, ``jpeg``, ``uint8 raw``, or all it was."""
    kinds = feature.get("kinds") or {}
    if len(kinds) > 1:
        return clean("/".join(sorted(kinds)))
    images = (feature.get("images") or {}).get("formats") or {}
    if images:
        return clean("/".join(sorted(images)))
    if feature.get("format"):
        return clean(feature["format"])
    kind = feature.get("kind") or next(iter(kinds), None) or "unset"
    dtype = feature.get("dtype")
    if feature.get("encoding") == "raw" and dtype:
        return f"{clean(dtype)} raw"
    return clean(dtype or kind)


def shape_text(feature: Feature) -> str:
    """Return the shape, an image's height x width in pixels, or how many values a record has."""
    images = feature.get("images")
    if images and images.get("width"):
        return f"{_span(images['height'])} x {_span(images['width'])}"
    lengths, shape = feature.get("lengths"), feature.get("shape")
    if shape and not (lengths and shape == [None]):
        return " x ".join("*" if size is None else f"{size}" for size in shape)
    if lengths and lengths.get("max") is not None:
        return _span(lengths)
    return "1" if shape == [] else ""


def _span(sizes: Mapping[str, Any]) -> str:
    low, high = number_text(sizes["min"]), number_text(sizes["max"])
    return low if low == high else f"{low}-{high}"


def presence_text(feature: Feature, num_records: int | None) -> str:
    """Return in how many records a feature is: a share where their number is known."""
    present, total = feature.get("present"), feature.get("num_records", num_records)
    if present is None:
        return "-"
    with_values = present - (feature.get("unset") or 0)
    return share_text(min(1, with_values / total)) if total else f"{with_values:,}"


def range_texts(feature: Feature) -> tuple[str, str, str]:
    """Return the smallest, the largest and the mean value; of bytes those of their sizes."""
    numbers, sizes = feature.get("numbers"), feature.get("value_bytes")
    if numbers:
        texts = [number_text(numbers.get(key)) for key in ("min", "max", "mean")]
    elif sizes:
        texts = [bytes_text(sizes.get(key)) for key in ("min", "max", "mean")]
    else:
        texts = ["", "", ""]
    return texts[0], texts[1], texts[2]


def values_text(feature: Feature, value_cells: int) -> str:
    """Return how many values differ, which is the most frequent, and what numbers are none."""
    parts = []
    distinct = feature.get("distinct")
    if distinct:
        about = "" if distinct.get("exact") else "~"
        parts.append(about + number_text(round(distinct["estimate"])))
    top = feature.get("top") or []
    images = feature.get("images") or {}
    if top and not images.get("formats"):
        parts.append(f"{top_text(top[0]['value'], value_cells)} ({top[0]['count']:,})")
    numbers = feature.get("numbers") or {}
    for key, what in (("num_nan", "NaN"), ("num_inf", "inf")):
        if numbers.get(key):
            parts.append(f"{numbers[key]:,} {what}")
    if images.get("num_broken"):
        parts.append(f"{images['num_broken']:,} broken")
    return ", ".join(parts)


def top_text(value: Any, num_cells: int) -> str:
    """Return one value of a feature, no longer than that."""
    if isinstance(value, Mapping):
        return shorten(f"0x{_hex(value.get('base64', ''))}", num_cells)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number_text(value)
    return shorten(str(value), num_cells)


def _hex(encoded: str) -> str:
    from base64 import b64decode

    return b64decode(encoded).hex()


def print_drift(console: Console, drift: Sequence[Mapping[str, Any]]) -> None:
    """Print in what shards differ from the others."""
    if not drift:
        return
    cells = max(10, min(max_cells(console, 36), (console.width - 30) // 4))
    console.print()
    table = Table(title="shards that differ", title_justify="left", box=None, pad_edge=False)
    table.add_column("feature", no_wrap=True)
    table.add_column("in", no_wrap=True)
    table.add_column("shard", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for entry in drift[:_MAX_DRIFT]:
        table.add_row(
            Text(shorten(entry["feature"], cells)),
            Text(clean(entry["kind"]), style="yellow"),
            Text(_drift_shard(entry, cells)),
            Text(clean(entry["detail"])),
        )
    console.print(table)
    if len(drift) > _MAX_DRIFT:
        rest = f"... and {len(drift) - _MAX_DRIFT:,} more; --json lists them"
        console.print(Text(rest, style="dim"))


def _drift_shard(entry: Mapping[str, Any], num_cells: int) -> str:
    index = entry.get("shard_index")
    return shorten(drift_file(entry), num_cells) if index is None else f"{index}"


def drift_file(entry: Mapping[str, Any]) -> str:
    """Return the file that differs, as a table names it."""
    return os.path.basename(entry.get("path") or "")
