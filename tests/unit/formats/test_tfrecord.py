"""Framing: what is written is read, and nothing that is broken passes for whole."""

from __future__ import annotations

import io
import json
import mmap
import struct
import tracemalloc
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardwriter.formats.tfrecord as tfrecord
from shardwriter.errors import CorruptFile, OptionError, RecordTooLarge
from shardwriter.formats.compression import open_stream
from shardwriter.formats.crc32c import crc32c, masked_crc32c
from shardwriter.formats.tfrecord import (
    FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    NOTHING_WRITTEN,
    TFRecordWriter,
    Written,
    frame,
    frame_header,
)
from shardwriter.formats.tfrecord_reader import read_frames, read_records

RECORDS = st.lists(st.binary(max_size=60), max_size=8)
THREE = [b"first", b"", b"the third record"]


class ShortReads:
    """A stream whose reads return as much as a list of sizes says, over and over."""

    def __init__(self, data, sizes):
        self._file = io.BytesIO(data)
        self._sizes = sizes
        self._turn = 0

    def read(self, size, /):
        self._turn += 1
        return self._file.read(min(size, self._sizes[self._turn % len(self._sizes)]))


class Sink:
    """Takes bytes and counts what is done to it."""

    def __init__(self):
        self.data = b""
        self.num_writes = self.num_closes = 0

    def write(self, data, /):
        self.data += data
        self.num_writes += 1

    def close(self):
        self.num_closes += 1


class RawSink(io.RawIOBase):
    """A raw file that takes few bytes at a time, as one on a nearly full disk does."""

    def __init__(self, most):
        super().__init__()
        self.data = b""
        self._most = most

    def writable(self):
        return True

    def write(self, data, /):
        taken = bytes(data[: self._most])
        self.data += taken
        return len(taken)


def frames(records):
    return b"".join(map(frame, records))


def scan(data, **options):
    """Read all and return the payloads and the defects."""
    defects = []
    stream = data if hasattr(data, "read") else io.BytesIO(data)
    return list(read_frames(stream, on_defect=defects.append, **options)), defects


def unproven(payload):
    """A frame of a writer that leaves both CRC fields zero."""
    return struct.pack("<QI", len(payload), 0) + payload + bytes(4)


# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "data"),
    [
        ([b"foo"], "0300000000000000b099490e666f6f618abefe"),
        (
            [b"foo", b"bar"],
            "0300000000000000b099490e666f6f618abefe0300000000000000b099490e6261724600e5c8",
        ),
        ([], ""),
    ],
)
def test_frames_are_those_of_tensorflow(records, data):
    sink = Sink()
    with TFRecordWriter(sink) as writer:
        for record in records:
            writer.write(record)
    assert sink.data.hex() == data
    assert list(read_frames(io.BytesIO(sink.data))) == records


def test_framing_vectors_of_the_test_data(data_dir):
    vectors = json.loads((data_dir / "_vectors" / "vectors.json").read_text())["framing"]
    assert vectors
    for vector in vectors:
        records = [record.encode() for record in vector["records"]]
        assert frames(records).hex() == vector["hex"], vector["name"]
        assert list(read_frames(io.BytesIO(bytes.fromhex(vector["hex"])))) == records


def test_a_frame_is_length_crc_payload_crc():
    assert frame(b"abc") == (
        struct.pack("<Q", 3)
        + struct.pack("<I", masked_crc32c(struct.pack("<Q", 3)))
        + b"abc"
        + struct.pack("<I", masked_crc32c(b"abc"))
    )


@given(RECORDS, st.sampled_from([1, 17, 40, 1 << 18]))
def test_what_is_written_is_read(records, buffer_bytes):
    sink = Sink()
    with TFRecordWriter(sink, buffer_bytes=buffer_bytes) as writer:
        for record in records:
            writer.write(record)
    assert sink.data == frames(records)
    assert list(read_frames(io.BytesIO(sink.data))) == records
    assert writer.num_records == len(records)
    assert writer.payload_bytes == sum(map(len, records))
    assert writer.stream_bytes == len(sink.data)
    assert writer.crc32c == crc32c(sink.data)


def test_a_path_is_created_or_emptied(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"something of an earlier run, longer than what comes now" * 9)
    for target in (path, str(path)):
        with TFRecordWriter(target) as writer:
            for record in THREE:
                writer.write(record)
        assert path.read_bytes() == frames(THREE)
        assert writer.stream_bytes == path.stat().st_size
        assert list(read_records(target)) == THREE


