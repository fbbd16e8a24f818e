"""What a scan of one file keeps of its labels."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_sets import scan_of

from shardwriter.formats import UNSET, encode_example
from shardwriter.formats.example_columns import decode_columns
from shardwriter.inspect import label_scan
from shardwriter.inspect.label_scan import LabelScan, sequence_limit
from shardwriter.schema.labels import LabelCounts


def told(scan):
    """Return all that a scan knows, whatever numbers its labels have."""
    numbers = [*scan.names, None]
    return {
        "records": (scan.num_records, scan.num_unlabelled, scan.too_many),
        "counts": dict(zip(scan.names, scan.counts.tolist(), strict=True)),
        "with": dict(zip(scan.names, scan.num_with.tolist(), strict=True)),
        "first": dict(zip(scan.names, scan.num_first.tolist(), strict=True)),
        "same": scan.num_same,
        "ends": [None if end is None else scan.names[end] for end in (scan.first, scan.last)],
        "sequence": [numbers[code] for code in scan.sequence],
    }


def examples(values):
    """Return records; None is no feature."""
    return [encode_example({} if v is None else {"y": v}) for v in values]


def scan_payloads(payloads, cuts=(), max_sequence=10):
    scan = LabelScan("y", max_sequence)
    bounds = [0, *sorted(cuts), len(payloads)]
    for start, end in pairwise(bounds):
        rows = payloads[start:end]
        scan.add(decode_columns(rows).get("y") if rows else None, len(rows))
    return scan


def test_counts_order_and_what_has_no_label():
    scan = scan_payloads(examples([b"a", None, [b"b", b"a", b"b"], UNSET, b"b", [], b"b"]))
    assert told(scan) == {
        "records": (7, 3, False),
        "counts": {"a": 2, "b": 4},
        "with": {"a": 2, "b": 3},
        "first": {"a": 1, "b": 3},
        "same": 2,
        "ends": ["a", "b"],
        "sequence": ["a", None, "b", None, "b", None, "b"],
    }
    assert scan.num_labelled == 4


def test_several_numbers_in_a_row():
    scan = LabelScan("y")
    scan.add(np.array([[3, 1, 3], [1, 1, 1]]), 2)
    scan.add(np.empty((2, 0), np.int64), 2)
    scan.add(None, 1)
    assert told(scan)["counts"] == {"3": 2, "1": 4}
    assert told(scan)["with"] == {"3": 1, "1": 2}
    assert told(scan)["first"] == {"3": 1, "1": 1}
    assert (scan.num_records, scan.num_unlabelled) == (5, 3)


rows = st.one_of(
    st.lists(st.none() | st.integers(-3, 3) | st.lists(st.integers(0, 2), max_size=2), max_size=20),
    st.lists(st.none() | st.integers(0, 3), max_size=20),
    st.lists(st.sampled_from([b"a", "a", "é", b"\xff", "", None, UNSET]), max_size=20),
    st.lists(st.sampled_from([0.5, -1.25, math.nan, math.inf, 3.0, [0.5, 1.5]]), max_size=20),
)


@given(rows, st.data())
def test_labels_are_those_of_a_manifest(values, data):
    """Read back from records, in batches of any size, they are spelled and counted the same."""
    counts = LabelCounts("y", 1)
    for index, value in enumerate(values):
        if value is not None and value is not UNSET:
            counts.add(index, value)
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=3))
    scan = scan_payloads(examples(values), cuts)
    assert told(scan)["counts"] == (counts.to_json() or {"counts": {}})["counts"]


@pytest.mark.parametrize("value", [0.1, 1e-5, 1e20, 2.0, 1 / 3, 123456.0])
def test_a_float_is_spelled_by_the_digits_it_was_given(value):
    as_float32 = float(f"{value:.7g}")
    assert scan_payloads(examples([as_float32])).names == [str(as_float32)]


@given(rows, st.data())
def test_pieces_make_the_whole(data_rows, data):
    """Merged in any grouping, pickled or not."""
    payloads = examples(data_rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payloads)), min_size=2, max_size=2)))
    bounds = [0, *cuts, len(payloads)]
    pieces = [
        scan_payloads(payloads[a:b], data.draw(st.sampled_from([(), (1,)])) if b > a else ())
        for a, b in pairwise(bounds)
    ]
    if data.draw(st.booleans()):
        pieces[1].finish()
    if data.draw(st.booleans()):
        pieces = pickle.loads(pickle.dumps(pieces))
    a, b, c = pieces
    if data.draw(st.booleans()):
        b.merge(c)
        a.merge(b)
    else:
        a.merge(b)
        a.merge(c)
    assert told(a) == told(scan_payloads(payloads))


def test_a_scan_that_was_sent_goes_on():
    scan = scan_of([5, 5, 7])
    again = pickle.loads(pickle.dumps(scan))
    done = scan_of([5, 5, 7])
    done.finish()
    assert told(again) == told(done) == told(scan)
    for each in (scan, again, done):
        each.add(np.array([[7], [300]]), 2)
    assert told(again) == told(done) == told(scan)
    assert again.num_same == 2


def test_too_many_values_are_no_labels(monkeypatch):
    monkeypatch.setattr(label_scan, "MAX_LABELS", 3)
    assert not scan_of([1, 2, 3]).too_many
    merged = scan_of([1, 2])
    merged.merge(scan_of([3, 4]))
    texts = LabelScan("y")
    texts.add([[b"a"], None, [b"b", b"c"], [b"d"], [b"e"]], 5)
    for scan, num_records, num_unlabelled in [
        (scan_of([1, 2, 3, 4]), 4, 0),
        (scan_of([1, 2, 3, 4], batch=2), 4, 0),
        (merged, 4, 0),
        (texts, 5, 1),
    ]:
        assert scan.too_many
        assert (scan.names, len(scan.sequence)) == ([], 0)
        scan.add(None, 2)
        scan.add([[b"x"], UNSET], 2)
        scan.merge(scan_of([1]))
        assert scan.too_many
        assert (scan.num_records, scan.num_unlabelled) == (num_records + 5, num_unlabelled + 3)


def test_the_sequence_is_bounded_and_small_when_sent():
    scan = scan_of(np.arange(20_000) % 100, max_sequence=5000)
    assert len(scan.sequence) == 5000
    assert scan.num_records == 20_000
    assert len(pickle.dumps(scan)) < 5000 + 4000
    assert sequence_limit(1) == 65_536
    assert 64 <= sequence_limit(100_000) < 1000
    assert sequence_limit(0) == 65_536


def test_scans_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="can not be merged"):
        LabelScan("a").merge(LabelScan("b"))
    with pytest.raises(ValueError, match="can not be merged"):
        LabelScan("a", 5).merge(LabelScan("a"))
