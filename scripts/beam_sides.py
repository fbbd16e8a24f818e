"""One side of bench_beam.py, in a process of its own: it writes once, and says what that took.

    python scripts/beam_sides.py SIDE WORK OUT NUM_SHARDS REPORT [--address ADDRESS]

REPORT becomes a JSON file of ``pipeline_s``, from making the pipeline to its end, and ``peak_mb``,
of this process; what is imported stands before. ``--address`` is a Dask cluster, as
``python scripts/beam_sides.py --cluster WORKERS`` starts one: it prints the address and runs until
its input is closed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from beam_work import WORKS, Work, with_tensorflow

import shardwriter as sw

WORKERS = 2
Begun = Callable[[], None]
"""To be called once everything is imported."""


def write(work: Work, out: str, begun: Begun, workers: int | None, **more: Any) -> None:
    """Write without Beam, in one process or in a pool."""
    begun()
    engine: Any = "serial" if workers is None else "process"
    run = sw.RunOptions(engine=engine, workers=workers)
    sw.write(work.source or os.environ["BENCH_SOURCE"], out, run=run, **more)


def write_beam(
    work: Work, out: str, begun: Begun, address: str | None, add: Callable[[Any], Any]
) -> None:
    """Run a pipeline with the runner that is part of Beam, or on a cluster."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from shardwriter.cluster import WriteShards  # noqa: F401  imported before the clock starts

    arguments: list[str] = []
    if address is None:
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner as Runner
    else:
        from apache_beam.runners.dask.dask_runner import DaskRunner as Runner

        arguments = ["--dask_client_address", address]
    begun()
    with beam.Pipeline(runner=Runner(), options=PipelineOptions(arguments)) as pipeline:
        add(pipeline)


def add_source(work: Work, out: str, strategy: Any, pipeline: Any) -> Any:
    """End a pipeline with our transform, which reads the source itself."""
    from shardwriter.cluster import WriteShards

    source = work.source or os.environ["BENCH_SOURCE"]
    return pipeline | WriteShards(out, source=source, strategy=strategy)


def items(work: Work, pipeline: Any) -> Any:
    """Return the items as a pipeline of one's own has them; Create's own reshuffle is left off."""
    import apache_beam as beam

    numbers = beam.Create(range(int(os.environ["BENCH_COUNT"])), reshuffle=False)
    return pipeline | numbers | beam.Reshuffle() | "Item" >> beam.Map(work.item)


def add_keyed(work: Work, out: str, pipeline: Any) -> Any:
    """End a pipeline with our transform, which is given the items."""
    from shardwriter.cluster import WriteShards

    return items(work, pipeline) | WriteShards(out, key=work.key)


def add_peer(
    work: Work, out: str, encode: Callable[[Any], bytes] | None, num_shards: int, pipeline: Any
) -> Any:
    """End a pipeline with Beam's own writer."""
    import apache_beam as beam

    found = items(work, pipeline)
    if encode is not None:
        found = found | "Encode" >> beam.Map(encode)
    writer = beam.io.WriteToTFRecord(
        out.split("@")[0], file_name_suffix=".tfrecord", num_shards=num_shards
    )
    return found | writer


def side(name: str, work: Work, out: str, num_shards: int, address: str | None) -> Any:
    """Return what writes; it is to be called with what starts the clock."""
    if name.startswith("pool"):
        return partial(write, work, out, workers=WORKERS)
    if name.startswith("serial"):
        more = {"order": "key", "key": work.order_key} if name == "serial-key" else {}
        return partial(write, work, out, workers=None, **more)
    what = name.removeprefix("dask-")
    encodes = {
        "peer": None,
        "peer-tensorflow": with_tensorflow,
        "peer-ours": sw.encode_example,
    }
    if what in encodes:
        if what == "peer-tensorflow":
            import tensorflow  # noqa: F401  before the clock starts
        add = partial(add_peer, work, out, encodes[what], num_shards)
    elif what == "keyed":
        add = partial(add_keyed, work, out)
    else:
        add = partial(add_source, work, out, what)
    return partial(write_beam, work, out, address=address if what != name else None, add=add)


def run_cluster(workers: int) -> None:
    """Run a Dask cluster until the input ends."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


def peak_mb() -> float:
    """Return the peak of this process; Linux counts what started it into ``ru_maxrss``."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Write once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", nargs="?")
    parser.add_argument("work", nargs="?", choices=WORKS)
    parser.add_argument("out", nargs="?")
    parser.add_argument("num_shards", nargs="?", type=int)
    parser.add_argument("report", nargs="?", type=Path)
    parser.add_argument("--address")
    parser.add_argument("--cluster", type=int)
    options = parser.parse_args()
    if options.cluster:
        run_cluster(options.cluster)
        return
    started: list[float] = []
    run = side(options.side, WORKS[options.work], options.out, options.num_shards, options.address)
    run(begun=lambda: started.append(time.perf_counter()))
    seconds = time.perf_counter() - started[0]
    options.report.write_text(json.dumps({"pipeline_s": seconds, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
