"""Options are checked when they are made."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from shardwriter.errors import OptionError
from shardwriter.features.feature_types import FeatureType
from shardwriter.options import SKIP, DatasetOptions, RunOptions


def test_defaults_are_good():
    assert DatasetOptions() == DatasetOptions(map=None, limit=None, shuffle_seed=None)
    assert RunOptions() == RunOptions(overwrite=False, engine=RunOptions().engine)


@pytest.mark.parametrize(
    "options",
    [
        {"map": len},
        {"filter": len},
        {"limit": 0},
        {"limit": 10**12},
        {"shuffle_seed": 0},
        {"shuffle_seed": 2**64 - 1},
        {"schema": {"a": FeatureType("int64", "int64")}},
    ],
)
def test_what_can_be_done_is_taken(options):
    for name, value in options.items():
        assert getattr(DatasetOptions(**options), name) == value


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("map", "module:callable"),
        ("limit", -1),
        ("limit", 2.0),
        ("limit", "10"),
        ("limit", True),
        ("shuffle_seed", -1),
        ("shuffle_seed", 2**64),
        ("shuffle_seed", 1.5),
        ("shuffle_seed", "0"),
        ("schema", {"a": "int64"}),
        ("schema", {"a": int}),
        ("filter", "module:callable"),
        ("filter", 3),
        ("world", 0),
        ("loader_workers", True),
    ],
)
def test_what_can_not_be_done_is_refused_by_name(option, value):
    with pytest.raises(OptionError, match=option.removeprefix("shuffle_")):
        DatasetOptions(**{option: value})


@pytest.mark.parametrize(("option", "value"), [("engine", "threads"), ("backend", "torch")])
def test_unknown_ways_to_run_are_refused_with_those_there_are(option, value):
    with pytest.raises(OptionError, match=option) as caught:
        RunOptions(**{option: value})
    assert caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"resume": True},
        {"retry_errors": True},
        {"resume": True, "retry_errors": True},
        {"on_error": "skip"},
        {"on_error": "skip", "max_errors": 0},
        {"on_error": "skip", "max_errors": 10**9},
        {"mark_s": 0},
        {"mark_s": 0.5},
        {"mark_s": 1e9},
        {"checkpoint_bytes": 1},
    ],
)
def test_ways_to_run_that_go_together_are_taken(options):
    run = RunOptions(**options)
    for name, value in options.items():
        assert getattr(run, name) == value


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"overwrite": True, "resume": True}, "not both"),
        ({"overwrite": True, "retry_errors": True}, "not both"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"on_error": None}, "on_error is None"),
        ({"max_errors": 3}, "max_errors counts"),
        ({"on_error": "skip", "max_errors": -1}, "max_errors is -1"),
        ({"on_error": "skip", "max_errors": 1.0}, r"max_errors is 1\.0"),
        ({"on_error": "skip", "max_errors": True}, "max_errors is True"),
        ({"mark_s": -1}, "mark_s"),
        ({"mark_s": float("nan")}, "mark_s"),
        ({"mark_s": "1"}, "mark_s"),
        ({"mark_s": None}, "mark_s"),
        ({"checkpoint_bytes": 0}, "checkpoint_bytes"),
        ({"checkpoint_bytes": -1}, "checkpoint_bytes"),
        ({"checkpoint_bytes": "1"}, "checkpoint_bytes"),
    ],
)
def test_ways_to_run_that_do_not_go_together_are_refused(options, match):
    with pytest.raises(OptionError, match=match):
        RunOptions(**options)


@pytest.mark.parametrize("options", [DatasetOptions(), RunOptions()])
def test_options_do_not_change(options):
    field = dataclasses.fields(options)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, field, 1)


def test_skip_is_one_object_everywhere():
    assert pickle.loads(pickle.dumps(SKIP)) is SKIP
    assert copy.deepcopy(SKIP) is SKIP
    assert copy.copy(SKIP) is SKIP
    assert repr(SKIP) == "SKIP"
    assert not SKIP
