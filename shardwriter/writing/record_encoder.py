"""From features to record bytes: encoding, and what is learnt of the records on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shardwriter.errors import CallableError, DataWarning, FeatureError, RecordTooLarge, reason
from shardwriter.formats.example import UNSET, encode_example
from shardwriter.formats.example_columns import Column, encode_columns
from shardwriter.formats.float32 import NOTED
from shardwriter.formats.sequence_example import SequenceExample, encode_sequence_example
from shardwriter.formats.sequence_names import is_of_sequences, keyed, spoken
from shardwriter.formats.tfrecord import MAX_PAYLOAD_BYTES
from shardwriter.schema.bound_values import Binder, must_bind
from shardwriter.schema.data_warnings import DataWarnings
from shardwriter.schema.declared import Declared
from shardwriter.schema.feature_types import FeatureType, Steps
from shardwriter.schema.fields import own_fields
from shardwriter.schema.labels import LabelCounts
from shardwriter.schema.record_stats import Learnt, types_of
from shardwriter.schema.schema import Schema
from shardwriter.schema.shape_features import shape_features
from shardwriter.writing.float_precision import (
    CODE,
    lost_in_column,
    lost_number,
    precision_error,
    precision_warning,
)
from shardwriter.writing.resume_state import Counted

DEFAULT_LABEL: Final = "image/class/label"


class RecordEncoder:
    """Turns features into record bytes, and keeps the schema and the label counts.

    Args:
        num_shards: N, for label counts per shard.
        plan: Types fixed before record 0.
        vocabularies: Names of the values of integer features.
        label: The feature whose values are counted; None for ``image/class/label``.
        binder: Holds values to what a person declared; None where nothing was.
        strict: Whether a warning about an item is its error.
    """

    def __init__(
        self,
        num_shards: int,
        plan: Mapping[str, FeatureType] | None = None,
        vocabularies: Mapping[str, list[str]] | None = None,
        label: str | None = None,
        binder: Binder | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.schema = Schema(plan, vocabularies)
        self._binder = binder or None
        self._prepares = True
        self.labels = LabelCounts(label or DEFAULT_LABEL, num_shards)
        self._kinds = self.schema.kinds or None
        self._float_plan = frozenset(n for n, kind in self.schema.kinds.items() if kind == "float")
        self._label = self.labels.feature
        self._counted: Counted | None = None
        self.warnings = DataWarnings()
        self._strict = strict
        self._has_lost = False  # whether a number was lost in an item of a mapping before

    @property
    def learnt(self) -> Learnt:
        """What was learnt so far; it goes on growing."""
        return Learnt(self.schema.features, self.labels, self.warnings)

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
            features: A mapping of features; a SequenceExample; or bytes, which are a finished
                record.

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
        # Which features lose digits is asked for once that has happened: most data never does.
        lost: list[str] | None = [] if self._has_lost else None
        payload = encode_example(features, self._kinds, lost)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise _too_large(payload)
        if self._counted is not None and item_index in self._counted:
            return payload
        if lost is None and NOTED.has_lost:
            NOTED.has_lost = False
            lost = list(features)
        if self._binder is not None and self._binder.lost:
            lost = [*(lost or ()), *self._binder.lost]
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
        """Return a warning for each of these features that has a number its type does not hold.

        Args:
            item_index: Of the item.
            features: As they are given: what was declared may have changed them since.
            names: Of the features.

        Raises:
            FeatureError: There is one, with ``strict``.
        """
        found = []
        declared = {} if self._binder is None else self._binder.float_dtypes
        for name in names:
            if name in features and not self.warnings.has_before(CODE, spoken(name), item_index):
                number = lost_number(
                    features[name],
                    is_planned=name in self._float_plan or name in declared,
                    dtype=declared.get(name, "float32"),
                )
                if number is not None:
                    found.append(self._warning_of(name, item_index, number))
        return found

    def _warning_of(self, key: str, item_index: int, number: float) -> DataWarning:
        name, can_declare = spoken(key), not is_of_sequences(key)
        dtype = "float32" if self._binder is None else self._binder.float_dtypes.get(key, "float32")
        if self._strict:
            raise precision_error(name, number, dtype=dtype, can_declare=can_declare)
        return precision_warning(name, item_index, number, dtype=dtype, can_declare=can_declare)

    def _prepared(self, item_index: int, features: dict[str, Any]) -> dict[str, Any]:
        """Do what most records need not: those behind the first one, with nothing declared."""
        self.schema.claim(item_index, of_sequences=False)
        self._prepares = self._binder is not None
        return features if self._binder is None else self._binder.bind(features)

    def _encode_sequence(self, item_index: int, example: SequenceExample) -> bytes:
        if self.schema.plan:
            raise FeatureError(
                "the item is a SequenceExample, and the schema is that of Examples",
                hint="leave the schema off, and give the values their types in a map",
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
        features = keyed(context, steps)
        warnings = self._warnings_of(item_index, features, features) if NOTED.has_lost else ()
        NOTED.has_lost = False
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
        """Whether `encode_block` gives what `encode` does: where nothing was declared."""
        return self._binder is None

    def merge(self, learnt: Learnt) -> None:
        """Add what another encoder has learnt from other items of the same dataset.

        Raises:
            SchemaConflict: A feature has types that do not go together.
        """
        self.schema.merge(learnt.features)
        self.labels.merge(learnt.labels)
        self.warnings.merge(learnt.warnings)

    def encode_block(self, indices: Sequence[int], columns: Mapping[str, Column]) -> list[bytes]:
        """Encode many items of planned features at once."""
        lost: list[str] = []
        # No column says how many rows there are.
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
            if not self.warnings.has_before(CODE, name, indices[0]):
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
        hint="name its parts: --names image,label; or make a mapping of it in a map"
        if is_sequence
        else 'turn it into one with a map, as in lambda item: {"x": item}',
    )


def record_encoder(
    num_shards: int,
    declared: Declared,
    label: str | None,
    plan: Mapping[str, FeatureType] | None = None,
    vocabularies: Mapping[str, list[str]] | None = None,
    *,
    strict: bool = False,
) -> RecordEncoder:
    """Return an encoder whose records are held to what was declared.

    Args:
        num_shards: N, for label counts per shard.
        declared: What a person declared.
        label: The feature whose values are counted; None for ``image/class/label``.
        plan: What the source has planned.
        vocabularies: The source's names of the values of integer features.
        strict: Whether a warning about an item is its error.
    """
    plan, known = plan or {}, vocabularies or {}
    # What a source gives as it was declared need not be looked at again.
    bound = {n: t for n, t in declared.types.items() if must_bind(t) and plan.get(n) != t}
    words = {n: v for n, v in declared.vocabularies.items() if known.get(n) != v}
    return RecordEncoder(
        num_shards,
        {**declared.types, **plan, **bound, **shape_features(bound)},
        {**known, **declared.vocabularies},
        label,
        Binder(bound, {name: len(names) for name, names in words.items()}),
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
        raise CallableError(raised_phrase("reading the item's features", error)) from error


def raised_phrase(what: str, error: BaseException) -> str:
    """Say that the user's code raised an error."""
    try:
        text = reason(error)
    except Exception:  # noqa: BLE001 - of the user's own making
        text = ""
    return f"{what} raised {type(error).__name__}" + (f": {text}" if text else "")
