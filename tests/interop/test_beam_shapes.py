"""Beam jobs hold records to an explicit schema, and write SequenceExamples, as one machine does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import shardwriter as sw
from shardwriter.schema.declared import declare
from shardwriter.writing.options import DatasetOptions

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
import apache_beam as beam
from beam_jobs import assert_same, run

from shardwriter.cluster import WriteShards

N = 3
SCHEMA = {
    "x": "raw:uint8[null,null]",
    "k": {"dtype": "int8", "shape": [], "vocabulary": ["a", "b"]},
}


class Numbers:
    """Numbers 0 to 39, of which a map makes records."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return {"i": i}


def arrays(features):
    i = features["i"]
    return {"x": np.full((i % 4, i % 3), i, "u1"), "k": i % 2, "c": sw.raw(np.full(i % 3, 1j))}


def sequences(features):
    i = features["i"]
    return sw.SequenceExample({"k": i % 2}, {"x": np.full((i % 4, 2), i, "f4")})


@pytest.mark.parametrize("strategy", ["strided", "chunked"])
@pytest.mark.parametrize(("function", "schema"), [(arrays, SCHEMA), (sequences, None)])
def test_bytes_schema_and_labels_are_equal(tmp_path, strategy, function, schema):
    sw.write(Numbers(), tmp_path / "serial" / f"t@{N}", map=function, schema=schema, label="k")
    declared = declare(schema)
    options = DatasetOptions(
        map=function, label="k", schema=declared.types, vocabularies=declared.vocabularies
    )
    run(
        WriteShards(
            tmp_path / "beam" / f"t@{N}", source=Numbers(), options=options, strategy=strategy
        ),
        None,
    )
    assert_same(tmp_path / "beam", tmp_path / "serial")


def test_two_kinds_of_records_are_refused(tmp_path):
    def mixed(features):
        return arrays(features) if features["i"] % 2 else sequences(features)

    transform = WriteShards(
        tmp_path / f"t@{N}", source=Numbers(), options=DatasetOptions(map=mixed)
    )
    with pytest.raises(Exception, match=r"an Example in item|a SequenceExample in item"):
        run(transform, None)


class Pair(NamedTuple):
    id: str
    x: int


def _sequence(i):
    return sw.SequenceExample({"id": f"k{i}"}, {"x": [sw.raw(np.full((i % 3, 2), i, "u1"))] * 2})


@pytest.mark.parametrize("made", [_sequence, lambda i: Pair(f"k{i}", i)])
def test_a_collection_of_items_that_are_no_mappings(tmp_path, made):
    items = [made(i) for i in range(40)]
    sw.write(items, tmp_path / "serial" / f"t@{N}", order="key", key="id")
    transform = WriteShards(tmp_path / "beam" / f"t@{N}", key="id", num_buckets=4)
    run(transform, None, beam.Create(items[::-1]))
    assert_same(tmp_path / "beam", tmp_path / "serial", without=["t.manifest.json"])
    ours, serial = (sw.load_manifest(tmp_path / s / "t.manifest.json") for s in ("beam", "serial"))
    assert ours.schema == serial.schema
