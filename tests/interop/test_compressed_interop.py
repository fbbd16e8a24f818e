"""TensorFlow and Beam read our compressed shards to the end, where they lose those of others."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardwriter as sw
from shardwriter.formats import compressed_writer
from shardwriter.formats.compressed_writer import CompressedWriter
from shardwriter.formats.compression import Packing
from shardwriter.formats.tfrecord import frame

TF_BUFFER_BYTES = 262_144


@pytest.fixture
def tf_reads(tf: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], list[bytes]]:
    """Read a file with both of TensorFlow's readers, which have to agree."""
    monkeypatch.setattr(tf.compat.v1.logging, "warning", lambda *_args: None)  # it is deprecated

    def read(path: Path, compression: str = "GZIP") -> list[bytes]:
        found = [r.numpy() for r in tf.data.TFRecordDataset(str(path), compression)]
        options = tf.io.TFRecordOptions(compression)
        assert found == list(tf.compat.v1.io.tf_record_iterator(str(path), options))
        return found

    return read


def write(path: Path, records: list[bytes], packing: Packing) -> list[int]:
    """Write a shard and return where its members end."""
    ends = []
    with CompressedWriter(path, packing, on_flush=lambda row: ends.append(row[0])) as writer:
        for record in records:
            writer.write(record)
    return ends


def dangerous_records(path: Path) -> list[bytes]:
    """Return records of which a first member, as long as it is, ends 5 bytes behind the buffer."""
    noise = random.Random(1).randbytes(TF_BUFFER_BYTES)
    size = TF_BUFFER_BYTES - 200
    for _ in range(5):
        records = [noise[:size], b"second", b"third"]
        (end, *_) = write(path, records, Packing("gzip", "isal-2", 1))
        if end == TF_BUFFER_BYTES + 5:
            return records
        size += TF_BUFFER_BYTES + 5 - end
    raise AssertionError("no record of such a size was found")


def hazards(path: Path) -> list[str]:
    """Return what is said of where TensorFlow may stop."""
    return [note for note in sw.stats(str(path)).notes if "TensorFlow may stop" in note]


