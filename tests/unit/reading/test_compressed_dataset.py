"""Whole datasets of compressed shards: written, proven, indexed, shown, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import contextlib2
import numpy as np
import pytest
from paths import TESTS

import shardwriter as sw
from shardwriter.dataset.index import Index
from shardwriter.errors import CorruptFile, ManifestError, OptionError
from shardwriter.formats.compression import Compression, Deflate
from shardwriter.formats.crc32c import crc32c
from shardwriter.formats.tfrecord import NOTHING_WRITTEN, Written
from shardwriter.reading.show import read_some
from shardwriter.sources import shard_records as record_at
from shardwriter.sources.shard_records import Block, inflate_block
from shardwriter.storage.open_files import FilePool, FileState
from shardwriter.writing.index_files import make_index
from shardwriter.writing.journal import Snapshot
from shardwriter.writing.run_directory import RunDirectory

KINDS: list[Compression] = ["gzip", "zlib"]
SUFFIX = {"gzip": ".gz", "zlib": ""}
ROWS = 9_000


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def features(count: int = ROWS) -> list[dict[str, Any]]:
    """Return items of about 600 bytes, so that a shard of a few thousand has some members."""
    noise = np.arange(200, dtype=np.uint64) * 2654435761 % 97
    return [
        {"id": i, "blob": (noise * (i + 1) % 251).astype(np.uint8).tobytes() * 3}
        for i in range(count)
    ]


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("t.tfrecord-*"))


def ids(folder: Path, start: int = 0, count: int = ROWS) -> tuple[list[int], list[str]]:
    notes: list[str] = []
    shown = read_some(str(folder / "t"), start, count, notify=notes.append)
    return [int(record.features["id"][0]) for record in shown], notes


@pytest.mark.parametrize("deflate", ["isal-2", "zlib-6"])
@pytest.mark.parametrize(("count", "num_shards"), [(ROWS, 3), (1000, 70), (5, 7), (1, 1), (0, 2)])
def test_a_dataset_is_written_and_proven(
    tmp_path: Path, kind: Compression, deflate: Deflate, count: int, num_shards: int
) -> None:
    data = features(count)
    manifest = sw.write(data, tmp_path / f"t@{num_shards}", compression=kind, deflate=deflate)
    plain = sw.write(data, tmp_path / "plain" / f"t@{num_shards}")
    paths = shards(tmp_path)
    assert [path.name for path in paths] == manifest.pattern.shard_files
    assert all(path.name.endswith(f"-of-{num_shards:05d}{SUFFIX[kind]}") for path in paths)
    decompress = gzip.decompress if kind == "gzip" else zlib.decompress
    for path, other in zip(paths, shards(tmp_path / "plain"), strict=True):
        assert decompress(path.read_bytes()) == other.read_bytes()
    assert manifest.compression["type"] == kind
    assert manifest.compression["deflate"] == deflate
    assert [shard.crc32c for shard in manifest.shards] == [s.crc32c for s in plain.shards]
    for path, shard in zip(paths, manifest.shards, strict=True):
        assert shard.file_bytes == path.stat().st_size
        assert shard.file_crc32c == crc32c(path.read_bytes())
    assert sw.load_manifest(tmp_path / "t.manifest.json").dumps() == manifest.dumps()
    report = sw.verify(str(tmp_path / "t"))
    assert report.verdict.startswith(f"OK: {count:,} record")
    assert {scan.compression for scan in report.scans} == {kind}
    assert ids(tmp_path) == (list(range(count)), [])


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, kind: Compression) -> None:
    for name in ("a", "b"):
        sw.write(features(3000), tmp_path / name / "t@2", compression=kind)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


@pytest.mark.parametrize("deflate", ["isal-2", "zlib-6"])
def test_golden_compressed_shards(tmp_path: Path, kind: Compression, deflate: Deflate) -> None:
    """These bytes are a promise: they change only with a new version of the format."""
    if deflate == "zlib-6" and "ng" in zlib.ZLIB_RUNTIME_VERSION:
        pytest.skip("this Python has zlib-ng, which makes other bytes of its own")
    sw.write(features(7000), tmp_path / "t@2", compression=kind, deflate=deflate)
    golden = json.loads((TESTS / "golden" / "golden_compressed.json").read_text())
    assert digest(tmp_path) == golden[f"{kind} {deflate}"]


def test_gz_in_the_name_is_enough(tmp_path: Path) -> None:
    a = sw.write(features(10), tmp_path / "a" / "t@2.gz")
    b = sw.write(features(10), tmp_path / "b" / "t@2", compression="gzip")
    assert a.dumps() == b.dumps()
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_items_without_a_record_are_gaps(tmp_path: Path, kind: Compression) -> None:
    gone = {5, 6, 700}
    sw.write(
        features(2000),
        tmp_path / "t@3",
        compression=kind,
        map=lambda f: sw.SKIP if f["id"] in gone else f,
    )
    assert ids(tmp_path)[0] == [i for i in range(2000) if i not in gone]
    assert sw.verify(str(tmp_path / "t")).num_defects == 0


# -- the index -------------------------------------------------------------------------------------


def test_the_index_has_the_members_and_is_made_again(tmp_path: Path, kind: Compression) -> None:
    manifest = sw.write(features(), tmp_path / "t@2", compression=kind)
    index = Index(tmp_path / "t.index")
    assert index.compression == kind
    assert index.counts.min() >= 2
    for shard, path in enumerate(shards(tmp_path)):
        tail = 6 if kind == "zlib" else 0
        assert index.ends(shard)[-1] == path.stat().st_size - tail
        assert index.num_records(shard) == manifest.shards[shard].num_records
    del index
    before = (tmp_path / "t.index").read_bytes()
    (tmp_path / "t.index").unlink()
    assert [finding.kind for finding in sw.verify(str(tmp_path / "t")).findings] == ["index"]
    shown, notes = ids(tmp_path, 4321, 3)
    assert shown == [4321, 4322, 4323]
    assert "index file can not be used" in notes[0]
    assert make_index(str(tmp_path / "t"))["num_records"] == ROWS
    assert (tmp_path / "t.index").read_bytes() == before


@pytest.mark.parametrize("num_shards", [1, 3, 70])
def test_the_index_of_any_number_of_shards_is_made_again(
    tmp_path: Path, kind: Compression, num_shards: int
) -> None:
    sw.write(features(150), tmp_path / f"t@{num_shards}", compression=kind)
    before = (tmp_path / "t.index").read_bytes()
    (tmp_path / "t.index").write_bytes(b"")
    make_index(str(tmp_path / "t"))
    assert (tmp_path / "t.index").read_bytes() == before


def test_a_record_is_read_without_what_is_in_front_of_it(
    tmp_path: Path, kind: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    sw.write(features(), tmp_path / "t@2", compression=kind)
    index = Index(tmp_path / "t.index")
    first = int(index.ends(0)[0])
    path = shards(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(bytes(first) + data[first:])  # nothing can be read from its beginning
    opened = []

    def counted(data: bytes, *arguments: Any) -> Block:
        opened.append(len(data))
        return inflate_block(data, *arguments)

    monkeypatch.setattr(record_at, "inflate_block", counted)
    late = ROWS - 40
    assert ids(tmp_path, late, 40) == (list(range(late, ROWS)), [])
    assert len(opened) == 2  # one member of each shard, and each of them once
    with pytest.raises(CorruptFile) as caught:
        ids(tmp_path, 0, 1)
    assert caught.value.path == str(path)


def test_an_index_of_another_file_is_not_believed(tmp_path: Path, kind: Compression) -> None:
    sw.write(features(), tmp_path / "t@1", compression=kind)
    path = shards(tmp_path)[0]
    states = [FileState.of(path.stat())]

    def read(index_file: str, position: int) -> int:
        index = Index(tmp_path / index_file)
        reader = record_at.RecordReader(index, FilePool([str(path)], states))
        return int(sw.decode_example(reader.payload(0, position))["id"][0])

    assert read("t.index", 77) == 77
    with pytest.raises(ManifestError, match="no record 9000"):
        read("t.index", ROWS)
    numbers = np.frombuffer((tmp_path / "t.index").read_bytes(), "<i8")
    num_members = int(Index(tmp_path / "t.index").counts[0])
    for change in (-1, 1):
        wrong = numbers.copy()
        wrong[5 + num_members] += change  # records of the first member
        (tmp_path / "wrong.index").write_bytes(wrong.tobytes())
        with pytest.raises(CorruptFile, match="does not match its index"):
            read("wrong.index", 77)
        wrong = numbers.copy()
        wrong[5] += change  # where it ends: what is whole in it is proven by its own CRC
        (tmp_path / "wrong.index").write_bytes(wrong.tobytes())
        if kind == "gzip":
            assert read("wrong.index", 77) == 77
        else:
            with pytest.raises(CorruptFile):
                read("wrong.index", 77)


# -- what verify finds -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", [5, 17, 1000, -5])
def test_a_changed_byte_is_found(tmp_path: Path, kind: Compression, at: int) -> None:
    sw.write(features(3000), tmp_path / "t@1", compression=kind)
    path = shards(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)
    assert sw.verify(str(tmp_path / "t")).num_defects > 0


def test_the_same_records_compressed_into_other_bytes_are_found(
    tmp_path: Path, kind: Compression
) -> None:
    sw.write(features(50), tmp_path / "t@1", compression=kind)
    path = shards(tmp_path)[0]
    data = bytearray(path.read_bytes())
    if kind == "gzip":
        data[4] = 1  # a time
    else:
        data[:2] = b"\x78\x01"  # another level
    path.write_bytes(data)
    assert [finding.kind for finding in sw.verify(str(tmp_path / "t")).findings] == ["other-bytes"]


@pytest.mark.parametrize("members", [1, 2])
def test_a_shard_without_its_last_members_is_found(tmp_path: Path, members: int) -> None:
    sw.write(features(), tmp_path / "t@1", compression="gzip")
    ends = Index(tmp_path / "t.index").ends(0)
    os.truncate(shards(tmp_path)[0], int(ends[-1 - members]))
    left = sum(1 for _ in sw.read_records(shards(tmp_path)[0]))
    assert 0 < left < ROWS
    finding = sw.verify(str(tmp_path / "t")).findings[0]
    assert (finding.kind, finding.record_index) == ("record-count", left)


# -- the other ways to write -----------------------------------------------------------------------


def test_pushed_records_can_be_compressed(tmp_path: Path, kind: Compression) -> None:
    payloads = [sw.encode_example(f) for f in features(5000)]
    with sw.open_writer(tmp_path / "t@2", compression=kind) as writer:
        for payload in payloads:
            writer.write(payload)
    assert sw.verify(str(tmp_path / "t")).verdict.startswith("OK: 5,000 records")
    assert writer.manifest is not None
    written = sw.write(payloads, tmp_path / "written" / "t@2", compression=kind)
    assert [s.file_crc32c for s in written.shards] == [
        s.file_crc32c for s in writer.manifest.shards
    ]
    with sw.open_writer(tmp_path / "other" / "t@2") as other:
        other.write(b"x")
    assert other.manifest is not None
    assert other.manifest.job != writer.manifest.job


def test_the_recipe_takes_gz_in_the_name(tmp_path: Path) -> None:
    with contextlib2.ExitStack() as stack:
        writers = sw.open_sharded_writers(stack, tmp_path / "t@2.gz")
        for i in range(5):
            writers[i % 2].write(b"record %d" % i)
            writers[i % 2].flush()
    manifest = sw.load_manifest(tmp_path / "t.manifest.json")
    assert manifest.compression["type"] == "gzip"
    assert sw.verify(str(tmp_path / "t")).num_defects == 0


def test_a_compressed_dataset_is_copied_in_reading_order(tmp_path: Path, kind: Compression) -> None:
    sw.write(features(500), tmp_path / "a" / "t@3", compression=kind)
    sw.write(str(tmp_path / "a" / "t"), tmp_path / "b" / "t@3", compression=kind)
    assert [p.read_bytes() for p in shards(tmp_path / "a")] == [
        p.read_bytes() for p in shards(tmp_path / "b")
    ]


def test_other_compressions_of_a_name_replace_each_other(tmp_path: Path) -> None:
    sw.write(features(9), tmp_path / "t@2", run=sw.RunOptions(dali_index=True))
    for compression in ("gzip", "zlib", "none"):
        with pytest.raises(sw.UsageError, match="exists already"):
            sw.write(features(9), tmp_path / "t@2", compression=compression)
        run = sw.RunOptions(overwrite=True)
        manifest = sw.write(features(9), tmp_path / "t@2", compression=compression, run=run)
        assert [p.name for p in shards(tmp_path)] == manifest.pattern.shard_files
        assert sw.verify(str(tmp_path / "t")).num_defects == 0


@pytest.mark.parametrize(
    "run", [sw.RunOptions(dali_index=True), sw.RunOptions(backend="tensorflow")]
)
def test_what_only_plain_shards_have_is_refused_before_anything_is_written(
    tmp_path: Path, kind: Compression, run: sw.RunOptions
) -> None:
    with pytest.raises(OptionError, match="plain shards only"):
        sw.write(features(9), tmp_path / "t@2", compression=kind, run=run)
    assert list(tmp_path.iterdir()) == []


def test_lost_readers_are_noted(tmp_path: Path) -> None:
    for compression, count in (("none", 0), ("gzip", 1), ("zlib", 2)):
        notes: list[str] = []
        out = tmp_path / f"{compression}@2"
        sw.write(features(9), out, compression=compression, notify=notes.append)
        assert len(notes) == count


def test_a_checkpoint_notes_whole_members(
    tmp_path: Path, kind: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[Written] = []

    def look(_run: RunDirectory, _attempt: int, _worker: int, snapshot: Snapshot) -> None:
        assert snapshot.is_synced
        noted.append(snapshot.open_shards[0])

    monkeypatch.setattr(RunDirectory, "write_snapshot", look)
    run = sw.RunOptions(checkpoint_bytes=1 << 19, mark_s=1e9)
    sw.write(features(), tmp_path / "t@2", compression=kind, run=run)
    assert len(noted) > 5
    if kind == "zlib":  # its checksum needs all that is in front: nobody can go on with it
        assert set(noted) == {NOTHING_WRITTEN}
        return
    index = Index(tmp_path / "t.index")
    data = shards(tmp_path)[0].read_bytes()
    for written in noted:
        end = int(index.ends(0)[written.num_pieces - 1]) if written.num_pieces else 0
        assert written.file_bytes == end
        assert written.file_crc32c == crc32c(data[:end])
        stream = gzip.decompress(data[:end]) if end else b""
        assert (written.stream_bytes, written.crc32c) == (len(stream), crc32c(stream))
        assert written.num_records == sum(
            index.locate(0, k).end <= end for k in range(index.num_records(0))
        )
    assert len({written.file_bytes for written in noted}) > 1


# -- the command -----------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "shardwriter", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=True)


def test_the_command_writes_compressed_shards(tmp_path: Path, kind: Compression) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(100)))
    out = tmp_path / "out" / "t@2"
    options = ["--compression", kind, "--deflate", "zlib-6"]
    planned = json.loads(command("write", table, out, *options, "--dry-run", "--json").stdout)
    wanted = {"deflate": "zlib-6", "member_bytes": 1 << 20, "type": kind}
    assert planned["compression"] == wanted
    assert planned["files"].endswith(f"-of-00002{SUFFIX[kind]}")
    text = command("write", table, out, *options, "--dry-run")
    assert f"before {kind}" in text.stdout
    assert "DALI" in text.stderr
    done = command("write", table, out, *options)
    assert "DALI" in done.stderr
    assert sw.load_manifest(tmp_path / "out" / "t.manifest.json").compression == wanted
    assert command("verify", tmp_path / "out" / "t").stdout.splitlines()[-1].startswith("OK: 100")
    shown = json.loads(command("show", tmp_path / "out" / "t", "--start", 42, "--json").stdout)
    assert shown["features"]["a"] == [42]
