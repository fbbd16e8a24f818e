"""What members are compressed into: the same bytes, wherever and whenever that is done."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import zlib
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

import shardwriter.formats.compression as packing
from shardwriter.formats.compression import deflate_block, deflate_member

RAW = -15
EMPTY = b"\x03\x00"
LEAD = packing._absent_from(b"")


def inflated(deflated):
    """Inflate with a library that knows nothing of what was thrown away in front."""
    inflater = zlib.decompressobj(RAW)
    data = inflater.decompress(deflated)
    assert inflater.eof
    assert not inflater.unused_data
    return data


# Pieces of the bytes that are thrown away, runs of zeros, and noise.
pieces = st.one_of(
    st.binary(max_size=6),
    st.integers(0, 40).map(bytes),
    st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda cut: LEAD[cut[0] : cut[1]]),
    st.just(LEAD),
)


@given(st.lists(pieces, max_size=60).map(b"".join), st.sampled_from(["isal-2", "zlib-6"]))
def test_no_match_reaches_back_in_front_of_a_member(data, deflate):
    assert inflated(deflate_member(data, deflate)) == data
    assert inflated(deflate_block(data, deflate) + EMPTY) == data


@pytest.mark.parametrize("gap", [0, 1, 1 << 14, (1 << 15) - 4, (1 << 15) - 3, 1 << 15, 1 << 16])
def test_what_was_thrown_away_may_come_again_at_any_distance(gap):
    data = random.Random(gap).randbytes(gap) + LEAD * 3
    assert inflated(deflate_member(data, "isal-2")) == data


def test_the_bytes_in_front_occur_nowhere_behind():
    data = b"".join((int.from_bytes(LEAD, "little") + k).to_bytes(4, "little") for k in range(50))
    assert packing._absent_from(data) not in data


def samples():
    """Members whose first bytes come again, and nothing else in them."""
    rng = random.Random(5)
    heads = [rng.randbytes(8) for _ in range(100)]
    return [head + rng.randbytes(20) + head + rng.randbytes(20) + head for head in heads]


def digest():
    whole = sha256()
    for sample in samples():
        whole.update(deflate_member(sample, "isal-2"))
        whole.update(deflate_block(sample, "isal-2"))
    return whole.hexdigest()


def test_where_the_library_keeps_its_state_changes_no_byte():
    expected = digest()
    found = set()
    held = []

    def compress():
        # The next one's state lies elsewhere on the heap, and on the stack.
        held.append(isal_zlib.compressobj(2, isal_zlib.DEFLATED, RAW))
        found.add(digest())

    try:
        for kilobytes in range(1024, 1024 + 64 * 250, 64):
            threading.stack_size(kilobytes << 10)
            thread = threading.Thread(target=compress)
            thread.start()
            thread.join()
    finally:
        threading.stack_size(0)
    assert found == {expected}


def test_another_process_makes_the_same_bytes():
    code = "import test_packing; print(test_packing.digest())"
    run = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    found = {subprocess.run(run, capture_output=True, check=True, text=True).stdout for _ in "abc"}
    assert found == {digest() + "\n"}


def test_members_are_smaller_where_many_shards_are_open():
    sizes = [packing.Packing.of("gzip", "isal-2", n).member_bytes for n in (1, 16, 64, 999_999)]
    assert sizes[0] == packing.MEMBER_BYTES
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == packing._MIN_MEMBER_BYTES
    for num_shards in (100, 1000):
        size = packing.Packing.of("gzip", "isal-2", num_shards).member_bytes
        assert size * num_shards <= packing._ALL_MEMBERS_BYTES or size == sizes[-1]


def test_the_manifest_says_how_shards_are_compressed():
    assert packing.Packing().is_plain
    assert packing.Packing().to_json() == {"type": "none"}
    packed = packing.Packing("gzip", "zlib-6")
    assert not packed.is_plain
    found = packed.to_json()
    assert (found["type"], found["deflate"]) == ("gzip", "zlib-6")


def test_notes_name_readers_of_compressed_shards_alone():
    assert packing.compatibility_notes("none") == []
    for compression in ("gzip", "zlib"):
        notes = packing.compatibility_notes(compression)
        assert any(compression.upper() in note for note in notes)
