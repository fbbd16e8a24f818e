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
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec

from shardwriter.dataset import (
    FEATURES_FILE,
    INFO_FILE,
    Manifest,
    TfdsSplit,
    manifest_file,
    parse_manifest,
    partial_dir,
    path_below,
    tfds_split_of,
)
from shardwriter.errors import ManifestError, OptionError, OutputExists, StorageError
from shardwriter.formats import Count, json_shape
from shardwriter.schema import MAX_LABELS, FeatureSummary, FeatureType, Shape, float_dtype
from shardwriter.storage import Storage
from shardwriter.writing.run_directory import RunDirectory

# What TFDS is told of features: ``features.json``, from the schemas of a dataset's splits.
#
# It is the proto ``Feature`` of TFDS's ``feature.proto`` as JSON; only types that are in every
# installation of TFDS are used: Image, ClassLabel, Text and Tensor. Every feature is one key of a
# flat FeaturesDict, named as it is in the records (``image/encoded``), so records are not changed.
# What TFDS has no type for is given as the bytes that the record holds, or left out, and a note
# says so: the records themselves are whole all the same.

_MODULE: Final = "tensorflow_datasets.core.features."
_IMAGE_FORMATS: Final = frozenset({"jpeg", "png", "bmp", "image"})  # "image": several of them
_NAMED_FORMATS: Final = frozenset({"jpeg", "png"})  # what TFDS's encodingFormat can say
# What tf.io.decode_raw takes; uint64 goes through int64 there.
_RAW_DTYPES: Final = frozenset(
    {"bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"}
    | {"float16", "float32", "float64"}
)
_TENSOR_DTYPES: Final = _RAW_DTYPES | {"uint32"}
_WIDEST: Final = {"int64": "int64", "float": "float32"}


