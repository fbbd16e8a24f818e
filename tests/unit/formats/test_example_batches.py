"""Batches read together: what is read is right and surely an Example, whatever they mix."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.errors import WireError
from shardwriter.formats import UNSET, decode_example, encode_example, payload_kind
from shardwriter.formats.example_columns import (
    decode_columns,
    decode_plain_parts,
    in_rows,
    read_batch,
    to_columns,
)
from shardwriter.formats.example_wire import decode_plain_example
from shardwriter.schema.decode import ExampleDecoder

VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 300),
    st.floats(width=32, allow_nan=False),
    st.sampled_from(["a", b"\xff" * 3, "x" * 60, "y" * 300, UNSET]),
    st.lists(st.integers(0, 300), min_size=1, max_size=4),
    st.lists(st.sampled_from(["p", "qq"]), min_size=1, max_size=3),
)
# An odd name, and one that makes an entry longer than 127 bytes.
NAMES = st.sampled_from(["a", "b", "feature", "gr\u00fcn", "", "long" * 40])
ODD = [
    b"",
    b"text",
    bytes.fromhex("0a00"),
    bytes.fromhex("0a0d0a0b0a0361676512041a02080d"),  # numbers that are not packed
    bytes.fromhex("0a0b0a090a016112041a020a00"),  # an empty packed list
    bytes.fromhex("0a090a070a016112021a00"),  # an empty list
    bytes.fromhex("0a080a060a0161120178"),
    encode_example({"a": 1}) + bytes.fromhex("7a0178"),  # an unknown field behind it
    encode_example({"a": 1})[:-1],
]


def same(a, b):
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a is b or (isinstance(a, list) and a == b)


@settings(max_examples=120)
@given(
    rows=st.lists(
        st.one_of(st.dictionaries(NAMES, VALUES, max_size=5), st.sampled_from(ODD)),
        min_size=1,
        max_size=30,
    ),
    repeat=st.integers(1, 8),
)
def test_batch_decoding_equals_single_decoding(rows, repeat):
    payloads = [encode_example(row) if isinstance(row, dict) else row for row in rows] * repeat
    parts, plain = decode_plain_parts(payloads)
    columns = to_columns(parts, len(payloads))
    cells = {name: list(in_rows(column)) for name, column in columns.items()}
    for row, payload in enumerate(payloads):
        found = {name: values[row] for name, values in cells.items() if values[row] is not None}
        if not plain[row]:
            assert found == {}
            continue
        assert payload_kind(payload) == "Example"
        expected = decode_example(payload)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert same(UNSET if value is None else value, found[name])


def test_mixed_rows_are_decoded_as_a_batch():
    rows = []
    for i in range(200):
        row = {"id": i * 1000, "text": "x" * (i % 200), "list": [1] * (i % 4 + 1), "float": 0.5}
        if i % 3:
            row["maybe"] = [0.5, 1.5]
        if i % 5 == 0:
            row["kinds"] = 1 if i % 2 else "one"
        rows.append(encode_example(row))
    parts, good = read_batch(rows)
    assert good.all()
    assert set(parts) == {"id", "text", "list", "float", "maybe", "kinds"}
    assert parts["kinds"].rows.tolist() == list(range(0, 200, 5))


@pytest.mark.parametrize("order", ["forwards", "backwards", "mixed"])
def test_entries_come_in_any_order(order):
    def entry(name, value):
        payload = encode_example({name: value})
        return payload[2:]

    payloads = []
    for i in range(40):
        entries = [entry("a", i), entry("bb", f"text {i}"), entry("c", [0.5, float(i)])]
        if order == "backwards" or (order == "mixed" and i % 2):
            entries.reverse()
        body = b"".join(entries)
        payloads.append(bytes([0x0A, len(body)]) + body)
    parts, plain = decode_plain_parts(payloads)
    columns = to_columns(parts, len(payloads))
    assert plain.all()
    assert columns["a"][:, 0].tolist() == list(range(40))
    assert list(columns["bb"]) == [b"text %d" % i for i in range(40)]
    assert columns["c"].shape == (40, 2)


def test_a_repeated_name_is_decoded_one_by_one():
    once, other = (encode_example({"a": i})[2:] for i in (1, 2))
    payload = bytes([0x0A, len(once + other)]) + once + other
    assert decode_plain_example(payload) is None
    _, plain = decode_plain_parts([payload] * 20)
    assert not plain.any()
    assert decode_columns([payload] * 20)["a"][:, 0].tolist() == [2] * 20


@pytest.mark.parametrize("at", range(20))
def test_one_changed_byte_is_never_read_wrong(at):
    """Among many rows of one layout, one that is damaged in the head of an entry."""
    payloads = [encode_example({"name": 300 + i, "text": "abc"}) for i in range(30)]
    for byte in (0x00, 0x08, 0x0A, 0x7F, 0x80, 0xFF):
        damaged = payloads[13][:at] + bytes([byte]) + payloads[13][at + 1 :]
        batch = [*payloads[:13], damaged, *payloads[14:]]
        try:
            expected = decode_example(damaged)
        except WireError:
            with pytest.raises(WireError) as caught:
                decode_columns(batch)
            assert caught.value.record_index == 13
            continue
        columns = decode_columns(batch)
        found = {n: c[13] for n, c in columns.items() if c[13] is not None}
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert same(UNSET if value is None else value, found[name])


def test_a_value_takes_no_place_in_the_rows_that_lack_it():
    """Many features, each of one record: as columns they would take rows times features."""
    payloads = [encode_example({f"x{i}": i, "y": i}) for i in range(2000)]
    wide = encode_example({f"z{i}": i for i in range(20_000)})
    parts, plain = decode_plain_parts([*payloads, wide])
    assert plain.all()
    assert sum(len(part.rows) for part in parts.values()) == 2 * 2000 + 20_000
    assert (parts["x7"].rows.tolist(), parts["x7"].cells[0].tolist()) == ([7], [7])
    tracemalloc.start()
    try:
        examples = ExampleDecoder({}).examples([*payloads, wide])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert examples[7] == {"x7": 7, "y": 7}
    assert len(examples[-1]) == 20_000
    assert peak < 100 << 20
