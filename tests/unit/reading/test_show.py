"""Records as `show` gives them: in reading order, with and without an index that can be used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import CorruptFile, OptionError, SourceChanged
from shardwriter.reading.show import read_some

COUNT, N = 26, 4


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of 26 records of 100 bytes in 4 shards."""
    sw.write([bytes([i]) * 100 for i in range(COUNT)], tmp_path / "t@4")
    return tmp_path


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 20 shards are open at once."""
    monkeypatch.setattr("shardwriter.reading.show._MAX_OPEN", 20)


def shard(folder: Path, index: int) -> Path:
    return folder / f"t.tfrecord-{index:05d}-of-00004"


def without_manifest(folder: Path) -> None:
    (folder / "t.manifest.json").unlink()
    (folder / "t.index").unlink()


def numbers(folder: Path, start: int, count: int) -> list[int]:
    return [r.index for r in read_some(str(folder / "t"), start, count)]


@pytest.mark.parametrize("with_index", [True, False])
def test_records_are_shown_in_reading_order(tmp_path: Path, with_index: bool) -> None:
    data = [{"x": i} for i in range(COUNT)]
    sw.write(data, tmp_path / "t@4", map=lambda f: sw.SKIP if f["x"] in (2, 3, 7) else f)
    if not with_index:
        (tmp_path / "t.index").unlink()
    wanted = [i for i in range(COUNT) if i not in (2, 3, 7)]
    shown = list(read_some(str(tmp_path / "t"), 0, 100))
    assert [int(r.features["x"][0]) for r in shown] == wanted
    assert [r.index for r in shown] == list(range(len(wanted)))
    tail = list(read_some(str(tmp_path / "t"), 20, 2))
    assert [int(r.features["x"][0]) for r in tail] == wanted[20:22]
    assert list(read_some(str(tmp_path / "t"), 23, 2)) == []


def test_sets_of_others_are_shown_one_record_of_each_shard_in_turn(dataset: Path) -> None:
    without_manifest(dataset)
    shown = list(read_some(str(dataset / "t"), 3, 6))
    assert [(r.path, r.record_index) for r in shown] == [
        (str(shard(dataset, s)), place)
        for s, place in [(3, 0), (0, 1), (1, 1), (2, 1), (3, 1), (0, 2)]
    ]
    assert {r.kind for r in shown} == {"other"}


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 40), st.integers(1, 9))
def test_any_uneven_shards_are_read_in_turn(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], start: int, count: int
) -> None:
    folder = tmp_path_factory.mktemp("uneven")
    for s, length in enumerate(lengths):
        with sw.TFRecordWriter(folder / f"t-{s:05d}-of-{len(lengths):05d}") as writer:
            for place in range(length):
                writer.write(b"x" * (s + 1) * (place + 1))
    expected = [
        (s, place)
        for place in range(max(lengths))
        for s in range(len(lengths))
        if place < lengths[s]
    ]
    shown = list(read_some(str(folder / "t"), start, count))
    assert [(int(r.path[-14:-9]), r.record_index) for r in shown] == expected[start : start + count]
    assert all(
        r.payload_bytes == (s + 1) * (place + 1)
        for r, (s, place) in zip(shown, expected[start:], strict=False)
    )
    shutil.rmtree(folder)


def test_one_shard_of_a_dataset_is_shown_alone(dataset: Path) -> None:
    shown = list(read_some(str(shard(dataset, 2)), 1, 2))
    assert [(r.index, r.record_index) for r in shown] == [(1, 1), (2, 2)]
    assert {r.path for r in shown} == {str(shard(dataset, 2))}


def smaller(folder: Path) -> None:
    sw.write([b"y" * 10] * 5, folder / "u@4")
    shutil.copy(folder / "u.index", folder / "t.index")


def same_size(folder: Path) -> None:
    data = bytearray((folder / "t.index").read_bytes())
    data[80] ^= 1
    (folder / "t.index").write_bytes(data)


def a_folder(folder: Path) -> None:
    (folder / "t.index").unlink()
    (folder / "t.index").mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        smaller,
        same_size,
        a_folder,
        lambda folder: (folder / "t.index").write_bytes(b""),
        lambda folder: (folder / "t.index").unlink(),
    ],
    ids=["smaller", "same-size", "folder", "empty", "missing"],
)
def test_an_index_of_another_manifest_is_not_used_and_noted(
    dataset: Path, damage: Callable[[Path], None]
) -> None:
    damage(dataset)
    notes: list[str] = []
    shown = list(read_some(str(dataset / "t"), 21, 3, notify=notes.append))
    assert [(r.index, r.payload_bytes) for r in shown] == [(21, 100), (22, 100), (23, 100)]
    assert [r.record_index for r in shown] == [5, 5, 5]
    assert len(notes) == 1
    assert "the index file can not be used" in notes[0]


def test_a_good_index_is_worth_no_word(dataset: Path) -> None:
    assert len(list(read_some(str(dataset / "t"), 0, 2, notify=pytest.fail))) == 2


def test_a_damaged_record_is_not_shown(dataset: Path) -> None:
    data = bytearray(shard(dataset, 0).read_bytes())
    data[116 + 20] ^= 1
    shard(dataset, 0).write_bytes(data)
    for _ in range(2):
        with pytest.raises(CorruptFile, match="CRC") as caught:
            list(read_some(str(dataset / "t"), 4, 1))
        assert (caught.value.record_index, caught.value.offset) == (1, 116)
        assert len(list(read_some(str(dataset / "t"), 1, 3))) == 3
        (dataset / "t.index").unlink(missing_ok=True)


def test_a_shard_that_is_too_short_is_an_error(dataset: Path) -> None:
    shard(dataset, 1).write_bytes(shard(dataset, 1).read_bytes()[:116])
    for _ in range(2):
        with pytest.raises(CorruptFile):
            list(read_some(str(dataset / "t"), 5, 1))
        (dataset / "t.index").unlink(missing_ok=True)


def test_a_shard_that_is_gone_meanwhile(dataset: Path) -> None:
    records = read_some(str(dataset / "t"), 0, 2)
    next(records)
    shard(dataset, 1).unlink()
    with pytest.raises(SourceChanged) as caught:
        next(records)
    assert caught.value.path == str(shard(dataset, 1))


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("compress", [False, True])
def test_more_shards_than_files_may_be_open(tmp_path: Path, compress: bool) -> None:
    for s in range(60):
        path = tmp_path / f"t-{s:05d}-of-00060"
        with sw.TFRecordWriter(path) as writer:
            for place in range(5):
                writer.write(bytes([s]) * (place + 1))
        if compress:
            path.write_bytes(zlib.compress(path.read_bytes()))
    shown = list(read_some(str(tmp_path / "t"), 170, 130))
    assert [(int(r.path[-14:-9]), r.record_index) for r in shown] == [
        (n % 60, n // 60) for n in range(170, 300)
    ]
    assert [r.payload_bytes for r in shown] == [n // 60 + 1 for n in range(170, 300)]
    assert numbers(tmp_path, 0, 1) == [0]


def test_the_limit_of_open_files_is_respected(tmp_path: Path) -> None:
    for s in range(150):
        with sw.TFRecordWriter(tmp_path / f"t-{s:05d}-of-00150") as writer:
            for _ in range(3):
                writer.write(b"abcd")
    command = f"ulimit -n 100; {sys.executable} -m shardwriter show {tmp_path / 't'} --start 400"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "record 400" in done.stdout


@pytest.mark.usefixtures("few_files")
def test_damage_behind_a_shard_that_was_opened_again_is_where_it_is(tmp_path: Path) -> None:
    for s in range(60):
        with sw.TFRecordWriter(tmp_path / f"t-{s:05d}-of-00060") as writer:
            for _ in range(3):
                writer.write(b"abcd")
    path = tmp_path / "t-00007-of-00060"
    data = bytearray(path.read_bytes())
    data[2 * 20 + 13] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile) as caught:
        list(read_some(str(tmp_path / "t"), 0, 1000))
    assert (caught.value.path, caught.value.record_index, caught.value.offset) == (str(path), 2, 40)


def test_several_datasets_are_asked_about(dataset: Path) -> None:
    sw.write([b"x"], dataset / "u@1")
    with pytest.raises(OptionError, match="2 datasets"):
        list(read_some(str(dataset)))


def test_the_command_says_on_stderr_that_the_index_was_not_used(dataset: Path) -> None:
    smaller(dataset)
    command = [sys.executable, "-m", "shardwriter", "show", str(dataset / "t"), "--start", "25"]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["index"] == 25
    assert done.stderr.startswith("note: the index file can not be used")


def test_a_start_after_the_end_is_an_error_with_the_number_of_records(dataset: Path) -> None:
    def said() -> str:
        result = CliRunner().invoke(app, ["show", str(dataset / "t"), "--start", "999999"])
        assert result.exit_code == 2
        return result.stderr

    with_manifest = said()
    assert "no record 999,999: the dataset has 26 records, numbered from 0" in with_manifest
    assert "--start 25 shows the last one" in with_manifest
    without_manifest(dataset)
    assert said() == with_manifest


def test_numbers_are_shown_with_all_digits_that_they_have(tmp_path: Path) -> None:
    sw.write(
        [{"a": 1700000001.25, "b": 16777215.0, "c": 0.1, "d": 2**62}],
        tmp_path / "t@1",
        schema="a=float64",
    )
    result = CliRunner().invoke(app, ["show", str(tmp_path / "t")])
    for number in ("1700000001.25", "1.6777215e+07", "0.1 ", str(2**62)):
        assert number in result.stdout
