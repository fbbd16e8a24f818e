"""Index files made to hurt, with a manifest that vouches for them and without one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile import attempt, check_all, check_memory, each_command, make_dataset
from numpy.typing import NDArray

import shardwriter as sw
from shardwriter.errors import ManifestError
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.writing.index_files import open_index

_HEAD = 4  # magic, N, kind, gaps
BIG = 2**63


@pytest.fixture(scope="module", params=["none", "gzip"])
def good(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return make_dataset(folder, "--compression", request.param)


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "d")
    return tmp_path / "d"


def index_path(folder: Path) -> Path:
    return folder / "in" / "t.index"


def vouch(folder: Path) -> None:
    """Have the manifest say that the index is its own."""
    path, data = folder / "in" / "t.manifest.json", index_path(folder).read_bytes()
    manifest = json.loads(path.read_text())
    manifest["index"] |= {"crc32c": f"{extend_crc32c(0, data):08x}", "file_bytes": len(data)}
    path.write_text(json.dumps(manifest))


def numbered(edit: Callable[[NDArray[np.uint64]], None]) -> Callable[[bytes], bytes]:
    """Return a change of an index's bytes from one of its numbers."""

    def changed(data: bytes) -> bytes:
        numbers = np.frombuffer(data, "<u8").copy()
        edit(numbers)
        return numbers.tobytes()

    return changed


def put(place: int, value: int) -> Callable[[bytes], bytes]:
    """Return a change of the number at a place; places below 0 count from the end."""

    def edit(numbers: NDArray[np.uint64]) -> None:
        numbers[place] = value

    return numbered(edit)


def swap_first(numbers: NDArray[np.uint64]) -> None:
    first = _HEAD + 3
    numbers[first], numbers[first + 1] = int(numbers[first + 1]), int(numbers[first])


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "its magic alone": lambda data: data[:8],
    "31 bytes": lambda data: data[:31],
    "another magic": lambda data: b"SWINDEX9" + data[8:],
    "a text": lambda data: b"0 100\n100 100\n",
    "zeros": lambda data: bytes(len(data)),
    "cut by a number": lambda data: data[:-8],
    "cut by a byte": lambda data: data[:-1],
    "cut in its head": lambda data: data[:40],
    "a number too many": lambda data: data + bytes(8),
    "a byte too many": lambda data: data + b"\0",
    "2^40 shards": put(1, 2**40),
    "2^63 shards": put(1, BIG),
    "no shards": put(1, 0),
    "two shards": put(1, 2),
    "an unknown kind": put(2, 7),
    "a kind of 2^64 - 1": put(2, 2**64 - 1),
    "2^61 gaps": put(3, 2**61),
    "2^64 - 1 gaps": put(3, 2**64 - 1),
    "a count of 2^40": put(_HEAD, 2**40),
    "a count of 2^63": put(_HEAD, BIG),
    "counts that overflow": numbered(lambda numbers: numbers.__setitem__(slice(4, 6), BIG)),
    "counts that are swapped": numbered(
        lambda numbers: numbers.__setitem__(slice(4, 7), numbers[[6, 5, 4]])
    ),
    "the first offset 0": put(_HEAD + 3, 0),
    "the first offset 2^63": put(_HEAD + 3, BIG),
    "the first offset 2^64 - 1": put(_HEAD + 3, 2**64 - 1),
    "the first offset behind the file": put(_HEAD + 3, 10**9),
    "offsets that go back": numbered(swap_first),
    "a gap of 2^63": put(-1, BIG),
    "gaps that go back": put(-1, 0),
}


@each_command
@pytest.mark.parametrize("vouched", [True, False], ids=["vouched", "lone"])
@pytest.mark.parametrize("case", BROKEN)
def test_a_hostile_index_hurts_no_command(
    folder: Path, case: str, vouched: bool, is_full: bool
) -> None:
    index_path(folder).write_bytes(BROKEN[case](index_path(folder).read_bytes()))
    if vouched:
        vouch(folder)
    else:
        (folder / "in" / "t.manifest.json").unlink()
    answers = check_all(folder, drawn_by=None if is_full else f"{case} {vouched}")
    if vouched and not (case == "counts that are swapped" and answers["verify"][0] == 0):
        assert answers["verify"][0] == 1
    assert answers["open"][0] in (0, 1)


