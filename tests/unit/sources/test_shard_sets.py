"""Which shards a path means: names, notations, globs, files, folders, and what lies beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.errors import ManifestError, OptionError, SourceError, StorageError
from shardwriter.inspect.document import Report
from shardwriter.sources.shard_sets import ShardSet, find_one, find_shard_sets
from shardwriter.storage import LocalStorage
from shardwriter.writing.run_directory import RunDirectory

COUNT, N = 10, 2


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of 10 records in 2 shards."""
    sw.write([bytes([i]) * 10 for i in range(COUNT)], tmp_path / "t@2")
    return tmp_path


def shard(folder: Path, index: int) -> Path:
    return folder / f"t.tfrecord-{index:05d}-of-00002"


def record_file(path: Path, count: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sw.TFRecordWriter(path) as writer:
        for _ in range(count):
            writer.write(b"abc")


def indices(shard_set: ShardSet) -> list[int]:
    return [shard for shard, _ in shard_set.shards]


# -- nothing is never OK ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nothing", "nothing@4", "no*", "no@*", "gone/t", "gone/*"])
def test_a_path_that_names_nothing_is_a_usage_error(dataset: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"there is no such file|no file matches") as caught:
        sw.stats(str(dataset / name))
    assert caught.value.exit_code == 2


def test_another_number_of_shards_is_told(dataset: Path) -> None:
    with pytest.raises(SourceError, match="'t' has 2 shards, not 5"):
        sw.stats(str(dataset / "t@5"))


def test_no_paths_at_all() -> None:
    with pytest.raises(SourceError):
        find_shard_sets([])


@pytest.mark.parametrize(
    "notation", ["t@²", "t@" + "9" * 5000, "t@0", "t@02", "t@x", "t@", "t@2@2", "t@-1"]
)
def test_a_notation_that_is_none(dataset: Path, notation: str) -> None:
    with pytest.raises(OptionError, match="is not NAME@N") as caught:
        sw.stats(str(dataset / notation))
    assert len(str(caught.value)) < 200


def test_a_glob_of_folders_looks_into_them(dataset: Path) -> None:
    record_file(dataset / "d1" / "x.tfrecord", 3)
    (dataset / "d2").mkdir()
    assert sw.stats(str(dataset / "d?")).sizes.count == 3
    (dataset / "d1" / "x.tfrecord").unlink()
    with pytest.raises(SourceError, match="folder without"):
        sw.stats(str(dataset / "d?"))


@pytest.mark.parametrize("name", ["t.index", "t.errors.jsonl", "t.tfrecord-00001-of-00002.idx"])
def test_a_file_beside_the_shards_means_its_dataset(dataset: Path, name: str) -> None:
    (dataset / name).touch()
    report = sw.stats(str(dataset / name))
    assert (report.sizes.count, len(report.sets)) == (COUNT, 1)
    assert report.sets[0].shard_set.manifest is not None
    for path in dataset.iterdir():
        if path.name != name:
            path.unlink()
    with pytest.raises(SourceError, match="are missing"):
        sw.stats(str(dataset / name))


def test_the_idx_of_a_file_that_follows_no_pattern(tmp_path: Path) -> None:
    record_file(tmp_path / "x.tfrecord", 3)
    (tmp_path / "x.tfrecord.idx").touch()
    assert find_one(str(tmp_path / "x.tfrecord.idx")).shards == [(0, str(tmp_path / "x.tfrecord"))]


def test_a_shell_that_lists_a_folder_may_list_an_index_without_shards(dataset: Path) -> None:
    (dataset / "old.index").touch()
    report = sw.stats([str(path) for path in sorted(dataset.iterdir())])
    assert (report.sizes.count, len(report.sets)) == (COUNT, 1)


# -- shards named one by one -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["listed", "glob"])
def test_shards_named_one_by_one_are_held_against_their_manifest(dataset: Path, how: str) -> None:
    shard(dataset, 0).write_bytes(shard(dataset, 0).read_bytes()[:-26])
    paths = [str(shard(dataset, 0)), str(shard(dataset, 1))]
    report = sw.stats(paths if how == "listed" else str(dataset / "t.tfrecord-0000*"))
    assert [f.kind for f in report.findings] == ["record-count"]


def test_one_shard_alone_has_its_manifest_and_misses_no_others(dataset: Path) -> None:
    found = find_one(str(shard(dataset, 1)))
    assert found.manifest is not None
    assert (found.whole, found.missing, indices(found)) == (False, [], [1])
    assert sw.verify(str(shard(dataset, 1))).verdict.startswith("OK: 10 records in 2 shards")


def test_the_manifest_of_another_generation_is_not_theirs(dataset: Path) -> None:
    record_file(dataset / "t.tfrecord-00000-of-00003")
    assert find_one(str(dataset / "t.tfrecord-00000-of-00003")).manifest is None


def test_paths_stay_as_they_were_given(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dataset)
    names = [shard(dataset, s).name for s in range(N)]
    assert [p for _, p in find_one("t.tfrecord-0*").shards] == names
    twice = find_shard_sets([names[0], f"./{names[0]}", f"../{dataset.name}/{names[1]}", "."])
    assert len(twice) == 1
    assert indices(twice[0]) == [0, 1]


# -- names with fewer digits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "template", ["x.tfrecord-{}-of-12", "x-{:04d}-of-0012.tfrecord", "x.tfrecord-{:02d}-of-12"]
)
def test_sets_of_any_width_are_sorted_by_number_and_must_be_whole(
    tmp_path: Path, template: str
) -> None:
    for s in range(11):
        record_file(tmp_path / "un" / template.format(s), s)
    missing = str(tmp_path / "un" / template.format(11))
    for path in ("un", "un/*", "un/x", "un/x@12", "un/x@*"):
        report = sw.stats(str(tmp_path / path))
        assert [(f.kind, f.path) for f in report.findings] == [("missing-shard", missing)]
        assert indices(report.sets[0].shard_set) == list(range(11))
        assert [scan.num_records for scan in report.scans] == list(range(11))
        assert report.scans[0].path == str(tmp_path / "un" / template.format(0))
    record_file(Path(missing), 11)
    assert sw.stats(str(tmp_path / "un")).verdict.startswith("OK: 66 records in 12 shards")


