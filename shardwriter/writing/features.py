"""What TFDS is told of features: ``features.json``, from the schemas of a dataset's splits.

It is the proto ``Feature`` of TFDS's ``feature.proto`` as JSON; only types that are in every
installation of TFDS are used: Image, ClassLabel, Text and Tensor. Every feature is one key of a
flat FeaturesDict, named as it is in the records (``image/encoded``), so records are not changed.
What TFDS has no type for is given as the bytes that the record holds, or left out, and a note says
so: the records themselves are whole all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from shardwriter.dataset.manifest import Manifest
from shardwriter.errors import ManifestError
from shardwriter.schema.feature_types import FeatureType, Shape, float_dtype
from shardwriter.schema.labels import MAX_LABELS
from shardwriter.schema.schema import FeatureSummary

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
