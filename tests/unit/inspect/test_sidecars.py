"""Missing records and shards, found by indexes and metadata of other tools beside the shards."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.formats.compression import open_stream
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.sidecars import (
    ScannedShard,
    Split,
    check_tfds_folders,
    compare_claims,
    compare_set,
    first_wrong_frame,
    folder_notes,
    known_ends,
    read_claims,
    read_dataset_info,
    read_table,
    table_names,
)
from shardwriter.sources.shard_sets import find_shard_sets
from shardwriter.writing.index_files import make_index

COUNTS = [7, 7, 6, 6]
FRAME = 100 + FRAME_BYTES


def shard(folder: Path, index: int, name: str = "t", num_shards: int = 4) -> Path:
    return folder / f"{name}.tfrecord-{index:05d}-of-{num_shards:05d}"


def judge(*paths: Path, damaged: tuple[Path, ...] = ()) -> list[Finding]:
    """Compare all sets of some paths with their sidecars."""
    findings = []
    for shard_set in find_shard_sets([str(path) for path in paths]):
        found = {}
        for _, path in shard_set.shards:
            num_records = sum(1 for _ in read_records(path, check="none"))
            with open_stream(path) as stream:
                compression = stream.compression
            found[path] = ScannedShard(num_records, compression, Path(path) in damaged)
        findings += compare_claims(read_claims(shard_set), found)
    return findings


def cut(path: Path, num_frames: int) -> None:
    path.write_bytes(path.read_bytes()[: num_frames * FRAME])


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """26 records of 100 bytes in 4 shards with .idx files, as if another tool had written them."""
    sw.write([bytes([i]) * 100 for i in range(26)], tmp_path / "t@4")
    make_index(str(tmp_path / "t"), dali=True)
    (tmp_path / "t.manifest.json").unlink()
    return tmp_path


@pytest.fixture
def with_idx(plain: Path) -> Path:
    (plain / "t.index").unlink()
    return plain


@pytest.fixture
def with_index(plain: Path) -> Path:
    for path in plain.glob("*.idx"):
        path.unlink()
    return plain


# -- .idx ------------------------------------------------------------------------------------------


def test_a_good_set_has_nothing_against_it(plain: Path) -> None:
    assert judge(plain / "t@4") == []
    (shard_set,) = find_shard_sets([str(plain)])
    claims = list(read_claims(shard_set))
    assert [(claim.by, claim.num_records) for claim in claims] == [
        *(("index", n) for n in COUNTS),
        *(("idx", n) for n in COUNTS),
    ]


def test_the_last_record_is_missing_by_idx(with_idx: Path) -> None:
    cut(shard(with_idx, 1), 6)
    assert judge(with_idx) == [
        Finding(
            "idx-count",
            str(shard(with_idx, 1)),
            "6 records, t.tfrecord-00001-of-00004.idx says 7: 1 is missing at the end",
            record_index=6,
            shard_index=1,
            num_lost=1,
        )
    ]


def test_all_records_are_missing(with_idx: Path) -> None:
    shard(with_idx, 3).write_bytes(b"")
    (finding,) = judge(with_idx)
    assert (finding.kind, finding.num_lost, finding.record_index) == ("idx-count", 6, 0)
    assert finding.detail.endswith("6 are missing at the end")


def test_extra_records_behind_the_last_that_is_listed(with_idx: Path) -> None:
    path = shard(with_idx, 2)
    path.write_bytes(path.read_bytes() + path.read_bytes()[:FRAME])
    (finding,) = judge(with_idx)
    assert (finding.kind, finding.num_lost) == ("idx-count", 0)
    assert finding.detail.endswith("says 6: 1 more than listed")


def test_an_idx_of_other_content_names_its_first_wrong_record(with_idx: Path) -> None:
    other = with_idx / "other"
    other.mkdir()
    sizes = [100, 100, 90, 110, 100, 100, 100]
    sw.write([b"z" * size for size in sizes], other / "t@1")
    shutil.copy(shard(other, 0, num_shards=1), shard(with_idx, 0))
    (finding,) = judge(with_idx / "t@4")
    assert (finding.kind, finding.record_index, finding.offset) == ("idx-offset", 2, 2 * FRAME)
    assert finding.path == str(shard(with_idx, 0))
    assert "t.tfrecord-00000-of-00004.idx does not match this file: record 2 at offset 232" in (
        finding.detail
    )
    sw.write([b"z" * 100, b"z"], other / "t@1", overwrite=True)
    shutil.copy(shard(other, 0, num_shards=1), shard(with_idx, 0))
    (finding,) = judge(with_idx / "t@4")
    assert (finding.kind, finding.record_index) == ("idx-offset", 1)
    assert "(2 records, t.tfrecord-00000-of-00004.idx says 7)" in finding.detail


def test_counts_of_a_damaged_shard_are_not_compared(with_idx: Path) -> None:
    cut(shard(with_idx, 1), 6)
    assert judge(with_idx, damaged=(shard(with_idx, 1),)) == []


def test_what_is_lost_with_missing_and_damaged_shards(with_idx: Path) -> None:
    shard(with_idx, 2).unlink()
    cut(shard(with_idx, 1), 3)
    assert judge(with_idx, damaged=(shard(with_idx, 1),)) == []  # both are reported elsewhere
    (shard_set,) = find_shard_sets([str(with_idx)])
    found = {path: ScannedShard(3, "none", True) for _, path in shard_set.shards}
    comparison = compare_set(shard_set, found)
    assert comparison.findings == []
    assert comparison.expected == {str(shard(with_idx, i)): n for i, n in enumerate(COUNTS)}
    Path(f"{shard(with_idx, 2)}.idx").unlink()
    assert str(shard(with_idx, 2)) not in compare_set(shard_set, found).expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"0 116\n116 116\n240 116\n", "line 3 says offset 240 and 116 bytes"),
        (b"0 116\n116 15\n", "line 2 says offset 116 and 15 bytes"),
        (b"5 116\n", "line 1 says offset 5"),
        (b"0 116\n116", "its last line is cut off"),
        (b"0 116\nx 116\n", "it contains b'x'"),
        (b"\x89PNG", "it contains b'\\x89'"),
        (b"0 99999999999999999999999\n", "line 1 says offset 0"),
        (b"0 9223372036854775807\n", "line 1 says offset 0"),
    ],
)
def test_a_broken_idx_says_why(with_idx: Path, text: bytes, problem: str) -> None:
    path = Path(f"{shard(with_idx, 0)}.idx")
    path.write_bytes(text)
    (finding,) = judge(with_idx)
    assert (finding.kind, finding.path) == ("idx-broken", str(path))
    assert problem in finding.detail
    assert known_ends(str(shard(with_idx, 0))) is None


def test_names_of_tables() -> None:
    assert table_names("x.tfrecord")[::3] == ["x.tfrecord.idx", "x.idx"]
    assert "x.tfindex" in table_names("x.tfrecord")
    assert table_names("x.tfrecord-00000-of-00002") == [
        f"x.tfrecord-00000-of-00002{suffix}" for suffix in (".idx", ".tfindex", ".index")
    ]


def test_a_loose_file_with_the_table_of_the_pypi_loader(tmp_path: Path, data_dir: Path) -> None:
    if importlib.util.find_spec("tfrecord") is None:
        pytest.skip("tfrecord is not installed")
    name = "pytorch+data/test/_fakedata/tfrecord/example.tfrecord"
    path = tmp_path / "data.tfrecord"
    shutil.copy(data_dir / name, path)
    path.chmod(0o644)
    for table in ("data.tfrecord.idx", "data.tfindex", "data.index"):
        # In a process of its own: beside TensorFlow its protos can not be loaded.
        tool = "tfrecord.tools.tfrecord2idx"
        command = [sys.executable, "-m", tool, str(path), str(tmp_path / table)]
        subprocess.run(command, check=True)
        assert judge(path) == []
        ends = known_ends(str(path))
        assert ends is not None
        assert (len(ends), int(ends[-1])) == (4, path.stat().st_size)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(ends[-2])])
        (finding,) = judge(path)
        assert (finding.kind, finding.record_index, finding.num_lost) == ("idx-count", 3, 1)
        assert table in finding.detail
        path.write_bytes(whole)
        (tmp_path / table).unlink()


# -- frame ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["with_idx", "with_index"])
def test_a_table_gives_the_ends_of_a_truncated_file(
    source: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(source)
    path = shard(folder, 1)
    cut(path, 3)
    ends = known_ends(str(path))
    assert ends is not None
    assert ends.tolist() == [FRAME * (k + 1) for k in range(7)]
    path.write_bytes(b"")
    assert known_ends(str(path)) is not None


def test_ends_of_another_file_are_no_ends(with_idx: Path) -> None:
    path = shard(with_idx, 0)
    sw.write([b"a" * 7] * 50, with_idx / "u@1")
    path.write_bytes(shard(with_idx, 0, "u", 1).read_bytes())
    assert known_ends(str(path)) is None
    Path(f"{path}.idx").write_bytes(b"")
    assert known_ends(str(path)) is None
    path.write_bytes(b"")
    ends = known_ends(str(path))
    assert ends is not None
    assert len(ends) == 0


def test_compressed_files_have_no_known_ends(tmp_path: Path) -> None:
    sw.write([b"a" * 7] * 50, tmp_path / "t@2", compression="gzip")
    assert known_ends(str(tmp_path / "t.tfrecord-00000-of-00002.gz")) is None


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=60),
    st.data(),
)
def test_the_first_wrong_frame(tmp_path: Path, sizes: list[int], data: st.DataObject) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(_frame(size) for size in sizes))
    claimed = list(sizes)
    wrong = data.draw(st.none() | st.integers(0, len(sizes) - 1))
    if wrong is not None:
        claimed[wrong] += data.draw(st.integers(1, 50))
    ends = np.cumsum(np.array(claimed, np.uint64) + np.uint64(FRAME_BYTES))
    assert first_wrong_frame(str(path), ends) == wrong
    more = np.concatenate((ends, ends[-1:] + np.uint64(20)))
    assert first_wrong_frame(str(path), more) == (len(sizes) if wrong is None else wrong)


def _frame(size: int) -> bytes:
    return size.to_bytes(8, "little") + bytes(4 + size + 4)


def test_frames_too_large_to_be_read_whole_are_read_by_their_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwriter.inspect.sidecars._READ_BYTES", 1)
    path = tmp_path / "x"
    path.write_bytes(b"".join(_frame(size) for size in [100, 200, 300]))
    ends = np.cumsum(np.array([116, 216, 316], np.uint64))
    assert first_wrong_frame(str(path), ends) is None
    assert first_wrong_frame(str(path), ends + np.array([0, 0, 1], np.uint64)) == 2
    assert first_wrong_frame(str(path), np.concatenate((ends, ends[-1:] + np.uint64(99)))) == 3


def test_an_index_of_ours_is_no_text_table(with_index: Path) -> None:
    assert read_table(str(with_index / "t.index")) is None


# -- our index without a manifest ------------------------------------------------------------------


def test_the_last_record_is_missing_by_our_index(with_index: Path) -> None:
    cut(shard(with_index, 0), 5)
    (finding,) = judge(with_index)
    assert (finding.kind, finding.num_lost, finding.record_index) == ("index-count", 2, 5)
    assert finding.detail == "5 records, t.index says 7: 2 are missing at the end"


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_records_of_compressed_shards_are_counted_by_our_index(
    tmp_path: Path, compression: Any
) -> None:
    sw.write([b"a" * 7] * 50, tmp_path / "t@2", compression=compression)
    sw.write([b"a" * 7] * 48, tmp_path / "u@2", compression=compression)
    assert judge(tmp_path / "t") == []
    for path in tmp_path.glob("t.*-of-*"):
        shutil.copy(tmp_path / path.name.replace("t.", "u.", 1), path)
    assert judge(tmp_path / "t") == []  # what the manifest is for
    (tmp_path / "t.manifest.json").unlink()
    assert [f.kind for f in judge(tmp_path / "t")] == ["index-count"] * 2


def test_an_index_of_another_number_of_shards(with_index: Path) -> None:
    sw.write([b"a"] * 10, with_index / "u@2")
    (with_index / "u.index").replace(with_index / "t.index")
    (finding,) = judge(with_index / "t")
    assert (finding.kind, finding.path) == ("index-broken", str(with_index / "t.index"))
    assert finding.detail.startswith("it lists 2 shards, but this set has 4")
    (with_index / "t.index").write_bytes(b"SWINDEX1")
    (finding,) = judge(with_index / "t")
    assert finding.kind == "index-broken"


# -- TFDS ------------------------------------------------------------------------------------------


@pytest.fixture
def tfds(tmp_path: Path) -> Path:
    folder = tmp_path / "demo" / "1.0.0"
    for split, count in (("train", 26), ("test", 3)):
        sw.write([bytes([i]) * 100 for i in range(count)], folder / f"demo-{split}@4")
        (folder / f"demo-{split}.manifest.json").unlink()
        (folder / f"demo-{split}.index").unlink()
    write_info(folder)
    (folder / "features.json").write_text("{}")
    return folder


def write_info(folder: Path, **changes: Any) -> None:
    info = {
        "name": "demo",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": "train",
                "numBytes": "2600",
                "shardLengths": ["7", "7", "6", "6"],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            },
            {"name": "test", "shardLengths": [1, 1, 1, 0]},
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info | changes))


def train(folder: Path, index: int) -> Path:
    return shard(folder, index, "demo-train")


def test_a_good_tfds_folder(tfds: Path) -> None:
    assert judge(tfds) == []
    sets = find_shard_sets([str(tfds)])
    assert len(sets) == 2
    assert check_tfds_folders(sets) == []
    assert folder_notes(sets) == []


def test_the_real_folder_of_trax(data_dir: Path) -> None:
    folder = data_dir / "google+trax/trax/data/testdata/para_crawl/ende/1.2.0"
    (shard_set,) = find_shard_sets([str(folder)])
    (claim,) = read_claims(shard_set)
    assert (claim.by, claim.num_records, claim.split) == ("tfds", 10, "train")
    assert judge(folder) == []
    assert check_tfds_folders([shard_set]) == []
    (finding,) = compare_claims([claim], {claim.path: ScannedShard(9)})
    assert finding.detail == "9 records, dataset_info.json says 10: 1 is missing"


def test_a_missing_record_by_tfds(tfds: Path) -> None:
    cut(train(tfds, 3), 5)
    (finding,) = judge(tfds)
    assert (finding.kind, finding.path) == ("tfds-count", str(train(tfds, 3)))
    assert (finding.shard_index, finding.num_lost, finding.record_index) == (3, 1, None)
    assert finding.detail == "5 records, dataset_info.json says 6: 1 is missing"


def test_swapped_lengths(tfds: Path) -> None:
    first, last = train(tfds, 0).read_bytes(), train(tfds, 3).read_bytes()
    train(tfds, 0).write_bytes(last)
    train(tfds, 3).write_bytes(first)
    findings = judge(tfds)
    assert [(f.kind, f.shard_index, f.num_lost) for f in findings] == [
        ("tfds-count", 0, 0),
        ("tfds-count", 3, 0),
    ]
    assert all("in another order" in f.detail for f in findings)


def test_another_number_of_shards(tfds: Path) -> None:
    write_info(tfds, splits=[{"name": "train", "shardLengths": [13, 13]}])
    (finding,) = judge(tfds / "demo-train")
    assert finding.kind == "tfds-broken"
    assert finding.detail.startswith("it lists 2 shards of split 'train', but this set has 4")


def test_a_shard_of_no_records_is_there_or_missing(tfds: Path) -> None:
    shard(tfds, 3, "demo-test").unlink()
    sets = find_shard_sets([str(tfds)])
    assert [s.missing for s in sets] == [[3], []]
    claims = [claim for claim in read_claims(sets[0]) if claim.shard_index == 3]
    assert [claim.num_records for claim in claims] == [0]


def test_a_split_without_any_file(tfds: Path) -> None:
    for path in tfds.glob("demo-test*"):
        path.unlink()
    sets = find_shard_sets([str(tfds)])
    ((number, finding),) = check_tfds_folders(sets)
    assert number == 0
    assert (finding.kind, finding.num_lost) == ("missing-shard", 3)
    assert finding.path == str(shard(tfds, 0, "demo-test"))
    assert "all 4 shards of split 'test' are missing" in finding.detail


def test_a_split_that_was_not_asked_for_is_not_missed(tfds: Path) -> None:
    splits = [{"name": name, "shardLengths": [1]} for name in ("train", "test", "val")]
    write_info(tfds, splits=splits)
    assert check_tfds_folders(find_shard_sets([str(tfds / "demo-train")])) == []
    assert len(check_tfds_folders(find_shard_sets([str(tfds)]))) == 1


def test_files_by_the_name_of_another_dataset(tfds: Path) -> None:
    write_info(tfds, name="other")
    findings = [finding for _, finding in check_tfds_folders(find_shard_sets([str(tfds)]))]
    assert [f.kind for f in findings] == ["tfds-name"] * 2
    assert findings[0].detail == (
        "the dataset is called 'other' here and 'demo' in names of shards: TFDS looks for "
        "other-test.tfrecord-00000-of-00004 and finds no file"
    )


def test_compressed_shards_are_not_for_tfds(tmp_path: Path) -> None:
    sw.write([b"a" * 7] * 20, tmp_path / "demo-train@2", compression="gzip")
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}.gz"
    entry = {"name": "train", "shardLengths": [10, 10], "filepathTemplate": template}
    write_info(tmp_path, splits=[entry])
    (finding,) = judge(tmp_path)
    assert finding.kind == "tfds-compression"
    assert finding.detail.startswith("gzip, as are 2 of 2 shards of split 'train'")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"name": ""}',
        '{"name": "demo", "splits": [{}]}',
        '{"name": "demo", "splits": [{"name": "train", "shardLengths": ["x"]}]}',
        '{"name": "demo", "splits": [{"name": "train", "shardLengths": [-1]}]}',
        '{"name": "demo", "splits": [{"name": 1, "shardLengths": [1]}]}',
        '{"name": "demo", "splits": 5}',
    ],
)
def test_a_broken_dataset_info_is_a_note(tfds: Path, text: str) -> None:
    (tfds / "dataset_info.json").write_text(text)
    sets = find_shard_sets([str(tfds)])
    assert judge(tfds) == []
    assert check_tfds_folders(sets) == []
    ((number, note),) = folder_notes(sets)
    assert number == 0
    assert "dataset_info.json is not what TFDS writes" in note


def test_without_features_json_tfds_reads_nothing(tfds: Path) -> None:
    (tfds / "features.json").unlink()
    ((_, note),) = folder_notes(find_shard_sets([str(tfds)]))
    assert note.endswith("features.json is missing: TFDS can not read this folder")


def test_other_formats_and_templates() -> None:
    split = Split("train", "demo", (3, 4), "{SPLIT}/{DATASET}_{SHARD_INDEX}_of_{NUM_SHARDS}.rec")
    assert split.shard_file(1) == "train/demo_00001_of_00002.rec"
    odd = Split("a{SPLIT}", "d", (1,))
    assert odd.shard_file(0) == "d-a{SPLIT}.tfrecord-00000-of-00001"


def test_splits_of_other_formats_are_left_alone(tfds: Path) -> None:
    write_info(tfds, fileFormat="array_record")
    info = read_dataset_info(str(tfds))
    assert info is not None
    assert info.splits == ()
    write_info(tfds, splits=[{"name": "train", "statistics": {"numExamples": "26"}}])
    info = read_dataset_info(str(tfds))
    assert info is not None
    assert info.splits == ()
