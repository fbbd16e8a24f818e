"""The schema: the features of all records, with their types and how often they were there.

Types are joined (:mod:`shardwriter.schema.feature_types`). A *plan* is the same thing fixed
before record 0; then values are converted to its kinds, and inference only describes and refuses.
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

_SEEN_LIMIT: Final = 4096  # signatures remembered of one feature


@dataclass
class FeatureSummary:
    """A feature's type and how often it was there."""

    type: FeatureType
    present: int = 0
    unset: int = 0
    vocabulary: list[str] | None = None
    first_item: int | None = field(default=None, compare=False)  # gave the type its present kind

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
        """Read a feature's entry in a manifest."""
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
        """Return the entry with what a manifest does not tell: where the type comes from."""
        return {**self.to_json(), "first_item": self.first_item}


def _dtype_of(kind: Kind | None, dtype: str | None) -> str | None:
    """Return what the values of a feature are; manifests once said float64 of float32."""
    return float_dtype(dtype) if kind == "float" and dtype is not None else dtype


class Schema:
    """The features seen so far, and those that a plan fixed.

    Args:
        plan: Types known before record 0. Kinds are binding: see :attr:`kinds`.
        vocabularies: Names of the values of integer features, by feature.

    Attributes:
        on_widen: Told of the features whose type has widened with a record, when that record was
            joined in.
    """

    on_widen: Callable[[Mapping[str, FeatureSummary]], None] | None = None

    def __init__(
        self,
        plan: Mapping[str, FeatureType] | None = None,
        vocabularies: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.plan = dict(plan or {})
        words = vocabularies or {}
        self.features: dict[str, FeatureSummary] = {
            name: FeatureSummary(planned, vocabulary=words.get(name))
            for name, planned in self.plan.items()
        }
        self._seen: dict[str, set[object]] = {name: set() for name in self.plan}
        self._of_sequences: bool | None = None

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kinds that the plan binds values to."""
        return {name: t.kind for name, t in self.plan.items() if t.kind is not None}

    def claim(self, item_index: int, *, of_sequences: bool) -> None:
        """Note what records are: all of them Examples, or all of them SequenceExamples.

        Raises:
            SchemaConflict: Others are of the other kind.
        """
        if self._of_sequences is not of_sequences:
            for name, summary in self.features.items():
                is_known = summary.present or summary.type != FeatureType()
                if is_known and is_sequence_key(name) is not of_sequences:
                    here = FeatureSummary(FeatureType(), first_item=item_index)
                    raise _mixed({"": here}, {name: summary}, here_is_sequence=of_sequences)
            self._of_sequences = of_sequences

    def observe(self, item_index: int, features: Mapping[str, Any]) -> None:
        """Join one record's features in. A record that raises leaves no trace.

        Raises:
            SchemaConflict: A feature has a type that does not go with that of an earlier item.
            FeatureError: A value has no place in an Example.
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
                # Most records repeat the types of the one before: those cost a look-up.
                look = signature(value)
                if summary.type.encoding == "image" and look is bytes:
                    look = image_format(value[:16])
                seen = self._seen[name]
                if look is not None and look in seen:
                    continue
                before = summary.type, summary.first_item
                self._join(name, summary, value, item_index)
                if summary.type is not before[0]:
                    widened.append((name, *before))
                if look is not None:
                    if len(seen) >= _SEEN_LIMIT:
                        seen.clear()
                    seen.add(look)
        except ShardwriterError as error:
            self._forget(features, error.feature, widened)
            if error.feature is not None:
                error.feature = display_name(error.feature)
            raise
        if widened and self.on_widen is not None:
            self.on_widen({name: self.features[name] for name, *_ in widened})

    def _forget(
        self,
        features: Mapping[str, Any],
        failed: str | None,
        widened: list[tuple[str, FeatureType, int | None]],
    ) -> None:
        """Take back what a record counted and widened before its feature ``failed``."""
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
        """Count a planned feature over many records at once."""
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
        # A plan may leave the shape open: then it is an item's.
        if summary.first_item is None and (planned is None or planned.shape is None):
            summary.first_item = item_index
        summary.type = joined

    def _describe(self, name: str, value: Any) -> FeatureType:
        planned = self.plan.get(name)
        if planned is None or planned.kind is None:
            return describe(name, value)
        return as_planned(describe(name, value, planned.kind), planned, value)

    def merge(self, features: Mapping[str, FeatureSummary]) -> None:
        """Join in what was learnt from other items; any order and division gives the same.

        Raises:
            SchemaConflict: A feature has types that do not go together, or some are of Examples
                and some of SequenceExamples; names an item of each.
        """
        theirs_are = {is_sequence_key(name) for name in features}
        if len(theirs_are | {is_sequence_key(name) for name in self.features}) > 1:
            of_sequences = True in theirs_are
            raise _mixed(features, self.features, here_is_sequence=of_sequences)
        for name, theirs in features.items():
            mine = self.features.setdefault(name, FeatureSummary(FeatureType()))
            self._seen.setdefault(name, set()).clear()
            try:
                joined = mine.type.join(theirs.type)
            except ValueError:
                conflict = _conflict(name, mine, theirs)
                conflict.feature = display_name(name)
                raise conflict from None
            firsts = [i for i in (mine.first_item, theirs.first_item) if i is not None]
            mine.first_item = min(firsts, default=None)
            mine.type = joined
            mine.present += theirs.present
            mine.unset += theirs.unset
            mine.vocabulary = mine.vocabulary or theirs.vocabulary

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's ``schema``; that of SequenceExamples has ``feature_lists`` too."""
        entries = {name: self.features[name].to_json() for name in sorted(self.features)}
        if not any(map(is_sequence_key, entries)):
            return {"features": entries}
        return {"feature_lists": list_part(entries), "features": context_part(entries)}


def _conflict(name: str, a: FeatureSummary, b: FeatureSummary) -> SchemaConflict:
    """Return the error for two types that do not go together, seen from the later item."""
    first, here = sorted((a, b), key=lambda s: -1 if s.first_item is None else s.first_item)
    try:
        first.type.join(here.type)
    except ValueError as error:
        conflict = error
    place = "the plan" if first.first_item is None else f"item {first.first_item}"
    return SchemaConflict(
        f"{_phrase(here.type)} here, {_phrase(first.type)} in {place} ({conflict})",
        hint=_remedy(display_name(name), here.type, first.type),
        feature=name,
        index=here.first_item,
    )


def _mixed(
    here: Mapping[str, FeatureSummary],
    there: Mapping[str, FeatureSummary],
    *,
    here_is_sequence: bool,
) -> SchemaConflict:
    """Return the error for Examples and SequenceExamples in one dataset, seen from the later."""
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
        hint="a dataset holds records of one kind: make them alike with a map, or write two",
        index=items[0],
    )


