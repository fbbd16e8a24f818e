"""Which records each rank reads, and where an epoch goes on: arithmetic and nothing else.

An epoch is the row of draws 0, 1, 2, ... Draw q is record ``pi(q)``, or q itself where nothing is
shuffled. Of n records, c are consumed, by all ranks together; the m = n - c that remain go to W
ranks in turn, T draws for each::

    rank r, t in [0, T):  q = c + t*W + r      record = pi(q mod n)      padding where q >= n
    T = floor(m / W) (drop), ceil(m / W) (pad, wrap), m / W (error: W has to divide m)

(t, r) -> t*W + r is a bijection and T does not depend on r. So every rank takes the same steps, and
after any number of them exactly the draws [c, c') are consumed: any other number of ranks, size of
a batch or number of workers can go on from c'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.permutation import Permutation
from shardwriter.errors import OptionError, RunChanged, UnequalSteps

Uneven = Literal["drop", "pad", "wrap", "error"]

_UNEVEN: Final[tuple[str, ...]] = get_args(Uneven)
_MAX_SHARD_BYTES: Final = 200_000_000  # of @auto
_MAX_GOOD: Final = 6
_MAX_WORLD_TRIED: Final = 1 << 16


@dataclass(frozen=True)
class RankPartition:
    """What one rank reads of an epoch, from a place in it to its end.

    Attributes:
        num_records: n, of the whole epoch.
        world: W, the number of ranks.
        rank: r, this one.
        uneven: What happens where W does not divide what remains: ``drop`` leaves the rest out,
            ``pad`` and ``wrap`` begin the order again (padding is marked, what is wrapped is
            not), ``error`` refuses.
        consumed: c, the draws that all ranks together have consumed before.

    Raises:
        OptionError: A number is out of its range, or there is no such policy.
        UnequalSteps: ``error`` and W does not divide n - c; or ``drop`` and n < W, where no rank
            would read anything. Every rank raises it, before the epoch.
    """

    num_records: int
    world: int = 1
    rank: int = 0
    uneven: Uneven = "error"
    consumed: int = 0

    def __post_init__(self) -> None:
        _check_numbers(self.num_records, self.rank, self.world, self.consumed)
        if self.uneven not in _UNEVEN:
            raise OptionError(
                f"uneven is {self.uneven!r}", hint=f"it is one of {', '.join(_UNEVEN)}"
            )
        if self.uneven == "error" and self._num_remaining % self.world:
            raise _unequal(self._num_remaining, self.world)
        if self.uneven == "drop" and self.num_records < self.world:
            raise UnequalSteps(
                f"{_count(self.num_records, 'record')} for {_count(self.world, 'rank')}: with "
                "'drop' no rank would read any",
                hint="use fewer ranks, or uneven='pad' or 'wrap'",
            )

    @property
    def _num_remaining(self) -> int:
        return self.num_records - self.consumed

    @property
    def num_samples(self) -> int:
        """T: the samples of this rank, and of every other."""
        if self.uneven in ("pad", "wrap"):
            return -(-self._num_remaining // self.world)
        return self._num_remaining // self.world

    def draws(self, begin: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """Return the draws q of samples t in [begin, end): ``int64[k]``.

        Args:
            begin: The first sample.
            end: The one behind the last; None for all, and what lies over T is cut off.
        """
        end = self.num_samples if end is None else min(end, self.num_samples)
        first = self.consumed + self.rank
        return first + self.world * np.arange(max(begin, 0), end, dtype=np.int64)

    def records(self, draws: NDArray[np.int64], order: Permutation | None) -> NDArray[np.int64]:
        """Return the records that draws mean: ``int64[k]``.

        Args:
            draws: ``int64[k]``.
            order: Of all n records; None for the order in which they stand.
        """
        places = draws % self.num_records if self.num_records else draws
        return places if order is None else order(places)

    def is_pad(self, draws: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which draws are padding, ``bool[k]``: with another policy than ``pad``, none."""
        if self.uneven != "pad":
            return np.zeros(draws.shape, np.bool_)
        return np.asarray(draws >= self.num_records)

    def num_batches(self, batch_size: int, drop_last: bool = False) -> int:
        """Return the batches of this rank, and of every other.

        Args:
            batch_size: Samples in a batch; the last one may have less.
            drop_last: Leave that one out.
        """
        _check_batch_size(batch_size)
        full, rest = divmod(self.num_samples, batch_size)
        return full if drop_last or not rest else full + 1

    def batch(self, batch_index: int, batch_size: int) -> range:
        """Return the samples t of batch j, empty behind the last one."""
        _check_batch_size(batch_size)
        begin = batch_index * batch_size
        return range(begin, max(begin, min(begin + batch_size, self.num_samples)))

    def consumed_after(self, steps: int, batch_size: int) -> int:
        """Return c': what all ranks have consumed of the epoch after so many batches each."""
        _check_batch_size(batch_size)
        taken = min(steps * batch_size, self.num_samples)
        return min(self.num_records, self.consumed + taken * self.world)


