"""What was written comes back: types, shapes, texts; by one, by many and by columns."""

from __future__ import annotations

import gc
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.errors import FeatureError, ManifestError, SchemaConflict, WireError
from shardwriter.formats.example_wire import decode_only_example
from shardwriter.schema import decode as restored_values
from shardwriter.schema.decode import ExampleDecoder
from shardwriter.schema.feature_types import FeatureType
from shardwriter.schema.schema import FeatureSummary, Schema, schema_from_json

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]


@pytest.fixture(autouse=True, params=[2, 40])
def min_rows(request, monkeypatch):
    """Few records are read one by one; here also together, as many are."""
    monkeypatch.setattr(restored_values, "_MIN_ROWS", request.param)


def learnt(records, plan=None):
    """The schema that a write of these records would put into the manifest."""
    schema = Schema(plan)
    for index, record in enumerate(records):
        schema.observe(index, record)
    return schema_from_json(schema.to_json())


def payloads_of(records, plan=None):
    kinds = {name: t.kind for name, t in (plan or {}).items()}
    return [sw.encode_example(record, kinds) for record in records]


def same(a, b):
    """Equal, with types, dtypes and shapes."""
    if isinstance(a, np.ndarray | np.generic):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def same_records(a, b):
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all(same(x[name], y[name]) for name in x)
        for x, y in zip(a, b, strict=True)
    )


def expected(value, feature_type):
    """What FORMATS says of one value, with numpy and nothing of ours."""
    dtype, shape = feature_type.dtype, feature_type.shape
    if value is sw.UNSET or (isinstance(value, list) and not value):
        return None
    if feature_type.kind == "bytes":
        leaves = np.asarray(value, object).reshape(-1).tolist()
        blobs = [v.encode() if isinstance(v, str) else bytes(v) for v in leaves]
        values = [blob.decode() for blob in blobs] if dtype == "string" else blobs
        return values[0] if shape == () else values
    array = np.asarray(value)
    if feature_type.kind == "float":
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    array = array.astype(dtype)
    if shape == ():
        return array[()]
    return array if array.ndim == len(shape) else array.reshape(-1)


def integers(dtype):
    if dtype == "bool":
        return st.booleans()
    info = np.iinfo(dtype)
    return st.integers(int(info.min), min(int(info.max), 2**63 - 1))


def floats(dtype):
    return st.floats(width=int(dtype[5:]), allow_nan=False).filter(
        lambda v: not np.isfinite(v) or abs(v) < 3e38
    )


@st.composite
def arrays(draw, dtype):
    """Arrays of one rank whose first dimension varies."""
    inner = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    varies = draw(st.booleans())
    rows = draw(st.integers(0, 4))
    elements = integers(dtype) if dtype in DTYPES else floats(dtype)

    def one():
        n = draw(st.integers(0, 5)) if varies else rows
        size = n * int(np.prod(inner))
        flat = draw(st.lists(elements, min_size=size, max_size=size))
        return np.array(flat, dtype).reshape((n, *inner))

    return one


@st.composite
def datasets(draw):
    """Records of a few features, each of one type, now and then absent or unset."""
    makers = {}
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["int", "float", "bool", "str", "bytes", "list", "array"]))
        name = f"{kind}{number}"
        if kind == "array":
            makers[name] = draw(arrays(draw(st.sampled_from(DTYPES + FLOATS))))
            continue
        strategy = {
            "int": integers("int64"),
            "float": floats("float32"),
            "bool": st.booleans(),
            "str": st.text(max_size=9),
            "bytes": st.binary(max_size=200),
        }
        if kind == "list":
            of = draw(st.sampled_from(sorted(strategy)))
            strategy[kind] = st.lists(strategy[of], max_size=4)
        chosen = strategy[kind]
        if draw(st.booleans()) and draw(st.booleans()):
            chosen = chosen | st.none() | st.just(sw.UNSET)
        makers[name] = lambda chosen=chosen: draw(chosen)
    num_rows = draw(st.integers(1, 12))
    return [{name: make() for name, make in makers.items()} for _ in range(num_rows)]


