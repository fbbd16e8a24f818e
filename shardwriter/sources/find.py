"""Detect the format of a source, and open it. The registry of input formats.

detect_format    the format of a path, from its name and its content
open_source      the source of a path, a reference or a Python object
open_files       several files of one format as one source

An input format is listed in these places:

_OPENERS         the function that opens a source of each format; its keys are :data:`FORMATS`
_FILE_FORMATS    formats that read one file, or all files of a folder or glob; also in _OPENERS
format_of_file   the format of a file, from the ending of its name
_detect_file     the format of a file, from its first bytes
_detect_folder   the format of a folder, from the files in it; a folder with a layout of its own, as
                 of images with masks, is detected earlier, in detect_format
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from shardwriter.dataset import TFRECORD_PARTS, is_url, parse_shard_file
from shardwriter.errors import CorruptFile, ManifestError, OptionError, SourceError
from shardwriter.formats import OpenStream, frame_header, image_format
from shardwriter.schema import FeatureType, column_types
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
from shardwriter.sources.arrow import ARROW_FILE, ARROW_STREAM, PARQUET
from shardwriter.sources.callables import import_reference, is_reference
from shardwriter.sources.coco import coco_files, looks_like_coco
from shardwriter.sources.image_mask import parse_spec
from shardwriter.sources.input_files import (
    all_files,
    braced,
    expand_braces,
    files_meant,
    must_exist,
    named_in,
    not_there,
)
from shardwriter.sources.numpy import MAGIC as NUMPY_MAGIC
from shardwriter.sources.positions import BOM
from shardwriter.sources.shard_sets import find_shard_sets
from shardwriter.sources.source import Source
from shardwriter.sources.tables import TableOptions
from shardwriter.sources.webdataset import PACKED
from shardwriter.storage import Entry, inputs_for, open_stream

CSV_ENDINGS: Final = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
JSON_LINES_ENDINGS: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
JSON_ENDINGS: Final = (".json", ".json.gz")

_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES: Final = 1 << 16
_MANIFEST_ENDING: Final = ".manifest.json"
SIDECAR_ENDINGS: Final = (_MANIFEST_ENDING, ".errors.jsonl")
"""Endings of the JSON files that a write puts beside shards."""


def detect_format(data: str) -> str:
    """Return the format of a path.

    Raises:
        OptionError: There is no such file or folder.
        SourceError: The format is unknown, or there are files of several formats.
    """
    if data == "-":
        return csv_source.KIND
    inputs = inputs_for(data)
    if not inputs.exists(data):
        return _detect_missing_path(data)
    if inputs.is_directory(data):
        if huggingface_source.is_saved(data):
            return huggingface_source.KIND
        # Before image folders: annotated images are in folders that are not classes.
        if voc_source.is_voc_folder(data):
            return voc_source.KIND
        if coco_files(data):
            return coco_source.KIND
        if image_mask_source.has_pairs(data):
            return image_mask_source.KIND
        if image_folder_source.has_images(data):
            return image_folder_source.KIND
        if audio_source.has_audio(data):
            return audio_source.KIND
        return _detect_folder(data)
    if voc_source.is_image_set(data):
        return voc_source.KIND
    return _detect_file(data)


def format_of_file(path: str) -> str | None:
    """Return the format that a file's name implies; None if it implies none."""
    name = os.path.basename(path).lower()
    if name.startswith(".") or name.endswith((*SIDECAR_ENDINGS, ".index", ".idx")):
        return None
    if name.endswith(".npz"):  # not .npy: such a file has only one of several features
        return numpy_source.KIND
    for kind, endings in (
        (csv_source.KIND, CSV_ENDINGS),
        (jsonl_source.KIND, JSON_LINES_ENDINGS),
        (parquet_source.KIND, parquet_source.ENDINGS),
        (webdataset_source.KIND, webdataset_source.ENDINGS),
    ):
        if name.endswith(tuple(endings)):
            return kind
    return tfrecord_source.KIND if _is_record_name(name) else None


