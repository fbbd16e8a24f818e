"""Names of datasets and their files, and the meaning of OUT.

::

    notation   STEM@N[.EXT]                     train@16, train@16.tfrecord, train.record@10
    shard      STEM-IIIII-of-NNNNN[.EXT]        train.tfrecord-00003-of-00016
    dataset    STEM without a trailing tfrecord part: its manifest, index and run directory have
               this name, so any N and any spelling of one name are generations of one dataset

TFDS (https://www.tensorflow.org/datasets/external_tfrecord) finds a dataset by its folder::

    DATA_DIR/NAME/VERSION/NAME-SPLIT.tfrecord-IIIII-of-NNNNN     shards
                          features.json                          types, of all splits
                          FEATURE.labels.txt                     names of classes, one per line
                          dataset_info.json                      lengths of the shards, by split

With ``--tfds NAME:VERSION``, OUT is ``DATA_DIR/SPLIT@N``; without ``@`` it is DATA_DIR, and the
split is ``train``. Name and version are given once, so folder, file names and metadata agree.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final

from shardwriter.dataset.option_types import Bounds, check_value
from shardwriter.errors import OptionError
from shardwriter.formats import SUFFIXES, Compression

INFO_FILE: Final = "dataset_info.json"
FEATURES_FILE: Final = "features.json"
DEFAULT_SPLIT: Final = "train"
MAX_TFDS_SHARDS: Final = 99_999  # TFDS writes both numbers with 5 digits

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Without an @ these are more likely meant as a split than as a new folder.
_SPLIT_NAMES: Final = frozenset({"train", "test", "val", "valid", "validation", "eval", "dev"})


@dataclass(frozen=True)
class TfdsSplit:
    """A split of a TFDS dataset.

    Attributes:
        name: Name of the dataset.
        version: ``x.y.z``.
        split: Name of the split.
    """

    name: str
    version: str
    split: str

    @property
    def dataset(self) -> str:
        """The dataset as in ``--tfds``: ``NAME:VERSION``."""
        return f"{self.name}:{self.version}"

    @property
    def stem(self) -> str:
        """The beginning of shard file names."""
        return f"{self.name}-{self.split}.tfrecord"

    def to_json(self) -> dict[str, str]:
        """Return the manifest's ``metadata.tfds``."""
        return asdict(self)

    def is_beside(self, other: TfdsSplit) -> bool:
        """Return whether another is a different split of the same dataset."""
        return self.dataset == other.dataset and self.split != other.split


def tfds_split_of(metadata: Mapping[str, Any]) -> TfdsSplit | None:
    """Return the TFDS split in a manifest's ``metadata``; None if there is none."""
    entry = metadata.get("tfds")
    if not isinstance(entry, Mapping):
        return None
    name, version, split = (entry.get(key) for key in ("name", "version", "split"))
    if not (isinstance(name, str) and isinstance(version, str) and isinstance(split, str)):
        return None
    if not (_NAME.fullmatch(name) and _VERSION.fullmatch(version) and _SPLIT.fullmatch(split)):
        return None
    return TfdsSplit(name, version, split)


def parse_tfds_out(out: str, dataset: str) -> tuple[str, TfdsSplit]:
    """Return the meaning of OUT with ``--tfds NAME:VERSION``.

    Args:
        out: ``DATA_DIR/SPLIT@N``, or ``DATA_DIR``.
        dataset: ``NAME:VERSION``.

    Returns:
        The equivalent OUT without ``--tfds``, and the split.

    Raises:
        OptionError: TFDS can not find a dataset of this name, version or split.
    """
    name, _, version = dataset.partition(":")
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise OptionError(
            f"--tfds {dataset!r} is not NAME:VERSION",
            hint="as in demo:1.0.0; a name has lower-case letters, digits and _, a version three "
            "numbers without leading zeros",
        )
    directory, base = os.path.split(out)
    if "@" in base:
        split, at, num_shards = base.partition("@")
    else:
        directory, split, at, num_shards = out, DEFAULT_SPLIT, "", ""
        if base in _SPLIT_NAMES and not os.path.isdir(out):
            raise OptionError(
                f"with --tfds, {out!r} is a folder for datasets, since it has no @",
                hint=f"give {out}@N or {out}@auto for a split, or {os.path.join(out, '')}",
            )
    if not _SPLIT.fullmatch(split) or split == "all":
        raise OptionError(
            f"{split!r} can not be a split of a TFDS dataset",
            hint="use letters, digits and _, as in train@16; TFDS reserves 'all'",
        )
    found = TfdsSplit(name, version, split)
    return os.path.join(directory, name, version, found.stem) + at + num_shards, found


MAX_SHARDS: Final = 999_999

