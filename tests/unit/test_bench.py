"""The program of benchmarks lists its works, and compares this checkout with another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from paths import ROOT


def bench(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_every_work_is_listed_with_its_peers() -> None:
    done = bench("--list")
    assert done.returncode == 0, done.stderr
    works = [line.partition(":")[0] for line in done.stdout.splitlines() if line[0] != " "]
    assert {"write", "encode", "prove", "read-decoded", "train", "beam", "damage"} <= {*works}
    assert done.stdout.count("another checkout") == len(works)


def test_a_checkout_is_compared_with_another_one() -> None:
    done = bench(
        "encode/rows",
        "write/table",
        "--size",
        "0.001",
        "--repeats",
        "1",
        "--json",
        "--against",
        ROOT,
    )
    assert done.returncode == 0, done.stderr
    for case in json.loads(done.stdout).values():
        assert list(case["results"]) == ["shardwriter", f"shardwriter of {ROOT.name}"]
        for row in case["results"].values():
            assert row["wall_s"] > 0
            assert row["cpu_s"] > 0


def test_unknown_works_and_peers_are_refused() -> None:
    assert "there is no work" in bench("no-such-work").stderr
    assert "no such peer" in bench("encode", "--against", "nobody").stderr
