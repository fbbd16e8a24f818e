"""The Example codec against protobuf: same bytes out, same values in, same refusals."""

from __future__ import annotations

import copy
import enum
import gzip
import json
import os
import pickle
import re
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwriter.errors import FeatureError, WireError
from shardwriter.formats import UNSET, decode_example, encode_example, payload_kind
from shardwriter.formats.varint import decode_varints, encode_varint, encode_varints, varint_sizes

QUICK = settings(deadline=None, max_examples=200)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32) | st.floats(-3e38, 3e38)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["a", "ab", "abc", "a/b", "é", "\x7f", "\x80", "\U0001f600", "x" * 200]
)


@pytest.fixture(scope="session")
def pb():
    """tf.train's protos, with upb underneath."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    module = pytest.importorskip(
        "tensorflow.core.example.example_pb2", reason="compares with TensorFlow's protos"
    )
    from google.protobuf.internal import api_implementation

    if api_implementation.Type() != "upb":
        pytest.skip("the pinned order of names is that of protobuf's upb")
    return module


def short_repr(value):
    """Return a parameter's id, which is the same in every process."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))[:40]


def quiet_bits(floats):
    """The bytes of float32 with quiet NaNs: protobuf hands them out through Python's float."""
    bits = floats.view(np.uint32).copy()
    bits[np.isnan(floats)] |= 0x00400000
    return bits.tobytes()


def pb_bytes(pb, features):
    """Serialise {name: (kind, list) | None} with protobuf."""
    proto = pb.Example()
    proto.features.SetInParent()
    for name, feature in features.items():
        target = proto.features.feature[name]
        if feature is not None:
            kind, values = feature
            one = getattr(target, f"{kind}_list")
            one.SetInParent()
            one.value.extend(values)
    return proto.SerializeToString(deterministic=True)


def pb_parse(pb, payload):
    """Parse with protobuf: {name: (kind, values) | None}; and whether upb lost a map entry."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    proto = pb.Example.FromString(payload)
    out = {}
    for name, feature in proto.features.feature.items():
        which = feature.WhichOneof("kind")
        if which is None:
            out[name] = None
        else:
            values = list(getattr(feature, which).value)
            if which == "float_list":
                values = quiet_bits(np.array(values, np.float32))
            out[name] = which.removesuffix("_list"), values
    return out, any(f.field_number == 1 for f in UnknownFieldSet(proto.features))


def as_parsed(decoded):
    out = {}
    for name, values in decoded.items():
        if values is None:
            out[name] = None
        elif isinstance(values, list):
            out[name] = "bytes", values
        elif values.dtype == np.float32:
            out[name] = "float", quiet_bits(values)
        else:
            out[name] = "int64", values.tolist()
    return out


FEATURES = st.dictionaries(
    NAMES,
    st.none()
    | st.tuples(st.just("int64"), st.lists(INT64 | st.integers(-200, 40000), max_size=20))
    | st.tuples(st.just("float"), st.lists(FLOAT, max_size=8))
    | st.tuples(st.just("bytes"), st.lists(st.binary(max_size=200), max_size=4)),
    max_size=6,
)


@QUICK
@given(FEATURES)
@example(
    {"a": ("bytes", [b"x" * 127]), "b": ("bytes", [b"x" * 128]), "c": ("bytes", [b"x" * 5000])}
)
@example({"a": ("int64", list(range(70000))), "ab": ("float", [1.5] * 3000)})
def test_bytes_are_those_of_protobuf(pb, features):
    kinds = {name: feature[0] for name, feature in features.items() if feature}
    values = {name: feature[1] if feature else UNSET for name, feature in features.items()}
    payload = encode_example(values, kinds)
    assert payload == pb_bytes(pb, features)
    assert as_parsed(decode_example(payload)) == pb_parse(pb, payload)[0]
    assert payload_kind(payload) == "Example"
    arrays = {
        name: np.array(values[name], {"int64": "i8", "float": "f4"}[kind])
        for name, kind in kinds.items()
        if kind != "bytes"
    }
    assert encode_example({**values, **arrays}, kinds) == payload
    scalars = {name: v[0] if kinds.get(name) and len(v) == 1 else v for name, v in values.items()}
    assert encode_example(scalars, kinds) == payload
    singles = {name: v for name, v in scalars.items() if v is UNSET or not isinstance(v, list)}
    assert encode_example(singles) == pb_bytes(pb, {name: features[name] for name in singles})


def test_names_are_in_the_order_of_upb(pb):
    rng = np.random.default_rng(0)
    for _ in range(300):
        names = {"".join(rng.choice(list("aàb/z"), rng.integers(0, 5))) for _ in range(12)}
        features = dict.fromkeys(names, 1)
        assert encode_example(features) == pb_bytes(pb, dict.fromkeys(names, ("int64", [1])))


@pytest.mark.parametrize(
    ("features", "wire"),
    [
        ({}, "0a00"),
        ({"a": None}, "0a00"),
        ({"a": UNSET}, "0a070a050a01611200"),
        ({"a": []}, "0a070a050a01611200"),
        ({"a": [[], ()]}, "0a070a050a01611200"),
        ({"a": np.array([], np.float32)}, "0a090a070a016112021200"),
        ({"a": np.array([], np.uint8)}, "0a090a070a016112021a00"),
        ({"a": np.array([], "U3")}, "0a090a070a016112020a00"),
        ({"": -1}, "0a140a120a00120e1a0c0a0affffffffffffffffff01"),
    ],
)
def test_small_payloads(features, wire):
    assert encode_example(features).hex() == wire


@pytest.mark.parametrize(("kind", "tag"), [("bytes", "0a"), ("float", "12"), ("int64", "1a")])
def test_an_empty_list_takes_its_kind_from_the_plan(kind, tag):
    assert encode_example({"a": []}, {"a": kind}).hex() == f"0a090a070a01611202{tag}00"


class Color(enum.IntEnum):
    RED = 3


class Tensor:
    """Stands for torch and TensorFlow tensors."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


