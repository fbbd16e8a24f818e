"""From items to records: what is written, what is counted, and where an error was."""

from __future__ import annotations

import collections
import pickle
from types import MappingProxyType

import numpy as np
import pytest

from shardwriter.errors import CallableError, FeatureError, SchemaConflict, SourceError
from shardwriter.formats import UNSET, decode_example, encode_example
from shardwriter.formats.example_columns import Column
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.python import PythonSource
from shardwriter.writing.encode import ItemEncoder, RecordEncoder
from shardwriter.writing.options import SKIP, DatasetOptions

INT = FeatureType("int64", "int64", ())
FLOAT = FeatureType("float", "float32", ())


# -- one record ----------------------------------------------------------------------------------


def test_features_become_an_example():
    features = {"b": [1, 2], "a": "text", "none": None}
    assert RecordEncoder(1).encode(0, features) == encode_example(features)


@pytest.mark.parametrize(
    "mapping",
    [
        MappingProxyType({"x": 1, "y": "z"}),
        collections.OrderedDict(y="z", x=1),
        collections.UserDict(x=1, y="z"),
        collections.ChainMap({"x": 1}, {"x": 2, "y": "z"}),
    ],
)
def test_any_mapping_is_an_item(mapping):
    encoder = RecordEncoder(1)
    assert encoder.encode(0, mapping) == encode_example({"x": 1, "y": "z"})
    assert set(encoder.schema.features) == {"x", "y"}


@pytest.mark.parametrize("record", [b"", b"any bytes", encode_example({"x": 1})])
def test_bytes_are_a_finished_record(record):
    encoder = RecordEncoder(1)
    assert encoder.encode(0, record) is record
    assert encoder.schema.to_json() == {"features": {}}


@pytest.mark.parametrize("item", [None, 1, "text", [1], (1, 2), np.zeros(2), {"a"}, UNSET])
def test_what_is_no_mapping_is_refused(item):
    with pytest.raises(FeatureError, match="not a mapping of features") as caught:
        RecordEncoder(1).encode(0, item)
    assert type(item).__name__ in str(caught.value)
    assert "map" in caught.value.hint


@pytest.mark.parametrize("name", ["x" * 200, "größe/ж/大", "", "a b\n"])
def test_names_are_kept_whole(name):
    encoder = RecordEncoder(1)
    record = encoder.encode(0, {name: 1, name + "'": 2})
    assert set(decode_example(record)) == {name, name + "'"} == set(encoder.schema.features)


def test_the_callers_mapping_is_left_as_it_was():
    array = np.arange(3)
    features = {"b": array, "a": [1]}
    RecordEncoder(1, {"b": FLOAT}).encode(0, features)
    assert list(features) == ["b", "a"]
    assert features["b"] is array
    assert array.dtype == np.int64


def test_a_plan_converts_and_refuses():
    encoder = RecordEncoder(1, {"x": FLOAT, "n": INT})
    assert encoder.encode(0, {"x": 1, "n": 1}) == encode_example({"x": 1.0, "n": 1})
    with pytest.raises(FeatureError, match="int64") as caught:
        encoder.encode(1, {"x": 1, "n": 1.0})
    assert caught.value.feature == "n"


def test_a_type_that_changes_names_both_items():
    encoder = RecordEncoder(1)
    encoder.encode(0, {"x": 1})
    with pytest.raises(SchemaConflict, match="in item 0") as caught:
        encoder.encode(5, {"x": 1.5})
    assert caught.value.index == 5
    assert caught.value.feature == "x"


def test_labels_are_counted_of_records_that_have_them():
    encoder = RecordEncoder(2, label="y")
    for index, value in enumerate([1, None, UNSET, 1, np.int64(2), [1, 2]]):
        encoder.encode(index, {"y": value})
    encoder.encode(6, {"x": 1})
    assert encoder.labels.to_json()["counts"] == {"1": 3, "2": 2}


def test_the_label_of_a_refused_record_is_not_counted():
    encoder = RecordEncoder(1, label="y")
    encoder.encode(0, {"y": 1})
    for features in ({"y": 2, "z": object()}, {"y": 1.5}):
        with pytest.raises((FeatureError, SchemaConflict)):
            encoder.encode(1, features)
    assert encoder.labels.to_json()["counts"] == {"1": 1}


