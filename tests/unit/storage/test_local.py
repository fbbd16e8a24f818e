"""The contract that every storage keeps, and what the local one adds."""

from __future__ import annotations

import errno
import os

import pytest
from processes import open_below

from shardwriter.errors import StorageError
from shardwriter.storage import LocalStorage
from shardwriter.storage.local import storage_errors


class StorageContract:
    """What any storage does. A subclass gives ``storage`` and ``root``, a folder that exists."""

    @pytest.fixture
    def storage(self):
        raise NotImplementedError

    @pytest.fixture
    def root(self):
        raise NotImplementedError

    def put(self, storage, path, data):
        file = storage.create(path)
        file.write(data)
        file.close()

    def get(self, path):
        with open(path, "rb") as file:
            return file.read()

    def test_a_file_grows_piece_by_piece(self, storage, root):
        path = f"{root}/a"
        file = storage.create(path)
        for piece in (b"one", b"", b"two", bytes(1 << 20)):
            file.write(piece)
        storage.sync(path)
        assert storage.size(path) == 6 + (1 << 20)
        file.close()
        assert self.get(path) == b"onetwo" + bytes(1 << 20)

    def test_creating_empties_a_file(self, storage, root):
        self.put(storage, f"{root}/a", b"long text")
        self.put(storage, f"{root}/a", b"x")
        assert self.get(f"{root}/a") == b"x"

    @pytest.mark.parametrize("num_bytes", range(6))
    def test_appending_goes_on_behind_what_stands_and_cuts_the_rest_off(
        self, storage, root, num_bytes
    ):
        self.put(storage, f"{root}/a", b"01234")
        file = storage.append(f"{root}/a", num_bytes)
        assert storage.size(f"{root}/a") == num_bytes
        for piece in (b"", b"ab", b"cd"):
            file.write(piece)
        storage.sync(f"{root}/a")
        file.close()
        assert self.get(f"{root}/a") == b"01234"[:num_bytes] + b"abcd"

    def test_appending_and_closing_cuts_off(self, storage, root):
        self.put(storage, f"{root}/a", b"01234")
        storage.append(f"{root}/a", 3).close()
        storage.append(f"{root}/a", 3).close()
        assert self.get(f"{root}/a") == b"012"

    def test_appending_to_a_file_that_is_short_is_an_error(self, storage, root):
        self.put(storage, f"{root}/a", b"01234")
        with pytest.raises(StorageError, match="5 bytes and should have 6") as caught:
            storage.append(f"{root}/a", 6)
        assert caught.value.path == f"{root}/a"
        assert self.get(f"{root}/a") == b"01234"

    @pytest.mark.parametrize("num_bytes", [0, 1])
    def test_appending_to_a_file_that_is_not_there_is_an_error(self, storage, root, num_bytes):
        with pytest.raises(StorageError, match="no such file"):
            storage.append(f"{root}/a", num_bytes)
        assert storage.size(f"{root}/a") is None

    def test_files_are_appended_to_side_by_side(self, storage, root):
        for name in "abc":
            self.put(storage, f"{root}/{name}", b"begun, and torn")
        files = {name: storage.append(f"{root}/{name}", 5) for name in "abc"}
        for turn in range(5):
            for name, file in files.items():
                file.write(f" {name}{turn}".encode())
        for file in files.values():
            file.close()
        for name in files:
            expected = "begun" + "".join(f" {name}{turn}" for turn in range(5))
            assert self.get(f"{root}/{name}") == expected.encode()

    def test_a_created_file_is_there_before_anything_is_written(self, storage, root):
        file = storage.create(f"{root}/a")
        assert storage.size(f"{root}/a") == 0
        assert storage.list(root) == ["a"]
        file.close()

    def test_files_grow_side_by_side(self, storage, root):
        files = {name: storage.create(f"{root}/{name}") for name in "abc"}
        for turn in range(5):
            for name, file in files.items():
                file.write(f"{name}{turn}".encode())
        for file in files.values():
            file.close()
        for name in files:
            assert self.get(f"{root}/{name}") == "".join(f"{name}{t}" for t in range(5)).encode()

    def test_publishing_gives_the_final_name(self, storage, root):
        self.put(storage, f"{root}/a", b"data")
        storage.publish(f"{root}/a", f"{root}/b")
        storage.sync_directory(root)
        assert storage.list(root) == ["b"]
        assert self.get(f"{root}/b") == b"data"

    def test_publishing_replaces(self, storage, root):
        self.put(storage, f"{root}/a", b"new")
        self.put(storage, f"{root}/b", b"old")
        storage.publish(f"{root}/a", f"{root}/b")
        assert self.get(f"{root}/b") == b"new"

    def test_publishing_again_is_no_error(self, storage, root):
        self.put(storage, f"{root}/a", b"data")
        for _ in range(2):
            storage.publish(f"{root}/a", f"{root}/b")
        assert self.get(f"{root}/b") == b"data"

    def test_publishing_what_was_never_there_is_an_error(self, storage, root):
        with pytest.raises(StorageError):
            storage.publish(f"{root}/a", f"{root}/b")

    def test_a_name_can_be_used_again_after_it_was_published(self, storage, root):
        self.put(storage, f"{root}/a", b"one")
        storage.publish(f"{root}/a", f"{root}/b")
        self.put(storage, f"{root}/a", b"two")
        assert (self.get(f"{root}/a"), self.get(f"{root}/b")) == (b"two", b"one")

    def test_a_file_that_is_not_there_has_no_size(self, storage, root):
        assert storage.size(f"{root}/a") is None
        assert storage.size(f"{root}/none/a") is None

    def test_names_are_listed_in_order(self, storage, root):
        for name in ("b", "a", ".c", "é"):
            self.put(storage, f"{root}/{name}", b"")
        assert storage.list(root) == [".c", "a", "b", "é"]
        assert storage.list(f"{root}/none") == []

    def test_deleting(self, storage, root):
        self.put(storage, f"{root}/a", b"")
        for _ in range(2):  # what is not there is no error
            storage.delete(f"{root}/a")
        assert storage.size(f"{root}/a") is None

    def test_a_place_that_says_no_is_named(self, storage, root):
        self.put(storage, f"{root}/file", b"")
        path = f"{root}/none/a"
        for call in (
            lambda: storage.create(path),
            lambda: storage.append(path, 0),
            lambda: storage.sync(path),
            lambda: storage.sync_directory(f"{root}/none"),
        ):
            with pytest.raises(StorageError, match="no such file") as caught:
                call()
            assert caught.value.path.startswith(f"{root}/none")
            assert isinstance(caught.value.__cause__, OSError)


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self):
        return LocalStorage()

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)

    def test_folders_are_not_listed(self, storage, root):
        os.mkdir(f"{root}/folder")
        self.put(storage, f"{root}/a", b"")
        assert storage.list(root) == ["a"]

    def test_a_write_that_takes_a_part_goes_on(self, storage, root, monkeypatch):
        real_write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:3]))
        self.put(storage, f"{root}/a", b"0123456789")
        assert self.get(f"{root}/a") == b"0123456789"

    def test_a_full_disk_is_told_with_the_way_out(self, storage, root, monkeypatch):
        def full(_descriptor, _data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        file = storage.create(f"{root}/a")
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="no space left") as caught:
            file.write(b"x")
        assert caught.value.path == f"{root}/a"
        assert "free some space" in caught.value.hint
        file.close()

    def test_a_folder_is_no_file(self, storage, root):
        os.mkdir(f"{root}/folder")
        with pytest.raises(StorageError):
            storage.create(f"{root}/folder")
        with pytest.raises(StorageError):
            storage.delete(f"{root}/folder")
        with pytest.raises(StorageError):
            storage.list(__file__)

    def test_closed_files_hold_no_descriptor(self, storage, root):
        for name in "abc":
            self.put(storage, f"{root}/{name}", b"x")
            storage.append(f"{root}/{name}", 1).close()
            with pytest.raises(StorageError):
                storage.append(f"{root}/{name}", 2)
        assert open_below(root) == 0


