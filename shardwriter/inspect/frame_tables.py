"""Where frames end, as files beside a shard tell it: our index, and the text files of others.

A text file has a line ``offset size`` for each whole frame. DALI's ``tfrecord2idx`` writes it to
any name (``x.idx`` as a rule), the PyPI ``tfrecord`` package to ``x.tfindex`` or the name that it
is given; readers take the lines on trust. Here nothing is: what a table says is held against
lengths in the file before anything is counted by it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset.index import MAGIC, Index
from shardwriter.dataset.naming import DALI_INDEX_SUFFIX, TFRECORD_PARTS, is_url, parse_shard_file
from shardwriter.errors import ManifestError
from shardwriter.formats.tfrecord import FRAME_BYTES, HEADER_BYTES
from shardwriter.storage.inputs import inputs_for, split
from shardwriter.storage.local import storage_errors

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