def test_flush_puts_a_path_in_the_hands_of_the_system(tmp_path):
    path = tmp_path / "a.tfrecord"
    writer = TFRecordWriter(path)
    writer.write(b"one")
    assert path.read_bytes() == b""
    writer.flush()
    assert path.read_bytes() == frame(b"one")
    writer.write(b"two")
    writer.close()
    assert list(read_records(path)) == [b"one", b"two"]


def test_counters_know_the_buffered_records():
    writer = TFRecordWriter(Sink())
    writer.write(b"12345")
    assert (writer.num_records, writer.payload_bytes, writer.stream_bytes) == (1, 5, 21)


def test_frames_are_gathered_up_to_the_buffer_size():
    sink = Sink()
    writer = TFRecordWriter(sink, buffer_bytes=3 * FRAME_BYTES)
    for _ in range(2):
        writer.write(b"")
    assert sink.num_writes == 0
    writer.write(b"")
    assert (sink.num_writes, len(sink.data)) == (1, 3 * FRAME_BYTES)


def test_flush_of_nothing_writes_nothing():
    sink = Sink()
    with TFRecordWriter(sink) as writer:
        writer.flush()
    assert sink.num_writes == 0


def test_closing_twice_closes_once():
    sink = Sink()
    writer = TFRecordWriter(sink)
    writer.write(b"x")
    writer.close()
    writer.close()
    assert (sink.num_closes, sink.data) == (1, frame(b"x"))


def test_discard_drops_what_is_buffered():
    sink = Sink()
    writer = TFRecordWriter(sink)
    writer.write(b"kept")
    writer.flush()
    writer.write(b"lost")
    writer.discard()
    assert (sink.num_closes, sink.data) == (1, frame(b"kept"))


@pytest.mark.parametrize("end", ["close", "discard"])
def test_a_closed_writer_is_not_flushed(end):
    """As TensorFlow's: whoever flushes it believes that records come after that."""
    writer = TFRecordWriter(Sink())
    getattr(writer, end)()
    with pytest.raises(ValueError, match="closed"):
        writer.flush()
    with pytest.raises(ValueError, match="closed"):
        writer.write_frames(b"", 0)
    writer.close()


class LikeTFRecordOptions:
    """The attributes of ``tf.io.TFRecordOptions``."""

    def __init__(self, compression_type=None, compression_level=None):
        self.compression_type = compression_type
        self.flush_mode = self.input_buffer_size = self.output_buffer_size = None
        self.window_bits = self.compression_method = self.mem_level = None
        self.compression_level = compression_level
        self.compression_strategy = None


COMPRESSED = {
    "gzip": ["GZIP", "gzip", 2, LikeTFRecordOptions("GZIP", 1), LikeTFRecordOptions("GZIP")],
    "zlib": ["ZLIB", 1, LikeTFRecordOptions(LikeTFRecordOptions("ZLIB"))],
    "none": ["", "none", None, 0, LikeTFRecordOptions(), LikeTFRecordOptions("")],
}


@pytest.mark.parametrize(
    ("kind", "options"), [(kind, each) for kind, found in COMPRESSED.items() for each in found]
)
def test_the_second_argument_is_that_of_tensorflow(kind, options, tmp_path):
    path = tmp_path / "x.tfrecord"
    records = [*THREE, bytes(300_000)]
    with TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    data = path.read_bytes()
    wbits = {"gzip": 31, "zlib": 15}.get(kind)
    plain = data if wbits is None else zlib.decompress(data, wbits)
    assert plain == b"".join(map(frame, records))
    assert writer.stream_bytes == len(plain)
    assert writer.crc32c == crc32c(plain)
    assert list(read_records(path)) == records


@pytest.mark.parametrize("options", ["ZIP", 3, b"GZIP", [], LikeTFRecordOptions("LZ4")])
def test_another_compression_is_refused_before_the_file_is_emptied(options, tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"precious")
    with pytest.raises(OptionError, match="not a compression of TFRecord files"):
        TFRecordWriter(path, options)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("options", ["GZIP", "ZLIB"])
