"""Streams of unknown length: queues, generators that wait, iterators that can be read once."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import queue
import sys
import threading
import time

import pytest

import shardwriter as sw
from shardwriter.errors import (
    CallableError,
    FeatureError,
    OptionError,
    OutputExists,
    RunError,
    SourceError,
    WorkerDied,
)
from shardwriter.sources.python import PythonSource
from shardwriter.sources.queue import QueueItems
from shardwriter.writing.options import RunOptions

FALSY = [b"", {"x": 0}, {"x": []}, {}, b"\0"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    stop = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < stop:
        time.sleep(0.01)
    assert threading.active_count() == before


def started(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def joined(thread):
    thread.join(20)
    assert not thread.is_alive()


def produce(items, values):
    with items:
        for value in values:
            items.put(value)


def xs(path):
    return [record["x"] for record in sw.open(path)]


# -- a queue of ours -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("max_items", [1, 3, 1000])
def test_what_a_thread_puts_is_written_in_order(tmp_path, workers, max_items):
    items = sw.ItemQueue(max_items)
    thread = started(produce, items, [{"x": i} for i in range(200)])
    manifest = sw.write(items, tmp_path / "d@3", workers=workers)
    joined(thread)
    assert (manifest.num_items, xs(tmp_path / "d")) == (200, list(range(200)))


def test_several_producers_and_whoever_waits_for_them(tmp_path):
    items = sw.ItemQueue(4)
    threads = [
        started(lambda first: [items.put({"x": first + i}) for i in range(50)], 100 * n)
        for n in range(3)
    ]

    def close():
        for thread in threads:
            thread.join()
        items.close()

    closer = started(close)
    sw.write(items, tmp_path / "d@3")
    joined(closer)
    found = xs(tmp_path / "d")
    assert sorted(found) == [100 * n + i for n in range(3) for i in range(50)]
    for n in range(3):
        assert [x for x in found if x // 100 == n] == [100 * n + i for i in range(50)]


@pytest.mark.parametrize("kind", ["ours", "Queue", "SimpleQueue", "generator", "list"])
@pytest.mark.parametrize("workers", [1, 2])
def test_falsy_items_are_records(tmp_path, kind, workers):
    if kind == "ours":
        source = sw.ItemQueue()
        for item in FALSY:
            source.put(item)
        source.close()
    elif kind in ("Queue", "SimpleQueue"):
        source = getattr(queue, kind)()
        for item in [*FALSY, sw.END]:
            source.put(item)
    else:
        source = FALSY if kind == "list" else (item for item in FALSY)
    manifest = sw.write(source, tmp_path / "d@2", workers=workers)
    assert manifest.num_records == 5
    payloads = [sw.encode_example(item) if isinstance(item, dict) else item for item in FALSY]
    found = [list(sw.read_records(tmp_path / f"d.tfrecord-0000{s}-of-00002")) for s in range(2)]
    assert found == [payloads[0::2], payloads[1::2]]


@pytest.mark.parametrize("kind", ["ours", "Queue"])
def test_none_is_an_item_that_is_no_record(tmp_path, kind):
    items = sw.ItemQueue() if kind == "ours" else queue.Queue()
    for item in [{"x": 1}, None, {"x": 2}]:
        items.put(item)
    items.close() if kind == "ours" else items.put(sw.END)
    with pytest.raises(FeatureError, match="NoneType") as caught:
        sw.write(items, tmp_path / "d@2")
    assert caught.value.index == 1
    assert os.listdir(tmp_path) == []


class CameraLost(Exception):
    def __init__(self, number, reason):
        super().__init__(f"camera {number}: {reason}")


def film(items):
    with items:
        for i in range(7):
            items.put({"x": i})
        raise CameraLost(3, "unplugged")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_producer_ends_the_write_with_class_and_traceback(tmp_path, workers):
    items = sw.ItemQueue(2)

    def quietly():
        with pytest.raises(CameraLost):
            film(items)

    thread = started(quietly)
    with pytest.raises(CallableError, match="CameraLost: camera 3: unplugged") as caught:
        sw.write(items, tmp_path / "d@2", workers=workers)
    joined(thread)
    cause = caught.value.__cause__
    assert type(cause) is CameraLost
    assert caught.value.index == 7
    names = []
    traceback = cause.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "film" in names
    assert os.listdir(tmp_path) == []


def bad_at_3(item):
    if item["x"] == 3:
        raise ValueError("no place for 3")
    return item


@pytest.mark.parametrize("workers", [1, 2])
def test_a_write_that_fails_wakes_producers(tmp_path, workers):
    items = sw.ItemQueue(1)
    told = []

    def endless():
        try:
            with items:
                i = 0
                while True:
                    items.put({"x": i})
                    i += 1
        except RunError as error:
            told.append(error)

    threads = [started(endless) for _ in range(3)]
    with pytest.raises(CallableError, match="no place for 3"):
        sw.write(items, tmp_path / "d@2", map=bad_at_3, workers=workers)
    for thread in threads:
        joined(thread)
    assert len(told) == 3
    assert "has ended" in told[0].message


def test_a_write_that_does_not_begin_wakes_producers_too(tmp_path):
    sw.write([{"x": 1}], tmp_path / "d@2")
    items = sw.ItemQueue(1)

    def two():
        with pytest.raises(RunError, match=r"the write that (was reading|reads) this"):
            produce(items, [{"x": 1}, {"x": 2}, {"x": 3}])

    thread = started(two)
    with pytest.raises(OutputExists):
        sw.write(items, tmp_path / "d@2")
    joined(thread)


@pytest.mark.parametrize(
    "write",
    [
        lambda items, out: sw.write(items, out, limit=-1),
        lambda items, out: sw.write(source=items, out=out, schema="x=nonsense"),
        lambda items, out: sw.write_splits(items, out, "a=0.7,b=0.5"),
        lambda items, out: sw.write_splits({"a": items, "b": "nowhere"}, out, "source"),
        lambda items, out: sw.append(items, out, limit=-1),
        lambda items, out: sw.append(items, out.with_name("nowhere")),
    ],
)
def test_an_option_that_is_wrong_wakes_producers_too(tmp_path, write):
    items = sw.ItemQueue(1)

    def two():
        with pytest.raises(RunError, match=r"the write that (was reading|reads) this"):
            produce(items, [{"x": 1}, {"x": 2}])

    thread = started(two)
    with pytest.raises(OptionError):
        write(items, tmp_path / "d")
    joined(thread)


def test_a_limit_takes_no_more_and_wakes_producers(tmp_path):
    items = sw.ItemQueue(1)

    def many():
        with pytest.raises(RunError):
            produce(items, ({"x": i} for i in range(1000)))

    thread = started(many)
    assert sw.write(items, tmp_path / "d@2", limit=5).num_records == 5
    joined(thread)


def test_a_limit_that_is_reached_waits_for_nobody(tmp_path):
    items = sw.ItemQueue()
    for i in range(5):
        items.put({"x": i})
    assert sw.write(items, tmp_path / "d@2", limit=5, workers=2).num_records == 5


def test_a_queue_is_closed_once_for_all():
    items = sw.ItemQueue()
    items.put(1)
    items.close()
    items.close()
    with pytest.raises(OptionError, match="the queue is closed"):
        items.put(2)
    items.fail(ValueError("too late"))
    assert list(items) == [1]
    assert list(items) == []
    with pytest.raises(OptionError, match="max_items"):
        sw.ItemQueue(0)


def test_a_queue_is_written_once(tmp_path):
    items = sw.ItemQueue()
    items.put({"x": 1})
    items.close()
    source = PythonSource(items)
    assert len(list(source.items())) == 1
    with pytest.raises(SourceError, match="already read"):
        source.items()
    sw.write([{"x": 1}], tmp_path / "d@1")
    with pytest.raises(OptionError, match="can be read only once"):
        sw.write(sw.ItemQueue(), tmp_path / "d@1", resume=True)
    # A second write is an error, and does not put nothing in the place of the first.
    items = sw.ItemQueue()
    items.put({"x": 2})
    items.close()
    sw.write(items, tmp_path / "d@1", overwrite=True)
    with pytest.raises(SourceError, match="has ended"):
        sw.write(items, tmp_path / "d@1", overwrite=True)
    assert xs(tmp_path / "d") == [2]


# -- queues of Python's own ------------------------------------------------------------------------


def test_the_end_is_one_object_in_every_process():
    assert pickle.loads(pickle.dumps(sw.END)) is sw.END
    assert copy.deepcopy(sw.END) is sw.END
    assert repr(sw.END) == "END"


def put_many(items):
    for i in range(100):
        items.put({"x": i})
    items.put(sw.END)


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_queue_between_processes(tmp_path, kind, workers):
    items = getattr(multiprocessing.get_context("fork"), kind)()
    process = multiprocessing.get_context("fork").Process(target=put_many, args=(items,))
    process.start()
    sw.write(items, tmp_path / "d@3", workers=workers)
    process.join(20)
    assert xs(tmp_path / "d") == list(range(100))


def test_a_queue_of_a_manager(tmp_path):
    with multiprocessing.get_context("fork").Manager() as manager:
        items = manager.Queue()
        put_many(items)
        sw.write(items, tmp_path / "d@3", workers=2)
        assert xs(tmp_path / "d") == list(range(100))
        with pytest.raises(SourceError, match="expected a path, an iterable"):
            sw.write(manager.Event(), tmp_path / "e@1")


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_a_queue_between_threads(tmp_path, kind):
    items = getattr(queue, kind)()
    thread = started(put_many, items)
    sw.write(items, tmp_path / "d@3", workers=2)
    joined(thread)
    assert xs(tmp_path / "d") == list(range(100))


def test_a_queue_that_was_shut_down_has_ended(monkeypatch):
    class ShutDown(Exception):
        pass

    class Shut(queue.Queue):
        def get(self, block=True, timeout=None):
            if self.empty():
                raise ShutDown
            return super().get(block, timeout)

    kind = getattr(queue, "ShutDown", ShutDown)
    monkeypatch.setattr("shardwriter.sources.queue._SHUT_DOWN", (kind, ShutDown))
    items = Shut()
    items.put(1)
    assert list(QueueItems(items)) == [1]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="queues are shut down from Python 3.13 on")
def test_a_queue_that_is_shut_down(tmp_path):
    items = queue.Queue()
    items.put({"x": 1})
    items.shutdown()
    assert sw.write(items, tmp_path / "d@1").num_records == 1


# -- waiting ---------------------------------------------------------------------------------------


def sleeping(items, seconds):
    with items:
        for i in range(3):
            items.put({"x": i})
            time.sleep(seconds / 3)


@pytest.mark.parametrize("kind", ["queue", "generator"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_that_sleeps_costs_nothing(tmp_path, kind, workers):
    ticks = []

    def slow():
        for i in range(3):
            yield {"x": i}
            time.sleep(0.5)

    source = slow
    if kind == "queue":
        source = sw.ItemQueue()
        thread = started(sleeping, source, 1.5)
    before, begun = os.times(), time.monotonic()
    sw.write(source, tmp_path / "d@2", workers=workers, progress=lambda work: ticks.append(work))
    after, elapsed_s = os.times(), time.monotonic() - begun
    if kind == "queue":
        joined(thread)
        assert len(ticks) >= 4  # it ticks while nothing comes
    # Of this process: what workers are started with is not waiting.
    assert after.user + after.system - before.user - before.system < 0.05 * elapsed_s + 0.1
    assert xs(tmp_path / "d") == [0, 1, 2]


def die_at_1(item):
    if item["x"] == 1:
        os._exit(3)
    return item


@pytest.mark.parametrize("kind", ["ours", "Queue"])
def test_a_worker_that_dies_is_known_while_the_queue_is_empty(tmp_path, kind):
    items = sw.ItemQueue() if kind == "ours" else queue.Queue()
    for i in range(3):
        items.put({"x": i})
    begun = time.monotonic()
    with pytest.raises(WorkerDied, match="3") as caught:
        sw.write(items, tmp_path / "d@2", map=die_at_1, workers=2)
    assert time.monotonic() - begun < 30
    assert caught.value.index == 1
    assert os.listdir(tmp_path) == []


def test_an_item_that_fails_is_known_while_the_queue_is_empty(tmp_path):
    items = sw.ItemQueue()
    for i in range(5):
        items.put({"x": i})
    with pytest.raises(CallableError, match="no place for 3") as caught:
        sw.write(items, tmp_path / "d@2", map=bad_at_3, workers=2)
    assert caught.value.index == 3


# -- reading again ---------------------------------------------------------------------------------


def test_a_function_is_called_again_when_a_run_is_resumed(tmp_path):
    calls = []
    mended = []

    def make():
        calls.append(1)
        return ({"x": i} for i in range(100))

    def act(item):
        if item["x"] == 50 and not mended:
            raise ValueError("not yet")
        return item

    run = RunOptions(mark_s=0)
    with pytest.raises(CallableError, match="not yet"):
        sw.write(make, tmp_path / "d@2", map=act, run=run)
    mended.append(True)
    assert len(calls) == 1
    assert sw.write(make, tmp_path / "d@2", map=act, run=run, resume=True).num_records == 100
    assert len(calls) == 2
    assert xs(tmp_path / "d") == list(range(100))


@pytest.mark.parametrize("resume", [False, True])
def test_a_generator_that_was_read_is_an_error_and_never_nothing(tmp_path, resume):
    items = ({"x": i} for i in range(5))
    sw.write(items, tmp_path / "one@2")
    with pytest.raises(SourceError, match="already read"):
        sw.write(items, tmp_path / "two@2", resume=resume)
    assert not list(tmp_path.glob("two*"))


def test_a_function_that_gives_the_same_queue_again_is_refused():
    items = queue.Queue()
    items.put(1)
    items.put(sw.END)
    source = PythonSource(lambda: items)
    assert list(source.items()) == [1]
    with pytest.raises(SourceError, match="already read"):
        source.items()
