"""Options, checked on construction.

What changes bytes (:class:`DatasetOptions`) is kept apart from what does not (:class:`RunOptions`):
the first kind goes into the job's hash, the second can differ between two attempts of one job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from shardwriter.dataset import (
    Bounds,
    Count,
    ItemIndices,
    Positive,
    Seed,
    Split,
    TfdsSplit,
    check_fields,
)
from shardwriter.errors import OptionError
from shardwriter.formats import Compression, Deflate, check_packing, options_repr
from shardwriter.schema import FeatureType, check_names
from shardwriter.sources import TableOptions

# What is done to images before they are written: a size, and the quality of JPEGs.
#
# Nothing of it touches pixels; see :mod:`shardwriter.writing.images`.

MAX_SIDE: Final = 65_500  # pixels; the most that a JPEG can have
DEFAULT_QUALITY: Final = 95

_EXACT: Final = re.compile(r"(\d+)x(\d+)", re.ASCII)


@dataclass(frozen=True)
class ImageOptions:
    """How images are made smaller, or larger.

    An image whose stored size is what it should be is passed through, byte for byte. Others are
    decoded, turned as their Exif tag says, resized and encoded again: JPEG, PNG and WebP files
    stay what they are (lossless ones lossless), other formats become PNG. ``quality`` alone makes
    every JPEG anew.

    Attributes:
        resize: Pixels of the shorter side, the other in proportion; or (width, height), whatever
            the proportion. Enlarges too.
        max_side: Pixels that the longer side may have; larger images shrink in proportion.
        quality: Of JPEG and lossy WebP files that are made, 1 to 100; None for 95.

    Raises:
        OptionError: A value is none of these, two sizes are given, or nothing is.
    """

    resize: int | tuple[int, int] | None = None
    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.resize is None and self.max_side is None and self.quality is None:
            raise OptionError("nothing says what is to be done to images")
        if self.resize is not None and self.max_side is not None:
            raise OptionError(
                "resize and max_side are two sizes", hint="leave one of --resize and --max-side off"
            )
        sides = self.resize if isinstance(self.resize, tuple) else (self.resize,)
        is_size = self.resize is None or (len(sides) in (1, 2) and all(map(_is_side, sides)))
        if not is_size or (len(sides) == 1 and isinstance(self.resize, tuple)):
            raise OptionError(
                f"resize is {self.resize!r}",
                hint=f"it is pixels of the shorter side, or WIDTHxHEIGHT, each 1 to {MAX_SIDE:,}",
            )
        if self.max_side is not None and not _is_side(self.max_side):
            raise OptionError(f"max_side is {self.max_side!r}: it is a number, 1 to {MAX_SIDE:,}")
        if self.quality is not None and not (_is_side(self.quality) and self.quality <= 100):
            raise OptionError(f"quality is {self.quality!r}: it is a number from 1 to 100")

    @property
    def is_sized(self) -> bool:
        """Whether images get another size; else JPEGs are only encoded anew."""
        return self.resize is not None or self.max_side is not None

    def size_for(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) of what becomes of an image."""
        if isinstance(self.resize, tuple):
            return self.resize
        if self.resize is not None:
            return _scaled(width, height, self.resize, min(width, height))
        longer = max(width, height)
        if self.max_side is None or longer <= self.max_side:
            return width, height
        return _scaled(width, height, self.max_side, longer)

    def to_json(self) -> dict[str, Any]:
        """Return what decides the bytes."""
        size = list(self.resize) if isinstance(self.resize, tuple) else self.resize
        return {
            "max_side": self.max_side,
            "quality": self.quality or DEFAULT_QUALITY,
            "resize": size,
        }