def test_one_shard_with_few_digits_is_no_incomplete_set(tmp_path: Path) -> None:
    record_file(tmp_path / "x.tfrecord-10-of-12")
    report = sw.stats(str(tmp_path / "x.tfrecord-10-of-12"))
    assert (report.num_defects, indices(report.sets[0].shard_set)) == (0, [10])


def test_two_spellings_are_two_sets(tmp_path: Path) -> None:
    for name in ("x.tfrecord-0-of-2", "x.tfrecord-1-of-2", "x.tfrecord-00000-of-00002"):
        record_file(tmp_path / name)
    report = sw.stats(str(tmp_path))
    assert [f.kind for f in report.findings].count("stale-generation") == 2


@pytest.mark.parametrize(
    "name", ["report-1-of-3.pdf", "t-00000-of-00002.csv", "notes-0-of-2", "x-3-of-2.txt"]
)
def test_other_files_in_parts_are_no_shards(dataset: Path, name: str) -> None:
    (dataset / name).write_text("no records")
    for path in (dataset, dataset / "t"):
        assert sw.stats(str(path)).verdict.startswith("OK: 10 records in 2 shards")


def test_a_number_that_no_set_has_hangs_nothing(tmp_path: Path) -> None:
    record_file(tmp_path / "x.tfrecord-00000-of-99999999999999999")
    assert len(sw.stats(str(tmp_path / "x.tfrecord-0*")).scans) == 1


# -- folders ---------------------------------------------------------------------------------------


