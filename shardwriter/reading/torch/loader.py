"""`ShardLoader`: batches with equal steps on every rank, exact lengths and checkpoints.

::

    loader = ShardLoader("out/train@16", batch_size=32, shuffle=True, uneven="drop", num_workers=4)
    for epoch in range(3):
        for batch in loader:  # a dict of tensors; epoch 0, 1, 2
            ...
            state = loader.state_dict()  # resumes after this batch, with any world and workers

    Progress --task (plan of the epoch, batch j)--> worker j mod K --batch--> loop

A task determines its batch, so workers have no state, and prefetched batches do not affect a
checkpoint. Every rank has the same number of steps (see `shardwriter.dataset.rank_partition`).
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
    log_rank,
)
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.torch.batches import BatchMaker, Task, TaskDataset, new_current, unchanged
from shardwriter.reading.torch.workers import (
    CurrentTask,
    Limits,
    WatchedWorkers,
    current_batch,
    current_record,
    worker_name,
)
from shardwriter.writing import unpack_failure

# Options of DataLoader that ShardLoader sets itself, with the hint what to use instead.
_RESERVED: Final = {
    "dataset": "give data=, the first argument",
    "sampler": "use shuffle=, seed= and uneven=",
    "batch_sampler": "use batch_size=, shuffle=, seed= and uneven=",
    "collate_fn": "use collate=, which is called with the list of a batch's samples",
    "timeout": "use start_timeout_s= and item_timeout_s=",
    "in_order": "drop it: batches always come in order, which checkpoints need",
}


class BatchNumbers(DistributedSampler[Task]):
    """The sampler of tasks of the current iteration.

    It is a ``DistributedSampler`` so that trainers do not replace it, and call its ``set_epoch``.

    Args:
        progress: The loader's progress.
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
        """Set the epoch, like `ShardLoader.set_epoch`."""
        self._progress.set_epoch(epoch)


