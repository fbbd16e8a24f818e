"""The shapes of TFDS's ``dataset_info.json`` and ``features.json``: what is relied on of them.

TFDS keeps protos as JSON, with names in camel case and 64-bit numbers as text or as numbers,
https://www.tensorflow.org/datasets/external_tfrecord. A key that is not there and one that is null
are the same in it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec

from shardwriter.formats.json_shape import Count

Name = Annotated[str, msgspec.Meta(min_length=1)]
Int64 = Count | Annotated[str, msgspec.Meta(pattern="^[0-9]{1,18}$")]
"""A number of records; ``int()`` reads both spellings."""


class _SplitKeys(TypedDict):
    name: Name


class SplitShape(_SplitKeys, total=False):
    """A split in ``dataset_info.json``."""

    filepathTemplate: str | None
    shardLengths: list[Int64] | None


class _InfoKeys(TypedDict):
    name: Name


class InfoShape(_InfoKeys, total=False):
    """``dataset_info.json``."""

    fileFormat: str | None
    splits: list[SplitShape] | None
    version: str | None


class _FeaturesDict(TypedDict):
    features: dict[str, dict[str, Any]]


class FeaturesShape(TypedDict):
    """``features.json`` of a dataset whose records have named features."""

    featuresDict: _FeaturesDict
