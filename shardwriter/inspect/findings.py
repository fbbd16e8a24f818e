"""A finding: a defect of a shard set, with the place where it is and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A defect, with the place where it is.

    Attributes:
        kind: The broken rule.
        path: The file.
        detail: What was found.
        record_index: Index in the file; None where the whole file is concerned, or where nobody
            knows how many records a break in front of it has swallowed.
        global_index: Index of the item in source order, where the file's name or manifest tell.
        offset: Byte offset of the frame in the uncompressed stream.
        shard_index: The shard, where the file's name tells.
        num_lost: Records that are lost; None where nobody knows.
        resync_offset: Where the next frame begins that is provably good, behind a break.
        num_recoverable: Good records behind the break, which only ``shardwriter repair`` finds.
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
        """Return the defect as JSON."""
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
