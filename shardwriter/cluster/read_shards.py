"""``ReadShards``: the records of TFRecord shards as a PCollection, every CRC checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np

from shardwriter.cluster.telling import telling
from shardwriter.dataset.assignment import Gaps
from shardwriter.errors import OptionError
from shardwriter.formats.example_wire import decode_only_example
from shardwriter.formats.tfrecord_reader import Check, read_frames
from shardwriter.sources.locate import find_shard_sets
from shardwriter.sources.shard_sets import ShardSet
from shardwriter.storage.inputs import open_stream
from shardwriter.storage.local import storage_errors


class ReadShards(beam.PTransform):
    """Reads shards, each of them by one worker; plain, gzip and zlib are told apart by content.

    Args:
        path: A dataset's name (``dir/train``, ``dir/train@512``), a folder, a file, a glob; also at
            a URL.
        decode: Give features and not records: arrays, and lists of bytes.
        numbered: Give ``(index, record)``, where the index is that of the item in source order: a
            PCollection has no order of its own.
        check: ``crc`` proves every byte, ``length`` the framing, ``none`` nothing.

    Returns:
        A PCollection of bytes, or of feature dicts; with ``numbered`` of pairs.

    Raises:
        UsageError: When the pipeline is made: there is nothing of that name.
        DataError: Shards are missing; or, while it runs, a file is damaged: with file, record and
            offset.
    """

    def __init__(
        self,
        path: str,
        *,
        decode: bool = False,
        numbered: bool = False,
        check: Check = "crc",
    ) -> None:
        super().__init__()
        self._path = path
        self._decode = decode
        self._numbered = numbered
        self._check: Check = check

    def expand(self, pcoll: Any) -> Any:
        """Make the graph."""
        sets = find_shard_sets([self._path])
        for found in sets:
            found.require_whole()
        if self._numbered and (len(sets) != 1 or sets[0].manifest is None):
            raise OptionError(
                f"{self._path} is not one dataset with a manifest, so its records have no numbers",
                hint="name one dataset of ours, as in dir/train@16; or leave numbered off",
            )
        files = [shard for found in sets for shard in found.shards]
        reader = _Read(sets[0], self._check, decode=self._decode, numbered=self._numbered)
        what: Any = dict[str, Any] if self._decode else bytes
        return (
            pcoll
            | "Shards" >> beam.Create(files, reshuffle=False).with_output_types(tuple[int, str])
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(reader).with_output_types(tuple[int, what] if self._numbered else what)
        )


class _Read(beam.DoFn):
    def __init__(self, first: ShardSet, check: Check, *, decode: bool, numbered: bool) -> None:
        gaps = [] if first.manifest is None else first.manifest.gaps
        self._gaps = np.array(gaps, np.int64)
        self._num_shards = len(first.shards)
        self._check: Check = check
        self._decode = decode
        self._numbered = numbered

    @telling
    def process(self, shard_and_path: tuple[int, str]) -> Iterator[Any]:
        shard, path = shard_and_path
        gaps = Gaps(self._gaps, self._num_shards) if len(self._gaps) else None
        with storage_errors(path), open_stream(path) as stream:
            for place, record in enumerate(read_frames(stream, check=self._check, path=path)):
                found: Any = decode_only_example(record) if self._decode else record
                if not self._numbered:
                    yield found
                elif gaps is None:
                    yield shard + self._num_shards * place, found
                else:
                    yield gaps.item_index(shard, place), found
