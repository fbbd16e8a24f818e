"""What a TFDS folder says of its shards: ``dataset_info.json``.

Its shape is in :mod:`shardwriter.writing.tfds_shapes`. Of each split it has the records of every
shard (``shardLengths``), and how files are called (``filepathTemplate``); TFDS opens no file by any
other name, and fails where a shard has another number of records.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from shardwriter.dataset.names import INFO_FILE
from shardwriter.dataset.naming import ShardPattern
from shardwriter.formats import json_shape
from shardwriter.storage.inputs import inputs_for
from shardwriter.storage.local import storage_errors
from shardwriter.writing.tfds_shapes import InfoShape, SplitShape

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
        told = json_shape.read(text, InfoShape)
    except ValueError as error:
        return DatasetInfo(path, problem=f"not what TFDS writes: {error}")
    name, entries = told["name"], told.get("splits") or []
    if (told.get("fileFormat") or "tfrecord") != "tfrecord":
        return DatasetInfo(path, name)
    splits = [_split(name, entry) for entry in entries]
    return DatasetInfo(path, name, tuple(split for split in splits if split is not None))


def _split(dataset: str, entry: SplitShape) -> Split | None:
    """Read a split; None for one of which no file can be named, or whose lengths are unknown."""
    lengths = tuple(int(length) for length in entry.get("shardLengths") or [])
    template = entry.get("filepathTemplate") or _TEMPLATE
    has_place = "{SHARD_X_OF_Y}" in template or "{SHARD_INDEX}" in template
    if not lengths or "/" in template or not has_place:
        return None
    return Split(entry["name"], dataset, lengths, template)
