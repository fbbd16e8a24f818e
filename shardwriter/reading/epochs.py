"""Batches of an epoch by number, and how far a loader has come: what no framework has a part in."""

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

# Which rank this process is, found when it is asked for and without importing a framework.

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


_MAPS: Final = b"shardwriter.read"
_U64: Final = 8


@dataclass(frozen=True)
class EpochOptions:
    """What the batches of every epoch have in common.

    Attributes:
        num_records: n, of the dataset.
        job: The dataset's identity.
        batch_size: Samples in a batch.
        drop_last: Leave out the last batch if it has less.
        shuffle: Another order in every epoch; else the order in which the records stand.
        seed: Of the order, and of what maps draw.
        uneven: What happens where the ranks do not divide the records; None to refuse then.
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
            raise OptionError(
                f"batch_size is {self.batch_size!r}", hint="give a whole number from 1 on"
            )
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise OptionError(f"seed is {self.seed!r}", hint="give 0 <= seed < 2^64")
        partition_for_rank(1, 0, 1, self.uneven)  # is there such a policy?

    def plan(self, ranks: RankOfWorld, epoch: int = 0, consumed: int = 0) -> EpochPlan:
        """Return the rest of an epoch, for one rank.

        Raises:
            UnequalSteps: The ranks do not divide what remains, and nobody said what to do then.
        """
        share = partition_for_rank(self.num_records, ranks.rank, ranks.world, self.uneven, consumed)
        return EpochPlan(share, self.seed, epoch, self.shuffle, self.batch_size, self.drop_last)


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one rank, from a place in an epoch to its end; small, and can be pickled."""

    share: RankPartition
    seed: int
    epoch: int
    shuffle: bool
    batch_size: int
    drop_last: bool

    @property
    def num_batches(self) -> int:
        """How many there are; on every rank the same."""
        return self.share.num_batches(self.batch_size, self.drop_last)

    @property
    def num_samples(self) -> int:
        """The samples in them."""
        return min(self.share.num_samples, self.num_batches * self.batch_size)

    @property
    def num_pads(self) -> int:
        """The samples that repeat others, to give every rank the same number."""
        draws = self.share.draws(max(0, self.num_samples - 2), self.num_samples)
        return int(np.count_nonzero(self.share.is_pad(draws))) if draws.size else 0

    def batch(self, batch_index: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return batch j: ``int64[k]`` records, ``bool[k]`` of which are padding."""
        samples = self.share.batch(batch_index, self.batch_size)
        return self.samples(np.arange(samples.start, samples.stop, dtype=np.int64))

    def samples(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the records of samples t, and which of them are padding."""
        draws = self.share.consumed + self.share.rank + self.share.world * samples
        order = _order(self.share.num_records, self.seed, self.epoch) if self.shuffle else None
        return self.share.records(draws, order), self.share.is_pad(draws)


@lru_cache(maxsize=2)
def _order(num_records: int, seed: int, epoch: int) -> Permutation:
    return Permutation(num_records, seed, epoch)


def map_seed(seed: int, epoch: int) -> int:
    """Return the 64-bit seed of an epoch, from which `Worker.item_seed` makes those of its items.

    It is blake2b over both numbers as u64, little-endian, 8 bytes long, read as u64: what a map
    draws depends on the seed, the epoch and the item, and on no worker.
    """
    data = b"".join(number.to_bytes(_U64, "little") for number in (seed, epoch))
    digest = blake2b(data, digest_size=_U64, person=_MAPS).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Start:
    """Where an iteration begins.

    Attributes:
        epoch: In which epoch.
        consumed: Draws of it that all ranks together have consumed.
        steps: Batches of it that this rank was given before.
    """

    epoch: int = 0
    consumed: int = 0
    steps: int = 0


class Run:
    """One iteration: a plan, and how many of its batches have come out.

    Attributes:
        plan: Its batches.
        start: Where it began.
        num_out: Batches that have come out.
    """

    def __init__(self, plan: EpochPlan, start: Start) -> None:
        self.plan = plan
        self.start = start
        self.num_out = 0

    @property
    def is_finished(self) -> bool:
        """Whether all of its batches have come out."""
        return self.num_out >= self.plan.num_batches

    @property
    def position(self) -> Start:
        """Where it stands: behind the last batch, at the begin of the next epoch."""
        if self.is_finished:
            return Start(self.start.epoch + 1)
        consumed = self.plan.share.consumed_after(self.num_out, self.plan.batch_size)
        return Start(self.start.epoch, consumed, self.start.steps + self.num_out)


class Progress:
    """How far a loader has come, counted where batches come out.

    An iteration begins where a state that was loaded says; else at the begin of the epoch that was
    broken off; else, where all batches of an epoch have come out, at the begin of the next.

    Args:
        options: Of the loader.
    """

    def __init__(self, options: EpochOptions) -> None:
        self.options = options
        self._start = Start()
        self._run: Run | None = None
        self._is_again_told = False

    @property
    def run(self) -> Run | None:
        """The iteration that counts: the last one that has begun."""
        return self._run

    @property
    def position(self) -> Start:
        """Behind the last batch that has come out."""
        return self._start if self._run is None else self._run.position

    def begin(self, ranks: RankOfWorld) -> Run:
        """Begin an iteration; the one before counts no more.

        Raises:
            UnequalSteps: As of `EpochOptions.plan`.
        """
        before = self._run
        start, plan = self._next(ranks)
        is_again = before is not None and before.num_out > 0 and before.start.epoch == start.epoch
        if before is not None and is_again and plan.shuffle and not self._is_again_told:
            self._is_again_told = True  # it may be that the same few batches come for ever
            _log.warning(
                "epoch %d begins again, in the same order: the iteration before ended after %d of "
                "%d batches; set_epoch(%d) goes on to the next epoch",
                start.epoch,
                before.num_out,
                before.plan.num_batches,
                start.epoch + 1,
            )
        self._start, self._run = start, Run(plan, start)
        return self._run

    def num_steps(self, ranks: RankOfWorld) -> int:
        """Return the batches of the epoch at hand: those before its start, and those from there.

        Raises:
            UnequalSteps: As of `EpochOptions.plan`.
        """
        start, plan = self._present(ranks)
        return start.steps + plan.num_batches

    def num_pads(self, ranks: RankOfWorld) -> int:
        """Return the padding among the samples of the epoch at hand.

        Raises:
            UnequalSteps: As of `EpochOptions.plan`.
        """
        return self._present(ranks)[1].num_pads

    def check(self, ranks: RankOfWorld) -> None:
        """Raise what `begin` would raise."""
        self._next(ranks)

    def set_epoch(self, epoch: int) -> None:
        """Go to the begin of an epoch, unless this is the epoch at hand."""
        if type(epoch) is not int or epoch < 0:
            raise OptionError(f"epoch is {epoch!r}", hint="give a whole number from 0 on")
        position = self.position
        if epoch == position.epoch:
            return
        if self._run is None and position.consumed:
            _log.warning(
                "epoch %d: the state that was loaded, %d records into epoch %d, is left",
                epoch,
                position.consumed,
                position.epoch,
            )
        self._start, self._run = Start(epoch), None

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands as plain JSON: a `Token`, and the steps of this rank."""
        position, options = self.position, self.options
        seed = options.seed if options.shuffle else None
        token = Token(seed, position.epoch, position.consumed, options.num_records, options.job)
        return {**token.to_json(), "steps": position.steps}

    def load_state_dict(self, state: Mapping[str, Any], ranks: RankOfWorld) -> None:
        """Go to where a state stands.

        Raises:
            OptionError: It is no state.
            RunChanged: It is of another dataset, or of another order.
        """
        token, options = Token.from_json(state), self.options
        token.check(options.num_records, options.job)
        seed = options.seed if options.shuffle else None
        steps = state.get("steps")
        if steps is not None and (type(steps) is not int or steps < 0):
            raise OptionError(f"steps is {steps!r}", hint="give what state_dict() returned")
        if token.seed != seed:
            raise RunChanged(
                f"the checkpoint's epoch is {_order_told(token.seed)}, this one is "
                f"{_order_told(seed)}",
                hint="give the loader the same shuffle and seed, or begin a new epoch",
            )
        # Where nobody counted, as many as these ranks would have taken.
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
        if start.consumed and not plan.num_batches:  # a rest that no rank reads: the epoch is done
            start = Start(start.epoch + 1)
            plan = self.options.plan(ranks, start.epoch)
        return start, plan


def _order_told(seed: int | None) -> str:
    return "not shuffled" if seed is None else f"shuffled with seed {seed}"
