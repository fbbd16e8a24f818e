"""Finding datasets: which shard sets a path, a name, a notation or a glob means."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardwriter.errors import OptionError, SourceError
from shardwriter.manifest import Manifest, load_manifest
from shardwriter.naming import (
    DALI_INDEX_SUFFIX,
    MAX_SHARDS,
    TFRECORD_PARTS,
    ShardPattern,
    dataset_name,
    manifest_file,
    parse_shard_file,
    partial_dir,
)
from shardwriter.storage.local import storage_errors

_MANIFEST_SUFFIX: Final = ".manifest.json"
_INDEX_SUFFIX: Final = ".index"
_LEDGER_SUFFIX: Final = ".errors.jsonl"
_PARTS: Final = TFRECORD_PARTS | {"tfevents"}

# Reading is more lenient than writing: numbers of any width, padded or not.
_LOOSE_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<i>[0-9]{1,6})-of-(?P<n>[0-9]{1,6})(?P<ext>(?:\.[A-Za-z0-9_]+)*)", re.DOTALL
)
_NOTATION = re.compile(r"(?P<stem>[^@]+)@(?P<n>[1-9][0-9]{0,5}|auto|\*)(?:\.[A-Za-z0-9_]+)*")


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

    @property
    def is_complete(self) -> bool:
        """Whether every shard of the pattern is among these."""
        return self.pattern is not None and len(self.shards) == self.pattern.num_shards


def find_shard_sets(paths: Sequence[str]) -> list[ShardSet]:
    """Find what a person means.

    Args:
        paths: Each one a folder, a TFRecord file, a manifest, ``dir/train@16``, ``dir/train@*``,
            ``dir/train`` (a dataset's name), or a glob. Files of one pattern are one set. What lies
            beside shards (an index, a ledger of errors) stands for its dataset.

    Raises:
        OptionError: A path names nothing.
        SourceError: There are no shards where a path leads.
        ManifestError: A manifest can not be used.
        StorageError: A folder or a manifest can not be read.
    """
    sets: list[ShardSet] = []
    files: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            in_folder = _in_directory(path) or _by_name(path)
            if not in_folder:
                raise SourceError(
                    "no TFRecord shards are in this folder",
                    path=path,
                    hint="shards are files such as train.tfrecord-00000-of-00016",
                )
            sets += in_folder
        elif os.path.isfile(path):
            files.append(path)
        elif named := _by_name(path):
            sets += named
        else:
            _take_glob(path, sets, files)
    sets += _from_files([path for path in files if not _is_sidecar(path)])
    sets += _of_sidecars([path for path in files if _is_sidecar(path)], sets)
    sets = _without_repeats(sets)
    if not sets:
        raise SourceError("there are no TFRecord shards", path=", ".join(paths[:3]) or None)
    for shard_set in sets:
        if shard_set.pattern is not None:
            shard_set.notes += _unfinished(shard_set.directory, shard_set.name)
    return sets


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


# -- by path ---------------------------------------------------------------------------------------


def _in_directory(directory: str) -> list[ShardSet]:
    folder = _Folder(directory)
    names = {pattern.name for pattern in folder.patterns if _says_records(pattern)}
    names |= {f.removesuffix(_MANIFEST_SUFFIX) for f in folder.files if _is_manifest(f)}
    sets = [s for name in sorted(names) for s in folder.sets_of(name)]
    return sets + [
        ShardSet(directory, None, [(0, os.path.join(directory, f))])
        for f in folder.others
        if _looks_like_records(f)
    ]


def _by_name(path: str) -> list[ShardSet]:
    """Find the dataset of ``dir/train``, ``dir/train@16`` or ``dir/train@*``; none is no error."""
    directory, base = os.path.split(path)
    directory = directory or "."
    match = _NOTATION.fullmatch(base)
    stem = match["stem"] if match else base
    if not stem or not os.path.isdir(directory):
        return []
    sets = _Folder(directory).sets_of(dataset_name(stem))
    if not match or match["n"] in ("*", "auto"):
        return sets
    wanted = [s for s in sets if s.pattern and s.pattern.num_shards == int(match["n"])]
    if sets and not wanted and sets[0].pattern:
        raise SourceError(
            f"there are no {match['n']} shards of {stem!r}, but {sets[0].pattern.num_shards}",
            path=directory,
        )
    return wanted


def _take_glob(path: str, sets: list[ShardSet], files: list[str]) -> None:
    """Add what a glob means, folders and files; a path that is none names nothing."""
    directory, base = os.path.split(path)
    if "@" in base and not _NOTATION.fullmatch(base) and not glob.has_magic(base):
        raise OptionError(
            f"{base[:80]!r} is not NAME@N",
            hint=f"N is a number from 1 to {MAX_SHARDS:,}, or *, as in train@16",
        )
    found: list[str] = []
    if os.path.isdir(directory):  # which may have brackets in its own name
        found = sorted(glob.glob(os.path.join(glob.escape(directory), base)))
    found = found or sorted(glob.glob(path))
    if not found:
        missing = "there is no such file, folder or dataset"
        name = _NOTATION.sub(r"\g<stem>", base)
        raise OptionError(
            "no file matches this pattern" if glob.has_magic(path) else missing,
            path=path,
            hint="; ".join(_unfinished(directory, dataset_name(name))) or None,
        )
    folders = [name for name in found if os.path.isdir(name)]
    in_folders = [s for folder in folders for s in _in_directory(folder)]
    regular = [name for name in found if os.path.isfile(name)]
    if not in_folders and not regular:
        raise SourceError("this pattern matches folders without TFRecord shards", path=path)
    sets += in_folders
    files += regular


# -- by file ---------------------------------------------------------------------------------------


def _from_files(paths: Sequence[str]) -> list[ShardSet]:
    """Group files that were named one by one."""
    sets: list[ShardSet] = []
    by_place: dict[str, tuple[str, dict[str, str]]] = {}
    for path in paths:
        directory, name = os.path.split(path)
        directory = directory or "."
        if _is_manifest(name):
            sets += _Folder(directory).sets_of(name.removesuffix(_MANIFEST_SUFFIX))
        else:
            place = by_place.setdefault(os.path.abspath(directory), (directory, {}))
            place[1].setdefault(name, path)
    for directory, files in by_place.values():
        patterns, others = _by_pattern(files)
        for pattern, shards in patterns.items():
            # One shard alone was meant; several of one pattern are meant to be the set.
            whole = len(shards) > 1 or pattern.num_shards == 1
            named = [(shard, files[name]) for shard, name in shards]
            manifest = _manifest_of(directory, pattern)
            sets.append(ShardSet(directory, pattern, named, manifest, whole))
        sets += [ShardSet(directory, None, [(0, files[name])]) for name in others]
    return sets


def _is_sidecar(path: str) -> bool:
    return path.endswith((_INDEX_SUFFIX, DALI_INDEX_SUFFIX, _LEDGER_SUFFIX))


def _of_sidecars(paths: Sequence[str], sets: Sequence[ShardSet]) -> list[ShardSet]:
    """Return the datasets of files that lie beside shards, where nothing else has named them."""
    known = {(os.path.abspath(s.directory), s.name) for s in sets}
    beside = {directory for directory, _ in known}
    found: list[ShardSet] = []
    for path in paths:
        directory, file_name = os.path.split(path)
        directory = directory or "."
        place = os.path.abspath(directory)
        for suffix in (_INDEX_SUFFIX, DALI_INDEX_SUFFIX, _LEDGER_SUFFIX):
            file_name = file_name.removesuffix(suffix)
        parsed = _by_pattern([file_name])[0]
        name = next(iter(parsed)).name if parsed else file_name
        if (place, name) in known:
            continue
        known.add((place, name))
        folder = _Folder(directory)
        own = folder.sets_of(name)
        if not own and file_name in folder.others:
            own = [ShardSet(directory, None, [(0, os.path.join(directory, file_name))])]
        if not own and place not in beside:  # a shell that lists a folder names all that is in it
            raise SourceError("the shards that this file belongs to are not there", path=path)
        found += own
    return found


def _without_repeats(sets: list[ShardSet]) -> list[ShardSet]:
    """Drop sets that were named twice; where all shards were asked for too, only these stay."""
    kept: set[int] = set()
    seen: set[tuple[str, object]] = set()
    for candidate in sorted(sets, key=lambda s: not s.whole):
        paths = tuple(os.path.abspath(path) for _, path in candidate.shards)
        key = (os.path.abspath(candidate.directory), candidate.pattern or paths)
        if key not in seen:
            seen.add(key)
            kept.add(id(candidate))
    return [s for s in sets if id(s) in kept]


# -- what lies in a folder -------------------------------------------------------------------------


class _Folder:
    """The files of a folder, shards grouped by the pattern that they follow.

    Attributes:
        files: All names.
        patterns: Shard index and name of the shards of each pattern.
        others: Names that follow no pattern.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        with storage_errors(directory), os.scandir(directory) as entries:
            self.files = sorted(entry.name for entry in entries if entry.is_file())
        self.patterns, self.others = _by_pattern(self.files)

    def sets_of(self, name: str) -> list[ShardSet]:
        """Return a dataset's set; several where generations lie side by side, unexplained."""
        manifest = None
        if manifest_file(name) in self.files:
            manifest = _load(os.path.join(self.directory, manifest_file(name)))
        found = {
            pattern: shards
            for pattern, shards in self.patterns.items()
            if pattern.name == name and (_says_records(pattern) or _same_ending(pattern, manifest))
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


def _by_pattern(
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


def _says_records(pattern: ShardPattern) -> bool:
    """Tell shards of records from other files in parts: ``report-1-of-3.pdf``."""
    if not pattern.ext and not isinstance(pattern, LoosePattern):
        return True
    return not _PARTS.isdisjoint(f"{pattern.stem}{pattern.ext}".lower().split("."))


def _same_ending(pattern: ShardPattern, manifest: Manifest | None) -> bool:
    if manifest is None:
        return False
    return (pattern.stem, pattern.ext) == (manifest.pattern.stem, manifest.pattern.ext)


def _looks_like_records(file_name: str) -> bool:
    parts = file_name.lower().split(".")[1:]
    return DALI_INDEX_SUFFIX[1:] not in parts and not _PARTS.isdisjoint(parts)


def _is_manifest(file_name: str) -> bool:
    return file_name.endswith(_MANIFEST_SUFFIX)


def _load(path: str) -> Manifest:
    with storage_errors(path):
        return load_manifest(path)


def _manifest_of(directory: str, pattern: ShardPattern) -> Manifest | None:
    """Return the manifest that describes shards of a pattern, where there is one."""
    path = os.path.join(directory, pattern.manifest_file)
    if not os.path.isfile(path):
        return None
    manifest = _load(path)
    return manifest if manifest.pattern == pattern else None


def _unfinished(directory: str, name: str) -> list[str]:
    """Say what a writer that was interrupted has left of a dataset."""
    run = os.path.join(directory, partial_dir(name))
    if os.path.exists(os.path.join(run, "commit.json")):
        return [
            f"the publication of {name!r} was interrupted: the next write of this name finishes it"
        ]
    if os.path.exists(os.path.join(run, "run.json")):
        return [f"an unfinished run of {name!r} lies beside it ({run})"]
    return []
