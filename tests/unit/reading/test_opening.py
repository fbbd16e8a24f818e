"""Opening datasets for reading: what is found, refused and noted."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.errors import CorruptFile, ManifestError, OptionError, SourceError, WireError
from shardwriter.formats.tfrecord import frame
from shardwriter.reading import opening
from shardwriter.sources import shard_records as frame_hops
from shardwriter.sources.shard_records import scan_frame_ends

GAPS = (0, 5, 6, 17, 18, 19)


def write(folder, count=40, num_shards=4, gaps=(), name="t", **options):
    rows = [{"id": i, "name": f"n{i}", "blob": bytes([i % 251]) * (i % 7)} for i in range(count)]
    return sw.write(
        rows,
        folder / f"{name}@{num_shards}",
        map=(lambda row: sw.SKIP if row["id"] in gaps else row) if gaps else None,
        **options,
    )


def ids(dataset):
    return [int(row["id"]) for row in dataset]


def raw_shards(folder, counts, name="x", suffix="", pack=bytes):
    """Write shards alone, record ``(shard, position)`` as text, and return it in turn."""
    folder.mkdir(exist_ok=True)
    for shard, count in enumerate(counts):
        file = f"{name}.tfrecord-{shard:05d}-of-{len(counts):05d}{suffix}"
        data = b"".join(frame(f"{shard} {position}".encode()) for position in range(count))
        (folder / file).write_bytes(pack(data))
    turns = range(max(counts))
    return [
        f"{shard} {turn}".encode() for turn in turns for shard, n in enumerate(counts) if n > turn
    ]


def shard(folder, number):
    return sorted(Path(folder).glob("*.tfrecord-*"))[number]


# -- ours ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
@pytest.mark.parametrize("gaps", [(), GAPS])
@pytest.mark.parametrize("index", ["there", "missing", "damaged", "of another"])
def test_a_dataset_with_a_manifest(tmp_path, compression, gaps, index):
    manifest = write(tmp_path, gaps=gaps, compression=compression)
    path = tmp_path / "t.index"
    if index == "missing":
        path.unlink()
    elif index == "damaged":
        path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    elif index == "of another":
        write(tmp_path / "other", 44, compression=compression)
        path.write_bytes((tmp_path / "other" / "t.index").read_bytes())
    notes = []
    with sw.open(tmp_path / "t", notify=notes.append) as dataset:
        expected = [i for i in range(40) if i not in gaps]
        assert ids(dataset) == expected == ids(dataset)
        assert len(dataset) == dataset.num_source_records == manifest.num_records
        assert [dataset.source_index(row) for row in range(len(dataset))] == expected
        assert [int(dataset[row]["id"]) for row in reversed(range(len(dataset)))] == expected[::-1]
        assert dataset.manifest.dumps() == manifest.dumps()
        assert dataset.identity.startswith("manifest:")
        assert dataset.identity == dataset.raw().identity != dataset[1:].identity
        assert dataset.name == "t"
        assert dataset.num_shards == 4
        assert set(dataset.features) == {"id", "name", "blob"}
        assert dataset[3]["name"] == f"n{expected[3]}"
    if index == "there":
        assert notes == []
    else:
        assert len(notes) == 1
        assert "`shardwriter index` writes the file again" in notes[0]
    assert tuple(notes) == dataset.notes


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_an_index_without_its_manifest_knows_the_gaps(tmp_path, compression):
    write(tmp_path, gaps=GAPS, compression=compression)
    (tmp_path / "t.manifest.json").unlink()
    dataset = sw.open(tmp_path / "t", decode=False)
    expected = [i for i in range(40) if i not in GAPS]
    assert [int(sw.decode_example(payload)["id"][0]) for payload in dataset] == expected
    assert dataset.source_index(0) == 1
    assert dataset.manifest is None
    assert dataset.features == {}
    assert "order of records is taken from the index" in dataset.notes[0]
    assert dataset.identity == sw.open(tmp_path / "t").identity
    assert dataset.identity.startswith("index:")
    # One that does not fit is not believed.
    write(tmp_path / "other", 40, compression=compression)
    (tmp_path / "t.index").write_bytes((tmp_path / "other" / "t.index").read_bytes())
    assert "no manifest, so the records were" in sw.open(tmp_path / "t").notes[0]


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_a_damaged_index_without_its_manifest_is_not_used(tmp_path, compression):
    write(tmp_path, 400, gaps=GAPS, compression=compression)
    (tmp_path / "t.manifest.json").unlink()
    path = tmp_path / "t.index"
    numbers = np.frombuffer(path.read_bytes(), "<u8").copy()
    first = 4 + 4  # magic, N, kind, gaps, counts
    places = [first, first + 1] if compression != "none" else [first, first + 7, first + 100]
    for place in (*places, len(numbers) - 2):
        for bit in (3, 30, 50, 63):
            wrong = numbers.copy()
            wrong[place] ^= np.uint64(1 << bit)
            path.write_bytes(wrong.tobytes())
            dataset = sw.open(tmp_path / "t", decode=False)
            try:
                assert sorted(dataset) == sorted(dataset[i] for i in range(len(dataset)))
                assert len(dataset) == 400 - len(GAPS)
            except CorruptFile as error:  # an offset that is only a little off
                assert bit == 3
                assert error.record_index is not None


@pytest.mark.parametrize("number", [0, 3])
def test_a_shard_of_another_size_is_refused(tmp_path, number):
    write(tmp_path)
    path = shard(tmp_path, number)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ManifestError, match=r"bytes, and the manifest says") as caught:
        sw.open(tmp_path / "t")
    assert caught.value.path == str(path)
    assert "verify" in caught.value.hint


def test_several_shards_of_other_sizes_are_one_line(tmp_path):
    write(tmp_path)
    for number in (1, 2):
        shard(tmp_path, number).write_bytes(b"")
    with pytest.raises(ManifestError, match="; 2 shards differ"):
        sw.open(tmp_path / "t")


def test_a_missing_shard_is_refused(tmp_path):
    write(tmp_path)
    shard(tmp_path, 2).unlink()
    with pytest.raises(SourceError, match="1 of 4 shards are missing: 2"):
        sw.open(tmp_path / "t")


def test_without_an_index_a_damaged_header_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "t.index").unlink()
    path = shard(tmp_path, 1)
    data = bytearray(path.read_bytes())
    second = 16 + int.from_bytes(data[:8], "little")
    data[second] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match="length CRC is wrong; and the index") as caught:
        sw.open(tmp_path / "t")
    error = caught.value
    assert (error.path, error.record_index, error.offset) == (str(path), 1, second)


def test_without_an_index_other_records_are_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "t.index").unlink()
    path = shard(tmp_path, 1)
    size = path.stat().st_size
    path.write_bytes(frame(bytes(size - 16)))
    with pytest.raises(ManifestError, match="it has 1 records, and the manifest says 10"):
        sw.open(tmp_path / "t")


def test_other_generations_and_unfinished_runs_are_noted(tmp_path):
    write(tmp_path)
    raw_shards(tmp_path, [2, 2], name="t")
    run = tmp_path / ".t.partial"
    run.mkdir()
    (run / "run.json").write_text("{}")
    notes = sw.open(tmp_path / "t").notes
    assert any("other shards of this name" in note for note in notes)
    assert any("unfinished run" in note for note in notes)
    assert ids(sw.open(tmp_path / "t")) == list(range(40))


def test_what_names_a_dataset(tmp_path, monkeypatch):
    write(tmp_path)
    for path in (
        tmp_path,
        tmp_path / "t",
        tmp_path / "t@4",
        tmp_path / "t@*",
        tmp_path / "t.manifest.json",
        tmp_path / "t.index",
        tmp_path / "t.tfrecord-*",
    ):
        assert ids(sw.open(path)) == list(range(40))
    monkeypatch.chdir(tmp_path)
    dataset = sw.open("t")
    monkeypatch.chdir("/")
    assert ids(dataset) == list(range(40))
    write(tmp_path, name="u")
    with pytest.raises(OptionError, match=r"2 datasets \(t, u\)"):
        sw.open(tmp_path)
    with pytest.raises(OptionError, match="no such file"):
        sw.open(tmp_path / "nothing")
    with pytest.raises(OptionError, match="max_open_files is 0"):
        sw.open(tmp_path / "t", max_open_files=0)


def test_one_shard_of_a_set_is_read_alone(tmp_path):
    write(tmp_path)
    dataset = sw.open(shard(tmp_path, 1))
    assert ids(dataset) == list(range(1, 40, 4))
    assert dataset[2]["name"] == "n9"
    assert dataset.place(2) == (str(shard(tmp_path, 1)), 1, 2)
    assert dataset.manifest is None
    assert dataset.identity.startswith("index:")


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
@pytest.mark.parametrize(("count", "num_shards"), [(0, 1), (0, 3), (2, 5)])
def test_little_and_nothing(tmp_path, compression, count, num_shards):
    write(tmp_path, count, num_shards, compression=compression)
    for _ in range(2):
        dataset = sw.open(tmp_path / "t")
        assert ids(dataset) == list(range(count))
        assert ids(dataset.shuffle(1)) == ids(dataset.shuffle(1))
        with pytest.raises(IndexError):
            dataset[count]
        (tmp_path / "t.index").unlink(missing_ok=True)


# -- sets without a manifest ----------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[3, 3, 3], [3, 2, 2], [1, 5, 0, 3], [0, 0, 4], [7]])
@pytest.mark.parametrize("pack", ["plain", "gzip"])
def test_shards_of_others_are_read_in_turn(tmp_path, counts, pack):
    suffix, packer = ("", bytes) if pack == "plain" else (".gz", gzip.compress)
    expected = raw_shards(tmp_path, counts, suffix=suffix, pack=packer)
    dataset = sw.open(tmp_path / "x", decode=False)
    assert list(dataset) == expected
    assert [dataset[row] for row in range(len(dataset))] == expected
    assert dataset.source_index(2) == 2
    follows_law = counts in ([3, 3, 3], [3, 2, 2], [7])
    assert any("read in turn" in note for note in dataset.notes) != follows_law


def test_a_loose_file(tmp_path):
    path = tmp_path / "some.tfrecords"
    path.write_bytes(b"".join(map(frame, [b"", b"a", b""])))
    assert list(sw.open(path, decode=False)) == [b"", b"a", b""]


def test_real_files_of_others(data_dir):
    for path in sorted(data_dir.rglob("*.tfrecord*"))[:40]:
        try:
            expected = list(sw.read_records(path))
        except sw.DataError:
            continue
        try:
            found = list(sw.open(path, decode=False))
        except sw.DataError as error:
            assert error.hint, path
            continue
        assert found == expected, path


def test_empty_files_among_compressed_ones_are_shards_without_records(tmp_path):
    expected = raw_shards(tmp_path, [3, 0, 2], suffix=".gz", pack=gzip.compress)
    shard(tmp_path, 1).write_bytes(b"")
    dataset = sw.open(tmp_path / "x", decode=False)
    assert list(dataset) == expected
    assert dataset.payloads(range(5)) == expected


def test_loose_files_are_no_set(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.tfrecord").write_bytes(frame(b"x"))
    with pytest.raises(OptionError, match="holds 2 datasets") as caught:
        sw.open(tmp_path)
    assert "shardwriter write" in caught.value.hint


def test_gzip_members_that_cut_records_are_refused(tmp_path):
    data = b"".join(frame(bytes([i]) * 100) for i in range(10))
    (tmp_path / "x.tfrecord.gz").write_bytes(gzip.compress(data[:150]) + gzip.compress(data[150:]))
    with pytest.raises(ManifestError, match="cross the ends of gzip members") as caught:
        sw.open(tmp_path / "x.tfrecord.gz")
    assert "write the dataset again" in caught.value.hint


def test_a_zlib_stream_of_others_is_refused(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(zlib.compress(frame(b"abc")))
    with pytest.raises(CorruptFile, match="no block of the zlib stream starts") as caught:
        sw.open(tmp_path / "x.tfrecord")
    assert caught.value.hint


def test_gzip_members_that_are_too_large_together_are_refused(tmp_path, monkeypatch):
    raw_shards(tmp_path, [50, 50], suffix=".gz", pack=gzip.compress)
    monkeypatch.setattr(opening, "MAX_CACHED_BYTES", 1000)
    with pytest.raises(SourceError, match="gzip members") as caught:
        sw.open(tmp_path / "x")
    assert "shardwriter reshard" in caught.value.hint


# -- counting by headers ---------------------------------------------------------------------------


@pytest.mark.parametrize("window", [13, 40, 1 << 12])
def test_headers_are_found_whatever_is_read_at_a_time(tmp_path, monkeypatch, window):
    monkeypatch.setattr(frame_hops, "_MIN_WINDOW_BYTES", window)
    monkeypatch.setattr(frame_hops, "_MAX_WINDOW_BYTES", 4 * window)
    monkeypatch.setattr(frame_hops, "HEADER_CACHE_SIZE", 3)
    sizes = [0, 1, 5000, 7, 100, 0, 0, 40_000, 3, 30, 31, 32, 2]
    path = tmp_path / "x"
    path.write_bytes(b"".join(frame(bytes(size)) for size in sizes))
    assert scan_frame_ends(str(path)).tolist() == np.cumsum(np.array(sizes) + 16).tolist()


def test_a_file_that_ends_early_is_damaged(tmp_path):
    data = frame(b"one") + frame(b"three")
    path = tmp_path / "x"
    for stop in range(len(data)):
        path.write_bytes(data[:stop])
        if stop in (0, 19):
            assert len(scan_frame_ends(str(path))) == stop // 19
            continue
        with pytest.raises(CorruptFile) as caught:
            scan_frame_ends(str(path))
        assert caught.value.kind == "truncated"
        assert caught.value.record_index == (stop > 19)
        assert caught.value.offset == 19 * (stop > 19)


def test_a_length_beyond_the_limit_is_damage(tmp_path):
    path = tmp_path / "x"
    from shardwriter.formats.tfrecord import frame_header

    path.write_bytes(frame_header(1 << 62))
    with pytest.raises(CorruptFile, match="exceeds the limit") as caught:
        scan_frame_ends(str(path))
    assert caught.value.kind == "impossible-length"


def test_nothing_stays_open(tmp_path):
    write(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        dataset = sw.open(tmp_path / "t")
        next(iter(dataset))
        del dataset
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_datasets_of_one_job_with_other_records_differ_in_identity(tmp_path):
    # What a list holds is not known to the job.
    for name, first in (("a", 0), ("b", 1)):
        sw.write([{"x": first + i} for i in range(10)], tmp_path / name / "t@2")
    a, b = (sw.open(tmp_path / name) for name in "ab")
    assert a.manifest.job == b.manifest.job
    assert a.identity != b.identity
    assert a[:5].identity != a[5:].identity == sw.open(tmp_path / "a")[5:].identity
    assert a.shuffle(1).identity != a.shuffle(2).identity


def test_a_lone_index_of_other_files_of_the_same_sizes_is_not_believed(tmp_path):
    sw.write([b"a" * 100, b"b" * 50, b"c" * 10], tmp_path / "t@1")
    (tmp_path / "t.manifest.json").unlink()
    old = (tmp_path / "t.index").read_bytes()
    sw.write([b"c" * 10, b"a" * 100, b"b" * 50], tmp_path / "other" / "t@1")
    shard = "t.tfrecord-00000-of-00001"
    (tmp_path / shard).write_bytes((tmp_path / "other" / shard).read_bytes())
    assert (tmp_path / "t.index").read_bytes() == old
    dataset = sw.open(tmp_path / "t", decode=False)
    assert list(dataset) == [b"c" * 10, b"a" * 100, b"b" * 50]
    assert "counted by their headers" in dataset.notes[0]


# -- records of other protos -----------------------------------------------------------------------

_EVENT = b"\x09" + np.float64(1.6e9).tobytes() + b"\x1a\x0dbrain.Event:2"
_VARIANT = b"\x08\x0a\x72\x04chr1\x32\x01A"  # numbers, names and texts under other field numbers
_RANKING = b"\x0a\x02\x0a\x00\x12\x02\x0a\x00"


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (_EVENT, "an event of a TensorBoard log"),
        (_VARIANT, "a message of another protobuf type"),
        (_RANKING, "an ExampleListWithContext of TF Ranking"),
        (b"some text", "text"),
    ],
)
@pytest.mark.parametrize("num_records", [1, 100])
def test_records_of_another_proto_are_refused_and_not_empty(tmp_path, payload, kind, num_records):
    good = sw.encode_example({"x": 1})
    path = tmp_path / "t.tfrecord"
    path.write_bytes(b"".join(map(frame, [good] * num_records + [payload])))
    with sw.open(path) as data:
        reads = [
            lambda: data[num_records],
            lambda: list(data),
            lambda: data.columns(range(len(data))),
        ]
        for read in reads:
            with pytest.raises(WireError, match=f"it looks like {kind}") as caught:
                read()
            assert (caught.value.path, caught.value.record_index) == (str(path), num_records)
            assert "raw()" in caught.value.hint
        assert data.raw()[num_records] == payload
        assert data[0] == {"x": 1}


def test_an_example_without_features_is_empty(tmp_path):
    path = tmp_path / "t.tfrecord"
    payloads = [b"", b"\x0a\x00", sw.encode_example({"x": sw.UNSET})]
    path.write_bytes(b"".join(map(frame, payloads)))
    with sw.open(path) as data:
        assert list(data) == [{}, {}, {"x": None}]


def test_records_of_another_proto_among_sequences_are_refused(tmp_path):
    good = sw.encode_sequence_example(sw.SequenceExample({"x": 1}, {"y": [1, 2]}))
    path = tmp_path / "t.tfrecord"
    path.write_bytes(frame(good) + frame(_EVENT))
    with sw.open(path) as data, pytest.raises(WireError, match="TensorBoard"):
        data[1]
