"""Prefetch: the same items and errors, made ahead within bounds, and no thread that stays."""

from __future__ import annotations

import gc
import threading
import time
import traceback

import numpy as np
import pytest

from shardwriter.errors import CorruptFile, OptionError
from shardwriter.reading.prefetch import prefetch


def threads():
    return [t for t in threading.enumerate() if t.name == "shardwriter-prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    assert not threads()


def wait_for(condition):
    limit = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


@pytest.mark.parametrize("num_items", [0, 1, 2, 100])
def test_items_come_as_they_are(num_items):
    items = [0, None, False, "", [], np.int64(0), {}, StopIteration(), ValueError("an item")]
    found = list(prefetch(items, num_items))
    assert len(found) == len(items)
    assert all(a is b for a, b in zip(found, items, strict=True))
    assert list(prefetch([], num_items)) == []
    assert list(prefetch(iter(range(1000)), num_items)) == list(range(1000))


@pytest.mark.parametrize("num_items", [0, 1, 8])
def test_an_error_comes_where_its_item_would_have(num_items):
    error = CorruptFile("broken", path="a", record_index=3, kind="bad-crc")

    def failing():
        yield from range(3)
        raise error

    found = []
    with pytest.raises(CorruptFile) as caught:
        found.extend(prefetch(failing(), num_items))
    assert found == [0, 1, 2]
    assert caught.value is error
    assert any(frame.name == "failing" for frame in traceback.extract_tb(error.__traceback__))


def test_an_error_of_iter_itself_comes_out():
    with pytest.raises(TypeError, match="not iterable"):
        list(prefetch(7, 2))


def test_at_most_num_items_are_computed_ahead():
    made = []

    def source():
        for i in range(100):
            made.append(i)
            yield i

    items = prefetch(source(), 3)
    assert made == [], "nothing is made before the first item is asked for"
    assert next(items) == 0
    # Three in the queue, and one that waits for its place.
    wait_for(lambda: len(made) == 5)
    time.sleep(0.05)
    assert len(made) == 5
    assert next(items) == 1
    wait_for(lambda: len(made) == 6)
    items.close()


def test_making_and_using_go_on_side_by_side():
    used = threading.Event()

    def source():
        yield 0
        assert used.wait(5), "the second item is made while the first is used"
        yield 1

    items = prefetch(source(), 1)
    assert next(items) == 0
    used.set()
    assert list(items) == [1]


def left_by_break(items):
    for _ in items:
        break
    items.close()


def left_by_del(items):
    next(items)
    del items


def left_by_error(items):
    def use():
        for item in items:
            raise KeyError(item)

    with pytest.raises(KeyError):
        use()
    items.close()


@pytest.mark.parametrize("leave", [left_by_break, left_by_del, left_by_error])
def test_left_early_the_thread_ends_and_the_source_is_closed(leave):
    closed = threading.Event()

    def source():
        try:
            yield from range(10**9)
        finally:
            closed.set()

    leave(prefetch(source(), 2))
    gc.collect()
    assert closed.is_set()
    assert not threads()


def test_one_that_was_never_begun_has_no_thread():
    items = prefetch(range(5), 2)
    assert not threads()
    del items


def test_a_used_item_is_not_referenced():
    class Thing:
        num_alive = 0

        def __init__(self):
            Thing.num_alive += 1

        def __del__(self):
            Thing.num_alive -= 1

    most = 0
    for thing in prefetch((Thing() for _ in range(200)), 2):
        most = max(most, Thing.num_alive)
        del thing
    assert most <= 8


def test_one_inside_of_another():
    inner = prefetch(range(50), 2)
    assert list(prefetch((i * 2 for i in inner), 3)) == list(range(0, 100, 2))


def test_a_negative_number_is_refused():
    with pytest.raises(OptionError):
        prefetch([], -1)
