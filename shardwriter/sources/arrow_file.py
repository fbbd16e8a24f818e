"""Files of Arrow tables, read a piece at a time: row groups of Parquet, batches of Arrow files.

What kind a file is, its first bytes say: Parquet, an Arrow file (Feather's second version is one),
or an Arrow stream, which is what the cache of Hugging Face ``datasets`` consists of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from shardwriter.errors import MissingExtra, SourceError
from shardwriter.formats.crc32c import extend_crc32c
from shardwriter.sources.positions import InputFile

PARQUET: Final = b"PAR1"
ARROW_FILE: Final = b"ARROW1\0\0"
ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_OLD_FEATHER: Final = b"FEA1"
_TAIL_BYTES: Final = 1 << 16  # enough for the footer, which tells of every column's sizes


class Piece(NamedTuple):
    """Rows that are decoded together."""

    num_rows: int
    num_bytes: int  # as far as the file tells without being decoded


def require_pyarrow(path: str) -> None:
    """Look whether pyarrow is there.

    Raises:
        MissingExtra: It is not.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"Parquet and Arrow files are read with pyarrow: {error}",
            hint='pip install "shardwriter[parquet]"',
            path=path,
        ) from error


class ArrowFile(InputFile):
    """One file.

    Args:
        path: The file.

    Attributes:
        schema: The columns and their types, once the file was scanned.
        pieces: What it consists of, in order.
        size_bytes: Of the file.
        crc32c: Of the end of it, where the footer is.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, None)
        self._format = ""
        self._reader: Any = None
        self._at = 0  # the next batch of a stream
        self._begins: list[int] = []  # of the batches of a stream that can be entered anywhere
        self.schema: Any = None
        self.pieces: list[Piece] = []
        self.size_bytes = 0
        self.crc32c = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_reader": None}

    def close(self) -> None:
        """Close the file; it can be opened again."""
        self._reader = None
        super().close()

    def scan(self) -> None:
        """Find out what the open file consists of.

        Raises:
            SourceError: It is no such file, or a damaged one.
        """
        self.size_bytes = self.num_bytes
        tail_bytes = min(_TAIL_BYTES, self.size_bytes)
        self.crc32c = extend_crc32c(0, self.read(self.size_bytes - tail_bytes, self.size_bytes))
        head = self.read(0, 8)
        if head.startswith(PARQUET):
            self._format = "Parquet file"
        elif head == ARROW_FILE:
            self._format = "Arrow file"
        elif head.startswith(ARROW_STREAM):
            self._format = "Arrow stream"
        else:
            is_old = head.startswith(_OLD_FEATHER)
            raise SourceError(
                "this is the first version of Feather"
                if is_old
                else "this is no Parquet or Arrow file" + ("" if head else ": it is empty"),
                path=self.path,
                hint="pyarrow.feather.read_table reads it, and write_feather makes the second one"
                if is_old
                else None,
            )
        try:
            self.schema, self.pieces = self._scan()
        except self._errors() as error:
            raise self._damaged("can not be read", error) from error
        self._reader = None

    def _scan(self) -> tuple[Any, list[Piece]]:
        if self._format == "Parquet file":
            metadata = self._open_reader().metadata
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            pieces = [Piece(group.num_rows, group.total_byte_size) for group in groups]
            return self._reader.schema_arrow, pieces
        schema = self._open_reader().schema
        # One column tells the number of rows, which no footer does.
        reader = self._open_reader([0] if len(schema) else None)
        if self._format == "Arrow stream":
            rows = self._scan_stream(schema)
        else:
            rows = [reader.get_batch(n).num_rows for n in range(reader.num_record_batches)]
        row_bytes = self.size_bytes / max(1, sum(rows))
        return schema, [Piece(num_rows, int(num_rows * row_bytes)) for num_rows in rows]

    def _scan_stream(self, schema: Any) -> list[int]:
        """Return the lengths of the batches, and note where each begins."""
        import pyarrow as pa

        if any(pa.types.is_dictionary(field.type) for field in _leaves_of(schema)):
            # Their words come in messages between the batches: such a stream is read in order.
            reader = self._open_reader([0])
            return [batch.num_rows for batch in reader]
        file = self.start()
        messages, rows = pa.ipc.MessageReader.open_stream(file), []
        begin = file.tell()
        for message in messages:
            if message.type == "record batch":
                self._begins.append(begin)
                rows.append(pa.ipc.read_record_batch(message, schema).num_rows)
            begin = file.tell()
        return rows

    def piece(self, number: int, columns: list[str] | None = None) -> Any:
        """Return the rows of one piece, as a ``pyarrow.Table``.

        Args:
            number: Of the piece.
            columns: Those that are wanted; None: all.

        Raises:
            SourceError: It is damaged, or the file has changed.
        """
        self.check_unchanged()
        try:
            table = self._piece(number, columns)
        except self._errors() as error:
            self._reader = None
            self.check_unchanged()
            what = "row group" if self._format == "Parquet file" else "batch"
            raise self._damaged(f"{what} {number} can not be read", error) from error
        self.check_unchanged()
        return table

    def _piece(self, number: int, columns: list[str] | None) -> Any:
        import pyarrow as pa

        is_stream = self._format == "Arrow stream"
        if self._begins:
            file = self.start()
            file.seek(self._begins[number])
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), self.schema)
            return _selected(pa.Table.from_batches([batch]), columns)
        if self._reader is None or (is_stream and self._at > number):
            self._open_reader()
        if self._format == "Parquet file":
            # One thread: workers, of which there is one for each core, do this side by side.
            return self._reader.read_row_group(number, columns=columns, use_threads=False)
        if is_stream:
            while self._at < number:
                self._reader.read_next_batch()
                self._at += 1
            self._at += 1
            batch = self._reader.read_next_batch()
        else:
            batch = self._reader.get_batch(number)
        return _selected(pa.Table.from_batches([batch]), columns)

    def _open_reader(self, fields: list[int] | None = None) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.start()
        if self._format == "Parquet file":
            self._reader = pq.ParquetFile(file)
            return self._reader
        opened = pa.ipc.open_stream if self._format == "Arrow stream" else pa.ipc.open_file
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields or [])
        self._reader, self._at = opened(file, options=options), 0
        return self._reader

    def _errors(self) -> tuple[type[Exception], ...]:
        import pyarrow as pa

        # Both libraries raise OSError for what they can not make sense of, too. A length
        # in the file may ask for more memory than there is.
        return pa.ArrowException, OSError, StopIteration, EOFError, MemoryError

    def _damaged(self, what: str, error: Exception) -> SourceError:
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        return SourceError(
            f"{what}: {reason}", path=self.path, hint="fetch or write the file again"
        )


def _selected(table: Any, columns: list[str] | None) -> Any:
    return table if columns is None else table.select(columns)


def _leaves_of(fields: Any) -> Iterator[Any]:
    """Yield the fields of a schema or type, and those inside of them."""
    for field in fields:
        yield field
        if field.type.num_fields:
            yield from _leaves_of(field.type.field(n) for n in range(field.type.num_fields))