def test_the_label_is_that_of_image_folders_where_none_is_named():
    encoder = RecordEncoder(1)
    encoder.encode(0, {"image/class/label": 4, "label": 5})
    assert encoder.labels.to_json()["counts"] == {"4": 1}


def test_a_block_is_counted_like_its_rows():
    columns = {
        "x": Column(np.array([1, 2, 3, 4]), np.array([False, True, False, False])),
        "y": Column(["a", "b", "a", ""], np.array([False, False, False, True])),
    }
    rows = [
        {"x": 1, "y": "a"},
        {"x": UNSET, "y": "b"},
        {"x": 3, "y": "a"},
        {"x": 4, "y": UNSET},
    ]
    plan = {"x": INT, "y": FeatureType("bytes", "string", ())}
    block, single = RecordEncoder(3, plan, label="y"), RecordEncoder(3, plan, label="y")
    indices = [10, 11, 13, 17]
    records = block.encode_block(indices, columns)
    assert records == [single.encode(i, row) for i, row in zip(indices, rows, strict=True)]
    assert block.schema.to_json() == single.schema.to_json()
    assert block.labels.to_json() == single.labels.to_json()


# -- items ---------------------------------------------------------------------------------------


def encode(data, **options):
    source = PythonSource(data)
    encoder = ItemEncoder(source, DatasetOptions(**options), 1)
    return list(encoder.records(enumerate(source.items()))), encoder.encoder


def test_items_keep_their_index_and_skipped_ones_give_none():
    records, encoder = encode([{"x": i} for i in range(4)], map=lambda f: f if f["x"] % 2 else SKIP)
    assert records == [
        (0, None),
        (1, encode_example({"x": 1})),
        (2, None),
        (3, encode_example({"x": 3})),
    ]
    assert encoder.schema.features["x"].present == 2


def test_a_source_may_skip_too():
    assert encode([{"x": 1}, SKIP])[0] == [(0, encode_example({"x": 1})), (1, None)]


def test_skip_is_one_object_in_every_process():
    assert pickle.loads(pickle.dumps(SKIP)) is SKIP
    assert repr(SKIP) == "SKIP"


def test_a_map_is_called_once_an_item_with_what_was_loaded():
    seen = []
    items = [(1, 2), (3, 4)]

    def to_features(item):
        seen.append(item)
        return {"sum": sum(item)}

    records, _ = encode(items, map=to_features)
    assert seen == items
    assert [decode_example(record)["sum"].tolist() for _, record in records] == [[3], [7]]


def test_a_map_may_return_a_finished_record():
    assert encode([1, 2], map=lambda n: b"%d" % n)[0] == [(0, b"1"), (1, b"2")]


def test_falsy_items_and_records_are_written():
    assert encode([b"", {}])[0] == [(0, b""), (1, encode_example({}))]


def fail(error):
    def function(_features):
        raise error

    return function


def test_an_error_in_the_map_is_located():
    cause = KeyError("image")

    def to_features(features):
        if features["x"] == 2:
            raise cause
        return features

    with pytest.raises(CallableError, match="the map raised KeyError: 'image'") as caught:
        encode([{"x": i} for i in range(4)], map=to_features)
    assert caught.value.index == 2
    assert caught.value.__cause__ is cause
    assert "-v" in caught.value.hint


def test_an_error_in_getitem_is_located():
    class Dataset(list):
        def __getitem__(self, index):
            if index == 1:
                raise OSError("unreadable")
            return {"x": index}

    with pytest.raises(
        CallableError, match="loading the item raised OSError: unreadable"
    ) as caught:
        encode(Dataset([0, 0, 0]))
    assert caught.value.index == 1


def test_an_error_without_words_is_told_by_its_class():
    with pytest.raises(CallableError, match=r"the map raised AssertionError\n"):
        encode([{}], map=fail(AssertionError()))


def test_a_map_that_returns_nothing_is_an_error_of_that_item():
    with pytest.raises(FeatureError, match="the map returned None") as caught:
        encode([{}], map=lambda features: None)
    assert caught.value.index == 0
    assert "SKIP" in caught.value.hint