def test_what_is_flushed_can_be_read_from_a_compressed_file(options):
    sink = Sink()
    writer = TFRecordWriter(sink, options)
    writer.write(b"first")
    writer.flush()
    inflater = zlib.decompressobj(31 if options == "GZIP" else 15)
    assert inflater.decompress(sink.data) == frame(b"first")
    writer.close()
    assert sink.num_closes == 1


def test_a_compressed_file_that_was_torn_gets_no_end():
    class Full(Sink):
        def write(self, data, /):
            raise OSError(28, "No space left on device")

    sink = Full()
    writer = TFRecordWriter(sink, "GZIP")
    writer.write(b"x")
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert (sink.num_closes, sink.data) == (1, b"")


def test_an_empty_compressed_file_holds_no_records(tmp_path):
    for options in ("GZIP", "ZLIB"):
        TFRecordWriter(tmp_path / "x", options).close()
        assert list(read_records(tmp_path / "x")) == []


@pytest.mark.parametrize("end", ["close", "discard"])
def test_a_closed_writer_takes_no_record(end):
    writer = TFRecordWriter(Sink())
    writer.write(b"same size")
    getattr(writer, end)()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"same size")
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"of another size")


def test_the_sink_is_closed_when_the_last_flush_fails():
    class Full(Sink):
        def write(self, data, /):
            raise OSError(28, "No space left on device")

    sink = Full()
    writer = TFRecordWriter(sink)
    writer.write(b"x")
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert sink.num_closes == 1


@pytest.mark.parametrize("later", ["write", "flush", "close"])
def test_a_flush_that_failed_is_not_forgotten(later):
    """Nobody knows how much the sink took, so writing on would tear the file in the middle."""

    class FullOnce(Sink):
        def write(self, data, /):
            super().write(data[:5] if not self.num_writes else data)
            if self.num_writes == 1:
                raise OSError(28, "No space left on device")

    sink = FullOnce()
    writer = TFRecordWriter(sink)
    writer.write(b"x")
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    with pytest.raises(OSError, match="No space"):
        getattr(writer, later)(*([b"x"] if later == "write" else []))
    writer.discard()
    assert sink.data == frame(b"x")[:5]


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_raw_file_that_takes_a_part_gets_the_rest(most):
    sink = RawSink(most)
    with TFRecordWriter(sink) as writer:
        for record in THREE:
            writer.write(record)
        writer.flush()
        assert sink.data == frames(THREE)


@pytest.mark.parametrize(
    "record",
    [bytearray(b"abcd"), memoryview(b"abcd"), memoryview(b"a-b-c-d-")[::2], mmap.mmap(-1, 4)],
)
def test_bytes_like_records_are_written_as_their_bytes(record):
    sink = Sink()
    with TFRecordWriter(sink) as writer:
        writer.write(record)
    assert list(read_frames(io.BytesIO(sink.data))) == [bytes(memoryview(record))]


@pytest.mark.parametrize("record", ["text", 5, True, None, [1, 2, 3], {"a": 1}])
def test_what_is_not_bytes_is_refused(record):
    writer = TFRecordWriter(Sink())
    with pytest.raises(TypeError, match=f"bytes, not {type(record).__name__}"):
        writer.write(record)
    assert (writer.num_records, writer.stream_bytes) == (0, 0)


def test_a_record_of_2_gib_is_refused_before_memory_is_taken():
    record = mmap.mmap(-1, MAX_PAYLOAD_BYTES + 1)  # pages that nobody has touched
    writer = TFRecordWriter(Sink())
    writer.write(b"first")
    tracemalloc.start()
    try:
        with pytest.raises(RecordTooLarge, match="2 GiB") as caught:
            writer.write(record)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert caught.value.record_index == 1
    assert writer.num_records == 1


def test_the_largest_record_is_the_one_that_protobuf_parses(monkeypatch):
    monkeypatch.setattr(tfrecord, "MAX_PAYLOAD_BYTES", 10)
    writer = TFRecordWriter(Sink())
    writer.write(bytes(10))
    with pytest.raises(RecordTooLarge):
        writer.write(bytes(11))
    assert writer.num_records == 1


def test_many_sizes_do_not_confuse_the_headers(monkeypatch):
    monkeypatch.setattr(tfrecord, "HEADER_CACHE_SIZE", 4)
    records = [bytes(n % 11) for n in range(50)]
    sink = Sink()
    with TFRecordWriter(sink) as writer:
        for record in records:
            writer.write(record)
    assert sink.data == frames(records)
    assert scan(sink.data) == (records, [])


