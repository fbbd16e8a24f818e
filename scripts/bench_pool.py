"""What the process pool costs: to start, and per record.

    python scripts/bench_pool.py [start] [records] [--repeat 5] [--workers 2] [--json]

``start``: the time to write 8 tiny records with 8 workers, less that in one process; for the whole
command, and for ``sw.write`` in a process that is up (the first call; the median of later ones).

``records``: nanoseconds per small record, for 1,000 to 1,000,000 of them, from a generator (which
one process reads and deals out) and from a sequence (each worker takes its own), with the pool and
in one process. ``marginal`` leaves the start out: it is the added time from the smallest count to
this one, for each added record.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench_data import Small, small, tiny
from bench_process import run_timed
from bench_write import COMMAND, HERE, has_workers

import shardwriter as sw

TINY_WORKERS = 8
NUM_SHARDS = 16
COUNTS = (1_000, 10_000, 100_000, 1_000_000)
SOURCES: dict[str, Callable[[int], Any]] = {
    "generator": lambda count: partial(small, count),
    "sequence": Small,
}


def write_timed(source: Any, work: Path, num_shards: int, workers: int | None) -> float:
    """Write in this process or, with workers, in a pool; return the seconds that it took."""
    folder = work / "out"
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()
    out = folder / f"x@{num_shards}"
    run = sw.RunOptions(engine="serial" if workers is None else "process")
    more = {} if workers is None else {"workers": workers}
    started = time.perf_counter()
    sw.write(source, out, run=run, **more)
    return time.perf_counter() - started


def time_start(work: Path, repeat: int, *, pool: bool) -> dict[str, Any]:
    """Time the start of a pool, as a difference of medians; both kinds of run take turns."""
    path = os.pathsep.join(filter(None, [str(HERE), os.getenv("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}

    def command(*engine: str) -> float:
        folder = work / "command"
        shutil.rmtree(folder, ignore_errors=True)
        out = str(folder / f"x@{TINY_WORKERS}")
        return run_timed([*COMMAND, "write", "bench_data:tiny", out, *engine], environment)

    def call(workers: int | None) -> float:
        return write_timed(tiny(), work, TINY_WORKERS, workers)

    command("--engine", "serial")  # compiles what is not compiled yet
    times: dict[str, list[float]] = {}
    for _ in range(repeat):
        times.setdefault("command_serial", []).append(command("--engine", "serial"))
        times.setdefault("call_serial", []).append(call(None))
        if pool:
            times.setdefault("command_pool", []).append(command("-j", str(TINY_WORKERS)))
            times.setdefault("call_pool", []).append(call(TINY_WORKERS))
    result = {f"{name}_s": statistics.median(taken) for name, taken in times.items()}
    if pool:
        later = times["call_pool"][1:] or times["call_pool"]
        result["call_pool_s"] = statistics.median(later)
        result["call_pool_first_s"] = times["call_pool"][0]
        result["command_start_s"] = result["command_pool_s"] - result["command_serial_s"]
        result["call_start_s"] = result["call_pool_s"] - result["call_serial_s"]
    return result


def time_records(work: Path, repeat: int, workers: int, counts: list[int], *, pool: bool) -> Any:
    """Time a record of each source with each engine, in turn, as medians."""
    engines = {"serial": None, **({f"process, {workers} workers": workers} if pool else {})}
    cases = [(s, e) for s in SOURCES for e in engines]
    for source, engine in cases:  # imports, and what is compiled at the first call
        write_timed(SOURCES[source](min(counts)), work, NUM_SHARDS, engines[engine])
    seconds: dict[tuple[str, str, int], float] = {}
    for count in counts:
        taken: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
        for _ in range(repeat):
            for source, engine in cases:
                made = SOURCES[source](count)
                taken[source, engine].append(write_timed(made, work, NUM_SHARDS, engines[engine]))
        seconds |= {(*case, count): statistics.median(times) for case, times in taken.items()}
    results = []
    for (source, engine, count), s in seconds.items():
        smallest = seconds[source, engine, min(counts)]
        added = count - min(counts)
        results.append(
            {
                "source": source,
                "engine": engine,
                "records": count,
                "ns_per_record": s / count * 1e9,
                "marginal_ns": (s - smallest) / added * 1e9 if added else None,
            }
        )
    return sorted(results, key=lambda r: (r["source"], r["engine"], r["records"]))


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help="start, records; both by default")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="of the pool, for records")
    parser.add_argument("--max-records", type=int, default=max(COUNTS))
    parser.add_argument("--work", type=Path, help="folder for the output; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.what or ["start", "records"]
    pool = has_workers() and "workers" in inspect.signature(sw.write).parameters
    if not pool:
        print("left out: the pool (this version has none)", file=sys.stderr)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        if "start" in wanted:
            results["start"] = time_start(work, options.repeat, pool=pool)
        if "records" in wanted:
            counts = [c for c in COUNTS if c <= options.max_records]
            arguments = (work, options.repeat, options.workers, counts)
            results["records"] = time_records(*arguments, pool=pool)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    if "start" in results:
        print("start: " + ", ".join(f"{key} {s:.3f}" for key, s in results["start"].items()))
    if "records" in results:
        print(f"{'source':12}{'engine':20}{'records':>10}{'ns/record':>12}{'marginal':>10}")
    for r in results.get("records", []):
        line = f"{r['source']:12}{r['engine']:20}{r['records']:10,}{r['ns_per_record']:12,.0f}"
        print(line + (f"{r['marginal_ns']:10,.0f}" if r["marginal_ns"] is not None else ""))


if __name__ == "__main__":
    main()
