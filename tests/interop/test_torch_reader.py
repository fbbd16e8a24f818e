"""The readers for torch, tested where torch is: an environment of its own runs these files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from environments import PEERS, peers_python


@pytest.mark.parametrize(
    "file",
    [
        *("torch_loader", "torch_faults", "torch_starts", "torch_states", "torch_ranks"),
        *("torch_shapes", "torch_batches"),
    ],
)
def test_the_readers_for_torch(file):
    environment = {
        **os.environ,
        "PYTHONPATH": str(PEERS.parent.parent),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [peers_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(Path(PEERS, f"{file}.py"))],
        capture_output=True,
        text=True,
        env=environment,
        cwd=PEERS.parent.parent,
        timeout=300,
    )
    if "No module named pytest" in done.stderr:
        pytest.skip("the environment with other loaders has no pytest")
    if "skipped" in done.stdout:
        pytest.skip(done.stdout[done.stdout.rindex("SKIPPED") :].splitlines()[0])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
