"""Fuzz targets: each reader of bytes that somebody else wrote, as a function of these bytes.

A target returns, or raises one of the errors that its reader documents. Any other exception is a
finding, and so is memory over :data:`MAX_BYTES` or a changed file outside the target's folder.

    python scripts/fuzz csv --seconds 60

``test_fuzz_targets.py`` runs each target with its seeds, 40 changed seeds and 10 random inputs;
``SHARDWRITER_FUZZ_INPUTS`` sets another number than 40.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import io
import json
import os
import resource
import shutil
import struct
import tarfile
import tempfile
import wave
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np

import shardwriter as sw
from shardwriter.dataset.index import Index
from shardwriter.dataset.manifest import parse_manifest
from shardwriter.dataset.naming import parse_output, parse_shard_file, pattern_from_template
from shardwriter.errors import ShardwriterError
from shardwriter.formats.crc32c import crc32c, masked_crc32c
from shardwriter.formats.media import encode_png, read_header, read_wav_header
from shardwriter.formats.tfrecord import frame
from shardwriter.formats.tfrecord_reader import read_frames
from shardwriter.inspect.baseline import compare, load_baseline
from shardwriter.schema.feature_types import parse_schema_option
from shardwriter.sources.numpy import read_indices
from shardwriter.storage.local import LocalStorage

MAX_BYTES: Final = 1 << 29
"""How much memory one input may take: each is small, and so is what a target makes of it."""

Files = dict[str, bytes]


class Target(NamedTuple):
    """A reader under test.

    Attributes:
        run: Reads the bytes.
        seeds: Returns valid inputs, to be changed.
        errors: What it may raise.
    """

    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    errors: tuple[type[Exception], ...]


TARGETS: Final[dict[str, Target]] = {}


def check(name: str, data: bytes) -> None:
    """Run a target; raises what is a finding."""
    target = TARGETS[name]
    victim = _root() / "victim"
    shutil.rmtree(victim, ignore_errors=True)
    victim.mkdir()
    (victim / "thesis").write_bytes(b"mine")
    with _bounded():
        try:
            target.run(data)
        except target.errors as error:
            assert str(error), "an error without a message"
    assert _files_in(victim) == {"thesis": b"mine"}, "a file outside of the folder has changed"


def _target(
    name: str,
    seeds: Callable[[], list[bytes]],
    *,
    errors: tuple[type[Exception], ...] = (ShardwriterError,),
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    def enter(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        TARGETS[name] = Target(run, cache(seeds), errors)
        return run

    return enter


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Make whatever asks for more than ``MAX_BYTES`` fail."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_BYTES, hard))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < MAX_BYTES // 2, f"{grown / 1024:.0f} MiB of memory for one input"


# -- folders ---------------------------------------------------------------------------------------


@cache
def _root() -> Path:
    """A folder in memory, where there is one: a target makes some files for each input."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _folder(files: Mapping[str, bytes]) -> Path:
    """Return a folder with these files and nothing else.

    From there ``../../victim/thesis`` is a file that no target may touch.
    """
    folder = _root() / "work" / "in"
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def _files_in(folder: Path) -> Files:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _write_from(path: Path, **options: Any) -> None:
    """Write a source as a dataset; what was written without an error has to be whole."""
    out = path.parent.parent / "out"
    sw.write(str(path), out / "t@2", overwrite=True, notify=_ignore, **options)
    assert sw.stats(out / "t").verdict


def _ignore(_line: str) -> None:
    """Take a note."""


# -- frames, records -------------------------------------------------------------------------------

EXAMPLES: Final[list[dict[str, Any]]] = [
    {"label": n % 3, "name": f"item {n}", "x": np.arange(n, dtype=np.float32)} for n in range(7)
]


@cache
def _payloads() -> list[bytes]:
    return [sw.encode_example(features) for features in EXAMPLES]


def _frames() -> bytes:
    return b"".join(map(frame, _payloads()))


def _file_seeds() -> list[bytes]:
    whole = [_frames(), gzip.compress(_frames()), zlib.compress(_frames())]
    for compression in ("gzip", "zlib"):
        out = _folder({}) / "t@1"
        sw.write(_payloads(), out, compression=compression)
        whole.append(next(out.parent.glob("t.*-00000-of-*")).read_bytes())
    return whole


