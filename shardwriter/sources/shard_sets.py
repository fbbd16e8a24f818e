"""What lies in a folder: shards grouped into the sets that they are, whoever wrote them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shardwriter.dataset.assignment import MOST_GAPS
from shardwriter.dataset.manifest import Manifest, parse_manifest
from shardwriter.dataset.naming import (
    DALI_INDEX_SUFFIX,
    MAX_SHARDS,
    TFRECORD_PARTS,
    ShardPattern,
    manifest_file,
    parse_shard_file,
)
from shardwriter.errors import SourceError
from shardwriter.formats.compression import SUFFIXES
from shardwriter.storage.inputs import inputs_for, split
from shardwriter.storage.local import storage_errors

MANIFEST_SUFFIX: Final = ".manifest.json"
_PARTS: Final = TFRECORD_PARTS | {"tfevents"}
_LEFTOVERS: Final = (".bak", ".tmp", ".temp", ".old", ".orig", ".part", ".partial", ".swp", "~")

# Reading is more lenient than writing: numbers of any width, padded or not.
_LOOSE_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<i>[0-9]{1,6})-of-(?P<n>[0-9]{1,6})(?P<ext>(?:\.[A-Za-z0-9_]+)*)", re.DOTALL
)


@dataclass(frozen=True)
class LoosePattern(ShardPattern):
    """Names of shards with fewer digits than ours: ``x-0-of-12``, ``x-0000-of-0012``. Read only.

    Attributes:
        width: Digits of the shard index, padded with zeros; 1 for no padding.
        total: N as the names spell it.
    """

    width: int = 1
    total: str = ""

    @property
    def template(self) -> str:
        """A shard's file name with ``{shard}`` for its index."""
        return f"{self.stem}-{{shard}}-of-{self.total}{self.ext}"

    def shard_file(self, shard_index: int) -> str:
        """Return the file name of shard ``shard_index``."""
        return f"{self.stem}-{shard_index:0{self.width}d}-of-{self.total}{self.ext}"


