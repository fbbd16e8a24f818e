"""Finding the source that SOURCE means: by ``--format``, or by looking."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from typing import Any, Final

from shardwriter.callables import import_reference, is_reference
from shardwriter.compression import OpenStream, open_stream
from shardwriter.errors import CorruptFile, OptionError, SourceError
from shardwriter.images import image_format
from shardwriter.schema import FeatureType
from shardwriter.sources import Source
from shardwriter.sources import csv as csv_source
from shardwriter.sources import image_folder as image_folder_source
from shardwriter.sources import python as python_source
from shardwriter.tfrecord import frame_header

FORMATS: Final = (image_folder_source.KIND, csv_source.KIND, python_source.KIND)
"""What ``--format`` knows, beside ``auto``."""

_LOOK_BYTES: Final = 1 << 16
_TABLE_ENDINGS: Final = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def open_source(
    data: Any, format: str = "auto", schema: Mapping[str, FeatureType] | None = None
) -> Source:
    """Open the source that a person named.

    Args:
        data: A path, a glob, ``-`` for standard input, ``module:callable``; or in Python any
            iterable, sequence, or function that returns one.
        format: One of :data:`FORMATS`, or ``auto``.
        schema: Types fixed by the user; a table binds its columns to them.

    Raises:
        OptionError: The format is unknown, or ``module:callable`` does not exist.
        SourceError: The source is missing, empty, or not what ``format`` says.
    """
    if format not in ("auto", *FORMATS):
        raise OptionError(
            f"--format {format}: there is no such format", hint=f"one of {', '.join(FORMATS)}"
        )
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    if not isinstance(data, str):
        if format not in ("auto", python_source.KIND):
            raise OptionError(
                f"format {format} is for a path, and the source is a {type(data).__name__}"
            )
        return python_source.PythonSource(data)
    if format == "auto":
        format = _look(data)
    if format == python_source.KIND:
        return python_source.PythonSource(import_reference(data, "SOURCE"), name=data)
    if format == image_folder_source.KIND:
        _must_exist(data)
        if not os.path.isdir(data):
            raise SourceError(
                "this is a file; an image-folder is a folder with a folder for each class",
                path=data,
            )
        return image_folder_source.ImageFolder(data)
    return csv_source.CsvTable(_table_files(data), schema)


def _look(data: str) -> str:
    """Tell the format from what is there.

    Raises:
        SourceError: Nothing is there, or nothing that is known.
    """
    if data == "-":
        return csv_source.KIND
    if not os.path.exists(data):
        if is_reference(data):
            return python_source.KIND
        if glob.has_magic(data) and _is_table_name(data):
            return csv_source.KIND
        _must_exist(data)
    if os.path.isdir(data):
        if image_folder_source.has_images(data):
            return image_folder_source.KIND
        if _tables_in(data):
            return csv_source.KIND
        raise SourceError(
            "nothing in this folder is known",
            path=data,
            hint="looked for images, in class folders or directly, and for .csv and .tsv files",
        )
    return _look_into(data)


def _look_into(path: str) -> str:
    if not os.path.isfile(path):
        return csv_source.KIND  # a pipe: it can be read once, and only a table is read from one
    try:
        with open_stream(path) as stream:
            head = _head(stream, path)
    except CorruptFile as error:
        raise SourceError(f"can not be unpacked: {error.message}", path=path) from None
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error
    if not head:
        raise SourceError("the file is empty", path=path)
    if len(head) >= 12 and head[:12] == frame_header(int.from_bytes(head[:8], "little")):
        raise SourceError(
            "this is a TFRecord file already", path=path, hint=f"look at it: shard-stats {path}"
        )
    # Every image has a NUL near its beginning; a table may begin with "BMI,age".
    if b"\0" in head and image_format(head[:16]):
        raise SourceError(
            "this is one image", path=path, hint="give the folder that holds the class folders"
        )
    first_line = head.partition(b"\n")[0]
    text_like = b"\0" not in head and not head.lstrip().startswith((b"{", b"[", b"<"))
    if text_like and (_is_table_name(path) or any(c in first_line for c in b",\t;|")):
        return csv_source.KIND
    raise SourceError(
        "the format is not known by looking at it",
        path=path,
        hint=f"say it: --format {' or '.join(FORMATS)}",
    )


def _head(stream: OpenStream, path: str) -> bytes:
    try:
        return stream.read(_LOOK_BYTES)
    except CorruptFile:
        if stream.compression != "zlib":
            raise
    # Text such as "x^2" begins like a zlib stream.
    with open(path, "rb") as file:
        return file.read(_LOOK_BYTES)


def _is_table_name(path: str) -> bool:
    return path.lower().endswith(_TABLE_ENDINGS)


def _table_files(data: str) -> list[str]:
    if data == "-":
        return [data]
    if os.path.isdir(data):
        found = _tables_in(data)
        if not found:
            raise SourceError("no .csv or .tsv file is in this folder", path=data)
        return found
    if not os.path.exists(data) and glob.has_magic(data):
        found = sorted(glob.glob(data))
        if not found:
            raise SourceError("no file matches this pattern", path=data)
        return found
    _must_exist(data)
    return [data]


def _tables_in(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(
            entry.path
            for entry in entries
            if _is_table_name(entry.name) and not entry.name.startswith(".")
        )


def _must_exist(path: str) -> None:
    if not os.path.exists(path):
        raise SourceError(
            "there is no such file or folder",
            path=path,
            hint="SOURCE is a path, a glob of tables, or module:callable",
        )