def json_lines_in(directory: str) -> list[Entry]:
    """Return the files with an ending of JSON lines; if there are none, those ending in .json."""
    named = named_in(directory, JSON_LINES_ENDINGS, SIDECAR_ENDINGS)
    return named or named_in(directory, JSON_ENDINGS, SIDECAR_ENDINGS)


def _detect_missing_path(data: str) -> str:
    """Return the format of a pattern, a list in braces, a dataset's name or a reference."""
    inputs = inputs_for(data)
    if not inputs.is_file(next(expand_braces(data))) and parse_spec(data):
        return image_mask_source.KIND
    if is_reference(data):
        return python_source.KIND
    listed = braced(data)
    if listed is not None or glob.has_magic(data):
        if data.lower().endswith(CSV_ENDINGS):
            return csv_source.KIND
        if _is_json_lines_name(data):
            return jsonl_source.KIND
        if webdataset_source.is_tar_name(data):
            return webdataset_source.KIND
        found = listed or list(filter(inputs.is_file, inputs.glob(data)))
        if found:
            return _detect_file(next(filter(_is_record_name, found), found[0]))
    if _is_dataset(data):
        return tfrecord_source.KIND
    raise not_there(data)


def _detect_folder(path: str) -> str:
    kinds = {
        csv_source.KIND: bool(named_in(path, CSV_ENDINGS)),
        jsonl_source.KIND: any(_is_json_lines_name(entry.name) for entry in json_lines_in(path)),
        parquet_source.KIND: bool(named_in(path, parquet_source.ENDINGS)),
        numpy_source.KIND: bool(named_in(path, numpy_source.ENDINGS)),
        tfrecord_source.KIND: _has_records(path),
        webdataset_source.KIND: bool(named_in(path, webdataset_source.ENDINGS)),
    }
    found = [kind for kind, has_files in kinds.items() if has_files]
    if len(found) > 1:
        raise SourceError(
            f"this folder has files of several formats: {', '.join(found)}",
            path=path,
            hint=f"choose one: --format {' or '.join(found)}",
        )
    if found:
        return found[0]
    other_json = json_lines_in(path)
    if other_json:
        return _detect_file(other_json[0].path)
    other_audio = audio_source.others_in(path)
    if other_audio:
        raise SourceError(
            f"WAV is the only audio format that is read; this folder has {other_audio}",
            path=path,
            hint="convert the files, as with `ffmpeg -i 1.flac 1.wav`, or load them in Python: "
            "SOURCE may be module:callable",
        )
    raise SourceError(
        "this folder has no files of a known format",
        path=path,
        hint="searched for images and .wav files, in class folders or directly, for images "
        "with masks or annotations, and for .csv, .tsv, .jsonl, .ndjson, .parquet, .arrow, "
        ".feather, .npy, .npz, .tar and TFRecord files",
    )


