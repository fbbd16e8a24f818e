"""What is written without a kill, to compare with."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import shardwriter as sw
from torture import data
from torture.attempt import HANG_S, command_line, environment
from torture.draw import Attempt, Config
from torture.files import NAME, read_files
from torture.look import Problem


class References:
    """Folders that were written without a kill, one for each configuration with its own bytes."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._made: dict[str, tuple[threading.Lock, list[Any]]] = {}

    def get(self, config: Config) -> tuple[str, dict[str, bytes]]:
        """Return SOURCE, and the files of the finished dataset."""
        key = config.reference_key()
        with self._lock:
            number = len(self._made)
            lock, found = self._made.setdefault(key, (threading.Lock(), []))
        with lock:
            if not found:
                found += self._make(config, self._work / f"reference-{number}")
        return found[0], found[1]

    def _make(self, config: Config, folder: Path) -> tuple[str, dict[str, bytes]]:
        folder.mkdir(parents=True)
        source = f"torture.data:{config.source.capitalize()}"
        if config.source == "stream":
            source = "torture.data:stream"
        elif config.source != "dataset":
            source = data.make_files(
                folder, config.source, config.seed, config.num_items, config.item_bytes
            )
        command = command_line(config, Attempt("api", "serial", 1, "begin"), source, folder / "out")
        ended = subprocess.run(
            command,
            env=environment(config, folder, sleeps=False),
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        if ended.returncode:
            raise Problem(f"the reference can not be written: {ended.stderr}")
        if sw.verify(str(folder / "out" / NAME)).num_defects:
            raise Problem("the reference does not pass verify")
        files = read_files(folder / "out")
        shutil.rmtree(folder / "out")
        return source, files
