"""The graphs as Dataflow would get them: made without a network, and looked at."""

from __future__ import annotations

import socket
import sys
import time
from collections import Counter

import pytest

beam = pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
pytest.importorskip("google.cloud.storage", reason="Beam's part for Google Cloud is not installed")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.portability import common_urns  # noqa: E402
from apache_beam.portability.api import beam_runner_api_pb2 as api  # noqa: E402
from apache_beam.runners.dataflow import dataflow_runner  # noqa: E402

from shardwriter.cli.beam import write_shards  # noqa: E402
from shardwriter.cluster import ShardStats, WriteShards  # noqa: E402

OUT = "gs://training-data-bucket/out/train@16"
WHEEL = "shardwriter-0.1.0-py3-none-any.whl"
GROUP = common_urns.primitives.GROUP_BY_KEY.urn
RESHUFFLE = common_urns.composites.RESHUFFLE.urn
PARDO = common_urns.primitives.PAR_DO.urn
ARGUMENTS = [
    "--runner=DataflowRunner",
    "--dry_run=True",
    "--no_auth",
    "--sdk_location=container",
    "--project=training-project",
    "--region=europe-west4",
    "--temp_location=gs://training-data-bucket/tmp",
]

pytestmark = [
    # The runner's own: it asks whether a wheel is for the right interpreter, and leaves files open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Numbers:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return {"id": index}


def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,name\n" + "".join(f"{i},n{i}\n" for i in range(1000)))
    return str(path)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_arguments):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / WHEEL
    path.write_bytes(b"")
    return str(path)


def graph(apply, *more):
    pipeline = beam.Pipeline(options=PipelineOptions([*ARGUMENTS, "--no_save_main_session", *more]))
    apply(pipeline)
    return pipeline.run().job.proto_pipeline


def by_strategy(strategy, tmp_path):
    if strategy == "strided":
        return lambda p: p | WriteShards(OUT, source=Numbers())
    if strategy == "chunked":
        return lambda p: p | WriteShards(OUT, source=table(tmp_path))
    if strategy == "keyed":
        items = [{"id": i} for i in range(100)]
        return lambda p: p | beam.Create(items) | WriteShards(OUT, key="id")
    shards = tmp_path / "t@4"
    import shardwriter

    shardwriter.write([b"x"] * 10, shards)
    return lambda p: p | ShardStats(str(shards))


def shuffles(found):
    """How many groups by key and reshuffles there are; what Beam's own reshuffles hold is not."""
    transforms = found.components.transforms.values()
    inside = [t.unique_name + "/" for t in transforms if t.spec.urn == RESHUFFLE]
    return Counter(
        t.spec.urn
        for t in transforms
        if t.spec.urn in (GROUP, RESHUFFLE)
        and not t.unique_name.startswith(tuple(inside))
        and "/MaybeReshuffle/" not in t.unique_name  # that of beam.Create
    )


@pytest.mark.parametrize(
    ("strategy", "groups"), [("strided", 1), ("chunked", 3), ("keyed", 5), ("stats", 1)]
)
def test_the_graph_is_a_line_with_as_few_shuffles_as_there_need_be(strategy, groups, tmp_path):
    apply = by_strategy(strategy, tmp_path)
    started = time.monotonic()
    found = graph(apply)
    assert time.monotonic() - started < 20, "what takes so long asks a network"
    assert shuffles(found) == {GROUP: groups, RESHUFFLE: 1}
    components = found.components
    transforms = components.transforms.values()
    for transform in transforms:
        assert len(transform.outputs) <= 1, transform.unique_name
        if transform.spec.urn == PARDO:
            payload = api.ParDoPayload.FromString(transform.spec.payload)
            assert not payload.side_inputs, transform.unique_name
            assert not payload.state_specs, transform.unique_name
        if transform.spec.urn == GROUP:
            (name,) = transform.inputs.values()
            coder = components.coders[components.pcollections[name].coder_id]
            key = components.coders[coder.component_coder_ids[0]]
            assert coder.spec.urn == common_urns.coders.KV.urn
            assert key.spec.urn == common_urns.coders.VARINT.urn, transform.unique_name


def test_workers_get_the_wheel_and_nothing_of_this_process(wheel):
    def apply(pipeline):
        return pipeline | WriteShards(OUT, source=Numbers())

    found = graph(apply, f"--extra_package={wheel}")
    (environment,) = found.components.environments.values()
    assert environment.urn == common_urns.environments.DOCKER.urn
    image = api.DockerPayload.FromString(environment.payload).container_image
    assert f"beam_python{sys.version_info[0]}.{sys.version_info[1]}_sdk" in image
    assert environment.capabilities
    assert WHEEL in staged(environment)
    assert not [name for name in staged(environment) if "session" in name]


def staged(environment):
    return [
        api.ArtifactStagingToRolePayload.FromString(artifact.role_payload).staged_name
        for artifact in environment.dependencies
    ]


def test_a_container_of_ones_own():
    image = "europe-docker.pkg.dev/training-project/images/shardwriter:1"

    def apply(pipeline):
        return pipeline | WriteShards(OUT, source=Numbers())

    found = graph(apply, f"--sdk_container_image={image}")
    (environment,) = found.components.environments.values()
    assert api.DockerPayload.FromString(environment.payload).container_image == image


def test_a_dry_run_writes_nothing_where_the_output_is(tmp_path):
    import numpy as np

    class Large(Numbers):
        def __init__(self):
            self.noise = np.random.default_rng(0).bytes(5 << 18)

    def apply(pipeline):
        return pipeline | WriteShards(tmp_path / "out" / "train@4", source=Large())

    assert shuffles(graph(apply)) == {GROUP: 1, RESHUFFLE: 1}
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_the_same_graph(monkeypatch, capsys, wheel, tmp_path):
    (tmp_path / "numbers_of_a_test.py").write_text(
        "class Numbers:\n"
        "    def __len__(self): return 1000\n"
        "    def __getitem__(self, index): return {'id': index}\n"
        "numbers = Numbers()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = []
    run = dataflow_runner.DataflowRunner.run_pipeline

    def keep(self, *arguments, **named):
        ran.append(run(self, *arguments, **named))
        return ran[-1]

    monkeypatch.setattr(dataflow_runner.DataflowRunner, "run_pipeline", keep)
    words = ["write_shards", "numbers_of_a_test:numbers", OUT, f"--extra_package={wheel}"]
    monkeypatch.setattr(sys, "argv", [*words, "--save_main_session", *ARGUMENTS])
    with pytest.raises(SystemExit) as ended:
        write_shards()
    told = capsys.readouterr()
    assert (ended.value.code or 0, told.out) == (0, ""), told.err
    assert "nothing was run" in told.err
    found = ran[0].job.proto_pipeline
    assert shuffles(found) == {GROUP: 1, RESHUFFLE: 1}
    (environment,) = found.components.environments.values()
    assert WHEEL in staged(environment)
    assert not [name for name in staged(environment) if "session" in name]
