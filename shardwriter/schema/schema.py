"""The schema of a dataset: its features with their types and counts.

Types of records are joined (:mod:`shardwriter.schema.feature_types`). A *plan* has types known
before the first record: values are converted to its kinds, and a value of another kind is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from shardwriter.errors import SchemaConflict, ShardwriterError
from shardwriter.formats import (
    UNSET,
    Kind,
    by_key,
    context_part,
    display_name,
    image_format,
    is_sequence_key,
    list_part,
)
from shardwriter.schema.feature_types import (
    WIDEST,
    FeatureType,
    as_planned,
    describe,
    float_dtype,
    signature,
    type_text,
)

_SEEN_LIMIT: Final = 4096  # cached signatures per feature


@dataclass
class FeatureSummary:
    """A feature's type and counts.

    Attributes:
        type: The joined type of its values.
        present: Records that have the feature.
        unset: Of these, records with no value in it.
        vocabulary: Names of the values of an integer feature.
        first_item: Index of the item from which the type has its kind.
    """

    type: FeatureType
    present: int = 0
    unset: int = 0
    vocabulary: list[str] | None = None
    first_item: int | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the feature's entry in the manifest."""
        entry: dict[str, Any] = {
            "dtype": _dtype_of(self.type.kind, self.type.dtype),
            "encoding": self.type.encoding,
            "kind": self.type.kind,
            "present": self.present,
            "shape": None if self.type.shape is None else list(self.type.shape),
            "unset": self.unset,
        }
        if self.type.encoding == "image" or self.type.format is not None:
            entry["format"] = self.type.format
        if self.vocabulary is not None:
            entry["vocabulary"] = self.vocabulary
        return entry

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> FeatureSummary:
        """Return the summary from a feature's entry in a manifest."""
        shape = entry.get("shape")
        feature_type = FeatureType(
            entry.get("kind"),
            _dtype_of(entry.get("kind"), entry.get("dtype")),
            None if shape is None else tuple(shape),
            entry.get("encoding", "list"),
            entry.get("format"),
        )
        return cls(
            feature_type,
            entry["present"],
            entry["unset"],
            entry.get("vocabulary"),
            entry.get("first_item"),
        )

    def to_state(self) -> dict[str, Any]:
        """Return the manifest's entry with ``first_item``, which a manifest does not have."""
        return {**self.to_json(), "first_item": self.first_item}


def _dtype_of(kind: Kind | None, dtype: str | None) -> str | None:
    """Return the dtype of a feature's values; older manifests say float64 for float32."""
    return float_dtype(dtype) if kind == "float" and dtype is not None else dtype


