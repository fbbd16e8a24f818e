"""Which rank this process is, found when it is asked for and without importing a framework."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass, field
from typing import Final

from shardwriter.errors import OptionError

_log: Final = logging.getLogger("shardwriter.reading")


@dataclass(frozen=True)
class RankOfWorld:
    """A rank, and how many there are.

    Attributes:
        rank: r, from 0.
        world: W.
        source: Who said so, in words.
    """

    rank: int
    world: int
    source: str = field(default="arguments", compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise OptionError(
                f"rank {self.rank} of {self.world}, from {self.source}",
                hint="world is 1 or more, and rank a number from 0 up to it",
            )

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} (from {self.source})"


def find_rank(rank: int | None = None, world: int | None = None) -> RankOfWorld:
    """Return the rank: as told; else of torch.distributed, if it runs; else of the environment.

    Args:
        rank: As the caller says; None to find it out.
        world: Likewise. Both are given, or none of them.

    Raises:
        OptionError: Only one is given, or they are out of range or no numbers.
    """
    if (rank is None) != (world is None):
        raise OptionError(
            f"rank is {rank} and world is {world}", hint="give both, or none to have them found"
        )
    if rank is not None and world is not None:
        return RankOfWorld(rank, world)
    return _of_torch() or _of_environment() or RankOfWorld(0, 1, "nobody: this is the only one")


def tell_rank(found: RankOfWorld, before: RankOfWorld | None) -> None:
    """Log the rank, and warn where the world is another than it was when the reader was made."""
    if before is not None and before.world != found.world:
        _log.warning(
            "the reader was made for %d rank(s), and now there are %d: it reads as %s",
            before.world,
            found.world,
            found,
        )
    else:
        _log.info("reading as %s", found)


def _of_torch() -> RankOfWorld | None:
    # Where nobody has imported it, no process group can be there.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return RankOfWorld(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _of_environment() -> RankOfWorld | None:
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world is None:
        return None
    source = "the environment's RANK and WORLD_SIZE"
    try:
        return RankOfWorld(int(rank), int(world), source)
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"RANK is {rank!r} and WORLD_SIZE is {world!r} in the environment",
            hint="set both to numbers, or none",
        ) from None
