"""A run directory without a lock, and publication, on every kind of place."""

from __future__ import annotations

import json
import os
import pickle

import pytest

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")

from crashes import NEW, NO_SNAPSHOT, OLD, SCHEMA, Crash
from gcs_emulator import empty_bucket, gcs_emulator

from shardwriter.dataset.manifest import Manifest, parse_manifest
from shardwriter.dataset.naming import ShardPattern
from shardwriter.errors import OutputExists, StorageError
from shardwriter.formats.tfrecord import TFRecordWriter
from shardwriter.storage import LocalStorage
from shardwriter.storage.beam import BeamStorage
from shardwriter.storage.gcs import GcsStorage
from shardwriter.writing.open_shards import ShardFile
from shardwriter.writing.publication import (
    COMMIT,
    begin_run,
    check_output,
    finished_manifest,
    is_committed,
    publish,
    roll_forward,
    write_index,
)
from shardwriter.writing.run_directory import RunDirectory


@pytest.fixture(scope="module")
def bucket():
    with gcs_emulator() as url:
        yield url


@pytest.fixture(params=[LocalStorage, BeamStorage, GcsStorage])
def kind(request):
    return request.param


@pytest.fixture
def root(kind, tmp_path, request):
    if kind is GcsStorage:
        url = request.getfixturevalue("bucket")
        empty_bucket()
        return f"{url}/{tmp_path.name}"
    return str(tmp_path)


def crashing(kind):
    """Return a storage of this kind that stops in front of its k-th change."""

    class Crashing(kind):
        def __init__(self, crash_at=None):
            super().__init__()
            self.calls, self.crash_at = [], crash_at

        def _count(self, *call):
            if len(self.calls) == self.crash_at:
                raise Crash
            self.calls.append(call)

        def create(self, path, *, new=False):
            self._count("create", os.path.basename(path))
            return super().create(path, new=new)

        def sync(self, path):
            self._count("sync", os.path.basename(path))
            super().sync(path)

        def publish(self, source, target):
            self._count("publish", os.path.basename(target))
            super().publish(source, target)

        def delete(self, path):
            self._count("delete", os.path.basename(path))
            super().delete(path)

    return Crashing


def shard_paths(run, pattern, shard, where):
    """Return where a shard and its index grow."""
    if where == "usual":
        return run.shard_path(shard), run.index_path(shard)
    own = f"{shard:05d}.00000000000000aa"
    if where == "attempt":
        return run.file(f"shard-{own}"), run.file(f"index-{own}")
    return os.path.join(run.directory, pattern.shard_file(shard)), run.file(f"index-{own}")


def fill(run, records, pattern, where, *, dali=False):
    begin_run(run, {"job": "sha256:00", "engine": "beam"})
    shards, files = [], {}
    for shard in range(pattern.num_shards):
        path, index_path = files[shard] = shard_paths(run, pattern, shard, where)

        def open_writer(on_flush, path=path):
            return TFRecordWriter(run.storage.create(path), on_flush=on_flush)

        with ShardFile(run.storage, path, index_path, open_writer) as file:
            for record in records[shard :: pattern.num_shards]:
                file.write(record)
            shards.append(file.seal())
    if where != "usual":
        run.adopt(files)
    index = write_index(run, pattern, shards, [], dali=dali)
    order = {"shuffle": None, "split": None}
    source = {"digest": "", "kind": "test"}
    kind = {"type": "none"}
    return Manifest(
        pattern, len(records), shards, [], kind, index, "sha256:00", source, order, SCHEMA
    )


def write_set(root, storage, records, num_shards=2, *, where="usual", **options):
    run = RunDirectory.unlocked(root, "train", storage)
    check_output(run, overwrite=True)
    pattern = ShardPattern("train.tfrecord", num_shards)
    publish(run, fill(run, records, pattern, where, **options))


def files(root, kind):
    """Names and bytes of what lies in a folder, those of run directories left out."""
    storage = kind()
    return {name: storage.read(os.path.join(root, name)) for name in storage.list(root)}


def expected(tmp_path, records, num_shards=2, **options):
    folder = tmp_path / "expected"
    folder.mkdir(exist_ok=True)
    write_set(str(folder), LocalStorage(), records, num_shards, **options)
    return files(str(folder), LocalStorage)


def empty(kind):
    if kind is GcsStorage:
        empty_bucket()


def wheres(kind):
    return ["usual", "attempt", "final"] if kind is GcsStorage else ["usual", "attempt"]


@pytest.mark.parametrize("dali", [False, True])
def test_a_set_is_the_same_everywhere(kind, root, tmp_path, dali):
    whole = expected(tmp_path, NEW, dali=dali)
    assert len(whole) == (6 if dali else 4)
    for where in wheres(kind):
        write_set(root, kind(), OLD, 3, where=where, dali=True)
        write_set(root, kind(), NEW, where=where, dali=dali)
        assert files(root, kind) == whole
        assert kind().list(f"{root}/.train.partial") == []
        assert not kind().is_directory(f"{root}/.train.partial")


