"""Gzip members and zlib blocks: where they end, what they hold, and who can read them."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import igzip, isal_zlib

from shardwriter.errors import OptionError, RecordTooLarge
from shardwriter.formats import tfrecord
from shardwriter.formats.compressed_writer import CompressedWriter, zlib_blocks
from shardwriter.formats.compression import (
    PLAIN,
    Packing,
    check_packing,
    compatibility_notes,
    deflate_member,
)
from shardwriter.formats.crc32c import crc32c
from shardwriter.formats.tfrecord import NOTHING_WRITTEN, Written, frame
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.storage import LocalStorage
from shardwriter.writing.open_shards import ShardFile

HEAD = bytes.fromhex("1f8b0804 00000000 00ff".replace(" ", ""))
EMPTY_MEMBER = HEAD + struct.pack("<H2sHQI", 16, b"SW", 12, 38, 0) + b"\x03\x00" + bytes(8)
EMPTY_STREAM = b"\x78\x9c\x03\x00\x00\x00\x00\x01"

member_sizes = st.sampled_from([1, 40, 300, 5000])
deflates = st.sampled_from(["isal-2", "zlib-6"])
kinds = st.sampled_from(["gzip", "zlib"])


class Sink:
    """Remembers what it was given."""

    def __init__(self):
        self.data = b""
        self.closed = False

    def write(self, data):
        assert not self.closed
        self.data += data

    def close(self):
        self.closed = True


class Member(NamedTuple):
    """A member as another reader finds it."""

    end: int
    pad: int
    num_records: int
    deflated: bytes
    data: bytes


def pack(records, packing, flush_at=()):
    """Return the file's bytes, the index rows, and the writer."""
    sink, rows = Sink(), []
    with CompressedWriter(sink, packing, on_flush=rows.append) as writer:
        for number, record in enumerate(records):
            writer.write(record)
            if number in flush_at:
                writer.flush()
    assert sink.closed
    return sink.data, rows, writer


def cut(records, member_bytes):
    """Say which records go together, by the rule alone."""
    pieces, size = [[]], 0
    for record in records:
        if size >= member_bytes:
            pieces.append([])
            size = 0
        pieces[-1].append(record)
        size += len(record) + 16
    return pieces if records else []


def members_of(data):
    """Hop from member to member by their own fields, and hold every field against the format."""
    found, begin = [], 0
    while begin < len(data):
        assert data[begin : begin + 10] == HEAD
        extra_bytes, name, field_bytes = struct.unpack_from("<H2sH", data, begin + 10)
        assert (name, extra_bytes) == (b"SW", field_bytes + 4)
        size, num_records = struct.unpack_from("<QI", data, begin + 16)
        pad = field_bytes - 12
        assert data[begin + 28 : begin + 28 + pad] == bytes(pad)
        member = data[begin : begin + size]
        assert len(member) == size
        uncompressed = gzip.decompress(member)
        check, length = struct.unpack("<II", member[-8:])
        assert (check, length) == (zlib.crc32(uncompressed), len(uncompressed))
        begin += size
        found.append(Member(begin, pad, num_records, member[28 + pad : -8], uncompressed))
    return found


def frames(records):
    return b"".join(map(frame, records))


