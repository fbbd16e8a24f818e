"""Compare shardwriter with other programs, or with another checkout, on the same work.

Everybody has a turn in every round, another one begins each time, and the medians are compared.
``x`` is how many times ours a time is, of wall time and of the time of all processors, which a busy
machine disturbs less. The first round warms the caches; in it results are compared and memory is
watched, so it is not timed.

A peer is left out where no Python has its modules: this one, ``.venv-peers/bin/python`` (which
``scripts/venv peers .venv-peers`` makes) and those of ``--peer-python`` are tried in this order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from benchmarks import beam, damage, inspect_records, read, train, write
from benchmarks.measure import ROOT, Case, Contender, Entry, Results, Run, Turn, Work, empty_folder

WORKS: dict[str, Work] = {
    work.name: work
    for module in (write, inspect_records, read, train, beam, damage)
    for work in module.WORKS
}
NOBODY = "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 1 if a target was missed."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.list or not options.works:
        print(listing())
        return 0
    wanted = []
    for name in options.works:
        work_name, _, case_name = name.partition("/")
        work = WORKS.get(work_name)
        if work is None or (case_name and case_name not in work.cases):
            parser.error(f"there is no work {name!r}; --list lists them")
        wanted += [(work, case) for case in ([case_name] if case_name else work.cases)]
    checkouts = [Path(name).resolve() for name in options.against if is_checkout(name)]
    peers = [name for name in options.against if not is_checkout(name)]
    known = {name for work, _ in wanted for name in all_names(work)}
    if unknown := {*peers} - known - {NOBODY}:
        parser.error(f"no such peer or checkout: {', '.join(sorted(unknown))}; --list lists peers")
    for checkout in checkouts:
        if not (checkout / "shardwriter" / "__init__.py").is_file():
            parser.error(f"{checkout} has no package shardwriter")
    out = sys.stderr if options.json else sys.stdout
    results: dict[str, dict[str, Any]] = {}
    pythons = [sys.executable, str(ROOT / ".venv-peers/bin/python"), *options.peer_python]
    for work, case_name in wanted:
        try:
            settings = {**work.settings, **settings_of(options.set, work)}
        except ValueError as error:
            parser.error(str(error))
        with ExitStack() as stack:
            folder = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
            Path(folder).mkdir(parents=True, exist_ok=True)
            workers = options.workers
            if workers is None:
                workers = work.workers or os.cpu_count() or 1
            case = Case(
                name=case_name,
                folder=Path(folder).resolve(),
                size=options.size,
                workers=workers,
                settings=settings,
                stack=stack,
            )
            entries = find_entries(work, case, peers, checkouts, options.ours, pythons)
            if not entries:
                print(f"{work.name}/{case_name}: nobody to measure", file=sys.stderr)
                continue
            work.make(case)
            if work.table is not None:
                rows = work.table(case, entries)
                results[f"{work.name}/{case_name}"] = show_rows(rows, out)
                continue
            repeats = work.repeats if options.repeats is None else options.repeats
            earlier = {
                key.partition("/")[2]: found["results"]
                for key, found in results.items()
                if key.startswith(f"{work.name}/")
            }
            found = measure(work, case, entries, repeats, earlier)
        results[f"{work.name}/{case_name}"] = found
        show(f"{work.name}/{case_name}", found, out)
    if options.json:
        print(json.dumps(results, indent=2))
    return 1 if any(found.get("missed") for found in results.values()) else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("works", nargs="*", metavar="WORK[/CASE]", help="all cases by default")
    parser.add_argument("--list", action="store_true", help="list works, cases and peers")
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="PEER",
        help="a peer, the folder of another checkout, or 'none'; may be repeated; all peers by "
        "default",
    )
    parser.add_argument(
        "--ours", metavar="NAME", help="compare with this form of ours, such as shardwriter-serial"
    )
    parser.add_argument("--size", type=float, default=1.0, help="times the usual amount of data")
    parser.add_argument("--repeats", type=int, help="timed rounds; 5 for most works")
    parser.add_argument("--workers", type=int, help="processes of every pool; 2 for most works")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="a setting of the work; may be repeated",
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="PATH",
        help="another Python to look for peers' packages in; may be repeated",
    )
    parser.add_argument("--folder", type=Path, help="where inputs and outputs are; keeps inputs")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON on stdout")
    return parser


def settings_of(words: Iterable[str], work: Work) -> dict[str, int]:
    """Return the settings of the command line."""
    found = {}
    for word in words:
        name, _, number = word.partition("=")
        if name not in work.settings:
            known = ", ".join(work.settings) or "none"
            raise ValueError(f"--set {word}: {work.name} has these settings: {known}")
        found[name] = int(number)
    return found


def is_checkout(name: str) -> bool:
    """Return whether a name of ``--against`` is a path."""
    return os.sep in name or name in (os.curdir, os.pardir)


# -- works and contenders --------------------------------------------------------------------------


def plain_case(work: Work, name: str) -> Case:
    """Return a case that can list its contenders, and nothing else."""
    return Case(name, Path(), 1.0, work.workers or 2, dict(work.settings), ExitStack())


def all_names(work: Work) -> list[str]:
    """Return the names of all contenders of a work; the one that others are compared with first."""
    found = [each.name for case in work.cases for each in work.contenders(plain_case(work, case))]
    return list(dict.fromkeys(found))


def listing() -> str:
    """Return the works, each with its cases, peers and settings."""
    lines = []
    for work in WORKS.values():
        first, *others = all_names(work)
        lines.append(f"{work.name}: {work.summary}")
        if work.cases != ("all",):
            lines.append(f"    cases:    {', '.join(work.cases)}")
        lines.append(f"    measures: {first}")
        lines.append(f"    against:  {', '.join([*others, 'another checkout'])}")
        if work.settings:
            pairs = ", ".join(f"{name}={number}" for name, number in work.settings.items())
            lines.append(f"    settings: {pairs}")
    return "\n".join(lines)


def find_entries(
    work: Work,
    case: Case,
    peers: list[str],
    checkouts: list[Path],
    ours: str | None,
    pythons: list[str],
) -> list[Entry]:
    """Return who takes part, with a Python for each; report on stderr who is left out."""
    contenders = work.contenders(case)
    if ours is not None:
        contenders.sort(key=lambda each: each.name != ours)
        if contenders[0].name != ours or not contenders[0].is_ours:
            raise SystemExit(f"{work.name}/{case.name} has no form of ours {ours!r}")
    first, *others = contenders
    if peers or checkouts:
        others = [each for each in others if each.name in peers]
    entries = []
    for contender in (first, *others):
        python = find_python(contender, pythons)
        if python is None:
            missing = ", ".join(contender.modules)
            print(f"left out: {contender.name} (no Python here has {missing})", file=sys.stderr)
            if contender is first:
                return []
            continue
        entries.append(Entry(contender.name, contender, python))
    for number, checkout in enumerate(checkouts):
        name = f"{first.name} of {checkout.name}"
        if name in {entry.name for entry in entries}:
            name += f"-{number}"
        entries.append(Entry(name, first, entries[0].python, checkout))
    return entries


def find_python(contender: Contender, pythons: list[str]) -> str | None:
    """Return the first Python that has a contender's modules."""
    return next((python for python in pythons if has_modules(python, contender.modules)), None)


