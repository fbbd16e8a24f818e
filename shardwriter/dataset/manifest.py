"""The manifest: what a finished dataset is, as ``<name>.manifest.json``.

It is published last, so its presence says that everything else is there and whole. It holds no
timestamp, host, path or version: two runs of one job write the same bytes. Facts about shards stand
in columns (``shards.records[s]``), which keeps 100,000 shards at a few megabytes. Keys that are not
known here are kept as they are and written back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shardwriter.codec.sequence_names import feature_spelling, list_spelling
from shardwriter.dataset.layout import from_runs, law_breach, to_runs
from shardwriter.dataset.naming import ShardPattern, pattern_from_template
from shardwriter.errors import ManifestError
from shardwriter.features.schema import FeatureSummary, learnt_from_json, schema_from_json
from shardwriter.features.schema_text import summary_text
from shardwriter.formats import canonical
from shardwriter.formats.compression import SUFFIXES

FORMAT: Final = "shardwriter.manifest/1"


@dataclass(frozen=True)
class SealedShard:
    """What is known of one finished shard file.

    Attributes:
        num_records: Its records.
        payload_bytes: Bytes of all payloads.
        file_bytes: Size of the file.
        crc32c: Of the uncompressed frames; for a plain shard that of the file itself.
        file_crc32c: Of the file, where it is compressed.
    """

    num_records: int
    payload_bytes: int
    file_bytes: int
    crc32c: int
    file_crc32c: int | None = None


@dataclass(frozen=True)
class IndexEntry:
    """The index file that goes with a manifest."""

    file: str
    file_bytes: int
    crc32c: int


@dataclass(frozen=True)
class Manifest:
    """A finished dataset.

    Attributes:
        pattern: Names of its files.
        num_items: T, items in source order, those without a record included.
        shards: One entry a shard.
        gaps: Sorted indices of the items without a record.
        compression: ``{"type": "none"}``, or with the library and member size.
        index: The index file.
        job: Hash of everything that decides the bytes.
        source: Kind and digest of the source.
        order: What was done to source order: ``shuffle`` and ``split``; ``key`` where items stand
            in the order of their keys.
        schema: The manifest's own ``schema`` object.
        labels: Label counts, or None.
        extra: Keys that this version does not know; those inside of ``index``, ``shards`` and
            ``skipped`` under that name.
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
        """Records in all shards."""
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
        """The schema, by feature; of SequenceExamples the features of the context."""
        return schema_from_json(self.schema)

    @property
    def feature_lists(self) -> dict[str, FeatureSummary] | None:
        """The types of the steps of SequenceExamples, by feature list; None for Examples."""
        if "feature_lists" not in self.schema:
            return None
        return schema_from_json(self.schema, "feature_lists")

    def type_texts(self) -> dict[str, str]:
        """Return the type of each feature in few words; feature lists are called ``NAME[]``."""
        types = {feature_spelling(name): found for name, found in self.features.items()}
        types |= {list_spelling(name): f for name, f in (self.feature_lists or {}).items()}
        return {name: summary_text(types[name].type) for name in sorted(types)}

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


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read and check a manifest.

    Raises:
        ManifestError: It is malformed or contradicts itself.
        OSError: It can not be read.
    """
    return parse_manifest(Path(path).read_bytes(), os.fspath(path))


def parse_manifest(text: str | bytes, path: str | None = None) -> Manifest:
    """Read and check the text of a manifest; see :func:`load_manifest`."""
    try:
        data = canonical.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        if data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')!r}, not {FORMAT!r}")
        manifest = _from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ManifestError(
            f"not a manifest that can be used: {what}",
            path=path,
            hint="write the dataset again, or restore the manifest that came with it",
        ) from None
    return manifest


def _from_json(data: Mapping[str, Any]) -> Manifest:
    num_shards = _count(data["num_shards"], "num_shards")
    num_items = _count(data["num_items"], "num_items")
    for key in ("compression", "index", "order", "schema", "shards", "skipped", "source"):
        if not isinstance(data[key], dict):
            raise ValueError(f"{key} is no object")
    columns = data["shards"]
    pattern = pattern_from_template(columns["files"], num_shards)
    if pattern is None or pattern.name != data["name"]:
        raise ValueError(f"its file pattern is {columns['files']!r}")
    names = ["records", "payload_bytes", "file_bytes", "crc32c"]
    if data["compression"]["type"] not in SUFFIXES:
        raise ValueError(f"its compression is {data['compression']['type']!r}")
    compressed = data["compression"]["type"] != "none"
    if compressed:
        names.append("file_crc32c")
    for name in names:
        if len(columns[name]) != num_shards:
            raise ValueError(
                f"shards.{name} has {len(columns[name])} entries for {num_shards} shards"
            )
    shards = [
        SealedShard(
            _count(columns["records"][s], "records"),
            _count(columns["payload_bytes"][s], "payload_bytes"),
            _count(columns["file_bytes"][s], "file_bytes"),
            _crc(columns["crc32c"][s]),
            _crc(columns["file_crc32c"][s]) if compressed else None,
        )
        for s in range(num_shards)
    ]
    index = data["index"]
    if index["file"] != pattern.index_file:
        raise ValueError(f"its index file is {index['file']!r}")
    gaps = _gaps(data["skipped"]["runs"], num_items)
    manifest = Manifest(
        pattern,
        num_items,
        shards,
        gaps,
        data["compression"],
        IndexEntry(index["file"], _count(index["file_bytes"], "file_bytes"), _crc(index["crc32c"])),
        data["job"],
        data["source"],
        data["order"],
        data["schema"],
        data.get("labels"),
        data.get("metadata", {}),
        _unknown(data),
    )
    learnt_from_json(manifest.schema)
    if len(gaps) != data["skipped"]["count"]:
        raise ValueError(f"skipped.count is {data['skipped']['count']}, its runs hold {len(gaps)}")
    for key in ("num_records", "payload_bytes"):
        if getattr(manifest, key) != data[key]:
            raise ValueError(f"{key} is {data[key]}, its shards sum up to {getattr(manifest, key)}")
    breach = law_breach([shard.num_records for shard in shards], manifest.num_items, gaps)
    if breach is not None:
        shard, expected, count = breach
        raise ValueError(f"shard {shard} has {count} records, the law gives {expected}")
    return manifest


def _unknown(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this version does not know, at the top and one level down."""
    extra = {key: value for key, value in data.items() if key not in _KNOWN}
    for part, known in _KNOWN_PARTS.items():
        rest = {key: value for key, value in data[part].items() if key not in known}
        if rest:
            extra[part] = rest
    return extra


def _gaps(runs: Any, num_items: int) -> list[int]:
    """Turn runs into gaps, once it is known that they are in order and within the items."""
    stop = 0
    for first, count in runs:
        if _count(first, "a run's first item") < stop or _count(count, "a run's length") < 1:
            raise ValueError(f"skipped.runs has {[first, count]} out of order")
        stop = first + count
    if stop > num_items:
        raise ValueError(f"skipped.runs goes to item {stop - 1:,} of {num_items:,}")
    return from_runs(runs)


def _crc(text: Any) -> int:
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{8}", text):
        raise ValueError(f"{text!r} is no CRC of 8 hex digits")
    return int(text, 16)


def _hex(crc: int) -> str:
    return f"{crc:08x}"


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value