@_target("tfrecord", _file_seeds)
def _tfrecord(data: bytes) -> None:
    path = _folder({"a.tfrecord": data}) / "a.tfrecord"
    sw.stats(path)
    list(sw.read_records(path))


@_target("tfrecord-lengths", lambda: [struct.pack("<Q", 40) + _frames(), bytes(40)])
def _tfrecord_lengths(data: bytes) -> None:
    """A frame whose length can be anything and has the right CRC."""
    length = data[:8].ljust(8, b"\0")
    stream = length + struct.pack("<I", masked_crc32c(length)) + data[8:]
    for check in ("none", "length", "crc"):
        with contextlib.suppress(ShardwriterError):
            list(read_frames(io.BytesIO(stream), check=check))  # type: ignore[arg-type]
    sw.stats(_folder({"a.tfrecord": _frames() + stream}) / "a.tfrecord")


def _wire_seeds() -> list[bytes]:
    odd = {"b": [b"", b"\xff"], "f": [0.5, -1.0], "i": [-1, 2**63 - 1], "n": sw.UNSET}
    return [*_payloads(), sw.encode_example(odd)]


@_target("example", _wire_seeds)
def _example(data: bytes) -> None:
    """One by one and in columns an Example is the same, and so is what is made of it again."""
    try:
        found = sw.decode_example(data)
    except ShardwriterError:
        found = None
    whole = _payloads()[1]
    try:
        columns = sw.decode_columns([whole, data, whole])
    except ShardwriterError:
        assert found is None, "columns refuse what is an Example by itself"
        raise
    assert found is not None, "columns take what is no Example by itself"
    for name, values in found.items():
        row = columns[name][1]
        assert row is sw.UNSET if values is None else repr(list(row)) == repr(list(values))


def _sequence_seeds() -> list[bytes]:
    made = sw.SequenceExample({"id": 3, "name": "a"}, {"x": [[1.0], [2.0, 3.0]], "t": [[1], []]})
    return [sw.encode_sequence_example(made), *_payloads()[:1]]


@_target("sequence-example", _sequence_seeds)
def _sequence_example(data: bytes) -> None:
    sw.decode_sequence_example(data)


@_target("record", lambda: [*_wire_seeds(), *_sequence_seeds()])
def _record(data: bytes) -> None:
    """A record in a file, and one of a dataset whose manifest says what it should be."""
    folder = _folder({"a.tfrecord": frame(data) * 3})
    sw.stats(folder / "a.tfrecord", features=True, label="label")
    _each(
        lambda: sw.read_schema(folder / "a.tfrecord"), lambda: list(sw.open(folder / "a.tfrecord"))
    )
    sw.write([_payloads()[2], data, _payloads()[3]], folder / "t@1", schema=_SCHEMA)
    list(sw.open(folder / "t"))


_SCHEMA: Final = "label=int64,name=string,x=float32[null]"


def _each(*steps: Callable[[], object]) -> None:
    """Do things of which each may find out that the data is bad."""
    for step in steps:
        with contextlib.suppress(ShardwriterError):
            step()


# -- what lies beside the data ---------------------------------------------------------------------


@cache
def _dataset(compression: str = "none") -> Files:
    folder = _folder({})
    sw.write(EXAMPLES, folder / "t@2", compression=compression, label="label")  # type: ignore[arg-type]
    return _files_in(folder)


def _all_commands(folder: Path, name: str = "t") -> None:
    """Do all that can be done with a dataset."""
    path = folder / name
    _each(
        lambda: list(sw.open(path)),
        lambda: sw.open(path)[3],
        lambda: sw.stats(path, features=True),
        lambda: sw.verify(path),
        lambda: sw.read_schema(path),
        lambda: sw.reshard(path, folder.parent / "out" / "r@3"),
        lambda: sw.repair(path, folder.parent / "out" / "s"),
        lambda: sw.append(EXAMPLES, path),
        lambda: sw.write(EXAMPLES, folder / f"{name}@2", overwrite=True, label="label"),
    )