# -- reading ---------------------------------------------------------------------------------------


@given(RECORDS, st.lists(st.integers(1, 40), min_size=1, max_size=5))
@example([b"x" * 50] * 3, [1])
def test_short_reads_change_nothing(records, sizes):
    assert scan(ShortReads(frames(records), sizes)) == (records, [])


@given(RECORDS, st.integers(0, 40), st.lists(st.integers(1, 20), min_size=1, max_size=3))
def test_short_reads_change_no_defect(records, cut, sizes):
    data = frames(records)
    data = data[: max(0, len(data) - cut)]
    assert scan(ShortReads(data, sizes)) == scan(data)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_noticed(flip):
    data = frames(THREE)
    ends = [len(frames(THREE[: k + 1])) for k in range(3)]
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= flip
        record = next(k for k, end in enumerate(ends) if place < end)
        payloads, defects = scan(bytes(broken))
        assert defects, place
        assert defects[0].record_index == record
        assert defects[0].offset == (ends[record - 1] if record else 0)
        assert payloads[:record] == THREE[:record]
        assert payloads[record:] in ([], THREE[record + 1 :])


def test_every_truncation_is_noticed():
    data = frames(THREE)
    ends = [0] + [len(frames(THREE[: k + 1])) for k in range(3)]
    for size in range(len(data)):
        payloads, defects = scan(data[:size])
        whole = sum(end <= size for end in ends) - 1
        assert payloads == THREE[:whole]
        if size in ends:
            assert defects == []  # a cut between frames leaves a whole file
        else:
            assert [d.kind for d in defects] == ["truncated"]
            assert (defects[0].record_index, defects[0].offset) == (whole, ends[whole])


def test_reading_goes_on_after_a_wrong_payload():
    data = bytearray(frames([b"aaaa", b"bbbb", b"cccc"]))
    data[20 + 12] ^= 1
    payloads, defects = scan(bytes(data))
    assert payloads == [b"aaaa", b"cccc"]
    assert [(d.kind, d.record_index, d.offset) for d in defects] == [("payload-crc", 1, 20)]


def test_reading_ends_at_a_wrong_length():
    data = bytearray(frames([b"aaaa", b"bbbb", b"cccc"]))
    data[20] ^= 1
    payloads, defects = scan(bytes(data))
    assert payloads == [b"aaaa"]
    assert [(d.kind, d.record_index, d.offset) for d in defects] == [("length-crc", 1, 20)]


def test_a_file_of_something_else_is_called_so():
    _, defects = scan(b"PK\x03\x04 and more that is no TFRecord file")
    assert "is this a TFRecord file?" in defects[0].detail


@pytest.mark.parametrize("length", [2**62, 2**64 - 1, 2**31])
def test_a_length_over_the_limit_takes_no_memory(length):
    stream = SimpleNamespace(asked=[], file=io.BytesIO(frame(b"ok") + frame_header(length)))

    def read(size):
        stream.asked.append(size)
        return stream.file.read(size)

    stream.read = read
    payloads, defects = scan(stream)
    assert payloads == [b"ok"]
    assert [(d.kind, d.record_index, d.offset) for d in defects] == [("impossible-length", 1, 18)]
    assert max(stream.asked) <= 1 << 20


def test_a_length_beyond_the_file_takes_little_memory():
    stream = SimpleNamespace(asked=[], file=io.BytesIO(frame_header(MAX_PAYLOAD_BYTES) + b"abc"))

    def read(size):
        stream.asked.append(size)
        return stream.file.read(size)

    stream.read = read
    payloads, defects = scan(stream)
    assert payloads == []
    assert [d.kind for d in defects] == ["truncated"]
    assert "3 of 2,147,483,647 payload bytes" in defects[0].detail
    assert max(stream.asked) <= 64 << 20


def test_a_lower_limit_can_be_set():
    payloads, defects = scan(frames([b"1234", b"12345"]), max_payload_bytes=4)
    assert payloads == [b"1234"]
    assert [d.kind for d in defects] == ["impossible-length"]


def test_the_first_defect_is_raised_with_its_place(tmp_path):
    path = tmp_path / "a.tfrecord"
    data = bytearray(frames([b"aaaa", b"bbbb"]))
    data[-5] ^= 1
    path.write_bytes(data)
    reader = read_records(path)
    assert next(reader) == b"aaaa"
    with pytest.raises(CorruptFile) as caught:
        next(reader)
    error = caught.value
    assert (error.kind, error.path) == ("payload-crc", str(path))
    assert (error.record_index, error.offset) == (1, 20)


