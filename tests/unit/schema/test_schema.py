"""The schema: a join in any order, plans that bind, conflicts that name both items."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import FeatureError, OptionError, SchemaConflict
from shardwriter.formats import UNSET, encode_example
from shardwriter.schema.feature_types import FeatureType, describe, parse_schema_option
from shardwriter.schema.schema import FeatureSummary, Schema, schema_from_json

PNG, JPEG = b"\x89PNG\r\n\x1a\n" + bytes(20), b"\xff\xd8\xff\xe0" + bytes(20)
FLOAT = FeatureType("float", "float32")
INT = FeatureType("int64", "int64")
IMAGE = FeatureType("bytes", "bytes", (), "image", "png")

DTYPES = {
    "int64": ["bool", "uint8", "int32", "int64"],
    "float": ["float16", "float32"],
    "bytes": ["bytes", "string"],
}
DIMENSIONS = st.integers(0, 3)


@st.composite
def shapes(draw):
    if draw(st.booleans()):
        return draw(st.sampled_from([None, (), (None,)]))
    shape = draw(st.lists(DIMENSIONS, max_size=3))
    if shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = None
    return tuple(shape)


@st.composite
def feature_types(draw):
    kind = draw(st.sampled_from([None, "int64", "float", "bytes"]))
    if kind is None:
        return FeatureType()
    if kind == "bytes" and draw(st.booleans()):
        image_format = draw(st.sampled_from([None, "png", "jpeg", "image"]))
        return FeatureType("bytes", "bytes", (), "image", image_format)
    encoding = draw(st.sampled_from(["list", "list", "raw"]))
    return FeatureType(kind, draw(st.sampled_from(DTYPES[kind])), draw(shapes()), encoding)


def join(*types):
    """The join from left to right; None where there is none."""
    joined = FeatureType()
    try:
        for t in types:
            joined = joined.join(t)
    except ValueError:
        return None
    return joined


def outcome(left, right):
    if left is None or right is None:
        return None
    return join(left, right)


# -- the join --------------------------------------------------------------------------------------


@given(feature_types(), feature_types())
def test_join_is_commutative(a, b):
    assert join(a, b) == join(b, a)


@given(feature_types(), feature_types(), feature_types())
def test_join_is_associative(a, b, c):
    assert outcome(join(a, b), c) == outcome(a, join(b, c)) == join(a, b, c)


@given(feature_types(), feature_types())
def test_join_is_idempotent(a, b):
    assert a.join(a) == a
    both = join(a, b)
    if both is not None:
        assert join(both, a) == join(both, b) == both


@given(feature_types())
def test_unset_changes_nothing(a):
    assert FeatureType().join(a) == a == a.join(FeatureType())


@pytest.mark.parametrize(
    ("a", "b", "joined"),
    [
        ((), (3,), (None,)),
        ((), (None,), (None,)),
        ((2,), (3,), (None,)),
        ((2, 3), (2, 4), (2, None)),
        ((None, 3), (7, 3), (None, 3)),
        (None, (2, 3), (2, 3)),
        # Two nulls only where they were declared.
        ((None, None), (2, 3), (None, None)),
        ((None, None, 3), (2, None, 3), (None, None, 3)),
    ],
)
def test_one_dimension_may_vary(a, b, joined):
    for one, other in ((a, b), (b, a)):
        found = FeatureType("int64", "int64", one).join(FeatureType("int64", "int64", other))
        assert found.shape == joined


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (3, 4)), ((), (2, 3)), ((2,), (2, 3)), ((None, 3), (2, 4))]
)
def test_shapes_that_do_not_go_together(a, b):
    with pytest.raises(ValueError, match="shapes"):
        FeatureType("int64", "int64", a).join(FeatureType("int64", "int64", b))


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [
        ("uint8", "uint8", "uint8"),
        ("uint8", "int16", "int64"),
        ("bool", "int64", "int64"),
    ],
)
def test_dtypes_widen_at_once(a, b, dtype):
    assert FeatureType("int64", a, ()).join(FeatureType("int64", b, ())).dtype == dtype


def test_kinds_and_encodings_do_not_mix():
    with pytest.raises(ValueError, match="int64 and float"):
        INT.join(FLOAT)
    with pytest.raises(ValueError, match="encodings"):
        IMAGE.join(FeatureType("bytes", "bytes", ()))


# -- what a value is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, FeatureType("int64", "bool", ())),
        (3, FeatureType("int64", "int64", ())),
        (2.5, FeatureType("float", "float32", ())),
        ("a", FeatureType("bytes", "string", ())),
        (b"a", FeatureType("bytes", "bytes", ())),
        (bytearray(b"a"), FeatureType("bytes", "bytes", ())),
        (memoryview(b"a"), FeatureType("bytes", "bytes", ())),
        (np.float64(2.5), FeatureType("float", "float32", ())),
        (np.str_("a"), FeatureType("bytes", "string", ())),
        (np.uint8(1), FeatureType("int64", "uint8", ())),
        (np.zeros((2, 3), ">i4"), FeatureType("int64", "int32", (2, 3))),
        (np.zeros(0, np.float16), FeatureType("float", "float16", (0,))),
        (np.array(["a"]), FeatureType("bytes", "string", (1,))),
        ([1, 2, 3], FeatureType("int64", "int64", (3,))),
        ((1, True), FeatureType("int64", "int64", (2,))),
        ([[1, 2], [3, 4], [5, 6]], FeatureType("int64", "int64", (3, 2))),
        (["a", b"b"], FeatureType("bytes", "bytes", (2,))),
        (list(range(100)), FeatureType("int64", "int64", (100,))),
        ([[1.0]] * 100, FeatureType("float", "float32", (100, 1))),
        ([], FeatureType()),
        ([[], []], FeatureType(None, None, (2,))),
    ],
)
def test_a_value_has_a_type(value, expected):
    assert describe("x", value) == expected


@pytest.mark.parametrize(
    "value",
    [
        {},
        object(),
        1j,
        [1, 2.0],
        [1, "a"],
        [[1], [1, 2]],
        [0.5] * 70 + [1],
        np.zeros(2, complex),
        np.array([None]),
        np.array(["2020-01-01"], "datetime64[D]"),
        [None],
    ],
)
def test_a_value_that_has_no_place_is_refused(value):
    with pytest.raises(FeatureError) as caught:
        describe("x", value)
    assert caught.value.feature == "x"


# -- observing records -----------------------------------------------------------------------------


def observed(records, plan=None):
    schema = Schema(plan)
    for index, record in enumerate(records):
        schema.observe(index, record)
    return schema


def test_presence_is_counted():
    schema = observed([{"a": 1}, {"a": UNSET}, {"a": None}, {}, {"a": []}, {"a": 2}])
    feature = schema.features["a"]
    assert (feature.present, feature.unset) == (4, 2)
    assert feature.type == FeatureType("int64", "int64", ())


def test_the_order_of_records_changes_nothing():
    records = [{"a": 1, "b": "x"}, {"a": [1, 2]}, {"b": b"y"}, {"a": np.uint8([3])}]
    texts = {json.dumps(observed(order).to_json()) for order in permutations(records)}
    assert len(texts) == 1


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("ab"),
            st.sampled_from(
                [1, True, [1, 2], [3], [], UNSET, None, np.uint8(4), np.zeros(2, np.int32)]
            ),
        ),
        max_size=8,
    ),
    st.integers(0, 8),
)
def test_parts_that_are_merged_give_what_the_whole_gives(records, cut):
    whole, left, right = observed(records), observed(records[:cut]), observed(records[cut:])
    left.merge(right.features)
    assert left.to_json() == whole.to_json()


def test_parts_that_conflict_can_not_be_merged():
    with pytest.raises(SchemaConflict) as caught:
        observed([{"a": 1}]).merge(observed([{"a": 1.5}]).features)
    assert caught.value.feature == "a"


@pytest.mark.parametrize(
    ("first", "second", "hint"),
    [
        (1, 2.5, "--schema a=float"),
        (2.5, 1, "--schema a=float"),
        (1, "x", "one type"),
        (np.zeros((2, 3)), np.zeros((3, 4)), "one shape"),
    ],
)
def test_a_conflict_names_both_items_and_the_fix(first, second, hint):
    schema = observed([{}, {"a": UNSET}, {"a": first}, {"a": first}])
    with pytest.raises(SchemaConflict, match="item 2") as caught:
        schema.observe(7, {"a": second})
    error = caught.value
    assert (error.index, error.feature) == (7, "a")
    assert hint in error.hint


def test_a_conflict_names_the_item_that_brought_the_kind():
    schema = observed([{"a": []}, {"a": 1}, {"a": [1, 2]}])
    with pytest.raises(SchemaConflict, match="item 1 "):
        schema.observe(3, {"a": 2.5})


@pytest.mark.parametrize(
    "bad",
    [
        {"new": 1, "empty": [], "unset": UNSET, "a": "text"},
        {"b": [1, 2], "n": 5, "unset": UNSET, "a": 0.5},
        {"b": np.uint8([1]), "a": {}},
        {"a": np.zeros((2, 2), int), "b": 5.5},
    ],
)
def test_a_record_that_is_refused_leaves_no_trace(bad):
    good = [{"a": 1, "b": 2, "unset": UNSET}, {"b": 3}]
    schema = observed(good)
    before = schema.to_json()
    with pytest.raises((SchemaConflict, FeatureError)):
        schema.observe(2, bad)
    assert schema.to_json() == before
    more = [{"b": np.uint8([1])}, {"new": "x"}]
    for index, record in enumerate(more):
        schema.observe(3 + index, record)
    assert schema.to_json() == observed([*good, *more]).to_json()


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [1, 2.5, True, [1, 2.5], [2.5] * 70 + [1], [1], [], np.int32(3), np.float64(1)]
)
def test_a_float_plan_takes_ints(value):
    schema = Schema({"a": FLOAT})
    schema.observe(0, {"a": value})
    feature = schema.features["a"].type
    assert (feature.kind, feature.dtype) == ("float", "float32")
    encode_example({"a": value}, schema.kinds)  # the codec agrees


def test_an_int_plan_takes_no_float():
    schema = Schema({"a": INT})
    with pytest.raises(SchemaConflict, match="in the schema") as caught:
        schema.observe(4, {"a": 2.0})
    assert (caught.value.index, caught.value.feature) == (4, "a")
    schema.observe(5, {"a": 2})


def test_a_plan_is_in_the_schema_before_any_record():
    schema = Schema({"a": FLOAT, "b": FeatureType()}, {"a": ["x"]})
    assert schema.kinds == {"a": "float"}
    features = schema.to_json()["features"]
    assert features["a"]["present"] == 0
    assert features["a"]["vocabulary"] == ["x"]
    schema.observe_column("a", 10, 3)
    assert (schema.features["a"].present, schema.features["a"].unset) == (10, 3)


def test_a_declared_shape_may_vary_in_two_dimensions():
    schema = Schema({"a": FeatureType("int64", "uint8", (None, None, 3))})
    schema.observe(0, {"a": np.zeros((4, 5, 3), np.uint8)})
    schema.observe(1, {"a": np.zeros((6, 7, 3), np.uint8)})
    assert schema.features["a"].type.shape == (None, None, 3)
    with pytest.raises(SchemaConflict):
        schema.observe(2, {"a": np.zeros((6, 7), np.uint8)})


def test_a_planned_image_has_the_format_of_its_bytes():
    schema = Schema({"x": FeatureType("bytes", "bytes", (), "image")})
    schema.observe(0, {"x": PNG})
    schema.observe(1, {"x": PNG})
    assert schema.features["x"].type == IMAGE
    schema.observe(2, {"x": JPEG})
    schema.observe(3, {"x": bytearray(PNG)})
    assert schema.features["x"].type.format == "image"
    assert schema.to_json()["features"]["x"]["format"] == "image"


# -- as JSON and as text ---------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.tuples(
            feature_types(),
            st.integers(0, 9),
            st.none() | st.lists(st.text(max_size=2), max_size=2),
        ),
    )
)
def test_a_schema_is_read_back(features):
    schema = Schema()
    for name, (feature_type, present, words) in features.items():
        schema.features[name] = FeatureSummary(feature_type, present, 0, words)
    data = json.loads(json.dumps(schema.to_json()))
    assert schema_from_json(data) == schema.features
    assert list(data["features"]) == sorted(features)


def test_an_entry_holds_the_facts_of_the_format():
    entry = FeatureSummary(FeatureType("int64", "uint8", (None, 3)), 5, 1).to_json()
    assert entry == {
        "dtype": "uint8", "encoding": "list", "kind": "int64", "present": 5,
        "shape": [None, 3], "unset": 1,
    }  # fmt: skip


def test_types_are_read_from_an_option():
    assert parse_schema_option("id=string, price=float,a=b=int64,raw=bytes,cat=image") == {
        "cat": FeatureType("bytes", "bytes", (), "image"),
        "id": FeatureType("bytes", "string"),
        "price": FeatureType("float", "float32"),
        "a=b": FeatureType("int64", "int64"),
        "raw": FeatureType("bytes", "bytes"),
    }


@pytest.mark.parametrize(
    "text", ["", "a", "a=", "=int64", "a=int31", "a=int64,", "a=int64,,b=float"]
)
def test_an_option_that_gives_no_types_is_refused(text):
    with pytest.raises(OptionError, match="NAME=TYPE"):
        parse_schema_option(text)


@pytest.mark.parametrize("shapes", [[(0, 5), (0, 0)], [(1, 0), (2, 0)], [(0, 5), (3, 5), (0, 4)]])
def test_shapes_that_values_do_not_tell_are_not_joined(shapes):
    for order in (shapes, shapes[::-1]):
        schema = Schema()
        with pytest.raises(SchemaConflict, match="shapes") as caught:
            [schema.observe(i, {"x": np.zeros(shape)}) for i, shape in enumerate(order)]
        assert "--schema 'x=float32[" in caught.value.hint


def test_an_array_without_values_may_be_one_of_a_size_that_varies():
    schema = Schema()
    for index, shape in enumerate([(0, 5), (3, 5), (0, 5)]):
        schema.observe(index, {"x": np.zeros(shape)})
    assert schema.features["x"].type.shape == (None, 5)
