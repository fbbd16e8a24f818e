"""Where the time of a loader went: in its workers, and waiting for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class LoaderTimings:
    """Where the time of a loader went, in seconds.

    Attributes:
        wait_s: The training loop waited for a batch.
        elapsed_s: From the first batch that was asked for to the last that came, over all epochs.
        num_batches: How many came.
        workers: For each worker its stages: ``read``, ``check``, ``decode`` (all of them ``read``
            where the dataset was not opened with ``timings``), ``images`` (decoded),
            ``map``, ``collate``.
    """

    wait_s: float
    elapsed_s: float
    num_batches: int
    workers: tuple[Mapping[str, float], ...]

    @property
    def wait_share(self) -> float:
        """The part of the time that the training loop waited, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def stages(self) -> dict[str, float]:
        """The seconds of each stage, of all workers together."""
        totals: dict[str, float] = {}
        for worker in self.workers:
            for name, seconds in worker.items():
                totals[name] = totals.get(name, 0.0) + seconds
        return totals


class Times:
    """Adds up what batches took.

    Args:
        num_workers: Of the loader; 0 for none.
    """

    def __init__(self, num_workers: int) -> None:
        self._workers: list[dict[str, float]] = [{} for _ in range(max(1, num_workers))]
        self._wait_s = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_batches = 0

    def add(self, asked_s: float, worker: int, seconds: Mapping[str, float]) -> None:
        """Add a batch that was asked for at a time, and has come now."""
        self._last_s = perf_counter()
        self._first_s = asked_s if self._first_s is None else self._first_s
        self._wait_s += self._last_s - asked_s
        self._num_batches += 1
        stages = self._workers[worker]
        for name, value in seconds.items():
            stages[name] = stages.get(name, 0.0) + value

    def told(self) -> LoaderTimings:
        """Return what has come together so far."""
        elapsed_s = 0.0 if self._first_s is None else self._last_s - self._first_s
        workers = tuple(dict(stages) for stages in self._workers)
        return LoaderTimings(self._wait_s, elapsed_s, self._num_batches, workers)
