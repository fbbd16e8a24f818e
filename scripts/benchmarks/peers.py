"""Write datasets with other packages, each as its documentation does it.

They store the same records in formats of their own; :func:`print_digest` reads them back. With
``part`` and ``parts`` a process writes one part of the shards and only their records.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import digest, resized_pair, table_rows

Belongs = Callable[[int], bool]
"""Whether a record, by its number, belongs to this process."""

# -- items -----------------------------------------------------------------------------------------


def images(folder: Path) -> tuple[int, Callable[[int], dict[str, Any]]]:
    """Return how many images there are, and what gives one by its number."""
    import imagesize

    class_folders = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(label, path) for label, c in enumerate(class_folders) for path in sorted(c.iterdir())]

    def image(number: int) -> dict[str, Any]:
        label, path = files[number]
        data = path.read_bytes()
        width, height = imagesize.get(io.BytesIO(data))
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


def items(case: str, source: Path, belongs: Belongs) -> Iterator[tuple[int, Any]]:
    """Yield the number and the record of this process's items."""
    if case == "table":
        yield from table(source, belongs)
        return
    count, get = {"images": images, "floats": floats, "tokens": tokens}[case](source)
    for number in filter(belongs, range(count)):
        yield number, get(number)


def table(path: Path, belongs: Belongs) -> Iterator[tuple[int, Any]]:
    """Yield the rows of the table."""
    for number, row in table_rows(path, belongs):
        integers = {"id": int(row["id"]), "count": int(row["count"])}
        reals = {"price": float(row["price"]), "score": float(row["score"])}
        yield number, {**integers, **reals, "city": row["city"], "code": row["code"]}


# -- formats of their own --------------------------------------------------------------------------


def belongs_to(num_shards: int, part: int, parts: int) -> Belongs:
    """Return which records belong to a process: those of every parts-th shard."""
    return lambda number: number % num_shards % parts == part


def write_tfrecord(
    case: str, source: Path, out: Path, num_shards: int, part: int, parts: int
) -> None:
    """Write with the writers of the package ``tfrecord``, round-robin."""
    from tfrecord.writer import TFRecordWriter

    writers = {
        shard: TFRecordWriter(str(out / f"{shard:05d}.tfrecord"))
        for shard in range(part, num_shards, parts)
    }
    for number, record in items(case, source, belongs_to(num_shards, part, parts)):
        typed = {k: (v, "byte" if isinstance(v, bytes) else "int") for k, v in record.items()}
        writers[number % num_shards].write(typed)
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


def write_mds(case: str, source: Path, out: Path, num_shards: int, part: int, parts: int) -> None:
    """Write about as many MDS shards; a process has a folder of its own, to be read as a stream."""
    from streaming import MDSWriter

    num_bytes = sum(f.stat().st_size for f in [source, *source.glob("*")] if f.is_file())
    folder, limit = str(out / f"part{part}"), num_bytes // num_shards
    with MDSWriter(out=folder, columns=MDS_COLUMNS[case], size_limit=limit) as writer:
        for _, record in items(case, source, belongs_to(num_shards, part, parts)):
            writer.write(record)


def read_mds(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written, by the same package."""
    from streaming import LocalDataset

    for part in sorted(folder.iterdir()):
        dataset = LocalDataset(local=str(part))
        for number in range(len(dataset)):
            yield dataset[number]


def write_webdataset(
    case: str, source: Path, out: Path, num_shards: int, part: int, parts: int
) -> None:
    """Write tar files round-robin, with an array in each member."""
    import webdataset

    with ExitStack() as stack:
        writers = {
            shard: stack.enter_context(webdataset.TarWriter(str(out / f"{shard:05d}.tar")))
            for shard in range(part, num_shards, parts)
        }
        for number, record in items(case, source, belongs_to(num_shards, part, parts)):
            members = {f"{name}.npy": np.asarray(value) for name, value in record.items()}
            writers[number % num_shards].write({"__key__": f"{number:09d}", **members})


def read_webdataset(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written, by the same package."""
    import webdataset

    paths = sorted(map(str, folder.iterdir()))
    for record in webdataset.WebDataset(paths, shardshuffle=False).decode():
        yield {k.removesuffix(".npy"): v for k, v in record.items() if not k.startswith("__")}


def write_litdata(
    _case: str, source: Path, out: Path, _num_shards: int, _part: int, parts: int
) -> None:
    """Let LitData decode and resize pairs in ``parts`` processes of its own."""
    import litdata

    litdata.optimize(
        fn=partial(resized_pair, source),
        inputs=sorted(os.listdir(source / "images")),
        output_dir=str(out),
        num_workers=parts,
        chunk_bytes="16MB",
    )


def read_litdata(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written, by the same package."""
    import litdata

    dataset = litdata.StreamingDataset(str(folder), shuffle=False)
    for number in range(len(dataset)):
        yield dataset[number]


FORMATS: dict[str, tuple[Callable[..., None], Callable[[Path], Iterator[Any]]]] = {
    "tfrecord": (write_tfrecord, read_tfrecord),
    "mds": (write_mds, read_mds),
    "webdataset": (write_webdataset, read_webdataset),
    "litdata": (write_litdata, read_litdata),
}


def write_format(
    package: str,
    case: str,
    source: str,
    out: str,
    num_shards: int,
    *,
    part: int = 0,
    parts: int = 1,
) -> None:
    """Write the records of a source with a package: all of them, or one part."""
    write, _ = FORMATS[package]
    write(case, Path(source), Path(out), num_shards, part, parts)


def write_litdata_parts(source: str, out: str, parts: int) -> None:
    """Write pairs with as many processes of LitData."""
    write_litdata("masks", Path(source), Path(out), 0, 0, parts)


def print_digest(package: str, folder: str) -> None:
    """Read back what a package wrote and print a digest of it."""
    _, read = FORMATS[package]
    print("digest", digest(read(Path(folder))))


# -- Pillow ----------------------------------------------------------------------------------------

JPEG_QUALITY = 95


def shrink(path: str, max_side: int, *, draft: bool) -> dict[str, Any]:
    """Return the features of an image that was made smaller."""
    from PIL import Image

    with Image.open(path) as image:
        if draft:
            image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
            small = image.convert("RGB")
        else:
            scale = max_side / max(image.size)
            size = [max(1, math.floor(side * scale + 0.5)) for side in image.size]
            small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
    return {
        "image/encoded": file.getvalue(),
        "image/filename": os.path.basename(path),
        "image/format": "jpeg",
        "image/height": small.height,
        "image/width": small.width,
    }


def write_pillow(way: str, source: str, out: str, max_side: int, workers: int) -> None:
    """Make JPEG files smaller with Pillow, and write them to one file with our codec and writer.

    ``whole`` decodes whole images; with ``draft`` the decoder makes them smaller, as ours does;
    ``pool`` is the first in several processes, which send small files to the one that writes.
    """
    import shardwriter as sw

    paths = sorted(str(path) for path in Path(source).iterdir())
    make_small = partial(shrink, max_side=max_side, draft=way == "draft")

    def write(rows: Iterable[dict[str, Any]]) -> None:
        with sw.TFRecordWriter(f"{out}/all.tfrecord") as writer:
            for row in rows:
                writer.write(sw.encode_example(row))

    if way == "pool":
        with multiprocessing.Pool(workers) as pool:
            write(pool.imap(make_small, paths, chunksize=4))
    else:
        write(map(make_small, paths))
