"""Every fuzz target on valid files, on these with changes, and on any bytes.

Each target gets 40 changed files, or ``SHARDWRITER_FUZZ_INPUTS``, and a quarter as many inputs of
any bytes. ``python scripts/fuzz TARGET --seconds N`` runs a target for longer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from mutations import mutated
from targets import TARGETS, check

NUM_INPUTS = int(os.environ.get("SHARDWRITER_FUZZ_INPUTS", "40"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_raises_nothing_but_its_errors(name: str, tmp_path: Path) -> None:
    seeds = TARGETS[name].seeds()

    def holds(data: bytes) -> None:
        try:
            check(name, data)
        except BaseException:
            found = tmp_path / "finding"
            found.write_bytes(data)
            print(f"python scripts/fuzz {name} --file {found}")
            raise

    for seed in seeds:
        holds(seed)

    # Inputs are drawn by number: a printed file would be longer than what is to be read of it.
    @settings(max_examples=NUM_INPUTS, derandomize=True, database=None)
    @given(st.integers(0, len(seeds) - 1), st.integers(0, 2**32))
    def changed_files(seed: int, change: int) -> None:
        holds(mutated(seeds[seed], change))

    @settings(max_examples=max(1, NUM_INPUTS // 4), derandomize=True, database=None)
    @given(st.binary(max_size=64))
    def any_bytes(data: bytes) -> None:
        holds(data)

    changed_files()
    any_bytes()
