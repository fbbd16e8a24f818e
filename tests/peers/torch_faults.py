"""An error in a loader worker is raised at once with its class, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import time
import traceback
import types

import pytest
import torch
from processes import children, until
from torch_sets import N, ids, quiet, shared_memory, write

from shardwriter.errors import (
    CallableError,
    CorruptFile,
    ItemTimeout,
    OptionError,
    RunError,
    WorkerDied,
)
from shardwriter.reading.opening import open_dataset
from shardwriter.reading.torch import IterableShards, ShardLoader
from shardwriter.writing.messages import RemoteTraceback

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
quiet()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("torch"))


@pytest.fixture(autouse=True)
def nothing_left():
    threads, shm = threading.active_count(), shared_memory()
    yield
    assert not children(os.getpid())
    until(lambda: threading.active_count() == threads)
    assert shared_memory() <= shm


class OddError(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")
        self.one, self.other = one, other

    def __reduce__(self):
        return OddError, (self.one, self.other)


def failing(error, at=42):
    def act(example):
        if example["i"] == at:
            raise error
        return {"i": example["i"]}

    return act


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_error_in_a_map_arrives_whole(path, num_workers):
    loader = ShardLoader(path, 5, map=failing(OddError("a", {"b": 1})), num_workers=num_workers)
    seen = []
    with pytest.raises(OddError, match="a and") as caught:
        seen.extend(loader)
    assert ids(seen) == list(range(40))  # all that came before it
    assert caught.value.other == {"b": 1}
    shown = "".join(traceback.format_exception(caught.value))
    assert sys.version_info < (3, 11) or "in the map of item 42" in shown
    if num_workers:
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in act" in str(caught.value.__cause__)
        assert f"loader worker {8 % num_workers} (pid" in str(caught.value.__cause__)
    # The state is that of what came out, and the loader can be used again.
    assert loader.state_dict()["consumed"] == 40
    assert next(iter(loader))["i"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("error", [StopIteration(), SystemExit(3)])
def test_what_would_end_the_epoch_or_the_worker_is_an_error(path, num_workers, error):
    loader = ShardLoader(path, 5, map=failing(error), num_workers=num_workers)
    with pytest.raises(CallableError, match=type(error).__name__) as caught:
        list(loader)
    assert caught.value.index == 42
    assert caught.value.record_index == 42 // 5
    assert caught.value.path.endswith("t.tfrecord-00002-of-00005")

    def stop(_):
        raise StopIteration

    with pytest.raises(CallableError, match="collate raised StopIteration"):
        list(ShardLoader(path, 5, collate=stop, num_workers=num_workers))
    with pytest.raises(CallableError, match="StopIteration"):
        list(IterableShards(path, 5, map=failing(StopIteration())))


def test_an_error_of_a_keyboard_goes_through(path):
    loader = ShardLoader(path, 5, map=failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_record_is_named(tmp_path, num_workers):
    path = write(tmp_path)
    shard = tmp_path / "t.tfrecord-00003-of-00005"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptFile, match="CRC") as caught:
        list(ShardLoader(open_dataset(path), 5, num_workers=num_workers))
    assert caught.value.path == str(shard)
    assert caught.value.index == caught.value.record_index * 5 + 3
    assert caught.value.offset is not None
    if num_workers:
        assert "loader worker" in caught.value.worker


def test_an_unpicklable_batch_is_an_error_at_once(path):
    loader = ShardLoader(path, 5, map=lambda _: threading.Lock(), collate=list, num_workers=1)
    with pytest.raises(OptionError, match="can not pickle"):
        list(loader)
    assert len(list(ShardLoader(path, 5, map=lambda _: threading.Lock(), collate=list))) == 21


def kill_at(number, how):
    def act(example):
        if example["i"] == number:
            how()
        return {"i": example["i"]}

    return act


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_at_once(path, persistent):
    shown = {}

    def kill():
        shown["at"] = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)

    loader = ShardLoader(
        path, 5, map=kill_at(42, kill), num_workers=2, persistent_workers=persistent
    )
    begin = time.monotonic()
    with pytest.raises(WorkerDied, match="SIGKILL") as caught:
        list(loader)
    assert time.monotonic() - begin < 2
    error = caught.value
    assert error.worker.startswith("loader worker 0 (pid ")
    assert "batch 8 of epoch 0 (records 40, 41, 42, 43, ...)" in error.message
    assert (error.index, error.record_index, error.shard) == (42, 8, 2)
    assert error.path.endswith("t.tfrecord-00002-of-00005")
    assert "memory" in error.hint
    assert not children(os.getpid())
    loader.set_epoch(1)
    assert next(iter(loader))["i"].tolist() == [0, 1, 2, 3, 4]
    del loader, caught, error
    gc.collect()


def test_a_worker_killed_between_two_batches(path):
    loader = ShardLoader(path, 5, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    (pid,) = children(os.getpid())
    done = threading.Event()

    def kill():
        os.kill(pid, signal.SIGKILL)
        done.set()

    thread = threading.Thread(target=kill)
    thread.start()
    done.wait()
    time.sleep(0.3)  # nothing is raised into the caller's own code
    thread.join()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        list(iterator)


@pytest.mark.parametrize("pause_s", [0, 0.1, 0.3])
def test_a_worker_that_is_killed_while_it_sends_a_large_batch(path, pause_s):
    loader = ShardLoader(
        path, 4, map=lambda _: bytes(16 << 20), collate=list, num_workers=1, prefetch_factor=1
    )
    iterator = iter(loader)
    next(iterator)
    (pid,) = children(os.getpid())
    timer = threading.Timer(pause_s, os.kill, (pid, signal.SIGKILL))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        list(iterator)
    assert time.monotonic() - begin < 2 + pause_s
    timer.join()


@pytest.mark.parametrize(
    ("how", "match"),
    [(lambda: os._exit(7), "with code 7"), (lambda: os.kill(os.getpid(), 11), "SIGSEGV")],
)
def test_another_end_of_a_worker_is_named(path, how, match):
    with pytest.raises(WorkerDied, match=match):
        list(ShardLoader(path, 5, map=kill_at(42, how), num_workers=2))


def test_no_limit_counts_where_none_is_given(path):
    loader = ShardLoader(path, 50, map=kill_at(60, lambda: time.sleep(1)), num_workers=1)
    assert len(ids(loader)) == N


@pytest.mark.parametrize("persistent", [False, True])
def test_a_batch_that_takes_too_long_is_named(path, persistent):
    loader = ShardLoader(
        path, 5, map=kill_at(42, lambda: time.sleep(60)), num_workers=2, item_timeout_s=0.5,
        persistent_workers=persistent,
    )  # fmt: skip
    begin = time.monotonic()
    with pytest.raises(ItemTimeout, match=r"no batch for 0\.\d s .*batch 8 of epoch 0") as caught:
        list(loader)
    assert time.monotonic() - begin < 3
    error = caught.value
    assert (error.index, error.record_index, error.shard) == (42, 8, 2)
    assert "pid" in error.worker
    assert "item_timeout_s" in error.hint
    assert not children(os.getpid())


def test_the_start_has_a_limit_of_its_own(path):
    def slow_start(example):
        if example["i"] == 0:
            time.sleep(0.8)
        return {"i": example["i"]}

    options = {"map": slow_start, "num_workers": 1, "batch_size": 5}
    assert len(ids(ShardLoader(path, **options, item_timeout_s=0.5))) == N
    assert len(ids(ShardLoader(path, **options, start_timeout_s=10, item_timeout_s=0.5))) == N
    with pytest.raises(ItemTimeout, match=r"start_timeout_s=0\.3"):
        list(ShardLoader(path, **options, start_timeout_s=0.3))


def test_slow_training_is_no_timeout(path):
    loader = ShardLoader(path, 40, num_workers=1, item_timeout_s=0.3)
    for _ in loader:
        time.sleep(0.5)


@pytest.fixture
def accelerator(monkeypatch):
    """Torch believes in an accelerator, whose pinned memory is any memory."""
    pinned = []
    kind = types.SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: kind)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(1) or self)
    return pinned


# What a killed worker sent can not be fetched: that ends torch's own thread, too, not in silence.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_pinned_and_nothing_else_changes(path, accelerator, num_workers):
    plain = list(ShardLoader(path, 20))
    pinned = list(ShardLoader(path, 20, pin_memory=True, num_workers=num_workers))
    assert ids(pinned) == ids(plain)
    assert [type(batch) for batch in pinned] == [dict] * 6
    assert pinned[0]["name"] == plain[0]["name"]
    assert len(accelerator) > 6
    for how, error in (
        (lambda: os.kill(os.getpid(), signal.SIGKILL), WorkerDied),
        (lambda: time.sleep(60), ItemTimeout),
        (lambda: 1 / 0, ZeroDivisionError),
    ):
        if num_workers:
            options = {"num_workers": num_workers, "pin_memory": True, "item_timeout_s": 1}
            begin = time.monotonic()
            with pytest.raises(error):
                list(ShardLoader(path, 5, map=kill_at(42, how), **options))
            assert time.monotonic() - begin < 10  # torch's thread looks up every 5 s


def test_no_signal_handler_is_left(path):
    wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1]
    before = [signal.getsignal(number) for number in wanted]
    list(ShardLoader(path, 40, num_workers=1, item_timeout_s=30, start_timeout_s=30))
    assert [signal.getsignal(number) for number in wanted] == before


def test_no_cuda_is_touched(path):
    list(ShardLoader(path, 40, num_workers=1))
    assert not torch.cuda.is_initialized()


def test_an_unpicklable_batch_is_an_error_in_any_batch(path):
    def collate(samples):  # the first batches can be sent
        numbers = [int(sample["i"]) for sample in samples]
        return (lambda: numbers) if 42 in numbers else numbers

    seen = []
    with pytest.raises(OptionError, match="can not pickle"):
        seen.extend(n for b in ShardLoader(path, 5, collate=collate, num_workers=2) for n in b)
    assert seen == list(range(40))


def as_list(samples):
    return [torch.from_numpy(sample["boxes"]) for sample in 3 * samples]


def test_tensors_beyond_the_limit_of_files_are_an_error(path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (now + 75, hard))
    try:
        with pytest.raises(RunError, match="too many open files") as caught:
            list(ShardLoader(path, 80, collate=as_list, num_workers=1))
        # What varies in shape by itself goes as one tensor.
        (whole, rest) = ShardLoader(path, 80, num_workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n" in caught.value.hint
    assert [len(box) for box in whole["boxes"] + rest["boxes"]] == [k % 3 + 1 for k in range(N)]


def test_an_error_does_not_wait_for_other_batches(path):
    def slow(example):
        if example["i"] == 3:
            raise ValueError("it is 3")
        time.sleep(0.5 if example["i"] >= 20 else 0)
        return {"i": example["i"]}

    begin = time.monotonic()
    with pytest.raises(ValueError, match="it is 3"):
        list(ShardLoader(path, 20, map=slow, num_workers=2))
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize("whole", [True, False])
def test_persistent_workers_are_restarted_if_one_died_between_epochs(path, whole):
    loader = ShardLoader(path, 10, num_workers=2, persistent_workers=True)
    for _ in loader:
        if not whole:
            break
    os.kill(loader._iterator._workers[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        list(loader)
    assert not children(os.getpid())
    assert ids(loader) == list(range(N))


def test_persistent_workers_serve_one_iteration(path):
    loader = ShardLoader(path, 10, num_workers=2, persistent_workers=True)
    first, second = iter(loader), iter(loader)
    next(first)
    assert next(second)["i"][0] == 0
    with pytest.raises(OptionError, match="a newer iteration"):
        next(first)
    assert ids(second) == list(range(10, N))
