"""``huggingface``: datasets of the ``datasets`` package, as objects and from ``save_to_disk``.

Both are Arrow tables, read like those of ``parquet``: types from the columns, names of classes, and
images and sounds as the bytes of their files, undecoded. If a table has only the name of a file, it
is read when the item is loaded. Folders of ``save_to_disk`` need only pyarrow.

An object with a format or a transform is read by indexing (:mod:`shardwriter.sources.python`).
"""

from __future__ import annotations

import io
import mmap
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Final, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwriter.dataset import is_url, path_below
from shardwriter.errors import SourceError
from shardwriter.formats import Shape, clean, extend_crc32c, json_shape
from shardwriter.schema import FeatureType
from shardwriter.sources.arrow import ArrowRows, RowGroup
from shardwriter.sources.parquet import ParquetTable
from shardwriter.sources.positions import OffsetTable
from shardwriter.sources.tables import TableOptions
from shardwriter.storage import Scratch, inputs_for

_SENT_BYTES: Final = 1 << 20  # tables in memory up to this size are pickled


class SentTable:
    """A table of ``datasets`` that can be sent to another process.

    Tables in files are sent as file names, and mapped again. Tables in memory are sent as temporary
    files, which all processes map, or as bytes if they are small.

    Args:
        table: A ``datasets.table.Table``.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self._sent: list[list[Any]] | None = None

    @property
    def table(self) -> Any:
        """The ``pyarrow.Table``."""
        return self._table.table

    def __getstate__(self) -> list[list[Any]]:
        if self._sent is None:
            blocks = getattr(self._table, "blocks", [[self._table]])
            self._sent = [[_sendable_block(block) for block in row] for row in blocks]
        return self._sent

    def __setstate__(self, state: list[list[Any]]) -> None:
        from datasets.table import ConcatenationTable, InMemoryTable

        blocks = [
            [InMemoryTable(b.table()) if type(b) is _Copy else b for b in row] for row in state
        ]
        is_one = len(blocks) == len(blocks[0]) == 1
        self._table = blocks[0][0] if is_one else ConcatenationTable.from_blocks(blocks)
        self._sent = state


def _sendable_block(block: Any) -> Any:
    from datasets.table import InMemoryTable

    # Pickling a slice of a table would pickle the whole table.
    return _Copy(block.table) if isinstance(block, InMemoryTable) else block


class _Copy:
    """A table in memory as an Arrow stream: in a temporary file, or as bytes if it is small."""

    def __init__(self, table: Any) -> None:
        import pyarrow as pa

        self._bytes: bytes | None = None
        self._file: Scratch | None = None
        if table.nbytes <= _SENT_BYTES:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            self._bytes = sink.getvalue().to_pybytes()
            return
        self._file = Scratch()
        with pa.ipc.new_stream(_Appending(self._file), table.schema) as stream:
            stream.write_table(table)

    def table(self) -> Any:
        """Return the table; mapped if it is in a file."""
        import pyarrow as pa

        data: Any = self._bytes
        if self._file is not None:
            # No other process can truncate this file, so it is safe to map.
            data = mmap.mmap(self._file.fileno(), self._file.num_bytes, access=mmap.ACCESS_READ)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


class _Appending(io.RawIOBase):
    """A stream that appends to a temporary file."""

    def __init__(self, file: Scratch) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._file.append(data)
        return memoryview(data).nbytes


KIND: Final = "huggingface"

_STATE: Final = "state.json"
_INFO: Final = "dataset_info.json"
_SPLITS: Final = "dataset_dict.json"
_FILE_FIELDS: Final = {"bytes", "path"}
_SAMPLE_ROWS: Final = 64
_SAMPLE_BYTES: Final = 4 << 20
_BLOCK_FILES: Final = 32  # rows per block if rows name files, whose sizes are unknown


class _SplitsShape(TypedDict):
    """``dataset_dict.json``."""

    splits: list[str]


class _DataFile(TypedDict):
    filename: str


class _StateKeys(TypedDict):
    _data_files: Annotated[list[_DataFile], msgspec.Meta(min_length=1)]


class _StateShape(_StateKeys, total=False):
    """``state.json``."""

    _format_columns: list[str] | None
    _format_type: str | None
    _indices_data_files: list[_DataFile] | None


# -- folders ---------------------------------------------------------------------------------------


def is_saved(path: str) -> bool:
    """Return whether a folder was written by ``save_to_disk``, as one split or several."""
    exists = inputs_for(path).exists
    return exists(os.path.join(path, _SPLITS)) or all(
        exists(os.path.join(path, name)) for name in (_STATE, _INFO)
    )


def saved_splits(path: str) -> list[str] | None:
    """Return the splits of a folder of ``DatasetDict.save_to_disk``; None for another folder.

    Raises:
        SourceError: The file with their names is damaged.
    """
    splits_path = os.path.join(path, _SPLITS)
    if not inputs_for(path).exists(splits_path):
        return None
    splits = _read(splits_path, _SplitsShape)["splits"]
    for name in splits:
        if _path_below(path, name, splits_path, "a split") != os.path.basename(name):
            raise SourceError(f"a split is not a folder name: {name!r:.200}", path=splits_path)
    return splits


class SavedDataset(ParquetTable):
    """A folder of ``Dataset.save_to_disk``.

    Args:
        path: The folder.
        schema: Types fixed by the user, by column.
        table: Which columns to read.

    Raises:
        MissingExtra: pyarrow is not installed.
        SourceError: It is another folder, it has several splits, or one of its files is damaged.
    """

    kind = KIND

    def __init__(
        self,
        path: str,
        schema: Mapping[str, FeatureType] | None = None,
        table: TableOptions | None = None,
    ) -> None:
        exists = inputs_for(path).exists
        splits = saved_splits(path)
        if splits is not None:
            first = f", or give {os.path.join(path, splits[0])}" if splits else ""
            raise SourceError(
                f"this folder has several splits: {', '.join(splits) or '(none)'}",
                path=path,
                hint=f"--split source writes each of them{first}",
            )
        state_path = os.path.join(path, _STATE)
        if not exists(state_path):
            raise SourceError(
                f"there is no {_STATE}, so the folder is not from save_to_disk",
                path=path,
                hint="read .arrow files with --format parquet",
            )
        state = _read(state_path, _StateShape)
        names = [
            _path_below(path, file["filename"], state_path, "a file of _data_files")
            for file in state["_data_files"]
        ]
        if state.get("_indices_data_files"):
            raise SourceError(
                "its rows are selected by an indices file, as by old versions of datasets",
                path=path,
                hint="write it with datasets.load_from_disk(...).flatten_indices()"
                ".save_to_disk(...); or pass the result of load_from_disk to shardwriter.write",
            )
        files = [os.path.join(path, name) for name in names]
        super().__init__(files, schema, partial(_read_file_below, path), table)
        metadata = [os.path.join(path, name) for name in (_STATE, _INFO)]
        self._metadata_ns = [inputs_for(p).stat(p).st_mtime_ns for p in metadata if exists(p)]
        _limit_block(self)
        # `datasets` stores all column names once a method has read the format.
        all_names = self._files[0].schema.names
        chosen = state.get("_format_columns") or all_names
        if state.get("_format_type") or set(chosen) != set(all_names):
            self.notes = [
                *self.notes,
                "the dataset was saved with a format, which is not applied: all columns are "
                "written as they are stored",
            ]

    def fingerprint(self) -> dict[str, Any]:
        """Return the digest with the modification times of the data and metadata files."""
        return {**super().fingerprint(), "told": self._metadata_ns}


def _read(path: str, shape: type[Shape]) -> Shape:
    try:
        return json_shape.read(inputs_for(path).read(path)[1], shape)
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error
    except ValueError as error:
        raise SourceError(
            f"not a file of save_to_disk: {error}",
            path=path,
            hint="save the dataset again, with datasets' save_to_disk",
        ) from None


def _path_below(folder: str, name: str, json_path: str, what: str) -> str:
    """Return the normalized path of a file that a JSON file names; it must be in the folder."""
    try:
        normal = path_below(name)
    except ValueError as error:
        raise SourceError(f"{what} {error}", path=json_path) from None
    path = os.path.join(folder, normal)
    if not is_url(folder) and not _is_below(os.path.realpath(path), os.path.realpath(folder)):
        raise SourceError(
            f"{what} is a link to a file outside the folder: {name!r:.200}",
            path=json_path,
            hint=f"copy the folder without links: cp -rL {shlex.quote(folder)} COPY",
        )
    return normal


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _read_file_below(folder: str, name: str) -> bytes:
    """Return the content of a file that a row of a saved dataset names.

    Rows are not trusted: they may only name files in the dataset's folder.

    Raises:
        SourceError: The file is outside the folder, or cannot be read.
    """
    if "\0" in name:
        return read_named_file(name)  # raises
    path = os.path.join(folder, name)
    if is_url(name) or not _is_below(os.path.realpath(path), os.path.realpath(folder)):
        raise SourceError(
            f"a row names a file outside the dataset's folder: {name!r:.200}",
            path=folder,
            hint="to allow that, use shardwriter.write(datasets.load_from_disk(...)) in Python",
        )
    return read_named_file(path)


def read_named_file(path: str) -> bytes:
    """Return the content of a file that a table only has the name of.

    Raises:
        SourceError: It cannot be read.
    """
    try:
        return inputs_for(path).read(path)[1]
    except OSError as error:
        raise SourceError(
            f"can not be read: {error.strerror}",
            path=path,
            hint="the dataset has only the names of its files",
        ) from error
    except ValueError as error:  # a name with NUL
        raise SourceError(f"not a file name: {error}", path=clean(path)) from None


def _limit_block(rows: ArrowRows) -> None:
    """Load few rows at a time if they only name their files."""
    if rows.num_items and any(
        value.keys() == _FILE_FIELDS and value["bytes"] is None and value["path"] is not None
        for value in rows.plain_rows([0])[0].values()
        if isinstance(value, dict)
    ):
        rows.block_items = min(rows.block_items, _BLOCK_FILES)


# -- objects ---------------------------------------------------------------------------------------


def _is_of(data: Any, module: str, name: str) -> bool:
    """Return whether an object is of a class of ``datasets``; False if it is not imported."""
    kind = getattr(sys.modules.get(f"datasets.{module}"), name, None)
    return isinstance(kind, type) and isinstance(data, kind)


def is_table(data: Any) -> bool:
    """Return whether an object is a ``datasets.Dataset`` without a format or transform."""
    return _is_of(data, "arrow_dataset", "Dataset") and data.format["type"] is None


def is_stream(data: Any) -> bool:
    """Return whether an object is a ``datasets.IterableDataset`` without a format."""
    return (
        _is_of(data, "iterable_dataset", "IterableDataset")
        and getattr(data, "_formatting", None) is None
    )


def check_no_splits(data: Any) -> None:
    """Raise for an object with several splits.

    Raises:
        SourceError: It has splits; the message lists them.
    """
    for name in ("DatasetDict", "IterableDatasetDict"):
        if _is_of(data, "dataset_dict", name):
            splits = list(data)
            raise SourceError(
                f"a {name} with splits {', '.join(splits)}",
                hint=f"--split source writes all of them; for one, give data[{splits[0]!r}]"
                if splits
                else None,
            )


class HuggingFaceTable(ArrowRows):
    """The rows of a ``datasets.Dataset``, in the order of its indices.

    Tables in files are mapped again by each worker.

    Args:
        data: The dataset; without a format.
        schema: Types fixed by the user, by column.
        table: Which columns to read.

    Raises:
        SourceError: A fixed type is for no column, or a column cannot be cast to it.
    """

    kind = KIND
    sendable = True
    notes: Sequence[str] = ()

    def __init__(
        self,
        data: Any,
        schema: Mapping[str, FeatureType] | None = None,
        table: TableOptions | None = None,
    ) -> None:
        if list(data.format["columns"]) != list(data.column_names):
            data = data.select_columns(data.format["columns"])
        if table is not None and table.picks:
            data = data.select_columns(table.pick(data.column_names))
        self._table = SentTable(data.data)
        self._fingerprint = str(data._fingerprint)
        self._open_batches()
        self._places: OffsetTable | None = None
        self._places_crc: int | None = None
        row_groups = [RowGroup(batch.num_rows, batch.nbytes) for batch in self._batches]
        known = data.features.to_dict()
        super().__init__(
            self._table.table.schema, row_groups, known, schema or {}, None, read_named_file
        )
        if data._indices is not None:
            self._places, self._places_crc = _read_indices(data._indices.column(0))
            self.num_items = len(data)
        _limit_block(self)

    def _open_batches(self) -> None:
        self._batches = self._table.table.to_batches()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {n: value for n, value in state.items() if n not in ("_batches", "_schema")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._open_batches()
        self._schema = self._table.table.schema

    def _read_group(self, number: int, columns: list[str] | None = None) -> Any:
        import pyarrow as pa

        table = pa.Table.from_batches([self._batches[number]])
        return table if columns is None else table.select(columns)

    def _decoded(self, group: int) -> Any:
        return self._read_group(group)  # it is in memory, or mapped

    def _row_numbers(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return items if self._places is None else self._places.at(items)

    def digest(self) -> dict[str, Any]:
        """Return the columns, the number of rows, and hashes of the indices and of a sample."""
        return {
            "columns": [f"{field.name}: {field.type}" for field in self._schema],
            "indices": self._places_crc,
            "num_items": self.num_items,
            "rows": self._hash_sample(),
        }

    def fingerprint(self) -> dict[str, Any]:
        """Return the digest with the fingerprint of ``datasets``."""
        return {**self.digest(), "fingerprint": self._fingerprint}

    def _hash_sample(self) -> str:
        num_items, num_bytes = self.num_items or 0, sum(self._group_bytes)
        count = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES * self._num_rows // (num_bytes or 1)))
        chosen = sorted({k * num_items // count for k in range(count)} if num_items else ())
        found = sha256()
        for row in self.plain_rows(chosen):
            found.update(repr([_without_folder(value) for value in row.values()]).encode())
        return found.hexdigest()


def _without_folder(value: Any) -> Any:
    """Return a value; a file name without its folder, which differs between machines."""
    if isinstance(value, dict) and value.keys() == _FILE_FIELDS and value["path"] is not None:
        return value["bytes"], os.path.basename(value["path"])
    return value


def _read_indices(column: Any) -> tuple[OffsetTable, int]:
    """Return the indices of a dataset as row numbers, and their CRC-32C."""
    places, crc = OffsetTable(), 0
    for chunk in column.chunks:
        numbers = chunk.to_numpy().astype("<i8")
        places.add(numbers.astype(np.int64, copy=False))
        crc = extend_crc32c(crc, numbers.tobytes())
    return places, crc


class UndecodedItems:
    """The items of a ``datasets.IterableDataset``, with the bytes of files.

    Args:
        data: The dataset; it can be read repeatedly.
    """

    def __init__(self, data: Iterable[Mapping[str, Any]]) -> None:
        undecoded: Callable[[bool], Any] | None = getattr(data, "decode", None)
        self._data = data if undecoded is None else undecoded(False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for item in self._data:
            yield {name: _as_bytes(value) for name, value in item.items()}


def _as_bytes(value: Any) -> Any:
    if type(value) is not dict or value.keys() != _FILE_FIELDS:
        return value
    data, path = value["bytes"], value["path"]
    return read_named_file(path) if data is None and path is not None else data
