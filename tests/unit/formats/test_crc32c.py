"""CRC-32C and its mask against published vectors and a bit-by-bit model."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.formats.crc32c import (
    combine_crc32c,
    crc32c,
    extend_crc32c,
    mask_crc32c,
    masked_crc32c,
)

# RFC 3720 B.4
RFC_3720 = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


def crc32c_by_bits(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(("data", "expected"), RFC_3720)
def test_rfc_3720_vectors(data, expected):
    assert crc32c(data) == expected


@given(st.binary(max_size=100))
def test_equals_the_definition(data):
    assert crc32c(data) == crc32c_by_bits(data)


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_extending_piece_by_piece_equals_the_whole(pieces):
    crc = 0
    for piece in pieces:
        crc = extend_crc32c(crc, piece)
    assert crc == crc32c(b"".join(pieces))


@pytest.mark.parametrize(
    ("data", "masked"),
    [(bytes(32), 0x0FD7FFFA), (b"\xff" * 32, 0xF909B029), (b"foo", 0xFEBE8A61)],
)
def test_masked_vectors(data, masked):
    assert masked_crc32c(data) == masked


@given(st.integers(0, 2**32 - 1))
def test_mask_can_be_undone(crc):
    rotated = (mask_crc32c(crc) - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc


def test_vectors_of_the_test_data(data_dir):
    vectors = json.loads((data_dir / "_vectors" / "vectors.json").read_text())
    assert vectors["crc32c"]
    for vector in vectors["crc32c"]:
        assert crc32c(bytes.fromhex(vector["hex"])) == int(vector["crc"], 16), vector["name"]
    assert vectors["masked_crc32c"]
    for vector in vectors["masked_crc32c"]:
        assert masked_crc32c(bytes.fromhex(vector["hex"])) == int(vector["masked"], 16)


@given(st.binary(max_size=40), st.binary(max_size=300))
def test_the_crc_of_both_parts_follows_from_those_of_each(first, second):
    combined = combine_crc32c(crc32c(first), crc32c(second), len(second))
    assert combined == crc32c(first + second)


def test_parts_of_many_bytes_are_combined():
    first, second = bytes(range(256)), b"x" * 70_001
    assert combine_crc32c(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
