"""The steps of a Beam job, called as a runner may call them: twice, out of order, with holes."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")

from beam_jobs import Blobs, Broken, Numbers, assert_same, contents, drop_some
from beam_steps import OPTIONS, N, made_by, publish_all, task_for

import shardwriter as sw
from shardwriter.cluster.launch import Facts, FinishedShard, pack_json, unpack_json
from shardwriter.cluster.parts import (
    MAX_BLOCK_RUNS,
    MAX_GROUP_BYTES,
    Block,
    Chunk,
    Partitioning,
    join_blocks,
    write_block,
)
from shardwriter.cluster.steps import WriteChunks, chunk_writer, publish_shards, write_shard
from shardwriter.cluster.task import read_plan, task_of
from shardwriter.dataset.naming import parse_output
from shardwriter.errors import (
    AssignmentError,
    OptionError,
    OutputExists,
    RunChanged,
    RunError,
    StorageError,
    TooManyErrors,
)
from shardwriter.sources.find import open_source
from shardwriter.writing.options import DatasetOptions, RunOptions


def serial(folder, source=None, **more):
    sw.write(
        Numbers(500) if source is None else source,
        folder / f"train@{N}",
        map=drop_some,
        label="label",
        **more,
    )
    return folder


def groups_of(task, runs=None):
    """Make the chunks of runs, and group them."""
    groups = {}
    for run in range(task.partitioning.num_runs(task.num_items)) if runs is None else runs:
        for key, value in WriteChunks(task).process(run):
            groups.setdefault(key, []).append(value)
    for key, value in WriteChunks(task).process(-1):
        groups.setdefault(key, []).append(value)
    return groups


def shards_of(task, groups):
    """Write groups as parts, and join them."""
    blocks = {}
    for key, values in groups.items():
        block = write_block(task.out, task.partitioning, task.label, key, values)
        blocks.setdefault(task.partitioning.block_and_shard(key)[1], []).append(block.to_bytes())
    return [
        join_blocks(task.out, task.packing, task.label, shard, values).to_bytes()
        for shard, values in blocks.items()
    ]


SMALL = {"chunk_records": 7, "block_runs": 3}


# -- chunked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_in_any_order_and_twice(tmp_path, compression):
    task = task_for(tmp_path / "beam", plan=SMALL, compression=compression)
    groups, again = groups_of(task), groups_of(task)
    draw = random.Random(4)
    for key, values in groups.items():
        values += again[key]
        draw.shuffle(values)
    values = shards_of(task, groups)
    values += values
    draw.shuffle(values)
    publish_shards(task, values)
    assert_same(tmp_path / "beam", serial(tmp_path / "serial", compression=compression))


@pytest.mark.parametrize("lost", [0, 1, 7, 13])
def test_a_run_that_is_lost(tmp_path, lost):
    task = task_for(tmp_path, plan=SMALL)
    runs = set(range(task.partitioning.num_runs(500)))
    groups = groups_of(task, sorted(runs - {lost}))
    with pytest.raises(AssignmentError, match="items are missing"):
        shards_of(task, groups)


def test_the_last_run_that_is_lost(tmp_path):
    task = task_for(tmp_path, plan=SMALL)
    values = shards_of(task, groups_of(task, range(task.partitioning.num_runs(500) - 1)))
    with pytest.raises(AssignmentError, match=r"the assignment of .* items gives it"):
        publish_shards(task, values)
    assert not list(tmp_path.glob("*.json"))


def test_a_group_that_is_lost(tmp_path):
    task = task_for(tmp_path, plan=SMALL)
    groups = groups_of(task)
    del groups[task.partitioning.key(3, 2)]
    with pytest.raises(AssignmentError, match="items are missing"):
        shards_of(task, groups)


def test_a_shard_that_is_lost(tmp_path):
    task = task_for(tmp_path)
    values = shards_of(task, groups_of(task))
    with pytest.raises(AssignmentError, match="1 shards were not written, the first"):
        publish_shards(task, values[:4])


def test_a_run_that_comes_out_otherwise(tmp_path):
    task = task_for(tmp_path, plan=SMALL)
    groups = groups_of(task)
    key = task.partitioning.key(0, 0)
    chunk = Chunk.from_bytes(groups[key][0])
    groups[key].append(replace(chunk, crc32c=chunk.crc32c ^ 1).to_bytes())
    with pytest.raises(AssignmentError, match="was written twice"):
        shards_of(task, groups)


def test_a_part_that_was_damaged(tmp_path):
    task = task_for(tmp_path, plan=SMALL)
    groups = groups_of(task)
    keys = [task.partitioning.key(run, 0) for run in (0, 3)]
    blocks = [
        write_block(task.out, task.partitioning, task.label, key, groups[key]) for key in keys
    ]
    with open(blocks[1].parts[0].path, "r+b") as file:
        file.seek(30)
        file.write(b"\xff")
    with pytest.raises(StorageError, match="has changed since it was written"):
        join_blocks(task.out, task.packing, task.label, 0, [b.to_bytes() for b in blocks])


def test_no_group_is_larger_than_the_limit():
    for num_shards in (1, 16, 1000, 100_000):
        for mean_bytes in (0, 16, 1_000, 100_000, 10_000_000, 1_000_000_000):
            partitioning = Partitioning.of(num_shards, mean_bytes)
            assert partitioning.block_runs * partitioning.max_chunk_bytes <= MAX_GROUP_BYTES
            assert partitioning.max_chunk_bytes >= min(
                4 << 20, 7 * partitioning.chunk_records * mean_bytes
            )
            assert 1 <= partitioning.block_runs <= MAX_BLOCK_RUNS
            assert partitioning.chunk_records >= 1
            if partitioning.chunk_records > 1:
                assert partitioning.run_items * mean_bytes <= 32 << 20


def test_a_cut_covers_every_item_once():
    partitioning = Partitioning(N, 7, 3)
    assert [partitioning.num_runs(t) for t in (0, 1, 34, 35, 36)] == [0, 1, 1, 1, 2]
    keys = {partitioning.key(run, shard) for run in range(9) for shard in range(N)}
    assert keys == set(range(3 * N))
    assert [partitioning.block_and_shard(key) for key in (0, 4, 5, 14)] == [
        (0, 0),
        (0, 4),
        (1, 0),
        (2, 4),
    ]


# -- strided ---------------------------------------------------------------------------------------


def test_a_shard_that_was_finished_is_not_made_again(tmp_path):
    task = task_for(tmp_path / "beam", strategy="strided")
    first = made_by(task, 0)
    assert made_by(task, 0).to_bytes() == first.to_bytes()
    os.unlink(first.path)
    second = made_by(task, 0)
    assert second.path != first.path
    assert second.sealed == first.sealed
    publish_shards(task, [made_by(task, shard).to_bytes() for shard in range(N)])
    assert_same(tmp_path / "beam", serial(tmp_path / "serial"))


def test_two_attempts_side_by_side(tmp_path):
    task = task_for(tmp_path / "beam", strategy="strided")
    made = [made_by(task, shard) for shard in range(N)]
    for shard in range(N):
        os.unlink(next((tmp_path / "beam" / ".train.partial").glob(f"done-{shard:05d}-*")))
    others = [made_by(task, shard) for shard in range(N)]
    assert not {m.path for m in made} & {m.path for m in others}
    publish_shards(task, [m.to_bytes() for m in (*made[:2], *others[2:])])
    # One that is late finds no place to write to, and does no harm.
    with pytest.raises((RunError, StorageError)):
        made_by(task, 3)
    assert_same(tmp_path / "beam", serial(tmp_path / "serial"))


def test_publishing_twice(tmp_path):
    task = task_for(tmp_path / "beam", strategy="strided")
    values = [made_by(task, shard).to_bytes() for shard in range(N)]
    first = publish_shards(task, values)
    assert publish_shards(task, values) == first
    assert_same(tmp_path / "beam", serial(tmp_path / "serial"))


def test_too_many_errors(tmp_path):
    more = {"on_error": "skip", "max_errors": 4, "strategy": "strided"}
    task = task_for(tmp_path, Broken(500), **more)
    job, out = task.job, task.out
    with pytest.raises(TooManyErrors, match="5 items of a part of the input gave an error"):
        write_shard(job, out, 0, skip_errors=True, max_errors=4)
    values = [
        write_shard(job, out, s, skip_errors=True, max_errors=None).to_bytes() for s in range(N)
    ]
    with pytest.raises(TooManyErrors, match="5 items gave an error, and 4 may; the last: item 450"):
        publish_shards(task, values)
    assert not list(tmp_path.glob("*.json"))


# -- where it writes -------------------------------------------------------------------------------


def test_a_dataset_that_is_there(tmp_path, tmp_path_factory):
    serial(tmp_path)
    with pytest.raises(OutputExists, match="a dataset 'train' exists already"):
        task_for(tmp_path)
    task = task_for(tmp_path, overwrite=True)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert f"train.tfrecord-00000-of-0000{N}" in before
    assert "train.manifest.json" in before
    publish_shards(task, shards_of(task, groups_of(task)))
    assert_same(tmp_path, serial(tmp_path_factory.mktemp("serial")))


def test_other_generations_are_replaced(tmp_path, tmp_path_factory):
    sw.write([b"old"] * 9, tmp_path / "train@3")
    task = task_for(tmp_path, overwrite=True)
    publish_shards(task, shards_of(task, groups_of(task)))
    assert_same(tmp_path, serial(tmp_path_factory.mktemp("serial")))


def test_a_run_that_is_there(tmp_path):
    task = task_for(tmp_path, strategy="strided")
    made_by(task, 1)
    with pytest.raises(OutputExists, match="an unfinished run") as told:
        sw.write(Numbers(500), tmp_path / f"train@{N}")
    assert "a Beam job is writing it, or has failed" in told.value.hint
    with pytest.raises(OutputExists, match="an unfinished run"):
        task_for(tmp_path)
    again = task_for(tmp_path, overwrite=True)
    # The first launch has lost its place.
    with pytest.raises((RunError, StorageError)):
        publish_shards(task, [made_by(task, shard).to_bytes() for shard in range(N)])
    publish_shards(again, shards_of(again, groups_of(again)))


def test_a_run_that_is_resumed(tmp_path):
    folder = tmp_path / "beam"
    first = task_for(folder, strategy="strided")
    made = [made_by(first, shard) for shard in (0, 3)]
    task = task_for(folder, strategy="strided", resume=True)
    found = [made_by(task, shard) for shard in range(N)]
    assert [found[0].path, found[3].path] == [m.path for m in made]
    publish_shards(task, [m.to_bytes() for m in found])
    assert_same(folder, serial(tmp_path / "serial"))
    # And there is nothing more to do.
    output, options = (
        parse_output(folder / f"train@{N}"),
        DatasetOptions(map=drop_some, label="label"),
    )
    again = task_of(open_source(Numbers(500)), output, options, RunOptions(resume=True))
    assert again.out.is_finished
    assert publish_shards(again, []).num_shards == N


def test_a_run_of_another_job_is_not_resumed(tmp_path):
    task_for(tmp_path, strategy="strided")
    with pytest.raises(RunChanged, match="of another job"):
        task_for(tmp_path, Numbers(501), strategy="strided", resume=True)


def test_beginning_again_destroys_nothing(tmp_path, monkeypatch):
    task = task_for(tmp_path, strategy="strided")
    made = made_by(task, 2)
    monkeypatch.setattr("shardwriter.cluster.launch._entered", set())
    task.out.enter()
    assert os.path.exists(made.path)


# -- what is sent ---------------------------------------------------------------------------------


def test_what_travels_comes_back(tmp_path):
    task = task_for(tmp_path, strategy="strided")
    made = made_by(task, 2)
    again = FinishedShard.from_bytes(made.to_bytes(), N)
    assert again.to_bytes() == made.to_bytes()
    assert again.facts.gaps == made.facts.gaps
    chunk = Chunk(3, 21, 7, b"\1\0\0\0", 5, (b"frames",), None, b"facts")
    assert Chunk.from_bytes(chunk.to_bytes()) == chunk
    block = Block(3, 21, 7, [], None)
    assert Block.from_bytes(block.to_bytes()) == block


def test_facts_join_in_any_order(tmp_path):
    task = task_for(tmp_path, plan=SMALL)
    told = [
        unpack_json(chunk.facts)
        for values in groups_of(task).values()
        for chunk in map(Chunk.from_bytes, values)
        if chunk.facts is not None
    ]
    texts = set()
    for seed in range(3):
        random.Random(seed).shuffle(told)
        total = Facts.from_json(told[0], N)
        for entry in told[1:]:
            total.merge(Facts.from_json(entry, N))
        entry = total.to_json()
        entry["learnt"]["labels"]["labels"].sort()
        texts.add(pack_json(entry))
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"source": iter([])}, "can be read once"),
        (
            {"source": (lambda: iter(range(3))), "strategy": "strided"},
            "needs a source with random access",
        ),
        ({"backend": "tensorflow"}, "backend"),
        ({"retry_errors": True}, "engines of one machine"),
        ({"item_timeout_s": 3.0}, "engines of one machine"),
    ],
)
def test_what_is_refused(tmp_path, more, message):
    with pytest.raises(OptionError, match=message):
        task_for(tmp_path, **more)


def test_plans(tmp_path):
    task = task_for(tmp_path / "a")
    plan = json.loads(json.dumps(task.plan_json()))
    output, options = (
        parse_output(tmp_path / f"b/train@{N}"),
        DatasetOptions(map=drop_some, label="label"),
    )
    run = RunOptions()
    again = task_of(open_source(Numbers(500)), output, options, run, strategy="chunked", plan=plan)
    assert again.plan_json() == plan
    with pytest.raises(RunChanged, match="the plan is of another job"):
        task_of(open_source(Numbers(499)), output, options, run, strategy="chunked", plan=plan)


# -- what came up when others looked ---------------------------------------------------------------


def test_a_dataset_that_is_published_after_the_launch(tmp_path):
    task = task_for(tmp_path, strategy="strided", entered=False)
    sw.write([b"others"] * 7, tmp_path / "train@2")
    before = contents(tmp_path)
    with pytest.raises(RunError, match="another job uses its run directory"):
        task.out.enter()
    assert contents(tmp_path) == before


def test_a_dataset_that_is_published_while_the_job_runs(tmp_path):
    task = task_for(tmp_path, strategy="strided")
    values = [made_by(task, shard).to_bytes() for shard in range(N)]
    sw.write([b"others"] * 7, tmp_path / "train@2", overwrite=True)
    before = contents(tmp_path)
    with pytest.raises((RunError, StorageError)):
        publish_shards(task, values)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_new_worker_that_is_late(tmp_path, monkeypatch, overwrite):
    if overwrite:
        publish_all(task_for(tmp_path, strategy="strided"))
    task = task_for(tmp_path, strategy="strided", overwrite=overwrite)
    publish_all(task)
    before = contents(tmp_path)
    monkeypatch.setattr("shardwriter.cluster.launch._entered", set())
    with pytest.raises(RunError, match="another job uses its run directory"):
        task.out.enter()
    assert contents(tmp_path) == before
    assert not (tmp_path / ".train.partial").exists()


def test_publishing_twice_when_the_job_lies_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwriter.cluster.task._INLINE_BYTES", 0)
    task = task_for(tmp_path, strategy="strided")
    assert task.payload.path is not None
    values = [made_by(task, shard).to_bytes() for shard in range(N)]
    first = publish_shards(task, values)
    monkeypatch.setattr("shardwriter.cluster.task._unpacked", {})
    assert publish_shards(task, values) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(contents(tmp_path))


def test_a_job_that_failed_leaves_nothing_that_another_does_not_delete(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwriter.cluster.task._INLINE_BYTES", 0)
    made_by(task_for(tmp_path, strategy="strided"), 1)
    publish_all(task_for(tmp_path, strategy="strided", overwrite=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(contents(tmp_path))


def test_a_launch_finishes_what_another_has_committed(tmp_path, tmp_path_factory, monkeypatch):
    task = task_for(tmp_path, strategy="strided")
    values = [made_by(task, shard).to_bytes() for shard in range(N)]
    with monkeypatch.context() as patch:
        patch.setattr("shardwriter.writing.publication.roll_forward", _stop)
        with pytest.raises(KeyboardInterrupt):
            publish_shards(task, values)
    again = task_for(tmp_path, strategy="strided", resume=True, entered=False)
    assert again.out.is_finished
    assert_same(tmp_path, serial(tmp_path_factory.mktemp("serial")))


def _stop(_run):
    raise KeyboardInterrupt


def test_a_local_write_does_not_resume_a_beam_job(tmp_path):
    made_by(task_for(tmp_path, strategy="strided"), 1)
    with pytest.raises(RunChanged, match="is a Beam job's"):
        sw.write(Numbers(500), tmp_path / f"train@{N}", map=drop_some, resume=True)


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_a_shard_that_would_come_out_otherwise_now(tmp_path, monkeypatch, compression):
    more = {"strategy": "strided", "compression": compression}
    made_by(task_for(tmp_path, **more), 1)
    again = task_for(tmp_path, resume=True, **more)
    assert made_by(again, 1).shard == 1
    monkeypatch.setattr(Numbers, "__getitem__", lambda self, i: {"id": f"item-{i:07d}", "x": 1})
    with pytest.raises(RunChanged, match="gives a different record now"):
        made_by(again, 1)


def test_a_finished_dataset_that_would_come_out_otherwise_now(tmp_path, monkeypatch):
    publish_all(task_for(tmp_path, strategy="strided"))
    monkeypatch.setattr(Numbers, "__getitem__", lambda self, i: {"id": f"item-{i:07d}", "x": 1})
    with pytest.raises(RunChanged, match="gives a different record now"):
        task_for(tmp_path, strategy="strided", resume=True, entered=False)


def test_a_chunk_is_yielded_once_it_is_complete(tmp_path):
    task = task_for(tmp_path, Blobs(20, 300), plan={"chunk_records": 1, "block_runs": 1}, map=None)
    seen = []
    writer = chunk_writer(task, task.partitioning)
    items = ((index, item) for index, item in task.job.selection.items_at(np.arange(N)))
    watched = (seen.append(index) or (index, item) for index, item in items)
    chunks = writer.write(0, watched)
    next(chunks)
    assert len(seen) == 2  # one is held back, for the facts


def test_the_largest_chunks_of_a_run_go_to_files(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwriter.cluster.parts.MAX_RUN_BYTES", 100_000)
    plan = {"chunk_records": 50, "block_runs": 3}
    task = task_for(tmp_path / "beam", Blobs(500, 10_000), plan=plan, map=None)
    chunks = [
        chunk for _, chunk in chunk_writer(task, task.partitioning).write(0, numbered(task, 250))
    ]
    assert any(chunk.path is not None for chunk in chunks)
    publish_shards(task, shards_of(task, groups_of(task)))
    sw.write(Blobs(500, 10_000), tmp_path / "serial" / f"train@{N}", label="label")
    assert_same(tmp_path / "beam", tmp_path / "serial")


def numbered(task, num_items):
    return task.job.selection.items_at(np.arange(num_items))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"num_shards": N + 1}, "the plan is for 6 shards, and OUT has 5"),
        ({"strategy": "strided"}, "the plan is of another job"),
    ],
)
def test_plans_that_do_not_fit(tmp_path, plan, message):
    plan = {**task_for(tmp_path / "a").plan_json(), **plan}
    output = parse_output(tmp_path / f"b/train@{N}")
    with pytest.raises((OptionError, RunChanged), match=message):
        task_of(
            open_source(Numbers(500)), output, OPTIONS, RunOptions(), strategy="chunked", plan=plan
        )


PLAN = {
    "block_runs": 1,
    "chunk_records": 1,
    "format": "shardwriter.beam.plan/1",
    "job": "x",
    "num_shards": 3,
    "strategy": "chunked",
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format":"shardwriter.beam.plan/1"}',
        '{"format":"x","num_shards":3}',
        json.dumps({**PLAN, "num_shards": 10**12}),
        json.dumps({**PLAN, "chunk_records": 2**63}),
        json.dumps({**PLAN, "job": [1]}),
        "[" * 100_000,
    ],
)
def test_files_that_are_no_plans(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(OptionError, match="not a plan of a Beam job"):
        read_plan(str(tmp_path / "plan.json"))
    with pytest.raises(StorageError):
        read_plan(str(tmp_path))
    assert read_plan(str(tmp_path / "none.json")) is None


def test_an_unknown_strategy(tmp_path):
    with pytest.raises(OptionError, match="strategy is 'sharded'"):
        task_for(tmp_path, strategy="sharded")


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "train.index").mkdir()
    with pytest.raises(StorageError, match="in the way"):
        task_for(tmp_path)
