"""Many frames of plain files at once, proven, to be moved as they are.

Frames that lie near each other come with one read, whatever order they are wanted in. Large ones
are read each for itself, in three parts: a copy of the payload, which its CRC needs, would cost
more than two more reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import SourceError
from shardwriter.formats.frame_block import FrameBlock, cut_frames, is_proven_frame
from shardwriter.sources.positions import OpenFiles, file_changed
from shardwriter.sources.record_file import RecordFile

_Int64s = NDArray[np.int64]

_BLOCK_BYTES: Final = 2 << 20  # stays in a cache, and in what the allocator keeps
_LARGE_BYTES: Final = 1 << 15
_HOLE_BYTES: Final = 1 << 12  # not wanted, and cheaper to read than another read

_NOTHING: Final = np.zeros(0, np.int64)


class FrameSpans(NamedTuple):
    """Where frames are.

    Attributes:
        numbers: int64[n]: their files.
        places: int64[n]: which records they are there.
        begins: int64[n]: where they begin.
        ends: int64[n]: where they end.
    """

    numbers: _Int64s
    places: _Int64s
    begins: _Int64s
    ends: _Int64s


class FrameReader:
    """Reads frames of plain files.

    Args:
        files: The files.
        open_files: Those of them that are open.
    """

    def __init__(self, files: Sequence[RecordFile], open_files: OpenFiles) -> None:
        self._files = files
        self._open_files = open_files

    def block(self, spans: FrameSpans) -> FrameBlock:
        """Return the first of some frames, proven: as many as a block has, and one at least.

        Those behind a frame that is damaged are left for another call.

        Args:
            spans: Where they are; one at least.

        Raises:
            SourceError: The first frame is damaged, or a file can not be read.
        """
        sizes = spans.ends - spans.begins
        total = np.cumsum(sizes)
        count = max(1, int(np.searchsorted(total, _BLOCK_BYTES, side="right")))
        some = FrameSpans(*(each[:count] for each in spans))
        if int(total[count - 1]) >= _LARGE_BYTES * count:
            return self._large(some)
        sizes = sizes[:count]
        data, starts = self._read(some)
        are_proven = all(self._files[number].is_proven for number in set(some.numbers.tolist()))
        if not are_proven and cut_frames(data, starts, starts + sizes, check=True) is None:
            count = _num_good(data, starts, starts + sizes)
            if not count:
                raise self._damage(some)
        return FrameBlock([data], starts[:count], sizes[:count])

    def _large(self, spans: FrameSpans) -> FrameBlock:
        pieces: list[bytes] = []
        numbers, _, begins, ends = (each.tolist() for each in spans)
        for number, begin, end in zip(numbers, begins, ends, strict=True):
            frame = self._opened(number).read_at(begin, end)
            if len(frame) != end - begin or not is_proven_frame(frame):
                if not pieces:
                    raise self._damage(spans)
                break
            pieces.append(frame)
        for number in set(numbers):  # once, as a file that has changed is one for all its frames
            self._opened(number).check_unchanged()
        return FrameBlock(pieces, _NOTHING, (spans.ends - spans.begins)[: len(pieces)])

    def _read(self, spans: FrameSpans) -> tuple[bytes, _Int64s]:
        """Return bytes that hold the frames, and int64[n]: where each begins in them."""
        order = np.lexsort((spans.begins, spans.numbers))
        numbers, _, begins, ends = (each[order] for each in spans)
        near = np.maximum(_HOLE_BYTES, ends[:-1] - begins[:-1])
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (numbers[1:] != numbers[:-1]) | (begins[1:] - ends[:-1] > near)
        firsts = np.flatnonzero(is_new)
        lasts = np.append(firsts[1:], len(order)) - 1
        run_begins, run_ends = begins[firsts], ends[lasts]
        runs = zip(numbers[firsts].tolist(), run_begins.tolist(), run_ends.tolist(), strict=True)
        parts = []
        for number, begin, end in runs:
            parts.append(self._opened(number).read(begin, end))
            if len(parts[-1]) != end - begin:  # the frames behind it would be taken for others
                raise file_changed(self._files[number].path)
        run_bytes = run_ends - run_begins
        shifts = np.cumsum(run_bytes) - run_bytes - run_begins
        starts = np.empty(len(order), np.int64)
        starts[order] = begins + shifts[np.cumsum(is_new) - 1]
        return parts[0] if len(parts) == 1 else b"".join(parts), starts

    def _damage(self, spans: FrameSpans) -> SourceError:
        """Return what is wrong with the first of some frames."""
        file = self._opened(int(spans.numbers[0]))
        return file.damage(int(spans.begins[0]), int(spans.places[0]))

    def _opened(self, number: int) -> RecordFile:
        file = self._files[number]
        self._open_files.open(file)
        return file


def _num_good(data: bytes, starts: _Int64s, ends: _Int64s) -> int:
    """Return how many frames there are in front of the first that is damaged."""
    good, bad = 0, len(starts)  # so many are good; among so many one is not
    while bad - good > 1:
        middle = (good + bad) // 2
        if cut_frames(data, starts[good:middle], ends[good:middle], check=True) is None:
            bad = middle
        else:
            good = middle
    return good
