"""The whole of a write: the law, proof, refusals, and what stays after an error."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from paths import TESTS

import shardwriter as sw
from shardwriter.dataset.permutation import Permutation
from shardwriter.errors import (
    CallableError,
    OptionError,
    OutputBusy,
    OutputExists,
    SchemaConflict,
    SourceError,
    StorageError,
)
from shardwriter.formats.crc32c import crc32c
from shardwriter.schema.feature_types import FeatureType, parse_schema_option
from shardwriter.storage import LocalStorage
from shardwriter.storage.local import LocalFile
from shardwriter.writing import publication
from shardwriter.writing import write as writing
from shardwriter.writing.journal import Snapshot
from shardwriter.writing.run_directory import RunDirectory


def features(count: int) -> list[dict[str, object]]:
    return [{"x": i, "y": np.arange(i % 4, dtype=np.float32)} for i in range(count)]


def records(out: Path, name: str, num_shards: int) -> list[list[bytes]]:
    return [
        list(sw.read_records(out / f"{name}.tfrecord-{s:05d}-of-{num_shards:05d}"))
        for s in range(num_shards)
    ]


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


@pytest.mark.filterwarnings("ignore:there are no items")
@pytest.mark.parametrize("num_shards", [1, 3, 7, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 8, 100])
def test_shard_s_holds_items_s_s_plus_n_and_so_on(
    tmp_path: Path, num_shards: int, count: int
) -> None:
    data = features(count)
    manifest = sw.write(data, tmp_path / f"t@{num_shards}")
    payloads = [sw.encode_example(item) for item in data]
    assert records(tmp_path, "t", num_shards) == [
        payloads[s::num_shards] for s in range(num_shards)
    ]
    assert manifest.num_records == manifest.num_items == count
    assert sw.verify(str(tmp_path / "t")).num_defects == 0


def test_two_writes_give_the_same_bytes_also_manifest_and_index(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sw.write(features(50), tmp_path / name / "t@4", run=sw.RunOptions(dali_index=True))
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert len(digest(tmp_path / "a")) == 4 + 4 + 2


def test_bytes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    code = (
        "import sys, shardwriter as sw\n"
        "keys = [f'k{i}' for i in range(20)]\n"
        "data = [{k: i for k in set(keys)} for i in range(9)]\n"
        "sw.write(data, sys.argv[1] + '/t@2', label='k3')\n"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, str(tmp_path / seed)]
        subprocess.run(command, env=environment, check=True)
    assert digest(tmp_path / "1") == digest(tmp_path / "2")


def test_golden_shards(tmp_path: Path) -> None:
    """These bytes are a promise: they change only with a new version of the format."""
    data = [
        {"a": 1, "b": 0.5, "c": "é", "d": [b"", b"x"], "e": np.arange(3, dtype=np.int16)},
        {"a": -1, "c": "", "e": np.zeros(0, np.int16)},
        {"a": 2**62, "b": -0.0, "c": "z", "d": [b"y"], "e": np.array([7], np.int16)},
    ]
    sw.write(data, tmp_path / "golden@2", run=sw.RunOptions(dali_index=True))
    assert digest(tmp_path) == json.loads((TESTS / "golden" / "golden.json").read_text())


def test_the_parent_folder_is_made(tmp_path: Path) -> None:
    sw.write(features(3), tmp_path / "deep" / "er" / "t@2")
    assert (tmp_path / "deep" / "er" / "t.manifest.json").exists()


def test_no_trace_of_the_run_is_left(tmp_path: Path) -> None:
    sw.write(features(3), tmp_path / "t@2")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "t.index",
        "t.manifest.json",
        "t.tfrecord-00000-of-00002",
        "t.tfrecord-00001-of-00002",
    ]


def test_the_manifest_tells_what_was_written(tmp_path: Path) -> None:
    manifest = sw.write(features(5), tmp_path / "t@2", label="x")
    text = json.loads((tmp_path / "t.manifest.json").read_text())
    assert text == manifest.to_json()
    assert text["shards"]["records"] == [3, 2]
    assert text["labels"]["counts"] == {str(i): 1 for i in range(5)}
    assert text["labels"]["shards"]["3"] == [0, 1]
    assert text["schema"]["features"]["y"] == {
        "dtype": "float32",
        "encoding": "list",
        "kind": "float",
        "present": 5,
        "shape": [None],
        "unset": 0,
    }
    assert text["source"]["kind"] == "python"


def test_machine_facts_stay_out_of_the_manifest(tmp_path: Path) -> None:
    sw.write(features(5), tmp_path / "t@2")
    text = (tmp_path / "t.manifest.json").read_text()
    for fact in (str(tmp_path), os.uname().nodename, sw.__version__):
        assert fact not in text


def test_skip_leaves_a_gap_and_keeps_every_other_index(tmp_path: Path) -> None:
    def odd_only(item: dict[str, int]) -> object:
        return item if item["x"] % 2 else sw.SKIP

    manifest = sw.write([{"x": i} for i in range(11)], tmp_path / "t@3", map=odd_only)
    assert list(manifest.gaps) == [0, 2, 4, 6, 8, 10]
    assert manifest.num_items == 11
    assert manifest.num_records == 5
    found = [
        [int(sw.decode_example(p)["x"][0]) for p in shard] for shard in records(tmp_path, "t", 3)
    ]
    assert found == [[3, 9], [1, 7], [5]]
    assert sw.verify(str(tmp_path / "t")).num_defects == 0


def test_limit_counts_items_before_the_map(tmp_path: Path) -> None:
    manifest = sw.write(features(10), tmp_path / "t@2", limit=4, map=lambda f: f)
    assert manifest.num_items == 4


def test_shuffle_writes_the_permutation_of_the_seed(tmp_path: Path) -> None:
    manifest = sw.write([{"x": i} for i in range(20)], tmp_path / "t@1", shuffle_seed=3)
    order = [int(sw.decode_example(p)["x"][0]) for p in records(tmp_path, "t", 1)[0]]
    assert order == Permutation(20, 3)(range(20)).tolist()
    assert manifest.order == {"shuffle": {"algorithm": "feistel8/1", "seed": 3}, "split": None}


def test_a_stream_can_not_be_shuffled(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can not be shuffled"):
        sw.write(iter(features(3)), tmp_path / "t@2", shuffle_seed=0)
    assert list(tmp_path.iterdir()) == []


def test_a_stream_of_unknown_length_needs_n(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="N can not be chosen") as caught:
        sw.write(iter(features(3)), tmp_path / "t")
    assert "@16" in (caught.value.hint or "")


def test_n_is_chosen_where_the_length_is_known(tmp_path: Path) -> None:
    assert sw.write(features(3), tmp_path / "t").num_shards == 1


@pytest.mark.parametrize("out", ["t@0", "t@x", "t@1000000", "@4", "t@-1"])
def test_an_n_out_of_range_is_refused(tmp_path: Path, out: str) -> None:
    with pytest.raises(OptionError):
        sw.write(features(3), tmp_path / out)


def test_a_finished_dataset_is_not_touched_without_overwrite(tmp_path: Path) -> None:
    sw.write(features(3), tmp_path / "t@2")
    before = digest(tmp_path)
    for other in ("t@2", "t@3", "t.record@2", "t@2.tfrecord"):
        with pytest.raises(OutputExists, match="exists already"):
            sw.write(features(9), tmp_path / other)
    assert digest(tmp_path) == before


def test_foreign_shards_of_the_name_are_not_touched_either(tmp_path: Path) -> None:
    (tmp_path / "t-00000-of-00001.tfrecord").write_bytes(b"")
    with pytest.raises(OutputExists):
        sw.write(features(3), tmp_path / "t@2")


def test_overwrite_replaces_every_generation(tmp_path: Path) -> None:
    sw.write(features(3), tmp_path / "t@5", run=sw.RunOptions(dali_index=True))
    (tmp_path / "other-00000-of-00001").write_bytes(b"")
    sw.write(features(4), tmp_path / "t@2", run=sw.RunOptions(overwrite=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "other-00000-of-00001",
        "t.index",
        "t.manifest.json",
        "t.tfrecord-00000-of-00002",
        "t.tfrecord-00001-of-00002",
    ]
    assert sw.verify(str(tmp_path / "t")).num_defects == 0


def test_the_old_set_stays_whole_when_the_new_one_fails(tmp_path: Path) -> None:
    sw.write(features(3), tmp_path / "t@2")
    before = digest(tmp_path)

    def fails() -> object:
        yield {"x": 1}
        raise RuntimeError("source broke")

    with pytest.raises(CallableError, match="source broke") as caught:
        sw.write(fails, tmp_path / "t@2", run=sw.RunOptions(overwrite=True))
    assert caught.value.index == 1
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert digest(tmp_path) == before


def test_an_error_in_the_map_names_the_item(tmp_path: Path) -> None:
    def divide(item: dict[str, int]) -> dict[str, object]:
        return {"x": 1 // (item["x"] - 5)}

    with pytest.raises(CallableError, match="ZeroDivisionError") as caught:
        sw.write([{"x": i} for i in range(10)], tmp_path / "t@2", map=divide)
    assert caught.value.index == 5
    assert list(tmp_path.iterdir()) == []


def test_a_map_that_returns_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sw.DataError, match="returned None"):
        sw.write(features(2), tmp_path / "t@1", map=lambda f: None)


def test_a_feature_that_changes_its_type_names_both_items(tmp_path: Path) -> None:
    data = [{"v": 1}, {"v": 2}, {"v": 2.5}]
    with pytest.raises(SchemaConflict, match="item 0") as caught:
        sw.write(data, tmp_path / "t@2")
    assert caught.value.index == 2
    assert caught.value.feature == "v"


def test_a_schema_makes_ints_floats(tmp_path: Path) -> None:
    schema = parse_schema_option("v=float")
    sw.write([{"v": 1}, {"v": 2.5}], tmp_path / "t@1", schema=schema)
    values = [sw.decode_example(p)["v"].tolist() for p in records(tmp_path, "t", 1)[0]]
    assert values == [[1.0], [2.5]]


def test_a_schema_against_what_the_source_gives_is_refused(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "pytorch+data/examples/vision/fakedata/imagefolder"
    schema = {"image/height": FeatureType("float", "float32")}
    with pytest.raises(OptionError, match="image/height"):
        sw.write(str(folder), tmp_path / "t@2", schema=schema)
    assert list(tmp_path.iterdir()) == []


def test_label_and_schema_are_part_of_the_job(tmp_path: Path) -> None:
    jobs = {
        sw.write([{"x": 1, "y": "a"}], tmp_path / name / "t@1", **options).job
        for name, options in {
            "a": {},
            "b": {"label": "x"},
            "c": {"schema": {"y": FeatureType("bytes", "bytes")}},
            "d": {"schema": {"y": FeatureType("bytes", "string")}},
        }.items()
    }
    assert len(jobs) == 4


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, object(), 1j, [[1], [1, 2]]])
def test_a_value_with_no_place_names_item_and_feature(tmp_path: Path, value: object) -> None:
    with pytest.raises(sw.DataError) as caught:
        sw.write([{"v": 0}, {"v": value}], tmp_path / "t@2")
    assert (caught.value.index, caught.value.feature) == (1, "v")
    assert list(tmp_path.iterdir()) == []


def test_falsy_and_empty_records_are_records(tmp_path: Path) -> None:
    sw.write([b"", b"\0", {}], tmp_path / "t@2")
    assert records(tmp_path, "t", 2) == [[b"", b"\x0a\x00"], [b"\0"]]


def test_long_and_foreign_feature_names_are_kept(tmp_path: Path) -> None:
    names = ["n" * 200, "名前", "a very long field", "a very long fielt"]
    sw.write([dict.fromkeys(names, 1)], tmp_path / "t@1")
    assert sorted(sw.decode_example(records(tmp_path, "t", 1)[0][0])) == sorted(names)


def test_a_record_of_100_mib_works(tmp_path: Path) -> None:
    blob = bytes(100 << 20)
    manifest = sw.write([{"x": blob}], tmp_path / "t@1")
    assert manifest.payload_bytes > len(blob)
    assert sw.stats(str(tmp_path / "t")).num_defects == 0


def test_a_record_over_2_gib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwriter.writing.encode.MAX_PAYLOAD_BYTES", 1000)
    with pytest.raises(sw.DataError, match="2 GiB") as caught:
        sw.write([{"x": b""}, {"x": bytes(1000)}], tmp_path / "t@1")
    assert caught.value.index == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_self: LocalFile, _data: bytes) -> None:
        raise StorageError(os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "write", no_space)
        with pytest.raises(StorageError, match="No space"):
            sw.write(features(3), tmp_path / "t@2")
    assert list(tmp_path.iterdir()) == []
    sw.write(features(3), tmp_path / "t@2")


def test_a_file_size_limit_of_the_system_is_reported_with_the_file(tmp_path: Path) -> None:
    code = (
        "import resource, sys, shardwriter as sw\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    sw.write([{'x': bytes(50_000)}] * 20, sys.argv[1] + '/t@2')\n"
        "except sw.RunError as error:\n"
        "    print(type(error).__name__, error.exit_code, error.path)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("StorageError 3 ")
    assert "shard-0000" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file"):
        sw.write(features(3), tmp_path / "file" / "t@2")


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    with sw.open_writer(tmp_path / "t@2") as writer:
        writer.write({"x": 1})
        with pytest.raises(OutputBusy, match="by this program"):
            sw.write(features(3), tmp_path / "t@4")
    assert sw.stats(str(tmp_path / "t")).sizes.count == 1


def test_a_missing_source_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        sw.write(str(tmp_path / "nothing"), tmp_path / "t@2")
    with pytest.raises(SourceError, match="no files of a known format"):
        sw.write(str(tmp_path), tmp_path / "t@2")
    said: list[str] = []
    manifest = sw.write([], tmp_path / "t@2", notify=said.append)
    assert manifest.num_records == 0
    assert "no records" in said[0]
    assert sw.verify(str(tmp_path / "t")).num_defects == 0


def test_sorted_labels_bring_a_hint_and_mixed_ones_none(tmp_path: Path) -> None:
    said: list[str] = []
    data = [{"label": i // 4} for i in range(12)]
    sw.write(data, tmp_path / "a@2", label="label", notify=said.append)
    assert any("sorted order" in line for line in said)
    said.clear()
    sw.write(data, tmp_path / "b@2", label="label", shuffle_seed=1, notify=said.append)
    assert said == []


def test_a_label_that_is_nowhere_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    sw.write(features(3), tmp_path / "t@2", label="nope", notify=said.append)
    assert any("'nope'" in line for line in said)


KILLED = (
    "import os, sys, shardwriter as sw\n"
    "def items():\n"
    "    for i in range(100):\n"
    "        if i == 50: os.kill(os.getpid(), 9)\n"
    "        yield {'x': i}\n"
    "run = sw.RunOptions(mark_s=float(sys.argv[2]))\n"
    "sw.write(items, sys.argv[1] + '/t@2', run=run)\n"
)


def test_a_killed_run_leaves_no_final_name_and_is_discarded_on_request(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run([*command, "0"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir()] == [".t.partial"]
    for _ in range(2):
        with pytest.raises(OutputExists, match="unfinished run") as caught:
            sw.write(features(3), tmp_path / "t@2")
        assert "--resume` continues it" in caught.value.hint
    sw.write(features(3), tmp_path / "t@2", run=sw.RunOptions(overwrite=True))
    assert sw.verify(str(tmp_path / "t")).sizes.count == 3


def test_a_killed_run_that_came_to_no_mark_is_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run([*command, "1e9"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir()] == [".t.partial"]
    sw.write(features(3), tmp_path / "t@2")
    assert sw.verify(str(tmp_path / "t")).sizes.count == 3
    assert not (tmp_path / ".t.partial").exists()


def test_ctrl_c_publishes_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time, shardwriter as sw\n"
        "def items():\n"
        "    for i in range(1000):\n"
        "        print(i, flush=True); time.sleep(0.05); yield {'x': i}\n"
        "sw.write(items, sys.argv[1] + '/t@2')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == -signal.SIGINT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "run"),
    [
        ("checkpoint", sw.RunOptions(checkpoint_bytes=1000, mark_s=1e9)),
        ("mark", sw.RunOptions(mark_s=0)),
    ],
)
def test_work_that_a_snapshot_speaks_of_is_kept_after_an_error(
    tmp_path: Path, kind: str, run: sw.RunOptions
) -> None:
    def items() -> object:
        for _ in range(100):
            yield {"x": bytes(100)}
        raise RuntimeError

    with pytest.raises(CallableError):
        sw.write(items, tmp_path / "t@2", run=run)
    assert [p.name for p in tmp_path.iterdir()] == [".t.partial"]
    folder = tmp_path / ".t.partial"
    first = Snapshot.from_line((folder / f"{kind}-0-0").read_bytes())
    assert first is not None
    assert first.is_synced is (kind == "checkpoint")
    # What was done since is noted when the error comes.
    last = Snapshot.from_line((folder / "mark-0-0").read_bytes())
    assert last is not None
    assert last.number >= first.number
    assert last.counted_to == 100
    for snapshot in (first, last):
        assert sorted(snapshot.open_shards) == [0, 1]
        for number, written in snapshot.open_shards.items():
            data = (folder / f"shard-{number:05d}").read_bytes()
            assert 0 < written.file_bytes <= len(data)
            assert written.crc32c == crc32c(data[: written.file_bytes])
    assert [written.num_records for written in last.open_shards.values()] == [50, 50]


def test_a_run_that_came_to_no_snapshot_leaves_nothing_after_an_error(tmp_path: Path) -> None:
    def items() -> object:
        yield {"x": 1}
        raise RuntimeError

    run = sw.RunOptions(mark_s=1e9)
    for workers in (1, 2):
        with pytest.raises(CallableError):
            sw.write(items, tmp_path / "t@2", workers=workers, run=run)
        assert list(tmp_path.iterdir()) == []


def test_a_record_over_2_gib_of_a_block_of_rows_is_refused_by_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("x\nshort\n" + "long" * 300 + "\nshort\n")
    monkeypatch.setattr("shardwriter.formats.tfrecord.MAX_PAYLOAD_BYTES", 1000)
    with pytest.raises(sw.DataError, match="2 GiB") as caught:
        sw.write(str(tmp_path / "t.csv"), tmp_path / "out" / "t@1")
    assert caught.value.index == 1


def test_ctrl_c_after_the_publication_leaves_the_folder_of_another_write_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: list[RunDirectory] = []

    def publish_and_stop(run: RunDirectory) -> None:
        publication.complete(run)
        assert not (tmp_path / ".t.partial").exists()
        other.append(RunDirectory.claim(str(tmp_path), "t", LocalStorage()))
        other[0].begin({})
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "complete", publish_and_stop)
    with pytest.raises(KeyboardInterrupt):
        sw.write([{"a": 1}], tmp_path / "t@1")
    assert (tmp_path / ".t.partial/run.json").exists()
    other[0].release()
    assert not sw.verify(str(tmp_path / "t")).num_defects


def test_ctrl_c_after_the_publication_is_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_and_stop(run: RunDirectory) -> None:
        publication.complete(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "complete", publish_and_stop)
    with pytest.raises(KeyboardInterrupt):
        sw.write([{"a": 1}], tmp_path / "t@1")


def test_a_publication_that_was_interrupted_is_finished_by_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sw.write([{"x": 0}], tmp_path / "t@3")
    real = LocalStorage.publish
    count = 0

    def dies_at_the_fourth(self: LocalStorage, source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == 4:  # run.json, commit.json and one shard have their names
            raise KeyboardInterrupt
        real(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "publish", dies_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            sw.write(features(4), tmp_path / "t@2", run=sw.RunOptions(overwrite=True))
    assert not (tmp_path / "t.manifest.json").exists()
    with pytest.raises(OutputExists, match="exists already"):
        sw.write(features(9), tmp_path / "t@2")
    assert sw.verify(str(tmp_path / "t")).sizes.count == 4
    assert not (tmp_path / ".t.partial").exists()
    assert not list(tmp_path.glob("*-of-00003"))


def test_progress_ends_at_the_number_of_items(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []

    def slow() -> object:
        for i in range(5):
            time.sleep(0.06)
            yield {"x": i}

    sw.write(
        slow, tmp_path / "t@2", progress=lambda work: told.append((work.num_done, work.num_items))
    )
    assert len(told) > 1
    assert told[0][1] is None
    assert told[-1] == (5, 5)


def test_the_callers_list_is_not_touched(tmp_path: Path) -> None:
    data = features(5)
    copy = [dict(item) for item in data]
    sw.write(data, tmp_path / "t@2", shuffle_seed=1)
    assert [list(item) for item in data] == [list(item) for item in copy]
    assert [item["x"] for item in data] == [0, 1, 2, 3, 4]


def test_each_item_is_loaded_and_mapped_once(tmp_path: Path) -> None:
    loads: list[int] = []
    maps: list[int] = []

    class Data:
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> dict[str, int]:
            loads.append(index)
            return {"x": index}

    def note(item: dict[str, int]) -> dict[str, int]:
        maps.append(item["x"])
        return item

    sw.write(Data(), tmp_path / "t@2", map=note)
    assert loads == maps == list(range(9))
