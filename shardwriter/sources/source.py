"""Where items come from: the one seam between people's data and shardwriter.

A source lists *items*, cheap descriptors in a fixed order (a path with its label, a row number),
and turns one into features when asked. Listing is done once, in one place; loading is the heavy
part and is pure, so that it can be done anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats import Column, FrameBlock
from shardwriter.schema import FeatureSummary, FeatureType

__all__ = [
    "ClassSource",
    "ClosingSource",
    "ColumnSource",
    "FileSource",
    "FrameSource",
    "HoldingSource",
    "Item",
    "RecordSource",
    "Source",
    "TfdsSource",
    "WaitingSource",
    "DescribedSource",
    "WholeSource",
]

Item = Any
"""A source's own descriptor of an item; picklable."""


class Source(Protocol):
    """People's data, as items in a fixed order.

    Attributes:
        kind: The name that ``--format`` has for it.
        num_items: How many items there are; None where only the end tells.
        random_access: Whether :meth:`item` gives any item cheaply.
        travels: Whether :meth:`item` works in another process too, when this object is sent there.
            Where it does not, items are sent; :meth:`key` and :meth:`load` work anywhere.
        stable: Whether a second listing gives the same items in the same order.
        plan: Feature types known before the first item is loaded; empty where only loading tells.
            A SourceError where the items have no such types: a map is needed then.
        vocabularies: Names of the values of integer features, by feature.
        label: The feature that is the label, where the source has one.
        notes: What a person should know of this input (things left out, say), one line each.
        warnings: Where data was read in a way that may not be meant. A source may lack it.
    """

    kind: str
    num_items: int | None
    random_access: bool
    travels: bool
    stable: bool
    vocabularies: Mapping[str, list[str]]
    label: str | None
    notes: Sequence[str]

    @property
    def plan(self) -> Mapping[str, FeatureType]:
        """Feature types, by name; see above."""

    def items(self) -> Iterator[Item]:
        """Yield every item, in order."""

    def item(self, item_index: int) -> Item:
        """Return one item; only with ``random_access``."""

    def key(self, item: Item) -> str | None:
        """Return what a person calls the item: a relative path, ``row 7``."""

    def load(self, item: Item) -> Any:
        """Return the item's features, or the bytes of a finished record.

        Raises:
            SourceError: The item can not be read, or is not what it was when it was listed.
        """

    def digest(self) -> dict[str, Any]:
        """Return what identifies the data on any machine: keys and sizes, no paths or times."""

    def fingerprint(self) -> dict[str, Any]:
        """Return what tells on this machine that the data has changed: times too."""


@runtime_checkable
class ClassSource(Protocol):
    """A source that finds the names of its classes by looking, and numbers them."""

    classes: list[str]
    """In the order of their numbers, from 0; empty where items have no class."""

    def use_classes(self, classes: Sequence[str]) -> None:
        """Number the classes as they stand here; all that the source has are among them."""


@runtime_checkable
class ColumnSource(Protocol):
    """A source that gives the features of many items at once, in columns."""

    block_items: int
    """How many items to ask for at a time."""

    def load_columns(self, items: Sequence[Item]) -> dict[str, Column]:
        """Return what :meth:`Source.load` would return for each item, by feature."""


@runtime_checkable
class FileSource(Protocol):
    """A source whose items are files of their own, and can be loaded by several threads at once."""

    def size_bytes(self, item: Item) -> int:
        """Return the size of an item's file."""


@runtime_checkable
class HoldingSource(Protocol):
    """A source that may hold more than can be sent to another process."""

    def hold(self, *, skip_errors: bool) -> None:
        """Load items where the source is: what is sent is what they hold.

        Args:
            skip_errors: Whether the error of an item that can not be loaded is kept for whoever
                asks for it, and the items behind it come all the same.
        """


@runtime_checkable
class WholeSource(Protocol):
    """A source that is objects of the program, which stay there unless it is told otherwise."""

    def go_whole(self) -> None:
        """Have all of it go along where this object is sent."""


@runtime_checkable
class TfdsSource(Protocol):
    """A source whose features have other names in a TFDS dataset."""

    def use_tfds_names(self) -> None:
        """Give them those names; doing it again changes nothing."""


@runtime_checkable
class RecordSource(Protocol):
    """A source of finished records: they are copied as they are, and a map gets them decoded."""

    summaries: Mapping[str, FeatureSummary]
    """What the features of all records together are, where that is known."""

    labels: Mapping[str, Any] | None
    """How often each label is among all records, as a manifest has it; None where nobody knows."""

    def decode(self, record: bytes) -> Any:
        """Return the features of a record: a mapping, or a SequenceExample.

        Raises:
            SourceError: It is neither.
        """

    def reads(self, directory: str, name: str) -> bool:
        """Tell whether files of this dataset are read."""


@runtime_checkable
class ClosingSource(Protocol):
    """A source that may have started something: threads that wait for it, processes."""

    def close(self) -> None:
        """Give no items any more; closing twice does nothing."""


@runtime_checkable
class WaitingSource(Protocol):
    """A source that may have to wait for its items, and can do something meanwhile."""

    def while_waiting(self, meanwhile: Callable[[], None]) -> None:
        """Have a function called several times a second while an item is waited for."""


@runtime_checkable
class FrameSource(Protocol):
    """A source whose first items are frames of plain files: these can be moved as they are."""

    num_frames: int
    """How many of them are; 0 where none is."""

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the frames of as many of these items as are read at once, proven.

        Args:
            items: int64[n], n > 0: numbers of items below :attr:`num_frames`.

        Returns:
            Those of the first k of them, k > 0: in front of one that is damaged, or as many as a
            block has.

        Raises:
            SourceError: The first one is damaged, or can not be read.
        """


@runtime_checkable
class DescribedSource(Protocol):
    """A source of which a manifest says more than its kind and its digest."""

    def manifest_entries(self) -> dict[str, Any]:
        """Return that, as JSON; it is decided by the digest."""
