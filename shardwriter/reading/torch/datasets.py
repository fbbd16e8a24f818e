"""`IterableShards` and `MapShards`: torch datasets, for other loaders than `ShardLoader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, get_worker_info

from shardwriter.dataset import Token, Uneven, worker_batches
from shardwriter.errors import OptionError, RunChanged
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.epochs import (
    EpochOptions,
    EpochPlan,
    RankOfWorld,
    find_rank,
    log_rank,
    map_seed,
)
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.torch.batches import BatchMaker, new_current

_SAMPLES_AHEAD: Final = 64


class IterableShards(IterableDataset[Any]):
    """An ``IterableDataset`` of a dataset's batches, or samples, for one rank.

    Rank and loader worker are detected when it is iterated: worker k of K yields the batches k,
    k + K, ..., which a ``DataLoader`` with ``batch_size=None`` puts back in order::

        dataset = IterableShards("out/train@16", batch_size=32, shuffle=True, uneven="drop")
        loader = StatefulDataLoader(dataset, batch_size=None, num_workers=4)

    Its iterators have ``state_dict`` and ``load_state_dict``, which torchdata calls in every
    worker. Batches and options are those of `shardwriter.reading.torch.ShardLoader`.

    Args:
        data: Path of a dataset, or an open one.
        batch_size: Samples per batch; None yields single samples, for a loader that does the
            batching, and then decides about incomplete batches.
        shuffle: A new order in every epoch.
        seed: Seed of the order, and of ``current_worker().item_seed`` in a map.
        uneven: Policy if the number of ranks does not divide the records.
        map: Called with every example.
        collate: Called with the list of a batch's samples; returns the batch.
        drop_last: Leave out the last batch if it is incomplete.
        rank: This rank; None to detect it.
        world: The number of ranks; None likewise.
    """

    def __init__(
        self,
        data: str | PathLike[str] | Dataset,
        batch_size: int | None = None,
        shuffle: bool = False,
        *,
        seed: int = 0,
        uneven: Uneven | None = None,
        map: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        if batch_size is None and (collate is not None or drop_last):
            raise OptionError("collate and drop_last need batches", hint="give batch_size= as well")
        data = data if isinstance(data, Dataset) else open_dataset(data)
        self.data = data
        self.batch_size = batch_size
        self._maker = BatchMaker(data, map, collate)
        if uneven == "pad":
            self._maker.check_pads()
        self._options = EpochOptions(
            len(data), data.identity, batch_size or 1, drop_last, shuffle, seed, uneven
        )
        self._given = (rank, world)
        self._ranks: RankOfWorld | None = find_rank(rank, world)
        # In shared memory, so that set_epoch also reaches persistent workers.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all following iterations, also in loader workers."""
        if type(epoch) is not int or epoch < 0:
            raise OptionError(f"epoch is {epoch!r}", hint="give an integer >= 0")
        self._epoch[0] = epoch

    def __len__(self) -> int:
        """Return the number of batches of one rank's epoch, or of samples without a batch size."""
        return self._options.plan(self._find_rank()).num_batches

    def __iter__(self) -> ShardIterator:
        """Return an iterator of this worker's batches, or samples, of the epoch."""
        ranks = self._find_rank()
        if get_worker_info() is None:
            log_rank(ranks, self._ranks)
            self._ranks = ranks
        plan = self._options.plan(ranks, self.epoch)
        return ShardIterator(self._maker, self._options, plan, self.batch_size is None)

    def _find_rank(self) -> RankOfWorld:
        found = find_rank(*self._given)
        # A spawned worker has no process group; its parent's rank was pickled with the dataset.
        carried = self.__dict__.get("_carried")
        return carried if carried is not None and get_worker_info() is not None else found

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_carried"] = self._carried_rank()
        return state

    def _carried_rank(self) -> RankOfWorld | None:
        found = self._find_rank()
        return found if found.world > 1 else None