def _detect_file(path: str) -> str:
    if not is_url(path) and not os.path.isfile(path):
        return csv_source.KIND  # a pipe, which can be read only once
    if path.endswith(_MANIFEST_ENDING):
        return tfrecord_source.KIND
    try:
        with open_stream(path) as stream:
            head = _head(stream, path)
    except CorruptFile as error:
        raise SourceError(f"can not be decompressed: {error.message}", path=path) from None
    except OSError as error:
        raise SourceError(f"can not be read: {error.strerror}", path=path) from error
    if not head and _is_record_name(path):
        return tfrecord_source.KIND
    if not head:
        raise SourceError("the file is empty", path=path)
    if len(head) >= 12 and head[:12] == frame_header(int.from_bytes(head[:8], "little")):
        return tfrecord_source.KIND
    if head[257:262] == b"ustar" or (b"\0" in head and webdataset_source.is_tar_name(path)):
        return webdataset_source.KIND
    if head.startswith((PARQUET, ARROW_FILE, ARROW_STREAM)):
        return parquet_source.KIND
    if head.startswith(NUMPY_MAGIC) or (head[:2] == b"PK" and path.lower().endswith(".npz")):
        return numpy_source.KIND
    packed = [name for magic, name in PACKED.items() if head.startswith(magic)]
    if packed:
        raise SourceError(
            f"compressed with {packed[0]}, which is not supported",
            path=path,
            hint="decompress the file, or compress it with gzip",
        )
    # Every image has a NUL near its beginning; a table may begin with "BMI,age".
    if b"\0" in head and image_format(head[:16]):
        raise SourceError(
            "this is a single image", path=path, hint="give the folder with its class folders"
        )
    if b"\0" in head and _is_record_name(path):
        return tfrecord_source.KIND  # a damaged file; reading it reports where
    if looks_like_coco(head) and not _is_json_lines_name(path):
        return coco_source.KIND
    if _is_json_lines(head, path):
        return jsonl_source.KIND
    first_line = head.partition(b"\n")[0]
    text_like = b"\0" not in head and not head.lstrip().startswith((b"{", b"[", b"<"))
    is_table_name = path.lower().endswith(CSV_ENDINGS)
    if text_like and (is_table_name or any(c in first_line for c in b",\t;|")):
        return csv_source.KIND
    if head.startswith(_UTF16_MARKS):
        raise SourceError(
            "the text is UTF-16, not UTF-8",
            path=path,
            hint="add --encoding utf-16, with --format csv or --format jsonl",
        )
    raise SourceError(
        "the format of this file is unknown", path=path, hint="choose one with --format"
    )


def _head(stream: OpenStream, path: str) -> bytes:
    try:
        return stream.read(_HEAD_BYTES)
    except CorruptFile:
        if stream.compression != "zlib":
            raise
    # Text such as "x^2" begins like a zlib stream.
    with inputs_for(path).open(path) as file:
        return file.read(_HEAD_BYTES)


def _is_json_lines(head: bytes, path: str) -> bool:
    """Return whether a file has one JSON object per line.

    Raises:
        SourceError: It is JSON of another layout.
    """
    if b"\0" in head:
        return False
    if _is_json_lines_name(path):
        return True
    text = head.removeprefix(BOM).lstrip()
    line, line_end, _ = text.partition(b"\n")
    is_whole = bool(line_end) or len(head) < _HEAD_BYTES
    try:
        shape = type(json.loads(line)) if is_whole else None
    except (ValueError, RecursionError):
        shape = None
    if text.startswith(b"{") and (shape is dict or not is_whole):
        return True
    if path.lower().endswith(JSON_ENDINGS) and text.startswith((b"{", b"[")):
        program = "'.[]'" if text.startswith(b"[") else "."
        raise SourceError(
            "this is JSON, but not one object per line",
            path=path,
            hint=f"convert it: jq -c {program} {path} > rows.jsonl",
        )
    return False


def _is_json_lines_name(path: str) -> bool:
    return path.lower().endswith(JSON_LINES_ENDINGS)


def _is_record_name(path: str) -> bool:
    name = os.path.basename(path).lower()
    return not TFRECORD_PARTS.isdisjoint(part.partition("-")[0] for part in name.split(".")[1:])


def _is_dataset(path: str) -> bool:
    try:
        return bool(find_shard_sets([path]))
    except OptionError:
        return False


def _has_records(directory: str) -> bool:
    try:
        return bool(find_shard_sets([directory]))
    except (OptionError, SourceError):
        return False
    except ManifestError:
        names = [entry.name for entry in inputs_for(directory).listing(directory)]
        return any(map(parse_shard_file, names))


_Types = Mapping[str, FeatureType] | None


class _OpenOptions(NamedTuple):
    """The options for opening a source.

    Attributes:
        schema: Types fixed by the user.
        table: How a table is read.
        skip_errors: Keep an item that is found to be bad while listing, and raise its error when it
            is loaded; otherwise the error ends the listing.
        is_auto: Whether the format was detected.
    """

    schema: Mapping[str, FeatureType]
    table: TableOptions
    skip_errors: bool
    is_auto: bool = False

    @property
    def columns(self) -> Mapping[str, FeatureType]:
        """The types as a source of columns needs them."""
        return column_types(self.schema)


