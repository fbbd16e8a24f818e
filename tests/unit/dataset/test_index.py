"""The index: its bytes, and what is not believed of them."""

from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.dataset import index as index_module
from shardwriter.dataset.index import (
    KINDS,
    Index,
    RecordSpan,
    dali_index,
    frame_ends,
    index_chunks,
    index_head,
)
from shardwriter.errors import ManifestError, SourceChanged

ENDS = [[17, 40, 60], [], [33]]
GAPS = [2, 5]


def u64(*numbers):
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def build(ends=ENDS, gaps=GAPS, kind=0):
    head = index_head([len(e) for e in ends], kind, len(gaps))
    return b"".join(index_chunks((np.array(e, np.uint64) for e in ends), head, gaps))


@pytest.fixture
def opened(tmp_path):
    def write_and_open(data):
        path = tmp_path / "train.index"
        path.write_bytes(data)
        return Index(path)

    return write_and_open


def test_the_bytes_are_those_of_the_format():
    assert build() == (
        b"SWINDEX1"
        + u64(3, 0, 2)  # N, kind, gaps
        + u64(3, 0, 1)  # counts
        + u64(17, 40, 60)
        + u64(33)
        + u64(2, 5)
    )


def test_kinds_are_numbered_as_the_format_says():
    assert KINDS == {"none": 0, "gzip": 1, "zlib": 2}


def test_offsets_are_written_little_endian_from_any_array():
    chunks = list(index_chunks([np.array([1, 2], ">u8")], b"", []))
    assert b"".join(chunks) == u64(1, 2)


def test_an_index_is_read_back(opened):
    index = opened(build())
    assert index.counts.tolist() == [3, 0, 1]
    assert index.gaps.tolist() == GAPS
    assert [index.ends(s).tolist() for s in range(3)] == ENDS
    assert (index.compression, index.num_records(0), index.num_records(1)) == ("none", 3, 0)
    assert [index.locate(0, k) for k in range(3)] == [
        RecordSpan(0, 17, 0, 1),
        RecordSpan(17, 40, 0, 1),
        RecordSpan(40, 60, 0, 1),
    ]
    assert index.locate(2, 0) == RecordSpan(0, 33, 0, 1)


MEMBERS = [[[50, 90, 130], [2, 3, 7]], [[38], [0]], [[], []]]


@pytest.mark.parametrize(("kind", "first"), [(1, 0), (2, 2)])
def test_an_index_of_members_is_read_back(opened, kind, first):
    data = build_members(MEMBERS, kind)
    assert data == (
        b"SWINDEX1"
        + u64(3, kind, 2)
        + u64(3, 1, 0)
        + u64(50, 90, 130)
        + u64(2, 3, 7)
        + u64(38)
        + u64(0)
        + u64(2, 5)
    )
    index = opened(data)
    assert KINDS[index.compression] == kind
    assert index.counts.tolist() == [3, 1, 0]
    assert index.gaps.tolist() == GAPS
    assert [index.ends(s).tolist() for s in range(3)] == [ends for ends, _ in MEMBERS]
    assert [index.num_records(s) for s in range(3)] == [7, 0, 0]
    assert [index.locate(0, k) for k in range(7)] == [
        RecordSpan(first, 50, 0, 2),
        RecordSpan(first, 50, 1, 2),
        RecordSpan(50, 90, 0, 1),
        *(RecordSpan(90, 130, k, 4) for k in range(4)),
    ]


@pytest.mark.parametrize(("shard", "place"), [(0, 7), (0, -1), (1, 0), (2, 0), (3, 0)])
def test_a_record_that_is_in_no_member_is_an_error_of_the_index(opened, shard, place):
    with pytest.raises(ManifestError, match=r"no (shard|record)"):
        opened(build_members(MEMBERS, 1)).locate(shard, place)


@pytest.mark.parametrize(
    ("ends", "records", "position"),
    [([50, 50], [1, 2], 1), ([50, 40], [1, 2], 1), ([50, 90, 91], [3, 1, 3], 2), ([9], [2], 1)],
)
def test_an_index_of_members_that_goes_back_is_not_believed(opened, ends, records, position):
    index = opened(build_members([[ends, records]], 1))
    try:
        place = index.locate(0, position)
    except ManifestError:
        return
    assert 0 <= place.begin < place.end
    assert 0 <= place.skip < place.num_records


def build_members(members, kind):
    head = index_head([len(ends) for ends, _ in members], kind, len(GAPS))
    return b"".join(index_chunks([np.array(m, np.uint64) for m in members], head, GAPS))


def test_every_other_size_of_an_index_of_members_is_refused(opened):
    data = build_members(MEMBERS, 1)
    for size in [*range(0, len(data), 4), len(data) + 8, len(data) + 16]:
        with pytest.raises(ManifestError):
            opened(data[:size] + bytes(max(0, size - len(data))))


