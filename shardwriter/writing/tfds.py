"""A TFDS dataset's folder: its metadata is a function of the manifests that lie there.

A split's manifest says that it is one (``metadata.tfds``). ``dataset_info.json`` and
``features.json`` are made from all of them whenever one is published, so a second split joins the
first, an attempt that is gone on with writes the same, and nothing is read back from files that
another program may have written. While a split is replaced it is not in the metadata: TFDS reads
the others, and never shards of two generations.

The metadata is changed under a lock of the folder, as two splits may be published at one time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from shardwriter.dataset.manifest import Manifest, parse_manifest
from shardwriter.dataset.names import FEATURES_FILE, INFO_FILE, TfdsSplit, tfds_split_of
from shardwriter.dataset.naming import manifest_file, partial_dir, path_below
from shardwriter.errors import ManifestError, OptionError, OutputExists, StorageError
from shardwriter.formats import json_shape
from shardwriter.storage.protocol import Storage
from shardwriter.writing.features import (
    TfdsConflict,
    TfdsFeature,
    features_text,
    join_splits,
    labels_file,
    labels_files,
    tfds_features,
)
from shardwriter.writing.run_directory import RunDirectory
from shardwriter.writing.tfds_shapes import FeaturesShape, InfoShape

_MANIFEST_SUFFIX: Final = manifest_file("")
_COMMIT: Final = "commit.json"  # of another split's run: its publication goes on, whatever happens
_GROWING: Final = "tfds"
_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def check_folder(storage: Storage, directory: str, split: TfdsSplit) -> None:
    """Refuse a folder with metadata that is not of ours: it would be lost.

    Raises:
        OutputExists: Another program has written splits there.
    """
    path = os.path.join(directory, INFO_FILE)
    data = storage.read(path)
    if data is None:
        return
    names = storage.list(directory)
    try:
        told = json_shape.read(data, InfoShape)
    except ValueError:
        others, is_ours = [], False
    else:
        others = [entry["name"] for entry in told.get("splits") or []]
        is_ours = (told["name"], told.get("version")) == (split.name, split.version)
    foreign = [
        name
        for name in others
        if manifest_file(f"{split.name}-{name}") not in names
        and any(file.startswith(f"{split.name}-{name}.") for file in names)
        and not os.path.exists(os.path.join(directory, partial_dir(f"{split.name}-{name}")))
    ]
    if is_ours and not foreign:
        return
    what = f": split {foreign[0]!r} has no manifest" if foreign else ""
    raise OutputExists(
        f"this was not written by shardwriter for {split.dataset}{what}",
        path=path,
        hint="write under another version, or into another data_dir",
    )


def check_planned(
    storage: Storage,
    directory: str,
    split: TfdsSplit,
    features: Mapping[str, TfdsFeature],
    beside: Collection[str] = (),
) -> None:
    """Refuse types known before the first record that do not go with those of the other splits.

    Features that only one side has are left to :func:`joining`.

    Args:
        storage: The place.
        directory: The folder.
        split: What is to be written.
        features: Its features.
        beside: Splits that the same write makes: what stands there of them is replaced.

    Raises:
        OptionError: Names the feature.
    """
    expected = _expected(storage, directory, split)
    others = _features_of({name: expected[name] for name in expected if name not in beside})
    both = {
        other: {name: feature for name, feature in found.items() if name in features}
        for other, found in others.items()
    }
    names = set().union(*both.values()) if both else set()
    mine = {name: feature for name, feature in features.items() if name in names}
    _join({**both, split.split: mine}, split, directory, frozenset([*both, split.split]))


@contextmanager
def joining(
    run: RunDirectory, manifest: Manifest, beside: Sequence[Manifest] = ()
) -> Iterator[None]:
    """Hold the folder while a split is committed to, which goes with the others.

    For a dataset that is no TFDS split this does nothing.

    Args:
        run: The split's.
        manifest: What is committed to.
        beside: Manifests that are committed to with it: what stands there of their splits is
            replaced, and need not go with this one.

    Raises:
        ManifestError: Nothing can be told of its features.
        OptionError: They do not go with those of another split.
        StorageError: A folder has the name of one of the files.
    """
    split = tfds_split_of(manifest.metadata)
    if split is None:
        yield
        return
    with _locked(run):
        storage, directory = run.storage, run.directory
        splits = {**_expected(storage, directory, split), **_by_split(beside)}
        splits[split.split] = manifest
        joined = _join(_features_of(splits), split, directory, _empty(splits))
        for name in (INFO_FILE, FEATURES_FILE, *labels_files(joined)):
            target = os.path.join(directory, name)
            if storage.is_directory(target):
                raise StorageError("a folder of this name is in the way", path=target)
        yield


def take_out(run: RunDirectory, manifest: Manifest) -> None:
    """Take a split that is about to be replaced out of the metadata."""
    split = tfds_split_of(manifest.metadata)
    if split is None:
        return
    with _locked(run):
        if run.storage.read(os.path.join(run.directory, INFO_FILE)) is None:
            return
        others = _standing(run.storage, run.directory, split)
        if others:
            _publish(run, INFO_FILE, info_text(split, others))
        else:
            _delete_all(run)
        run.storage.sync_directory(run.directory)


@contextmanager
def put_in(run: RunDirectory, manifest: Manifest) -> Iterator[None]:
    """Put a split into the metadata, and hold the folder while its manifest is published."""
    split = tfds_split_of(manifest.metadata)
    if split is None:
        yield
        return
    with _locked(run):
        mine = {split.split: manifest}
        splits = {**_standing(run.storage, run.directory, split), **mine}
        try:
            joined = _join(_features_of(splits), split, run.directory, _empty(splits))
        except OptionError:
            # Of several splits that replace others some were not committed to when the write was
            # stopped. Those that stand there wait for that.
            splits = mine
            joined = _join(_features_of(mine), split, run.directory, _empty(mine))
        files = labels_files(joined)
        for name in _told_labels_files(run) - set(files):  # of a split that is being replaced
            run.storage.delete(os.path.join(run.directory, name))
        for name, text in files.items():
            _publish(run, name, text)
        _publish(run, FEATURES_FILE, features_text(joined))
        _publish(run, INFO_FILE, info_text(split, splits))  # last: with it TFDS opens the folder
        run.storage.sync_directory(run.directory)
        yield


def _by_split(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    found = ((tfds_split_of(manifest.metadata), manifest) for manifest in manifests)
    return {split.split: manifest for split, manifest in found if split is not None}


def info_text(split: TfdsSplit, splits: Mapping[str, Manifest]) -> str:
    """Return ``dataset_info.json``, as TFDS itself lays it out.

    Args:
        split: One of the dataset's.
        splits: Manifests, by split.
    """
    entries = [
        {
            "filepathTemplate": _TEMPLATE,
            "name": name,
            "numBytes": str(splits[name].payload_bytes),
            "shardLengths": [str(shard.num_records) for shard in splits[name].shards],
        }
        for name in sorted(splits)
    ]
    info: dict[str, Any] = {
        "fileFormat": "tfrecord",
        "name": split.name,
        "splits": entries,
        "version": split.version,
    }
    return json.dumps(info, indent=2, sort_keys=True)


def _join(
    features: Mapping[str, Mapping[str, TfdsFeature]],
    split: TfdsSplit,
    directory: str,
    empty: frozenset[str],
) -> dict[str, TfdsFeature]:
    try:
        return join_splits(features, empty)
    except TfdsConflict as error:
        raise OptionError(
            f"splits {error.first!r} and {error.second!r} of {split.dataset} do not go together: "
            f"{error.what}",
            path=directory,
            feature=error.feature,
            hint="give all splits the same features and classes, with a map or a --schema; or give "
            "this one another version",
        ) from None


def _features_of(splits: Mapping[str, Manifest]) -> dict[str, dict[str, TfdsFeature]]:
    return {name: tfds_features(manifest)[0] for name, manifest in splits.items()}


def _empty(splits: Mapping[str, Manifest]) -> frozenset[str]:
    return frozenset(name for name, manifest in splits.items() if not manifest.num_records)


def _expected(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return the manifests of the dataset's other splits as they are when all runs are finished."""
    return {**_published(storage, directory, split), **_committed(storage, directory, split)}


