"""Finding the next good frame: everywhere it can be, and nowhere else, in linear time."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.formats.crc32c import crc32c, masked_crc32c
from shardwriter.formats.tfrecord import frame, frame_header
from shardwriter.formats.tfrecord_reader import READ_BYTES, Cursor
from shardwriter.inspect import frames as resync
from shardwriter.inspect.frames import header_offsets, mask_crcs, masked_length_crcs, next_frame

NOISE = random.Random(7).randbytes(3 * READ_BYTES)


class Dribble(io.BytesIO):
    """A stream that gives few bytes at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 1009))


def found(data: bytes, **options: Any) -> int | None:
    offsets = set()
    for stream in (io.BytesIO(data), Dribble(data)):
        cursor = Cursor(stream)
        offsets.add(cursor.offset if next_frame(cursor, **options) else None)
    (offset,) = offsets
    return offset


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50))
def test_crcs_of_lengths_are_those_of_frames(lengths: list[int]) -> None:
    wanted = [struct.unpack("<I", frame_header(length)[8:])[0] for length in lengths]
    assert masked_length_crcs(np.array(lengths, np.uint64)).tolist() == wanted
    assert masked_length_crcs(np.array(lengths, np.uint32)).tolist() == wanted


@given(st.binary(max_size=20))
def test_the_mask_of_many_is_that_of_one(data: bytes) -> None:
    assert mask_crcs(np.array([crc32c(data)], np.uint32)).tolist() == [masked_crc32c(data)]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.integers(0, 40).map(bytes),
            st.integers(0, 2**31).map(frame_header),
            st.binary(max_size=30).map(frame),
        ),
        max_size=8,
    )
)
def test_headers_are_found_as_by_looking_at_each_offset(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    wanted = [
        place
        for place in range(len(data) - 11)
        if (length := int.from_bytes(data[place : place + 8], "little")) < 2**31
        and frame_header(length) == data[place : place + 12]
    ]
    assert header_offsets(data).tolist() == wanted


@pytest.mark.parametrize("payload", [b"", b"x", b"y" * 300, NOISE[: READ_BYTES + 5]])
@pytest.mark.parametrize("filler", [NOISE, bytes(2 * READ_BYTES), b"\1" + bytes(99)])
def test_a_frame_is_found_wherever_it_lies(filler: bytes, payload: bytes) -> None:
    frames = frame(payload) + frame(b"next")
    for ahead in (1, 2, 11, 12, 13, 90):
        assert found(filler[:ahead] + frames) == ahead
    for ahead in range(READ_BYTES - 14, READ_BYTES + 3, 4):
        if ahead < len(filler):
            assert found(filler[:ahead] + frames) == ahead


def test_the_place_itself_is_passed_over() -> None:
    assert found(frame(b"a") + frame(b"b")) == 17
    assert found(frame(b"a")) is None
    assert found(b"") is None


def test_what_is_not_whole_or_not_right_is_no_frame() -> None:
    bad = frame(b"abc")[:-1] + b"?"
    assert found(b"-" + bad + frame(b"d")) == 1 + len(bad)
    assert found(b"-" + frame_header(1 << 30) + frame(b"d")) == 13
    assert found(b"-" + frame(b"abc")[:-1]) is None
    cursor = Cursor(io.BytesIO(b"-" + frame_header(1 << 30) + frame(b"d")), size=30)
    assert next_frame(cursor)
    assert cursor.offset == 13


def test_a_table_says_where_frames_can_begin() -> None:
    data = b"broken" + frame(b"inner") + frame(b"ours")
    assert found(data) == 6
    assert found(data, ends=np.array([6 + 21], np.uint64)) == 27
    assert found(data, ends=np.array([5, 26], np.uint64)) is None


def test_all_that_is_passed_is_summed() -> None:
    data = NOISE[: READ_BYTES + 99] + frame(b"a")
    cursor = Cursor(io.BytesIO(data), with_crc=True)
    assert next_frame(cursor)
    cursor.start = len(cursor.buffer)
    cursor.drop_consumed()
    assert cursor.crc32c is not None
    assert cursor.offset == len(data)
    assert cursor.crc32c == crc32c(data)


def test_headers_of_frames_that_are_none_do_not_take_quadratic_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = frame_header(100_000) * 50_000
    hashed: list[int] = []
    right = resync._has_right_payload

    def count(buffer: bytes, start: int, length: int) -> bool:
        hashed.append(length)
        return right(buffer, start, length)

    monkeypatch.setattr(resync, "_has_right_payload", count)
    monkeypatch.setattr(resync, "_FREE_BYTES", 1 << 16)
    assert found(data) is None
    assert 0 < sum(hashed) < 2 * (5 * len(data) + (1 << 16) + 100_000)  # of two streams
