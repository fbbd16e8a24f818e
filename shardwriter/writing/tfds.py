"""The metadata of a TFDS dataset's folder, as a function of the manifests in it.

A split's manifest has the TFDS dataset and split (``metadata.tfds``). ``dataset_info.json`` and
``features.json`` are written from all of these manifests whenever a split is published: a second
split joins the first, a resumed run writes the same, and files of other programs are not read back.
While a split is replaced it is not in the metadata, so TFDS never reads shards of two generations.
The metadata is changed under a lock of the folder, as two splits may be published at once.

``features.json`` is the proto ``Feature`` of TFDS's ``feature.proto`` as JSON, with types that
every installation of TFDS has: Image, ClassLabel, Text and Tensor. Every feature is one key of a
flat FeaturesDict with its name in the records (``image/encoded``), so records do not change. A
feature without a TFDS type is declared as the bytes in the record, or left out, with a note; the
records are complete either way.
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

_MODULE: Final = "tensorflow_datasets.core.features."
_IMAGE_FORMATS: Final = frozenset({"jpeg", "png", "bmp", "image"})  # "image": several of them
_NAMED_FORMATS: Final = frozenset({"jpeg", "png"})  # values of TFDS's encodingFormat
# Types of tf.io.decode_raw, which reads uint64 through int64.
_RAW_DTYPES: Final = frozenset(
    {"bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"}
    | {"float16", "float32", "float64"}
)
_TENSOR_DTYPES: Final = _RAW_DTYPES | {"uint32"}
_WIDEST: Final = {"int64": "int64", "float": "float32"}


@dataclass(frozen=True)
class TfdsFeature:
    """A feature as TFDS declares it.

    Attributes:
        kind: The class of TFDS; ``unset`` for a feature without any value, which has no class.
        dtype: A numpy name, or ``string`` for bytes.
        shape: None for a dimension that varies; there is at most one.
        encoding: Of a tensor: ``none``, or ``bytes`` for raw arrays. Of an image: its format, if
            TFDS has a name for it.
        optional: Whether records may lack it; TFDS then returns the lowest value of its dtype.
        num_classes: Number of classes of a label.
        names: Names of the classes, if they are known.
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
        """Return the feature that reads the records of two splits as each alone would be read.

        Raises:
            ValueError: There is none; the message has the difference.
        """
        if self == other:
            return self
        a, b = _as_tensor(self), _as_tensor(other)
        if a.kind == "unset":
            return b.made_optional()
        if b.kind == "unset":
            return a.made_optional()
        if a.kind != b.kind:
            raise ValueError(f"{self.phrase} and {other.phrase}")
        if a.kind == "label":
            if a.names != b.names:
                raise ValueError(_class_difference(a.names, b.names))
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
        """Whether TFDS reads records without this feature."""
        return self.optional or self.kind == "unset" or (self.kind == "tensor" and self.varies)

    @property
    def varies(self) -> bool:
        """Whether its length varies."""
        return None in self.shape and self.encoding != "bytes"

    def made_optional(self) -> TfdsFeature:
        """Return the feature that reads records with and without it.

        Raises:
            ValueError: TFDS has no such type.
        """
        if self.may_be_absent:
            return self
        found = _as_tensor(self)
        if found.kind != "tensor" or found.encoding == "bytes":
            raise ValueError(f"{self.phrase} that is in every record and one that is in none")
        return replace(found, optional=True)

    @property
    def phrase(self) -> str:
        """A description for messages."""
        if self.kind != "tensor":
            return {"image": "an image", "label": "a class label"}.get(self.kind, "a text")
        if self.encoding == "bytes":
            return "an array of raw bytes"
        shape = str(list(self.shape)).replace("None", "*") if self.shape else ""
        return f"{self.dtype}{shape}"


def _as_tensor(feature: TfdsFeature) -> TfdsFeature:
    """Return a text as the tensor that the record has; other features as they are."""
    return TfdsFeature("tensor") if feature.kind == "text" else feature


