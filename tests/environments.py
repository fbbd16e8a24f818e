"""The environment with other people's loaders."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

PEERS: Final = Path(__file__).parent / "peers"


def peers_python() -> str:
    """Return its Python; skip the test where there is none."""
    named = os.environ.get("SHARDWRITER_PEERS_PYTHON")
    root = Path(__file__).parent.parent
    python = Path(named) if named else root / ".venv-peers" / "bin" / "python"
    if not python.exists():
        pytest.skip(
            "no environment with other loaders: scripts/venv peers .venv-peers makes it, or "
            "SHARDWRITER_PEERS_PYTHON names its Python"
        )
    return str(python)


def ask_tfds(questions: list[Any]) -> Any:
    """Return what TensorFlow Datasets answers: see peers/tfds_directory.py."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    done = subprocess.run(
        [peers_python(), PEERS / "tfds_directory.py"],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)