INTS = np.array([[0, 1, 127], [128, 300, 70]])
SAME = [
    (True, 1),
    (np.True_, 1),
    (np.uint8(200), 200),
    (np.int64(-5), -5),
    (Color.RED, 3),
    ([True, 2, np.int8(-3)], [1, 2, -3]),
    (np.array([True, False]), [1, 0]),
    (np.array(7), 7),
    (np.uint64(2**63 - 1), 2**63 - 1),
    (INTS, INTS.reshape(-1).tolist()),
    (INTS.tolist(), INTS.reshape(-1).tolist()),
    ([tuple(row) for row in INTS.tolist()], INTS.reshape(-1).tolist()),
    (list(INTS), INTS.reshape(-1).tolist()),
    ([INTS[0], INTS[1].tolist()], INTS.reshape(-1).tolist()),
    ([np.array(1), np.array(2)], [1, 2]),
    (np.asfortranarray(INTS), INTS.reshape(-1).tolist()),
    (INTS[:, ::-2], INTS[:, ::-2].reshape(-1).tolist()),
    (INTS.astype(">i4"), INTS.reshape(-1).tolist()),
    (-INTS.astype(">i2"), (-INTS).reshape(-1).tolist()),
    (np.array([-1, 5], np.int8), [-1, 5]),
    (np.array([1, 2, 3], np.uint8)[::-1], [3, 2, 1]),
    (np.array([1, 200, 3])[::2], [1, 3]),
    (np.array([1.0, 2.0, 3.0], np.float32)[::2], [1.0, 3.0]),
    (np.zeros(20_000, np.uint8)[::2], [0] * 10_000),
    (np.float32([1.0] * 4000).reshape(2, -1).T, [1.0] * 4000),
    (np.array([-1, 40000], np.int32), [-1, 40000]),
    (Tensor(INTS), INTS.reshape(-1).tolist()),
    ([Tensor(np.array(1)), Tensor(np.array(2))], [1, 2]),
    (np.float16(1.5), 1.5),
    (np.longdouble(0.1), 0.1),
    (np.float64(0.1), 0.1),
    (np.float32(0.5), 0.5),
    (np.array([0.1, -1e-50, np.inf]), [0.1, -1e-50, np.inf]),
    (np.array([[0.5, 1]], ">f4"), [0.5, 1.0]),
    ([np.float32(0.5), 0.25], [0.5, 0.25]),
    ("é", "é".encode()),
    (bytearray(b"ab"), b"ab"),
    (memoryview(b"abcd")[::2], b"ac"),
    (["a", b"b", bytearray(b"c")], [b"a", b"b", b"c"]),
    (np.array(["a", "é"]), [b"a", "é".encode()]),
    (np.str_("a"), b"a"),
    (["a", np.str_("b")], [b"a", b"b"]),
]


