"""Telling the format of a source by looking at what is there."""

from __future__ import annotations

import glob
import json
import os
from typing import Final

from shardwriter.dataset.naming import TFRECORD_PARTS, is_url, parse_shard_file
from shardwriter.errors import CorruptFile, ManifestError, OptionError, SourceError
from shardwriter.formats.compression import OpenStream
from shardwriter.formats.images import image_format
from shardwriter.formats.tfrecord import frame_header
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
from shardwriter.sources.arrow_file import ARROW_FILE, ARROW_STREAM, PARQUET
from shardwriter.sources.callables import is_reference
from shardwriter.sources.coco_files import coco_files, looks_like_coco
from shardwriter.sources.image_sides import parse_spec
from shardwriter.sources.input_files import braced, expand_braces, named_in, not_there
from shardwriter.sources.locate import find_shard_sets
from shardwriter.sources.numpy_file import MAGIC as NUMPY_MAGIC
from shardwriter.sources.positions import BOM
from shardwriter.sources.tar_members import PACKED
from shardwriter.storage.inputs import Entry, inputs_for, open_stream

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
