"""What a record is, told from its bytes; held against real files of others and TensorFlow."""

from __future__ import annotations

import json
import pickle
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.formats import UNSET, encode_example
from shardwriter.formats.record_kinds import KINDS, describe_kinds, record_kind
from shardwriter.formats.tfrecord_reader import read_records

EXAMPLE = encode_example({"label": 1, "name": b"x", "values": [0.5, 1.5]})
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def event(what: bytes, seconds: float = 1.6e9) -> bytes:
    return b"\x09" + struct.pack("<d", seconds) + what


SHAPE_2_3 = field(2, b"\x08\x02") + field(2, b"\x08\x03")

CASES: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("Example", EXAMPLE),
    ("Example", b"\x0a\x00"),
    ("Example", encode_example({"x": UNSET})),
    ("SequenceExample", b"\x0a\x00\x12\x00"),
    ("ExampleListWithContext", field(1, EXAMPLE) + field(1, EXAMPLE) + field(2, EXAMPLE)),
    ("Event", event(field(3, b"brain.Event:2"))),
    ("Event", field(3, b"brain.Event:2")),
    ("Event", event(b"\x10\x05" + field(5, field(1, b"loss")))),
    ("other proto", event(field(5, b"a") + field(4, b"b"))),
    ("other proto", event(field(5, b"a"), seconds=-1.0)),
    ("other proto", event(field(11, b"a"))),
    ("other proto", field(3, b"brain\x01")),
    ("tensor", b"\x08\x03" + field(2, SHAPE_2_3) + field(4, bytes(24))),
    ("other proto", b"\x08\x03" + field(2, SHAPE_2_3) + field(4, bytes(23))),
    ("other proto", b"\x08\x63" + field(2, SHAPE_2_3) + field(4, bytes(24))),
    ("other proto", b"\x08\x03" + field(2, b"\x09\x01") + field(4, bytes(24))),
    ("image", PNG),
    ("image", b"\xff\xd8\xff\xe0" + bytes(20)),
    ("image", b"BM" + bytes(12) + (40).to_bytes(4, "little") + bytes(8)),
    ("text", b"BMW drivers of the world"),
    ("npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}"),
    ("json", b' {"a": [1, 2]}\n'),
    ("json", b"[]"),
    ("text", b"{a: 1}"),
    ("text", b"[" * 5000 + b"]" * 5000),
    ("text", b"12"),
    ("text", "Grüße, 世界\n".encode()),
    ("bytes", "Grüße".encode("latin-1")),
    ("bytes", bytes(100)),
    ("other proto", b"\x08\x96\x01"),
    ("bytes", b"\x0b\x0c"),
    ("bytes", b"\x08" + b"\xff" * 10),
    ("bytes", b"\x12\x05abc"),
]


@pytest.mark.parametrize(("kind", "payload"), CASES)
def test_a_kind(kind: str, payload: bytes) -> None:
    assert record_kind(payload) == kind
    assert kind in KINDS


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [{"a": 1}, [], {}, None, np.arange(3), "x" * 300])
def test_pickles(value: object, protocol: int) -> None:
    assert record_kind(pickle.dumps(value, protocol)) == "pickle"


@given(st.binary(max_size=200))
def test_any_bytes_are_of_some_kind(payload: bytes) -> None:
    assert record_kind(payload) in KINDS


# Kinds that the files' makers' own readers know by less exact names.
COARSE = {"Event": "other-proto", "text": "other-proto", "other proto": "other-proto"}


def test_real_files_of_others(data_dir: Path) -> None:
    expected = json.loads((data_dir / "expected.json").read_text())
    assert len(expected) == 43
    for name, told in expected.items():
        payloads = list(read_records(data_dir / name))
        kinds = Counter(map(record_kind, payloads))
        if "eval_elwc" in name:
            assert kinds == {"ExampleListWithContext": 10}
            continue
        coarse: Counter[str] = Counter()
        for kind, count in kinds.items():
            coarse[COARSE.get(kind, kind)] += count
        assert coarse == told["kinds"], name
        assert kinds["Event"] == (7 if "tfevents" in name else 0)
        assert kinds["text"] == {"morris": 5, "iterator": 3}.get(
            next((part for part in ("morris", "iterator") if part in name), ""), 0
        )


def test_what_tensorflow_serializes(tf: Any) -> None:
    values = [
        tf.zeros([2, 3]),
        tf.constant(1.5, tf.float64),
        tf.range(300),
        tf.constant([], tf.int64),
        tf.constant(["a", "bc" * 100]),
        tf.constant(True),
        tf.cast(tf.zeros([4]), tf.bfloat16),
    ]
    assert [record_kind(tf.io.serialize_tensor(v).numpy()) for v in values] == ["tensor"] * 7
    features = {
        "a": tf.train.Feature(int64_list=tf.train.Int64List(value=[-1, 2])),
        "b": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
    }
    context = tf.train.Features(feature=features)
    lists = tf.train.FeatureLists(
        feature_list={"s": tf.train.FeatureList(feature=[features["a"], features["b"]])}
    )
    example = tf.train.Example(features=context).SerializeToString()
    sequence = tf.train.SequenceExample(context=context, feature_lists=lists)
    bare = tf.train.SequenceExample(feature_lists=lists)
    assert record_kind(example) == "Example"
    assert record_kind(sequence.SerializeToString()) == "SequenceExample"
    assert record_kind(bare.SerializeToString()) == "SequenceExample"


def test_what_advice_says_is_what_tensorflow_does(tf: Any) -> None:
    spec = {"label": tf.io.FixedLenFeature([], tf.int64, 7)}
    for text in (b"hello world", b'{"a": 1}'):
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.io.parse_example([EXAMPLE, text], spec)
    tensor = tf.io.serialize_tensor(tf.zeros([2])).numpy()
    for silent in (b"", tensor, PNG):
        assert tf.io.parse_example([EXAMPLE, silent], spec)["label"].numpy().tolist() == [1, 7]


# -- counting --------------------------------------------------------------------------------------


# -- in words --------------------------------------------------------------------------------------


def test_nothing_to_say_of_examples_or_nothing() -> None:
    assert describe_kinds({}) == []
    assert describe_kinds({"Example": 10, "text": 0}) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Example"])
def test_every_other_kind_has_its_word(kind: str) -> None:
    (note,) = describe_kinds({kind: 1200})
    assert note.startswith("all 1,200 records are ")
    (note,) = describe_kinds({kind: 1}, is_sample=True)
    assert note.startswith(f"the only record examined is not an Example ({kind}): ")
    (note,) = describe_kinds({kind: 1, "Example": 2})
    assert note.startswith("1 of 3 records is not an Example (1 ")


def test_mixtures() -> None:
    (note,) = describe_kinds({"Example": 380, "text": 60, "empty": 60})
    assert note == (
        "120 of 500 records are not Examples (60 empty, 60 text): "
        "tf.io.parse_example fails on such records, or finds no feature in them"
    )
    (note,) = describe_kinds({"text": 1, "json": 2}, is_sample=True)
    assert note == (
        "3 records examined are of several kinds (2 JSON, 1 text), and none is an Example"
    )
