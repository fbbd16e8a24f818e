"""The PyPI package tfrecord: its torch datasets under torch's ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sums import Row, Set, answer
from tfrecord.torch.dataset import MultiTFRecordDataset, TFRecordDataset
from torch.utils.data import ChainDataset, DataLoader

KINDS = {"bytes": "byte", "int64": "int", "float": "float"}


def description(one: Set) -> dict[str, str]:
    return {name: KINDS[kind] for name, kind in one["features"].items()}


def shard(one: Set, path: str, index: str | None = None) -> Any:
    gzip = "gzip" if one["compression"] == "GZIP" else None
    return TFRecordDataset(path, index, description(one), compression_type=gzip)


def in_one_process(one: Set) -> Iterator[Row]:
    chain = ChainDataset([shard(one, path) for path in one["paths"]])
    yield from DataLoader(chain, batch_size=None)


def in_two_workers(one: Set) -> Iterator[Row]:
    """By the index: each worker reads its half of a file. An index of one line it can not read."""
    for path in one["paths"]:
        with open(f"{path}.idx") as index:
            num_records = len(list(index))
        loaded = shard(one, path, f"{path}.idx" if num_records > 1 else None)
        yield from DataLoader(loaded, batch_size=None, num_workers=2 if num_records > 1 else 0)


def without_index(one: Set) -> Iterator[Row]:
    """What two workers do that have none: each reads all of the file."""
    yield from DataLoader(shard(one, one["paths"][0]), batch_size=None, num_workers=2)


def drawn_at_random(one: Set) -> Iterator[Row]:
    """All shards at once, in random turn."""
    pattern = one["dataset"] + ".tfrecord-{}"
    ends = [path.rpartition(".tfrecord-")[2] for path in one["paths"]]
    gzip = "gzip" if one["compression"] == "GZIP" else None
    splits = {end: 1 / len(ends) for end in ends}
    loaded = MultiTFRecordDataset(
        pattern, None, splits, description(one), compression_type=gzip, infinite=False
    )
    yield from DataLoader(loaded, batch_size=None)


if __name__ == "__main__":
    answer(
        {
            "TFRecordDataset": in_one_process,
            "TFRecordDataset, index, 2 workers": in_two_workers,
            "TFRecordDataset, no index, 2 workers": without_index,
            "MultiTFRecordDataset": drawn_at_random,
        }
    )
