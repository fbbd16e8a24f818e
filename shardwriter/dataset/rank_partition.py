"""Partition an epoch among ranks, so that it can be resumed with any number of ranks.

An epoch is the sequence of draws 0, 1, 2, ... Draw q is record ``pi(q)``, or q itself without a
shuffle. Of n records, all ranks together have consumed c; the remaining m = n - c are assigned to W
ranks in turn, T draws each::

    rank r, t in [0, T):  q = c + t*W + r      record = pi(q mod n)      padding where q >= n
    T = floor(m / W) (drop), ceil(m / W) (pad, wrap), m / W (error: W has to divide m)

(t, r) -> t*W + r is a bijection and T does not depend on r. So all ranks take the same number of
steps, and after each step exactly the draws [c, c') are consumed: reading can resume from c' with
any number of ranks, batch size or number of workers.
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
    """The part of an epoch that one rank reads, from a given draw to the end.

    Attributes:
        num_records: n, of the whole epoch.
        world: W, the number of ranks.
        rank: r, the number of this rank.
        uneven: The policy if W does not divide the remaining draws: ``drop`` omits the rest,
            ``pad`` and ``wrap`` start the order again (padding is marked, wrapped records are
            not), ``error`` raises.
        consumed: c, the draws that all ranks together have consumed.

    Raises:
        OptionError: A number is out of range, or the policy is unknown.
        UnequalSteps: The policy is ``error`` and W does not divide n - c, or it is ``drop`` and
            n < W, so no rank would read a record. Every rank raises it, before the epoch.
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
                f"uneven is {self.uneven!r}", hint=f"give one of {', '.join(_UNEVEN)}"
            )
        if self.uneven == "error" and self._num_remaining % self.world:
            raise _unequal(self._num_remaining, self.world)
        if self.uneven == "drop" and self.num_records < self.world:
            raise UnequalSteps(
                f"{_count(self.num_records, 'record')} for {_count(self.world, 'rank')}: with "
                "'drop' no rank would read any",
                hint="use fewer ranks, or uneven='pad' or uneven='wrap'",
            )

    @property
    def _num_remaining(self) -> int:
        return self.num_records - self.consumed

    @property
    def num_samples(self) -> int:
        """T: the number of samples of each rank."""
        if self.uneven in ("pad", "wrap"):
            return -(-self._num_remaining // self.world)
        return self._num_remaining // self.world

    def draws(self, begin: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """Return the draws q of samples t in [begin, end): ``int64[k]``.

        Args:
            begin: The first sample.
            end: The end, exclusive, limited to T; None for T.
        """
        end = self.num_samples if end is None else min(end, self.num_samples)
        first = self.consumed + self.rank
        return first + self.world * np.arange(max(begin, 0), end, dtype=np.int64)

    def records(self, draws: NDArray[np.int64], order: Permutation | None) -> NDArray[np.int64]:
        """Return the records of draws: ``int64[k]``.

        Args:
            draws: ``int64[k]``.
            order: The permutation of all n records; None for no shuffle.
        """
        positions = draws % self.num_records if self.num_records else draws
        return positions if order is None else order(positions)

    def is_pad(self, draws: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which draws are padding, ``bool[k]``; none with another policy than ``pad``."""
        if self.uneven != "pad":
            return np.zeros(draws.shape, np.bool_)
        return np.asarray(draws >= self.num_records)

    def num_batches(self, batch_size: int, drop_last: bool = False) -> int:
        """Return the number of batches of each rank.

        Args:
            batch_size: Samples per batch; the last batch may have fewer.
            drop_last: Whether to omit a smaller last batch.
        """
        _check_batch_size(batch_size)
        full, rest = divmod(self.num_samples, batch_size)
        return full if drop_last or not rest else full + 1

    def batch(self, batch_index: int, batch_size: int) -> range:
        """Return the samples t of batch j; empty after the last batch."""
        _check_batch_size(batch_size)
        begin = batch_index * batch_size
        return range(begin, max(begin, min(begin + batch_size, self.num_samples)))

    def consumed_after(self, steps: int, batch_size: int) -> int:
        """Return c': the draws that all ranks have consumed after ``steps`` batches each."""
        _check_batch_size(batch_size)
        taken = min(steps * batch_size, self.num_samples)
        return min(self.num_records, self.consumed + taken * self.world)


def worker_batches(worker: int, num_workers: int, num_batches: int, first: int = 0) -> range:
    """Return the batches that a loader worker reads.

    A loader uses its workers in turn, starting with worker 0: worker k of K reads the batches
    ``first + k``, ``first + k + K``, ...

    Args:
        worker: k.
        num_workers: K; 0 if the rank reads without workers.
        num_batches: Number of batches of the rank.
        first: The first batch of the loader.
    """
    num_workers = max(1, num_workers)
    if not 0 <= worker < num_workers:
        raise OptionError(f"worker {worker} of {num_workers}")
    return range(first + worker, num_batches, num_workers)


def partition_for_rank(
    num_records: int, rank: int, world: int, uneven: Uneven | None = None, consumed: int = 0
) -> RankPartition:
    """Return the partition of a rank; without a policy, ranks have to divide the records.

    Args:
        num_records: n.
        rank: The number of this rank, from 0.
        world: W, the number of ranks.
        uneven: The policy; None means ``error``.
        consumed: Draws that all ranks together have consumed.

    Raises:
        OptionError: A number is out of range, or the policy is unknown.
        UnequalSteps: There is no policy and W does not divide the records; the message suggests
            numbers of records and ranks that divide, and explains each policy.
    """
    return RankPartition(num_records, world, rank, uneven or "error", consumed)


@dataclass(frozen=True)
class Token:
    """The position of a training job in an epoch, for a checkpoint.

    Attributes:
        seed: Seed of the order; None without a shuffle.
        epoch: Number of the epoch.
        consumed: Draws of the epoch that all ranks together have consumed.
        num_records: n, the number of records of the dataset.
        job: The dataset's identity.
    """

    seed: int | None
    epoch: int
    consumed: int
    num_records: int
    job: str

    def to_json(self) -> dict[str, Any]:
        """Return the token as JSON, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Token:
        """Return the token from the result of `to_json`; unknown keys are ignored.

        Raises:
            OptionError: It is not a token.
        """
        try:
            numbers = [data[name] for name in ("epoch", "consumed", "num_records")]
            seed, job = data["seed"], data["job"]
        except (KeyError, TypeError) as error:
            raise _invalid_token(
                f"key {error} is missing" if isinstance(data, Mapping) else "it is not a dict"
            ) from None
        if seed is not None:
            numbers.append(seed)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise _invalid_token("a number is negative or not an integer")
        if not isinstance(job, str):
            raise _invalid_token("'job' is not a str")
        if data["consumed"] > data["num_records"]:
            raise _invalid_token("more draws are consumed than there are records")
        return cls(seed, data["epoch"], data["consumed"], data["num_records"], job)

    def check(self, num_records: int, job: str) -> None:
        """Check that the token belongs to the dataset to be read.

        Args:
            num_records: Number of records of the dataset.
            job: Identity of the dataset.

        Raises:
            RunChanged: It is another dataset; the message has the differences.
        """
        differs = []
        if self.num_records != num_records:
            differs.append(f"it had {self.num_records:,} records, now {num_records:,}")
        if self.job != job:
            differs.append(f"its identity was {_short(self.job)}, now {_short(job)}")
        if differs:
            raise RunChanged(
                f"the checkpoint is of another dataset: {'; '.join(differs)}",
                hint="open the dataset of the checkpoint, or start a new epoch",
            )


def _check_numbers(num_records: int, rank: int, world: int, consumed: int) -> None:
    if num_records < 0:
        raise OptionError(f"num_records is {num_records}", hint="give 0 or more")
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
        raise OptionError(f"batch_size is {batch_size}", hint="give 1 or more")


def auto_num_shards(num_records: int, total_bytes: float, num_readers: int) -> int:
    """Return N for ``@auto``: a multiple of the readers, with shards of at most 200 MB.

    N is at most the number of records.
    """
    needed = max(1, -(-int(total_bytes) // _MAX_SHARD_BYTES))
    return max(1, min(-(-needed // num_readers) * num_readers, max(1, num_records)))


def good_num_shards(num_records: int, num_shards: int, num_readers: int) -> list[int]:
    """Return multiples of the number of readers near ``num_shards``, the nearest first.

    Each shard has at least one record, so the list is empty for more readers than records.
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
        f"{_count(rest, 'rank')} would take one step more than the others, and the job would hang",
        hint=f"use {fewer}{num_records + added:,} records, or {worlds} ranks; or a policy: "
        f"uneven='drop' (omits {_count(rest, 'record')}), 'pad' (adds "
        f"{_count(added, 'sample')} with is_pad=True), 'wrap' ({_count(added, 'record')} "
        f"{'comes' if added == 1 else 'come'} twice)",
        num_records=num_records,
        world=world,
    )


def _good_worlds(num_records: int, world: int) -> list[int]:
    """Return the nearest numbers of ranks that divide: below ``world``, and above if near."""
    below = next(w for w in range(world - 1, 0, -1) if num_records % w == 0)
    upto = min(num_records, 2 * world, world + _MAX_WORLD_TRIED)
    above = next((w for w in range(world + 1, upto + 1) if num_records % w == 0), None)
    return [below] if above is None else [below, above]


def _invalid_token(why: str) -> OptionError:
    return OptionError(
        f"the reader state is invalid: {why}",
        hint="give the result of state_dict()",
    )


def _short(job: str) -> str:
    return job if len(job) <= 20 else f"{job[:16]}..."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
