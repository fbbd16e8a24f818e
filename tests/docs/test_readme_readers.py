"""The README's training examples run, each framework in its environment."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from environments import peers_python
from paths import ROOT

import shardwriter
from shardwriter.writing.options import RunOptions

README = (ROOT / "README.md").read_text()

# Who runs which examples: the tests' own Python, or that of the other loaders.
OWN, PEERS = (
    ("keras", "tensorflow"),
    ("grain", "huggingface", "lightning", "tfds", "torch"),
)


def examples() -> dict[str, str]:
    """All blocks of a framework, one behind the other: ```py torch."""
    found: dict[str, str] = {}
    for name, code in re.findall(r"^```py (\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        found[name] = found.get(name, "") + code
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that the README speaks of, with the files that other readers ask for."""
    folder = tmp_path_factory.mktemp("readers")
    script = ROOT / "scripts" / "make_demo_data.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    shardwriter.write(
        folder / "shapes", folder / "out/train@16", shuffle_seed=1, run=RunOptions(dali_index=True)
    )
    shardwriter.write(folder / "shapes", folder / "data/train@4", tfds="demo:1.0.0")
    return folder


def python_of(name: str) -> str:
    if name in OWN:
        if importlib.util.find_spec("tensorflow") is None:
            pytest.skip("TensorFlow is not installed")
        return sys.executable
    return peers_python()


def run(name: str, folder: Path, *command: str | Path) -> str:
    """Run a program in the environment of a framework, with this checkout's package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python_of(name), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_every_framework_with_examples_is_run() -> None:
    assert set(examples()) == {*OWN, *PEERS}


@pytest.mark.parametrize("name", [*OWN, *PEERS])
def test_examples_run_as_printed(name: str, workplace: Path) -> None:
    script = workplace / f"{name}_example.py"
    script.write_text(examples()[name])
    run(name, workplace, script)