_NOTATION = re.compile(r"(?P<stem>[^@/]+)@(?P<n>[1-9][0-9]{0,5}|auto)(?P<ext>(?:\.[A-Za-z0-9_]+)*)")
_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<i>[0-9]{5,})-of-(?P<n>[0-9]{5,})(?P<ext>(?:\.[A-Za-z0-9_]+)*)", re.DOTALL
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # includes line separators
DALI_INDEX_SUFFIX: Final = ".idx"
_MAX_NAME_BYTES: Final = 255  # of a file name, on every file system in use
URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
TFRECORD_PARTS: Final = frozenset({"tfrecord", "tfrecords", "tfrec", "tfr", "record", "records"})


def dataset_name(stem: str) -> str:
    """Return the dataset's name of a stem: ``train`` for ``train.tfrecord``."""
    head, dot, last = stem.rpartition(".")
    return head if dot and head and last.lower() in TFRECORD_PARTS else stem


@dataclass(frozen=True)
class ShardPattern:
    """The names of all files of one finished dataset.

    Attributes:
        stem: The beginning of shard file names.
        num_shards: N.
        ext: The suffix of shard file names, including its dots.
    """

    stem: str
    num_shards: int
    ext: str = ""

    @property
    def name(self) -> str:
        """The dataset's name."""
        return dataset_name(self.stem)

    @property
    def template(self) -> str:
        """A shard's file name with ``{shard}`` for its index, as in the manifest."""
        width = max(5, len(str(self.num_shards)))
        return f"{self.stem}-{{shard}}-of-{self.num_shards:0{width}d}{self.ext}"

    def shard_file(self, shard_index: int) -> str:
        """Return the file name of shard ``shard_index``."""
        width = max(5, len(str(self.num_shards)))
        # Not str.format: a stem may contain braces.
        return f"{self.stem}-{shard_index:0{width}d}-of-{self.num_shards:0{width}d}{self.ext}"

    @property
    def shard_files(self) -> list[str]:
        """All N file names, in order."""
        return [self.shard_file(s) for s in range(self.num_shards)]

    @property
    def manifest_file(self) -> str:
        """File name of the manifest."""
        return manifest_file(self.name)

    @property
    def index_file(self) -> str:
        """File name of the index."""
        return f"{self.name}.index"


def error_log_file(name: str) -> str:
    """Return the file name of a dataset's error log."""
    return f"{name}.errors.jsonl"


def lost_items_file(name: str) -> str:
    """Return the file name of the list of items that a repair could not recover."""
    return f"{name}.lost.jsonl"


def manifest_file(name: str) -> str:
    """Return the file name of a dataset's manifest."""
    return f"{name}.manifest.json"


def partial_dir(name: str) -> str:
    """Return the name of the run directory, in which a dataset is written."""
    return f".{name}.partial"


@dataclass(frozen=True)
class ShardName:
    """A parsed shard file name."""

    pattern: ShardPattern
    shard_index: int


def parse_shard_file(file_name: str) -> ShardName | None:
    """Return a parsed shard file name; None if it is not the name of a shard."""
    match = _SHARD.fullmatch(file_name)
    if match is None:
        return None
    if match["ext"].endswith(DALI_INDEX_SUFFIX):
        return None  # an index file of a shard
    shard_index, num_shards = int(match["i"]), int(match["n"])
    pattern = ShardPattern(match["stem"], num_shards, match["ext"])
    if shard_index >= num_shards or pattern.shard_file(shard_index) != file_name:
        return None  # so a pattern has exactly one name per shard
    return ShardName(pattern, shard_index)


def pattern_from_template(template: str, num_shards: int) -> ShardPattern | None:
    """Return the pattern of a manifest's template; None if the template is invalid."""
    if "/" in template or "\\" in template or ".." in template or template.count("{shard}") != 1:
        return None
    width = max(5, len(str(num_shards)))
    parsed = parse_shard_file(template.replace("{shard}", "0" * width))
    if parsed is None or parsed.pattern.template != template:
        return None
    return parsed.pattern if parsed.pattern.num_shards == num_shards else None


def generations(
    file_names: Iterable[str], name: str, known: Iterable[ShardPattern | None] = ()
) -> dict[ShardPattern, list[int]]:
    """Return the shards of a dataset in a folder, grouped by pattern.

    Other tools use names such as ``train-00000-of-00002.csv``, so a file counts as a shard only if
    its name has a tfrecord part or no extension, or follows a known pattern.

    Args:
        file_names: The file names in a folder.
        name: The dataset's name.
        known: Patterns of shardwriter's own datasets; any extension counts for them.

    Returns:
        Ascending shard indices by pattern. More than one key means that the folder has shards of
        several runs.
    """
    known_names = {(pattern.stem, pattern.ext) for pattern in known if pattern is not None}
    found: dict[ShardPattern, list[int]] = {}
    for file_name in file_names:
        shard = parse_shard_file(file_name)
        if shard is None or shard.pattern.name != name:
            continue
        pattern = shard.pattern
        if _is_record_file(pattern) or (pattern.stem, pattern.ext) in known_names:
            found.setdefault(pattern, []).append(shard.shard_index)
    return {pattern: sorted(found[pattern]) for pattern in sorted(found, key=_pattern_order)}


