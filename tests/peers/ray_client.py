"""Ray Data's ``read_tfrecords``, in a temporary cluster of one CPU."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", RAY_USAGE_STATS_ENABLED="0")

import ray
from sums import Row, Set, answer


def rows(one: Set) -> Iterator[Row]:
    opened = {"compression": "gzip"} if one["compression"] == "GZIP" else None
    found = ray.data.read_tfrecords(
        one["paths"], arrow_open_stream_args=opened, override_num_blocks=1
    )
    for row in found.iter_rows():
        yield {name: row[name] for name in one["features"]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # a socket's path has to be short
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=100_000_000,
            _temp_dir=folder,
        )
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            answer({"read_tfrecords": rows})
        finally:
            ray.shutdown()
