"""Columns against rows: the same bytes, the same values, the same refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.errors import FeatureError, WireError
from shardwriter.formats import UNSET, decode_example, encode_example
from shardwriter.formats.example_columns import Column, decode_columns, encode_columns

QUICK = settings(deadline=None, max_examples=150)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 20000)
FLOAT = st.floats(-3e38, 3e38) | st.sampled_from([np.inf, np.nan])


def rows_of(columns):
    """Take columns apart into rows, the slow way."""
    plain = {}
    for name, column in columns.items():
        values, unset = column if isinstance(column, Column) else (column, None)
        plain[name] = [
            UNSET if unset is not None and unset[row] else values[row] for row in range(len(values))
        ]
    num_rows = len(next(iter(plain.values()), []))
    return [{name: values[row] for name, values in plain.items()} for row in range(num_rows)]


def check(columns, kinds=None):
    expected = [encode_example(row, kinds) for row in rows_of(columns)]
    assert encode_columns(columns, kinds) == expected
    return expected


def same_values(columns, rows):
    """Columns hold what `decode_example` gives for each row."""
    assert set(columns) == {name for row in rows for name in row}
    for name, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            if name not in row:
                assert value is None
            elif row[name] is None:
                assert value is UNSET
            elif isinstance(row[name], list):
                assert value == row[name]
            else:
                assert value.dtype == row[name].dtype
                assert value.tobytes() == row[name].tobytes()


@st.composite
def batches(draw):
    num_rows = draw(st.integers(0, 12))

    def rows(items):
        return st.lists(items, min_size=num_rows, max_size=num_rows)

    def arrays(items, dtypes):
        shape = st.sampled_from([(), (1,), (3,), (2, 2), (0,)])
        return st.tuples(shape, st.sampled_from(dtypes)).flatmap(
            lambda made: st.lists(
                items,
                min_size=num_rows * int(np.prod(made[0])),
                max_size=num_rows * int(np.prod(made[0])),
            ).map(lambda flat: np.array(flat).astype(made[1]).reshape(num_rows, *made[0]))
        )

    missing = st.sampled_from([None, UNSET])
    value = INT64 | FLOAT | st.text("aé") | st.binary(max_size=3) | st.lists(INT64, max_size=3)
    column = st.one_of(
        arrays(st.integers(-(2**31), 2**31 - 1), ["?", "i1", "u2", "i4", ">i8", "f4", "f8"]),
        arrays(st.integers(0, 127), ["u1", "i8", "f2"]),
        arrays(st.floats(-1e30, 1e30), ["f4", "f8", ">f4"]),
        arrays(st.text("abé", max_size=3), ["U3"]),
        rows(INT64),
        rows(FLOAT),
        rows(st.booleans() | st.integers(0, 3)),
        rows(st.text("aé\U0001f600", max_size=200) | st.binary(max_size=3)),
        rows(INT64 | missing),
        rows(FLOAT | missing),
        rows(st.text("ab") | missing),
        rows(value | missing),
        rows(missing),
    )
    masked = st.tuples(column, rows(st.booleans())).map(
        lambda made: Column(made[0], np.array(made[1], np.bool_))
    )
    return draw(st.dictionaries(st.text("ab", max_size=3), column | masked, max_size=4))


@QUICK
@given(batches())
def test_columns_are_rows(columns):
    payloads = check(columns)
    same_values(decode_columns(payloads), [decode_example(payload) for payload in payloads])


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([1, 2, 300], "float"),
        ([1, 2.5, True], "float"),
        (np.array([1, 2**60 + 1]), "float"),
        (np.array([[True], [False]]), "float"),
        ([True, 2], "int64"),
        ([[], [1]], "int64"),
        ([[], []], "bytes"),
        (np.array([b"a", b"bc"]), "bytes"),
        (["a", b"b", None], "bytes"),
        (np.array(["a", 1, None], object), None),
        (np.zeros((3, 20_000), np.float32), None),
        (np.full((2, 20_000), 300), None),
        (np.zeros((2, 0), np.int64), None),
        (np.zeros((0, 3)), None),
        ([np.arange(2), np.arange(3)], None),
        (np.array([["a", "b"], ["c", ""]]), None),
        (np.array([0x7FA00001, 1], np.uint32).view(np.float32), None),
    ],
)
def test_columns_are_rows_with_a_plan(column, kind):
    check({"x": column}, {"x": kind} if kind else None)


def test_no_columns_no_rows():
    assert encode_columns({}) == []
    assert encode_columns({"a": []}) == []
    assert decode_columns([]) == {}


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ([1, 2**63], r"outside int64.*row 1"),
        ([0.5, 1e39], r"float32.*row 1"),
        (np.array([0.5, 1e39]), r"float32.*row 1"),
        (np.array([1, 2**63], np.uint64), r"outside int64.*row 1"),
        (["a", "\ud800"], r"surrogate.*row 1"),
        ([None, {1}], r"set"),
        (np.array([b"a", b"b"]), "numpy bytes"),
        (np.array(["2020-01-01"] * 2, "M8[D]"), "datetime64"),
        (np.ma.masked_array([1, 2], [False, True]), r"masked.*row 1"),
        ([1, 2, 3], "3 rows, but 2"),
        ("ab", "a column is of type str"),
        (3, "a column is of type int"),
        (np.array(3), "0-d"),
        (Column([1, 2], np.array([1, 0])), "unset is int64"),
        (Column([1, 2], np.array([True])), "unset is bool"),
    ],
)
def test_refused(column, says):
    with pytest.raises(FeatureError, match=says) as caught:
        encode_columns({"a": [1, 2], "x": column})
    assert caught.value.feature == "x"


def test_decoded_columns_are_arrays_where_they_can_be():
    n = 50
    columns = {
        "float": np.random.default_rng(0).random((n, 3), np.float32),
        "int": np.arange(n) * 1000 - 500,
        "text": [f"row {row}" for row in range(n)],
        "ragged": [np.arange(row % 5 + 1) * 100 for row in range(n)],
        "maybe": [UNSET if row % 2 else row for row in range(n)],
    }
    decoded = decode_columns(check(columns))
    assert list(decoded) == sorted(columns)
    assert decoded["float"].dtype == np.float32
    assert np.array_equal(decoded["float"], columns["float"])
    assert decoded["int"].dtype == np.int64
    assert decoded["int"].shape == (n, 1)
    assert np.array_equal(decoded["int"][:, 0], columns["int"])
    assert decoded["text"] == [[text.encode()] for text in columns["text"]]
    assert all(map(np.array_equal, decoded["ragged"], columns["ragged"]))
    assert decoded["maybe"][1] is UNSET
    assert decoded["maybe"][2].tolist() == [2]


def test_absent_is_none_and_unset_is_unset():
    payloads = [encode_example(row) for row in ({"a": 1}, {"b": UNSET}, {"a": UNSET, "b": "x"})]
    decoded = decode_columns(payloads)
    assert decoded["a"][0].tolist() == [1]
    assert decoded["a"][1] is None
    assert decoded["a"][2] is UNSET
    assert decoded["b"][:2] == [None, UNSET]
    assert decoded["b"][2] == [b"x"]
    assert encode_columns(decoded) == payloads


UNUSUAL = [
    "0a0e0a0c0a0361676512051a030a010d",  # the usual form
    "0a0d0a0b0a0361676512041a02080d",  # not packed
    "0a0f0a0d0a0361676512061a040a01080801",  # broken sizes
    "0a100a0e0a0361676512071a050a010108028001"[:-2],
    "0a00",
    "",
    "0a070a050a01611200",
]


@QUICK
@given(
    st.lists(st.sampled_from([bytes.fromhex(u) for u in UNUSUAL]), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15), st.integers(0, 255)), max_size=2),
)
def test_columns_decode_as_rows_do(payloads, edits):
    for row, at, byte in edits:
        if row < len(payloads) and at < len(payloads[row]):
            payloads[row] = payloads[row][:at] + bytes([byte]) + payloads[row][at + 1 :]
    try:
        rows = [decode_example(payload) for payload in payloads]
    except WireError:
        with pytest.raises(WireError) as caught:
            decode_columns(payloads)
        with pytest.raises(WireError):
            decode_example(payloads[caught.value.record_index])
        return
    same_values(decode_columns(payloads), rows)


@pytest.mark.parametrize("second", [20_000, 19_999])
def test_lists_that_are_too_long_to_be_joined_read_alike(second):
    rows = [np.arange(size) % 300 for size in (20_000, second)]
    found = decode_columns([encode_example({"x": row}) for row in rows])["x"]
    assert all(np.array_equal(a, b) for a, b in zip(found, rows, strict=True))
