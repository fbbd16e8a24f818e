"""Repair: what comes back of damaged datasets, what is lost, and that nothing is ever half done."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import shardwriter
from shardwriter import SKIP, RunOptions, load_manifest, read_records, repair, stats, verify
from shardwriter.cli import app
from shardwriter.dataset.assignment import Gaps
from shardwriter.errors import ManifestError, OptionError, OutputExists, RunChanged, StorageError
from shardwriter.inspect.repair_shards import copy_file
from shardwriter.storage.local import LocalStorage

NUM_ITEMS, NUM_SHARDS = 60, 4
GAPS = {5, 9, 41}


def item(index):
    """Records of many sizes, with a label and a feature that is in some of them only."""
    features = {"id": index, "label": index % 3, "blob": bytes([index]) * (index * 37 % 400)}
    return features if index % 4 else {**features, "rare": 0.1 * index}


ITEMS = [item(index) for index in range(NUM_ITEMS)]


def leaving_out(gone, features):
    return SKIP if features["id"] in gone else features


def write(folder, gone=(), items=ITEMS, **options):
    """Write the data set; what is gone leaves gaps."""
    run = RunOptions(dali_index=options.pop("idx", False))
    chosen = partial(leaving_out, frozenset(gone)) if gone else None
    return shardwriter.write(
        items, folder / f"t@{NUM_SHARDS}", map=chosen, label="label", run=run, **options
    )


def shard_files(folder):
    return sorted(f for f in folder.iterdir() if re.fullmatch(r".*-of-\d{5}(\.gz)?", f.name))


def shard(folder, number):
    return next(f for f in shard_files(folder) if f"-{number:05d}-of" in f.name)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def records_of(folder):
    """Return the payload of every item, by the manifest that is there."""
    manifest = load_manifest(folder / "t.manifest.json")
    gaps = Gaps(manifest.gaps, manifest.num_shards)
    return {
        gaps.item_index(number, place): payload
        for number in range(manifest.num_shards)
        for place, payload in enumerate(read_records(folder / manifest.pattern.shard_file(number)))
    }


def ledger(folder):
    file = folder / "t.lost.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def starts(path):
    """Return where each frame of a plain shard begins, and where the last one ends."""
    found = [0]
    for payload in read_records(path):
        found.append(found[-1] + len(payload) + 16)
    return found


def flip(path, offset, mask=1):
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def flip_payloads(folder):
    begins = starts(shard(folder, 1))
    flip(shard(folder, 1), begins[3] + 13)
    flip(shard(folder, 1), begins[7] + 14)
    return [(1, 3), (1, 7)]


def flip_length(folder):
    flip(shard(folder, 2), starts(shard(folder, 2))[4])
    return [(2, 4)]


def flip_length_crc(folder):
    flip(shard(folder, 2), starts(shard(folder, 2))[0] + 9)
    return [(2, 0)]


def cut_inside(folder):
    begins = starts(shard(folder, 0))
    cut(shard(folder, 0), begins[11] + 20)
    return [(0, place) for place in range(11, len(begins) - 1)]


def cut_last_header(folder):
    begins = starts(shard(folder, 3))
    cut(shard(folder, 3), begins[-2] + 5)
    return [(3, len(begins) - 2)]


def drop_last(folder):
    begins = starts(shard(folder, 3))
    cut(shard(folder, 3), begins[-2])
    return [(3, len(begins) - 2)]


def append_zeros(folder):
    shard(folder, 1).write_bytes(shard(folder, 1).read_bytes() + bytes(64))
    return []


def delete_shard(folder):
    count = len(list(read_records(shard(folder, 2))))
    shard(folder, 2).unlink()
    return [(2, place) for place in range(count)]


def empty_shard(folder):
    count = len(list(read_records(shard(folder, 2))))
    cut(shard(folder, 2), 0)
    return [(2, place) for place in range(count)]


def damage_index(folder):
    flip(folder / "t.index", 90)
    return []


def delete_index(folder):
    (folder / "t.index").unlink()
    return []


def zero_a_page(folder):
    begins = starts(shard(folder, 1))
    data = bytearray(shard(folder, 1).read_bytes())
    data[begins[5] : begins[8]] = bytes(begins[8] - begins[5])
    shard(folder, 1).write_bytes(data)
    return [(1, 5), (1, 6), (1, 7)]


def several(folder):
    return [*flip_payloads(folder), *flip_length(folder), *cut_inside(folder), *drop_last(folder)]


def no_index_and_a_length(folder):
    delete_index(folder)
    return flip_length(folder)


def no_index_and_two_lengths(folder):
    begins = starts(shard(folder, 2))
    delete_index(folder)
    flip(shard(folder, 2), begins[2])
    flip(shard(folder, 2), begins[9])
    return [(2, 2), (2, 9)]


DAMAGES = [
    flip_payloads,
    flip_length,
    flip_length_crc,
    cut_inside,
    cut_last_header,
    drop_last,
    append_zeros,
    delete_shard,
    empty_shard,
    damage_index,
    delete_index,
    zero_a_page,
    several,
    no_index_and_a_length,
    no_index_and_two_lengths,
]


def check_repaired(whole, out, report, lost, tmp_path, gaps=(), **options):
    """Hold a repaired dataset against one that was written without the lost items."""
    before = records_of(whole)
    after = records_of(out)
    assert after == {index: payload for index, payload in before.items() if index not in lost}
    assert sorted(entry["index"] for entry in ledger(out)) == sorted(lost)
    assert report.num_lost == len(lost)
    assert report.num_records == len(after)
    assert not stats(out).num_defects
    assert not verify(out).num_defects
    manifest = load_manifest(out / "t.manifest.json")
    assert manifest.gaps == sorted({*gaps, *lost})
    if not lost:
        assert contents(out) == contents(whole)
        return
    assert manifest.job != load_manifest(whole / "t.manifest.json").job
    write(tmp_path / "oracle", {*gaps, *lost}, **options)
    oracle = load_manifest(tmp_path / "oracle" / "t.manifest.json")
    for field in ("shards", "gaps", "index", "schema", "labels", "num_items", "compression"):
        assert getattr(manifest, field) == getattr(oracle, field), field


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("gaps", [(), GAPS], ids=["no gaps", "gaps"])
def test_every_good_record_keeps_its_item_and_the_rest_is_listed(damage, gaps, tmp_path):
    whole, bad, out = tmp_path / "whole", tmp_path / "bad", tmp_path / "out"
    write(whole, gaps, idx=True)
    shutil.copytree(whole, bad)
    places = damage(bad)
    known = Gaps(sorted(gaps), NUM_SHARDS)
    lost = {known.item_index(number, place) for number, place in places}
    dry = repair(bad / "t", out, dry_run=True)
    assert not out.exists()
    report = repair(bad / "t", out)
    check_repaired(whole, out, report, lost, tmp_path, gaps, idx=True)
    found = {(e["shard_index"], e["record_index"]) for e in ledger(out)}
    assert found == set(places)
    assert (dry.num_lost, dry.num_records) == (report.num_lost, report.num_records)
    assert sorted(p.name for p in out.glob("*.idx")) == sorted(p.name for p in whole.glob("*.idx"))


def test_the_ledger_says_what_and_where(tmp_path):
    write(tmp_path / "bad")
    begins = starts(shard(tmp_path / "bad", 1))
    flip(shard(tmp_path / "bad", 1), begins[3] + 13)
    repair(tmp_path / "bad", tmp_path / "out")
    assert ledger(tmp_path / "out") == [
        {
            "index": 13,
            "kind": "payload-crc",
            "num_lost": 1,
            "offset": begins[3],
            "record_index": 3,
            "shard_index": 1,
        }
    ]


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
@pytest.mark.parametrize("index", ["index", "no index"])
def test_compressed_shards_lose_what_is_in_the_damaged_member(compression, index, tmp_path):
    whole, bad, out = tmp_path / "whole", tmp_path / "bad", tmp_path / "out"
    noise = [{"id": i, "label": 0, "blob": os.urandom(30_000)} for i in range(40)]
    write(whole, items=noise, compression=compression)
    shutil.copytree(whole, bad)
    data = bytearray(shard(bad, 1).read_bytes())
    data[len(data) // 3] ^= 0x10
    shard(bad, 1).write_bytes(data)
    shard(bad, 2).unlink()
    if index == "no index":
        (bad / "t.index").unlink()
    report = repair(bad, out)
    after, before = records_of(out), records_of(whole)
    assert all(before[i] == payload for i, payload in after.items())
    lost = sorted(set(before) - set(after))
    assert sorted(entry["index"] for entry in ledger(out)) == lost
    assert {2 + 4 * k for k in range(10)} < set(lost)
    assert report.num_lost == len(lost)
    assert not stats(out).num_defects
    assert not verify(out).num_defects


def big_members(folder, compression):
    """Write shards of several members or blocks each; return the records of each."""
    noise = [os.urandom(300_000) for _ in range(40)]
    shardwriter.write(noise, folder / "t@2", compression=compression)
    return noise


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
@pytest.mark.parametrize("index", ["index", "no index"])
def test_members_behind_a_damaged_one_come_back(compression, index, tmp_path):
    noise = big_members(tmp_path / "bad", compression)
    before = records_of(tmp_path / "bad")
    file = shard(tmp_path / "bad", 0)
    flip(file, 1_900_000, 0x55)  # in the second of its members of 1.2 MB
    if index == "no index":
        (tmp_path / "bad" / "t.index").unlink()
    report = repair(tmp_path / "bad", tmp_path / "out")
    after = records_of(tmp_path / "out")
    assert all(before[i] == payload for i, payload in after.items())
    lost = set(before) - set(after)
    assert report.num_lost == len(lost)
    assert 1 <= len(lost) <= 4
    assert len(before) == len(noise)


def test_a_gzip_header_that_is_broken_costs_one_member(tmp_path):
    big_members(tmp_path / "bad", "gzip")
    before = records_of(tmp_path / "bad")
    file = shard(tmp_path / "bad", 1)
    ends = load_index_ends(tmp_path / "bad", 1)
    flip(file, ends[1])
    (tmp_path / "bad" / "t.index").unlink()
    report = repair(tmp_path / "bad", tmp_path / "out")
    assert set(before) - set(records_of(tmp_path / "out")) == {
        1 + 2 * place for place in range(8, 12)
    }
    assert report.num_lost == 4


def load_index_ends(folder, number):
    from shardwriter.dataset.index import Index

    return Index(folder / "t.index").ends(number).astype(int).tolist()


def test_what_was_compressed_anew_gets_its_own_bytes_back(tmp_path):
    import gzip

    write(tmp_path / "whole", compression="gzip")
    shutil.copytree(tmp_path / "whole", tmp_path / "bad")
    file = shard(tmp_path / "bad", 0)
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())))
    report = repair(tmp_path / "bad", tmp_path / "out")
    assert report.is_whole
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_whole_records_of_another_dataset_are_not_taken(tmp_path):
    write(tmp_path / "bad")
    write(tmp_path / "other", items=[{**features, "id": 7} for features in ITEMS])
    shutil.copy(shard(tmp_path / "other", 1), shard(tmp_path / "bad", 1))
    report = repair(tmp_path / "bad", tmp_path / "out")
    assert {entry["kind"] for entry in ledger(tmp_path / "out")} == {"other-content"}
    assert report.num_lost == 15
    assert not verify(tmp_path / "out").num_defects


def test_records_that_nobody_can_place_are_left_out_and_told(tmp_path):
    whole, bad, out = tmp_path / "whole", tmp_path / "bad", tmp_path / "out"
    write(whole)
    shutil.copytree(whole, bad)
    delete_index(bad)
    begins = starts(shard(bad, 2))
    data = bytearray(shard(bad, 2).read_bytes())
    data[begins[2] : begins[4]] = b"\xff" * (begins[4] - begins[2])  # two records, one hole
    data[begins[8]] ^= 1
    shard(bad, 2).write_bytes(data)
    report = repair(bad, out)
    before, after = records_of(whole), records_of(out)
    assert after.items() < before.items()
    lost = {entry["index"] for entry in ledger(out)}
    assert lost == {2 + 4 * place for place in range(2, 9)}
    assert set(after) == set(before) - lost
    assert report.shards[2].num_unplaced == 4
    assert any("left out" in note for note in report.notes)
    assert not verify(out).num_defects


def test_what_lies_beside_shards_is_no_shard(tmp_path):
    write(tmp_path / "bad")
    flip_payloads(tmp_path / "bad")
    repair(tmp_path / "bad", tmp_path / "out")
    assert len(stats([str(file) for file in (tmp_path / "out").iterdir()]).sets) == 1


# -- without a manifest ----------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
@pytest.mark.parametrize("offset", [0, 3, 16, 24, -1], ids=str)
def test_what_holds_records_together_is_mended_too(compression, offset, tmp_path):
    write(tmp_path / "whole", compression=compression)
    shutil.copytree(tmp_path / "whole", tmp_path / "bad")
    (tmp_path / "bad" / "t.manifest.json").unlink()
    file = shard(tmp_path / "bad", 0)
    flip(file, offset % file.stat().st_size)
    report = repair(tmp_path / "bad", tmp_path / "out")
    if compression == "gzip" or offset in (0, -1):
        assert report.is_whole
        assert shard(tmp_path / "out", 0).read_bytes() == shard(tmp_path / "whole", 0).read_bytes()
    assert not verify(tmp_path / "out").num_defects


@pytest.mark.parametrize("harm", ["gone", "broken"])
def test_the_index_alone_tells_which_items_records_are(harm, tmp_path):
    whole, bad, out = tmp_path / "whole", tmp_path / "bad", tmp_path / "out"
    write(whole, GAPS)
    shutil.copytree(whole, bad)
    if harm == "gone":
        (bad / "t.manifest.json").unlink()
    else:
        cut(bad / "t.manifest.json", 100)
    flip_length(bad)
    shard(bad, 3).unlink()
    report = repair(bad / "t", out)
    before, after = records_of(whole), records_of(out)
    lost = {entry["index"] for entry in ledger(out)}
    assert after == {i: payload for i, payload in before.items() if i not in lost}
    assert lost == set(before) - set(after)
    assert report.num_lost == len(lost)
    assert not verify(out).num_defects
    assert load_manifest(out / "t.manifest.json").gaps == sorted(GAPS | lost)


def foreign(folder):
    """Shards of the usual names, and nothing beside them."""
    write(folder)
    for name in ("t.manifest.json", "t.index"):
        (folder / name).unlink()
    return [list(read_records(file)) for file in shard_files(folder)]


def test_foreign_shards_keep_the_order_of_their_records(tmp_path):
    before = foreign(tmp_path / "bad")
    begins = starts(shard(tmp_path / "bad", 2))
    flip(shard(tmp_path / "bad", 2), begins[4])
    flip(shard(tmp_path / "bad", 0), begins[2] + 13)
    report = repair(tmp_path / "bad", tmp_path / "out")
    after = [list(read_records(file)) for file in shard_files(tmp_path / "out")]
    assert after[1] == before[1]
    assert after[2] == before[2][:4] + before[2][5:]
    assert sum(map(len, after)) == NUM_ITEMS - 2
    assert not stats(tmp_path / "out").num_defects
    assert report.num_lost is None
    assert report.manifest is None
    lines = {entry["shard_index"]: entry for entry in ledger(tmp_path / "out")}
    assert (lines[2]["index"], lines[2]["num_lost"]) == (18, None)
    assert lines[0]["num_lost"] == 1
    assert not (tmp_path / "out" / "t.manifest.json").exists()


def test_foreign_shards_that_are_whole_are_copied(tmp_path):
    foreign(tmp_path / "bad")
    report = repair(tmp_path / "bad", tmp_path / "out")
    assert report.is_whole
    assert contents(tmp_path / "out") == contents(tmp_path / "bad")


def test_idx_files_go_with_foreign_shards(tmp_path):
    write(tmp_path / "whole", idx=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "bad")
    for name in ("t.manifest.json", "t.index"):
        (tmp_path / "bad" / name).unlink()
    flip(shard(tmp_path / "bad", 1), starts(shard(tmp_path / "bad", 1))[3] + 13)
    repair(tmp_path / "bad", tmp_path / "out")
    for number, file in enumerate(shard_files(tmp_path / "out")):
        begins = starts(file)
        lines = "".join(f"{a} {b - a}\n" for a, b in pairwise(begins))
        assert Path(f"{file}.idx").read_text() == lines
        assert len(begins) == (15 if number == 1 else 16)


def test_a_foreign_shard_that_is_gone_stays_gone(tmp_path):
    foreign(tmp_path / "bad")
    shard(tmp_path / "bad", 2).unlink()
    report = repair(tmp_path / "bad", tmp_path / "out")
    assert [s.action for s in report.shards] == ["copied", "copied", "left-out", "copied"]
    assert report.num_lost is None


def test_a_file_by_itself(tmp_path):
    write(tmp_path / "w")
    (tmp_path / "bad").mkdir()
    file = tmp_path / "bad" / "some.tfrecord"
    shutil.copy(shard(tmp_path / "w", 1), file)
    before = list(read_records(file))
    flip(file, starts(file)[6] + 13)
    report = repair(file, tmp_path / "out")
    assert list(read_records(tmp_path / "out" / "some.tfrecord")) == before[:6] + before[7:]
    assert report.num_lost == 1
    assert [entry.item for entry in report.lost] == [None]
    assert sorted(os.listdir(tmp_path / "out")) == ["some.tfrecord", "some.tfrecord.lost.jsonl"]


def zero_crcs(path):
    begins = starts(path)
    data = bytearray(path.read_bytes())
    for begin, end in pairwise(begins):
        data[begin + 8 : begin + 12] = data[end - 4 : end] = bytes(4)
    path.write_bytes(data)


def test_records_without_crcs_are_kept_when_told(tmp_path):
    before = foreign(tmp_path / "bad")
    for file in shard_files(tmp_path / "bad"):
        zero_crcs(file)
    report = repair(tmp_path / "bad", tmp_path / "out")
    assert report.num_records == 0
    assert report.num_lost == NUM_ITEMS
    report = repair(tmp_path / "bad", tmp_path / "kept", trust_no_crc=True)
    assert report.is_whole
    assert [list(read_records(file)) for file in shard_files(tmp_path / "kept")] == before
    assert not stats(tmp_path / "kept").num_defects


# -- from the source -------------------------------------------------------------------------------


def damage_much(folder):
    """Damage two shards, the index and a sidecar, and delete a shard."""
    file = shard(folder, 1)
    flip(file, file.stat().st_size // 2)
    shard(folder, 2).unlink()
    flip(folder / "t.index", 90)
    for idx in folder.glob("*00003*.idx"):
        idx.unlink()


def csv_source(folder):
    rows = "".join(f"{i},{i % 3},word{i * i}\n" for i in range(NUM_ITEMS))
    (folder / "rows.csv").write_text("id,label,text\n" + rows)
    return folder / "rows.csv"


def jsonl_source(folder):
    rows = "".join(json.dumps({"id": i, "label": i % 3}) + "\n" for i in range(NUM_ITEMS))
    (folder / "rows.jsonl").write_text(rows)
    return folder / "rows.jsonl"


def image_source(folder):
    for index in range(NUM_ITEMS):
        file = folder / "photos" / f"class{index % 3}" / f"{index:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        head = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
        file.write_bytes(head + bytes([index]) * index)
    return folder / "photos"


def tfrecord_source(folder):
    write(folder / "others")
    return folder / "others" / "t"


def list_source(_folder):
    return ITEMS


def stream():
    yield from ITEMS


def stream_source(_folder):
    return stream


def halved(features):
    return SKIP if features["id"] % 7 == 3 else {**features, "half": features["id"] / 2}


def failing(features):
    if features["id"] in (5, 17):
        raise ValueError("bad item")
    return features


SOURCES = [csv_source, jsonl_source, image_source, tfrecord_source, list_source, stream_source]
WAYS = [
    {},
    {"limit": 50, "compression": "gzip"},
    {"compression": "zlib"},
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("way", WAYS, ids=["plain", "limit, gzip", "zlib"])
@pytest.mark.parametrize("place", ["elsewhere", "in place"])
def test_the_source_brings_everything_back(source, way, place, tmp_path):
    found = source(tmp_path)
    whole, bad = tmp_path / "whole", tmp_path / "bad"
    run = RunOptions(dali_index="compression" not in way)
    shardwriter.write(found, whole / "t@4", run=run, **way)
    shutil.copytree(whole, bad)
    damage_much(bad)
    out = tmp_path / "out" if place == "elsewhere" else bad
    options = {name: value for name, value in way.items() if name != "compression"}
    dry = repair(bad / "t", out, found, dry_run=True, **options)
    report = repair(bad / "t", out, found, **options)
    stays = "copied" if place == "elsewhere" else "kept"
    assert [s.action for s in report.shards] == [stays, "remade", "remade", stays]
    assert dry.shards == report.shards
    assert report.is_whole
    assert report.num_records == load_manifest(whole / "t.manifest.json").num_records
    assert contents(out) == contents(whole)


@pytest.mark.parametrize(
    "way",
    [
        {"map": halved, "label": "label"},
        {"shuffle_seed": 5},
        {"order": "key", "key": "id", "order_seed": 3},
        {"map": failing, "on_error": "skip", "label": "label"},
    ],
    ids=["map", "shuffle", "key", "errors"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_maps_orders_and_gaps_come_back(way, workers, tmp_path):
    source = csv_source(tmp_path)
    whole, bad, out = tmp_path / "whole", tmp_path / "bad", tmp_path / "out"
    shardwriter.write(source, whole / "t@4", **way)
    shutil.copytree(whole, bad)
    damage_much(bad)
    # The order is taken from the manifest.
    given = {name: way[name] for name in ("map", "label") if name in way}
    repair(bad / "t", out, source, workers=workers, **given)
    assert contents(out) == contents(whole)


def test_a_shard_that_is_too_long_is_mended_in_its_place(tmp_path):
    write(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "bad")
    append_zeros(tmp_path / "bad")
    repair(tmp_path / "bad", tmp_path / "bad", ITEMS, label="label")
    assert contents(tmp_path / "bad") == contents(tmp_path / "whole")


def test_nothing_is_made_where_all_is_whole(tmp_path):
    write(tmp_path / "whole")
    report = repair(tmp_path / "whole", tmp_path / "out", ITEMS, label="label")
    assert {s.action for s in report.shards} == {"copied"}
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": "rows"}, "the source"),
        ({"limit": 59}, "an option"),
        ({"label": "id"}, "an option"),
        ({"map": halved}, "an option"),
        ({"shuffle_seed": 1}, "shuffle_seed="),
    ],
)
def test_another_job_is_refused_by_name(changes, says, tmp_path):
    source = csv_source(tmp_path)
    shardwriter.write(source, tmp_path / "bad" / "t@4")
    damage_much(tmp_path / "bad")
    before = contents(tmp_path / "bad")
    if changes.pop("source", None):
        source.write_text(source.read_text() + "60,0,more\n")
    for out in (tmp_path / "out", tmp_path / "bad"):
        for dry_run in (True, False):
            with pytest.raises(RunChanged, match=says):
                repair(tmp_path / "bad", out, source, dry_run=dry_run, **changes)
    assert contents(tmp_path / "bad") == before
    assert not (tmp_path / "out").exists() or not os.listdir(tmp_path / "out")


class Numbers:
    """A source whose digest does not tell what is in it."""

    def __init__(self, more):
        self.more = more

    def __len__(self):
        return NUM_ITEMS

    def __getitem__(self, index):
        return {"id": index + self.more}


def test_records_that_are_others_now_are_refused_and_nothing_is_published(tmp_path):
    shardwriter.write(Numbers(0), tmp_path / "bad" / "t@4")
    damage_much(tmp_path / "bad")
    before = contents(tmp_path / "bad")
    for out in (tmp_path / "out", tmp_path / "bad"):
        with pytest.raises(RunChanged, match="differs from the manifest"):
            repair(tmp_path / "bad", out, Numbers(1))
    assert contents(tmp_path / "bad") == before
    assert os.listdir(tmp_path / "out") == []


def test_an_iterator_that_can_be_read_once_is_refused(tmp_path):
    shardwriter.write(iter(ITEMS), tmp_path / "bad" / "t@4")
    damage_much(tmp_path / "bad")
    with pytest.raises(OptionError, match="read only once"):
        repair(tmp_path / "bad", tmp_path / "out", iter(ITEMS))


def test_without_a_manifest_only_a_full_write_will_do(tmp_path):
    foreign(tmp_path / "bad")
    with pytest.raises(ManifestError, match="no usable manifest") as caught:
        repair(tmp_path / "bad", tmp_path / "out", ITEMS)
    assert "shardwriter write" in caught.value.hint


def test_what_is_left_of_a_dataset_is_not_remade_from_the_source(tmp_path):
    write(tmp_path / "bad")
    flip_payloads(tmp_path / "bad")
    repair(tmp_path / "bad", tmp_path / "left")
    with pytest.raises(ManifestError, match="result of a repair that lost records"):
        repair(tmp_path / "left", tmp_path / "out", ITEMS, label="label")


def test_a_dataset_is_repaired_twice(tmp_path):
    job = write(tmp_path / "bad").job
    flip_payloads(tmp_path / "bad")
    repair(tmp_path / "bad", tmp_path / "once")
    flip_length(tmp_path / "once")
    repair(tmp_path / "once", tmp_path / "twice")
    manifest = load_manifest(tmp_path / "twice" / "t.manifest.json")
    assert manifest.gaps == [13, 18, 29]
    assert manifest.extra["repaired"] == {"job": job, "lost": [[13, 1], [18, 1], [29, 1]]}
    assert not verify(tmp_path / "twice").num_defects


# -- never half ------------------------------------------------------------------------------------


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    write(tmp_path / "bad")
    flip_payloads(tmp_path / "bad")
    write(tmp_path / "out", items=ITEMS[:8])
    before = contents(tmp_path / "out")
    with pytest.raises(OutputExists):
        repair(tmp_path / "bad", tmp_path / "out")
    with pytest.raises(OutputExists):
        repair(tmp_path / "bad", tmp_path / "out", ITEMS, label="label")
    assert contents(tmp_path / "out") == before
    repair(tmp_path / "bad", tmp_path / "out", overwrite=True)
    assert len(ledger(tmp_path / "out")) == 2
    # A write that replaces it takes the list of what was lost away.
    write(tmp_path / "out", overwrite=True)
    assert ledger(tmp_path / "out") == []


def test_the_damaged_dataset_is_not_replaced_by_what_is_left_of_it(tmp_path):
    write(tmp_path / "bad")
    flip_payloads(tmp_path / "bad")
    before = contents(tmp_path / "bad")
    with pytest.raises(OptionError, match="folder of the damaged dataset"):
        repair(tmp_path / "bad", tmp_path / "bad", overwrite=True)
    assert contents(tmp_path / "bad") == before


def test_an_unfinished_run_in_the_folder_is_not_discarded_unasked(tmp_path):
    write(tmp_path / "bad")
    flip_payloads(tmp_path / "bad")
    run = tmp_path / "bad" / ".t.partial"
    run.mkdir()
    (run / "run.json").write_text('{"engine":"beam","format":"shardwriter.run/1"}\n')
    with pytest.raises(OutputExists, match="unfinished run"):
        repair(tmp_path / "bad", tmp_path / "bad", ITEMS, label="label")
    assert (run / "run.json").exists()
    repair(tmp_path / "bad", tmp_path / "bad", ITEMS, label="label", overwrite=True)
    assert not run.exists()
    assert not verify(tmp_path / "bad").num_defects


@pytest.mark.parametrize("out", ["out/t@4", "file"])
def test_out_is_a_folder(out, tmp_path):
    write(tmp_path / "bad")
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="is not a folder"):
        repair(tmp_path / "bad", tmp_path / out)


KILLED = """
import os, sys
from shardwriter import repair
def deadly(features):
    if features["id"] == 50 and os.environ.get("DEADLY"):
        os._exit(9)
    return features
