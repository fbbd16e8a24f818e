"""Opening the source that SOURCE means: the format is said by ``--format``, or found by looking."""

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

# Telling the format of a source by looking at what is there.

TABLE_ENDINGS: Final = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
JSON_LINES_ENDINGS: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
JSON_ENDINGS: Final = (".json", ".json.gz")

_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_LOOK_BYTES: Final = 1 << 16
_MANIFEST_ENDING: Final = ".manifest.json"
OURS: Final = (_MANIFEST_ENDING, ".errors.jsonl")
"""How JSON is called that lies beside shards."""


def look(data: str) -> str:
    """Tell the format from what is there.

    Raises:
        OptionError: Nothing is there.
        SourceError: It is nothing that is known, or of several formats.
    """
    if data == "-":
        return csv_source.KIND
    inputs = inputs_for(data)
    if not inputs.exists(data):
        return _look_for(data)
    if inputs.is_directory(data):
        if huggingface_source.is_saved(data):
            return huggingface_source.KIND
        # Before images: annotated ones lie in folders that are no classes.
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
        return _look_into_folder(data)
    if voc_source.is_image_set(data):
        return voc_source.KIND
    return _look_into(data)


def format_of_file(path: str) -> str | None:
    """Tell by its name what a file would be opened as; None where no name says so."""
    name = os.path.basename(path).lower()
    if name.startswith(".") or name.endswith((*OURS, ".index", ".idx")):
        return None
    if name.endswith(".npz"):  # an .npy file is one feature of several
        return numpy_source.KIND
    for kind, endings in (
        (csv_source.KIND, TABLE_ENDINGS),
        (jsonl_source.KIND, JSON_LINES_ENDINGS),
        (parquet_source.KIND, parquet_source.ENDINGS),
        (webdataset_source.KIND, webdataset_source.ENDINGS),
    ):
        if name.endswith(tuple(endings)):
            return kind
    return tfrecord_source.KIND if _is_record_name(name) else None


def json_lines_in(directory: str) -> list[Entry]:
    """Return the files whose names say so; where there are none, those that may be."""
    named = named_in(directory, JSON_LINES_ENDINGS, OURS)
    return named or named_in(directory, JSON_ENDINGS, OURS)


def _look_for(data: str) -> str:
    """Tell the format of what is no path: a pattern, a list, a dataset's name, a reference."""
    inputs = inputs_for(data)
    if not inputs.is_file(next(expand_braces(data))) and parse_spec(data):
        return image_mask_source.KIND
    if is_reference(data):
        return python_source.KIND
    listed = braced(data)
    if listed is not None or glob.has_magic(data):
        if data.lower().endswith(TABLE_ENDINGS):
            return csv_source.KIND
        if _is_json_lines_name(data):
            return jsonl_source.KIND
        if webdataset_source.is_tar_name(data):
            return webdataset_source.KIND
        found = listed or list(filter(inputs.is_file, inputs.glob(data)))
        if found:
            return _look_into(next(filter(_is_record_name, found), found[0]))
    if _is_dataset(data):
        return tfrecord_source.KIND
    raise not_there(data)


