"""Run directories of an earlier version are resumed, and end as a run that was never stopped.

They were made by the version of commit 1d56a85 and killed half-way: with each compression, one
process and two, shuffled and not.
"""

from __future__ import annotations

import tarfile

import old_run_data
import pytest
from paths import TESTS

import shardwriter as sw

RUNS = sorted((TESTS / "golden" / "old_runs").glob("*.tar.xz"))
SPLIT_RUNS = sorted((TESTS / "golden" / "old_split_runs").glob("*.tar.xz"))


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_an_old_run_is_resumed(tmp_path, run):
    compression, workers, seed = run.name.removesuffix(".tar.xz").split("-")
    options = compression, int(workers), None if seed == "None" else int(seed)
    with tarfile.open(run) as archive:
        archive.extractall(tmp_path / "out", filter="data")
    notes = []
    old_run_data.write(tmp_path / "out" / "t@7", *options, resume=True, notify=notes.append)
    assert any(note.startswith("resuming: ") for note in notes)
    old_run_data.write(tmp_path / "whole" / "t@7", *options)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize("run", SPLIT_RUNS, ids=lambda path: path.name)
def test_an_old_run_of_splits_is_resumed(tmp_path, run):
    """One was killed in the first split, at item 396, or in the second one, at item 201."""
    compression, workers, _ = run.name.removesuffix(".tar.xz").split("-")
    with tarfile.open(run) as archive:
        archive.extractall(tmp_path / "out", filter="data")

    def write(folder, **options):
        run_options = sw.RunOptions(mark_s=0, checkpoint_bytes=2000, on_error="skip")
        sw.write_splits(
            old_run_data.Numbers(),
            tmp_path / folder / "t@3",
            {"train": "0.7", "val": "0.3"},
            map=old_run_data.look,
            label="label",
            compression=compression,
            workers=int(workers),
            run=run_options,
            **options,
        )

    write("out", resume=True)
    write("whole")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_there_are_some():
    assert len(RUNS) == 12
    assert len(SPLIT_RUNS) == 8
