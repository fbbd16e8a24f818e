"""Sidecars: files beside shards that list their records, compared with the shards.

A shard whose last record is missing is still a valid file. Without a manifest, three kinds of
sidecar can show that records or shards are missing:

- ``index``: shardwriter's own binary index.
- ``idx``: a text file with a line ``offset size`` for each frame. DALI's ``tfrecord2idx`` writes it
  (usually ``x.idx``), and so does the PyPI package ``tfrecord`` (``x.tfindex``).
- ``tfds``: TFDS's ``dataset_info.json``, which lists the records of every shard of every split
  (``shardLengths``) and the file names (``filepathTemplate``). TFDS opens no file by another name,
  and fails if a shard has another number of records. The JSON's shape is in
  :mod:`shardwriter.writing.tfds`.

No sidecar is trusted: its offsets are compared with the lengths in the file first.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import (
    DALI_INDEX_SUFFIX,
    FEATURES_FILE,
    INFO_FILE,
    MAGIC,
    TFRECORD_PARTS,
    Index,
    ShardPattern,
    is_url,
    parse_shard_file,
)
from shardwriter.errors import ManifestError
from shardwriter.formats import FRAME_BYTES, HEADER_BYTES, Compression, json_shape
from shardwriter.inspect.findings import Finding
from shardwriter.sources import Folder, ShardSet, is_record_pattern
from shardwriter.storage import absolute, inputs_for, split, storage_errors
from shardwriter.writing import InfoShape, SplitShape

# -- tables of frame offsets -----------------------------------------------------------------------

SUFFIXES: Final = (DALI_INDEX_SUFFIX, ".tfindex", ".index")
_READ_BYTES: Final = 1 << 20
_MAX_BYTES: Final = 1 << 62  # upper bound of offsets; the file's size is none, it may be truncated
_BATCH_FRAMES: Final = 1 << 16  # frames whose lengths are read at a time


class MalformedTable(ValueError):
    """A text file is not a consistent table of frames; the message says why."""


class FrameTable(NamedTuple):
    """A text file of frame offsets.

    Attributes:
        source: The text file.
        ends: uint64[n], the offset behind each frame; empty if malformed.
        problem: Why the file is malformed; None for a good one.
    """

    source: str
    ends: NDArray[np.uint64]
    problem: str | None = None


def table_names(shard_file: str) -> list[str]:
    """Return the possible names of a shard's table: ``x.tfrecord.idx``, ``x.idx``, ..."""
    names = [shard_file + suffix for suffix in SUFFIXES]
    stem, dot, last = shard_file.rpartition(".")
    # Not for "x.tfrecord-00000-of-00016": the stem "x" would be common to all shards.
    if dot and stem and last.lower() in TFRECORD_PARTS:
        names += [stem + suffix for suffix in SUFFIXES]
    return names


def read_table(path: str) -> FrameTable | None:
    """Return the table in a text file of lines ``offset size``; None if it is a shardwriter index.

    Raises:
        StorageError: The file can not be read.
    """
    inputs = inputs_for(path)
    if not inputs.is_file(path):  # reading a FIFO would block
        return FrameTable(path, np.empty(0, np.uint64), "it is not a regular file")
    with storage_errors(path):
        _, text = inputs.read(path)
    if text.startswith(MAGIC):
        return None
    try:
        return FrameTable(path, _parse(text))
    except MalformedTable as error:
        return FrameTable(path, np.empty(0, np.uint64), str(error))


def _parse(text: bytes) -> NDArray[np.uint64]:
    unexpected = text.translate(None, b"0123456789 \t\r\n")
    if unexpected:
        raise MalformedTable(f"it contains {unexpected[:1]!r}; expected lines of two numbers")
    numbers = np.fromstring(text.decode("ascii"), np.uint64, sep=" ")
    if len(numbers) % 2:
        raise MalformedTable("its last line is cut off: the size is missing")
    numbers = numbers.reshape(-1, 2)
    starts, sizes = numbers[:, 0], numbers[:, 1]
    ends = np.cumsum(sizes, dtype=np.uint64)
    expected = np.concatenate((np.zeros(1, np.uint64), ends[:-1]))[: len(ends)]
    out_of_range = (sizes < FRAME_BYTES) | (sizes > _MAX_BYTES) | (ends > _MAX_BYTES)
    wrong_lines = np.flatnonzero((starts != expected) | out_of_range)
    if len(wrong_lines):
        line = int(wrong_lines[0])
        raise MalformedTable(
            f"line {line + 1} says offset {starts[line]:,} and {sizes[line]:,} bytes, but the "
            f"previous frame ends at {expected[line]:,}"
        )
    return ends


