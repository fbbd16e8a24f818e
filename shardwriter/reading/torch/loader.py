"""Shards into PyTorch: equal steps on every rank, exact lengths, and a state that is arithmetic.

::

    loader = ShardLoader("out/train@16", batch_size=32, shuffle=True, uneven="drop", num_workers=4)
    for epoch in range(3):
        for batch in loader:  # a dict of tensors; epoch 0, 1, 2
            ...
            state = loader.state_dict()  # goes on behind this batch, under any world and workers

The loader asks for batches by their numbers: a task is the plan of an epoch and a number j, and
torch's round robin gives batch j to worker j mod K. So the workers keep no state, what was fetched
ahead can not make a state wrong, and every rank takes the same steps (see
`shardwriter.dataset.rank_partition`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from time import perf_counter
from typing import Any, Final, Literal

from torch.utils.data import DataLoader, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from shardwriter.dataset import Uneven
from shardwriter.errors import OptionError, ShardwriterError
from shardwriter.formats import html_table
from shardwriter.reading.dataset import Dataset
from shardwriter.reading.epochs import (
    EpochOptions,
    Progress,
    RankOfWorld,
    Run,
    find_rank,
    tell_rank,
)
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.torch.batches import BatchMaker, Task, TaskDataset, as_it_is, new_at_hand
from shardwriter.reading.torch.workers import (
    AtHand,
    Limits,
    WatchedWorkers,
    batch_at_hand,
    record_at_hand,
    worker_name,
)
from shardwriter.writing import unpack_failure

# What a loader hands to torch, and what it does not let others set.

_OURS: Final = {
    "dataset": "give data=, the first argument",
    "sampler": "it is made of shuffle, seed and uneven",
    "batch_sampler": "it is made of batch_size, shuffle, seed and uneven",
    "collate_fn": "collate= is called with the list of a batch's samples",
    "timeout": "start_timeout_s= and item_timeout_s= are told apart",
    "in_order": "batches come in order, so that a state says which have come",
}


class BatchNumbers(DistributedSampler[Task]):
    """The tasks of the iteration that began last.

    It is a ``DistributedSampler`` so that trainers which put one into a loader leave this one
    alone, and tell it the epoch.

    Args:
        progress: Of the loader.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __iter__(self) -> Iterator[Task]:
        run = self._progress.run
        assert run is not None
        return ((run.plan, batch_index) for batch_index in range(run.plan.num_batches))

    def __len__(self) -> int:
        run = self._progress.run
        return 0 if run is None else run.plan.num_batches

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, as `ShardLoader.set_epoch` does."""
        self._progress.set_epoch(epoch)


def torch_options(options: Mapping[str, Any], own: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options that are handed to torch.

    Those that a loader has set itself are left out where it is made again of its attributes.

    Args:
        options: What the loader was given beside its own.
        own: The loader's own: a name that is neither may be meant as one of them.

    Raises:
        OptionError: There is no such option, or it is not the caller's to give.
    """
    known = inspect.signature(DataLoader.__init__).parameters
    kept = {}
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, [*own, *(known.keys() - _OURS.keys())], 1)
            hint = f"did you mean {near[0]}=?" if near else "see help(ShardLoader)"
            raise OptionError(f"ShardLoader has no option {name!r}", hint=hint)
        if name not in _OURS:
            kept[name] = value
        elif not (value is known[name].default or value is as_it_is or isinstance(value, _MADE)):
            raise OptionError(f"{name} is not the caller's to give", hint=_OURS[name])
    return kept


_MADE: Final = (TaskDataset, BatchNumbers, SequentialSampler)


# Where the time of a loader went: in its workers, and waiting for them.


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


_RECORDS_TOLD: Final = 4