@cache
def has_modules(python: str, modules: tuple[str, ...]) -> bool:
    """Return whether a Python is there and has modules."""
    if not os.path.exists(python):
        return False
    test = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    return subprocess.run([python, "-c", test, *modules], capture_output=True).returncode == 0


# -- measuring -------------------------------------------------------------------------------------


def measure(
    work: Work,
    case: Case,
    entries: list[Entry],
    repeats: int,
    earlier: dict[str, Results],
) -> dict[str, Any]:
    """Let all entries do a case in turn; return the medians."""
    first = entries[0]

    def run(entry: Entry, number: int) -> Run:
        empty_folder(entry.folder(case))
        environment = entry.environment(case, work.uses_gpu)
        turn = Turn(entry, case, number, environment, first.folder(case))
        return entry.contender.measure(turn)

    def check(number: int) -> None:
        for entry in entries[1:]:
            if entry.contender.check is not None:
                environment = entry.environment(case, work.uses_gpu)
                turn = Turn(entry, case, number, environment, first.folder(case))
                entry.contender.check(turn, first.folder(case), entry.folder(case))

    warm = {entry.name: run(entry, 0) for entry in entries}
    for entry in entries[1:]:
        mine, other = warm[first.name].outcome, warm[entry.name].outcome
        is_same = work.same(mine, other) if work.same else mine == other
        if not is_same:
            raise SystemExit(f"{entry.name}: not the result of {first.name}: {mine}, {other}")
    check(0)
    runs: dict[str, list[Run]] = {entry.name: [] for entry in entries}
    for number in range(1, repeats + 1):
        at = number % len(entries)
        for entry in entries[at:] + entries[:at]:
            runs[entry.name].append(run(entry, number))
    if repeats:
        check(repeats)
    results = {
        name: summary(taken or [warm[name]], warm[name], case.count) for name, taken in runs.items()
    }
    base = results[first.name]
    for row in results.values():
        for clock in ("wall", "cpu"):
            own, other = base[f"{clock}_s"], row[f"{clock}_s"]
            row[f"{clock}_ratio"] = other / own if own and other is not None else None
    found: dict[str, Any] = {
        "count": case.count,
        "bytes": case.num_bytes,
        "repeats": repeats,
        "results": results,
    }
    if work.notes is not None:
        found["notes"] = work.notes(case, results, earlier)
    if case.name in work.targets:
        peer, least = work.targets[case.name]
        if peer in results:
            ratio = results[peer]["wall_ratio"]
            found["target"] = {"peer": peer, "least": least, "ratio": ratio}
            found["missed"] = ratio < least
    return found


