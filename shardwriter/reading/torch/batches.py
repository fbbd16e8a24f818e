"""`BatchMaker`: read, decode, map and collate batches, in a loader worker or in process.

    plan, batch j --records--> Dataset.columns  --tensors()-->                batch  (no map)
                               Dataset examples --map--> samples --collate--> batch

In between, `decode_image` decodes images and `Padding` pads features of varying length. `packed`
and `send` prepare a batch for sending from a worker to the loader. `TaskDataset` is the dataset
that torch indexes.

A worker pickles its batch before torch's queue does: there, an error (a lambda that can not be
pickled, no file left for a tensor) would be lost in a thread, and the loader would wait forever.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from io import BytesIO
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from shardwriter.errors import (
    CallableError,
    FeatureError,
    MissingExtra,
    OptionError,
    RunError,
    ShardwriterError,
)
from shardwriter.reading.epochs import EpochPlan, map_seed
from shardwriter.schema import FeatureSummary
from shardwriter.writing import CURRENT, Worker, is_mask, pack_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwriter.reading.dataset import Dataset


IS_PAD: Final = "is_pad"
_NUMBERS: Final = "biufc"


def tensors(
    columns: Mapping[str, NDArray[Any] | Sequence[Any]], features: Mapping[str, FeatureSummary]
) -> dict[str, Any]:
    """Return columns as a batch: a tensor for each feature whose shape is fixed, else a list.

    A feature of text or bytes is a list. One whose shape varies in the schema is a list of tensors,
    in every batch. For a record without the feature, the list has None.

    Args:
        columns: Columns of `Dataset.columns`; the tensors share their memory.
        features: The dataset's schema; may be empty.

    Raises:
        FeatureError: The shape of a feature differs between records, and there is no schema: some
            batches would have a tensor and others a list.
    """
    return {name: _column(name, value, features.get(name)) for name, value in columns.items()}


def _column(name: str, column: Any, feature: FeatureSummary | None) -> Any:
    if isinstance(column, np.ndarray):
        if not is_number(column):
            return column.tolist()
        batch = _tensor(column)
        return list(batch.unbind()) if feature is not None and varies(feature) else batch
    values = [_tensor(value) if is_number(value) else value for value in column]
    if feature is None:
        shapes = {tuple(v.shape) for v in values if isinstance(v, torch.Tensor)}
        if len(shapes) > 1:
            raise _ragged(name, shapes)
    return values


def varies(feature: FeatureSummary) -> bool:
    """Return whether the feature's shape varies between records."""
    shape = feature.type.shape
    return shape is None or None in shape


def is_number(value: Any) -> bool:
    """Return whether a value is a numpy array or scalar that a tensor can hold."""
    if not isinstance(value, np.ndarray | np.generic):
        return False
    return value.dtype.kind in _NUMBERS or value.dtype.name == "bfloat16"


def _tensor(value: Any) -> torch.Tensor:
    array = np.asarray(value)
    if not array.flags.writeable or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    if array.dtype.name == "bfloat16":  # a dtype of ml_dtypes, which from_numpy rejects
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _ragged(name: str, shapes: set[tuple[int, ...]]) -> FeatureError:
    examples = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
    return FeatureError(
        f"its shape differs between the records of a batch: {examples}",
        hint="without a manifest shapes must be equal: pad it in map=, or give collate= or "
        "batch_size=1",
        feature=name,
    )


# -- decode="images" -----------------------------------------------------------------------------

_AS_STORED: Final = frozenset(["L", "LA", "RGB", "RGBA"])
_AS_RGB: Final = frozenset(["CMYK", "YCbCr", "LAB", "HSV"])


