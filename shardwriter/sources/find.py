"""Opening the source that SOURCE means: the format is said by ``--format``, or found by looking."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from shardwriter.errors import OptionError, SourceError
from shardwriter.schema.bound_values import column_types
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources import audio as audio_source
from shardwriter.sources import coco as coco_source
from shardwriter.sources import csv as csv_source
from shardwriter.sources import huggingface as huggingface_source
from shardwriter.sources import image_folder as image_folder_source
from shardwriter.sources import image_mask as image_mask_source
from shardwriter.sources import jsonl as jsonl_source
from shardwriter.sources import numpy as numpy_source
from shardwriter.sources import parquet as parquet_source
from shardwriter.sources import python as python_source
from shardwriter.sources import tfrecord as tfrecord_source
from shardwriter.sources import voc as voc_source
from shardwriter.sources import webdataset as webdataset_source
from shardwriter.sources.callables import import_reference
from shardwriter.sources.input_files import all_files, files_meant, must_exist, named_in
from shardwriter.sources.looking import OURS, TABLE_ENDINGS, format_of_file, json_lines_in, look
from shardwriter.sources.source import Source
from shardwriter.sources.table_options import TableOptions
from shardwriter.storage.inputs import Entry, inputs_for

_Types = Mapping[str, FeatureType] | None


class _How(NamedTuple):
    """How a source is opened, as far as options say it.

    Attributes:
        schema: Types that the user fixed.
        table: How a table is read.
        skip_errors: Whether an item that is found to be bad while items are listed stays an item,
            and gives its error when it is loaded; else that ends the listing.
        is_auto: Whether the format was found by looking.
    """

    schema: Mapping[str, FeatureType]
    table: TableOptions
    skip_errors: bool
    is_auto: bool = False

    @property
    def columns(self) -> Mapping[str, FeatureType]:
        """What a source of columns is told of the types."""
        return column_types(self.schema)


_Opener = Callable[[str, _How], Source]


@dataclass(frozen=True)
class Opened:
    """A source that is open already, where one can be named."""

    source: Source


def open_source(
    data: Any,
    format: str = "auto",
    schema: _Types = None,
    table: TableOptions | None = None,
    *,
    skip_errors: bool = False,
) -> Source:
    """Open the source that a person named.

    Args:
        data: A path, a glob, a list in braces, ``-`` for standard input, ``module:callable``; or
            in Python any iterable, sequence, or function that returns one.
        format: One of :data:`FORMATS`, or ``auto``.
        schema: Types fixed by the user; a table binds its columns to them.
        table: How a table is read; an error where the source is none.
        skip_errors: Whether a bad row or file stays an item, and gives its error when it is loaded;
            else the source can not be opened.

    Raises:
        OptionError: The format is unknown, ``module:callable`` does not exist, or an option is of
            another format.
        SourceError: The source is missing, empty, or not what ``format`` says.
    """
    if format not in ("auto", *FORMATS):
        raise OptionError(
            f"--format {format}: there is no such format", hint=f"one of {', '.join(FORMATS)}"
        )
    if isinstance(data, Opened):
        return data.source
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    how = _How(schema or {}, table or TableOptions(), skip_errors, format == "auto")
    if not isinstance(data, str):
        if format not in ("auto", python_source.KIND):
            raise OptionError(
                f"format {format} is for a path, and the source is of type {type(data).__name__}"
            )
        return _of_python(data, how)
    if "\0" in data:
        raise OptionError(f"the source {data!r} has a NUL in its name, as no file has")
    if format == "auto" and how.table.encoding is not None:
        format = format_of_file(data) or format  # what is in it is still to be decoded
    kind = look(data) if format == "auto" else format
    if kind != python_source.KIND:
        how.table.check_format(kind)
    return _OPENERS[kind](data, how)


# -- folders ---------------------------------------------------------------------------------------


def _image_folder(data: str, how: _How) -> Source:
    _must_be_folder(data, "an image-folder is")
    found = image_folder_source.ImageFolder(data, skip_errors=how.skip_errors)
    if how.is_auto:
        found.check_no_masks()
    return found


def _audio(data: str, how: _How) -> Source:
    _must_be_folder(data, "audio is")
    return audio_source.AudioFolder(data, skip_errors=how.skip_errors)


def _must_be_folder(data: str, what: str) -> None:
    must_exist(data)
    if not inputs_for(data).is_directory(data):
        raise SourceError(
            f"this is a file; {what} a folder with a folder for each class", path=data
        )


def _image_mask(data: str, how: _How) -> Source:
    return image_mask_source.ImageMask(data, skip_errors=how.skip_errors)


def _coco(data: str, how: _How) -> Source:
    must_exist(data)
    return coco_source.CocoDetection(data)


def _voc(data: str, how: _How) -> Source:
    must_exist(data)
    if not inputs_for(data).is_directory(data) and not voc_source.is_image_set(data):
        raise SourceError(
            "this is a file; voc is a folder with Annotations and JPEGImages, or a list in "
            "ImageSets, as VOC2012/ImageSets/Main/train.txt",
            path=data,
        )
    return voc_source.VocDetection(data)


# -- files -----------------------------------------------------------------------------------------


class _FileFormat(NamedTuple):
    """A format whose source is some files.

    Attributes:
        those_in: Which files of a folder are meant.
        endings: What their names end in, for errors.
        opened: Opens them.
    """

    those_in: Callable[[str], list[Entry]]
    endings: str
    opened: Callable[[Sequence[str], _How], Source]


def _named(endings: Sequence[str]) -> Callable[[str], list[Entry]]:
    return lambda directory: named_in(directory, endings, OURS)


def _csv(paths: Sequence[str], how: _How) -> Source:
    return csv_source.CsvTable(paths, how.columns, how.table, skip_errors=how.skip_errors)


def _jsonl(paths: Sequence[str], how: _How) -> Source:
    return jsonl_source.JsonLines(paths, how.columns, how.table, skip_errors=how.skip_errors)


def _parquet(paths: Sequence[str], how: _How) -> Source:
    return parquet_source.ParquetTable(paths, how.columns, table=how.table)


def _numpy(paths: Sequence[str], how: _How) -> Source:
    if len(paths) > 1 and any(path.lower().endswith(".npz") for path in paths):
        raise SourceError(
            f"there are {len(paths)} files, and not all are .npy",
            path=paths[0],
            hint="give one .npz file, or a folder of .npy files of one length",
        )
    return numpy_source.NumpyRows(paths, how.columns)


def _webdataset(paths: Sequence[str], how: _How) -> Source:
    if "-" in paths:
        raise SourceError("tar files are read by name, and not from standard input")
    return webdataset_source.WebDataset(paths)


_OF_FILES: Final[Mapping[str, _FileFormat]] = {
    csv_source.KIND: _FileFormat(_named(TABLE_ENDINGS), ".csv or .tsv", _csv),
    jsonl_source.KIND: _FileFormat(json_lines_in, ".jsonl, .ndjson or .json", _jsonl),
    parquet_source.KIND: _FileFormat(
        _named(parquet_source.ENDINGS), ".parquet, .arrow or .feather", _parquet
    ),
    numpy_source.KIND: _FileFormat(_named(numpy_source.ENDINGS), ".npy or .npz", _numpy),
    webdataset_source.KIND: _FileFormat(
        _named(webdataset_source.ENDINGS), ".tar, .tar.gz or .tgz", _webdataset
    ),
}


def open_files(
    format: str,
    paths: Sequence[str],
    schema: _Types = None,
    table: TableOptions | None = None,
    *,
    skip_errors: bool = False,
) -> Source:
    """Open some files as one source; their format is one that a list of files can have."""
    how = _How(schema or {}, table or TableOptions(), skip_errors)
    how.table.check_format(format)
    return _OF_FILES[format].opened(paths, how)


def _files_of(format: str, data: str, how: _How) -> Source:
    """Open the files that a person means, in order.

    Raises:
        OptionError: There is no such file.
        SourceError: The folder has none of this format, or one that is no file.
    """
    if data == "-":
        return _OF_FILES[format].opened([data], how)
    found = files_meant(data)
    if found is None:
        known = _OF_FILES[format]
        found = all_files(known.those_in(data))
        if not found:
            raise SourceError(f"no {known.endings} file is in this folder", path=data)
    return _OF_FILES[format].opened(found, how)


# -- the formats -----------------------------------------------------------------------------------


def _tfrecord(data: str, how: _How) -> Source:
    if data == "-":
        raise SourceError("records are read from files, and not from standard input")
    return tfrecord_source.TFRecordFiles(data)


def _python(data: str, how: _How) -> Source:
    return _of_python(import_reference(data, "SOURCE"), how, name=data)


def _of_python(data: Any, how: _How, name: str | None = None) -> Source:
    """Open an object, or what a function returns; tables of ``datasets`` are read as tables."""
    source = python_source.PythonSource(data, name=name)
    if huggingface_source.is_table(source.given):
        how.table.check_format(huggingface_source.KIND)
        return huggingface_source.HuggingFaceTable(source.given, how.columns, how.table)
    how.table.check_format(python_source.KIND)
    return source


def _huggingface(data: str, how: _How) -> Source:
    must_exist(data)
    return huggingface_source.SavedDataset(data, how.columns, how.table)


_OPENERS: Final[Mapping[str, _Opener]] = {
    image_folder_source.KIND: _image_folder,
    image_mask_source.KIND: _image_mask,
    coco_source.KIND: _coco,
    voc_source.KIND: _voc,
    **{kind: partial(_files_of, kind) for kind in _OF_FILES},
    tfrecord_source.KIND: _tfrecord,
    audio_source.KIND: _audio,
    python_source.KIND: _python,
    huggingface_source.KIND: _huggingface,
}

FORMATS: Final = tuple(_OPENERS)
"""What ``--format`` knows, beside ``auto``; how each is opened, :data:`_OPENERS` says."""
