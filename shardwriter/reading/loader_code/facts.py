"""The facts about a dataset that loader code depends on, and helpers to format Python source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from shardwriter.dataset import is_url
from shardwriter.errors import ManifestError, SourceError
from shardwriter.formats import Compression
from shardwriter.reading.known_schema import SAMPLED_RECORDS, check_example, schema_of
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.record_files import record_files
from shardwriter.schema import FeatureSummary, FeatureType, Shape, shape_feature_names
from shardwriter.sources import ShardSet, find_one

MASK_WORDS: Final = ("segmentation", "mask", "annotation", "label")


@dataclass(frozen=True)
class Field:
    """A feature of the dataset.

    Attributes:
        name: Its name.
        type: Its type, which has a kind.
        num_absent: Number of counted records without it.
        num_unset: Number of records that have it without a value.
        vocabulary: Names of its classes.
        sizes_in: Its shape feature; None if it has none. shardwriter's readers do not return it.
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
        """The shape of a value; None if unknown."""
        return self.type.shape

    @property
    def is_scalar(self) -> bool:
        """Whether a value is a single number or string."""
        return self.shape == ()

    @property
    def is_fixed(self) -> bool:
        """Whether all values have the same shape, without a size of 0."""
        return self.shape is not None and None not in self.shape and 0 not in self.shape

    @property
    def is_optional(self) -> bool:
        """Whether some records have, or may have, no value."""
        return self.is_sampled or self.num_missing > 0

    @property
    def num_missing(self) -> int:
        """Number of counted records without a value."""
        return self.num_absent + self.num_unset

    @property
    def is_number(self) -> bool:
        """Whether values are numbers, including arrays stored as raw bytes."""
        return self.type.kind != "bytes" or self.is_raw

    @property
    def is_raw(self) -> bool:
        """Whether values are arrays stored as raw bytes."""
        return self.type.encoding == "raw" and self.type.dtype not in (None, "bytes", "string")

    @property
    def is_picture(self) -> bool:
        """Whether every record has one image file, so that the program decodes it."""
        return self.type.encoding == "image" and self.is_scalar and not self.num_missing

    @property
    def is_mask(self) -> bool:
        """Whether the pixels of an image are classes and not colours, judging by the name."""
        words = self.name.lower()
        return self.is_picture and any(word in words for word in MASK_WORDS)

    @property
    def varies_first(self) -> bool:
        """Whether values are numbers whose first dimension alone varies, so that it is padded."""
        shape = (None,) if self.shape is None else self.shape
        return self.is_number and shape[:1] == (None,) and None not in shape[1:]

    @property
    def is_always_empty(self) -> bool:
        """Whether the shape has a size of 0."""
        return self.shape is not None and None not in self.shape and 0 in self.shape


