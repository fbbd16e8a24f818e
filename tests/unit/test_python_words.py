"""Messages in Python: the options of the command are said as keyword arguments."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.errors import FLAGS, OPTIONS, DataWarning, OptionError, python_words

PACKAGE = Path(sw.__file__).parent

# What only the commands have: there is no such argument in Python, or a hint says it of a command.
COMMAND_ONLY = {
    *("--json", "--html", "--all-shards", "--fail-on", "--baseline", "--features"),
    *("--code", "--save-images", "--idx", "--records", "--policy"),
    # Of other programs.
    *("--sort", "--sparse"),
    *("--dry_run", "--extra_package", "--setup_file", "--runner", "--requirements_file"),
}

SAID = {
    "`shardwriter write --resume` goes on with it; --overwrite discards it": (
        "`sw.write(..., resume=True)` goes on with it; overwrite=True discards it"
    ),
    "--on-error skip leaves it out": 'on_error="skip" leaves it out',
    "`shardwriter write --shuffle --seed 0` mixes": "`sw.write(..., shuffle_seed=0)` mixes",
    "--shuffle --seed 7: mixed": "shuffle_seed=7: mixed",
    "say it with --format": "say it with format=",
    "say it: --format coco or voc": 'say it: format="coco" or voc',
    "--format foo: there is none": 'format="foo": there is none',
    "--format: there is none": "format: there is none",
    "allow more (--max-errors)": "allow more (max_errors= of sw.RunOptions)",
    "--max-errors 3 allows more": "run=sw.RunOptions(max_errors=3) allows more",
    "--schema x=string,y=raw:float64, or a map": 'schema="x=string,y=raw:float64", or a map',
    "--schema 'x=string' or a --map": "schema='x=string' or a map=",
    "--split source makes two": 'sw.write_splits(..., split="source") makes two',
    "leave --shuffle off: it is mixed": "leave shuffle_seed= off: it is mixed",
    "without --resize and --max-side": "without resize= and max_side=",
    "name them: --names image,label": 'name them: names="image,label"',
    "--max-side 512": "images=sw.ImageOptions(max_side=512)",
    "`shardwriter index PATH --idx` makes them": "`shardwriter index PATH --idx` makes them",
    "a - b -- c --formats": "a - b -- c --formats",
    "the traceback is shown with -v; --on-error skip leaves it out": (
        'the traceback is shown above; on_error="skip" leaves it out'
    ),
    "use fewer workers (-j), or smaller items": "use fewer workers (workers=), or smaller items",
}


@pytest.mark.parametrize("text", SAID)
def test_options_are_said_as_arguments(text):
    assert python_words(text) == SAID[text]
    assert python_words(SAID[text]) == SAID[text]


def literals(path):
    """The texts of a module, without docstrings; parts of f-strings are joined by X."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ignored = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Expr, ast.JoinedStr))
        for part in ast.walk(node)
        if (isinstance(node, ast.JoinedStr) and part is not node)
        or (isinstance(node, ast.Expr) and part is node.value and isinstance(part, ast.Constant))
    }
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def modules_with_messages():
    return [p for p in sorted(PACKAGE.rglob("*.py")) if p.relative_to(PACKAGE).parts[0] != "cli"]


@pytest.mark.parametrize(
    "path", modules_with_messages(), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_every_option_in_a_message_is_known_in_python(path):
    known = (
        COMMAND_ONLY
        | {flag for key in FLAGS for flag in key.split()}
        | {flag for key in OPTIONS for flag in key.split()}
    )
    for text in literals(path):
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
            assert flag in known, f"{text!r}: give it a place in python_words.py"
        left = re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub("`[^`]*`", "", python_words(text)))
        assert set(left) <= COMMAND_ONLY, text


def test_every_argument_in_the_tables_exists():
    functions = [sw.write, sw.write_splits, sw.repair]
    arguments = {name for f in functions for name in inspect.signature(f).parameters}
    of_class = {
        name: set(inspect.signature(getattr(sw, name)).parameters)
        for name in ("RunOptions", "ImageOptions")
    }
    for said in [*FLAGS.values(), *(with_value for _, with_value in OPTIONS.values())]:
        found = re.fullmatch(
            r"\w+=sw\.(\w+)\((\w+)=.*\)|sw\.write_splits\(..., (\w+)=.*|(\w+)=.*", said
        )
        owner, name = found[1], found[2] or found[3] or found[4]
        assert name in (arguments if owner is None else of_class[owner]), said


def test_an_error_ends_with_what_to_do():
    error = OptionError("--map x: no such file", path="a.csv", hint="leave --map off")
    assert str(error) == 'a.csv: map="x": no such file\n  hint: leave map= off'
    assert error.summary == "a.csv: --map x: no such file"
    assert error.to_json()["message"] == "--map x: no such file"


def test_a_warning_ends_with_what_to_do():
    warning = DataWarning("text-column", "it is text", hint="--schema v=float")
    assert str(warning) == 'it is text\n  hint: schema="v=float"'
    assert str(DataWarning("text-column", "it is text")) == "it is text"


def test_an_unfinished_or_finished_output_says_what_to_type(tmp_path):
    sw.write([{"x": 1}], tmp_path / "t@1")
    with pytest.raises(sw.UsageError, match="overwrite=True replaces it") as caught:
        sw.write([{"x": 1}], tmp_path / "t@1")
    assert "--" not in str(caught.value)
    assert "--overwrite" in caught.value.hint


def test_no_short_option_is_left_in_a_message():
    for path in modules_with_messages():
        for text in literals(path):
            left = re.sub("`[^`]*`", "", python_words(text))
            assert not re.search(r"[( ]-[jv]\b", left), text