def _beside(name: str, files: Callable[[], Files], file: str, *more: bytes) -> None:
    """Enter a target: one file of a dataset is replaced, and then everything is done with it."""

    def run(data: bytes) -> None:
        _all_commands(_folder({**files(), file: data}))

    _target(name, lambda: [*([files()[file]] if file in files() else []), *more])(run)


_beside("manifest", _dataset, "t.manifest.json")
_beside("manifest-gzip", lambda: _dataset("gzip"), "t.manifest.json")
_beside("index", _dataset, "t.index")
_beside("index-zlib", lambda: _dataset("zlib"), "t.index")
_beside("shard", _dataset, "t.tfrecord-00000-of-00002")
_beside("shard-zlib", lambda: _dataset("zlib"), "t.tfrecord-00000-of-00002")


def _without_manifest(compression: str = "none") -> Files:
    files = dict(_dataset(compression))
    del files["t.manifest.json"]
    return files


_beside("index-alone", _without_manifest, "t.index")
_beside("index-alone-gzip", lambda: _without_manifest("gzip"), "t.index")
_beside("idx", _without_manifest, "t.tfrecord-00001-of-00002.idx", b"0 60\n60 60\n120 64\n")


@_target("manifest-text", lambda: [_dataset()["t.manifest.json"]])
def _manifest_text(data: bytes) -> None:
    """A manifest that is taken is the same when it is written and read again."""
    manifest = parse_manifest(data)
    assert parse_manifest(manifest.dumps()) == manifest


@_target("index-file", lambda: [_dataset(kind)["t.index"] for kind in ("none", "gzip", "zlib")])
def _index_file(data: bytes) -> None:
    index = Index(_folder({"t.index": data}) / "t.index")
    for shard in range(min(4, len(index.counts))):
        _each(partial(index.ends, shard), partial(index.records, shard))
        for position in (0, 1, 10**6):
            _each(partial(index.locate, shard, position))


@cache
def _tfds_folder() -> Files:
    folder = _folder({})
    sw.write(EXAMPLES, folder / "data" / "train@2", tfds="digits:1.0.0")
    return _files_in(folder)


def _tfds(name: str) -> None:
    prefix = "data/digits/1.0.0/"

    def run(data: bytes) -> None:
        folder = _folder({**_tfds_folder(), prefix + name: data})
        _each(
            lambda: sw.stats(folder / prefix),
            lambda: sw.verify(folder / prefix),
            lambda: sw.write(EXAMPLES, folder / "data" / "test@1", tfds="digits:1.0.0"),
        )

    _target(f"tfds-{name.partition('.')[0]}", lambda: [_tfds_folder()[prefix + name]])(run)


_tfds("dataset_info.json")
_tfds("features.json")


@_target("baseline", lambda: [_report()])
def _baseline(data: bytes) -> None:
    compare(json.loads(_report()), load_baseline(_folder({"b.json": data}) / "b.json"))


@cache
def _report() -> bytes:
    return json.dumps(sw.stats(_folder(_dataset()) / "t", features=True).to_json()).encode()


def _failing(features: dict[str, Any]) -> dict[str, Any]:
    if features["name"] == "item 4":
        raise ValueError("a map that fails")
    return features


@cache
def _with_errors() -> Files:
    folder = _folder({})
    sw.write(EXAMPLES, folder / "t@2", map=_failing, on_error="skip")
    return _files_in(folder)


@_target("errors", lambda: [_with_errors()["t.errors.jsonl"]])
def _errors(data: bytes) -> None:
    folder = _folder({**_with_errors(), "t.errors.jsonl": data})
    again = sw.RunOptions(retry_errors=True, resume=True, on_error="skip")
    sw.write(EXAMPLES, folder / "t@2", map=_failing, run=again)


# -- the run directory -----------------------------------------------------------------------------


class _Stop(BaseException):
    """The end of a process."""


def _stopping(features: dict[str, Any]) -> dict[str, Any]:
    if features["name"] == "item 6" and os.environ.get("SHARDWRITER_FUZZ_STOP"):
        raise _Stop
    return _failing(features)


_RUN: Final = sw.RunOptions(on_error="skip", mark_s=0, checkpoint_bytes=150)