def _class_difference(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> str:
    only = sorted(set(a or ()) ^ set(b or ()))
    if a is None or b is None or not only:
        return "the names of the classes differ"
    more = ", ..." if len(only) > 3 else ""
    return f"the classes differ, {', '.join(map(repr, only[:3]))}{more} in one of them only"


def _shape_json(shape: Shape) -> dict[str, Any]:
    return {"dimensions": [str(-1 if n is None else n) for n in shape]} if shape else {}


def tfds_features(manifest: Manifest) -> tuple[dict[str, TfdsFeature], list[str]]:
    """Return the TFDS features of one split, and notes for the user.

    Raises:
        ManifestError: There are records and no schema, or the records are SequenceExamples.
    """
    found: dict[str, TfdsFeature] = {}
    notes: list[str] = []
    features = manifest.features
    if manifest.num_records and not features:
        raise ManifestError(
            "TFDS needs the features of the records, and those of finished records are unknown",
            hint="add a map, which decodes records; one that returns its argument is enough",
        )
    if manifest.feature_lists is not None:
        raise ManifestError(
            "these are SequenceExamples, and TFDS reads Examples",
            hint="write them without --tfds, or convert them to Examples in a map",
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
    """Return the TFDS feature of a feature, and a note if TFDS can not describe it fully.

    Args:
        name: The name of the feature.
        summary: Its entry in the schema.
        num_records: Records of the split; a feature that some of them lack is optional.
        counts: Counts of its values, as text, if it is the label.
    """
    found, shape = summary.type, summary.type.shape or ()
    is_optional = summary.unset > 0 or summary.present < num_records
    if found.kind is None:
        return TfdsFeature("unset"), f"{name!r} has no value in any record: TFDS does not list it"
    as_bytes = TfdsFeature("tensor", optional=is_optional)
    if found.encoding == "image":
        return _image(name, found, as_bytes)
    if found.encoding == "raw":
        can = found.dtype in _RAW_DTYPES and shape.count(None) < 2 and not is_optional
        if can and found.dtype is not None:
            return TfdsFeature("tensor", found.dtype, shape, "bytes"), None
        return as_bytes, f"{name!r}: TFDS gives its bytes, as it can not decode this array"
    note = None
    if shape.count(None) > 1:
        shape, note = (None,), f"{name!r}: TFDS gives a flat array, without its shape"
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
        dtype = float_dtype(dtype)  # the type in the record
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
    # Always three channels, as TFDS's own ImageFolder declares.
    return TfdsFeature("image", "uint8", (None, None, 3), found.format or "image"), note


def _label(
    vocabulary: list[str] | None, counts: Mapping[str, int], num_records: int
) -> TfdsFeature | None:
    """Return the class label of an integer feature; None if it is not a label."""
    if vocabulary is not None:
        # The file has one name a line, and TFDS strips blanks around them.
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
    """Return the TFDS features of a dataset.

    Args:
        features: The features of each split.
        empty: Splits without records; they may lack any feature.

    Raises:
        TfdsConflict: No feature reads the records of two splits.
    """
    joined: dict[str, TfdsFeature] = {}
    first_split: dict[str, str] = {}
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
                raise TfdsConflict(name, first_split[name], split, str(error)) from None
            first_split.setdefault(name, split)
        for split in sorted(set(features) - empty):
            if name not in features[split] and not joined[name].may_be_absent:
                raise TfdsConflict(name, first_split[name], split, "only one of them has it")
    return joined


class TfdsConflict(ValueError):
    """Two splits have features that TFDS can not read as one dataset.

    Attributes:
        feature: The feature.
        first: One split.
        second: The other split.
        difference: The difference, for messages.
    """

    def __init__(self, feature: str, first: str, second: str, difference: str) -> None:
        super().__init__(f"{feature}: {difference}")
        self.feature, self.first, self.second = feature, first, second
        self.difference = difference


def features_text(features: Mapping[str, TfdsFeature]) -> str:
    """Return the text of ``features.json``, in TFDS's own layout."""
    entries = {
        name: feature.to_json() for name, feature in features.items() if feature.kind != "unset"
    }
    document = {
        "featuresDict": {"features": entries} if entries else {},
        "pythonClassName": f"{_MODULE}features_dict.FeaturesDict",
    }
    return json.dumps(document, indent=4, sort_keys=True)


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


# The shapes of TFDS's ``dataset_info.json`` and ``features.json``, as far as they are used.
#
# TFDS stores protos as JSON, with names in camel case and 64-bit numbers as text or as numbers,
# https://www.tensorflow.org/datasets/external_tfrecord. A missing key and null are the same.

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
_COMMIT: Final = "commit.json"  # in another split's run: its publication will be finished
_TEMPORARY: Final = "tfds"  # in the run directory, before it is renamed
_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def check_folder(storage: Storage, directory: str, split: TfdsSplit) -> None:
    """Refuse a folder with metadata that shardwriter did not write: it would be lost.

    Raises:
        OutputExists: Another program wrote splits there.
    """
    path = os.path.join(directory, INFO_FILE)
    data = storage.read(path)
    if data is None:
        return
    names = storage.list(directory)
    try:
        info = json_shape.read(data, InfoShape)
    except ValueError:
        others, is_same = [], False
    else:
        others = [entry["name"] for entry in info.get("splits") or []]
        is_same = (info["name"], info.get("version")) == (split.name, split.version)
    foreign = [
        name
        for name in others
        if manifest_file(f"{split.name}-{name}") not in names
        and any(file.startswith(f"{split.name}-{name}.") for file in names)
        and not os.path.exists(os.path.join(directory, partial_dir(f"{split.name}-{name}")))
    ]
    if is_same and not foreign:
        return
    reason = f": split {foreign[0]!r} has no manifest" if foreign else ""
    raise OutputExists(
        f"this was not written by shardwriter for {split.dataset}{reason}",
        path=path,
        hint="choose another version in --tfds, or another data_dir",
    )


def check_planned(
    storage: Storage,
    directory: str,
    split: TfdsSplit,
    features: Mapping[str, TfdsFeature],
    beside: Collection[str] = (),
) -> None:
    """Refuse planned types that do not join those of the dataset's other splits.

    Features that only one side has are checked later, by :func:`adding_split`.

    Args:
        storage: The storage of the folder.
        directory: The folder.
        split: The split to write.
        features: Its features that are known before the first record.
        beside: Splits that the same write replaces; they are not compared.

    Raises:
        OptionError: Has the feature.
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
def adding_split(
    run: RunDirectory, manifest: Manifest, beside: Sequence[Manifest] = ()
) -> Iterator[None]:
    """Lock the folder while a split is committed; check that it joins the other splits.

    For a dataset that is no TFDS split this does nothing.

    Args:
        run: The run directory of the split.
        manifest: The manifest that is committed.
        beside: Manifests that the same write commits; they replace those in the folder.

    Raises:
        ManifestError: The features of the split are unknown.
        OptionError: Its features do not join those of another split.
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
                raise StorageError("a folder has the name of a file to write", path=target)
        yield


def remove_split(run: RunDirectory, manifest: Manifest) -> None:
    """Remove a split that is about to be replaced from the metadata."""
    split = tfds_split_of(manifest.metadata)
    if split is None:
        return
    with _locked(run):
        if run.storage.read(os.path.join(run.directory, INFO_FILE)) is None:
            return
        others = _current(run.storage, run.directory, split)
        if others:
            _publish(run, INFO_FILE, info_text(split, others))
        else:
            _delete_all(run)
        run.storage.sync_directory(run.directory)


@contextmanager
def publishing_split(run: RunDirectory, manifest: Manifest) -> Iterator[None]:
    """Add a split to the metadata, and lock the folder while its manifest is published."""
    split = tfds_split_of(manifest.metadata)
    if split is None:
        yield
        return
    with _locked(run):
        mine = {split.split: manifest}
        splits = {**_current(run.storage, run.directory, split), **mine}
        try:
            joined = _join(_features_of(splits), split, run.directory, _empty(splits))
        except OptionError:
            # A write that replaces several splits was stopped before it committed all of them. The
            # old splits are left out until the new ones are published.
            splits = mine
            joined = _join(_features_of(mine), split, run.directory, _empty(mine))
        files = labels_files(joined)
        for name in _listed_labels_files(run) - set(files):  # of a split that is being replaced
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
    """Return the text of ``dataset_info.json``, in TFDS's own layout.

    Args:
        split: A split of the dataset.
        splits: The manifests of all splits, by split name.
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
            f"splits {error.first!r} and {error.second!r} of {split.dataset} have different "
            f"features: {error.difference}",
            path=directory,
            feature=error.feature,
            hint="give all splits the same features and classes, with a map or a --schema; or "
            "choose another version in --tfds",
        ) from None


def _features_of(splits: Mapping[str, Manifest]) -> dict[str, dict[str, TfdsFeature]]:
    return {name: tfds_features(manifest)[0] for name, manifest in splits.items()}


def _empty(splits: Mapping[str, Manifest]) -> frozenset[str]:
    return frozenset(name for name, manifest in splits.items() if not manifest.num_records)


def _expected(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return the manifests of the dataset's other splits once committed runs are published."""
    return {**_published(storage, directory, split), **_committed(storage, directory, split)}


def _current(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return the published manifests of other splits that no committed run will replace."""
    committed = _committed(storage, directory, split)
    found = _published(storage, directory, split)
    return {name: found[name] for name in found if committed.get(name, found[name]) == found[name]}


def _published(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return the published manifests of the dataset's other splits."""
    names = storage.list(directory)
    paths = [name for name in names if name.endswith(_MANIFEST_SUFFIX)]
    return _splits(storage, [os.path.join(directory, name) for name in paths], split)


def _committed(storage: Storage, directory: str, split: TfdsSplit) -> dict[str, Manifest]:
    """Return the manifests of other splits whose runs are committed, but maybe not published."""
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
            continue  # TFDS does not need it, and `shard-stats` reports it
        other = tfds_split_of(manifest.metadata)
        if other is not None and other.is_beside(split):
            found[other.split] = manifest
    return found


def _publish(run: RunDirectory, file_name: str, text: str) -> None:
    run.write_synced(_TEMPORARY, text.encode("utf-8"))
    run.storage.publish(run.file(_TEMPORARY), os.path.join(run.directory, file_name))


def _delete_all(run: RunDirectory) -> None:
    """Delete the metadata: first the file that TFDS opens, last the one that lists the others."""
    storage = run.storage
    storage.delete(os.path.join(run.directory, INFO_FILE))
    for name in _listed_labels_files(run):
        storage.delete(os.path.join(run.directory, name))
    storage.delete(os.path.join(run.directory, FEATURES_FILE))


def _listed_labels_files(run: RunDirectory) -> set[str]:
    """Return the names of class name files that the current ``features.json`` lists."""
    data = run.storage.read(os.path.join(run.directory, FEATURES_FILE))
    try:
        features = json_shape.read(data or b"{}", FeaturesShape)["featuresDict"]["features"]
        names = [labels_file(name) for name, entry in features.items() if "classLabel" in entry]
        return {path_below(name) for name in names}
    except ValueError:
        return set()


@contextmanager
def _locked(run: RunDirectory) -> Iterator[None]:
    """Lock the folder; without a lock if the file system can not lock folders."""
    try:
        descriptor = os.open(run.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"can not be opened: {error.strerror}", path=run.directory) from error
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # a process that was forked meanwhile would keep the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