@settings(max_examples=150, deadline=None)
@given(datasets())
def test_what_was_written_comes_back(records):
    features = learnt(records)
    restorer = ExampleDecoder(features)
    payloads = payloads_of(records)
    found = [restorer.example(payload) for payload in payloads]
    wanted = [
        {n: expected(v, features[n].type) for n, v in record.items() if v is not None}
        for record in records
    ]
    assert same_records(found, wanted), (found, wanted)
    assert same_records(restorer.examples(payloads), wanted)
    columns = restorer.columns(payloads)
    assert columns.keys() == {name for record in wanted for name in record}
    for name, column in columns.items():
        values = [record.get(name) for record in wanted]
        if isinstance(column, np.ndarray):
            assert all(same(row, value) for row, value in zip(column, values, strict=True))
        else:
            assert same(column, values)
            looks = {(getattr(v, "dtype", None), getattr(v, "shape", None)) for v in values}
            assert len(looks) > 1 or (None, None) in looks, "these could be stacked"


@settings(max_examples=100, deadline=None)
@given(datasets())
def test_without_a_schema_values_are_those_of_the_codec(records):
    restorer = ExampleDecoder({})
    payloads = payloads_of(records)
    wanted = [sw.decode_example(payload) for payload in payloads]
    assert same_records([restorer.example(payload) for payload in payloads], wanted)
    assert same_records(restorer.examples(payloads), wanted)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes_are_read_as_the_codec_reads_them(data):
    """Cut, doubled, swapped and changed payloads: the same values, or an error for an error."""
    records = data.draw(datasets())
    payload = payloads_of(records)[0]
    other = payloads_of(records)[-1]
    at = data.draw(st.integers(0, len(payload)))
    how = data.draw(st.sampled_from(["cut", "joined", "changed", "unknown"]))
    if how == "cut":
        damaged = payload[:at]
    elif how == "joined":
        damaged = payload + other
    elif how == "unknown":
        damaged = payload + b"\x18\x01"
    else:
        damaged = payload[:at] + bytes([data.draw(st.integers(0, 255))]) + payload[at + 1 :]
    restorer = ExampleDecoder({})
    restorer.example(other)  # so that it knows what a record looks like
    restorer.example(payload)
    try:
        wanted = decode_only_example(damaged)
    except WireError:
        with pytest.raises(WireError):
            restorer.example(damaged)
        with pytest.raises(WireError) as caught:
            restorer.examples([payload, other, damaged])
        assert caught.value.record_index == 2
    else:
        assert same_records([restorer.example(damaged)], [wanted])
        assert same_records(
            restorer.examples([payload, damaged]), [sw.decode_example(payload), wanted]
        )


def test_large_and_many_records():
    rng = np.random.default_rng(0)
    records = [
        {
            "image": rng.bytes(30_000 if i % 2 else 130),
            "pixels": rng.integers(0, 256, (64, 64, 3), np.uint8),
            "tokens": rng.integers(0, 2**20, 2048).astype(np.int32),
            "negative": -rng.integers(0, 2**40, 300),
            "label": i,
            "text": f"number {i}" * (i % 40),
        }
        for i in range(40)
    ]
    restorer = ExampleDecoder(learnt(records))
    payloads = payloads_of(records)
    wanted = [{**r, "label": np.int64(r["label"])} for r in records]
    assert same_records([restorer.example(p) for p in payloads], wanted)
    assert same_records(restorer.examples(payloads), wanted)
    pixels = restorer.columns(payloads)["pixels"]
    assert same(pixels, np.stack([r["pixels"] for r in records]))


def test_blocks_of_many_small_records():
    records = [
        {"a": i, "b": i / 2, **({"c": f"{i}"} if i % 3 else {}), "d": list(range(i % 3 + 1))}
        for i in range(5_000)
    ]
    restorer = ExampleDecoder(learnt(records))
    payloads = payloads_of(records)
    wanted = [restorer.example(payload) for payload in payloads]
    assert same_records(restorer.examples(payloads), wanted)
    columns = restorer.columns(payloads)
    assert same(columns["a"], np.arange(5_000))
    assert columns["c"][:3] == [None, "1", "2"]


