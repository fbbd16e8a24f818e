"""What folders and files of splits are called."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from shardwriter.sources.source import ClassSource, Source
from shardwriter.storage.inputs import inputs_for

WORDS: Final = (
    *("train", "training", "trainval", "val", "valid", "validation", "minival", "eval", "dev"),
    *("test", "testing"),
)


def split_word(name: str, words: Collection[str]) -> str | None:
    """Return the split that a file or folder is called after; None where that is not told.

    ``train2017`` is one, and ``mnist-train-00000-of-00004.tfrecord`` is of ``train``.
    """
    parts = [part for part in re.split(r"[-_. ]", name) if part]
    found = [p for p in parts if p in words or re.sub(r"[0-9]{4}$", "", p).lower() in words]
    if name in words or not found:
        return name if name in words else None
    if parts[0] in found:
        return parts[0]
    return found[0] if len({*found}) == 1 else None


def in_order(names: Sequence[str]) -> list[str]:
    """Return the names as people have them: train, val, test."""

    def rank(name: str) -> tuple[int, str]:
        word = re.sub(r"[0-9]{4}$", "", name).lower()
        return (WORDS.index(word) if word in WORDS else len(WORDS), name)

    return sorted(names, key=rank)


def hint_of_splits(data: Any, source: Source) -> str | None:
    """Return a word on splits that a source obviously has; None where it has none."""
    words = {*WORDS}
    if isinstance(source, ClassSource):
        classes = source.classes
        if len(classes) > 1 and all(split_word(name, words) == name for name in classes):
            return (
                f"the classes are called {', '.join(classes)}: --split source makes a dataset of "
                "each of them"
            )
        return None
    if not isinstance(data, (str, os.PathLike)) or not os.path.isdir(data):
        return None  # a URL is not asked once more for this
    try:
        listed = inputs_for(os.fspath(data)).listing(os.fspath(data))
    except OSError:
        return None
    found = sorted({split_word(e.name, words) or "" for e in listed if e.is_file()} - {""})
    if len(found) < 2:
        return None
    return f"files are called {', '.join(found)}: --split source makes a dataset of each of them"
