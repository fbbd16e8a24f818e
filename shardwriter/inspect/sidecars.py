"""Whole records or shards that are gone, found by what other files say of them.

A shard from which the last record is missing is a good file. Our manifest knows better; where there
is none, so may an index of ours that lies beside, a text file of frame offsets
(:mod:`~shardwriter.inspect.sidecars`), or TFDS's ``dataset_info.json``
(:mod:`~shardwriter.inspect.sidecars`).
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

# Where frames end, as files beside a shard tell it: our index, and the text files of others.
#
# A text file has a line ``offset size`` for each whole frame. DALI's ``tfrecord2idx`` writes it to
# any name (``x.idx`` as a rule), the PyPI ``tfrecord`` package to ``x.tfindex`` or the name that it
# is given; readers take the lines on trust. Here nothing is: what a table says is held against
# lengths in the file before anything is counted by it.

SUFFIXES: Final = (DALI_INDEX_SUFFIX, ".tfindex", ".index")
_READ_BYTES: Final = 1 << 20
MAX_BYTES: Final = 1 << 62  # of a file, where its size does not count: it may be cut
_LOOK_AT: Final = 1 << 16  # frames whose lengths are read at a time


class BrokenTable(ValueError):
    """A file beside a shard that is no table of frames, or contradicts itself; says why."""


class FrameTable(NamedTuple):
    """What a text file says of one shard.

    Attributes:
        source: The text file.
        ends: uint64[n], the offset behind each frame.
        problem: Why it is no table of frames at all; then there are no ends. None for a good one.
    """

    source: str
    ends: NDArray[np.uint64]
    problem: str | None = None


def table_names(shard_file: str) -> list[str]:
    """Return what a table of ``x.tfrecord`` may be called: ``x.tfrecord.idx``, ``x.idx``, ..."""
    names = [shard_file + suffix for suffix in SUFFIXES]
    stem, dot, last = shard_file.rpartition(".")
    # A shard of many has its number in front of that point, and its stem alone would be of all.
    if dot and stem and last.lower() in TFRECORD_PARTS:
        names += [stem + suffix for suffix in SUFFIXES]
    return names


def read_table(path: str) -> FrameTable | None:
    """Read a text file of lines ``offset size``; None where it is an index of ours.

    Args:
        path: The file.

    Raises:
        StorageError: It can not be read.
    """
    inputs = inputs_for(path)
    if not inputs.is_file(path):  # reading a FIFO would wait for ever
        return FrameTable(path, np.empty(0, np.uint64), "it is no file")
    with storage_errors(path):
        _, text = inputs.read(path)
    if text.startswith(MAGIC):
        return None
    try:
        return FrameTable(path, _parse(text))
    except BrokenTable as error:
        return FrameTable(path, np.empty(0, np.uint64), str(error))


def _parse(text: bytes) -> NDArray[np.uint64]:
    strange = text.translate(None, b"0123456789 \t\r\n")
    if strange:
        raise BrokenTable(f"it is not of numbers alone: {strange[:1]!r} is in it")
    numbers = np.fromstring(text.decode("ascii"), np.uint64, sep=" ")
    if len(numbers) % 2:
        raise BrokenTable("its last line is cut off: there is no size in it")
    numbers = numbers.reshape(-1, 2)
    starts, sizes = numbers[:, 0], numbers[:, 1]
    ends = np.cumsum(sizes, dtype=np.uint64)
    expected = np.concatenate((np.zeros(1, np.uint64), ends[:-1]))[: len(ends)]
    out_of_range = (sizes < FRAME_BYTES) | (sizes > MAX_BYTES) | (ends > MAX_BYTES)
    wrong_lines = np.flatnonzero((starts != expected) | out_of_range)
    if len(wrong_lines):
        line = int(wrong_lines[0])
        raise BrokenTable(
            f"line {line + 1} says offset {starts[line]:,} and {sizes[line]:,} bytes, and the "
            f"frame before it ends at {expected[line]:,}"
        )
    return ends


def known_ends(path: str) -> NDArray[np.uint64] | None:
    """Return where the frames of a plain shard ended when a table of them was made.

    A table beside the file counts, or else the dataset's own index; neither where it contradicts
    itself or the file's first frame. So the file may be damaged or cut since, but not another one.

    Args:
        path: The shard.

    Returns:
        uint64[n], the offset behind each frame; None where nobody tells, also of compressed files.
    """
    directory, name = split(path)
    inputs = inputs_for(path)
    for table_name in table_names(name):
        table_path = os.path.join(directory, table_name)
        if inputs.is_file(table_path):
            table = read_table(table_path)
            if table is not None and table.problem is None and _is_of(path, table.ends):
                return table.ends
    parsed = parse_shard_file(name)
    if parsed is None:
        return None
    index_path = os.path.join(directory, parsed.pattern.index_file)
    if not inputs.is_file(index_path):
        return None
    try:
        index = open_own_index(index_path)
        if index.compression != "none" or len(index.counts) != parsed.pattern.num_shards:
            return None
        index.check_order(parsed.shard_index, MAX_BYTES)
        ends = np.array(index.ends(parsed.shard_index), np.uint64)
    except ManifestError:
        return None
    return ends if _is_of(path, ends) else None


def open_own_index(path: str) -> Index:
    """Map an index of ours that no manifest vouches for.

    Raises:
        ManifestError: It is none.
        StorageError: It can not be read.
    """
    with storage_errors(path):
        if not is_url(path):
            return Index(path)
        with tempfile.NamedTemporaryFile() as copy:  # what is at a URL can not be mapped
            with inputs_for(path).open(path) as file:
                shutil.copyfileobj(file, copy, _READ_BYTES)
            copy.flush()
            return Index(copy.name, path)


def _is_of(path: str, ends: NDArray[np.uint64]) -> bool:
    """Tell whether a table is of this file as far as a few of its frames say.

    One frame may be broken, so three are asked, and one that is right will do.
    """
    asked = right = 0
    with storage_errors(path), inputs_for(path).open(path) as file:
        if not len(ends):
            return not file.read_at(0, 1)
        for place in sorted({0, min(1, len(ends) - 1), len(ends) // 2}):
            start = int(ends[place - 1]) if place else 0
            head = file.read_at(start, HEADER_BYTES)
            if len(head) < HEADER_BYTES:
                continue  # cut off
            asked += 1
            right += int.from_bytes(head[:8], "little") + FRAME_BYTES == int(ends[place]) - start
    return right > 0 or not asked


def first_wrong_frame(path: str, ends: NDArray[np.uint64]) -> int | None:
    """Return the first record whose frame in a local plain file is not as long as a table says.

    Lengths are read where the table says that frames begin; up to the first that differs these are
    where they do begin.

    Args:
        path: The file.
        ends: uint64[n] offset behind each frame.

    Returns:
        None where all of the table's frames are the file's first n.

    Raises:
        StorageError: The file can not be read.
    """
    with storage_errors(path), open(path, "rb") as file:
        for first, sizes, starts in _runs(ends):
            begin = int(starts[0])
            if int(sizes.sum()) <= 64 * _READ_BYTES:
                file.seek(begin)
                data = np.frombuffer(file.read(int(starts[-1]) - begin + 8), np.uint8)
            else:
                data = _heads(file.fileno(), starts)
                starts = np.arange(len(starts), dtype=np.uint64) * np.uint64(8)
                begin = 0
            wrong = _first_other_length(data, starts - np.uint64(begin), sizes)
            if wrong is not None:
                return first + wrong
    return None


def _runs(
    ends: NDArray[np.uint64],
) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the first record, the frames' sizes and their starts, many frames at a time."""
    for first in range(0, len(ends), _LOOK_AT):
        part = ends[first : first + _LOOK_AT]
        before = ends[first - 1 : first] if first else np.zeros(1, np.uint64)
        starts = np.concatenate((before, part[:-1]))
        yield first, part - starts, starts