class Schema:
    """The features of the records observed so far, and those of a plan.

    Args:
        plan: Types known before the first record. Their kinds are binding, see :attr:`kinds`.
        vocabularies: Names of the values of integer features, by feature.

    Attributes:
        features: Summaries by key (see :mod:`shardwriter.formats.sequence_example`).
        on_widen: Called after a record with the features whose types it has widened.
    """

    on_widen: Callable[[Mapping[str, FeatureSummary]], None] | None = None

    def __init__(
        self,
        plan: Mapping[str, FeatureType] | None = None,
        vocabularies: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.plan = dict(plan or {})
        names = vocabularies or {}
        self.features: dict[str, FeatureSummary] = {
            name: FeatureSummary(planned, vocabulary=names.get(name))
            for name, planned in self.plan.items()
        }
        self._seen: dict[str, set[object]] = {name: set() for name in self.plan}
        self._of_sequences: bool | None = None

    @property
    def kinds(self) -> dict[str, Kind]:
        """The planned kinds, by feature."""
        return {name: t.kind for name, t in self.plan.items() if t.kind is not None}

    def claim(self, item_index: int, *, of_sequences: bool) -> None:
        """Record whether the records are Examples or SequenceExamples.

        Raises:
            SchemaConflict: Earlier records are of the other kind.
        """
        if self._of_sequences is not of_sequences:
            for name, summary in self.features.items():
                is_known = summary.present or summary.type != FeatureType()
                if is_known and is_sequence_key(name) is not of_sequences:
                    here = FeatureSummary(FeatureType(), first_item=item_index)
                    raise _mixed({"": here}, {name: summary}, here_is_sequence=of_sequences)
            self._of_sequences = of_sequences

    def observe(self, item_index: int, features: Mapping[str, Any]) -> None:
        """Join the features of one record into the schema; nothing changes if it raises.

        Raises:
            SchemaConflict: A feature's type conflicts with that of an earlier item.
            FeatureError: An Example can not store a value.
        """
        widened: list[tuple[str, FeatureType, int | None]] = []
        try:
            for name, value in features.items():
                if value is None:
                    continue
                summary = self.features.get(name)
                if summary is None:
                    summary = self.features[name] = FeatureSummary(FeatureType())
                    self._seen[name] = set()
                summary.present += 1
                if value is UNSET:
                    summary.unset += 1
                    continue
                # Most records repeat known types, which then cost one lookup.
                key = signature(value)
                if summary.type.encoding == "image" and key is bytes:
                    key = image_format(value[:16])
                seen = self._seen[name]
                if key is not None and key in seen:
                    continue
                before = summary.type, summary.first_item
                self._join(name, summary, value, item_index)
                if summary.type is not before[0]:
                    widened.append((name, *before))
                if key is not None:
                    if len(seen) >= _SEEN_LIMIT:
                        seen.clear()
                    seen.add(key)
        except ShardwriterError as error:
            self._roll_back(features, error.feature, widened)
            if error.feature is not None:
                error.feature = display_name(error.feature)
            raise
        if widened and self.on_widen is not None:
            self.on_widen({name: self.features[name] for name, *_ in widened})

    def _roll_back(
        self,
        features: Mapping[str, Any],
        failed: str | None,
        widened: list[tuple[str, FeatureType, int | None]],
    ) -> None:
        """Undo the counts and types that a record changed before its feature ``failed``."""
        for name, feature_type, first_item in reversed(widened):
            summary = self.features[name]
            summary.type, summary.first_item = feature_type, first_item
            self._seen[name].clear()
        for name, value in features.items():
            if value is not None:
                summary = self.features[name]
                summary.present -= 1
                if name == failed:
                    unset = False
                else:
                    unset = value is UNSET or self._describe(name, value).kind is None
                summary.unset -= unset
                is_known = name in self.plan or summary.type != FeatureType()
                if not summary.present and not is_known:
                    del self.features[name], self._seen[name]
            if name == failed:
                return

    def observe_column(self, name: str, num_present: int, num_unset: int) -> None:
        """Add the counts of a planned feature in many records."""
        summary = self.features[name]
        summary.present += num_present
        summary.unset += num_unset

    def _join(self, name: str, summary: FeatureSummary, value: Any, item_index: int) -> None:
        found = self._describe(name, value)
        planned = self.plan.get(name)
        if found.kind is None:
            summary.unset += 1
            return
        try:
            joined = summary.type.join(found)
        except ValueError:
            here = FeatureSummary(found, first_item=item_index)
            raise _conflict(name, summary, here) from None
        # If the plan leaves the shape open, the shape comes from an item.
        if summary.first_item is None and (planned is None or planned.shape is None):
            summary.first_item = item_index
        summary.type = joined

    def _describe(self, name: str, value: Any) -> FeatureType:
        planned = self.plan.get(name)
        if planned is None or planned.kind is None:
            return describe(name, value)
        return as_planned(describe(name, value, planned.kind), planned, value)

    def merge(self, features: Mapping[str, FeatureSummary]) -> None:
        """Join the features of other items into the schema, independent of order and partition.

        Raises:
            SchemaConflict: A feature has conflicting types, or some features are of Examples and
                some of SequenceExamples; the message has an item of each.
        """
        record_types = {is_sequence_key(name) for name in features}
        if len(record_types | {is_sequence_key(name) for name in self.features}) > 1:
            of_sequences = True in record_types
            raise _mixed(features, self.features, here_is_sequence=of_sequences)
        for name, other in features.items():
            own = self.features.setdefault(name, FeatureSummary(FeatureType()))
            self._seen.setdefault(name, set()).clear()
            try:
                joined = own.type.join(other.type)
            except ValueError:
                conflict = _conflict(name, own, other)
                conflict.feature = display_name(name)
                raise conflict from None
            firsts = [i for i in (own.first_item, other.first_item) if i is not None]
            own.first_item = min(firsts, default=None)
            own.type = joined
            own.present += other.present
            own.unset += other.unset
            own.vocabulary = own.vocabulary or other.vocabulary

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's ``schema``; for SequenceExamples with ``feature_lists``."""
        entries = {name: self.features[name].to_json() for name in sorted(self.features)}
        if not any(map(is_sequence_key, entries)):
            return {"features": entries}
        return {"feature_lists": list_part(entries), "features": context_part(entries)}


def _conflict(name: str, a: FeatureSummary, b: FeatureSummary) -> SchemaConflict:
    """Return the error for two conflicting types, located at the later item."""
    first, here = sorted((a, b), key=lambda s: -1 if s.first_item is None else s.first_item)
    try:
        first.type.join(here.type)
    except ValueError as error:
        conflict = error
    place = "the schema" if first.first_item is None else f"item {first.first_item}"
    return SchemaConflict(
        f"{_phrase(here.type)} here, {_phrase(first.type)} in {place} ({conflict})",
        hint=_conflict_hint(display_name(name), here.type, first.type),
        feature=name,
        index=here.first_item,
    )


def _mixed(
    here: Mapping[str, FeatureSummary],
    there: Mapping[str, FeatureSummary],
    *,
    here_is_sequence: bool,
) -> SchemaConflict:
    """Return the error for Examples and SequenceExamples in one dataset, at the later item."""
    items = [
        min((s.first_item for s in some.values() if s.first_item is not None), default=None)
        for some in (here, there)
    ]
    kinds = ["an Example", "a SequenceExample"]
    if here_is_sequence:
        kinds.reverse()
    if items[0] is not None and items[1] is not None and items[0] < items[1]:
        items.reverse()
        kinds.reverse()
    place = "other items" if items[1] is None else f"item {items[1]}"
    return SchemaConflict(
        f"{kinds[0]} here, {kinds[1]} in {place}",
        hint="a dataset has records of one type: convert some in a map, or write two datasets",
        index=items[0],
    )


def _phrase(feature_type: FeatureType) -> str:
    shape = "" if not feature_type.shape else f" of shape {list(feature_type.shape)}"
    is_raw = feature_type.encoding == "raw"
    return f"{f'raw {feature_type.dtype}' if is_raw else feature_type.kind}{shape}"


def _conflict_hint(name: str, a: FeatureType, b: FeatureType) -> str:
    kinds = {a.kind, b.kind}
    if kinds == {"int64", "float"}:
        return f"use --schema {name}=float, or make {name!r} a float in every item with a map"
    if len(kinds) == 2 or a.encoding != b.encoding or (a.encoding == "raw" and a.dtype != b.dtype):
        return f"give {name!r} one type in every item, with a map"
    hint = f"give {name!r} one shape in every item: pad or resize it in a map"
    shapes = a.shape or (), b.shape or ()
    if len(shapes[0]) != len(shapes[1]):
        return hint
    sizes = tuple(m if m == n else None for m, n in zip(*shapes, strict=True))
    dtype = a.dtype if a.dtype == b.dtype else WIDEST[a.kind or "bytes"]
    declared = type_text(FeatureType(a.kind, dtype, sizes, a.encoding))
    return f"{hint}; or declare that it varies: --schema '{name}={declared}'"


def schema_from_json(data: Mapping[str, Any], part: str = "features") -> dict[str, FeatureSummary]:
    """Return the features of a manifest's ``schema``, or the ``feature_lists``, by name."""
    features = cast("Mapping[str, Mapping[str, Any]]", data.get(part, {}))
    return {name: FeatureSummary.from_json(entry) for name, entry in features.items()}


def record_stats_from_json(data: Mapping[str, Any]) -> dict[str, FeatureSummary]:
    """Return all features of a manifest's ``schema`` by key, as `Schema.features` has them."""
    features = schema_from_json(data)
    if "feature_lists" not in data:
        return features
    return by_key(features, schema_from_json(data, "feature_lists"))
