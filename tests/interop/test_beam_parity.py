"""Beam jobs give the bytes of the serial engine, manifest and index too, on every runner."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import beam_jobs
import numpy as np
import pytest
from beam_jobs import RUNNERS, Numbers, Stream, assert_same, drop_some, run, runner_of

import shardwriter as sw
from shardwriter.writing.options import DatasetOptions, RunOptions

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
import apache_beam as beam

from shardwriter.cluster import WriteShards
from shardwriter.dataset.indices import item_indices
from shardwriter.errors import OptionError

N = 7


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        # Workers that are started anew find the modules of the tests.
        path = os.pathsep.join(filter(None, [str(beam_jobs.HERE), os.environ.get("PYTHONPATH")]))
        patch.setenv("PYTHONPATH", path)
        with runner_of(request.param, tmp_path_factory.mktemp("runner")) as found:
            yield found


def write_both(tmp_path, source, runner=None, *, strategy="auto", options=None, plan=None, **more):
    """Write a source serially and by Beam, and hold both against each other."""
    options = options or DatasetOptions(map=drop_some, label="label")
    serial, ours = tmp_path / "serial", tmp_path / "beam"
    sw.write(
        source,
        serial / f"train@{N}",
        map=options.map,
        filter=options.filter,
        limit=options.limit,
        shuffle_seed=options.shuffle_seed,
        label=options.label,
        compression=options.compression,
        names=options.names,
        indices=None if options.indices is None else options.indices.numbers,
        **more,
    )
    transform = WriteShards(
        ours / f"train@{N}",
        source=source,
        options=options,
        strategy=strategy,
        plan=plan,
        run=RunOptions(**more),
    )
    result = run(transform, runner)
    assert_same(ours, serial)
    return result


@pytest.mark.parametrize("strategy", ["strided", "chunked"])
@pytest.mark.parametrize("num_items", [0, 1, N - 1, N, N + 1, 1003])
def test_sequences(tmp_path, runner, num_items, strategy):
    options = DatasetOptions(map=drop_some, label="label", compression="gzip")
    write_both(tmp_path, Numbers(num_items), runner, strategy=strategy, options=options)


@pytest.mark.parametrize("num_items", [0, 1, N + 1, 1003])
def test_streams(tmp_path, runner, num_items):
    write_both(tmp_path, Stream(num_items), runner)


@pytest.mark.parametrize(("strategy", "compression"), [("strided", "none"), ("chunked", "gzip")])
def test_many_items(tmp_path, runner, strategy, compression):
    options = DatasetOptions(map=drop_some, label="label", compression=compression)
    write_both(tmp_path, Numbers(100_003), runner, strategy=strategy, options=options)


@pytest.mark.parametrize("num_items", [0, 1, N, 1003])
def test_items_by_their_keys(tmp_path, runner, num_items):
    items = [Numbers(num_items)[i] for i in range(num_items)]
    sw.write(items, tmp_path / "serial" / f"t@{N}", label="label", order="key", key="id")
    random.Random(num_items).shuffle(items)
    options = DatasetOptions(label="label")
    transform = WriteShards(tmp_path / "beam" / f"t@{N}", key="id", options=options, num_buckets=16)
    run(transform, runner, beam.Create(items))
    assert_same(tmp_path / "beam", tmp_path / "serial", without=["t.manifest.json"])
    ours, serial = (
        json.loads((tmp_path / side / "t.manifest.json").read_text()) for side in ("beam", "serial")
    )
    assert {name for name in ours if ours[name] != serial[name]} <= {"job", "source"}


# -- in memory: what does not depend on the runner -------------------------------------------------


class Tuples(Numbers):
    def __getitem__(self, index):
        return tuple(super().__getitem__(index).values())


@pytest.mark.parametrize("strategy", ["strided", "chunked"])
def test_chosen_tuples(tmp_path, strategy):
    names = tuple(Numbers(1)[0])
    chosen = item_indices(np.random.default_rng(0).permutation(1003)[:500])
    options = DatasetOptions(names=names, indices=chosen, limit=400, shuffle_seed=2)
    write_both(tmp_path, Tuples(1003), strategy=strategy, options=options)


def test_a_saved_dataset(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"id": range(500), "label": [i % 3 for i in range(500)]})
    (tmp_path / "saved").mkdir()
    with pa.ipc.new_stream(tmp_path / "saved" / "0.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=60)
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "0.arrow"}]}')
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    for number, options in enumerate([DatasetOptions(), DatasetOptions(shuffle_seed=1)]):
        folder = tmp_path / str(number)
        write_both(folder, str(tmp_path / "saved"), options=options)


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
@pytest.mark.parametrize("strategy", ["strided", "chunked"])
def test_compressions(tmp_path, strategy, compression):
    options = DatasetOptions(compression=compression)
    write_both(tmp_path, Numbers(5000), strategy=strategy, options=options)


@pytest.mark.parametrize("strategy", ["strided", "chunked"])
def test_selections(tmp_path, strategy):
    options = DatasetOptions(filter=_is_even, limit=300, shuffle_seed=3)
    write_both(tmp_path, Numbers(1000), strategy=strategy, options=options)


def test_a_stream_that_is_filtered(tmp_path):
    options = DatasetOptions(filter=lambda item: item["label"] != 2, limit=300)
    write_both(tmp_path, Stream(500), options=options)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_records_that_are_filtered(tmp_path, compression):
    sw.write(Numbers(300), tmp_path / "first@3", label="label", compression=compression)
    options = DatasetOptions(filter=_is_long)
    write_both(tmp_path, str(tmp_path / "first"), options=options)


def _is_long(record):
    return record % 3 if isinstance(record, int) else len(record.payload) > 60


def _is_even(index):
    return index % 2 == 0


@pytest.mark.parametrize("source", ["list", "sequence", "stream"])
def test_skipped_errors_and_the_ledger(tmp_path, source):
    data = beam_jobs.Broken(1000)
    if source == "list":
        data = [{"x": "text" if i % 100 == 50 else i} for i in range(1000)]
    elif source == "stream":
        data = _mixed
    options = DatasetOptions(schema={}, map=_checked if source != "sequence" else None)
    write_both(tmp_path, data, options=options, on_error="skip")
    ledger = (tmp_path / "beam" / "train.errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in ledger] == list(range(50, 1000, 100))


def _mixed():
    return ({"x": "text" if i % 100 == 50 else i} for i in range(1000))


def _checked(features):
    if isinstance(features["x"], str):
        raise ValueError("no number")
    return features


@pytest.mark.parametrize(("chunk_records", "block_runs"), [(1, 1), (1, 4), (3, 2), (50, 64)])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_any_cut_gives_the_same(tmp_path, chunk_records, block_runs, compression):
    source = Numbers(1003)
    options = DatasetOptions(map=drop_some, compression=compression)
    first, plan = tmp_path / "plan.json", tmp_path / "cut.json"
    write_both(tmp_path / "0", source, strategy="chunked", options=options, plan=str(first))
    told = json.loads(first.read_text())
    plan.write_text(json.dumps({**told, "chunk_records": chunk_records, "block_runs": block_runs}))
    write_both(tmp_path / "1", source, strategy="chunked", options=options, plan=str(plan))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_large_records_go_around_the_shuffle(tmp_path, compression):
    options = DatasetOptions(compression=compression)
    source = Blobs(30, large_at=(3, 4, 17))
    result = write_both(tmp_path, source, strategy="chunked", options=options)
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("group_bytes"))
    assert found["distributions"][0].committed.max > 6_000_000


class Blobs:
    """Records some of which are larger than a chunk may be."""

    def __init__(self, num_items, large_at):
        self._num_items, self._large_at = num_items, large_at

    def __len__(self):
        return self._num_items

    def __getitem__(self, index):
        if not 0 <= index < self._num_items:
            raise IndexError(index)
        return {
            "x": np.full(6_000_000 if index in self._large_at else 10, index % 100, "S3")[0]
            * (2_000_000 if index in self._large_at else 1)
        }


@pytest.mark.parametrize("strategy", ["strided", "chunked"])
def test_metrics(tmp_path, strategy):
    result = write_both(tmp_path, beam_jobs.Broken(500), strategy=strategy, on_error="skip")
    told = result.metrics().query(beam.metrics.MetricsFilter().with_namespace("shardwriter"))
    counters = {entry.key.metric.name: entry.committed for entry in told["counters"]}
    manifest = sw.verify(tmp_path / "beam" / "train").sets[0].shard_set.manifest
    assert counters == {
        "errors": 5,
        "gaps": len(manifest.gaps),
        "payload_bytes": manifest.payload_bytes,
        "records": manifest.num_records,
        "shards": N,
    }


def test_an_error_says_where_it_happened(tmp_path):
    # Item 50 is none of those that are sampled when the pipeline is made.
    transform = WriteShards(tmp_path / f"train@{N}", source=beam_jobs.Broken(149))
    with pytest.raises(Exception, match=r"item 50: loading the item raised ValueError") as told:
        run(transform)
    assert "while running" in str(told.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".train.partial"]


def test_collections_with_windows(tmp_path):
    items = [Numbers(100)[i] for i in range(100)]
    sw.write(items, tmp_path / "serial" / f"t@{N}", order="key", key="id")
    begin = beam.Create(items) | "Time" >> beam.Map(
        lambda item: beam.window.TimestampedValue(item, int(item["id"][5:]))
    )
    begin |= "Window" >> beam.WindowInto(beam.window.FixedWindows(10))
    run(WriteShards(tmp_path / "beam" / f"t@{N}", key="id", num_buckets=4), begin=begin)
    assert_same(tmp_path / "beam", tmp_path / "serial", without=["t.manifest.json"])


@pytest.mark.parametrize("key", ["id", lambda item: item["id"]])
def test_equal_keys_are_refused(tmp_path, key):
    items = [*(Numbers(50)[i] for i in range(50)), Numbers(50)[17]]
    transform = WriteShards(tmp_path / f"t@{N}", key=key, num_buckets=4)
    with pytest.raises(Exception, match="two items have the key 'item-0000017'"):
        run(transform, begin=beam.Create(items))


def test_a_collection_that_failed_leaves_nothing_behind_the_next_one(tmp_path):
    items = [{"id": i, "x": "text" if i == 77 else i} for i in range(100)]
    with pytest.raises(Exception, match="item"):
        run(WriteShards(tmp_path / f"t@{N}", key="id"), begin=beam.Create(items))
    transform = WriteShards(tmp_path / f"t@{N}", key="id", run=RunOptions(overwrite=True))
    run(transform, begin=beam.Create([{"id": i, "x": i} for i in range(100)]))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(beam_jobs.contents(tmp_path))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"x": 1}, "the item has no key"),
        ({"id": 0.5}, "a float can not be a key"),
        ([1, 2], "not a mapping of features"),
    ],
)
def test_items_without_keys(tmp_path, item, message):
    transform = WriteShards(tmp_path / f"t@{N}", key="id", num_buckets=4)
    with pytest.raises(Exception, match=message):
        run(transform, begin=beam.Create([{"id": 1}, item]))


def test_finished_records_by_a_function(tmp_path):
    records = [sw.encode_example(Numbers(100)[i]) for i in range(100)]
    sw.write(records, tmp_path / "serial" / f"t@{N}", order="key", key="id")
    transform = WriteShards(tmp_path / "beam" / f"t@{N}", key=_id_of, num_buckets=4)
    run(transform, begin=beam.Create(records))
    assert_same(tmp_path / "beam", tmp_path / "serial", without=["t.manifest.json"])


def _id_of(record):
    return sw.decode_example(record)["id"][0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "its items need keys"),
        ({"key": "id", "options": DatasetOptions(map=drop_some)}, "map, filter and limit"),
        ({"key": "id", "run": RunOptions(resume=True)}, "can not be compared"),
        ({"key": "id", "source": Numbers(3)}, "its items need keys"),
        ({"key": "id", "strategy": "strided"}, "strategy is for sources"),
        ({"key": "id", "format": "csv"}, "format is for sources"),
        ({"key": "id", "plan": "plan.json"}, "plan is for sources"),
        ({"key": "id", "num_buckets": 0}, "num_buckets is 0"),
        ({"key": "id", "options": DatasetOptions(order="key", key="x")}, "the options have key"),
    ],
)
def test_what_a_collection_can_not_have(tmp_path, more, message):
    with pytest.raises(OptionError, match=message):
        run(WriteShards(tmp_path / f"t@{N}", **more), begin=beam.Create([{"id": 1}]))


def test_no_tensorflow_is_imported(tmp_path):
    code = (
        "import sys, beam_jobs, apache_beam\n"
        "from shardwriter.cluster import ReadShards, ShardStats, WriteShards\n"
        "out = sys.argv[1]\n"
        "beam_jobs.run(WriteShards(out + '@3', source=beam_jobs.Numbers(100)))\n"
        "beam_jobs.run(ReadShards(out, decode=True))\n"
        "beam_jobs.run(ShardStats(out))\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    path = os.pathsep.join(filter(None, [str(beam_jobs.HERE), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "train"],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )


def test_a_worker_that_is_killed(tmp_path):
    source = Numbers(5003, die_at=2500, note=str(tmp_path / "died"))
    with runner_of("dask", tmp_path) as runner:
        for strategy in ("strided", "chunked"):
            folder = tmp_path / strategy
            Path(tmp_path / "died").unlink(missing_ok=True)
            sw.write(Numbers(5003), folder / "serial" / f"train@{N}")
            run(
                WriteShards(folder / "beam" / f"train@{N}", source=source, strategy=strategy),
                runner,
            )
            assert (tmp_path / "died").exists()
            assert_same(folder / "beam", folder / "serial")


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_tables_and_arrays(tmp_path, runner, kind):
    path = tmp_path / f"t.{kind}"
    if kind == "npz":
        columns = {"x": np.arange(200).reshape(100, 2), "name": np.array(list("abcde") * 20)}
        np.savez_compressed(path, **columns)
    else:
        pa = pytest.importorskip("pyarrow")
        columns = {"x": [[i] * (i % 4) for i in range(100)], "name": [None, "a"] * 50}
        pytest.importorskip("pyarrow.parquet").write_table(
            pa.table(columns), path, row_group_size=9
        )
    for seed in (None, 3):
        out = tmp_path / str(seed)
        write_both(out, str(path), runner, options=DatasetOptions(shuffle_seed=seed))