def _heads(descriptor: int, starts: Iterable[np.uint64]) -> NDArray[np.uint8]:
    """Read the 8 bytes of each length; what is behind the end of the file is no length."""
    heads = (os.pread(descriptor, 8, int(start)).ljust(8, b"\xff") for start in starts)
    return np.frombuffer(b"".join(heads), np.uint8)


def _first_other_length(
    data: NDArray[np.uint8], places: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> int | None:
    at = places.astype(np.int64)
    num_whole = int(np.searchsorted(at, len(data) - 8, side="right")) if len(data) >= 8 else 0
    lengths = np.zeros(num_whole, np.uint64)
    for byte in range(8):
        lengths |= data[at[:num_whole] + byte].astype(np.uint64) << np.uint64(8 * byte)
    wrong = np.flatnonzero(lengths != sizes[:num_whole] - np.uint64(FRAME_BYTES))
    if len(wrong):
        return int(wrong[0])
    return num_whole if num_whole < len(at) else None


# What a TFDS folder says of its shards: ``dataset_info.json``.
#
# Its shape is in :mod:`shardwriter.writing.tfds`. Of each split it has the records of every shard
# (``shardLengths``), and how files are called (``filepathTemplate``); TFDS opens no file by any
# other name, and fails where a shard has another number of records.

_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VARIABLE = re.compile(r"\{(DATASET|SPLIT|FILEFORMAT|SHARD_INDEX|NUM_SHARDS|SHARD_X_OF_Y)\}")


@dataclass(frozen=True)
class Split:
    """One split as ``dataset_info.json`` tells of it.

    Attributes:
        name: Of the split.
        dataset: Name of the dataset, as it stands in file names.
        lengths: Records of each shard.
        template: How files are called.
    """

    name: str
    dataset: str
    lengths: tuple[int, ...]
    template: str = _TEMPLATE

    def shard_file(self, shard_index: int, num_shards: int | None = None) -> str:
        """Return the name of a shard's file, also of another number of shards than it has."""
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

    def is_of(self, pattern: ShardPattern) -> bool:
        """Tell whether shards of a pattern are this split's, whatever their number."""
        return self.shard_file(0, pattern.num_shards) == pattern.shard_file(0)

    def dataset_in(self, pattern: ShardPattern) -> str | None:
        """Return how the dataset would have to be called for shards to be this split's."""
        if "{DATASET}" not in self.template:
            return None
        mark = "\0"
        spelled = Split(self.name, mark, self.lengths, self.template)
        before, _, behind = spelled.shard_file(0, pattern.num_shards).partition(mark)
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
        splits: Those whose shards are TFRecord files beside it, with known lengths.
        problem: Why nothing can be read out of it; None where all is well.
    """

    path: str
    name: str = ""
    splits: tuple[Split, ...] = ()
    problem: str | None = None

    def split_of(self, pattern: ShardPattern | None) -> Split | None:
        """Return the split that shards of a pattern are."""
        if pattern is None:
            return None
        return next((split for split in self.splits if split.is_of(pattern)), None)


def read_dataset_info(directory: str) -> DatasetInfo | None:
    """Read the ``dataset_info.json`` of a folder; None where there is none.

    Raises:
        StorageError: It can not be read.
    """
    path = os.path.join(directory, INFO_FILE)
    if not inputs_for(path).is_file(path):
        return None
    with storage_errors(path):
        _, text = inputs_for(path).read(path)
    try:
        told = json_shape.read(text, InfoShape)
    except ValueError as error:
        return DatasetInfo(path, problem=f"not what TFDS writes: {error}")
    name, entries = told["name"], told.get("splits") or []
    if (told.get("fileFormat") or "tfrecord") != "tfrecord":
        return DatasetInfo(path, name)
    splits = [_split(name, entry) for entry in entries]
    return DatasetInfo(path, name, tuple(split for split in splits if split is not None))


def _split(dataset: str, entry: SplitShape) -> Split | None:
    """Read a split; None for one of which no file can be named, or whose lengths are unknown."""
    lengths = tuple(int(length) for length in entry.get("shardLengths") or [])
    template = entry.get("filepathTemplate") or _TEMPLATE
    has_place = "{SHARD_X_OF_Y}" in template or "{SHARD_INDEX}" in template
    if not lengths or "/" in template or not has_place:
        return None
    return Split(entry["name"], dataset, lengths, template)


# A TFDS folder as a whole: splits that are not there, and what keeps TFDS from reading it.


def judge_folders(sets: Sequence[ShardSet]) -> list[tuple[int, Finding]]:
    """Say which splits of a TFDS folder are not there, or are called so that TFDS misses them.

    A missing split counts where all sets of the folder were asked for.

    Args:
        sets: All that were asked for.

    Returns:
        Which of the sets a defect belongs to, and the defect.
    """
    findings = []
    for directory, mine in _by_directory(sets).items():
        info = read_dataset_info(directory)
        if info is None or not info.splits:
            continue
        here = {p for p in Folder(directory).patterns if is_record_pattern(p)}
        absent = [s for s in info.splits if not any(s.is_of(pattern) for pattern in here)]
        for number in mine:
            renamed = _renamed(sets[number], info, absent)
            if renamed is not None:
                findings.append((number, renamed[1]))
                absent.remove(renamed[0])
        if here <= {sets[number].pattern for number in mine}:
            findings += [(mine[0], _absent(directory, info, told)) for told in absent]
    return findings


def _by_directory(sets: Sequence[ShardSet]) -> dict[str, list[int]]:
    """Group sets that were asked for as wholes by the folder that they lie in."""
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
    for told in absent:
        dataset = told.dataset_in(pattern)
        if dataset is not None:
            detail = (
                f"the dataset is called {info.name!r} here and {dataset!r} in names of shards: "
                f"TFDS looks for {told.shard_file(0)} and finds no file"
            )
            return told, Finding("tfds-name", info.path, detail)
    return None


def _absent(directory: str, info: DatasetInfo, told: Split) -> Finding:
    total, num_shards = sum(told.lengths), len(told.lengths)
    source = split(info.path)[1]
    detail = (
        f"all {num_shards:,} shards of split {told.name!r} are missing, {source} says that they "
        f"have {total:,} records"
    )
    path = os.path.join(directory, told.shard_file(0))
    return Finding("missing-shard", path, detail, shard_index=0, num_lost=total)


def folder_notes(sets: Sequence[ShardSet]) -> list[tuple[int, str]]:
    """Say what keeps TFDS from reading a folder, and is no fault of the shards.

    Args:
        sets: All that were asked for.

    Returns:
        Which of the sets a note belongs to, and the note.
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
            notes.append((mine[0], f"{features} is not there: TFDS can not read this folder"))
    return notes


By = Literal["index", "idx", "tfds"]


@dataclass(frozen=True)
class Told:
    """What another file says of one shard.

    Attributes:
        by: What sort of file says it: our index, a text file of offsets, TFDS.
        source: That file.
        path: The shard; where ``problem`` is set, the first that it would be of.
        num_records: Records that it should have.
        shard_index: Of the shard, by its name.
        ends: uint64[n], the offset behind each frame in the plain file, where told.
        split: Name of the split, where TFDS tells.
        problem: Why the file is of no use; then it tells nothing.
    """

    by: By
    source: str
    path: str
    num_records: int
    shard_index: int | None = None
    ends: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)
    split: str = ""
    problem: str | None = None


