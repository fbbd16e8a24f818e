"""``python``: what Python can iterate over, or index.

A sequence (``__len__`` and ``__getitem__``: a list, a PyTorch dataset) gives any item cheaply. Any
other iterable is read in order; a function without arguments is called for a fresh iterable each
time one is needed. An iterator can be read once: a second reading is an error and never an empty
dataset. A set is refused: its order is another one in every process.

An item is a mapping from feature names to values; or ``bytes``, which are a finished record; or
anything at all, when a map turns it into one of these.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardwriter.errors import CallableError, OptionError, ShardwriterError, SourceError
from shardwriter.schema import FeatureType

KIND = "python"

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_reference(text: str) -> bool:
    """Tell whether a text has the form ``module:callable``."""
    return _REFERENCE.fullmatch(text) is not None


def import_reference(text: str, option: str) -> Any:
    """Import ``module:name``, looking in the current folder too.

    Args:
        text: The reference.
        option: What it was given for; named in errors.

    Raises:
        OptionError: There is no such module or name.
    """
    if not is_reference(text):
        raise OptionError(f"{option}: {text!r} is not module:callable", hint="as in mydata:train")
    module_name, _, path = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module is there; something that it imports is not
        raise OptionError(
            f"{option}: there is no module {error.name!r}",
            hint=f"looked in {os.getcwd()} and the installed packages",
        ) from None
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise OptionError(f"{option}: module {module_name!r} has no {path!r}") from None
    return found


class PythonSource:
    """Items from a Python object.

    Args:
        data: A sequence, an iterable, or a function without arguments that returns one.
        name: ``module:callable`` where that is how it was found.
    """

    kind = KIND
    plan: Mapping[str, FeatureType] = {}
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None
    notes: Sequence[str] = ()

    def __init__(self, data: Any, name: str | None = None) -> None:
        self._name = name
        self._make: Callable[[], Any] | None = None
        if callable(data) and not _is_sequence(data) and not isinstance(data, Iterable):
            self._make = data
            data = self._call()
        if isinstance(data, (str, bytes, Mapping)) or not (
            _is_sequence(data) or isinstance(data, Iterable)
        ):
            raise SourceError(
                f"a {type(data).__name__} is no series of items",
                hint="give an iterable, or an object with __len__ and __getitem__",
                item=name,
            )
        if isinstance(data, (set, frozenset)):
            raise SourceError(
                f"a {type(data).__name__} has no order", hint="give sorted(...) of it", item=name
            )
        self._data = data
        self._spent = False
        self.random_access = _is_sequence(data)
        self.num_items: int | None = len(data) if self.random_access else None
        self.stable = self.random_access or self._make is not None or not _is_iterator(data)

    def _call(self) -> Any:
        assert self._make is not None
        try:
            return self._make()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise SourceError(
                    f"it can not be called without arguments: {error}", item=self._name
                ) from None
            raise

    def items(self) -> Iterator[Any]:
        """Yield every item; of a sequence, the indices.

        Raises:
            SourceError: An iterator that was read once is read again.
        """
        if self.random_access:
            return iter(range(len(self._data)))
        if self._spent:
            data = self._data if self._make is None else self._call()
            if data is self._data and _is_iterator(data):
                raise SourceError(
                    "this iterator was read before, and can not be read again",
                    hint="give a function that makes a new one each time",
                    item=self._name,
                )
            self._data = data
        self._spent = True
        return _located(self._data)

    def item(self, item_index: int) -> Any:
        """Return one item of a sequence: its index."""
        return item_index

    def key(self, item: Any) -> str | None:
        """Items of Python objects have no names but their numbers."""
        return None

    def load(self, item: Any) -> Any:
        """Return the item itself; of a sequence, what stands at the index."""
        return self._data[item] if self.random_access else item

    def digest(self) -> dict[str, Any]:
        """Return the reference and the length, where they are known."""
        return {"name": self._name, "num_items": self.num_items}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same: Python objects have no size or time of their own."""
        return self.digest()


def _located(iterable: Iterable[Any]) -> Iterator[Any]:
    """Yield on; an error in the user's own iterator says how far it came."""
    count = 0
    try:
        for item in iterable:
            yield item
            count += 1
    except ShardwriterError:
        raise
    except Exception as error:
        raise CallableError(
            f"the source raised {type(error).__name__}: {error}",
            index=count,
            hint="the traceback is shown with -v",
        ) from error


def _is_sequence(data: Any) -> bool:
    kind = type(data)
    return (
        hasattr(kind, "__len__")
        and hasattr(kind, "__getitem__")
        and not isinstance(data, (Mapping, str, bytes))
    )


def _is_iterator(data: Any) -> bool:
    return isinstance(data, Iterator)