@dataclass(frozen=True)
class Facts:
    """The facts about a dataset.

    Attributes:
        path: The path as given.
        files: Its shards in order, relative to the same folder as the path.
        numbered: Prefix and suffix of a shard's number in the path, and its number of digits; None
            if the files are to be listed.
        compression: Compression of all shards.
        num_records: Records in all shards.
        is_regular: Whether one record of each shard in turn is the source order.
        fields: The features sorted by name, without those never set and without shape features.
        never_set: Names of features that never have a value.
        num_counted: Records behind the counts of the features.
        from_manifest: Whether types and shapes are the manifest's.
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
    from_manifest: bool

    @property
    def is_sample(self) -> bool:
        """Whether types are inferred from the first records only."""
        return not self.from_manifest and self.num_counted < self.num_records

    @property
    def pictures(self) -> list[Field]:
        """The features that are images in every record."""
        return [field for field in self.fields if field.is_picture]


def find_facts(
    path: str | os.PathLike[str],
    *,
    num_records: int = SAMPLED_RECORDS,
    notify: Callable[[str], None] | None = None,
) -> Facts:
    """Return the facts about a dataset.

    Args:
        path: The dataset; see `shardwriter.open`.
        num_records: Number of records to infer types from, without a manifest.
        notify: Called with each note, a line of text.

    Raises:
        SourceError: There are no records, or no features.
        DataError: Shards are missing, records are not Examples, or the manifest is invalid.
    """
    path = os.fspath(path)
    data = open_dataset(path, decode=False, notify=notify)
    if data.feature_lists is not None:
        raise SourceError(
            "its records are SequenceExamples, and loader code supports only Examples",
            path=path,
            hint="use sw.open, ShardLoader or tf_dataset",
        )
    known = schema_of(data, num_records)
    if len(data):
        try:
            check_example(data[0])
        except SourceError as error:
            error.path, error.record_index = data.place(0).path, 0
            raise
    sizes_in = shape_feature_names({name: s.type for name, s in known.features.items()})
    is_sampled = not known.from_manifest and known.num_counted < known.num_records
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
            hint="`shardwriter show` prints the records",
        )
    shard_set = find_one(path)
    shards = tuple(map(os.path.normpath, (p for _, p in shard_set.shards)))
    if is_url(path):
        shards = tuple(p for _, p in shard_set.shards)
    files = record_files(data)
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
        known.from_manifest,
    )


def _field(name: str, summary: FeatureSummary, num_counted: int, sizes_in: str | None) -> Field:
    """Return a feature whose entry is valid, so that nothing in it can become code.

    Raises:
        ManifestError: The entry is not a valid type.
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
            f"its type in the schema is not valid: {found}",
            feature=name,
            hint="`shardwriter verify` checks the manifest",
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
    """Return prefix, suffix and digits of the shard number in the paths of a complete set."""
    pattern = shard_set.pattern
    if pattern is None or not shard_set.is_complete or len(paths) < 2:
        return None
    prefix = os.path.join(os.path.dirname(paths[0]), f"{pattern.stem}-")
    suffix_bytes = len(pattern.template) - len(pattern.stem) - len("-{shard}")
    suffix = paths[0][len(paths[0]) - suffix_bytes :]
    width = len(paths[0]) - len(prefix) - len(suffix)
    made = [f"{prefix}{number:0{width}d}{suffix}" for number in range(len(paths))]
    return (prefix, suffix, width) if made == list(paths) else None


# -- Python source ---------------------------------------------------------------------------------

WIDTH: Final = 88  # default of black and ruff
_INDENT: Final = "    "


def quoted(text: str) -> str:
    """Return any text as a literal on one line; unprintable characters are escaped."""
    literal = repr(text)
    if literal[0] == "'" and '"' not in text:
        return f'"{literal[1:-1]}"'
    if '"' in text and text.count('"') <= text.count("'"):
        body = literal[1:-1].replace("\\'", "'").replace('"', '\\"')
        return f'"{body}"'
    return literal