class ShardIterator(Iterator[Any]):
    """A stateful iterator of one worker's part of an epoch.

    Args:
        maker: Computes the batches.
        options: Options of the dataset.
        plan: The epoch.
        gives_samples: Yield samples instead of batches.
    """

    def __init__(
        self, maker: BatchMaker, options: EpochOptions, plan: EpochPlan, gives_samples: bool
    ) -> None:
        info = get_worker_info()
        self._maker = maker
        self._options = options
        self._gives_samples = gives_samples
        self._worker = (0, 1) if info is None else (info.id, info.num_workers)
        self._current = new_current(0).numpy()[0]
        self._begin(plan, 0)

    def _begin(self, plan: EpochPlan, num_out: int) -> None:
        self._plan = plan
        self._units = worker_batches(self._worker[0], self._worker[1], plan.num_batches)
        self._num_out = num_out
        self._ahead: list[Any] = []

    def __next__(self) -> Any:
        if self._num_out >= len(self._units):
            raise StopIteration
        if self._gives_samples:
            made = self._next_sample()
        else:
            made = self._maker.make(self._plan, self._units[self._num_out], self._current).batch
        self._num_out += 1
        return made

    def _next_sample(self) -> Any:
        if not self._ahead:
            units = self._units[self._num_out : self._num_out + _SAMPLES_AHEAD]
            samples = np.arange(units.start, units.stop, units.step, dtype=np.int64)
            self._ahead = self._maker.samples(self._plan, samples, self._current)[::-1]
        return self._ahead.pop()

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's position, as plain JSON."""
        plan, options = self._plan, self._options
        seed = plan.seed if plan.shuffle else None
        share = plan.share
        token = Token(seed, plan.epoch, share.consumed, options.num_records, options.job)
        return {**token.to_json(), "num_out": self._num_out, **self._split()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state of the same rank and worker.

        Raises:
            RunChanged: The dataset, the order, or the number of ranks or workers has changed.
                `ShardLoader` can resume with other numbers of ranks and workers.
        """
        token, options = Token.from_json(state), self._options
        token.check(options.num_records, options.job)
        then = {name: state.get(name) for name in self._split()}
        now = self._split()
        differs = [
            f"{name} was {then[name]}, is {now[name]}" for name in now if then[name] != now[name]
        ]
        if token.seed != (self._plan.seed if self._plan.shuffle else None):
            differs.append("shuffle or seed has changed")
        if differs:
            raise RunChanged(
                f"cannot resume this worker's state: {'; '.join(differs)}",
                hint="ShardLoader can resume with another world, batch size or number of workers",
            )
        ranks = RankOfWorld(self._plan.share.rank, self._plan.share.world)
        self._begin(options.plan(ranks, token.epoch, token.consumed), state["num_out"])

    def _split(self) -> dict[str, Any]:
        share = self._plan.share
        return {
            "rank": share.rank,
            "world": share.world,
            "worker": self._worker[0],
            "num_workers": self._worker[1],
            "batch_size": None if self._gives_samples else self._plan.batch_size,
        }


class MapShards(TorchDataset[Any]):
    """A map-style torch dataset of mapped records, for use with torch's samplers.

    Without a map, an open dataset itself is enough. ``current_worker().item_seed`` in the map
    depends on the seed, the epoch and the record, and not on the worker.

    Args:
        data: Path of a dataset, or an open one.
        map: Called with every example.
        seed: Seed of random numbers in the map.
    """

    def __init__(
        self,
        data: str | PathLike[str] | Dataset,
        map: Callable[[Any], Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.data = data if isinstance(data, Dataset) else open_dataset(data)
        self._maker = BatchMaker(self.data, map, None)
        self._seed = seed
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        map_seed(seed, 0)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for ``item_seed`` in maps, also in persistent workers."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        """Return a sample by its record's number; negative ones count from the end."""
        if not -len(self.data) <= index < len(self.data):
            raise IndexError(f"record {index} of {len(self.data):,}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return many samples, which is faster than one by one."""
        records = np.asarray(indices, dtype=np.int64)
        records = np.where(records < 0, records + len(self.data), records)
        return self._maker.mapped(records, self._seed, int(self._epoch[0]))
