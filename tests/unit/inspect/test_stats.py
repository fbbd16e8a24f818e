"""What shard-stats says of sets that are whole, damaged, mixed, or not ours."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.dataset.assignment import Gaps
from shardwriter.errors import ManifestError, OptionError, SourceError
from shardwriter.formats.tfrecord import FRAME_BYTES
from shardwriter.inspect.document import Report
from shardwriter.inspect.findings import Finding
from shardwriter.inspect.scan import RecordSizes
from shardwriter.writing.index_files import make_index

COUNT, N = 26, 4


def shard(folder: Path, index: int) -> Path:
    return folder / f"t.tfrecord-{index:05d}-of-00004"


def kinds(report: Report) -> list[str]:
    return [finding.kind for finding in report.findings]


def test_a_good_set(dataset: Path) -> None:
    report = sw.stats(str(dataset / "t@4"))
    assert report.verdict.startswith("OK: 26 records in 4 shards, every CRC right")
    told = json.loads(json.dumps(report.to_json()))
    assert told["schema"] == "shardwriter.stats/1"
    assert (told["num_records"], told["num_shards"], told["payload_bytes"]) == (26, 4, 2600)
    assert told["file_bytes"] == 26 * (100 + FRAME_BYTES)
    assert told["record_bytes"]["histogram"] == [{"below": 128, "count": 26, "from": 64}]
    assert told["balance"]["records_max_over_mean"] == pytest.approx(7 / 6.5)
    assert [s["num_records"] for s in told["shards"]] == [7, 7, 6, 6]
    manifest = sw.load_manifest(dataset / "t.manifest.json")
    assert [int(s["crc32c"], 16) for s in told["shards"]] == [s.crc32c for s in manifest.shards]
    assert told["defects"] == []


@pytest.mark.parametrize("name", ["t@4", "t@*", "t", "t.manifest.json", "", "t.tfrecord-*-of-*"])
def test_a_set_is_found_by_any_of_its_names(dataset: Path, name: str) -> None:
    report = sw.stats(str(dataset / name))
    assert (report.sizes.count, report.num_defects) == (COUNT, 0)


def test_all_files_of_a_folder_as_a_shell_lists_them(dataset: Path) -> None:
    report = sw.stats([str(p) for p in sorted(dataset.iterdir())])
    assert len(report.sets) == 1
    assert report.sizes.count == COUNT


def test_one_shard_alone_is_no_incomplete_set(dataset: Path) -> None:
    report = sw.stats(str(shard(dataset, 2)))
    assert (report.sizes.count, report.num_defects) == (6, 0)


def flip(offset: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 0x40
        path.write_bytes(data)

    return damage


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


FRAME = 100 + FRAME_BYTES


@pytest.mark.parametrize(
    ("damage", "kind", "record", "offset", "left"),
    [
        (flip(2 * FRAME + 50), "payload-crc", 2, 2 * FRAME, 25),
        (flip(2 * FRAME + FRAME - 1), "payload-crc", 2, 2 * FRAME, 25),
        (flip(2 * FRAME + 9), "length-crc", 2, 2 * FRAME, 21),
        (cut(2 * FRAME + 50), "truncated", 2, 2 * FRAME, 21),
        (cut(6 * FRAME + 5), "truncated", 6, 6 * FRAME, 25),
        (cut(6 * FRAME), "record-count", 6, None, 25),
        (cut(0), "record-count", 0, None, 19),
        (lambda p: p.write_bytes(p.read_bytes() + bytes(64)), "torn-tail", 7, 7 * FRAME, 26),
    ],
    ids=[
        "payload",
        "payload-crc",
        "length-crc",
        "cut",
        "cut-header",
        "last-gone",
        "empty",
        "zeros",
    ],
)
def test_every_damage_is_named(
    dataset: Path,
    damage: Callable[[Path], None],
    kind: str,
    record: int,
    offset: int | None,
    left: int,
) -> None:
    damage(shard(dataset, 1))
    for report in (sw.stats(str(dataset / "t")), sw.verify(str(dataset / "t"))):
        assert kinds(report) == [kind]
        finding = report.findings[0]
        assert (finding.path, finding.record_index) == (str(shard(dataset, 1)), record)
        assert finding.offset == offset
        assert report.sizes.count == left
        assert report.verdict.startswith("DAMAGED: 1 defect in 1 file")
    if kind == "payload-crc":
        assert finding.global_index == 1 + 2 * N


def test_a_gap_in_front_moves_the_global_index(tmp_path: Path) -> None:
    data = [{"x": i} for i in range(COUNT)]
    sw.write(data, tmp_path / "t@4", map=lambda f: sw.SKIP if f["x"] in (1, 5) else f)
    flip(14)(shard(tmp_path, 1))
    assert sw.stats(str(tmp_path / "t")).findings[0].global_index == 9


def test_many_defects_ask_for_the_gaps_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sw.write([b"abcd"] * 20, tmp_path / "t@1")
    path = tmp_path / "t.tfrecord-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[12::20] = b"z" * 20
    path.write_bytes(data)
    made: list[int] = []

    def count(gaps: list[int], num_shards: int) -> Gaps:
        made.append(num_shards)
        return Gaps(gaps, num_shards)

    monkeypatch.setattr("shardwriter.inspect.judge.Gaps", count)
    assert sw.stats(str(tmp_path / "t")).num_defects == 20
    assert made == [1]


@pytest.mark.parametrize("compress", [zlib.compress, gzip.compress])
def test_a_shard_that_was_compressed_since_is_not_the_manifests(
    dataset: Path, compress: Callable[[bytes], bytes]
) -> None:
    shard(dataset, 1).write_bytes(compress(shard(dataset, 1).read_bytes()))
    for report in (sw.stats(str(dataset / "t")), sw.verify(str(dataset / "t"))):
        assert "other-compression" in kinds(report)
        assert report.verdict.startswith("DAMAGED")


def test_the_size_of_a_file_is_held_against_the_manifest(dataset: Path) -> None:
    path = dataset / "t.manifest.json"
    told = json.loads(path.read_text())
    told["shards"]["file_bytes"][2] += 1
    path.write_text(json.dumps(told, sort_keys=True, separators=(",", ":")) + "\n")
    assert kinds(sw.stats(str(dataset / "t"))) == ["other-size"]


def test_payload_bytes_are_held_against_the_manifest(dataset: Path) -> None:
    path = dataset / "t.manifest.json"
    told = json.loads(path.read_text())
    told["shards"]["payload_bytes"][2] += 1
    told["payload_bytes"] += 1
    path.write_text(json.dumps(told, sort_keys=True, separators=(",", ":")) + "\n")
    assert kinds(sw.stats(str(dataset / "t"))) == ["other-content"]


def test_shards_that_changed_places_are_told_by_the_manifest(dataset: Path) -> None:
    shard(dataset, 0).rename(dataset / "x")
    shard(dataset, 1).rename(shard(dataset, 0))
    (dataset / "x").rename(shard(dataset, 1))
    assert kinds(sw.stats(str(dataset / "t"))) == ["other-content"] * 2


def test_a_missing_shard(dataset: Path) -> None:
    shard(dataset, 3).unlink()
    for name in ("t", "t@4", "", "t.tfrecord-*"):
        findings = sw.stats(str(dataset / name)).findings
        assert [(f.kind, f.path) for f in findings] == [("missing-shard", str(shard(dataset, 3)))]
    (dataset / "t.manifest.json").unlink()
    assert kinds(sw.stats(str(dataset / "t"))) == ["missing-shard"]


def test_shards_of_another_run_beside_it(dataset: Path) -> None:
    shutil.copy(shard(dataset, 0), dataset / "t.tfrecord-00000-of-00001")
    report = sw.stats(str(dataset / "t"))
    assert kinds(report) == ["stale-generation"]
    assert report.sizes.count == COUNT
    (dataset / "t.manifest.json").unlink()
    assert kinds(sw.stats(str(dataset))) == ["stale-generation"] * 2


def test_uneven_shards_without_a_manifest_are_a_note(dataset: Path) -> None:
    for name in ("t.manifest.json", "t.index"):
        (dataset / name).unlink()
    cut(2 * FRAME)(shard(dataset, 1))
    report = sw.stats(str(dataset / "t"))
    assert report.num_defects == 0
    assert "not assigned round-robin" in report.notes[0]


def test_a_manifest_that_is_none(dataset: Path) -> None:
    (dataset / "t.manifest.json").write_text("{")
    with pytest.raises(ManifestError):
        sw.stats(str(dataset / "t"))


def test_a_folder_without_shards(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no TFRecord shards"):
        sw.stats(str(tmp_path))


def test_the_check_that_was_asked_for(dataset: Path) -> None:
    flip(50)(shard(dataset, 0))
    assert sw.stats(str(dataset / "t"), check="length").num_defects == 0
    assert sw.stats(str(dataset / "t"), check="crc").num_defects == 1


def test_many_defects_are_counted_and_some_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwriter.inspect.scan.MAX_DEFECTS", 5)
    path = tmp_path / "x.tfrecord"
    with sw.TFRecordWriter(path) as writer:
        for _ in range(20):
            writer.write(b"abcd")
    data = bytearray(path.read_bytes())
    data[12::20] = b"z" * 20
    path.write_bytes(data)
    report = sw.stats(str(path))
    assert (report.num_defects, len(report.findings)) == (20, 5)


def test_all_fixtures_of_damage_are_seen(data_dir: Path) -> None:
    fixtures = data_dir / "_derived" / "fixture"
    told = json.loads((fixtures / "tf_verdicts.json").read_text())
    assert len(told) == 22
    for entry in told:
        report = sw.stats(str(data_dir / entry["file"]))
        if entry["tf_error"] and "read-as-none" not in entry["file"]:
            assert report.num_defects, entry["file"]
        assert report.sizes.count >= entry["tf_records_before_error"], entry["file"]
    silent = ["truncated-header-5B.tfrecord", "one-byte.tfrecord"]
    assert [kinds(sw.stats(str(fixtures / name))) for name in silent] == [["truncated"]] * 2


def test_sizes_merge_in_any_order() -> None:
    from array import array

    parts = [array("Q", sizes) for sizes in ([1, 2, 3], [0], [], [100_000, 7])]
    forwards, backwards, whole = RecordSizes(), RecordSizes(), RecordSizes()
    for part in parts:
        forwards.add(part)
    for part in reversed(parts):
        backwards.add(part)
    whole.add(array("Q", [1, 2, 3, 0, 100_000, 7]))
    assert forwards == backwards == whole
    assert (whole.min, whole.max, whole.count, whole.total) == (0, 100_000, 6, 100_013)
    assert sum(whole.histogram) == 6


# -- verify ------------------------------------------------------------------------------


def test_verify_needs_a_manifest(dataset: Path) -> None:
    (dataset / "t.manifest.json").unlink()
    with pytest.raises(ManifestError, match="no manifest"):
        sw.verify(str(dataset / "t"))


@pytest.mark.parametrize("damage", [flip(70), cut(100), lambda p: p.unlink()])
def test_verify_proves_the_index(dataset: Path, damage: Callable[[Path], None]) -> None:
    before = (dataset / "t.index").read_bytes()
    damage(dataset / "t.index")
    assert kinds(sw.verify(str(dataset / "t"))) == ["index"]
    made = make_index(str(dataset / "t"), dali=True)
    assert (dataset / "t.index").read_bytes() == before
    assert made["num_records"] == COUNT
    assert len(made["idx"]) == N
    assert sw.verify(str(dataset / "t")).num_defects == 0


def test_verify_of_a_folder_with_two_datasets_asks_which(dataset: Path) -> None:
    sw.write([b"x"], dataset / "u@1")
    with pytest.raises(OptionError, match="2 datasets"):
        sw.verify(str(dataset))


def test_a_finding_as_json_has_all_its_keys() -> None:
    told = Finding("k", "p", "d").to_json()
    assert sorted(told) == [
        "detail",
        "global_index",
        "kind",
        "num_lost",
        "num_recoverable",
        "offset",
        "path",
        "record_index",
        "resync_offset",
        "shard_index",
    ]


def test_nothing_is_read_that_the_index_tells(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = sw.stats(dataset, check="length").to_json()
    monkeypatch.delattr("shardwriter.inspect.scan_pool.scan_file")
    counted = sw.stats(dataset, check="none").to_json()
    for key in ("num_records", "payload_bytes", "record_bytes", "file_bytes", "balance"):
        assert counted[key] == read[key]
    assert [s["record_bytes"] for s in counted["shards"]] == [
        s["record_bytes"] for s in read["shards"]
    ]


@pytest.mark.parametrize("harm", [cut(2 * FRAME), lambda path: path.unlink()])
def test_an_index_that_is_not_of_the_files_is_not_believed(
    dataset: Path, harm: Callable[[Path], None]
) -> None:
    harm(shard(dataset, 1))
    told = sw.stats(dataset, check="none")
    assert told.num_defects == 1
    assert told.sizes.count < COUNT
    (dataset / "t.index").write_bytes(b"")
    assert sw.stats(dataset, check="none").sizes.count == told.sizes.count


@pytest.mark.parametrize("by", ["manifest", "index"])
def test_what_a_damage_hides_is_counted_too(dataset: Path, by: str) -> None:
    if by == "index":
        (dataset / "t.manifest.json").unlink()
    path = shard(dataset, 1)
    data = path.read_bytes()

    def lost() -> list[tuple[str, int | None, int | None, int | None]]:
        report = sw.stats(str(dataset / "t"))
        found = report.to_json()["defects"]
        assert report.num_defects == len(found)
        return [(d["kind"], d["record_index"], d["global_index"], d["num_lost"]) for d in found]

    path.write_bytes(data[: 3 * FRAME] + bytes(4 * FRAME))
    assert lost() == [("torn-tail", 3, 13, 4)]
    path.write_bytes(data[: 3 * FRAME + 50] + bytes(4 * FRAME - 50))
    assert lost() == [("payload-crc", 3, 13, 1), ("torn-tail", 4, 17, 3)]
    path.write_bytes(data + bytes(64))
    assert lost() == [("torn-tail", 7, None, 0)]
    path.write_bytes(data[: 5 * FRAME])
    flip(FRAME + 50)(path)
    assert lost() == [("payload-crc", 1, 5, 1), ("record-count", 5, 21, 2)]
    path.write_bytes(data[:FRAME] + bytes(2 * FRAME + 5) + data[3 * FRAME + 5 :])
    assert lost() == [("length-crc", 1, 5, 3)]
    path.write_bytes(data + b"no frame at all")
    assert lost() == [("length-crc", 7, None, 0)]
