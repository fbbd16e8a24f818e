"""What makes the batches, in a loader worker or in the process of the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate, get_worker_info

from shardwriter.errors import CallableError, FeatureError, OptionError, ShardwriterError
from shardwriter.reading.epochs import EpochPlan, map_seed
from shardwriter.reading.torch.columns import IS_PAD, tensors
from shardwriter.reading.torch.images import decode_image, image_names, stacked
from shardwriter.reading.torch.padding import Pad, Padding
from shardwriter.reading.torch.sending import packed, send
from shardwriter.writing.failures import pack_failure
from shardwriter.writing.worker import CURRENT, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwriter.reading.dataset import Dataset

NO_RECORD: Final = -1
_ITEM, _RECORD, _BATCH = 0, 1, 2


@dataclass(frozen=True)
class Made:
    """A batch with the seconds of its stages; empty where nobody asked for them."""

    batch: Any
    seconds: Mapping[str, float]


class BatchMaker:
    """Reads, decodes, maps and collates the batches of a plan.

    Args:
        data: Where the records are.
        map: Called on every example; None for none.
        collate: Makes a batch of a list of samples. None: columns become tensors where there is no
            map, ``default_collate`` otherwise.
        timings: Measure the stages.
        decode: ``"images"`` for pixels in the place of image files; None for what the file has.
        pad: What lists of different lengths are padded with; None to leave them.
    """

    def __init__(
        self,
        data: Dataset,
        map: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        timings: bool = False,
        decode: str | None = None,
        pad: Pad | None = None,
    ) -> None:
        for name, value in (("map", map), ("collate", collate)):
            if value is not None and not callable(value):
                raise OptionError(f"{name} is {value!r}", hint="give a callable, or None")
        self.data = data
        self.map = map
        self.collate = collate
        self.timings = timings
        if decode not in (None, "images"):
            raise OptionError(f"decode is {decode!r}", hint="'images', or None")
        if pad is not None and collate is not None:
            raise OptionError(
                "collate makes the batches, and pad= would pad none", hint="pad there"
            )
        self._images = () if decode is None else image_names(data)
        self._padding = (
            None if pad is None else Padding(pad, data, self._images, is_mapped=map is not None)
        )

    @property
    def makes_columns(self) -> bool:
        """Whether batches are made by columns; SequenceExamples have none."""
        is_plain = self.data.is_decoded and self.data.feature_lists is None
        return self.map is None and self.collate is None and is_plain

    def check_pads(self) -> None:
        """Refuse what has no place for the mark of a pad."""
        if not self.data.is_decoded:
            raise OptionError(
                "raw records have no place for is_pad",
                hint="open the dataset with decode=True, or use uneven='drop' or 'wrap'",
            )
        if self.data.feature_lists is not None:
            raise OptionError(
                "SequenceExamples have no place for is_pad", hint="use uneven='drop' or 'wrap'"
            )
        if IS_PAD in self.data.features:
            raise OptionError(
                "the dataset has a feature 'is_pad'",
                hint="use uneven='drop' or 'wrap', or write it under another name",
            )

    def make(self, plan: EpochPlan, batch_index: int, at_hand: NDArray[np.int64]) -> Made:
        """Return batch j of a plan.

        Args:
            plan: The epoch.
            batch_index: j.
            at_hand: ``int64[3]``: the item, the record and the batch at hand, where others can see
                them.
        """
        at_hand[_BATCH] = batch_index
        try:
            return self._make(plan, batch_index, at_hand)
        finally:
            at_hand[:] = NO_RECORD

    def _make(self, plan: EpochPlan, batch_index: int, at_hand: NDArray[np.int64]) -> Made:
        records, is_pad = plan.batch(batch_index)
        clock = _Clock(self.data, self.timings)
        try:
            if self.makes_columns:
                with clock.loading():
                    columns = self.data.columns(records)
                if self._images:
                    with clock.stage("images"):
                        self._decode_columns(columns, records)
                with clock.stage("collate"):
                    features = self.data.features
                    if self._padding is not None:
                        made = self._padding.pad(columns)
                        features = {n: f for n, f in features.items() if n not in made}
                    if plan.share.uneven == "pad":  # the rows of a view may be pads already
                        columns[IS_PAD] = is_pad | np.asarray(columns.get(IS_PAD, False), np.bool_)
                    batch: Any = tensors(columns, features)
            else:
                samples = self._samples(plan, records, is_pad, at_hand, clock)
                with clock.stage("collate"):
                    batch = self._collated(samples)
        except StopIteration as error:  # would end the epoch, and nobody would know
            raise CallableError(
                "the caller's collate raised StopIteration", hint="return, or raise another error"
            ) from error
        return Made(batch, clock.seconds)

    def samples(
        self, plan: EpochPlan, samples: NDArray[np.int64], at_hand: NDArray[np.int64]
    ) -> list[Any]:
        """Return samples t of a plan one by one, mapped and not collated."""
        records, is_pad = plan.samples(samples)
        return self._samples(plan, records, is_pad, at_hand, _Clock(self.data, False))

    def mapped(self, records: NDArray[np.int64], seed: int, epoch: int) -> list[Any]:
        """Return records one by one, mapped: ``int64[k]`` of them."""
        samples: list[Any] = self.data.__getitems__(records)
        self._decode_samples(samples, records)
        if self.map is None:
            return samples
        at_hand = np.full(3, NO_RECORD, np.int64)
        return self._mapped(samples, records.tolist(), map_seed(seed, epoch), at_hand)

    def _samples(
        self,
        plan: EpochPlan,
        records: NDArray[np.int64],
        is_pad: NDArray[np.bool_],
        at_hand: NDArray[np.int64],
        clock: _Clock,
    ) -> list[Any]:
        with clock.loading():
            samples: list[Any] = self.data.__getitems__(records)
        if self._images:
            with clock.stage("images"):
                self._decode_samples(samples, records)
        if plan.share.uneven == "pad":
            for sample, padding in zip(samples, is_pad.tolist(), strict=True):
                sample[IS_PAD] = padding or bool(sample.get(IS_PAD))
        if self.map is None:
            return samples
        with clock.stage("map"):
            seed = map_seed(plan.seed, plan.epoch)
            mapped = self._mapped(samples, records.tolist(), seed, at_hand)
        if plan.share.uneven == "pad":  # a map that makes a new dict need not know of pads
            for sample, padding in zip(mapped, is_pad.tolist(), strict=True):
                if isinstance(sample, dict):
                    sample.setdefault(IS_PAD, padding)
        return mapped

    def _decode_columns(self, columns: dict[str, Any], records: NDArray[np.int64]) -> None:
        for name in self._images:
            if name in columns:
                files = list(columns[name])
                columns[name] = stacked(
                    [self._decoded(name, *both) for both in zip(files, records, strict=True)]
                )

    def _decode_samples(self, samples: list[Any], records: NDArray[np.int64]) -> None:
        for sample, record in zip(samples, records, strict=True):
            for name in self._images:
                if name in sample:
                    sample[name] = self._decoded(name, sample[name], record)

    def _decoded(self, name: str, data: Any, record: np.int64) -> Any:
        try:
            return decode_image(name, data)
        except FeatureError as error:
            self._place(error, int(record))
            raise

    def _mapped(
        self, samples: list[Any], records: list[int], seed: int, at_hand: NDArray[np.int64]
    ) -> list[Any]:
        info = get_worker_info()
        worker = Worker(
            0 if info is None else info.id,
            1 if info is None else info.num_workers,
            self.data.num_shards,
            range(self.data.num_shards),
            seed,
            slot=at_hand[_ITEM : _ITEM + 1],
        )
        token = CURRENT.set(worker)
        try:
            for place, record in enumerate(records):
                at_hand[_ITEM] = self.data.source_index(record)
                at_hand[_RECORD] = record
                samples[place] = self._call(samples[place], record)
        finally:
            CURRENT.reset(token)
            at_hand[:_BATCH] = NO_RECORD
        return samples

    def _call(self, sample: Any, record: int) -> Any:
        assert self.map is not None
        try:
            return self.map(sample)
        except (StopIteration, SystemExit) as error:
            # One would end the epoch and the other the worker, and nobody would know of either.
            named = CallableError(
                f"the caller's map raised {type(error).__name__}",
                hint="every record gives a sample: return one, or raise another error",
            )
            self._place(named, record)
            raise named from error
        except Exception as error:
            self._place(error, record)
            raise

    def _place(self, error: Exception, record: int) -> None:
        """Let an error say at which record it came."""
        place = self.data.place(record)
        index = self.data.source_index(record)
        if isinstance(error, ShardwriterError):
            if error.path is None and error.record_index is None:
                error.path, error.record_index = str(place.path), place.record_index
            error.locate(index=index)
        elif hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"in the map of item {index}: {place.path}, record {place.record_index}")

    def _collated(self, samples: list[Any]) -> Any:
        if self.collate is not None:
            return self.collate(samples)
        return samples if self.map is None else _default_collated(self._padded(samples))

    def _padded(self, samples: list[Any]) -> list[Any]:
        if self._padding is None or not all(isinstance(sample, dict) for sample in samples):
            return samples
        names = {name for sample in samples for name in sample} & self._padding.values.keys()
        columns = {name: [sample.get(name) for sample in samples] for name in names}
        self._padding.pad(columns)
        return [
            {**sample, **{name: column[row] for name, column in columns.items()}}
            for row, sample in enumerate(samples)
        ]


def _default_collated(samples: list[Any]) -> Any:
    if isinstance(samples[0], dict):
        first = samples[0].keys()
        for sample in samples:
            # Torch goes by the first sample, and what only others have would be lost.
            if isinstance(sample, dict) and sample.keys() != first:
                raise FeatureError(
                    "some samples of a batch have it and some have not",
                    feature=str(min(sample.keys() ^ first, key=str)),
                    hint="give it a value or leave it out in map=, or give collate=",
                )
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as error:
        # Torch says what is wrong, and not with which feature.
        for name in samples[0] if isinstance(samples[0], dict) else ():
            try:
                default_collate([sample[name] for sample in samples])
            except (RuntimeError, TypeError) as why:
                hint = "pad it or leave it out in map=, or give collate="
                raise FeatureError(str(why), feature=name, hint=hint) from error
        raise


class _Clock:
    """Seconds of the stages of one batch."""

    def __init__(self, data: Dataset, is_on: bool) -> None:
        self._data = data
        self._is_on = is_on
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if not self._is_on:
            yield
            return
        begin = perf_counter()
        yield
        self.seconds[name] = perf_counter() - begin

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Ask the dataset for its stages; where it does not measure them, all are one."""
        if not self._is_on:
            yield
            return
        before, begin = self._data.timings, perf_counter()
        yield
        whole = perf_counter() - begin
        after = self._data.timings
        if after:
            self.seconds.update({n: s - before.get(n, 0.0) for n, s in after.items()})
        else:
            self.seconds["read"] = whole