def _look_into_folder(path: str) -> str:
    kinds = {
        csv_source.KIND: bool(named_in(path, TABLE_ENDINGS)),
        jsonl_source.KIND: any(_is_json_lines_name(entry.name) for entry in json_lines_in(path)),
        parquet_source.KIND: bool(named_in(path, parquet_source.ENDINGS)),
        numpy_source.KIND: bool(named_in(path, numpy_source.ENDINGS)),
        tfrecord_source.KIND: _has_records(path),
        webdataset_source.KIND: bool(named_in(path, webdataset_source.ENDINGS)),
    }
    found = [kind for kind, is_of_it in kinds.items() if is_of_it]
    if len(found) > 1:
        raise SourceError(
            f"this folder holds files of several formats: {', '.join(found)}",
            path=path,
            hint=f"say which are meant: --format {' or '.join(found)}",
        )
    if found:
        return found[0]
    other_json = json_lines_in(path)
    if other_json:
        return _look_into(other_json[0].path)
    other_audio = audio_source.others_in(path)
    if other_audio:
        raise SourceError(
            f"of audio only WAV files are read, and this folder has {other_audio}",
            path=path,
            hint="convert them, as with `ffmpeg -i 1.flac 1.wav`, or give their bytes from Python: "
            "SOURCE may be module:callable",
        )
    raise SourceError(
        "nothing in this folder is known",
        path=path,
        hint="looked for images and .wav files, in class folders or directly, for images with "
        "masks or annotations, and for .csv, .tsv, .jsonl, .ndjson, .parquet, .arrow, .feather, "
        ".npy, .npz, .tar and TFRecord files",
    )


def _look_into(path: str) -> str:
    if not is_url(path) and not os.path.isfile(path):
        return csv_source.KIND  # a pipe: it can be read once, so it is not looked into
    if path.endswith(_MANIFEST_ENDING):
        return tfrecord_source.KIND
    try:
        with open_stream(path) as stream:
            head = _head(stream, path)
    except CorruptFile as error:
        raise SourceError(f"can not be unpacked: {error.message}", path=path) from None
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
            f"this is packed with {packed[0]}", path=path, hint="plain files are read, and gzip"
        )
    # Every image has a NUL near its beginning; a table may begin with "BMI,age".
    if b"\0" in head and image_format(head[:16]):
        raise SourceError(
            "this is one image", path=path, hint="give the folder that holds the class folders"
        )
    if b"\0" in head and _is_record_name(path):
        return tfrecord_source.KIND  # a damaged one; reading it says how
    if looks_like_coco(head) and not _is_json_lines_name(path):
        return coco_source.KIND
    if _is_json_lines(head, path):
        return jsonl_source.KIND
    first_line = head.partition(b"\n")[0]
    text_like = b"\0" not in head and not head.lstrip().startswith((b"{", b"[", b"<"))
    is_table_name = path.lower().endswith(TABLE_ENDINGS)
    if text_like and (is_table_name or any(c in first_line for c in b",\t;|")):
        return csv_source.KIND
    if head.startswith(_UTF16_MARKS):
        raise SourceError(
            "this is text in UTF-16, and not in UTF-8",
            path=path,
            hint="say it: --encoding utf-16, with --format csv or --format jsonl",
        )
    raise SourceError(
        "the format is not known by looking at it", path=path, hint="say it with --format"
    )


def _head(stream: OpenStream, path: str) -> bytes:
    try:
        return stream.read(_LOOK_BYTES)
    except CorruptFile:
        if stream.compression != "zlib":
            raise
    # Text such as "x^2" begins like a zlib stream.
    with inputs_for(path).open(path) as file:
        return file.read(_LOOK_BYTES)


def _is_json_lines(head: bytes, path: str) -> bool:
    """Tell whether a file has a JSON object a line.

    Raises:
        SourceError: It is JSON, and another shape of it.
    """
    if b"\0" in head:
        return False
    if _is_json_lines_name(path):
        return True
    text = head.removeprefix(BOM).lstrip()
    line, line_end, _ = text.partition(b"\n")
    is_whole = bool(line_end) or len(head) < _LOOK_BYTES
    try:
        shape = type(json.loads(line)) if is_whole else None
    except (ValueError, RecursionError):
        shape = None
    if text.startswith(b"{") and (shape is dict or not is_whole):
        return True
    if path.lower().endswith(JSON_ENDINGS) and text.startswith((b"{", b"[")):
        program = "'.[]'" if text.startswith(b"[") else "."
        raise SourceError(
            "this is JSON, and not one object a line",
            path=path,
            hint=f"jq -c {program} {path} > rows.jsonl makes such lines",
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