@pytest.mark.parametrize(("value", "plain"), SAME, ids=short_repr)
def test_many_types_for_one_value(pb, value, plain):
    values = plain if isinstance(plain, list) else [plain]
    names = {int: "int64", float: "float", bytes: "bytes"}
    expected = pb_bytes(pb, {"x": (names[type(values[0])], values)})
    assert encode_example({"x": value}) == expected
    assert encode_example({"x": value}, {"x": names[type(values[0])]}) == expected


@pytest.mark.parametrize(
    ("value", "kind", "plain"),
    [
        (3, "float", [3.0]),
        (True, "float", [1.0]),
        (2**60 + 1, "float", [float(2**60 + 1)]),
        ([1, 2.5, True], "float", [1.0, 2.5, 1.0]),
        (np.array([1, 2**60 + 1]), "float", [1.0, float(2**60 + 1)]),
        (np.array([True]), "float", [1.0]),
        (np.array([b"a", b"bc"]), "bytes", [b"a", b"bc"]),
        (np.bytes_(b"a"), "bytes", [b"a"]),
    ],
)
def test_a_plan_takes_more(pb, value, kind, plain):
    assert encode_example({"x": value}, {"x": kind}) == pb_bytes(pb, {"x": (kind, plain)})


class Broken:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("on the GPU")


loop: list = []
loop.append(loop)


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ([1, 2.5], None, "mixes int and float"),
        ([np.array([1]), np.array([1.5])], None, "mixes int and float"),
        ([1, "a"], None, "mixes int and str"),
        ([1, None], None, "NoneType"),
        ([[1, 2], [3]], None, "rectangular"),
        ([[1, 2], 3], None, "rectangular"),
        ([np.zeros(2), np.zeros(3)], None, "rectangular"),
        ([["a"], ["b"]], None, "nested list of strings"),
        (loop, None, "deep"),
        (2**63, None, "outside int64"),
        (-(2**63) - 1, None, "outside int64"),
        (10**5000, None, "bits"),
        ([1, 2**63], None, "outside int64"),
        ([1, np.uint64(2**63)], None, "outside int64"),
        (np.array([1, 2**63], np.uint64), None, "outside int64"),
        (1e39, None, "too large for float32"),
        ([1.0, -1e39], None, "too large for float32"),
        (np.array([np.inf, 1e39]), None, "1e\\+39"),
        (np.longdouble("1e400"), None, "too large for float32"),
        (10**400, "float", "too large for float32"),
        ([10**400], "float", "too large for float32"),
        (2.0, "int64", "float, but the schema says int64"),
        ([1, 2.0], "int64", "schema says int64"),
        (np.array([2.0]), "int64", "float64 values, but the schema says int64"),
        ("2", "int64", "str, but the schema says int64"),
        (["2"], "float", "str, but the schema says float"),
        (1, "bytes", "int, but the schema says bytes"),
        (np.zeros(2, np.uint8), "bytes", "uint8 values, but the schema says bytes"),
        (1, "int", "schema says 'int'"),
        ("\ud800", None, "surrogate"),
        (["a", "\udcff"], None, "surrogate"),
        (np.array([b"a"]), None, "bytes8 values"),
        (np.bytes_(b"a"), None, "bytes"),
        (np.array(["a", 1], object), None, "object values"),
        (np.array(["2020-01-01"], "M8[D]"), None, "datetime64"),
        (np.datetime64("2020-01-01"), None, "datetime64"),
        (np.timedelta64(3, "s"), None, "timedelta64"),
        ([np.timedelta64(3, "s")], None, "timedelta64"),
        (1j, None, "complex"),
        (np.array([1j]), None, "complex128"),
        ({1}, None, "set"),
        ({"a": 1}, None, "dict"),
        (range(3), None, "range"),
        (object(), None, "object"),
        (np.ma.masked_array([1, 2], [True, False]), None, "masked"),
        (Broken(), None, "on the GPU"),
    ],
    ids=lambda value: short_repr(value) if not isinstance(value, int) else "int",
)
def test_refused(value, kind, says):
    with pytest.raises(FeatureError, match=says) as caught:
        encode_example({"a": 1, "x": value}, {"x": kind} if kind else None)
    assert caught.value.feature == "x"


