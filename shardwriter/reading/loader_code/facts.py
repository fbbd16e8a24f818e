"""What loader code has to know of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shardwriter.dataset.naming import is_url
from shardwriter.errors import ManifestError, SourceError
from shardwriter.formats.compression import Compression
from shardwriter.reading.known_schema import LOOKED_AT, check_example, schema_of
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.record_files import files_of
from shardwriter.schema.feature_types import FeatureType, Shape
from shardwriter.schema.schema import FeatureSummary
from shardwriter.schema.shape_features import shaped_by_others
from shardwriter.sources.locate import find_one
from shardwriter.sources.shard_sets import ShardSet

MASK_WORDS: Final = ("segmentation", "mask", "annotation", "label")


@dataclass(frozen=True)
class Field:
    """A feature, as loader code sees it.

    Attributes:
        name: Of the feature.
        type: Its type, which has a kind.
        num_absent: Records that were counted and do not have it.
        num_unset: Records in which it is there without a value.
        vocabulary: Names of its values, where it is a class.
        sizes_in: The feature that holds the shape of each record's value; None where the number of
            values tells it. Our own readers keep that feature to themselves.
        is_sampled: Whether only some of the records were read, so that others may lack it.
    """

    name: str
    type: FeatureType
    num_absent: int
    num_unset: int
    vocabulary: tuple[str, ...] = ()
    sizes_in: str | None = None
    is_sampled: bool = False

    @property
    def shape(self) -> Shape | None:
        """Of a value; None where nothing is known of it."""
        return self.type.shape

    @property
    def is_scalar(self) -> bool:
        """Whether a value is one number or text."""
        return self.shape == ()

    @property
    def is_fixed(self) -> bool:
        """Whether all values have the same shape, none of whose sizes is 0."""
        return self.shape is not None and None not in self.shape and 0 not in self.shape

    @property
    def is_optional(self) -> bool:
        """Whether some records have no value of it, or may have none."""
        return self.is_sampled or self.num_missing > 0

    @property
    def num_missing(self) -> int:
        """Records that were counted and have no value of it."""
        return self.num_absent + self.num_unset

    @property
    def is_number(self) -> bool:
        """Whether values are numbers, and not bytes; raw ones are numbers in bytes."""
        return self.type.kind != "bytes" or self.is_raw

    @property
    def is_raw(self) -> bool:
        """Whether an array's bytes are in it."""
        return self.type.encoding == "raw" and self.type.dtype not in (None, "bytes", "string")

    @property
    def is_picture(self) -> bool:
        """Whether every record has one image file in it, so that it can be decoded."""
        return self.type.encoding == "image" and self.is_scalar and not self.num_missing

    @property
    def is_mask(self) -> bool:
        """Whether, by its name, the pixels of a picture are classes and not colours."""
        words = self.name.lower()
        return self.is_picture and any(word in words for word in MASK_WORDS)

    @property
    def varies_first(self) -> bool:
        """Whether values are lists of numbers, of any length, which can be padded."""
        shape = (None,) if self.shape is None else self.shape
        return self.is_number and shape[:1] == (None,) and None not in shape[1:]

    @property
    def is_always_empty(self) -> bool:
        """Whether the shape leaves no room for a value."""
        return self.shape is not None and None not in self.shape and 0 in self.shape


@dataclass(frozen=True)
class Facts:
    """A dataset, as loader code sees it.

    Attributes:
        path: As it was given.
        files: Its shards, in order, below the folder that the path was given in.
        numbered: What is before and behind the number of a shard, and how many digits it has; None
            where the files are to be listed.
        compression: Of all of them.
        num_records: In all of them.
        is_regular: Whether one record of each shard in turn is the source order.
        fields: The features, by name; those that never have a value are left out, and so are those
            that hold the shapes of others.
        never_set: The names of those.
        num_counted: Records that the features are those of.
        is_told: Whether a manifest tells types and shapes.
    """

    path: str
    files: tuple[str, ...]
    numbered: tuple[str, str, int] | None
    compression: Compression
    num_records: int
    is_regular: bool
    fields: tuple[Field, ...]
    never_set: tuple[str, ...]
    num_counted: int
    is_told: bool

    @property
    def is_sample(self) -> bool:
        """Whether types come from the first records only, and not from all or from a manifest."""
        return not self.is_told and self.num_counted < self.num_records

    @property
    def pictures(self) -> list[Field]:
        """Features that are decoded."""
        return [field for field in self.fields if field.is_picture]