@pytest.mark.parametrize(("shard", "place"), [(1, 0), (0, 3), (0, -1), (3, 0), (-1, 0), (9, 9)])
def test_a_record_that_is_not_in_it_is_an_error_of_the_index(opened, shard, place):
    with pytest.raises(ManifestError, match=r"no (shard|record)"):
        opened(build()).locate(shard, place)


def test_an_index_of_nothing(opened):
    index = opened(build([[]], []))
    assert (index.counts.tolist(), index.gaps.tolist()) == ([0], [])


@given(
    st.lists(st.lists(st.integers(16, 1000), max_size=6), min_size=1, max_size=5),
    st.lists(st.integers(0, 2**40), max_size=4),
)
def test_any_index_is_read_back(tmp_path_factory, sizes, gaps):
    path = tmp_path_factory.getbasetemp() / "any.index"
    ends = [np.cumsum(shard).tolist() for shard in sizes]
    path.unlink(missing_ok=True)  # an older one may still be mapped
    path.write_bytes(build(ends, gaps))
    index = Index(path)
    assert [index.ends(s).tolist() for s in range(len(ends))] == ends
    assert index.gaps.tolist() == gaps


def test_every_other_size_is_refused(opened):
    data = build()
    for size in range(len(data)):
        with pytest.raises(ManifestError):
            opened(data[:size])
    for more in (1, 8, 80):
        with pytest.raises(ManifestError):
            opened(data + bytes(more))


@pytest.mark.parametrize("kind", [3, 99, 2**63])
def test_other_kinds_are_refused(opened, kind):
    with pytest.raises(ManifestError, match=f"kind {kind}"):
        opened(build(kind=kind))


def test_other_magic_is_refused(opened):
    with pytest.raises(ManifestError, match="SWINDEX1") as caught:
        opened(b"SWINDEX2" + build()[8:])
    assert caught.value.path.endswith("train.index")
    assert caught.value.hint


@pytest.mark.parametrize(
    "head",
    [
        u64(2**63, 0, 0),
        u64(2**64 - 1, 0, 0),
        u64(1, 0, 2**63) + u64(0),
        u64(1, 0, 0) + u64(2**64 - 1),
        u64(1, 0, 0) + u64(2**62),
        u64(2, 0, 1) + u64(2**63, 2**63) + u64(7),  # their sum is 0 in 64 bits
        u64(2, 0, 0) + u64(2**64 - 1, 1),
        u64(2, 0, 0) + u64(5, 2**64 - 5) + u64(),
    ],
)
def test_counts_that_overflow_are_refused(opened, head):
    with pytest.raises(ManifestError):
        opened(b"SWINDEX1" + head)


def test_the_text_of_an_idx_file_is_offset_and_size_of_each_frame():
    assert dali_index(np.array([17, 40, 60], np.uint64)) == b"0 17\n17 23\n40 20\n"
    assert dali_index(np.array([], np.uint64)) == b""
    assert dali_index(np.array([2**40], np.uint64)) == b"0 1099511627776\n"


# -- an index in memory, and in another process ----------------------------------------------------


def arrays(shards):
    return [np.array(numbers, np.uint64) for numbers in shards]


@pytest.mark.parametrize(
    ("shards", "compression"), [(ENDS, "none"), (MEMBERS, "gzip"), (MEMBERS, "zlib")]
)
def test_an_index_in_memory_is_the_one_of_the_file(opened, shards, compression):
    data = build() if compression == "none" else build_members(MEMBERS, KINDS[compression])
    mapped = opened(data)
    made = Index.of_shards(arrays(shards), compression, GAPS)
    assert made.compression == mapped.compression == compression
    assert made.counts.tolist() == mapped.counts.tolist()
    assert made.gaps.tolist() == mapped.gaps.tolist() == GAPS
    for shard in range(3):
        for found in (Index.entries, Index.ends, Index.records):
            assert np.array_equal(found(made, shard), found(mapped, shard))
        assert made.rows(shard) == mapped.rows(shard)
        assert made.num_records(shard) == mapped.num_records(shard)


def test_the_rows_of_a_shard_are_its_entries_one_after_the_other():
    assert Index.of_shards(arrays(ENDS), "none").rows(0) == u64(17, 40, 60)
    index = Index.of_shards(arrays(MEMBERS), "gzip")
    assert index.rows(0) == u64(50, 2, 90, 3, 130, 7)
    assert index.records(0).tolist() == [2, 3, 7]


def test_an_index_is_pickled_by_its_path_while_the_file_is_the_same(opened):
    index = opened(build())
    assert len(pickle.dumps(index)) < 1000
    copied = pickle.loads(pickle.dumps(index))
    assert copied.ends(0).tolist() == ENDS[0]
    assert copied.name == index.name


def test_an_index_whose_file_has_changed_is_pickled_by_its_numbers(opened):
    index = opened(build())
    os.unlink(index.name)
    copied = pickle.loads(pickle.dumps(index))
    assert [copied.ends(shard).tolist() for shard in range(3)] == ENDS
    assert copied.gaps.tolist() == GAPS