def some_records(seed, count, most_bytes):
    """Records that compress well, badly, and not at all."""
    rng = random.Random(seed)
    return [
        rng.choice([rng.randbytes(n), bytes(n), b"abcdefgh" * (n // 8)])
        for n in (rng.randrange(most_bytes + 1) for _ in range(count))
    ]


many_records = st.builds(
    some_records, st.integers(0, 2**32), st.integers(1, 300), st.sampled_from([0, 20, 200, 2000])
)


@given(many_records, member_sizes, deflates)
def test_gzip_members_are_those_of_the_format(tmp_path, records, member_bytes, deflate):
    data, rows, _ = pack(records, Packing("gzip", deflate, member_bytes))
    members = members_of(data)
    pieces = cut(records, member_bytes)
    assert [m.data for m in members] == [frames(piece) for piece in pieces]
    assert [m.num_records for m in members] == [len(piece) for piece in pieces]
    assert rows == [[m.end, n] for m, n in zip(members, accumulate(map(len, pieces)), strict=True)]
    for member in members[:-1]:
        assert not 1 <= member.end % 4096 <= 63
        if member.pad:
            assert member.end % 4096 == 64
            assert 1 <= member.pad <= 63
    assert members[-1].pad == 0


@given(many_records, kinds, member_sizes, deflates)
def test_everybody_reads_the_same_frames(tmp_path, records, kind, member_bytes, deflate):
    data, _, _ = pack(records, Packing(kind, deflate, member_bytes))
    decompress = [gzip.decompress, igzip.decompress]
    if kind == "zlib":
        decompress = [zlib.decompress, isal_zlib.decompress]
    for function in decompress:
        assert function(data) == frames(records)
    (tmp_path / "shard").write_bytes(data)
    assert list(read_records(tmp_path / "shard")) == records


@given(many_records, member_sizes, deflates)
def test_zlib_blocks_can_be_entered_by_themselves(tmp_path, records, member_bytes, deflate):
    data, rows, _ = pack(records, Packing("zlib", deflate, member_bytes))
    pieces = cut(records, member_bytes)
    begin = 2
    assert data[:2] == b"\x78\x9c"
    assert [count for _, count in rows] == list(accumulate(map(len, pieces)))
    for (end, _), piece in zip(rows, pieces, strict=True):
        assert zlib.decompressobj(wbits=-15).decompress(data[begin:end]) == frames(piece)
        begin = end
    assert data[begin:] == b"\x03\x00" + struct.pack(">I", zlib.adler32(frames(records)))
    (tmp_path / "shard").write_bytes(data)
    stream_ends = accumulate(len(frames(piece)) for piece in pieces)
    found = list(zlib_blocks(tmp_path / "shard"))
    assert found == [(end, at) for (end, _), at in zip(rows, stream_ends, strict=True)]


def test_bytes_that_look_like_the_end_of_a_block_are_not_one(tmp_path):
    mark = b"\x00\x00\xff\xff"
    rng = random.Random(3)
    records = [rng.randbytes(2000) + mark + rng.randbytes(2000) for _ in range(20)]
    data, rows, _ = pack(records, Packing("zlib", "zlib-6", 4000))
    assert (len(rows), data.count(mark)) == (20, 40)  # noise is stored as it is
    (tmp_path / "shard").write_bytes(data)
    assert [end for end, _ in zlib_blocks(tmp_path / "shard")] == [end for end, _ in rows]


@given(many_records, kinds, member_sizes, deflates, st.sets(st.integers(0, 300)))
def test_flushing_changes_no_byte(records, kind, member_bytes, deflate, flush_at):
    packing = Packing(kind, deflate, member_bytes)
    assert pack(records, packing, flush_at)[:2] == pack(records, packing)[:2]


@pytest.mark.parametrize("deflate", ["isal-2", "zlib-6"])
def test_a_member_is_compressed_in_one_call(deflate):
    records = some_records(1, 400, 3000)
    data, _, _ = pack(records, Packing("gzip", deflate, 1 << 17))
    members = members_of(data)
    assert len(members) > 3
    for member in members:
        if deflate == "isal-2":
            assert member.deflated == deflate_member(member.data, "isal-2")
        else:
            assert member.deflated == zlib.compress(member.data, 6)[2:-4]


@given(many_records, kinds, member_sizes)
def test_at_any_time_the_file_is_what_the_writer_says(records, kind, member_bytes):
    sink = Sink()
    writer = CompressedWriter(sink, Packing(kind, "isal-2", member_bytes))
    for number, record in enumerate(records):
        writer.write(record)
        assert writer.num_records == number + 1
        written = writer.written
        assert written.num_records <= number + 1
        assert (written.file_bytes, written.file_crc32c) == (len(sink.data), crc32c(sink.data))
        whole = frames(records[: written.num_records])
        assert written.crc32c == crc32c(whole)
        if sink.data and kind == "gzip":
            assert gzip.decompress(sink.data) == whole
        elif sink.data:
            assert zlib.decompressobj().decompress(sink.data) == whole
    writer.close()
    stream = frames(records)
    assert writer.written == Written(
        len(records),
        len(stream),
        crc32c(stream),
        len(sink.data),
        crc32c(sink.data),
        len(cut(records, member_bytes)) or (kind == "gzip"),
    )
    assert writer.stream_bytes == len(frames(records))
    assert writer.payload_bytes == sum(map(len, records))


def test_a_member_is_held_back_only_where_its_padding_depends_on_the_next_one():
    sink = Sink()
    writer = CompressedWriter(sink, Packing("gzip", "isal-2", 1))
    held = 0
    for number, record in enumerate(some_records(4, 3000, 60)):
        before = len(sink.data)
        writer.write(record)
        if writer.written.num_records <= number:
            held += 1
            assert len(sink.data) == before
        else:
            assert writer.written.num_records == number + 1
    assert held > 10
    assert sum(1 for member in members_of(sink.data) if member.pad) == held
    writer.discard()


def test_the_last_member_is_not_padded():
    packing = Packing("gzip", "isal-2", 1)
    records = some_records(4, 400, 60)
    ends = [len(pack(records[:count], packing)[0]) for count in range(1, 400)]
    assert any(1 <= end % 4096 <= 63 for end in ends)


@pytest.mark.parametrize(("kind", "expected"), [("gzip", EMPTY_MEMBER), ("zlib", EMPTY_STREAM)])
def test_a_shard_without_records(tmp_path, kind, expected):
    data, rows, writer = pack([], Packing(kind))
    assert data == expected
    assert (gzip if kind == "gzip" else zlib).decompress(data) == b""
    assert rows == ([[38, 0]] if kind == "gzip" else [])
    assert writer.written == Written(0, 0, 0, len(data), crc32c(data), len(rows))
    (tmp_path / "shard").write_bytes(data)
    assert list(read_records(tmp_path / "shard")) == []


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
@pytest.mark.parametrize(
    "records",
    [
        [b""],
        [b""] * 1000,
        [b"x" * 5_000_000],
        [b"a", b"x" * 5_000_000, b"b"],
        [bytes(1 << 20)] * 3,
        [b"x" * ((1 << 20) - 16)] * 3,  # frames of exactly one member
        [b"x" * ((1 << 20) - 17)] * 3,
    ],
    ids=lambda records: f"{len(records)} of up to {max(map(len, records))}",
)
def test_records_of_all_sizes(tmp_path, kind, records):
    packing = Packing(kind)
    data, rows, _ = pack(records, packing)
    pieces = cut(records, packing.member_bytes)
    assert [count for _, count in rows] == list(accumulate(map(len, pieces)))
    (tmp_path / "shard").write_bytes(data)
    assert list(read_records(tmp_path / "shard")) == records


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_path_is_opened_and_emptied(tmp_path, kind):
    path = tmp_path / "shard"
    path.write_bytes(b"old" * 1000)
    with CompressedWriter(path, Packing(kind)) as writer:
        writer.write(bytearray(b"new"))
    assert list(read_records(path)) == [b"new"]
    writer.close()  # a second time
    assert list(read_records(path)) == [b"new"]
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"late")


def test_what_is_discarded_is_not_written():
    sink = Sink()
    writer = CompressedWriter(sink, Packing("gzip", "isal-2", 1 << 16))
    writer.write(b"x" * 100_000)
    before = sink.data
    writer.write(b"not yet")
    writer.discard()
    writer.close()
    assert sink.closed
    assert sink.data == before


def test_a_record_that_is_refused_leaves_the_shard_whole(monkeypatch):
    monkeypatch.setattr(tfrecord, "MAX_PAYLOAD_BYTES", 10)
    sink = Sink()
    with CompressedWriter(sink, Packing("gzip", "isal-2", 1)) as writer:
        writer.write(b"one")
        with pytest.raises(TypeError):
            writer.write("text")
        with pytest.raises(RecordTooLarge):
            writer.write(bytes(11))
        writer.write(b"two")
    assert gzip.decompress(sink.data) == frames([b"one", b"two"])


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_after_a_write_that_failed_nothing_more_is_written(kind):
    class Full(Sink):
        def write(self, data):
            if self.data:
                raise OSError(28, "No space left on device")
            super().write(data)

    sink = Full()
    writer = CompressedWriter(sink, Packing(kind, "isal-2", 1))
    writer.write(random.Random(1).randbytes(100))
    written, data = writer.written, sink.data
    assert (written.num_records, written.file_bytes) == (1, len(data))
    with pytest.raises(OSError, match="space"):
        writer.write(b"two")
    with pytest.raises(OSError, match="space"):
        writer.write(b"three")
    with pytest.raises(OSError, match="space"):
        writer.close()
    assert sink.closed
    assert (sink.data, writer.written) == (data, written)
    writer.close()  # a second time


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_an_end_that_could_not_be_written_is_not_passed_over(kind):
    class FullOnce(Sink):
        full = True

        def write(self, data):
            if self.full:
                self.full = False
                raise OSError(28, "No space left on device")
            super().write(data)

    sink = FullOnce()
    writer = CompressedWriter(sink, Packing(kind))
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            writer.finish()
    assert sink.data == b""


# -- going on behind what stands -------------------------------------------------------------------


def go_on(data, records, packing, written):
    """Write the records that a file has not got, and return file, rows and writer."""
    sink, rows = Sink(), []
    sink.data = data[: written.file_bytes]
    with CompressedWriter(sink, packing, on_flush=rows.append, written=written) as writer:
        assert writer.num_records == written.num_records
        for record in records[written.num_records :]:
            writer.write(record)
    return sink.data, rows, writer


@given(many_records, member_sizes, deflates, st.data())
def test_a_gzip_file_that_was_gone_on_with_is_that_of_one_writer(
    records, member_bytes, deflate, data
):
    """However often it is cut, and whatever stood behind the cut."""
    packing = Packing("gzip", deflate, member_bytes)
    whole, whole_rows, whole_writer = pack(records, packing)
    stands, rows, written = b"", [], NOTHING_WRITTEN
    for cut_at in sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4))):
        sink = Sink()
        sink.data = stands
        writer = CompressedWriter(sink, packing, on_flush=rows.append, written=written)
        for record in records[written.num_records : cut_at]:
            writer.write(record)
        writer.flush()
        told = writer.written
        if data.draw(st.booleans()):  # more is written, and lost
            writer.write(b"lost")
        writer.discard()
        if told.num_pieces:
            written, stands = told, sink.data[: told.file_bytes]
        rows = rows[: written.num_pieces]
        assert stands == whole[: len(stands)]
        assert gzip.decompress(stands) == frames(records[: written.num_records])
    found, last_rows, writer = go_on(stands, records, packing, written)
    assert found == whole
    assert rows + last_rows == whole_rows
    assert writer.written == whole_writer.written
    assert writer.payload_bytes == sum(map(len, records))