_Opener = Callable[[str, _OpenOptions], Source]


@dataclass(frozen=True)
class Opened:
    """A source that is already open, in place of a path."""

    source: Source


def open_source(
    data: Any,
    format: str = "auto",
    schema: _Types = None,
    table: TableOptions | None = None,
    *,
    skip_errors: bool = False,
) -> Source:
    """Open a source.

    Args:
        data: A path, a glob, a list in braces, ``-`` for standard input, ``module:callable``; or
            in Python any iterable, sequence, or function that returns one.
        format: One of :data:`FORMATS`, or ``auto`` to detect it.
        schema: Types fixed by the user; a table converts its columns to them.
        table: How a table is read; raises for sources that are not tables.
        skip_errors: Keep a bad row or file as an item, which raises its error when it is loaded;
            otherwise the source cannot be opened.

    Raises:
        OptionError: The format is unknown, ``module:callable`` does not exist, or an option belongs
            to another format.
        SourceError: The source is missing, empty, or not of this format.
    """
    if format not in ("auto", *FORMATS):
        raise OptionError(f"--format {format}: unknown format", hint=f"one of {', '.join(FORMATS)}")
    if isinstance(data, Opened):
        return data.source
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    options = _OpenOptions(schema or {}, table or TableOptions(), skip_errors, format == "auto")
    if not isinstance(data, str):
        if format not in ("auto", python_source.KIND):
            raise OptionError(
                f"format {format} reads a path, but the source is a {type(data).__name__}"
            )
        return _open_object(data, options)
    if "\0" in data:
        raise OptionError(f"the source {data!r} has a NUL, which file names cannot contain")
    if format == "auto" and options.table.encoding is not None:
        format = format_of_file(data) or format  # by name: the content is not decoded yet
    kind = detect_format(data) if format == "auto" else format
    if kind != python_source.KIND:
        options.table.check_format(kind)
    return _OPENERS[kind](data, options)


# -- folders ---------------------------------------------------------------------------------------


def _image_folder(data: str, options: _OpenOptions) -> Source:
    _must_be_folder(data, "an image-folder is")
    found = image_folder_source.ImageFolder(data, skip_errors=options.skip_errors)
    if options.is_auto:
        found.check_no_masks()
    return found


def _audio(data: str, options: _OpenOptions) -> Source:
    _must_be_folder(data, "audio is")
    return audio_source.AudioFolder(data, skip_errors=options.skip_errors)


def _must_be_folder(data: str, what: str) -> None:
    must_exist(data)
    if not inputs_for(data).is_directory(data):
        raise SourceError(
            f"this is a file; {what} a folder with a folder for each class", path=data
        )


def _image_mask(data: str, options: _OpenOptions) -> Source:
    return image_mask_source.ImageMask(data, skip_errors=options.skip_errors)


def _coco(data: str, options: _OpenOptions) -> Source:
    must_exist(data)
    return coco_source.CocoDetection(data)


def _voc(data: str, options: _OpenOptions) -> Source:
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
    """A format whose source is one or more files.

    Attributes:
        files_in: Returns the files of this format in a folder.
        endings_text: Their endings in words, for errors.
        open: Opens the files.
    """

    files_in: Callable[[str], list[Entry]]
    endings_text: str
    open: Callable[[Sequence[str], _OpenOptions], Source]


def _with_endings(endings: Sequence[str]) -> Callable[[str], list[Entry]]:
    return lambda directory: named_in(directory, endings, SIDECAR_ENDINGS)


def _csv(paths: Sequence[str], options: _OpenOptions) -> Source:
    return csv_source.CsvTable(
        paths, options.columns, options.table, skip_errors=options.skip_errors
    )


def _jsonl(paths: Sequence[str], options: _OpenOptions) -> Source:
    return jsonl_source.JsonLines(
        paths, options.columns, options.table, skip_errors=options.skip_errors
    )


