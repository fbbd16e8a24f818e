"""Options, checked on construction.

Options that change bytes (:class:`DatasetOptions`, with :class:`ImageOptions` for the size of
images) are part of the job's hash. Options that change no byte (:class:`RunOptions`) can differ
between two attempts of one job.
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

MAX_SIDE: Final = 65_500  # pixels; the maximum of a JPEG
DEFAULT_QUALITY: Final = 95

_EXACT: Final = re.compile(r"(\d+)x(\d+)", re.ASCII)


@dataclass(frozen=True)
class ImageOptions:
    """The size of images, and the quality of JPEGs; :mod:`shardwriter.writing.images` applies them.

    An image that has the wanted size already is passed through, byte for byte. Others are decoded,
    rotated by their Exif tag, resized and encoded again: JPEG, PNG and WebP files keep their format
    (lossless ones stay lossless), other formats become PNG. ``quality`` alone encodes every JPEG
    again.

    Attributes:
        resize: Pixels of the shorter side, the other in proportion; or (width, height), ignoring
            the proportion. Enlarges too.
        max_side: Maximum pixels of the longer side; larger images shrink in proportion.
        quality: Quality of JPEG and lossy WebP files that are encoded, 1 to 100; None for 95.

    Raises:
        OptionError: A value is out of range, or both or none of the sizes and no quality are given.
    """

    resize: int | tuple[int, int] | None = None
    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.resize is None and self.max_side is None and self.quality is None:
            raise OptionError("ImageOptions needs resize, max_side or quality")
        if self.resize is not None and self.max_side is not None:
            raise OptionError(
                "resize and max_side exclude each other",
                hint="leave one of --resize and --max-side off",
            )
        sides = self.resize if isinstance(self.resize, tuple) else (self.resize,)
        is_size = self.resize is None or (len(sides) in (1, 2) and all(map(_is_side, sides)))
        if not is_size or (len(sides) == 1 and isinstance(self.resize, tuple)):
            raise OptionError(
                f"resize is {self.resize!r}",
                hint=f"give pixels of the shorter side, or WIDTHxHEIGHT, each 1 to {MAX_SIDE:,}",
            )
        if self.max_side is not None and not _is_side(self.max_side):
            raise OptionError(
                f"max_side is {self.max_side!r}: it must be a number from 1 to {MAX_SIDE:,}"
            )
        if self.quality is not None and not (_is_side(self.quality) and self.quality <= 100):
            raise OptionError(f"quality is {self.quality!r}: it must be a number from 1 to 100")

    @property
    def is_sized(self) -> bool:
        """Whether images are resized; if not, JPEGs are encoded again in their own size."""
        return self.resize is not None or self.max_side is not None

    def size_for(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) of the image to write, from its own (width, height)."""
        if isinstance(self.resize, tuple):
            return self.resize
        if self.resize is not None:
            return _scaled(width, height, self.resize, min(width, height))
        longer = max(width, height)
        if self.max_side is None or longer <= self.max_side:
            return width, height
        return _scaled(width, height, self.max_side, longer)

    def to_json(self) -> dict[str, Any]:
        """Return the options as they are in the job's hash."""
        size = list(self.resize) if isinstance(self.resize, tuple) else self.resize
        return {
            "max_side": self.max_side,
            "quality": self.quality or DEFAULT_QUALITY,
            "resize": size,
        }


