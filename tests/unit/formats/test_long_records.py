"""Records that are too long to be held: checked in pieces, and an error where they are needed."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardwriter.cli import app
from shardwriter.errors import OutOfMemory
from shardwriter.formats.compression import InflateStream
from shardwriter.formats.tfrecord import frame
from shardwriter.inspect import scan
from shardwriter.inspect.frames import good_records
from shardwriter.inspect.scan import ScanOptions, scan_file
from shardwriter.reading.show import read_some

_LONG = 3 << 20
_PACK = {"none": bytes, "gzip": gzip.compress, "zlib": zlib.compress}


def long_records(damage):
    """Three long records between short ones, with something wrong in the middle one."""
    payloads = [b"a" * 10, b"b" * _LONG, b"c" * _LONG, b"d" * _LONG, b"e" * 10]
    frames = list(map(frame, payloads))
    if damage == "payload-crc":
        frames[2] = frames[2][:1000] + b"X" + frames[2][1001:]
    elif damage == "truncated":
        frames[2:] = [frames[2][: _LONG // 2]]
    elif damage == "footer":
        frames[2:] = [frames[2][:-2]]
    return b"".join(frames)


@pytest.mark.parametrize("damage", [None, "payload-crc", "truncated", "footer"])
@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
@pytest.mark.parametrize(
    "options", [ScanOptions(), ScanOptions(check="length"), ScanOptions(features=True)]
)
def test_a_long_record_is_proven_in_pieces(tmp_path, monkeypatch, damage, compression, options):
    path = str(tmp_path / ("t.tfrecord" + ".gz" * (compression == "gzip")))
    Path(path).write_bytes(_PACK[compression](long_records(damage)))
    whole = scan_file(path, options)
    monkeypatch.setattr(scan, "LONG_BYTES", 1 << 20)
    pieces = scan_file(path, options)
    assert pieces.sizes == whole.sizes
    assert pieces.crc32c == whole.crc32c
    assert pieces.file_crc32c == whole.file_crc32c
    assert [(d.kind, d.record_index, d.offset) for d in pieces.defects] == [
        (d.kind, d.record_index, d.offset) for d in whole.defects
    ]
    if options.check == "crc":
        # What follows damage in a plain file is judged frame by frame.
        is_stream = compression != "none"
        assert pieces.num_long == {None: 3, "payload-crc": 1 + is_stream}.get(damage, 1)
    if options.features:
        assert pieces.payloads.num_skipped == whole.payloads.num_skipped + pieces.num_long


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_long_record_takes_no_memory(tmp_path, monkeypatch, compression):
    path = str(tmp_path / "t.tfrecord")
    Path(path).write_bytes(_PACK[compression](frame(bytes(64 << 20))))
    monkeypatch.setattr(scan, "LONG_BYTES", 1 << 20)
    tracemalloc.start()
    try:
        assert scan_file(path).num_records == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_a_record_without_memory_for_it_is_an_error_that_says_which(tmp_path, monkeypatch):
    path = tmp_path / "t.tfrecord"
    path.write_bytes(zlib.compress(frame(b"short") + frame(bytes(_LONG))))

    def read(stream, size):
        if stream.num_read > 1 << 20:
            raise MemoryError
        data = inflate(stream, size)
        stream.num_read += len(data)
        return data

    inflate = InflateStream.read
    monkeypatch.setattr(InflateStream, "read", read)
    monkeypatch.setattr(InflateStream, "num_read", 0, raising=False)
    for act in (
        lambda: list(good_records(path, on_defect=print)),
        lambda: list(read_some(str(path), 1, 1)),
    ):
        with pytest.raises(OutOfMemory, match="record of 3,145,744 bytes") as caught:
            act()
        assert caught.value.path == str(path)
        assert caught.value.record_index == 1
    result = CliRunner().invoke(app, ["show", str(path), "--start", "1"])
    assert result.exit_code == 3
    assert "does not fit into memory" in result.output
