"""How evenly shards are filled."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.inspect.document import balance_json, balance_text, worst_balance


def balance(*num_records: int, num_bytes: list[int] | None = None) -> dict:
    paths = [f"s{shard}" for shard in range(len(num_records))]
    return balance_json(paths, num_records, num_bytes or [10 * n for n in num_records])


def test_the_spread_and_the_worst_shards() -> None:
    found = balance(4, 2, 6, 4, num_bytes=[1, 1, 1, 5])
    assert found["records"] == {
        "largest": "s2",
        "max": 6,
        "mean": 4.0,
        "min": 2,
        "smallest": "s1",
        "std": pytest.approx(2**0.5),
    }
    assert (found["records_max_over_mean"], found["bytes_max_over_mean"]) == (1.5, 2.5)
    assert found["records_cv"] == pytest.approx(2**0.5 / 4)
    assert found["bytes"]["largest"] == "s3"
    assert found["bytes_cv"] == pytest.approx(3**0.5 / 2)
    assert balance_text(found) == "balance 1.50 (bytes 2.50)"


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_it_is_what_statistics_says(numbers: list[int]) -> None:
    found = balance(*numbers)
    mean = statistics.fmean(numbers)
    assert found["records"]["mean"] == pytest.approx(mean)
    assert found["records"]["std"] == pytest.approx(statistics.pstdev(numbers), rel=1e-9, abs=1e-9)
    if sum(numbers):
        assert found["records_max_over_mean"] == pytest.approx(max(numbers) / mean)
        assert found["records_cv"] == pytest.approx(
            statistics.pstdev(numbers) / mean, rel=1e-9, abs=1e-12
        )


@pytest.mark.parametrize("numbers", [(), (0,), (0, 0, 0), (7,), (3, 3, 3)])
def test_nothing_and_equal_shards_are_in_balance(numbers: tuple[int, ...]) -> None:
    found = balance(*numbers)
    assert (found["records_max_over_mean"], found["records_cv"]) == (1.0, 0.0)
    assert found["bytes_max_over_mean"] == 1.0
    assert found["records"]["largest"] == ("s0" if numbers else None)
    assert balance_text(found) == "balance 1.00 (bytes 1.00)"


def test_an_empty_shard_is_named() -> None:
    found = balance(0, 4)
    assert found["records"]["smallest"] == "s0"
    assert (found["records_max_over_mean"], found["records_cv"]) == (2.0, 1.0)


def test_the_worst_of_several_sets() -> None:
    found = worst_balance(
        [balance(1, 3, num_bytes=[5, 5]), balance(2, 2, num_bytes=[1, 9]), balance()]
    )
    assert (found["records_max_over_mean"], found["bytes_max_over_mean"]) == (1.5, 1.8)
    assert (found["records"]["largest"], found["bytes"]["smallest"]) == ("s1", "s0")
    assert worst_balance([]) == balance()
    assert worst_balance([balance(4, 4)]) == balance(4, 4)


def test_numbers_that_do_not_go_with_the_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="1 shards, but 2 numbers"):
        balance_json(["a"], [1, 2], [1])