def _parquet(paths: Sequence[str], options: _OpenOptions) -> Source:
    return parquet_source.ParquetTable(paths, options.columns, table=options.table)


def _numpy(paths: Sequence[str], options: _OpenOptions) -> Source:
    if len(paths) > 1 and any(path.lower().endswith(".npz") for path in paths):
        raise SourceError(
            f"there are {len(paths)} files, and not all are .npy",
            path=paths[0],
            hint="give one .npz file, or a folder of .npy files of equal length",
        )
    return numpy_source.NumpyRows(paths, options.columns)


def _webdataset(paths: Sequence[str], options: _OpenOptions) -> Source:
    if "-" in paths:
        raise SourceError("tar files can not be read from standard input")
    return webdataset_source.WebDataset(paths)


_FILE_FORMATS: Final[Mapping[str, _FileFormat]] = {
    csv_source.KIND: _FileFormat(_with_endings(CSV_ENDINGS), ".csv or .tsv", _csv),
    jsonl_source.KIND: _FileFormat(json_lines_in, ".jsonl, .ndjson or .json", _jsonl),
    parquet_source.KIND: _FileFormat(
        _with_endings(parquet_source.ENDINGS), ".parquet, .arrow or .feather", _parquet
    ),
    numpy_source.KIND: _FileFormat(_with_endings(numpy_source.ENDINGS), ".npy or .npz", _numpy),
    webdataset_source.KIND: _FileFormat(
        _with_endings(webdataset_source.ENDINGS), ".tar, .tar.gz or .tgz", _webdataset
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
    """Open several files as one source; only for formats of files."""
    options = _OpenOptions(schema or {}, table or TableOptions(), skip_errors)
    options.table.check_format(format)
    return _FILE_FORMATS[format].open(paths, options)


def _open_listed(format: str, data: str, options: _OpenOptions) -> Source:
    """Open the files of a path, a pattern or a folder, in order.

    Raises:
        OptionError: There is no such file.
        SourceError: The folder has no file of this format, or one that is not a regular file.
    """
    if data == "-":
        return _FILE_FORMATS[format].open([data], options)
    found = files_meant(data)
    if found is None:
        known = _FILE_FORMATS[format]
        found = all_files(known.files_in(data))
        if not found:
            raise SourceError(f"this folder has no {known.endings_text} file", path=data)
    return _FILE_FORMATS[format].open(found, options)


# -- other formats ---------------------------------------------------------------------------------


def _tfrecord(data: str, options: _OpenOptions) -> Source:
    if data == "-":
        raise SourceError("TFRecord files can not be read from standard input")
    return tfrecord_source.TFRecordFiles(data)


def _python(data: str, options: _OpenOptions) -> Source:
    return _open_object(import_reference(data, "SOURCE"), options, name=data)


def _open_object(data: Any, options: _OpenOptions, name: str | None = None) -> Source:
    """Open an object, or what a function returns; a table of ``datasets`` is read as a table."""
    source = python_source.PythonSource(data, name=name)
    if huggingface_source.is_table(source.given):
        options.table.check_format(huggingface_source.KIND)
        return huggingface_source.HuggingFaceTable(source.given, options.columns, options.table)
    options.table.check_format(python_source.KIND)
    return source


def _huggingface(data: str, options: _OpenOptions) -> Source:
    must_exist(data)
    return huggingface_source.SavedDataset(data, options.columns, options.table)


_OPENERS: Final[Mapping[str, _Opener]] = {
    image_folder_source.KIND: _image_folder,
    image_mask_source.KIND: _image_mask,
    coco_source.KIND: _coco,
    voc_source.KIND: _voc,
    **{kind: partial(_open_listed, kind) for kind in _FILE_FORMATS},
    tfrecord_source.KIND: _tfrecord,
    audio_source.KIND: _audio,
    python_source.KIND: _python,
    huggingface_source.KIND: _huggingface,
}

FORMATS: Final = tuple(_OPENERS)
"""The values of ``--format``, beside ``auto``."""