def test_a_folder_with_brackets_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "data[v1]"
    sw.write([b"x"] * 4, folder / "train@2")
    for name in ("train", "train@2", "train@*", "train.*", "tr*", ""):
        assert sw.stats(str(folder / name)).sizes.count == 4
    assert sw.verify(str(folder / "train")).num_defects == 0
    assert sw.stats(str(tmp_path / "data*" / "train.*")).sizes.count == 4


def test_a_folder_without_shards_beside_a_dataset_of_its_name(tmp_path: Path) -> None:
    sw.write([b"x"] * 4, tmp_path / "sd" / "train@2")
    (tmp_path / "sd" / "train").mkdir()
    assert sw.verify(str(tmp_path / "sd" / "train")).sizes.count == 4
    record_file(tmp_path / "sd" / "train" / "y.tfrecord")  # with shards the folder is meant
    assert sw.stats(str(tmp_path / "sd" / "train")).sizes.count == 1


# -- what can not be read --------------------------------------------------------------------------


def test_a_manifest_that_can_not_be_read(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("shardwriter.storage.inputs.LocalInputs.read", refuse)
    for path in (dataset, dataset / "t", shard(dataset, 0), dataset / "t.manifest.json"):
        with pytest.raises(StorageError, match="permission denied") as caught:
            find_shard_sets([str(path)])
        assert caught.value.path == str(dataset / "t.manifest.json")


def test_a_folder_that_can_not_be_listed(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match="permission denied"):
        find_shard_sets([str(dataset)])


# -- unfinished runs -------------------------------------------------------------------------------


def test_an_unfinished_run_beside_it_is_told(dataset: Path) -> None:
    def of_runs(report: Report) -> list[str]:
        return [note for note in report.notes if " of 't' " in note]

    assert of_runs(sw.stats(str(dataset / "t"))) == []
    with RunDirectory.claim(str(dataset), "t", LocalStorage()) as run:
        assert of_runs(sw.stats(str(dataset / "t"))) == []
        run.begin({"job": "x"})
    for path in (dataset, dataset / "t", shard(dataset, 0)):
        for report in (sw.stats(str(path)), sw.verify(str(path))):
            assert report.verdict.startswith("OK")
            (note,) = of_runs(report)
            assert "there is an unfinished run of 't'" in note
    Path(run.path, "commit.json").touch()
    assert "was interrupted: run its write" in sw.stats(str(dataset / "t")).notes[0]
    (dataset / "t.manifest.json").unlink()
    with pytest.raises(ManifestError) as caught:
        sw.verify(str(dataset / "t"))
    assert "was interrupted" in (caught.value.hint or "")
    for s in range(N):
        shard(dataset, s).unlink()
    with pytest.raises(OptionError) as nothing:
        sw.stats(str(dataset / "t@2"))
    assert "was interrupted" in (nothing.value.hint or "")


# -- a dataset's manifest --------------------------------------------------------------------------


def test_a_manifest_is_loaded_by_any_name_of_its_dataset(tmp_path: Path) -> None:
    sw.write([b"x"] * 6, tmp_path / "o" / "t@4")
    names = ["o/t", "o/t@4", "o", "o/t.manifest.json", "o/t.tfrecord-00001-of-00004", "o/t.index"]
    for name in names:
        assert sw.load_manifest(tmp_path / name).num_records == 6


@pytest.mark.parametrize("name", ["o/u", "o/t@3", "o/u.manifest.json", "none/t"])
def test_a_manifest_that_is_not_there_is_an_error_with_advice(tmp_path: Path, name: str) -> None:
    sw.write([b"x"] * 6, tmp_path / "o" / "t@4")
    with pytest.raises(SourceError) as caught:
        sw.load_manifest(tmp_path / name)
    assert caught.value.hint


def test_shards_without_a_manifest_say_so(tmp_path: Path) -> None:
    record_file(tmp_path / "x.tfrecord")
    with pytest.raises(ManifestError, match="has no manifest"):
        sw.load_manifest(tmp_path / "x.tfrecord")
