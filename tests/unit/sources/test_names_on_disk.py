"""Files whose names say other things than their content, or than the files beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.formats.compression import Compression
from shardwriter.inspect.file_names import beyond_last, generations_together, misnamed, same_content
from shardwriter.sources.shard_sets import find_shard_sets


@pytest.mark.parametrize(
    ("name", "compression", "says"),
    [
        ("x.tfrecord", "none", None),
        ("x.tfrecord.gz", "gzip", None),
        ("x.tfrecord.z", "zlib", None),
        ("x.tfrecord", "gzip", "gzip, but the name does not end in .gz"),
        ("x.tfrecord.gz", "none", "plain, but the name ends in .gz"),
        ("x.tfrecord.gz", "zlib", "zlib, but the name ends in .gz"),
    ],
)
def test_name_and_content(name: str, compression: Compression, says: str | None) -> None:
    told = misnamed(name, compression, 100)
    assert (told is None) if says is None else (told is not None and told.startswith(says))


def test_an_empty_file_contradicts_no_name() -> None:
    assert misnamed("x.gz", "none", 0) is None


def test_shards_of_the_same_content() -> None:
    shards = [("a/s0", 7, 10), ("a/s1", 8, 10), ("a/s2", 7, 10), ("a/s3", None, 10)]
    assert same_content(shards) == [
        "a/s0 has the same 10 records as s2: if a shard was copied over another one, the other's "
        "records are lost"
    ]
    assert same_content([("s0", 7, 0), ("s1", 7, 0), ("s2", 9, 1), ("s3", 9, 1)]) == []
    (note,) = same_content([(f"s{i}", 7, 5) for i in range(9)])
    assert "s1, s2, s3 and 5 more" in note


def foreign(folder: Path, num_shards: int, first: int = 0) -> None:
    sw.write([b"x"] * 10 * num_shards, folder / "made" / f"x@{num_shards}")
    for shard in range(num_shards):
        made = folder / "made" / f"x.tfrecord-{shard:05d}-of-{num_shards:05d}"
        made.replace(folder / f"x-{shard + first:05d}-of-{num_shards:05d}")
    for left in (folder / "made").iterdir():
        left.unlink()
    (folder / "made").rmdir()


def test_tools_that_count_from_one(tmp_path: Path) -> None:
    foreign(tmp_path, 3, first=1)
    (shard_set,) = find_shard_sets([str(tmp_path)])
    finding = beyond_last(shard_set)
    assert finding is not None
    assert (finding.kind, finding.path) == ("beyond-last", str(tmp_path / "x-00003-of-00003"))
    assert finding.detail == (
        "3 shards are numbered from 0 to 2: this one is not read; "
        "the tool has counted from 1, rename it to x-00000-of-00003"
    )
    (tmp_path / "x-00003-of-00003").rename(tmp_path / "x-00000-of-00003")
    (shard_set,) = find_shard_sets([str(tmp_path)])
    assert beyond_last(shard_set) is None
    (alone,) = find_shard_sets([str(tmp_path / "x-00001-of-00003")])
    assert beyond_last(alone) is None


def test_a_glob_over_two_generations(tmp_path: Path) -> None:
    foreign(tmp_path, 3)
    foreign(tmp_path, 4)
    sets = find_shard_sets([str(tmp_path / "x-*")])
    ((number, finding),) = generations_together(sets)
    assert number == 1
    assert finding.kind == "stale-generation"
    assert finding.path == str(tmp_path / "x-00000-of-00004")
    assert finding.detail.startswith("4 shard(s) of another run than x-*-of-00003")
    # By its name, a set knows of the other one.
    assert generations_together(find_shard_sets([str(tmp_path)])) == []
    assert generations_together(find_shard_sets([str(tmp_path / "x-*-of-00004")])) == []
