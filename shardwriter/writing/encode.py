"""From items to record bytes: load -> map -> encode, with statistics of the records.

::

    ItemEncoder    item -> load -> decode (finished records) -> resize images -> map -> features
    RecordEncoder  features -> validate against the schema -> record bytes, schema, label counts

Tables without a map or declared types skip this path: their columns are encoded in blocks. Every
engine runs this code, and nothing in it depends on the engine.

A number that its float type does not hold exactly gives a warning, or an error with ``strict``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from shardwriter.errors import (
    CallableError,
    DataError,
    DataWarning,
    FeatureError,
    ManifestError,
    RecordTooLarge,
    SchemaConflict,
    ShardwriterError,
    SourceChanged,
    reason,
)
from shardwriter.formats import (
    BITS,
    MAX_PAYLOAD_BYTES,
    PRECISION,
    UNSET,
    Column,
    EncodedImage,
    RawArray,
    SequenceExample,
    Unset,
    by_key,
    display_name,
    dtype_named,
    encode_columns,
    encode_example,
    encode_sequence_example,
    first_inexact,
    is_sequence_key,
)
from shardwriter.schema import (
    DataWarnings,
    DeclaredSchema,
    FeatureType,
    LabelCounts,
    RecordStats,
    Schema,
    Steps,
    Validator,
    named_parts,
    needs_validation,
    own_fields,
    shape_features,
    types_of,
)
from shardwriter.sources import (
    ColumnSource,
    FileSource,
    Item,
    RecordSource,
    Source,
)
from shardwriter.writing.images import image_editor
from shardwriter.writing.options import SKIP, DatasetOptions
from shardwriter.writing.resume_state import CountedItems
from shardwriter.writing.selection import Load, read_ahead
from shardwriter.writing.stages import StageTimer
from shardwriter.writing.worker import CURRENT, Worker

PRECISION_CODE: Final = "float-precision"
"""The code of the warning that a float type does not hold a number exactly."""

DEFAULT_LABEL: Final = "image/class/label"
_TFDS_LABEL: Final = "label"

_NO_NUMBERS: Final = (str, bytes, bytearray, memoryview, RawArray, EncodedImage, Unset, type(None))


def lost_number(value: Any, *, is_planned: bool, dtype: str = "float32") -> float | int | None:
    """Return the first number in a feature's value that ``dtype`` does not hold; None for none.

    Args:
        value: The value as the source or the map gave it.
        is_planned: Whether a plan stores integers of this feature as floats.
        dtype: The float type that is stored.
    """
    if isinstance(value, Steps):
        numbers = (lost_number(step, is_planned=False) for step in value.steps)
        return next((number for number in numbers if number is not None), None)
    leaf = value
    while isinstance(leaf, list | tuple) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, _NO_NUMBERS) or (isinstance(leaf, int) and not is_planned):
        return None
    # Not a numeric array: numpy converts integers to floats if they are beside floats or large.
    array = np.array(value, object) if isinstance(value, list | tuple) else np.asarray(value)
    if array.dtype.kind not in ("fiuO" if is_planned else "fO"):
        return None
    position = first_inexact(array, dtype)
    if position is None:
        return None
    number = array.reshape(-1)[position]
    is_whole = isinstance(number, int | np.integer)
    return int(number) if is_whole else float(number)  # float: longdouble too


def lost_in_column(column: Column) -> tuple[int, float | int] | None:
    """Return (row, number) of the first number that float32 does not hold; None for none."""
    values, unset = column
    for row, value in enumerate(values):
        if unset is None or not unset[row]:
            number = lost_number(value, is_planned=True)
            if number is not None:
                return row, number
    return None


def precision_warning(
    feature: str,
    index: int,
    number: float | int,
    *,
    dtype: str = "float32",
    can_declare: bool = True,
) -> DataWarning:
    """Return the warning that a number is rounded when it is stored.

    Args:
        feature: The name of the feature.
        index: The index of the item.
        number: The number as given.
        dtype: The float type that is stored.
        can_declare: Whether a schema can give the feature another type.
    """
    stored = _stored_as(number, dtype)
    return DataWarning(
        PRECISION_CODE,
        f"feature {feature!r}: {number!r} (item {index:,}) is stored as {stored!r}: "
        f"{_limit_of(dtype)}",
        hint=_hint_for(feature, number, can_declare=can_declare),
        feature=feature,
        index=index,
        value=repr(number),
        stored=repr(stored),
    )


def precision_error(
    feature: str, number: float | int, *, dtype: str = "float32", can_declare: bool = True
) -> FeatureError:
    """Return that warning as the error of ``strict``; the caller adds the item's index and key."""
    return FeatureError(
        f"{number!r} would be stored as {_stored_as(number, dtype)!r}: {_limit_of(dtype)}",
        feature=feature,
        hint=_hint_for(feature, number, can_declare=can_declare),
    )


