"""What is known of a damaged dataset: its files, its manifest, its index, and where records go.

Either the manifest or the index may be what is damaged. The manifest tells all but where records
begin; the index tells that too, and the number of items by itself, as shards and gaps together
follow the law. Without both nobody knows which item a record behind a loss is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.assignment import law_breach
from shardwriter.dataset.index import Index, columns
from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import DALI_INDEX_SUFFIX, ShardPattern, is_url
from shardwriter.errors import ManifestError, OptionError, StorageError
from shardwriter.formats.compressed_writer import ZLIB_TAIL_BYTES
from shardwriter.formats.compression import Compression
from shardwriter.sources.locate import find_one
from shardwriter.sources.shard_sets import MANIFEST_SUFFIX, Folder, ShardSet
from shardwriter.storage.local import storage_errors
from shardwriter.writing.index_files import open_index

_MOST_BYTES: Final = 1 << 62


@dataclass(frozen=True)
class Known:
    """A dataset as it lies there, and what is known of how it was.

    Attributes:
        directory: Where it lies.
        name: The dataset's name; for a file by itself that of the file.
        pattern: What the files' names follow; None for a file by itself.
        files: Path of each shard that is there, by number.
        manifest: The manifest, where it can be used.
        index: The index, where it can be used.
        num_items: T; None where neither of them tells.
        gaps: Sorted items without a record.
        notes: What was found wrong with manifest and index, and what lies beside.
    """

    directory: str
    name: str
    pattern: ShardPattern | None
    files: dict[int, str]
    manifest: Manifest | None = None
    index: Index | None = None
    num_items: int | None = None
    gaps: Sequence[int] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def is_lawful(self) -> bool:
        """Whether it is known which item each record is."""
        return self.num_items is not None

    @property
    def num_shards(self) -> int:
        """N: of a file by itself 1."""
        return 1 if self.pattern is None else self.pattern.num_shards

    @property
    def shards(self) -> range:
        """The numbers of all shards, there or not."""
        return range(self.num_shards)

    def path(self, shard: int) -> str:
        """Return where a shard lies, or should."""
        return self.files.get(shard) or os.path.join(self.directory, self.file_name(shard))

    def file_name(self, shard: int) -> str:
        """Return the name of a shard's file."""
        return self.name if self.pattern is None else self.pattern.shard_file(shard)

    def num_records(self, shard: int) -> int | None:
        """Return how many records a shard had; None where that is not known."""
        if self.manifest is not None:
            return self.manifest.shards[shard].num_records
        return None if self.index is None else self.index.num_records(shard)

    def file_bytes(self, shard: int) -> int | None:
        """Return the size that a shard's file had; None where that is not known."""
        if self.manifest is not None:
            return self.manifest.shards[shard].file_bytes
        if self.index is None:
            return None
        ends = self.index.ends(shard)
        if self.index.compression == "zlib":
            return int(ends[-1]) + ZLIB_TAIL_BYTES if len(ends) else None
        return int(ends[-1]) if len(ends) else 0

    def file_crc32c(self, shard: int) -> int | None:
        """Return the CRC-32C that a shard's file had; None where that is not known."""
        if self.manifest is None:
            return None
        told = self.manifest.shards[shard]
        return told.crc32c if told.file_crc32c is None else told.file_crc32c

    def rows(self, shard: int) -> NDArray[np.uint64] | None:
        """Return what the index has of a shard: uint64[1, n], or uint64[2, n] of a compressed one.

        None where there is no index.
        """
        return None if self.index is None else rows_of(self.index, shard)

    @property
    def compression(self) -> Compression | None:
        """What shards are compressed with; None where only the files tell."""
        if self.manifest is not None:
            found: Compression = self.manifest.compression["type"]
            return found
        return None if self.index is None else self.index.compression

    @property
    def has_dali_index(self) -> bool:
        """Whether ``.idx`` files lie beside shards."""
        return any(map(self.has_dali_index_of, self.shards))

    def has_dali_index_of(self, shard: int) -> bool:
        """Tell whether an ``.idx`` file lies beside a shard."""
        return os.path.exists(self.path(shard) + DALI_INDEX_SUFFIX)


