"""JSON from outside is checked against a declared shape, and refused in one sentence."""

from __future__ import annotations

from typing import TypedDict

import pytest

from shardwriter.formats.json_shape import MAX_DEPTH, Count, Hex32, check, read


class Shard(TypedDict):
    records: Count
    crc32c: Hex32


def test_a_value_of_the_shape_comes_back_as_it_is():
    text = '{"records": 3, "crc32c": "0123abcd", "extra": [1]}'
    assert read(text, Shard) == {"records": 3, "crc32c": "0123abcd", "extra": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"records": "3", "crc32c": "0123abcd"}', r"\$\.records"),
        ('{"records": -1, "crc32c": "0123abcd"}', ">= 0"),
        ('{"records": true, "crc32c": "0123abcd"}', r"\$\.records"),
        ('{"records": 9223372036854775808, "crc32c": "0123abcd"}', r"\$\.records"),
        ('{"records": 3, "crc32c": "0123ABCD"}', r"\$\.crc32c"),
        ('{"records": 3}', "crc32c"),
        ("[1, 2]", "object"),
        ('{"records": 3, "records": 4, "crc32c": "0123abcd"}', "twice"),
        ('{"records": NaN, "crc32c": "0123abcd"}', "NaN"),
        ("{", "enclosed in double quotes"),
        ("[" * 100_000 + "]" * 100_000, "deep"),
    ],
)
def test_another_shape_is_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        read(text, Shard)


def test_what_nests_too_deep_is_refused_before_it_is_used():
    value: object = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(ValueError, match="deep"):
        check({"records": 1, "crc32c": "0123abcd", "more": value}, Shard)