def test_a_gzip_file_is_gone_on_with_behind_every_record():
    """Also where a member is held back, because its padding depends on whether it is the last."""
    packing, records = Packing("gzip", "isal-2", 1), some_records(4, 400, 60)
    whole, _, whole_writer = pack(records, packing)
    sink = Sink()
    writer = CompressedWriter(sink, packing)
    held = 0
    for number, record in enumerate(records):
        writer.write(record)
        written = writer.written
        held += written.num_records <= number
        found, _, again = go_on(sink.data, records, packing, written)
        assert found == whole
        assert again.written == whole_writer.written
    writer.discard()
    assert held > 1


def test_a_member_that_was_held_back_is_padded_or_not_as_if_nothing_had_happened():
    packing, records = Packing("gzip", "isal-2", 1), some_records(4, 400, 60)
    sink = Sink()
    writer = CompressedWriter(sink, packing)
    seen = set()
    for number, record in enumerate(records):
        writer.write(record)
        if writer.written.num_records > number:
            continue
        for more in (0, 1):  # it is the last, or it is not
            some = records[: number + 1 + more]
            found, _, _ = go_on(sink.data, some, packing, writer.written)
            assert found == pack(some, packing)[0]
            seen.add((more, bool(list(members_of(found))[number].pad)))
    writer.discard()
    assert seen == {(0, False), (1, True)}