class ShardLoader(DataLoader[Any]):
    """Batches of a set of shards, for one rank: a ``DataLoader`` that is stateful.

    Without ``map`` and ``collate`` a batch is a dict that equals ``default_collate`` of its
    examples, made by columns: a tensor for each feature of numbers, a list for text and bytes, and
    a list of tensors for a feature whose shape varies. (Lists of text are not transposed, as
    ``default_collate`` does.) With ``uneven="pad"`` it has ``is_pad``
    (``bool[b]``), and so has each example that ``map`` is given. A dataset of raw records gives
    lists of bytes.

    The order is a function of ``(seed, epoch)``. Where all batches of an epoch have come out, the
    next iteration is the next epoch; `set_epoch` says another. An iteration that was broken off is
    not gone on with: the next begins the epoch again. Of several iterators of one loader the one
    that began last counts.

    Args:
        data: Name of a dataset, or one that is open. A name is opened with what
            `shardwriter.open` has by default.
        batch_size: Samples in a batch of this rank.
        shuffle: Another order in every epoch.
        seed: Of the order, and of ``current_worker().item_seed`` in a map.
        uneven: What happens where the ranks do not divide the records: ``drop`` leaves the rest
            out, ``pad`` marks what it adds, ``wrap`` does not, ``error`` refuses. None is
            ``error``; with one rank nothing is uneven.
        map: Called on every example; what it returns is collated.
        collate: Makes a batch of a list of samples. None: see above, and ``default_collate`` of
            what a map returned.
        decode: ``"images"``: features that the schema knows as images come as pixels, decoded by
            Pillow where the batches are made: ``uint8[b, height, width, channels]`` where all
            images of the batch have one size, else a list of ``uint8[height, width, channels]``.
            A map is given the array of its image.
        pad: Pad features whose length varies to the longest of the batch, with this number, or
            with that of each feature in a mapping: ``pad=0``, ``pad={"tokens": -1}``. They become
            one tensor, and ``NAME/length`` has the lengths (``int64[b]``; ``int64[b, d]`` of d
            axes); a record without the feature has length 0. Images of ``decode`` are padded as
            well. With a map it names features of what the map returns.
        drop_last: Leave out the last batch if it has less.
        rank: This rank. None: of ``torch.distributed`` where it is initialised, else the
            environment's ``RANK``; found again whenever an iterator is made.
        world: The number of ranks, likewise.
        num_workers: Processes that make the batches; 0 for none.
        timings: Measure, see `timings`.
        start_timeout_s: The first batch has to be there in this time; None for no limit.
        item_timeout_s: Every other batch, likewise. Both need workers.
        **options: ``DataLoader``'s own: ``pin_memory``, ``prefetch_factor``,
            ``persistent_workers``, ``multiprocessing_context``, ``worker_init_fn``, ``generator``.

    Raises:
        OptionError: An option is wrong, or is not the caller's to give.
        DataError: The dataset can not be read; see `open_dataset`.

    Iterating raises `UnequalSteps` before the first batch, on every rank; what ``map``, ``collate``
    or reading raise, with its own class and the traceback of the worker as its cause;
    `WorkerDied`; `ItemTimeout`. After any of them no worker is left.
    """

    _iterator: Any  # workers that are kept

    def __init__(
        self,
        data: str | PathLike[str] | Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        uneven: Uneven | None = None,
        map: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        num_workers: int = 0,
        timings: bool = False,
        decode: Literal["images"] | None = None,
        pad: float | Mapping[str, float] | None = None,
        start_timeout_s: float | None = None,
        item_timeout_s: float | None = None,
        **options: Any,
    ) -> None:
        if isinstance(options.get("sampler"), SequentialSampler):
            shuffle = False  # Lightning makes the loader again so, to overfit some batches
        options = torch_options(options, inspect.signature(ShardLoader.__init__).parameters)
        limits = Limits(start_timeout_s, item_timeout_s)
        if limits != Limits() and not num_workers:
            raise OptionError(
                "a timeout needs workers: without them a batch is made by the one who waits for it",
                hint="give num_workers=1 or more",
            )
        if not isinstance(data, Dataset):
            data = open_dataset(data, timings=timings)
        maker = BatchMaker(data, map, collate, timings, decode, pad)
        if uneven == "pad":
            maker.check_pads()
        epochs = EpochOptions(
            len(data), data.identity, batch_size, drop_last, shuffle, seed, uneven
        )
        self._progress = Progress(epochs)
        # Under the names of the arguments: Lightning makes a loader like this one to predict.
        self.data, self.shuffle, self.seed, self.uneven = data, shuffle, seed, uneven
        self.map, self.collate, self.decode, self.pad = map, collate, decode, pad
        self.rank, self.world = rank, world
        self.start_timeout_s, self.item_timeout_s = start_timeout_s, item_timeout_s
        self._ranks, self._is_rank_told = find_rank(rank, world), False
        self._limits = limits
        self._times = Times(num_workers) if timings else None
        super().__init__(
            TaskDataset(maker, new_at_hand(num_workers)),
            batch_size=None,
            sampler=BatchNumbers(self._progress),
            num_workers=num_workers,
            collate_fn=as_it_is,
            **options,
        )
        # Torch makes no batches here, but those who ask are to know.
        object.__setattr__(self, "batch_size", batch_size)
        object.__setattr__(self, "drop_last", drop_last)

    def __len__(self) -> int:
        """Return the batches of this rank in the epoch at hand, those before a loaded state too.

        Raises:
            UnequalSteps: As iterating would.
        """
        return self._progress.num_steps(find_rank(self.rank, self.world))

    def __repr__(self) -> str:
        told = {"shuffle": self.shuffle, "uneven": self.uneven, "num_workers": self.num_workers}
        more = "".join(f", {name}={value!r}" for name, value in told.items() if value)
        what = f"{len(self.data):,} records, batch_size={self.batch_size}{more}"
        return f"<ShardLoader {self.data.name!r}: {what}>"

    def _repr_html_(self) -> str:
        shown = ("batch_size", "shuffle", "seed", "uneven", "drop_last", "num_workers", "epoch")
        rows = [(name, getattr(self, name)) for name in shown]
        return html_table(repr(self), [("data", repr(self.data)), *rows])

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch; see the class for which one that is."""
        self._progress.check(self._find_rank())
        return _Batches(self)

    @property
    def epoch(self) -> int:
        """The epoch at hand."""
        return self._progress.position.epoch

    @property
    def num_pads(self) -> int:
        """How many of this rank's samples in the epoch at hand are padding: those with ``is_pad``.

        Raises:
            UnequalSteps: As iterating would.
        """
        return self._progress.num_pads(find_rank(self.rank, self.world))

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch; the epoch at hand stays where it stands."""
        self._progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, behind the last batch that came out: plain JSON.

        It is the same on every rank (FORMATS F12), and right whatever was fetched ahead.
        """
        return self._progress.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state stands.

        World, batch size and workers may be others than they were. `len` then counts the steps
        before it as well, as a trainer does that has a number of steps in its own state.

        Raises:
            OptionError: It is no state of a reader.
            RunChanged: It is of another dataset, shuffle or seed.
        """
        self._progress.load_state_dict(state_dict, find_rank(self.rank, self.world))

    def timings(self) -> LoaderTimings | None:
        """Return where the time went since the loader was made; None without ``timings=True``."""
        return None if self._times is None else self._times.told()

    def _find_rank(self) -> RankOfWorld:
        found = find_rank(self.rank, self.world)
        if not self._is_rank_told or found != self._ranks:
            tell_rank(found, self._ranks)
        self._ranks, self._is_rank_told = found, True
        return found

    def _make_deliveries(self, run: Run) -> Iterator[Any]:
        if not self.num_workers:
            alone: Iterator[Any] = self._get_iterator()
            return alone
        kept = self._iterator
        if isinstance(kept, WatchedWorkers) and not kept._shutdown:
            kept.work_for(self, run, self._at_hand_of(run))
            return kept
        made = WatchedWorkers(self, self._limits, run, self._at_hand_of(run))
        if self.persistent_workers:
            self._iterator = made
        return made

    def _at_hand_of(self, run: Run) -> Callable[[int, int], AtHand]:
        assert isinstance(self.dataset, TaskDataset)
        dataset, plan = self.dataset, run.plan

        def tell(batch_index: int, worker_index: int) -> AtHand:
            # A batch that was made may be on its way; the one at hand tells more.
            at_hand = batch_at_hand(dataset.at_hand, worker_index)
            batch_index = batch_index if at_hand is None else at_hand
            records = plan.batch(batch_index)[0].tolist()
            more = ", ..." if len(records) > _RECORDS_TOLD else ""
            numbers = ", ".join(map(str, records[:_RECORDS_TOLD]))
            batch = f"batch {batch_index} of epoch {plan.epoch} (records {numbers}{more})"
            record = record_at_hand(dataset.at_hand, worker_index)
            if record is None:
                return AtHand(batch)
            place = dataset.maker.data.place(record)
            index = dataset.maker.data.source_index(record)
            path, shard = str(place.path), place.shard_index
            return AtHand(batch, path, place.record_index, index, shard)

        return tell