@pytest.mark.parametrize("name", [1, b"a", None, "\ud800"])
def test_names_are_text(name):
    with pytest.raises(FeatureError, match="feature name"):
        encode_example({name: 1})


def test_float32_keeps_its_bits():
    bits = np.array([0x7FA00001, 0xFFC12345, 0x80000000], np.uint32)
    for array in (bits.view(np.float32), bits.byteswap().view(">f4"), list(bits.view(np.float32))):
        decoded = decode_example(encode_example({"x": array}))["x"]
        assert decoded.view(np.uint32).tolist() == bits.tolist()
    assert bits[:1].tobytes() in encode_example({"x": bits.view(np.float32)[0]})


def test_large_values_and_many_schemas():
    rng = np.random.default_rng(0)
    for n in range(200):
        features = {f"f{n}": rng.bytes(n * 50), f"g{n % 7}": rng.random(n * 20).astype("f4")}
        decoded = decode_example(encode_example(features))
        assert decoded[f"f{n}"] == [features[f"f{n}"]]
        assert decoded[f"g{n % 7}"].tobytes() == features[f"g{n % 7}"].tobytes()


def test_unset_is_one_object():
    assert pickle.loads(pickle.dumps(UNSET)) is UNSET
    assert copy.deepcopy(UNSET) is UNSET
    assert repr(UNSET) == "UNSET"


def message(*fields):
    """Put together (tag, content) fields: bytes with their size, else raw."""
    return b"".join(
        bytes([tag]) + (encode_varint(len(body)) if tag & 7 == 2 else b"") + body
        for tag, body in fields
    )


def one(feature, name=b"a"):
    return message((0x0A, message((0x0A, message((0x0A, name), (0x12, feature))))))


