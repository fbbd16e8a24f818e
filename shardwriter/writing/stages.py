"""Seconds by stage, estimated from a sample of the items.

Reading a clock four times costs as much as encoding a short record. So every slow item is timed,
and only a sample of the fast ones; a timed item counts for the untimed ones that follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Final

STAGES: Final = ("read", "map", "encode", "write", "sync", "deal", "wait")
"""The stages, in order.

``read`` lists and loads items, ``map`` is the user's own code, ``encode`` makes record bytes (and
resizes images), ``write`` frames, compresses and writes them, ``sync`` flushes them to disk,
``deal`` packs items for worker processes, ``wait`` is idle time.
"""

_QUICK_S: Final = 200e-6  # only a sample of the items that take less is timed
_MAX_WEIGHT: Final = 64


class StageTimer:
    """A timer of seconds by stage.

    One item goes ``start`` -> ``lap`` for each stage -> ``stop``.

    Args:
        between: The stage of the time between ``stop`` and the next ``start``.

    Attributes:
        seconds: Total by stage.
    """

    def __init__(self, between: str = "read") -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._between = between
        self._weight = 1  # items that the timed one counts for
        self._left = 0  # untimed items before the next timed one
        self._begun = self._at = perf_counter()
        self._gap = True  # whether the time since the last stop counts

    def start(self) -> bool:
        """Begin an item; return whether it is timed."""
        if self._gap:
            self.lap(self._between)
            self._gap = False
        if self._left:
            self._left -= 1
            return False
        self._begun = self._at = perf_counter()
        return True

    def start_block(self) -> None:
        """Begin a block of items, which is always timed."""
        self._left, self._weight = 0, 1
        self.start()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to a stage."""
        now = perf_counter()
        self.seconds[stage] += (now - self._at) * self._weight
        self._at = now

    def stop(self) -> None:
        """End the item; its duration decides how many untimed ones follow."""
        self._weight = min(_MAX_WEIGHT, 1 + int(_QUICK_S / max(self._at - self._begun, 1e-9)))
        self._left = self._weight - 1
        self._gap = True

    @contextmanager
    def aside(self, stage: str) -> Iterator[None]:
        """Add the time of the ``with`` block to a stage, and not to the enclosing one."""
        begun = perf_counter()
        yield
        spent = perf_counter() - begun
        self.seconds[stage] += spent
        self._at += spent

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of another timer."""
        for stage, value in seconds.items():
            self.seconds[stage] += value
