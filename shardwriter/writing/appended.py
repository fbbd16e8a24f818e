"""A finished dataset and what is to come behind it, as one source.

Items 0 to T - 1 are those of the dataset: their records are taken as they are, and what is known of
them stands in its manifest. Items from T on are those of another source, with its own map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.manifest import Manifest
from shardwriter.errors import ManifestError, SourceChanged, SourceError
from shardwriter.formats import canonical
from shardwriter.formats.frame_block import FrameBlock
from shardwriter.schema.data_warnings import moved, warnings_of
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.callables import describe_callable
from shardwriter.sources.source import HoldingSource, RecordSource, WaitingSource
from shardwriter.sources.tfrecord import TFRecordFiles
from shardwriter.writing.encode import apply_map
from shardwriter.writing.selection import Selection

KIND: Final = "append"


@dataclass(frozen=True)
class BaseFacts:
    """Which dataset is appended to, as the manifest of the result tells it.

    Attributes:
        digest: Of its job, its items and its shards.
        num_items: T.
    """

    digest: str
    num_items: int

    @classmethod
    def of(cls, manifest: Manifest) -> BaseFacts:
        """Return the facts of a dataset."""
        shards = [[shard.num_records, shard.crc32c] for shard in manifest.shards]
        facts = [manifest.job, manifest.num_items, shards]
        return cls(canonical.digest({"base": facts}), manifest.num_items)


class _OldRecord(NamedTuple):
    item: Any


class _NewItem(NamedTuple):
    item: Any


class AppendedItems:
    """The items of a dataset, and those of a source behind them.

    Args:
        old: The dataset, which has a manifest; it may have got more items since.
        base: What it was when it was appended to.
        new: The items that come behind it.
        function: The map, applied to these only.
    """

    kind = KIND

    def __init__(
        self,
        old: TFRecordFiles,
        base: BaseFacts,
        new: Selection,
        function: Callable[[dict[str, Any]], Any] | None,
    ) -> None:
        assert old.manifest is not None
        self._old = old
        self._base = base
        self._new = new
        self._map = function
        self._num_old = base.num_items
        gaps = np.asarray(old.manifest.gaps, np.int64)
        self._gaps = gaps[gaps < self._num_old]
        source = new.source
        self.stable = source.stable
        self.random_access = old.random_access and new.random_access
        self.travels = self.random_access and source.travels
        self.num_items: int | None = None
        if new.num_items is not None:
            self.num_items = self._num_old + new.num_items
        self.num_frames = self._num_old if old.random_access else 0
        self.vocabularies: Mapping[str, list[str]] = {} if function else source.vocabularies
        self.label: str | None = old.label or (None if function else source.label)
        self.notes: Sequence[str] = source.notes
        self.warnings = [moved(warning, self._num_old) for warning in warnings_of(source)]

    @property
    def plan(self) -> Mapping[str, FeatureType]:
        """The types of new items that are known before the first of them."""
        return {} if self._map is not None else self._new.source.plan

    def hold(self, *, skip_errors: bool) -> None:
        """Load items here; see :class:`shardwriter.sources.source.HoldingSource`."""
        self.travels = False
        if isinstance(self._new.source, HoldingSource):
            self._new.source.hold(skip_errors=skip_errors)

    def while_waiting(self, meanwhile: Callable[[], None]) -> None:
        """Have a function called while an item is waited for: of a queue, say."""
        if isinstance(self._new.source, WaitingSource):
            self._new.source.while_waiting(meanwhile)

    def items(self) -> Iterator[_OldRecord | _NewItem | None]:
        """Yield all items; None for those of the dataset that have no record."""
        records = self._old.items()
        gaps = iter([*self._gaps.tolist(), -1])
        gap = next(gaps)
        for item_index in range(self._num_old):
            if item_index == gap:
                gap = next(gaps)
                yield None
            else:
                yield _OldRecord(next(records))
        yield from map(_NewItem, self._new.items())

    def item(self, item_index: int) -> _OldRecord | _NewItem:
        """Return one item, which is none without a record."""
        if item_index < self._num_old:
            record = int(self._records(np.array([item_index]))[0])
            return _OldRecord(self._old.item(record))
        place = item_index - self._num_old
        if self._new.is_untouched:
            return _NewItem(self._new.source.item(place))
        ((_, item),) = self._new.items_at(np.array([place]))
        return _NewItem(item)

    def _records(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n]: the records, in reading order, of items of the dataset."""
        before: NDArray[np.int64] = items - np.searchsorted(self._gaps, items)
        return before

    def key(self, item: _OldRecord | _NewItem) -> str | None:
        """Return what the dataset calls a record, or the source an item."""
        source = self._old if isinstance(item, _OldRecord) else self._new.source
        return source.key(item.item)

    def load(self, item: _OldRecord | _NewItem) -> Any:
        """Return a record of the dataset, or what the source and the map make of an item.

        Raises:
            ManifestError: The record is damaged: no item that could be skipped, as it counts in
                what the manifest says of all of them.
            ShardwriterError: Of the source's or the map's own.
        """
        if isinstance(item, _OldRecord):
            try:
                return self._old.load(item.item)
            except SourceChanged:
                raise
            except SourceError as error:
                raise ManifestError(
                    f"the dataset that is appended to is damaged: {error.message}",
                    path=error.path,
                    record_index=error.record_index,
                    offset=error.offset,
                    hint="`shardwriter repair` brings back what can be brought back",
                ) from error
        source = self._new.source
        features = source.load(item.item)
        if self._map is None:
            return features
        if isinstance(source, RecordSource):
            features = source.decode(features)
        return apply_map(self._map, features)

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the frames of as many items of the dataset as are read at once, proven.

        Raises:
            SourceError: The first of them is damaged, or can not be read.
        """
        return self._old.frames(self._records(items))

    def _appended(self) -> str:
        """Return what tells what is appended, to whatever dataset."""
        options = self._new.options
        return canonical.digest(
            {
                "filter": None if options.filter is None else describe_callable(options.filter),
                "kind": self._new.source.kind,
                "limit": options.limit,
                "map": None if self._map is None else describe_callable(self._map),
                "source": self._new.source.digest(),
            }
        )

    def told(self) -> dict[str, Any]:
        """Return what was appended to what: a finished append is known by it."""
        return {"appended": self._appended(), "base": asdict(self._base)}

    def digest(self) -> dict[str, Any]:
        """Return what identifies the dataset and what comes behind it."""
        return self.told()

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with what tells on this machine that something has changed."""
        return {**self.told(), "new": self._new.source.fingerprint()}