def worker_batches(worker: int, num_workers: int, num_batches: int, first: int = 0) -> range:
    """Return the batches that a loader worker makes.

    A loader asks its workers in turn, beginning with worker 0: worker k of K makes the batches
    ``first + k``, ``first + k + K``, ...

    Args:
        worker: k.
        num_workers: K; 0 for none, the rank reads by itself.
        num_batches: Of the rank.
        first: The batch with which the loader begins.
    """
    num_workers = max(1, num_workers)
    if not 0 <= worker < num_workers:
        raise OptionError(f"worker {worker} of {num_workers}")
    return range(first + worker, num_batches, num_workers)


def partition_for_rank(
    num_records: int, rank: int, world: int, uneven: Uneven | None = None, consumed: int = 0
) -> RankPartition:
    """Return a rank's share, where the caller may have chosen no policy.

    Args:
        num_records: n.
        rank: This rank, from 0.
        world: W, the number of ranks.
        uneven: The policy; None is fine where the records divide by the ranks.
        consumed: Draws that all ranks together have consumed before.

    Raises:
        OptionError: A number is out of its range, or there is no such policy.
        UnequalSteps: There is no policy and W does not divide the records; names the numbers of
            records and of ranks that would divide, and what each policy would do.
    """
    return RankPartition(num_records, world, rank, uneven or "error", consumed)


