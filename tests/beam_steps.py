"""The task of a Beam job, and its steps called without Beam."""

from __future__ import annotations

from dataclasses import replace

from beam_jobs import Numbers, drop_some

from shardwriter.cluster.steps import publish_shards, write_shard
from shardwriter.cluster.task import task_of
from shardwriter.dataset.naming import parse_output
from shardwriter.sources.find import open_source
from shardwriter.writing.options import DatasetOptions, RunOptions

N = 5
OPTIONS = DatasetOptions(map=drop_some, label="label")


def task_for(folder, source=None, *, strategy="chunked", plan=None, entered=True, **more):
    """Return a task whose run has begun."""
    names = [name for name in ("compression", "map") if name in more]
    options = replace(OPTIONS, **{name: more.pop(name) for name in names})
    output = replace(parse_output(folder / f"train@{N}"), compression=options.compression)
    source = open_source(Numbers(500) if source is None else source)
    task = task_of(source, output, options, RunOptions(**more), strategy=strategy)
    if plan is not None:
        task = replace(task, partitioning=replace(task.partitioning, **plan))
    if entered:
        task.out.enter()
    return task


def made_by(task, shard):
    return write_shard(task.job, task.out, shard, skip_errors=False, max_errors=None)


def publish_all(task):
    return publish_shards(task, [made_by(task, shard).to_bytes() for shard in range(N)])
