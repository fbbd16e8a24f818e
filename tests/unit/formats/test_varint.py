"""Runs of varints: read at once as they are read one by one, over the bounds of chunks too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.errors import WireError
from shardwriter.formats.varint import decode_varints, encode_varint, encode_varints, read_varint

CHUNK = 1 << 14


def one_by_one(data, offset=0):
    at, values = 0, []
    while at < len(data):
        try:
            value, at = read_varint(data, at, len(data))
        except WireError as error:
            error.offset += offset
            raise
        values.append(value)
    return np.array(values, np.uint64).view(np.int64)


def decoded(data, offset=0):
    return decode_varints(np.frombuffer(data, np.uint8), offset=offset)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=12), max_size=40), st.integers(0, 3 * CHUNK))
def test_any_bytes_are_read_as_one_by_one(pieces, num_before):
    data = bytes(num_before % (CHUNK + 30)) + b"".join(pieces)
    try:
        wanted = one_by_one(data[-500:])
    except WireError:
        wanted = None
    if wanted is None:
        with pytest.raises(WireError):
            decoded(data)
    else:
        found = decoded(data)
        assert found.dtype == np.int64
        assert np.array_equal(found[found.size - wanted.size :], wanted)
        assert found.size == len(data) - len(data[-500:]) + wanted.size


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 63), st.integers(-(2**63), 2**63 - 1)), max_size=60),
    st.integers(0, 12),
)
def test_what_was_encoded_comes_back(parts, rest):
    values = [value >> bits for bits, value in parts]
    data = b"".join(map(encode_varint, values))
    assert decoded(data).tolist() == values
    # Once more where a chunk ends in their midst.
    before = CHUNK - min(len(data), CHUNK) // 2 - rest
    assert decoded(bytes(before) + data).tolist() == [0] * before + values


@pytest.mark.parametrize("bits", [7, 8, 14, 15, 21, 22, 28, 29, 35, 56, 57, 63])
def test_many_values_of_every_size(bits):
    values = np.random.default_rng(bits).integers(-1 if bits == 63 else 0, 1 << (bits - 1), 50_000)
    assert np.array_equal(decode_varints(encode_varints(values)), values)


@pytest.mark.parametrize("before", [0, 5, CHUNK - 12, CHUNK - 11, CHUNK - 1, CHUNK, CHUNK + 3])
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"\x80", "cut off"),
        (b"\xff" * 10, "cut off"),
        (b"\xff" * 10 + b"\x01", "longer than 10 bytes"),
        (b"\xff" * 40 + b"\x01", "longer than 10 bytes"),
    ],
)
def test_errors_say_where(before, bad, told):
    with pytest.raises(WireError, match=told) as caught:
        decoded(bytes(before) + bad, offset=7)
    assert caught.value.offset == 7 + before


def test_what_is_read_is_its_own():
    data = np.arange(100, dtype=np.uint8)
    values = decode_varints(data)
    assert values.flags.writeable
    assert not np.shares_memory(values, data)
