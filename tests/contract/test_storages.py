"""What every place keeps to: the local one, any that Beam knows, and Google Cloud Storage."""

from __future__ import annotations

import gc
import os
import pickle
import threading

import pytest

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.localfilesystem import LocalFileSystem
from gcs_emulator import empty_bucket, gcs_emulator

from shardwriter.errors import StorageError
from shardwriter.formats.crc32c import crc32c
from shardwriter.storage import ComposingStorage, LocalStorage, storage_for
from shardwriter.storage.beam import BeamStorage
from shardwriter.storage.gcs import GcsStorage

# Smaller than an object that goes up in one request, and larger.
SMALL = b"\x00\r\n\xff--text" * 500
LARGE = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def bucket():
    with gcs_emulator() as url:
        yield url


@pytest.fixture
def gs(bucket, tmp_path):
    empty_bucket()
    return Place(GcsStorage(), f"{bucket}/{tmp_path.name}")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("shardwriter.storage.gcs.CHUNK_BYTES", 1 << 18)


class StubbornFileSystem(LocalFileSystem):
    """``stubborn://``: a file system that renames onto no file, with errors of its own."""

    @classmethod
    def scheme(cls):
        return "stubborn"

    def exists(self, path):
        return super().exists(_local(path))

    def size(self, path):
        return super().size(_local(path))

    def metadata(self, path):
        found = super().metadata(_local(path))
        return type(found)(path, found.size_in_bytes, found.last_updated_in_seconds)

    def mkdirs(self, path):
        super().mkdirs(_local(path))

    def create(self, path, *args):
        if "denied" in path:
            raise RuntimeError("no ticket")
        return super().create(_local(path), *args)

    def open(self, path, *args):
        return super().open(_local(path), *args)

    def _list(self, path):
        for found in super()._list(_local(path)):
            url = f"stubborn:/{found.path}"
            yield type(found)(url, found.size_in_bytes, found.last_updated_in_seconds)

    def _url_dirname(self, path):
        return os.path.dirname(path)

    def rename(self, sources, targets):
        for source, target in zip(sources, targets, strict=True):
            if self.exists(target):
                raise BeamIOError("Rename operation failed", {source: RuntimeError("in the way")})
            os.rename(_local(source), _local(target))

    def delete(self, paths):
        for path in paths:
            for found in self.match([path])[0].metadata_list:
                if os.path.isdir(_local(found.path)):
                    os.rmdir(_local(found.path))
                else:
                    os.unlink(_local(found.path))


def _local(path):
    return path.removeprefix("stubborn:/")


class Place:
    """A storage, and a folder of it that is there."""

    def __init__(self, storage, root):
        self.storage, self.root = storage, root

    def put(self, name, data, **options):
        path = f"{self.root}/{name}"
        file = self.storage.create(path, **options)
        for begin in range(0, len(data), 1 << 16):
            file.write(data[begin : begin + (1 << 16)])
        self.storage.sync(path)
        file.close()
        return path


