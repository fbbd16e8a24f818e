"""The ``Source`` protocol: what shardwriter needs from a user's data, and optional additions.

A source lists *items*, cheap descriptors in a fixed order (a path with its label, a row number),
and loads an item as features. Loading is the expensive part; it has no side effects, so it runs in
any worker.

The other protocols are optional. A source implements one by having its members; the code that uses
them checks with ``isinstance``. Its docstring says who that is. A table of rows (csv, jsonl,
parquet, numpy, huggingface) implements `ColumnSource` only; images and sounds in files implement
`FileSource`, and `ClassSource` if they have classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwriter.formats import Column, FrameBlock
from shardwriter.schema import FeatureSummary, FeatureType

Item = Any
"""A source's own descriptor of an item; it pickles."""


class Source(Protocol):
    """A user's data, as items in a fixed order.

    Attributes:
        kind: Its format, as in ``--format``.
        num_items: The number of items; None if only reading to the end gives it.
        random_access: Whether :meth:`item` returns any item cheaply.
        sendable: Whether worker processes may call :meth:`item`. With ``random_access``, each
            worker then looks up the items of its shards by index. Otherwise the main process
            lists all items and sends each one to the worker that writes its shard. Either way the
            source is pickled for the workers, which call :meth:`key` and :meth:`load`; what only
            listing needs may be left out of the pickle if this is False.
        resumable: Whether another listing gives the same items in the same order.
        plan: Feature types known before the first item is loaded; empty if only loading gives them.
            A SourceError if the items have no such types, so that a map is needed.
        vocabularies: Names of the values of integer features, by feature.
        label: The feature that is the label, if there is one.
        notes: Remarks on this input for the user (such as files left out), one line each.

    A source may also have ``warnings``, a sequence of ``errors.DataWarning``: data that was read in
    a way that may not be intended. ``schema.warnings_of(source)`` looks it up.
    """

    kind: str
    num_items: int | None
    random_access: bool
    sendable: bool
    resumable: bool
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
        """Return a readable name of the item: a relative path, or ``row 7``."""

    def load(self, item: Item) -> Any:
        """Return the item's features, or the bytes of a complete record.

        Raises:
            SourceError: The item cannot be read, or has changed since it was listed.
        """

    def digest(self) -> dict[str, Any]:
        """Return what identifies the data on any machine: keys and sizes, no paths or times."""

    def fingerprint(self) -> dict[str, Any]:
        """Return what detects a change of the data on this machine: times, too."""


@runtime_checkable
class ClassSource(Protocol):
    """A source that detects the names of its classes and numbers them.

    ``splits.py`` gives the splits of a source the same numbers.
    """

    classes: list[str]
    """The class names, by number from 0; empty if items have no class."""

    def use_classes(self, classes: Sequence[str]) -> None:
        """Number the classes by their position in ``classes``, which has all of the source's."""


@runtime_checkable
class ColumnSource(Protocol):
    """A source that loads many items at once, in columns.

    Writing without a map encodes the columns, and ``--key`` reads its feature from them. Beam gives
    such sources to workers in chunks of neighbouring items.
    """

    block_items: int
    """How many items to load at a time."""

    def load_columns(self, items: Sequence[Item]) -> dict[str, Column]:
        """Return the features that :meth:`Source.load` returns for the items, as columns."""


@runtime_checkable
class FileSource(Protocol):
    """A source with one file per item; several threads may load items at once.

    Writing loads the next items in threads while it encodes one.
    """

    def size_bytes(self, item: Item) -> int:
        """Return the size of an item's file."""


@runtime_checkable
class PreloadingSource(Protocol):
    """A source that may be too large to be sent to another process, or not picklable.

    The process engine calls :meth:`preload` if it cannot pickle a ``sendable`` source.
    """

    def preload(self, *, skip_errors: bool) -> None:
        """Load items in this process while they are listed, and set ``sendable`` to False.

        Args:
            skip_errors: Store the error of an item that cannot be loaded, for the process that
                loads it, and continue with the next item.
        """


@runtime_checkable
class InMemorySource(Protocol):
    """A source of objects in memory, which are not pickled with it by default.

    Beam's workers need the objects; the process engine sends them as items.
    """

    def include_data(self) -> None:
        """Pickle the objects with the source."""


@runtime_checkable
class TfdsSource(Protocol):
    """A source whose features have other names in TFDS datasets; used with ``--tfds``."""

    def use_tfds_names(self) -> None:
        """Rename the features to these names; renaming again changes nothing."""


@runtime_checkable
class RecordSource(Protocol):
    """A source of complete records: they are copied as they are; a map gets them decoded.

    Writing, ``append`` and ``reshard`` use it; ``tfrecord`` is such a format.
    """

    summaries: Mapping[str, FeatureSummary]
    """Summaries of the features over all records, if known."""

    labels: Mapping[str, Any] | None
    """Counts of each label over all records, as in a manifest; None if unknown."""

    def decode(self, record: bytes) -> Any:
        """Return the features of a record: a mapping, or a SequenceExample.

        Raises:
            SourceError: It is not a valid Example or SequenceExample.
        """

    def reads(self, directory: str, name: str) -> bool:
        """Return whether the source reads files of this dataset."""


@runtime_checkable
class ClosingSource(Protocol):
    """A source with threads or processes of its own; a write stops them when it ends."""

    def close(self) -> None:
        """Stop giving items; closing twice does nothing."""


@runtime_checkable
class WaitingSource(Protocol):
    """A source that may wait for its next item, and can run a function while it waits.

    Writing reports progress and serves its workers in that time.
    """

    def while_waiting(self, meanwhile: Callable[[], None]) -> None:
        """Set a function to call several times a second while waiting for an item."""


@runtime_checkable
class FrameSource(Protocol):
    """A source that starts with frames of uncompressed files, which can be copied unparsed.

    Writing copies them in blocks if there is no map and shards are not compressed.
    """

    num_frames: int
    """How many of the first items are such frames; 0 if none is."""

    def frames(self, items: NDArray[np.int64]) -> FrameBlock:
        """Return the checked frames of as many of these items as one block holds.

        Args:
            items: int64[n], n > 0: item indices below :attr:`num_frames`.

        Returns:
            The frames of the first k items, k > 0: up to the first damaged one, or up to the size
            of a block.

        Raises:
            SourceError: The first one is damaged, or cannot be read.
        """


@runtime_checkable
class DescribedSource(Protocol):
    """A source with more to record in a manifest than its kind and its digest: ``append``'s."""

    def manifest_entries(self) -> dict[str, Any]:
        """Return these facts as JSON; they depend only on the data that the digest covers."""
