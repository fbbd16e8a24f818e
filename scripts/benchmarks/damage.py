"""Read damaged shards with shard-stats, TensorFlow, the PyPI reader, DALI and grain.

The first table is of one shard of 26 Examples in a dataset of 4, damaged in each of the usual ways;
DALI and the PyPI reader are given the index of the undamaged shard, as if it had been made when the
data was written. The second is of a folder of odd and damaged files. A cell has the records that a
reader gives, and the error when it stops; a number alone means that it reports no error.

Every reader has a process of its own for every file: damage can end it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Case, Contender, Entry, Run, Turn, Work, empty_folder

COUNT, NUM_SHARDS, SHARD = 104, 4, 1
TIMEOUT_S = 120

# -- the readers, each in a process of its own -----------------------------------------------------


def tensorflow(path: str, _index: str) -> Iterator[object]:
    """Read as a program that trains with TensorFlow does."""
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


def print_records(reader: str, path: str, index: str) -> None:
    """Read a file and print the number of records and, where it stopped, the class of the error."""
    count, error = 0, ""
    try:
        for _ in READERS[reader](path, index):
            count += 1
    except Exception as raised:  # noqa: BLE001
        error = type(raised).__name__
    print(json.dumps(f"{count} {error}".strip()))
    sys.stdout.flush()
    os._exit(0)  # some of them hang in their own clean-up after an error


def print_report(path: str) -> None:
    """Print what shard-stats finds: kind, record, item, offset, and how many records are lost."""
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
    print(json.dumps("; ".join(words)))


def verdict(turn: Turn, name: str, path: Path, index: Path | None) -> str:
    """Return what a reader makes of a file."""
    if turn.entry.contender.is_ours:
        command = turn.call_words("benchmarks.damage:print_report", path)
    else:
        words = (name, path, "" if index is None else index)
        command = turn.call_words("benchmarks.damage:print_records", *words)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=turn.environment,
            cwd=turn.case.folder,
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode:
        return f"dies ({done.returncode})"
    return str(json.loads(done.stdout.strip().splitlines()[-1]))


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


def damaged_shards(folder: Path) -> Iterator[tuple[str, Path, Path, Path]]:
    """Yield each damage: its name, the dataset, the shard and its index."""
    import numpy as np

    import shardwriter as sw

    data = np.random.default_rng(1).bytes(150 * COUNT)
    items = [{"id": i, "x": data[150 * i : 150 * (i + 1)]} for i in range(COUNT)]
    sw.write(items, folder / f"t@{NUM_SHARDS}", run=sw.RunOptions(dali_index=True))
    shard = folder / f"t.tfrecord-{SHARD:05d}-of-{NUM_SHARDS:05d}"
    index = Path(f"{shard}.idx")
    good = shard.read_bytes()
    lines = [line.split() for line in index.read_text().splitlines()]
    ends = [int(begin) + int(size) for begin, size in lines]
    for name, content in damages(good, ends).items():
        shard.write_bytes(content)
        yield name, folder / "t", shard, index


def odd_files(folder: Path) -> Iterator[tuple[str, Path, Path, None]]:
    """Yield the files of a folder; nobody has an index of these."""
    for path in sorted(folder.iterdir()):
        if ".tfrecord" in path.name:
            yield path.name, path, path, None


def table(case: Case, entries: list[Entry]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each file with what each reader makes of it."""
    files: Iterator[tuple[str, Path, Path, Path | None]]
    if case.name == "odd-files":
        folder = os.environ.get(ODD_FILES)
        if folder is None:
            print(f"left out: odd-files ({ODD_FILES} names no folder)", file=sys.stderr)
            return
        files = odd_files(Path(folder).resolve())
        entries = [
            entry for entry in entries if entry.contender.name != "dali"
        ]  # it needs an index
    else:
        files = damaged_shards(case.folder / "damaged")
    for name, dataset, shard, index in files:
        cells = {}
        for entry in entries:
            turn = Turn(entry, case, 0, entry.environment(case, False), case.folder)
            path = dataset if entry.contender.is_ours else shard
            cells[entry.name] = verdict(turn, entry.name, path, index)
        yield name, cells


ODD_FILES = "SHARDWRITER_TEST_DATA"
MODULES = {
    "tensorflow": "tensorflow",
    "tfrecord": "tfrecord",
    "dali": "nvidia.dali",
    "grain": "grain",
}


def make(case: Case) -> None:
    """Make the folder of the dataset that is damaged."""
    empty_folder(case.folder / "damaged")


def contenders(_case: Case) -> list[Contender]:
    """Return shard-stats and the readers."""
    ours = Contender("shard-stats", no_time, is_ours=True)
    return [ours, *(Contender(name, no_time, (module,)) for name, module in MODULES.items())]


def no_time(_turn: Turn) -> Run:
    """Return an empty run; nothing is timed here."""
    return Run()


WORKS = [
    Work(
        "damage",
        "read damaged shards: a table of what each reader gives and reports; nothing is timed",
        ("shards", "odd-files"),
        make,
        contenders,
        table=table,
    )
]
