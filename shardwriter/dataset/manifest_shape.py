"""The shape of a manifest as JSON: which keys it has, and the types of their values.

What other keys hold is not looked at; it is kept and written back.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec

from shardwriter.dataset.splits import SplitEntry
from shardwriter.formats.compression import Compression
from shardwriter.formats.feature_errors import Kind
from shardwriter.formats.json_shape import Count, Hex32
from shardwriter.formats.packing import Deflate
from shardwriter.schema.feature_types import Encoding

Items = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""A number of items: so many that two of them, or a shard and its turn, still fit an int64."""


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
    """What a manifest of any version has."""

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
    """A manifest."""

    labels: _Labels | None
    metadata: dict[str, Any]
    repaired: _Repaired
