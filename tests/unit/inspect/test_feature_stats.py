"""Statistics of features: what merges, what numpy finds, what others found in real files."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import re
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shardwriter.formats import UNSET, encode_example
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.inspect import feature_stats as features
from shardwriter.inspect import sketches as distinct
from shardwriter.inspect import sketches as value_histogram
from shardwriter.inspect.feature_stats import QUANTILES, BlobStats, FeatureStats, NumberStats
from shardwriter.inspect.scan import PayloadStats
from shardwriter.inspect.sketches import DistinctValues, TopValues, hash_blobs


def stats_of(payloads, batch_rows=1000, **options):
    stats = PayloadStats(**{"features": True, "label": None, **options})
    records = iter(payloads)
    while batch := list(islice(records, batch_rows)):
        stats.add(batch)
    return stats


def report(payloads, **options):
    return stats_of(payloads, **options).features.to_json()


def numbers_of(pieces, *, is_float):
    """Statistics of pieces, one after the other."""
    stats = NumberStats(is_float)
    for piece in pieces:
        stats.add(piece)
    stats.flush()
    return stats


# -- numbers ---------------------------------------------------------------------------------------


def test_many_zeros_among_floats_are_zero_quantiles():
    values = np.maximum(0, np.random.default_rng(0).normal(size=20_000)).astype(np.float32)
    found = numbers_of([values], is_float=True).to_json()["quantiles"]
    assert [found[share] for share in ("0.01", "0.05", "0.25")] == [0, 0, 0]
    assert found["0.75"] == pytest.approx(np.quantile(values, 0.75), rel=0.02)


@pytest.mark.parametrize("padding", [-1, -2.1179039478302, 1e-8, 77])
@pytest.mark.parametrize("num_pieces", [1, 7])
def test_a_repeated_value_is_its_quantiles_exactly(padding, num_pieces):
    rng = np.random.default_rng(0)
    is_float = not isinstance(padding, int) or padding < 0
    many = rng.normal(size=20_000) if is_float else rng.integers(-(2**40), 2**40, 20_000)
    values = many.astype(np.float32 if is_float else np.int64)
    values[rng.permutation(values.size)[:14_000]] = padding
    pieces = [
        numbers_of([piece], is_float=is_float) for piece in np.array_split(values, num_pieces)
    ]
    whole = pieces[0]
    for piece in pieces[1:]:
        whole.merge(piece)
    assert not whole.histogram.is_exact
    found = whole.to_json()
    for share in np.flatnonzero(np.quantile(values, QUANTILES) == values.dtype.type(padding)):
        exact = found["quantiles"][str(QUANTILES[share])]
        assert values.dtype.type(exact) == values.dtype.type(padding)
    assert 0 < found["quantile_rank_error"] < 0.02


@settings(max_examples=80)
@given(
    seed=st.integers(0, 999),
    size=st.integers(1, 9000),
    kind=st.sampled_from(["normal", "lognormal", "few", "tiny", "integers", "ids"]),
    repeated=st.lists(st.floats(0, 1), max_size=3),
    num_pieces=st.integers(1, 5),
)
def test_quantiles_are_within_the_error_that_is_reported(seed, size, kind, repeated, num_pieces):
    rng = np.random.default_rng(seed)
    values = {
        "normal": lambda: rng.normal(size=size).astype(np.float32),
        "lognormal": lambda: rng.lognormal(0, 9, size).astype(np.float32),
        "few": lambda: rng.integers(-9, 9, size).astype(np.float32),
        "tiny": lambda: rng.normal(0, 1e-41, size).astype(np.float32),
        "integers": lambda: rng.integers(-3000, 3000, size),
        "ids": lambda: rng.integers(-(2**40), 2**40, size),
    }[kind]()
    for share in repeated:
        values[rng.random(size) < share] = values[0]
    pieces = np.array_split(values, num_pieces)
    is_float = values.dtype.kind == "f"
    stats = numbers_of([pieces[0]], is_float=is_float)
    for piece in pieces[1:]:
        if piece.size:
            stats.merge(numbers_of([piece], is_float=is_float))
    found = stats.to_json()
    error = found["quantile_rank_error"]
    assert error == 0 or not stats.histogram.is_exact
    wide = values.astype(np.float64)
    for share, value in found["quantiles"].items():
        low, high = np.quantile(wide, np.clip([float(share) - error, float(share) + error], 0, 1))
        rounding = 1e-10 * max(abs(low), abs(high))
        assert low - rounding <= value <= high + rounding


@pytest.mark.parametrize("base", [2**53, 1_700_000_000_000_000_000, -(2**62)])
@pytest.mark.parametrize("spread", [1, 5, 10**6])
def test_large_integers_near_each_other_keep_what_they_differ_in(base, spread):
    offsets = np.random.default_rng(0).integers(0, spread, 5000)
    offsets[7] = spread  # with spread 1 the only one that differs
    found = numbers_of(np.array_split(base + offsets, 5), is_float=False).to_json()
    ulp = np.spacing(float(abs(base)))
    assert found["std"] == pytest.approx(offsets.std(), rel=1e-9)
    assert found["mean"] == pytest.approx(base + offsets.mean(), rel=0, abs=ulp)
    for share, value in found["quantiles"].items():
        assert value == pytest.approx(
            base + np.quantile(offsets, float(share)), rel=0, abs=2 * ulp + spread / 200
        )


FLOATS = arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32))
INTEGERS = arrays(np.int64, st.integers(1, 60), elements=st.integers(-(2**63), 2**63 - 1))


@pytest.mark.filterwarnings("ignore:overflow")
@settings(max_examples=60)
@given(st.one_of(FLOATS, INTEGERS))
def test_numbers_are_those_of_numpy(values):
    stats = numbers_of([values], is_float=values.dtype.kind == "f")
    found = stats.to_json()
    finite = values[np.isfinite(values)]
    assert found["count"] == values.size
    assert found["num_nan"] == np.isnan(values).sum()
    assert found["num_inf"] == np.isinf(values).sum()
    assert found["num_zero"] == (values == 0).sum()
    assert stats.num_distinct() == (np.unique(finite).size,) * 3
    if not finite.size:
        assert found["min"] is found["max"] is found["mean"] is found["quantiles"] is None
        return
    assert found["min"] == finite.min()
    assert found["max"] == finite.max()
    wide = finite.astype(np.float64)
    scale = float(np.abs(wide).max())
    assert found["mean"] == pytest.approx(wide.mean(), rel=1e-9, abs=1e-9 * scale)
    assert found["std"] == pytest.approx(wide.std(), rel=1e-6, abs=1e-9 * scale)
    expected = np.quantile(wide, QUANTILES)
    assert list(found["quantiles"].values()) == pytest.approx(list(expected), abs=1e-9 * scale)


def test_large_integers_keep_their_last_digits():
    low, high = 2**53 + 1, 2**63 - 1
    stats = numbers_of([np.array([low, high, low])], is_float=False)
    assert (stats.to_json()["min"], stats.to_json()["max"]) == (low, high)
    assert stats.top(5) == ([(low, 2), (high, 1)], 0)


@pytest.mark.parametrize("draw", ["normal", "far", "lognormal", "uniform", "powers", "zipf"])
def test_quantiles_of_many_numbers_are_near(draw):
    rng = np.random.default_rng(7)
    size = 200_000
    values = {
        "normal": lambda: rng.normal(size=size),
        "far": lambda: rng.normal(1000, 1, size),
        "lognormal": lambda: rng.lognormal(0, 3, size),
        "uniform": lambda: rng.random(size),
        "powers": lambda: 10 ** rng.uniform(-20, 20, size),
        "zipf": lambda: rng.zipf(1.3, size).astype(np.float64),
    }[draw]()
    values = values.astype(np.float32)
    stats = numbers_of(np.array_split(values, 9), is_float=True)
    assert not stats.histogram.is_exact
    assert stats.histogram.keys.size <= value_histogram.MAX_BUCKETS
    ordered = np.sort(values)
    for share, value in stats.to_json()["quantiles"].items():
        below = np.searchsorted(ordered, value, "left") / size
        above = np.searchsorted(ordered, value, "right") / size
        exact = ordered[int(float(share) * (size - 1))]
        is_near = abs(value - exact) <= 0.07 * abs(exact)
        assert is_near or below - 0.003 <= float(share) <= above + 0.003


@pytest.mark.parametrize("limit", [1 << 11, 1 << 14, 1 << 40])
def test_quantiles_and_counts_of_many_integers(limit):
    rng = np.random.default_rng(3)
    values = rng.integers(-limit, limit, 60_000)
    values[::4] = 77
    stats = numbers_of(np.array_split(values, 5), is_float=False)
    for share, value in stats.to_json()["quantiles"].items():
        assert value == pytest.approx(np.quantile(values, float(share)), abs=0.02 * limit)
    (first, count), *_ = stats.top(3)[0]
    missed = stats.top(3)[1]
    assert first == 77
    assert count <= (values == 77).sum() <= count + missed
    assert missed <= values.size / distinct.MAX_TOP
    found, low, high = stats.num_distinct()
    assert low <= found <= high
    assert found == pytest.approx(np.unique(values).size, rel=0.12)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 999),
    cuts=st.lists(st.integers(0, 6000), max_size=5),
    kind=st.sampled_from(["few", "many", "padded", "integers", "ids"]),
    backwards=st.booleans(),
)
def test_numbers_merge_in_any_grouping(seed, cuts, kind, backwards):
    rng = np.random.default_rng(seed)
    values = {
        "few": lambda: rng.integers(0, 200, 6000).astype(np.float32),
        "many": lambda: rng.normal(size=6000).astype(np.float32),
        "padded": lambda: np.maximum(rng.normal(size=6000), 0.9).astype(np.float32),
        "integers": lambda: rng.integers(0, 3000, 6000),
        "ids": lambda: rng.integers(-(2**62), 2**62, 6000),
    }[kind]()
    is_float = values.dtype.kind == "f"
    whole = numbers_of([values], is_float=is_float)
    pieces = [numbers_of([p], is_float=is_float) for p in np.split(values, sorted(cuts)) if p.size]
    while len(pieces) > 1:
        at = len(pieces) - 2 if backwards else 0
        left, right = pieces[at : at + 2]
        left.merge(pickle.loads(pickle.dumps(right)))
        pieces[at : at + 2] = [left]
    merged = pieces[0]
    assert merged.histogram.shift == whole.histogram.shift
    assert np.array_equal(merged.histogram.keys, whole.histogram.keys)
    assert np.array_equal(merged.histogram.counts, whole.histogram.counts)
    assert merged.num_distinct() == whole.num_distinct()
    mine, theirs = merged.to_json(), whole.to_json()
    for name in ("mean", "std"):
        assert mine.pop(name) == pytest.approx(theirs.pop(name), rel=1e-10, abs=1e-12)
    assert mine == theirs


# -- different values, and the most frequent ones --------------------------------------------------


@pytest.mark.parametrize("num_values", [0, 1, 1000, 1023, 5_000, 100_000])
def test_distinct_values_are_within_their_bounds(num_values):
    sketch = DistinctValues()
    values = [b"customer %d" % i for i in range(num_values)]
    for batch in np.array_split(np.arange(num_values), 4):
        sketch.add(hash_blobs([values[i] for i in [*batch, *batch[:5]]]))
    found, low, high = sketch.estimate()
    if num_values < distinct.MAX_HASHES:
        assert found == low == high == num_values
    else:
        assert low < num_values < high
        assert high < 1.15 * num_values


def test_blobs_of_any_length_have_hashes_of_their_own():
    values = [b"x" * n for n in range(300)] + [b"\0" * n for n in range(1, 300)]
    assert np.unique(hash_blobs(values)).size == len(values)
    assert hash_blobs(values)[7] == hash_blobs([values[7]])[0]


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2000), max_size=900), min_size=1, max_size=6))
def test_top_counts_are_bounds(batches):
    top = TopValues()
    true = {}
    for batch in batches:
        counts = {value: batch.count(value) for value in set(batch)}
        top.add(counts)
        for value, count in counts.items():
            true[value] = true.get(value, 0) + count
    total = sum(true.values())
    assert top.num_missed <= total / distinct.MAX_TOP
    for value, count in true.items():
        assert top.counts.get(value, 0) <= count <= top.counts.get(value, 0) + top.num_missed
    if top.is_exact:
        assert top.counts == true


def test_texts_and_binary_values_are_told_apart():
    texts, binary = BlobStats(), BlobStats()
    texts.add([b"abc", "gr\u00fcn".encode(), b"", b"x" * 5000])
    binary.add([b"abc", b"\xff\xfe", b"a\0b", b"\x80" * 5000])
    texts.flush()
    binary.flush()
    assert texts.is_text
    assert (binary.is_text, binary.num_binary) == (False, 3)
    texts.merge(binary)
    assert texts.num_binary == 3
    assert texts.num_distinct() == (7, 7, 7)


def test_a_long_text_that_is_cut_inside_a_letter_is_text():
    texts = BlobStats()
    texts.add(["\u20ac".encode() * 2000])
    assert texts.num_binary == 0


# -- features of Examples --------------------------------------------------------------------------


def test_a_feature_is_described_as_a_manifest_would():
    rows = [
        {
            "a": i,
            "b": [0.5, float("nan")],
            "c": "text",
            "d": b"\xff",
            "e": UNSET,
            "f": [1] * (i % 3),
        }
        for i in range(6)
    ]
    found = report(map(encode_example, rows))
    assert list(found) == ["a", "b", "c", "d", "e", "f"]
    types = {name: (e["kind"], e["dtype"], e["shape"], e["encoding"]) for name, e in found.items()}
    assert types == {
        "a": ("int64", "int64", [], "list"),
        "b": ("float", "float32", [2], "list"),
        "c": ("bytes", "string", [], "list"),
        "d": ("bytes", "bytes", [], "list"),
        "e": (None, None, None, "list"),
        "f": ("int64", "int64", [None], "list"),
    }
    assert found["b"]["numbers"]["num_nan"] == 6
    assert found["d"]["top"] == [
        {"count": 6, "value": {"base64": base64.b64encode(b"\xff").decode()}}
    ]
    assert found["c"]["top"] == [{"count": 6, "value": "text"}]
    assert found["e"]["unset"] == 6
    json.dumps(found, allow_nan=False)


def test_kinds_that_do_not_go_together_are_counted():
    rows = [{"x": 1}, {"x": 2}, {"x": 0.5}, {"x": "a"}, {}, {"x": UNSET}]
    entry = report(map(encode_example, rows))["x"]
    assert entry["kinds"] == {"bytes": 1, "float": 1, "int64": 2}
    assert (entry["kind"], entry["present"], entry["absent"], entry["unset"]) == ("int64", 5, 1, 1)
    assert entry["numbers"]["count"] == 2


def jpeg(height, width):
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return b"\xff\xd8\xff\xc0\x00\x11\x08" + size + b"\x03" + bytes(300)


def test_images_are_measured_by_their_headers():
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (64).to_bytes(4, "big") + (32).to_bytes(4, "big")
    values = [jpeg(10, 20), jpeg(30, 40), png + bytes(20), b"\xff\xd8\xff" + bytes(40)]
    values += [b"BM is how this text begins, and it is no bitmap"]
    entry = report([encode_example({"image": value}) for value in values])["image"]
    images = entry["images"]
    assert images["formats"] == {"jpeg": 3, "png": 1}
    assert images["num_broken"] == 1
    assert images["height"] == {"max": 32, "mean": 24.0, "min": 10}
    assert images["width"] == {"max": 64, "mean": pytest.approx(124 / 3), "min": 20}
    assert (entry["encoding"], entry["format"]) == ("image", None)
    assert entry["value_bytes"]["max"] == len(values[0])


def test_records_that_are_no_examples_lose_nothing_of_the_others():
    rows = [encode_example({"x": i}) for i in range(50)]
    rows[10] = b"just a text"
    rows[20] = b""
    rows[30] = rows[30][:-1]
    rows[40] = b"\x0a\x04\x0a\x02\xff\xff"
    stats = stats_of(rows, batch_rows=25)
    entry = stats.features.to_json()["x"]
    assert stats.kinds["Example"] == entry["num_records"] == entry["present"] == 46
    assert stats.kinds.total() == stats.num_records == 50
    assert entry["numbers"]["count"] == 46


def test_only_the_first_features_are_included(monkeypatch):
    monkeypatch.setattr(features, "MAX_FEATURES", 3)
    rows = [encode_example({name: 1}) for name in "zyxwvzaz"]
    stats = stats_of(rows, batch_rows=2).features
    assert sorted(stats.features) == ["a", "v", "w"]
    assert not stats.has_all


def test_no_sketch_is_created_for_features_that_are_left_out(monkeypatch):
    """A file of half a megabyte may have a feature of its own in each of its records."""
    made = []

    class Counted(features.FeatureSketch):
        def __init__(self, **options):
            made.append(1)
            super().__init__(**options)

    monkeypatch.setattr(features, "FeatureSketch", Counted)
    monkeypatch.setattr(features, "MAX_FEATURES", 50)
    stats = stats_of([encode_example({f"x{i:04}": i}) for i in range(3000)], batch_rows=1500)
    assert len(made) == 50
    assert sorted(stats.features.features) == [f"x{i:04}" for i in range(50)]
    assert not stats.features.has_all
    assert stats.features.num_records == 3000
    assert stats.features.features["x0007"].present == 1


def test_buffered_values_of_many_features_are_bounded(monkeypatch):
    monkeypatch.setattr(features, "_MAX_BUFFERED", 100)
    stats = FeatureStats()
    columns = {f"x{i}": np.arange(10).reshape(-1, 1) for i in range(9)}
    for _ in range(2):
        stats.add(columns, 10)
    assert stats.features["x0"].numbers["int64"].count == 20
    assert stats.to_json()["x8"]["numbers"]["count"] == 20


def test_skipped_records_count():
    stats = stats_of([encode_example({"x": 1})])
    stats.skip(9)
    other = stats_of([b"text"])
    stats.merge(other)
    assert (stats.num_records, stats.num_skipped, stats.kinds["Example"]) == (11, 9, 1)


def test_without_features_only_kinds_are_counted():
    stats = stats_of([encode_example({"x": 1})] * 3, features=False)
    assert stats.features is None
    assert stats.kinds == {"Example": 3}


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32),
    st.sampled_from(["a", "b", b"\xff", "x" * 400, UNSET, None]),
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.lists(st.sampled_from(["p", "q"]), min_size=2, max_size=3),
)


@settings(max_examples=60)
@given(
    rows=st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    backwards=st.booleans(),
)
def test_features_merge_in_any_grouping(rows, cuts, backwards):
    payloads = [encode_example(row) for row in rows]
    whole = stats_of(payloads)
    bounds = [0, *sorted(min(c, len(payloads)) for c in cuts), len(payloads)]
    pieces = [stats_of(payloads[a:b]) for a, b in pairwise(bounds)]
    while len(pieces) > 1:
        at = len(pieces) - 2 if backwards else 0
        pieces[at].merge(pickle.loads(pickle.dumps(pieces.pop(at + 1))))
    assert pieces[0].kinds == whole.kinds
    mine, theirs = pieces[0].features.to_json(), whole.features.to_json()
    for name, entry in theirs.items():
        assert entry["present"] + entry["absent"] == whole.kinds["Example"]
        assert sum(entry["kinds"].values()) + entry["unset"] == entry["present"]
        numbers = entry.pop("numbers"), mine[name].pop("numbers")
        assert mine[name] == entry
        for key in numbers[0] or ():
            value = numbers[0][key]
            if value is not None:
                value = pytest.approx(value, rel=1e-9, abs=1e-9)
            assert numbers[1][key] == value


def test_merging_leaves_the_other_side_alone():
    a, b = (stats_of([encode_example({"x": i, "t": str(i)})]) for i in range(2))
    before = copy.deepcopy(b).features.to_json()
    a.merge(b)
    a.add([encode_example({"x": 9, "t": "9"})])
    assert b.features.to_json() == before


def test_labels_are_those_of_their_feature():
    rows = [encode_example({"label": i % 3}) for i in range(9)]
    rows[4] = b"no example"
    stats = stats_of(rows, batch_rows=4, label="label")
    assert stats.labels.num_labelled == 8
    assert stats_of(rows, features=False, label="label").labels.num_labelled == 8


# -- real files ------------------------------------------------------------------------------------


def test_real_files_have_the_features_that_others_found(data_dir):
    expected = json.loads((data_dir / "expected.json").read_text())
    num_features = 0
    for name, told in expected.items():
        stats = stats_of(read_records(data_dir / name))
        found = stats.features.to_json()
        assert stats.kinds.total() == told["records"], name
        num_read = stats.kinds["Example"] + stats.kinds["SequenceExample"]
        kinds = told.get("kinds", {"Example": 0})
        assert num_read == kinds.get("Example", 0) + kinds.get("SequenceExample", 0), name
        assert all(e["present"] + e["absent"] == num_read for e in found.values()), name
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        for feature, entry in told.get("features", {}).items():
            mine = found[feature]
            types = {**mine["kinds"], **({"unset": mine["unset"]} if mine["unset"] else {})}
            lengths = mine["lengths"]
            assert {
                "types": types,
                "present": mine["present"],
                "min_len": lengths["min"],
                "max_len": lengths["max"],
                "empty": mine["empty"],
            } == entry, (name, feature)
            num_features += 1
        for feature, entry in told.get("feature_lists", {}).items():
            mine = found[feature + "[]"]
            assert (mine["steps"]["min"], mine["steps"]["max"]) == (
                entry["min_len"],
                entry["max_len"],
            )
            assert set(mine["kinds"]) == set(entry["types"])
    assert num_features > 300


def read_pbtxt(text):
    """Read a text proto into lists of (name, value), values being texts or lists again."""
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[{}]|[^\s{}:]+|:', re.sub(r"(?m)^#.*$", "", text))
    stack = [[]]
    for i, token in enumerate(tokens):
        if token == "{":
            inside = []
            stack[-1].append((tokens[i - 1], inside))
            stack.append(inside)
        elif token == "}":
            stack.pop()
        elif token == ":":
            stack[-1].append((tokens[i - 1], tokens[i + 1].strip('"')))
    return stack[0]


TFX = "tensorflow+tfx/tfx/components/testdata"


@pytest.mark.parametrize(
    ("files", "schema", "num_features"),
    [
        ("csv_example_gen/Split-eval/*.gz", "schema_gen/schema.pbtxt", 18),
        ("penguin/data/Split-*/*.gz", "penguin/schema/schema.pbtxt", 5),
    ],
)
def test_the_schema_is_that_of_tfx(data_dir, files, schema, num_features):
    paths = sorted((data_dir / TFX).glob(files))
    stats = FeatureStats()
    for path in paths:
        stats.merge(stats_of(read_records(path)).features)
    found = stats.to_json()
    message = read_pbtxt((data_dir / TFX / schema).read_text())
    told = {dict(f)["name"]: dict(f) for key, f in message if key == "feature"}
    domains = {
        dict(d)["name"]: {value for key, value in d if key == "value"}
        for key, d in message
        if key == "string_domain"
    }
    assert len(told) == num_features
    assert set(found) == set(told)
    for name, feature in told.items():
        entry = found[name]
        kind = {"INT": "int64", "FLOAT": "float", "BYTES": "bytes"}[feature["type"]]
        assert set(entry["kinds"]) <= {kind}
        if float(dict(feature.get("presence", [])).get("min_fraction", 0)) == 1:
            assert entry["absent"] == 0
        count = dict(feature.get("value_count", []))
        if "shape" in feature:
            count = {"min": dict(feature["shape"][0][1])["size"]}
            count["max"] = count["min"]
        if count:
            assert entry["unset"] == 0
            assert entry["lengths"]["min"] >= int(count["min"])
            assert entry["lengths"]["max"] <= int(count["max"])
        if feature.get("domain") in domains:
            assert entry["dtype"] == "string"
            assert {top["value"] for top in entry["top"]} <= domains[feature["domain"]]
            assert entry["distinct"]["exact"]
            assert entry["distinct"]["estimate"] <= len(domains[feature["domain"]])


def test_an_estimate_is_never_more_than_there_are_values():
    rng = np.random.default_rng(0)
    for _ in range(8):
        values = rng.random(2705)
        found = report([encode_example({"x": float(value)}) for value in values])["x"]["distinct"]
        assert found["low"] <= found["estimate"] <= found["high"] <= 2705
