"""Reading: local folders, an emulator of Google's store, a fake of Amazon's, one with folders."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import pickle
import posixpath
import random
import subprocess
import sys
import tarfile
import wave
from collections.abc import Iterator
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
import pytest

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")

from detection_sets import everything, voc_object, write_coco, write_voc

import shardwriter
from shardwriter.errors import MissingExtra, OptionError, SourceChanged, SourceError, StorageError
from shardwriter.formats.example import encode_example
from shardwriter.inspect.scan import scan_file
from shardwriter.inspect.verify import verify
from shardwriter.reading.show import read_some
from shardwriter.sources.find import open_source
from shardwriter.sources.shard_sets import find_one, find_shard_sets
from shardwriter.sources.tfrecord import TFRecordFiles
from shardwriter.storage import beam_inputs
from shardwriter.storage import inputs as seam
from shardwriter.storage.beam_inputs import RangedFile
from shardwriter.storage.inputs import InputChanged, inputs_for, open_stream
from shardwriter.writing.index_files import make_index, open_index

# Beam and its clients warn when they are imported.
pytestmark = pytest.mark.filterwarnings("ignore")

JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0000b080002000301011100ffd9")


# -- places ----------------------------------------------------------------------------------------


class Local:
    """A folder of this machine."""

    def __init__(self, tmp_path: Any) -> None:
        self.root = str(tmp_path / "place")

    def put(self, name: str, data: bytes) -> str:
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def delete(self, name: str) -> None:
        os.unlink(os.path.join(self.root, name))


class Google:
    """A folder of a bucket in the emulator."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket
        self._top = uuid4().hex
        self.root = f"gs://{bucket.name}/{self._top}"

    def put(self, name: str, data: bytes) -> str:
        self._bucket.blob(f"{self._top}/{name}").upload_from_string(data)
        return f"{self.root}/{name}"

    def delete(self, name: str) -> None:
        self._bucket.blob(f"{self._top}/{name}").delete()


class Amazon:
    """A folder of a bucket in Beam's fake of Amazon's client."""

    root = "s3://bkt/data"

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, name: str, data: bytes) -> str:
        from apache_beam.io.aws.clients.s3.fake_client import FakeFile

        file = FakeFile("bkt", f"data/{name}", data)
        file.last_modified += random.random()  # the clock may stand
        self._client.add_file(file)
        return f"{self.root}/{name}"

    def delete(self, name: str) -> None:
        self._client.delete_file("bkt", f"data/{name}")


class Folders:
    """A folder of a file system that has folders, as Hadoop's has."""

    root = "folders://host/data"

    def __init__(self, files: dict[str, tuple[bytes, int]]) -> None:
        self._files = files

    def put(self, name: str, data: bytes) -> str:
        before = self._files.get(f"{self.root}/{name}", (b"", 0))[1]
        self._files[f"{self.root}/{name}"] = data, before + 1
        return f"{self.root}/{name}"

    def delete(self, name: str) -> None:
        del self._files[f"{self.root}/{name}"]


