"""Statistics of the byte strings of one feature: sizes, text or not, values, images."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, Final

import numpy as np

from shardwriter.inspect.feature_images import ImageStats
from shardwriter.inspect.ranges import Range
from shardwriter.inspect.sketches import DistinctValues, TopValues, hash_blobs

MAX_VALUE_BYTES: Final = 256  # longer values are no candidates for the most frequent ones
# Short values are held until there are so many, so that few at a time cost no more than many.
_FLUSH: Final = 1 << 14
_TEXT_BYTES: Final = 1024  # of a long value that are looked at to tell whether it is text


class BlobStats:
    """Statistics of byte strings.

    Attributes:
        sizes: In bytes.
        images: Those among them that are images.
        num_binary: Values that are not UTF-8, or have NULs; of long ones the beginning counts.
    """

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self.sizes = Range()
        self.images = ImageStats()
        self.num_binary = 0
        self._top = TopValues()  # of short values
        self._distinct = DistinctValues()  # of long values, and of short ones when they are many

    def add(self, values: Sequence[bytes]) -> None:
        """Add values; short ones may be held for a while."""
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        self.sizes.add_all(sizes)
        long = sizes > MAX_VALUE_BYTES
        if long.any():
            self._take_long(list(compress(values, long.tolist())))
            values = list(compress(values, (~long).tolist()))
        self._pending += values
        if len(self._pending) >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        """Count what is held; everything but `add` needs that before."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        counts = Counter(pending)
        if not _is_text(counts):
            self.num_binary += sum(n for value, n in counts.items() if not _is_text([value]))
        for value, count in counts.items():
            self.images.add(value, count)
        before = list(self._top.counts) if self._top.is_exact else []
        self._top.add(counts)
        if not self._top.is_exact:
            self._distinct.add(hash_blobs([*before, *counts]))

    def _take_long(self, values: list[bytes]) -> None:
        for value in values:
            self.images.add(value)
            self.num_binary += not _begins_as_text(value)
        self._distinct.add(hash_blobs(values))

    def merge(self, other: BlobStats) -> None:
        """Add the statistics of other values."""
        self.flush()
        other.flush()
        self.sizes.merge(other.sizes)
        self.images.merge(other.images)
        self.num_binary += other.num_binary
        exact = [top for top in (self._top, other._top) if top.is_exact]
        values = [value for top in exact for value in top.counts]
        self._top.merge(other._top)
        self._distinct.add(other._distinct.hashes)
        if not self._top.is_exact:
            self._distinct.add(hash_blobs(values))

    @property
    def is_text(self) -> bool:
        """Whether there are values and all are texts; `flush` first."""
        return self.num_binary == 0 and self.sizes.count > 0

    def top_counts(self) -> dict[bytes, int] | None:
        """Return all values with their counts; None where there are too many or too long ones."""
        self.flush()
        is_all = self._top.is_exact and not self._distinct.hashes.size
        return self._top.counts if is_all else None

    def num_distinct(self) -> tuple[int, int, int]:
        """Return how many different values there are, and bounds of it."""
        self.flush()
        found, low, high = self._distinct.estimate()
        if not self._top.is_exact:
            return found, low, high
        num_short = len(self._top.counts)
        return found + num_short, low + num_short, high + num_short

    def top(self, num_values: int) -> tuple[list[tuple[bytes, int]], int]:
        """Return the most frequent short values, with counts that may be too small by the last."""
        self.flush()
        return self._top.most_common(num_values), self._top.num_missed

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with nothing held."""
        self.flush()
        return self.__dict__


def blob_json(value: bytes) -> str | dict[str, str]:
    """Return a value for JSON: a text, or base64 of what is none."""
    if _is_text([value]):
        return value.decode()
    return {"base64": base64.b64encode(value).decode()}


def _is_text(values: Iterable[bytes]) -> bool:
    # A line feed ends no UTF-8 sequence, so one that is cut off stays wrong.
    joined = b"\n".join(values)
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in joined


def _begins_as_text(value: bytes) -> bool:
    head = value[:_TEXT_BYTES]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # The cut may go through the last letter.
        if len(head) == len(value) or error.end < len(head) or error.start < len(head) - 3:
            return False
    return b"\0" not in head