def _standing(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return those that are there and not about to be replaced by a run that was committed to."""
    committed = _committed(storage, directory, split)
    found = _published(storage, directory, split)
    return {name: found[name] for name in found if committed.get(name, found[name]) == found[name]}


def _published(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return the manifests of the dataset's other splits that are there."""
    names = storage.list(directory)
    paths = [name for name in names if name.endswith(_MANIFEST_SUFFIX)]
    return _splits(storage, [os.path.join(directory, name) for name in paths], split)


def _committed(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return those that are being published, or will be when their runs are gone on with."""
    if not storage.is_directory(directory):
        return {}
    begin, end = partial_dir(f"{split.name}-").removesuffix(".partial"), partial_dir("")[1:]
    with os.scandir(directory) as entries:
        runs = [e.path for e in entries if e.name.startswith(begin) and e.name.endswith(end)]
    return _splits(storage, [os.path.join(path, _COMMIT) for path in sorted(runs)], split)


def _splits(storage: Storage, paths: list[str], split: TfdsSplit) -> dict[str, Manifest]:
    found = {}
    for path in paths:
        data = storage.read(path)
        if data is None:
            continue
        try:
            manifest = parse_manifest(data, path)
        except ManifestError:
            continue  # TFDS can do without it, and `shard-stats` says what is wrong
        other = tfds_split_of(manifest.metadata)
        if other is not None and other.is_beside(split):
            found[other.split] = manifest
    return found


def _publish(run: RunDirectory, file_name: str, text: str) -> None:
    run.write_synced(_GROWING, text.encode("utf-8"))
    run.storage.publish(run.file(_GROWING), os.path.join(run.directory, file_name))


def _delete_all(run: RunDirectory) -> None:
    """Delete the metadata: first what TFDS opens, last what tells of the other files."""
    storage = run.storage
    storage.delete(os.path.join(run.directory, INFO_FILE))
    for name in _told_labels_files(run):
        storage.delete(os.path.join(run.directory, name))
    storage.delete(os.path.join(run.directory, FEATURES_FILE))


def _told_labels_files(run: RunDirectory) -> set[str]:
    """Return the files of class names that the ``features.json`` there may have."""
    data = run.storage.read(os.path.join(run.directory, FEATURES_FILE))
    try:
        told = json_shape.read(data or b"{}", FeaturesShape)
        features = told["featuresDict"]["features"]
        names = [labels_file(name) for name, entry in features.items() if "classLabel" in entry]
        return {path_below(name) for name in names}
    except ValueError:
        return set()


@contextmanager
def _locked(run: RunDirectory) -> Iterator[None]:
    """Hold the folder alone; where a file system can not lock a folder, go on without."""
    try:
        held = os.open(run.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"can not be opened: {error.strerror}", path=run.directory) from error
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # a process that was forked meanwhile would hold it on
            fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)
