"""The environment with other people's loaders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

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
