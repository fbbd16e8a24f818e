"""How results look in a terminal: rich tables that fit 80 columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwriter.manifest import Manifest
from shardwriter.naming import ledger_file
from shardwriter.scan import FileScan
from shardwriter.show import ShownRecord
from shardwriter.stats import Finding, Report, SetReport
from shardwriter.storage.choose import storage_for

_MAX_ROWS = 24
_MAX_FINDINGS = 20
_MAX_VALUES = 8
_BAR_CELLS = 14


def bytes_text(num_bytes: float | None) -> str:
    """Return a size as people read it: ``80.3 kB``."""
    if num_bytes is None:
        return "-"
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:,.1f} {unit}"


def rate_text(count: float, elapsed_s: float) -> str:
    """Return ``1,234 items/s``."""
    rate = count / max(elapsed_s, 1e-9)
    return f"{rate:,.0f} items/s" if rate >= 10 else f"{rate:.1f} items/s"


def _console() -> Console:
    # highlight off: rich would colour every number it finds.
    # Markup off: a path may hold what rich would take for it.
    return Console(highlight=False, soft_wrap=True, markup=False)


def print_written(manifest: Manifest, directory: str, elapsed_s: float | None) -> None:
    """Print what a write has made; None: not all of it in this time."""
    console = _console()
    names = manifest.pattern.template.replace("{shard}", "*")
    counts = [shard.num_records for shard in manifest.shards]
    each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,}-{max(counts):,}"
    rows = [
        ("records", f"{manifest.num_records:,} ({each} a shard)"),
        ("shards", f"{manifest.num_shards:,}  {names}"),
        ("bytes", bytes_text(manifest.file_bytes)),
        ("features", _names(sorted(manifest.features))),
    ]
    if elapsed_s is not None:
        rate = rate_text(manifest.num_items, elapsed_s)
        speed = f"{bytes_text(manifest.file_bytes / max(elapsed_s, 1e-9))}/s"
        rows.append(("time", f"{elapsed_s:.2f} s, {rate}, {speed}"))
    if manifest.gaps:
        ledger = ledger_file(manifest.name)
        path = os.path.join(directory, ledger)
        has_ledger = storage_for(path).size(path) is not None
        listed = f"; errors are listed in {ledger}" if has_ledger else ""
        skipped = f"{len(manifest.gaps):,} of {manifest.num_items:,} items{listed}"
        rows.insert(1, ("skipped", skipped))
    if manifest.labels:
        rows.insert(4, ("labels", f"{len(manifest.labels['counts']):,} values"))
    _print_pairs(console, rows)
    place = f"{directory}/{manifest.pattern.manifest_file}"
    console.print(Text.assemble(("wrote", "green"), " ", place))


def shares_text(seconds: Mapping[str, float]) -> str:
    """Say in a line where the time goes: the stages that take a hundredth or more of it."""
    total = sum(seconds.values())
    shares = {stage: value / total for stage, value in seconds.items() if value > 0.005 * total}
    return ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items())


def print_timings(seconds: Mapping[str, float], num_items: int) -> None:
    """Print where the time went, of all processes together."""
    console = _console()
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("stage")
    for name in ("seconds", "share", "an item"):
        table.add_column(name, justify="right")
    total = sum(seconds.values()) or 1.0
    for stage, value in seconds.items():
        if not value:
            continue
        each = f"{value / num_items * 1e6:,.1f} µs" if num_items else ""
        table.add_row(stage, f"{value:.2f}", f"{value / total:.0%}", each)
    console.print(table)


def _print_pairs(console: Console, rows: list[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(Text(name, style="bold"), Text(value))
    console.print(grid)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more if names else "records as they came"


def print_plan(plan: dict[str, Any], directory: str) -> None:
    """Print what a write would make."""
    console = _console()
    num_items, total = plan["num_items"], plan["estimated_bytes"]
    names = plan["files"].replace("{shard}", "*")
    rows = [
        ("format", plan["format"]),
        ("items", "not known before the end" if num_items is None else f"{num_items:,}"),
        ("shards", f"{plan['num_shards']:,}  {directory}/{names}"),
    ]
    if total is not None:
        each = bytes_text(total / plan["num_shards"])
        packed = plan["compression"]["type"]
        before = "" if packed == "none" else f", before {packed}"
        rows.append(("bytes", f"about {bytes_text(total)}, {each} a shard{before}"))
    _print_pairs(console, rows)
    table = Table(
        title=f"features in {plan['sampled_items']} items", title_justify="left", box=None
    )
    for column in ("feature", "kind", "dtype", "shape"):
        table.add_column(column)
    for name, entry in plan["features"].items():
        shape = "" if entry["shape"] is None else str(entry["shape"]).replace("None", "*")
        kind = entry["kind"] or "unset"
        image = f" ({entry['format']})" if entry.get("format") else ""
        table.add_row(Text(name), kind, f"{entry['dtype'] or ''}{image}", Text(shape))
    console.print(table)
    console.print("nothing was written (--dry-run)")


def print_report(report: Report, *, all_shards: bool = False) -> None:
    """Print what ``shard-stats`` found; the verdict is the last line."""
    console = _console()
    for set_report in report.sets:
        _print_set(console, set_report, all_shards=all_shards)
    _print_sizes(console, report)
    print_verdict(report)


def _print_set(console: Console, report: SetReport, *, all_shards: bool) -> None:
    shard_set = report.shard_set
    proven = "manifest" if shard_set.manifest is not None else "no manifest"
    if shard_set.pattern is not None:
        files = shard_set.pattern.template.replace("{shard}", "*")
        console.print(Text(f"{shard_set.directory}/{files} ({proven})", style="bold"))
    elif shard_set.shards:
        console.print(Text(shard_set.shards[0][1], style="bold"))
    scans = report.scans
    shown = scans
    if len(scans) > _MAX_ROWS and not all_shards:
        by_size = sorted(scans, key=lambda pair: pair[1].file_bytes)
        chosen = {shard for shard, scan in by_size[:4] + by_size[-4:]}
        chosen |= {shard for shard, scan in scans if scan.num_defects}
        shown = [pair for pair in scans if pair[0] in chosen][:_MAX_ROWS]
    largest = max((scan.file_bytes for _, scan in scans), default=0)
    table = Table(box=None, pad_edge=False)
    table.add_column("shard", justify="right")
    for column in ("records", "bytes", "min", "mean", "max"):
        table.add_column(column, justify="right")
    table.add_column("")
    table.add_column("")
    for shard, scan in shown:
        table.add_row(*_row(f"{shard}", scan, largest))
    console.print(table)
    if len(shown) < len(scans):
        text = f"{len(shown)} of {len(scans):,} shards: the smallest, the largest, the damaged; "
        console.print(Text(f"{text}--all-shards shows all", style="dim"))


def _row(name: str, scan: FileScan, largest: int) -> list[str | Text]:
    sizes = scan.sizes
    cells = round(_BAR_CELLS * scan.file_bytes / largest) if largest else 0
    state = Text(scan.compression if scan.compression != "none" else "", style="dim")
    if scan.num_defects:
        state = Text("damaged", style="bold red")
    return [
        name,
        f"{sizes.count:,}",
        bytes_text(scan.file_bytes),
        bytes_text(sizes.min),
        bytes_text(sizes.mean),
        bytes_text(sizes.max),
        Text("━" * cells, style="red" if scan.num_defects else "cyan"),
        state,
    ]


def _print_sizes(console: Console, report: Report) -> None:
    sizes = report.sizes
    if not sizes.count:
        return
    console.print(
        f"{sizes.count:,} records of {bytes_text(sizes.min)} to {bytes_text(sizes.max)}, "
        f"mean {bytes_text(sizes.mean)}"
    )
    console.print(f"{bytes_text(sizes.total)} of payload, {bytes_text(report.file_bytes)} in files")
    largest = max(sizes.histogram)
    filled = [k for k, count in enumerate(sizes.histogram) if count]
    if len(filled) < 2:
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    for k in range(filled[0], filled[-1] + 1):
        count = sizes.histogram[k]
        bar = Text("━" * round(30 * count / largest), style="cyan")
        table.add_row(f"under {bytes_text(1 << k)}", bar, f"{count:,}")
    console.print(table)


def print_verdict(report: Report) -> None:
    """Print the defects, the notes and the verdict."""
    console = _console()
    for finding in report.findings[:_MAX_FINDINGS]:
        console.print(Text(_finding_text(finding), style="red"))
    if report.num_defects > _MAX_FINDINGS:
        rest = report.num_defects - _MAX_FINDINGS
        console.print(f"... and {rest:,} more defects; --json lists them")
    for note in report.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    console.print(Text(report.verdict, style="bold red" if report.num_defects else "bold green"))


def _finding_text(finding: Finding) -> str:
    where = finding.path
    if finding.record_index is not None:
        where += f", record {finding.record_index:,}"
    if finding.global_index is not None:
        where += f" (item {finding.global_index:,})"
    if finding.offset is not None:
        where += f", offset {finding.offset:,}"
    return f"{finding.kind}: {where}: {finding.detail}"


def print_record(record: ShownRecord) -> None:
    """Print one record with its features."""
    console = _console()
    console.print(
        Text(
            f"record {record.index:,}  {record.path} [{record.record_index:,}]  "
            f"{bytes_text(record.payload_bytes)}  {record.kind}",
            style="bold",
        )
    )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 1))
    for name in sorted(record.features):
        kind, count, text = _value_text(record.features[name])
        table.add_row(Text(name), f"{kind}[{count}]" if kind != "unset" else kind, Text(text))
    console.print(table)


def _value_text(value: Any) -> tuple[str, int, str]:
    if value is None:
        return "unset", 0, ""
    if isinstance(value, np.ndarray):
        kind = "int64" if value.dtype.kind == "i" else "float"
        parts = [f"{v:g}" if kind == "float" else str(v) for v in value[:_MAX_VALUES].tolist()]
    else:
        kind = "bytes"
        parts = [_bytes_value(v) for v in value[:_MAX_VALUES]]
    more = ", ..." if len(value) > _MAX_VALUES else ""
    return kind, len(value), ", ".join(parts) + more


def _bytes_value(value: bytes) -> str:
    from shardwriter.images import image_format

    found = image_format(value[:16])
    if found is not None:
        return f"{found} image, {bytes_text(len(value))}"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not value):
        return repr(text if len(text) <= 60 else text[:57] + "...")
    return f"{value[:12].hex(' ')}{' ...' if len(value) > 12 else ''} ({bytes_text(len(value))})"


def record_json(record: ShownRecord) -> dict[str, Any]:
    """Return a record as JSON; bytes that are no UTF-8 text become ``{"base64": ...}``."""
    return {
        "features": {name: _json_value(value) for name, value in record.features.items()},
        "index": record.index,
        "kind": record.kind,
        "path": record.path,
        "payload_bytes": record.payload_bytes,
        "record_index": record.record_index,
    }


def _json_value(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        # JSON has no NaN or infinity: they travel as text.
        return [v if np.isfinite(v) else str(v) for v in value.tolist()]
    return [_json_bytes(v) for v in value]


def _json_bytes(value: bytes) -> Any:
    from base64 import b64encode

    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode("ascii")}
