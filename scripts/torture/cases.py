"""Cases, some at once, until so many kills were made."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from torture.case import Case
from torture.files import shared_memory
from torture.processes import wait_for_none
from torture.reference import References
from torture.tally import Tally

MOST_PROBLEMS: Final = 5  # after which no more cases are begun


def torture(
    seed: int,
    kills: int,
    *,
    work: Path,
    jobs: int = 2,
    only: int | None = None,
    short: bool = False,
    say: Callable[[str], None] = print,
) -> Tally:
    """Run cases until so many kills were made.

    Args:
        seed: Decides the cases.
        kills: How many at least.
        work: A folder for all of it.
        jobs: How many cases go on at once.
        only: Runs this case and no other.
        short: Has cases that are over soon.
        say: Told how far it is.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:  # as nohup has it; programs inherit that
            signal.signal(number, lambda *_: None)
    tally = Tally(kills)
    references = References(work)
    before = shared_memory()
    numbers = iter(range(10**9) if only is None else [only])

    def run_cases() -> None:
        while True:
            with tally.lock:
                number = next(numbers, None)
                made = sum(tally.kills.values())
                if number is None or made >= kills or len(tally.problems) >= MOST_PROBLEMS:
                    return
            began = time.monotonic()
            problem = Case(seed, number, work, references, tally, short=short).run()
            with tally.lock:
                made = sum(tally.kills.values())
                say(f"{made} of {kills} kills; case {number} took {time.monotonic() - began:.1f} s")
                if problem is not None:
                    tally.problems.append(problem)
                    say(f"WRONG: {problem['problem']}; {problem['folder']} is kept")

    threads = [threading.Thread(target=run_cases) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if left := wait_for_none(work):
        tally.problems.append({"problem": f"processes are left at the end: {left}"})
    if left_over := shared_memory() - before:
        tally.problems.append({"problem": f"left in /dev/shm: {sorted(left_over)}"})
    return tally