def _stored_as(number: float | int, dtype: str) -> float:
    with np.errstate(under="ignore"):
        return float(np.float64(number).astype(dtype_named(dtype)))


def _limit_of(dtype: str) -> str:
    return f"{dtype} holds about {round(BITS[dtype] * math.log10(2))} digits"


def _hint_for(feature: str, number: float | int, *, can_declare: bool) -> str:
    if can_declare and float(number) != number:  # a whole number that float64 does not hold
        whole = (
            f"--schema {feature}=int64 keeps whole numbers; " if -(2**63) <= number < 2**63 else ""
        )
        return (
            f"{whole}text keeps all digits (--schema {feature}=string in a table, str() in a map)"
        )
    if can_declare:
        return (
            f"--schema {feature}=float64 keeps every digit (8 bytes a value); int64 suits whole "
            "numbers"
        )
    return "give sw.raw(array) instead: its bytes keep every digit; int suits whole numbers"


class RecordEncoder:
    """Turns features into record bytes, and gathers schema, label counts and warnings.

    Args:
        num_shards: N, for label counts per shard.
        plan: Types fixed before record 0.
        vocabularies: Names of the values of integer features.
        label: The feature whose values are counted; None for ``image/class/label``.
        validator: Checks values against the declared types; None if nothing was declared.
        strict: Whether a warning about an item is an error.
    """

    def __init__(
        self,
        num_shards: int,
        plan: Mapping[str, FeatureType] | None = None,
        vocabularies: Mapping[str, list[str]] | None = None,
        label: str | None = None,
        validator: Validator | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.schema = Schema(plan, vocabularies)
        self._validator = validator or None
        self._prepares = True  # whether `_prepared` has something to do for the next record
        self.labels = LabelCounts(label or DEFAULT_LABEL, num_shards)
        self._kinds = self.schema.kinds or None
        self._float_plan = frozenset(n for n, kind in self.schema.kinds.items() if kind == "float")
        self._label = self.labels.feature
        self._counted: CountedItems | None = None
        self.warnings = DataWarnings()
        self._strict = strict
        self._has_lost = False  # whether an earlier item had a number that was rounded

    @property
    def stats(self) -> RecordStats:
        """The statistics of the records so far; later records change this object."""
        return RecordStats(self.schema.features, self.labels, self.warnings)

    def resume(self, stats: RecordStats, counted: CountedItems) -> None:
        """Start from the types of an earlier attempt.

        Args:
            stats: Statistics of earlier records; their types apply to later records.
            counted: Items whose records are counted there; they are not counted again.
        """
        self.schema.merge(types_of(stats.features))
        self._counted = counted

    def encode(self, item_index: int, features: Any) -> bytes:
        """Return the record of one item.

        Args:
            item_index: The item's index.
            features: A mapping of features; a SequenceExample; or bytes, which are a finished
                record.

        Raises:
            FeatureError: A value, or the item itself, can not be encoded.
            CallableError: The mapping raised when it was read.
            SchemaConflict: A feature's type does not join that of an earlier item.
            RecordTooLarge: The record has 2 GiB or more.
        """
        if isinstance(features, bytes):
            if len(features) > MAX_PAYLOAD_BYTES:
                raise _too_large(features)
            return features
        if isinstance(features, SequenceExample):
            return self._encode_sequence(item_index, features)
        if not isinstance(features, Mapping):
            fields = own_fields(features)
            if fields is None:
                raise _no_mapping(features)
            features = fields
        if type(features) is not dict:
            features = _read(features)
        given = features
        if self._prepares:
            features = self._prepared(item_index, features)
        # Most data is stored exactly, so features are listed only after a number was rounded.
        lost: list[str] | None = [] if self._has_lost else None
        payload = encode_example(features, self._kinds, lost)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise _too_large(payload)
        if self._counted is not None and item_index in self._counted:
            return payload
        if lost is None and PRECISION.has_lost:
            PRECISION.has_lost = False
            lost = list(features)
        if self._validator is not None and self._validator.lost:
            lost = [*(lost or ()), *self._validator.lost]
        warnings = self._warnings_of(item_index, given, lost) if lost else None
        self.schema.observe(item_index, features)
        if warnings:
            self.warnings.merge(warnings)
            self._has_lost = True
        if self._label in features:
            self._count_label(item_index, features[self._label])
        return payload

    def _warnings_of(
        self, item_index: int, features: Mapping[str, Any], names: Iterable[str]
    ) -> list[DataWarning]:
        """Return a warning for each of some features that has a number its type does not hold.

        Args:
            item_index: The index of the item.
            features: The features as given, before the declared types changed them.
            names: The features to check.

        Raises:
            FeatureError: There is a warning, with ``strict``.
        """
        found = []
        declared = {} if self._validator is None else self._validator.float_dtypes
        for name in names:
            if name in features and not self.warnings.has_before(
                PRECISION_CODE, display_name(name), item_index
            ):
                number = lost_number(
                    features[name],
                    is_planned=name in self._float_plan or name in declared,
                    dtype=declared.get(name, "float32"),
                )
                if number is not None:
                    found.append(self._warning_of(name, item_index, number))
        return found

    def _warning_of(self, key: str, item_index: int, number: float) -> DataWarning:
        name, can_declare = display_name(key), not is_sequence_key(key)
        dtype = "float32"
        if self._validator is not None:
            dtype = self._validator.float_dtypes.get(key, dtype)
        if self._strict:
            raise precision_error(name, number, dtype=dtype, can_declare=can_declare)
        return precision_warning(name, item_index, number, dtype=dtype, can_declare=can_declare)

    def _prepared(self, item_index: int, features: dict[str, Any]) -> dict[str, Any]:
        """Return validated features; without declared types only record 0 comes here."""
        self.schema.claim(item_index, of_sequences=False)
        self._prepares = self._validator is not None
        return features if self._validator is None else self._validator.validate(features)

    def _encode_sequence(self, item_index: int, example: SequenceExample) -> bytes:
        if self.schema.plan:
            raise FeatureError(
                "the item is a SequenceExample, and the schema is of Examples",
                hint="leave the schema off, and convert the values in a map",
            )
        payload = encode_sequence_example(example)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise _too_large(payload)
        if self._counted is not None and item_index in self._counted:
            return payload
        self.schema.claim(item_index, of_sequences=True)
        self._prepares = True
        context, lists = example
        steps = {n: None if s is None else Steps(s) for n, s in lists.items()}
        features = by_key(context, steps)
        warnings = self._warnings_of(item_index, features, features) if PRECISION.has_lost else ()
        PRECISION.has_lost = False
        self.schema.observe(item_index, features)
        self.warnings.merge(warnings)
        if self._label in context:
            self._count_label(item_index, context[self._label])
        return payload

    def _count_label(self, item_index: int, value: Any) -> None:
        if value is not None and value is not UNSET:
            self.labels.add(item_index, value)

    @property
    def takes_blocks(self) -> bool:
        """Whether `encode_block` gives the same records as `encode`: nothing is declared."""
        return self._validator is None

    def merge(self, stats: RecordStats) -> None:
        """Add the statistics of other items of the same dataset.

        Raises:
            SchemaConflict: A feature has types that do not join.
        """
        self.schema.merge(stats.features)
        self.labels.merge(stats.labels)
        self.warnings.merge(stats.warnings)

    def encode_block(self, indices: Sequence[int], columns: Mapping[str, Column]) -> list[bytes]:
        """Return the records of many items of planned features."""
        lost: list[str] = []
        # Without columns the number of rows is that of the indices.
        payloads = encode_columns(columns, self._kinds, lost) if columns else [b""] * len(indices)
        if self._counted is not None and indices[0] < self._counted.last:
            new = [row for row, index in enumerate(indices) if index not in self._counted]
            if new:
                self._count([indices[row] for row in new], _select(columns, new), lost)
        else:
            self._count(indices, columns, lost)
        return payloads

    def _count(
        self, indices: Sequence[int], columns: Mapping[str, Column], lost: Sequence[str]
    ) -> None:
        for name in lost:
            if not self.warnings.has_before(PRECISION_CODE, name, indices[0]):
                found = lost_in_column(columns[name])
                if found is not None:
                    row, number = found
                    self.warnings.add(self._warning_of(name, indices[row], number))
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


def _no_mapping(item: Any) -> FeatureError:
    is_sequence = isinstance(item, (tuple, list))
    return FeatureError(
        f"the item is of type {type(item).__name__}, not a mapping of features",
        hint="name its parts: --names image,label; or return a mapping from a map"
        if is_sequence
        else 'return one from a map, as in lambda item: {"x": item}',
    )


def record_encoder(
    num_shards: int,
    declared: DeclaredSchema,
    label: str | None,
    plan: Mapping[str, FeatureType] | None = None,
    vocabularies: Mapping[str, list[str]] | None = None,
    *,
    strict: bool = False,
) -> RecordEncoder:
    """Return an encoder that validates records against a declared schema.

    Args:
        num_shards: N, for label counts per shard.
        declared: The types and class names that the user declared.
        label: The feature whose values are counted; None for ``image/class/label``.
        plan: The types that the source planned.
        vocabularies: The source's names of the values of integer features.
        strict: Whether a warning about an item is an error.
    """
    plan, known = plan or {}, vocabularies or {}
    # A source that planned the declared type gives values of that type.
    checked = {n: t for n, t in declared.types.items() if needs_validation(t) and plan.get(n) != t}
    words = {n: v for n, v in declared.vocabularies.items() if known.get(n) != v}
    return RecordEncoder(
        num_shards,
        {**declared.types, **plan, **checked, **shape_features(checked)},
        {**known, **declared.vocabularies},
        label,
        Validator(checked, {name: len(names) for name, names in words.items()}),
        strict=strict,
    )


def _too_large(payload: bytes) -> RecordTooLarge:
    return RecordTooLarge(
        f"a record of {len(payload):,} bytes is over protobuf's limit of 2 GiB",
        hint="store large arrays in several records, or compressed",
    )


def _select(columns: Mapping[str, Column], rows: Sequence[int]) -> dict[str, Column]:
    """Return some rows of columns."""
    selected = {}
    for name, (values, unset) in columns.items():
        chosen = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        selected[name] = Column(chosen, None if unset is None else unset[rows])
    return selected


def _count_none(values: Sequence[Any]) -> int:
    return list(map(type, values)).count(type(None))  # count(None) would compare arrays


def _read(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as a dict, read once: each access may decode the value again."""
    try:
        return dict(features)
    except Exception as error:
        raise CallableError(raised_phrase("reading the item's features", error)) from error


def raised_phrase(what: str, error: BaseException) -> str:
    """Return the phrase that the user's code raised an error."""
    try:
        text = reason(error)
    except Exception:  # noqa: BLE001 - the exception's own __str__ failed
        text = ""
    return f"{what} raised {type(error).__name__}" + (f": {text}" if text else "")


ItemResult = bytes | None | DataError
"""The record of an item, None if the map returned SKIP, or an error that is skipped."""


class ItemEncoder:
    """Loads, maps and encodes the items of a source.

    Args:
        source: The source of the items.
        options: The map, the label, and the declared types.
        num_shards: N.
        worker: The worker that the user's code sees; its slot has the current item.
        timer: Measures the time of each stage.
        skip_errors: Whether an item's error is returned instead of its record, or raised.
        strict: Whether a warning about an item is an error.

    Attributes:
        counted_to: The statistics include the records of items before this index.
        finished_record: Returns the record of an item that is written already, or None.
    """

    finished_record: Callable[[int], bytes | None] | None = None

    def __init__(
        self,
        source: Source,
        options: DatasetOptions,
        num_shards: int,
        worker: Worker | None = None,
        timer: StageTimer | None = None,
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
        self._timer = timer or StageTimer()
        # After a map the source's plan does not apply. A source that takes declared types has them
        # in its plan already, except those that only a record's values can be checked against.
        is_mapped = options.map is not None
        default_label = None if options.tfds is None else _TFDS_LABEL
        self.encoder = record_encoder(
            num_shards,
            DeclaredSchema(options.schema, options.vocabularies),
            options.label or (None if is_mapped else source.label) or default_label,
            {} if is_mapped else source.plan,
            {} if is_mapped else source.vocabularies,
            strict=strict,
        )

    def clear_current_item(self) -> None:
        """Forget the current item, so later errors are not attributed to it."""
        self.worker.slot[0] = -1

    def records(self, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, ItemResult]]:
        """Yield (index, result) of every item.

        Args:
            items: Index and descriptor of each item, in order of index.

        Raises:
            ShardwriterError: With the item's index and key.
        """
        is_unchanged = self._map is None and self._edit is None
        takes_blocks = is_unchanged and self.encoder.takes_blocks and self.finished_record is None
        if takes_blocks and isinstance(self._source, ColumnSource):
            yield from self._in_blocks(self._source, iter(items))
            return
        timer = self._timer
        load: Load = self._source.load
        if isinstance(self._source, FileSource):
            ready: Iterable[tuple[int, Item, Load]] = read_ahead(self._source, load, items)
        else:
            ready = ((item_index, item, load) for item_index, item in items)
        for item_index, item, load in ready:
            is_timed = timer.start()
            try:
                result: ItemResult = self.record(
                    item_index, item, load, timer if is_timed else None
                )
            except DataError as error:
                result = self._skipped(error)
            self.counted_to = item_index + 1
            yield item_index, result
            if is_timed:
                timer.lap("write")
                timer.stop()

    def _skipped(self, error: DataError) -> DataError:
        """Return an error that may be skipped; raise any other."""
        # These concern the whole dataset; the item that raises them is arbitrary.
        is_of_dataset = isinstance(error, (SchemaConflict, SourceChanged, ManifestError))
        if is_of_dataset or not self._skip_errors:
            raise error
        return error

    def record(
        self,
        item_index: int,
        item: Item,
        load: Load | None = None,
        timer: StageTimer | None = None,
    ) -> bytes | None:
        """Return the record of one item; None if the map returned SKIP."""
        self.worker.slot[0] = item_index
        if self.finished_record is not None:
            record = self.finished_record(item_index)
            if record is not None:
                return record
        token = CURRENT.set(self.worker)
        try:
            features = self._load(load or self._source.load, item)
            if timer is not None:
                timer.lap("read")
            if isinstance(self._source, RecordSource) and self._map is not None:
                features = self._source.decode(features)
            if self._edit is not None:
                features = self._edit(features)
                if timer is not None:
                    timer.lap("encode")
            if self._map is not None:
                features = apply_map(self._map, features)
                if timer is not None:
                    timer.lap("map")
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
        if timer is not None:
            timer.lap("encode")
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
    ) -> Iterator[tuple[int, ItemResult]]:
        timer = self._timer
        while block := list(islice(items, source.block_items)):
            timer.start_block()
            indices, descriptors = zip(*block, strict=True)
            self.worker.slot[0] = indices[0]
            try:
                columns = source.load_columns(descriptors)
                timer.lap("read")
                payloads = self.encoder.encode_block(indices, columns)
                timer.lap("encode")
            except Exception as error:
                # Encode the rows one by one to find those that are wrong.
                num_errors = 0
                for item_index, item in block:
                    try:
                        result: ItemResult = self.record(item_index, item)
                    except DataError as row_error:
                        result = self._skipped(row_error)
                        num_errors += 1
                    self.counted_to = item_index + 1
                    yield item_index, result
                if num_errors:
                    continue
                if isinstance(error, ShardwriterError):
                    error.locate(index=indices[0])
                raise
            self.counted_to = indices[-1] + 1
            yield from zip(indices, payloads, strict=True)
            timer.lap("write")
            timer.stop()


def apply_map(function: Callable[[Any], Any], features: Any) -> Any:
    """Return the result of a map for an item's features.

    Raises:
        CallableError: The map raised; a ShardwriterError that it raises passes through.
        FeatureError: The map returned None.
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
