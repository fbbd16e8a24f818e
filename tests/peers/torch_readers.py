"""torch's own loaders, WebDataset and Hugging Face datasets.

What a loader's worker process does is done here in turn, with the ``WorkerInfo`` that it would
have; a case with ``"processes"`` starts them.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache, partial
from typing import Any

import datasets
import torch
import webdataset
from answers import Batches, answer, of_every_worker
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torch.utils.data._utils import worker as worker_module

datasets.disable_progress_bars()


def ids_of(counts: list[int]) -> list[list[int]]:
    """Return the ids of the records in each shard, counted through."""
    ids = iter(range(sum(counts)))
    return [[next(ids) for _ in range(count)] for count in counts]


class Pairs(Dataset):
    """A map-style dataset of (worker, id)."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = torch.utils.data.get_worker_info()
        return (info.id if info else 0), int(self.inner[index])


class Files(IterableDataset):
    """The files of this worker, as people deal them out by hand."""

    def __init__(self, counts: list[int], rank: int, world: int) -> None:
        self.counts, self.rank, self.world = counts, rank, world

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for ids in ids_of(self.counts)[self.rank * workers + worker :: self.world * workers]:
            yield from ids


def tagged(rows: list[Any]) -> tuple[int, list[Any]]:
    """Collate a batch into (the worker that makes it, its rows)."""
    info = torch.utils.data.get_worker_info()
    return (info.id if info else 0), rows


def as_worker(dataset: Any, case: dict[str, Any], worker: int) -> Batches:
    """Return the batches that one worker makes of an iterable dataset."""
    started = case["workers"] if case.get("processes") else 0
    loader = DataLoader(
        dataset,
        batch_size=case["batch"],
        drop_last=case["drop_last"],
        collate_fn=tagged,
        num_workers=started,
    )
    if started or not case["workers"]:
        return [rows for made_by, rows in loader if made_by == worker]
    worker_module._worker_info = worker_module.WorkerInfo(
        id=worker, num_workers=case["workers"], seed=0, dataset=dataset
    )
    try:
        return [rows for _, rows in loader]
    finally:
        worker_module._worker_info = None


def map_style(case: dict[str, Any], dataset_of: Any) -> Any:
    """Return the batches of a map-style loader, by rank and by the worker that fetched them."""
    workers = case["workers"] if case.get("processes") else 0
    ranks = []
    for rank in range(case["world"]):
        dataset, sampler = dataset_of(rank)
        loader = DataLoader(
            Pairs(dataset),
            batch_size=case["batch"],
            sampler=sampler,
            drop_last=case["drop_last"],
            num_workers=workers,
            collate_fn=list,
        )
        lanes: list[Batches] = [[] for _ in range(max(1, case["workers"]))]
        for number, batch in enumerate(loader):
            worker = batch[0][0] if workers else number % len(lanes)
            lanes[worker].append([record for _, record in batch])
        ranks.append(lanes)
    return ranks


def sampler(drop: bool, case: dict[str, Any]) -> Any:
    records = range(sum(case["counts"]))

    def dataset_of(rank: int) -> Any:
        drawn = DistributedSampler(
            records, num_replicas=case["world"], rank=rank, shuffle=False, drop_last=drop
        )
        return records, drawn

    return map_style(case, dataset_of)


def hf_map(case: dict[str, Any]) -> Any:
    whole = datasets.Dataset.from_dict({"id": list(range(sum(case["counts"])))})

    def dataset_of(rank: int) -> Any:
        return split_dataset_by_node(whole, rank=rank, world_size=case["world"])["id"], None

    try:
        return map_style(case, dataset_of)
    except IndexError as error:
        return f"IndexError: {error}"


def files(case: dict[str, Any], rank: int, worker: int) -> Batches:
    return as_worker(Files(case["counts"], rank, case["world"]), case, worker)


def generated(shards: list[list[int]]) -> Any:
    for ids in shards:
        for number in ids:
            yield {"id": number}


def hf_iterable(case: dict[str, Any], rank: int, worker: int) -> Batches:
    dataset = datasets.IterableDataset.from_generator(
        generated, gen_kwargs={"shards": ids_of(case["counts"])}
    )
    dataset = split_dataset_by_node(dataset, rank=rank, world_size=case["world"])
    return [[row["id"] for row in rows] for rows in as_worker(dataset, case, worker)]


@cache
def tars(counts: tuple[int, ...]) -> list[str]:
    folder = tempfile.mkdtemp()
    paths = []
    for shard, ids in enumerate(ids_of(list(counts))):
        paths.append(os.path.join(folder, f"{shard:05}.tar"))
        with webdataset.TarWriter(paths[-1]) as writer:
            for number in ids:
                writer.write({"__key__": f"{number}", "txt": "x"})
    return paths


def wds(case: dict[str, Any], rank: int, worker: int) -> Batches:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case["world"]))
    dataset = webdataset.WebDataset(
        tars(tuple(case["counts"])),
        nodesplitter=webdataset.split_by_node,
        workersplitter=webdataset.split_by_worker,
        shardshuffle=False,
    )
    return [[int(row["__key__"]) for row in rows] for rows in as_worker(dataset, case, worker)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(
        {
            "torch-distributed-sampler": partial(sampler, False),
            "torch-distributed-sampler-drop": partial(sampler, True),
            "torch-files": partial(of_every_worker, files),
            "webdataset": partial(of_every_worker, wds),
            "datasets-map": hf_map,
            "datasets-iterable": partial(of_every_worker, hf_iterable),
        }
    )
