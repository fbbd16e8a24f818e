"""The shape of a report of ``shard-stats --json`` as a baseline: what comparing relies on."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec

from shardwriter.formats.json_shape import Count

_Level = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=30)]
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Number = _Whole | float | Annotated[str, msgspec.Meta(pattern="^-?(nan|inf|NaN|Infinity)$")]


class Versioned(TypedDict):
    """What a report of any version has."""

    schema: str


class _RangeKeys(TypedDict):
    max: _Number
    min: _Number


class _Range(_RangeKeys, total=False):
    mean: _Number | None


class _Sizes(TypedDict, total=False):
    mean: _Number | None


class _NumbersKeys(TypedDict):
    count: Count


class _Numbers(_NumbersKeys, total=False):
    max: _Number | None
    mean: _Number | None
    min: _Number | None
    num_inf: Count
    num_nan: Count
    quantiles: dict[_Level, _Number] | None
    std: _Number | None


class _ImagesKeys(TypedDict):
    formats: dict[str, Count]


class _Images(_ImagesKeys, total=False):
    height: _Range | None
    num_broken: Count
    width: _Range | None


class _Feature(TypedDict, total=False):
    absent: Count
    dtype: str | None
    encoding: str | None
    images: _Images | None
    kind: str | None
    lengths: _Range | None
    num_records: Count | None
    numbers: _Numbers | None
    present: Count
    shape: list[Any] | None
    unset: Count
    value_bytes: _Sizes | None


class _Labels(TypedDict, total=False):
    counts: dict[str, Count] | None
    feature: str | None


class _Set(TypedDict, total=False):
    compressions: list[str]
    features: dict[str, _Feature] | None
    kinds: dict[str, Count] | None
    labels: _Labels | None
    name: str | None
    num_records: Count
    num_shards: Count


class BaselineShape(Versioned, _Set, total=False):
    """A report; one that does not tell sets apart has the keys of a set."""

    num_defects: Count
    sets: list[_Set]