@pytest.fixture(params=["local", "beam", "stubborn", "beam-gs", "gs"])
def place(request, tmp_path):
    if request.param == "local":
        return Place(LocalStorage(), str(tmp_path))
    if request.param == "beam":
        return Place(BeamStorage(), str(tmp_path))
    if request.param == "stubborn":
        return Place(BeamStorage(), f"stubborn:/{tmp_path}")
    storage = GcsStorage() if request.param == "gs" else BeamStorage()
    return Place(storage, f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


# -- every place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", SMALL, LARGE, LARGE[:-1], LARGE + b"x"])
def test_a_file_is_complete_when_it_is_synced(place, data):
    path = place.put("a", data)
    assert place.storage.size(path) == len(data)
    assert place.storage.read(path) == data
    assert place.storage.crc32c(path) in (None, crc32c(data))
    assert place.storage.list(place.root) == ["a"]


def test_a_name_that_looks_packed_is_written_as_it_is(place):
    for name in ("a.gz", "a.bz2", "a.zst"):
        assert place.storage.read(place.put(name, SMALL)) == SMALL


def test_closing_again_and_syncing_again_change_nothing(place):
    path = f"{place.root}/a"
    file = place.storage.create(path)
    file.write(SMALL)
    for _ in range(2):
        place.storage.sync(path)
    for _ in range(2):
        file.close()
    place.storage.sync(path)
    assert place.storage.read(path) == SMALL


def test_what_was_never_synced_may_go_and_is_never_under_another_name(place):
    file = place.storage.create(f"{place.root}/a")
    file.write(LARGE)
    file.close()
    assert place.storage.list(place.root) in ([], ["a"])
    if not isinstance(place.storage, LocalStorage):
        assert place.storage.size(f"{place.root}/a") is None


def test_creating_replaces(place):
    place.put("a", LARGE)
    assert place.storage.read(place.put("a", b"x")) == b"x"


def test_a_new_file_that_is_there_with_other_bytes_is_refused(place):
    path = place.put("a", SMALL, new=True)
    for other in (b"", SMALL[:-1] + b"x", LARGE):
        with pytest.raises(StorageError) as caught:
            place.put("a", other, new=True)
        assert caught.value.path == path
        assert place.storage.read(path) == SMALL


def test_files_grow_side_by_side(place):
    files = {name: place.storage.create(f"{place.root}/{name}") for name in "abc"}
    for turn in range(5):
        for name, file in files.items():
            file.write(f"{name}{turn}".encode())
    for name, file in files.items():
        place.storage.sync(f"{place.root}/{name}")
        file.close()
    for name in files:
        expected = "".join(f"{name}{turn}" for turn in range(5)).encode()
        assert place.storage.read(f"{place.root}/{name}") == expected


def test_publishing_gives_the_final_name_and_replaces(place):
    for data in (LARGE, SMALL):
        source, target = place.put("a", data), f"{place.root}/b"
        for _ in range(2):
            place.storage.publish(source, target)
        assert place.storage.list(place.root) == ["b"]
        assert place.storage.read(target) == data
    place.storage.publish(target, target)
    assert place.storage.read(target) == SMALL
    with pytest.raises(StorageError):
        place.storage.publish(source, f"{place.root}/c")


def test_a_file_that_is_not_there(place):
    path = f"{place.root}/none"
    assert place.storage.size(path) is None
    assert place.storage.crc32c(path) is None
    assert place.storage.read(path) is None
    place.storage.delete(path)
    for call in (place.storage.open, place.storage.sync):
        with pytest.raises(StorageError, match="no such file") as caught:
            call(path)
        assert caught.value.path == path


def test_reading_and_seeking(place):
    with place.storage.open(place.put("a", LARGE)) as file:
        assert file.read(5) == LARGE[:5]
        file.seek(700_001)
        assert file.read(9) == LARGE[700_001:700_010]
        file.seek(-3, os.SEEK_END)
        assert file.read() == LARGE[-3:]
        file.seek(0)
        assert file.read() == LARGE


def test_only_the_files_of_a_folder_are_listed_in_order(place):
    storage, root = place.storage, place.root
    storage.make_directory(f"{root}/folder/below")
    storage.make_directory(f"{root}/folder/below")
    names = ["B", "a", ".c", "é", "a[1]", "x*", "-00000-of-00002"]
    for name in [*names, "folder/below/deep", "folder.txt"]:
        place.put(name, b"")
    assert storage.list(root) == sorted([*names, "folder.txt"])
    assert storage.list(f"{root}/folder") == []
    assert storage.list(f"{root}/folder/below") == ["deep"]
    assert storage.list(f"{root}/none") == []


def test_names_that_a_pattern_would_mean(place):
    storage = place.storage
    for name in ("a1", "a[1]", "ab", "a?", "a*"):
        place.put(name, name.encode())
    for name in ("a[1]", "a?", "a*"):
        storage.delete(f"{place.root}/{name}")
    assert storage.list(place.root) == ["a1", "ab"]
    storage.make_directory(f"{place.root}/d[1]*")
    path = place.put("d[1]*/a[1]", b"x")
    assert storage.list(f"{place.root}/d[1]*") == ["a[1]"]
    storage.publish(path, f"{place.root}/d[1]*/b*")
    assert storage.list(f"{place.root}/d[1]*") == ["b*"]


def test_folders(place):
    storage, folder = place.storage, f"{place.root}/folder"
    assert not storage.is_directory(folder)
    storage.make_directory(folder)
    if isinstance(storage, GcsStorage) or "gs://" in place.root:
        assert not storage.is_directory(folder)
    else:
        assert storage.is_directory(folder)
    path = place.put("folder/a", b"x")
    assert not storage.is_directory(path)
    storage.remove_directory(folder)
    assert storage.list(folder) == ["a"]
    storage.delete(path)
    for _ in range(2):
        storage.remove_directory(folder)
    assert not storage.is_directory(folder)
    storage.sync_directory(place.root) if isinstance(storage, LocalStorage) else None


def test_it_pickles_as_what_it_is(place):
    path = place.put("a", SMALL)
    again = pickle.loads(pickle.dumps(place.storage))
    assert type(again) is type(place.storage)
    assert again.read(path) == SMALL
    assert isinstance(again, ComposingStorage) == isinstance(again, GcsStorage)
    assert again.appears_whole == isinstance(again, GcsStorage)


def test_several_threads_write_by_one_storage(place):
    def write(number):
        for turn in range(3):
            place.put(f"{number}-{turn}", SMALL * number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(place.storage.list(place.root)) == 12
    assert place.storage.read(f"{place.root}/3-2") == SMALL * 3


# -- file systems of Beam --------------------------------------------------------------------------


def test_a_file_that_was_completed_can_not_grow(tmp_path, gs):
    for place in (Place(BeamStorage(), str(tmp_path)), gs):
        path = f"{place.root}/a"
        file = place.storage.create(path)
        file.write(SMALL)
        place.storage.sync(path)
        with pytest.raises(StorageError, match="can not grow"):
            file.write(b"x")
        with pytest.raises(StorageError, match="can not append"):
            place.storage.append(path, 3)
        assert place.storage.read(path) == SMALL


def test_the_storage_of_a_path():
    assert type(storage_for("out/train")) is LocalStorage
    assert type(storage_for("/out/a:b//c")) is LocalStorage
    assert type(storage_for("gs://bucket/train")) is GcsStorage
    assert type(storage_for("s3://bucket/train")) is BeamStorage


def test_an_unknown_scheme_raises_with_a_hint():
    with pytest.raises(StorageError) as caught:
        BeamStorage().size("azfs://account/container/a")
    assert 'pip install "apache-beam[azure]"' in caught.value.hint
    with pytest.raises(StorageError) as caught:
        BeamStorage().size("none://a")
    assert "no file system for none://" in caught.value.hint


def test_errors_of_any_class_become_storage_errors(tmp_path):
    with pytest.raises(StorageError, match="no ticket") as caught:
        BeamStorage().create(f"stubborn:/{tmp_path}/denied")
    assert caught.value.path == f"stubborn:/{tmp_path}/denied"
    assert "configuration that Beam needs for stubborn://" in caught.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"not a directory|file exists"):
        BeamStorage().create(f"{tmp_path}/file/a")


# -- uploads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [SMALL, LARGE, LARGE + LARGE])
@pytest.mark.parametrize("new", [False, True])
def test_a_partial_upload_never_appears(gs, data, new):
    path = f"{gs.root}/a"

    def stops():
        file = gs.storage.create(path, new=new)
        try:
            file.write(data)
            raise RuntimeError("stops here")
        finally:
            file.close()

    with pytest.raises(RuntimeError):
        stops()
    file = gs.storage.create(path, new=new)
    file.write(data)  # nobody closes it
    gs.storage._files.clear()
    del file
    gc.collect()
    assert gs.storage.list(gs.root) == []
    assert gs.storage.read(gs.put("a", data, new=new)) == data


@pytest.mark.parametrize("data", [b"", SMALL, LARGE])
def test_another_attempt_that_has_done_the_same_is_no_error(gs, data):
    path = gs.put("a", data, new=True)
    generation = gs.storage._find(path).generation
    gs.put("a", data, new=True)
    assert gs.storage._find(path).generation == generation


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_another_attempt_that_ends_first_wins(gs, data):
    path = f"{gs.root}/a"
    same, other = gs.storage.create(path, new=True), GcsStorage()
    same.write(data)
    late = other.create(path, new=True)
    late.write(data[:-1])
    gs.put("a", data, new=True)  # under the hands of both
    GcsStorage.sync(other, gs.put("b", b""))
    with pytest.raises(StorageError, match="other bytes") as caught:
        other.sync(path)
    assert "another job" in caught.value.hint
    same.finish()
    late.close()
    assert gs.storage.read(path) == data


def test_an_upload_is_compared_with_what_was_sent(gs, monkeypatch):
    path = f"{gs.root}/a"
    file = gs.storage.create(path, new=True)
    file.write(LARGE)
    file._file._crc ^= 1
    with pytest.raises(StorageError, match="not 1,048,576 bytes of the expected checksum"):
        gs.storage.sync(path)
    assert gs.storage.size(path) is None


def test_an_upload_that_fails_is_told_and_does_not_appear(gs, monkeypatch):
    path = f"{gs.root}/none"
    file = GcsStorage().create(path.replace("bkt", "no-bucket"))
    with pytest.raises(StorageError, match="404") as caught:
        file.write(LARGE)
    assert "gs://" in caught.value.hint
    file.close()
    for wrong in ("gs://bkt", "gs://bkt/"):
        with pytest.raises(StorageError, match="GCS path"):
            gs.storage.size(wrong)


def test_publishing_does_not_overwrite_what_another_process_has_put_there(gs, monkeypatch):
    source, target = gs.put("a", SMALL), f"{gs.root}/b"
    find = GcsStorage._find

    def found_and_replaced(storage, path):
        found = find(storage, path)
        if path == target and found is None:
            monkeypatch.undo()
            gs.put("b", b"other")
        return found

    monkeypatch.setattr(GcsStorage, "_find", found_and_replaced)
    with pytest.raises(StorageError, match="other bytes"):
        gs.storage.publish(source, target)
    assert gs.storage.read(target) == b"other"
    assert gs.storage.read(source) == SMALL


# -- joining ---------------------------------------------------------------------------------------


def parts(gs, count):
    pieces = [b"%d " % n * (n % 7) for n in range(count)]
    paths = [gs.put(f"part-{n:04d}", piece) for n, piece in enumerate(pieces)]
    return paths, b"".join(pieces)


def join(gs, paths, data, **options):
    facts = {"num_bytes": len(data), "crc32c": crc32c(data), "new": True, **options}
    gs.storage.compose(paths, f"{gs.root}/joined", **facts)


@pytest.mark.parametrize("count", [0, 1, 2, 32, 33, 100])
@pytest.mark.parametrize("new", [False, True])
def test_parts_are_joined(gs, count, new):
    paths, data = parts(gs, count)
    for _ in range(2):  # another attempt finds it done
        join(gs, paths, data, new=new)
    assert gs.storage.read(f"{gs.root}/joined") == data
    assert gs.storage.crc32c(f"{gs.root}/joined") == crc32c(data)
    assert len(gs.storage.list(gs.root)) == count + 1, "something is left of the rounds"


def test_parts_are_joined_in_many_rounds(gs, monkeypatch):
    monkeypatch.setattr("shardwriter.storage.gcs._MAX_SOURCES", 3)
    paths, data = parts(gs, 29)
    join(gs, paths, data)
    assert gs.storage.read(f"{gs.root}/joined") == data
    assert len(gs.storage.list(gs.root)) == 30


def test_joining_again_when_the_parts_are_gone(gs):
    paths, data = parts(gs, 40)
    join(gs, paths, data)
    for path in paths[::2]:
        gs.storage.delete(path)
    join(gs, paths, data)
    assert gs.storage.list(gs.root)[0] == "joined"
    with pytest.raises(StorageError, match="other bytes"):
        join(gs, paths, data + b"x")
    gs.storage.delete(f"{gs.root}/joined")
    with pytest.raises(StorageError, match="404"):
        join(gs, paths, data)
    assert len(gs.storage.list(gs.root)) == 20


def test_a_composed_object_is_compared(gs):
    paths, data = parts(gs, 5)
    for wrong in ({"num_bytes": len(data) + 1}, {"crc32c": 7}):
        with pytest.raises(StorageError, match="expected checksum"):
            join(gs, paths, data, **wrong)
        assert gs.storage.size(f"{gs.root}/joined") is None
    gs.put("joined", b"other")
    with pytest.raises(StorageError, match="other bytes"):
        join(gs, paths, data)
    assert gs.storage.read(f"{gs.root}/joined") == b"other"
    join(gs, paths, data, new=False)
    assert gs.storage.read(f"{gs.root}/joined") == data
