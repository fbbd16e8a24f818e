"""Files beside the data that wait, lie or are large: read without waiting, and used when good."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import shardwriter as sw
from shardwriter.dataset import assignment as layout
from shardwriter.dataset.index import Index
from shardwriter.errors import CorruptFile, ManifestError, StorageError
from shardwriter.formats import canonical
from shardwriter.formats.crc32c import crc32c
from shardwriter.writing import publication
from shardwriter.writing.index_files import open_index
from shardwriter.writing.journal import signed_line
from shardwriter.writing.options import RunOptions
from shardwriter.writing.resume import read_last_record


class Numbers:
    """40 items."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, int]:
        if index == self.broken:
            raise ValueError("boom")
        return {"n": index}


def odd(item):
    return item if item["n"] % 2 else sw.SKIP


def fail(item):
    if item["n"] == 8:
        raise ValueError("boom")
    return odd(item)


# -- many gaps -------------------------------------------------------------------------------------


@pytest.fixture
def few_gaps_are_many(monkeypatch):
    monkeypatch.setattr(layout, "MAX_EXPANDED_GAPS", 3)
    monkeypatch.setattr(publication, "MAX_EXPANDED_GAPS", 3)


def test_a_finished_dataset_of_many_gaps_is_resumed(tmp_path, few_gaps_are_many):
    before = sw.write(Numbers(), tmp_path / "t@3", map=odd, workers=1)
    after = sw.write(Numbers(), tmp_path / "t@3", map=odd, workers=1, resume=True)
    assert after == before
    assert list(after.gaps) == list(range(0, 40, 2))


def test_items_that_failed_among_many_gaps_are_tried_again(tmp_path, few_gaps_are_many):
    run = RunOptions(on_error="skip")
    sw.write(Numbers(), tmp_path / "t@3", map=fail, workers=1, run=run)
    again = RunOptions(on_error="skip", retry_errors=True)
    manifest = sw.write(Numbers(), tmp_path / "t@3", map=fail, workers=1, run=again)
    assert list(manifest.gaps) == list(range(0, 40, 2))


def test_a_retry_refuses_gaps_that_no_file_accounts_for(tmp_path):
    run = RunOptions(on_error="skip")
    sw.write(Numbers(), tmp_path / "t@1", map=fail, workers=1, run=run)
    path = tmp_path / "t.manifest.json"
    document = json.loads(path.read_text())
    document["num_items"] += 10**12
    document["skipped"]["runs"].append([40, 10**12])
    document["skipped"]["count"] += 10**12
    document["metadata"]["retries"] = [{"items": [[8, 1]], "job": "x"}]  # no records are compared
    path.write_text(canonical.dumps(document))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    again = RunOptions(on_error="skip", retry_errors=True)
    with pytest.raises(ManifestError, match="items without a record"):
        sw.write(Numbers(), tmp_path / "t@1", map=fail, workers=1, run=again)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


# -- files that make a program wait ----------------------------------------------------------------


def to_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def test_an_index_that_is_a_fifo_is_not_waited_for(tmp_path):
    manifest = sw.write(Numbers(), tmp_path / "t@2", workers=1)
    to_fifo(tmp_path / "t.index")
    with pytest.raises(StorageError, match="not a plain file"):
        open_index(str(tmp_path), manifest)
    with pytest.raises(ManifestError, match="it is not a regular file"):
        Index(tmp_path / "t.index")
    assert [item["n"] for item in sw.open(tmp_path / "t")] == list(range(40))


def test_a_list_of_errors_that_is_a_fifo_is_not_waited_for(tmp_path):
    sw.write(Numbers(), tmp_path / "t@2", workers=1)
    to_fifo(tmp_path / "t.errors.jsonl")
    with pytest.raises(StorageError, match="not a plain file"):
        sw.write(Numbers(), tmp_path / "t@2", workers=1, resume=True)


# -- growing shards --------------------------------------------------------------------------------


def stopped(folder: Path, compression: str = "none") -> Path:
    with pytest.raises(sw.ShardwriterError):
        sw.write(
            Numbers(25),
            folder / "t@2",
            compression=compression,
            workers=1,
            run=RunOptions(mark_s=0),
        )
    return folder / ".t.partial"


def shards(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("t.tfrecord-*"))]


def test_a_growing_shard_with_another_name_is_begun_again(tmp_path):
    run = stopped(tmp_path / "out")
    other = tmp_path / "elsewhere"
    os.link(run / "shard-00001", other)
    before = other.read_bytes() + b"more"
    other.write_bytes(before)
    sw.write(Numbers(), tmp_path / "out" / "t@2", workers=1, resume=True)
    sw.write(Numbers(), tmp_path / "whole" / "t@2", workers=1)
    assert other.read_bytes() == before
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")


def test_a_shard_of_more_records_than_items_is_begun_again(tmp_path):
    """Its index says the same, so only the number of items differs."""
    run = stopped(tmp_path / "out", "gzip")
    huge = 2**62
    for path in (*run.glob("mark-*"), *run.glob("checkpoint-*")):
        document = canonical.loads(path.read_bytes()[9:])
        document["sealed"] = []
        for row in document["growing"]:
            data = (run / f"shard-{row[0]:05d}").read_bytes()
            row[1], row[4], row[6] = huge, len(data), 1
            rows = len(data).to_bytes(8, "little") + huge.to_bytes(8, "little")
            (run / f"index-{row[0]:05d}").write_bytes(rows)
            row[5] = crc32c(data)
        path.write_bytes(signed_line(document))
    sw.write(Numbers(), tmp_path / "out" / "t@2", compression="gzip", workers=1, resume=True)
    sw.write(Numbers(), tmp_path / "whole" / "t@2", compression="gzip", workers=1)
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
@pytest.mark.parametrize("place", [(0, 0), (9, 3), (0, 1 << 62), (-4, 8), (1, 3)])
def test_a_last_record_that_is_not_there_is_one_error(tmp_path, compression, place):
    manifest = sw.write(Numbers(), tmp_path / "t@1", compression=compression, workers=1)
    path = str(tmp_path / manifest.pattern.shard_file(0))
    with pytest.raises(CorruptFile) as caught:
        read_last_record(path, *place, compression)
    assert caught.value.path == path


def test_an_index_of_a_far_last_record_stops_a_resume_with_one_error(tmp_path):
    sw.write(Numbers(), tmp_path / "t@1", workers=1)
    path = tmp_path / "t.index"
    path.write_bytes(path.read_bytes()[:-8] + (1 << 50).to_bytes(8, "little"))
    with pytest.raises(CorruptFile, match="where the index has the last one"):
        sw.write(Numbers(), tmp_path / "t@1", workers=1, resume=True)