def _is_record_file(pattern: ShardPattern) -> bool:
    ext = pattern.ext.removesuffix(SUFFIXES["gzip"])
    parts = f"{pattern.stem}{ext}".lower().split(".")
    return not ext or not TFRECORD_PARTS.isdisjoint(parts)


def _pattern_order(pattern: ShardPattern) -> tuple[str, int, str]:
    return pattern.stem, pattern.num_shards, pattern.ext


@dataclass(frozen=True)
class Output:
    """A parsed OUT: the folder and the names of shards.

    Attributes:
        directory: The folder.
        stem: The beginning of shard file names.
        ext: Their suffix, without that of the compression.
        num_shards: N, or None for ``@auto``.
        compression: From the option or the notation (``.gz``); ``none`` if neither is given.
        tfds: The split of a TFDS dataset; None for other datasets.
    """

    directory: str
    stem: str
    ext: str
    num_shards: int | None
    compression: Compression = "none"
    tfds: TfdsSplit | None = None

    @property
    def name(self) -> str:
        """The dataset's name."""
        return dataset_name(self.stem)

    @property
    def notation(self) -> str:
        """OUT in full, except for the compression; `parse_output` returns this output for it."""
        n = "auto" if self.num_shards is None else self.num_shards
        return os.path.join(self.directory, f"{self.stem}@{n}{self.ext}")

    def pattern(self, num_shards: int) -> ShardPattern:
        """Return the file names for N shards."""
        return ShardPattern(self.stem, num_shards, self.ext + SUFFIXES[self.compression])


