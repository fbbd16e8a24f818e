"""One shard's life: what it is when it is sealed, and what an abandoned one leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.crc32c import crc32c
from shardwriter.errors import StorageError
from shardwriter.manifest import SealedShard
from shardwriter.shard import ShardFile
from shardwriter.storage import LocalStorage
from shardwriter.tfrecord import TFRecordWriter, Written, frame
from shardwriter.tfrecord_reader import read_records

RECORDS = [b"one", b"", b"three" * 100]


class CountingStorage(LocalStorage):
    """Remembers what was brought to the disk."""

    def __init__(self):
        super().__init__()
        self.synced = []

    def sync(self, path):
        self.synced.append(path)
        super().sync(path)


def open_shard(folder, storage=None, buffer_bytes=1 << 18):
    storage = storage or LocalStorage()
    path = str(folder / "shard")

    def open_writer(on_flush):
        return TFRecordWriter(storage.create(path), buffer_bytes=buffer_bytes, on_flush=on_flush)

    return ShardFile(storage, path, str(folder / "index"), open_writer)


def ends(folder):
    return np.fromfile(folder / "index", "<u8").tolist()


def expected_ends(records):
    return np.cumsum([len(frame(record)) for record in records]).tolist()


@given(st.lists(st.binary(max_size=50), max_size=30), st.sampled_from([1, 60, 1 << 18]), st.data())
def test_a_sealed_shard_is_known_in_full(tmp_path, records, buffer_bytes, data):
    flush_at = data.draw(st.sets(st.integers(0, 30), max_size=3))
    with open_shard(tmp_path, buffer_bytes=buffer_bytes) as shard:
        for number, record in enumerate(records):
            shard.write(record)
            assert shard.num_records == number + 1
            if number in flush_at:
                shard.flush()
        sealed = shard.seal()
    file = (tmp_path / "shard").read_bytes()
    assert file == b"".join(map(frame, records))
    assert sealed == SealedShard(len(records), sum(map(len, records)), len(file), crc32c(file))
    assert ends(tmp_path) == expected_ends(records)


def test_many_small_flushes_lose_no_offset(tmp_path):
    records = [bytes(n % 5) for n in range(5000)]
    with open_shard(tmp_path, buffer_bytes=1) as shard:
        for record in records:
            shard.write(record)
        shard.seal()
    assert ends(tmp_path) == expected_ends(records)


def test_a_checkpoint_is_on_the_disk(tmp_path):
    storage = CountingStorage()
    with open_shard(tmp_path, storage) as shard:
        shard.write(b"one")
        checkpoint = shard.checkpoint()
        data = (tmp_path / "shard").read_bytes()
        assert checkpoint == Written(1, len(data), crc32c(data))
        assert ends(tmp_path) == [19]
        assert storage.synced == [str(tmp_path / "shard"), str(tmp_path / "index")]
        shard.write(b"two")
        assert (tmp_path / "shard").read_bytes() == data


def test_sealing_brings_the_last_bytes_to_the_disk(tmp_path):
    storage = CountingStorage()
    with open_shard(tmp_path, storage) as shard:
        shard.write(b"one")
        shard.seal()
    assert storage.synced == [str(tmp_path / "shard"), str(tmp_path / "index")]


def test_an_empty_shard_is_an_empty_file(tmp_path):
    with open_shard(tmp_path) as shard:
        assert shard.seal() == SealedShard(0, 0, 0, 0)
    assert (tmp_path / "shard").read_bytes() == b""
    assert ends(tmp_path) == []


def test_an_abandoned_shard_keeps_what_was_flushed(tmp_path):
    with open_shard(tmp_path) as shard:
        for record in RECORDS:
            shard.write(record)
        shard.flush()
        shard.write(b"in the buffer")
    assert list(read_records(tmp_path / "shard")) == RECORDS
    assert ends(tmp_path) == expected_ends(RECORDS)


def test_a_record_that_is_refused_leaves_the_shard_whole(tmp_path):
    with open_shard(tmp_path) as shard:
        shard.write(b"one")
        with pytest.raises(TypeError):
            shard.write("text")
        shard.write(b"two")
        sealed = shard.seal()
    assert sealed.num_records == 2
    assert list(read_records(tmp_path / "shard")) == [b"one", b"two"]
    assert ends(tmp_path) == [19, 38]


def test_a_shard_that_can_not_be_sealed_is_abandoned(tmp_path):
    class Broken(LocalStorage):
        def sync(self, path):
            raise StorageError("input/output error", path=path)

    storage = Broken()
    with open_shard(tmp_path, storage) as shard:
        shard.write(b"one")
        with pytest.raises(StorageError):
            shard.seal()
    assert storage._open == {}  # no descriptor is left behind
    with pytest.raises(ValueError, match="closed"):
        shard.write(b"two")
