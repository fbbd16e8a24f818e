"""How a sequence of items is cut for the shuffle.

::

    items      0 ........................................................ T
    run        N * chunk_records consecutive items: made by one worker, in memory for a moment
    chunk      what a run has for one shard: framed, one value of the shuffle
    block      block_runs runs: what a group has of one shard, written as one part

The key of a group is one int, ``block * N + shard``. A chunk that comes out larger than
``max_chunk_bytes`` goes around the shuffle, as a file of which only the name is sent. So no group
has more than ``MAX_GROUP_BYTES``, whatever the sizes of the records are; an eighth of that is aimed
at. What a worker has of a run in memory is bounded likewise: a chunk is handed on as soon as it is
whole, and the largest go on in files where all of them together have more than ``MAX_RUN_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_GROUP_BYTES: Final = 256 << 20
MAX_RUN_BYTES: Final = 64 << 20
MAX_BLOCK_RUNS: Final = 1 << 13
_MAX_CHUNK_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 18  # aimed at
_RUN_BYTES: Final = MAX_RUN_BYTES // 2  # aimed at
_GROUP_BYTES: Final = MAX_GROUP_BYTES // 8  # aimed at
MAX_CHUNK_RECORDS: Final = 1 << 14


@dataclass(frozen=True)
class Cut:
    """How items are cut.

    Attributes:
        num_shards: N.
        chunk_records: Items of a shard in a run.
        block_runs: Runs in a block.
    """

    num_shards: int
    chunk_records: int
    block_runs: int

    @classmethod
    def of(cls, num_shards: int, mean_bytes: float) -> Cut:
        """Return the cut for records of a mean size, as a sample has it."""
        frame_bytes = max(1.0, mean_bytes)
        chunk_bytes = min(_CHUNK_BYTES, _RUN_BYTES / num_shards)
        records = max(1, min(MAX_CHUNK_RECORDS, int(chunk_bytes / frame_bytes)))
        runs = max(1, min(MAX_BLOCK_RUNS, int(_GROUP_BYTES / (records * frame_bytes))))
        return cls(num_shards, records, runs)

    @property
    def run_items(self) -> int:
        """Items in a run."""
        return self.num_shards * self.chunk_records

    @property
    def max_chunk_bytes(self) -> int:
        """The most that a chunk may have to be shuffled."""
        return min(_MAX_CHUNK_BYTES, MAX_GROUP_BYTES // self.block_runs)

    def num_runs(self, num_items: int) -> int:
        """Return how many runs there are of T items."""
        return -(-num_items // self.run_items)

    def key(self, run: int, shard: int) -> int:
        """Return the key of the group that a chunk goes to."""
        return run // self.block_runs * self.num_shards + shard

    def block_and_shard(self, key: int) -> tuple[int, int]:
        """Return what a key stands for."""
        return divmod(key, self.num_shards)
