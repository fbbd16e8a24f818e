"""Real clients read what ``shardwriter write`` made: each gets every record, and gets it whole.

What a client gave is compared, by count and checksum, with the files that were written from. Those
of most clients live in an environment of their own; see test_split_peers.py.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import PEERS, peers_python

import shardwriter as sw

sys.path.insert(0, str(PEERS))

from sums import checksum

MAIN_ENVIRONMENT = {"tf_client": "tensorflow", "beam_client": "apache_beam"}
IMAGES = {"image/encoded": "bytes", "image/filename": "bytes", "image/class/text": "bytes"}
IMAGES |= {f"image/{name}": "int64" for name in ("class/label", "height", "width")}
ROWS = {"id": "int64", "price": "float", "name": "bytes"}
REAL = [
    "pytorch+data/examples/vision/fakedata/imagefolder/cat/1.jpg",
    "pytorch+data/examples/vision/fakedata/imagefolder/cat/2.jpg",
    "pytorch+data/examples/vision/fakedata/imagefolder/dog/3.jpg",
    "python-pillow+Pillow/Tests/images/hopper.jpg",
    "python-pillow+Pillow/Tests/images/hopper.png",
    "python-pillow+Pillow/Tests/images/hopper_gray.jpg",
    "python-pillow+Pillow/Tests/images/pil_sample_rgb.jpg",
    "pypi+matplotlib/matplotlib/mpl-data/sample_data/grace_hopper.jpg",
    "pypi+matplotlib/matplotlib/mpl-data/sample_data/Minduka_Present_Blue_Pack.png",
]


def png(rng: np.random.Generator) -> tuple[bytes, int, int]:
    """Make a small image of noise; return it with its height and width."""
    height, width = (int(side) for side in rng.integers(1, 40, 2))
    lines = b"".join(b"\0" + rng.bytes(3 * width) for _ in range(height))
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", size), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    framed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed), height, width


def image_folder(folder: Path) -> None:
    """Fill a folder a class with generated images, and with real ones where they are at hand."""
    rng = np.random.default_rng(11)
    for number in range(23):
        path = folder / ("ape", "bee", "cät")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(rng)[0])
    real = Path(os.environ.get("SHARDWRITER_TEST_DATA", "nowhere"))
    for number, name in enumerate(REAL):
        if (real / name).exists():
            (folder / "real").mkdir(exist_ok=True)
            shutil.copy(real / name, folder / "real" / f"{number}{Path(name).suffix}")


def image_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Say what a folder of images holds, by other means than the writer's."""
    from PIL import Image

    classes = sorted(path.name for path in folder.iterdir())
    for path in folder.glob("*/*"):
        with Image.open(path) as image:
            width, height = image.size
        yield {
            "image/encoded": path.read_bytes(),
            "image/filename": path.relative_to(folder).as_posix(),
            "image/class/text": path.parent.name,
            "image/class/label": classes.index(path.parent.name),
            "image/height": height,
            "image/width": width,
        }


def table_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": i - 5, "price": float(np.float32(i / 7)), "name": f"row {i} ü" * (1 + i % 3)}
        for i in range(count)
    ]


def table(path: Path, count: int) -> list[dict[str, Any]]:
    rows = table_rows(count)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS)
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.fixture(scope="session")
def clients_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Datasets written by the command, each with the checksum of what it was written from."""
    folder = tmp_path_factory.mktemp("clients")
    image_folder(folder / "photos")
    sources = {
        "images": ("photos", 4, IMAGES, checksum(image_rows(folder / "photos")), ["--index"]),
        "rows": ("rows.csv", 7, ROWS, checksum(table(folder / "rows.csv", 103)), ["--index"]),
        # Two shards are empty, the others have one record each.
        "few": ("few.csv", 5, ROWS, checksum(table(folder / "few.csv", 3)), ["--index"]),
    }
    for packed in ("gzip", "zlib"):
        name, num_shards, features, wanted, _ = sources["rows"]
        sources[packed] = (name, num_shards, features, wanted, ["--compression", packed])
    sets = {}
    for name, (source, num_shards, features, wanted, more) in sources.items():
        out = folder / "out" / name
        command = [sys.executable, "-m", "shardwriter", "write", folder / source]
        command += [f"{out}@{num_shards}", "--workers", "1", *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        pattern = sw.load_manifest(f"{out}.manifest.json").pattern
        sets[name] = {
            "dataset": str(out),
            "paths": [str(out.parent / pattern.shard_file(k)) for k in range(num_shards)],
            "compression": {"gzip": "GZIP", "zlib": "ZLIB"}.get(name, ""),
            "features": features,
            "wanted": wanted,
        }
    return sets


def python_of(script: str) -> str:
    if script in MAIN_ENVIRONMENT:
        pytest.importorskip(MAIN_ENVIRONMENT[script])
        return sys.executable
    return peers_python()


def ask(
    script: str, all_sets: dict[str, dict[str, Any]], names: tuple[str, ...]
) -> dict[str, dict[str, str]]:
    """Let a client read some of the sets; its answers, without those that are as wanted."""
    python = python_of(script)
    asked = {name: all_sets[name] for name in names}
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(Path(sw.__file__).parent.parent),
    }
    done = subprocess.run(
        [python, PEERS / f"{script}.py"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert list(answers) == list(names)
    assert all(answers.values()), answers
    return {
        name: {way: got for way, got in ways.items() if got != asked[name]["wanted"]}
        for name, ways in answers.items()
    }


def count_of(answer: str) -> int:
    return int(answer.partition("-")[0])


def test_tf_data_reads_them_all(clients_sets, mark):
    names = ("images", "rows", "few", "gzip", "zlib")
    assert ask("tf_client", clients_sets, names) == {name: {} for name in names}


def test_beam_reads_them_all(clients_sets, mark):
    names = ("images", "rows", "few", "gzip")
    assert ask("beam_client", clients_sets, names) == {name: {} for name in names}


def test_dali_reads_them_by_their_indices(clients_sets, mark):
    names = ("images", "rows", "few")
    assert ask("dali_client", clients_sets, names) == {name: {} for name in names}


def test_the_pypi_loader_reads_them_also_with_workers(clients_sets, mark):
    by_index = "TFRecordDataset, index, 2 workers"
    twice = "TFRecordDataset, no index, 2 workers"
    found = ask("tfrecord_client", clients_sets, ("images", "rows", "few", "gzip"))
    counts = {name: count_of(ways.pop(twice)) for name, ways in found.items()}
    # Without an index both of its workers read the whole shard.
    first = {
        name: sw.load_manifest(f"{clients_sets[name]['dataset']}.manifest.json").shards[0]
        for name in found
    }
    assert counts == {name: 2 * shard.num_records for name, shard in first.items()}
    assert found["gzip"].pop(by_index).startswith("FileNotFoundError")  # there are none for gzip
    assert found == {name: {} for name in found}


def test_ray_reads_them_all(clients_sets, mark):
    names = ("images", "few", "gzip")
    assert ask("ray_client", clients_sets, names) == {name: {} for name in names}


def test_grain_reads_them_by_its_own_reader_and_through_ours(clients_sets, mark):
    names = ("images", "rows", "few")
    found = ask("grain_client", clients_sets, (*names, "gzip"))
    assert list(found.pop("gzip")) == ["DataLoader, 2 ranks", "TFRecordIterDataset"]
    for name in names:
        count = count_of(clients_sets[name]["wanted"])
        left_out = {way: count_of(got) for way, got in found[name].items()}
        assert left_out == ({"DataLoader, 2 ranks": count - 1} if count % 2 else {})
