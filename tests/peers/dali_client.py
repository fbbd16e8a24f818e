"""DALI's ``readers.tfrecord`` with .idx files: pipelines on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvidia.dali import fn, pipeline_def
from nvidia.dali import tfrecord as dali
from sums import Row, Set, answer

BATCH_SIZE = 8
KINDS = {
    "bytes": dali.FixedLenFeature((), dali.string, ""),
    "int64": dali.FixedLenFeature((), dali.int64, -1),
    "float": dali.FixedLenFeature((), dali.float32, -1.0),
}


def rows(one: Set, decode: bool = False) -> Iterator[Row]:
    """Yield each record once; with ``decode`` an image is decoded and has to be of its size."""
    names = list(one["features"])
    pixels = decode and "image/encoded" in names

    @pipeline_def(batch_size=BATCH_SIZE, num_threads=2, device_id=None)
    def pipeline() -> Any:
        record = fn.readers.tfrecord(
            path=one["paths"],
            index_path=[f"{path}.idx" for path in one["paths"]],
            features={name: KINDS[kind] for name, kind in one["features"].items()},
            name="reader",
        )
        images = [fn.decoders.image(record["image/encoded"], device="cpu")] if pixels else []
        return (*(record[name] for name in names), *images)

    built = pipeline()
    built.build()
    left = built.epoch_size("reader")
    while left:  # the last batch goes on with the first records
        columns = built.run()
        for at in range(min(left, BATCH_SIZE)):
            values = [column.at(at) for column in columns]
            row = dict(zip(names, values, strict=False))
            if pixels:
                height, width, _ = values[-1].shape
                assert height == row["image/height"].item(), (height, row["image/height"])
                assert width == row["image/width"].item(), (width, row["image/width"])
            yield row
        left -= min(left, BATCH_SIZE)


if __name__ == "__main__":
    answer({"readers.tfrecord": rows, "with decoders.image": lambda one: rows(one, decode=True)})
