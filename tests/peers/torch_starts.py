"""Spawned workers, which inherit nothing from their parent."""

from __future__ import annotations

import os

import pytest
import torch.distributed
from processes import children
from torch.utils.data import DataLoader
from torch_sets import N, ids, quiet, write

from shardwriter.errors import WorkerDied
from shardwriter.reading.torch import IterableShards, ShardLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
quiet()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("torch"))


def keep(example):
    if example["i"] == 1_000:
        os._exit(1)
    return {"i": example["i"]}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_started_afresh(path, method):
    loader = ShardLoader(
        path, 9, shuffle=True, map=keep, num_workers=1, multiprocessing_context=method,
        persistent_workers=True, item_timeout_s=60,
    )  # fmt: skip
    alone = ShardLoader(path, 9, shuffle=True, map=keep)
    for _ in range(2):
        assert ids(loader) == ids(alone)
    (worker,) = loader._iterator._workers
    worker.kill()
    worker.join()
    with pytest.raises((WorkerDied, RuntimeError)):
        list(loader)
    assert worker.pid not in children(os.getpid())


def test_the_rank_goes_with_a_worker_that_has_no_process_group(path, tmp_path):
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/group"
    )
    try:
        # One process can not be two: what the group says is changed instead.
        world, rank = torch.distributed.get_world_size, torch.distributed.get_rank
        torch.distributed.get_world_size, torch.distributed.get_rank = lambda: 2, lambda: 1
        shards = IterableShards(path, 9, uneven="wrap")
        loader = DataLoader(shards, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        assert ids(loader) == [*range(1, N, 2), 0]
    finally:
        torch.distributed.get_world_size, torch.distributed.get_rank = world, rank
        torch.distributed.destroy_process_group()
