"""Writers of other packages, each on a workload that people use it for, as its documentation does.

    python scripts/other_peers.py PEER OUT WORKLOAD SOURCE NUM_SHARDS [--part I --parts N]
    python scripts/other_peers.py PEER OUT --digest

They keep the same records in formats of their own. ``--digest`` reads them back and prints a digest
of their contents. Runs where the peer is installed, and needs numpy beside it (imagesize for
images, OpenCV for masks). With ``--parts`` a process writes one part, as in tensorflow_peers.py;
LitData starts ``--parts`` processes itself.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from bench_data import digest, resized_pair, table_rows


def images(folder: Path) -> tuple[int, Callable[[int], dict[str, Any]]]:
    """Return how many images there are, and what gives one by its number."""
    import imagesize

    class_folders = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(label, path) for label, c in enumerate(class_folders) for path in sorted(c.iterdir())]

    def image(number: int) -> dict[str, Any]:
        label, path = files[number]
        data = path.read_bytes()
        width, height = imagesize.get(BytesIO(data))
        return {
            "image/encoded": data,
            "image/filename": f"{path.parent.name}/{path.name}".encode(),
            "image/format": b"png",
            "image/height": height,
            "image/width": width,
            "image/class/label": label,
            "image/class/text": path.parent.name.encode(),
        }

    return len(files), image


def floats(folder: Path) -> tuple[int, Callable[[int], dict[str, Any]]]:
    """Return how many vectors there are, and what gives one."""
    x, labels = np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "label.npy")
    return len(x), lambda number: {"x": x[number], "label": int(labels[number])}


def tokens(folder: Path) -> tuple[int, Callable[[int], dict[str, Any]]]:
    """Return how many rows of token ids there are, and what gives one."""
    rows = np.load(folder / "tokens.npy", mmap_mode="r")
    return len(rows), lambda number: {"tokens": rows[number]}


def items(workload: str, source: Path, mine: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
    """Yield the number and the record of this process's items."""
    if workload == "table":
        yield from table(source, mine)
        return
    count, get = {"images": images, "floats": floats, "tokens": tokens}[workload](source)
    for number in filter(mine, range(count)):
        yield number, get(number)


def table(path: Path, mine: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of the table."""
    for number, row in table_rows(path, mine):
        integers = {"id": int(row["id"]), "count": int(row["count"])}
        reals = {"price": float(row["price"]), "score": float(row["score"])}
        yield number, {**integers, **reals, "city": row["city"], "code": row["code"]}


def write_tfrecord(options: argparse.Namespace) -> None:
    """Write with the writers of the package ``tfrecord``, round-robin."""
    from tfrecord.writer import TFRecordWriter

    shards = range(options.part, options.num_shards, options.parts)
    writers = {
        shard: TFRecordWriter(str(options.out / f"{shard:05d}.tfrecord")) for shard in shards
    }
    for number, record in items(options.workload, options.source, mine(options)):
        typed = {k: (v, "byte" if isinstance(v, bytes) else "int") for k, v in record.items()}
        writers[number % options.num_shards].write(typed)
    for writer in writers.values():
        writer.close()


def read_tfrecord(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written, by the same package."""
    from tfrecord.reader import tfrecord_loader

    for path in sorted(folder.iterdir()):
        yield from tfrecord_loader(str(path), None)


MDS_COLUMNS = {
    "floats": {"x": "ndarray:float32:768", "label": "int"},
    "table": {
        "id": "int",
        "count": "int",
        "price": "float32",
        "score": "float32",
        "city": "str",
        "code": "str",
    },
}


def write_mds(options: argparse.Namespace) -> None:
    """Write about as many MDS shards; a process has a folder of its own, to be read as a stream."""
    from streaming import MDSWriter

    read = sum(f.stat().st_size for f in [options.source, *options.source.glob("*")] if f.is_file())
    columns = MDS_COLUMNS[options.workload]
    folder = str(options.out / f"part{options.part}")
    with MDSWriter(out=folder, columns=columns, size_limit=read // options.num_shards) as writer:
        for _, record in items(options.workload, options.source, mine(options)):
            writer.write(record)


def read_mds(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written, by the same package."""
    from streaming import LocalDataset

    for part in sorted(folder.iterdir()):
        dataset = LocalDataset(local=str(part))
        for number in range(len(dataset)):
            yield dataset[number]


def write_webdataset(options: argparse.Namespace) -> None:
    """Write tar files round-robin, with an array in each member."""
    import webdataset

    with ExitStack() as stack:
        writers = {
            shard: stack.enter_context(webdataset.TarWriter(str(options.out / f"{shard:05d}.tar")))
            for shard in range(options.part, options.num_shards, options.parts)
        }
        for number, record in items(options.workload, options.source, mine(options)):
            members = {f"{name}.npy": np.asarray(value) for name, value in record.items()}
            writers[number % options.num_shards].write({"__key__": f"{number:09d}", **members})


def read_webdataset(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written, by the same package."""
    import webdataset

    paths = sorted(map(str, folder.iterdir()))
    for record in webdataset.WebDataset(paths, shardshuffle=False).decode():
        yield {k.removesuffix(".npy"): v for k, v in record.items() if not k.startswith("__")}


def write_litdata(options: argparse.Namespace) -> None:
    """Let LitData decode and resize pairs in its own processes."""
    import litdata

    litdata.optimize(
        fn=partial(resized_pair, options.source),
        inputs=sorted(os.listdir(options.source / "images")),
        output_dir=str(options.out),
        num_workers=options.parts,
        chunk_bytes="16MB",
    )


def read_litdata(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written, by the same package."""
    import litdata

    dataset = litdata.StreamingDataset(str(folder), shuffle=False)
    for number in range(len(dataset)):
        yield dataset[number]


def mine(options: argparse.Namespace) -> Callable[[int], bool]:
    """Tell which records belong to this process: those of every parts-th shard."""
    return lambda number: number % options.num_shards % options.parts == options.part


PEERS: dict[str, tuple[Callable[..., None], Callable[[Path], Iterator[Any]]]] = {
    "tfrecord": (write_tfrecord, read_tfrecord),
    "mds": (write_mds, read_mds),
    "webdataset": (write_webdataset, read_webdataset),
    "litdata": (write_litdata, read_litdata),
}


def main() -> None:
    """Write, or read back."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("out", type=Path)
    parser.add_argument("workload", nargs="?")
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("num_shards", type=int, nargs="?")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--digest", action="store_true", help="read back and print a digest")
    options = parser.parse_args()
    write, read = PEERS[options.peer]
    if options.digest:
        print("digest", digest(read(options.out)))
    else:
        write(options)


if __name__ == "__main__":
    main()
