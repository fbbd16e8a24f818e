"""Messages are written in the words of the command; here they are said in those of Python.

``use --on-error skip`` becomes ``use on_error="skip"``. Errors and warnings keep the words of the
command, which prints them, and use this where Python shows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final


def _run(name: str) -> tuple[str, str]:
    return f"{name}= of sw.RunOptions", f"run=sw.RunOptions({name}={{}})"


def _image(name: str) -> tuple[str, str]:
    return f"{name}=", f"images=sw.ImageOptions({name}={{}})"


def _plain(name: str) -> tuple[str, str]:
    return f"{name}=", f"{name}={{}}"


SWITCHES: Final[Mapping[str, str]] = {
    "--retry-errors --accept-changed-map": (
        "run=sw.RunOptions(retry_errors=True, accept_changed_map=True)"
    ),
    "--accept-changed-map": "run=sw.RunOptions(accept_changed_map=True)",
    "--allow-duplicates": "allow_duplicates=True",
    "--dry-run": "dry_run=True",
    "--no-header": "header=False",
    "--strict": "strict=True",
    "--index": "run=sw.RunOptions(dali_index=True)",
    "--overwrite": "overwrite=True",
    "--resume": "resume=True",
    "--retry-errors": "run=sw.RunOptions(retry_errors=True)",
    "--trust-no-crc": "trust_no_crc=True",
}
"""What stands in Python for a flag that takes no value."""

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "--backend": _run("backend"),
    "--columns": _plain("columns"),
    "--compression": _plain("compression"),
    "--deflate": _plain("deflate"),
    "--drop-columns": _plain("drop_columns"),
    "--encoding": _plain("encoding"),
    "--engine": _run("engine"),
    "--filter": _plain("filter"),
    "--format": _plain("format"),
    "--indices": _plain("indices"),
    "--item-timeout": _run("item_timeout_s"),
    "--key": _plain("key"),
    "--label": _plain("label"),
    "--limit": _plain("limit"),
    "--loader-workers": _plain("loader_workers"),
    "--log-dir": _run("log_dir"),
    "--map": _plain("map"),
    "--max-errors": _run("max_errors"),
    "--max-side": _image("max_side"),
    "--na": _plain("na"),
    "--names": _plain("names"),
    "--on-error": _plain("on_error"),
    "--order": _plain("order"),
    "--quality": _image("quality"),
    "--resize": _image("resize"),
    "--schema": _plain("schema"),
    "--seed": _plain("order_seed"),
    "--shards": _plain("num_shards"),
    "--shuffle --seed": _plain("shuffle_seed"),
    "--shuffle or --seed": _plain("shuffle_seed"),
    "--shuffle": _plain("shuffle_seed"),
    "--source": _plain("source"),
    "--split": ("split= of sw.write_splits", "sw.write_splits(..., split={})"),
    "--tfds": _plain("tfds"),
    "--workers": _plain("workers"),
    "--world": _plain("world"),
}
"""What stands for one that takes a value: alone, and with its value."""

_TEXTS: Final[Mapping[str, str]] = {
    "(-j)": "(workers=)",
    "shown with -v": "shown above",  # Python prints causes by itself
}

# A word behind a flag is its value where it can be nothing else: a number, something quoted, with
# an equals sign or commas, a placeholder in capitals, a word that the options know, what stands
# before a colon.
_VALUE: Final = (
    r"(?P<value>\d+(?![\w.])|'[^']*'|\"[^\"]*\"|[^\s=]+=[^\s;)`]*[^\s;)`:,.]"
    r"|[A-Z][A-Z_]*(?![\w:])|\w+(?:,\w+)+"
    r"|(?:none|gzip|zlib|isal-2|zlib-6|serial|process|native|tensorflow|skip|raise|key|source"
    r"|image-folder|image-mask|coco|voc|csv|jsonl|parquet|numpy|tfrecord|webdataset|audio|python"
    r"|huggingface)(?![\w-])|(?!off:)\S+?(?=: ))"
)


def python_words(text: str) -> str:
    """Return a message or hint in which options of the command are those of Python.

    Commands in backquotes stay, as they are what is to be typed in a terminal; but one that says
    nothing but options of `shardwriter write` is a call.

    Args:
        text: What was written for the command.
    """
    for said, in_python in _TEXTS.items():
        text = text.replace(said, in_python)
    return _commands().sub(_said, text) if "--" in text else text


@cache
def _commands() -> re.Pattern[str]:
    return re.compile(r"`shardwriter write(?P<flags>(?: --[^`]+))`|`[^`]*`|" + _flags().pattern)


@cache
def _flags() -> re.Pattern[str]:
    switches = "|".join(map(re.escape, SWITCHES))
    options = "|".join(map(re.escape, sorted(OPTIONS, key=len, reverse=True)))
    end = r"(?![\w-])"
    return re.compile(
        rf"(?P<switch>{switches}){end}|(?P<option>{options}){end}(?: {_VALUE})?(?P<colon>(?=:))?"
    )


def _said(found: re.Match[str]) -> str:
    if found["switch"] is not None:
        return SWITCHES[found["switch"]]
    if found["option"] is not None:
        return _option(found)
    flags = found["flags"]
    if flags is None:
        return found[0]
    return f"`sw.write(..., {', '.join(_said(each) for each in _flags().finditer(flags))})`"


def _option(found: re.Match[str]) -> str:
    alone, template = OPTIONS[found["option"]]
    value = found["value"]
    if value is not None:
        return template.format(value if value[0] in "'\"" or value.isdigit() else f'"{value}"')
    return alone if found["colon"] is None else alone.partition("=")[0]
