"""Cutting many frames at once: the same as one by one, and whatever is wrong is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.formats import tfrecord as frame_block
from shardwriter.formats.tfrecord import frame, is_valid_frame, parse_frame, parse_frames


def joined(payloads):
    data = b"".join(map(frame, payloads))
    ends = np.cumsum([len(payload) + 16 for payload in payloads], dtype=np.int64)
    return data, np.concatenate(([0], ends[:-1])).astype(np.int64), ends


@pytest.mark.parametrize("few", [0, 1000])
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50), st.randoms())
def test_frames_are_cut_in_any_order(few, payloads, random):
    data, begins, ends = joined(payloads)
    order = np.array(random.sample(range(len(payloads)), len(payloads)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_block, "_MIN_ARRAY_FRAMES", few)
        cut = parse_frames(data, begins[order], ends[order], check=True)
    assert cut == [payloads[number] for number in order]


@pytest.mark.parametrize("few", [0, 1000])
def test_any_changed_byte_is_found(monkeypatch, few):
    monkeypatch.setattr(frame_block, "_MIN_ARRAY_FRAMES", few)
    payloads = [b"", b"one", b"three", b"x" * 30]
    data, begins, ends = joined(payloads)
    for at in range(len(data)):
        wrong = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert parse_frames(wrong, begins, ends, check=True) is None
        number = int(np.searchsorted(ends, at, side="right"))
        is_covered = at - begins[number] < 12
        for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            cut = parse_frame(wrong[begin:end], check=True)
            assert (cut is None) == (i == number)
            if i != number:
                assert cut == payloads[i]
        assert (parse_frames(wrong, begins, ends, check=False) is None) == is_covered


@pytest.mark.parametrize("few", [0, 1000])
def test_offsets_that_can_not_be_are_no_frames(monkeypatch, few):
    monkeypatch.setattr(frame_block, "_MIN_ARRAY_FRAMES", few)
    data, begins, ends = joined([b"a" * 20, b"b" * 20])
    for wrong_begins, wrong_ends in [
        (begins - 1, ends),
        (begins, ends + 1),
        (begins, ends - 1),
        (begins, begins + 15),
        (begins, begins),
        (ends, begins),
        (begins[:1], ends[1:]),
    ]:
        assert parse_frames(data, wrong_begins, wrong_ends, check=True) is None
    assert parse_frames(data, begins[:0], ends[:0], check=True) == []


def test_headers_of_many_lengths_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(frame_block, "HEADER_CACHE_SIZE", 8)
    monkeypatch.setattr(frame_block, "_headers", frame_block._Headers())
    payloads = [b"x" * n for n in range(50)]
    data, begins, ends = joined(payloads)
    assert parse_frames(data, begins, ends, check=True) == payloads
    assert len(frame_block._headers) <= 8


@pytest.mark.parametrize("payload", [b"", b"a", bytes(300)])
def test_one_valid_frame_is_told_from_everything_else(payload):
    whole = frame(payload)
    assert is_valid_frame(whole)
    for other in (b"", whole[:-1], whole + b"x", whole[1:], whole + whole):
        assert not is_valid_frame(other)
    for at in (0, 8, len(whole) - 1, 12):
        changed = bytearray(whole)
        changed[at] ^= 1
        assert not is_valid_frame(bytes(changed))


def test_a_frame_without_payload_may_be_the_last_one():
    data = frame(b"abc") + frame(b"")
    begins, ends = np.array([0, 19]), np.array([19, 35])
    assert parse_frames(data, begins, ends, check=True) == [b"abc", b""]
    assert parse_frames(frame(b""), begins[:1], np.array([16]), check=True) == [b""]
