"""What the payloads of a file are and hold, in one decode: kinds, features, labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shardwriter.errors import WireError
from shardwriter.formats.example_bodies import SingleBlobs
from shardwriter.formats.example_columns_wire import decode_plain_parts, put_rows, to_column
from shardwriter.formats.example_wire import Values, decode_example
from shardwriter.formats.record_kinds import payload_kind
from shardwriter.formats.sequence_example import decode_sequence_example
from shardwriter.inspect.feature_stats import FeatureStats
from shardwriter.inspect.label_scan import MAX_SEQUENCE, LabelScan


class PayloadStats:
    """Statistics of the payloads of one file, or of several; picklable.

    Args:
        features: Gather the statistics of all features.
        label: The feature whose values are the labels; None for no labels.
        label_sequence: How many labels are kept in their order.

    Attributes:
        kinds: Records by what they are, see `inspection.kinds`.
        num_skipped: Records that were not looked at.
        features: None where they were not asked for.
        labels: None where no label was given.
    """

    def __init__(
        self, features: bool, label: str | None, label_sequence: int = MAX_SEQUENCE
    ) -> None:
        self.kinds: Counter[str] = Counter()
        self.num_skipped = 0
        self.features = FeatureStats() if features else None
        self.labels = None if label is None else LabelScan(label, label_sequence)

    @property
    def num_records(self) -> int:
        """Records that were added or skipped."""
        return self.kinds.total() + self.num_skipped

    def add(self, payloads: Sequence[bytes]) -> None:
        """Add the payloads of consecutive records."""
        if not payloads:
            return
        parts, plain = decode_plain_parts(payloads)
        odd = np.flatnonzero(~plain).tolist()
        num_records = len(payloads) - len(odd)
        if num_records:
            self.kinds["Example"] += num_records
        if odd:
            rows, lists = self._decode_odd(payloads, odd)
            parts = put_rows(parts, rows)
            num_records += len(rows)
            if self.features is not None:
                self.features.add_lists(lists)
        if self.features is not None:
            self.features.add({name: part.cells for name, part in parts.items()}, num_records)
        if self.labels is not None:
            part = parts.get(self.labels.feature)
            column = None if part is None else to_column(part, len(payloads))
            if isinstance(column, SingleBlobs):
                column = column.in_lists()
            self.labels.add(column, len(payloads))

    def _decode_odd(
        self, payloads: Sequence[bytes], odd: Sequence[int]
    ) -> tuple[dict[int, dict[str, Values | None]], list[dict[str, list[Values | None]]]]:
        """Read records that are not plain Examples.

        Returns:
            The features of those that have any, by row; and the feature lists of SequenceExamples.
        """
        rows: dict[int, dict[str, Values | None]] = {}
        lists = []
        for row in odd:
            kind = payload_kind(payloads[row])
            self.kinds[kind] += 1
            try:
                if kind == "Example":
                    rows[row] = decode_example(payloads[row])
                elif kind == "SequenceExample":
                    rows[row], found = decode_sequence_example(payloads[row])
                    lists.append(found)
            except WireError:  # the kind was wrong: count what is sure
                self.kinds[kind] -= 1
                self.kinds["bytes"] += 1
        return rows, lists

    def finish(self) -> None:
        """Let go of what only adding needs."""
        if self.features is not None:
            self.features.flush()
        if self.labels is not None:
            self.labels.finish()

    def skip(self, num_records: int) -> None:
        """Count records that are not looked at."""
        self.num_skipped += num_records

    def merge(self, other: PayloadStats) -> None:
        """Add the following piece of the same file, or another file."""
        self.kinds.update(other.kinds)
        self.num_skipped += other.num_skipped
        if self.features is not None and other.features is not None:
            self.features.merge(other.features)
        if self.labels is not None and other.labels is not None:
            self.labels.merge(other.labels)