@cache
def _stopped(attempts: int = 1) -> Files:
    """What a write has left that was stopped behind an item that failed."""
    folder = _folder({})
    with mock.patch.dict(os.environ, SHARDWRITER_FUZZ_STOP="1"):
        for _ in range(attempts):
            with contextlib.suppress(_Stop):
                sw.write(EXAMPLES, folder / "t@2", map=_stopping, resume=True, run=_RUN)
    return _files_in(folder)


@cache
def _committed() -> Files:
    """What a write has left that was stopped between its commit and the end of publication."""
    folder = _folder({})
    publish = LocalStorage.publish

    def stop(self: LocalStorage, source: str, target: str) -> None:
        publish(self, source, target)
        if target.endswith("commit.json"):
            raise _Stop

    with mock.patch.object(LocalStorage, "publish", stop), contextlib.suppress(_Stop):
        sw.write(EXAMPLES, folder / "t@2")
    return _files_in(folder)


def _run_directory(name: str, files: Callable[[], Files], file: str, *more: bytes) -> None:
    """Enter a target: one file of a run directory is replaced, and then the run is gone on with.

    Lines with checksums are given right ones: the seeds have none.
    """

    def path() -> str:
        found = [known for known in files() if known.startswith(f".t.partial/{file}")]
        return min(found, default=f".t.partial/{file}", key=len)

    def is_signed() -> bool:
        return file in ("base", "mark-", "checkpoint-", "journal-")

    def seeds() -> list[bytes]:
        known = files().get(path(), b"")
        lines = known.splitlines(keepends=True)
        return [b"".join(line[9:] for line in lines) if is_signed() else known, *more]

    def run(data: bytes) -> None:
        if is_signed():
            lines = data.rstrip(b"\n").split(b"\n")
            data = b"".join(b"%08x %s\n" % (crc32c(line), line) for line in lines)
        replaced = {**files(), path(): data}
        for resume in (False, True):
            folder = _folder(replaced)
            options = replace(_RUN, resume=resume)
            _each(partial(sw.write, EXAMPLES, folder / "t@2", map=_stopping, run=options))
        folder = _folder(replaced)
        _each(lambda: sw.write(EXAMPLES, folder / "t@2", overwrite=True))
        folder = _folder(replaced)
        _each(lambda: sw.append(EXAMPLES, folder / "t"), lambda: sw.stats(folder))

    _target(name, seeds)(run)


_JOURNAL: Final = (
    b'{"skip":4,"reason":"dropped"}\n'
    b'{"types":{"x":{"kind":"float","dtype":"float32","shape":[null],"present":1,"unset":0}}}\n'
)
_FILES: Final = b'{"0":["../../victim/thesis","a"],"1":["t.tfrecord-00001-of-00002","b"]}'
_run_directory("run-run", _stopped, "run.json")
_run_directory("run-base", lambda: _stopped(2), "base")
_run_directory("run-mark", _stopped, "mark-")
_run_directory("run-checkpoint", _stopped, "checkpoint-")
_run_directory("run-journal", _stopped, "journal-", _JOURNAL)
_run_directory("run-files", _stopped, "files.json", _FILES)
_run_directory("run-index", _stopped, "index-00000")
_run_directory("run-shard", _stopped, "shard-00000")
_run_directory("run-commit", _committed, "commit.json")
_run_directory("run-commit-files", _committed, "files.json", _FILES)
_run_directory("run-commit-index", _committed, "index")
_run_directory("run-commit-run", _committed, "run.json")


# -- sources ---------------------------------------------------------------------------------------


def _source(
    name: str,
    file: str,
    seeds: Callable[[], list[bytes]],
    files: Files | None = None,
    *,
    format: str,
) -> None:
    """Enter a target: a source with one file that can be anything."""

    def run(data: bytes) -> None:
        folder = _folder({**(files or {}), file: data})
        _write_from(folder if files else folder / file, format=format)

    _target(name, seeds)(run)


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(**options: Any) -> bytes:
    file = io.BytesIO()
    options["save"](file, x=np.arange(6).reshape(3, 2), y=np.arange(3.0))
    return file.getvalue()


