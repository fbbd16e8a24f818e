"""What a training job looks like, as far as it decides who reads what."""

from __future__ import annotations

from dataclasses import dataclass

from shardwriter.errors import OptionError


@dataclass(frozen=True)
class PlanOptions:
    """Who will read.

    Attributes:
        world: Ranks: processes that train together, each with its own share of the records.
        loader_workers: Loader processes of a rank; 0 for none, the rank reads by itself.
        batch_size: Records in a batch of one rank.
        drop_last: The loader drops batches that are not full.
        record_bytes: Mean bytes of a record with its frame, for sizes of shards; None where sizes
            do not matter.
        policies: Names of those that are of interest; all where there are none.
    """

    world: int = 1
    loader_workers: int = 1
    batch_size: int = 1
    drop_last: bool = False
    record_bytes: float | None = None
    policies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("world", 1), ("loader_workers", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise OptionError(f"{name} is {value!r}", hint=f"give a number from {least} on")
        size = self.record_bytes
        if size is not None and not (isinstance(size, (int, float)) and 0 < size < 2**63):
            raise OptionError(f"record_bytes is {size!r}", hint="give a number of bytes over 0")

    @property
    def num_lanes(self) -> int:
        """Streams of records that a rank reads side by side: its workers, or itself."""
        return max(1, self.loader_workers)

    @property
    def num_readers(self) -> int:
        """Streams of records in all."""
        return self.world * self.num_lanes