def test_the_manifest_is_the_last_name(kind, root):
    for where in wheres(kind):
        storage = crashing(kind)()
        write_set(root, storage, NEW, where=where)
        published = [name for call, name in storage.calls if call == "publish"]
        published = [name for name in published if name.startswith("train.")]
        assert published[-2:] == ["train.index", "train.manifest.json"]
        assert len(published) == (2 if where == "final" else 4)
        commit = storage.calls.index(("sync" if kind is GcsStorage else "publish", COMMIT))
        assert storage.calls.index(("publish", "train.index")) > commit


@pytest.mark.parametrize("where", ["usual", "attempt", "final"])
def test_a_stop_at_any_call_leaves_no_dataset_or_a_complete_one(kind, root, tmp_path, where):
    if where not in wheres(kind):
        pytest.skip("shards are not written under their final names where they are seen growing")
    whole = expected(tmp_path, NEW)
    storage = crashing(kind)()
    write_set(f"{root}/0", _made(kind, storage, f"{root}/0"), NEW, where=where)
    for crash_at in range(len(storage.calls)):
        folder = f"{root}/{crash_at + 1}"
        with pytest.raises(Crash):
            write_set(folder, _made(kind, crashing(kind)(crash_at), folder), NEW, where=where)
        left = RunDirectory.unlocked(folder, "train", kind())
        committed = is_committed(left)
        if finished_manifest(left):
            assert files(folder, kind) == whole, storage.calls[crash_at]
        if not committed and finished_manifest(left) is None:
            worth = left.is_resumable
            assert worth == (kind().read(left.file("run.json")) is not None)
            check_output(left, overwrite=True)
            left.discard()
            begun = set(files(folder, kind))
            assert begun <= (set(whole) if where == "final" else set()), storage.calls[crash_at]
            continue
        check_output(left, overwrite=True)
        left.discard()
        assert files(folder, kind) == whole, storage.calls[crash_at]
        assert kind().list(left.path) == []
        empty(kind)


def _made(kind, storage, folder):
    storage.make_directory(folder)
    return storage


def test_roll_forward_can_be_stopped_and_repeated(kind, root, tmp_path):
    whole = expected(tmp_path, NEW)
    for crash_at in range(13):
        folder = f"{root}/{crash_at}"
        write_set(folder, _made(kind, kind(), folder), OLD, 3)
        run = RunDirectory.unlocked(folder, "train", kind())
        manifest = fill(run, NEW, ShardPattern("train.tfrecord", 2), "attempt")
        run.write_synced(COMMIT, manifest.dumps().encode())
        with pytest.raises(Crash):
            roll_forward(RunDirectory.unlocked(folder, "train", crashing(kind)(crash_at)))
        roll_forward(RunDirectory.unlocked(folder, "train", kind()))
        assert files(folder, kind) == whole
        empty(kind)


def test_a_claimed_run_directory_finishes_what_was_adopted(tmp_path):
    """Also when the folder has moved meanwhile."""
    whole = expected(tmp_path, NEW)
    (tmp_path / "a").mkdir()
    run = RunDirectory.unlocked(str(tmp_path / "a"), "train", LocalStorage())
    manifest = fill(run, NEW, ShardPattern("train.tfrecord", 2), "attempt")
    run.write_synced(COMMIT, manifest.dumps().encode())
    os.rename(tmp_path / "a", tmp_path / "b")
    with RunDirectory.claim(str(tmp_path / "b"), "train", LocalStorage()) as claimed:
        assert claimed.shard_path(1).endswith("/b/.train.partial/shard-00001.00000000000000aa")
        check_output(claimed, overwrite=True)
        claimed.discard()
    assert files(str(tmp_path / "b"), LocalStorage) == whole
    assert os.listdir(tmp_path / "b").count(".train.partial") == 0


# -- what is adopted -------------------------------------------------------------------------------


def test_adopted_files_are_known_to_all(kind, root):
    run = RunDirectory.unlocked(root, "train", kind())
    run.begin({})
    usual = run.shard_path(0), run.index_path(0)
    files = {
        1: (run.file(f"shard-00001.{17:016x}"), run.file("index-00001.00000000000000bb")),
        2: (run.file(f"part-00002-000003.{18:016x}"), run.file("index-00002.00000000000000cc")),
    }
    run.adopt(files)
    for each in (
        run,
        RunDirectory.unlocked(root, "train", kind()),
        pickle.loads(pickle.dumps(run)),
    ):
        assert (each.shard_path(0), each.index_path(0)) == usual
        for shard, paths in files.items():
            assert (each.shard_path(shard), each.index_path(shard)) == paths
    table = json.loads(run.read("files.json"))
    assert table["1"] == [
        ".train.partial/shard-00001.0000000000000011",
        ".train.partial/index-00001.00000000000000bb",
    ]
    run.begin({})  # another run has none of it
    for each in (run, RunDirectory.unlocked(root, "train", kind())):
        assert each.shard_path(1) == run.file("shard-00001")


