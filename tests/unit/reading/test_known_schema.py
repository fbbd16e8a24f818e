"""``shardwriter schema``: what is known of a dataset's features, by its manifest or its records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import shardwriter as sw
from shardwriter.cli import app
from shardwriter.errors import OptionError
from shardwriter.formats.media import encode_png


def rows(count: int = 12) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for i in range(count):
        image = encode_png(np.full((2, 3, 3), i, np.uint8))
        row = {"label": i % 3, "image": image, "ids": [1] * (1 + i % 3), "text": f"t{i}"}
        made.append({**row, "pixels": np.zeros((2, 2), np.uint8), "price": 0.5})
    made[5]["price"] = sw.UNSET
    del made[6]["price"]
    return made


@pytest.fixture
def with_manifest(tmp_path: Path) -> Path:
    sw.write(rows(), tmp_path / "t@3", schema="image=image")
    return tmp_path / "t"


@pytest.fixture
def without_manifest(with_manifest: Path) -> Path:
    """The same without what the writer has noted."""
    with_manifest.with_suffix(".manifest.json").unlink()
    with_manifest.with_suffix(".index").unlink()
    return with_manifest


def schema(path: Path, *options: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["schema", str(path), *options])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def refused(path: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["schema", str(path), *options])
    assert done.exit_code != 0
    assert done.stdout == ""
    return done.stderr


def test_json_is_the_schema_of_the_manifest(with_manifest: Path) -> None:
    manifest = sw.load_manifest(with_manifest.with_suffix(".manifest.json"))
    stdout, stderr = schema(with_manifest, "--json")
    assert json.loads(stdout) == manifest.schema
    assert stderr == ""
    assert sw.read_schema(with_manifest).to_json() == manifest.schema


def test_the_table_has_a_row_for_each_feature(with_manifest: Path) -> None:
    table = {line.split()[0]: line.split()[1:] for line in schema(with_manifest)[0].splitlines()}
    assert table["pixels"] == ["uint8", "[2,", "2]", "list", "12"]
    assert table["ids"] == ["int64", "[*]", "list", "12"]
    assert table["price"] == ["float32", "scalar", "list", "11", "1"]
    assert table["image"] == ["bytes", "scalar", "image", "png", "12"]
    assert table["text"] == ["string", "scalar", "list", "12"]
    assert table["6"] == ["features", "of", "12", "records"]


def test_feature_lists_are_there_with_the_types_of_their_steps(tmp_path: Path) -> None:
    context = {"id": 1, "x": 0.5}
    steps = {"x": [np.zeros((2, 3), np.float32)] * 4, "words": ["a", "b"]}
    for name, of_it in (("t", context), ("bare", {})):
        path = tmp_path / name
        sw.write([sw.SequenceExample(of_it, steps)] * 5, path, num_shards=2)
        manifest = sw.load_manifest(path.with_suffix(".manifest.json"))
        assert json.loads(schema(path, "--json")[0]) == manifest.schema
        with pytest.raises(OptionError, match="schema is of SequenceExamples"):
            sw.write([context], tmp_path / "other", schema=sw.read_schema(path).to_json())
    table = [line.split() for line in schema(tmp_path / "t")[0].splitlines()]
    assert table[1:] == [
        ["id", "int64", "scalar", "list", "5"],
        ["x", "float32", "scalar", "list", "5"],
        ["words[]", "string", "scalar", "list", "5"],
        ["x[]", "float32", "[2,", "3]", "list", "5"],
        ["2", "features", "and", "2", "feature", "lists", "of", "5", "records"],
    ]
    for name in ("t", "bare"):
        said = refused(tmp_path / name, "--code", "torch")
        assert "SequenceExamples, and loader code supports only Examples" in said


def test_class_names_are_shown(tmp_path: Path) -> None:
    for name in ("ape", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.png").write_bytes(encode_png(np.zeros((1, 1), np.uint8)))
    sw.write(tmp_path / "photos", tmp_path / "p@1")
    assert "2: ape, bee" in schema(tmp_path / "p")[0]


def test_one_shard_is_of_the_types_of_all(with_manifest: Path) -> None:
    shard = with_manifest.with_name("t.tfrecord-00001-of-00003")
    stdout, stderr = schema(shard)
    assert "6 features of 4 records" in stdout
    assert "counts are of all 12 records" in stderr
    # This shard has no record without a price, and what reads it must do for the others too.
    text = sw.loader_code(shard, "tensorflow")
    assert "1 shard" in text
    assert "2 of 12 records have no value" in text
    assert '-00001-of-00003",' in text


def test_without_a_manifest_types_are_those_of_the_records(without_manifest: Path) -> None:
    stdout, stderr = schema(without_manifest, "--json")
    features = json.loads(stdout)["features"]
    assert (features["image"]["encoding"], features["image"]["format"]) == ("image", "png")
    assert (features["text"]["encoding"], features["text"]["dtype"]) == ("list", "bytes")
    shapes = {name: feature["shape"] for name, feature in features.items()}
    assert shapes == {"image": [], "text": [], "label": [], "ids": [None], "pixels": [4]} | {
        "price": []
    }
    assert (features["price"]["present"], features["price"]["unset"]) == (11, 1)
    assert "from 12 records" in stderr


def test_a_note_gives_how_many_records_were_sampled(without_manifest: Path) -> None:
    stdout, stderr = schema(without_manifest, "--records", "1", "--json")
    assert "from the first 1 of 12 records" in stderr
    assert json.loads(stdout)["features"]["ids"]["shape"] == []
    known = sw.read_schema(without_manifest, num_records=4)
    assert (known.num_counted, known.num_records, known.from_manifest) == (4, 12, False)
    with pytest.raises(OptionError, match="num_records is 0"):
        sw.read_schema(without_manifest, num_records=0)
    code = sw.loader_code(without_manifest, "torch", num_records=2)
    assert "the first 2 records" in " ".join(code.replace("#", " ").split())


def test_a_set_without_records_has_no_features(tmp_path: Path) -> None:
    sw.write([], tmp_path / "t@2")
    assert schema(tmp_path / "t")[0] == "0 features of 0 records\n"
    assert json.loads(schema(tmp_path / "t", "--json")[0]) == {"features": {}}


def test_what_is_no_example_or_damaged_is_an_error(tmp_path: Path) -> None:
    with sw.TFRecordWriter(tmp_path / "other.tfrecord") as writer:
        writer.write(sw.encode_example({"x": 1}))
        writer.write(b"no example")
    said = refused(tmp_path / "other.tfrecord")
    assert "no tf.train.Example" in said
    assert "other.tfrecord" in said
    assert "record 1" in said
    with sw.TFRecordWriter(tmp_path / "mixed.tfrecord") as writer:
        writer.write(sw.encode_example({"x": 1}))
        writer.write(sw.encode_example({"x": 0.5}))
    said = refused(tmp_path / "mixed.tfrecord")
    assert "'x'" in said
    assert "float here, int64" in said
    data = (tmp_path / "mixed.tfrecord").read_bytes()
    (tmp_path / "damaged.tfrecord").write_bytes(data[:14] + b"\xff" + data[15:])
    assert "damaged.tfrecord" in refused(tmp_path / "damaged.tfrecord", "--code", "torch")
    assert "drop --json" in refused(tmp_path / "mixed.tfrecord", "--code", "torch", "--json")
    assert "nowhere" in refused(tmp_path / "nowhere")


def test_no_code_is_printed_for_sequence_examples(tmp_path: Path) -> None:
    # context {} and feature_lists {"x": [...]}: field 2 of a SequenceExample, an empty list.
    sw.write([b"\x12\x07\x0a\x05\x0a\x01x\x12\x00"], tmp_path / "t@1")
    assert "the record is a SequenceExample" in refused(tmp_path / "t")
    path = tmp_path / "t.manifest.json"
    manifest = json.loads(path.read_text())
    sw.write([{"x": 1}], tmp_path / "u@1")
    manifest["schema"] = json.loads(schema(tmp_path / "u", "--json")[0])
    path.write_text(json.dumps(manifest))
    assert "x" in schema(tmp_path / "t")[0]
    assert "the record is a SequenceExample" in refused(tmp_path / "t", "--code", "tensorflow")
