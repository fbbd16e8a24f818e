"""Names: notation, shard files, generations, and what is refused."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwriter.dataset.naming import (
    MAX_SHARDS,
    ShardPattern,
    dataset_name,
    generations,
    manifest_file,
    parse_output,
    parse_shard_file,
    partial_dir,
    pattern_from_template,
)
from shardwriter.errors import OptionError

STEMS = st.text(string.ascii_letters + string.digits + "-_.{}% é", min_size=1, max_size=12)
EXTS = st.sampled_from(["", ".tfrecord", ".tfrecord.gz", ".gz", ".a.b_1"])
NUMBERS = st.integers(1, MAX_SHARDS) | st.sampled_from([1, 99_999, 100_000, 100_001, MAX_SHARDS])


# -- notation --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notation", "first", "name"),
    [
        ("train@16", "train.tfrecord-00000-of-00016", "train"),
        ("train@16.tfrecord", "train-00000-of-00016.tfrecord", "train"),
        ("train.record@10", "train.record-00000-of-00010", "train"),
        ("train.tfrecords@1", "train.tfrecords-00000-of-00001", "train"),
        ("train.TFRecord@1", "train.TFRecord-00000-of-00001", "train"),
        ("train.tfr.v2@3", "train.tfr.v2-00000-of-00003", "train.tfr.v2"),
        ("mnist.v2@3", "mnist.v2.tfrecord-00000-of-00003", "mnist.v2"),
        ("train@16.gz", "train.tfrecord-00000-of-00016.gz", "train"),
        ("train@16.tfrecord.gz", "train-00000-of-00016.tfrecord.gz", "train"),
        ("tfrecord@2", "tfrecord-00000-of-00002", "tfrecord"),
        ("a b-c@2", "a b-c.tfrecord-00000-of-00002", "a b-c"),
        ("{x}@2", "{x}.tfrecord-00000-of-00002", "{x}"),
        ("{}%s@2", "{}%s.tfrecord-00000-of-00002", "{}%s"),
        ("train@99999", "train.tfrecord-00000-of-99999", "train"),
        ("train@100000", "train.tfrecord-000000-of-100000", "train"),
        ("train@999999", "train.tfrecord-000000-of-999999", "train"),
    ],
)
def test_notation_gives_the_file_names(notation, first, name):
    output = parse_output(f"some/where/{notation}")
    pattern = output.pattern(output.num_shards)
    assert output.directory == "some/where"
    assert pattern.shard_file(0) == first
    assert output.name == pattern.name == name
    assert parse_shard_file(first).pattern == pattern


def test_the_other_files_are_named_by_the_dataset():
    pattern = parse_output("train@16").pattern(16)
    assert pattern.manifest_file == manifest_file("train") == "train.manifest.json"
    assert pattern.index_file == "train.index"
    assert partial_dir("train") == ".train.partial"


def test_out_without_a_folder_is_here():
    assert parse_output("train@2").directory == "."


@pytest.mark.parametrize(
    ("out", "num_shards", "expected"),
    [
        ("train@auto", None, None),
        ("train", None, None),
        ("train@auto", 7, 7),
        ("train", 7, 7),
        ("train@7", 7, 7),
        ("train@7", None, 7),
        ("train@auto.tfrecord", None, None),
    ],
)
def test_n_is_said_or_left_open(out, num_shards, expected):
    assert parse_output(out, num_shards).num_shards == expected


def test_gz_in_the_name_asks_for_gzip():
    assert parse_output("train@2.gz").compression == "gzip"
    assert parse_output("train.gz").compression == "gzip"
    assert parse_output("train@2").compression == "none"


def test_compression_decides_what_names_end_in():
    assert parse_output("train@2", None, "gzip") == parse_output("train@2.gz")
    assert parse_output("train@2.gz", None, "gzip") == parse_output("train@2.gz")
    assert parse_output("train@2", None, "zlib").pattern(2) == parse_output("train@2").pattern(2)
    assert parse_output("train@2", None, "none") == parse_output("train@2")


@pytest.mark.parametrize("out", ["train@2.gz", "train@2.tfrecord.gz", "train.gz"])
@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_a_name_and_an_option_that_contradict_each_other(out, compression):
    with pytest.raises(OptionError, match=f"gzip shards, but compression= says {compression}"):
        parse_output(out, 2, compression)


def test_a_compression_that_there_is_not():
    with pytest.raises(OptionError, match="'bzip2'"):
        parse_output("train@2", None, "bzip2")


@pytest.mark.parametrize(
    "out",
    [
        "train@0", "train@", "train@-1", "train@01", "train@1.5.", "train@2x", "train@ 2",
        "train@1000000", "@4", "a@b@4", "train@*", "train@AUTO", "train@4.tf-record",
        ".hidden@4", ".tfrecord@4", "a..b@4", "..@4", "a\\b@4", "{shard}@4", "train@4.idx",
        "a\0b@4", "", "dir/", ".", "..",
    ],
)  # fmt: skip
def test_a_notation_that_names_no_dataset_is_refused(out):
    with pytest.raises(OptionError):
        parse_output(out)


@pytest.mark.parametrize(("out", "num_shards"), [("a", 0), ("a", -1), ("a", 10**6), ("a@4", 5)])
def test_a_wrong_number_of_shards_is_refused(out, num_shards):
    with pytest.raises(OptionError, match="shards"):
        parse_output(out, num_shards)


def test_a_folder_is_refused_with_an_example(tmp_path):
    with pytest.raises(OptionError, match="folder") as caught:
        parse_output(tmp_path)
    assert "train@16" in caught.value.hint


@given(STEMS, NUMBERS, EXTS)
def test_what_is_written_is_found_again(stem, num_shards, ext):
    try:
        output = parse_output(f"{stem}@{num_shards}{ext}")
    except OptionError:
        assume(False)
    pattern = output.pattern(num_shards)
    for shard in {0, num_shards // 2, num_shards - 1}:
        found = parse_shard_file(pattern.shard_file(shard))
        assert (found.pattern, found.shard_index) == (pattern, shard)
    assert pattern_from_template(pattern.template, num_shards) == pattern


# -- shard files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file_name",
    [
        "train-00000-of-00001",
        "a/b-00000-of-00001",
        "train-00000-of-00001-00002-of-00003",
        "para_crawl-train.tfrecord-00000-of-00001",
        "data_tfrecord-00011-of-00012.gz",
        "x-000000-of-100000.tfrecord",
        "two\nlines-00000-of-00001",
    ],
)
def test_shard_names_are_taken_apart_and_put_together(file_name):
    found = parse_shard_file(file_name)
    assert found.pattern.shard_file(found.shard_index) == file_name


@pytest.mark.parametrize(
    "file_name",
    [
        "train", "train-0-of-1", "train-0000-of-0001", "-00000-of-00001", "train-00001-of-00001",
        "train-00000-of-00000", "train-00000-of-000001", "train-000000-of-000001",
        "train-00000-of-100000", "train-00000-of-00001.", "train-00000-of-00001.a-b",
        "train-00000-of-00001.idx", "train-00000-of-00001.tfrecord.idx", "train-00000-of-00001\n",
        "train-0000\u0660-of-00001",
    ],
)  # fmt: skip
def test_other_names_are_no_shards(file_name):
    assert parse_shard_file(file_name) is None


@pytest.mark.parametrize("num_shards", [1, 99_999, 100_000, MAX_SHARDS])
def test_names_sort_like_their_numbers(num_shards):
    pattern = ShardPattern("a", num_shards)
    names = [pattern.shard_file(s) for s in range(0, num_shards, max(1, num_shards // 50))]
    assert names == sorted(names)


def test_shard_files_are_all_of_them():
    assert ShardPattern("a", 3, ".x").shard_files == [
        "a-00000-of-00003.x",
        "a-00001-of-00003.x",
        "a-00002-of-00003.x",
    ]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("train", "train"), ("train.tfrecord", "train"), ("train.RECORDS", "train"),
        ("a.b.tfr", "a.b"), ("train.v2", "train.v2"), ("tfrecord", "tfrecord"),
        (".tfrecord", ".tfrecord"), ("data_tfrecord", "data_tfrecord"),
    ],
)  # fmt: skip
def test_a_dataset_is_named_without_its_tfrecord_part(stem, name):
    assert dataset_name(stem) == name


# -- templates -------------------------------------------------------------------------------------


def test_a_template_keeps_the_place_of_the_number():
    assert ShardPattern("train.tfrecord", 16).template == "train.tfrecord-{shard}-of-00016"
    assert ShardPattern("t", 100_000, ".gz").template == "t-{shard}-of-100000.gz"


@pytest.mark.parametrize(
    ("template", "num_shards"),
    [
        ("a-{shard}-of-00002", 3),
        ("a-{shard}-of-00002", 0),
        ("a-{shard}-of-2", 2),
        ("a-00000-of-00002", 2),
        ("{shard}-{shard}-of-00002", 2),
        ("a-{shard}-of-00002.idx", 2),
        ("-{shard}-of-00002", 2),
        ("../a-{shard}-of-00002", 2),
        ("b/a-{shard}-of-00002", 2),
        ("/a-{shard}-of-00002", 2),
        ("b\\a-{shard}-of-00002", 2),
        ("a..b-{shard}-of-00002", 2),
        ("", 1),
    ],
)
def test_a_template_that_is_not_ours_is_refused(template, num_shards):
    assert pattern_from_template(template, num_shards) is None


# -- generations -----------------------------------------------------------------------------------


def test_generations_of_one_dataset_are_told_apart():
    files = [
        "train.tfrecord-00001-of-00002",
        "train.tfrecord-00000-of-00002",
        "train.tfrecord-00000-of-00003",
        "train-00000-of-00002.tfrecord",
        "train.tfrecord-00000-of-00002.idx",
        "training.tfrecord-00000-of-00002",
        "train.manifest.json",
        "train.index",
        "readme.txt",
    ]
    assert generations(files, "train") == {
        ShardPattern("train", 2, ".tfrecord"): [0],
        ShardPattern("train.tfrecord", 2): [0, 1],
        ShardPattern("train.tfrecord", 3): [0],
    }
    assert generations(reversed(files), "train") == generations(files, "train")
    assert list(generations(reversed(files), "train")) == list(generations(files, "train"))
    assert generations(files, "val") == {}
