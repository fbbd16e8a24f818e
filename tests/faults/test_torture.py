"""A short form of ``scripts/torture``; SHARDWRITER_TORTURE_SEED repeats one."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
try:
    from torture.cases import torture
    from torture.tally import summary
finally:
    del sys.path[0]

KILLS = 24


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
def test_no_kill_changes_a_byte(tmp_path: Path) -> None:
    given = os.environ.get("SHARDWRITER_TORTURE_SEED")
    if given is None:
        given = "7" if os.environ.get("CI") == "true" else str(random.randrange(10**6))
    seed = int(given)
    print(f"seed {seed}: python scripts/torture --kills {KILLS} --seed {seed} --short")
    tally = torture(seed, KILLS, work=tmp_path, jobs=3, short=True)
    print(summary(tally))
    assert not tally.problems, json.dumps(tally.problems, indent=1)
    assert sum(tally.kills.values()) >= KILLS
