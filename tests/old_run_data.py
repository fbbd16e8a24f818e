"""Items of the run directories in ``old_runs``; run.json has a hash of this file, so keep it."""

from __future__ import annotations

import os
import signal
import time

import shardwriter as sw


class Numbers:
    """400 items; the process is killed at the one that KILL_AT names."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if os.environ.get("KILL_AT") == str(index):
            time.sleep(0.5)
            os.kill(int(os.environ["KILL_PID"]), signal.SIGKILL)
            time.sleep(5)
        if index % 97 == 5:
            raise ValueError(f"bad {index}")
        return {"x": list(range(1 + index % 7)), "label": index % 5, "name": f"n{index}"}


def look(item):
    """Drop some items."""
    return sw.SKIP if item["label"] == 3 and len(item["x"]) == 3 else item


def write(out, compression, workers, shuffle_seed, **more):
    """Write the dataset."""
    run = sw.RunOptions(mark_s=0, checkpoint_bytes=5000, on_error="skip")
    return sw.write(
        Numbers(),
        out,
        map=look,
        label="label",
        compression=compression,
        workers=workers,
        shuffle_seed=shuffle_seed,
        run=run,
        **more,
    )