@dataclass(frozen=True)
class Token:
    """How far a job has come in an epoch: numbers, and no state of an iterator.

    Attributes:
        seed: Of the order; None where nothing is shuffled.
        epoch: Which one.
        consumed: Draws that all ranks together have consumed of it.
        num_records: n, of the dataset that was read.
        job: The dataset's identity.
    """

    seed: int | None
    epoch: int
    consumed: int
    num_records: int
    job: str

    def to_json(self) -> dict[str, Any]:
        """Return the token as plain JSON, to be kept in a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Token:
        """Read what `to_json` gave; keys that are not known are ignored.

        Raises:
            OptionError: It is no token.
        """
        try:
            numbers = [data[name] for name in ("epoch", "consumed", "num_records")]
            seed, job = data["seed"], data["job"]
        except (KeyError, TypeError) as error:
            raise _no_token(f"no key {error}" if isinstance(data, Mapping) else "no dict") from None
        if seed is not None:
            numbers.append(seed)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise _no_token("a number from 0 on is missing or is something else")
        if not isinstance(job, str):
            raise _no_token("'job' is no text")
        if data["consumed"] > data["num_records"]:
            raise _no_token("more is consumed than there are records")
        return cls(seed, data["epoch"], data["consumed"], data["num_records"], job)

    def check(self, num_records: int, job: str) -> None:
        """Hold the token against the dataset that is to be read.

        Args:
            num_records: Of that dataset.
            job: Its identity.

        Raises:
            RunChanged: It is another one; says what differs.
        """
        differs = []
        if self.num_records != num_records:
            differs.append(f"{self.num_records:,} records then, {num_records:,} now")
        if self.job != job:
            differs.append(f"identity {_short(self.job)} then, {_short(job)} now")
        if differs:
            raise RunChanged(
                f"the checkpoint is of another dataset: {'; '.join(differs)}",
                hint="open the dataset that the checkpoint was made with, or begin a new epoch",
            )


def _check_numbers(num_records: int, rank: int, world: int, consumed: int) -> None:
    if num_records < 0:
        raise OptionError(f"num_records is {num_records}", hint="give a number from 0 on")
    if world < 1:
        raise OptionError(f"world is {world}", hint="give the number of ranks, 1 or more")
    if not 0 <= rank < world:
        raise OptionError(
            f"rank {rank} of {_count(world, 'rank')}", hint=f"ranks are 0 to {world - 1}"
        )
    if not 0 <= consumed <= num_records:
        raise OptionError(
            f"{consumed:,} of {_count(num_records, 'record')} are consumed",
            hint="is the checkpoint of another dataset?",
        )


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise OptionError(f"batch_size is {batch_size}", hint="give a number from 1 on")


def auto_num_shards(num_records: int, total_bytes: float, num_readers: int) -> int:
    """Return what ``@auto`` chooses: shards of at most 200 MB, a multiple of the readers.

    Less than a multiple only where there are fewer records than that.
    """
    needed = max(1, -(-int(total_bytes) // _MAX_SHARD_BYTES))
    return max(1, min(-(-needed // num_readers) * num_readers, max(1, num_records)))


def good_num_shards(num_records: int, num_shards: int, num_readers: int) -> list[int]:
    """Return multiples of the readers that are near ``num_shards``, the nearest first.

    A shard has at least one record, so the list is empty if there are more readers than records.
    """
    largest = num_records // num_readers
    middle = min(num_shards // num_readers, largest)
    turns = range(max(1, middle - _MAX_GOOD), min(largest, middle + _MAX_GOOD) + 1)
    found = [turn * num_readers for turn in turns]
    return sorted(found, key=lambda n: (abs(n - num_shards), n))[:_MAX_GOOD]


def _unequal(num_records: int, world: int) -> UnequalSteps:
    rest = num_records % world
    added = world - rest
    fewer = f"{num_records - rest:,} or " if num_records > rest else ""
    worlds = " or ".join(f"{good:,}" for good in _good_worlds(num_records, world))
    return UnequalSteps(
        f"{_count(num_records, 'record')} for {_count(world, 'rank')}: "
        f"{rest:,} of them would take a sample more than the others, and the job would hang",
        hint=f"use {fewer}{num_records + added:,} records, or {worlds} ranks; or choose what "
        f"happens: uneven='drop' (leaves {_count(rest, 'record')} out), 'pad' (adds "
        f"{_count(added, 'sample')} with is_pad=True), 'wrap' ({_count(added, 'record')} "
        f"{'comes' if added == 1 else 'come'} twice)",
        num_records=num_records,
        world=world,
    )


def _good_worlds(num_records: int, world: int) -> list[int]:
    """Return the numbers of ranks next to ``world`` that divide: below, and above if near."""
    below = next(w for w in range(world - 1, 0, -1) if num_records % w == 0)
    upto = min(num_records, 2 * world, world + _MAX_WORLD_TRIED)
    above = next((w for w in range(world + 1, upto + 1) if num_records % w == 0), None)
    return [below] if above is None else [below, above]


def _no_token(why: str) -> OptionError:
    return OptionError(
        f"this is no state of a reader of shardwriter: {why}",
        hint="give what state_dict() returned",
    )


def _short(job: str) -> str:
    return job if len(job) <= 20 else f"{job[:16]}..."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