def find_facts(
    path: str | os.PathLike[str],
    *,
    num_records: int = LOOKED_AT,
    notify: Callable[[str], None] | None = None,
) -> Facts:
    """Find out what loader code has to know.

    Args:
        path: The dataset; see `shardwriter.open`.
        num_records: Records to look at where no manifest tells the types.
        notify: Told of what is worth knowing.

    Raises:
        SourceError: There is nothing to read.
        DataError: The dataset is not whole, its records are no Examples, or its manifest has what
            no manifest has.
    """
    path = os.fspath(path)
    data = open_dataset(path, decode=False, notify=notify)
    if data.feature_lists is not None:
        raise SourceError(
            "its records are SequenceExamples, and code is printed for Examples",
            path=path,
            hint="sw.open, ShardLoader and tf_dataset read them by their schema",
        )
    known = schema_of(data, num_records)
    if len(data):
        try:
            check_example(data[0])
        except SourceError as error:
            error.path, error.record_index = data.place(0).path, 0
            raise
    sizes_in = shaped_by_others({name: s.type for name, s in known.features.items()})
    is_sampled = not known.is_told and known.num_counted < known.num_records
    fields = tuple(
        replace(_field(name, summary, known.num_counted, sizes_in.get(name)), is_sampled=is_sampled)
        for name, summary in sorted(known.features.items())
        if summary.type.kind is not None and name not in sizes_in.values()
    )
    if not fields:
        raise SourceError(
            "its records have no features to write code for"
            if len(data)
            else "there are no records, so there is nothing to write code for",
            path=path,
            hint="`shardwriter show` prints what is there",
        )
    shard_set = find_one(path)
    shards = tuple(map(os.path.normpath, (p for _, p in shard_set.shards)))
    if is_url(path):
        shards = tuple(p for _, p in shard_set.shards)
    files = files_of(data)
    return Facts(
        path,
        shards,
        _numbered(shard_set, shards),
        files.compression,
        len(data),
        files.is_regular,
        fields,
        tuple(sorted(n for n, s in known.features.items() if s.type.kind is None)),
        known.num_counted,
        known.is_told,
    )


def _field(name: str, summary: FeatureSummary, num_counted: int, sizes_in: str | None) -> Field:
    """Return a feature, when nothing in its entry could be taken for code.

    Raises:
        ManifestError: The entry has what no type has.
    """
    found = summary.type
    shape = found.shape or ()
    vocabulary = tuple(summary.vocabulary or ())
    if (
        found.kind not in ("int64", "float", "bytes")
        or not _is_dtype(found)
        or not all(n is None or type(n) is int for n in shape)
        or not all(isinstance(word, str) for word in vocabulary)
    ):
        raise ManifestError(
            f"its entry in the schema is no type that code can be written for: {found}",
            feature=name,
            hint="`shardwriter verify` says whether the manifest is as it was written",
        )
    num_absent = max(0, num_counted - summary.present)
    return Field(name, found, num_absent, summary.unset, vocabulary, sizes_in)


def _is_dtype(found: FeatureType) -> bool:
    if found.dtype is None or (found.kind == "bytes" and found.dtype in ("bytes", "string")):
        return True
    try:
        return np.dtype(found.dtype).name == found.dtype and found.dtype.isidentifier()
    except (TypeError, ValueError):
        return False


def _numbered(shard_set: ShardSet, paths: Sequence[str]) -> tuple[str, str, int] | None:
    """Split the names of a complete set around the number that tells its shards apart."""
    pattern = shard_set.pattern
    if pattern is None or not shard_set.is_complete or len(paths) < 2:
        return None
    prefix = os.path.join(os.path.dirname(paths[0]), f"{pattern.stem}-")
    suffix_bytes = len(pattern.template) - len(pattern.stem) - len("-{shard}")
    suffix = paths[0][len(paths[0]) - suffix_bytes :]
    width = len(paths[0]) - len(prefix) - len(suffix)
    made = [f"{prefix}{number:0{width}d}{suffix}" for number in range(len(paths))]
    return (prefix, suffix, width) if made == list(paths) else None
