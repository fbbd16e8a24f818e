"""From items to record bytes: load -> map -> encode, and what is learnt on the way.

Every engine runs this code, and nothing in it knows which one. It gathers the schema and the label
counts of the records that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from shardwriter.codec.example import UNSET, encode_example
from shardwriter.codec.example_columns import Column, encode_columns
from shardwriter.errors import (
    CallableError,
    DataError,
    FeatureError,
    RecordTooLarge,
    SchemaConflict,
    ShardwriterError,
    SourceChanged,
)
from shardwriter.features.feature_types import FeatureType
from shardwriter.features.labels import LabelCounts
from shardwriter.features.learnt import Learnt, types_of
from shardwriter.features.schema import Schema
from shardwriter.formats.tfrecord import MAX_PAYLOAD_BYTES
from shardwriter.items.read_ahead import Load, read_ahead
from shardwriter.options import SKIP, DatasetOptions
from shardwriter.runs.kept import Counted
from shardwriter.sources import ColumnSource, FileSource, Item, RecordSource, Source
from shardwriter.stages import Stopwatch
from shardwriter.worker import CURRENT, Worker

DEFAULT_LABEL: Final = "image/class/label"
TFDS_LABEL: Final = "label"


class RecordEncoder:
    """Turns features into record bytes, and keeps the schema and the label counts.

    Args:
        num_shards: N, for label counts per shard.
        plan: Types fixed before record 0.
        vocabularies: Names of the values of integer features.
        label: The feature whose values are counted; None for ``image/class/label``.
    """

    def __init__(
        self,
        num_shards: int,
        plan: Mapping[str, FeatureType] | None = None,
        vocabularies: Mapping[str, list[str]] | None = None,
        label: str | None = None,
    ) -> None:
        self.schema = Schema(plan, vocabularies)
        self.labels = LabelCounts(label or DEFAULT_LABEL, num_shards)
        self._kinds = self.schema.kinds or None
        self._label = self.labels.feature
        self._counted: Counted | None = None

    @property
    def learnt(self) -> Learnt:
        """What was learnt so far; it goes on growing."""
        return Learnt(self.schema.features, self.labels)

    def expect(self, learnt: Learnt, counted: Counted) -> None:
        """Go on behind others.

        Args:
            learnt: What is known of other records: their types bind those that come now.
            counted: Items whose records are counted there; they are not counted again.
        """
        self.schema.merge(types_of(learnt.features))
        self._counted = counted

    def encode(self, item_index: int, features: Any) -> bytes:
        """Encode one item.

        Args:
            item_index: Its index in source order.
            features: A mapping of features; or bytes, which are a finished record.

        Raises:
            FeatureError: A value, or the item itself, can not be encoded.
            CallableError: The mapping raised when it was read.
            SchemaConflict: A feature's type does not go with that of an earlier item.
            RecordTooLarge: The record has 2 GiB or more.
        """
        if isinstance(features, bytes):
            if len(features) > MAX_PAYLOAD_BYTES:
                raise _too_large(features)
            return features
        if not isinstance(features, Mapping):
            raise FeatureError(
                f"the item is a {type(features).__name__}, not a mapping of features",
                hint='turn it into one with a map, as in {"image": item[0], "label": item[1]}',
            )
        if type(features) is not dict:
            features = _read(features)
        payload = encode_example(features, self._kinds)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise _too_large(payload)
        if self._counted is not None and item_index in self._counted:
            return payload
        self.schema.observe(item_index, features)
        if self._label in features:
            value = features[self._label]
            if value is not None and value is not UNSET:
                self.labels.add(item_index, value)
        return payload

    def merge(self, learnt: Learnt) -> None:
        """Add what another encoder has learnt from other items of the same dataset.

        Raises:
            SchemaConflict: A feature has types that do not go together.
        """
        self.schema.merge(learnt.features)
        self.labels.merge(learnt.labels)

    def encode_block(self, indices: Sequence[int], columns: Mapping[str, Column]) -> list[bytes]:
        """Encode many items of planned features at once."""
        payloads = encode_columns(columns, self._kinds)
        if self._counted is not None and indices[0] < self._counted.last:
            new = [row for row, index in enumerate(indices) if index not in self._counted]
            self._count([indices[row] for row in new], _select(columns, new))
        else:
            self._count(indices, columns)
        return payloads

    def _count(self, indices: Sequence[int], columns: Mapping[str, Column]) -> None:
        for name, column in columns.items():
            num_unset = 0 if column.unset is None else int(np.count_nonzero(column.unset))
            num_absent = 0 if isinstance(column.values, np.ndarray) else _count_none(column.values)
            self.schema.observe_column(name, len(indices) - num_absent, num_unset)
        if self._label in columns:
            values, unset = columns[self._label]
            plain = values.tolist() if isinstance(values, np.ndarray) else values
            for row, index in enumerate(indices):
                if plain[row] is not None and (unset is None or not unset[row]):
                    self.labels.add(index, plain[row])


def _usual_label(options: DatasetOptions) -> str | None:
    return None if options.tfds is None else TFDS_LABEL


Made = bytes | None | DataError
"""What became of an item: its record, nothing as the map skipped it, or an error that is skipped"""


class ItemEncoder:
    """Loads, maps and encodes the items of a source.

    Args:
        source: Where they come from.
        options: The map, the label, and fixed types.
        num_shards: N.
        worker: Who does it; told to the user's code, and kept at the item at hand.
        watch: Told of the time that every stage takes.
        skip_errors: Whether an item's error is handed out in place of its record.

    Attributes:
        counted_to: Records of the items in front of this one are counted in what was learnt.
    """

    def __init__(
        self,
        source: Source,
        options: DatasetOptions,
        num_shards: int,
        worker: Worker | None = None,
        watch: Stopwatch | None = None,
        *,
        skip_errors: bool = False,
    ) -> None:
        self._source = source
        self._skip_errors = skip_errors
        self.counted_to = 0
        self._map = options.map
        self.worker = worker or Worker(0, 1, num_shards, range(num_shards))
        self._watch = watch or Stopwatch()
        # What a map returns is not what the source planned. A source that takes fixed types has
        # them in its plan already.
        plan = {} if options.map else source.plan
        self.encoder = RecordEncoder(
            num_shards,
            {**options.schema, **plan},
            {} if options.map else source.vocabularies,
            options.label or (source.label if not options.map else None) or _usual_label(options),
        )

    def leave(self) -> None:
        """Note that no item is at hand: what comes now is nobody's fault."""
        self.worker.slot[0] = -1

    def records(self, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Made]]:
        """Yield what becomes of every item.

        Args:
            items: Index and descriptor of each item, in order of index.

        Raises:
            ShardwriterError: With the item's index and key.
        """
        if self._map is None and isinstance(self._source, ColumnSource):
            yield from self._in_blocks(self._source, iter(items))
            return
        watch = self._watch
        load: Load = self._source.load
        if isinstance(self._source, FileSource):
            ready: Iterable[tuple[int, Item, Load]] = read_ahead(self._source, load, items)
        else:
            ready = ((item_index, item, load) for item_index, item in items)
        for item_index, item, load in ready:
            timed = watch.start()
            try:
                made: Made = self.record(item_index, item, load, watch if timed else None)
            except DataError as error:
                made = self._skipped(error)
            self.counted_to = item_index + 1
            yield item_index, made
            if timed:
                watch.lap("write")
                watch.stop()

    def _skipped(self, error: DataError) -> DataError:
        """Return an error that is skipped; raise one that is not."""
        # These are about the whole: which item meets them depends on who came first.
        if isinstance(error, (SchemaConflict, SourceChanged)) or not self._skip_errors:
            raise error
        return error

    def record(
        self,
        item_index: int,
        item: Item,
        load: Load | None = None,
        watch: Stopwatch | None = None,
    ) -> bytes | None:
        """Return the record of one item, or None where the map skipped it."""
        self.worker.slot[0] = item_index
        token = CURRENT.set(self.worker)
        try:
            features = self._load(load or self._source.load, item)
            if watch is not None:
                watch.lap("read")
            if self._map is not None:
                features = self._mapped(self._map, features)
                if watch is not None:
                    watch.lap("map")
            if features is SKIP:
                return None
            record = self.encoder.encode(item_index, features)
        except ShardwriterError as error:
            raise self._located(error, item_index, item) from error.__cause__
        except (Exception, SystemExit) as error:  # a value's own __array__, say
            raised = CallableError(_phrase("encoding the item", error))
            raise self._located(raised, item_index, item) from error
        finally:
            CURRENT.reset(token)
        if watch is not None:
            watch.lap("encode")
        return record

    def _located(self, error: ShardwriterError, item_index: int, item: Item) -> ShardwriterError:
        return error.locate(index=item_index, item=self._source.key(item))

    def _load(self, load: Load, item: Item) -> Any:
        try:
            return load(item)
        except ShardwriterError:
            raise
        except (Exception, SystemExit) as error:
            raise CallableError(_phrase("loading the item", error)) from error

    def _mapped(self, function: Callable[[Any], Any], features: Any) -> Any:
        if isinstance(self._source, RecordSource):
            features = self._source.decode(features)
        try:
            mapped = function(features)
        except ShardwriterError:
            raise
        except (Exception, SystemExit) as error:
            raise CallableError(
                _phrase("the map", error),
                hint="the traceback is shown with -v; --on-error skip leaves such items out",
            ) from error
        if mapped is None:
            raise FeatureError(
                "the map returned None", hint="return the features, or shardwriter.SKIP"
            )
        return mapped

    def _in_blocks(
        self, source: ColumnSource, items: Iterator[tuple[int, Item]]
    ) -> Iterator[tuple[int, Made]]:
        watch = self._watch
        while block := list(islice(items, source.block_items)):
            watch.start_block()
            indices, descriptors = zip(*block, strict=True)
            self.worker.slot[0] = indices[0]
            try:
                columns = source.load_columns(descriptors)
                watch.lap("read")
                payloads = self.encoder.encode_block(indices, columns)
                watch.lap("encode")
            except Exception as error:
                # Which row it was is found by going through them one by one.
                num_errors = 0
                for item_index, item in block:
                    try:
                        row: Made = self.record(item_index, item)
                    except DataError as bad:
                        row = self._skipped(bad)
                        num_errors += 1
                    self.counted_to = item_index + 1
                    yield item_index, row
                if num_errors:
                    continue
                if isinstance(error, ShardwriterError):
                    error.locate(index=indices[0])
                raise
            self.counted_to = indices[-1] + 1
            yield from zip(indices, payloads, strict=True)
            watch.lap("write")
            watch.stop()


def _too_large(payload: bytes) -> RecordTooLarge:
    return RecordTooLarge(
        f"a record of {len(payload):,} bytes is over protobuf's limit of 2 GiB",
        hint="store large arrays in several records, or compressed",
    )


def _select(columns: Mapping[str, Column], rows: Sequence[int]) -> dict[str, Column]:
    """Return some rows of columns."""
    selected = {}
    for name, (values, unset) in columns.items():
        some = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        selected[name] = Column(some, None if unset is None else unset[rows])
    return selected


def _count_none(values: Sequence[Any]) -> int:
    return list(map(type, values)).count(type(None))  # count(None) would compare arrays


def _read(features: Mapping[str, Any]) -> dict[str, Any]:
    """Read a mapping once: it may decode a value each time that it is asked for one."""
    try:
        return dict(features)
    except Exception as error:
        raise CallableError(_phrase("reading the item's features", error)) from error


def _phrase(what: str, error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - of the user's own making
        text = ""
    return f"{what} raised {type(error).__name__}" + (f": {text}" if text else "")