def test_no_records_and_records_of_nothing():
    restorer = ExampleDecoder({})
    assert restorer.examples([]) == []
    assert restorer.columns([]) == {}
    assert restorer.examples([b""] * 3) == [{}] * 3
    assert restorer.columns([b""] * 3) == {}
    assert restorer.example(b"") == {}


# -- shapes and encodings that a manifest may tell -------------------------------------------------


def restorer_of(**types):
    return ExampleDecoder({name: FeatureSummary(t) for name, t in types.items()})


def test_raw_bytes_become_their_array():
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    payloads = [sw.encode_example({"x": array.astype("<f2").tobytes()})] * 3
    restorer = restorer_of(x=FeatureType("bytes", "float16", (2, 3), "raw"))
    assert same(restorer.example(payloads[0])["x"], array)
    assert same_records(restorer.examples(payloads), [{"x": array}] * 3)
    assert same(restorer.columns(payloads)["x"], np.stack([array] * 3))
    varies = restorer_of(x=FeatureType("bytes", "float16", (None, 2), "raw"))
    assert same(varies.example(payloads[0])["x"], array.reshape(3, 2))
    assert varies.example(payloads[0])["x"].flags.writeable
    odd = restorer_of(x=FeatureType("bytes", "float64", None, "raw"))
    with pytest.raises(FeatureError, match="12 raw bytes are not a whole number of float64"):
        odd.example(payloads[0])


def test_images_are_bytes():
    jpeg = b"\xff\xd8\xff\xe0" + bytes(20)
    restorer = restorer_of(x=FeatureType("bytes", "bytes", (), "image", "jpeg"))
    assert restorer.example(sw.encode_example({"x": jpeg})) == {"x": jpeg}


def test_texts_in_an_array_are_nested_as_they_were():
    words = np.array([["a", "b"], ["c", "d"], ["e", ""]])
    restorer = ExampleDecoder(learnt([{"x": words}]))
    assert restorer.example(sw.encode_example({"x": words}))["x"] == words.tolist()


def test_two_dimensions_that_vary_come_flat():
    restorer = restorer_of(x=FeatureType("int64", "uint8", (None, None, 3)))
    payload = sw.encode_example({"x": np.ones((2, 5, 3), np.uint8)})
    assert same(restorer.example(payload)["x"], np.ones(30, np.uint8))


def test_an_unknown_dtype_is_an_error_of_the_manifest():
    with pytest.raises(ManifestError, match="'float13' is not a numpy dtype") as caught:
        restorer_of(x=FeatureType("float", "float13", ()))
    assert caught.value.feature == "x"


# -- records that contradict the schema ------------------------------------------------------------


@pytest.mark.parametrize(
    ("feature_type", "value", "told"),
    [
        (FeatureType("int64", "int64", ()), [1, 2], r"2 values here, .* shape \[\] has 1"),
        (FeatureType("int64", "uint8", (2, 2)), [1], r"1 value here, .* shape \[2, 2\] has 4"),
        (FeatureType("float", "float32", (None, 3)), [1.0] * 4, r"4 values .* a multiple of 3"),
        (FeatureType("bytes", "bytes", ()), [b"a", b"b"], "2 values"),
        (FeatureType("bytes", "string", (3,)), ["a"], r"1 value here, .* \[3\] has 3"),
        (FeatureType("int64", "int64", ()), 1.5, "float here, but the schema says int64"),
        (FeatureType("float", "float32", ()), b"x", "bytes here, but the schema says float"),
        (FeatureType("bytes", "bytes", ()), 3, "int64 here, but the schema says bytes"),
        (FeatureType("int64", "uint8", ()), 256, "256 here, but the schema says uint8"),
        (FeatureType("int64", "bool", (2,)), [1, -2], "-2 here, but the schema says bool"),
        (FeatureType("float", "float16", ()), 1e6, "too large for the float16"),
        (FeatureType("bytes", "string", ()), b"\xff", "not UTF-8"),
    ],
)
def test_a_record_that_contradicts_the_schema(feature_type, value, told):
    restorer = restorer_of(x=feature_type)
    bad = sw.encode_example({"x": value})
    good = sw.encode_example({})
    with pytest.raises(FeatureError, match=told) as caught:
        restorer.example(bad)
    assert caught.value.feature == "x"
    for read in (restorer.examples, restorer.columns):
        with pytest.raises(FeatureError, match=told) as caught:
            read([good, good, bad, good])
        assert caught.value.feature == "x"
        assert caught.value.record_index == 2
        with pytest.raises(FeatureError, match=told) as caught:
            read([bad, bad, bad])
        assert caught.value.record_index == 0


