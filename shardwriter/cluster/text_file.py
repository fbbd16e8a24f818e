"""One text of a pipeline, kept in a file."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from shardwriter.storage.choose import storage_for


class KeepText(beam.DoFn):
    """Writes a text, and a line end, to a path or URL, and passes it on.

    Doing it again replaces the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, text: str) -> Iterator[str]:
        """Yield the text once it is kept."""
        storage = storage_for(self._path)
        file = storage.create(self._path)
        file.write(f"{text}\n".encode())
        storage.sync(self._path)
        file.close()
        yield text
