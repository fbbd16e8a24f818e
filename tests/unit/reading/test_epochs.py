"""Plans of epochs, how far a loader has come, and which rank it is: no torch needed."""

from __future__ import annotations

import json
import logging
import pickle
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.errors import OptionError, RunChanged, UnequalSteps
from shardwriter.reading.epochs import (
    EpochOptions,
    Progress,
    RankOfWorld,
    Start,
    find_rank,
    log_rank,
    map_seed,
)

JOB = "index:abc"


def options(num_records, **more):
    return EpochOptions(num_records, JOB, **more)


def progress(num_records, **more):
    return Progress(options(num_records, **more))


def read(made, ranks, num_batches=None):
    """The records and pads of one rank's iteration, so far."""
    run = made.begin(ranks)
    records, pads = [], []
    for batch_index in range(run.plan.num_batches)[:num_batches]:
        found, is_pad = run.plan.batch(batch_index)
        records.append(found.tolist())
        pads += is_pad.tolist()
        run.num_out += 1
    return records, pads


@st.composite
def cases(draw):
    num_records = draw(st.integers(0, 200))
    world = draw(st.integers(1, 8))
    return SimpleNamespace(
        num_records=num_records,
        world=world,
        options={
            "uneven": draw(st.sampled_from(["drop", "pad", "wrap", "error", None])),
            "batch_size": draw(st.integers(1, 9)),
            "shuffle": draw(st.booleans()),
            "seed": draw(st.integers(0, 3)),
            "drop_last": draw(st.booleans()),
        },
    )


@settings(max_examples=300, deadline=None)
@given(cases(), st.integers(0, 40), st.integers(1, 8), st.integers(1, 9))
def test_a_state_resumes_with_any_world_and_batch_size(case, num_steps, world, batch_size):
    n, policy, drop_last = case.num_records, case.options["uneven"], case.options["drop_last"]
    before, states = [], []
    try:
        for rank in range(case.world):
            made = progress(n, **case.options)
            records, _ = read(made, RankOfWorld(rank, case.world), num_steps)
            before.append(records)
            states.append(made.state_dict())
    except UnequalSteps:
        assert n % case.world if policy in ("error", None) else n < case.world
        return
    assert all(state == states[0] for state in states)
    assert len({len(records) for records in before}) == 1
    state = json.loads(json.dumps(states[0]))
    after, pads = [], []
    try:
        for rank in range(world):
            made = progress(n, **{**case.options, "batch_size": batch_size})
            ranks = RankOfWorld(rank, world)
            made.load_state_dict(state, ranks)
            num_all = made.num_steps(ranks)
            records, is_pad = read(made, ranks)
            begun = made.run.start
            assert len(records) == num_all - begun.steps
            assert made.position == Start(begun.epoch + 1)
            after.append(records)
            pads += is_pad
    except UnequalSteps:
        return
    assert len({len(records) for records in after}) == 1
    if begun.epoch == 1:  # all of epoch 0 was read before, or all that makes a batch
        return
    ids = Counter(record for records in (*before, *after) for batch in records for record in batch)
    if policy in ("pad", "wrap") and not drop_last:
        assert set(ids) == set(range(n))
        assert sum(ids.values()) - n < max(world, 1)
        assert sum(pads) == (sum(ids.values()) - n if policy == "pad" else 0)
    elif policy not in ("pad", "wrap"):
        assert max(ids.values(), default=1) == 1
        assert drop_last or n - len(ids) < world


@settings(max_examples=200, deadline=None)
@given(cases())
def test_the_length_is_what_comes_out_and_pads_are_counted(case):
    for rank in range(case.world):
        made = progress(case.num_records, **case.options)
        ranks = RankOfWorld(rank, case.world)
        try:
            expected = made.num_steps(ranks)
        except UnequalSteps:
            with pytest.raises(UnequalSteps):
                made.begin(ranks)
            continue
        records, pads = read(made, ranks)
        assert len(records) == expected
        plan = made.run.plan
        assert plan.num_samples == len(pads)
        assert plan.num_pads == sum(pads)


def test_epochs_follow_each_other_and_a_broken_one_begins_again():
    made, alone = progress(10, batch_size=4, shuffle=True), RankOfWorld(0, 1)
    first, _ = read(made, alone)
    second, _ = read(made, alone)
    assert first != second
    third, _ = read(made, alone, 1)
    assert made.state_dict()["epoch"] == 2
    assert made.state_dict()["consumed"] == 4
    assert read(made, alone)[0][0] == third[0]
    made.set_epoch(1)
    assert read(made, alone)[0] == second
    made.set_epoch(0)
    assert made.state_dict()["epoch"] == 0
    assert read(made, alone)[0] == first