def _is_side(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIDE


def _scaled(width: int, height: int, wanted: int, of: int) -> tuple[int, int]:
    """Scale by wanted / of, rounded half up; no side vanishes."""
    return (
        max(1, (2 * width * wanted + of) // (2 * of)),
        max(1, (2 * height * wanted + of) // (2 * of)),
    )


def image_options(
    resize: str | None = None, max_side: int | None = None, quality: int | None = None
) -> ImageOptions | None:
    """Return what ``--resize``, ``--max-side`` and ``--quality`` say; None where none is given.

    Raises:
        OptionError: ``--resize`` is neither a number nor two, or as :class:`ImageOptions` says.
    """
    if resize is None and max_side is None and quality is None:
        return None
    size: int | tuple[int, int] | None = None
    if resize is not None:
        exact = _EXACT.fullmatch(resize)
        if exact is not None:
            size = int(exact[1]), int(exact[2])
        elif resize.isascii() and resize.isdigit():
            size = int(resize)
        else:
            raise OptionError(
                f"--resize: {resize!r} is no size",
                hint="256 is the shorter side, 256x192 is width and height",
            )
    return ImageOptions(size, max_side, quality)


EngineName = Literal["process", "serial"]
Backend = Literal["native", "tensorflow"]
OnError = Literal["raise", "skip"]
Order = Literal["source", "key"]


class _Skip:
    """The type of SKIP: one object in every process."""

    def __repr__(self) -> str:
        return "SKIP"

    def __reduce__(self) -> str:
        return "SKIP"

    def __bool__(self) -> bool:
        return False


SKIP: Final = _Skip()
"""Returned by a map: this item gives no record. It keeps its index and leaves a gap."""


@dataclass(frozen=True)
class DatasetOptions:
    """What decides the bytes, beside the source.

    Attributes:
        map: Applied to the features of every item; may return SKIP.
        filter: Asked of every item, as the source lists it, before items are numbered; those for
            which it returns a false value are left out as if they were not there.
        limit: Only the first so many items; None for all.
        shuffle_seed: Writes the items in the order of permutation (T, seed); None for source order.
        label: Feature whose values are counted; None for the source's own label, if it has one.
        schema: Types fixed by the user, by feature.
        world: Ranks that will read, for a number of shards that is chosen.
        loader_workers: Loader workers of a rank, likewise.
        compression: What shards are compressed with: ``none``, ``gzip`` or ``zlib``.
        deflate: Who compresses: ``isal-2``, or ``zlib-6`` for smaller shards that take longer.
        order: ``source``, or ``key`` for the order of a hash of the items' keys.
        key: For ``key``, and for a split by fractions: the feature that is an item's key, as the
            source gives it; None for what the source calls the item.
        order_seed: For ``key``: the salt of the hash.
        tfds: The split of a TFDS dataset that is written; images then have TFDS's feature names.
        split: Which of several datasets this is, where one write makes them; None for the only one.
        vocabularies: Names of the values of integer features, fixed by the user, by feature.
        images: What is done to images, before the map; None to pass them through.
        names: What the parts of items are called that are tuples or lists.
        indices: Which items of the source are written, in this order, before the filter is asked;
            None for all.
        table: How a table is read; None as it says itself.
    """

    map: Callable[[dict[str, Any]], Any] | None = None
    filter: Callable[[Any], Any] | None = None
    limit: Annotated[int, Bounds(0, 2**63)] | None = None
    shuffle_seed: Seed | None = None
    label: str | None = None
    schema: Mapping[str, FeatureType] = field(default_factory=dict)
    world: Positive = 1
    loader_workers: Positive = 1
    compression: Compression = "none"
    deflate: Deflate = "isal-2"
    order: Order = "source"
    key: str | None = None
    order_seed: Seed = 0
    tfds: TfdsSplit | None = None
    split: Split | None = None
    vocabularies: Mapping[str, list[str]] = field(default_factory=dict)
    images: ImageOptions | None = None
    names: tuple[str, ...] | None = None
    indices: ItemIndices | None = None
    table: TableOptions | None = None

    __repr__ = options_repr

    def __post_init__(self) -> None:
        check_fields(self)
        check_packing(self.compression, self.deflate)
        self._check_order()
        if self.names is not None:
            check_names(self.names)
        for name, feature_type in self.schema.items():
            if not isinstance(feature_type, FeatureType):
                raise OptionError(
                    f"the schema gives {name!r} as {feature_type!r}, not as a FeatureType",
                    hint="declare('id=string,price=float').types makes them from text",
                )

    def _check_order(self) -> None:
        if self.key == "":
            raise OptionError("key is '': it is the name of a feature")
        is_split = self.split is not None and self.split.is_by_key
        if self.order == "source" and self.key is not None and not is_split:
            raise OptionError(
                "a key decides nothing where items keep the order of the source",
                hint="add --order key, or a --split by fractions; or leave --key off",
            )
        if self.order == "source" and self.order_seed:
            raise OptionError(
                "order_seed salts the order by key, and items keep the order of the source",
                hint="shuffle_seed shuffles them; order='key' orders them by key",
            )
        if self.order == "key" and self.shuffle_seed is not None:
            raise OptionError(
                "items are shuffled or put in the order of their keys, not both",
                hint="leave --shuffle off: the order by key is mixed as well, and --seed alone "
                "chooses another",
            )


@dataclass(frozen=True)
class RunOptions:
    """How a job is carried out; none of this changes a byte.

    Attributes:
        overwrite: Replace a finished dataset of this name, or discard an unfinished run.
        resume: Go on with an unfinished run of the same job; begin where there is none, and do
            nothing where its dataset is finished.
        retry_errors: The same, and items that gave an error are tried again; of a finished dataset
            too.
        accept_changed_map: With ``retry_errors``, of a finished dataset: the map may be another one
            than that which made it. Records that stand are kept, and the items that gave an error
            are made by the new one; the manifest says which.
        on_error: What becomes of an item that gives an error: ``raise`` ends the run, ``skip``
            leaves a gap and an entry in the ledger.
        max_errors: How many items may be skipped so; None for any number.
        engine: Who does the work: ``process``, with one worker the same as ``serial``.
        workers: Worker processes; None for as many as there are cores that may be used.
        item_timeout_s: The longest that one item may take, which needs a worker, be it one; None
            for any time.
        backend: Whose record writers are opened: ours, or ``tf.io.TFRecordWriter``.
        dali_index: Write ``<shard>.idx`` beside every shard.
        mark_s: How often a worker notes how far it is, from ten times as long on: a resumed run
            does about so many seconds of work again.
        checkpoint_bytes: How many bytes of records a worker writes before it brings them to the
            disk: after a power cut at most so many are made again.
        strict: Whether what would be a warning about data is an error.
        log_dir: Folder for TensorBoard's event files, one of each process that writes; None for
            none.
    """

    overwrite: bool = False
    resume: bool = False
    retry_errors: bool = False
    accept_changed_map: bool = False
    on_error: OnError = "raise"
    max_errors: Count | None = None
    engine: EngineName = "process"
    workers: Positive | None = 1
    item_timeout_s: Annotated[float, Bounds(0, is_open=True)] | None = None
    backend: Backend = "native"
    dali_index: bool = False
    mark_s: Annotated[float, Bounds(0)] = 0.1
    checkpoint_bytes: Positive = 256 << 20
    log_dir: str | os.PathLike[str] | None = None
    strict: bool = False

    __repr__ = options_repr

    def __post_init__(self) -> None:
        check_fields(self)
        if self.overwrite and (self.resume or self.retry_errors):
            raise OptionError(
                "a run is gone on with or written over, not both",
                hint="leave one of --resume and --overwrite off",
            )
        if self.accept_changed_map and not self.retry_errors:
            raise OptionError(
                "a changed map is accepted for items that gave an error",
                hint="add --retry-errors, or leave --accept-changed-map off",
            )
        if self.max_errors is not None and self.on_error != "skip":
            raise OptionError(
                "max_errors counts items that are skipped", hint="add --on-error skip"
            )
        several = self.workers not in (None, 1)
        if several and self.engine == "serial":
            raise OptionError("the serial engine is one process", hint="leave the workers off")
        if several and self.backend != "native":
            raise OptionError(
                f"the {self.backend} backend writes in one process", hint="leave the workers off"
            )
        if self.item_timeout_s is not None and (
            self.engine == "serial" or self.backend != "native"
        ):
            raise OptionError(
                "an item can be given up only in a process of its own",
                hint="leave the item timeout off, or let the process engine write",
            )
        if self.log_dir is not None and not os.fspath(self.log_dir):
            raise OptionError("log_dir is '': it is the path of a folder")


def changed(run: RunOptions | None, **given: Any) -> RunOptions:
    """Return how a job is carried out, with what was given beside; ``...`` is not given."""
    told = {name: value for name, value in given.items() if value is not ...}
    return replace(run or RunOptions(), **told)