def summary(runs: list[Run], warm: Run, count: int) -> dict[str, Any]:
    """Return the medians of an entry's runs."""
    wall_s = statistics.median(run.wall_s for run in runs)
    extra = {}
    for name, value in runs[0].extra.items():
        values = [run.extra[name] for run in runs]
        extra[name] = min(values) if isinstance(value, int) else statistics.median(values)
    return {
        "wall_s": wall_s,
        "cpu_s": statistics.median(run.cpu_s for run in runs),
        "each_s": wall_s / count,
        "items_per_s": count / wall_s if wall_s else None,
        "all_wall_s": [run.wall_s for run in runs],
        "all_cpu_s": [run.cpu_s for run in runs],
        "first_wall_s": warm.wall_s,
        "peak_mb": warm.peak_mb,
        **extra,
    }


MAIN_KEYS = {
    "wall_s",
    "cpu_s",
    "each_s",
    "items_per_s",
    "all_wall_s",
    "all_cpu_s",
    "first_wall_s",
    "peak_mb",
    "wall_ratio",
    "cpu_ratio",
}


def show(title: str, found: dict[str, Any], file: TextIO) -> None:
    """Print the table of a case."""

    def put(text: str) -> None:
        print(text, file=file, flush=True)

    size = f", {found['bytes'] / 1e6:,.0f} MB" if found["bytes"] else ""
    rounds = f"medians of {found['repeats']}" if found["repeats"] else "one run, watched for memory"
    put(f"{title}: {found['count']:,} items{size}; {rounds}")
    put(
        f"  {'':37}{'wall':>10}{'min':>10}{'max':>10}{'x':>7}{'cpu':>10}{'x':>7}{'an item':>10}"
        f"{'items/s':>13}{'peak MB':>9}"
    )
    for name, row in found["results"].items():
        peak = f"{row['peak_mb']:9.0f}" if row["peak_mb"] else f"{'':9}"
        rate = f"{row['items_per_s']:13,.0f}" if row["items_per_s"] else f"{'':13}"
        extra = "".join(
            f"  {key} {number(value)}" for key, value in row.items() if key not in MAIN_KEYS
        )
        put(
            f"  {name:37}{time_text(row['wall_s']):>10}{time_text(min(row['all_wall_s'])):>10}"
            f"{time_text(max(row['all_wall_s'])):>10}{ratio_text(row['wall_ratio']):>7}"
            f"{time_text(row['cpu_s']):>10}{ratio_text(row['cpu_ratio']):>7}"
            f"{time_text(row['each_s']):>10}{rate}{peak}{extra}"
        )
    for name, value in found.get("notes", {}).items():
        put(f"  {name}: {number(value)}")
    if "target" in found:
        target = found["target"]
        verdict = "MISSED" if found["missed"] else "met"
        put(f"  target: {target['least']} times ours for {target['peer']}: {verdict}")


def show_rows(rows: Iterable[tuple[str, dict[str, str]]], file: TextIO) -> dict[str, Any]:
    """Print a table in Markdown, row by row; return it."""
    found: dict[str, Any] = {}
    for name, cells in rows:
        if not found:
            print(f"| | {' | '.join(cells)} |\n|{' --- |' * (len(cells) + 1)}", file=file)
        found[name] = cells
        print(f"| {' | '.join([name, *cells.values()])} |", file=file, flush=True)
    return found


def time_text(seconds: float) -> str:
    """Return a time in a unit that suits it."""
    if seconds == 0:
        return "0"
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if factor > 1 else f"{seconds:.2f} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio with three digits."""
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def number(value: float) -> str:
    """Return a number as people read it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
