"""The result of a write as text: datasets, timings, and the plan of a dry run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shardwriter.dataset import Manifest, error_log_file
from shardwriter.formats import clean
from shardwriter.report.render import bytes_text, make_console, print_pairs, rate_text
from shardwriter.storage import storage_for


def print_written(
    manifest: Manifest, directory: str, elapsed_s: float | None, num_warnings: int = 0
) -> None:
    """Print the summary of a written dataset.

    Args:
        manifest: The dataset's manifest.
        directory: Its folder or URL.
        elapsed_s: Seconds of the write; None if it was resumed, and no rate is printed.
        num_warnings: Number of warnings about its data, which were printed on stderr.
    """
    console = make_console()
    names = manifest.pattern.template.replace("{shard}", "*")
    counts = [shard.num_records for shard in manifest.shards]
    each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,}-{max(counts):,}"
    rows = [
        ("records", f"{manifest.num_records:,} ({each} per shard)"),
        ("shards", f"{manifest.num_shards:,}  {names}"),
        ("bytes", bytes_text(manifest.file_bytes)),
        ("features", _features(manifest.type_texts())),
    ]
    if elapsed_s is not None:
        rate = rate_text(manifest.num_items, elapsed_s)
        speed = f"{bytes_text(manifest.file_bytes / max(elapsed_s, 1e-9))}/s"
        rows.append(("time", f"{elapsed_s:.2f} s, {rate}, {speed}"))
    if manifest.gaps:
        ledger = error_log_file(manifest.name)
        path = os.path.join(directory, ledger)
        has_ledger = storage_for(path).size(path) is not None
        listed = f"; errors are listed in {ledger}" if has_ledger else ""
        skipped = f"{len(manifest.gaps):,} of {manifest.num_items:,} items{listed}"
        rows.insert(1, ("skipped", skipped))
    if manifest.labels:
        rows.insert(4, ("labels", f"{len(manifest.labels['counts']):,} values"))
    if num_warnings:
        rows.append(("warnings", f"{num_warnings:,}"))
    print_pairs(console, rows)
    place = f"{directory}/{manifest.pattern.manifest_file}"
    console.print(Text.assemble(("wrote", "green"), " ", clean(place)))


def print_total(manifests: Sequence[Manifest], elapsed_s: float) -> None:
    """Print the time of a write of several datasets."""
    num_items = sum(manifest.num_items for manifest in manifests)
    rate = rate_text(num_items, elapsed_s)
    print_pairs(make_console(), [("time", f"{elapsed_s:.2f} s, {rate}")])


def print_timings(seconds: Mapping[str, float], num_items: int) -> None:
    """Print the seconds of each stage, summed over all processes."""
    console = make_console()
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("stage")
    for name in ("seconds", "share", "per item"):
        table.add_column(name, justify="right")
    total = sum(seconds.values()) or 1.0
    for stage, value in seconds.items():
        if not value:
            continue
        each = f"{value / num_items * 1e6:,.1f} µs" if num_items else ""
        table.add_row(stage, f"{value:.2f}", f"{value / total:.0%}", each)
    console.print(table)


def print_write_plan(plan: dict[str, Any], directory: str) -> None:
    """Print the plan of a dry run."""
    console = make_console()
    num_items, total = plan["num_items"], plan["estimated_bytes"]
    names = plan["files"].replace("{shard}", "*")
    rows = [
        ("format", plan["format"]),
        ("items", "known only after reading all" if num_items is None else f"{num_items:,}"),
        ("shards", f"{plan['num_shards']:,}  {directory}/{names}"),
    ]
    if total is not None:
        each = bytes_text(total / plan["num_shards"])
        packed = plan["compression"]["type"]
        before = "" if packed == "none" else f", before {packed}"
        rows.append(("bytes", f"about {bytes_text(total)}, {each} per shard{before}"))
    print_pairs(console, rows)
    table = Table(
        title=f"features in {plan['sampled_items']} items", title_justify="left", box=None
    )
    for column in ("feature", "kind", "dtype", "shape"):
        table.add_column(column)
    for name, entry in plan["features"].items():
        shape = "" if entry["shape"] is None else str(entry["shape"]).replace("None", "*")
        kind = entry["kind"] or "unset"
        image = f" ({entry['format']})" if entry.get("format") else ""
        dtype = Text(clean(f"{entry['dtype'] or ''}{image}"))
        table.add_row(Text(clean(name)), kind, dtype, Text(shape))
    console.print(table)
    console.print("nothing was written (--dry-run)")


def _features(types: Mapping[str, str]) -> str:
    named = [f"{name} {text}" for name, text in types.items()]
    more = f" and {len(named) - 12} more" if len(named) > 12 else ""
    return clean(", ".join(named[:12])) + more if named else "unknown (records were copied)"
