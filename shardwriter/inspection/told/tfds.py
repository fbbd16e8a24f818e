"""What a TFDS folder says of its shards: ``dataset_info.json``.

TFDS keeps the proto ``DatasetInfo`` as JSON, with names in camel case and 64-bit numbers as text or
as numbers, https://www.tensorflow.org/datasets/external_tfrecord. Of each split it has the records
of every shard (``shardLengths``), and how files are called (``filepathTemplate``); TFDS opens no
file by any other name, and fails where a shard has another number of records.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwriter.dataset.naming import ShardPattern
from shardwriter.storage.inputs import inputs_for
from shardwriter.storage.local import storage_errors
from shardwriter.tfds.names import INFO_FILE

_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VARIABLE = re.compile(r"\{(DATASET|SPLIT|FILEFORMAT|SHARD_INDEX|NUM_SHARDS|SHARD_X_OF_Y)\}")


@dataclass(frozen=True)
class Split:
    """One split as ``dataset_info.json`` tells of it.

    Attributes:
        name: Of the split.
        dataset: Name of the dataset, as it stands in file names.
        lengths: Records of each shard.
        template: How files are called.
    """

    name: str
    dataset: str
    lengths: tuple[int, ...]
    template: str = _TEMPLATE

    def shard_file(self, shard_index: int, num_shards: int | None = None) -> str:
        """Return the name of a shard's file, also of another number of shards than it has."""
        i, n = f"{shard_index:05d}", f"{num_shards or len(self.lengths):05d}"
        values = {
            "DATASET": self.dataset,
            "SPLIT": self.name,
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": i,
            "NUM_SHARDS": n,
            "SHARD_X_OF_Y": f"{i}-of-{n}",
        }
        return _VARIABLE.sub(lambda match: values[match[1]], self.template)

    def is_of(self, pattern: ShardPattern) -> bool:
        """Tell whether shards of a pattern are this split's, whatever their number."""
        return self.shard_file(0, pattern.num_shards) == pattern.shard_file(0)

    def dataset_in(self, pattern: ShardPattern) -> str | None:
        """Return how the dataset would have to be called for shards to be this split's."""
        if "{DATASET}" not in self.template:
            return None
        mark = "\0"
        spelled = Split(self.name, mark, self.lengths, self.template)
        before, _, behind = spelled.shard_file(0, pattern.num_shards).partition(mark)
        name = pattern.shard_file(0)
        if not name.startswith(before) or not name.endswith(behind) or mark in behind:
            return None
        return name[len(before) : len(name) - len(behind)] or None


@dataclass(frozen=True)
class DatasetInfo:
    """A folder's ``dataset_info.json``.

    Attributes:
        path: The file.
        name: The dataset.
        splits: Those whose shards are TFRecord files beside it, with known lengths.
        problem: Why nothing can be read out of it; None where all is well.
    """

    path: str
    name: str = ""
    splits: tuple[Split, ...] = ()
    problem: str | None = None

    def split_of(self, pattern: ShardPattern | None) -> Split | None:
        """Return the split that shards of a pattern are."""
        if pattern is None:
            return None
        return next((split for split in self.splits if split.is_of(pattern)), None)


def read_dataset_info(directory: str) -> DatasetInfo | None:
    """Read the ``dataset_info.json`` of a folder; None where there is none.

    Raises:
        StorageError: It can not be read.
    """
    path = os.path.join(directory, INFO_FILE)
    if not inputs_for(path).is_file(path):
        return None
    with storage_errors(path):
        _, text = inputs_for(path).read(path)
    try:
        return _parse(path, json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return DatasetInfo(path, problem=f"not what TFDS writes ({type(error).__name__}: {error})")


def _parse(path: str, told: Mapping[str, Any]) -> DatasetInfo:
    name = told["name"]
    if not isinstance(name, str) or not name:
        raise ValueError("there is no name")
    file_format = told.get("fileFormat") or "tfrecord"
    splits = [_split(name, entry) for entry in told.get("splits", []) if file_format == "tfrecord"]
    return DatasetInfo(path, name, tuple(split for split in splits if split is not None))


def _split(dataset: str, entry: Mapping[str, Any]) -> Split | None:
    """Read a split; None for one of which no file can be named, or whose lengths are unknown."""
    lengths = tuple(int(length) for length in entry.get("shardLengths", []))
    if any(length < 0 for length in lengths):
        raise ValueError("a shard has a negative length")
    name, template = entry["name"], entry.get("filepathTemplate") or _TEMPLATE
    if not isinstance(name, str) or not isinstance(template, str):
        raise TypeError("a split's name is no text")
    has_place = "{SHARD_X_OF_Y}" in template or "{SHARD_INDEX}" in template
    if not lengths or "/" in template or not has_place:
        return None
    return Split(name, dataset, lengths, template)