def test_the_error_of_a_column_names_the_record_that_is_wrong():
    restorer = restorer_of(x=FeatureType("int64", "uint8", ()))
    payloads = [sw.encode_example({"x": i}) for i in range(300)]
    with pytest.raises(FeatureError, match="256 here") as caught:
        restorer.examples(payloads)
    assert caught.value.record_index == 256
    texts = restorer_of(x=FeatureType("bytes", "string", ()))
    payloads = [sw.encode_example({"x": bytes([i])}) for i in range(130)]
    with pytest.raises(FeatureError, match="not UTF-8") as caught:
        texts.columns(payloads)
    assert caught.value.record_index == 128


# -- memory ----------------------------------------------------------------------------------------


def test_arrays_are_writable_and_keep_no_block_alive():
    records = [
        {"f": np.arange(64, dtype=np.float32), "i": np.arange(300 + i % 3), "s": i}
        for i in range(500)
    ]
    restorer = ExampleDecoder(learnt(records))
    payloads = payloads_of(records)
    kept = [*restorer.examples(payloads)[::100], restorer.example(payloads[0])]
    gc.collect()
    for record in kept:
        for value in record.values():
            if isinstance(value, np.ndarray):
                assert value.flags.writeable
                assert value.base is None or value.base.nbytes <= value.nbytes
    columns = restorer.columns(payloads)
    assert columns["f"].flags.writeable
    assert columns["s"].flags.writeable


def test_nothing_warns():
    records = [{"x": np.float16(65504), "y": np.array([1e30])}] * 3
    restorer = ExampleDecoder(learnt(records))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restorer.examples(payloads_of(records))


def test_a_plan_gives_the_types(tmp_path):
    plan = {"x": FeatureType("float", "float32"), "y": FeatureType("bytes", "string")}
    records = [{"x": 1, "y": "a"}, {"x": 2.5, "y": "b"}]
    restorer = ExampleDecoder(learnt(records, plan))
    found = restorer.examples(payloads_of(records, plan))
    assert same_records(found, [{"x": np.float32(1), "y": "a"}, {"x": np.float32(2.5), "y": "b"}])


def test_conflicting_records_have_no_schema():
    with pytest.raises(SchemaConflict):
        learnt([{"x": 1}, {"x": 1.5}])


def test_through_a_real_write(tmp_path):
    rng = np.random.default_rng(5)
    records = [
        {
            "image": rng.integers(0, 256, (8, 8), np.uint8),
            "flag": bool(i % 2),
            "half": np.float16(i / 8),
            "name": f"é{i}",
            "blob": rng.bytes(i),
            "tags": [f"t{j}" for j in range(1 + i % 3)],
        }
        for i in range(50)
    ]
    sw.write(records, tmp_path / "train@4")
    manifest = sw.load_manifest(tmp_path / "train.manifest.json")
    restorer = ExampleDecoder(schema_from_json(manifest.schema))
    for shard in range(4):
        payloads = list(sw.read_records(tmp_path / f"train.tfrecord-{shard:05}-of-00004"))
        wanted = [{**r, "flag": np.bool_(r["flag"])} for r in records[shard::4]]
        assert same_records(restorer.examples(payloads), wanted)


def test_it_can_be_pickled_and_used_by_threads():
    records = [{"a": i, **({"b": f"{i}"} if i % 2 else {}), "c": [i, i]} for i in range(400)]
    restorer = pickle.loads(pickle.dumps(ExampleDecoder(learnt(records))))
    payloads = payloads_of(records)
    wanted = [restorer.example(payload) for payload in payloads]
    fresh = ExampleDecoder(learnt(records))
    with ThreadPoolExecutor(4) as threads:
        assert same_records(list(threads.map(fresh.example, payloads)), wanted)
