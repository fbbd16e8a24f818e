"""The training plan in a terminal: a line for each policy, within 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwriter.inspect.split_policies import LIKELY
from shardwriter.report.render import bytes_text, make_console

_STYLES: Final = {
    "ok": "green",
    "uneven": "yellow",
    "loses": "yellow",
    "hangs": "bold red",
    "error": "red",
}
_TOLD: Final = ("hangs", "error", "loses")
_MAX_REMEDIES: Final = 8


def print_plan(
    plan: Mapping[str, Any], *, all_policies: bool = False, console: Console | None = None
) -> None:
    """Print the report's ``plan``; the verdict is the last line.

    Args:
        plan: The document.
        all_policies: Show all policies that it has; else the likely ones.
        console: Where to print; stdout.
    """
    console = console or make_console()
    for line in plan_lines(plan):
        console.print(line)
    shown = [p for p in plan["policies"] if all_policies or p["policy"] in LIKELY]
    if shown:
        console.print(plan_table(shown))
    num_all = len(plan["policies"])
    if len(shown) < num_all:
        which = f"{len(shown)} of {num_all} policies: what most training uses"
        console.print(Text(f"{which}; --policy all shows all", style="dim"))
    for line in remedy_lines(shown):
        console.print(line)
    console.print(Text(plan["advice"], style="bold"))
    hangs = any(policy["hangs"] for policy in plan["policies"])
    console.print(Text(plan["verdict"], style="bold red" if hangs else "bold green"))


def plan_lines(plan: Mapping[str, Any]) -> list[Text]:
    """Return what is planned for, and sizes where they are known."""
    least, most = plan["records_per_shard_min"], plan["records_per_shard_max"]
    each = f"{most:,}" if least == most else f"{least:,}-{most:,}"
    workers = plan["loader_workers"]
    lines = [
        Text(
            f"{plan['num_records']:,} records in {plan['num_shards']:,} shards of {each}; "
            f"{_count(plan['world'], 'rank')} x {_count(workers, 'loader worker')}, "
            f"batch {plan['batch_size']:,}{', drop_last' if plan['drop_last'] else ''}"
        )
    ]
    sizes = plan["bytes"]
    if sizes:
        lines.append(
            Text(
                f"{bytes_text(sizes['total_bytes'])} in all, "
                f"{bytes_text(sizes['shard_bytes_max'])} a shard, "
                f"{bytes_text(sizes['rank_bytes'])} a rank; @auto would make "
                f"{sizes['auto_num_shards']:,} shards of {bytes_text(sizes['auto_shard_bytes'])}"
            )
        )
    return lines


def plan_table(policies: Sequence[Mapping[str, Any]]) -> Table:
    """Return policies as a table: what ranks get, and what is lost or seen twice."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for column in ("samples", "steps", "idle", "lost", "twice", "pads"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for policy in policies:
        verdict = Text(policy["verdict"], style=_STYLES[policy["verdict"]])
        name = Text.assemble((policy["framework"], "bold"), " ", policy["title"])
        if policy["error"] is not None:
            table.add_row(name, "-", "-", "-", "-", "-", "-", verdict)
            continue
        table.add_row(
            name,
            _span(policy["samples_min"], policy["samples_max"], 13),
            _span(policy["steps_min"], policy["steps_max"], 9),
            _number(policy["idle_workers"], 4),
            _number(policy["num_dropped"]),
            _number(policy["num_repeated"]),
            _number(policy["num_padded"], 4),
            verdict,
        )
    return table


def remedy_lines(policies: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return what to do about the policies that hang, refuse or lose records."""
    bad = [p for p in policies if p["verdict"] in _TOLD and p["remedy"]]
    by_remedy: dict[str, list[str]] = {}
    for policy in bad:
        by_remedy.setdefault(policy["remedy"], []).append(
            f"{policy['framework']} {policy['title']}"
        )
    lines = [Text(f"{', '.join(who)}: {what}") for what, who in by_remedy.items()]
    more = len(lines) - _MAX_REMEDIES
    return lines[:_MAX_REMEDIES] + ([Text(f"... and {more} more; see --json")] if more > 0 else [])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _span(least: int, most: int, num_cells: int) -> str:
    """Return ``26-52``; ``1600000 +1`` where that is too long for so many cells."""
    if least == most:
        return _number(most, num_cells)
    text = f"{least}-{most}"
    if len(text) > num_cells:
        text = f"{least} +{most - least}"
    if len(text) > num_cells:
        text = f"{_number(least, num_cells // 2)}-{_number(most, num_cells // 2)}"
    return text


def _number(number: int | None, num_cells: int = 5) -> str:
    """Return a number in at most so many cells; ``?`` for one that chance decides."""
    if number is None:
        return "?"
    text = str(number)
    for unit in ("k", "M", "G", "T", "P", "E"):
        if len(text) <= num_cells:
            break
        number = round(number / 1000)
        text = f"{number}{unit}"
    return text
