"""Finding datasets: which shard sets a path, a name, a notation or a glob means."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import Final

from shardwriter.dataset.manifest import Manifest
from shardwriter.dataset.naming import (
    DALI_INDEX_SUFFIX,
    MAX_SHARDS,
    dataset_name,
    is_url,
    partial_dir,
)
from shardwriter.errors import ManifestError, OptionError, RunError, SourceError
from shardwriter.sources.shard_sets import (
    MANIFEST_SUFFIX,
    Folder,
    ShardSet,
    by_pattern,
    is_manifest,
    load,
    looks_like_records,
    manifest_of,
    says_records,
)
from shardwriter.storage.inputs import absolute, inputs_for, split
from shardwriter.storage.lock import lock_owner

_INDEX_SUFFIX: Final = ".index"
_LEDGER_SUFFIXES: Final = (".errors.jsonl", ".lost.jsonl")

_NOTATION = re.compile(r"(?P<stem>[^@]+)@(?P<n>[1-9][0-9]{0,5}|auto|\*)(?:\.[A-Za-z0-9_]+)*")


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
        RunError: A dataset is being published right now.
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
                    "no TFRecord shards are in this folder",
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
        RunError: Its publication was interrupted, or is going on.
    """
    sets = find_shard_sets([path])
    if len(sets) != 1:
        first = sets[0]
        if len({s.name for s in sets}) == 1 and _is_committed(first.directory, first.name):
            raise RunError(
                f"the publication of {first.name!r} was interrupted, and shards of two runs lie "
                "side by side",
                path=os.path.join(first.directory, partial_dir(first.name)),
                hint="the command that wrote it, with --resume, finishes the publication",
            )
        names = ", ".join(s.name for s in sets[:5])
        hint = "name one of them"
        if all(shard_set.pattern is None for shard_set in sets):
            hint += ", or make shards of all: `shardwriter write` takes such files as its source"
        raise OptionError(f"{path} holds {len(sets)} datasets ({names})", hint=hint)
    return sets[0]


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of a dataset.

    Args:
        path: The dataset (``out/train`` or ``out/train@16``), the folder of a single one, a file
            of it, or the manifest itself (``out/train.manifest.json``); also at a URL.

    Raises:
        SourceError: There is nothing of this name.
        OptionError: The folder holds several datasets.
        ManifestError: The dataset has no manifest, or it can not be used.
        StorageError: It can not be read.
    """
    path = os.fspath(path)
    inputs = inputs_for(path)
    if inputs.is_file(path) and path.endswith(".json"):
        return load(path)
    if not inputs.exists(path) and not _by_name(path):
        raise SourceError(
            "there is no such dataset, folder or manifest",
            path=path,
            hint="give a dataset (out/train), its folder, or its out/train.manifest.json",
        )
    return required_manifest(find_one(path))


def required_manifest(shard_set: ShardSet) -> Manifest:
    """Return the manifest of a set.

    Raises:
        ManifestError: It has none.
    """
    if shard_set.manifest is None:
        hint = "a dataset without one is unfinished, or another tool's: shard-stats proves its "
        raise ManifestError(
            f"{shard_set.name!r} has no manifest, so there is nothing to hold it against",
            path=shard_set.directory,
            hint="; ".join(shard_set.notes) or f"{hint}checksums",
        )
    return shard_set.manifest


# -- by path ---------------------------------------------------------------------------------------


def _in_directory(directory: str) -> list[ShardSet]:
    folder = Folder(directory)
    names = {pattern.name for pattern in folder.patterns if says_records(pattern)}
    names |= {f.removesuffix(MANIFEST_SUFFIX) for f in folder.files if is_manifest(f)}
    sets = [s for name in sorted(names) for s in folder.sets_of(name)]
    return sets + [
        ShardSet(directory, None, [(0, os.path.join(directory, f))])
        for f in folder.others
        if looks_like_records(f)
    ]


def _by_name(path: str) -> list[ShardSet]:
    """Find the dataset of ``dir/train``, ``dir/train@16`` or ``dir/train@*``; none is no error."""
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
        _unfinished(directory, sets[0].name)
        raise SourceError(
            f"there are no {match['n']} shards of {stem!r}, but {sets[0].pattern.num_shards}",
            path=directory,
            hint=f"give {os.path.join(directory, stem)} alone for those that are there",
        )
    return wanted


def _take_glob(path: str, sets: list[ShardSet], files: list[str]) -> None:
    """Add what a glob means, folders and files; a path that is none names nothing."""
    directory, base = split(path)
    if "@" in base and not _NOTATION.fullmatch(base) and not glob.has_magic(base):
        raise OptionError(
            f"{base[:80]!r} is not NAME@N",
            hint=f"N is a number from 1 to {MAX_SHARDS:,}, or *, as in train@16",
        )
    found: list[str] = []
    inputs = inputs_for(path)
    if inputs.is_directory(directory):  # which may have brackets in its own name
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
        what = "folders without TFRecord shards" if folders else "a pipe or a device, and no file"
        raise SourceError(f"this is {what}", path=path)
    sets += in_folders
    files += regular


def _splits_of(directory: str, name: str) -> list[str]:
    """Say which splits of a name are there; nothing where there are none."""
    directory = directory or "."
    if not name or glob.has_magic(name) or not inputs_for(directory).is_directory(directory):
        return []
    folder = Folder(directory, f"{name}-")
    names = sorted({p.name for p in folder.patterns if p.name.startswith(f"{name}-")})
    shown = [os.path.join(directory, each) for each in names[:5]]
    return [f"its splits are there: {', '.join(shown)}"] if names else []


# -- by file ---------------------------------------------------------------------------------------


def _from_files(paths: Sequence[str]) -> list[ShardSet]:
    """Group files that were named one by one."""
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
            # One shard alone was meant; several of one pattern are meant to be the set.
            whole = len(shards) > 1 or pattern.num_shards == 1
            named = [(shard, files[name]) for shard, name in shards]
            manifest = manifest_of(directory, pattern)
            sets.append(ShardSet(directory, pattern, named, manifest, whole))
        sets += [ShardSet(directory, None, [(0, files[name])]) for name in others]
    return sets


def _is_sidecar(path: str) -> bool:
    return path.endswith((_INDEX_SUFFIX, DALI_INDEX_SUFFIX, *_LEDGER_SUFFIXES))


def _of_sidecars(paths: Sequence[str], sets: Sequence[ShardSet]) -> list[ShardSet]:
    """Return the datasets of files that lie beside shards, where nothing else has named them."""
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
        if not own and place not in beside:  # a shell that lists a folder names all that is in it
            raise SourceError("the shards that this file belongs to are not there", path=path)
        found += own
    return found


def _without_repeats(sets: list[ShardSet]) -> list[ShardSet]:
    """Drop sets that were named twice; where all shards were asked for too, only these stay."""
    kept: set[int] = set()
    seen: set[tuple[str, object]] = set()
    for candidate in sorted(sets, key=lambda s: not s.whole):
        paths = tuple(absolute(path) for _, path in candidate.shards)
        key = (absolute(candidate.directory), candidate.pattern or paths)
        if key not in seen:
            seen.add(key)
            kept.add(id(candidate))
    return [s for s in sets if id(s) in kept]


def _runs_in(directory: str) -> list[str]:
    """Return the datasets of a folder that have a run directory beside them."""
    if is_url(directory):
        return []
    begin, end = partial_dir("\0").split("\0")
    names = [name for name in os.listdir(directory) if name.startswith(begin)]
    found = [name[len(begin) : -len(end)] for name in sorted(names) if name.endswith(end)]
    return [name for name in found if name]


def _is_committed(directory: str, name: str) -> bool:
    """Return whether the publication of a dataset was begun and not finished."""
    path = os.path.join(directory, partial_dir(name), "commit.json")
    return inputs_for(path).is_file(path)


def _unfinished(directory: str, name: str) -> list[str]:
    """Say what a writer that was interrupted has left of a dataset.

    Raises:
        RunError: The writer is at it: what lies there is of two datasets.
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
            f"the publication of {name!r} was interrupted: the next write of this name finishes "
            "it (`shardwriter write --resume`)"
        ]
    if inputs.is_file(os.path.join(run, "run.json")):
        return [f"an unfinished run of {name!r} lies beside it ({run})"]
    return []