class _Batches:
    """One iteration of a loader.

    It begins with its first batch, so that `set_epoch` between ``iter`` and ``next`` counts:
    Lightning does that.
    """

    def __init__(self, loader: ShardLoader) -> None:
        self._loader: ShardLoader | None = loader
        self._deliveries: Iterator[Any] | None = None
        self._run: Run | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return 0 if self._loader is None else len(self._loader)

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        begin = perf_counter()
        if isinstance(self._deliveries, WatchedWorkers) and self._deliveries.run is not self._run:
            raise OptionError(
                "another iteration of this loader has begun, and the workers that are kept are its",
                hint="persistent_workers=False lets both go on, and so does a loader for each",
            )
        try:
            if self._deliveries is None:
                self._run = loader._progress.begin(loader._find_rank())
                self._deliveries = loader._make_deliveries(self._run)
            batch, seconds = self._next(self._deliveries)
        except BaseException:  # Ctrl-C too: no worker may be left
            self._end()
            raise
        assert self._run is not None
        if loader._times is not None:
            worker = self._run.num_out % max(1, loader.num_workers)
            loader._times.add(begin, worker, seconds)
        self._run.num_out += 1
        return batch

    def _next(self, deliveries: Iterator[Any]) -> tuple[Any, Mapping[str, float]]:
        is_made, found, seconds = next(deliveries)
        if is_made:
            return found, seconds
        assert self._run is not None
        raise self._failure(found, self._run, deliveries)

    def _failure(self, packed: bytes, run: Run, deliveries: Iterator[Any]) -> BaseException:
        assert isinstance(deliveries, WatchedWorkers)
        assert self._loader is not None
        worker_index = run.num_out % self._loader.num_workers
        process = deliveries._workers[worker_index]
        worker = worker_name(worker_index, process.pid)
        error = unpack_failure(packed, worker, lambda index: index)
        if isinstance(error, ShardwriterError):
            error.shard = None  # path and record say where
        elif hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"{worker}, batch {run.num_out} of epoch {run.plan.epoch}")
        return error

    def _end(self) -> None:
        """Leave no worker behind, unless they are kept and nothing went wrong."""
        loader, deliveries = self._loader, self._deliveries
        self._loader = self._deliveries = None
        if not isinstance(deliveries, WatchedWorkers) or loader is None or self._run is None:
            return
        if loader.persistent_workers and self._run.is_finished:
            return
        if self._run.is_finished:
            deliveries.close()
        else:
            deliveries.stop()
        if loader._iterator is deliveries:
            loader._iterator = None
