"""The type `Finding`: a defect of a shard set, its location and the records that it loses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A defect of a shard set.

    Attributes:
        kind: The broken rule, such as ``payload-crc`` or ``missing-shard``.
        path: The file.
        detail: What was found.
        record_index: Index in the file; None for the whole file, or if a break before it lost an
            unknown number of records.
        global_index: Index of the item in source order, if known.
        offset: Byte offset of the frame in the uncompressed stream.
        shard_index: The shard, if the file's name gives it.
        num_lost: Lost records; None if unknown.
        resync_offset: Offset of the next good frame behind a break; None if there is none.
        num_recoverable: Good records behind the break, which only ``shardwriter repair`` recovers.
    """

    kind: str
    path: str
    detail: str
    record_index: int | None = None
    global_index: int | None = None
    offset: int | None = None
    shard_index: int | None = None
    num_lost: int | None = None
    resync_offset: int | None = None
    num_recoverable: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {
            "detail": self.detail,
            "global_index": self.global_index,
            "kind": self.kind,
            "num_lost": self.num_lost,
            "num_recoverable": self.num_recoverable,
            "offset": self.offset,
            "path": self.path,
            "record_index": self.record_index,
            "resync_offset": self.resync_offset,
            "shard_index": self.shard_index,
        }
