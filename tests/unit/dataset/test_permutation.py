"""The permutation "feistel8/1": its pinned values, and that it is one."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.dataset.permutation import SORTED_UP_TO, Permutation

SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("size", "seed", "epoch", "first"),
    [
        (10, 0, 0, [5, 4, 6, 7, 0, 1, 9, 2, 8, 3]),
        (10, 0, 1, [0, 6, 9, 1, 4, 7, 5, 8, 3, 2]),
        (65_537, 0, 0, [4448, 490, 22998, 59579, 11564, 2262]),
        (1_281_167, 7, 3, [939868, 490411, 1191767, 1027915, 1209692, 890852]),
        (10**9, 1, 1, [84972099, 811011840, 344364616, 455172981, 270007199, 517753453]),
    ],
)
def test_pinned_values(size, seed, epoch, first):
    assert Permutation(size, seed, epoch)(np.arange(len(first))).tolist() == first


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_small_ones_are_sorted_by_hashed_keys(size):
    data = b"".join(n.to_bytes(8, "little") for n in (size, 3, 4))
    digest = blake2b(data, digest_size=64, person=b"shardwriter.perm").digest()
    key, mask = int.from_bytes(digest[:8], "little"), 2**64 - 1

    def mix(place):
        z = key + (place + 1) * 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    expected = sorted(range(size), key=mix)
    assert Permutation(size, 3, 4)(np.arange(size)).tolist() == expected


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, 255, 65_535, 65_536, 65_537, 65_538, 66_049, 66_050, 100_000]
)
def test_it_is_a_permutation_with_an_inverse(size):
    permutation = Permutation(size, 5, 2)
    places = np.arange(size)
    items = permutation(places)
    assert items.dtype == np.int64
    assert np.array_equal(np.sort(items), places)
    assert np.array_equal(permutation.inverse(items), places)
    assert np.array_equal(permutation(permutation.inverse(places)), places)
    assert len(permutation) == size


@given(st.integers(SORTED_UP_TO + 1, 2**40), SEEDS, SEEDS, st.data())
@settings(max_examples=50)
def test_large_ones_are_inverted_place_by_place(size, seed, epoch, data):
    permutation = Permutation(size, seed, epoch)
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    items = permutation(places)
    assert ((items >= 0) & (items < size)).all()
    assert np.array_equal(permutation.inverse(items), places)


@pytest.mark.parametrize("size", [10, 70_000])
def test_blocks_give_what_the_whole_gives(size):
    permutation = Permutation(size, 1)
    whole = permutation(np.arange(size))
    parts = [permutation(np.arange(k, min(k + 999, size))) for k in range(0, size, 999)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert permutation(3) == whole[3]
    assert permutation([[1, 2], [3, 4]]).tolist() == whole[[1, 2, 3, 4]].reshape(2, 2).tolist()
    assert permutation([]).tolist() == []


@pytest.mark.parametrize("size", [1000, 70_000])
def test_seed_and_epoch_choose_the_order(size):
    places = np.arange(size)
    orders = {
        Permutation(size, seed, epoch)(places).tobytes()
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1), (2**64 - 1, 0)]
    }
    assert len(orders) == 5
    assert np.array_equal(Permutation(size, 1, 1)(places), Permutation(size, 1, 1)(places))


@pytest.mark.parametrize("size", [1000, 70_000])
@pytest.mark.parametrize("direction", ["__call__", "inverse"])
def test_what_lies_outside_is_refused(size, direction):
    permutation = Permutation(size, 0)
    for wrong in (size, -1, [0, size + 1]):
        with pytest.raises(IndexError, match="outside"):
            getattr(permutation, direction)(wrong)


def test_neighbours_are_spread_evenly():
    size = 70_000
    items = Permutation(size, 3)(np.arange(1000))
    counts = np.bincount(items * 10 // size, minlength=10)
    assert counts.min() > 60  # 100 are expected in each tenth
    assert counts.max() < 140


@pytest.mark.parametrize("size", [1, 10, 65_536, 65_537, 1_281_167, 10**9, 2**40])
def test_one_place_is_the_same_as_many(size):
    order = Permutation(size, 7, 3)
    places = [p % size for p in (0, 1, 2, 999, 12_345, size // 2, size - 1)]
    assert [order.item(place) for place in places] == order(places).tolist()
    for outside in (-1, size):
        with pytest.raises(IndexError, match="outside"):
            order.item(outside)
