"""Beam jobs on an object store: Google's, as an emulator on the loopback."""

from __future__ import annotations

import json
from ast import literal_eval
from contextlib import suppress
from dataclasses import replace

import pytest
from beam_jobs import Blobs, Numbers, Stream, contents, drop_some, run

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
pytest.importorskip("gcp_storage_emulator", reason="the emulator is not installed")
import apache_beam as beam
from gcs_emulator import empty_bucket, gcs_emulator

import shardwriter as sw
from shardwriter.cluster import ReadShards, ShardStats, WriteShards
from shardwriter.cluster.steps import publish_shards, write_shard
from shardwriter.cluster.task import task_of
from shardwriter.dataset.naming import parse_output
from shardwriter.errors import OutputExists, RunError, StorageError
from shardwriter.sources.find import open_source
from shardwriter.storage.protocol import storage_for
from shardwriter.writing.options import DatasetOptions, RunOptions

N = 5


@pytest.fixture(scope="module")
def emulator():
    with gcs_emulator() as url:
        yield url


@pytest.fixture
def bucket(emulator):
    empty_bucket()
    return emulator


def objects(folder):
    """Return the objects of a folder, by name; nothing may be left beside them."""
    storage = storage_for(folder)
    assert storage.list(f"{folder}/.train.partial") == []
    return {name: storage.read(f"{folder}/{name}") for name in storage.list(folder)}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(
    ("source", "strategy"),
    [
        (Numbers(503), "strided"),
        (Numbers(503), "chunked"),
        (Stream(53), "auto"),
        (Numbers(0), "auto"),
    ],
)
def test_the_same_objects(tmp_path, bucket, source, strategy, compression, overwrite):
    options = DatasetOptions(map=drop_some, label="label", compression=compression)
    sw.write(source, tmp_path / f"train@{N}", map=drop_some, label="label", compression=compression)
    out = f"{bucket}/out/train@{N}"
    if overwrite:  # then what is there stays until the new set is whole
        run(WriteShards(out, source=Numbers(9)))
    transform = WriteShards(
        out, source=source, options=options, strategy=strategy, run=RunOptions(overwrite=overwrite)
    )
    run(transform)
    assert objects(f"{bucket}/out") == contents(tmp_path)


def test_items_by_their_keys(tmp_path, bucket):
    items = [Numbers(100)[i] for i in range(100)]
    sw.write(items, tmp_path / f"train@{N}", order="key", key="id")
    begin = beam.Create(items[::-1])
    run(WriteShards(f"{bucket}/train@{N}", key="id", num_buckets=4), begin=begin)
    ours, local = objects(bucket), contents(tmp_path)
    assert ours.keys() == local.keys()
    assert all(ours[name] == local[name] for name in ours if not name.endswith(".json"))


def test_a_shard_of_many_parts_and_one_in_many_requests(tmp_path, bucket):
    # 40 parts are more than can be joined at once; 20 MB are more than one request takes.
    source = Blobs(40, 500_000)
    sw.write(source, tmp_path / "train@1")
    plan = tmp_path / "plan.json"
    run(WriteShards(f"{bucket}/a/train@1", source=source, strategy="chunked", plan=str(plan)))
    plan.write_text(
        json.dumps({**json.loads(plan.read_text()), "chunk_records": 1, "block_runs": 1})
    )
    run(WriteShards(f"{bucket}/b/train@1", source=source, strategy="chunked", plan=str(plan)))
    run(WriteShards(f"{bucket}/c/train@1", source=source, strategy="strided"))
    plan.unlink()
    for folder in "abc":
        assert objects(f"{bucket}/{folder}") == contents(tmp_path)


def test_reading_and_proving(tmp_path, bucket):
    sw.write(Numbers(100), tmp_path / f"train@{N}")
    run(WriteShards(f"{bucket}/train@{N}", source=Numbers(100)))
    found = tmp_path / "found.json"
    run(_Keep(ShardStats(f"{bucket}/train"), found))
    told = json.loads(found.read_text())
    assert told == json.loads(json.dumps(sw.stats(f"{bucket}/train").to_json()))
    assert told["verdict"].startswith("OK: 100 records in 5 shards, every CRC right")
    run(_Keep(ReadShards(f"{bucket}/train", numbered=True) | beam.combiners.ToList(), found))
    records = sorted(literal_eval(found.read_text()))
    assert [index for index, _ in records] == list(range(100))
    assert [sw.decode_example(record)["id"][0] for _, record in records] == [
        Numbers(100)[i]["id"].encode() for i in range(100)
    ]


