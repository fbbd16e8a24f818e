"""From items to record bytes: load -> map -> encode, and what is learnt on the way.

Every engine runs this code, and nothing in it knows which one. It gathers the schema and the label
counts of the records that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from shardwriter.errors import (
    CallableError,
    DataError,
    FeatureError,
    ManifestError,
    SchemaConflict,
    ShardwriterError,
    SourceChanged,
)
from shardwriter.schema.declared import Declared
from shardwriter.schema.fields import named_parts
from shardwriter.sources.source import ColumnSource, FileSource, Item, RecordSource, Source
from shardwriter.writing.names import image_editor
from shardwriter.writing.options import SKIP, DatasetOptions
from shardwriter.writing.read_ahead import Load, read_ahead
from shardwriter.writing.record_encoder import raised_phrase, record_encoder
from shardwriter.writing.stages import Stopwatch
from shardwriter.writing.worker import CURRENT, Worker

TFDS_LABEL: Final = "label"


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
        strict: Whether a warning about an item is its error.

    Attributes:
        counted_to: Records of the items in front of this one are counted in what was learnt.
        standing: Returns the record of an item that has one already; None for items to make.
    """

    standing: Callable[[int], bytes | None] | None = None

    def __init__(
        self,
        source: Source,
        options: DatasetOptions,
        num_shards: int,
        worker: Worker | None = None,
        watch: Stopwatch | None = None,
        *,
        skip_errors: bool = False,
        strict: bool = False,
    ) -> None:
        self._source = source
        self._skip_errors = skip_errors
        self.counted_to = 0
        self._map = options.map
        self._edit = image_editor(source, options)
        self._names = options.names
        self.worker = worker or Worker(0, 1, num_shards, range(num_shards))
        self._watch = watch or Stopwatch()
        # What a map returns is not what the source planned. A source that takes fixed types has
        # them in its plan already, but for what only a record's values are held to.
        plan = {} if options.map else source.plan
        words = {} if options.map else source.vocabularies
        self.encoder = record_encoder(
            num_shards,
            Declared(options.schema, options.vocabularies),
            options.label or (source.label if not options.map else None) or _usual_label(options),
            plan,
            words,
            strict=strict,
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
        is_kept = self._map is None and self._edit is None
        takes_blocks = is_kept and self.encoder.takes_blocks and self.standing is None
        if takes_blocks and isinstance(self._source, ColumnSource):
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
        of_the_whole = isinstance(error, (SchemaConflict, SourceChanged, ManifestError))
        if of_the_whole or not self._skip_errors:
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
        if self.standing is not None:
            record = self.standing(item_index)
            if record is not None:
                return record
        token = CURRENT.set(self.worker)
        try:
            features = self._load(load or self._source.load, item)
            if watch is not None:
                watch.lap("read")
            if isinstance(self._source, RecordSource) and self._map is not None:
                features = self._source.decode(features)
            if self._edit is not None:
                features = self._edit(features)
                if watch is not None:
                    watch.lap("encode")
            if self._map is not None:
                features = apply_map(self._map, features)
                if watch is not None:
                    watch.lap("map")
            if features is SKIP:
                return None
            record = self.encoder.encode(item_index, features)
        except ShardwriterError as error:
            raise self._located(error, item_index, item) from error.__cause__
        except (Exception, SystemExit) as error:  # a value's own __array__, say
            raised = CallableError(raised_phrase("encoding the item", error))
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
            loaded = load(item)
            return loaded if self._names is None else named_parts(loaded, self._names)
        except ShardwriterError:
            raise
        except (Exception, SystemExit) as error:
            raise CallableError(raised_phrase("loading the item", error)) from error

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


def apply_map(function: Callable[[Any], Any], features: Any) -> Any:
    """Return what a map makes of an item's features.

    Raises:
        ShardwriterError: Of the map's own, or what it raises, or returns, is none.
    """
    try:
        mapped = function(features)
    except ShardwriterError:
        raise
    except (Exception, SystemExit) as error:
        raise CallableError(
            raised_phrase("the map", error),
            hint="the traceback is shown with -v; --on-error skip leaves such items out",
        ) from error
    if mapped is None:
        raise FeatureError("the map returned None", hint="return the features, or shardwriter.SKIP")
    return mapped