def test_a_pickled_index_is_refused_once_its_file_has_changed(opened):
    index = opened(build())
    data = pickle.dumps(index)
    os.utime(index.name, ns=(1, 1))
    with pytest.raises(SourceChanged) as caught:
        pickle.loads(data)
    assert caught.value.path == index.name


def test_an_index_in_memory_can_be_pickled():
    index = Index.of_shards(arrays(MEMBERS), "zlib", name="mine", piece_bytes=99)
    copied = pickle.loads(pickle.dumps(index))
    assert (copied.name, copied.piece_bytes, copied.compression) == ("mine", 99, "zlib")
    assert copied.records(0).tolist() == [2, 3, 7]


def test_a_fifo_is_no_index_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "train.index")
    with pytest.raises(ManifestError):
        Index(tmp_path / "train.index")


# -- many records at once --------------------------------------------------------------------------


def test_spans_of_many_records_are_those_of_each():
    index = Index.of_shards(arrays(ENDS), "none", GAPS)
    shards, positions = np.array([0, 0, 0, 2, 0]), np.array([2, 0, 1, 0, 0])
    begins, ends = index.spans(shards, positions)
    assert begins.tolist() == [40, 0, 17, 0, 0]
    assert ends.tolist() == [60, 17, 40, 33, 17]
    for shard, position, begin, end in zip(shards, positions, begins, ends, strict=True):
        assert index.span(int(shard), int(position)) == (begin, end)


def test_records_take_their_part_of_the_member_they_are_in():
    index = Index.of_shards(arrays(MEMBERS), "gzip", piece_bytes=100)
    # Members of 2, 1 and 4 records, each of at most 100 bytes by all that is known.
    every = np.arange(7)
    assert index.inflated_bytes(np.zeros(7, np.int64), every) == 2 * 50 + 100 + 4 * 25
    assert index.inflated_bytes(np.zeros(2, np.int64), np.array([6, 0])) == 25 + 50
    small = Index.of_shards(arrays(MEMBERS), "gzip", piece_bytes=1)
    # Compressed, they have 50, 40 and 40 bytes, and have no less when they are not.
    assert small.inflated_bytes(np.zeros(7, np.int64), every) == 2 * 25 + 40 + 4 * 10


def test_records_of_several_shards_are_estimated_each_in_its_own():
    members = [[[50], [2]], [[200, 230], [1, 11]]]
    index = Index.of_shards(arrays(members), "gzip", piece_bytes=1)
    shards, positions = np.array([1, 0, 1, 0]), np.array([5, 1, 0, 0])
    assert index.inflated_bytes(shards, positions) == 3 + 25 + 200 + 25


# -- the order of entries --------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 2, 1 << 15])
@pytest.mark.parametrize(
    ("ends", "file_bytes", "wrong"),
    [
        ([16, 32, 60], 60, None),
        ([], 0, None),
        ([15], 60, 0),  # shorter than a frame without a payload
        ([16, 31], 60, 1),
        ([16, 40, 39], 60, 2),
        ([16, 40, 61], 60, 2),
        ([16, 2**63, 2**64 - 1], 60, 1),
    ],
)
def test_entries_ascend_by_a_frame_at_least_and_end_in_the_file(
    monkeypatch, block, ends, file_bytes, wrong
):
    monkeypatch.setattr(index_module, "_CHECK_ENTRIES", block)
    index = Index.of_shards(arrays([[20], ends]), "none")
    if wrong is None:
        index.check_order(1, file_bytes)
        return
    with pytest.raises(ManifestError) as caught:
        index.check_order(1, file_bytes)
    assert (caught.value.shard, caught.value.record_index) == (1, wrong)


@pytest.mark.parametrize(
    ("member", "is_right"),
    [
        ([[50, 90], [2, 3]], True),
        ([[50, 51], [2, 3]], True),
        ([[38], [0]], True),  # a gzip shard without records
        ([[], []], True),
        ([[50, 50], [2, 3]], False),
        ([[50, 90], [2, 2]], False),
        ([[50, 90], [0, 2]], False),
        ([[50, 91], [2, 3]], False),
        ([[0], [0]], False),
        ([[50, 90], [2, 2**63]], False),
    ],
)
def test_members_have_bytes_and_records(member, is_right):
    index = Index.of_shards(arrays([member]), "gzip")
    if is_right:
        index.check_order(0, 90)
        return
    with pytest.raises(ManifestError) as caught:
        index.check_order(0, 90)
    assert (caught.value.shard, caught.value.record_index) == (0, None)


def test_frames_end_behind_their_payloads():
    assert frame_ends(np.array([1, 0, 24], np.uint32)).tolist() == [17, 33, 73]
    assert frame_ends(np.array([1, 0], np.uint32), 100).tolist() == [117, 133]
    assert frame_ends(np.array([2**32 - 1] * 2, np.uint32)).tolist()[-1] == 2 * (2**32 + 15)
