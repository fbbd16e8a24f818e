"""How fast records are read, against tf.data, PyPI tfrecord, Grain, WebDataset and array_record.

    .venv-peers/bin/python scripts/bench_read.py [images] [floats] [rows] [tokens] [--repeat 5]
        [--scale 1] [--quick] [--only WAY] [--json]

It wants the environment that ``scripts/venv peers .venv-peers`` makes. The sets and what each of
the formats keeps of them are told in read_sets.py, what each side does in read_sides.py. The ways:

``raw``, ``decoded``: all records in the order of the files or of the source, as bytes or as NumPy.
``columns``: the same decoded in batches of 64, an array a feature.
``shuffled``: decoded; ours, array_record and Grain on either in an order of the whole set, the
others among 1,000 records.
``random raw``, ``... batched``: every record at its index, asked for one at a time or 64 at once.

The sides of the first three ways have one core, except the one that says otherwise; of the others
all have all. They run in turn, each in a process of its own that has opened the set before, with
the files in the system's cache. In a first round each gives a digest of all that it hands out; the
run fails where two differ. ``x`` is how often the first side's rate has that side's; the last
column divides by the processor's seconds, of all threads, which a busy machine disturbs less.

Ours checks both CRCs of every record, tf.data too, and array_record the hashes of its own. Grain's
reader of TFRecords, PyPI tfrecord and WebDataset check none: ``shardwriter, no CRC`` is what
compares with them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from read_sets import SETS, make

IN_SEQUENCE = ("raw", "decoded", "columns")
AT_RANDOM = ("shuffled", "random raw", "random raw, batched", "random decoded, batched")
EVERYWHERE = ("raw", "decoded", "shuffled")
SIDES = {
    "shardwriter": IN_SEQUENCE + AT_RANDOM,
    "shardwriter, no CRC": ("raw", "decoded", "shuffled", "random raw"),
    "shardwriter.torch": ("columns",),
    "shardwriter.tensorflow": ("columns",),
    "grain on shardwriter": ("shuffled", "random raw"),
    "tf.data": ("raw", "decoded", "columns"),
    "tf.data, all cores": ("raw", "decoded", "columns", "shuffled"),
    "tfrecord": EVERYWHERE,
    "grain": EVERYWHERE,
    "array_record": ("raw", "decoded", *AT_RANDOM),
    "grain on array_record": ("shuffled", "random raw"),
    "webdataset": EVERYWHERE,
}
"""What each side can do."""

SLOW_TO_START = ("tf.data, all cores", "shardwriter.tensorflow", "grain on array_record")


class Side:
    """A process that reads when it is asked to."""

    def __init__(self, name: str, folder: Path, core: int | None) -> None:
        self.name = name
        command = [sys.executable, str(Path(__file__).with_name("read_sides.py")), name, folder]
        if core is not None:
            command += ["--core", str(core)]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # TensorFlow greets, others too
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def read(self, name: str, way: str, check: bool = False) -> dict[str, Any]:
        """Let it read a set once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, way, check]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"{said}\n{self.name} has ended while it read {name}, {way}")
        found: dict[str, Any] = json.loads(line)
        return found


def compare(sides: list[Side], name: str, way: str, repeat: int) -> dict[str, Any]:
    """Let sides read a set in turn; return the median of the records a second of each."""
    checked = {side.name: side.read(name, way, check=True) for side in sides}
    if len({json.dumps(result) for result in checked.values()}) > 1:
        raise SystemExit(f"{name}, {way}: not the same records: {checked}")
    num_records = checked[sides[0].name]["num_records"]
    taken: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for round_number in range(repeat + 1):
        for side in sides:
            result = side.read(name, way)
            if result["num_records"] != num_records:
                raise SystemExit(f"{side.name}: {name}, {way}: {result}, not {num_records} records")
            if round_number:  # the first warms up
                taken[side.name].append(result)
    rates, cpu_rates = (
        {
            side: num_records / statistics.median(result[clock] for result in results)
            for side, results in taken.items()
        }
        for clock in ("seconds", "cpu_s")
    )
    return {
        "set": name,
        "way": way,
        "num_records": num_records,
        "records_per_s": rates,
        "records_per_cpu_s": cpu_rates,
        "ratios": {side: rates["shardwriter"] / rate for side, rate in rates.items()},
    }


def run(
    names: list[str],
    ways: tuple[str, ...],
    work: Path,
    repeat: int,
    core: int | None,
    without: tuple[str, ...],
) -> list[dict[str, Any]]:
    """Compare every side that can, in each of the ways, on each of the sets."""
    results = []
    with ExitStack() as stack:
        sides = [
            stack.enter_context(Side(side, work, None if "all cores" in side else core))
            for side, able in SIDES.items()
            if set(able) & set(ways) and side not in without
        ]
        for name in names:
            for way in ways:
                able = [side for side in sides if way in SIDES[side.name]]
                results.append(compare(able, name, way, repeat))
                show(results[-1])
    return results


def show(result: dict[str, Any]) -> None:
    """Print one comparison, as it is known."""
    title = f"{result['set']}, {result['way']}: {result['num_records']:,} records"
    print(f"{title:50}{'records/s':>12}{'x':>9}{'/CPU s':>12}", file=sys.stderr)
    for side, rate in result["records_per_s"].items():
        more = f"{result['ratios'][side]:9.2f}{result['records_per_cpu_s'][side]:12,.0f}"
        print(f"  {side:48}{rate:12,.0f}{more}", file=sys.stderr, flush=True)


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sets", nargs="*", help=f"{', '.join(SETS)}; all by default")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the sets")
    parser.add_argument("--only", action="append", metavar="WAY", help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sets, 3 rounds, fewer sides")
    parser.add_argument("--work", type=Path, help="folder for the sets; temporary by default")
    parser.add_argument("--json", action="store_true", help="print JSON at the end")
    options = parser.parse_args()
    if options.quick:
        options.scale, options.repeat = options.scale / 6, min(options.repeat, 3)
    names = options.sets or list(SETS)
    last_core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    results = []
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        for name in names:
            make(name, Path(folder), options.scale)
        for group, core in ((IN_SEQUENCE, last_core), (AT_RANDOM, None)):
            ways = tuple(way for way in group if way in (options.only or group))
            if ways:
                without = SLOW_TO_START if options.quick else ()
                results += run(names, ways, Path(folder), options.repeat, core, without)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