def test_a_zlib_stream_is_not_gone_on_with():
    with pytest.raises(AssertionError):
        CompressedWriter(Sink(), Packing("zlib"), written=Written(1, 17, 0, 30, 0, 1))


# -- in a shard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_checkpoint_counts_whole_members_and_cuts_none(tmp_path, kind):
    storage, packing = LocalStorage(), Packing(kind, "isal-2", 3000)
    path, records = tmp_path / "shard", some_records(5, 200, 900)

    def open_writer(on_flush):
        return CompressedWriter(storage.create(str(path)), packing, on_flush=on_flush)

    index = tmp_path / "index"
    with ShardFile(storage, str(path), str(index), open_writer, compressed=True) as shard:
        for number, record in enumerate(records):
            shard.write(record)
            if number % 7 == 0:
                safe = shard.checkpoint()
                assert safe.file_bytes == path.stat().st_size
                assert safe.crc32c == crc32c(frames(records[: safe.num_records]))
                assert index.stat().st_size == shard.index_bytes
        sealed = shard.seal()
    data, rows, _ = pack(records, packing)
    assert path.read_bytes() == data
    numbers = [number for row in rows for number in row]
    assert index.read_bytes() == struct.pack(f"<{len(numbers)}Q", *numbers)
    assert (sealed.file_bytes, sealed.file_crc32c) == (len(data), crc32c(data))
    assert (sealed.num_records, sealed.crc32c) == (200, crc32c(frames(records)))
    assert sealed.payload_bytes == sum(map(len, records))


