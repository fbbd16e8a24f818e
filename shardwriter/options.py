"""Options, checked on construction.

What changes bytes (:class:`DatasetOptions`) is kept apart from what does not (:class:`RunOptions`):
the first kind goes into the job's hash, the second can differ between two attempts of one job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from shardwriter.dataset.splits import Split
from shardwriter.errors import OptionError
from shardwriter.features.feature_types import FeatureType
from shardwriter.formats.compression import Compression
from shardwriter.formats.packing import Deflate, check_packing
from shardwriter.images.options import ImageOptions
from shardwriter.items.fields import check_names
from shardwriter.items.indices import ItemIndices
from shardwriter.tfds.names import TfdsSplit

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


def _is_count(value: object, stop: int | None = None) -> bool:
    """Whether a value is an int from 0 up; what goes into the job's hash is no other number."""
    return type(value) is int and value >= 0 and (stop is None or value < stop)


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
    """

    map: Callable[[dict[str, Any]], Any] | None = None
    filter: Callable[[Any], Any] | None = None
    limit: int | None = None
    shuffle_seed: int | None = None
    label: str | None = None
    schema: Mapping[str, FeatureType] = field(default_factory=dict)
    world: int = 1
    loader_workers: int = 1
    compression: Compression = "none"
    deflate: Deflate = "isal-2"
    order: Order = "source"
    key: str | None = None
    order_seed: int = 0
    tfds: TfdsSplit | None = None
    split: Split | None = None
    vocabularies: Mapping[str, list[str]] = field(default_factory=dict)
    images: ImageOptions | None = None
    names: tuple[str, ...] | None = None
    indices: ItemIndices | None = None

    def __post_init__(self) -> None:
        for name in ("map", "filter"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise OptionError(f"{name} is {type(function).__name__}, not a callable")
        if self.limit is not None and not _is_count(self.limit, 2**63):
            raise OptionError(f"limit is {self.limit!r}: it is a number of items, 0 or more")
        for name in ("world", "loader_workers"):
            if not _is_count(getattr(self, name)) or getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)!r}: it is a number from 1 on")
        if self.shuffle_seed is not None and not _is_count(self.shuffle_seed, 2**64):
            raise OptionError(f"seed is {self.shuffle_seed!r}: it is a number from 0 to 2^64 - 1")
        check_packing(self.compression, self.deflate)
        self._check_order()
        if self.images is not None and not isinstance(self.images, ImageOptions):
            raise OptionError(
                f"images is {type(self.images).__name__}, not ImageOptions",
                hint="as in images=shardwriter.ImageOptions(max_side=512)",
            )
        if self.names is not None:
            check_names(self.names)
        if self.indices is not None and not isinstance(self.indices, ItemIndices):
            raise OptionError(
                f"indices is a {type(self.indices).__name__}", hint="item_indices(...) makes them"
            )
        for name, feature_type in self.schema.items():
            if not isinstance(feature_type, FeatureType):
                raise OptionError(
                    f"the schema gives {name!r} as {feature_type!r}, not as a FeatureType",
                    hint="declare('id=string,price=float').types makes them from text",
                )

    def _check_order(self) -> None:
        if self.order not in get_args(Order):
            raise OptionError(f"order is {self.order!r}", hint="source or key")
        if self.key is not None and not (isinstance(self.key, str) and self.key):
            raise OptionError(f"key is {self.key!r}: it is the name of a feature")
        if not _is_count(self.order_seed, 2**64):
            raise OptionError(
                f"order_seed is {self.order_seed!r}: it is a number from 0 to 2^64 - 1"
            )
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
                hint="leave --shuffle (shuffle_seed) off: the order by key is mixed as well, and "
                "--seed (order_seed) alone chooses another",
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
        log_dir: Folder for TensorBoard's event files, one of each process that writes; None for
            none.
    """

    overwrite: bool = False
    resume: bool = False
    retry_errors: bool = False
    accept_changed_map: bool = False
    on_error: OnError = "raise"
    max_errors: int | None = None
    engine: EngineName = "process"
    workers: int | None = 1
    item_timeout_s: float | None = None
    backend: Backend = "native"
    dali_index: bool = False
    mark_s: float = 0.1
    checkpoint_bytes: int = 256 << 20
    log_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
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
        if self.on_error not in get_args(OnError):
            raise OptionError(f"on_error is {self.on_error!r}", hint="raise or skip")
        if self.max_errors is not None:
            if not _is_count(self.max_errors):
                raise OptionError(f"max_errors is {self.max_errors!r}: it is a number from 0 on")
            if self.on_error != "skip":
                raise OptionError(
                    "max_errors counts items that are skipped", hint="add --on-error skip"
                )
        if not (isinstance(self.mark_s, (int, float)) and self.mark_s >= 0):
            raise OptionError(f"mark_s is {self.mark_s!r}: it is a number of seconds, 0 or more")
        if not _is_count(self.checkpoint_bytes) or self.checkpoint_bytes < 1:
            raise OptionError(
                f"checkpoint_bytes is {self.checkpoint_bytes!r}: it is a number from 1 on"
            )
        if self.engine not in ("process", "serial"):
            raise OptionError(f"engine is {self.engine!r}", hint="process or serial")
        if self.workers is not None and (not _is_count(self.workers) or self.workers < 1):
            raise OptionError(f"workers is {self.workers!r}: it is a number from 1 on, or None")
        several = self.workers not in (None, 1)
        if several and self.engine == "serial":
            raise OptionError("the serial engine is one process", hint="leave the workers off")
        if several and self.backend != "native":
            raise OptionError(
                f"the {self.backend} backend writes in one process", hint="leave the workers off"
            )
        timeout_s = self.item_timeout_s
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s > 0):
            raise OptionError(f"item_timeout_s is {timeout_s!r}: it is a number of seconds")
        if timeout_s is not None and (self.engine == "serial" or self.backend != "native"):
            raise OptionError(
                "an item can be given up only in a process of its own",
                hint="leave the item timeout off, or let the process engine write",
            )
        if self.backend not in ("native", "tensorflow"):
            raise OptionError(f"backend is {self.backend!r}", hint="native or tensorflow")
        is_path = isinstance(self.log_dir, (str, os.PathLike)) and os.fspath(self.log_dir)
        if self.log_dir is not None and not is_path:
            raise OptionError(f"log_dir is {self.log_dir!r}: it is the path of a folder")


def changed(run: RunOptions | None, **given: Any) -> RunOptions:
    """Return how a job is carried out, with what was given beside; ``...`` is not given."""
    told = {name: value for name, value in given.items() if value is not ...}
    return replace(run or RunOptions(), **told)