class Found(NamedTuple):
    """What a scan has found in one shard.

    Attributes:
        num_records: Records that can be read.
        compression: What the file is.
        is_damaged: Whether records are lost to a defect, which says more than a count.
    """

    num_records: int
    compression: Compression = "none"
    is_damaged: bool = False


def read_told_counts(shard_set: ShardSet) -> Iterator[Told]:
    """Yield what files beside a set say of its shards, those that are missing included.

    A set with a manifest is not held against its index, which ``shardwriter verify`` proves.
    Tables of offsets are read one by one as they are asked for, so only one is in memory.

    Args:
        shard_set: The shards.

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
    """Return index and path of the shards, with those that are missing."""
    if shard_set.pattern is None:
        return [(None, path) for _, path in shard_set.shards]
    missing = [
        (s, os.path.join(shard_set.directory, shard_set.pattern.shard_file(s)))
        for s in shard_set.missing
    ]
    return sorted([*shard_set.shards, *missing])


def _by_index(shard_set: ShardSet, names: set[str]) -> Iterator[Told]:
    pattern = shard_set.pattern
    if pattern is None or pattern.index_file not in names:
        return
    source = os.path.join(shard_set.directory, pattern.index_file)
    first = os.path.join(shard_set.directory, pattern.shard_file(0))
    try:
        index = open_own_index(source)
        if len(index.counts) != pattern.num_shards:
            if any(len(index.counts) == other.num_shards for other in shard_set.others):
                return  # of another run, whose shards have been blamed
            problem = f"it is of {len(index.counts)} shards, and these are {pattern.num_shards}"
            yield Told("index", source, first, 0, problem=problem)
            return
        for number in range(pattern.num_shards):
            index.check_order(number, MAX_BYTES)
        for shard, path in _shards(shard_set):
            assert shard is not None
            ends = np.array(index.ends(shard), np.uint64) if index.compression == "none" else None
            yield Told("index", source, path, index.num_records(shard), shard, ends)
    except ManifestError as error:
        if read_table(source) is None:  # a text file by this name tells of frames, not of ours
            yield Told("index", source, first, 0, problem=error.message)


def _by_tables(shard_set: ShardSet, names: set[str]) -> Iterator[Told]:
    for shard, path in _shards(shard_set):
        for name in table_names(split(path)[1]):
            table = None
            if name in names:
                table = read_table(os.path.join(shard_set.directory, name))
            if table is not None:
                num_records = len(table.ends)
                yield Told(
                    "idx", table.source, path, num_records, shard, table.ends, "", table.problem
                )


def _by_tfds(shard_set: ShardSet, info: DatasetInfo) -> Iterator[Told]:
    told = info.split_of(shard_set.pattern)
    if told is None or shard_set.pattern is None:
        return
    num_shards = len(told.lengths)
    if num_shards != shard_set.pattern.num_shards:
        first = os.path.join(shard_set.directory, told.shard_file(0))
        problem = (
            f"it has {num_shards} shards of split {told.name!r}, and these are "
            f"{shard_set.pattern.num_shards}"
        )
        yield Told("tfds", info.path, first, 0, split=told.name, problem=problem)
        return
    for shard, path in _shards(shard_set):
        assert shard is not None
        yield Told("tfds", info.path, path, told.lengths[shard], shard, split=told.name)


# -- held against the files ------------------------------------------------------------------------


class Held(NamedTuple):
    """A set, held against what is told of it.

    Attributes:
        findings: In what its shards are not what others tell.
        expected: How many records a shard should have, by its path; for shards that are missing
            or damaged that is how many are lost. Shards that nothing is told of are not in it.
    """

    findings: list[Finding]
    expected: dict[str, int]


def hold_set(shard_set: ShardSet, found: Mapping[str, Found]) -> Held:
    """Hold a set against all that files beside it say of its shards.

    Args:
        shard_set: The shards.
        found: What there is, by the path of the shard.

    Raises:
        StorageError: A file can not be read.
    """
    expected: dict[str, int] = {}

    def told() -> Iterator[Told]:
        for entry in read_told_counts(shard_set):
            if entry.problem is None:
                expected.setdefault(entry.path, entry.num_records)
            yield entry

    findings = hold_against_told(told(), found)
    return Held(findings, expected)


def hold_against_told(told: Iterable[Told], found: Mapping[str, Found]) -> list[Finding]:
    """Say where shards are not what other files tell of them.

    Args:
        told: From :func:`read_told_counts`.
        found: What there is, by the path of the shard. A shard that is not there, or is damaged,
            has said so itself.

    Raises:
        StorageError: A shard can not be read, to find where a table of offsets goes wrong.
    """
    findings: list[Finding] = []
    of_tfds: list[tuple[Told, Found]] = []
    for entry in told:
        there = found.get(entry.path)
        if entry.problem is not None:
            findings.append(Finding(f"{entry.by}-broken", entry.source, entry.problem))
        elif there is None or there.is_damaged:
            continue
        elif entry.by == "tfds":
            of_tfds.append((entry, there))
        elif (finding := _other_frames(entry, there)) is not None:
            findings.append(finding)
    return findings + _other_lengths(of_tfds)


def _other_frames(told: Told, found: Found) -> Finding | None:
    """Hold a shard against a table of its frames: the first that differs, or how many are gone."""
    source = split(told.source)[1]
    counts = f"{found.num_records:,} records, {source} says {told.num_records:,}"
    if told.ends is not None and found.compression == "none" and not is_url(told.path):
        common = told.ends[: found.num_records]
        wrong = first_wrong_frame(told.path, common)
        if wrong is not None:
            start = int(common[wrong - 1]) if wrong else 0
            is_other = f"{source} is of other content: record {wrong:,} at offset {start:,} should"
            size = int(common[wrong]) - start
            detail = f"{is_other} take {size:,} bytes and does not"
            if found.num_records != told.num_records:
                detail += f" ({counts})"
            return Finding(
                f"{told.by}-offset", told.path, detail, wrong, None, start, told.shard_index
            )
    if found.num_records == told.num_records:
        return None
    return _count(told, found, counts, " at the end")


def _count(told: Told, found: Found, counts: str, where: str) -> Finding:
    lost = told.num_records - found.num_records
    if lost > 0:
        detail = f"{counts}: {lost:,} {'is' if lost == 1 else 'are'} missing{where}"
    else:
        detail = f"{counts}: {-lost:,} more than told"
    return Finding(
        f"{told.by}-count",
        told.path,
        detail,
        record_index=min(told.num_records, found.num_records) if where else None,
        shard_index=told.shard_index,
        num_lost=max(0, lost),
    )


def _other_lengths(of_tfds: Sequence[tuple[Told, Found]]) -> list[Finding]:
    """Hold shards against ``dataset_info.json``, which has no more than counts."""
    if not of_tfds:
        return []
    findings = []
    source = split(of_tfds[0][0].source)[1]
    packed = [(told, there) for told, there in of_tfds if there.compression != "none"]
    if packed:
        told, there = packed[0]
        detail = (
            f"{there.compression}, as are {len(packed):,} of {len(of_tfds):,} shards of split "
            f"{told.split!r}: TFDS reads plain TFRecord files only"
        )
        findings.append(
            Finding("tfds-compression", told.path, detail, shard_index=told.shard_index)
        )
    is_swapped = sorted(told.num_records for told, _ in of_tfds) == sorted(
        there.num_records for _, there in of_tfds
    )
    for told, there in of_tfds:
        if told.num_records == there.num_records:
            continue
        counts = f"{there.num_records:,} records, {source} says {told.num_records:,}"
        if is_swapped:
            detail = (
                f"{counts}: the lengths of split {told.split!r} stand there in another order, so "
                "TFDS reads all of it and fails on a part such as train[:50%]"
            )
            findings.append(
                Finding("tfds-count", told.path, detail, shard_index=told.shard_index, num_lost=0)
            )
        else:
            findings.append(_count(told, there, counts, ""))
    return findings
