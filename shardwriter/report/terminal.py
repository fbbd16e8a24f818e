"""The report of ``shard-stats`` as text, rendered from its JSON document.

On a terminal, tables fit its width and sentences are wrapped. In a pipe, each row and sentence is
one line with complete names and paths, so that they can be searched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwriter.formats import clean
from shardwriter.inspect import initial_dist_text
from shardwriter.report.render import bytes_text, make_console, plural
from shardwriter.report.tables import (
    aftermath,
    named_labels,
    print_drift,
    print_facts,
    print_features,
    print_labels,
    print_plan,
    print_shards,
    remedies,
)

_MAX_DEFECTS: Final = 20
_MAX_NOTES: Final = 40
_MAX_SHARES: Final = 100


def print_report(
    report: Mapping[str, Any],
    *,
    all_shards: bool = False,
    all_policies: bool = False,
    console: Console | None = None,
) -> None:
    """Print a report of ``shard-stats``; the verdict is the last line.

    Args:
        report: The JSON document; missing sections are left out.
        all_shards: List every shard; else a selection of many.
        all_policies: List every policy of the plan; else the likely ones.
        console: The console to print on; None for stdout.
    """
    console = console or make_console(soft_wrap=False)
    damaged = {defect["path"] for defect in report["defects"]}
    sets = report.get("sets") or [{}]
    shards: list[list[Mapping[str, Any]]] = [[] for _ in sets]
    for shard in report["shards"]:
        shards[shard.get("set", 0)].append(shard)
    for number, (shard_set, files) in enumerate(zip(sets, shards, strict=True)):
        if number:
            console.print()
        heading = _heading(shard_set)
        if heading:
            say(console, heading, "bold")
        print_shards(console, files, damaged, all_shards=all_shards)
        print_facts(console, shard_set, len(files))
        labels = shard_set.get("labels") or {}
        print_labels(console, named_labels(shard_set))
        if labels.get("source") == "records" and labels.get("initial_dist"):
            say(console, initial_dist_text(labels, max_labels=_MAX_SHARES))
        print_features(console, shard_set.get("features") or {}, shard_set.get("num_records"))
        print_drift(console, shard_set.get("drift") or [])
        plan = shard_set.get("plan") or {}
        if plan:
            console.print()
            print_plan(plan, all_policies=all_policies, console=console)
    if len(sets) > 1:
        console.print()
    _print_sizes(console, report)
    print_verdict(report, console=console)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a sentence: wrapped and indented on a terminal, else on one line."""
    line = Text(clean(text), style=style)
    if not console.is_terminal:
        console.print(line, soft_wrap=True)
        return
    wrapped = line.wrap(console, max(console.width - 2, 1), overflow="fold")
    for number, part in enumerate(wrapped):
        part.rstrip()
        console.print(Text("  ") + part if number else part, soft_wrap=True)


def _heading(shard_set: Mapping[str, Any]) -> str:
    files = shard_set.get("files")
    if not files:
        return ""
    manifest = "manifest" if shard_set.get("has_manifest") else "no manifest"
    is_path = "/" in files or not shard_set.get("directory")
    path = files if is_path else os.path.join(shard_set["directory"], files)
    return f"{path} ({manifest})"


def _print_sizes(console: Console, report: Mapping[str, Any]) -> None:
    sizes = report["record_bytes"]
    if not report["num_records"]:
        return
    console.print(
        Text(
            f"{plural(report['num_records'], 'record')} of {bytes_text(sizes['min'])} to "
            f"{bytes_text(sizes['max'])}, mean {bytes_text(sizes['mean'])}"
        )
    )
    payload, files = bytes_text(report["payload_bytes"]), bytes_text(report["file_bytes"])
    console.print(Text(f"{payload} of payload, {files} in files"))
    counts = {part["below"]: part["count"] for part in sizes["histogram"]}
    if len(counts) < 2:
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    most, below = max(counts.values()), min(counts)
    while below <= max(counts):
        count = counts.get(below, 0)
        cells = round(30 * count / most)
        table.add_row(f"under {bytes_text(below)}", Text("━" * cells, style="cyan"), f"{count:,}")
        below *= 2
    console.print(table)


def print_verdict(report: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print the defects, the notes, the gates and the verdict."""
    console = console or make_console(soft_wrap=False)
    _print_defects(console, report["defects"], report["num_defects"])
    notes: Sequence[str] = report["notes"]
    for note in notes[:_MAX_NOTES]:
        say(console, f"note: {note}", "yellow")
    if len(notes) > _MAX_NOTES:
        say(console, f"... and {len(notes) - _MAX_NOTES:,} more notes; --json lists them", "dim")
    failed = False
    for gate in report.get("gates") or []:
        failed |= not gate["passed"]
        result, style = ("passed", "green") if gate["passed"] else ("FAILED", "bold red")
        say(console, f"{result}: --{gate['gate']}: {gate['detail']}", style)
    bad = bool(report["num_defects"]) or failed
    say(console, report["verdict"], "bold red" if bad else "bold green")


def _print_defects(
    console: Console, defects: Sequence[Mapping[str, Any]], num_defects: int
) -> None:
    for defect in defects[:_MAX_DEFECTS]:
        say(console, defect_text(defect), "red")
    shown = min(len(defects), _MAX_DEFECTS)
    if num_defects > shown:
        rest = plural(num_defects - shown, "more defect")
        say(console, f"... and {rest}; --json lists {len(defects):,} of {num_defects:,}")
    for what, kinds in remedies(defects).items():
        say(console, f"do: {what} ({', '.join(kinds)})", "green")


def defect_text(defect: Mapping[str, Any]) -> str:
    """Return a defect as a sentence: kind, location, detail, and what is lost."""
    where = defect["path"]
    if defect["record_index"] is not None:
        where += f", record {defect['record_index']:,}"
    if defect["global_index"] is not None:
        where += f" (item {defect['global_index']:,})"
    if defect["offset"] is not None:
        where += f", offset {defect['offset']:,}"
    behind = aftermath(defect)
    return f"{defect['kind']}: {where}: {defect['detail']}" + (f"; {behind}" if behind else "")
