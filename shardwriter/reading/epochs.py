"""Ranks, the batches of an epoch by number, and a loader's progress, without any framework.

find_rank()        which rank this process is
EpochOptions.plan  -> EpochPlan: the batches of one rank, from a position in an epoch to its end
Progress           counts the batches a loader has yielded; its state can be checkpointed
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    Permutation,
    RankPartition,
    Token,
    Uneven,
    partition_for_rank,
)
from shardwriter.errors import OptionError, RunChanged

_log: Final = logging.getLogger("shardwriter.reading")


@dataclass(frozen=True)
class RankOfWorld:
    """The rank of a process, and the number of ranks.

    Attributes:
        rank: This rank, from 0.
        world: The number of ranks.
        source: Where the numbers come from, in words.
    """

    rank: int
    world: int
    source: str = field(default="arguments", compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise OptionError(
                f"rank {self.rank} of {self.world}, from {self.source}",
                hint="give world >= 1 and 0 <= rank < world",
            )

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} (from {self.source})"


def find_rank(rank: int | None = None, world: int | None = None) -> RankOfWorld:
    """Return the given rank; else that of torch.distributed, or of RANK and WORLD_SIZE.

    Args:
        rank: The rank; None to detect it.
        world: The number of ranks; None to detect it.

    Raises:
        OptionError: Only one is given, or they are out of range or not numbers.
    """
    if (rank is None) != (world is None):
        raise OptionError(
            f"rank is {rank} and world is {world}", hint="give both, or neither to detect them"
        )
    if rank is not None and world is not None:
        return RankOfWorld(rank, world)
    return _of_torch() or _of_environment() or RankOfWorld(0, 1, "default: a single process")


def log_rank(found: RankOfWorld, before: RankOfWorld | None) -> None:
    """Log the rank; warn if the number of ranks has changed since the loader was created."""
    if before is not None and before.world != found.world:
        _log.warning(
            "the loader was created for %d rank(s), and now there are %d: it reads as %s",
            before.world,
            found.world,
            found,
        )
    else:
        _log.info("reading as %s", found)


def _of_torch() -> RankOfWorld | None:
    # If torch.distributed is not imported, there is no process group.
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
            hint="set both to numbers, or unset both",
        ) from None


_MAPS: Final = b"shardwriter.read"
_U64: Final = 8


@dataclass(frozen=True)
class EpochOptions:
    """The options that determine the batches of every epoch.

    Attributes:
        num_records: Records of the dataset.
        job: The dataset's identity.
        batch_size: Samples per batch.
        drop_last: Leave out the last batch if it is incomplete.
        shuffle: A new order in every epoch; else reading order.
        seed: Seed of the order, and of the random numbers in maps.
        uneven: Policy if the number of ranks does not divide the records; None to raise then.
    """

    num_records: int
    job: str
    batch_size: int = 1
    drop_last: bool = False
    shuffle: bool = False
    seed: int = 0
    uneven: Uneven | None = None

    def __post_init__(self) -> None:
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise OptionError(f"batch_size is {self.batch_size!r}", hint="give an integer >= 1")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise OptionError(f"seed is {self.seed!r}", hint="give 0 <= seed < 2^64")
        partition_for_rank(1, 0, 1, self.uneven)  # raises on an unknown policy

    def plan(self, ranks: RankOfWorld, epoch: int = 0, consumed: int = 0) -> EpochPlan:
        """Return the rest of an epoch, for one rank.

        Raises:
            UnequalSteps: The number of ranks does not divide the remaining records, and ``uneven``
                is None.
        """
        share = partition_for_rank(self.num_records, ranks.rank, ranks.world, self.uneven, consumed)
        return EpochPlan(share, self.seed, epoch, self.shuffle, self.batch_size, self.drop_last)


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one rank, from a position in an epoch to its end; small and picklable."""

    share: RankPartition
    seed: int
    epoch: int
    shuffle: bool
    batch_size: int
    drop_last: bool

    @property
    def num_batches(self) -> int:
        """The number of batches, equal on all ranks."""
        return self.share.num_batches(self.batch_size, self.drop_last)

    @property
    def num_samples(self) -> int:
        """The number of samples in all batches."""
        return min(self.share.num_samples, self.num_batches * self.batch_size)

    @property
    def num_pads(self) -> int:
        """The number of padding samples, which repeat others so that all ranks have equal steps."""
        draws = self.share.draws(max(0, self.num_samples - 2), self.num_samples)
        return int(np.count_nonzero(self.share.is_pad(draws))) if draws.size else 0

    def batch(self, batch_index: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return batch j: ``int64[k]`` record numbers, and ``bool[k]`` whether each is padding."""
        samples = self.share.batch(batch_index, self.batch_size)
        return self.samples(np.arange(samples.start, samples.stop, dtype=np.int64))

    def samples(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the record numbers of samples t, and whether each is padding."""
        draws = self.share.consumed + self.share.rank + self.share.world * samples
        order = _order(self.share.num_records, self.seed, self.epoch) if self.shuffle else None
        return self.share.records(draws, order), self.share.is_pad(draws)


@lru_cache(maxsize=2)
def _order(num_records: int, seed: int, epoch: int) -> Permutation:
    return Permutation(num_records, seed, epoch)


def map_seed(seed: int, epoch: int) -> int:
    """Return the 64-bit seed of an epoch, from which `Worker.item_seed` makes those of its items.

    It is an 8-byte blake2b of both numbers as little-endian u64, read as u64. Random numbers in a
    map thus depend on the seed, the epoch and the item, and not on the worker.
    """
    data = b"".join(number.to_bytes(_U64, "little") for number in (seed, epoch))
    digest = blake2b(data, digest_size=_U64, person=_MAPS).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Start:
    """The position where an iteration begins.

    Attributes:
        epoch: The epoch.
        consumed: Records of the epoch that all ranks together have consumed before.
        steps: Batches of the epoch that this rank has yielded before.
    """

    epoch: int = 0
    consumed: int = 0
    steps: int = 0


class Run:
    """One iteration: a plan, and how many of its batches have been yielded.

    Attributes:
        plan: Its batches.
        start: The position where it began.
        num_out: Number of batches yielded.
    """

    def __init__(self, plan: EpochPlan, start: Start) -> None:
        self.plan = plan
        self.start = start
        self.num_out = 0

    @property
    def is_finished(self) -> bool:
        """Whether all batches have been yielded."""
        return self.num_out >= self.plan.num_batches

    @property
    def position(self) -> Start:
        """The position after the last yielded batch; at the end, the start of the next epoch."""
        if self.is_finished:
            return Start(self.start.epoch + 1)
        consumed = self.plan.share.consumed_after(self.num_out, self.plan.batch_size)
        return Start(self.start.epoch, consumed, self.start.steps + self.num_out)


class Progress:
    """A loader's progress, counted in yielded batches.

    An iteration begins at the position of a loaded state; else, if the iteration before was left
    early, at the start of its epoch; else at the start of the next epoch.

    Args:
        options: The loader's options.
    """

    def __init__(self, options: EpochOptions) -> None:
        self.options = options
        self._start = Start()
        self._run: Run | None = None
        self._has_warned_repeat = False

    @property
    def run(self) -> Run | None:
        """The current iteration: the last one that has begun."""
        return self._run

    @property
    def position(self) -> Start:
        """The position after the last yielded batch."""
        return self._start if self._run is None else self._run.position

    def begin(self, ranks: RankOfWorld) -> Run:
        """Begin an iteration, which replaces the one before.

        Raises:
            UnequalSteps: See `EpochOptions.plan`.
        """
        before = self._run
        start, plan = self._next(ranks)
        is_again = before is not None and before.num_out > 0 and before.start.epoch == start.epoch
        if before is not None and is_again and plan.shuffle and not self._has_warned_repeat:
            self._has_warned_repeat = True  # the loop may repeat the same first batches forever
            _log.warning(
                "epoch %d starts again, in the same order: the last iteration stopped after %d of "
                "%d batches; call set_epoch(%d) to go to the next epoch",
                start.epoch,
                before.num_out,
                before.plan.num_batches,
                start.epoch + 1,
            )
        self._start, self._run = start, Run(plan, start)
        return self._run

    def num_steps(self, ranks: RankOfWorld) -> int:
        """Return the number of batches of the current epoch, those before its start included.

        Raises:
            UnequalSteps: See `EpochOptions.plan`.
        """
        start, plan = self._present(ranks)
        return start.steps + plan.num_batches

    def num_pads(self, ranks: RankOfWorld) -> int:
        """Return the number of padding samples in the current epoch.

        Raises:
            UnequalSteps: See `EpochOptions.plan`.
        """
        return self._present(ranks)[1].num_pads

    def check(self, ranks: RankOfWorld) -> None:
        """Raise what `begin` would raise."""
        self._next(ranks)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless it is the current one."""
        if type(epoch) is not int or epoch < 0:
            raise OptionError(f"epoch is {epoch!r}", hint="give an integer >= 0")
        position = self.position
        if epoch == position.epoch:
            return
        if self._run is None and position.consumed:
            _log.warning(
                "set_epoch(%d) discards the loaded state, which was %d records into epoch %d",
                epoch,
                position.consumed,
                position.epoch,
            )
        self._start, self._run = Start(epoch), None

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain JSON: a `Token`, and the steps of this rank."""
        position, options = self.position, self.options
        seed = options.seed if options.shuffle else None
        token = Token(seed, position.epoch, position.consumed, options.num_records, options.job)
        return {**token.to_json(), "steps": position.steps}

    def load_state_dict(self, state: Mapping[str, Any], ranks: RankOfWorld) -> None:
        """Go to the position of a state.

        Raises:
            OptionError: It is not a state of `state_dict`.
            RunChanged: It belongs to another dataset, or to another order.
        """
        token, options = Token.from_json(state), self.options
        token.check(options.num_records, options.job)
        seed = options.seed if options.shuffle else None
        steps = state.get("steps")
        if steps is not None and (type(steps) is not int or steps < 0):
            raise OptionError(f"steps is {steps!r}", hint="give what state_dict() returned")
        if token.seed != seed:
            raise RunChanged(
                f"the checkpoint's epoch is {_order_text(token.seed)}, this one is "
                f"{_order_text(seed)}",
                hint="give the loader the same shuffle and seed, or start a new epoch",
            )
        # Another reader's token has no steps: as many as these ranks would have taken.
        if steps is None:
            steps = -(-token.consumed // (ranks.world * options.batch_size))
        self._start, self._run = Start(token.epoch, token.consumed, steps), None

    def _present(self, ranks: RankOfWorld) -> tuple[Start, EpochPlan]:
        run = self._run
        if run is not None and not run.is_finished:
            return run.start, run.plan
        return self._next(ranks)

    def _next(self, ranks: RankOfWorld) -> tuple[Start, EpochPlan]:
        run, start = self._run, self._start
        if run is not None and run.is_finished:
            start = run.position
        elif run is not None and run.num_out:
            start = Start(run.start.epoch)
        if start.consumed >= self.options.num_records > 0:
            start = Start(start.epoch + 1)
        plan = self.options.plan(ranks, start.epoch, start.consumed)
        if start.consumed and not plan.num_batches:  # no rank reads the rest: the epoch is finished
            start = Start(start.epoch + 1)
            plan = self.options.plan(ranks, start.epoch)
        return start, plan


def _order_text(seed: int | None) -> str:
    return "not shuffled" if seed is None else f"shuffled with seed {seed}"
