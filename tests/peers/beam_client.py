"""Beam's ``ReadFromTFRecord`` over all shards, by a pattern."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.io.tfrecordio import ReadFromTFRecord
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from sums import Row, Set, answer, parsed


def rows(one: Set) -> Iterator[Row]:
    suffix = ".gz" if one["compression"] == "GZIP" else "[0-9]"  # and no index
    pattern = one["dataset"] + ".tfrecord-*-of-*" + suffix
    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            payloads = pipeline | ReadFromTFRecord(pattern)
            hexes = payloads | beam.Map(bytes.hex)
            hexes | beam.io.WriteToText(os.path.join(folder, "payloads"))
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name)) as lines:
                for line in lines:
                    yield parsed(bytes.fromhex(line), one["features"])


if __name__ == "__main__":
    answer({"ReadFromTFRecord": rows})
