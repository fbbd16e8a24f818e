"""Options are checked when they are made."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.schema.feature_types import FeatureType
from shardwriter.writing.options import SKIP, DatasetOptions, RunOptions


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
        ({"overwrite": True, "resume": True}, "exclude each other"),
        ({"overwrite": True, "retry_errors": True}, "exclude each other"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"on_error": None}, "on_error is None"),
        ({"max_errors": 3}, r"needs .*on_error"),
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


WRONG = {
    RunOptions: {
        "overwrite": ["yes", 1, None],
        "resume": ["yes", 0, ...],
        "retry_errors": ["no"],
        "workers": ["4", 0, -1, 2.0, True],
        "item_timeout_s": ["1", 0, True],
        "dali_index": ["idx"],
        "log_dir": [b"logs", 3, ""],
        "on_error": ["ignore", True, ["skip"]],
        "mark_s": [True],
    },
    DatasetOptions: {
        "limit": [2.5, "3", -1, 2**63],
        "shuffle_seed": ["1", True, 1.0],
        "order_seed": ["1", None],
        "label": [3, b"label"],
        "key": ["", 3],
        "order": ["random", None],
        "compression": ["bzip2", 3],
        "deflate": ["fast"],
        "images": [{"max_side": 3}, 512],
        "indices": [[1, 2]],
        "schema": ["x=int64", None],
    },
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, name, value)
        for kind, wrong in WRONG.items()
        for name, values in wrong.items()
        for value in values
    ],
)
def test_a_value_of_another_type_is_refused_by_name(kind, name, value):
    with pytest.raises(OptionError, match=f"^{name} is "):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [RunOptions, DatasetOptions])
def test_every_field_has_a_type_that_is_checked(kind):
    """A hint that the check does not know would raise from it, or let everything pass."""
    for field in dataclasses.fields(kind):
        with pytest.raises(OptionError, match=f"^{field.name} is <object"):
            kind(**{field.name: object()})


def test_the_message_says_what_is_taken():
    found = {}
    for options in ({"overwrite": "yes"}, {"workers": 0}, {"on_error": "ignore"}):
        with pytest.raises(OptionError) as caught:
            RunOptions(**options)
        found.update({name: str(caught.value) for name in options})
    assert found == {
        "overwrite": "overwrite is 'yes'\n  hint: give True or False",
        "workers": "workers is 0\n  hint: give a whole number from 1 on or None",
        "on_error": "on_error is 'ignore'\n  hint: give 'raise' or 'skip'",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("overwrite", "resume") for value in ("yes", 1)],
        *[("num_shards", value) for value in ("4", True, 0, 2.0, 10**6)],
        *[("workers", value) for value in ("4", 0)],
        *[("limit", value) for value in (-1, 2.5)],
        *[("shuffle_seed", "1"), ("progress", "yes")],
    ],
)
def test_write_refuses_it_before_anything_is_done(tmp_path, name, value):
    with pytest.raises(OptionError, match=f"{name}=? is"):
        sw.write([{"x": 1}], tmp_path / "t", **{name: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "act",
    [
        lambda path: sw.write_splits([{"x": 1}], path, "a=0.5,b=0.5", split_seed="1"),
        lambda path: sw.open_writer(f"{path}@1", overwrite="no").__enter__(),
        lambda path: sw.write([{}], f"{path}@1", indices=[0], allow_duplicates="no"),
        lambda path: sw.stats(path, features="all"),
        lambda path: sw.stats(path, workers=0),
        lambda path: sw.stats(path, check="all"),
        lambda path: sw.open(path, decode="images"),
        lambda path: sw.repair(path, path, dry_run="no"),
    ],
)
def test_other_functions_refuse_it_too(tmp_path, act):
    with pytest.raises(OptionError, match=" is "):
        act(str(tmp_path / "t"))