def rows_of(index: Index, shard: int) -> NDArray[np.uint64]:
    """Return what an index has of a shard: uint64[1, n], or uint64[2, n] of a compressed one."""
    rows: NDArray[np.uint64]
    rows = np.frombuffer(index.rows(shard), "<u8").reshape(-1, columns(index.compression)).T
    return rows


def look(path: str) -> Known:
    """Find the one dataset that a path means, be its manifest damaged or not.

    Raises:
        OptionError: The path names nothing, several datasets, or what is at a URL.
        SourceError: There are no shards.
    """
    if is_url(path):
        raise OptionError(
            f"{path!r} is a URL, and repair reads local files",
            hint="copy the dataset to a local folder first",
        )
    notes: list[str] = []
    try:
        found = find_one(path)
    except ManifestError as error:
        found = _without_manifest(error)
        notes.append(f"{error.path}: {error.message}")
    notes += found.notes
    if found.manifest is not None:
        return _with_manifest(found, found.manifest, notes)
    if found.pattern is not None and not found.whole and len(found.shards) == 1:
        notes.append("one shard of several was named, and it is repaired by itself")
    known = Known(
        found.directory, found.name, found.pattern, dict(found.shards), None, None, notes=notes
    )
    if found.pattern is None or not found.whole:
        only = [os.path.basename(file) for _, file in found.shards]
        if len(only) == 1:
            return Known(
                found.directory, only[0], None, {0: found.shards[0][1]}, None, None, notes=notes
            )
    return _with_index(known)


def _without_manifest(error: ManifestError) -> ShardSet:
    """Return the shards beside a manifest that can not be used."""
    directory, file_name = os.path.split(error.path or "")
    name = file_name.removesuffix(MANIFEST_SUFFIX)
    folder = Folder(directory or ".", name)
    patterns = [pattern for pattern in folder.patterns if pattern.name == name]
    if len(patterns) != 1 or name == file_name:
        raise error
    shards = [
        (shard, os.path.join(directory or ".", file))
        for shard, file in folder.patterns[patterns[0]]
    ]
    return ShardSet(directory or ".", patterns[0], shards, whole=True)


def _with_manifest(found: ShardSet, manifest: Manifest, notes: list[str]) -> Known:
    files = dict(found.shards)
    if not found.whole:  # one shard was named, and the manifest tells of all
        everything = Folder(found.directory, manifest.name).patterns.get(manifest.pattern, [])
        files = {shard: os.path.join(found.directory, name) for shard, name in everything}
    index = None
    try:
        index = open_index(found.directory, manifest)
    except (ManifestError, StorageError) as error:
        notes.append(f"{error.path}: {error.message}")
    return Known(
        found.directory,
        manifest.name,
        manifest.pattern,
        files,
        manifest,
        index,
        manifest.num_items,
        manifest.gaps,
        notes,
    )


def _with_index(known: Known) -> Known:
    """Add what an index tells of a set without a manifest; nothing where it contradicts itself."""
    assert known.pattern is not None
    path = os.path.join(known.directory, known.pattern.index_file)
    if type(known.pattern) is not ShardPattern or not os.path.isfile(path):
        return known
    try:
        with storage_errors(path):
            index = Index(path)
        if len(index.counts) != known.num_shards:
            raise ManifestError(f"it is of {len(index.counts)} shards", path=path)
        for shard in known.shards:
            # The file may be damaged: what it had is not known.
            index.check_order(shard, _MOST_BYTES)
        gaps = index.gaps.astype(np.int64).tolist()
        counts = [index.num_records(shard) for shard in known.shards]
        num_items = sum(counts) + len(gaps)
        in_order = all(a < b for a, b in pairwise([-1, *gaps, num_items]))
        if not in_order or law_breach(counts, num_items, gaps) is not None:
            raise ManifestError("its counts do not follow the law", path=path)
    except (ManifestError, StorageError) as error:
        return Known(
            known.directory,
            known.name,
            known.pattern,
            known.files,
            notes=[*known.notes, f"{path}: {error.message}"],
        )
    return Known(
        known.directory,
        known.name,
        known.pattern,
        known.files,
        None,
        index,
        num_items,
        gaps,
        [*known.notes, "without the manifest nothing proves the index, which tells the items"],
    )
