"""Records of a finished dataset that are taken as they are while failed items are tried again."""

from __future__ import annotations

import os
from collections.abc import Iterable

from shardwriter.dataset.assignment import Gaps
from shardwriter.dataset.index import Index
from shardwriter.dataset.manifest import Manifest
from shardwriter.sources.shard_records import RecordReader
from shardwriter.storage.file_pool import FilePool, FileState
from shardwriter.storage.inputs import inputs_for


class StandingRecords:
    """The records of a dataset, by item. It can be sent to another process.

    Args:
        directory: Where the dataset is.
        manifest: Its manifest.
        again: Items that gave an error: they have no record there.
    """

    def __init__(self, directory: str, manifest: Manifest, again: Iterable[int]) -> None:
        paths = [os.path.join(directory, name) for name in manifest.pattern.shard_files]
        states = [FileState.of(stat) for stat in inputs_for(directory).stats(paths)]
        index = Index(os.path.join(directory, manifest.pattern.index_file))
        self._reader = RecordReader(index, FilePool(paths, states))
        self._gaps = Gaps(manifest.gaps, manifest.num_shards)
        self._num_shards = manifest.num_shards
        self._again = frozenset(again)

    def record(self, item_index: int) -> bytes | None:
        """Return the record of an item that is no gap otherwise; None for one to try again.

        Raises:
            CorruptFile: It is damaged.
            SourceChanged: Its file is another one now.
            StorageError: Its file can not be read.
        """
        if item_index in self._again:
            return None
        place = self._gaps.position(item_index)
        return self._reader.payload(item_index % self._num_shards, place)