@dataclass(frozen=True)
class TfdsFeature:
    """A feature as TFDS is told of it.

    Attributes:
        kind: Which of TFDS's classes; ``unset`` for a feature without a value, which has none.
        dtype: A numpy name, or ``string`` for bytes.
        shape: None for a dimension that varies, of which there is at most one.
        encoding: Of a tensor: ``none``, or ``bytes`` for raw ones. Of an image: its format, where
            it is one that TFDS has a word for.
        optional: Whether records may lack it; TFDS then gives its dtype's least value.
        num_classes: Of a label.
        names: Of its classes, where they are known.
    """

    kind: Literal["image", "label", "text", "tensor", "unset"]
    dtype: str = "string"
    shape: Shape = ()
    encoding: str = "none"
    optional: bool = False
    num_classes: int = 0
    names: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the proto ``Feature`` as JSON; 64-bit numbers are text there."""
        if self.kind == "text":
            return {"pythonClassName": f"{_MODULE}text_feature.Text", "text": {}}
        if self.kind == "label":
            return {
                "classLabel": {"numClasses": str(self.num_classes)},
                "pythonClassName": f"{_MODULE}class_label_feature.ClassLabel",
            }
        content: dict[str, Any] = {"dtype": self.dtype, "shape": _shape_json(self.shape)}
        if self.kind == "image":
            if self.encoding in _NAMED_FORMATS:
                content["encodingFormat"] = self.encoding
            return {"image": content, "pythonClassName": f"{_MODULE}image_feature.Image"}
        content["encoding"] = self.encoding
        if self.optional:
            content["optional"] = True
        return {"pythonClassName": f"{_MODULE}tensor_feature.Tensor", "tensor": content}

    def join(self, other: TfdsFeature) -> TfdsFeature:
        """Return what reads the records of two splits, each as it would be read alone.

        Raises:
            ValueError: Nothing does; the message says what differs.
        """
        if self == other:
            return self
        a, b = _plain(self), _plain(other)
        if a.kind == "unset":
            return b.lacking()
        if b.kind == "unset":
            return a.lacking()
        if a.kind != b.kind:
            raise ValueError(f"{self.phrase} and {other.phrase}")
        if a.kind == "label":
            if a.names != b.names:
                raise ValueError(_which_classes(a.names, b.names))
            return replace(a, num_classes=max(a.num_classes, b.num_classes))
        if a.kind == "image":
            return replace(a, encoding="image")
        if (a.dtype, a.encoding, len(a.shape)) != (b.dtype, b.encoding, len(b.shape)):
            raise ValueError(f"{self.phrase} and {other.phrase}")
        shape = tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))
        if shape.count(None) > 1:
            raise ValueError(f"{self.phrase} and {other.phrase} (two dimensions vary)")
        return replace(a, shape=shape, optional=(a.optional or b.optional) and None not in shape)

    @property
    def may_be_absent(self) -> bool:
        """Whether TFDS reads records that lack it."""
        return self.optional or self.kind == "unset" or (self.kind == "tensor" and self.varies)

    @property
    def varies(self) -> bool:
        """Whether its length does."""
        return None in self.shape and self.encoding != "bytes"

    def lacking(self) -> TfdsFeature:
        """Return what reads it where it is there and where it is not.

        Raises:
            ValueError: TFDS has no such type.
        """
        if self.may_be_absent:
            return self
        found = _plain(self)
        if found.kind != "tensor" or found.encoding == "bytes":
            raise ValueError(f"{self.phrase} that is in every record and one that is in none")
        return replace(found, optional=True)

    @property
    def phrase(self) -> str:
        """What it is, for people."""
        if self.kind != "tensor":
            return {"image": "an image", "label": "a class label"}.get(self.kind, "a text")
        if self.encoding == "bytes":
            return "an array of raw bytes"
        shape = str(list(self.shape)).replace("None", "*") if self.shape else ""
        return f"{self.dtype}{shape}"


def _plain(feature: TfdsFeature) -> TfdsFeature:
    """See a text as the tensor that it is in the record."""
    return TfdsFeature("tensor") if feature.kind == "text" else feature


def _which_classes(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> str:
    only = sorted(set(a or ()) ^ set(b or ()))
    if a is None or b is None or not only:
        return "the names of the classes differ"
    more = ", ..." if len(only) > 3 else ""
    return f"the classes differ, {', '.join(map(repr, only[:3]))}{more} in one of them only"


def _shape_json(shape: Shape) -> dict[str, Any]:
    return {"dimensions": [str(-1 if n is None else n) for n in shape]} if shape else {}


def tfds_features(manifest: Manifest) -> tuple[dict[str, TfdsFeature], list[str]]:
    """Return what TFDS is told of the features of one split, and what a person should know of it.

    Raises:
        ManifestError: There are records and no schema, so nothing can be told.
    """
    found: dict[str, TfdsFeature] = {}
    notes: list[str] = []
    features = manifest.features
    if manifest.num_records and not features:
        raise ManifestError(
            "nothing is known of the features of finished records, and TFDS has to be told",
            hint="a map has the records decoded; one that returns what it is given is enough",
        )
    if manifest.feature_lists is not None:
        raise ManifestError(
            "these are SequenceExamples, and TFDS reads Examples",
            hint="write them without --tfds, or make Examples of them with a map",
        )
    labels = manifest.labels or {}
    for name, summary in features.items():
        counts = labels.get("counts", {}) if labels.get("feature") == name else {}
        feature, note = tfds_feature(name, summary, manifest.num_records, counts)
        found[name] = feature
        if note is not None:
            notes.append(note)
    return found, notes


def tfds_feature(
    name: str, summary: FeatureSummary, num_records: int, counts: Mapping[str, int]
) -> tuple[TfdsFeature, str | None]:
    """Return what TFDS is told of a feature, and a note where that is not all of it.

    Args:
        name: The feature.
        summary: What the schema has of it.
        num_records: Of the split; a feature that some of them lack is optional.
        counts: Of its values, by their spelling, where it is the label.
    """
    found, shape = summary.type, summary.type.shape or ()
    is_optional = summary.unset > 0 or summary.present < num_records
    if found.kind is None:
        return TfdsFeature("unset"), f"{name!r} has no value in any record: TFDS is not told of it"
    as_bytes = TfdsFeature("tensor", optional=is_optional)
    if found.encoding == "image":
        return _image(name, found, as_bytes)
    if found.encoding == "raw":
        can = found.dtype in _RAW_DTYPES and shape.count(None) < 2 and not is_optional
        if can and found.dtype is not None:
            return TfdsFeature("tensor", found.dtype, shape, "bytes"), None
        return as_bytes, f"{name!r}: TFDS gives its bytes, as it can not make this array of them"
    note = None
    if shape.count(None) > 1:
        shape, note = (None,), f"{name!r}: TFDS gives its values in one row, without their shape"
    shape = tuple(n or None for n in shape)  # TensorFlow parses no dimension of 0
    if shape.count(None) > 1:
        shape = (None,)
    is_optional = is_optional and None not in shape
    if found.kind == "bytes":
        if shape == () and found.dtype == "string" and not is_optional:
            return TfdsFeature("text"), note
        return TfdsFeature("tensor", "string", shape, optional=is_optional), note
    if found.kind == "int64" and shape == () and not is_optional:
        label = _label(summary.vocabulary, counts, num_records)
        if label is not None:
            is_lost = summary.vocabulary is not None and label.names is None
            return label, f"{name!r}: TFDS can not hold its class names" if is_lost else note
    dtype = found.dtype if found.dtype in _TENSOR_DTYPES else _WIDEST[found.kind]
    if found.kind == "float":
        dtype = float_dtype(dtype)  # which is what a record holds
    return TfdsFeature("tensor", dtype, shape, optional=is_optional), note


def _image(name: str, found: FeatureType, as_bytes: TfdsFeature) -> tuple[TfdsFeature, str | None]:
    if found.shape not in ((), None):
        return replace(as_bytes, shape=(None,), optional=False), None
    if as_bytes.optional:
        return as_bytes, f"{name!r}: TFDS gives the files' bytes, as some records have no image"
    if found.format is not None and found.format not in _IMAGE_FORMATS:
        return as_bytes, f"{name!r}: TFDS gives the files' bytes, as it decodes no {found.format}"
    note = None
    if found.format == "image":
        note = f"{name!r} has images of several formats, of which TFDS decodes jpeg, png and bmp"
    # Three channels, whatever the file has: what TFDS's own folder of images says too.
    return TfdsFeature("image", "uint8", (None, None, 3), found.format or "image"), note


def _label(
    vocabulary: list[str] | None, counts: Mapping[str, int], num_records: int
) -> TfdsFeature | None:
    """Return the class label that an integer is; None where it is none."""
    if vocabulary is not None:
        # Names stand one a line, and TFDS takes blanks around them off.
        words = [word.strip() for word in vocabulary]
        fits = len(set(words)) == len(words) and words == vocabulary and all(words)
        fits = fits and all(word.splitlines() == [word] for word in words)
        return TfdsFeature("label", num_classes=len(words), names=tuple(words) if fits else None)
    if not counts or sum(counts.values()) != num_records:
        return None
    if not all(spelled.isdecimal() for spelled in counts):
        return None
    last = max(map(int, counts))
    return TfdsFeature("label", num_classes=last + 1) if last < MAX_LABELS else None


def join_splits(
    features: Mapping[str, Mapping[str, TfdsFeature]], empty: frozenset[str] = frozenset()
) -> dict[str, TfdsFeature]:
    """Return what TFDS is told of a dataset.

    Args:
        features: Of each split.
        empty: Splits without records, which lack nothing.

    Raises:
        TfdsConflict: Splits do not go together.
    """
    joined: dict[str, TfdsFeature] = {}
    came_from: dict[str, str] = {}
    names = sorted({name for mine in features.values() for name in mine})
    for name in names:
        for split in sorted(features):
            found = features[split].get(name)
            if found is None:
                continue
            before = joined.get(name)
            try:
                joined[name] = found if before is None else before.join(found)
            except ValueError as error:
                raise TfdsConflict(name, came_from[name], split, str(error)) from None
            came_from.setdefault(name, split)
        for split in sorted(set(features) - empty):
            if name not in features[split] and not joined[name].may_be_absent:
                raise TfdsConflict(name, came_from[name], split, "only one of them has it")
    return joined


class TfdsConflict(ValueError):
    """Two splits have features that TFDS can not read as those of one dataset.

    Attributes:
        feature: Which.
        first: One split.
        second: The other.
        what: What differs.
    """

    def __init__(self, feature: str, first: str, second: str, what: str) -> None:
        super().__init__(f"{feature}: {what}")
        self.feature, self.first, self.second, self.what = feature, first, second, what


def features_text(features: Mapping[str, TfdsFeature]) -> str:
    """Return ``features.json``, as TFDS itself lays it out."""
    told = {name: feature for name, feature in features.items() if feature.kind != "unset"}
    entries = {name: feature.to_json() for name, feature in told.items()}
    whole = {
        "featuresDict": {"features": entries} if entries else {},
        "pythonClassName": f"{_MODULE}features_dict.FeaturesDict",
    }
    return json.dumps(whole, indent=4, sort_keys=True)


def labels_files(features: Mapping[str, TfdsFeature]) -> dict[str, str]:
    """Return the files of class names, by file name."""
    return {
        labels_file(name): "".join(f"{word}\n" for word in feature.names)
        for name, feature in features.items()
        if feature.names is not None
    }


def labels_file(feature: str) -> str:
    """Return the file name of a label's class names."""
    return feature.replace("/", ".") + ".labels.txt"


# The shapes of TFDS's ``dataset_info.json`` and ``features.json``: what is relied on of them.
#
# TFDS keeps protos as JSON, with names in camel case and 64-bit numbers as text or as numbers,
# https://www.tensorflow.org/datasets/external_tfrecord. A key that is not there and one that is
# null are the same in it.

Name = Annotated[str, msgspec.Meta(min_length=1)]
Int64 = Count | Annotated[str, msgspec.Meta(pattern="^[0-9]{1,18}$")]
"""A number of records; ``int()`` reads both spellings."""


class _SplitKeys(TypedDict):
    name: Name


class SplitShape(_SplitKeys, total=False):
    """A split in ``dataset_info.json``."""

    filepathTemplate: str | None
    shardLengths: list[Int64] | None


class _InfoKeys(TypedDict):
    name: Name


class InfoShape(_InfoKeys, total=False):
    """``dataset_info.json``."""

    fileFormat: str | None
    splits: list[SplitShape] | None
    version: str | None


class _FeaturesDict(TypedDict):
    features: dict[str, dict[str, Any]]


class FeaturesShape(TypedDict):
    """``features.json`` of a dataset whose records have named features."""

    featuresDict: _FeaturesDict


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