def torch_options(options: Mapping[str, Any], own: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options to pass on to ``DataLoader``.

    Reserved options with the loader's own values are left out: trainers that re-create a loader
    from its attributes pass them.

    Args:
        options: Options beside those of `ShardLoader`.
        own: Names of `ShardLoader`'s options, to suggest for a misspelled name.

    Raises:
        OptionError: There is no such option, or it is reserved.
    """
    known = inspect.signature(DataLoader.__init__).parameters
    passed_on = {}
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, [*own, *(known.keys() - _RESERVED.keys())], 1)
            hint = f"did you mean {near[0]}=?" if near else "see help(ShardLoader)"
            raise OptionError(f"ShardLoader has no option {name!r}", hint=hint)
        if name not in _RESERVED:
            passed_on[name] = value
        elif not (
            value is known[name].default or value is unchanged or isinstance(value, _OWN_TYPES)
        ):
            raise OptionError(f"ShardLoader sets {name} itself", hint=_RESERVED[name])
    return passed_on


_OWN_TYPES: Final = (TaskDataset, BatchNumbers, SequentialSampler)


@dataclass(frozen=True)
class LoaderTimings:
    """Times of a loader, in seconds.

    Attributes:
        wait_s: Time the training loop waited for batches.
        elapsed_s: Time from the first request of a batch to the last batch, over all epochs.
        num_batches: Number of batches.
        workers: For each worker the time of its stages: ``read``, ``check``, ``decode`` (all in
            ``read`` if the dataset was not opened with ``timings``), ``images`` (decoding),
            ``map``, ``collate``.
    """

    wait_s: float
    elapsed_s: float
    num_batches: int
    workers: tuple[Mapping[str, float], ...]

    @property
    def wait_share(self) -> float:
        """The share of the time that the training loop waited, 0 to 1."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def stages(self) -> dict[str, float]:
        """The seconds of each stage, summed over all workers."""
        totals: dict[str, float] = {}
        for worker in self.workers:
            for name, seconds in worker.items():
                totals[name] = totals.get(name, 0.0) + seconds
        return totals


class Times:
    """The sums of the batches' times.

    Args:
        num_workers: Number of workers; 0 for none.
    """

    def __init__(self, num_workers: int) -> None:
        self._workers: list[dict[str, float]] = [{} for _ in range(max(1, num_workers))]
        self._wait_s = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_batches = 0

    def add(self, requested_s: float, worker: int, seconds: Mapping[str, float]) -> None:
        """Add a batch that was requested at a time, and has arrived now."""
        self._last_s = perf_counter()
        self._first_s = requested_s if self._first_s is None else self._first_s
        self._wait_s += self._last_s - requested_s
        self._num_batches += 1
        stages = self._workers[worker]
        for name, value in seconds.items():
            stages[name] = stages.get(name, 0.0) + value

    def totals(self) -> LoaderTimings:
        """Return the sums so far."""
        elapsed_s = 0.0 if self._first_s is None else self._last_s - self._first_s
        workers = tuple(dict(stages) for stages in self._workers)
        return LoaderTimings(self._wait_s, elapsed_s, self._num_batches, workers)


_MAX_RECORDS_SHOWN: Final = 4


class ShardLoader(DataLoader[Any]):
    """A stateful ``DataLoader`` of a dataset's batches, for one rank.

    Without ``map`` and ``collate`` a batch is a dict that equals ``default_collate`` of its
    examples, but built from columns: a tensor for each numeric feature, a list for text and bytes,
    and a list of tensors for a feature whose shape varies. (Lists of text are not transposed, as
    ``default_collate`` does.) With ``uneven="pad"`` it has ``is_pad`` (``bool[b]``), and so has
    each example passed to ``map``. A dataset of raw records yields lists of bytes.

    The order is a function of ``(seed, epoch)``. After a complete epoch the next iteration is the
    next epoch; `set_epoch` chooses another. An iteration that was left early is not resumed: the
    next one starts the epoch again. Of several iterators of one loader only the newest counts for
    the state.

    Args:
        data: Path of a dataset, or an open one. A path is opened with `shardwriter.open`'s
            defaults.
        batch_size: Samples per batch, on this rank.
        shuffle: A new order in every epoch; else reading order.
        seed: Seed of the order, and of ``current_worker().item_seed`` in a map.
        uneven: Policy if the number of ranks does not divide the records: ``drop`` leaves out the
            rest, ``wrap`` repeats the first records, ``pad`` does, too, and marks them by
            ``is_pad``, ``error`` raises. None: ``error``. Has no effect with one rank.
        map: Called with every example; its results are collated.
        collate: Called with the list of a batch's samples; returns the batch. None: see above;
            with a map, ``default_collate``.
        decode: ``"images"``: decode the features that are images in the schema, with Pillow, in
            the workers: to ``uint8[b, height, width, channels]`` if all images of the batch have
            one size, else to a list of ``uint8[height, width, channels]``. A map gets the array of
            its image.
        pad: Pad features whose length varies to the longest in the batch, with this number, or
            with a number per feature: ``pad=0``, ``pad={"tokens": -1}``. Each becomes one tensor,
            and ``NAME/length`` has the lengths (``int64[b]``; ``int64[b, d]`` for d axes); a record
            without the feature has length 0. Decoded images are padded, too. With a map, it names
            features of the map's results.
        drop_last: Leave out the last batch if it is incomplete.
        rank: This rank. None: that of ``torch.distributed`` if it is initialized, else of the
            environment variable ``RANK``; detected again for every iterator.
        world: The number of ranks; None likewise.
        num_workers: Number of worker processes; 0 for none.
        timings: Measure times; see `timings`.
        start_timeout_s: Timeout of the first batch; None for no limit. Needs workers.
        item_timeout_s: Timeout of every other batch, likewise.
        **options: Options of ``DataLoader``: ``pin_memory``, ``prefetch_factor``,
            ``persistent_workers``, ``multiprocessing_context``, ``worker_init_fn``, ``generator``.

    Raises:
        OptionError: An option is wrong, or reserved.
        DataError: The dataset can not be read; see `open_dataset`.

    Iterating raises `UnequalSteps` before the first batch, on every rank; errors of ``map``,
    ``collate`` and reading, with their class, caused by the worker's traceback; `WorkerDied`;
    `ItemTimeout`. After any error all workers have exited.
    """

    _iterator: Any  # persistent workers

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
            shuffle = False  # Lightning re-creates the loader like this to overfit some batches
        options = torch_options(options, inspect.signature(ShardLoader.__init__).parameters)
        limits = Limits(start_timeout_s, item_timeout_s)
        if limits != Limits() and not num_workers:
            raise OptionError(
                "start_timeout_s and item_timeout_s need worker processes",
                hint="give num_workers=1 or more, or drop them",
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
        # Attributes have the arguments' names: Lightning re-creates the loader to predict.
        self.data, self.shuffle, self.seed, self.uneven = data, shuffle, seed, uneven
        self.map, self.collate, self.decode, self.pad = map, collate, decode, pad
        self.rank, self.world = rank, world
        self.start_timeout_s, self.item_timeout_s = start_timeout_s, item_timeout_s
        self._ranks, self._is_rank_logged = find_rank(rank, world), False
        self._limits = limits
        self._times = Times(num_workers) if timings else None
        super().__init__(
            TaskDataset(maker, new_current(num_workers)),
            batch_size=None,
            sampler=BatchNumbers(self._progress),
            num_workers=num_workers,
            collate_fn=unchanged,
            **options,
        )
        # Torch does no batching here; these are for code that reads the attributes.
        object.__setattr__(self, "batch_size", batch_size)
        object.__setattr__(self, "drop_last", drop_last)

    def __len__(self) -> int:
        """Return this rank's number of batches in the current epoch, before a loaded state too.

        Raises:
            UnequalSteps: As iterating would.
        """
        return self._progress.num_steps(find_rank(self.rank, self.world))

    def __repr__(self) -> str:
        shown = {"shuffle": self.shuffle, "uneven": self.uneven, "num_workers": self.num_workers}
        more = "".join(f", {name}={value!r}" for name, value in shown.items() if value)
        what = f"{len(self.data):,} records, batch_size={self.batch_size}{more}"
        return f"<ShardLoader {self.data.name!r}: {what}>"

    def _repr_html_(self) -> str:
        shown = ("batch_size", "shuffle", "seed", "uneven", "drop_last", "num_workers", "epoch")
        rows = [(name, getattr(self, name)) for name in shown]
        return html_table(repr(self), [("data", repr(self.data)), *rows])

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of the next epoch's batches; the class says which epoch is next."""
        self._progress.check(self._find_rank())
        return _Batches(self)

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._progress.position.epoch

    @property
    def num_pads(self) -> int:
        """The number of this rank's padding samples in the current epoch, marked by ``is_pad``.

        Raises:
            UnequalSteps: As iterating would.
        """
        return self._progress.num_pads(find_rank(self.rank, self.world))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; has no effect if it is the current one."""
        self._progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch yielded, as plain JSON.

        It is equal on every rank, and does not depend on prefetching.
        """
        return self._progress.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration resume at the position of a state.

        World, batch size and workers may have changed. `len` then includes the steps before the
        position, as trainers with a step number in their own state expect.

        Raises:
            OptionError: It is not a state of a reader.
            RunChanged: It belongs to another dataset, shuffle or seed.
        """
        self._progress.load_state_dict(state_dict, find_rank(self.rank, self.world))

    def timings(self) -> LoaderTimings | None:
        """Return times since the loader was created; None without ``timings=True``."""
        return None if self._times is None else self._times.totals()

    def _find_rank(self) -> RankOfWorld:
        found = find_rank(self.rank, self.world)
        if not self._is_rank_logged or found != self._ranks:
            log_rank(found, self._ranks)
        self._ranks, self._is_rank_logged = found, True
        return found

    def _make_deliveries(self, run: Run) -> Iterator[Any]:
        if not self.num_workers:
            in_process: Iterator[Any] = self._get_iterator()
            return in_process
        workers = self._iterator
        if isinstance(workers, WatchedWorkers) and not workers._shutdown:
            workers.restart(self, run, self._task_describer(run))
            return workers
        workers = WatchedWorkers(self, self._limits, run, self._task_describer(run))
        if self.persistent_workers:
            self._iterator = workers
        return workers

    def _task_describer(self, run: Run) -> Callable[[int, int], CurrentTask]:
        assert isinstance(self.dataset, TaskDataset)
        dataset, plan = self.dataset, run.plan

        def describe(batch_index: int, worker_index: int) -> CurrentTask:
            # The worker may be computing a later batch, while this one is being sent.
            current = current_batch(dataset.current, worker_index)
            batch_index = batch_index if current is None else current
            records = plan.batch(batch_index)[0].tolist()
            more = ", ..." if len(records) > _MAX_RECORDS_SHOWN else ""
            numbers = ", ".join(map(str, records[:_MAX_RECORDS_SHOWN]))
            batch = f"batch {batch_index} of epoch {plan.epoch} (records {numbers}{more})"
            record = current_record(dataset.current, worker_index)
            if record is None:
                return CurrentTask(batch)
            place = dataset.maker.data.place(record)
            index = dataset.maker.data.source_index(record)
            path, shard = str(place.path), place.shard_index
            return CurrentTask(batch, path, place.record_index, index, shard)

        return describe


class _Batches:
    """One iteration of a loader.

    It begins with the first batch, since Lightning calls `set_epoch` between ``iter`` and ``next``.
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
                "a newer iteration of this loader uses its persistent workers",
                hint="use one loader per iteration, or persistent_workers=False",
            )
        try:
            if self._deliveries is None:
                self._run = loader._progress.begin(loader._find_rank())
                self._deliveries = loader._make_deliveries(self._run)
            batch, seconds = self._next(self._deliveries)
        except BaseException:  # also on Ctrl-C: leave no worker behind
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
            error.shard = None  # path and record give the location
        elif hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"{worker}, batch {run.num_out} of epoch {run.plan.epoch}")
        return error

    def _end(self) -> None:
        """Shut down the workers, unless they are persistent and the epoch is complete."""
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
