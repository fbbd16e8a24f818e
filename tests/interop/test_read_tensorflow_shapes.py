"""What tf.data makes of shapes that stand beside values, of raw bytes, and of SequenceExamples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwriter as sw

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
from shardwriter.reading.tensorflow import tf_dataset

SCHEMA = (
    "image=uint8[null,null,3],mask=raw:uint8[null,null],q=int64[null,2,null,2],z=float32[null,0]"
)


def image_item(i):
    rng = np.random.default_rng(i)
    found = {
        "image": rng.integers(0, 255, (i % 3, 4 + i % 2, 3), "u1"),
        "mask": rng.integers(0, 255, (2 + i % 3, 4 + i % 2), "u1"),
        "q": rng.integers(-5, 5, (2 + i % 3, 2, i % 2 + 1, 2)),
        "z": np.zeros((i % 4, 0), "f4"),
        "c": sw.raw(np.full(i % 3, 1 + 2j)),
        "bits": sw.raw(np.array([True, False])),
    }
    if i == 3:
        del found["mask"]
    return found


def plain(value):
    return value.to_tensor().numpy() if hasattr(value, "to_tensor") else value.numpy()


@pytest.mark.parametrize("batch_size", [None, 4])
def test_each_record_has_its_own_shape(tf, tmp_path, batch_size):
    items = [image_item(i) for i in range(7)]
    sw.write(items, tmp_path / "t@3", schema=SCHEMA)
    found = tf_dataset(tmp_path / "t", batch_size=batch_size)
    assert set(found.element_spec) == {"image", "mask", "q", "z", "c", "bits"}
    last = [3, None, None, 3] if batch_size else [None, None, 3]
    assert found.element_spec["image"].shape[-3:].as_list() == last[-3:]
    rows = []
    for element in found:
        size = 1 if batch_size is None else len(element["bits"])
        for row in range(size):
            rows.append(element if batch_size is None else {k: v[row] for k, v in element.items()})
    assert len(rows) == 7
    for row, item in zip(rows, items, strict=True):
        for name in ("image", "mask", "q", "z"):
            if name not in item:
                assert plain(row[name]).size == 0
                continue
            got = plain(row[name])
            assert got.dtype == item[name].dtype
            if got.size or item[name].size:
                assert got.tolist() == item[name].tolist(), name
            if batch_size is None:
                assert got.shape == item[name].shape
        assert plain(row["c"]).tolist() == item["c"].array.tolist()
        assert row["bits"].numpy().tolist() == [True, False]
        assert row["bits"].dtype == tf.bool


def test_one_feature_brings_its_shape_along(tf, tmp_path):
    sw.write([image_item(i) for i in range(4)], tmp_path / "t@1", schema=SCHEMA)
    found = list(tf_dataset(tmp_path / "t", features=["mask"]))
    assert [set(element) for element in found] == [{"mask"}] * 4
    assert found[1]["mask"].shape == (3, 5)


# -- SequenceExamples ------------------------------------------------------------------------------


def sequence_item(i):
    return sw.SequenceExample(
        {"label": i % 3, "name": f"n{i}"},
        {
            "x": np.full((i % 4, 2), i, "f4"),
            "words": ["a", "b", "c"][: i % 4],
            "ids": [[7] * (j % 3) for j in range(i % 4)],
            "boxes": [np.full((j, 2), j, "f4") for j in range(1, i % 3 + 1)],
            "pixels": [sw.raw(np.full((2, 2), j, "u1")) for j in range(i % 3)],
            "gaps": [5, None, 7],
            **({"some": [1]} if i % 2 else {}),
        },
    )


def wanted(i):
    lists = dict(sequence_item(i).feature_lists)
    lists["x"] = lists["x"].tolist()
    lists["words"] = [word.encode() for word in lists["words"]]
    lists["boxes"] = [box.tolist() for box in lists["boxes"]]
    lists["pixels"] = [step.array.tolist() for step in lists["pixels"]]
    lists["gaps"] = [5, 0, 7]
    return {**lists, "some": lists.get("some", [])}


def listed(value):
    return value.to_list() if hasattr(value, "to_list") else value.numpy().tolist()


@pytest.mark.parametrize("batch_size", [None, 4])
def test_sequences_are_parsed_by_the_schema(tf, tmp_path, batch_size):
    sw.write([sequence_item(i) for i in range(10)], tmp_path / "t@3")
    found = tf_dataset(tmp_path / "t", batch_size=batch_size)
    spec = found.element_spec["feature_lists"]
    assert spec["pixels"].shape.as_list()[-2:] == [2, 2]
    assert spec["pixels"].dtype == tf.uint8
    i = 0
    for element in found:
        lists, context = element["feature_lists"], element["context"]
        rows = range(1 if batch_size is None else len(context["label"]))
        for row in rows:
            one = {k: v if batch_size is None else v[row] for k, v in lists.items()}
            assert {k: listed(v) for k, v in one.items()} == wanted(i)
            label = context["label"] if batch_size is None else context["label"][row]
            assert label == i % 3
            i += 1
    assert i == 10


def test_a_step_of_another_size_is_an_error(tf, tmp_path):
    from shardwriter.reading.tensorflow.parsing import sequence_parser

    manifest = sw.write([sw.SequenceExample({}, {"x": [[1, 2]]})], tmp_path / "t@1")
    parse = sequence_parser(manifest.features, manifest.feature_lists, is_batch=False)
    other = sw.encode_sequence_example(sw.SequenceExample({}, {"x": [[1, 2], [3]]}))
    with pytest.raises(tf.errors.InvalidArgumentError, match="another number of values"):
        parse(tf.constant(other))


def test_options_for_examples_are_refused(tf, tmp_path):
    sw.write([sequence_item(1)], tmp_path / "t@1")
    with pytest.raises(sw.UsageError, match="SequenceExamples"):
        tf_dataset(tmp_path / "t", features=["label"])


# -- the bytes of protobuf -------------------------------------------------------------------------

NAMES = st.text(st.sampled_from("ab/é"), max_size=3)
STEPS = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=4),
    st.lists(st.lists(st.integers(-200, 200), min_size=1, max_size=3), max_size=3),
    st.lists(st.floats(width=32, allow_nan=False), max_size=4),
    st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.binary(min_size=5000, max_size=5001), max_size=2),
)
VALUES = st.one_of(st.none(), st.integers(-9, 9), st.floats(width=32, allow_nan=False), st.text())


def feature_of(tf, value):
    if value is None:
        return tf.train.Feature()
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], str | bytes):
        blobs = [v.encode() if isinstance(v, str) else v for v in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=blobs))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


@settings(max_examples=150)
@given(context=st.dictionaries(NAMES, VALUES), lists=st.dictionaries(NAMES, STEPS))
def test_bytes_are_those_of_protobuf(tf, context, lists):
    theirs = tf.train.SequenceExample(
        context=tf.train.Features(
            feature={n: feature_of(tf, v) for n, v in context.items() if v is not None}
        ),
        feature_lists=tf.train.FeatureLists(
            feature_list={
                n: tf.train.FeatureList(feature=[feature_of(tf, v) for v in steps])
                for n, steps in lists.items()
            }
        ),
    )
    ours = sw.encode_sequence_example(sw.SequenceExample(context, lists))
    assert ours == theirs.SerializeToString(deterministic=True)
    assert tf.train.SequenceExample.FromString(ours) == theirs