def known_ends(path: str) -> NDArray[np.uint64] | None:
    """Return where the frames of a plain shard end, according to a table or an index beside it.

    A text table comes first, then the dataset's index. Either is ignored if it is inconsistent or
    matches none of the frames that are sampled, so the shard may be damaged or truncated since the
    table was written, but is not a different file.

    Args:
        path: The shard.

    Returns:
        uint64[n], the offset behind each frame; None without a table, or for a compressed file.
    """
    directory, name = split(path)
    inputs = inputs_for(path)
    for table_name in table_names(name):
        table_path = os.path.join(directory, table_name)
        if inputs.is_file(table_path):
            table = read_table(table_path)
            if table is not None and table.problem is None and _matches_file(path, table.ends):
                return table.ends
    parsed = parse_shard_file(name)
    if parsed is None:
        return None
    index_path = os.path.join(directory, parsed.pattern.index_file)
    if not inputs.is_file(index_path):
        return None
    try:
        index = _open_unverified_index(index_path)
        if index.compression != "none" or len(index.counts) != parsed.pattern.num_shards:
            return None
        index.check_order(parsed.shard_index, _MAX_BYTES)
        ends = np.array(index.ends(parsed.shard_index), np.uint64)
    except ManifestError:
        return None
    return ends if _matches_file(path, ends) else None


def _open_unverified_index(path: str) -> Index:
    """Return the memory-mapped index at a path, without comparing it with a manifest.

    Raises:
        ManifestError: The file is not an index.
        StorageError: It can not be read.
    """
    with storage_errors(path):
        if not is_url(path):
            return Index(path)
        with tempfile.NamedTemporaryFile() as copy:  # an object can not be mapped
            with inputs_for(path).open(path) as file:
                shutil.copyfileobj(file, copy, _READ_BYTES)
            copy.flush()
            return Index(copy.name, path)