def test_our_own_errors_keep_their_class_cause_and_place():
    cause = ValueError()
    error = SourceError("bad", index=77)
    error.__cause__ = cause
    with pytest.raises(SourceError) as caught:
        encode([{}], map=fail(error))
    assert caught.value is error
    assert caught.value.__cause__ is cause
    assert caught.value.index == 77


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), GeneratorExit()])
def test_interrupts_pass(stop):
    with pytest.raises(type(stop)) as caught:
        encode([{}], map=fail(stop))
    assert caught.value is stop


def test_an_exit_in_the_users_code_is_an_error():
    stop = SystemExit(0)
    with pytest.raises(CallableError, match="the map raised SystemExit: 0") as caught:
        encode([{}], map=fail(stop))
    assert caught.value.__cause__ is stop


def test_a_mapping_that_fails_when_it_is_read_is_located():
    class Lazy(collections.UserDict):
        def __getitem__(self, key):
            raise OSError("decoder broke")

    with pytest.raises(CallableError, match="decoder broke") as caught:
        encode([{"x": 1}, Lazy(x=1)])
    assert caught.value.index == 1


def test_a_value_that_has_no_place_names_item_and_feature():
    with pytest.raises(FeatureError) as caught:
        encode([{"x": 1}, {"x": 1, "bad": object()}])
    assert (caught.value.index, caught.value.feature) == (1, "bad")


class Planned:
    """A source with a plan, in columns."""

    kind = "planned"
    num_items = 6
    random_access = resumable = True
    label = "x"
    notes = ()
    block_items = 4

    def __init__(self, values, plan=INT, fails=()):
        self.plan = {"x": plan}
        self.vocabularies = {"x": ["zero", "one"]}
        self.values = values
        self.fails = fails
        self.blocks = []

    def key(self, item):
        return f"key {item}"

    def load(self, item):
        if item in self.fails:
            raise SourceError("torn")
        return {"x": self.values[item]}

    def load_columns(self, items):
        self.blocks.append(list(items))
        return {"x": Column([self.load(item)["x"] for item in items])}


def run(source, **options):
    encoder = ItemEncoder(source, DatasetOptions(**options), 2)
    return encoder, list(encoder.records(enumerate(range(len(source.values)))))


def test_columns_are_asked_for_in_blocks():
    source = Planned(list(range(6)))
    encoder, records = run(source)
    assert source.blocks == [[0, 1, 2, 3], [4, 5]]
    assert records == [(i, encode_example({"x": i})) for i in range(6)]
    assert encoder.encoder.schema.features["x"].vocabulary == ["zero", "one"]
    assert encoder.encoder.labels.feature == "x"


def test_a_map_takes_rows_and_nothing_of_the_plan():
    source = Planned([1, 2])
    encoder, records = run(source, map=lambda f: {"x": str(f["x"])})
    assert source.blocks == []
    assert records == [(i, encode_example({"x": str(i + 1)})) for i in range(2)]
    summary = encoder.encoder.schema.features["x"]
    assert (summary.type.kind, summary.vocabulary) == ("bytes", None)
    assert encoder.encoder.labels.feature == "image/class/label"


def test_fixed_types_hold_for_what_a_map_returns():
    records, _ = encode([{"x": 1}], map=lambda f: f, schema={"x": FLOAT})
    assert records == [(0, encode_example({"x": 1.0}))]


@pytest.mark.parametrize("bad", [0, 3, 5])
def test_an_error_in_a_block_is_that_of_its_row(bad):
    values = [1] * 6
    values[bad] = 1.5
    with pytest.raises(FeatureError) as caught:
        run(Planned(values))
    assert (caught.value.index, caught.value.item) == (bad, f"key {bad}")
    assert "batch" not in str(caught.value)
    with pytest.raises(SourceError, match="torn") as torn:
        run(Planned([1] * 6, fails={bad}))
    assert (torn.value.index, torn.value.item) == (bad, f"key {bad}")


def test_an_error_that_only_the_block_has_names_its_first_row():
    class Whole(Planned):
        def load_columns(self, items):
            raise SourceError("only together")

    with pytest.raises(SourceError, match="only together") as caught:
        run(Whole([1] * 6))
    assert caught.value.index == 0


def test_an_error_of_another_class_in_a_block_is_located():
    class Broken(Planned):
        def load(self, item):
            if item == 4:
                raise OSError("disk")
            return super().load(item)

    with pytest.raises(CallableError, match="loading the item raised OSError: disk") as caught:
        run(Broken([1] * 6))
    assert caught.value.index == 4
