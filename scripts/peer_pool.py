"""A peer's script in several processes at once, each with shards of its own.

    python scripts/peer_pool.py WORKERS SCRIPT ARGUMENTS...

This process imports nothing; each of the others imports what it needs and takes every WORKERS-th
shard, so nothing is sent between them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(workers: int, script: str, arguments: list[str]) -> int:
    """Start a process for each part and wait for all."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    parts = [["--part", str(part), "--parts", str(workers)] for part in range(workers)]
    processes = [subprocess.Popen([*command, *part]) for part in parts]
    return max(abs(process.wait()) for process in processes)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
