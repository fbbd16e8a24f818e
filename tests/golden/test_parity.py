"""The key test: whatever writes a dataset, every byte of it is the same.

The serial engine is compared with the pool over everything that must not matter. All values of all
factors would be ten thousand runs; what is run is every combination of any two of them (of any
three with SHARDWRITER_PARITY=3).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.dataset.naming import parse_output
from shardwriter.formats.crc32c import crc32c
from shardwriter.sources.find import open_source
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.write import write_dataset

NUM_ITEMS = 47


class Rows:
    """Every kind of feature; widths, presence and labels differ from item to item."""

    def __len__(self):
        return NUM_ITEMS

    def __getitem__(self, index):
        row = {
            "id": index,
            "score": index / 7,
            "name": f"row {index}",
            "label": ["a", "b", "c"][index * index % 3],
            "vector": np.arange(index % 4, dtype=np.float32),
            "raw": bytes(index),
        }
        if index % 5 == 0:
            del row["score"]
        if index == 31:
            row["rare"] = [1, 2, 3]
        return row


def skip_some(features):
    """Leave gaps: two neighbours, and the last item."""
    index = features.get("id")
    return sw.SKIP if index in (3, 17, 18, NUM_ITEMS - 1) else {**features, "mapped": index}


def keep_all(features):
    return {**features, "mapped": features.get("id")}


def keep_some(item):
    """Leave items out, whatever a source lists: numbers, files or records; or rows, held here."""
    what = item["id"] if isinstance(item, dict) else item
    return crc32c(repr(what).encode()) % 4 > 0


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the inputs, by kind."""
    folder = tmp_path_factory.mktemp("inputs")
    rows = [Rows()[index] for index in range(NUM_ITEMS)]
    lines = ["id,score,name,label"]
    lines += [f"{r['id']},{r.get('score', '')},{r['name']},{r['label']}" for r in rows]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    objects = [f'{{"id": {r["id"]}, "label": "{r["label"]}", "null": null}}' for r in rows]
    (folder / "rows.jsonl").write_text("\ufeff" + "\n\n".join(objects))
    for index in range(NUM_ITEMS):
        kind = folder / "images" / f"class{index % 3}"
        kind.mkdir(parents=True, exist_ok=True)
        size = (index + 1).to_bytes(4, "big") * 2
        (kind / f"{index}.png").write_bytes(
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + b"\x08\x02\0\0\0" + bytes(index * 40)
        )
    sw.write(rows, folder / "copied@5", label="label")
    return {
        "rows": Rows(),
        "csv": str(folder / "rows.csv"),
        "jsonl": str(folder / "rows.jsonl"),
        "images": str(folder / "images"),
        "records": str(folder / "copied"),
    }


# How many factors at a time have all their combinations run: 3 takes minutes.
STRENGTH = int(os.environ.get("SHARDWRITER_PARITY", "2"))

FACTORS = {
    "source": ["rows", "csv", "jsonl", "images", "records"],
    "way": ["strided", "sent"],
    "workers": [2, 3, 5, 7],
    "num_shards": [1, 2, 3, 8, NUM_ITEMS, NUM_ITEMS + 1],
    "map": [None, keep_all, skip_some],
    "filter": [None, keep_some],
    "order": ["source", "shuffle", "key"],
    "limit": [None, 20],
    "compression": ["none", "gzip", "zlib"],
    "batch_bytes": [1, 200, 1 << 18],
}


def combinations():
    """Return few settings that have every combination of the values of any few factors."""
    names = list(FACTORS)
    missing = {
        frozenset(zip(some, values, strict=True))
        for some in itertools.combinations(names, STRENGTH)
        for values in itertools.product(*(range(len(FACTORS[name])) for name in some))
    }
    rng = random.Random(1)
    while missing:
        best = None
        for _ in range(20):
            need = dict(rng.choice(sorted(missing, key=sorted)))
            setting = {n: need.get(n, rng.randrange(len(FACTORS[n]))) for n in names}
            covered = missing & set(
                map(frozenset, itertools.combinations(setting.items(), STRENGTH))
            )
            if best is None or len(covered) > len(best[1]):
                best = setting, covered
        missing -= best[1]
        yield {name: FACTORS[name][value] for name, value in best[0].items()}