def _matches_file(path: str, ends: NDArray[np.uint64]) -> bool:
    """Return whether a table matches a file in at least one of three frames.

    A single frame may be broken, so three are compared and one match is enough.
    """
    num_compared = num_equal = 0
    with storage_errors(path), inputs_for(path).open(path) as file:
        if not len(ends):
            return not file.read_at(0, 1)
        for record in sorted({0, min(1, len(ends) - 1), len(ends) // 2}):
            start = int(ends[record - 1]) if record else 0
            header = file.read_at(start, HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                continue  # truncated
            num_compared += 1
            frame_bytes = int.from_bytes(header[:8], "little") + FRAME_BYTES
            num_equal += frame_bytes == int(ends[record]) - start
    return num_equal > 0 or not num_compared


def first_wrong_frame(path: str, ends: NDArray[np.uint64]) -> int | None:
    """Return the first record whose frame size in a local plain file differs from a table.

    Lengths are read at the table's offsets, which are right up to the first difference.

    Args:
        path: The file.
        ends: uint64[n], the offset behind each frame.

    Returns:
        The record's index; None if the table's frames are the file's first n.

    Raises:
        StorageError: The file can not be read.
    """
    with storage_errors(path), open(path, "rb") as file:
        for first, sizes, starts in _batches(ends):
            begin = int(starts[0])
            if int(sizes.sum()) <= 64 * _READ_BYTES:
                file.seek(begin)
                data = np.frombuffer(file.read(int(starts[-1]) - begin + 8), np.uint8)
            else:
                data = _read_lengths(file.fileno(), starts)
                starts = np.arange(len(starts), dtype=np.uint64) * np.uint64(8)
                begin = 0
            wrong = _first_wrong_length(data, starts - np.uint64(begin), sizes)
            if wrong is not None:
                return first + wrong
    return None


def _batches(
    ends: NDArray[np.uint64],
) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the first record, frame sizes and frame starts of each batch of frames."""
    for first in range(0, len(ends), _BATCH_FRAMES):
        part = ends[first : first + _BATCH_FRAMES]
        before = ends[first - 1 : first] if first else np.zeros(1, np.uint64)
        starts = np.concatenate((before, part[:-1]))
        yield first, part - starts, starts


def _read_lengths(descriptor: int, starts: Iterable[np.uint64]) -> NDArray[np.uint8]:
    """Return the 8 bytes of each frame's length, 0xff behind the end of the file."""
    lengths = (os.pread(descriptor, 8, int(start)).ljust(8, b"\xff") for start in starts)
    return np.frombuffer(b"".join(lengths), np.uint8)


def _first_wrong_length(
    data: NDArray[np.uint8], offsets: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> int | None:
    at = offsets.astype(np.int64)
    num_whole = int(np.searchsorted(at, len(data) - 8, side="right")) if len(data) >= 8 else 0
    lengths = np.zeros(num_whole, np.uint64)
    for byte in range(8):
        lengths |= data[at[:num_whole] + byte].astype(np.uint64) << np.uint64(8 * byte)
    wrong = np.flatnonzero(lengths != sizes[:num_whole] - np.uint64(FRAME_BYTES))
    if len(wrong):
        return int(wrong[0])
    return num_whole if num_whole < len(at) else None


# -- TFDS's dataset_info.json ----------------------------------------------------------------------

_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VARIABLE = re.compile(r"\{(DATASET|SPLIT|FILEFORMAT|SHARD_INDEX|NUM_SHARDS|SHARD_X_OF_Y)\}")


@dataclass(frozen=True)
class Split:
    """One split in ``dataset_info.json``.

    Attributes:
        name: The split.
        dataset: The dataset's name, as used in file names.
        lengths: Records of each shard.
        template: File name template.
    """

    name: str
    dataset: str
    lengths: tuple[int, ...]
    template: str = _TEMPLATE

    def shard_file(self, shard_index: int, num_shards: int | None = None) -> str:
        """Return the file name of a shard; ``num_shards`` overrides the split's own number."""
        i, n = f"{shard_index:05d}", f"{num_shards or len(self.lengths):05d}"
        values = {
            "DATASET": self.dataset,
            "SPLIT": self.name,
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": i,
            "NUM_SHARDS": n,
            "SHARD_X_OF_Y": f"{i}-of-{n}",
        }
        return _VARIABLE.sub(lambda match: values[match[1]], self.template)

    def matches(self, pattern: ShardPattern) -> bool:
        """Return whether a pattern names shards of this split, whatever their number."""
        return self.shard_file(0, pattern.num_shards) == pattern.shard_file(0)

    def dataset_in(self, pattern: ShardPattern) -> str | None:
        """Return the dataset name with which a pattern's shards would match; None if none does."""
        if "{DATASET}" not in self.template:
            return None
        mark = "\0"
        marked = Split(self.name, mark, self.lengths, self.template)
        before, _, behind = marked.shard_file(0, pattern.num_shards).partition(mark)
        name = pattern.shard_file(0)
        if not name.startswith(before) or not name.endswith(behind) or mark in behind:
            return None
        return name[len(before) : len(name) - len(behind)] or None


@dataclass(frozen=True)
class DatasetInfo:
    """A folder's ``dataset_info.json``.

    Attributes:
        path: The file.
        name: The dataset.
        splits: The splits with TFRecord shards of known lengths in the same folder.
        problem: Why the file can not be used; None for a good one.
    """

    path: str
    name: str = ""
    splits: tuple[Split, ...] = ()
    problem: str | None = None

    def split_of(self, pattern: ShardPattern | None) -> Split | None:
        """Return the split that a pattern's shards belong to; None if there is none."""
        if pattern is None:
            return None
        return next((split for split in self.splits if split.matches(pattern)), None)


def read_dataset_info(directory: str) -> DatasetInfo | None:
    """Return the ``dataset_info.json`` of a folder; None if there is none.

    Raises:
        StorageError: The file can not be read.
    """
    path = os.path.join(directory, INFO_FILE)
    if not inputs_for(path).is_file(path):
        return None
    with storage_errors(path):
        _, text = inputs_for(path).read(path)
    try:
        info = json_shape.read(text, InfoShape)
    except ValueError as error:
        return DatasetInfo(path, problem=f"not what TFDS writes: {error}")
    name, entries = info["name"], info.get("splits") or []
    if (info.get("fileFormat") or "tfrecord") != "tfrecord":
        return DatasetInfo(path, name)
    splits = [_split(name, entry) for entry in entries]
    return DatasetInfo(path, name, tuple(split for split in splits if split is not None))


def _split(dataset: str, entry: SplitShape) -> Split | None:
    """Return a split; None if its lengths are unknown or its template names no shard files."""
    lengths = tuple(int(length) for length in entry.get("shardLengths") or [])
    template = entry.get("filepathTemplate") or _TEMPLATE
    has_number = "{SHARD_X_OF_Y}" in template or "{SHARD_INDEX}" in template
    if not lengths or "/" in template or not has_number:
        return None
    return Split(entry["name"], dataset, lengths, template)


def check_tfds_folders(sets: Sequence[ShardSet]) -> list[tuple[int, Finding]]:
    """Return findings about splits of TFDS folders that are missing or have names TFDS ignores.

    Missing splits are reported only if all sets of the folder are inspected.

    Args:
        sets: All sets that are inspected.

    Returns:
        Pairs of the set's position in ``sets`` and the finding.
    """
    findings = []
    for directory, mine in _by_directory(sets).items():
        info = read_dataset_info(directory)
        if info is None or not info.splits:
            continue
        here = {p for p in Folder(directory).patterns if is_record_pattern(p)}
        absent = [s for s in info.splits if not any(s.matches(pattern) for pattern in here)]
        for number in mine:
            renamed = _renamed(sets[number], info, absent)
            if renamed is not None:
                findings.append((number, renamed[1]))
                absent.remove(renamed[0])
        if here <= {sets[number].pattern for number in mine}:
            findings += [(mine[0], _absent(directory, info, split)) for split in absent]
    return findings


def _by_directory(sets: Sequence[ShardSet]) -> dict[str, list[int]]:
    """Return the positions of complete sets by their folder."""
    found: dict[str, list[int]] = {}
    for number, shard_set in enumerate(sets):
        if shard_set.pattern is not None and shard_set.whole:
            found.setdefault(absolute(shard_set.directory), []).append(number)
    return found


def _renamed(
    shard_set: ShardSet, info: DatasetInfo, absent: Sequence[Split]
) -> tuple[Split, Finding] | None:
    pattern = shard_set.pattern
    if pattern is None or info.split_of(pattern) is not None:
        return None
    for listed in absent:
        dataset = listed.dataset_in(pattern)
        if dataset is not None:
            detail = (
                f"the dataset is called {info.name!r} here and {dataset!r} in names of shards: "
                f"TFDS looks for {listed.shard_file(0)} and finds no file"
            )
            return listed, Finding("tfds-name", info.path, detail)
    return None


def _absent(directory: str, info: DatasetInfo, listed: Split) -> Finding:
    total, num_shards = sum(listed.lengths), len(listed.lengths)
    source = split(info.path)[1]
    detail = (
        f"all {num_shards:,} shards of split {listed.name!r} are missing, {source} says that they "
        f"have {total:,} records"
    )
    path = os.path.join(directory, listed.shard_file(0))
    return Finding("missing-shard", path, detail, shard_index=0, num_lost=total)


def folder_notes(sets: Sequence[ShardSet]) -> list[tuple[int, str]]:
    """Return notes about TFDS metadata that is missing or unusable.

    Args:
        sets: All sets that are inspected.

    Returns:
        Pairs of the set's position in ``sets`` and the note.
    """
    notes = []
    for directory, mine in _by_directory(sets).items():
        info = read_dataset_info(directory)
        if info is None:
            continue
        features = os.path.join(directory, FEATURES_FILE)
        if info.problem is not None:
            notes.append((mine[0], f"{info.path} is {info.problem}"))
        elif info.splits and not inputs_for(features).is_file(features):
            notes.append((mine[0], f"{features} is missing: TFDS can not read this folder"))
    return notes


# -- claims, and their comparison with the shards --------------------------------------------------

SidecarKind = Literal["index", "idx", "tfds"]


@dataclass(frozen=True)
class Claim:
    """What a sidecar claims about a shard.

    Attributes:
        by: The kind of sidecar; see the module's docstring.
        source: Path of the sidecar.
        path: Path of the shard; with a ``problem``, of the first shard of the set.
        num_records: Records of the shard.
        shard_index: The shard's index, from its name.
        ends: uint64[n], the offset behind each frame of a plain shard; None if not claimed.
        split: Name of the TFDS split.
        problem: Why the sidecar can not be used; None for a good one.
    """

    by: SidecarKind
    source: str
    path: str
    num_records: int
    shard_index: int | None = None
    ends: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)
    split: str = ""
    problem: str | None = None


class ScannedShard(NamedTuple):
    """What a scan found in a shard.

    Attributes:
        num_records: Readable records.
        compression: The file's compression.
        is_damaged: Whether a defect lost records; its count is then not compared.
    """

    num_records: int
    compression: Compression = "none"
    is_damaged: bool = False


def read_claims(shard_set: ShardSet) -> Iterator[Claim]:
    """Yield the claims of all sidecars of a set, also about missing shards.

    The index of a set with a manifest is left to ``shardwriter verify``. Only one table of offsets
    is in memory at a time.

    Raises:
        StorageError: A file can not be read.
    """
    directory = shard_set.directory
    with storage_errors(directory):
        names = {entry.name for entry in inputs_for(directory).listing(directory, "")}
    if shard_set.manifest is None:
        yield from _by_index(shard_set, names)
    yield from _by_tables(shard_set, names)
    if (info := read_dataset_info(directory)) is not None:
        yield from _by_tfds(shard_set, info)


def _shards(shard_set: ShardSet) -> list[tuple[int | None, str]]:
    """Return index and path of all shards, including missing ones."""
    if shard_set.pattern is None:
        return [(None, path) for _, path in shard_set.shards]
    missing = [
        (s, os.path.join(shard_set.directory, shard_set.pattern.shard_file(s)))
        for s in shard_set.missing
    ]
    return sorted([*shard_set.shards, *missing])


def _by_index(shard_set: ShardSet, names: set[str]) -> Iterator[Claim]:
    pattern = shard_set.pattern
    if pattern is None or pattern.index_file not in names:
        return
    source = os.path.join(shard_set.directory, pattern.index_file)
    first = os.path.join(shard_set.directory, pattern.shard_file(0))
    try:
        index = _open_unverified_index(source)
        if len(index.counts) != pattern.num_shards:
            if any(len(index.counts) == other.num_shards for other in shard_set.others):
                return  # of another run, whose shards are reported as stale
            problem = f"it lists {len(index.counts)} shards, but this set has {pattern.num_shards}"
            yield Claim("index", source, first, 0, problem=problem)
            return
        for number in range(pattern.num_shards):
            index.check_order(number, _MAX_BYTES)
        for shard, path in _shards(shard_set):
            assert shard is not None
            ends = np.array(index.ends(shard), np.uint64) if index.compression == "none" else None
            yield Claim("index", source, path, index.num_records(shard), shard, ends)
    except ManifestError as error:
        if read_table(source) is None:  # a text table may have this name, too
            yield Claim("index", source, first, 0, problem=error.message)


def _by_tables(shard_set: ShardSet, names: set[str]) -> Iterator[Claim]:
    for shard, path in _shards(shard_set):
        for name in table_names(split(path)[1]):
            table = None
            if name in names:
                table = read_table(os.path.join(shard_set.directory, name))
            if table is not None:
                num_records = len(table.ends)
                yield Claim(
                    "idx", table.source, path, num_records, shard, table.ends, "", table.problem
                )


def _by_tfds(shard_set: ShardSet, info: DatasetInfo) -> Iterator[Claim]:
    listed = info.split_of(shard_set.pattern)
    if listed is None or shard_set.pattern is None:
        return
    num_shards = len(listed.lengths)
    if num_shards != shard_set.pattern.num_shards:
        first = os.path.join(shard_set.directory, listed.shard_file(0))
        problem = (
            f"it lists {num_shards} shards of split {listed.name!r}, but this set has "
            f"{shard_set.pattern.num_shards}"
        )
        yield Claim("tfds", info.path, first, 0, split=listed.name, problem=problem)
        return
    for shard, path in _shards(shard_set):
        assert shard is not None
        yield Claim("tfds", info.path, path, listed.lengths[shard], shard, split=listed.name)


class SidecarComparison(NamedTuple):
    """The result of comparing a set with its sidecars.

    Attributes:
        findings: Where shards differ from what sidecars claim.
        expected: Claimed number of records by shard path, also of missing and damaged shards;
            shards without a claim are not in it.
    """

    findings: list[Finding]
    expected: dict[str, int]


def compare_set(shard_set: ShardSet, found: Mapping[str, ScannedShard]) -> SidecarComparison:
    """Return how a set differs from what its sidecars claim.

    Args:
        shard_set: The shards.
        found: What scans found, by shard path.

    Raises:
        StorageError: A file can not be read.
    """
    expected: dict[str, int] = {}

    def claims() -> Iterator[Claim]:
        for claim in read_claims(shard_set):
            if claim.problem is None:
                expected.setdefault(claim.path, claim.num_records)
            yield claim

    findings = compare_claims(claims(), found)
    return SidecarComparison(findings, expected)


def compare_claims(claims: Iterable[Claim], found: Mapping[str, ScannedShard]) -> list[Finding]:
    """Return where shards differ from what sidecars claim.

    Args:
        claims: From :func:`read_claims`.
        found: What scans found, by shard path. Missing and damaged shards are not compared: they
            have findings of their own.

    Raises:
        StorageError: A shard can not be read to find where a table of offsets differs.
    """
    findings: list[Finding] = []
    of_tfds: list[tuple[Claim, ScannedShard]] = []
    for claim in claims:
        scanned = found.get(claim.path)
        if claim.problem is not None:
            findings.append(Finding(f"{claim.by}-broken", claim.source, claim.problem))
        elif scanned is None or scanned.is_damaged:
            continue
        elif claim.by == "tfds":
            of_tfds.append((claim, scanned))
        elif (finding := _compare_frames(claim, scanned)) is not None:
            findings.append(finding)
    return findings + _compare_tfds_lengths(of_tfds)


def _compare_frames(claim: Claim, scanned: ScannedShard) -> Finding | None:
    """Return the first frame that differs from a table of frames, or how many are missing."""
    source = split(claim.source)[1]
    counts = f"{scanned.num_records:,} records, {source} says {claim.num_records:,}"
    if claim.ends is not None and scanned.compression == "none" and not is_url(claim.path):
        common = claim.ends[: scanned.num_records]
        wrong = first_wrong_frame(claim.path, common)
        if wrong is not None:
            start = int(common[wrong - 1]) if wrong else 0
            size = int(common[wrong]) - start
            detail = (
                f"{source} does not match this file: record {wrong:,} at offset {start:,} should "
                f"take {size:,} bytes"
            )
            if scanned.num_records != claim.num_records:
                detail += f" ({counts})"
            return Finding(
                f"{claim.by}-offset", claim.path, detail, wrong, None, start, claim.shard_index
            )
    if scanned.num_records == claim.num_records:
        return None
    return _count_finding(claim, scanned, counts, " at the end")


def _count_finding(claim: Claim, scanned: ScannedShard, counts: str, where: str) -> Finding:
    lost = claim.num_records - scanned.num_records
    if lost > 0:
        detail = f"{counts}: {lost:,} {'is' if lost == 1 else 'are'} missing{where}"
    else:
        detail = f"{counts}: {-lost:,} more than listed"
    return Finding(
        f"{claim.by}-count",
        claim.path,
        detail,
        record_index=min(claim.num_records, scanned.num_records) if where else None,
        shard_index=claim.shard_index,
        num_lost=max(0, lost),
    )


def _compare_tfds_lengths(of_tfds: Sequence[tuple[Claim, ScannedShard]]) -> list[Finding]:
    """Return where shards differ from the counts in ``dataset_info.json``."""
    if not of_tfds:
        return []
    findings = []
    source = split(of_tfds[0][0].source)[1]
    compressed = [(claim, scanned) for claim, scanned in of_tfds if scanned.compression != "none"]
    if compressed:
        claim, scanned = compressed[0]
        detail = (
            f"{scanned.compression}, as are {len(compressed):,} of {len(of_tfds):,} shards of "
            f"split {claim.split!r}: TFDS reads plain TFRecord files only"
        )
        findings.append(
            Finding("tfds-compression", claim.path, detail, shard_index=claim.shard_index)
        )
    is_swapped = sorted(claim.num_records for claim, _ in of_tfds) == sorted(
        scanned.num_records for _, scanned in of_tfds
    )
    for claim, scanned in of_tfds:
        if claim.num_records == scanned.num_records:
            continue
        counts = f"{scanned.num_records:,} records, {source} says {claim.num_records:,}"
        if is_swapped:
            detail = (
                f"{counts}: it lists the lengths of split {claim.split!r} in another order, so "
                "TFDS reads the whole split but fails on a part such as train[:50%]"
            )
            findings.append(
                Finding("tfds-count", claim.path, detail, shard_index=claim.shard_index, num_lost=0)
            )
        else:
            findings.append(_count_finding(claim, scanned, counts, ""))
    return findings
