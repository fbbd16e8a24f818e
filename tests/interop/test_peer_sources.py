"""Sources that are other packages' objects, tested where these are: an environment of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from environments import PEERS, peers_python


@pytest.mark.parametrize(
    "tests",
    [
        [Path(PEERS, "huggingface_source.py")],
        [Path(PEERS, "torch_sources.py")],
        [Path(PEERS.parent, "contract", "test_sources.py"), "-k", "loaded or streamed or torch"],
    ],
    ids=["huggingface", "torch", "contract"],
)
def test_the_objects_of_other_packages(tests):
    environment = {
        **os.environ,
        "PYTHONPATH": str(PEERS.parent.parent),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [peers_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *map(str, tests)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=PEERS.parent.parent,
        timeout=300,
    )
    if "No module named pytest" in done.stderr:
        pytest.skip("the environment with other loaders has no pytest")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