def _phrase(feature_type: FeatureType) -> str:
    shape = "" if not feature_type.shape else f" of shape {list(feature_type.shape)}"
    is_raw = feature_type.encoding == "raw"
    return f"{f'raw {feature_type.dtype}' if is_raw else feature_type.kind}{shape}"


def _remedy(name: str, a: FeatureType, b: FeatureType) -> str:
    kinds = {a.kind, b.kind}
    if kinds == {"int64", "float"}:
        return f"make {name!r} a float in every item: with a map, or --schema {name}=float"
    if len(kinds) == 2 or a.encoding != b.encoding or (a.encoding == "raw" and a.dtype != b.dtype):
        return f"give {name!r} one type in every item, with a map"
    advice = f"give {name!r} one shape in every item: pad or resize it in a map"
    shapes = a.shape or (), b.shape or ()
    if len(shapes[0]) != len(shapes[1]):
        return advice
    sizes = tuple(m if m == n else None for m, n in zip(*shapes, strict=True))
    dtype = a.dtype if a.dtype == b.dtype else WIDEST[a.kind or "bytes"]
    declared = type_text(FeatureType(a.kind, dtype, sizes, a.encoding))
    return f"{advice}; or declare that it varies, and each record has its shape: --schema " + (
        f"'{name}={declared}'"
    )


def schema_from_json(data: Mapping[str, Any], part: str = "features") -> dict[str, FeatureSummary]:
    """Read a manifest's ``schema``: the features, or the ``feature_lists`` of SequenceExamples."""
    features = cast("Mapping[str, Mapping[str, Any]]", data.get(part, {}))
    return {name: FeatureSummary.from_json(entry) for name, entry in features.items()}


def record_stats_from_json(data: Mapping[str, Any]) -> dict[str, FeatureSummary]:
    """Read all of a manifest's ``schema``, by key, as it is gathered."""
    features = schema_from_json(data)
    if "feature_lists" not in data:
        return features
    return by_key(features, schema_from_json(data, "feature_lists"))
