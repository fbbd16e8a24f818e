"""Every damage by its name, place and price: one table of damages, and one of others' files."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwriter.dataset.index import frame_ends
from shardwriter.formats.crc32c import crc32c
from shardwriter.formats.tfrecord import FRAME_BYTES, frame, frame_header
from shardwriter.formats.tfrecord_reader import Defect
from shardwriter.inspect.frames import good_records
from shardwriter.inspect.scan import ScanOptions, scan_file

COUNT, SIZE = 26, 100
FRAME = SIZE + FRAME_BYTES
RECORDS = [bytes([i + 1]) * SIZE for i in range(COUNT)]
GOOD = b"".join(map(frame, RECORDS))
ENDS = frame_ends(np.full(COUNT, SIZE, np.uint64))


def flip(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 0x40]) + data[offset + 1 :]


def unmasked(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", crc32c(length)) + payload + struct.pack("<I", crc32c(payload))


def zero_crcs(payload: bytes) -> bytes:
    return struct.pack("<QI", len(payload), 0) + payload + bytes(4)


def replaced(index: int, with_: bytes) -> bytes:
    return GOOD[: index * FRAME] + with_ + GOOD[(index + 1) * FRAME :]


# kind, record, offset, lost, offset of the next good frame, good records behind it
Told = tuple[str, int | None, int, int | None, int | None, int]
AT = 2 * FRAME


def told(defects: list[Defect]) -> list[Told]:
    return [
        (
            d.kind,
            d.record_index,
            d.offset,
            d.num_records,
            d.resync_offset,
            d.num_recoverable,
        )
        for d in defects
    ]


# damage: data, defects without an index, lost as the index tells, records read
TABLE: dict[str, tuple[bytes, list[Told], list[int | None], int]] = {
    "payload bit flipped": (
        flip(GOOD, AT + 50), [("payload-crc", 2, AT, 1, None, 0)], [1], 25),
    "payload CRC flipped": (
        flip(GOOD, AT + FRAME - 1), [("payload-crc", 2, AT, 1, None, 0)], [1], 25),
    "length CRC flipped": (
        flip(GOOD, AT + 9), [("length-crc", 2, AT, None, AT + FRAME, 23)], [1], 2),
    "length flipped": (
        flip(GOOD, AT + 1), [("length-crc", 2, AT, None, AT + FRAME, 23)], [1], 2),
    "cut inside a record": (
        GOOD[: AT + 50], [("truncated", 2, AT, None, None, 0)], [24], 2),
    "cut inside the last header": (
        GOOD[: 25 * FRAME + 5], [("truncated", 25, 25 * FRAME, None, None, 0)], [1], 25),
    "cut inside the last CRC": (
        GOOD[:-2], [("truncated", 25, 25 * FRAME, None, None, 0)], [1], 25),
    "last record missing": (GOOD[: 25 * FRAME], [], [], 25),  # only a manifest tells
    "empty file": (b"", [], [], 0),
    "64 zero bytes appended": (
        GOOD + bytes(64), [("torn-tail", 26, 26 * FRAME, 0, None, 0)], [0], 26),
    "13 zero bytes appended": (
        GOOD + bytes(13), [("torn-tail", 26, 26 * FRAME, 0, None, 0)], [0], 26),
    "impossible length, its CRC right": (
        replaced(2, frame_header(1 << 62) + bytes(SIZE + 4)),
        [("impossible-length", 2, AT, None, AT + FRAME, 23)], [1], 2),
    "no CRCs": (
        replaced(2, zero_crcs(RECORDS[2])), [("no-crc", 2, AT, 1, None, 0)], [1], 25),
    "CRCs not masked": (
        b"".join(map(unmasked, RECORDS)), [("unmasked-crc", 0, 0, 26, None, 26)], [26], 0),
    "two breaks": (
        flip(flip(GOOD, AT + 9), 10 * FRAME + 8),
        [("length-crc", 2, AT, None, AT + FRAME, 7),
         ("length-crc", None, 10 * FRAME, None, 11 * FRAME, 15)], [1, 1], 2),
    "a break, and a bad payload next to it": (
        flip(flip(GOOD, AT + 9), AT + FRAME + 50),
        [("length-crc", 2, AT, None, AT + 2 * FRAME, 22)], [2], 2),
    "a break, and a bad payload further on": (
        flip(flip(GOOD, AT + 9), 5 * FRAME + 50),
        [("length-crc", 2, AT, None, AT + FRAME, 22),
         ("payload-crc", None, 5 * FRAME, 1, None, 0)], [1, 1], 2),
    "a break at the last record": (
        flip(GOOD, 25 * FRAME + 9), [("length-crc", 25, 25 * FRAME, None, None, 0)], [1], 25),
    "a page of zeros in the middle": (
        GOOD[:AT] + bytes(3 * FRAME + 7) + GOOD[5 * FRAME + 7 :],
        [("length-crc", 2, AT, None, 6 * FRAME, 20)], [4], 2),
    "records overwritten with zeros up to the end": (
        GOOD[:AT] + bytes(24 * FRAME), [("torn-tail", 2, AT, 0, None, 0)], [24], 2),
    "not a TFRecord file": (
        b"PK\3\4" + b"text " * 99, [("length-crc", 0, 0, None, None, 0)], [26], 0),
}  # fmt: skip


@pytest.mark.parametrize("damage", TABLE)
def test_a_damage_has_its_name_place_and_price(tmp_path: Path, damage: str) -> None:
    data, defects, lost, num_records = TABLE[damage]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    scan = scan_file(str(path))
    assert told(scan.defects) == defects
    assert (scan.num_records, scan.num_defects) == (num_records, len(defects))
    assert scan.num_recoverable == sum(d[5] for d in defects)
    if lost is None:
        return
    with_index = scan_file(str(path), ends=ENDS)
    assert [d.num_records for d in with_index.defects] == lost
    if "zero bytes" not in damage:
        assert all(d.record_index == d.offset // FRAME for d in with_index.defects)


@pytest.mark.parametrize("damage", TABLE)
def test_every_good_record_comes_back(tmp_path: Path, damage: str) -> None:
    data, defects, lost, num_records = TABLE[damage]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    found: list[Defect] = []
    records = list(good_records(path, on_defect=found.append))
    assert [d.kind for d in found] == [d[0] for d in defects]
    assert len(records) == num_records + sum(d[5] for d in defects)
    for record in records:
        assert record.offset % FRAME == 0
        assert record.payload == RECORDS[record.offset // FRAME]
        assert record.record_index in (None, record.offset // FRAME)
    if lost is not None:
        exact = list(good_records(path, ends=ENDS, on_defect=found.append))
        assert [r.record_index for r in exact] == [r.offset // FRAME for r in records]


@pytest.mark.parametrize("size", [0, 256, 1 << 16])
@pytest.mark.parametrize("num_zeros", [15, 16, 24, 40, 79, 1 << 20, (1 << 20) + 3])
def test_zeros_do_not_swallow_the_zeros_that_a_frame_begins_with(
    tmp_path: Path, num_zeros: int, size: int
) -> None:
    path = tmp_path / "a.tfrecord"
    hole = GOOD[:AT] + bytes(num_zeros)
    path.write_bytes(hole + frame(bytes(size)) + GOOD)
    found: list[Defect] = []
    records = list(good_records(path, on_defect=found.append))
    if found[0].kind == "no-crc":  # so many zeros are whole empty frames
        assert num_zeros % FRAME_BYTES == 0
    else:
        assert told(found) == [("length-crc", 2, AT, None, len(hole), 0)]
    assert [r.payload for r in records] == [*RECORDS[:2], bytes(size), *RECORDS]


def test_a_length_that_nothing_proves_does_not_end_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    unproven = struct.pack("<QI", 1 << 20, 0)
    path.write_bytes(GOOD[:AT] + unproven + GOOD)
    found: list[Defect] = []
    records = list(good_records(path, on_defect=found.append))
    assert told(found) == [("truncated", 2, AT, None, AT + len(unproven), 0)]
    assert len(records) == 2 + COUNT


@pytest.mark.parametrize("size", [SIZE, 30 * SIZE, 300 * SIZE])
def test_what_was_appended_to_a_file_that_had_been_cut_comes_back(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "a.tfrecord"
    before = GOOD + frame(b"x" * size)[:50]
    path.write_bytes(before + GOOD)
    found: list[Defect] = []
    records = list(good_records(path, on_defect=found.append))
    assert [r.payload for r in records] == RECORDS * 2
    assert {d.kind for d in found} <= {"payload-crc", "length-crc", "truncated"}
    assert found[-1].resync_offset == len(before)
    scan = scan_file(str(path))
    assert (scan.num_records, scan.num_recoverable) == (COUNT, COUNT)
    assert scan.crc32c == crc32c(path.read_bytes())


def test_a_plain_file_that_is_called_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(GOOD)
    assert told(scan_file(str(path)).defects) == [("misnamed", 0, 0, 0, None, 0)]
    path.write_bytes(b"")
    assert not scan_file(str(path)).defects


@pytest.mark.parametrize("check", ["length", "none"])
def test_hopping_sees_what_the_framing_shows(tmp_path: Path, check: Any) -> None:
    sizes = [20_000, 100, 0, 700_000, 20_000, 5, 30_000]
    data = b"".join(frame(bytes([i + 1]) * size) for i, size in enumerate(sizes))
    path = tmp_path / "a.tfrecord"
    for stop in (len(data), len(data) - 1, len(data) - 4, len(data) - 5, len(data) - 30_010):
        path.write_bytes(data[:stop])
        scan = scan_file(str(path), ScanOptions(check))
        whole = stop == len(data)
        assert scan.num_records == len(sizes) - (not whole)
        assert scan.sizes.total == sum(sizes[: scan.num_records])
        last = len(data) - 30_016
        assert [(d.kind, d.record_index, d.offset) for d in scan.defects] == (
            [] if whole else [("truncated", 6, last)]
        )
        assert scan.crc32c is None
    fourth = sum(sizes[:4]) + 4 * FRAME_BYTES
    path.write_bytes(flip(data, fourth + 9))
    scan = scan_file(str(path), ScanOptions(check))
    if check == "none":
        assert (scan.num_records, scan.num_defects) == (7, 0)
    else:
        wanted = ("length-crc", 4, fourth, None, fourth + 20_000 + FRAME_BYTES, 2)
        assert told(scan.defects) == [wanted]
        assert scan.num_records == 4


def test_a_file_in_a_record_is_not_taken_for_records(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    inner = b"".join(map(frame, RECORDS[:3]))
    outer = frame(inner)
    path.write_bytes(outer * 3)
    scan = scan_file(str(path))
    assert (scan.num_records, scan.num_defects) == (3, 0)
    path.write_bytes(outer + flip(outer, 9) + outer)
    ends = frame_ends(np.full(3, len(inner), np.uint64))
    assert told(scan_file(str(path), ends=ends).defects) == [
        ("length-crc", 1, len(outer), 1, 2 * len(outer), 1)
    ]


def test_an_index_of_other_records_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(flip(GOOD, AT + 9))
    ends = frame_ends(np.full(COUNT, SIZE + 1, np.uint64))
    assert told(scan_file(str(path), ends=ends).defects) == TABLE["length CRC flipped"][1]


# -- compressed ------------------------------------------------------------------------------------


def two_thirds(data: bytes) -> bytes:
    return data[: 2 * len(data) // 3]


def flushed(data: bytes) -> bytes:
    deflate = zlib.compressobj()
    return (
        b"".join(
            deflate.compress(data[i : i + 50]) + deflate.flush(zlib.Z_FULL_FLUSH)
            for i in range(0, len(data), 50)
        )
        + deflate.flush()
    )


# name, compressed file, kinds, records read (None: some)
COMPRESSED: dict[str, tuple[Callable[[bytes], bytes], list[str], int | None]] = {
    "a.gz": (gzip.compress, [], COUNT),
    "cut.gz": (lambda data: two_thirds(gzip.compress(data)), ["truncated"], None),
    "crc.gz": (lambda data: flip(gzip.compress(data), -8 % len(gzip.compress(data))),
               ["bad-checksum"], COUNT),
    "size.gz": (lambda data: flip(gzip.compress(data), len(gzip.compress(data)) - 4),
                ["bad-gzip-size"], COUNT),
    "tail.gz": (lambda data: gzip.compress(data) + b"tail", ["trailing-data"], COUNT),
    "two.gz": (lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]), [], COUNT),
    "a.tfrecord": (gzip.compress, ["misnamed"], COUNT),
    "a.z": (zlib.compress, [], COUNT),
    "flushed.z": (flushed, [], COUNT),
    "two.z": (lambda data: zlib.compress(data) + zlib.compress(data), ["trailing-data"], COUNT),
    "break.gz": (lambda data: gzip.compress(flip(data, AT + 9)), ["length-crc"], 2),
    "payload.z": (lambda data: zlib.compress(flip(data, AT + 50)), ["payload-crc"], 25),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPRESSED)
def test_damages_of_compressed_files(tmp_path: Path, name: str) -> None:
    compress, kinds, num_records = COMPRESSED[name]
    path = tmp_path / name
    path.write_bytes(compress(GOOD))
    scan = scan_file(str(path))
    assert [d.kind for d in scan.defects] == kinds
    assert num_records in (None, scan.num_records)
    if not kinds:
        assert scan.crc32c == crc32c(GOOD)
        assert scan.file_crc32c == crc32c(path.read_bytes())
    if name == "break.gz":
        assert scan.num_recoverable == 23
        assert len(list(good_records(path, on_defect=lambda _: None))) == 25


def test_a_break_and_then_broken_compression_are_both_told(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(GOOD[:AT] + b"x" * 500) + b"junk")
    scan = scan_file(str(path))
    assert [d.kind for d in scan.defects] == ["length-crc", "trailing-data"]


# -- files of others -------------------------------------------------------------------------------

# kind, record, offset, lost, next good frame, good records behind it; and the records read
FIXTURES: dict[str, tuple[list[Told], int]] = {
    "corrupt-data-crc.tfrecord": ([("payload-crc", 2, 255, 1, None, 0)], 3),
    "corrupt-data.tfrecord": ([("payload-crc", 2, 255, 1, None, 0)], 3),
    "corrupt-length-crc.tfrecord": ([("length-crc", 2, 255, None, 389, 1)], 2),
    "corrupt-length.tfrecord": ([("length-crc", 2, 255, None, 389, 1)], 2),
    "gzip-bad-crc.tfrecord.gz": ([("bad-checksum", 4, 523, None, None, 0)], 4),
    "gzip-read-as-none.tfrecord": ([("misnamed", 0, 0, 0, None, 0)], 4),
    "gzip-truncated.tfrecord.gz": ([("truncated", 2, 255, None, None, 0)], 2),
    "gzip-two-members.tfrecord.gz": ([], 4),
    "gzip.tfrecord.gz": ([], 4),
    "huge-length-valid-crc.tfrecord": ([("impossible-length", 2, 255, None, 389, 1)], 2),
    "missing-final-data-crc.tfrecord": ([("truncated", 3, 389, None, None, 0)], 3),
    "one-byte.tfrecord": ([("truncated", 0, 0, None, None, 0)], 0),
    "trailing-zeros.tfrecord": ([("torn-tail", 4, 523, 0, None, 0)], 4),
    "truncated-14B.tfrecord": ([("truncated", 0, 0, None, None, 0)], 0),
    "truncated-header-5B.tfrecord": ([("truncated", 2, 255, None, None, 0)], 2),
    "truncated-mid-payload.tfrecord": ([("truncated", 2, 255, None, None, 0)], 2),
    "unmasked-crcs.tfrecord": ([("unmasked-crc", 0, 0, 4, None, 4)], 0),
    "with-empty-records.tfrecord": ([], 6),
    "zero-crcs.tfrecord": ([("no-crc", 0, 0, 4, None, 0)], 0),
    "zero-length.tfrecord": ([], 0),
    "zlib-full-flush-per-byte.tfrecord.z": ([], 4),
    "zlib.tfrecord.z": ([], 4),
}


def test_the_damaged_files_of_the_test_data(data_dir: Path) -> None:
    folder = data_dir / "_derived" / "fixture"
    files = {path.name for path in folder.iterdir() if path.suffix != ".json"}
    assert files == set(FIXTURES)
    for name, (defects, num_records) in FIXTURES.items():
        scan = scan_file(str(folder / name))
        assert (told(scan.defects), scan.num_records) == (defects, num_records), name


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(flip(GOOD, 9))
    scan_file(str(path))
    assert capfd.readouterr() == ("", "")


def test_the_stream_of_a_damaged_file_is_summed_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(flip(GOOD, AT + 9))
    assert scan_file(str(path)).crc32c == crc32c(path.read_bytes())
