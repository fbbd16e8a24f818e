"""Compressed files: told by content, read up to the fault, bounded in memory."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import CorruptFile
from shardwriter.formats.compression import InflateStream, OpenStream, open_stream, sniff
from shardwriter.formats.tfrecord import frame
from shardwriter.formats.tfrecord_reader import read_frames, read_records

RECORDS = [b"first", b"", b"third " * 30, bytes(range(256))]
DATA = b"".join(map(frame, RECORDS))
FEXTRA, FNAME, FCOMMENT, FHCRC = 4, 8, 16, 2


def member(data, flags=0, fields=b"", *, crc=None, size=None):
    """A gzip member with a header of our choice."""
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(data) + deflate.flush()
    crc = zlib.crc32(data) if crc is None else crc
    size = len(data) if size is None else size
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(5) + b"\xff"
    return head + fields + body + struct.pack("<II", crc, size & 0xFFFFFFFF)


class ShortFile(io.BytesIO):
    """A file whose reads return one byte."""

    def read(self, size=-1, /):
        return super().read(1 if size else 0)


def inflate(data, kind="gzip", size=1 << 20, file=io.BytesIO):
    """Read to the end: what was handed out, and the error that came then or None."""
    stream = InflateStream(file(data), kind, "a.gz")
    found = b""
    try:
        while piece := stream.read(size):
            assert len(piece) <= size
            found += piece
    except CorruptFile as error:
        return found, error
    return found, None


def fault(data, kind="gzip", **options):
    found, error = inflate(data, kind, **options)
    return found, error and error.kind


def records_in_front(data, kind):
    payloads, defects = [], []
    stream = InflateStream(io.BytesIO(data), kind)
    payloads = list(read_frames(stream, on_defect=defects.append))
    return payloads, [defect.kind for defect in defects]


# -- what a file is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "compression"),
    [
        (b"", "none"),
        (b"\x1f", "none"),
        (b"\x78", "none"),
        (b"\x1f\x8b", "gzip"),
        (gzip.compress(b"x", mtime=0), "gzip"),
        (member(b""), "gzip"),
        (zlib.compress(b"x", 0), "zlib"),
        (zlib.compress(b"x", 1), "zlib"),
        (zlib.compress(b"x", 9), "zlib"),
        (zlib.compress(b""), "zlib"),
        (frame(b"abc"), "none"),
        (b"\x78\xbb" + b"needs a dictionary", "none"),
        (b"BZh91AY&SY", "none"),
    ],
)
def test_compression_is_told_by_content(head, compression):
    assert sniff(head[:12]) == compression


@pytest.mark.parametrize("size", [0x8B1F, 0x0178, 0x9C78, 0x5E78])
def test_a_plain_record_whose_length_looks_like_a_magic_number_is_plain(size):
    data = frame(bytes(size))
    assert sniff(data[:12]) == "none"
    # Also where its checksum is wrong, or was never computed.
    assert sniff(data[:8] + bytes(4)) == "none"


def test_a_plain_file_beginning_with_gzips_magic_is_read(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(frame(bytes(35_615)))
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert list(read_records(path)) == [bytes(35_615)]


@pytest.mark.parametrize("name", ["a.tfrecord", "a.gz"])
def test_the_name_of_a_file_tells_nothing(tmp_path, name):
    for data, kind in [
        (DATA, "none"),
        (gzip.compress(DATA), "gzip"),
        (zlib.compress(DATA), "zlib"),
    ]:
        path = tmp_path / name
        path.write_bytes(data)
        with open_stream(path) as stream:
            assert stream.compression == kind
            assert list(read_frames(stream)) == RECORDS
        assert list(read_records(path)) == RECORDS


def test_a_stream_that_is_closed_gives_its_file_back(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(DATA)
    with OpenStream(path) as stream:
        pass
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


# -- whole files -----------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=3000), max_size=5),
    st.sampled_from([1, 7, 1000, 1 << 20]),
    st.sampled_from([io.BytesIO, ShortFile]),
)
def test_gzip_members_are_one_stream(parts, size, file):
    data = b"".join(gzip.compress(part) for part in parts)
    assert inflate(data, "gzip", size, file) == (b"".join(parts), None)


@given(st.binary(max_size=3000), st.integers(0, 9), st.sampled_from([1, 100, 1 << 20]))
def test_zlib_is_inflated(data, level, size):
    assert inflate(zlib.compress(data, level), "zlib", size) == (data, None)


def test_members_are_counted():
    stream = InflateStream(io.BytesIO(gzip.compress(b"a") * 3), "gzip")
    while stream.read(100):
        pass
    assert stream.num_members == 3


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (FEXTRA, struct.pack("<H", 6) + b"SW\x02\x00ab"),
        (FEXTRA, struct.pack("<H", 0)),
        (FEXTRA, struct.pack("<H", 65535) + bytes(65535)),
        (FNAME, b"name.tfrecord\0"),
        (FNAME, b"\0"),
        (FNAME | FCOMMENT, b"name\0a comment\0"),
        (FHCRC, b"\x12\x34"),
        (FEXTRA | FNAME | FCOMMENT | FHCRC, b"\x02\x00xyname\0comment\0\x12\x34"),
        (1, b""),
    ],
)
@pytest.mark.parametrize("file", [io.BytesIO, ShortFile])
def test_every_field_of_a_header_is_passed_over(flags, fields, file):
    data = member(DATA, flags, fields) + member(b"more", flags, fields)
    assert inflate(data, file=file) == (DATA + b"more", None)


def test_a_very_long_name_is_passed_over():
    name = b"n" * (3 << 20)
    assert inflate(member(DATA, FNAME, name + b"\0")) == (DATA, None)
    assert fault(member(DATA, FNAME, name)[: len(name)]) == (b"", "truncated")


def test_empty_members_hide_nothing():
    empty = gzip.compress(b"")
    assert inflate(empty) == (b"", None)
    assert inflate(empty * 3 + gzip.compress(DATA) + empty * 2) == (DATA, None)
    assert inflate(empty + gzip.compress(b"a") + empty + gzip.compress(b"b")) == (b"ab", None)


def test_full_flushes_are_part_of_the_stream():
    deflate = zlib.compressobj()
    data = b"".join(
        deflate.compress(DATA[k : k + 1]) + deflate.flush(zlib.Z_FULL_FLUSH)
        for k in range(len(DATA))
    )
    assert inflate(data + deflate.flush(), "zlib") == (DATA, None)


# -- damaged files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_every_truncation_is_an_error_behind_the_intact_records(kind):
    records = [bytes([n]) * 40 + n.to_bytes(4, "big") * n for n in range(12)]
    data = b"".join(map(frame, records))
    compress = gzip.compress if kind == "gzip" else zlib.compress
    whole = compress(data)
    for size in range(1, len(whole)):
        # What zlib itself gets out of the part is the most that there is.
        head = 10 if kind == "gzip" else 2
        reachable = zlib.decompressobj(wbits=-15).decompress(whole[head:size])
        payloads, defects = records_in_front(whole[:size], kind)
        count = 0
        while count < len(records) and len(b"".join(map(frame, records[: count + 1]))) <= len(
            reachable
        ):
            count += 1
        assert payloads == records[:count], size
        assert defects == ["truncated"], size


def test_a_cut_between_members_leaves_a_whole_file():
    first, second = gzip.compress(frame(b"a")), gzip.compress(frame(b"b"))
    for size in range(len(first), len(first + second)):
        payloads, defects = records_in_front((first + second)[:size], "gzip")
        assert payloads == [b"a"] if size < len(first) + 10 else [b"a", b"b"][:1]
        assert bool(defects) == (size > len(first))


def test_a_wrong_checksum_is_told_after_the_data():
    assert fault(member(DATA, crc=1)) == (DATA, "bad-checksum")
    assert fault(member(DATA, size=1)) == (DATA, "bad-gzip-size")
    assert fault(member(b"", crc=1)) == (b"", "bad-checksum")
    assert fault(zlib.compress(DATA)[:-1] + b"\xff", "zlib") == (DATA, "bad-checksum")
    assert records_in_front(member(DATA, crc=1), "gzip") == (RECORDS, ["bad-checksum"])


def test_a_wrong_checksum_in_the_first_member_is_told_before_the_second():
    data = member(b"one", crc=1) + member(b"two")
    assert fault(data) == (b"one", "bad-checksum")


def test_a_fault_is_raised_again_by_later_reads():
    stream = InflateStream(io.BytesIO(member(b"one", crc=1)), "gzip")
    assert stream.read(100) == b"one"
    for _ in range(2):
        with pytest.raises(CorruptFile) as caught:
            stream.read(100)
        assert caught.value.kind == "bad-checksum"


@pytest.mark.parametrize("garbage", [b"\0", b"garbage", b"\x1f", b"\x1fx"])
@pytest.mark.parametrize("file", [io.BytesIO, ShortFile])
def test_bytes_behind_the_end_are_told(garbage, file):
    assert fault(gzip.compress(DATA) + garbage, file=file) == (DATA, "trailing-data")
    assert fault(zlib.compress(DATA) + garbage, "zlib", file=file) == (DATA, "trailing-data")


def test_a_second_zlib_stream_is_told():
    data = zlib.compress(b"one") + zlib.compress(b"two")
    assert fault(data, "zlib") == (b"one", "trailing-data")


@pytest.mark.parametrize("head", [b"\x1f\x8b\x07\0", b"\x1f\x8b\x08\x20", b"\x1f\x8b\x08\x80"])
def test_an_unknown_gzip_header_is_told(head):
    assert fault(head + member(DATA)[4:]) == (b"", "bad-gzip-header")


def test_the_error_names_the_file_and_the_byte():
    _, error = inflate(gzip.compress(DATA)[:-3])
    assert error.path == "a.gz"
    assert "byte" in error.message


def test_what_stands_in_front_of_broken_deflate_data_is_handed_out():
    records = [bytes([n % 251, n % 7]) * (n % 90) for n in range(4000)]
    frames = list(map(frame, records))
    blocks = [b"".join(frames[k : k + 1000]) for k in range(0, 4000, 1000)]
    deflate = zlib.compressobj(wbits=-15)
    parts = [deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH) for block in blocks]
    # A block of the reserved type 3 stands in front of the last quarter.
    head = b"\x1f\x8b\x08\0" + bytes(5) + b"\xff"
    data = head + b"".join(parts[:3]) + b"\x07" + parts[3] + deflate.flush() + bytes(8)
    for size in (100, 5000, 1 << 20):
        found, kind = fault(data, size=size)
        reached = sum(map(len, blocks[:3]))
        assert kind == "bad-deflate"
        assert reached - 1 <= len(found) <= reached, size
    payloads, defects = records_in_front(data, "gzip")
    assert (payloads, defects) == (records[: len(payloads)], ["bad-deflate"])
    assert len(payloads) >= 2999


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_flipped_byte_is_noticed_and_no_wrong_record_passes(kind):
    compress = gzip.compress if kind == "gzip" else zlib.compress
    whole = compress(DATA)
    silent = 0
    for place in range(10 if kind == "gzip" else 2, len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0x10
        payloads, defects = records_in_front(bytes(broken), kind)
        # The last byte of deflate data has bits that mean nothing.
        assert defects or payloads == RECORDS, place
        silent += not defects
        assert all(payload in RECORDS for payload in payloads), place
    assert silent <= 1


# -- bombs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_bomb_takes_no_more_than_was_asked_for(kind):
    compress = gzip.compress if kind == "gzip" else zlib.compress
    data = compress(bytes(64 << 20), 9)
    assert len(data) < 100_000
    stream = InflateStream(io.BytesIO(data), kind)
    tracemalloc.start()
    try:
        total = 0
        while piece := stream.read(1 << 30):
            total += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 64 << 20
    assert peak < 8 << 20


def test_frames_of_a_bomb_are_refused_by_their_length(tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(CorruptFile) as caught:
        list(read_records(path))
    assert caught.value.kind == "torn-tail"
