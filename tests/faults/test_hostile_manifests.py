"""Manifests made to hurt: every command answers in one line, and changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hostile import attempt, check_all, check_memory, each_command, make_dataset

import shardwriter as sw
from shardwriter.errors import ManifestError

DEEP = "[" * 50_000 + "]" * 50_000
BIG = 2**63


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "d")
    return tmp_path / "d"


def manifest_path(folder: Path) -> Path:
    return folder / "in" / "t.manifest.json"


def change(folder: Path, **values: Any) -> None:
    """Replace values by their dotted keys, with __ for a dot."""
    data = json.loads(manifest_path(folder).read_text())
    for key, value in values.items():
        at = data
        *parts, last = key.split("__")
        for part in parts:
            at = at[part]
        at[last] = value
    manifest_path(folder).write_text(json.dumps(data))


REFUSED: dict[str, dict[str, Any]] = {
    "labels are a text": {"labels": "x"},
    "labels are a list": {"labels": [1]},
    "labels without a feature": {"labels": {"counts": {}}},
    "labels' counts are a list": {"labels__counts": [1, 2]},
    "a label's count is a text": {"labels__counts": {"cat": "9", "dog": 7}},
    "a label's count is negative": {"labels__counts": {"cat": -9, "dog": 7}},
    "labels' counts do not fit": {"labels__counts": {"cat": BIG - 1, "dog": BIG - 1}},
    "labels of one shard only": {"labels__shards": {"cat": [9], "dog": [7]}},
    "labels of other names": {"labels__shards": {"cow": [0, 0, 0]}},
    "labels' feature is a number": {"labels__feature": 3},
    "metadata is a list": {"metadata": [1]},
    "metadata is null": {"metadata": None},
    "order is empty text": {"order": ""},
    "order is a list": {"order": []},
    "shuffle is a text": {"order__shuffle": "yes"},
    "shuffle has no seed": {"order__shuffle": {"algorithm": "x"}},
    "split is a number": {"order__split": 7},
    "split has fractions of 10^9 digits": {
        "order__split": {"name": "a", "fractions": [["a", "1e999999999"]], "seed": 1}
    },
    "split has a fraction by zero": {
        "order__split": {"name": "a", "fractions": [["a", "1/0"]], "seed": 1}
    },
    "split has another name": {
        "order__split": {"name": "a", "fractions": [["b", "1"]], "seed": 1}
    },
    "split has a negative seed": {
        "order__split": {"name": "a", "fractions": [["a", "1"]], "seed": -1}
    },
    "order's key is a list": {"order__key": ["a"]},
    "schema is a text": {"schema": "x"},
    "features are a list": {"schema__features": ["a"]},
    "a feature is a text": {"schema__features": {"a": "int64"}},
    "a feature has no counts": {"schema__features": {"a": {"kind": "int64"}}},
    "a feature's shape is a text": {"schema__features__a__shape": "ab"},
    "a feature's shape is negative": {"schema__features__a__shape": [-1]},
    "a feature's shape nests": {"schema__features__a__shape": [[1], [2]]},
    "a feature's kind is unknown": {"schema__features__a__kind": "complex"},
    "a feature's encoding is a list": {"schema__features__a__encoding": ["raw"]},
    "a vocabulary is a text": {"schema__features__a__vocabulary": "cat"},
    "a vocabulary has numbers": {"schema__features__a__vocabulary": [1, 2]},
    "feature lists are a list": {"schema__feature_lists": [1]},
    "file_bytes of 2^63": {"shards__file_bytes": [BIG, 1, 1]},
    "file_bytes sum to 2^64": {"shards__file_bytes": [BIG - 1, BIG - 1, 2]},
    "file_bytes are floats": {"shards__file_bytes": [1.5, 1.5, 1.5]},
    "file_bytes are a text": {"shards__file_bytes": "abc"},
    "records are texts": {"shards__records": ["6", "5", "5"]},
    "records of 2^62": {"shards__records": [2**62, 5, 5]},
    "records are booleans": {"shards__records": [True, True, True]},
    "a CRC is no hex": {"shards__crc32c": ["zzzzzzzz"] * 3},
    "a CRC has a line end": {"shards__crc32c": ["0000000\n"] * 3},
    "10^9 shards": {"num_shards": 10**9},
    "2^80 shards": {"num_shards": 2**80},
    "no shards": {"num_shards": 0},
    "2^63 items": {"num_items": BIG},
    "10^9 items": {"num_items": 10**9},
    "a file pattern that leads out": {"shards__files": "../t.tfrecord-{shard}-of-00003"},
    "a file pattern that is absolute": {"shards__files": "/etc/t-{shard}-of-00003"},
    "a file pattern with NUL": {"shards__files": "t\0.tfrecord-{shard}-of-00003"},
    "a file pattern that is a list": {"shards__files": ["a"]},
    "an index file that leads out": {"index__file": "../../t.index"},
    "index is a list": {"index": [1, 2]},
    "an index of 2^64 bytes": {"index__file_bytes": 2**64},
    "runs of 10^12": {"skipped__runs": [[4, 10**12]]},
    "runs that overlap": {"skipped__runs": [[4, 3], [5, 1]]},
    "runs that are texts": {"skipped__runs": [["4", "3"], [13, 1]]},
    "runs with three numbers": {"skipped__runs": [[4, 3, 1], [13, 1]]},
    "runs that are negative": {"skipped__runs": [[-4, 3], [13, 1]]},
    "runs are an object": {"skipped__runs": {"4": 3}},
    "skipped is a list": {"skipped": []},
    "a count that is a lie": {"skipped__count": 2**40},
    "compression is a text": {"compression": "gzip"},
    "compression is unknown": {"compression": {"type": "lzma"}},
    "compression is a list": {"compression": {"type": ["none"]}},
    "members of 2^60 bytes": {"compression": {"type": "none", "member_bytes": 2**60}},
    "deflate is unknown": {"compression": {"type": "none", "deflate": "rm -rf"}},
    "source is a text": {"source": "csv"},
    "job is a number": {"job": 7},
    "name is a list": {"name": ["t"]},
    "repaired is a text": {"repaired": "yes"},
    "repaired has lost 10^12 items": {"repaired": {"job": None, "lost": [[0, 10**12]]}},
    "another format": {"format": "shardwriter.manifest/2"},
    "the format is a list": {"format": ["shardwriter.manifest/1"]},
    "runs of 10^9 as the rest": {
        "num_items": 10**9, "skipped__runs": [[100, 999_999_900]], "skipped__count": 999_999_900
    },
}  # fmt: skip


@each_command
@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_manifest_is_refused_in_one_line(folder: Path, case: str, is_full: bool) -> None:
    change(folder, **REFUSED[case])
    answers = check_all(folder, codes=(1, 2, 3), drawn_by=None if is_full else case)
    reading = {"verify", "shard-stats", "show", "find", "schema", "open"}
    assert not is_full or reading <= answers.keys()
    for command in reading & answers.keys():
        code, stderr = answers[command]
        assert code == 1, (command, stderr)
        assert "t.manifest.json: the manifest can not be used: " in stderr


TEXTS = {
    "empty": b"",
    "not JSON": b"hello",
    "a list": b"[]",
    "null": b"null",
    "deep": DEEP.encode(),
    "deep behind a key": b'{"format":"shardwriter.manifest/1","x":' + DEEP.encode() + b"}",
    "not UTF-8": b'{"format": "\xff\xfe"}',
    "zeros": bytes(1000),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(100),
    "a number of 10^5 digits": b'{"format":"shardwriter.manifest/1","num_items":'
    + b"9" * 100_000
    + b"}",
    "control characters": b'{"format":"\x1b]0;title\x07"}',
    "escaped control characters": b'{"format":"\\u001b]0;title\\u0007\\u202e"}',
}


@each_command
@pytest.mark.parametrize("case", TEXTS)
def test_what_is_no_manifest_is_refused_in_one_line(folder: Path, case: str, is_full: bool) -> None:
    manifest_path(folder).write_bytes(TEXTS[case])
    answers = check_all(folder, codes=(1, 2, 3), drawn_by=None if is_full else case)
    assert answers["verify"][0] == answers["open"][0] == 1


ODD: dict[str, dict[str, Any]] = {
    "metadata has NaN's neighbour": {"metadata": {"x": 1e308}},
    "metadata says it is a TFDS split": {
        "metadata": {"tfds": {"name": "../..", "version": "1.0.0", "split": "train"}}
    },
    "metadata's tfds is a list": {"metadata": {"tfds": ["a"]}},
    "names are lone surrogates": {"source": {"digest": "\ud800", "kind": "\udfff"}},
    "a feature's name acts on a terminal": {
        "schema__features": {"\x1b[2J\n": {"present": 1, "unset": 0, "kind": "int64"}}
    },
    "a feature's name is a lone surrogate": {
        "schema__features": {"\ud800": {"present": 1, "unset": 0, "kind": "int64"}}
    },
    "a feature of 2^60 values": {"schema__features__a__shape": [2**30, 2**30]},
    "a feature of 2^61 raw values": {
        "schema__features__a": {
            "present": 16, "unset": 0, "kind": "bytes", "encoding": "raw", "dtype": "float64",
            "shape": [2**61],
        }
    },
    "a raw feature of objects": {
        "schema__features__a": {
            "present": 16, "unset": 0, "kind": "bytes", "encoding": "raw", "dtype": "object",
            "shape": [1],
        }
    },
    "a raw feature of 10^9 bytes each": {
        "schema__features__a": {
            "present": 16, "unset": 0, "kind": "bytes", "encoding": "raw", "dtype": "S1000000000",
            "shape": [1],
        }
    },
    "a feature without a type": {"schema__features__a": {"present": 16, "unset": 0}},
    "a feature of another kind": {"schema__features__a__kind": "bytes"},
    "a feature is present 2^62 times": {"schema__features__a__present": 2**62},
    "labels are counted 2^62 times": {
        "labels": {"counts": {"cat": 2**62, "dog": 1}, "feature": "label"}
    },
    "labels of a feature that is not there": {
        "labels": {"counts": {"cat": 2}, "feature": "nothing"}
    },
    "labels of integers that are texts": {"labels": {"counts": {"cat": 2}, "feature": "a"}},
    "source's base is a list": {"source": {"digest": "x", "kind": "append", "base": [1, 2]}},
    "source's base has odd numbers": {
        "source": {"digest": "x", "kind": "append", "base": {"digest": 1, "num_items": "x"}}
    },
    "a shuffle that was not made": {"order__shuffle": {"algorithm": "?", "seed": 2**70}},
    "a key that was not made": {"order__key": {"algorithm": "?", "feature": "a", "seed": -5}},
    "sizes of other files": {"shards__file_bytes": [2**62, 2**61, 7]},
}  # fmt: skip


@each_command
@pytest.mark.parametrize("case", ODD)
def test_an_odd_manifest_hurts_no_command(folder: Path, case: str, is_full: bool) -> None:
    change(folder, **ODD[case])
    check_all(folder, drawn_by=None if is_full else case)


GAPS = {
    "10^12 items, one run": (10**12, [[20, 10**12 - 20]]),
    "2^61 items, two runs": (2**61, [[20, 2**60], [2**60 + 23, 2**61 - 2**60 - 23]]),
    "10^9 items": (10**9, [[100, 999_999_900]]),
    "as many as an index could hold": (20 + 3 * 2**24, [[20, 3 * 2**24]]),
}


def with_gaps(folder: Path, num_items: int, runs: list[list[int]]) -> None:
    """Make a manifest with its own gaps and more, with the records that the law then gives."""
    from shardwriter.dataset.assignment import GapRuns, num_shard_items

    gaps = GapRuns([[4, 3], [13, 1], *runs])
    missing = gaps.per_shard(3)
    records = [num_shard_items(num_items, 3, s) - missing[s] for s in range(3)]
    change(
        folder,
        num_items=num_items,
        skipped__runs=[[4, 3], [13, 1], *runs],
        skipped__count=len(gaps),
        num_records=sum(records),
        shards__records=records,
    )


@pytest.mark.parametrize("case", GAPS)
def test_gaps_that_no_file_accounts_for_take_no_memory(folder: Path, case: str) -> None:
    with_gaps(folder, *GAPS[case])
    started = sw.load_manifest(folder / "in" / "t")
    assert started.num_items - started.num_records == len(started.gaps)
    check_memory(folder)


def test_gaps_are_counted_and_looked_up_without_being_expanded(folder: Path) -> None:
    with_gaps(folder, *GAPS["10^12 items, one run"])
    gaps = sw.load_manifest(folder / "in" / "t").gaps
    assert len(gaps) == 10**12 - 16
    assert (gaps[0], gaps[3], gaps[4], gaps[-1]) == (4, 13, 20, 10**12 - 1)
    assert 10**11 in gaps
    assert 19 not in gaps
    with pytest.raises(ManifestError, match="999,999,999,984 items without a record") as caught:
        list(gaps)
    assert caught.value.path == str(manifest_path(folder))


def test_a_good_dataset_passes_every_command(folder: Path) -> None:
    answers = check_all(folder)
    assert {code for code, _ in answers.values()} == {0}, answers


def test_a_lost_index_of_many_gaps_is_made_again(tmp_path: Path) -> None:
    from shardwriter.dataset import assignment as layout

    num_items = layout.MAX_EXPANDED_GAPS + 1000
    sw.write(
        ({"a": i} for i in range(num_items)),
        tmp_path / "t@2",
        map=lambda item: item if item["a"] % 100_000 == 0 else sw.SKIP,
        workers=1,
    )
    before = (tmp_path / "t.index").read_bytes()
    with sw.open(tmp_path / "t") as data:
        assert [item["a"] for item in data] == list(range(0, num_items, 100_000))
    (tmp_path / "t.index").unlink()
    assert attempt(["verify", str(tmp_path / "t")])[0] == 1
    assert attempt(["index", str(tmp_path / "t")]) == (0, "")
    assert (tmp_path / "t.index").read_bytes() == before