def test_a_broken_stream_is_raised_with_the_place_of_the_record():
    class Broken(ShortReads):
        def read(self, size, /):
            data = super().read(size)
            if not data:
                raise CorruptFile("the rest is gone", kind="bad-deflate")
            return data

    data = frames([b"aaaa", b"bbbb", b"cccc"])
    for size in (40, 45, 55):  # at the frame's border, in its header, in its payload
        reader = read_frames(Broken(data[:size], [1 << 20]))
        assert [next(reader), next(reader)] == [b"aaaa", b"bbbb"]
        with pytest.raises(CorruptFile) as caught:
            next(reader)
        assert (caught.value.record_index, caught.value.offset) == (2, 40)
        payloads, defects = scan(Broken(data[:size], [1 << 20]))
        assert payloads == [b"aaaa", b"bbbb"]
        assert [(d.kind, d.record_index, d.offset) for d in defects] == [("bad-deflate", 2, 40)]


# -- checksums that were never computed ------------------------------------------------------------


def test_zero_checksums_are_told_and_their_records_kept_back():
    data = frame(b"good") + unproven(b"one") + unproven(b"two") + frame(b"good too")
    payloads, defects = scan(data)
    assert payloads == [b"good", b"good too"]
    assert [(d.kind, d.record_index, d.offset, d.num_records) for d in defects] == [
        ("no-crc", 1, 20, 2)
    ]


@pytest.mark.parametrize("check", ["crc", "length"])
def test_zero_checksums_are_no_proof(check):
    payloads, defects = scan(unproven(b"one"), check=check)
    assert payloads == []
    assert [(d.kind, d.num_records) for d in defects] == [("no-crc", 1)]


def test_one_zero_checksum_alone_is_wrong():
    _, defects = scan(struct.pack("<QI", 3, 0) + frame(b"abc")[12:])
    assert [d.kind for d in defects] == ["length-crc"]
    _, defects = scan(frame(b"abc")[:-4] + bytes(4))
    assert [d.kind for d in defects] == ["payload-crc"]


@pytest.mark.parametrize("num_zeros", [12, 15, 16, 20, 28, 32, 4096, 5000])
def test_zeros_at_the_end_are_one_torn_tail(num_zeros):
    payloads, defects = scan(frame(b"good") + bytes(num_zeros))
    assert payloads == [b"good"]
    assert [(d.kind, d.record_index, d.offset, d.num_records) for d in defects] == [
        ("torn-tail", 1, 20, 0)
    ]
    assert f"{num_zeros:,} zero bytes" in defects[0].detail


def test_a_cut_frame_that_is_not_all_zero_is_no_torn_tail():
    _, defects = scan(frame(b"good") + bytes(12) + b"\1")
    assert [d.kind for d in defects] == ["truncated"]
    _, defects = scan(frame(b"good") + bytes(16) + b"\1")
    assert [(d.kind, d.record_index) for d in defects] == [("truncated", 1)]


def test_a_file_of_zeros_is_a_torn_tail():
    payloads, defects = scan(bytes(64))
    assert (payloads, [d.kind for d in defects]) == ([], ["torn-tail"])


def test_records_without_checksum_are_told_apart_from_the_tail_behind_them():
    data = unproven(b"one") + unproven(b"") + unproven(b"two") + bytes(48)
    _, defects = scan(data)
    assert [(d.kind, d.record_index, d.offset, d.num_records) for d in defects] == [
        ("no-crc", 0, 0, 3),
        ("torn-tail", 3, 54, 0),
    ]


def test_zeros_in_the_middle_are_unproven_records():
    payloads, defects = scan(frame(b"a") + bytes(32) + frame(b"b"))
    assert payloads == [b"a", b"b"]
    assert [(d.kind, d.record_index, d.num_records) for d in defects] == [("no-crc", 1, 2)]


def test_zeros_in_front_of_garbage_are_no_tail_and_no_records():
    _, defects = scan(frame(b"a") + bytes(32) + b"garbage, and more of it")
    assert [(d.kind, d.record_index) for d in defects] == [("length-crc", 1)]


# -- less proof on request -------------------------------------------------------------------------


