"""Shares: every record, no overlap, equal steps, and any number of ranks goes on from anywhere."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.dataset.permutation import Permutation
from shardwriter.dataset.rank_partition import (
    RankPartition,
    Token,
    partition_for_rank,
    worker_batches,
)
from shardwriter.errors import OptionError, RunChanged, UnequalSteps
from shardwriter.inspect.split_plan import plan_json
from shardwriter.inspect.split_policies import PlanOptions

POLICIES = ("drop", "pad", "wrap", "error")
MAX_RECORDS = 200
WORLDS = range(1, 9)
WORKERS = range(5)


def shares(num_records, world, uneven, consumed=0):
    """The shares of all ranks, or None where each of them refuses."""
    found, refused = [], 0
    for rank in range(world):
        try:
            found.append(RankPartition(num_records, world, rank, uneven, consumed))
        except UnequalSteps:
            refused += 1
    assert refused in (0, world), "some ranks refuse, and the others would wait for them"
    return found or None


def expected_samples(num_records, world, uneven, consumed):
    """T by the definition, one sample at a time; None where it is refused."""
    remaining = num_records - consumed
    if uneven == "drop":
        return None if num_records < world else len(range(world, remaining + 1, world))
    if uneven == "error" and remaining % world:
        return None
    return len(range(0, remaining, world))


def test_every_share_of_up_to_200_records_and_8_ranks():
    for n, world, uneven in itertools.product(range(MAX_RECORDS + 1), WORLDS, POLICIES):
        for consumed in sorted({0, n // 3, max(0, n - 1), n}):
            ranks = shares(n, world, uneven, consumed)
            samples = expected_samples(n, world, uneven, consumed)
            if samples is None:
                assert ranks is None
                continue
            assert {share.num_samples for share in ranks} == {samples}
            draws = np.stack([share.draws() for share in ranks])
            # Rank by rank in turn, that is the row of draws from c on without a gap.
            flat = draws.T.reshape(-1)
            assert np.array_equal(flat, np.arange(consumed, consumed + samples * world))
            records = np.stack(
                [share.records(row, None) for share, row in zip(ranks, draws, strict=True)]
            )
            pads = np.stack([share.is_pad(row) for share, row in zip(ranks, draws, strict=True)])
            once = records[draws < n]
            assert len(set(once.tolist())) == once.size, "a record is seen twice"
            remaining = n - consumed
            if uneven == "drop":
                assert once.size == draws.size == remaining - remaining % world
            else:
                assert once.size == remaining
            if uneven == "pad":
                assert np.array_equal(pads, draws >= n)
                assert pads.sum() == -remaining % world
            else:
                assert not pads.any()
            if uneven == "error":
                assert draws.size == remaining
            # What is added begins the epoch's order again.
            added = flat[flat >= n]
            assert np.array_equal(ranks[0].records(added, None), np.arange(n, n + added.size) % n)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_cover_a_share_and_workers_cover_the_batches(drop_last):
    for n, batch_size in itertools.product(range(MAX_RECORDS + 1), (1, 2, 3, 7, 32, 201)):
        share = RankPartition(n)
        num_batches = share.num_batches(batch_size, drop_last)
        batches = [list(share.batch(j, batch_size)) for j in range(num_batches)]
        assert all(len(batch) == batch_size for batch in batches[:-1])
        whole = n - n % batch_size if drop_last else n
        assert list(itertools.chain(*batches)) == list(range(whole))
        assert all(batches)
        assert not share.batch(share.num_batches(batch_size), batch_size)
        for num_workers, first in itertools.product(WORKERS, (0, 1, num_batches)):
            lanes = [
                list(worker_batches(k, num_workers, num_batches, first))
                for k in range(max(1, num_workers))
            ]
            # A loader takes one of each worker in turn, and gets them in order.
            turns = itertools.chain(*itertools.zip_longest(*lanes))
            assert [j for j in turns if j is not None] == list(range(first, num_batches))


def read(ranks, num_workers, batch_size, steps):
    """What the ranks of a job have read after some steps, through the batches of its workers."""
    taken = []
    for share in ranks:
        num_batches = min(steps, share.num_batches(batch_size))
        for worker in range(max(1, num_workers)):
            for j in worker_batches(worker, num_workers, num_batches):
                span = share.batch(j, batch_size)
                taken.append(share.draws(span.start, span.stop))
    return np.concatenate(taken) if taken else np.empty(0, np.int64)


@pytest.mark.parametrize("uneven", ["drop", "pad", "wrap"])
def test_resume_under_other_numbers_after_every_step(uneven):
    """Interrupted anywhere, gone on with by another job: each record once, as without a pause."""
    jobs = [(1, 0, 1), (2, 1, 3), (3, 4, 2), (4, 2, 5), (5, 3, 1), (6, 0, 4), (7, 2, 2), (8, 4, 3)]
    for n in [*range(40), 64, 97, 128, 150, 199, 200]:
        for before, after in itertools.product(jobs, repeat=2):
            world, workers, batch_size = before
            ranks = shares(n, world, uneven)
            others = after[0]
            if ranks is None or shares(n, others, uneven) is None:
                continue
            num_batches = ranks[0].num_batches(batch_size)
            for steps in {0, 1, num_batches // 2, max(0, num_batches - 1), num_batches}:
                consumed = ranks[0].consumed_after(steps, batch_size)
                assert {share.consumed_after(steps, batch_size) for share in ranks} == {consumed}
                done = read(ranks, workers, batch_size, steps)
                assert np.array_equal(np.sort(done[done < n]), np.arange(consumed))
                rest = shares(n, others, uneven, consumed)
                left = read(rest, after[1], after[2], n + 1)
                lost = (n - consumed) % others if uneven == "drop" else 0
                assert np.array_equal(np.sort(left[left < n]), np.arange(consumed, n - lost))


def test_every_step_of_every_small_epoch():
    """All n to 24, worlds, policies, batch sizes and steps; then on with every other world."""
    for n, world, uneven in itertools.product(range(25), WORLDS, POLICIES):
        ranks = shares(n, world, uneven)
        if ranks is None:
            continue
        for batch_size in (1, 2, 3, 5):
            for steps in range(ranks[0].num_batches(batch_size) + 2):
                consumed = ranks[0].consumed_after(steps, batch_size)
                done = read(ranks, 2, batch_size, steps)
                assert np.array_equal(np.sort(done[done < n]), np.arange(consumed))
                for other in WORLDS:
                    rest = shares(n, other, uneven, consumed)
                    if rest is not None:
                        first = np.sort(np.concatenate([share.draws(0, 1) for share in rest]))
                        count = first.size
                        assert np.array_equal(first, np.arange(consumed, consumed + count))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_shuffled_epoch_of_millions_is_a_bijection_too(data):
    n = data.draw(st.integers(1, 1 << 40))
    world = data.draw(st.integers(1, 4096))
    order = Permutation(n, data.draw(st.integers(0, 99)), data.draw(st.integers(0, 9)))
    consumed = data.draw(st.integers(0, n))
    uneven = data.draw(st.sampled_from(["pad", "wrap"]))
    begin = data.draw(st.integers(0, max(0, -(-(n - consumed) // world) - 1)))
    chosen = data.draw(st.lists(st.integers(0, world - 1), min_size=1, max_size=5, unique=True))
    ranks = [RankPartition(n, world, rank, uneven, consumed) for rank in chosen]
    draws = np.concatenate([share.draws(begin, begin + 3) for share in ranks])
    expected = [consumed + t * world + r for r in chosen for t in range(begin, begin + 3)]
    last = ranks[0].num_samples
    expected = [q for q in expected if (q - consumed) // world < last]
    assert draws.tolist() == expected
    inside = draws[draws < n]
    records = ranks[0].records(inside, order)
    assert np.array_equal(order.inverse(records), inside)
    assert len(set(records.tolist())) == inside.size
    again = draws[draws >= n]
    assert np.array_equal(ranks[0].records(again, order), order(again % n))


# -- the plan says the same ------------------------------------------------------------------------


def test_the_plan_of_a_split_is_what_the_shares_give():
    names = tuple(f"shardwriter-{uneven}" for uneven in POLICIES)
    for n, world in itertools.product([*range(42), 99, 199, 200], WORLDS):
        for workers, batch_size in ((0, 1), (1, 3), (2, 4), (4, 7), (3, 64)):
            options = PlanOptions(world, workers, batch_size, policies=names)
            records = [-(-(n - shard) // 5) for shard in range(min(5, max(1, n)))]
            records[0] += n - sum(records)
            plan = plan_json(records, options)
            for entry in plan["policies"]:
                uneven = entry["policy"].removeprefix("shardwriter-")
                ranks = shares(n, world, uneven)
                if ranks is None:
                    assert entry["error"]
                    assert entry["verdict"] == "error"
                    continue
                assert entry["error"] is None
                draws = np.concatenate([share.draws() for share in ranks])
                seen = set(ranks[0].records(draws, None).tolist())
                assert entry["num_distinct"] == len(seen)
                assert entry["num_padded"] == sum(
                    int(share.is_pad(share.draws()).sum()) for share in ranks
                )
                assert entry["samples"] == [share.num_samples for share in ranks]
                assert entry["steps"] == [share.num_batches(batch_size) for share in ranks]
                assert entry["worker_samples"] == [
                    [
                        sum(
                            len(share.batch(j, batch_size))
                            for j in worker_batches(k, workers, share.num_batches(batch_size))
                        )
                        for k in range(max(1, workers))
                    ]
                    for share in ranks
                ]


# -- what is said ----------------------------------------------------------------------------------


def test_without_a_policy_the_error_says_what_would_do():
    with pytest.raises(UnequalSteps) as caught:
        partition_for_rank(1_000, 3, 7)
    assert caught.value.num_records == 1_000
    assert caught.value.world == 7
    told = f"{caught.value} {caught.value.hint}"
    assert "1,000 records for 7 ranks" in told
    assert "994 or 1,001 records, or 5 or 8 ranks" in told
    assert "'drop' (omits 6 records)" in told
    assert "'pad' (adds 1 sample with is_pad=True)" in told
    assert "'wrap' (1 record comes twice)" in told
    assert caught.value.exit_code == 2


def test_the_numbers_that_the_error_names_do_divide():
    for n, world in itertools.product(range(1, 60), WORLDS):
        if n % world == 0:
            assert partition_for_rank(n, 0, world).num_samples == n // world
            continue
        with pytest.raises(UnequalSteps) as caught:
            partition_for_rank(n, 0, world)
        records, ranks = caught.value.hint.partition(" ranks")[0].split(" records, or ")
        for good in records.removeprefix("use ").split(" or "):
            assert int(good) % world == 0
            assert partition_for_rank(int(good), 0, world).num_samples > 0
        for good in ranks.split(" or "):
            assert n % int(good) == 0


def test_no_policy_is_fine_where_it_divides_what_is_left():
    assert partition_for_rank(10, 1, 3, None, consumed=4).num_samples == 2
    with pytest.raises(UnequalSteps, match="6 records for 4 ranks"):
        partition_for_rank(10, 1, 4, None, consumed=4)
    assert partition_for_rank(10, 1, 4, "pad", consumed=4).num_samples == 2


def test_drop_refuses_where_no_rank_would_read_but_ends_an_epoch_in_peace():
    with pytest.raises(UnequalSteps, match="3 records for 4 ranks"):
        RankPartition(3, 4, 0, "drop")
    assert RankPartition(10, 4, 0, "drop", consumed=8).num_samples == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_records": -1},
        {"num_records": 5, "world": 0},
        {"num_records": 5, "world": 2, "rank": 2},
        {"num_records": 5, "rank": -1},
        {"num_records": 5, "consumed": 6},
        {"num_records": 5, "uneven": "repeat"},
    ],
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(OptionError) as caught:
        RankPartition(**wrong)
    assert caught.value.hint


def test_batch_sizes_and_workers_out_of_range_are_refused():
    with pytest.raises(OptionError):
        RankPartition(5).num_batches(0)
    with pytest.raises(OptionError):
        worker_batches(2, 2, 10)


# -- tokens ----------------------------------------------------------------------------------------


def test_a_token_survives_json():
    for seed in (None, 0, 2**64 - 1):
        token = Token(seed, 3, 96, 1000, "f" * 64)
        data = json.loads(json.dumps(token.to_json()))
        assert Token.from_json({**data, "later": 1}) == token
        token.check(1000, "f" * 64)


def test_a_token_of_another_dataset_is_refused():
    token = Token(1, 0, 5, 10, "a" * 64)
    with pytest.raises(RunChanged, match="it had 10 records, now 11"):
        token.check(11, "a" * 64)
    with pytest.raises(RunChanged, match=r"identity was a{16}\.\.\., now b{16}\.\.\."):
        token.check(10, "b" * 64)


@pytest.mark.parametrize(
    "change",
    [
        {"consumed": 11},
        {"consumed": -1},
        {"epoch": "1"},
        {"epoch": True},
        {"seed": 1.0},
        {"job": None},
    ],
)
def test_what_is_no_token_is_refused(change):
    data = Token(1, 0, 5, 10, "a").to_json()
    with pytest.raises(OptionError, match="reader state is invalid"):
        Token.from_json({**data, **change})
    with pytest.raises(OptionError, match="reader state is invalid"):
        Token.from_json({name: data[name] for name in data if name not in change})
