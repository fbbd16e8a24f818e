"""A job: order of items, N, and what identifies it."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re

import numpy as np
import pytest

from shardwriter.dataset.naming import parse_output
from shardwriter.dataset.permutation import Permutation
from shardwriter.dataset.splits import Split
from shardwriter.errors import OptionError
from shardwriter.schema.feature_types import FeatureType
from shardwriter.sources.callables import describe_callable
from shardwriter.sources.python import PythonSource
from shardwriter.writing import job as job_module
from shardwriter.writing.job import Job, Listing, check_compression
from shardwriter.writing.options import DatasetOptions, RunOptions
from shardwriter.writing.plan import choose_num_shards, sample_records
from shardwriter.writing.resume_state import ResumeState
from shardwriter.writing.selection import Selection

INT = FeatureType("int64", "int64", ())


def identity(features):
    return features


def other(features):
    return dict(features)


def make(data=100, out="out/train@4", **options):
    if isinstance(data, int):
        data = [{"x": i} for i in range(data)]
    output = parse_output(out)
    return Job(
        Selection(PythonSource(data), DatasetOptions(**options)), output.pattern(output.num_shards)
    )


def listed(job):
    """Return the items of a job that has just begun."""
    return Listing(job, ResumeState(job.num_shards))


def order(job):
    items = list(listed(job))
    assert [index for index, _ in items] == list(range(len(items)))
    return [item["x"] if isinstance(item, dict) else item for _, item in items]


# -- order ---------------------------------------------------------------------------------------


def test_items_come_in_source_order():
    assert order(make(10)) == list(range(10))


@pytest.mark.parametrize(("limit", "num_items"), [(0, 0), (1, 1), (9, 9), (10, 10), (11, 10)])
def test_limit_takes_the_first_items(limit, num_items):
    job = make(10, limit=limit)
    assert job.num_items == num_items
    assert order(job) == list(range(num_items))
    shuffled = make(10, limit=limit, shuffle_seed=3)
    assert sorted(order(shuffled)) == list(range(num_items))


def test_limit_of_a_stream_reads_no_further():
    taken = []

    def stream():
        for i in range(100):
            taken.append(i)
            yield {"x": i}

    job = make(stream, limit=3)
    assert job.num_items is None
    assert len(list(listed(job))) == 3
    assert taken == [0, 1, 2]


@pytest.mark.parametrize("num_items", [0, 1, 2, 50, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_shuffle_is_the_pinned_permutation(num_items, seed, monkeypatch):
    monkeypatch.setattr(job_module, "_ORDER_BLOCK", 64)
    found = order(make(num_items, shuffle_seed=seed))
    assert found == Permutation(num_items, seed)(np.arange(num_items)).tolist()
    assert sorted(found) == list(range(num_items))


def test_shuffle_gives_the_items_and_not_their_places():
    class Letters(PythonSource):
        def item(self, item_index):
            return "abcdefghij"[item_index]

    output = parse_output("out@1")
    job = Job(Selection(Letters([0] * 10), DatasetOptions(shuffle_seed=0)), output.pattern(1))
    assert order(job) == list("feghabjcid")  # 5, 4, 6, 7, 0, 1, 9, 2, 8, 3


def test_shuffle_depends_on_the_seed_only():
    assert order(make(shuffle_seed=1)) == order(make(shuffle_seed=1))
    assert order(make(shuffle_seed=1)) != order(make(shuffle_seed=2))


def test_a_stream_can_not_be_shuffled():
    with pytest.raises(OptionError, match="can not be shuffled"):
        make(lambda: iter([{}]), shuffle_seed=0)


def test_items_can_be_listed_again():
    job = make(10, shuffle_seed=1)
    assert order(job) == order(job)


def test_the_number_of_items_is_unknown_for_a_stream():
    assert Selection(PythonSource(iter([])), DatasetOptions(limit=3)).num_items is None


def test_order_is_told():
    assert make().order_json() == {"shuffle": None, "split": None}
    assert make(shuffle_seed=7).order_json()["shuffle"] == {"algorithm": "feistel8/1", "seed": 7}


# -- digest --------------------------------------------------------------------------------------


def test_equal_jobs_have_equal_digests():
    a = make(limit=5, shuffle_seed=1, map=identity, schema={"x": INT})
    b = make(limit=5, shuffle_seed=1, map=identity, schema={"x": INT})
    assert a.digest() == b.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 5},
        {"limit": 100},
        {"shuffle_seed": 0},
        {"shuffle_seed": 1},
        {"map": identity},
        {"map": other},
        {"map": functools.partial(identity)},
        {"filter": identity},
        {"filter": other},
        {"schema": {"x": INT}},
        {"schema": {"x": FeatureType("float", "float32", ())}},
        {"schema": {"x": FeatureType("bytes", "bytes", (), "image")}},
        {"out": "out/train@5"},
        {"out": "out/val@4"},
        {"out": "out/train@4.tfrecord"},
        {"data": 99},
        {"split": Split("train")},
        {"split": Split("val", (("train", "0.9"), ("val", "0.1")))},
        {"split": Split("train", (("train", "0.9"), ("val", "0.1")))},
        {"split": Split("train", (("train", "0.9"), ("val", "0.1")), seed=1)},
        {"split": Split("train", (("train", "0.9"), ("val", "0.1"))), "key": "x"},
    ],
    ids=lambda change: re.sub(" at 0x[0-9a-f]+", "", str(change)),
)
def test_every_option_that_changes_bytes_changes_the_digest(change, request):
    seen = {make().digest(): "nothing"}
    for other_change in [
        {"limit": 7},
        {"shuffle_seed": 7},
        {"map": order},
        {"schema": {"y": INT}},
        {"out": "out/x@4"},
        change,
    ]:
        digest = make(**other_change).digest()
        assert digest not in seen, seen[digest]
        seen[digest] = other_change


def test_the_folder_does_not_change_the_digest():
    assert make(out="elsewhere/deep/train@4").digest() == make().digest()


def test_the_label_changes_the_digest_as_it_changes_the_manifest():
    assert make(label="x").digest() != make().digest()


def test_every_option_is_held_against_the_digest():
    # A new option has to be put on one side or the other, here and in bytes_options().
    assert {field.name for field in dataclasses.fields(DatasetOptions)} == {
        "map",
        "filter",
        "limit",
        "shuffle_seed",
        "label",
        "schema",
        "world",  # these two decide N, and N is held
        "loader_workers",
        "compression",  # held below
        "deflate",
        "order",  # these three are in "order", and test_key_order.py holds them
        "key",
        "order_seed",
        "tfds",  # test_tfds.py holds it
        "split",  # in "order"
        "vocabularies",  # test_declared.py holds it
        "images",  # test_images.py holds it
        "names",  # test_fields.py and test_indices.py hold these two
        "indices",
        "table",  # test_tables.py holds it
    }


# -- functions -----------------------------------------------------------------------------------


class Resize:
    def __init__(self, size):
        self.size = size

    def __call__(self, features):
        return features

    def method(self, features):
        return features

    @classmethod
    def of_class(cls, features):
        return features


@pytest.mark.parametrize(
    ("function", "qualname"),
    [
        (identity, "identity"),
        (lambda features: features, "<lambda>"),
        (Resize(1), "Resize"),
        (Resize(1).method, "Resize.method"),
        (Resize.of_class, "Resize.of_class"),
        (Resize, "Resize"),
    ],
)
def test_a_function_is_known_by_its_names_and_file(function, qualname):
    found = describe_callable(function)
    assert found["module"] == __name__
    assert found["qualname"] == qualname
    assert len(found["sha256"]) == 64


@pytest.mark.parametrize("function", [len, dict, str.upper, print, operator.neg])
def test_a_function_without_a_file_is_known_by_its_names(function):
    assert describe_callable(function)["sha256"] is None
    assert describe_callable(function) == describe_callable(function)


def test_a_function_that_was_typed_is_known_by_its_names():
    space = {"__name__": "__main__"}
    exec(compile("def f(x):\n    return x\n", "<stdin>", "exec"), space)
    found = describe_callable(space["f"])
    assert (found["qualname"], found["sha256"]) == ("f", None)


def test_partials_are_told_apart_by_their_arguments():
    def digest(*args, **keywords):
        return make(map=functools.partial(Resize(0).method, *args, **keywords)).digest()

    digests = [
        digest(),
        digest(224),
        digest(256),
        digest("224"),
        digest(224.0),
        digest(size=224),
        digest(size=(224, 1)),
        digest(function=identity),
        digest(function=other),
        digest(mean={"r": 0.5}),
        digest(mean={"r": float("nan")}),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(size=224) == digest(size=224)
    # No address of an object comes into it.
    assert digest(object()) == digest(object())


# -- sample and @auto ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_items", [0, 1, 10, 63, 64, 65, 1000])
def test_a_sample_is_spread_over_the_source(num_items):
    asked = []

    def look(features):
        asked.append(features["x"])
        return features

    data = [{"x": i} for i in range(num_items)]
    found = sample_records(Selection(PythonSource(data), DatasetOptions(map=look)))
    assert asked == sorted({k * num_items // 64 for k in range(64)} if num_items else set())
    assert found.num_records == len(asked)


@pytest.mark.parametrize(("limit", "count"), [(None, 64), (0, 0), (5, 5), (200, 64)])
def test_a_sample_of_a_stream_is_its_first_items(limit, count):
    source = PythonSource(lambda: ({"x": 1} for _ in range(100)))
    found = sample_records(Selection(source, DatasetOptions(limit=limit)))
    assert found.num_records == count


def test_a_sample_keeps_to_the_limit():
    data = [b"x" * (1 if i < 10 else 1000) for i in range(100)]
    assert (
        sample_records(Selection(PythonSource(data), DatasetOptions(limit=10))).mean_frame_bytes
        == 17
    )


def choose(num_items, record_bytes, out="out/train@auto", **more):
    class Data:
        def __len__(self):
            return num_items

        def __getitem__(self, index):
            return bytes(record_bytes)

    return choose_num_shards(
        Selection(PythonSource(Data()), DatasetOptions(**more)), parse_output(out)
    )


@pytest.mark.parametrize(
    ("num_items", "record_bytes", "more", "expected"),
    [
        (0, 0, {}, 1),
        (5, 10, {}, 1),
        (2_000, 100_000 - 16, {}, 1),  # 200 MB
        (2_001, 100_000 - 16, {}, 2),
        (1_000_000, 10_000 - 16, {}, 50),
        (1_000_000, 10_000 - 16, {"world": 8}, 56),
        (1_000_000, 10_000 - 16, {"world": 8, "loader_workers": 4}, 64),
        (1_000_000, 10, {"world": 8, "loader_workers": 4}, 32),
        (5, 10, {"world": 8}, 5),
    ],
)
def test_auto_chooses_shards_of_200_mb_and_a_multiple_of_the_readers(
    num_items, record_bytes, more, expected
):
    assert choose(num_items, record_bytes, **more) == expected


def test_auto_sees_all_of_a_small_source():
    data = [b""] * 9 + [bytes(30_000_000)] * 7  # 210 MB, all of it behind the first half
    output = parse_output("out/train")
    assert choose_num_shards(Selection(PythonSource(data), DatasetOptions()), output) == 2


def test_a_said_number_is_taken_without_looking():
    class Never(PythonSource):
        def load(self, item):
            raise AssertionError

    output = parse_output("out/train@7")
    assert choose_num_shards(Selection(Never([1]), DatasetOptions(world=8)), output) == 7


def test_auto_of_a_stream_asks_for_a_number():
    with pytest.raises(OptionError, match="not known before the end") as caught:
        choose_num_shards(
            Selection(PythonSource(iter([])), DatasetOptions()), parse_output("out/train")
        )
    assert "train@16" in caught.value.hint


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_compression_of_output_and_options_agree(compression):
    output = parse_output("out/train@4", None, compression)
    check_compression(output, DatasetOptions(compression=compression), RunOptions())
    other = "zlib" if compression == "gzip" else "gzip"
    with pytest.raises(OptionError, match=f"OUT is for {compression}"):
        check_compression(output, DatasetOptions(compression=other), RunOptions())


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
@pytest.mark.parametrize(
    ("run", "match"),
    [
        (RunOptions(dali_index=True), "plain shards only"),
        (RunOptions(backend="tensorflow"), "plain shards only"),
    ],
)
def test_what_only_plain_shards_have_is_refused(compression, run, match):
    output = parse_output("out/train@4", None, compression)
    with pytest.raises(OptionError, match=match):
        check_compression(output, DatasetOptions(compression=compression), run)
    check_compression(parse_output("out/train@4"), DatasetOptions(), run)


def test_compression_is_in_the_hash_and_leaves_that_of_plain_shards():
    def job(**options):
        output = parse_output("out/train@4", None, options.get("compression"))
        return Job(Selection(PythonSource([1]), DatasetOptions(**options)), output.pattern(4))

    assert job().bytes_options()["compression"] == {"type": "none"}
    assert job(compression="zlib").bytes_options()["compression"] == {
        "deflate": "isal-2",
        "member_bytes": 1 << 20,
        "type": "zlib",
    }
    hashes = {
        job(**options).digest()
        for options in (
            {},
            {"compression": "zlib"},
            {"compression": "zlib", "deflate": "zlib-6"},
            {"compression": "gzip"},
            {"compression": "gzip", "deflate": "zlib-6"},
        )
    }
    assert len(hashes) == 5
