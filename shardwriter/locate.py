"""Finding datasets: which shard sets a path, a name, a notation or a glob means."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardwriter.errors import OptionError, SourceError
from shardwriter.manifest import Manifest, load_manifest
from shardwriter.naming import (
    DALI_INDEX_SUFFIX,
    ShardPattern,
    dataset_name,
    generations,
    manifest_file,
    parse_shard_file,
)

_MANIFEST_SUFFIX = ".manifest.json"
_INDEX_SUFFIX = ".index"
_LEDGER_SUFFIX = ".errors.jsonl"


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
    """

    directory: str
    pattern: ShardPattern | None
    shards: list[tuple[int, str]]
    manifest: Manifest | None = None
    whole: bool = False
    others: dict[ShardPattern, list[int]] = field(default_factory=dict)

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


def find_shard_sets(paths: Sequence[str]) -> list[ShardSet]:
    """Find what a person means.

    Args:
        paths: Each one a folder, a TFRecord file, a manifest, ``dir/train@16``, ``dir/train@*``,
            ``dir/train`` (a dataset's name), or a glob. Files of one pattern are one set.

    Raises:
        SourceError: Nothing is there.
        ManifestError: A manifest can not be used.
    """
    sets: list[ShardSet] = []
    files: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            sets += _in_directory(path)
        elif os.path.isfile(path):
            files.append(path)
        elif glob.has_magic(path) and "@" not in os.path.basename(path):
            found = sorted(glob.glob(path))
            if not found:
                raise SourceError("no file matches this pattern", path=path)
            files += [name for name in found if os.path.isfile(name)]
        else:
            sets += _by_name(path)
    sets += _from_files(files)
    return _without_repeats(sets)


def find_one(path: str) -> ShardSet:
    """Find the one shard set that a path means.

    Raises:
        OptionError: It means several.
    """
    sets = find_shard_sets([path])
    if len(sets) != 1:
        names = ", ".join(s.name for s in sets[:5])
        raise OptionError(f"{path} holds {len(sets)} datasets ({names})", hint="name one of them")
    return sets[0]


def _in_directory(directory: str) -> list[ShardSet]:
    files = _names(directory)
    names = {parsed.pattern.name for parsed in map(parse_shard_file, files) if parsed is not None}
    names |= {f.removesuffix(_MANIFEST_SUFFIX) for f in files if f.endswith(_MANIFEST_SUFFIX)}
    sets = [s for name in sorted(names) for s in _generation_sets(directory, files, name)]
    sets += [
        ShardSet(directory, None, [(0, os.path.join(directory, f))])
        for f in files
        if parse_shard_file(f) is None and _looks_like_records(f)
    ]
    if not sets:
        raise SourceError(
            "no TFRecord shards are in this folder",
            path=directory,
            hint="shards are files such as train.tfrecord-00000-of-00016",
        )
    return sets


def _by_name(path: str) -> list[ShardSet]:
    """Find the dataset of ``dir/train``, ``dir/train@16`` or ``dir/train@*``."""
    directory, base = os.path.split(path)
    stem, at, rest = base.partition("@")
    directory = directory or "."
    files = _names(directory) if os.path.isdir(directory) else []
    sets = _generation_sets(directory, files, dataset_name(stem))
    if at:
        number = rest.partition(".")[0]
        if number not in ("*", "auto"):
            if not number.isdigit():
                raise OptionError(f"{base!r} is not NAME@N")
            wanted = [s for s in sets if s.pattern and s.pattern.num_shards == int(number)]
            if sets and not wanted and sets[0].pattern:
                raise SourceError(
                    f"there are no {number} shards of {stem!r}, but {sets[0].pattern.num_shards}",
                    path=directory,
                )
            sets = wanted
    if not sets:
        raise SourceError("there is no such file, folder or dataset", path=path)
    return sets


def _generation_sets(directory: str, files: Sequence[str], name: str) -> list[ShardSet]:
    """Return the dataset's set; more than one where generations lie side by side, unexplained."""
    found = generations(files, name)
    manifest = None
    if manifest_file(name) in files:
        manifest = load_manifest(os.path.join(directory, manifest_file(name)))
        others = {p: shards for p, shards in found.items() if p != manifest.pattern}
        shards = found.get(manifest.pattern, [])
        return [_set(directory, manifest.pattern, shards, manifest, others)]
    return [
        _set(directory, pattern, shards, None, {p: s for p, s in found.items() if p != pattern})
        for pattern, shards in found.items()
    ]


def _set(
    directory: str,
    pattern: ShardPattern,
    shards: Iterable[int],
    manifest: Manifest | None,
    others: dict[ShardPattern, list[int]],
) -> ShardSet:
    paths = [(s, os.path.join(directory, pattern.shard_file(s))) for s in shards]
    return ShardSet(directory, pattern, paths, manifest, True, others)


def _from_files(paths: Sequence[str]) -> list[ShardSet]:
    """Group files that were named one by one."""
    sets: list[ShardSet] = []
    grouped: dict[tuple[str, ShardPattern], list[tuple[int, str]]] = {}
    for path in paths:
        directory, name = os.path.split(path)
        directory = directory or "."
        if name.endswith(_MANIFEST_SUFFIX):
            sets += _generation_sets(
                directory, _names(directory), name.removesuffix(_MANIFEST_SUFFIX)
            )
            continue
        if name.endswith((_INDEX_SUFFIX, DALI_INDEX_SUFFIX, _LEDGER_SUFFIX)):
            continue
        parsed = parse_shard_file(name)
        if parsed is None:
            sets.append(ShardSet(directory, None, [(0, path)]))
        else:
            grouped.setdefault((directory, parsed.pattern), []).append((parsed.shard_index, path))
    for (directory, pattern), shards in grouped.items():
        # One shard alone was meant; several of one pattern are meant to be the set.
        whole = len(shards) > 1 or pattern.num_shards == 1
        sets.append(ShardSet(directory, pattern, sorted(shards), None, whole))
    return sets


def _without_repeats(sets: list[ShardSet]) -> list[ShardSet]:
    """Drop sets that a manifest, named too, has covered."""
    covered = {(os.path.abspath(s.directory), s.pattern) for s in sets if s.manifest is not None}
    kept: list[ShardSet] = []
    seen: set[tuple[str, object]] = set()
    for candidate in sets:
        place = os.path.abspath(candidate.directory)
        if candidate.manifest is None and (place, candidate.pattern) in covered:
            continue
        paths = tuple(os.path.abspath(path) for _, path in candidate.shards)
        key = (place, candidate.pattern or paths)
        if key not in seen:
            seen.add(key)
            kept.append(candidate)
    return kept


def _names(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())
    except OSError as error:
        raise SourceError(f"can not be listed: {error.strerror}", path=directory) from error


def _looks_like_records(file_name: str) -> bool:
    parts = file_name.lower().split(".")[1:]
    kinds = {"tfrecord", "tfrecords", "tfrec", "tfr", "record", "records", "tfevents"}
    return DALI_INDEX_SUFFIX[1:] not in parts and not kinds.isdisjoint(parts)
