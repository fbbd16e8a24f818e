"""Splits by Beam: one job after the other, and the bytes of the serial engine."""

from __future__ import annotations

import json
import sys

import pytest
from beam_jobs import Numbers, Stream, assert_same, drop_some, run

import shardwriter as sw
from shardwriter.dataset.splits import parse_split_option
from shardwriter.writing.options import DatasetOptions, RunOptions

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
import apache_beam as beam

from shardwriter.cli.beam import main
from shardwriter.cluster import WriteShards
from shardwriter.errors import OptionError

SPLIT = "train=0.8,val=0.2"


@pytest.mark.parametrize("strategy", ["strided", "chunked"])
@pytest.mark.parametrize("more", [{}, {"shuffle_seed": 4}, {"key": "label"}], ids=str)
def test_sequences(tmp_path, strategy, more):
    write_both(tmp_path, Numbers(203), strategy, **more)


def test_streams(tmp_path):
    write_both(tmp_path, Stream(101), "auto")
    write_both(tmp_path / "by-key", Stream(101), "auto", key="label")


def write_both(tmp_path, source, strategy, **more):
    sw.write_splits(source, tmp_path / "serial/m@3", SPLIT, map=drop_some, **more)
    for split in parse_split_option(SPLIT).splits(0):
        transform = WriteShards(
            tmp_path / "beam" / f"m-{split.name}@3",
            source=source,
            options=DatasetOptions(map=drop_some, split=split, **more),
            run=RunOptions(),
            strategy=strategy,
        )
        run(transform)
    assert_same(tmp_path / "beam", tmp_path / "serial")


@pytest.fixture
def invoke(capsys, monkeypatch):
    """Runs the job's command in this process; returns what it prints to stdout and stderr."""

    def run_command(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["shardwriter", "beam", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == code, printed.err
        return printed

    return run_command


def test_the_job_writes_all_splits(tmp_path, invoke):
    (tmp_path / "in").mkdir()
    for name, count in (("train", 40), ("test", 9)):
        rows = "".join(f"{i},{name}\n" for i in range(count))
        (tmp_path / f"in/{name}.csv").write_text("id,name\n" + rows)
    for source, split in (
        (tmp_path / "in", "source"),
        (tmp_path / "in/train.csv", "a=0.5,b=0.5@1"),
    ):
        serial, ours = (tmp_path / split[:1] / name for name in ("serial", "beam"))
        sw.write_splits(source, serial / "d@2", split)
        done = invoke("write", source, ours / "d@2", "--split", split, "--json")
        told = json.loads(done.out)
        assert {entry["strategy"] for entry in told["splits"].values()} == {"chunked"}
        assert_same(ours, serial)
        again = invoke("write", source, ours / "d@2", "--split", split, "--resume")
        assert again.out.count("wrote") == 2


def test_an_output_that_is_there_is_refused_before_the_first_job(tmp_path, invoke):
    (tmp_path / "t.csv").write_text("x\n1\n2\n3\n")
    sw.write([{"x": 1}], tmp_path / "out/d-b@1")
    done = invoke(
        "write", tmp_path / "t.csv", tmp_path / "out/d@1", "--split", "a=0.5,b=0.5", code=2
    )
    assert "'d-b' exists already" in done.err
    assert not list((tmp_path / "out").glob("d-a*"))


def test_a_collection_divides_itself(tmp_path):
    (split, _) = parse_split_option(SPLIT).splits(0)
    with (
        pytest.raises(OptionError, match=r"beam\.Partition|divides its items itself"),
        beam.Pipeline() as pipeline,
    ):
        _ = (
            pipeline
            | beam.Create([{"id": 1}])
            | WriteShards(tmp_path / "d@1", key="id", options=DatasetOptions(split=split))
        )
