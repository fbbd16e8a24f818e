"""One case: its attempts and their kills, until it ends and is compared."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import shardwriter as sw
from torture.attempt import HANG_S, command_line, environment
from torture.damage import damage
from torture.draw import Attempt, draw_attempt, draw_config, draw_kill
from torture.files import NAME, RUN, difference, left_in, names_in, read_files
from torture.kill import CLAIMED, EXITS, WHEN, Kill, strike
from torture.look import Problem, look
from torture.processes import marked, wait_for_none
from torture.reference import References
from torture.tally import Tally

POLL_S: Final = 0.0005


class Case:
    """One configuration, killed until it ends.

    Args:
        seed: Of all cases.
        number: Of this one.
        work: Where it has its folder.
        references: Of all cases.
        tally: Told what is done.
        short: See :func:`draw_config`.
    """

    def __init__(
        self,
        seed: int,
        number: int,
        work: Path,
        references: References,
        tally: Tally,
        *,
        short: bool,
    ) -> None:
        self._rng = random.Random(f"{seed} {number}")
        self._seed = seed
        self._number = number
        self._short = short
        self.config = draw_config(self._rng, short=short)
        self._folder = work / f"case-{number}"
        self._out = self._folder / "out"
        self._run = self._out / RUN
        self._references = references
        self._tally = tally
        self._old: dict[str, bytes] = {}
        self._history: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any] | None:
        """Run it; return what went wrong, with all that is needed to run it again."""
        problem = None
        try:
            self._source, self._wanted = self._references.get(self.config)
            self._out.mkdir(parents=True)
            self._make_old()
            self._kill_until_it_ends()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told with its case
            problem = {
                "problem": str(error) if isinstance(error, Problem) else traceback.format_exc(),
                "again": f"--seed {self._seed} --case {self._number}"
                + (" --short" if self._short else ""),
                "configuration": asdict(self.config),
                "attempts": self._history,
                "folder": str(self._folder),
            }
        else:
            shutil.rmtree(self._folder)
        with self._tally.lock:
            self._tally.configurations += 1
            self._tally.sources[self.config.source] += 1
        return problem

    def _make_old(self) -> None:
        old = self.config.old
        if old is None:
            return

        def fail(features: dict[str, Any]) -> dict[str, Any]:
            if old.errors and features["id"] == 3:
                raise ValueError("an old error")
            return features

        sw.write(
            [{"id": i, "old": b"old" * 100} for i in range(50)],
            self._out / f"{NAME}@{old.num_shards}",
            map=fail,
            on_error="skip",
            compression=old.compression,  # type: ignore[arg-type]
            run=sw.RunOptions(dali_index=old.index),
        )
        self._old = read_files(self._out)

    def _kill_until_it_ends(self) -> None:
        rng, tally = self._rng, self._tally
        most_kills = rng.choice([6, 8, 12] if self._short else [1, 2, 3, 4, 6, 8, 12])
        num_kills = 0
        state: str | None = None
        while True:
            attempt = draw_attempt(rng, self.config, state)
            kill = None
            if num_kills < most_kills and sum(tally.kills.values()) < tally.wanted:
                kill = draw_kill(rng, self.config, attempt)
            self._history.append({**asdict(attempt), "kill": kill and asdict(kill)})
            started = time.monotonic()
            struck, code = self._attempt(attempt, kill)
            took_s = round(time.monotonic() - started, 3)
            self._history[-1] |= {"struck": struck, "exit": code, "took_s": took_s}
            with tally.lock:
                tally.resumes += attempt.mode == "resume"
                tally.too_late += kill is not None and code == 0
            allowed = EXITS[kill.kind] if kill is not None and struck else (0,)
            if code not in allowed:
                raise Problem(f"exit code {code} of the last attempt, not of {allowed}")
            at_once = rng.random() < 0.25  # before the last of its processes has ended
            if not at_once and (left := wait_for_none(self._folder)):
                raise Problem(f"processes are left: {left}")
            if code == 0:
                break
            num_kills += 1
            state = look(self._out, self._wanted, self._old)
            self._history[-1]["found"] = state
            with tally.lock:
                assert kill is not None
                tally.kills[kill.kind] += 1
                tally.moments[kill.when] += 1
                tally.states[state] += 1
            if state == "kept" and not at_once and rng.random() < 0.8:
                told = damage(self._run, self.config.compression, rng)
                self._history[-1]["damage"] = told
                with tally.lock:
                    tally.damaged += bool(told)
        if rng.random() < 0.1:
            self._history.append({"mode": "resume", "of": "what is finished"})
            _, code = self._attempt(Attempt("cli", "process", 2, "resume"), None)
            if code:
                raise Problem(f"exit code {code} of a resume with nothing to do")
        if left := wait_for_none(self._folder):
            raise Problem(f"processes are left: {left}")
        if differs := difference(read_files(self._out), self._wanted):
            raise Problem(differs)
        if left_over := left_in(self._folder / "tmp"):
            raise Problem(f"left in TMPDIR: {left_over}")

    def _attempt(self, attempt: Attempt, kill: Kill | None) -> tuple[bool, int]:
        """Run the program, and kill it; return whether that was done, and the exit code."""
        command = command_line(self.config, attempt, self._source, self._out)
        struck = False
        log = self._folder / f"log-{len(self._history):02d}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(self.config, self._folder, sleeps=True),
                start_new_session=True,
            )
        if kill is not None:
            for _ in self._moments(kill, process):
                struck = strike(kill, process.pid, self._rng)
                if struck:
                    break
        try:
            return struck, process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            # The fault handler has them print where they are.
            for number in marked(self._folder):
                os.kill(number, signal.SIGABRT)
            process.wait()
            raise Problem(f"the last attempt hung; {log} has the tracebacks") from None

    def _moments(self, kill: Kill, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Yield when it is time, and then until the program ends."""
        seen = WHEN[kill.when][0]
        stop = time.monotonic() + HANG_S
        while not seen(self._names(process.pid)):
            if process.poll() is not None or time.monotonic() > stop:
                return
            time.sleep(POLL_S)
        time.sleep(kill.after_s)
        while process.poll() is None and time.monotonic() < stop:
            yield
            time.sleep(POLL_S)

    def _names(self, pid: int) -> frozenset[str]:
        """Return the names in the run directory, with one of ours once a program has locked it."""
        names = names_in(self._run)
        try:
            is_claimed = (self._run / "lock").read_text().startswith(f"process {pid} ")
        except OSError:
            is_claimed = False
        return names | {CLAIMED} if is_claimed else names