def _npy_seeds() -> list[bytes]:
    turned = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    return [*map(_npy, (np.arange(5), turned, np.array(["a", "bc"]), np.zeros((2, 2), "u1")))]


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in {
            "a.cls": b"3",
            "a.txt": b"x",
            "b.cls": b"4",
            "b.txt": "é".encode(),
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def _wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(64))
    return file.getvalue()


_PNG: Final = encode_png(np.zeros((3, 4), np.uint8))

_CSV: Final = b'id,name,v,when\n1,"a, b",0.5,x\n2,"c\nd",1e3,y\n-3,,nan,z\n'
_JSONL: Final = (
    b'{"id":1,"v":[1,2],"s":"a","o":null}\n{"id":2,"v":[],"s":"\\u00e9","o":1.5}\n'
    b'{"id":3,"v":[3]}\n'
)
_POLYGON: Final = {"segmentation": [[0, 0, 2, 0, 2, 2]], "iscrowd": 0}
_RUNS: Final = {"segmentation": {"counts": [0, 1, 11], "size": [3, 4]}, "iscrowd": 1}
_KEYPOINT: Final = {"keypoints": [1, 1, 2], "num_keypoints": 1}
_OBJECT: Final = {"category_id": 7, "bbox": [0, 0, 2, 2], "area": 4}
_COCO: Final = json.dumps(
    {
        "images": [{"id": n, "file_name": f"{n}.png", "height": 3, "width": 4} for n in (1, 2)],
        "annotations": [
            {"id": 1, "image_id": 1, **_OBJECT, **_POLYGON, **_KEYPOINT},
            {"id": 2, "image_id": 2, **_OBJECT, **_RUNS},
        ],
        "categories": [{"id": 7, "name": "dog", "keypoints": ["nose"], "skeleton": []}],
    }
).encode()
_VOC: Final = (
    b"<annotation><filename>1.png</filename><size><width>4</width><height>3</height>"
    b"<depth>1</depth></size><object><name>dog</name><pose>Left</pose><difficult>0</difficult>"
    b"<truncated>1</truncated><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>2</ymax>"
    b"</bndbox></object></annotation>"
)

_source("csv", "a.csv", lambda: [_CSV, b"a\n1\n2\n", b"\xef\xbb\xbfa\tb\n1\t2\n"], format="csv")
_source("jsonl", "a.jsonl", lambda: [_JSONL, b'{"a":"x"}\r\n{"a":"y"}'], format="jsonl")
_source("numpy", "a.npy", _npy_seeds, format="numpy")
_source(
    "numpy-npz",
    "a.npz",
    lambda: [_npz(save=np.savez), _npz(save=np.savez_compressed)],
    format="numpy",
)
_source("webdataset", "a.tar", lambda: [_tar()], format="webdataset")
_source(
    "webdataset-gzip", "a.tar.gz", lambda: [gzip.compress(_tar(), mtime=0)], format="webdataset"
)
_source("coco", "instances.json", lambda: [_COCO], {"1.png": _PNG, "2.png": _PNG}, format="coco")
_source("voc", "1.xml", lambda: [_VOC], {"1.png": _PNG}, format="voc")
_source("audio", "dog/1.wav", lambda: [_wav()], {"cat/1.wav": _wav()}, format="audio")
_source("image-folder", "dog/1.png", lambda: [_PNG], {"cat/1.png": _PNG}, format="image-folder")


