"""The shape of a baseline: the part of ``stats.schema.json`` that a comparison relies on.

Every key may be absent but those that older versions have always written; one that is there has
its type.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict, Union

import msgspec

from shardwriter.formats.json_shape import Count

_Number = Union[float, Literal["nan", "inf", "-inf"], None]  # noqa: UP007 - evaluated by Python 3.10
_Level = Annotated[str, msgspec.Meta(pattern=r"^(0|1|0?\.[0-9]{1,20})$")]


class _Ends(TypedDict):
    min: _Number
    max: _Number


class _Span(_Ends, total=False):
    mean: _Number


class _Counted(TypedDict):
    count: Count


class _Numbers(_Counted, total=False):
    num_nan: Count
    num_inf: Count
    min: _Number
    max: _Number
    mean: _Number
    std: _Number
    quantiles: dict[_Level, _Number] | None


class _Formats(TypedDict):
    formats: dict[str, Count]


class _Images(_Formats, total=False):
    num_broken: Count
    width: _Span | None
    height: _Span | None


class _Feature(TypedDict, total=False):
    kind: str | None
    dtype: str | None
    encoding: str | None
    shape: list[Count | None] | None
    num_records: Count | None
    present: Count
    unset: Count
    lengths: _Span | None
    value_bytes: _Span | None
    numbers: _Numbers | None
    images: _Images | None


class _Labels(TypedDict, total=False):
    feature: str | None
    counts: dict[str, Count] | None


class _Set(TypedDict, total=False):
    name: str | None
    num_records: Count
    num_shards: Count
    compressions: list[str]
    kinds: dict[str, Count] | None
    labels: _Labels | None
    features: dict[str, _Feature] | None


class Baseline(_Set, total=False):
    """A report of ``shard-stats --json``; one without ``sets`` is about its only dataset."""

    schema: str
    num_defects: Count
    sets: list[_Set] | None