def test_length_check_leaves_payloads_unproven():
    data = bytearray(frames([b"aaaa", b"bbbb"]))
    data[12] ^= 1
    assert scan(bytes(data), check="length") == ([b"`aaa", b"bbbb"], [])
    data[20] ^= 1
    payloads, defects = scan(bytes(data), check="length")
    assert (len(payloads), [d.kind for d in defects]) == (1, ["length-crc"])


def test_no_check_takes_any_plausible_length():
    data = bytearray(frames([b"aaaa", b"bbbb"]))
    data[8] ^= 1
    data[12] ^= 1
    assert scan(bytes(data), check="none") == ([b"`aaa", b"bbbb"], [])
    _, defects = scan(bytes(data[:-1]), check="none")
    assert [d.kind for d in defects] == ["truncated"]


def test_an_unknown_check_proves_nothing_and_is_refused():
    with pytest.raises(OptionError, match="CRC"):
        list(read_frames(io.BytesIO(frame(b"a")), check="CRC"))


# -- files of others -------------------------------------------------------------------------------

SILENTLY_WRONG = {"truncated-header-5B.tfrecord", "one-byte.tfrecord"}


def test_damaged_files_are_read_at_least_as_far_as_tensorflow_reads_them(data_dir):
    folder = data_dir / "_derived" / "fixture"
    verdicts = json.loads((folder / "tf_verdicts.json").read_text())
    assert len(verdicts) == 22
    base = list(read_records(data_dir / verdicts[0]["base"]))
    for verdict in verdicts:
        name = verdict["file"].rpartition("/")[2]
        defects = []
        with open_stream(data_dir / verdict["file"]) as stream:
            payloads = list(read_frames(stream, on_defect=defects.append))
        assert len(payloads) >= verdict["tf_records_before_error"], name
        assert set(payloads) <= {*base, b""}, name
        if name == "gzip-read-as-none.tfrecord":  # it is whole, only its name is wrong
            assert (payloads, defects) == (base, [])
            continue
        should_fail = verdict["tf_error"] is not None or name in SILENTLY_WRONG
        assert bool(defects) == should_fail, name


def test_files_of_other_projects_are_read_whole(data_dir):
    expected = json.loads((data_dir / "expected.json").read_text())
    assert len(expected) == 43
    for name, facts in expected.items():
        with open_stream(data_dir / name) as stream:
            sizes = list(map(len, read_frames(stream)))
            assert stream.compression == facts["compression"].lower(), name
            members = stream.num_members
        assert members == facts["gzip_members"], name
        assert len(sizes) == facts["records"], name
        assert sum(sizes) == facts["payload_total"], name
        if sizes:
            assert (min(sizes), max(sizes)) == (facts["payload_min"], facts["payload_max"]), name


# -- going on behind what stands -------------------------------------------------------------------


@given(RECORDS, st.sampled_from([1, 60, 1 << 18]), st.data())
def test_a_file_that_was_gone_on_with_is_that_of_one_writer(records, buffer_bytes, data):
    """However often it is cut, and whatever stood behind the cut."""
    stream, written, sizes = b"", NOTHING_WRITTEN, []
    for cut in sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=4))):
        sink = Sink()
        writer = TFRecordWriter(
            sink, buffer_bytes=buffer_bytes, on_flush=sizes.extend, written=written
        )
        assert writer.written == written
        assert writer.num_records == written.num_records
        for record in records[written.num_records : cut]:
            writer.write(record)
        if data.draw(st.booleans()):
            writer.flush()
        told = writer.written
        if data.draw(st.booleans()):  # more is written, and lost
            writer.write(b"lost")
        writer.discard()
        stream = (stream + sink.data)[: told.file_bytes]
        assert told.num_records <= max(cut, written.num_records)
        assert told.crc32c == crc32c(stream)
        written = told
        del sizes[written.num_records :]
    sink = Sink()
    writer = TFRecordWriter(sink, buffer_bytes=buffer_bytes, on_flush=sizes.extend, written=written)
    for record in records[written.num_records :]:
        writer.write(record)
    writer.close()
    whole = b"".join(map(frame, records))
    assert stream + sink.data == whole
    count, size = len(records), len(whole)
    assert writer.written == Written(count, size, crc32c(whole), size, None, count)
    assert writer.payload_bytes == sum(map(len, records))
    assert sizes == list(map(len, records))
