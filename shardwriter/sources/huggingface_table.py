"""Sending a table of ``datasets`` to another process.

What lies in files is mapped there again; ``datasets`` pickles such a table as its file's name. What
lies in memory goes as a temporary file, which all processes map, unless it is small.
"""

from __future__ import annotations

import io
import mmap
from typing import Any, Final

from shardwriter.storage.descriptor import Scratch

_SENT_BYTES: Final = 1 << 20  # of a table in memory that is sent as it is


class SentTable:
    """A table, here and where it is sent.

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
            self._sent = [[_packed(block) for block in row] for row in blocks]
        return self._sent

    def __setstate__(self, state: list[list[Any]]) -> None:
        from datasets.table import ConcatenationTable, InMemoryTable

        blocks = [
            [InMemoryTable(b.table()) if type(b) is _Copy else b for b in row] for row in state
        ]
        is_one = len(blocks) == len(blocks[0]) == 1
        self._table = blocks[0][0] if is_one else ConcatenationTable.from_blocks(blocks)
        self._sent = state


def _packed(block: Any) -> Any:
    from datasets.table import InMemoryTable

    # Pickled as it is, a part of a table would take all of the table along.
    return _Copy(block.table) if isinstance(block, InMemoryTable) else block


class _Copy:
    """A table that lies in memory, as an Arrow stream: in a temporary file, unless it is small."""

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
        """Return it; where it is a file, mapped."""
        import pyarrow as pa

        data: Any = self._bytes
        if self._file is not None:
            # It is ours and has no name: nobody can cut it short under the mapping.
            data = mmap.mmap(self._file.fileno(), self._file.num_bytes, access=mmap.ACCESS_READ)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


class _Appending(io.RawIOBase):
    """What is written goes to the end of a temporary file."""

    def __init__(self, file: Scratch) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._file.append(data)
        return memoryview(data).nbytes