@pytest.mark.parametrize("case", ["2^40 shards", "the first offset 2^63", "2^61 gaps"])
def test_a_hostile_index_takes_no_memory(folder: Path, case: str) -> None:
    index_path(folder).write_bytes(BROKEN[case](index_path(folder).read_bytes()))
    vouch(folder)
    check_memory(folder)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return make_dataset(tmp_path)


@pytest.mark.parametrize("shift", [1, -1, 17])
def test_verify_finds_every_offset_that_is_wrong(plain: Path, shift: int) -> None:
    numbers = np.frombuffer(index_path(plain).read_bytes(), "<u8").copy()
    at = _HEAD + 3 + 6 + 2  # record 2 of shard 1, behind 6 records of shard 0
    right = int(numbers[at])
    assert attempt(["verify", str(plain / "in" / "t")])[0] == 0
    numbers[at] = right + shift
    index_path(plain).write_bytes(numbers.tobytes())
    vouch(plain)
    report = sw.verify(plain / "in" / "t")
    (finding,) = report.sets[0].findings
    assert (finding.kind, finding.path) == ("index", str(index_path(plain)))
    assert (finding.shard_index, finding.record_index) == (1, 2)
    assert finding.detail == (
        f"record 2 of shard 1 ends at offset {right:,}, not {right + shift:,}"
    )


def test_an_offset_behind_the_file_is_named_and_not_read(plain: Path) -> None:
    numbers = np.frombuffer(index_path(plain).read_bytes(), "<u8").copy()
    numbers[_HEAD + 3 + 1] = 10**15
    index_path(plain).write_bytes(numbers.tobytes())
    vouch(plain)
    manifest = sw.load_manifest(plain / "in" / "t")
    with pytest.raises(ManifestError, match="record 1 of shard 0 ends at") as caught:
        open_index(str(plain / "in"), manifest)
    assert caught.value.path == str(index_path(plain))
    assert (caught.value.shard, caught.value.record_index) == (0, 1)
    with sw.open(plain / "in" / "t") as data:  # an index is made in memory
        assert [item["a"] for item in data][:4] == [0, 1, 2, 3]
        assert any("record 1 of shard 0" in note for note in data.notes)


def test_a_record_that_is_not_where_the_index_says_names_the_index(plain: Path) -> None:
    numbers = np.frombuffer(index_path(plain).read_bytes(), "<u8").copy()
    numbers[_HEAD + 3] += 1
    index_path(plain).write_bytes(numbers.tobytes())
    vouch(plain)
    with sw.open(plain / "in" / "t") as data, pytest.raises(sw.DataError) as caught:
        data[0]
    assert str(index_path(plain)) in str(caught.value)
    assert caught.value.record_index == 0


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_the_index_of_many_records_is_proven(tmp_path: Path, compression: str) -> None:
    items = [{"a": i, "b": bytes(i % 5000)} for i in range(3000)]
    sw.write(items, tmp_path / "t@2", compression=compression, workers=1)
    assert sw.verify(tmp_path / "t").num_defects == 0
    path = tmp_path / "t.index"
    numbers = np.frombuffer(path.read_bytes(), "<u8").copy()
    count, columns = int(numbers[_HEAD]), 1 if compression == "none" else 2
    assert count > 2
    for column in range(columns):
        changed = numbers.copy()
        changed[_HEAD + 2 + column * count + 1] += 1
        (tmp_path / "in").mkdir(exist_ok=True)
        for file in tmp_path.glob("t.*"):
            shutil.copy(file, tmp_path / "in" / file.name)
        (tmp_path / "in" / "t.index").write_bytes(changed.tobytes())
        vouch(tmp_path)
        (finding,) = sw.verify(tmp_path / "in" / "t").sets[0].findings
        assert finding.kind == "index"
        assert finding.shard_index == 0