@cache
def _arrow() -> bytes:
    import pyarrow as pa

    table = pa.table({"id": [1, 2, 3], "s": ["a", None, "c"], "v": [[1.0], [], [2.0, 3.0]]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


_STATE: Final = json.dumps(
    {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}
).encode()
_INFO: Final = json.dumps({"features": {"id": {"dtype": "int64", "_type": "Value"}}}).encode()


def _parquet_with_metadata(data: bytes) -> bytes:
    """A Parquet file whose ``huggingface`` metadata can be anything."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    table = pa.table({"id": [1, 2], "s": ["a", "b"]})
    pq.write_table(table.replace_schema_metadata({b"huggingface": data}), file)
    return file.getvalue()


def _run_parquet(data: bytes) -> None:
    _write_from(_folder({"a.parquet": _parquet_with_metadata(data)}) / "a.parquet")


_CLASSES: Final = b'{"info":{"features":{"id":{"names":["a","b","c"],"_type":"ClassLabel"}}}}'
_target("parquet", lambda: [_CLASSES, b'{"info":%s}' % _INFO])(_run_parquet)


def _huggingface(name: str, file: str, *seeds: bytes) -> None:
    def run(data: bytes) -> None:
        whole = {"state.json": _STATE, "dataset_info.json": _INFO}
        files = {**whole, "data-00000-of-00001.arrow": _arrow(), file: data}
        _write_from(_folder(files), format="huggingface")

    _target(name, lambda: [*seeds])(run)


def _huggingface_splits(data: bytes) -> None:
    whole = {
        "state.json": _STATE,
        "dataset_info.json": _INFO,
        "data-00000-of-00001.arrow": _arrow(),
    }
    files = {f"{split}/{file}": data for split in ("train", "test") for file, data in whole.items()}
    folder = _folder({**files, "dataset_dict.json": data})
    sw.write_splits(str(folder), folder.parent / "out" / "h@1", split="source")


_huggingface("huggingface-state", "state.json", _STATE)
_huggingface("huggingface-info", "dataset_info.json", _INFO)
_target("huggingface-splits", lambda: [b'{"splits":["train","test"]}'])(_huggingface_splits)


# -- headers and texts -----------------------------------------------------------------------------


def _image_seeds() -> list[bytes]:
    head = struct.pack("<IHHIIHH", 40, 1, 24, 0, 0, 0, 0)
    return [
        _PNG,
        b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08\0\x03\0\x04\x03" + bytes(16),
        b"GIF89a\x04\0\x03\0" + bytes(8),
        b"BM" + bytes(12) + struct.pack("<Iii", 40, 4, -3) + head,
        b"RIFF\x24\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\x03\0\0\x02\0\0" + bytes(8),
        b"RIFF\x24\0\0\0WEBPVP8L\x0a\0\0\0\x2f\x03\x80\0\0" + bytes(16),
        b"RIFF\x24\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a\x04\0\x03\0" + bytes(16),
        b"II*\0\x08\0\0\0\x02\0\0\1\x03\0\x01\0\0\0\x04\0\0\0\1\1\x03\0\x01\0\0\0\x03\0\0\0\0\0\0\0",
        b"MM\0*\0\0\0\x08\0\x02\1\0\0\x03\0\0\0\x01\0\x04\0\0\1\1\0\x04\0\0\0\x01\0\0\0\x03\0\0\0\0",
    ]


@_target("image", _image_seeds, errors=(ValueError,))
def _image(data: bytes) -> None:
    found = read_header(data)
    assert found.height > 0
    assert found.width > 0


@_target("wav", lambda: [_wav()], errors=(ValueError,))
def _wav_header(data: bytes) -> None:
    found = read_wav_header(data)
    assert found.num_frames * found.channels <= len(data)


@_target("schema-text", lambda: [b"image=uint8[28,28],t=int64[null],m=raw:uint8[null,3]"])
def _schema_text(data: bytes) -> None:
    parse_schema_option(_text(data))


@_target("schema-file", lambda: [_dataset()["t.manifest.json"], b'{"x":"float32[2]","y":"int64"}'])
def _schema_file(data: bytes) -> None:
    folder = _folder({"schema.json": data})
    sw.write(EXAMPLES, folder / "t@1", schema=str(folder / "schema.json"))


@_target("output", lambda: [b"out/train@16", b"out/a.tfrecord@4", b"t-?????-of-00004.tfrecord"])
def _output(data: bytes) -> None:
    text = _text(data)
    for num_shards in (1, 4):
        pattern = pattern_from_template(text, num_shards)
        if pattern is not None:
            assert parse_shard_file(pattern.shard_file(0)) is not None
    parse_shard_file(text)
    parse_output(text, urls=True)


@_target("indices", lambda: [b"3\n1\n\n2\n", _npy(np.arange(4)), _npy(np.zeros((2, 2)))])
def _indices(data: bytes) -> None:
    read_indices(str(_folder({"i": data}) / "i"))


def _text(data: bytes) -> str:
    """Return an argument as the command line has it."""
    return data.decode("utf-8", "surrogateescape")
