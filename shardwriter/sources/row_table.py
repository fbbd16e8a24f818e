"""What tables have in common, whatever their rows are written in: files of rows, read by position.

A first pass over the whole input finds where every row begins; a row is known by its number.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final, Generic, TypeVar

from shardwriter.sources.positions import MAX_OPEN_FILES, InputFile, OffsetTable, OpenFiles, Spool
from shardwriter.sources.positions import runs as runs_of

BLOCK_ROWS: Final = 1024
_BLOCK_BYTES: Final = 4 << 20


class RowFile(InputFile):
    """One file of a table.

    Attributes:
        size_bytes: Of its text, once it was scanned.
        crc32c: Of its text.
    """

    def __init__(self, path: str, spool: Spool) -> None:
        super().__init__(path, spool)
        self.size_bytes = 0
        self.crc32c = 0


F = TypeVar("F", bound=RowFile)


class RowTable(Generic[F]):
    """Rows of one or several files, by number.

    Args:
        max_open_files: How many files may be open at once.
    """

    random_access = True
    travels = True
    stable = True
    vocabularies: Mapping[str, list[str]] = {}
    label: str | None = None

    def __init__(self, max_open_files: int = MAX_OPEN_FILES) -> None:
        held = ExitStack()
        weakref.finalize(self, held.close)
        self._offsets = held.enter_context(closing(OffsetTable()))
        self._spool = held.enter_context(closing(Spool()))
        self._open_files = held.enter_context(OpenFiles(max_open_files))
        self._files: list[F] = []
        self._first_rows: list[int] = []
        self.num_items: int | None = 0
        self.block_items = BLOCK_ROWS

    def _add(self, file: F, scan: Callable[[OffsetTable], int]) -> None:
        """Add the rows that ``scan`` finds in an open file."""
        assert self.num_items is not None
        self._first_rows.append(self.num_items)
        self._files.append(file)
        self.num_items += scan(self._offsets)
        total_bytes = sum(f.size_bytes for f in self._files)
        most = _BLOCK_BYTES * self.num_items // (total_bytes or 1)
        self.block_items = max(1, min(BLOCK_ROWS, most))

    def _spans(self, items: Sequence[int]) -> Iterator[tuple[F, int, int, int]]:
        """Yield where rows stand, in their order: an open file, begin, end, and how many rows."""
        for first, stop in runs_of(items):
            while first < stop:
                number = bisect_right(self._first_rows, first) - 1
                end = stop
                if number + 1 < len(self._first_rows):
                    end = min(end, self._first_rows[number + 1])
                # A file has one offset more than rows, hence "+ number".
                begin_bytes, end_bytes = self._offsets.span(first + number, end + number)
                file = self._files[number]
                self._open_files.open(file)
                yield file, begin_bytes, end_bytes, end - first
                first = end

    def items(self) -> Iterator[int]:
        """Yield the row numbers."""
        assert self.num_items is not None
        return iter(range(self.num_items))

    def item(self, item_index: int) -> int:
        """Return a row number."""
        return item_index

    def key(self, item: int) -> str:
        """Return ``row 7``, and the file where there are several."""
        if len(self._files) == 1:
            return f"row {item}"
        number = bisect_right(self._first_rows, item) - 1
        return f"{os.path.basename(self._files[number].path)} row {item - self._first_rows[number]}"

    def digest(self) -> dict[str, Any]:
        """Return sizes and checksums of the files, in order."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}"] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}", f.mtime_ns] for f in self._files]}