repair(sys.argv[1], sys.argv[2], sys.argv[3], map=deadly)
"""


@pytest.mark.parametrize("place", ["elsewhere", "in place"])
def test_a_repair_that_is_killed_leaves_nothing_final_and_is_begun_again(place, tmp_path):
    source = csv_source(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(
        KILLED.replace("repair(sys.argv", "if __name__ == '__main__': repair(sys.argv")
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import script as module

        shardwriter.write(source, tmp_path / "whole" / "t@4", map=module.deadly)
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["script"]
    bad = tmp_path / "bad"
    shutil.copytree(tmp_path / "whole", bad)
    damage_much(bad)
    before = contents(bad)
    out = tmp_path / "out" if place == "elsewhere" else bad
    code = f"import sys; sys.argv[0] = ''; sys.path.insert(0, {str(tmp_path)!r}); " + (
        "import script; from shardwriter import repair; repair(*sys.argv[1:4], map=script.deadly)"
    )
    command = [sys.executable, "-c", code, str(bad / "t"), str(out), str(source)]
    killed = subprocess.run(command, env={**os.environ, "DEADLY": "1"}, check=False)
    assert killed.returncode == 9
    assert contents_of_files(out) == (before if place == "in place" else {})
    assert (out / ".t.partial").is_dir()
    subprocess.run(command, check=True)
    assert contents(out) == contents(tmp_path / "whole")


def contents_of_files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("source", [None, ITEMS], ids=["no source", "source"])
def test_a_publication_that_stops_is_finished(number, source, tmp_path, monkeypatch):
    write(tmp_path / "bad")
    flip_payloads(tmp_path / "bad")
    options = {} if source is None else {"label": "label"}
    repair(tmp_path / "bad", tmp_path / "expected", source, **options)
    publish, calls = LocalStorage.publish, []

    def stopping(storage, old, new):
        if ".partial" not in new:
            calls.append(new)
            if len(calls) == number + 1:
                raise StorageError("stopped", path=new)
        publish(storage, old, new)

    monkeypatch.setattr(LocalStorage, "publish", stopping)
    try:
        repair(tmp_path / "bad", tmp_path / "out", source, **options)
        assert number >= 6
    except StorageError:
        assert not (tmp_path / "out" / "t.manifest.json").exists()
    monkeypatch.undo()
    with suppress(OutputExists):  # what was committed is finished first
        repair(tmp_path / "bad", tmp_path / "out", source, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_a_file_that_changes_while_it_is_copied_is_noticed(tmp_path, monkeypatch):
    from shardwriter.inspect import repair_shards

    write(tmp_path / "bad")
    copy = repair_shards.copy_shard

    def changed(known, found, run):
        flip(Path(known.path(found.shard)), 100)
        return copy(known, found, run)

    monkeypatch.setattr(repair_shards, "copy_shard", changed)
    with pytest.raises(StorageError, match="changed while it was copied"):
        repair(tmp_path / "bad", tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("without", [(), ("copy_file_range",)])
@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_files_are_copied_however_it_goes(without, size, tmp_path, monkeypatch):
    for name in without:
        monkeypatch.delattr(os, name)
    data = os.urandom(size + 10)
    (tmp_path / "a").write_bytes(data)
    crc = copy_file(str(tmp_path / "a"), str(tmp_path / "b"), size)
    assert (tmp_path / "b").read_bytes() == data[:size]
    assert crc == shardwriter.formats.crc32c.crc32c(data[:size])


# -- the command -----------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(app, ["repair", *map(str, args)])


def test_the_command_says_what_is_lost_and_ends_with_1(tmp_path):
    write(tmp_path / "bad")
    flip_payloads(tmp_path / "bad")
    result = run(tmp_path / "bad" / "t", tmp_path / "out", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["lost"] == {"count": 2, "from": [], "runs": [[13, 1], [29, 1]]}
    assert told["num_records"] == NUM_ITEMS - 2
    assert told["schema"] == "shardwriter.repair/1"
    assert Path(told["manifest"]).exists()
    assert Path(told["ledger"]).exists()
    again = run(tmp_path / "bad" / "t", tmp_path / "out", "--overwrite")
    assert again.exit_code == 1
    assert "2 records lost (items 13, 29)" in again.stdout


def test_the_command_remakes_from_a_source_and_ends_with_0(tmp_path):
    source = csv_source(tmp_path)
    shardwriter.write(source, tmp_path / "whole" / "t@4", shuffle_seed=4)
    shutil.copytree(tmp_path / "whole", tmp_path / "bad")
    damage_much(tmp_path / "bad")
    dry = run(tmp_path / "bad" / "t", tmp_path / "out", "--source", source, "--dry-run")
    assert dry.exit_code == 0
    assert "would be" in dry.stdout
    assert not (tmp_path / "out").exists()
    result = run(tmp_path / "bad" / "t", tmp_path / "out", "--source", source, "-j", "1")
    assert result.exit_code == 0, result.output
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["bad/t", "bad"], "folder of the damaged dataset"),
        (["bad/t", "out", "--limit", "3"], "add --source"),
        (["none/t", "out"], "there is no such"),
        (["gs://bucket/t", "out"], "local files"),
    ],
)
def test_the_command_refuses_with_2(args, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bad")
    result = run(*args)
    assert result.exit_code == 2
    assert says in result.output


# -- any damage ------------------------------------------------------------------------------------

harms = st.lists(
    st.tuples(
        st.integers(0, NUM_SHARDS - 1),
        st.sampled_from(["flip", "zeros", "noise", "cut", "remove", "insert", "append", "delete"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 700),
    ),
    min_size=1,
    max_size=6,
)


def harm(path, kind, where, size):
    if not path.exists():
        return
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    if kind == "flip" and data:
        data[at] ^= 1 << size % 8
    elif kind == "zeros":
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif kind == "noise":
        data[at : at + size] = os.urandom(len(data[at : at + size]))
    elif kind == "cut":
        del data[at:]
    elif kind == "remove":
        del data[at : at + size]
    elif kind == "insert":
        data[at:at] = bytes(size)
    elif kind == "append":
        data += bytes(size)
    else:
        path.unlink()
        return
    path.write_bytes(data)


@settings(max_examples=60)
@given(
    done=harms,
    compression=st.sampled_from(["none", "gzip", "zlib"]),
    without=st.sampled_from([(), ("t.index",), ("t.manifest.json",)]),
)
def test_whatever_is_damaged_what_comes_back_is_right(done, compression, without, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    whole, bad, out = folder / "whole", folder / "bad", folder / "out"
    write(whole, GAPS, compression=compression)
    before = records_of(whole)
    shutil.copytree(whole, bad)
    for number, kind, where, size in done:
        names = {f.name: f for f in shard_files(whole)}
        harm(bad / sorted(names)[number], kind, where, size)
    for name in without:
        (bad / name).unlink()
    if not shard_files(bad):
        return
    report = repair(bad / "t", out)
    after = records_of(out)
    assert all(before[index] == payload for index, payload in after.items())
    lost = [entry["index"] for entry in ledger(out)]
    assert len(lost) == len(set(lost))
    assert set(lost) | set(after) == set(before)
    assert set(lost).isdisjoint(after)
    assert report.num_lost == len(lost)
    assert not stats(out).num_defects
    assert not verify(out).num_defects
    shutil.rmtree(folder)


@settings(max_examples=40)
@given(done=harms, compression=st.sampled_from(["none", "gzip", "zlib"]))
def test_whatever_is_damaged_of_a_foreign_set_records_keep_their_order(
    done, compression, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("any")
    whole, bad, out = folder / "whole", folder / "bad", folder / "out"
    write(whole, GAPS, compression=compression)
    for name in ("t.manifest.json", "t.index"):
        (whole / name).unlink()
    shutil.copytree(whole, bad)
    names = [file.name for file in shard_files(whole)]
    for number, kind, where, size in done:
        harm(bad / names[number], kind, where, size)
    if not shard_files(bad):
        return
    report = repair(bad, out)
    assert not [d for d in stats(out).findings if d.kind != "missing-shard"]
    for number, name in enumerate(names):
        before = list(read_records(whole / name))
        after = list(read_records(out / name)) if (out / name).exists() else []
        left = iter(before)
        assert all(payload in left for payload in after)  # in this order, each of them once
        # Nobody can tell that records are gone where what is left is a file like any other.
        if after != before and not (bad / name).exists():
            assert report.num_lost is None
        elif after != before and any(d.num_lost != 0 for d in stats(bad / name).findings):
            assert any(entry.shard == number for entry in report.lost)
    shutil.rmtree(folder)


def test_files_by_others(data_dir, tmp_path):
    folder = data_dir / "_derived" / "fixture"
    for file in sorted(folder.iterdir()):
        if ".tfrecord" not in file.name:
            continue
        out = tmp_path / file.name
        report = repair(file, out)
        found = stats(out / file.name)
        assert found.num_defects <= (file.name == "gzip-read-as-none.tfrecord"), file.name
        assert found.scans[0].num_records == report.num_records
        defects = stats(file).findings
        if not [d for d in defects if d.kind != "misnamed"]:
            assert report.is_whole, file.name
            assert contents(out) == {file.name: file.read_bytes()}
        elif file.name not in ("trailing-zeros.tfrecord", "unmasked-crcs.tfrecord"):
            assert not report.is_whole, file.name


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("source", [0, 3])
def test_a_shard_that_was_copied_over_another_is_not_taken_for_it(
    source, index, compression, tmp_path
):
    bad, out = tmp_path / "bad", tmp_path / "out"
    write(bad, items=ITEMS[:58], compression=compression)  # 15, 15, 14 and 14 records
    whole = records_of(bad)
    shutil.copy(shard(bad, source), shard(bad, 1))
    if not index:
        (bad / "t.index").unlink()
    report = repair(bad, out)
    assert report.num_lost == 15
    assert {entry["index"] for entry in ledger(out)} == set(range(1, 58, 4))
    found = records_of(out)
    assert all(whole[item] == payload for item, payload in found.items())
    assert len(found) == 58 - 15


@pytest.mark.parametrize("index", [True, False])
def test_a_shard_with_a_record_too_many_is_not_taken_as_whole(index, tmp_path):
    bad, out = tmp_path / "bad", tmp_path / "out"
    write(bad)
    whole = records_of(bad)
    file = shard(bad, 1)
    begins, data = starts(file), file.read_bytes()
    file.write_bytes(data[: begins[4]] + data[begins[3] :])
    if not index:
        (bad / "t.index").unlink()
    assert not repair(bad, out).is_whole
    assert all(whole[item] == payload for item, payload in records_of(out).items())


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_an_index_of_shards_without_records_is_of_use(compression, tmp_path):
    whole, bad, out = tmp_path / "whole", tmp_path / "bad", tmp_path / "out"
    write(whole, items=ITEMS[:2], compression=compression)
    shutil.copytree(whole, bad)
    (bad / "t.manifest.json").unlink()
    shard(bad, 1).unlink()
    shard(bad, 3).write_bytes(b"")
    assert repair(bad, out).num_lost == 1
    assert not verify(out).num_defects
    assert shard(out, 3).read_bytes() == shard(whole, 3).read_bytes()
