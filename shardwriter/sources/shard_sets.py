"""Shard sets: the TFRecord files of a folder, grouped by dataset, whichever program wrote them.

Folder             the files of a folder, grouped by name pattern
find_shard_sets    the sets that a path, a name, ``NAME@N`` or a glob refers to
load_manifest      the manifest of such a dataset
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    MAX_EXPANDED_GAPS,
    MAX_SHARDS,
    TFRECORD_PARTS,
    Manifest,
    ShardPattern,
    dataset_name,
    is_url,
    manifest_file,
    parse_manifest,
    parse_shard_file,
    partial_dir,
)
from shardwriter.errors import ManifestError, OptionError, RunError, SourceError
from shardwriter.formats import SUFFIXES
from shardwriter.storage import absolute, inputs_for, lock_owner, split, storage_errors

MANIFEST_SUFFIX: Final = ".manifest.json"
_PARTS: Final = TFRECORD_PARTS | {"tfevents"}
_LEFTOVERS: Final = (".bak", ".tmp", ".temp", ".old", ".orig", ".part", ".partial", ".swp", "~")

# Reading is more lenient than writing: indices with any number of digits, padded or not.
_LOOSE_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<i>[0-9]{1,6})-of-(?P<n>[0-9]{1,6})(?P<ext>(?:\.[A-Za-z0-9_]+)*)", re.DOTALL
)


@dataclass(frozen=True)
class LoosePattern(ShardPattern):
    """Shard names with fewer digits than shardwriter writes: ``x-0-of-12``, ``x-0000-of-0012``.

    Attributes:
        width: Digits of the shard index, padded with zeros; 1 for no padding.
        total: The number of shards as in the names.
    """

    width: int = 1
    total: str = ""

    @property
    def template(self) -> str:
        """A shard's file name, with ``{shard}`` in place of its index."""
        return f"{self.stem}-{{shard}}-of-{self.total}{self.ext}"

    def shard_file(self, shard_index: int) -> str:
        """Return the file name of shard ``shard_index``."""
        return f"{self.stem}-{shard_index:0{self.width}d}-of-{self.total}{self.ext}"


@dataclass
class ShardSet:
    """The shards of one dataset, or one loose file.

    Attributes:
        directory: Their folder.
        pattern: The pattern of their names; None for a loose file.
        shards: Shard index and path of the existing files, in order of the index.
        manifest: The manifest of the complete dataset, if it has one.
        whole: Whether all shards of the pattern are meant, so that a missing file is an error.
        others: Shards of the same dataset under other patterns: older or newer generations.
        notes: Remarks on their folder, for the user.
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
        """The dataset's name; for a loose file, its file name."""
        if self.pattern is not None:
            return self.pattern.name
        return os.path.basename(self.shards[0][1]) if self.shards else ""

    @property
    def missing(self) -> list[int]:
        """Indices of shards that are expected but do not exist."""
        if self.pattern is None or not self.whole:
            return []
        found = {shard for shard, _ in self.shards}
        return [s for s in range(self.pattern.num_shards) if s not in found]

    def require_whole(self) -> None:
        """Raise if shards are missing.

        Raises:
            SourceError: Shards are missing; the message lists them.
        """
        if self.missing:
            assert self.pattern is not None
            missing = ", ".join(map(str, self.missing[:5]))
            raise SourceError(
                f"{len(self.missing)} of {self.pattern.num_shards} shards are missing: {missing}",
                path=os.path.join(self.directory, self.name),
            )

    @property
    def is_complete(self) -> bool:
        """Whether every shard of the pattern is in the set."""
        return self.pattern is not None and len(self.shards) == self.pattern.num_shards


