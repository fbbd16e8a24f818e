"""``parquet``: tables in Parquet, Arrow and Feather files; a row is an item.

Types come from the schema, and so are known before the first row is read. A row group is decoded as
a whole, and the last ones are kept: a process needs the memory of one, or 128 MiB where they are
small. Several files of the same columns are one table. Out of their order, the rows of a larger
table cost a row group again and again: for a shuffled write small row groups are best.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwriter.errors import SourceError
from shardwriter.schema import FeatureType
from shardwriter.sources.arrow import (
    ArrowFile,
    ArrowRows,
    Piece,
    ReadFile,
    known_columns,
    require_pyarrow,
)
from shardwriter.sources.positions import OpenFiles, row_key
from shardwriter.sources.tables import TableOptions

KIND: Final = "parquet"
ENDINGS: Final = (".parquet", ".arrow", ".feather")

_HIVE_FOLDER: Final = re.compile(r"[^=/]+=[^/]*")


class ParquetTable(ArrowRows):
    """Rows of one or several files.

    Args:
        paths: The files, in order.
        schema: Types that the user fixed, by column.
        read_file: Reads the files whose names stand in place of their bytes; None: an error.
        table: Which columns are read.

    Raises:
        MissingExtra: pyarrow is not installed.
        SourceError: A file is missing, damaged, or has other columns than the first.
    """

    kind = KIND

    def __init__(
        self,
        paths: Sequence[str],
        schema: Mapping[str, FeatureType] | None = None,
        read_file: ReadFile | None = None,
        table: TableOptions | None = None,
    ) -> None:
        require_pyarrow(paths[0])
        self._open_files = OpenFiles()
        self._files: list[ArrowFile] = []
        self._first_rows: list[int] = []  # of each file
        self._pieces: list[tuple[int, int]] = []  # its file, and its number there
        pieces: list[Piece] = []
        num_rows = 0
        for path in paths:
            file = ArrowFile(path)
            self._open_files.open(file)
            file.scan()
            self._check_columns(file)
            self._first_rows.append(num_rows)
            self._pieces += [(len(self._files), number) for number in range(len(file.pieces))]
            pieces += file.pieces
            num_rows += sum(piece.num_rows for piece in file.pieces)
            self._files.append(file)
        self.notes: Sequence[str] = _hive_notes(paths)
        first = self._files[0].schema
        super().__init__(
            first, pieces, known_columns(first.metadata), schema or {}, paths[0], read_file, table
        )
        # Where all of it can not be kept, a worker that goes through the table for each of its
        # shards would decode it that often. Items that are dealt pass all shards in one go.
        self.travels = self.is_kept

    def _check_columns(self, file: ArrowFile) -> None:
        names = file.schema.names
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None or not names:
            what = "there are no columns" if twice is None else f"two columns are called {twice!r}"
            raise SourceError(what, path=file.path)
        mine, first = map(_columns, (file.schema, (self._files or [file])[0].schema))
        if mine != first:
            sets = set(mine), set(first)
            differs = [c for c in mine if c not in sets[1]] or [
                c for c in first if c not in sets[0]
            ]
            raise SourceError(
                f"its columns are not those of {self._files[0].path}: "
                f"{differs[0] if differs else 'their order'} differs",
                path=file.path,
                hint="make them alike, or write a dataset of each",
            )

    def _piece(self, number: int, columns: list[str] | None = None) -> Any:
        in_files, in_file = self._pieces[number]
        file = self._files[in_files]
        self._open_files.open(file)
        names = self._schema.names if len(self._schema) < len(file.schema) else None
        table = file.piece(in_file, columns or names)
        if columns is None and not table.schema.equals(self._schema):
            table = table.cast(self._schema)  # lists of other writers, by their names
        return table

    def key(self, item: int) -> str:
        """Return ``row 7``, and the file where there are several."""
        return row_key(item, self._first_rows, lambda number: self._files[number].path)

    def digest(self) -> dict[str, Any]:
        """Return the files' sizes and the checksums of their ends, where the footers are."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}"] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the same with the times of the files."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}", f.mtime_ns] for f in self._files]}


def _columns(schema: Any) -> list[str]:
    """Return names and types, without what writers only call otherwise, or promise."""
    columns = [f"{field.name}: {field.type}" for field in schema]
    return [re.sub(r"\b(element|array|item): |, indices=\w+| not null", "", c) for c in columns]


def _hive_notes(paths: Sequence[str]) -> list[str]:
    folders = [part for path in paths for part in path.split("/")[:-1]]
    found = next(filter(_HIVE_FOLDER.fullmatch, folders), None)
    if found is None:
        return []
    return [f"folders are called as {found!r}: such keys are no features here"]
