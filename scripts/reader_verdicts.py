"""What readers say of damaged shards: shard-stats, TensorFlow, the PyPI reader, DALI, grain.

    python scripts/reader_verdicts.py [--peers PYTHON] [--data FOLDER] [--json]

The first table is of one shard of 26 Examples in a dataset of 4, damaged in each of the usual ways;
DALI and the PyPI reader are given the index of the undamaged shard, as one has it who made it when
the data was written. The second, with ``--data``, is of a folder of odd and damaged files. A cell
has the records that a reader hands out, and what it says when it stops; a number alone is silence.

TensorFlow and the PyPI reader are those of this Python. DALI and grain are those of ``--peers``, by
default .venv-peers beside this folder, which ``scripts/venv peers .venv-peers`` makes. Every reader
has a process of its own for every file: a damage can end it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNT, NUM_SHARDS, SHARD = 104, 4, 1
TIMEOUT_S = 120

# -- the readers, each in a process of its own -----------------------------------------------------


def tensorflow(path: str, _index: str) -> Iterator[object]:
    """Read as a program that trains with TensorFlow does."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    kind = "GZIP" if path.endswith(".gz") else "ZLIB" if path.endswith(".z") else ""
    yield from tf.data.TFRecordDataset(path, kind)


def pypi(path: str, index: str) -> Iterator[object]:
    """Read as the PyPI package tfrecord does."""
    from tfrecord.reader import tfrecord_iterator

    kind = "gzip" if path.endswith(".gz") else None
    yield from tfrecord_iterator(path, index or None, compression_type=kind)


def dali(path: str, index: str) -> Iterator[object]:
    """Read as DALI does, without a GPU."""
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali import tfrecord as features

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline() -> object:
        record = fn.readers.tfrecord(
            path=[path],
            index_path=[index],
            features={"id": features.FixedLenFeature((), features.int64, -1)},
            name="reader",
        )
        return record["id"]

    pipe = pipeline()
    pipe.build()
    for _ in range(pipe.epoch_size("reader")):
        yield pipe.run()


def grain(path: str, _index: str) -> Iterator[object]:
    """Read as grain does."""
    from grain.experimental import TFRecordIterDataset

    yield from TFRecordIterDataset(path)


READERS: dict[str, Callable[[str, str], Iterator[object]]] = {
    "tensorflow": tensorflow,
    "tfrecord": pypi,
    "dali": dali,
    "grain": grain,
}


def read(reader: str, path: str, index: str) -> None:
    """Read a file and print a count and, where it stopped with an error, its class."""
    count, error = 0, ""
    try:
        for _ in READERS[reader](path, index):
            count += 1
    except Exception as raised:  # noqa: BLE001
        error = type(raised).__name__
    print(json.dumps([count, error]))
    sys.stdout.flush()
    os._exit(0)  # some of them hang in their own clean-up after an error


def verdict(python: str, reader: str, path: Path, index: Path | None) -> str:
    """Return what a reader makes of a file."""
    command = [python, __file__, "--reader", reader, str(path), str(index or "")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode:
        return f"dies ({done.returncode})"
    count, error = json.loads(done.stdout.strip().splitlines()[-1])
    return f"{count} {error}".strip()


# -- the files -------------------------------------------------------------------------------------


def damages(good: bytes, ends: list[int]) -> dict[str, bytes]:
    """Return the shard, damaged in the usual ways."""
    third = ends[1]  # where the third record begins

    def flipped(offset: int) -> bytes:
        return good[:offset] + bytes([good[offset] ^ 0x40]) + good[offset + 1 :]

    return {
        "none": good,
        "payload bit flipped": flipped(third + 100),
        "payload CRC flipped": flipped(ends[2] - 1),
        "length CRC flipped": flipped(third + 9),
        "cut inside a record": good[: third + 50],
        "cut in the last header": good[: ends[-2] + 5],
        "last record missing": good[: ends[-2]],
        "empty file": b"",
        "64 zero bytes appended": good + bytes(64),
    }


def ours(path: Path) -> str:
    """Return what shard-stats says: kind, record, item, offset, what is lost and found again."""
    import shardwriter as sw

    report = sw.stats(path).to_json()
    words = [f"{report['num_records']}"]
    for defect in report["defects"]:
        text = defect["kind"]
        if defect["record_index"] is not None:
            text += f", record {defect['record_index']}"
        if defect["global_index"] is not None:
            text += f" (item {defect['global_index']})"
        if defect["offset"] is not None:
            text += f" at {defect['offset']}"
        if defect["num_lost"] != 0:
            text += f", {'?' if defect['num_lost'] is None else defect['num_lost']} lost"
        if defect["num_recoverable"]:
            text += f", {defect['num_recoverable']} more by repair"
        words.append(text)
    return "; ".join(words)


def damaged_shards(python: dict[str, str], readers: list[str]) -> list[list[str]]:
    """Return the rows of the first table."""
    import numpy as np

    import shardwriter as sw
    from shardwriter.writing.index_files import make_index

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = np.random.default_rng(1).bytes(150 * COUNT)
        items = [{"id": i, "x": data[150 * i : 150 * (i + 1)]} for i in range(COUNT)]
        sw.write(items, f"{folder}/t@{NUM_SHARDS}")
        make_index(f"{folder}/t", dali=True)
        shard = Path(folder, f"t.tfrecord-{SHARD:05d}-of-{NUM_SHARDS:05d}")
        index = Path(f"{shard}.idx")
        good = shard.read_bytes()
        lines = [line.split() for line in index.read_text().splitlines()]
        ends = [int(begin) + int(size) for begin, size in lines]
        for name, content in damages(good, ends).items():
            shard.write_bytes(content)
            said = [verdict(python[reader], reader, shard, index) for reader in readers]
            rows.append([name, ours(Path(folder, "t")), *said])
    return rows


def odd_files(folder: Path, python: dict[str, str]) -> list[list[str]]:
    """Return the rows of the second table; nobody has an index of these."""
    readers = [reader for reader in ("tensorflow", "tfrecord", "grain") if reader in python]
    files = sorted(path for path in folder.iterdir() if ".tfrecord" in path.name)
    return [
        [path.name, ours(path), *(verdict(python[r], r, path, None) for r in readers)]
        for path in files
    ]


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    """Run the readers and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peers", default=str(ROOT / ".venv-peers/bin/python"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--reader", nargs=3, metavar=("READER", "FILE", "INDEX"))
    options = parser.parse_args()
    if options.reader:
        read(*options.reader)
        return
    python = {"tensorflow": sys.executable, "tfrecord": sys.executable}
    if os.path.exists(options.peers):
        python.update(dali=options.peers, grain=options.peers)
    else:
        print("no environment with DALI and grain: they are left out", file=sys.stderr)
    readers = list(python)
    tables = {"damaged": damaged_shards(python, readers)}
    if options.data is not None:
        tables["odd"] = odd_files(options.data, python)
    if options.json:
        print(json.dumps(tables, indent=2))
        return
    header = ["shard-stats", *readers]
    show(f"One of {NUM_SHARDS} shards, 26 records", ["damage", *header], tables["damaged"])
    if "odd" in tables:
        show("Odd files", ["file", *(h for h in header if h != "dali")], tables["odd"])


if __name__ == "__main__":
    main()
