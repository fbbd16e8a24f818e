"""The schema: what a feature is, in every record.

A feature's type is joined over the records that have it. The join is commutative, associative and
idempotent, so any order and any division of the records gives the same schema:

=========  ====================================================================================
kind       unset < int64, float, bytes < conflict (an error: int and float in one feature)
dtype      equal, else the widest of the kind
shape      equal, else one dimension becomes null; a scalar and a list become [null]
format     (images) equal, else "image"
=========  ====================================================================================

A *plan* is the same thing fixed before record 0; then values are converted to its kinds, and
inference only describes and refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast

import numpy as np

from shardwriter.errors import FeatureError, OptionError, SchemaConflict, ShardwriterError
from shardwriter.example import UNSET, Kind
from shardwriter.images import image_format

Encoding = Literal["list", "raw", "image"]
Shape = tuple[int | None, ...]

_WIDEST: Final[dict[str, str]] = {"int64": "int64", "float": "float64", "bytes": "bytes"}
_SEEN_LIMIT: Final = 4096  # signatures remembered of one feature


@dataclass(frozen=True)
class FeatureType:
    """The type of a feature.

    Attributes:
        kind: The list of ``tf.train.Feature`` that holds it; None while only unset ones were seen.
        dtype: A numpy name, ``"bytes"`` or ``"string"``.
        shape: ``()`` for a scalar; None for the one dimension that varies.
        encoding: ``list`` (one list entry a value), ``raw`` (C-order little-endian bytes of an
            array) or ``image`` (an image file's bytes).
        format: Of an image: ``jpeg``, ``png``, ...; ``image`` when they differ.
    """

    kind: Kind | None = None
    dtype: str | None = None
    shape: Shape | None = None
    encoding: Encoding = "list"
    format: str | None = None

    def join(self, other: FeatureType) -> FeatureType:
        """Return the least type that covers both.

        Raises:
            ValueError: There is none; the message says what differs.
        """
        if self == other or other.kind is None:
            return self
        if self.kind is None:
            return other
        if self.kind != other.kind:
            raise ValueError(f"{self.kind} and {other.kind}")
        if self.encoding != other.encoding:
            raise ValueError(f"encodings {self.encoding} and {other.encoding}")
        return FeatureType(
            self.kind,
            self.dtype if self.dtype == other.dtype else _WIDEST[self.kind],
            _join_shapes(self.shape, other.shape),
            self.encoding,
            _join_formats(self.format, other.format),
        )


def _join_formats(a: str | None, b: str | None) -> str | None:
    if a is None or b is None:
        return a or b
    return a if a == b else "image"


def _join_shapes(a: Shape | None, b: Shape | None) -> Shape | None:
    if a == b or b is None:
        return a
    if a is None:
        return b
    if len(a) + len(b) == 1 or (len(a) == len(b) == 1):
        return (None,)
    if len(a) != len(b):
        raise ValueError(f"shapes {list(a)} and {list(b)}")
    joined = tuple(m if m == n else None for m, n in zip(a, b, strict=True))
    # Two are null only where that was declared: then the declared shape covers the other.
    if joined.count(None) > 1 and joined not in (a, b):
        raise ValueError(f"shapes {list(a)} and {list(b)} (two dimensions vary)")
    return joined


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
            "dtype": self.type.dtype,
            "encoding": self.type.encoding,
            "kind": self.type.kind,
            "present": self.present,
            "shape": None if self.type.shape is None else list(self.type.shape),
            "unset": self.unset,
        }
        if self.type.encoding == "image":
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
            entry.get("dtype"),
            None if shape is None else tuple(shape),
            entry.get("encoding", "list"),
            entry.get("format"),
        )
        return cls(feature_type, entry["present"], entry["unset"], entry.get("vocabulary"))


class Schema:
    """The features seen so far, and those that a plan fixed.

    Args:
        plan: Types known before record 0. Kinds are binding: see :attr:`kinds`.
        vocabularies: Names of the values of integer features, by feature.

    Attributes:
        on_widen: Told of the entries of features whose type has widened with a record, when that
            record was joined in.
    """

    on_widen: Callable[[dict[str, Any]], None] | None = None

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

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kinds that the plan binds values to."""
        return {name: t.kind for name, t in self.plan.items() if t.kind is not None}

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
                signature = _signature(value)
                if summary.type.encoding == "image" and signature is bytes:
                    signature = image_format(value[:16])
                seen = self._seen[name]
                if signature is not None and signature in seen:
                    continue
                before = summary.type, summary.first_item
                self._join(name, summary, value, item_index)
                if summary.type is not before[0]:
                    widened.append((name, *before))
                if signature is not None:
                    if len(seen) >= _SEEN_LIMIT:
                        seen.clear()
                    seen.add(signature)
        except ShardwriterError as error:
            self._forget(features, error.feature, widened)
            raise
        if widened and self.on_widen is not None:
            self.on_widen({name: self.features[name].to_json() for name, *_ in widened})

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
                if not summary.present and name not in self.plan:
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
        except ValueError as conflict:
            first = "the plan" if summary.first_item is None else f"item {summary.first_item}"
            raise SchemaConflict(
                f"{_phrase(found)} here, {_phrase(summary.type)} in {first} ({conflict})",
                hint=_remedy(name, found, summary.type),
                feature=name,
                index=item_index,
            ) from None
        if summary.first_item is None and planned is None:
            summary.first_item = item_index
        summary.type = joined

    def _describe(self, name: str, value: Any) -> FeatureType:
        planned = self.plan.get(name)
        if planned is None or planned.kind is None:
            return describe(name, value)
        return _as_planned(describe(name, value, planned.kind), planned, value)

    def merge_counts(self, other: Schema) -> None:
        """Join another part's features in; for schemas that were gathered side by side."""
        for name, theirs in other.features.items():
            mine = self.features.setdefault(name, FeatureSummary(FeatureType()))
            self._seen.setdefault(name, set())
            try:
                mine.type = mine.type.join(theirs.type)
            except ValueError as conflict:
                raise SchemaConflict(str(conflict), feature=name) from None
            mine.present += theirs.present
            mine.unset += theirs.unset
            mine.vocabulary = mine.vocabulary or theirs.vocabulary

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's ``schema``."""
        return {"features": {name: self.features[name].to_json() for name in sorted(self.features)}}


def _signature(value: Any) -> object:
    """What decides a value's type, where that is cheap to say; None for lists and the like."""
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype, value.shape
    if kind in _SCALAR_DTYPES:
        return kind
    return None


_SCALAR_DTYPES: Final[dict[type, tuple[Kind, str]]] = {
    bool: ("int64", "bool"),
    int: ("int64", "int64"),
    float: ("float", "float32"),
    str: ("bytes", "string"),
    bytes: ("bytes", "bytes"),
    bytearray: ("bytes", "bytes"),
    memoryview: ("bytes", "bytes"),
}


def describe(name: str, value: Any, kind: Kind | None = None) -> FeatureType:
    """Return the type of one value.

    Args:
        name: Of the feature, for errors.
        value: What the record has.
        kind: What a plan binds the feature to: a list of floats may hold ints then.

    Raises:
        FeatureError: The value has no place in an Example.
    """
    scalar = _SCALAR_DTYPES.get(type(value))
    if scalar is not None:
        return FeatureType(*scalar, ())
    if isinstance(value, (list, tuple)):
        return _describe_list(name, value, kind)
    for base, (kind, dtype) in _SCALAR_DTYPES.items():
        if isinstance(value, base) and not isinstance(value, np.generic):
            return FeatureType(kind, dtype, ())
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        return _describe_array(name, np.asarray(value))
    raise FeatureError(f"{type(value).__name__} has no place in an Example", feature=name)


def _describe_list(
    name: str, values: list[Any] | tuple[Any, ...], kind: Kind | None
) -> FeatureType:
    if not values:
        return FeatureType()
    types = {describe(name, value, kind) for value in values} if len(values) < 64 else None
    if types is None:
        # Long lists of plain scalars are common (tokens); the set of their classes is enough.
        classes = set(map(type, values))
        if classes <= _SCALAR_DTYPES.keys():
            types = {FeatureType(*_SCALAR_DTYPES[c], ()) for c in classes}
        else:
            types = {describe(name, value, kind) for value in values}
    if kind == "float" and len(types) > 1:
        types = {replace(t, kind=kind) if t.kind == "int64" else t for t in types}
    joined = FeatureType()
    try:
        for found in types:
            joined = joined.join(found)
    except ValueError as conflict:
        raise FeatureError(
            f"one list holds {conflict}", hint="make all its values the same type", feature=name
        ) from None
    inner = joined.shape or ()
    if None in inner:
        raise FeatureError("a ragged nested list has no shape", feature=name)
    return replace(joined, shape=(len(values), *inner))


def _describe_array(name: str, array: np.ndarray[Any, Any]) -> FeatureType:
    code = array.dtype.kind
    if code in "biu":
        return FeatureType("int64", array.dtype.name, array.shape)
    if code == "f":
        return FeatureType("float", array.dtype.name, array.shape)
    if code in "SU":
        return FeatureType("bytes", "string" if code == "U" else "bytes", array.shape)
    raise FeatureError(f"an array of {array.dtype} has no place in an Example", feature=name)


def _as_planned(found: FeatureType, planned: FeatureType, value: Any) -> FeatureType:
    """See a value as the plan has it: ints are floats under a float plan, a list has its kind."""
    if found.kind is None:
        return replace(planned, shape=(0,))
    dtype = planned.dtype if found.kind == planned.kind == "float" else found.dtype
    if planned.kind == "float" and found.kind == "int64":
        found, dtype = replace(found, kind="float"), planned.dtype
    if planned.encoding == "image" and isinstance(value, (bytes, bytearray, memoryview)):
        return replace(found, encoding="image", format=image_format(bytes(value[:16])))
    return replace(found, dtype=dtype, encoding=planned.encoding, format=planned.format)


def _phrase(feature_type: FeatureType) -> str:
    shape = "" if not feature_type.shape else f" of shape {list(feature_type.shape)}"
    return f"{feature_type.kind}{shape}"


def _remedy(name: str, a: FeatureType, b: FeatureType) -> str:
    kinds = {a.kind, b.kind}
    if kinds == {"int64", "float"}:
        return f"make {name!r} a float in every item: with a map, or --schema {name}=float"
    if len(kinds) == 2:
        return f"give {name!r} one type in every item, with a map"
    return f"give {name!r} one shape in every item: pad or resize it in a map"


def parse_schema_option(text: str) -> dict[str, FeatureType]:
    """Read ``--schema name=type,...`` with types int64, float, bytes, string.

    Raises:
        OptionError: Something else.
    """
    plan: dict[str, FeatureType] = {}
    for part in text.split(","):
        name, equals, type_name = part.rpartition("=")
        known = _SCHEMA_TYPES.get(type_name.strip())
        if not equals or not name.strip() or known is None:
            raise OptionError(
                f"--schema: {part!r} is not NAME=TYPE",
                hint="types are int64, float, bytes and string, as in id=string,price=float",
            )
        plan[name.strip()] = known
    return plan


_SCHEMA_TYPES: Final[dict[str, FeatureType]] = {
    "int64": FeatureType("int64", "int64"),
    "float": FeatureType("float", "float32"),
    "bytes": FeatureType("bytes", "bytes"),
    "string": FeatureType("bytes", "string"),
}


def schema_from_json(data: Mapping[str, Any]) -> dict[str, FeatureSummary]:
    """Read a manifest's ``schema``."""
    features = cast("Mapping[str, Mapping[str, Any]]", data.get("features", {}))
    return {name: FeatureSummary.from_json(entry) for name, entry in features.items()}