class _Keep(beam.PTransform):
    """Keeps the one element of a transform in a file."""

    def __init__(self, transform, path):
        super().__init__()
        self._transform, self._path = transform, str(path)

    def expand(self, pcoll):
        return pcoll | self._transform | beam.Map(_write, self._path)


def _write(value, path):
    with open(path, "w") as file:
        file.write(value if isinstance(value, str) else repr(value))


def test_a_copy_from_bucket_to_bucket(tmp_path, bucket):
    sw.write(Numbers(100), tmp_path / f"train@{N}")
    sw.write(str(tmp_path / "train"), tmp_path / "copy" / "train@3")
    run(WriteShards(f"{bucket}/a/train@{N}", source=Numbers(100)))
    run(WriteShards(f"{bucket}/b/train@3", source=f"{bucket}/a/train"))
    assert objects(f"{bucket}/b") == contents(tmp_path / "copy")


# -- who is late, and who is in the way ------------------------------------------------------------


def task_for(bucket, source, **more):
    output = parse_output(f"{bucket}/train@{N}", urls=True)
    task = task_of(
        open_source(source), output, DatasetOptions(), RunOptions(**more), strategy="strided"
    )
    task.out.enter()
    return task


def make(task, shard):
    return write_shard(task.job, task.out, shard, skip_errors=False, max_errors=None).to_bytes()


def forget(task):
    """Delete what is known of finished shards, as if their attempts had not come so far."""
    run = task.out.run()
    for name in task.out.storage.list(run.path):
        if name.startswith("done-"):
            task.out.storage.delete(run.file(name))


def test_attempts_that_do_the_same_work(tmp_path, bucket):
    task = task_for(bucket, Numbers(100))
    assert task.out.writes_final_names
    values = [make(task, shard) for shard in range(N)]
    forget(task)
    again = [make(task, shard) for shard in range(N)]
    publish_shards(task, [*again[:2], *values[2:]])
    sw.write(Numbers(100), tmp_path / f"train@{N}")
    assert objects(bucket) == contents(tmp_path)


def test_an_attempt_that_does_other_work_is_refused(bucket):
    task = task_for(bucket, Numbers(100))
    make(task, 0)
    forget(task)
    other = replace(task, payload=task_for_other(bucket))
    with pytest.raises(StorageError):
        make(other, 0)


def task_for_other(bucket):
    output = parse_output(f"{bucket}/elsewhere/train@{N}", urls=True)
    return task_of(
        open_source(Numbers(90)), output, DatasetOptions(), RunOptions(), strategy="strided"
    ).payload


def test_a_worker_that_is_late_changes_nothing(tmp_path, bucket):
    task = task_for(bucket, Numbers(100))
    publish_shards(task, [make(task, shard) for shard in range(N)])
    before = objects(bucket)
    with suppress(RunError, StorageError):
        make(task, 3)
    names = set(storage_for(bucket).list(bucket))
    assert names == set(before)
    assert all(storage_for(bucket).read(f"{bucket}/{name}") == before[name] for name in names)


def test_what_is_there_is_refused_and_can_be_replaced(tmp_path, bucket):
    task = task_for(bucket, Numbers(100))
    make(task, 0)
    with pytest.raises(OutputExists):
        task_for(bucket, Numbers(100))
    resumed = task_for(bucket, Numbers(100), resume=True)
    publish_shards(resumed, [make(resumed, shard) for shard in range(N)])
    sw.write(Numbers(100), tmp_path / f"train@{N}")
    assert objects(bucket) == contents(tmp_path)
    with pytest.raises(OutputExists):
        task_for(bucket, Numbers(100))
    other = task_for(bucket, Numbers(7), overwrite=True)
    assert not other.out.writes_final_names
    values = [make(other, shard) for shard in range(N)]
    assert sw.stats(f"{bucket}/train").num_defects == 0
    publish_shards(other, values)
    assert sw.stats(f"{bucket}/train").sizes.count == 7
