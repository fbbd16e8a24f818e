r"""Telling context features and feature lists of SequenceExamples apart, where one name has to do.

Context and lists have names of their own, so both can have an ``x``. A manifest keeps them in two
objects. Elsewhere there are two spellings, in which no two of them are the same:

- *Keys* are for the one mapping that a schema is gathered in. The features of an Example have
  their names. Those of a SequenceExample have a mark in front: a lone surrogate, which no name can
  have, as names are UTF-8.
- *Spellings* are for people, and for reports: the list ``x`` is ``x[]``. A feature that is called
  ``x[]`` is not taken for it: that one is ``x\[]``. Backslashes that stand there already are
  doubled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

_CONTEXT: Final = "\udc00context "
_LIST: Final = "\udc00list "
_LIST_SUFFIX: Final = "[]"

T = TypeVar("T")


def context_key(name: str) -> str:
    """Return the key of a context feature."""
    return _CONTEXT + name


def list_key(name: str) -> str:
    """Return the key of a feature list."""
    return _LIST + name


def is_of_sequences(key: str) -> bool:
    """Say whether a key is of a SequenceExample."""
    return key.startswith((_CONTEXT, _LIST))


def context_part(keyed: Mapping[str, T]) -> dict[str, T]:
    """Return the context features, by name."""
    return {k.removeprefix(_CONTEXT): v for k, v in keyed.items() if k.startswith(_CONTEXT)}


def list_part(keyed: Mapping[str, T]) -> dict[str, T]:
    """Return the feature lists, by name."""
    return {k.removeprefix(_LIST): v for k, v in keyed.items() if k.startswith(_LIST)}


def keyed(context: Mapping[str, T], lists: Mapping[str, T]) -> dict[str, T]:
    """Return both by their keys."""
    return {
        **{context_key(name): value for name, value in context.items()},
        **{list_key(name): value for name, value in lists.items()},
    }


def spoken(key: str) -> str:
    """Return what a person is told of a key."""
    if key.startswith(_LIST):
        return list_spelling(key.removeprefix(_LIST))
    return key.removeprefix(_CONTEXT)


def list_spelling(name: str) -> str:
    """Return ``x[]`` for the feature list ``x``."""
    return _doubled(name) + _LIST_SUFFIX


def feature_spelling(name: str) -> str:
    """Return a feature's name, which is another than that of any list."""
    if not name.endswith(_LIST_SUFFIX):
        return name
    return _doubled(name.removesuffix(_LIST_SUFFIX)) + "\\" + _LIST_SUFFIX


def _doubled(stem: str) -> str:
    """Double the backslashes at the end: those of lists are even in number, others odd."""
    return stem + "\\" * (len(stem) - len(stem.rstrip("\\")))
