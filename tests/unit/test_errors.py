"""The error tree: as it is drawn, and whole after a process border."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from shardwriter import errors
from shardwriter.errors import CorruptFile, DataWarning, ShardwriterError, SourceError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, ShardwriterError)
]
FIELDS = {
    "hint": "do this",
    "path": "a/b.csv",
    "line": 4,
    "index": 3,
    "item": "row 3",
    "record_index": 2,
    "offset": 99,
    "feature": "x",
}


def drawn_tree():
    """Class, its parent and the exit code of its branch, as the docstring draws them."""
    branches, rows, code = {}, [], None
    for line in errors.__doc__.splitlines():
        match = re.match(r"( {4}[ |]*(?:\|--|`--) )?(?: {4})?([A-Z]\w+)\b", line)
        if match is None or not line.startswith("    "):
            continue
        depth = 0 if match[1] is None else (len(match[1]) - 4) // 4
        branches[depth] = match[2]
        found = re.search(r"exit (\d)", line)
        code = int(found[1]) if found else code
        rows.append((match[2], branches.get(depth - 1), code))
    return rows


def test_the_tree_is_as_it_is_drawn():
    drawn = drawn_tree()
    assert {name for name, _, _ in drawn} == {cls.__name__ for cls in CLASSES}
    assert len(drawn) == len(CLASSES)
    for name, parent, code in drawn:
        cls = getattr(errors, name)
        if parent is None:
            assert cls is ShardwriterError
        else:
            assert cls.__bases__[0].__name__ == parent
            assert cls.exit_code == code


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_crosses_a_process_border_whole(cls):
    error = cls("what is wrong", **FIELDS)
    if cls is CorruptFile:
        error.kind = "payload-crc"
    error.__notes__ = ["a note"]  # what add_note() does from Python 3.11 on
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert again.message == "what is wrong"
        assert again.args == error.args
        assert {name: getattr(again, name) for name in FIELDS} == FIELDS
        assert (str(again), again.where) == (str(error), error.where)
        assert again.__notes__ == ["a note"]
        assert getattr(again, "kind", None) == getattr(error, "kind", None)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_says_what_it_is_for(cls):
    assert cls.__doc__
    assert cls("x").hint is None
    assert cls("x").where == ""
    assert str(cls("what is wrong")) == "what is wrong"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, ""),
        ({"path": "a.csv"}, "a.csv"),
        ({"path": "a.csv", "line": 4}, "a.csv, line 4"),
        ({"line": 4}, "line 4"),
        ({"index": 0, "item": "cat/1.jpg"}, "item 0, 'cat/1.jpg'"),
        ({"path": "in/cat/1.jpg", "item": "cat/1.jpg"}, "in/cat/1.jpg"),
        ({"record_index": 0, "offset": 0}, "record 0, offset 0"),
        ({"feature": "x"}, "feature 'x'"),
        (FIELDS, "a/b.csv, line 4, item 3, 'row 3', record 2, offset 99, feature 'x'"),
    ],
)
def test_where_is_what_is_known_of_the_place(fields, where):
    error = SourceError("broken", **fields)
    assert error.where == where
    assert error.summary == (f"{where}: broken" if where else "broken")


def test_locating_fills_in_what_is_not_known():
    error = SourceError("x", index=3)
    assert error.locate(index=9, item="a") is error
    assert (error.index, error.item) == (3, "a")
    assert SourceError("x", index=0).locate(index=5).index == 0


def test_a_corrupt_file_has_a_kind():
    assert CorruptFile("x").kind == "corrupt"
    assert CorruptFile("x", kind="truncated", offset=3).offset == 3


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("OptionError", ValueError),
        ("FeatureError", ValueError),
        ("WireError", ValueError),
        ("MissingExtra", ImportError),
    ],
)
def test_errors_are_also_the_builtin_that_people_catch(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


def test_a_data_warning_crosses_a_process_border_whole():
    warning = DataWarning("text-column", "column 'v' is text", feature="v", line=7, value="n/a")
    copy = pickle.loads(pickle.dumps(warning))
    assert str(copy) == "column 'v' is text"
    assert vars(copy) == vars(warning)
