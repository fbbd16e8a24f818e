"""Finding the source that SOURCE means: by ``--format``, or by looking."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwriter.callables import import_reference, is_reference
from shardwriter.dataset.naming import TFRECORD_PARTS, is_url, parse_shard_file
from shardwriter.errors import CorruptFile, ManifestError, OptionError, SourceError
from shardwriter.features.feature_types import FeatureType
from shardwriter.formats.compression import OpenStream
from shardwriter.formats.tfrecord import frame_header
from shardwriter.images.headers import image_format
from shardwriter.shards.locate import find_shard_sets
from shardwriter.sources import Source
from shardwriter.sources import audio as audio_source
from shardwriter.sources import coco as coco_source
from shardwriter.sources import csv as csv_source
from shardwriter.sources import image_folder as image_folder_source
from shardwriter.sources import image_mask as image_mask_source
from shardwriter.sources import jsonl as jsonl_source
from shardwriter.sources import numpy as numpy_source
from shardwriter.sources import parquet as parquet_source
from shardwriter.sources import python as python_source
from shardwriter.sources import tfrecord as tfrecord_source
from shardwriter.sources import voc as voc_source
from shardwriter.sources import webdataset as webdataset_source
from shardwriter.sources.arrow_file import ARROW_FILE, ARROW_STREAM, PARQUET
from shardwriter.sources.coco_files import coco_files, looks_like_coco
from shardwriter.sources.image_pairs import parse_spec
from shardwriter.sources.numpy_file import MAGIC as NUMPY_MAGIC
from shardwriter.sources.positions import BOM
from shardwriter.storage.inputs import inputs_for, open_stream

FORMATS: Final = (
    image_folder_source.KIND,
    image_mask_source.KIND,
    coco_source.KIND,
    voc_source.KIND,
    csv_source.KIND,
    jsonl_source.KIND,
    parquet_source.KIND,
    numpy_source.KIND,
    tfrecord_source.KIND,
    webdataset_source.KIND,
    audio_source.KIND,
    python_source.KIND,
)
"""What ``--format`` knows, beside ``auto``."""

_LOOK_BYTES: Final = 1 << 16
_TABLE_ENDINGS: Final = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_JSON_LINES_ENDINGS: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_JSON_ENDINGS: Final = (".json", ".json.gz")
_MANIFEST_ENDING: Final = ".manifest.json"
_OURS: Final = (_MANIFEST_ENDING, ".errors.jsonl")  # JSON that lies beside shards


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
    if format in (image_folder_source.KIND, audio_source.KIND):
        _must_exist(data)
        is_audio = format == audio_source.KIND
        if not inputs_for(data).is_directory(data):
            what = "audio is" if is_audio else "an image-folder is"
            raise SourceError(
                f"this is a file; {what} a folder with a folder for each class", path=data
            )
        if is_audio:
            return audio_source.AudioFolder(data)
        return image_folder_source.ImageFolder(data)
    if format == image_mask_source.KIND:
        return image_mask_source.ImageMask(data)
    if format in (coco_source.KIND, voc_source.KIND):
        _must_exist(data)
        is_coco = format == coco_source.KIND
        return coco_source.CocoDetection(data) if is_coco else voc_source.VocDetection(data)
    if format == tfrecord_source.KIND:
        if data == "-":
            raise SourceError("records are read from files, and not from standard input")
        return tfrecord_source.TFRecordFiles(data)
    if format == webdataset_source.KIND:
        if data == "-":
            raise SourceError("tar files are read by name, and not from standard input")
        return webdataset_source.WebDataset(_files(data, _tars_in, ".tar, .tar.gz or .tgz"))
    if format == jsonl_source.KIND:
        return jsonl_source.JsonLines(
            _files(data, _json_lines_in, ".jsonl, .ndjson or .json"), schema
        )
    if format == parquet_source.KIND:
        return parquet_source.ParquetTable(
            _files(data, _parquet_in, ".parquet, .arrow or .feather"), schema
        )
    if format == numpy_source.KIND:
        return numpy_source.NumpyRows(_numpy_files(data), schema)
    return csv_source.CsvTable(_files(data, _tables_in, ".csv or .tsv"), schema)


def _look(data: str) -> str:
    """Tell the format from what is there.

    Raises:
        SourceError: Nothing is there, or nothing that is known.
    """
    if data == "-":
        return csv_source.KIND
    inputs = inputs_for(data)
    if not inputs.exists(data):
        if parse_spec(data):
            return image_mask_source.KIND
        if is_reference(data):
            return python_source.KIND
        if glob.has_magic(data):
            if _is_table_name(data):
                return csv_source.KIND
            if _is_json_lines_name(data):
                return jsonl_source.KIND
            if webdataset_source.is_tar_name(data):
                return webdataset_source.KIND
            found = list(filter(inputs.is_file, inputs.glob(data)))
            if found:
                return _look_into(next(filter(_is_record_name, found), found[0]))
        if _is_dataset(data):
            return tfrecord_source.KIND
        _must_exist(data)
    if inputs.is_directory(data):
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


def _look_into_folder(path: str) -> str:
    kinds = {
        csv_source.KIND: bool(_tables_in(path)),
        jsonl_source.KIND: any(map(_is_json_lines_name, _json_lines_in(path))),
        parquet_source.KIND: bool(_parquet_in(path)),
        numpy_source.KIND: bool(_numpy_in(path)),
        tfrecord_source.KIND: _has_records(path),
        webdataset_source.KIND: bool(_tars_in(path)),
    }
    found = [kind for kind, is_there in kinds.items() if is_there]
    if len(found) > 1:
        raise SourceError(
            f"this folder holds files of several formats: {', '.join(found)}",
            path=path,
            hint=f"say which are meant: --format {' or '.join(found)}",
        )
    if found:
        return found[0]
    other_json = _json_lines_in(path)
    if other_json:
        return _look_into(other_json[0])
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
    if path.lower().endswith(_JSON_ENDINGS) and text.startswith((b"{", b"[")):
        program = "'.[]'" if text.startswith(b"[") else "."
        raise SourceError(
            "this is JSON, and not one object a line",
            path=path,
            hint=f"jq -c {program} {path} > rows.jsonl makes such lines",
        )
    return False


def _is_json_lines_name(path: str) -> bool:
    return path.lower().endswith(_JSON_LINES_ENDINGS)


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


def _is_table_name(path: str) -> bool:
    return path.lower().endswith(_TABLE_ENDINGS)


def _files(data: str, files_in: Callable[[str], list[str]], endings: str) -> list[str]:
    """Return the files that a person means, in order.

    Raises:
        SourceError: There are none.
    """
    if data == "-":
        return [data]
    inputs = inputs_for(data)
    if inputs.is_directory(data):
        found = files_in(data)
        if not found:
            raise SourceError(f"no {endings} file is in this folder", path=data)
        return found
    if not inputs.exists(data) and glob.has_magic(data):
        found = inputs.glob(data)
        if not found:
            raise OptionError("no file matches this pattern", path=data)
        return found
    _must_exist(data)
    return [data]


def _tables_in(directory: str) -> list[str]:
    return _named_in(directory, _TABLE_ENDINGS)


def _parquet_in(directory: str) -> list[str]:
    return _named_in(directory, parquet_source.ENDINGS)


def _numpy_in(directory: str) -> list[str]:
    return _named_in(directory, numpy_source.ENDINGS)


def _numpy_files(data: str) -> list[str]:
    """Return one ``.npz`` file, or ``.npy`` files that are a feature each.

    Raises:
        SourceError: There are several files, and not all of them are ``.npy``.
    """
    found = _files(data, _numpy_in, ".npy or .npz")
    if len(found) > 1 and any(path.lower().endswith(".npz") for path in found):
        raise SourceError(
            f"there are {len(found)} files, and not all are .npy",
            path=data,
            hint="give one .npz file, or a folder of .npy files of one length",
        )
    return found


def _json_lines_in(directory: str) -> list[str]:
    """Return the files whose names say so; where there are none, those that may be."""
    return _named_in(directory, _JSON_LINES_ENDINGS) or _named_in(directory, _JSON_ENDINGS)


def _tars_in(directory: str) -> list[str]:
    return _named_in(directory, webdataset_source.ENDINGS)


def _named_in(directory: str, endings: tuple[str, ...]) -> list[str]:
    return sorted(
        entry.path
        for entry in inputs_for(directory).listing(directory)
        if entry.name.lower().endswith(endings)
        and not entry.name.startswith(".")
        and not entry.name.endswith(_OURS)
    )


def _must_exist(path: str) -> None:
    if not inputs_for(path).exists(path):
        raise OptionError(
            "there is no such file or folder",
            path=path,
            hint="SOURCE is a path, a glob of files, a dataset's name, or module:callable",
        )
