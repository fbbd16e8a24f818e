"""Making an index from shards that lie there, and what stops it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.dataset.index import Index
from shardwriter.errors import ManifestError, OptionError, OutputBusy, StorageError
from shardwriter.formats.compression import Compression
from shardwriter.formats.tfrecord import frame
from shardwriter.storage import LocalStorage
from shardwriter.writing import publication
from shardwriter.writing.index_files import make_index, open_index
from shardwriter.writing.journal import Base
from shardwriter.writing.run_directory import RunDirectory

COUNT, N = 26, 4


def shard(folder: Path, index: int) -> Path:
    return folder / f"t.tfrecord-{index:05d}-of-00004"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_index_of_the_write_is_made_again(dataset: Path) -> None:
    before = (dataset / "t.index").read_bytes()
    files = names(dataset)
    (dataset / "t.index").unlink()
    made = make_index(str(dataset / "t"))
    assert (made["num_records"], made["idx"]) == (COUNT, [])
    assert made["index"] == str(dataset / "t.index")
    assert (dataset / "t.index").read_bytes() == before
    assert names(dataset) == files  # no lock, no run directory


def test_idx_files_are_those_of_the_write(dataset: Path, tmp_path: Path) -> None:
    made = make_index(str(dataset / "t"), dali=True)
    assert len(made["idx"]) == N
    assert Path(made["idx"][0]).read_text().splitlines()[:2] == ["0 116", "116 116"]


def test_gaps_are_in_the_index(tmp_path: Path) -> None:
    data = [{"x": i} for i in range(9)]
    sw.write(data, tmp_path / "t@4", map=lambda f: sw.SKIP if f["x"] in (2, 3) else f)
    before = (tmp_path / "t.index").read_bytes()
    (tmp_path / "t.index").write_bytes(b"")
    make_index(str(tmp_path / "t"))
    assert (tmp_path / "t.index").read_bytes() == before


def test_an_index_for_shards_of_others(tmp_path: Path) -> None:
    with sw.TFRecordWriter(tmp_path / "x.tfrecord-00000-of-00001") as writer:
        writer.write(b"abc")
    make_index(str(tmp_path / "x"))
    assert (tmp_path / "x.index").stat().st_size == 8 * 6


def test_an_index_is_not_made_from_damaged_shards(dataset: Path) -> None:
    before = (dataset / "t.index").read_bytes()
    shard(dataset, 0).write_bytes(shard(dataset, 0).read_bytes()[: 2 * 116])
    with pytest.raises(ManifestError):
        make_index(str(dataset / "t"))
    shard(dataset, 0).write_bytes(shard(dataset, 0).read_bytes()[:-1])
    with pytest.raises(sw.DataError):
        make_index(str(dataset / "t"))
    assert (dataset / "t.index").read_bytes() == before
    assert not (dataset / ".t.partial").exists()


@pytest.mark.parametrize("missing", [False, True])
def test_an_index_needs_all_shards(dataset: Path, missing: bool) -> None:
    (dataset / "t.manifest.json").unlink()
    if missing:
        shard(dataset, 1).unlink()
    with pytest.raises(ManifestError, match="shards are missing"):
        make_index(str(dataset / "t" if missing else shard(dataset, 1)))


ABC = b"".join(map(frame, [b"a", b"b" * 30, b"c"]))


@pytest.mark.parametrize("name", ["x-00000-of-00001", "x.tfrecord-00000-of-00001.gz"])
def test_an_index_of_the_members_of_a_foreign_gzip_file(tmp_path: Path, name: str) -> None:
    members = [gzip.compress(ABC), gzip.compress(frame(b"d"))]
    (tmp_path / name).write_bytes(b"".join(members))
    assert make_index(str(tmp_path / "x"))["num_records"] == 4
    index = Index(tmp_path / "x.index")
    end = len(members[0])
    assert (index.compression, index.ends(0).tolist()) == ("gzip", [end, end + len(members[1])])
    assert [index.locate(0, k).skip for k in range(4)] == [0, 1, 2, 0]


def test_members_that_cut_a_record_have_no_index(tmp_path: Path) -> None:
    name = "x.tfrecord-00000-of-00001.gz"
    (tmp_path / name).write_bytes(gzip.compress(ABC[:20]) + gzip.compress(ABC[20:]))
    with pytest.raises(ManifestError, match="cross the ends of gzip members") as caught:
        make_index(str(tmp_path / "x"))
    assert caught.value.path == str(tmp_path / name)
    assert names(tmp_path) == [name]


def flushed(pieces: list[bytes], mode: int) -> bytes:
    compressor = zlib.compressobj()
    blocks = [compressor.compress(piece) + compressor.flush(mode) for piece in pieces]
    return b"".join(blocks) + compressor.flush()


@pytest.mark.parametrize(
    "data",
    [
        zlib.compress(ABC),
        flushed([ABC, ABC], zlib.Z_SYNC_FLUSH),  # the second needs the first
        flushed([ABC[:20], ABC[20:]], zlib.Z_FULL_FLUSH)[:-6] + b"\x4b" + bytes(5),
    ],
    ids=["one piece", "not by itself", "broken"],
)
def test_a_zlib_stream_that_is_not_cut_into_blocks_has_no_index(
    tmp_path: Path, data: bytes
) -> None:
    name = "x-00000-of-00001"
    (tmp_path / name).write_bytes(data)
    with pytest.raises(sw.DataError) as caught:
        make_index(str(tmp_path / "x"))
    assert caught.value.path == str(tmp_path / name)
    assert names(tmp_path) == [name]


def test_blocks_of_a_foreign_zlib_file_that_cut_a_record_have_no_index(tmp_path: Path) -> None:
    data = flushed([ABC[:20], ABC[20:]], zlib.Z_FULL_FLUSH)
    (tmp_path / "x-00000-of-00001").write_bytes(data)
    with pytest.raises(ManifestError, match="cross the ends of zlib members"):
        make_index(str(tmp_path / "x"))


def test_shards_of_several_compressions_have_no_index(tmp_path: Path) -> None:
    (tmp_path / "x-00000-of-00002").write_bytes(ABC)
    (tmp_path / "x-00001-of-00002").write_bytes(gzip.compress(ABC))
    with pytest.raises(ManifestError, match="different compressions: gzip, none"):
        make_index(str(tmp_path / "x"))


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_idx_files_are_of_plain_shards_only(tmp_path: Path, compression: Compression) -> None:
    sw.write([b"abc"] * 3, tmp_path / "t@2", compression=compression)
    with pytest.raises(OptionError, match="for uncompressed shards only"):
        make_index(str(tmp_path / "t"), dali=True)
    assert not list(tmp_path.glob("*.idx"))


def test_a_dataset_that_is_being_written_is_left_alone(dataset: Path) -> None:
    before = (dataset / "t.index").stat().st_mtime_ns
    with RunDirectory.claim(str(dataset), "t", LocalStorage()) as run:
        with pytest.raises(OutputBusy):
            make_index(str(dataset / "t"))
        run.discard()
    assert (dataset / "t.index").stat().st_mtime_ns == before
    make_index(str(dataset / "t"))


def test_what_an_unfinished_run_left_stays(dataset: Path) -> None:
    with RunDirectory.claim(str(dataset), "t", LocalStorage()) as run:
        run.begin({"job": "x"})
        run.write_base(Base(gaps=[[3, 1]]))
        Path(run.path, "index").write_bytes(b"its own")
    files = names(dataset / ".t.partial")
    make_index(str(dataset / "t"))
    assert names(dataset / ".t.partial") == files
    assert (dataset / ".t.partial" / "index").read_bytes() == b"its own"


def test_a_publication_that_was_interrupted_is_finished_first(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_run: RunDirectory) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(publication, "roll_forward", stop)
        with pytest.raises(KeyboardInterrupt):
            sw.write([b"new"] * 3, dataset / "t@2", run=sw.RunOptions(overwrite=True))
    assert make_index(str(dataset / "t"))["num_records"] == 3
    assert sw.verify(str(dataset / "t")).verdict.startswith("OK: 3 records in 2 shards")
    assert not (dataset / ".t.partial").exists()


def test_an_index_that_is_a_folder(dataset: Path) -> None:
    (dataset / "t.index").unlink()
    (dataset / "t.index").mkdir()
    with pytest.raises(StorageError) as caught:
        make_index(str(dataset / "t"))
    assert str(dataset / "t.index") in str(caught.value)
    assert not (dataset / ".t.partial").exists()
    with pytest.raises(StorageError):
        open_index(str(dataset), sw.load_manifest(dataset / "t.manifest.json"))
    assert [f.kind for f in sw.verify(str(dataset / "t")).findings] == ["index"]


def test_a_shard_that_can_not_be_read(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shardwriter.writing.index_files.open_stream", refuse)
    with pytest.raises(StorageError, match="permission denied"):
        make_index(str(dataset / "t"))
