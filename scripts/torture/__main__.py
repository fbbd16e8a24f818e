"""Kills writes at random moments, resumes them, and holds every byte against an unkilled write.

    python scripts/torture [--kills 300] [--seed 7] [--case K] [--jobs 2] [--json]

A case is a random configuration. It is written by attempts, each of which is killed at a random
moment, until one comes to its end. In between the output folder is looked at, and what was never
brought to the disk may be damaged as a power cut would. At the end all files are compared with
those of a serial write of the same configuration that was left alone.

Seed and number decide a case: its configuration, its kills and when they are to come. What a kill
meets is up to the machine. A case that went wrong is printed and its folder kept; ``--case K`` with
the same seed runs it again. Needs Linux: processes are found in /proc.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torture.cases import torture
from torture.tally import summary


def main() -> int:
    """Torture, and say how it went; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None, help="drawn where it is left off")
    parser.add_argument("--case", type=int, help="run only this one")
    parser.add_argument("--short", action="store_true", help="cases that are over soon")
    parser.add_argument("--jobs", type=int, default=2, help="cases that go on at once")
    parser.add_argument("--work", type=Path, help="folder for the output; temporary by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr if options.json else sys.stdout, flush=True)
    work = Path(tempfile.mkdtemp(prefix="torture-", dir=options.work)).resolve()
    started = time.monotonic()
    tally = torture(
        seed,
        options.kills,
        work=work,
        jobs=options.jobs,
        only=options.case,
        short=options.short,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    elapsed_s = time.monotonic() - started
    if not tally.problems:
        shutil.rmtree(work)
    if options.json:
        result = {"seed": seed, "elapsed_s": elapsed_s, **tally.to_json()}
        print(json.dumps({**result, "problems": tally.problems}, indent=1))
    else:
        print(summary(tally))
        print(f"{'seconds':20}{elapsed_s:.0f}")
        for problem in tally.problems:
            print(json.dumps(problem, indent=1))
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