def test_a_loaded_state_waits_for_the_first_batch(caplog):
    made, alone = progress(10, batch_size=4), RankOfWorld(0, 1)
    read(made, alone, 1)
    state = made.state_dict()
    assert state["steps"] == 1
    made = progress(10, batch_size=4)
    made.load_state_dict(state, alone)
    made.begin(alone)  # an iterator that nobody asks
    made.set_epoch(0)  # of this epoch
    assert made.num_steps(alone) == 3
    assert read(made, alone)[0] == [[4, 5, 6, 7], [8, 9]]
    made.load_state_dict(state, alone)
    with caplog.at_level(logging.WARNING):
        made.set_epoch(7)
    assert "discards the loaded state" in caplog.text
    assert read(made, alone)[0][0] == [0, 1, 2, 3]
    made.load_state_dict({k: v for k, v in state.items() if k != "steps"}, alone)
    assert made.num_steps(alone) == 3


def test_the_end_of_an_epoch_is_the_begin_of_the_next():
    made, ranks = progress(103, batch_size=5, uneven="drop"), RankOfWorld(3, 8)
    read(made, ranks)  # 96 of 103: the other 7 are nobody's
    state = made.state_dict()
    assert (state["epoch"], state["consumed"], state["steps"]) == (1, 0, 0)
    made = progress(103, batch_size=5, uneven="drop")
    made.load_state_dict({**state, "epoch": 0, "consumed": 98}, RankOfWorld(0, 8))
    assert len(read(made, RankOfWorld(0, 8))[0]) == 3
    assert made.run.start == Start(1)


def test_a_state_of_something_else_is_refused():
    made, alone = progress(10, shuffle=True, seed=3), RankOfWorld(0, 1)
    state = made.state_dict()
    for other, match in (
        (progress(11, shuffle=True, seed=3), "now 11"),
        (Progress(EpochOptions(10, "index:else", shuffle=True, seed=3)), "identity"),
        (progress(10, shuffle=True, seed=4), "seed 3, this one is shuffled with seed 4"),
        (progress(10), "not shuffled"),
    ):
        with pytest.raises(RunChanged, match=match):
            other.load_state_dict(state, alone)
    with pytest.raises(OptionError, match="reader state is invalid"):
        made.load_state_dict({}, alone)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"uneven": "some"}, "uneven"),
    ],
)
def test_options_are_checked(wrong, match):
    with pytest.raises(OptionError, match=match):
        options(10, **wrong)
    with pytest.raises(OptionError, match="epoch"):
        progress(10).set_epoch(-1)


def test_a_plan_is_small_and_can_be_sent():
    plan = options(1 << 40, shuffle=True, batch_size=7).plan(RankOfWorld(1, 2), 5)
    data = pickle.dumps(plan)
    assert len(data) < 512
    assert np.array_equal(pickle.loads(data).batch(9)[0], plan.batch(9)[0])


def test_what_a_map_draws_depends_on_seed_and_epoch():
    assert len({map_seed(seed, epoch) for seed in range(5) for epoch in range(5)}) == 25
    assert map_seed(1, 2) == map_seed(1, 2)


def test_the_rank_is_the_given_one_else_of_torch_else_of_the_environment(monkeypatch, caplog):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", None)
    assert find_rank() == RankOfWorld(0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert find_rank() == RankOfWorld(2, 3)
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 4,
        get_world_size=lambda: 5,
    )
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", group)
    assert find_rank() == RankOfWorld(4, 5)
    assert find_rank(0, 2) == RankOfWorld(0, 2)
    group.is_initialized = lambda: False
    assert "RANK" in find_rank().source
    with caplog.at_level(logging.INFO):
        log_rank(find_rank(), None)
        log_rank(find_rank(), RankOfWorld(0, 1))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "rank 2 of 3" in caplog.text


def test_a_rank_that_can_not_be_is_refused(monkeypatch):
    with pytest.raises(OptionError, match="world is None"):
        find_rank(1)
    with pytest.raises(OptionError, match="rank 2 of 2"):
        find_rank(2, 2)
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", None)
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(OptionError, match="RANK is 'one'"):
        find_rank()
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(OptionError, match="rank 3 of 3"):
        find_rank()


ALONE = RankOfWorld(0, 1)


def test_an_epoch_that_starts_again_is_logged(caplog):
    progress = Progress(EpochOptions(103, "job", 10, shuffle=True))
    for epoch in (0, 1):
        progress.set_epoch(epoch)
        progress.begin(ALONE).num_out = 3
    assert not caplog.records
    progress.begin(ALONE)
    assert "epoch 1 starts again" in caplog.text
    assert "stopped after 3 of 11 batches" in caplog.text


@pytest.mark.parametrize("steps", ["2", -1, True])
def test_steps_of_a_state_are_checked(steps):
    progress = Progress(EpochOptions(103, "job", 10))
    with pytest.raises(OptionError, match="steps is"):
        progress.load_state_dict({**progress.state_dict(), "steps": steps}, ALONE)
