"""Sources for Beam jobs, importable by workers, and the runners that jobs are tried on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import shardwriter as sw

HERE = Path(__file__).parent
RUNNERS = ["in-memory", "job-service", "multi-processing", "dask"]


class Numbers:
    """A sequence of small items of several kinds."""

    def __init__(self, num_items, die_at=None, note=None):
        self._num_items = num_items
        self._die_at = die_at
        self._note = note  # a file that is there once a worker has died

    def __len__(self):
        return self._num_items

    def __getitem__(self, index):
        if not 0 <= index < self._num_items:
            raise IndexError(index)
        if index == self._die_at and first_time(self._note):
            os.kill(os.getpid(), signal.SIGKILL)
        return {
            "id": f"item-{index:07d}",
            "label": index * 7 % 5,
            "vector": np.full(index % 4, index, np.float32),
        }


class Stream:
    """The same items, one after the other."""

    def __init__(self, num_items):
        self._num_items = num_items

    def __call__(self):
        return map(Numbers(self._num_items).__getitem__, range(self._num_items))


class Blobs:
    """Finished records of one size."""

    def __init__(self, num_items, record_bytes=1000):
        self._num_items = num_items
        self._record_bytes = record_bytes

    def __len__(self):
        return self._num_items

    def __getitem__(self, index):
        if not 0 <= index < self._num_items:
            raise IndexError(index)
        return index.to_bytes(8, "little") * (self._record_bytes // 8)


class Broken(Numbers):
    """A sequence in which every 100th item can not be loaded."""

    def __getitem__(self, index):
        if index % 100 == 50:
            raise ValueError(f"item {index} is broken")
        return super().__getitem__(index)


def first_time(note):
    """Tell whether nobody has asked before, in any process."""
    try:
        os.close(os.open(note, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def drop_some(features):
    """A map that leaves gaps: in runs, at the beginning, alone."""
    index = int(features["id"][5:])
    return sw.SKIP if index in (0, 1, 2) or index % 13 == 5 else features


@contextmanager
def runner_of(name, folder):
    """Yield what ``beam.Pipeline`` takes for a runner."""
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    if name == "in-memory":
        yield {"runner": FnApiRunner()}
    elif name == "multi-processing":
        options = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
        yield {"runner": "DirectRunner", "options": PipelineOptions(options)}
    elif name == "job-service":
        with _job_service(folder) as endpoint:
            options = [f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"]
            yield {"runner": "PortableRunner", "options": PipelineOptions(options)}
    else:
        distributed = pytest.importorskip("dask.distributed", reason="dask is not installed")
        from apache_beam.runners.dask.dask_runner import DaskRunner

        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster:
            options = [f"--dask_client_address={cluster.scheduler_address}"]
            yield {"runner": DaskRunner(), "options": PipelineOptions(options)}


@contextmanager
def _job_service(folder):
    port = Path(folder) / "port"
    with open(Path(folder) / "service.log", "w") as log:
        command = [
            sys.executable,
            "-m",
            "apache_beam.runners.portability.local_job_service_main",
            f"--port_file={port}",
            f"--staging_dir={folder}/staging",
        ]
        service = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            give_up = time.monotonic() + 60
            while not port.exists() or not port.read_text().strip():
                assert service.poll() is None, Path(log.name).read_text()
                assert time.monotonic() < give_up, "the job service does not start"
                time.sleep(0.05)
            yield f"localhost:{port.read_text().strip()}"
        finally:
            service.terminate()
            service.wait(30)


def run(transform, runner=None, begin=None):
    """Run a pipeline that is one transform, behind ``begin`` where it is given."""
    import apache_beam as beam

    if runner is None:
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        runner = {"runner": FnApiRunner()}
    pipeline = beam.Pipeline(**runner)
    (pipeline if begin is None else pipeline | "Begin" >> begin) | "Write" >> transform
    result = pipeline.run()
    try:
        result.wait_until_finish()
    finally:
        client = getattr(result, "client", None)  # of dask: it stays connected
        if client is not None:
            client.close()
    return result


def contents(folder):
    """Return the bytes of all files of a local folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def assert_same(folder, other, without=()):
    """Hold two datasets against each other, byte for byte; nothing else may lie there."""
    ours, theirs = contents(folder), contents(other)
    assert sorted(ours) == sorted(theirs)
    for name in ours.keys() - set(without):
        assert ours[name] == theirs[name], name
    assert not [path for path in Path(folder).iterdir() if path.is_dir()]