Task = tuple[EpochPlan, int]
Delivery = tuple[bool, Any, Any]


class TaskDataset(torch.utils.data.Dataset[Delivery]):
    """The map-style dataset of a loader: asked for batch j of a plan, it delivers it.

    A task holds all that decides a batch, so workers keep no state between two of them. What goes
    wrong in a worker is delivered as a value, since torch would keep the class and the text of an
    error and nothing else.

    Args:
        maker: Makes the batches.
        at_hand: ``int64[K, 3]`` in memory that loader and workers share: the item, the record and
            the batch that each is at.
    """

    def __init__(self, maker: BatchMaker, at_hand: torch.Tensor) -> None:
        self.maker = maker
        self.at_hand = at_hand

    def __len__(self) -> int:
        """The records of the dataset."""
        return len(self.maker.data)

    def __getitem__(self, task: Task) -> Delivery:
        """Return ``(True, batch, seconds)``, or ``(False, failure, None)``.

        What a worker delivers is packed for its way; see `torch_sending`.
        """
        info = get_worker_info()
        at_hand = self.at_hand.numpy()[0 if info is None else info.id]
        if info is None:
            made = self.maker.make(*task, at_hand)
            return True, made.batch, made.seconds
        try:
            made = self.maker.make(*task, at_hand)
            is_ours = self.maker.map is None and self.maker.collate is None
            sent = packed(made.batch) if is_ours else send(made.batch)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - goes to the loader
            return False, pack_failure(error), None
        return True, sent, made.seconds


def as_it_is(delivery: Delivery) -> Delivery:
    """Return what a worker delivers, in place of torch's conversion of arrays to tensors."""
    return delivery


def new_at_hand(num_workers: int) -> torch.Tensor:
    """Return ``int64[K, 3]`` of -1, in shared memory where there are workers."""
    at_hand = torch.full((max(1, num_workers), 3), NO_RECORD, dtype=torch.int64)
    return at_hand.share_memory_() if num_workers else at_hand
