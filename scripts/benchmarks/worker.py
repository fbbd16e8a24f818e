"""Run functions of the benchmarks in a process of their own.

    python -m benchmarks.worker --once MODULE:FUNCTION ARGUMENTS [--processes N]
    python -m benchmarks.worker MODULE:FUNCTION ARGUMENTS [--core NUMBER]

ARGUMENTS is a JSON list. With ``--once`` the function is called and the process ends; with
``--processes`` that many processes are started, and each calls it with ``part`` and ``parts``.

Without ``--once`` the function returns steps by name. Each line of the input is a JSON list
``[step, check]``. The answer is a line with the time that the step took; with ``check`` it has the
outcome that must be the same for everybody who does this work, and no time if another function than
the measured one finds it.

This module imports little: what it imports counts as the start of every measured command.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

SHORT_S = 0.005  # steps that are shorter are repeated, so that the clock's resolution is no part


class Step(NamedTuple):
    """A step to measure.

    Attributes:
        run: Does the work; what it returns must be the same each time.
        check: Does the work and returns what must be the same for all contenders; ``run`` if None.
        before: Is called before each run, and is not measured.
    """

    run: Callable[[], Any]
    check: Callable[[], Any] | None = None
    before: Callable[[], Any] | None = None


def load(name: str) -> Callable[..., Any]:
    """Return the function of a name ``module:function``."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def package_name(name: str) -> Any:
    """Return a class or a function of the package.

    Another checkout may define it in another module, so it is found by its name.
    """
    import shardwriter

    (package,) = shardwriter.__path__
    for path in sorted(Path(package).rglob("*.py")):
        if re.search(rf"^(class|def) {name}\b", path.read_text(), re.MULTILINE):
            module = ".".join(path.relative_to(Path(package).parent).with_suffix("").parts)
            return getattr(import_module(module), name)
    raise SystemExit(f"{package} does not define {name}")


def processor_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    import resource

    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(step: Step, calls: int) -> dict[str, Any]:
    """Run a step; return the wall time and the processor time of one call, and the outcome."""
    if step.before is not None:
        step.before()
    started, cpu_started = time.perf_counter(), processor_s()
    for _ in range(calls):
        outcome = step.run()
    wall_s = time.perf_counter() - started
    cpu_s = processor_s() - cpu_started
    return {"wall_s": wall_s / calls, "cpu_s": cpu_s / calls, "outcome": outcome}


def answer(steps: dict[str, Step]) -> None:
    """Run steps until the input ends."""
    reports, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    calls: dict[str, int] = {}
    for line in sys.stdin:
        name, check = json.loads(line)
        step = steps[name]
        if check:
            found = measure(step, 1) if step.check is None else {"outcome": step.check()}
        else:
            if name not in calls:
                taken_s = measure(step, 1)["wall_s"]
                is_short = step.before is None and taken_s < SHORT_S
                calls[name] = min(2000, int(SHORT_S / taken_s) + 1) if is_short else 1
            found = measure(step, calls[name])
        print(json.dumps(found), file=reports, flush=True)


def run_parts(arguments: list[str], num_processes: int) -> int:
    """Start a process for each part and wait for all; return the worst exit status."""
    command = [sys.executable, "-m", "benchmarks.worker", "--once", *arguments]
    processes = [
        subprocess.Popen([*command, "--part", str(part), str(num_processes)])
        for part in range(num_processes)
    ]
    return max(abs(process.wait()) for process in processes)


def main(words: list[str]) -> int:
    """Run the function of the command line."""
    once = words[0] == "--once"
    name, arguments, *options = words[once:]
    if options[:1] == ["--processes"]:
        return run_parts([name, arguments], int(options[1]))
    if options[:1] == ["--core"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(options[1])})
    part = {}
    if options[:1] == ["--part"]:
        part = {"part": int(options[1]), "parts": int(options[2])}
    found = load(name)(*json.loads(arguments), **part)
    if not once:
        answer(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