def image_names(data: Dataset) -> tuple[str, ...]:
    """Return the features that are images in a dataset's schema.

    Raises:
        OptionError: There are none, or records are not decoded Examples.
        MissingExtra: Pillow is not installed.
    """
    if not data.is_decoded or data.feature_lists is not None:
        raise OptionError(
            "decode='images' needs decoded Examples",
            hint="decode images in map=, or open the dataset with decode=True",
        )
    names = tuple(n for n, feature in data.features.items() if feature.type.encoding == "image")
    if not names:
        raise OptionError(
            f"no feature of {data.name!r} is an image in its schema",
            path=data.path,
            hint="write the dataset with schema='NAME=image', or decode images in map=",
        )
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"decode='images' needs Pillow: {error}", hint='pip install "shardwriter[images]"'
        ) from error
    return names


def decode_image(name: str, data: Any) -> NDArray[np.uint8] | None:
    """Return the pixels of an image file: ``uint8[height, width, channels]``.

    Grey has 1 channel, grey with alpha 2, colour 3, colour with alpha 4. Palettes become colours;
    those of a mask, detected by the feature's name, stay class numbers.

    Args:
        name: The feature.
        data: The file's bytes; None returns None.

    Raises:
        FeatureError: The image can not be decoded, or has more than 8 bits per channel.
    """
    if data is None:
        return None
    if not isinstance(data, bytes):
        raise FeatureError(
            f"an image must be bytes, and this is of type {type(data).__name__}",
            feature=name,
            hint="decode it in map=",
        )
    from PIL import Image

    try:
        with Image.open(BytesIO(data)) as image:
            if image.mode == "1":
                pixels = np.array(image.convert("L"))
            elif image.mode == "P" and is_mask(name):
                pixels = np.array(image)
            elif image.mode == "P":
                has_alpha = "transparency" in image.info
                pixels = np.array(image.convert("RGBA" if has_alpha else "RGB"))
            elif image.mode in _AS_RGB:
                pixels = np.array(image.convert("RGB"))
            elif image.mode in _AS_STORED:
                pixels = np.array(image)
            else:
                raise FeatureError(
                    f"its pixels ({image.mode}) do not fit uint8",
                    feature=name,
                    hint="decode it in map=, without decode='images'",
                )
    except FeatureError:
        raise
    except Exception as error:  # Pillow's plugins raise any class
        raise FeatureError(
            f"the image can not be decoded: {error}",
            feature=name,
            hint="shard-stats --features counts broken images; write the dataset again without "
            "them",
        ) from error
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def stacked(images: list[Any]) -> Any:
    """Return ``uint8[b, height, width, channels]`` if all sizes are equal, else the list."""
    shapes = {None if image is None else image.shape for image in images}
    return np.stack(images) if len(shapes) == 1 and None not in shapes else images


# -- pad= ----------------------------------------------------------------------------------------

Pad = float | Mapping[str, float]
"""A number for all features whose length varies, or a number per feature."""

LENGTH: Final = "/length"
_TEXTS: Final = (None, "bytes", "string")


class Padding:
    """The padding of a batch's columns to the longest record.

    Args:
        pad: The loader's option.
        data: The dataset.
        images: Features that are decoded to pixels.
        is_mapped: Whether there is a map; ``pad`` then names features of its results.

    Raises:
        OptionError: A value is not a number, or a feature does not exist or is not numeric.
    """

    def __init__(self, pad: Pad, data: Dataset, images: Sequence[str], *, is_mapped: bool) -> None:
        if not data.is_decoded or data.feature_lists is not None:
            raise OptionError("pad= needs decoded Examples", hint="pad in collate=")
        features = data.features
        self._images = frozenset(images)
        self._everywhere: float | None = None
        self.values: dict[str, float] = {}
        if isinstance(pad, Mapping):
            self.values = {name: _checked(f"pad of {name!r}", v) for name, v in pad.items()}
            if features and not is_mapped:
                _check_names(self.values, features)
        elif is_mapped:
            raise OptionError(
                f"pad is {pad!r}; with a map it must name the features",
                hint=f"for example: pad={{'tokens': {pad!r}}}",
            )
        elif features:
            value = _checked("pad", pad)
            numbers = [n for n, f in features.items() if f.type.dtype not in _TEXTS]
            names = {*images, *(n for n in numbers if varies(features[n]))}
            self.values = dict.fromkeys(sorted(names), value)
        else:
            self._everywhere = _checked("pad", pad)
        for name in self.values:
            if name + LENGTH in features:
                raise OptionError(
                    f"pad= adds {name + LENGTH!r}, and the dataset has a feature of that name",
                    hint=f"leave {name!r} out of pad=, or pad in map=",
                )

    def pad(self, columns: dict[str, Any]) -> set[str]:
        """Pad columns in place and add ``NAME/length`` for each; return the names of both.

        Args:
            columns: Arrays, or lists of arrays and None, by feature.
        """
        values = self.values
        if self._everywhere is not None:  # no schema says which features vary
            values = {n: self._everywhere for n, column in columns.items() if _has_lists(column)}
        added = set()
        for name, value in values.items():
            if name in columns:
                columns[name], columns[name + LENGTH] = _padded(
                    name, columns[name], value, is_image=name in self._images
                )
                added |= {name, name + LENGTH}
        return added


