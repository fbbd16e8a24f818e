"""The manifest ``<name>.manifest.json``: the description of a finished dataset.

It is published last, so its presence means that the dataset is complete. It has no timestamp, host,
path or version: two runs of one job write the same bytes. Facts about shards are in columns
(``shards.records[s]``), so 100,000 shards take a few megabytes. Unknown keys are preserved when a
manifest is read and written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypedDict

import msgspec

from shardwriter.dataset.assignment import GapRuns, assignment_error, to_runs
from shardwriter.dataset.naming import ShardPattern, pattern_from_template
from shardwriter.dataset.splits import Split, SplitEntry
from shardwriter.errors import ManifestError
from shardwriter.formats import (
    Compression,
    Count,
    Deflate,
    Hex32,
    Kind,
    canonical,
    clean,
    feature_spelling,
    json_shape,
    list_spelling,
)
from shardwriter.schema import Encoding, FeatureSummary, schema_from_json, summary_text

# -- the JSON shape; other keys are allowed --------------------------------------------------------

Items = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A number of items. The limit leaves room for sums of two of them in an int64."""


class _Index(TypedDict):
    crc32c: Hex32
    file: str
    file_bytes: Count


class _ShardsKeys(TypedDict):
    crc32c: list[Hex32]
    file_bytes: list[Count]
    files: str
    payload_bytes: list[Count]
    records: list[Count]


class _Shards(_ShardsKeys, total=False):
    file_crc32c: list[Hex32]


class _Skipped(TypedDict):
    count: Count
    runs: list[tuple[Items, Items]]


class _CompressionKeys(TypedDict):
    type: Compression


class _Compression(_CompressionKeys, total=False):
    deflate: Deflate
    member_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class _Seed(TypedDict):
    seed: int


class _Key(TypedDict):
    feature: str | None
    seed: int


class _Order(TypedDict, total=False):
    shuffle: _Seed | None
    split: SplitEntry | None
    key: _Key | None


class _FeatureKeys(TypedDict):
    present: Count
    unset: Count


class _Feature(_FeatureKeys, total=False):
    dtype: str | None
    encoding: Encoding
    format: str | None
    kind: Kind | None
    shape: list[Count | None] | None
    vocabulary: list[str] | None


class _Schema(TypedDict, total=False):
    features: dict[str, _Feature]
    feature_lists: dict[str, _Feature]


class _LabelsKeys(TypedDict):
    counts: dict[str, Count]
    feature: str


class _Labels(_LabelsKeys, total=False):
    shards: dict[str, list[Count]] | None


class _Repaired(TypedDict):
    job: str | None
    lost: list[tuple[Items, Items]]


class Versioned(TypedDict):
    """The keys of a manifest of any version."""

    format: str


class _ManifestKeys(Versioned):
    compression: _Compression
    index: _Index
    job: str
    name: str
    num_items: Items
    num_records: Count
    num_shards: Count
    order: _Order
    payload_bytes: Count
    schema: _Schema
    shards: _Shards
    skipped: _Skipped
    source: dict[str, Any]


class ManifestShape(_ManifestKeys, total=False):
    """The JSON object of a manifest."""

    labels: _Labels | None
    metadata: dict[str, Any]
    repaired: _Repaired


FORMAT: Final = "shardwriter.manifest/1"
_SHOWN_NAMES: Final = 5
_SHOWN_ROWS: Final = 50


@dataclass(frozen=True)
class SealedShard:
    """The facts of one finished shard file.

    Attributes:
        num_records: Number of records.
        payload_bytes: Bytes of all payloads.
        file_bytes: Size of the file.
        crc32c: CRC-32C of the uncompressed frames; for a plain shard also that of the file.
        file_crc32c: CRC-32C of a compressed file; None for a plain shard.
    """

    num_records: int
    payload_bytes: int
    file_bytes: int
    crc32c: int
    file_crc32c: int | None = None


@dataclass(frozen=True)
class IndexEntry:
    """The index file of a manifest."""

    file: str
    file_bytes: int
    crc32c: int