class Folder:
    """The files of a folder, shards grouped by name pattern.

    Args:
        directory: The folder.
        prefix: Only names with this prefix are needed; an object store lists no others.

    Attributes:
        files: All file names.
        patterns: Shard index and file name of each shard, by pattern.
        others: File names that match no pattern.
    """

    def __init__(self, directory: str, prefix: str = "") -> None:
        self.directory = directory
        with storage_errors(directory):
            entries = inputs_for(directory).listing(directory, prefix)
            self.files = sorted(entry.name for entry in entries if entry.is_file())
        self.patterns, self.others = by_pattern(self.files)

    def sets_of(self, name: str) -> list[ShardSet]:
        """Return the set of a dataset; several if generations exist and no manifest selects one."""
        manifest = None
        if manifest_file(name) in self.files:
            manifest = read_manifest(os.path.join(self.directory, manifest_file(name)))
        found = {
            pattern: shards
            for pattern, shards in self.patterns.items()
            if pattern.name == name
            and (is_record_pattern(pattern) or _same_ending(pattern, manifest))
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
    """Group file names by pattern; also return the names that match no pattern."""
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
        # A leading zero implies the width; 10 may be of 01..10 or of 1..10.
        padded = {len(text) for text in texts if len(text) > 1 and text[0] == "0"}
        for text in texts:
            width = len(text) if len(text) in padded else 1
            pattern = LoosePattern(stem, int(total), ext, width, total)
            found.setdefault(pattern, []).append((int(text), pattern.shard_file(int(text))))
    order = sorted(found, key=lambda p: (p.stem, p.num_shards, p.ext, p.template))
    return {pattern: sorted(found[pattern]) for pattern in order}, others


def is_record_pattern(pattern: ShardPattern) -> bool:
    """Return whether a pattern names shards of records, unlike ``report-1-of-3.pdf``."""
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
    """Return whether a loose file has a name of a record file."""
    name = file_name.lower()
    stem, *parts = name.removesuffix(SUFFIXES["gzip"]).split(".")
    if name.endswith(_LEFTOVERS) or DALI_INDEX_SUFFIX[1:] in parts:
        return False
    # Includes data_tfrecord_eval.gz, which only the stem identifies.
    words = parts or {"tfrecord", "tfrecords"}.intersection(re.split("[_-]", stem))
    return not _PARTS.isdisjoint(words)


def is_manifest(file_name: str) -> bool:
    """Return whether a file name is that of a manifest."""
    return file_name.endswith(MANIFEST_SUFFIX)


def read_manifest(path: str) -> Manifest:
    """Read a manifest file.

    Raises:
        ManifestError: It is malformed or inconsistent.
        StorageError: It cannot be read.
    """
    inputs = inputs_for(path)
    with storage_errors(path):
        _, text = inputs.read(path)
    manifest = parse_manifest(text, path)
    if len(manifest.gaps) <= MAX_EXPANDED_GAPS:
        return manifest
    # Only this many gaps justify a request for the size of the index.
    index_path = os.path.join(split(path)[0], manifest.index.file)
    with storage_errors(index_path):
        index_bytes = inputs.stat(index_path).st_size if inputs.is_file(index_path) else 0
    return parse_manifest(text, path, index_bytes)


def manifest_of(directory: str, pattern: ShardPattern) -> Manifest | None:
    """Return the manifest that describes shards of this pattern; None if there is none."""
    path = os.path.join(directory, pattern.manifest_file)
    if not inputs_for(path).is_file(path):
        return None
    manifest = read_manifest(path)
    return manifest if manifest.pattern == pattern else None


_INDEX_SUFFIX: Final = ".index"
_LEDGER_SUFFIXES: Final = (".errors.jsonl", ".lost.jsonl")

_NOTATION = re.compile(r"(?P<stem>[^@]+)@(?P<n>[1-9][0-9]{0,5}|auto|\*)(?:\.[A-Za-z0-9_]+)*")


def find_shard_sets(paths: Sequence[str]) -> list[ShardSet]:
    """Find the shard sets that paths refer to.

    Args:
        paths: Each one a folder, a TFRecord file, a manifest, ``dir/train@16``, ``dir/train@*``,
            ``dir/train`` (a dataset's name), or a glob. Files of one pattern are one set. A sidecar
            (an index, an error log) refers to its dataset.

    Raises:
        OptionError: A path matches nothing.
        SourceError: A path has no shards.
        ManifestError: A manifest cannot be used.
        StorageError: A folder or a manifest cannot be read.
        RunError: A dataset is being published at the moment.
    """
    sets: list[ShardSet] = []
    files: list[str] = []
    for path in paths:
        inputs = inputs_for(path)
        if inputs.is_directory(path):
            in_folder = _in_directory(path) or _by_name(path)
            if not in_folder:
                notes = [note for name in _runs_in(path) for note in _unfinished(path, name)]
                raise SourceError(
                    "no TFRecord shards in this folder",
                    path=path,
                    hint="; ".join(notes)
                    or "shards are files such as train.tfrecord-00000-of-00016",
                )
            sets += in_folder
        elif inputs.is_file(path):
            files.append(path)
        elif named := _by_name(path):
            sets += named
        else:
            _add_glob(path, sets, files)
    sets += _from_files([path for path in files if not _is_sidecar(path)])
    sets += _of_sidecars([path for path in files if _is_sidecar(path)], sets)
    sets = _without_repeats(sets)
    if not sets:
        raise SourceError("no TFRecord shards", path=", ".join(paths[:3]) or None)
    for shard_set in sets:
        if shard_set.pattern is not None:
            shard_set.notes += _unfinished(shard_set.directory, shard_set.name)
    return sets


def find_one(path: str) -> ShardSet:
    """Find the one shard set that a path refers to.

    Raises:
        OptionError: It refers to several.
        RunError: Its publication was interrupted, or is in progress.
    """
    sets = find_shard_sets([path])
    if len(sets) != 1:
        first = sets[0]
        if len({s.name for s in sets}) == 1 and _is_committed(first.directory, first.name):
            raise RunError(
                f"the publication of {first.name!r} was interrupted, so there are shards of two "
                "runs",
                path=os.path.join(first.directory, partial_dir(first.name)),
                hint="run the same write command with --resume to finish the publication",
            )
        names = ", ".join(s.name for s in sets[:5])
        hint = "give the name of one of them"
        if all(shard_set.pattern is None for shard_set in sets):
            hint += ", or write them as shards first: `shardwriter write` accepts them as source"
        raise OptionError(f"{path} holds {len(sets)} datasets ({names})", hint=hint)
    return sets[0]


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of a dataset.

    Args:
        path: The dataset (``out/train`` or ``out/train@16``), a folder with a single dataset, a
            file of it, or the manifest itself (``out/train.manifest.json``); also a URL.

    Raises:
        SourceError: There is no such dataset.
        OptionError: The folder has several datasets.
        ManifestError: The dataset has no manifest, or an invalid one.
        StorageError: It cannot be read.
    """
    path = os.fspath(path)
    inputs = inputs_for(path)
    if inputs.is_file(path) and path.endswith(".json"):
        return read_manifest(path)
    if not inputs.exists(path) and not _by_name(path):
        raise SourceError(
            "there is no such dataset, folder or manifest",
            path=path,
            hint="give a dataset (out/train), its folder, or its out/train.manifest.json",
        )
    return required_manifest(find_one(path))


def required_manifest(shard_set: ShardSet) -> Manifest:
    """Return the manifest of a set; raise if it has none.

    Raises:
        ManifestError: The set has no manifest.
    """
    if shard_set.manifest is None:
        raise ManifestError(
            f"{shard_set.name!r} has no manifest to compare it with",
            path=shard_set.directory,
            hint="; ".join(shard_set.notes)
            or "it is unfinished, or from another tool: shard-stats checks its checksums",
        )
    return shard_set.manifest


# -- by path ---------------------------------------------------------------------------------------


def _in_directory(directory: str) -> list[ShardSet]:
    folder = Folder(directory)
    names = {pattern.name for pattern in folder.patterns if is_record_pattern(pattern)}
    names |= {f.removesuffix(MANIFEST_SUFFIX) for f in folder.files if is_manifest(f)}
    sets = [s for name in sorted(names) for s in folder.sets_of(name)]
    return sets + [
        ShardSet(directory, None, [(0, os.path.join(directory, f))])
        for f in folder.others
        if looks_like_records(f)
    ]


def _by_name(path: str) -> list[ShardSet]:
    """Find the dataset of ``dir/train``, ``dir/train@16`` or ``dir/train@*``; [] if none."""
    directory, base = split(path)
    directory = directory or "."
    match = _NOTATION.fullmatch(base)
    stem = match["stem"] if match else base
    if not stem or not inputs_for(directory).is_directory(directory):
        return []
    sets = Folder(directory, dataset_name(stem)).sets_of(dataset_name(stem))
    if not match or match["n"] in ("*", "auto"):
        return sets
    wanted = [s for s in sets if s.pattern and s.pattern.num_shards == int(match["n"])]
    if sets and not wanted and sets[0].pattern:
        _unfinished(directory, sets[0].name)  # raises while it is being replaced
        raise SourceError(
            f"{stem!r} has {sets[0].pattern.num_shards} shards, not {match['n']}",
            path=directory,
            hint=f"omit the number: {os.path.join(directory, stem)}",
        )
    return wanted


def _add_glob(path: str, sets: list[ShardSet], files: list[str]) -> None:
    """Add the folders and files that a glob matches; raise for a path that matches nothing."""
    directory, base = split(path)
    if "@" in base and not _NOTATION.fullmatch(base) and not glob.has_magic(base):
        raise OptionError(
            f"{base[:80]!r} is not NAME@N",
            hint=f"N is a number from 1 to {MAX_SHARDS:,}, or *, as in train@16",
        )
    found: list[str] = []
    inputs = inputs_for(path)
    if inputs.is_directory(directory):  # its name may have brackets
        found = inputs.glob(os.path.join(glob.escape(directory), base))
    found = found or inputs.glob(path)
    if not found:
        missing = "there is no such file, folder or dataset"
        name = _NOTATION.sub(r"\g<stem>", base)
        raise OptionError(
            "no file matches this pattern" if glob.has_magic(path) else missing,
            path=path,
            hint="; ".join(
                [
                    *_unfinished(directory, dataset_name(name)),
                    *_splits_of(directory, dataset_name(name)),
                ]
            )
            or None,
        )
    folders = [name for name in found if inputs.is_directory(name)]
    in_folders = [s for folder in folders for s in _in_directory(folder)]
    regular = [name for name in found if inputs.is_file(name)]
    if not in_folders and not regular:
        what = "a folder without TFRecord shards" if folders else "a pipe or a device, not a file"
        raise SourceError(f"this is {what}", path=path)
    sets += in_folders
    files += regular


def _splits_of(directory: str, name: str) -> list[str]:
    """Return a hint that lists the splits of a name; [] if there are none."""
    directory = directory or "."
    if not name or glob.has_magic(name) or not inputs_for(directory).is_directory(directory):
        return []
    folder = Folder(directory, f"{name}-")
    names = sorted({p.name for p in folder.patterns if p.name.startswith(f"{name}-")})
    shown = [os.path.join(directory, each) for each in names[:5]]
    return [f"there are its splits: {', '.join(shown)}"] if names else []


# -- by file ---------------------------------------------------------------------------------------


def _from_files(paths: Sequence[str]) -> list[ShardSet]:
    """Group files that were given one by one."""
    sets: list[ShardSet] = []
    by_place: dict[str, tuple[str, dict[str, str]]] = {}
    for path in paths:
        directory, name = split(path)
        directory = directory or "."
        if is_manifest(name):
            name = name.removesuffix(MANIFEST_SUFFIX)
            sets += Folder(directory, name).sets_of(name)
        else:
            place = by_place.setdefault(absolute(directory), (directory, {}))
            place[1].setdefault(name, path)
    for directory, files in by_place.values():
        patterns, others = by_pattern(files)
        for pattern, shards in patterns.items():
            # A single shard is meant by itself; several of one pattern are meant as the set.
            whole = len(shards) > 1 or pattern.num_shards == 1
            named = [(shard, files[name]) for shard, name in shards]
            manifest = manifest_of(directory, pattern)
            sets.append(ShardSet(directory, pattern, named, manifest, whole))
        sets += [ShardSet(directory, None, [(0, files[name])]) for name in others]
    return sets


def _is_sidecar(path: str) -> bool:
    return path.endswith((_INDEX_SUFFIX, DALI_INDEX_SUFFIX, *_LEDGER_SUFFIXES))


def _of_sidecars(paths: Sequence[str], sets: Sequence[ShardSet]) -> list[ShardSet]:
    """Return the datasets of sidecar files, unless other paths refer to them."""
    known = {(absolute(s.directory), s.name) for s in sets}
    beside = {directory for directory, _ in known}
    found: list[ShardSet] = []
    for path in paths:
        directory, file_name = split(path)
        directory = directory or "."
        place = absolute(directory)
        for suffix in (_INDEX_SUFFIX, DALI_INDEX_SUFFIX, *_LEDGER_SUFFIXES):
            file_name = file_name.removesuffix(suffix)
        parsed = by_pattern([file_name])[0]
        name = next(iter(parsed)).name if parsed else file_name
        if (place, name) in known:
            continue
        known.add((place, name))
        folder = Folder(directory)
        own = folder.sets_of(name)
        if not own and file_name in folder.others:
            own = [ShardSet(directory, None, [(0, os.path.join(directory, file_name))])]
        if not own and place not in beside:  # `*` in a shell lists sidecars together with shards
            raise SourceError("the shards of this file are missing", path=path)
        found += own
    return found


def _without_repeats(sets: list[ShardSet]) -> list[ShardSet]:
    """Drop repeated sets; of a repeated set, prefer the one that requires all shards."""
    chosen: set[int] = set()
    seen: set[tuple[str, object]] = set()
    for candidate in sorted(sets, key=lambda s: not s.whole):
        paths = tuple(absolute(path) for _, path in candidate.shards)
        key = (absolute(candidate.directory), candidate.pattern or paths)
        if key not in seen:
            seen.add(key)
            chosen.add(id(candidate))
    return [s for s in sets if id(s) in chosen]


def _runs_in(directory: str) -> list[str]:
    """Return the datasets with a run directory in this folder."""
    if is_url(directory):
        return []
    begin, end = partial_dir("\0").split("\0")
    names = [name for name in os.listdir(directory) if name.startswith(begin)]
    found = [name[len(begin) : -len(end)] for name in sorted(names) if name.endswith(end)]
    return [name for name in found if name]


def _is_committed(directory: str, name: str) -> bool:
    """Return whether the publication of a dataset has begun and not finished."""
    path = os.path.join(directory, partial_dir(name), "commit.json")
    return inputs_for(path).is_file(path)


def _unfinished(directory: str, name: str) -> list[str]:
    """Return a hint on what an interrupted writer has left of a dataset.

    Raises:
        RunError: A writer is publishing the dataset, so that shards of two runs may be there.
    """
    run = os.path.join(directory, partial_dir(name))
    inputs = inputs_for(run)
    if _is_committed(directory, name):
        owner = None if is_url(run) else lock_owner(run)
        if owner is not None and _is_committed(directory, name):
            raise RunError(
                f"{name!r} is being replaced right now by {owner}",
                path=directory or ".",
                hint="try again in a moment",
            )
        return [
            f"the publication of {name!r} was interrupted: run its write command with --resume to "
            "finish it"
        ]
    if inputs.is_file(os.path.join(run, "run.json")):
        return [f"there is an unfinished run of {name!r} ({run})"]
    return []
