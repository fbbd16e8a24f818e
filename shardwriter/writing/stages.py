"""Where the time goes: seconds by stage, found from a sample of the items.

Reading a clock four times costs as much as encoding a short record. So slow items are timed all,
and of quick ones just as many that it is lost in the noise: each stands for those that follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Final

STAGES: Final = ("read", "map", "encode", "write", "sync", "deal", "wait")
"""What is told apart.

``read`` lists and loads items, ``map`` is the user's own code, ``encode`` makes record bytes (and
images of another size),
``write`` frames (and compresses) them and hands them to the system, ``sync`` brings them to the
disk, ``deal`` packs items for another process, ``wait`` is spent without work.
"""

_QUICK_S: Final = 200e-6  # an item that takes less is timed now and then
_MAX_WEIGHT: Final = 64


class Stopwatch:
    """Seconds by stage.

    One item goes ``start`` -> ``lap`` for each stage -> ``stop``; what lies between ``stop`` and
    the next ``start`` is a stage too.

    Args:
        between: That stage.

    Attributes:
        seconds: By stage, since the beginning.
    """

    def __init__(self, between: str = "read") -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._between = between
        self._weight = 1  # items that the one being timed stands for
        self._left = 0  # items to let pass before the next one is timed
        self._begun = self._at = perf_counter()
        self._gap = True  # whether the time since the last stop counts

    def start(self) -> bool:
        """Begin with an item, and tell whether it is timed."""
        if self._gap:
            self.lap(self._between)
            self._gap = False
        if self._left:
            self._left -= 1
            return False
        self._begun = self._at = perf_counter()
        return True

    def start_block(self) -> None:
        """Begin with a block of items, which is always timed."""
        self._left, self._weight = 0, 1
        self.start()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap to a stage."""
        now = perf_counter()
        self.seconds[stage] += (now - self._at) * self._weight
        self._at = now

    def stop(self) -> None:
        """End the item; how long it took says how many it stands for."""
        self._weight = min(_MAX_WEIGHT, 1 + int(_QUICK_S / max(self._at - self._begun, 1e-9)))
        self._left = self._weight - 1
        self._gap = True

    @contextmanager
    def aside(self, stage: str) -> Iterator[None]:
        """Count a block to a stage, and to nothing that it lies in."""
        begun = perf_counter()
        yield
        spent = perf_counter() - begun
        self.seconds[stage] += spent
        self._at += spent

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what another one has counted."""
        for stage, value in seconds.items():
            self.seconds[stage] += value