@cache
def folder_system() -> Any:
    """Make Beam know folders://; what is listed there are folders too, as files without bytes."""
    from apache_beam.io.filesystem import BeamIOError, FileMetadata, FileSystem

    class FolderSystem(FileSystem):
        files: ClassVar[dict[str, tuple[bytes, int]]] = {}

        @classmethod
        def scheme(cls):
            return "folders"

        def has_dirs(self):
            return True

        def _list(self, url):
            url = url.rstrip("/")
            if url in self.files:
                raise BeamIOError("List operation failed", {url: OSError("Not a directory")})
            below = {path[len(url) + 1 :] for path in self.files if path.startswith(url + "/")}
            if not below:
                raise BeamIOError("List operation failed", {url: OSError("File not found")})
            for name in {path.partition("/")[0] for path in below}:
                data, version = self.files.get(f"{url}/{name}", (b"", 0))
                yield FileMetadata(f"{url}/{name}", len(data), float(version))

        def exists(self, url):
            url = url.rstrip("/")
            return any(path == url or path.startswith(url + "/") for path in self.files)

        def metadata(self, url):
            if url not in self.files:
                raise BeamIOError(f"File not found: {url}")
            data, version = self.files[url]
            return FileMetadata(url, len(data), float(version))

        def open(self, url, mime_type="", compression_type=None):
            assert compression_type == "uncompressed"
            self.metadata(url)
            return io.BufferedReader(io.BytesIO(self.files[url][0]), 1 << 24)

        join = split = mkdirs = create = copy = rename = size = last_updated = delete = None

    FolderSystem.__abstractmethods__ = frozenset()
    return FolderSystem


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """A bucket in an emulator on loopback."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="no emulator is installed")
    gcp = pytest.importorskip("apache_beam.io.gcp.gcsio", reason="Beam's gcp extra is missing")
    from apache_beam.internal.gcp.auth import _Credentials
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    assert gcp
    server = emulator.create_server("localhost", 0, in_memory=True, default_bucket="bkt")
    server.start()
    port = server._api._httpd.server_address[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
        patch.setattr(_Credentials, "_credentials_init", True)  # anonymous, without asking around
        yield storage.Client(project="p", credentials=AnonymousCredentials()).bucket("bkt")
    server.stop()


@pytest.fixture
def gs(bucket: Any) -> Google:
    return Google(bucket)


@pytest.fixture
def folders() -> Iterator[Folders]:
    pytest.importorskip("apache_beam", reason="Beam is not installed")
    files = folder_system().files
    yield Folders(files)
    files.clear()


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> Amazon:
    pytest.importorskip("apache_beam", reason="Beam is not installed")
    from apache_beam.io.aws.clients.s3 import boto3_client
    from apache_beam.io.aws.clients.s3.fake_client import FakeS3Client

    client = FakeS3Client()
    monkeypatch.setattr(boto3_client, "Client", lambda options: client)
    return Amazon(client)


@pytest.fixture(params=["local", "gs", "amazon", "folders"])
def place(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    return Local(tmp_path) if request.param == "local" else request.getfixturevalue(request.param)


@pytest.fixture(params=["gs", "amazon", "folders"])
def remote(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


# -- the seam --------------------------------------------------------------------------------------


def test_what_is_there(place):
    inputs = inputs_for(place.root)
    path = place.put("a/b/one.txt", b"one")
    assert inputs.exists(path)
    assert inputs.is_file(path)
    assert not inputs.is_directory(path)
    for folder in (place.root, f"{place.root}/a", f"{place.root}/a/b", f"{place.root}/a/b/"):
        assert inputs.exists(folder), folder
        assert inputs.is_directory(folder), folder
        assert not inputs.is_file(folder), folder
    for missing in (f"{place.root}/c", f"{place.root}/a/b/o", f"{place.root}/a/b/one.txt.gz"):
        assert not inputs.exists(missing), missing
        with pytest.raises(FileNotFoundError):
            inputs.stat(missing)
        with pytest.raises(FileNotFoundError):
            inputs.open(missing)
        with pytest.raises(FileNotFoundError):
            inputs.read(missing)


def test_a_listing(place):
    inputs = inputs_for(place.root)
    files = {"a/1": b"1", "a/2": b"22", "b": b"333", "[c]/x*": b"4", ".d": b"5", "a/deep/er": b"6"}
    paths = {name: place.put(name, data) for name, data in files.items()}
    found = {entry.name: entry for entry in inputs.listing(place.root)}
    assert {name: entry.is_dir() for name, entry in found.items()} == {
        "a": True,
        "b": False,
        "[c]": True,
        ".d": False,
    }
    assert found["b"].is_file()
    assert found["b"].stat().st_size == 3
    assert found["b"].stat().st_mtime_ns == inputs.stat(paths["b"]).st_mtime_ns
    assert found["b"].path == paths["b"]
    assert [e.path for e in inputs.listing(f"{place.root}/[c]")] == [paths["[c]/x*"]]
    assert "b" in {entry.name for entry in inputs.listing(place.root, "b")}
    tree = inputs.tree(place.root)
    assert tree.is_whole
    assert sorted(e.name for e in tree.scan(f"{place.root}/a")) == ["1", "2", "deep"]
    assert [e.stat().st_size for e in tree.scan(f"{place.root}/a/deep")] == [1]
    wanted = [paths[name] for name in ("a/2", "a/1", "b")] * 3
    assert [s.st_size for s in inputs.stats(wanted)] == [2, 1, 3] * 3


def test_a_limited_tree_of_a_store(gs):
    for number in range(5):
        gs.put(f"a/{number}", b"")
    tree = inputs_for(gs.root).tree(gs.root, 3)
    assert not tree.is_whole
    assert len(tree.scan(f"{gs.root}/a")) == 3


def test_a_placeholder_of_a_folder_is_no_file(gs):
    gs.put("empty/", b"")
    inputs = inputs_for(gs.root)
    assert [(e.name, e.is_dir()) for e in inputs.listing(gs.root)] == [("empty", True)]
    assert inputs.is_directory(f"{gs.root}/empty")
    assert inputs.listing(f"{gs.root}/empty") == []


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.csv", ["a.csv", "b.csv"]),
        ("?.csv", ["a.csv", "b.csv"]),
        ("[ab].csv", ["a.csv", "b.csv"]),
        ("*/*.csv", ["x/a.csv", "xy/a.csv"]),
        ("x*", ["x", "xy"]),
        ("x/.*", ["x/.hidden.csv"]),
        ("**", ["a.csv", "b.csv", "x", "xy"]),
        ("no*", []),
    ],
)
def test_globs_are_those_of_the_local_file_system(place, pattern, names):
    for name in ("a.csv", "b.csv", ".hidden.csv", "x/a.csv", "x/.hidden.csv", "xy/a.csv"):
        place.put(name, b".")
    found = inputs_for(place.root).glob(f"{place.root}/{pattern}")
    assert found == [f"{place.root}/{name}" for name in names]


def test_an_open_file(place):
    data = random.Random(1).randbytes(300_000)
    path = place.put("data", data)
    inputs = inputs_for(path)
    with inputs.open(path) as file:
        assert file.stat().st_size == len(data)
        assert file.read(10) == data[:10]
        assert file.read_at(200_000, 5) == data[200_000:200_005]
        assert file.read_at(len(data) - 2, 50) == data[-2:]
        assert file.read_at(len(data) + 9, 50) == b""
        assert file.read() == data[10:]
        assert file.seek(0) == 0
        assert file.readline() == data.partition(b"\n")[0] + b"\n"
    with contextlib.closing(inputs.open_raw(path)) as raw:
        assert raw.read(4) == data[:4]
        assert raw.tell() == 4
        assert raw.seekable()
        assert raw.seek(7) == 7
        assert raw.read(4) == data[7:11]
    stat, found = inputs.read(path)
    assert (stat.st_size, found) == (len(data), data)
    assert stat.st_mtime_ns == inputs.stat(path).st_mtime_ns


def test_an_empty_file(place):
    path = place.put("empty", b"")
    inputs = inputs_for(path)
    assert inputs.read(path)[1] == b""
    with inputs.open(path) as file:
        assert file.read() == file.read_at(0, 9) == b""


def test_a_change_tells(place):
    path = place.put("data", b"one")
    inputs = inputs_for(path)
    before = inputs.stat(path).st_mtime_ns
    place.put("data", b"two")
    if isinstance(place, Local):
        os.utime(path, ns=(0, before + 1))
    assert inputs.stat(path).st_mtime_ns != before


def test_a_file_that_changes_while_it_is_open(remote):
    path = remote.put("data", b"x" * 200_000)
    with inputs_for(path).open(path) as file:
        assert file.read_at(0, 1) == b"x"
        before = file.stat()
        remote.put("data", b"y")
        if isinstance(remote, Google):
            with pytest.raises(InputChanged):
                file.read_at(150_000, 1)
        else:
            with contextlib.suppress(InputChanged):
                file.read_at(150_000, 1)
            assert file.stat() != before


def test_gzip_is_never_unpacked_by_its_name(remote):
    packed = gzip.compress(b"text")
    path = remote.put("data.gz", packed)
    assert inputs_for(path).read(path)[1] == packed
    with open_stream(path) as stream:
        assert stream.compression == "gzip"
        assert stream.read(100) == b"text"


def test_the_time_of_a_change_is_the_same_in_every_time_zone():
    pytest.importorskip("apache_beam.io.gcp.gcsio", reason="Beam's gcp extra is missing")
    code = (
        "import datetime as d\n"
        "from apache_beam.io.gcp.gcsio import GcsIO\n"
        "from shardwriter.storage.beam_inputs import _token\n"
        "at = d.datetime(2026, 7, 1, 12, 3, 4, 567891, tzinfo=d.timezone.utc)\n"
        "print(_token(GcsIO._updated_to_seconds(at)), _token(at.timestamp()))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**os.environ, "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for zone in ("UTC", "Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe")
    }
    assert [len(set(line.split())) for line in told] == [1]


def test_it_can_be_pickled(place):
    path = place.put("data", b"one")
    assert pickle.loads(pickle.dumps(inputs_for(path))).read(path)[1] == b"one"


def test_a_url_whose_file_system_is_not_there():
    pytest.importorskip("apache_beam", reason="Beam is not installed")
    with pytest.raises(MissingExtra, match="nowhere://"):
        inputs_for("nowhere://x").exists("nowhere://x/y")


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
@pytest.mark.parametrize("beam", ["with", "without"])
def test_web_addresses_are_to_be_downloaded(monkeypatch, scheme, beam):
    if beam == "without":
        monkeypatch.setitem(sys.modules, "apache_beam.io.filesystems", None)
    for ask in (open_source, lambda path: find_shard_sets([path])):
        with pytest.raises(OptionError, match="can not be read") as caught:
            ask(f"{scheme}://host/a b.csv")
        assert caught.value.hint.endswith(f"curl -LO '{scheme}://host/a b.csv'")


@pytest.mark.parametrize(
    ("scheme", "package", "client", "extra"),
    [
        ("s3", "boto3", "aws.clients.s3.boto3_client.boto3", "aws"),
        ("azfs", "azure.storage.blob", "azure.blobstorageio.AZURE_DEPS_INSTALLED", "azure"),
    ],
)
def test_without_the_package_of_a_store(monkeypatch, scheme, package, client, extra):
    pytest.importorskip("apache_beam", reason="Beam is not installed")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(f"apache_beam.io.{client}", None)
    for ask in (open_source, lambda path: find_shard_sets([path])):
        with pytest.raises(MissingExtra) as caught:
            ask(f"{scheme}://bucket/folder/x.csv")
        assert caught.value.hint == f'pip install "apache-beam[{extra}]"'


@pytest.mark.parametrize(("scheme", "extra"), [("gs", "gcp"), ("s3", "beam")])
def test_without_beam(monkeypatch, scheme, extra):
    monkeypatch.setitem(sys.modules, "apache_beam.io.filesystems", None)
    with pytest.raises(MissingExtra) as caught:
        open_source(f"{scheme}://bkt/x.csv")
    assert caught.value.hint == f'pip install "shardwriter[{extra}]"'


def test_no_permission(gs, monkeypatch):
    from google.api_core.exceptions import Forbidden, ServiceUnavailable

    path = gs.put("a", b"a")
    where = "google.cloud.storage.client.Client.list_blobs"

    def refuse(kind, *args, **kwargs):
        raise kind("this is why")

    monkeypatch.setattr(where, partial(refuse, Forbidden))
    with pytest.raises(PermissionError):
        inputs_for(path).listing(gs.root)
    with pytest.raises(SourceError, match="Permission denied"):
        inputs_for(path).is_directory(gs.root)
    monkeypatch.setattr(where, partial(refuse, ServiceUnavailable))
    with pytest.raises(OSError, match="this is why") as caught:
        inputs_for(path).listing(gs.root)
    assert "this is why" in caught.value.strerror


# -- names -----------------------------------------------------------------------------------------


def test_names(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert seam.absolute("gs://b/x") == seam.real("gs://b/x/") == "gs://b/x"
    assert seam.absolute("x") == str(tmp_path / "x")
    assert not seam.is_url("a:b")
    assert not seam.is_url("/a://b")
    assert seam.split("gs://b/x/y") == ("gs://b/x", "y")
    assert seam.split("gs://b/x") == ("gs://b", "x")
    assert seam.split("gs://b") == ("gs://b", "")
    assert seam.split("gs://b/") == ("gs://b", "")
    assert seam.split("a/b") == ("a", "b")
    assert seam.common_folder(["gs://b/x/1", "gs://b/x/2"]) == "gs://b/x"
    assert seam.common_folder(["gs://b/x/1", "gs://b/y/2"]) == "gs://b"
    assert seam.common_folder(["gs://b/1"]) == "gs://b"
    assert seam.common_folder(["/a/x/1", "/a/y/2"]) == "/a"
    assert seam.relative("gs://b/x/1", "gs://b") == "x/1"
    assert seam.relative("/a/x/1", "/a") == "x/1"


# -- reading by ranges -----------------------------------------------------------------------------


class Requests(list):
    """A file of zeros that notes what is asked of it."""

    def __init__(self, size: int) -> None:
        self.file = RangedFile("x://y", size, self._fetch, lambda: None)

    def _fetch(self, begin: int, num_bytes: int) -> bytes:
        self.append((begin, num_bytes))
        return bytes(num_bytes)


def test_what_is_read_in_order_takes_few_requests():
    asked = Requests(64 << 20)
    while asked.file.read(1 << 16):
        pass
    assert sum(size for _, size in asked) == 64 << 20
    assert len(asked) < 16


def test_what_is_near_takes_few_requests():
    asked = Requests(64 << 20)
    for begin in range(0, 64 << 20, 100_000):
        assert asked.file.read_at(begin, 100) == bytes(100)
    assert len(asked) < 20


def test_a_place_far_away_takes_little():
    asked = Requests(1 << 30)
    for begin in (900 << 20, 100 << 20, 500 << 20):
        asked.file.read_at(begin, 100)
    assert [size for _, size in asked] == [1 << 16] * 3


def test_many_open_files_share_the_memory(monkeypatch):
    monkeypatch.setattr(beam_inputs, "_TOTAL_BYTES", 8 << 20)
    files = [Requests(64 << 20) for _ in range(16)]
    for asked in files:
        while asked.file.read(1 << 16):
            pass
    assert max(size for asked in files for _, size in asked) <= 1 << 19
    for asked in files:
        asked.file.close()


def test_an_object_that_is_shorter_than_it_was():
    file = RangedFile("x://y", 100, lambda begin, num_bytes: b"short", lambda: None)
    with pytest.raises(InputChanged, match="x://y"):
        file.read_at(0, 50)


# -- sources ---------------------------------------------------------------------------------------


def table(rows: int) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", "name", "score"])
    writer.writerows([r, f"n {r}", r / 3] for r in range(rows))
    return text.getvalue().encode()


def json_lines(rows: int) -> bytes:
    return b"".join(json.dumps({"id": r, "list": [r, r]}).encode() + b"\n" for r in range(rows))


@cache
def records(folder: str, options: tuple[tuple[str, Any], ...] = ()) -> dict[str, bytes]:
    """A dataset of ours, by file name."""
    made = os.path.join(folder, "made")
    shardwriter.write([bytes([i]) * 1000 for i in range(50)], f"{made}/t@4", **dict(options))
    found = {}
    for name in sorted(os.listdir(made)):
        with open(os.path.join(made, name), "rb") as file:
            found[name] = file.read()
    return found


@pytest.fixture(
    params=[
        "images",
        "masks",
        "masks by pattern",
        "csv",
        "csv.gz",
        "csv folder",
        "csv glob",
        "jsonl",
        "jsonl.gz",
        "dataset",
        "gzip dataset",
        "records",
        "gzip records",
        "tars",
        "tgz",
        "sounds",
    ]
)
def data(request, tmp_path):
    """Files by name, and how a person names them."""
    kind = request.param
    if kind == "images":
        names = ("a/1.jpg", "a/deep/2.jpg", "b c/3.jpg", "b c/notes.txt", ".git/4.jpg", "é/5.jpg")
        return {name: JPEG + name.encode() for name in names}, ""
    if "masks" in kind:
        sides = ("x", "y") if "pattern" in kind else ("img", "labels")
        names = [f"{sides[0]}/{n}.jpg" for n in ("1", "2", "a/3", "é")]
        names += [f"{sides[1]}/{n}_L.png" for n in ("1", "2", "a/3", "é")]
        files = {name: JPEG + name.encode() for name in [*names, "img/notes.txt", "z/5.jpg"]}
        return files, "{x/*,y/*_L.png}" if "pattern" in kind else ""
    if "csv" in kind:
        files = {"t1.csv": table(3000), "t2.csv": table(10)}
        if kind == "csv.gz":
            return {"t.csv.gz": gzip.compress(table(3000))}, "t.csv.gz"
        return files, {"csv": "t1.csv", "csv folder": "", "csv glob": "t*.csv"}[kind]
    if "jsonl" in kind:
        text = json_lines(2000)
        name = f"rows.{kind}"
        return {name: gzip.compress(text) if "gz" in kind else text}, name
    if kind == "sounds":
        return {f"{c}/{i}.wav": sound(i) for c in "ab" for i in range(2)}, ""
    if kind == "tars":
        return {"1.tar": tar(range(300)), "2.tar": tar(range(7))}, "*.tar"
    if kind == "tgz":
        return {"1.tgz": gzip.compress(tar(range(300)))}, "1.tgz"
    options = (("compression", "gzip"),) if "gzip" in kind else ()
    files = dict(records(str(tmp_path), options))
    if "dataset" in kind:
        return files, "t"
    return {name: data for name, data in files.items() if "-of-" in name}, ""


def sound(num_frames):
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setparams((1, 2, 8000, 0, "NONE", ""))
        wav.writeframes(b"ab" * num_frames)
    return file.getvalue()


def tar(numbers):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for i in numbers:
            for extension, data in (("jpg", JPEG * i), ("cls", b"%d" % i)):
                info = tarfile.TarInfo(f"{i:04}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def put_all(place, files):
    for name, content in files.items():
        place.put(name, content)


def equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == other[name] or bytes(one[name]) == bytes(other[name]), name


def test_a_source_is_the_same_anywhere(data, remote, tmp_path):
    files, name = data
    local = Local(tmp_path)
    put_all(local, files)
    put_all(remote, files)
    here = open_source(posixpath.join(local.root, name))
    there = open_source(posixpath.join(remote.root, name))
    assert here.kind == there.kind
    assert here.num_items == there.num_items
    assert here.digest() == there.digest()
    assert dict(here.plan) == dict(there.plan)
    assert list(here.notes) == list(there.notes)
    assert there.fingerprint() == there.fingerprint()
    pairs = list(zip(here.items(), there.items(), strict=True))
    assert len(pairs) > 3
    for one, other in pairs[:3] + pairs[-3:]:
        assert here.key(one) == there.key(other)
        one, other = here.load(one), there.load(other)
        if isinstance(one, bytes):
            assert one == other
        else:
            equal(one, other)


def test_shards_are_the_same_wherever_the_source_lies(data, remote, tmp_path):
    files, name = data
    local = Local(tmp_path)
    put_all(local, files)
    put_all(remote, files)
    outputs = []
    for place in (local, remote):
        out = tmp_path / f"out{len(outputs)}"
        shardwriter.write(posixpath.join(place.root, name), out / "t@3", workers=1)
        outputs.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert outputs[0] == outputs[1]  # the manifest too, with the digest of the job


def test_masks_are_found_behind_many_images(remote, monkeypatch):
    monkeypatch.setattr("shardwriter.sources.image_mask.LOOK_FILES", 3)
    for number in range(5):
        remote.put(f"images/{number}.jpg", JPEG)
        remote.put(f"masks/{number}.jpg", JPEG)
        remote.put(f"classes/cat/{number}.jpg", JPEG)
    assert open_source(remote.root).kind == "image-mask"
    assert open_source(f"{remote.root}/classes").kind == "image-folder"
    with pytest.raises(OptionError, match="no such folder"):
        open_source(f"{remote.root}/{{images,none}}")


def test_an_image_that_has_changed(remote):
    remote.put("a/1.jpg", JPEG)
    remote.put("a/2.jpg", JPEG)
    source = pickle.loads(pickle.dumps(open_source(remote.root)))
    one, two = source.items()
    remote.put("a/1.jpg", JPEG[:-1] + b"x")
    with pytest.raises(SourceChanged, match="changed since the folder was listed"):
        source.load(one)
    remote.delete("a/2.jpg")
    with pytest.raises(SourceChanged):
        source.load(two)


def reopened(source):
    """Have a source open its files anew, as it does in another process."""
    for file in source.files if isinstance(source, TFRecordFiles) else source._files:
        file.close()
    source._open_files.clear()
    return source


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_annotated_images(remote, tmp_path, kind):
    if kind == "coco":
        write_coco(tmp_path, everything())
    else:
        write_voc(tmp_path, {"b": [voc_object("cat")], "é": [voc_object("dog")], "c": []})
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        remote.put(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    here, there = open_source(str(tmp_path)), pickle.loads(pickle.dumps(open_source(remote.root)))
    assert there.kind == here.kind == kind
    assert there.digest() == here.digest()
    assert there.plan == here.plan
    for one, other in zip(here.items(), there.items(), strict=True):
        assert encode_example(there.load(other)) == encode_example(here.load(one))
    remote.put(f"{'val' if kind == 'coco' else 'JPEGImages'}/{other.key}", b"x")
    with pytest.raises(SourceChanged):
        there.load(other)


@pytest.mark.parametrize(("name", "make"), [("t.csv", table), ("t.jsonl", json_lines)])
def test_a_table_that_has_changed(remote, name, make):
    path = remote.put(name, make(50_000))
    source = open_source(path)
    source.load(0)
    remote.put(name, make(50_000))
    with pytest.raises(SourceChanged):
        reopened(source).load(40_000)
    remote.delete(name)
    with pytest.raises(SourceError):
        reopened(source).load(40_000)


def test_records_that_have_changed(remote, tmp_path):
    [name, *_] = [n for n in records(str(tmp_path)) if "-of-" in n]
    path = remote.put(name, records(str(tmp_path))[name])
    source = open_source(path)
    remote.put(name, records(str(tmp_path))[name])
    with pytest.raises(SourceChanged):
        reopened(source).load(1)


def test_a_damaged_record(remote, tmp_path):
    [name, *_] = [n for n in records(str(tmp_path)) if "-of-" in n]
    content = bytearray(records(str(tmp_path))[name])
    content[2000] ^= 1
    source = open_source(remote.put(name, bytes(content)))
    with pytest.raises(SourceError, match="CRC") as caught:
        list(map(source.load, source.items()))
    assert caught.value.record_index == 1


@pytest.mark.parametrize(
    "format", ["auto", "image-folder", "csv", "jsonl", "tfrecord", "webdataset", "audio"]
)
def test_nothing_there(remote, format):
    remote.put("other/x.bin", b"x")
    with pytest.raises((OptionError, SourceError), match=r"there is no such|no file|can not be"):
        open_source(f"{remote.root}/missing", format)


def test_no_such_bucket(gs):
    for format in ("auto", "csv", "tfrecord"):
        with pytest.raises((OptionError, SourceError), match="there is no such"):
            open_source("gs://nobody/x", format)


def test_a_row_costs_no_request_of_its_own(gs, monkeypatch):
    from google.cloud.storage import Blob

    path = gs.put("t.csv", table(100_000))
    source = open_source(path)
    asked = []
    download = Blob.download_as_bytes
    monkeypatch.setattr(
        Blob, "download_as_bytes", lambda *a, **k: asked.append(k) or download(*a, **k)
    )
    for row in range(0, 100_000, 7):
        source.load(row)
    assert len(asked) < 20


# -- datasets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_a_dataset_at_a_url(remote, tmp_path, compression):
    files = dict(records(str(tmp_path), (("compression", compression),)))
    put_all(remote, files)
    here, there = str(tmp_path / "made" / "t"), f"{remote.root}/t"
    told, expected = shardwriter.stats(there), shardwriter.stats(here)
    assert told.verdict == expected.verdict
    assert [scan.crc32c for scan in told.scans] == [scan.crc32c for scan in expected.scans]
    assert [scan.file_bytes for scan in told.scans] == [s.file_bytes for s in expected.scans]
    assert verify(there).verdict.startswith("OK")
    shard_set = find_one(there)
    assert shard_set.directory == remote.root
    assert shard_set.manifest is not None
    assert len(open_index(remote.root, shard_set.manifest).counts) == 4
    shown = list(read_some(there, 20, 3))
    assert [s.index for s in shown] == [20, 21, 22]
    for name in (remote.root, f"{there}@4", f"{there}@*", f"{there}.tf*", f"{there}.manifest.json"):
        assert find_one(name).name == "t", name


def test_a_dataset_without_its_index(remote, tmp_path):
    files = {n: d for n, d in records(str(tmp_path)).items() if not n.endswith(".index")}
    put_all(remote, files)
    notes = []
    assert len(list(read_some(f"{remote.root}/t", 20, 3, notify=notes.append))) == 3
    assert "can not be used" in notes[0]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("with_index", [True, False])
def test_a_dataset_at_a_url_is_a_sequence(remote, tmp_path, compression, with_index):
    files = records(str(tmp_path), (("compression", compression),))
    put_all(remote, {n: d for n, d in files.items() if with_index or not n.endswith(".index")})
    with shardwriter.open(tmp_path / "made" / "t", decode=False) as here:
        expected = list(here)
    with shardwriter.open(f"{remote.root}/t", decode=False, max_open_files=2) as there:
        assert list(there) == expected
        assert [there[row] for row in (5, -1, 0)] == [expected[row] for row in (5, -1, 0)]
        assert list(pickle.loads(pickle.dumps(there.shuffle(1)))) == list(there.shuffle(1))
        assert len(there.notes) == (0 if with_index else 1)


def test_an_index_is_not_made_at_a_url():
    with pytest.raises(OptionError, match="this is a URL"):
        make_index("gs://bkt/t")


def test_a_missing_shard_and_a_damaged_one(remote, tmp_path):
    files = dict(records(str(tmp_path)))
    [gone, hurt, *_] = [name for name in files if "-of-" in name]
    del files[gone]
    files[hurt] = files[hurt][:-3]
    put_all(remote, files)
    report = shardwriter.stats(f"{remote.root}/t")
    assert {finding.kind for finding in report.findings} == {"missing-shard", "truncated"}
    with pytest.raises(StorageError):
        scan_file(f"{remote.root}/{gone}")
    with pytest.raises(OptionError, match="there is no such"):
        find_shard_sets([f"{remote.root}/nothing"])


def test_a_folder_beside_others_is_listed_by_its_prefix(gs, tmp_path, monkeypatch):
    from google.cloud.storage import Client

    put_all(gs, records(str(tmp_path)))
    for number in range(5):
        gs.put(f"z/{number}", b"")
    asked = []
    listed = Client.list_blobs
    monkeypatch.setattr(
        Client, "list_blobs", lambda *a, **k: asked.append(k["prefix"]) or listed(*a, **k)
    )
    find_one(f"{gs.root}/t@4")
    top = gs.root.removeprefix("gs://bkt/")
    assert f"{top}/t" in asked


def test_nothing_heavy_is_imported_for_a_path(tmp_path):
    place = SimpleNamespace(path=tmp_path / "t.csv")
    place.path.write_bytes(table(3))
    code = (
        "import sys\nfrom shardwriter.sources.find import open_source\n"
        f"source = open_source({str(place.path)!r})\nsource.load(1)\n"
        "assert 'apache_beam' not in sys.modules\n"
        "assert 'shardwriter.storage.beam' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tables_and_arrays_at_urls(folders, tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    columns = {"x": list(range(100)), "name": ["é", "b"] * 50}
    pytest.importorskip("pyarrow.parquet").write_table(
        pa.table(columns), tmp_path / "t.parquet", row_group_size=30
    )
    pytest.importorskip("pyarrow.feather").write_feather(
        pa.table(columns), tmp_path / "t.arrow", chunksize=30
    )
    np.savez(tmp_path / "t.npz", **columns)
    for name in ("t.parquet", "t.arrow", "t.npz"):
        url = folders.put(f"data/{name}", (tmp_path / name).read_bytes())
        remote, local = open_source(url), open_source(tmp_path / name)
        assert remote.kind == local.kind
        assert remote.digest() == local.digest()
        assert [remote.load(i) for i in range(100)] == [local.load(i) for i in range(100)]
        folders.put(f"data/{name}", (tmp_path / name).read_bytes() + b"\0")
        with pytest.raises(SourceError, match="has changed"):
            open_changed(remote)


def open_changed(source):
    """Read all of a source anew, as another process does."""
    return list(map(pickle.loads(pickle.dumps(source)).load, range(100)))