# -- the packing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_shards", "member_bytes"),
    [(1, 1 << 20), (64, 1 << 20), (65, 1032444), (1000, 67108), (1024, 65536), (99999, 65536)],
)
def test_many_shards_have_smaller_members(num_shards, member_bytes):
    packing = Packing.of("gzip", "zlib-6", num_shards)
    assert packing.to_json() == {
        "deflate": "zlib-6",
        "member_bytes": member_bytes,
        "type": "gzip",
    }
    assert not packing.is_plain


def test_plain_shards_say_so():
    assert PLAIN.is_plain
    assert Packing.of("none", "isal-2", 5).to_json() == {"type": "none"}


@pytest.mark.parametrize(
    ("compression", "deflate", "match"),
    [("bzip2", "isal-2", "bzip2"), ("gzip", "isal-3", "isal-3"), ("none", "zlib-6", "not compr")],
)
def test_what_there_is_not_is_refused(compression, deflate, match):
    with pytest.raises(OptionError, match=match):
        check_packing(compression, deflate)


def test_who_compresses_is_told_which_readers_are_lost():
    assert compatibility_notes("none") == []
    assert len(compatibility_notes("gzip")) == 1
    for compression in ("gzip", "zlib"):
        assert "DALI" in compatibility_notes(compression)[0]
        assert repr(compression.upper()) in compatibility_notes(compression)[0]
    assert "resumed" in compatibility_notes("zlib")[1]