@dataclass
class ShardSet:
    """Files that belong together.

    Attributes:
        directory: Where they lie.
        pattern: What their names follow; None for files that follow none.
        shards: Shard index and path of the files that are there, in order of the index.
        manifest: Of the finished dataset, where it has one.
        whole: Whether all shards of the pattern were asked for, so that one that is not there is
            missing.
        others: Shards of the same dataset under other patterns: older or newer generations.
        notes: What is worth knowing of the place where they lie.
    """

    directory: str
    pattern: ShardPattern | None
    shards: list[tuple[int, str]]
    manifest: Manifest | None = None
    whole: bool = False
    others: dict[ShardPattern, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The dataset's name; for loose files the first one's."""
        if self.pattern is not None:
            return self.pattern.name
        return os.path.basename(self.shards[0][1]) if self.shards else ""

    @property
    def missing(self) -> list[int]:
        """Indices of shards that should be there and are not."""
        if self.pattern is None or not self.whole:
            return []
        have = {shard for shard, _ in self.shards}
        return [s for s in range(self.pattern.num_shards) if s not in have]

    def require_whole(self) -> None:
        """Refuse a set with shards that are not there.

        Raises:
            SourceError: Says which.
        """
        if self.missing:
            assert self.pattern is not None
            missing = ", ".join(map(str, self.missing[:5]))
            raise SourceError(
                f"of {self.pattern.num_shards} shards {len(self.missing)} are missing: {missing}",
                path=os.path.join(self.directory, self.name),
            )

    @property
    def is_complete(self) -> bool:
        """Whether every shard of the pattern is among these."""
        return self.pattern is not None and len(self.shards) == self.pattern.num_shards


class Folder:
    """The files of a folder, shards grouped by the pattern that they follow.

    Args:
        directory: The folder.
        prefix: What all names that matter begin with: an object store lists no others.

    Attributes:
        files: All names.
        patterns: Shard index and name of the shards of each pattern.
        others: Names that follow no pattern.
    """

    def __init__(self, directory: str, prefix: str = "") -> None:
        self.directory = directory
        with storage_errors(directory):
            entries = inputs_for(directory).listing(directory, prefix)
            self.files = sorted(entry.name for entry in entries if entry.is_file())
        self.patterns, self.others = by_pattern(self.files)

    def sets_of(self, name: str) -> list[ShardSet]:
        """Return a dataset's set; several where generations lie side by side, unexplained."""
        manifest = None
        if manifest_file(name) in self.files:
            manifest = load(os.path.join(self.directory, manifest_file(name)))
        found = {
            pattern: shards
            for pattern, shards in self.patterns.items()
            if pattern.name == name and (says_records(pattern) or _same_ending(pattern, manifest))
        }
        wanted = list(found) if manifest is None else [manifest.pattern]
        return [
            ShardSet(
                self.directory,
                pattern,
                [(s, os.path.join(self.directory, f)) for s, f in found.get(pattern, [])],
                manifest,
                True,
                {p: [s for s, _ in found[p]] for p in found if p != pattern},
            )
            for pattern in wanted
        ]


def by_pattern(
    file_names: Iterable[str],
) -> tuple[dict[ShardPattern, list[tuple[int, str]]], list[str]]:
    """Group file names by the pattern that they follow; also return those that follow none."""
    found: dict[ShardPattern, list[tuple[int, str]]] = {}
    others: list[str] = []
    loose: dict[tuple[str, str, str], list[str]] = {}
    for name in file_names:
        parsed = parse_shard_file(name)
        if parsed is not None and parsed.pattern.num_shards <= MAX_SHARDS:
            found.setdefault(parsed.pattern, []).append((parsed.shard_index, name))
            continue
        match = _LOOSE_SHARD.fullmatch(name)
        if (
            match is None
            or int(match["i"]) >= int(match["n"])
            or match["ext"].endswith(DALI_INDEX_SUFFIX)
        ):
            others.append(name)
        else:
            loose.setdefault((match["stem"], match["n"], match["ext"]), []).append(match["i"])
    for (stem, total, ext), texts in loose.items():
        # A zero in front tells the width; 10 may be of 01..10 or of 1..10.
        padded = {len(text) for text in texts if len(text) > 1 and text[0] == "0"}
        for text in texts:
            width = len(text) if len(text) in padded else 1
            pattern = LoosePattern(stem, int(total), ext, width, total)
            found.setdefault(pattern, []).append((int(text), pattern.shard_file(int(text))))
    order = sorted(found, key=lambda p: (p.stem, p.num_shards, p.ext, p.template))
    return {pattern: sorted(found[pattern]) for pattern in order}, others


def says_records(pattern: ShardPattern) -> bool:
    """Tell shards of records from other files in parts: ``report-1-of-3.pdf``."""
    ext = pattern.ext.lower().removesuffix(SUFFIXES["gzip"])
    if ext.endswith(_LEFTOVERS):
        return False
    if not ext and not isinstance(pattern, LoosePattern):
        return True
    return not _PARTS.isdisjoint(f"{pattern.stem}{ext}".lower().split("."))


def _same_ending(pattern: ShardPattern, manifest: Manifest | None) -> bool:
    if manifest is None:
        return False
    return (pattern.stem, pattern.ext) == (manifest.pattern.stem, manifest.pattern.ext)


def looks_like_records(file_name: str) -> bool:
    """Tell whether the name of a loose file is one of records."""
    name = file_name.lower()
    stem, *parts = name.removesuffix(SUFFIXES["gzip"]).split(".")
    if name.endswith(_LEFTOVERS) or DALI_INDEX_SUFFIX[1:] in parts:
        return False
    # Also data_tfrecord_eval.gz, which nothing but its stem tells.
    words = parts or {"tfrecord", "tfrecords"}.intersection(re.split("[_-]", stem))
    return not _PARTS.isdisjoint(words)


def is_manifest(file_name: str) -> bool:
    """Tell whether the name is that of a manifest."""
    return file_name.endswith(MANIFEST_SUFFIX)


def load(path: str) -> Manifest:
    """Read a manifest's file.

    Raises:
        ManifestError: It is malformed or contradicts itself.
        StorageError: It can not be read.
    """
    inputs = inputs_for(path)
    with storage_errors(path):
        _, text = inputs.read(path)
    manifest = parse_manifest(text, path)
    if len(manifest.gaps) <= MOST_GAPS:
        return manifest
    # Only so many gaps make it worth another request.
    index_path = os.path.join(split(path)[0], manifest.index.file)
    with storage_errors(index_path):
        index_bytes = inputs.stat(index_path).st_size if inputs.is_file(index_path) else 0
    return parse_manifest(text, path, index_bytes)


def manifest_of(directory: str, pattern: ShardPattern) -> Manifest | None:
    """Return the manifest that describes shards of a pattern, where there is one."""
    path = os.path.join(directory, pattern.manifest_file)
    if not inputs_for(path).is_file(path):
        return None
    manifest = load(path)
    return manifest if manifest.pattern == pattern else None