def digests(folder):
    """Return the SHA-256 of every file in a folder, hidden ones and the folder's own too."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in Path(folder).iterdir()
    }


def written(inputs, folder, workers, setting):
    source = open_source(inputs[setting["source"]])
    if setting["way"] == "sent":
        source.sendable = False
    compression = setting["compression"]
    options = DatasetOptions(
        setting["map"],
        setting["filter"],
        setting["limit"],
        5 if setting["order"] == "shuffle" else None,
        "label" * bool(setting["map"]),
        compression=compression,
    )
    if setting["order"] == "key":
        key = None if setting["source"] == "images" else "id"
        options = replace(options, order="key", key=key, order_seed=5)
    output = parse_output(str(folder / f"t@{setting['num_shards']}"), None, compression)
    run = RunOptions(workers=workers, dali_index=compression == "none")
    write_dataset(lambda: source, output, options, run)
    return digests(folder)


def test_the_pool_writes_what_the_serial_engine_writes(inputs, tmp_path, monkeypatch):
    @cache
    def expected(items):
        folder = tmp_path / f"serial{len(list(tmp_path.iterdir()))}"
        return written(inputs, folder, 1, dict(items))

    for number, setting in enumerate(combinations()):
        monkeypatch.setattr("shardwriter.writing.process.BATCH_BYTES", setting["batch_bytes"])
        decides = tuple(name for name in FACTORS if name not in ("way", "workers", "batch_bytes"))
        same = expected((*((name, setting[name]) for name in decides), ("way", "strided")))
        found = written(inputs, tmp_path / f"pool{number}", setting["workers"], setting)
        assert found == same, setting
    assert number > 25


@pytest.mark.parametrize("workers", [1, 3])
def test_two_writes_of_pairs_stay_in_step(tmp_path, workers):
    images = sw.write([{"i": i} for i in range(NUM_ITEMS)], tmp_path / "image@6", workers=workers)
    masks = sw.write([{"m": i} for i in range(NUM_ITEMS)], tmp_path / "mask@6", workers=workers)
    for a, b in zip(images.pattern.shard_files, masks.pattern.shard_files, strict=True):
        pairs = zip(sw.read_records(tmp_path / a), sw.read_records(tmp_path / b), strict=True)
        for image, mask in pairs:
            assert sw.decode_example(image)["i"] == sw.decode_example(mask)["m"]


class Large:
    """Records that fill several members of a compressed shard."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return {"tokens": rng.integers(0, 50_000, 60_000 + 997 * (index % 7))}


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
@pytest.mark.parametrize("deflate", ["isal-2", "zlib-6"])
def test_members_of_compressed_shards(tmp_path, compression, deflate):
    options = {"compression": compression, "deflate": deflate}
    serial = sw.write(Large(), tmp_path / "serial" / "t@2", **options)
    pool = sw.write(Large(), tmp_path / "pool" / "t@2", workers=2, **options)
    held = sw.write(
        [Large()[i] for i in range(60)], tmp_path / "held" / "t@2", workers=2, **options
    )
    assert serial.shards[0].file_bytes > 1 << 20  # more than a member
    assert digests(tmp_path / "serial") == digests(tmp_path / "pool")
    assert pool.shards == held.shards


@pytest.mark.parametrize("workers", [1, 2])
def test_the_seed_of_hashes_is_in_no_byte(inputs, tmp_path, workers):
    program = """
import sys
import shardwriter as sw
from test_parity import Rows, skip_some
sw.write(Rows(), sys.argv[1], map=skip_some, label="label", workers=int(sys.argv[2]))
"""
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path])),
        }
        command = [sys.executable, "-c", program, str(out / "t@3"), str(workers)]
        subprocess.run(command, env=environment, check=True, cwd=Path(__file__).parent)
        found.append(digests(out))
    assert found[0] == found[1]
