"""A scan finds what reading frame by frame finds, and passes payloads to the statistics."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import OptionError
from shardwriter.formats.compression import sniff
from shardwriter.formats.crc32c import crc32c
from shardwriter.formats.tfrecord import frame
from shardwriter.formats.tfrecord_reader import BREAKS, Check, Defect, read_frames
from shardwriter.inspect.scan import ScanOptions, scan_file


class Payloads:
    """A double of `PayloadStats` that records payloads, and None for each skipped record."""

    def __init__(self, features: bool, label: str | None, label_sequence: int) -> None:
        self.asked = features, label
        assert label_sequence == ScanOptions().label_sequence
        self.seen: list[bytes | None] = []
        self.num_calls = 0

    def add(self, payloads: Sequence[bytes]) -> None:
        self.num_calls += 1
        self.seen += payloads

    def finish(self) -> None:
        pass

    def skip(self, num_records: int) -> None:
        self.seen += [None] * num_records


@pytest.fixture(autouse=True)
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwriter.inspect.scan.PayloadStats", Payloads)
    monkeypatch.setattr(
        "shardwriter.inspect.scan.record_kind", lambda payload: f"{len(payload)} bytes"
    )


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@given(
    payloads=st.lists(st.one_of(st.binary(max_size=50), st.just(b"x" * 5000)), max_size=12),
    flips=st.lists(st.integers(0, 10**6), max_size=3),
    cut=st.one_of(st.just(0), st.integers(0, 60)),
    check=st.sampled_from(["crc", "length", "none"]),
    compressed=st.booleans(),
)
def test_a_scan_is_what_reading_frame_by_frame_is(
    tmp_path: Path,
    payloads: list[bytes],
    flips: list[int],
    cut: int,
    check: Check,
    compressed: bool,
) -> None:
    data = bytearray(b"".join(map(frame, payloads)))
    for place in flips:
        if data:
            data[place % len(data)] ^= 1 + place % 255
    data = data[: len(data) - cut] if cut < len(data) else data
    defects: list[Defect] = []
    sizes = [
        len(payload)
        for payload in read_frames(io.BytesIO(data), check=check, on_defect=defects.append)
    ]
    name = "a.gz" if compressed else "a"
    path = write(tmp_path / name, gzip.compress(bytes(data)) if compressed else bytes(data))
    if not compressed and sniff(bytes(data[:12])) != "none":
        return  # damaged into what looks like another format
    scan = scan_file(path, ScanOptions(check))
    assert (scan.sizes.count, scan.sizes.total) == (len(sizes), sum(sizes))
    assert [d[:4] for d in scan.defects[: len(defects)]] == [d[:4] for d in defects]
    # A scan goes on behind what ends reading, and may find more there.
    ends_reading = {*BREAKS, "truncated"}
    assert bool(scan.defects[len(defects) :]) <= any(d.kind in ends_reading for d in defects)
    if compressed or check == "crc":
        assert scan.crc32c == crc32c(bytes(data))


@pytest.mark.parametrize("check", ["crc", "length"])
@pytest.mark.parametrize("compressed", [False, True])
def test_records_are_handed_on_in_order(tmp_path: Path, check: Check, compressed: bool) -> None:
    records: list[bytes | None] = [bytes([i % 251]) * (i % 70) for i in range(40_000)]
    data = bytearray(b"".join(frame(record) for record in records if record is not None))
    if check == "crc":
        data[12 + sum(len(r or b"") + 16 for r in records[:30_007])] ^= 1
        data[-5] ^= 1
        records[30_007] = records[-1] = None
    path = write(tmp_path / "a.gz", gzip.compress(bytes(data), 1) if compressed else bytes(data))
    scan = scan_file(path, ScanOptions(check, features=True, label="y"))
    found: Any = scan.payloads
    assert found.asked == (True, "y")
    assert found.seen == records
    assert found.num_calls < 9
    assert scan.num_records == sum(record is not None for record in records)
    assert scan.kinds == Counter()


def test_records_behind_a_break_are_not_handed_on(tmp_path: Path) -> None:
    data = bytearray(b"".join(frame(bytes([i])) for i in range(9)))
    data[4 * 17 + 8] ^= 1
    scan = scan_file(write(tmp_path / "a", bytes(data)), ScanOptions(label="y"))
    found: Any = scan.payloads
    assert found.seen == [bytes([i]) for i in range(4)]
    assert (scan.num_records, scan.num_recoverable) == (4, 4)


@pytest.mark.parametrize("check", ["crc", "length", "none"])
def test_kinds_are_those_of_the_first_records(tmp_path: Path, check: Check) -> None:
    data = frame(b"a") * 60 + frame(b"bb") * 60 + frame(b"x" * 70_000) * 9
    scan = scan_file(write(tmp_path / "a", data), ScanOptions(check))
    assert scan.kinds == {"1 bytes": 60, "2 bytes": 4}
    assert scan.num_records == 129
    scan = scan_file(write(tmp_path / "a", frame(b"x" * 150_000) * 9), ScanOptions(check))
    assert scan.kinds == {"150000 bytes": 2}  # not many megabytes for a sample
    assert scan.num_records == 9


def test_records_that_are_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    data = frame(b"x" * (3 << 20)) * 2 + frame(b"y") + frame(b"z" * (1 << 20))
    scan = scan_file(write(tmp_path / "a", data))
    assert (scan.num_records, scan.num_defects, scan.crc32c) == (4, 0, crc32c(data))
    bad = bytearray(data)
    bad[5 << 20] ^= 1
    scan = scan_file(write(tmp_path / "a", bytes(bad)))
    assert [(d.kind, d.record_index) for d in scan.defects] == [("payload-crc", 1)]
    assert scan.num_records == 3


def test_gigabytes_of_zeros_are_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(frame(b"a"))
    with path.open("r+b") as file:
        file.truncate(256 << 20)
    told: list[int] = []
    scan = scan_file(str(path), progress=told.append)
    assert [(d.kind, d.record_index, d.num_records) for d in scan.defects] == [("torn-tail", 1, 0)]
    assert len(told) > 100
    assert told == sorted(told)


def test_an_unknown_check_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="check is 'CRC'"):
        scan_file(write(tmp_path / "a", b""), ScanOptions("CRC"))  # type: ignore[arg-type]