def _is_side(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIDE


def _scaled(width: int, height: int, wanted: int, of: int) -> tuple[int, int]:
    """Return (width, height) scaled by wanted / of, rounded half up, at least 1."""
    return (
        max(1, (2 * width * wanted + of) // (2 * of)),
        max(1, (2 * height * wanted + of) // (2 * of)),
    )


def image_options(
    resize: str | None = None, max_side: int | None = None, quality: int | None = None
) -> ImageOptions | None:
    """Return the options of ``--resize``, ``--max-side`` and ``--quality``; None if none is given.

    Raises:
        OptionError: ``--resize`` is neither N nor WxH, or :class:`ImageOptions` refuses a value.
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
                f"--resize: {resize!r} is not a size",
                hint="--resize 256 sets the shorter side, --resize 256x192 width and height",
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
    """The options that decide the bytes of a dataset, together with the source.

    Attributes:
        map: Applied to the features of every item; may return SKIP.
        filter: Called with every item, as the source lists it, before items are numbered; an item
            for which it returns a false value gets no index.
        limit: Write the first ``limit`` items only; None for all.
        shuffle_seed: Writes the items in the order of permutation (T, seed); None for source order.
        label: Feature whose values are counted; None for the source's own label, if it has one.
        schema: Types fixed by the user, by feature.
        world: Number of ranks that will read, for choosing the number of shards.
        loader_workers: Number of loader workers of a rank, for choosing the number of shards.
        compression: Compression of the shards: ``none``, ``gzip`` or ``zlib``.
        deflate: The compressor: ``isal-2``, or ``zlib-6`` for smaller shards that take longer.
        order: ``source``, or ``key`` for the order of a hash of the items' keys.
        key: For ``order="key"``, and for a split by fractions: the feature of the source's items
            that is the key; None for the source's own name of an item.
        order_seed: For ``order="key"``: the salt of the hash.
        tfds: The split of a TFDS dataset that is written; images then have TFDS's feature names.
        split: The split that this dataset is, if one write makes several; None for the only one.
        vocabularies: Names of the values of integer features, fixed by the user, by feature.
        images: Size and quality of images, applied before the map; None to pass images through.
        names: Names of the parts of items that are tuples or lists.
        indices: Items of the source to write, in this order, before the filter; None for all.
        table: How to read a table; None for the defaults.
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
                    f"the schema has {feature_type!r} for {name!r}, which is not a FeatureType",
                    hint="declare('id=string,price=float').types makes them from text",
                )

    def _check_order(self) -> None:
        if self.key == "":
            raise OptionError("key is '': it must be the name of a feature")
        is_split = self.split is not None and self.split.is_by_key
        if self.order == "source" and self.key is not None and not is_split:
            raise OptionError(
                "a key has no effect while items keep the order of the source",
                hint="add --order key, or a --split by fractions; or leave --key off",
            )
        if self.order == "source" and self.order_seed:
            raise OptionError(
                "order_seed needs order='key', and items keep the order of the source",
                hint="shuffle_seed shuffles items; order='key' orders them by key",
            )
        if self.order == "key" and self.shuffle_seed is not None:
            raise OptionError(
                "--shuffle and --order key exclude each other",
                hint="leave --shuffle off: the order by key is mixed as well, and --seed alone "
                "chooses another order",
            )


@dataclass(frozen=True)
class RunOptions:
    """How to run a job; none of these options changes a byte.

    Attributes:
        overwrite: Replace a finished dataset of this name, or discard an unfinished run.
        resume: Resume an unfinished run of the same job; begin if there is none, and do nothing if
            its dataset is finished.
        retry_errors: Resume, and try items that gave an error again, also of a finished dataset.
        accept_changed_map: With ``retry_errors`` of a finished dataset: accept a map that has
            changed. Records that are written stay; the items that gave an error go through the new
            map, and the manifest lists them.
        on_error: ``raise`` ends the run at an item's error, ``skip`` leaves a gap and an entry in
            the error log.
        max_errors: Maximum number of skipped items; None for any number.
        engine: ``process``, or ``serial`` to use this process only; with one worker they are the
            same.
        workers: Number of worker processes; None for one per usable core.
        item_timeout_s: Maximum seconds for one item, which needs a worker process; None for no
            limit.
        backend: Record writer: ``native``, or ``tensorflow`` for ``tf.io.TFRecordWriter``.
        dali_index: Write ``<shard>.idx`` beside every shard.
        mark_s: Seconds between the snapshots of a worker, once it has run ten times as long: a
            resumed run repeats about so many seconds of work.
        checkpoint_bytes: Bytes of records that a worker writes between two syncs to disk: after a
            power cut at most so many are written again.
        strict: Whether a warning about the data is an error.
        log_dir: Folder for TensorBoard's event files, one for each process that writes; None for
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
                "--resume and --overwrite exclude each other",
                hint="leave one of --resume and --overwrite off",
            )
        if self.accept_changed_map and not self.retry_errors:
            raise OptionError(
                "--accept-changed-map needs --retry-errors",
                hint="add --retry-errors, or leave --accept-changed-map off",
            )
        if self.max_errors is not None and self.on_error != "skip":
            raise OptionError("--max-errors needs --on-error skip", hint="add --on-error skip")
        several = self.workers not in (None, 1)
        if several and self.engine == "serial":
            raise OptionError("the serial engine uses one process", hint="leave the workers off")
        if several and self.backend != "native":
            raise OptionError(
                f"the {self.backend} backend uses one process", hint="leave the workers off"
            )
        if self.item_timeout_s is not None and (
            self.engine == "serial" or self.backend != "native"
        ):
            raise OptionError(
                "an item timeout needs the process engine and the native backend",
                hint="leave the item timeout off, or use engine='process', backend='native'",
            )
        if self.log_dir is not None and not os.fspath(self.log_dir):
            raise OptionError("log_dir is '': it must be the path of a folder")


def changed(run: RunOptions | None, **given: Any) -> RunOptions:
    """Return ``run`` with the given options replaced; an option that is ``...`` was not given."""
    return replace(
        run or RunOptions(), **{name: value for name, value in given.items() if value is not ...}
    )