INT_5 = message((0x1A, message((0x0A, b"\x05"))))
BLOB = message((0x0A, message((0x0A, b"x"))))
ACCEPTED = {
    "packed in two fields": one(message((0x1A, message((0x0A, b"\x01\x02"), (0x0A, b"\x03"))))),
    "packed and not": one(message((0x1A, message((0x08, b"\xac\x02"), (0x0A, b"\x01\x02"))))),
    "floats not packed": one(message((0x12, message((0x0D, struct.pack("<f", 2.5)))))),
    "the same list twice": one(INT_5 + INT_5),
    "another kind clears": one(INT_5 + BLOB),
    "and back again": one(INT_5 + BLOB + INT_5),
    "Features twice": one(INT_5) + one(BLOB, b"b"),
    "a name twice": one(INT_5) + one(BLOB),
    "the value twice": message((0x0A, message((0x0A, message((0x12, INT_5), (0x12, INT_5)))))),
    "no name": message((0x0A, message((0x0A, message((0x12, INT_5)))))),
    "no value": message((0x0A, message((0x0A, message((0x0A, b"a")))))),
    "overlong varint": one(message((0x1A, message((0x0A, b"\x85\x80\x80\x00"))))),
    "cut to 64 bits": one(message((0x1A, message((0x08, b"\xff" * 9 + b"\x7f"))))),
    "cut to 64 bits, packed": one(
        message((0x1A, message((0x0A, b"\xff" * 9 + b"\x7f\x01\x80\x01"))))
    ),
    "a signaling NaN": one(message((0x12, message((0x0A, b"\x01\x00\xa0\x7f"))))),
    "unknown fields": message((0x10, b"\x07"), (0x19, b"12345678")) + one(INT_5 + b"\x22\x01x"),
    "empty packed": one(message((0x1A, message((0x0A, b""))))),
    "a wrong wire type": one(message((0x1A, message((0x0D, b"1234"))))),
}
REFUSED = {
    "name not UTF-8": one(INT_5, b"\xff"),
    "name is a surrogate": one(INT_5, b"\xed\xa0\x80"),
    "floats of 5 bytes": one(message((0x12, message((0x0A, b"12345"))))),
    "the same, then cleared": one(message((0x12, message((0x0A, b"12345")))) + INT_5),
    "field 0": one(b"\x02\x00"),
    "wire type 7": one(b"\x0f"),
    "cut": one(INT_5)[:-1],
    "cut varint": one(message((0x1A, message((0x0A, b"\x80"))))),
    "cut varint, then another": one(message((0x1A, message((0x0A, b"\x80"), (0x0A, b"\x01"))))),
    "varint of 11 bytes": one(message((0x1A, message((0x0A, b"\x80" * 10 + b"\x00"))))),
    "the same, then cleared ": one(message((0x1A, message((0x0A, b"\x80" * 11 + b"\x00")))) + BLOB),
    "tag of 33 bits": b"\x8a\x80\x80\x80\x10\x00",
    "tag of 6 bytes": b"\x8a\x80\x80\x80\x80\x00\x00",
    "only a tag": b"\x0a",
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_decode_as_protobuf_does(pb, case):
    assert as_parsed(decode_example(ACCEPTED[case])) == pb_parse(pb, ACCEPTED[case])[0]


@pytest.mark.parametrize("case", REFUSED)
def test_refuse_as_protobuf_does(pb, case):
    with pytest.raises(WireError) as caught:
        decode_example(REFUSED[case])
    assert 0 <= caught.value.offset <= len(REFUSED[case])
    with pytest.raises(Exception, match="Error parsing message"):
        pb_parse(pb, REFUSED[case])
    assert payload_kind(REFUSED[case]) == "other"


def test_where_protobuf_differs(pb):
    """Groups: obsolete, refused. An unknown field in a map entry: upb loses the whole entry."""
    group = message((0x13, b""), (0x14, b"")) + one(INT_5)
    assert pb_parse(pb, group)[0] == {"a": ("int64", [5])}
    with pytest.raises(WireError, match="group"):
        decode_example(group)
    entry = message((0x0A, message((0x0A, message((0x0A, b"a"), (0x12, INT_5), (0x18, b"\x01"))))))
    assert pb_parse(pb, entry) == ({}, True)
    assert as_parsed(decode_example(entry)) == {"a": ("int64", [5])}


SEEDS = [
    *ACCEPTED.values(),
    *REFUSED.values(),
    encode_example({"a": 1, "b": [1, -2, 300], "c": b"x", "d": 1.5, "é": UNSET}),
    encode_example({"a": [b"x", "yy", ""], "ab": np.arange(5) * 1e4, "x": [2**40, -1]}),
]
SPICE = st.sampled_from(b"\x00\x01\x02\x04\x08\x09\x0a\x0d\x12\x15\x1a\x7f\x80\x81\xff")


@settings(deadline=None, max_examples=1500)
@given(
    st.sampled_from(SEEDS),
    st.lists(
        st.tuples(
            st.sampled_from(["set", "insert", "delete", "copy"]),
            st.integers(0, 80),
            st.lists(SPICE | st.integers(0, 255), min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_mutated_payloads_decode_as_protobuf_does(pb, payload, edits):
    data = bytearray(payload)
    for how, at, new in edits:
        if how == "set":
            data[at : at + len(new)] = bytes(new)
        elif how == "insert":
            data[at:at] = bytes(new)
        elif how == "delete":
            del data[at : at + len(new)]
        else:
            data[at:at] = data[new[0] % 40 :][: len(new) * 3]
    payload = bytes(data)
    try:
        expected, entry_lost = pb_parse(pb, payload)
    except Exception as error:
        assert type(error).__name__ == "DecodeError"
        with pytest.raises(WireError):
            decode_example(payload)
        return
    try:
        ours = as_parsed(decode_example(payload))
    except WireError as error:
        assert "group" in error.message
        return
    if not entry_lost:
        assert ours == expected


def test_known_payloads(data_dir):
    vectors = json.loads((data_dir / "_vectors" / "vectors.json").read_text())["example_wire"]
    assert len(vectors) >= 6
    for vector in vectors:
        payload = bytes.fromhex(vector["hex"])
        parsed = {
            name: [kind, [v.decode() for v in values] if kind == "bytes" else list(values)]
            for name, (kind, values) in (
                (name, (kind, np.frombuffer(v, "<f4").tolist() if kind == "float" else v))
                for name, (kind, v) in as_parsed(decode_example(payload)).items()
            )
        }
        assert parsed == vector["parsed"], vector["name"]
        again = encode_example(decode_example(payload))
        assert (again == payload) == vector["tf_reserialises_identically"], vector["name"]


def records(path):
    """The payloads of a TFRecord file, checksums not looked at."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + size]
        at += size + 16


def test_kinds_and_features_of_real_files(data_dir):
    facts = json.loads((data_dir / "expected.json").read_text())
    names = {"other-proto": "other"}
    for file, fact in facts.items():
        payloads = list(records(data_dir / file))[:500]
        kinds = Counter(map(payload_kind, payloads))
        expected = fact.get("kinds", {"other-proto": fact["records"]})
        if len(payloads) == fact["records"]:
            assert kinds == {names.get(kind, kind): n for kind, n in expected.items()}, file
        else:
            assert set(kinds) == {names.get(kind, kind) for kind in expected}, file
        if set(expected) == {"Example"}:
            for payload in payloads:
                features = decode_example(payload)
                assert set(features) <= set(fact["features"])
                assert decode_example(encode_example(_unset_for_none(features))).keys() == (
                    features.keys()
                )


def _unset_for_none(features):
    return {name: UNSET if value is None else value for name, value in features.items()}


def test_kind_of_sequence_examples(pb):
    sequence = pb.SequenceExample()
    sequence.context.feature["a"].int64_list.value.append(1)
    assert payload_kind(sequence.SerializeToString()) == "Example"  # nothing tells them apart
    sequence.feature_lists.feature_list["b"].feature.add().float_list.value.append(1.5)
    assert payload_kind(sequence.SerializeToString()) == "SequenceExample"
    assert payload_kind(b"") == "Example"
    assert payload_kind(b"\x0a\x00") == "Example"
    assert payload_kind(b"hello") == "other"
    assert payload_kind(one(message((0x1A, message((0x0A, b"\x80")))))) == "other"


@QUICK
@given(
    st.sampled_from(["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8"]),
    st.lists(INT64 | st.integers(-300, 300) | st.sampled_from([2**14, 2**16, 2**21, 2**28 - 1])),
)
def test_varints_of_arrays(dtype, values):
    array = np.array(values, np.int64).astype(dtype)
    single = [encode_varint(int(value)) for value in array]
    assert encode_varints(array).tobytes() == b"".join(single)
    assert varint_sizes(array).tolist() == list(map(len, single))
    assert decode_varints(encode_varints(array)).tolist() == array.astype(np.int64).tolist()


def test_varints_over_many_chunks():
    values = np.random.default_rng(0).integers(0, 1 << 20, 100_000) >> np.arange(100_000) % 20
    assert encode_varints(values).tobytes() == b"".join(map(encode_varint, values.tolist()))
    assert np.array_equal(decode_varints(encode_varints(values)), values)
