"""One shard's life: what it is when it is sealed, and what an abandoned one leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset.manifest import SealedShard
from shardwriter.errors import StorageError
from shardwriter.formats.compressed_writer import CompressedWriter
from shardwriter.formats.compression import PLAIN, Packing
from shardwriter.formats.crc32c import crc32c
from shardwriter.formats.tfrecord import NOTHING_WRITTEN, TFRecordWriter, Written, frame
from shardwriter.formats.tfrecord_reader import read_records
from shardwriter.storage import LocalStorage
from shardwriter.writing.open_shards import ShardFile

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
        assert checkpoint == Written(1, 19, crc32c(data), 19, None, 1)
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


def test_a_refused_record_leaves_the_shard_intact(tmp_path):
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


# -- going on with it ------------------------------------------------------------------------------


def go_on(folder, packing, written, buffer_bytes=1 << 18):
    """Open the shard behind what an earlier attempt has left."""
    storage = LocalStorage()
    path = str(folder / "shard")

    def open_writer(on_flush):
        going_on = written.num_pieces > 0
        file = storage.append(path, written.file_bytes) if going_on else storage.create(path)
        if packing.is_plain:
            return TFRecordWriter(
                file, buffer_bytes=buffer_bytes, on_flush=on_flush, written=written
            )
        return CompressedWriter(file, packing, on_flush=on_flush, written=written)

    index = str(folder / "index")
    compressed = not packing.is_plain
    return ShardFile(storage, path, index, open_writer, compressed=compressed, written=written)


def files(folder):
    return (folder / "shard").read_bytes(), (folder / "index").read_bytes()


@given(
    st.lists(st.binary(max_size=50), max_size=40),
    st.sampled_from([PLAIN, Packing("gzip", "isal-2", 1), Packing("gzip", "isal-2", 100)]),
    st.sampled_from([1, 60, 1 << 18]),
    st.data(),
)
def test_a_shard_that_was_cut_anywhere_ends_as_if_it_had_not_been(
    tmp_path, records, packing, buffer_bytes, data
):
    with go_on(tmp_path, packing, NOTHING_WRITTEN) as shard:
        for record in records:
            shard.write(record)
        sealed = shard.seal()
    whole = files(tmp_path)
    written = NOTHING_WRITTEN
    for cut in sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3))):
        with go_on(tmp_path, packing, written, buffer_bytes) as shard:
            for record in records[written.num_records : cut]:
                shard.write(record)
            flushed = shard.flush()
            assert flushed.num_records >= written.num_records
            assert (tmp_path / "shard").stat().st_size == flushed.file_bytes
            assert (tmp_path / "index").stat().st_size == shard.index_bytes
            row_bytes = 8 if packing.is_plain else 16
            assert shard.index_bytes == row_bytes * flushed.num_pieces
            written = flushed
            for record in records[cut : cut + 5]:  # these are lost
                shard.write(record)
        # What a crash leaves behind the cut is of any kind.
        for name in ("shard", "index"):
            with open(tmp_path / name, "ab") as file:
                file.write(data.draw(st.sampled_from([b"", bytes(30), b"torn"])))
    with go_on(tmp_path, packing, written, buffer_bytes) as shard:
        assert shard.num_records == written.num_records
        for record in records[written.num_records :]:
            shard.write(record)
        assert shard.seal() == sealed
    assert files(tmp_path) == whole


def test_a_shard_that_is_too_short_is_not_resumed(tmp_path):
    with open_shard(tmp_path) as shard:
        for record in RECORDS:
            shard.write(record)
        written = shard.flush()
    whole = files(tmp_path)
    for name in ("shard", "index"):
        size = (tmp_path / name).stat().st_size
        with open(tmp_path / name, "r+b") as file:
            file.truncate(size - 1)
        with pytest.raises(StorageError, match="should have"):
            go_on(tmp_path, PLAIN, written)
        (tmp_path / name).write_bytes(whole[name == "index"])
    go_on(tmp_path, PLAIN, written).__exit__()
    assert files(tmp_path) == whole
