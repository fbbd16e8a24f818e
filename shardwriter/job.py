"""A job: one source, the options that decide bytes, and N. What every engine is given.

Order of operations: source order -> limit -> shuffle -> number. Everything up to here sees
descriptors only; loading, mapping and encoding come after, wherever the engine does them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter import canonical
from shardwriter.callables import describe_callable
from shardwriter.encode import ItemEncoder, RecordEncoder
from shardwriter.errors import OptionError
from shardwriter.naming import Output, ShardPattern
from shardwriter.options import DatasetOptions, RunOptions
from shardwriter.packing import Packing
from shardwriter.permutation import ALGORITHM, Permutation
from shardwriter.sources import Item, RecordSource, Source
from shardwriter.stages import Stopwatch
from shardwriter.worker import ItemSlot, Worker

_ORDER_BLOCK: Final = 1 << 16
_SAMPLE_ITEMS: Final = 64
_MAX_AUTO_SHARD_BYTES: Final = 200_000_000


@dataclass(frozen=True)
class Job:
    """What is to be written.

    Attributes:
        source: The items.
        options: What decides the bytes.
        pattern: The files' names, and with them N.
    """

    source: Source
    options: DatasetOptions
    pattern: ShardPattern

    @property
    def num_shards(self) -> int:
        """N."""
        return self.pattern.num_shards

    @property
    def num_items(self) -> int | None:
        """T; None where only the end of the source tells."""
        return count_items(self.source, self.options)

    @property
    def packing(self) -> Packing:
        """How shards are compressed."""
        return Packing.of(self.options.compression, self.options.deflate, self.num_shards)

    def encoder(self, worker: Worker | None = None, watch: Stopwatch | None = None) -> ItemEncoder:
        """Return a fresh encoder for the job's items; see :class:`ItemEncoder`."""
        return ItemEncoder(self.source, self.options, self.num_shards, worker, watch)

    def record_encoder(self) -> RecordEncoder:
        """Return what gathers the schema and the labels of the job's records; it has none yet."""
        return self.encoder().encoder

    def learnt(self) -> RecordEncoder:
        """Return an encoder that others can be merged into: what is known without any record."""
        encoder = self.record_encoder()
        takes_all = self.options.limit is None or self.num_items == self.source.num_items
        if isinstance(self.source, RecordSource) and self.options.map is None and takes_all:
            encoder.schema.merge(self.source.summaries)
        return encoder

    def items(self) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of every item, in order of index."""
        if self.options.shuffle_seed is not None:
            check_shuffle(self.source, self.options)
            return self.items_of(range(self.num_shards))
        return enumerate(islice(self.source.items(), self.options.limit))

    def items_of(self, shards: range) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of the items of some shards, in order of index.

        Only for a source with random access.
        """
        num_items = self.num_items
        assert num_items is not None
        row = np.array(shards, np.int64)
        rows_at_once = max(1, _ORDER_BLOCK // max(1, len(row)))
        step = rows_at_once * self.num_shards
        for start in range(0, num_items, step):
            starts = np.arange(start, min(start + step, num_items), self.num_shards)
            indices = (starts[:, None] + row).ravel()
            yield from self.items_at(indices[indices < num_items])

    def items_at(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, Item]]:
        """Yield (index, descriptor) of the items of int64[n] indices; needs random access."""
        found = map(self.source.item, self.source_indices(indices).tolist())
        return zip(indices.tolist(), found, strict=True)

    def source_indices(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: where in the source the items of these indices stand."""
        permutation = self._permutation
        return indices if permutation is None else permutation(indices)

    @cached_property
    def _permutation(self) -> Permutation | None:
        if self.options.shuffle_seed is None:
            return None
        check_shuffle(self.source, self.options)
        assert self.num_items is not None
        return Permutation(self.num_items, self.options.shuffle_seed)

    def worker(self, index: int, num_workers: int, shards: range, slot: ItemSlot) -> Worker:
        """Return what the user's code is told of the worker that it runs in."""

        def source_index(item_index: int) -> int:
            return int(self.source_indices(np.array([item_index]))[0])

        seed = self.options.shuffle_seed or 0
        return Worker(index, num_workers, self.num_shards, shards, seed, source_index, slot)

    def order_json(self) -> dict[str, Any]:
        """Return the manifest's ``order``."""
        seed = self.options.shuffle_seed
        shuffle = None if seed is None else {"algorithm": ALGORITHM, "seed": seed}
        return {"shuffle": shuffle, "split": None}

    def source_json(self) -> dict[str, Any]:
        """Return the manifest's ``source``."""
        return {"digest": canonical.digest(self.source.digest()), "kind": self.source.kind}

    def bytes_options(self) -> dict[str, Any]:
        """Return the options that decide bytes, those of the manifest included, as JSON."""
        options = self.options
        return {
            "compression": self.packing.to_json(),
            "files": self.pattern.template,
            "label": options.label,
            "limit": options.limit,
            "map": None if options.map is None else describe_callable(options.map),
            "num_shards": self.num_shards,
            "order": self.order_json(),
            "schema": {name: [t.kind, t.dtype] for name, t in options.schema.items()},
        }

    def digest(self) -> str:
        """Return the hash of everything that decides the bytes."""
        return canonical.digest({"options": self.bytes_options(), "source": self.source_json()})


def count_items(source: Source, options: DatasetOptions) -> int | None:
    """Return T, or None where only the end of the source tells."""
    if source.num_items is None or options.limit is None:
        return source.num_items
    return min(source.num_items, options.limit)


def check_shuffle(source: Source, options: DatasetOptions) -> None:
    """Refuse to shuffle a source that gives its items one after the other.

    Raises:
        OptionError: It does, and a shuffle is asked for.
    """
    if options.shuffle_seed is None:
        return
    if count_items(source, options) is None or not source.random_access:
        raise OptionError(
            "a source that gives its items one after the other can not be shuffled",
            hint="shuffling needs a folder, a table, or an object with __len__ and __getitem__",
        )


@dataclass(frozen=True)
class Sample:
    """What a few items, spread over the source, look like as records."""

    num_records: int
    mean_frame_bytes: float
    features: dict[str, Any]


def sample(source: Source, options: DatasetOptions) -> Sample:
    """Encode up to 64 items at floor(k * T / 64); of a stream the first 64.

    Raises:
        DataError: As a write of these items would.
    """
    num_items = count_items(source, options)
    if num_items is not None and source.random_access:
        places = {k * num_items // _SAMPLE_ITEMS for k in range(_SAMPLE_ITEMS if num_items else 0)}
        items: Iterator[tuple[int, Item]] = ((p, source.item(p)) for p in sorted(places))
    else:
        limit = _SAMPLE_ITEMS if options.limit is None else min(_SAMPLE_ITEMS, options.limit)
        items = enumerate(islice(source.items(), limit))
    encoder = ItemEncoder(source, options, 1)
    sizes = [len(record) + 16 for _, record in encoder.records(items) if record is not None]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    return Sample(len(sizes), mean, encoder.encoder.schema.to_json()["features"])


def choose_num_shards(source: Source, options: DatasetOptions, output: Output) -> int:
    """Return N: what OUT says, or for ``@auto`` a good number for this data.

    Shards of at most 200 MB, and a multiple of ``world * loader_workers`` so that every reader has
    the same number of them, where there are enough items.

    Raises:
        OptionError: ``@auto`` for a source that does not know its length.
    """
    if output.num_shards is not None:
        return output.num_shards
    num_items = count_items(source, options)
    if num_items is None:
        raise OptionError(
            "the number of items is not known before the end, so N can not be chosen",
            hint=f"say it: {output.name}@16, or --shards 16",
        )
    total_bytes = sample(source, options).mean_frame_bytes * num_items
    needed = max(1, -(-int(total_bytes) // _MAX_AUTO_SHARD_BYTES))
    readers = options.world * options.loader_workers
    return max(1, min(-(-needed // readers) * readers, max(1, num_items)))


def check_compression(output: Output, options: DatasetOptions, run_options: RunOptions) -> None:
    """Refuse what can not be had of compressed shards.

    Raises:
        OptionError: The output's name is for another compression than the options say, or
            something is asked for that only plain shards have.
    """
    if output.compression != options.compression:
        raise OptionError(
            f"OUT is for {output.compression} shards, and the options say {options.compression}"
        )
    if options.compression == "none":
        return
    if run_options.dali_index:
        raise OptionError(
            f"--index makes .idx files of plain shards only, not of {options.compression} ones",
            hint="leave --index or --compression off; the dataset's own index is always written",
        )
    if run_options.backend == "tensorflow":
        raise OptionError(
            "--backend tensorflow writes plain shards only: TensorFlow's own compressed files have "
            "no members to enter them at",
            hint=f"--backend native writes {options.compression} shards that TensorFlow reads",
        )
