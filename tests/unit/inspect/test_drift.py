"""Drift between shards: found where it is, and never in random data."""

from __future__ import annotations

import numpy as np
import pytest

from shardwriter.formats import UNSET, encode_example
from shardwriter.inspect.drift import find_drift
from shardwriter.inspect.scan import PayloadStats


def shard(rows):
    stats = PayloadStats(features=True, label=None)
    stats.add([encode_example(row) for row in rows])
    return stats.features


def drift_of(shards):
    return find_drift([(i, f"s-{i}", shard(rows)) for i, rows in enumerate(shards)])


def random_rows(rng, num_rows):
    """Rows of many shapes: rare features, rare NaNs, heavy tails, few and many categories."""
    rows = []
    for _ in range(num_rows):
        row = {
            "normal": float(rng.normal()),
            "heavy": float(rng.pareto(1.1)),
            "id": int(rng.integers(1 << 40)),
            "class": int(rng.integers(1000)),
            "text": f"value {rng.integers(20)}",
            "name": "x" * int(rng.geometric(0.05)),
            "list": rng.integers(0, 9, rng.integers(0, 30)),
            "vector": np.full(8, rng.normal(), np.float32),
            "nan": float("nan") if rng.random() < 0.02 else 1.0,
            "maybe": UNSET if rng.random() < 0.3 else 1,
            "blob": b"\xff" if rng.random() < 0.01 else b"text",
        }
        if rng.random() < 0.05:
            row["rare"] = 1
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_rows", [5, 150])
def test_random_data_over_64_shards_have_no_drift(seed, num_rows):
    rng = np.random.default_rng(seed)
    assert drift_of([random_rows(rng, num_rows) for _ in range(64)]) == []


def normal(rng, mean=0.0, num_rows=300):
    return [{"x": float(v)} for v in rng.normal(mean, 1, num_rows)]


def test_a_few_records_of_another_length_where_it_is_fixed_elsewhere():
    rows = [[{"x": [0.5] * 8} for _ in range(200)] for _ in range(8)]
    for row in range(0, 200, 20):
        rows[3][row] = {"x": [0.5] * 9}
    (found,) = drift_of(rows)
    assert (found["kind"], found["shard_index"], found["expected"]) == ("length", 3, "8")
    assert found["detail"] == "8 to 9 values a record, always 8 in most shards"
    rare = [[{"x": [1] * (1 if (i + 97 * s) % 400 else 2)} for i in range(50)] for s in range(8)]
    assert drift_of(rare) == []  # one or two in all are where they are by chance


def only(found, kind, shards):
    assert [(d["kind"], d["shard_index"]) for d in found] == [(kind, i) for i in shards]
    assert all(d["path"] == f"s-{d['shard_index']}" and d["detail"] for d in found)
    return found


def test_another_distribution_of_numbers():
    rng = np.random.default_rng(0)
    shards = [normal(rng) for _ in range(8)]
    shards[5] = normal(rng, mean=1)
    only(drift_of(shards), "values", [5])


@pytest.mark.parametrize("num_shards", [2, 3, 4])
def test_the_others_are_not_blamed(num_shards):
    rng = np.random.default_rng(1)
    shards = [normal(rng) for _ in range(num_shards - 1)] + [normal(rng, mean=50)]
    only(drift_of(shards), "values", [num_shards - 1])


def test_integers_by_their_distribution():
    rng = np.random.default_rng(2)
    shards = [[{"x": int(v)} for v in rng.integers(0, 255, 500)] for _ in range(5)]
    shards[1] = [{"x": int(v)} for v in rng.integers(0, 2, 500)]  # divided by 255, and cut
    only(drift_of(shards), "values", [1])


@pytest.mark.parametrize(
    ("good", "bad", "kind"),
    [
        ({"x": 1, "y": 1}, {"x": 1}, "missing"),
        ({"x": 1}, {"x": 1.0}, "kind"),
        ({"x": [1, 2, 3]}, {"x": [1, 2, 3, 4]}, "length"),
        ({"x": 1}, {"x": UNSET}, "unset"),
        ({"x": "text"}, {"x": b"\xff\xfe"}, "dtype"),
        ({"x": 1.0}, {"x": float("nan")}, "values"),
        ({"x": "cat"}, {"x": "dog"}, "values"),
        (
            {"x": b"\xff\xd8\xff" + bytes(30)},
            {"x": b"\x89PNG\r\n\x1a\n" + bytes(25)},
            "image-format",
        ),
    ],
)
def test_what_one_shard_has_alone_is_named(good, bad, kind):
    shards = [[good] * 60 for _ in range(6)]
    shards[2] = [bad] * 60
    found = drift_of(shards)
    assert kind in {entry["kind"] for entry in found}
    assert {entry["shard_index"] for entry in found} == {2}


def test_presence_is_a_share():
    rng = np.random.default_rng(3)
    shards = [
        [{"x": 1, "y": 1} if rng.random() < 0.5 else {"x": 1} for _ in range(200)] for _ in "abcdef"
    ]
    shards[0] = [{"x": 1, "y": 1}] * 20 + [{"x": 1}] * 180
    (entry,) = only(drift_of(shards), "presence", [0])
    assert (entry["feature"], entry["found"]) == ("y", "10%")


def test_lengths_that_vary_are_compared_by_their_means():
    rng = np.random.default_rng(4)

    def shard_of(most):
        return [{"x": [1] * int(n)} for n in rng.integers(1, most, 200)]

    shards = [shard_of(10) for _ in range(6)]
    shards[3] = shard_of(30)
    only(drift_of(shards), "length", [3])


def test_one_record_of_another_kind_is_enough():
    shards = [[{"x": 1}] * 500 for _ in range(4)]
    shards[1][77] = {"x": "1"}
    (entry,) = only(drift_of(shards), "kind", [1])
    assert (entry["expected"], entry["found"]) == ("int64", "bytes")


def test_empty_shards_and_single_shards_do_not_drift():
    rows = [{"x": 1}] * 40
    assert drift_of([rows]) == []
    assert drift_of([rows, [], rows]) == []
    assert find_drift([]) == []


def test_few_are_named_where_all_differ():
    shards = [[{"x": float(i)}] * 100 for i in range(64)]
    found = drift_of(shards)
    assert 1 <= len(found) <= 16