@dataclass(frozen=True)
class Manifest:
    """A finished dataset.

    Attributes:
        pattern: Names of its files.
        num_items: T, the number of items in source order, including those without a record.
        shards: One entry per shard.
        gaps: Sorted indices of the items without a record; in a manifest read from a file they are
            :class:`~shardwriter.dataset.assignment.GapRuns`.
        compression: ``{"type": "none"}``, or with the library and member size.
        index: The index file.
        job: Hash of everything that determines the bytes.
        source: Kind and digest of the source.
        order: Changes to source order: ``shuffle``, ``split``, and ``key`` for key order.
        schema: The manifest's ``schema`` object.
        labels: Label counts, or None.
        metadata: Further facts, such as data warnings.
        extra: Unknown keys; those inside ``index``, ``shards`` and ``skipped`` under these names.
    """

    pattern: ShardPattern
    num_items: int
    shards: Sequence[SealedShard]
    gaps: Sequence[int]
    compression: Mapping[str, Any]
    index: IndexEntry
    job: str
    source: Mapping[str, Any]
    order: Mapping[str, Any]
    schema: Mapping[str, Any]
    labels: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.pattern.name

    @property
    def num_shards(self) -> int:
        """N."""
        return self.pattern.num_shards

    @property
    def num_records(self) -> int:
        """Number of records in all shards."""
        return sum(shard.num_records for shard in self.shards)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all records."""
        return sum(shard.payload_bytes for shard in self.shards)

    @property
    def file_bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(shard.file_bytes for shard in self.shards)

    @property
    def features(self) -> dict[str, FeatureSummary]:
        """The schema by feature; for SequenceExamples the features of the context."""
        return schema_from_json(self.schema)

    @property
    def feature_lists(self) -> dict[str, FeatureSummary] | None:
        """The types of the steps of SequenceExamples, by feature list; None for Examples."""
        if "feature_lists" not in self.schema:
            return None
        return schema_from_json(self.schema, "feature_lists")

    def type_texts(self) -> dict[str, str]:
        """Return a short description of the type of each feature; feature lists are ``NAME[]``."""
        types = {feature_spelling(name): found for name, found in self.features.items()}
        types |= {list_spelling(name): f for name, f in (self.feature_lists or {}).items()}
        return {name: summary_text(types[name].type) for name in sorted(types)}

    def __repr__(self) -> str:
        facts = ", ".join(f"{value} {what}" for what, value in self._facts().items())
        names = [*self.schema.get("features", {}), *self.schema.get("feature_lists", {})]
        shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:_SHOWN_NAMES]]
        more = ["..."] if len(names) > _SHOWN_NAMES else []
        listed = f": {clean(', '.join([*shown, *more]))}" if names else ""
        return f"<Manifest {clean(self.name)}: {facts}{listed}>"

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks, with untrusted text escaped."""
        rows = [
            ("dataset", self.name),
            *self._facts().items(),
            *((f"feature {name}", text) for name, text in self._feature_texts()),
        ]
        from html import escape

        cells = (
            f"<tr><th>{escape(clean(what))}</th><td>{escape(clean(value))}</td></tr>"
            for what, value in rows
        )
        return f"<table>{''.join(cells)}</table>"

    def _facts(self) -> dict[str, str]:
        num_features = len(self.schema.get("features", {}))
        num_features += len(self.schema.get("feature_lists", {}))
        counts = {
            "shard": self.num_shards,
            "record": self.num_records,
            "byte": self.file_bytes,
            "feature": num_features,
        }
        return {name if n == 1 else f"{name}s": f"{n:,}" for name, n in counts.items()}

    def _feature_texts(self) -> list[tuple[str, str]]:
        texts = list(self.type_texts().items())
        rest = len(texts) - _SHOWN_ROWS
        return [*texts[:_SHOWN_ROWS], *([("...", f"{rest:,} more")] if rest > 0 else [])]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as a JSON object."""
        extra = self.extra
        columns: dict[str, Any] = {
            **extra.get("shards", {}),
            "crc32c": [_hex(shard.crc32c) for shard in self.shards],
            "file_bytes": [shard.file_bytes for shard in self.shards],
            "files": self.pattern.template,
            "payload_bytes": [shard.payload_bytes for shard in self.shards],
            "records": [shard.num_records for shard in self.shards],
        }
        if self.compression["type"] != "none":
            columns["file_crc32c"] = [_hex(shard.file_crc32c or 0) for shard in self.shards]
        return {
            **{key: value for key, value in extra.items() if key not in _KNOWN_PARTS},
            "compression": dict(self.compression),
            "format": FORMAT,
            "index": {
                **extra.get("index", {}),
                "crc32c": _hex(self.index.crc32c),
                "file": self.index.file,
                "file_bytes": self.index.file_bytes,
            },
            "job": self.job,
            "labels": None if self.labels is None else dict(self.labels),
            "metadata": dict(self.metadata),
            "name": self.name,
            "num_items": self.num_items,
            "num_records": self.num_records,
            "num_shards": self.num_shards,
            "order": dict(self.order),
            "payload_bytes": self.payload_bytes,
            "schema": dict(self.schema),
            "shards": columns,
            "skipped": {
                **extra.get("skipped", {}),
                "count": len(self.gaps),
                "runs": to_runs(self.gaps),
            },
            "source": dict(self.source),
        }

    def dumps(self) -> str:
        """Return the canonical text of the file."""
        return canonical.dumps(self.to_json())


_KNOWN: Final = frozenset(
    [
        "compression",
        "format",
        "index",
        "job",
        "labels",
        "metadata",
        "name",
        "num_items",
        "num_records",
        "num_shards",
        "order",
        "payload_bytes",
        "schema",
        "shards",
        "skipped",
        "source",
    ]
)
_KNOWN_PARTS: Final = {
    "index": frozenset(["crc32c", "file", "file_bytes"]),
    "shards": frozenset(
        ["crc32c", "file_bytes", "file_crc32c", "files", "payload_bytes", "records"]
    ),
    "skipped": frozenset(["count", "runs"]),
}


def parse_manifest(text: str | bytes, path: str | None = None, index_bytes: int = 0) -> Manifest:
    """Return a checked manifest from its text.

    Args:
        text: UTF-8 JSON.
        path: The file, for errors.
        index_bytes: Size of its index file; 0 if there is none.

    Raises:
        ManifestError: It is malformed or contradicts itself.
    """
    try:
        manifest = _from_json(_checked(text), index_bytes, path)
    except ValueError as error:
        raise ManifestError(
            f"the manifest can not be used: {error}",
            path=path,
            hint="restore the dataset's original manifest, or write the dataset again",
        ) from None
    return manifest


def _checked(text: str | bytes) -> ManifestShape:
    """Return a parsed manifest after checking its version and its shape."""
    data = json_shape.read(text, Versioned)
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r:.80}, not {FORMAT!r}")
    return json_shape.check(data, ManifestShape)


def _from_json(data: ManifestShape, index_bytes: int, path: str | None) -> Manifest:
    num_shards, columns, index = data["num_shards"], data["shards"], data["index"]
    pattern = pattern_from_template(columns["files"], num_shards)
    if pattern is None or pattern.name != data["name"]:
        raise ValueError(f"its file pattern is {columns['files']!r:.200}")
    compressed = data["compression"]["type"] != "none"
    file_crcs = columns.get("file_crc32c", []) if compressed else [None] * num_shards
    by_shard: dict[str, Sequence[Any]] = {
        "records": columns["records"],
        "payload_bytes": columns["payload_bytes"],
        "file_bytes": columns["file_bytes"],
        "crc32c": columns["crc32c"],
        "file_crc32c": file_crcs,
    }
    for name, column in by_shard.items():
        if len(column) != num_shards:
            raise ValueError(f"shards.{name} has {len(column)} entries for {num_shards} shards")
    shards = [
        SealedShard(n, payload, size, int(crc, 16), None if file_crc is None else int(file_crc, 16))
        for n, payload, size, crc, file_crc in zip(*by_shard.values(), strict=True)
    ]
    if sum(columns["file_bytes"]) >= 1 << 63:
        raise ValueError(f"its files have {sum(columns['file_bytes']):,} bytes together")
    if index["file"] != pattern.index_file:
        raise ValueError(f"its index file is {index['file']!r:.200}")
    if data.get("labels") is not None:
        _check_labels(data)
    if (split := data["order"].get("split")) is not None:
        Split.from_json(split)
    _check_runs("skipped.runs", data["skipped"]["runs"], data["num_items"])
    if "repaired" in data:
        _check_runs("repaired.lost", data["repaired"]["lost"], data["num_items"])
    gaps = GapRuns(data["skipped"]["runs"], index_bytes, path)
    manifest = Manifest(
        pattern,
        data["num_items"],
        shards,
        gaps,
        data["compression"],
        IndexEntry(index["file"], index["file_bytes"], int(index["crc32c"], 16)),
        data["job"],
        data["source"],
        data["order"],
        data["schema"],
        data.get("labels"),
        data.get("metadata", {}),
        _unknown(data),
    )
    if len(gaps) != data["skipped"]["count"]:
        raise ValueError(
            f"skipped.count is {data['skipped']['count']}, but skipped.runs have {len(gaps)}"
        )
    totals = {"num_records": manifest.num_records, "payload_bytes": manifest.payload_bytes}
    claimed = {"num_records": data["num_records"], "payload_bytes": data["payload_bytes"]}
    for name, total in totals.items():
        if total != claimed[name]:
            raise ValueError(f"{name} is {claimed[name]}, but its shards sum to {total}")
    wrong = assignment_error(columns["records"], manifest.num_items, gaps)
    if wrong is not None:
        shard, expected, count = wrong
        raise ValueError(f"shard {shard} has {count} records, the assignment gives {expected}")
    return manifest


def _check_labels(data: ManifestShape) -> None:
    """Raise if label counts contradict each other."""
    labels = data["labels"]
    assert labels is not None
    counts, by_shard = labels["counts"], labels.get("shards")
    if sum(counts.values()) >= 1 << 63:
        raise ValueError(f"its label counts sum to {sum(counts.values()):,}")
    if by_shard is not None and (
        by_shard.keys() != counts.keys()
        or any(len(row) != data["num_shards"] for row in by_shard.values())
        or any(sum(row) > counts[label] for label, row in by_shard.items())
    ):
        raise ValueError("labels.shards contradicts labels.counts")


def _unknown(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unknown keys, of the object and of its known parts."""
    extra = {key: value for key, value in data.items() if key not in _KNOWN}
    for part, known in _KNOWN_PARTS.items():
        rest = {key: value for key, value in data[part].items() if key not in known}
        if rest:
            extra[part] = rest
    return extra


def _check_runs(name: str, runs: Sequence[tuple[int, int]], num_items: int) -> None:
    """Raise if runs are not in order, or out of range."""
    stop = 0
    for first, count in runs:
        if first < stop or count < 1:
            raise ValueError(f"{name} has {[first, count]} out of order")
        stop = first + count
        if stop > num_items:
            raise ValueError(f"{name} goes to item {stop - 1:,} of {num_items:,}")


def _hex(crc: int) -> str:
    return f"{crc:08x}"
