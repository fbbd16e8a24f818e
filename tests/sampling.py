"""Some cases of a large product in every run, and all of them behind the marker ``full``.

The seed is drawn once per run and printed in its header; SHARDWRITER_TEST_SEED sets it, so that
every process of a run, and a run that repeats another, takes the same cases.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

SEED_VARIABLE = "SHARDWRITER_TEST_SEED"

T = TypeVar("T")


def choose_seed() -> int:
    """Return the seed of this run, and set it for the processes that the run starts."""
    if SEED_VARIABLE not in os.environ:
        is_fixed = os.environ.get("CI") == "true"
        os.environ[SEED_VARIABLE] = "0" if is_fixed else str(random.randrange(1 << 32))
    return int(os.environ[SEED_VARIABLE])


def draw(name: str, cases: Sequence[T], count: int) -> list[T]:
    """Return ``count`` of the cases in their order, by the seed of this run and a name."""
    places = random.Random(f"{choose_seed()} {name}").sample(range(len(cases)), count)
    return [cases[place] for place in sorted(places)]


def sampled(
    name: str, cases: Iterable[tuple[Any, ...]], *covering: Callable[..., Hashable]
) -> list[Any]:
    """Return the cases of a test as parameters, those that are not drawn with the marker ``full``.

    Args:
        name: The name of the test: it gives each test a sample of its own.
        cases: The values of each case.
        covering: Functions of a case's values. Each value that one of them gives is among the
            drawn cases at least once; without any, each value of each parameter is.
    """
    every = list(cases)
    if not covering:
        covering = tuple(_picker(place) for place in range(len(every[0])))
    order = random.Random(f"{choose_seed()} {name}").sample(range(len(every)), len(every))
    met: set[Hashable] = set()
    drawn = set()
    for place in order:
        wanted = {(number, key(*every[place])) for number, key in enumerate(covering)}
        if not wanted <= met:
            met |= wanted
            drawn.add(place)
    return [
        pytest.param(*case, marks=[] if place in drawn else [pytest.mark.full])
        for place, case in enumerate(every)
    ]


def _picker(place: int) -> Callable[..., Hashable]:
    return lambda *values: repr(values[place])