@pytest.mark.parametrize(
    "text",
    [
        *(b"{", b"[]", b'{"0":1}', b'{"a":["b","c"]}', b'{"0":["b"]}'),
        b'{"0":["gs://other/shard-00000.00000000000000aa","/elsewhere/index"]}',
    ],
)
def test_a_list_of_files_that_can_not_be_understood_is_refused(tmp_path, text):
    run = RunDirectory.unlocked(str(tmp_path), "train", LocalStorage())
    run.begin({})
    run.write_synced("files.json", text)
    with pytest.raises(StorageError, match="not a valid list of shard files") as caught:
        RunDirectory.unlocked(str(tmp_path), "train", LocalStorage()).shard_path(0)
    assert caught.value.path == run.file("files.json")


@pytest.mark.parametrize("damage", ["shorter", "same size", "gone"])
def test_a_shard_under_its_final_name_is_not_taken_for_another(bucket, tmp_path, damage):
    root, storage = f"{bucket}/{tmp_path.name}", GcsStorage()
    run = RunDirectory.unlocked(root, "train", storage)
    pattern = ShardPattern("train.tfrecord", 2)
    manifest = fill(run, NEW, pattern, "final")
    path = run.shard_path(1)
    data = storage.read(path)
    storage.delete(path)
    if damage != "gone":
        file = storage.create(path)
        file.write(data[:-1] + (b"" if damage == "shorter" else b"\x00"))
        storage.sync(path)
    with pytest.raises(StorageError, match="is gone") as caught:
        publish(run, manifest)
    assert caught.value.path == path
    assert finished_manifest(run) is None


# -- one writer ------------------------------------------------------------------------------------


def test_a_beam_run_is_worth_keeping(kind, root):
    run = RunDirectory.unlocked(root, "train", kind())
    assert not run.is_resumable
    begin_run(run, {"engine": "beam"})
    for each in (run, RunDirectory.unlocked(root, "train", kind())):
        assert each.is_resumable
        with pytest.raises(OutputExists, match="an unfinished run") as caught:
            check_output(each, overwrite=False)
        assert "Beam" in caught.value.hint
        check_output(each, overwrite=True)
    if kind is LocalStorage:
        with (
            RunDirectory.claim(root, "train", kind()) as claimed,
            pytest.raises(OutputExists, match="an unfinished run"),
        ):
            check_output(claimed, overwrite=False)
    run.discard()
    assert not RunDirectory.unlocked(root, "train", kind()).is_resumable


@pytest.mark.parametrize("facts", [{"engine": "process"}, {}])
def test_other_runs_without_marks_are_not(kind, root, facts):
    run = RunDirectory.unlocked(root, "train", kind())
    run.begin(facts)
    assert not run.is_resumable
    run.write_synced("run.json", b"torn")
    assert not run.is_resumable


def test_a_run_that_is_worth_nothing_is_not_beams_when_it_can_not_be_read(kind, root, monkeypatch):
    run = RunDirectory.unlocked(root, "train", kind())
    run.begin({"engine": "beam"})

    def fails(_storage, path):
        raise StorageError("no route", path=path)

    monkeypatch.setattr(kind, "read", fails)
    with pytest.raises(StorageError, match="no route"):
        check_output(run, overwrite=False)


def test_discarding_leaves_a_lock_that_another_holds(tmp_path):
    with RunDirectory.claim(str(tmp_path), "train", LocalStorage()):
        run = RunDirectory.unlocked(str(tmp_path), "train", LocalStorage())
        run.begin({})
        with run:  # gives back nothing
            run.discard()
        assert os.listdir(run.path) == ["lock"]


def test_small_files_and_marks_are_stored(kind, root):
    run = RunDirectory.unlocked(root, "train", kind())
    run.begin({"engine": "beam"})
    run.write_snapshot(0, 0, NO_SNAPSHOT)
    again = RunDirectory.unlocked(root, "train", kind())
    assert again.facts()["engine"] == "beam"
    assert again.read_snapshots(0, 0) == [NO_SNAPSHOT]
    assert again.storage.list(run.path) == ["mark-0-0", "run.json"]
    run.discard()
    run.discard()
    assert kind().list(run.path) == []


def test_a_folder_in_the_way_is_refused_before_the_commit(tmp_path):
    for kind in (LocalStorage, BeamStorage):
        root = str(tmp_path / kind.__name__)
        os.makedirs(f"{root}/train.tfrecord-00001-of-00002")
        with pytest.raises(StorageError, match="a folder of this name"):
            write_set(root, kind(), NEW)
        assert sorted(os.listdir(root)) == [".train.partial", "train.tfrecord-00001-of-00002"]


def test_what_was_published_is_the_manifest(kind, root):
    write_set(root, kind(), NEW)
    run = RunDirectory.unlocked(root, "train", kind())
    data = kind().read(f"{root}/train.manifest.json")
    assert finished_manifest(run) == parse_manifest(data)
    with pytest.raises(OutputExists, match="exists already"):
        check_output(run, overwrite=False)
