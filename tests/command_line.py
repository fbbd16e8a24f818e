"""The command line in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardwriter", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
