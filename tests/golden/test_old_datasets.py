"""Datasets of an earlier version are verified, read, appended to and repaired.

They were written by the version of commit 1d56a85 with each compression, shuffled and not.
"""

from __future__ import annotations

import tarfile

import old_run_data
import pytest
from paths import TESTS

import shardwriter as sw

DATASETS = sorted((TESTS / "golden" / "old_datasets").glob("*.tar.xz"))


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=DATASETS, ids=lambda path: path.name)
def old(tmp_path, request):
    """The folder of an old dataset ``t``, its compression and its seed."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    compression, seed = request.param.name.removesuffix(".tar.xz").split("-")
    return tmp_path / "old", compression, None if seed == "None" else int(seed)


def test_it_is_whole_and_equal_to_a_new_one(tmp_path, old):
    folder, compression, seed = old
    assert sw.verify(folder / "t").num_defects == 0
    old_run_data.write(tmp_path / "new" / "t@7", compression, 1, seed)
    assert files(folder) == files(tmp_path / "new")


def test_its_records_are_read(old):
    folder, _, seed = old
    items = old_run_data.Numbers()
    good = [items[i] for i in range(400) if i % 97 != 5]
    wanted = [item for item in good if old_run_data.look(item) is not sw.SKIP]
    found = [
        {"x": row["x"].tolist(), "label": int(row["label"]), "name": row["name"]}
        for row in sw.open_dataset(folder / "t")
    ]
    if seed is not None:
        wanted.sort(key=lambda item: int(item["name"][1:]))
        found.sort(key=lambda item: int(item["name"][1:]))
    assert found == wanted


def test_it_is_appended_to(tmp_path, old):
    folder, compression, seed = old
    more = [{"x": [number], "label": 9, "name": "new"} for number in range(10)]
    old_run_data.write(tmp_path / "new" / "t@7", compression, 1, seed)
    for place in (folder, tmp_path / "new"):
        manifest = sw.append(more, place / "t")
    assert manifest.num_items == 410
    assert sw.verify(folder / "t").num_defects == 0
    assert files(folder) == files(tmp_path / "new")


def test_it_is_repaired_from_its_source(old):
    folder, _, seed = old
    before = files(folder)
    shard = next(path for path in sorted(folder.iterdir()) if "00003-of" in path.name)
    shard.write_bytes(shard.read_bytes()[:-40])
    sw.repair(
        folder / "t",
        folder,
        old_run_data.Numbers(),
        map=old_run_data.look,
        label="label",
        shuffle_seed=seed,
        overwrite=True,
    )
    assert files(folder) == before


def test_there_are_some():
    assert len(DATASETS) == 6