class TestLocalStorageWithFewDescriptors(TestLocalStorage):
    """The same, when a file is closed and opened again behind the scenes."""

    @pytest.fixture
    def storage(self):
        return LocalStorage(max_open=2)

    def test_no_more_descriptors_are_held_than_allowed(self, storage, root):
        files = [storage.create(f"{root}/{n}") for n in range(50)]
        for turn in range(3):
            for file in files:
                file.write(b"%d" % turn)
            assert open_below(root) == 2
        for file in files:
            file.close()
        assert {self.get(f"{root}/{n}") for n in range(50)} == {b"012"}
        assert open_below(root) == 0


def test_at_least_one_file_can_be_open(tmp_path):
    storage = LocalStorage(max_open=0)
    for name in "ab":
        storage.create(str(tmp_path / name)).write(b"x")
    assert [storage.size(str(tmp_path / name)) for name in "ab"] == [1, 1]


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "permissions"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "ulimit"),
        (errno.EIO, None),
    ],
)
def test_errors_of_the_system_say_what_to_do(number, hint):
    with pytest.raises(StorageError) as caught, storage_errors("a/b"):
        raise OSError(number, os.strerror(number))
    assert caught.value.path == "a/b"
    assert hint is None if caught.value.hint is None else hint in caught.value.hint


# -- TensorFlow's writer ---------------------------------------------------------------------------


def test_tensorflow_writes_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tensorflow", reason="compares with TensorFlow's writer")
    from shardwriter.formats.tfrecord import TFRecordWriter
    from shardwriter.storage.tensorflow import TensorFlowRecordWriter

    records = [b"", b"a", bytes(range(256)) * 40, b"x" * 300_000]
    sizes = []
    theirs = TensorFlowRecordWriter(str(tmp_path / "theirs"), sizes.extend)
    ours = TFRecordWriter(tmp_path / "ours")
    for writer in (theirs, ours):
        for record in records:
            writer.write(record)
        writer.flush()
        assert (tmp_path / "theirs").stat().st_size == theirs.stream_bytes
        writer.close()
    assert (tmp_path / "theirs").read_bytes() == (tmp_path / "ours").read_bytes()
    for name in ("num_records", "payload_bytes", "stream_bytes", "crc32c"):
        assert getattr(theirs, name) == getattr(ours, name)
    assert sizes == [len(record) for record in records]
