"""What is left of an error when Beam has told it: its message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from shardwriter.errors import ShardwriterError

_Process = Callable[[Any, Any], Iterator[Any]]


def telling(process: _Process) -> _Process:
    """Have an error of a step say in its message where it happened: Beam keeps no more of it."""

    @wraps(process)
    def told(self: Any, element: Any) -> Iterator[Any]:
        try:
            yield from process(self, element)
        except ShardwriterError as error:
            raise type(error)(error.summary, hint=error.hint) from error

    return told
