"""From items to record bytes: load -> map -> encode, and what is learnt on the way.

Every engine runs this code, and nothing in it knows which one. It gathers the schema and the label
counts of the records that it made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any, Final

import numpy as np

from shardwriter.errors import CallableError, FeatureError, ShardwriterError
from shardwriter.example import UNSET, encode_example
from shardwriter.example_columns import Column, encode_columns
from shardwriter.feature_types import FeatureType
from shardwriter.labels import LabelCounts
from shardwriter.options import SKIP, DatasetOptions
from shardwriter.schema import Schema
from shardwriter.sources import ColumnSource, Item, RecordSource, Source

DEFAULT_LABEL: Final = "image/class/label"


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

    def encode(self, item_index: int, features: Any) -> bytes:
        """Encode one item.

        Args:
            item_index: Its index in source order.
            features: A mapping of features; or bytes, which are a finished record.

        Raises:
            FeatureError: A value, or the item itself, can not be encoded.
            CallableError: The mapping raised when it was read.
            SchemaConflict: A feature's type does not go with that of an earlier item.
        """
        if isinstance(features, bytes):
            return features
        if not isinstance(features, Mapping):
            raise FeatureError(
                f"the item is a {type(features).__name__}, not a mapping of features",
                hint='turn it into one with a map, as in {"image": item[0], "label": item[1]}',
            )
        if type(features) is not dict:
            features = _read(features)
        payload = encode_example(features, self._kinds)
        self.schema.observe(item_index, features)
        if self._label in features:
            value = features[self._label]
            if value is not None and value is not UNSET:
                self.labels.add(item_index, value)
        return payload

    def encode_block(self, indices: Sequence[int], columns: Mapping[str, Column]) -> list[bytes]:
        """Encode many items of planned features at once."""
        payloads = encode_columns(columns, self._kinds)
        for name, column in columns.items():
            num_unset = 0 if column.unset is None else int(np.count_nonzero(column.unset))
            num_absent = 0 if isinstance(column.values, np.ndarray) else _count_none(column.values)
            self.schema.observe_column(name, len(payloads) - num_absent, num_unset)
        if self._label in columns:
            values, unset = columns[self._label]
            plain = values.tolist() if isinstance(values, np.ndarray) else values
            for row, index in enumerate(indices):
                if plain[row] is not None and (unset is None or not unset[row]):
                    self.labels.add(index, plain[row])
        return payloads


class ItemEncoder:
    """Loads, maps and encodes the items of a source.

    Args:
        source: Where they come from.
        options: The map, the label, and fixed types.
        num_shards: N.
    """

    def __init__(self, source: Source, options: DatasetOptions, num_shards: int) -> None:
        self._source = source
        self._map = options.map
        # What a map returns is not what the source planned. A source that takes fixed types has
        # them in its plan already.
        plan = {} if options.map else source.plan
        self.encoder = RecordEncoder(
            num_shards,
            {**options.schema, **plan},
            {} if options.map else source.vocabularies,
            options.label or (source.label if not options.map else None),
        )
        if isinstance(source, RecordSource) and options.map is None and _takes_all(source, options):
            self.encoder.schema.features.update(deepcopy(dict(source.summaries)))

    def records(self, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, bytes | None]]:
        """Yield the record of every item, or None for one that the map skipped.

        Args:
            items: Index and descriptor of each item, in order of index.

        Raises:
            ShardwriterError: With the item's index and key.
        """
        if self._map is None and isinstance(self._source, ColumnSource):
            yield from self._in_blocks(self._source, iter(items))
            return
        for item_index, item in items:
            yield item_index, self.record(item_index, item)

    def record(self, item_index: int, item: Item) -> bytes | None:
        """Return the record of one item, or None where the map skipped it."""
        try:
            features = self._load(item)
            if features is SKIP:
                return None
            return self.encoder.encode(item_index, features)
        except ShardwriterError as error:
            raise error.locate(index=item_index, item=self._source.key(item)) from error.__cause__

    def _load(self, item: Item) -> Any:
        try:
            features = self._source.load(item)
        except ShardwriterError:
            raise
        except Exception as error:
            raise CallableError(_phrase("loading the item", error)) from error
        if self._map is None:
            return features
        if isinstance(self._source, RecordSource):
            features = self._source.decode(features)
        try:
            mapped = self._map(features)
        except ShardwriterError:
            raise
        except Exception as error:
            raise CallableError(
                _phrase("the map", error), hint="the traceback is shown with -v"
            ) from error
        if mapped is None:
            raise FeatureError(
                "the map returned None", hint="return the features, or shardwriter.SKIP"
            )
        return mapped

    def _in_blocks(
        self, source: ColumnSource, items: Iterator[tuple[int, Item]]
    ) -> Iterator[tuple[int, bytes | None]]:
        while block := list(islice(items, source.block_items)):
            indices, descriptors = zip(*block, strict=True)
            try:
                payloads = self.encoder.encode_block(indices, source.load_columns(descriptors))
            except Exception as error:
                # Which row it was is found by going through them one by one.
                for item_index, item in block:
                    self.record(item_index, item)
                if isinstance(error, ShardwriterError):
                    error.locate(index=indices[0])
                raise
            yield from zip(indices, payloads, strict=True)


def _count_none(values: Sequence[Any]) -> int:
    return list(map(type, values)).count(type(None))  # count(None) would compare arrays


def _takes_all(source: Source, options: DatasetOptions) -> bool:
    """Whether the limit leaves nothing out."""
    num_items = source.num_items
    return options.limit is None or (num_items is not None and num_items <= options.limit)


def _read(features: Mapping[str, Any]) -> dict[str, Any]:
    """Read a mapping once: it may decode a value each time that it is asked for one."""
    try:
        return dict(features)
    except Exception as error:
        raise CallableError(_phrase("reading the item's features", error)) from error


def _phrase(what: str, error: Exception) -> str:
    text = str(error)
    return f"{what} raised {type(error).__name__}" + (f": {text}" if text else "")