def literal(value: Any) -> str:
    """Return numbers, strings and lists of them as source; NaN and inf as ``float("nan")``.

    Raises:
        TypeError: The value has another type.
    """
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return repr(value) if b'"' in value else f'b"{repr(value)[2:-1]}"'
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        is_finite = value == value and abs(value) != float("inf")
        return repr(value) if is_finite else f'float("{value}")'
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(literal, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise TypeError(f"{type(value).__name__} has no literal")


def call(head: str, parts: Sequence[str], tail: str = ")", indent: int = 0) -> list[str]:
    """Return the lines of a call: one line, or its arguments on one line, or one per line.

    Args:
        head: The source up to and including the opening bracket.
        parts: The arguments.
        tail: The closing bracket and what follows it.
        indent: Indentation levels of the first line.
    """
    lines = _in_one(head, parts, tail, indent)
    if lines is not None:
        return lines
    inner = _INDENT * (indent + 1) + ", ".join(parts)
    if len(inner) <= WIDTH:
        return [_INDENT * indent + head, inner, _INDENT * indent + tail]
    return _exploded(head, parts, tail, indent)


def collection(head: str, parts: Sequence[str], tail: str, indent: int = 0) -> list[str]:
    """Return the lines of a list, dict or tuple: one line, or one item per line."""
    lines = _in_one(head, parts, tail, indent)
    return _exploded(head, parts, tail, indent) if lines is None else lines


def entries(head: str, groups: Sequence[Sequence[str]], tail: str, indent: int = 0) -> list[str]:
    """Return a dict whose entries are lines that stand as they are, one or more each."""
    inner = [_INDENT * (indent + 1) + line for group in groups for line in group]
    return [_INDENT * indent + head, *inner, _INDENT * indent + tail]


def _in_one(head: str, parts: Sequence[str], tail: str, indent: int) -> list[str] | None:
    one = _INDENT * indent + head + ", ".join(parts) + tail
    return [one] if len(one) <= WIDTH else None


def _exploded(head: str, parts: Sequence[str], tail: str, indent: int) -> list[str]:
    inner = [f"{_INDENT * (indent + 1)}{part}," for part in parts]
    return [_INDENT * indent + head, *inner, _INDENT * indent + tail]


def comment(text: str, indent: int = 0) -> list[str]:
    """Return a comment, wrapped at spaces. Names in the text must be `quoted`."""
    room = WIDTH - len(_INDENT * indent) - 2
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return [f"{_INDENT * indent}# {line}" for line in lines]


# -- parts of programs for all frameworks ----------------------------------------------------------

MAX_CLASSES = 200  # class names to print
IMAGE_SIZE = "IMAGE_SIZE = (224, 224)  # height and width to resize images to"


def opening(facts: Facts, reader: str, needs: str, *, has_defaults: bool = True) -> list[str]:
    """Return the comment at the top: dataset, framework, and what is only inferred.

    Args:
        facts: The dataset.
        reader: The framework.
        needs: The packages to install.
        has_defaults: Whether the program has defaults for missing features.
    """
    records = "1 record" if facts.num_records == 1 else f"{facts.num_records:,} records"
    shards = "1 shard" if len(facts.files) == 1 else f"{len(facts.files):,} shards"
    packed = "" if facts.compression == "none" else f" {facts.compression}"
    shards = shards.replace(" ", f"{packed} ", 1)
    lines = comment(f"Reads {quoted(facts.path)} with {reader}: {records} in {shards}.")
    lines += comment(f"Needs {needs}.")
    if not facts.from_manifest:
        lines += comment(_where_types_come_from(facts, has_defaults))
    for name in facts.never_set:
        lines += comment(f"{quoted(name)} is left out: it has no value in any record.")
    return lines


def _where_types_come_from(facts: Facts, has_defaults: bool) -> str:
    if not facts.is_sample:
        return "There is no manifest: types and shapes are inferred from all records."
    then = "gets a default" if has_defaults else "makes the reader fail, or is read as 0"
    return (
        "There is no manifest: types and shapes are inferred from the first "
        f"{facts.num_counted:,} records. A feature that a later record lacks {then}; features that "
        f"only later records have are left out. --records {facts.num_records} reads all of them."
    )


def files(facts: Facts) -> list[str]:
    """Return ``FILES = ...``: the shards in order, and no other files of the folder."""
    lines = comment("The shards in order, relative to the folder in which this program runs.")
    if facts.numbered is None:
        return lines + collection("FILES = [", list(map(quoted, facts.files)), "]")
    prefix, suffix, width = facts.numbered
    # Braces of the names are doubled, since it is an f-string.
    name = quoted(_doubled(prefix) + f"{{i:0{width}d}}" + _doubled(suffix))
    listed = f"f{name} for i in range({len(facts.files)})"
    if len(listed) + len("FILES = []") <= 88:
        return [*lines, f"FILES = [{listed}]"]
    if len(listed) + 4 <= 88:
        return [*lines, "FILES = [", f"    {listed}", "]"]
    return [*lines, "FILES = [", f"    f{name}", f"    for i in range({len(facts.files)})", "]"]


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def class_names(fields: Sequence[Field]) -> list[str]:
    """Return ``CLASS_NAMES = ...``, by feature; [] without class names."""
    known = [field for field in fields if field.vocabulary]
    if not known:
        return []
    lines = [*comment("Names of classes, by number."), "CLASS_NAMES = {"]
    for field in known:
        head = f"{quoted(field.name)}: ["
        names = field.vocabulary[:MAX_CLASSES]
        lines += collection(head, list(map(quoted, names)), "],", indent=1)
        more = len(field.vocabulary) - len(names)
        if more:
            lines += comment(f"{more:,} more are in the manifest's schema.", indent=1)
    return [*lines, "}"]


def why_absent(field: Field, num_counted: int) -> str:
    """Return the text on how many records have no value of an optional feature."""
    return f"{field.num_missing:,} of {num_counted:,} records have no value"