def _checked(what: str, value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise OptionError(
            f"{what} is {value!r}", hint="give a number, or a mapping from features to numbers"
        )
    return value


def _check_names(names: Mapping[str, float], features: Mapping[str, Any]) -> None:
    for name in names:
        if name not in features:
            near = get_close_matches(name, features, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"features: {', '.join(features)}"
            raise OptionError(f"pad names {name!r}, and there is no such feature", hint=hint)
        if features[name].type.dtype in _TEXTS and features[name].type.encoding != "image":
            raise OptionError(
                f"pad names {name!r}, which is {features[name].type.dtype}",
                hint="only numbers are padded; leave it out",
            )


def _has_lists(column: Any) -> bool:
    if isinstance(column, np.ndarray):
        return column.ndim > 1 and is_number(column)
    there = [value for value in column if value is not None]
    return bool(there) and all(is_number(value) for value in there)


def _padded(
    name: str, column: Any, value: float, *, is_image: bool
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return ``[b, longest, ...]``, and the lengths: ``int64[b]``, or ``int64[b, d]`` of d axes."""
    rows = [None if row is None else np.asarray(row) for row in column]
    there = [row for row in rows if row is not None]
    if not all(is_number(row) for row in there):
        raise FeatureError("only numbers are padded", feature=name, hint="leave it out of pad=")
    num_axes = max((row.ndim for row in there), default=1) or 1
    rows = [row.reshape(1) if row is not None and row.ndim == 0 else row for row in rows]
    shapes = [(0,) * num_axes if row is None else row.shape for row in rows]
    if any(len(shape) != num_axes for shape in shapes):
        raise FeatureError(
            "records have it with different numbers of axes", feature=name, hint="pad it in map="
        )
    if is_image and len({shape[2] for shape in shapes if shape[2]}) > 1:
        raise FeatureError(
            "records have it with different numbers of channels, which are not padded",
            feature=name,
            hint="give all images the same in map=",
        )
    dtype = np.result_type(*{row.dtype for row in there}) if there else np.dtype(np.int64)
    if not _holds(dtype, value):
        raise OptionError(f"pad of {name!r} is {value!r}, which {dtype} does not hold")
    lengths = np.array(shapes, np.int64).reshape(len(rows), num_axes)
    longest = lengths.max(axis=0, initial=0)
    batch = np.full((len(rows), *longest), value, dtype)
    for place, row in enumerate(rows):
        if row is not None:
            corner: Any = (place, *map(slice, row.shape))
            batch[corner] = row
    return batch, lengths[:, 0] if num_axes == 1 else lengths


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind not in "biu":
        return True
    try:
        return bool(np.array(value).astype(np.int64) == value) and bool(dtype.type(value) == value)
    except (OverflowError, ValueError):
        return False


# -- sending batches from a worker to the loader -------------------------------------------------

_NO_FILES: Final = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE), "items of ancdata")

_SPARE_FILES: Final = 8


@dataclass(frozen=True)
class Sent:
    """A pickled batch.

    Attributes:
        data: The pickle.
    """

    data: bytes

    def load(self) -> Any:
        """Return the batch.

        Raises:
            RunError: This process has too many open files.
        """
        try:
            return pickle.loads(self.data)
        except (OSError, RuntimeError) as error:
            if not any(text in str(error) for text in _NO_FILES):
                raise
            raise _no_files("the process of the loader") from error

    def pin_memory(self) -> Any:
        """Return the batch in pinned memory; called by torch's thread."""
        return pin_memory(self.load())


def send(batch: Any) -> Sent:
    """Return a batch pickled.

    Raises:
        OptionError: It can not be pickled.
        RunError: Its tensors need more open files than the process may have.
    """
    shared_files = _shared_files()
    before = set(shared_files)
    try:
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(batch)
        _check_room(_SPARE_FILES)
        return Sent(buffer.getvalue())
    except Exception as error:
        for key in set(shared_files) - before:  # close the files of this batch
            shared_files.pop(key)[1]()
        if any(text in str(error) for text in _NO_FILES):  # torch's errors have no errno
            raise _no_files("a loader worker") from error
        raise OptionError(
            f"a loader worker can not pickle the result of map or collate: {error}",
            hint="return tensors, arrays, numbers, strings, lists and dicts, or use num_workers=0",
        ) from error


def _no_files(who: str) -> RunError:
    return RunError(
        f"{who} has too many open files: each tensor of a prefetched batch is one",
        hint="raise `ulimit -n`, call torch.multiprocessing.set_sharing_strategy('file_system'), "
        "or use a smaller prefetch_factor or fewer tensors per batch",
    )


def _shared_files() -> dict[Any, Any]:
    """Return the files that this process keeps open until the loader has received them."""
    return getattr(getattr(resource_sharer, "_resource_sharer", None), "_cache", {})


def _check_room(num_files: int) -> None:
    """Raise OSError if the process can not open so many files, for tensors and connections."""
    with open(os.devnull, "rb") as file:
        spare = []
        try:
            for _ in range(num_files):
                spare.append(os.dup(file.fileno()))
        finally:
            for number in spare:
                os.close(number)


@dataclass(frozen=True)
class _Joined:
    """A list of tensors sent as one tensor, since each tensor sent is an open file."""

    values: torch.Tensor
    shapes: tuple[tuple[int, ...] | None, ...]

    def pin_memory(self) -> list[torch.Tensor | None]:
        """Return the list in pinned memory; called by torch's thread."""
        return [None if part is None else part.pin_memory() for part in self.parts()]

    def parts(self) -> list[torch.Tensor | None]:
        sizes = [0 if shape is None else torch.Size(shape).numel() for shape in self.shapes]
        parts = zip(self.values.split(sizes), self.shapes, strict=True)
        return [None if shape is None else part.view(shape) for part, shape in parts]


def packed(batch: Any) -> Any:
    """Return a batch of `tensors` with each list of tensors joined, for pickling.

    Raises:
        RunError: Its tensors need more open files than the process may have.
    """
    if not isinstance(batch, dict):
        return batch
    batch = {name: _joined(value) for name, value in batch.items()}
    try:
        _check_room(len(batch) + _SPARE_FILES)
    except OSError as error:
        raise _no_files("a loader worker") from error
    return batch


def unpacked(batch: Any) -> Any:
    """Return the batch passed to `packed`; other values unchanged."""
    if type(batch) is not dict or not any(type(value) is _Joined for value in batch.values()):
        return batch
    return {n: v.parts() if type(v) is _Joined else v for n, v in batch.items()}


def _joined(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    there = [part for part in value if part is not None]
    tensors = [part for part in there if isinstance(part, torch.Tensor)]
    if not tensors or len(tensors) < len(there) or len({part.dtype for part in tensors}) > 1:
        return value
    shapes = (None if part is None else tuple(part.shape) for part in value)
    return _Joined(torch.cat([part.reshape(-1) for part in tensors]), tuple(shapes))


NO_RECORD: Final = -1
_ITEM, _RECORD, _BATCH = 0, 1, 2


@dataclass(frozen=True)
class TimedBatch:
    """A batch, and the seconds of its stages ({} without timings)."""

    batch: Any
    seconds: Mapping[str, float]


class BatchMaker:
    """Computes the batches of a plan: reads, decodes, maps and collates.

    Args:
        data: The dataset.
        map: Called with every example; None for no map.
        collate: Called with the list of a batch's samples. None: ``default_collate`` with a map,
            else `tensors` of columns.
        timings: Measure the stages.
        decode: ``"images"`` to decode image files to pixels; None to leave their bytes.
        pad: Number to pad features of varying length with, or a number per feature; None for no
            padding.
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
                "pad= has no effect with collate=", hint="pad in the collate function"
            )
        self._images = () if decode is None else image_names(data)
        self._padding = (
            None if pad is None else Padding(pad, data, self._images, is_mapped=map is not None)
        )

    @property
    def makes_columns(self) -> bool:
        """Whether batches are built from columns, which is faster; not for SequenceExamples."""
        is_plain = self.data.is_decoded and self.data.feature_lists is None
        return self.map is None and self.collate is None and is_plain

    def check_pads(self) -> None:
        """Raise OptionError if records can not have the mark ``is_pad``."""
        if not self.data.is_decoded:
            raise OptionError(
                "uneven='pad' adds is_pad to records, and raw records can not have it",
                hint="open the dataset with decode=True, or use uneven='drop' or 'wrap'",
            )
        if self.data.feature_lists is not None:
            raise OptionError(
                "uneven='pad' adds is_pad to records, and SequenceExamples can not have it",
                hint="use uneven='drop' or 'wrap'",
            )
        if IS_PAD in self.data.features:
            raise OptionError(
                "uneven='pad' adds is_pad to records, and the dataset has a feature 'is_pad'",
                hint="use uneven='drop' or 'wrap', or write it under another name",
            )

    def make(self, plan: EpochPlan, batch_index: int, current: NDArray[np.int64]) -> TimedBatch:
        """Return batch j of a plan.

        Args:
            plan: The epoch.
            batch_index: j.
            current: ``int64[3]`` in shared memory: set to the item, record and batch in work.
        """
        current[_BATCH] = batch_index
        try:
            return self._make(plan, batch_index, current)
        finally:
            current[:] = NO_RECORD

    def _make(self, plan: EpochPlan, batch_index: int, current: NDArray[np.int64]) -> TimedBatch:
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
                    if plan.share.uneven == "pad":  # rows of a view may be padding already
                        columns[IS_PAD] = is_pad | np.asarray(columns.get(IS_PAD, False), np.bool_)
                    batch: Any = tensors(columns, features)
            else:
                samples = self._samples(plan, records, is_pad, current, clock)
                with clock.stage("collate"):
                    batch = self._collated(samples)
        except StopIteration as error:  # would silently end the epoch
            raise CallableError(
                "the caller's collate raised StopIteration", hint="return, or raise another error"
            ) from error
        return TimedBatch(batch, clock.seconds)

    def samples(
        self, plan: EpochPlan, samples: NDArray[np.int64], current: NDArray[np.int64]
    ) -> list[Any]:
        """Return samples t of a plan, mapped and not collated."""
        records, is_pad = plan.samples(samples)
        return self._samples(plan, records, is_pad, current, _Clock(self.data, False))

    def mapped(self, records: NDArray[np.int64], seed: int, epoch: int) -> list[Any]:
        """Return ``int64[k]`` records, mapped and not collated."""
        samples: list[Any] = self.data.__getitems__(records)
        self._decode_samples(samples, records)
        if self.map is None:
            return samples
        current = np.full(3, NO_RECORD, np.int64)
        return self._mapped(samples, records.tolist(), map_seed(seed, epoch), current)

    def _samples(
        self,
        plan: EpochPlan,
        records: NDArray[np.int64],
        is_pad: NDArray[np.bool_],
        current: NDArray[np.int64],
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
            mapped = self._mapped(samples, records.tolist(), seed, current)
        if plan.share.uneven == "pad":  # a map that returns a new dict may have dropped is_pad
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
        self, samples: list[Any], records: list[int], seed: int, current: NDArray[np.int64]
    ) -> list[Any]:
        info = get_worker_info()
        worker = Worker(
            0 if info is None else info.id,
            1 if info is None else info.num_workers,
            self.data.num_shards,
            range(self.data.num_shards),
            seed,
            slot=current[_ITEM : _ITEM + 1],
        )
        token = CURRENT.set(worker)
        try:
            for place, record in enumerate(records):
                current[_ITEM] = self.data.source_index(record)
                current[_RECORD] = record
                samples[place] = self._call(samples[place], record)
        finally:
            CURRENT.reset(token)
            current[:_BATCH] = NO_RECORD
        return samples

    def _call(self, sample: Any, record: int) -> Any:
        assert self.map is not None
        try:
            return self.map(sample)
        except (StopIteration, SystemExit) as error:
            # They would silently end the epoch, or the worker.
            named = CallableError(
                f"the caller's map raised {type(error).__name__}",
                hint="return a sample for every record, or raise another error",
            )
            self._place(named, record)
            raise named from error
        except Exception as error:
            self._place(error, record)
            raise

    def _place(self, error: Exception, record: int) -> None:
        """Add the record to an error."""
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
            # default_collate uses the first sample's keys, and would drop the others'.
            if isinstance(sample, dict) and sample.keys() != first:
                raise FeatureError(
                    "only some samples of the batch have it",
                    feature=str(min(sample.keys() ^ first, key=str)),
                    hint="give it a value or leave it out in map=, or give collate=",
                )
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as error:
        # Torch's error does not name the feature.
        for name in samples[0] if isinstance(samples[0], dict) else ():
            try:
                default_collate([sample[name] for sample in samples])
            except (RuntimeError, TypeError) as why:
                hint = "pad it or leave it out in map=, or give collate="
                raise FeatureError(str(why), feature=name, hint=hint) from error
        raise


class _Clock:
    """A timer of the stages of one batch."""

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
        """Time the dataset's stages; if it does not measure them, all are ``read``."""
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
    """The map-style dataset of a loader, indexed by tasks ``(plan, j)``.

    A task determines its batch, so workers have no state. An error in a worker is returned as a
    value, since torch would reduce it to its class and text.

    Args:
        maker: Computes the batches.
        current: ``int64[K, 3]`` in memory shared by loader and workers: the item, record and batch
            that each worker is processing.
    """

    def __init__(self, maker: BatchMaker, current: torch.Tensor) -> None:
        self.maker = maker
        self.current = current

    def __len__(self) -> int:
        """Return the number of records of the dataset."""
        return len(self.maker.data)

    def __getitem__(self, task: Task) -> Delivery:
        """Return ``(True, batch, seconds)``, or ``(False, failure, None)``.

        In a worker the batch is packed or pickled; see `packed` and `send`.
        """
        info = get_worker_info()
        current = self.current.numpy()[0 if info is None else info.id]
        if info is None:
            made = self.maker.make(*task, current)
            return True, made.batch, made.seconds
        try:
            made = self.maker.make(*task, current)
            is_built_in = self.maker.map is None and self.maker.collate is None
            sent = packed(made.batch) if is_built_in else send(made.batch)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised in the loader
            return False, pack_failure(error), None
        return True, sent, made.seconds


def unchanged(delivery: Delivery) -> Delivery:
    """Return a delivery unchanged, instead of torch's conversion of arrays to tensors."""
    return delivery


def new_current(num_workers: int) -> torch.Tensor:
    """Return ``int64[K, 3]`` of -1, in shared memory where there are workers."""
    current = torch.full((max(1, num_workers), 3), NO_RECORD, dtype=torch.int64)
    return current.share_memory_() if num_workers else current
