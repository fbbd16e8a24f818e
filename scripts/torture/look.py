"""What the output folder may show between two runs of the program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import shardwriter as sw
from shardwriter.errors import ManifestError
from torture.files import MANIFEST, NAME, RUN, difference, names_in, read_files

STATES: Final = ("no run directory", "nothing kept", "kept", "committed", "finished")


class Problem(Exception):
    """Something that must not be."""


def look(out: Path, wanted: Mapping[str, bytes], old: Mapping[str, bytes]) -> str:
    """Look at the folder after a kill, and say in which state the run is.

    Args:
        out: The output folder.
        wanted: The files of the finished dataset.
        old: The files of the dataset that was there before.

    Raises:
        Problem: It has what no moment of a write may show.
    """
    text = wanted[MANIFEST]
    files = read_files(out)
    run = names_in(out / RUN)
    found = files.pop(MANIFEST, None)
    files.pop(RUN + "/", None)
    if "commit.json" in run:
        state = "committed"
    elif found == text:
        state = "finished"
    elif RUN not in names_in(out):
        state = "no run directory"
    elif "run.json" in run and any(
        name.startswith(("base", "mark-", "checkpoint-")) for name in run
    ):
        state = "kept"
    else:
        state = "nothing kept"
    if found is not None:
        whole = wanted if found == text else old
        if found != whole.get(MANIFEST):
            raise Problem("the manifest is neither that of the old nor of the new dataset")
        for name, data in whole.items():
            if name != MANIFEST and files.get(name) != data:
                raise Problem(f"{name} is not what the manifest beside it speaks of")
        defects = {finding.kind for finding in sw.verify(str(out / NAME)).findings}
        # Shards of the old dataset go last, while the commit still stands.
        if defects - ({"stale-generation"} if state == "committed" else set()):
            raise Problem(f"there is a manifest, and verify finds {sorted(defects)}")
    if state not in ("committed", "finished"):
        if told := difference({**files, **({MANIFEST: found} if found else {})}, old):
            raise Problem(f"before the commit: {told}")
    elif found is None:
        try:
            sw.verify(str(out / NAME))
        except (ManifestError, sw.RunError, sw.UsageError):
            pass
        else:
            raise Problem("verify passes without a manifest")
    return state