def path_below(name: str) -> str:
    """Return an untrusted relative path, normalized and checked to stay in its folder.

    Symbolic links are not resolved.

    Args:
        name: A relative path with ``/``.

    Raises:
        ValueError: It leads out of the folder, or is not a path.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"is not valid text: {name!r:.100}") from None
    if "\0" in name:
        raise ValueError(f"has a NUL character: {name!r:.100}")
    normal = posixpath.normpath(name)
    is_outside = os.path.isabs(name) or is_url(name) or normal[:3] == "../"
    if is_outside or normal in (".", ".."):
        raise ValueError(f"leads out of the folder: {name!r:.200}")
    return normal


def is_url(path: str) -> bool:
    """Return whether a path is a URL (``gs://bucket/x``)."""
    return URL.match(path) is not None


def parse_output(
    out: str | os.PathLike[str],
    num_shards: int | None = None,
    compression: Compression | None = None,
    *,
    urls: bool = False,
    tfds: str | None = None,
) -> Output:
    """Return the parsed OUT.

    Args:
        out: ``dir/train@16``, ``dir/train@auto``, ``dir/train`` (the same as ``@auto``).
        num_shards: ``--shards``: N if OUT does not have it.
        compression: ``--compression``; if None, a ``.gz`` in OUT means gzip.
        urls: Whether OUT may be a URL.
        tfds: ``--tfds``: NAME:VERSION of the TFDS dataset that OUT is a split of; see
            :mod:`shardwriter.writing.tfds`.

    Raises:
        OptionError: OUT is not a dataset, N is out of range, or OUT contradicts an option.
    """
    if tfds is not None:
        return _parse_tfds_output(os.fspath(out), tfds, num_shards, compression)
    text = os.fspath(out)
    directory, base = os.path.split(text)
    if not base or os.path.isdir(text):
        raise OptionError(
            f"{text!r} is a folder, not a dataset",
            hint=f"add a name and a number of shards: {os.path.join(text, 'train@16')}",
        )
    if is_url(text) and not urls:
        raise OptionError(
            f"{text!r} is a URL, but output has to be on a local file system",
            hint="write to a local folder and copy it, the manifest last",
        )
    known_folder = directory  # the name of an existing folder is not checked
    while known_folder and not os.path.isdir(known_folder):
        known_folder = os.path.dirname(known_folder)
    if _CONTROL.search(text[len(known_folder) :]):
        raise OptionError(
            f"OUT {text!r} has a control character",
            hint=f"remove it: {_CONTROL.sub('', text)}",
        )
    n: int | None = None
    ext = ""
    if "@" in base:
        match = _NOTATION.fullmatch(base)
        if match is None:
            raise OptionError(
                f"{base!r} is not NAME@N",
                hint=f"N is a number from 1 to {MAX_SHARDS:,} or 'auto', as in train@16",
            )
        stem, ext = match["stem"], match["ext"]
        n = None if match["n"] == "auto" else int(match["n"])
    else:
        stem = base
    if num_shards is not None:
        check_value("--shards", num_shards, Annotated[int, Bounds(1, MAX_SHARDS + 1)])
        if n not in (None, num_shards):
            raise OptionError(f"{base!r} says {n} shards, but --shards says {num_shards}")
        n = num_shards
    is_gz = ext.endswith(".gz") or ("@" not in base and stem.endswith(".gz"))
    if is_gz:
        ext = ext.removesuffix(".gz")
        stem = stem if "@" in base else stem.removesuffix(".gz")
        if compression not in (None, "gzip"):
            raise OptionError(
                f"{base!r} says gzip shards, but --compression says {compression}",
                hint="remove .gz from the name, or use --compression gzip",
            )
        compression = "gzip"
    if compression not in (None, *SUFFIXES):
        raise OptionError(
            f"compression is {compression!r}", hint="give --compression none, gzip or zlib"
        )
    if not ext and not TFRECORD_PARTS.intersection(p.lower() for p in stem.split(".")):
        stem += ".tfrecord"
    output = Output(directory or ".", stem, ext, n, compression or "none")
    # File names and manifest must parse to the same dataset: a stem such as "a..b" does not, and
    # one that is only an extension leaves no name.
    probe = output.pattern(1)
    known = pattern_from_template(probe.template, 1)
    if known != probe or output.name.startswith(".") or "\0" in base:
        raise OptionError(f"{base!r} is not a valid dataset name", hint="use a name such as train")
    longest = output.pattern(n or MAX_SHARDS).shard_file(0) + DALI_INDEX_SUFFIX
    if len(os.fsencode(longest)) > _MAX_NAME_BYTES:
        raise OptionError(
            f"the name is too long: shard file names would exceed {_MAX_NAME_BYTES} bytes",
            hint="use a shorter name",
        )
    return output


def split_outputs(
    out: str | os.PathLike[str],
    num_shards_of: Mapping[str, int | None],
    num_shards: int | None,
    compression: Compression | None,
    names: Sequence[str],
    *,
    urls: bool = False,
    tfds: str | None = None,
) -> list[Output]:
    """Return the parsed OUT of each split: ``dir/mnist@16`` gives ``dir/mnist-train@16``, ...

    Args:
        out: As for :func:`parse_output`; with ``tfds`` the ``data_dir``.
        num_shards_of: N by split (None: chosen automatically); takes precedence over that of OUT.
        num_shards: ``--shards``.
        compression: ``--compression``.
        names: Names of the splits.
        urls: Whether OUT may be a URL.
        tfds: NAME:VERSION of the TFDS dataset.

    Raises:
        OptionError: As for :func:`parse_output`, or two splits would have the same name.
    """
    text = os.fspath(out)
    if tfds is not None:
        if "@" in os.path.basename(text):
            raise OptionError(
                f"with --tfds and --split, OUT is a folder for datasets, but {text!r} has an @",
                hint="give the folder, and N with --shards or --split train=0.9@16,val=0.1@2",
            )
        counts = [num_shards_of.get(name, num_shards) for name in names]
        notations = [
            f"{name}@{'auto' if n is None else n}" for name, n in zip(names, counts, strict=True)
        ]
        return [
            parse_output(os.path.join(text, notation), None, compression, tfds=tfds)
            for notation in notations
        ]
    base = parse_output(text, num_shards, compression, urls=urls)
    found = []
    for name in names:
        stem = f"{base.name}-{name}{base.stem[len(base.name) :]}"
        n = num_shards_of.get(name, base.num_shards)
        notation = replace(base, stem=stem, num_shards=n).notation
        found.append(parse_output(notation, None, base.compression, urls=urls))
    return found


def _parse_tfds_output(
    out: str, tfds: str, num_shards: int | None, compression: Compression | None
) -> Output:
    notation, split = parse_tfds_out(out, tfds)
    output = parse_output(notation, num_shards, compression)
    if output.compression != "none":
        raise OptionError(
            f"TFDS reads plain shards only, not {output.compression} ones",
            hint="omit --compression and .gz, or --tfds",
        )
    if output.ext:
        raise OptionError(
            f"{out!r} has an extension, but TFDS expects {split.stem}-00000-of-...",
            hint=f"remove {output.ext}",
        )
    if (output.num_shards or 1) > MAX_TFDS_SHARDS:
        raise OptionError(
            f"{output.num_shards:,} shards: TFDS supports at most {MAX_TFDS_SHARDS:,}",
            hint="write fewer, larger shards",
        )
    return replace(output, tfds=split)
