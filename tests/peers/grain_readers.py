"""Grain: its DataLoader with IndexSampler, and slices of a MapDataset.

Its worker processes take the batches or records in turn; which of the two is measured by cases
with ``"processes"``, and the others read in this process.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import grain
from answers import Batches, answer


class Numbers:
    """A data source of ids."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return int(index)


def ids(batches: Any) -> Batches:
    return [batch.tolist() for batch in batches]


def lanes_of(batches: Batches, workers: int) -> list[Batches]:
    """Deal batches to the workers that they come from, which are asked in turn."""
    return [batches[k::workers] for k in range(workers)]


def sampler(drop_remainder: bool, case: dict[str, Any]) -> Any:
    count = sum(case["counts"])
    workers = max(1, case["workers"])
    ranks = []
    try:
        for rank in range(case["world"]):
            shard = grain.sharding.ShardOptions(rank, case["world"], drop_remainder=drop_remainder)
            loader = grain.DataLoader(
                data_source=Numbers(count),
                sampler=grain.samplers.IndexSampler(count, shard_options=shard, num_epochs=1),
                operations=[grain.transforms.Batch(case["batch"], case["drop_last"])],
                worker_count=case["workers"] if case.get("processes") else 0,
            )
            if case.get("processes"):
                ranks.append(lanes_of(ids(loader), workers))
            elif workers == 1:
                ranks.append([ids(loader)])
            else:
                return None
    except ValueError as error:
        return f"ValueError: {error}"
    return ranks


def sliced(case: dict[str, Any]) -> Any:
    workers = max(1, case["workers"])
    ranks = []
    for rank in range(case["world"]):
        records = grain.MapDataset.source(Numbers(sum(case["counts"])))[rank :: case["world"]]
        dataset = records.batch(case["batch"], drop_remainder=case["drop_last"]).to_iter_dataset()
        if case.get("processes") and case["workers"]:
            options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers)
            dataset = dataset.mp_prefetch(options)
        ranks.append(lanes_of(ids(dataset), workers))
    return ranks


if __name__ == "__main__":
    answer(
        {
            "grain-index-sampler": partial(sampler, False),
            "grain-index-sampler-drop": partial(sampler, True),
            "grain-slice": sliced,
        }
    )
