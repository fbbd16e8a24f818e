"""``parquet``: tables in Parquet, Arrow and Feather files; a row is an item.

Types come from the schema, so they are known before the first row is read. A row group is decoded
as a whole, and the last ones are cached: a process needs memory for one, or for 128 MiB of small
ones. Several files with the same columns are one table. In shuffled order, each row of a large
table may decode a row group again, so use small row groups for that.
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
    ReadFile,
    RowGroup,
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
        schema: Types fixed by the user, by column.
        read_file: Reads a file that the table only has the name of; None to raise for it.
        table: Which columns to read.

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
        self._first_rows: list[int] = []  # the first row of each file
        self._numbers: list[tuple[int, int]] = []  # of a row group: its file, and its number there
        row_groups: list[RowGroup] = []
        num_rows = 0
        for path in paths:
            file = ArrowFile(path)
            self._open_files.open(file)
            file.scan()
            self._check_columns(file)
            self._first_rows.append(num_rows)
            self._numbers += [(len(self._files), number) for number in range(len(file.row_groups))]
            row_groups += file.row_groups
            num_rows += sum(group.num_rows for group in file.row_groups)
            self._files.append(file)
        self.notes: Sequence[str] = _hive_notes(paths)
        first = self._files[0].schema
        super().__init__(
            first,
            row_groups,
            known_columns(first.metadata),
            schema or {},
            paths[0],
            read_file,
            table,
        )
        # If the table does not fit into the cache, a worker that reads it for each of its shards
        # would decode it as often. Items that are sent to workers are read in one pass.
        self.sendable = self.fits_cache

    def _check_columns(self, file: ArrowFile) -> None:
        names = file.schema.names
        repeated = next((name for name, count in Counter(names).items() if count > 1), None)
        if repeated is not None or not names:
            what = f"two columns are named {repeated!r}" if names else "there are no columns"
            raise SourceError(what, path=file.path)
        mine, first = map(_columns, (file.schema, (self._files or [file])[0].schema))
        if mine != first:
            sets = set(mine), set(first)
            differs = [c for c in mine if c not in sets[1]] or [
                c for c in first if c not in sets[0]
            ]
            raise SourceError(
                f"the columns differ from those of {self._files[0].path}: "
                f"{differs[0] if differs else 'their order'} differs",
                path=file.path,
                hint="make the columns equal, or write a dataset of each file",
            )

    def _read_group(self, number: int, columns: list[str] | None = None) -> Any:
        in_files, in_file = self._numbers[number]
        file = self._files[in_files]
        self._open_files.open(file)
        names = self._schema.names if len(self._schema) < len(file.schema) else None
        table = file.read_group(in_file, columns or names)
        if columns is None and not table.schema.equals(self._schema):
            table = table.cast(self._schema)  # writers name the fields of lists differently
        return table

    def key(self, item: int) -> str:
        """Return ``row 7``, with the file if there are several."""
        return row_key(item, self._first_rows, lambda number: self._files[number].path)

    def digest(self) -> dict[str, Any]:
        """Return the sizes of the files, and the checksums of their ends, with the footers."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}"] for f in self._files]}

    def fingerprint(self) -> dict[str, Any]:
        """Return the digest with the modification times of the files."""
        return {"files": [[f.size_bytes, f"{f.crc32c:08x}", f.mtime_ns] for f in self._files]}


def _columns(schema: Any) -> list[str]:
    """Return names and types, without differences of writers that do not affect values."""
    columns = [f"{field.name}: {field.type}" for field in schema]
    return [re.sub(r"\b(element|array|item): |, indices=\w+| not null", "", c) for c in columns]


def _hive_notes(paths: Sequence[str]) -> list[str]:
    folders = [part for path in paths for part in path.split("/")[:-1]]
    found = next(filter(_HIVE_FOLDER.fullmatch, folders), None)
    if found is None:
        return []
    return [f"folders have names such as {found!r}; these keys are not read as features"]
