"""Frames on their way into growing shards, gathered until a write is worth its while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats.frame_block import FrameBlock
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.writing.shard import ShardFile

_MAX_BUFFER_BYTES: Final = 1 << 18
_ALL_BUFFERS_BYTES: Final = 32 << 20


class MovingFrames:
    """Deals frames to shards.

    Args:
        files: The growing shards, by number.
        num_shards: N.
    """

    def __init__(self, files: Mapping[int, ShardFile], num_shards: int) -> None:
        self._files = files
        self._num_shards = num_shards
        self._most_bytes = min(_MAX_BUFFER_BYTES, _ALL_BUFFERS_BYTES // max(1, len(files)))
        self._parts: dict[int, list[bytes]] = {shard: [] for shard in files}
        self._sizes: dict[int, list[NDArray[np.int64]]] = {shard: [] for shard in files}
        self._num_bytes = dict.fromkeys(files, 0)

    def deal(self, indices: NDArray[np.int64], block: FrameBlock) -> None:
        """Append the frames of some items to their shards.

        Args:
            indices: int64[k], ascending: the items.
            block: Their frames.
        """
        shards = indices % self._num_shards
        order = np.argsort(shards, kind="stable")
        cuts = np.flatnonzero(np.diff(shards[order])) + 1
        for rows in np.split(order, cuts):
            shard = int(shards[rows[0]])
            sizes = block.sizes[rows]
            self._parts[shard] += block.take(rows)
            self._sizes[shard].append(sizes)
            self._num_bytes[shard] += int(sizes.sum())
            if self._num_bytes[shard] >= self._most_bytes:
                self._flush(shard)

    def flush(self) -> None:
        """Hand on all that was gathered."""
        for shard, num_bytes in self._num_bytes.items():
            if num_bytes:
                self._flush(shard)

    def _flush(self, shard: int) -> None:
        parts, sizes = self._parts[shard], np.concatenate(self._sizes[shard])
        frames = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts[shard], self._sizes[shard], self._num_bytes[shard] = [], [], 0
        self._files[shard].write_frames(frames, sizes - FRAME_BYTES)