def test_tensorflow_loses_what_follows_an_empty_member(
    tf_reads: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    """The hazard is real; when this fails TensorFlow was mended, and the rule is not needed."""
    path = tmp_path / "shard.gz"
    path.write_bytes(gzip.compress(frame(b"a")) + gzip.compress(b"") + gzip.compress(frame(b"b")))
    assert list(sw.read_records(path)) == [b"a", b"b"]
    assert tf_reads(path) == [b"a"]
    (note,) = hazards(path)
    assert f"may stop at byte {len(gzip.compress(frame(b'a')) + gzip.compress(b'')):,}" in note


def test_tensorflow_loses_what_follows_a_member_that_ends_just_behind_its_buffer(
    tf_reads: Callable[..., list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records with the rule switched off and on."""
    path = tmp_path / "shard.gz"
    with monkeypatch.context() as without_the_rule:
        without_the_rule.setattr(compressed_writer, "_padding", lambda _end: 0)
        records = dangerous_records(path)
        assert list(sw.read_records(path)) == records
        assert tf_reads(path) == records[:1]
        assert "may stop at byte 262,149 " in hazards(path)[0]
    ends = write(path, records, Packing("gzip", "isal-2", 1))
    assert ends[0] == TF_BUFFER_BYTES + 64
    assert tf_reads(path) == records
    assert hazards(path) == []


def foreign_member(data: bytes, file_bytes: int) -> bytes:
    """Return a gzip member of so many bytes, filled up by its header."""
    plain = gzip.compress(data, mtime=0)
    pad = file_bytes - len(plain) - 6
    extra = struct.pack("<H2sH", pad + 4, b"XX", pad)
    return plain[:3] + b"\x04" + plain[4:10] + extra + bytes(pad) + plain[10:]


@pytest.mark.parametrize("behind", [-1, 0, 1, 2, 8, 9, 10, 11, 63, 64])
@pytest.mark.parametrize("buffers", [1, 3])
def test_stats_names_the_files_that_tensorflow_cuts_short(
    tf_reads: Callable[..., list[bytes]], tmp_path: Path, behind: int, buffers: int
) -> None:
    path = tmp_path / "shard.gz"
    end = buffers * TF_BUFFER_BYTES + behind
    noise = random.Random(1).randbytes(end - 40_000)
    path.write_bytes(foreign_member(frame(noise), end) + gzip.compress(frame(b"b")))
    assert list(sw.read_records(path)) == [noise, b"b"]
    report = sw.stats(str(path))
    assert report.num_defects == 0
    # From 9 on it depends on how many bits of the data's last byte are needed.
    assert (len(tf_reads(path)) < 2) == (1 <= behind <= 8)
    assert len(hazards(path)) == (1 <= behind <= 63)


def test_a_last_member_does_no_harm(tf_reads: Callable[..., list[bytes]], tmp_path: Path) -> None:
    path = tmp_path / "shard.gz"
    path.write_bytes(gzip.compress(frame(b"a")) + gzip.compress(b""))
    assert tf_reads(path) == [b"a"]
    assert hazards(path) == []


@pytest.mark.parametrize("deflate", ["isal-2", "zlib-6"])
@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_tensorflow_reads_all_of_many_random_files(
    tf_reads: Callable[..., list[bytes]], tmp_path: Path, kind: Any, deflate: Any
) -> None:
    path = tmp_path / "shard"
    most_ends = 0
    for seed in range(15):
        rng = random.Random(seed)
        member_bytes = rng.choice([1, 500, 5_000, 100_000])
        size = rng.choice([200, 3_000])
        records = [rng.randbytes(rng.randrange(size)) for _ in range(4_000_000 // size // 4)]
        ends = write(path, records, Packing(kind, deflate, member_bytes))
        most_ends = max(most_ends, len(ends))
        assert tf_reads(path, kind.upper()) == records, seed
    assert most_ends > 4_000


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
@pytest.mark.parametrize(
    "records", [[], [b""], [b"one"], [b"", b"x" * 3_000_000, b""], [b"y" * 1000] * 5000]
)
def test_tensorflow_reads_shards_of_all_sizes(
    tf_reads: Callable[..., list[bytes]], tmp_path: Path, kind: Any, records: list[bytes]
) -> None:
    write(tmp_path / "shard", records, Packing(kind))
    assert tf_reads(tmp_path / "shard", kind.upper()) == records


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_uncompressed_the_bytes_are_those_of_tensorflow(tf: Any, tmp_path: Path, kind: Any) -> None:
    from shardwriter.formats.compression import open_stream

    records = [random.Random(i).randbytes(i * 7) for i in range(500)]
    write(tmp_path / "ours", records, Packing(kind))
    with tf.io.TFRecordWriter(f"{tmp_path}/theirs", kind.upper()) as writer:
        for record in records:
            writer.write(record)
    streams = []
    for name in ("ours", "theirs"):
        with open_stream(tmp_path / name) as stream:
            assert stream.compression == kind
            streams.append(b"".join(iter(lambda stream=stream: stream.read(1 << 20), b"")))
    assert streams[0] == streams[1]


@pytest.mark.parametrize(("kind", "beam_type"), [("gzip", "AUTO"), ("zlib", "DEFLATE")])
def test_beam_reads_every_record(tmp_path: Path, kind: Any, beam_type: str) -> None:
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    records = [random.Random(i).randbytes(900) for i in range(5000)]
    sw.write(records, tmp_path / "t@3", compression=kind)
    # A process of its own: Beam warns and starts threads when it is imported.
    code = (
        "import sys, apache_beam as beam\n"
        "from apache_beam.runners.portability.fn_api_runner import FnApiRunner\n"
        "with beam.Pipeline(runner=FnApiRunner()) as pipeline:\n"
        "    kind = getattr(beam.io.filesystem.CompressionTypes, sys.argv[3])\n"
        "    files = sys.argv[1] + '/t.tfrecord-*-of-*'\n"
        "    (pipeline | beam.io.ReadFromTFRecord(files, compression_type=kind)\n"
        "     | beam.Map(bytes.hex) | beam.combiners.ToList()\n"
        "     | beam.Map(lambda found: open(sys.argv[2], 'w').write('\\n'.join(sorted(found)))))\n"
    )
    found = tmp_path / "found"
    command = [sys.executable, "-c", code, str(tmp_path), str(found), beam_type]
    subprocess.run(command, check=True)
    assert found.read_text().split("\n") == sorted(record.hex() for record in records)
