"""The way of a file's records to those who look at them: in batches, or as a sample."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shardwriter.inspect.payloads import PayloadStats

SAMPLED_RECORDS: Final = 64  # of each file, to tell what kinds of records there are
SAMPLED_BYTES: Final = 1 << 18
_MOST_PAYLOADS: Final = 1 << 14
_MOST_PAYLOAD_BYTES: Final = 8 << 20


class PayloadFeed:
    """What is looked for in the records: all that was asked for, or their kinds in a sample.

    Args:
        features: Look at the features of every record.
        label: The feature whose values are counted in every record.
        label_sequence: How many labels are kept in their order.

    Attributes:
        wanted: More records are of use.
        stats: What was found; None where only a sample was wanted.
        kinds: How many records of the sample are of which kind.
    """

    def __init__(self, features: bool, label: str | None, label_sequence: int) -> None:
        self.stats: PayloadStats | None = None
        self.kinds: Counter[str] = Counter()
        self._batch: list[bytes] = []
        self._batch_bytes = self._sampled_bytes = 0
        self._next_index = 0
        self.wanted = True
        if features or label is not None:
            from shardwriter.inspect.payloads import PayloadStats

            self.stats = PayloadStats(features, label, label_sequence)

    @property
    def is_sample(self) -> bool:
        """Whether a few records are enough."""
        return self.stats is None

    def add(self, first_index: int, payloads: list[bytes]) -> None:
        """Take the next good records."""
        if self.stats is None:
            self._sample(payloads)
            return
        if first_index > self._next_index:
            self._hand_on()
            self.stats.skip(first_index - self._next_index)
        self._next_index = first_index + len(payloads)
        self._batch += payloads
        self._batch_bytes += sum(map(len, payloads))
        if len(self._batch) >= _MOST_PAYLOADS or self._batch_bytes >= _MOST_PAYLOAD_BYTES:
            self._hand_on()

    def pass_by(self, next_index: int) -> None:
        """Leave out a record that is too long to be looked at; a sample ends with it."""
        if self.stats is None:
            self.wanted = False
        else:
            self.add(next_index, [])

    def _sample(self, payloads: list[bytes]) -> None:
        from shardwriter.formats.record_kinds import payload_kind

        self.kinds.update(map(payload_kind, payloads))
        self._sampled_bytes += sum(map(len, payloads))
        num_sampled = sum(self.kinds.values())
        self.wanted = num_sampled < SAMPLED_RECORDS and self._sampled_bytes < SAMPLED_BYTES

    def _hand_on(self) -> None:
        if self._batch and self.stats is not None:
            self.stats.add(self._batch)
        self._batch, self._batch_bytes = [], 0

    def finish(self, num_passed: int) -> None:
        """Come to the end of a file of so many records, bad ones included."""
        self._hand_on()
        if self.stats is not None and num_passed > self._next_index:
            self.stats.skip(num_passed - self._next_index)
        if self.stats is not None:
            self.stats.finish()
