"""The parts of the process pool, one by one: messages, pickled objects, errors, timers."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.errors import CallableError, CorruptFile, FeatureError, RunError, WorkerDied
from shardwriter.storage.open_files import Descriptor, Scratch
from shardwriter.writing import messages as channel_module
from shardwriter.writing import stages
from shardwriter.writing.messages import (
    Channel,
    ItemPacker,
    Mailbox,
    MessageTooLarge,
    RemoteTraceback,
    avoid_standard_streams,
    describe_exit,
    pack,
    pack_failure,
    unpack,
    unpack_failure,
    worker_died,
)
from shardwriter.writing.stages import StageTimer
from shardwriter.writing.worker import Worker

MESSAGES = [(1, b""), (255, b"x"), (2, bytes(range(256))), (3, b""), (4, b"end")]


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def wire(messages):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for kind, data in messages:
            Channel(ours).send(kind, data)
        return theirs.recv(1 << 16)


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_messages_that_come_in_pieces(pair, step):
    ours, theirs = pair
    data = wire(MESSAGES)
    mailbox = Mailbox(theirs)
    found = []
    for begin in range(0, len(data), step):
        ours.sendall(data[begin : begin + step])
        found += mailbox.messages()
    assert found == MESSAGES
    assert not mailbox.closed


def test_messages_that_are_split_at_every_byte(pair):
    data = wire(MESSAGES)
    for split in range(len(data) + 1):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            mailbox = Mailbox(theirs)
            ours.sendall(data[:split])
            found = list(mailbox.messages())
            ours.sendall(data[split:])
            assert found + list(mailbox.messages()) == MESSAGES


def test_a_channel_waits_for_the_complete_message(pair):
    ours, theirs = pair
    data = wire(MESSAGES)

    def send():
        for byte in data:
            ours.sendall(bytes([byte]))

    sender = threading.Thread(target=send)
    sender.start()
    assert [Channel(theirs).receive() for _ in MESSAGES] == MESSAGES
    sender.join()


@pytest.mark.parametrize("cut", [0, 1, 8, 9, 10, 100])
def test_the_other_side_closes_in_the_middle(cut):
    data = wire([(2, bytes(200))])
    for kind in (Channel, Mailbox):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.sendall(data[:cut])
            end = kind(theirs)
            if kind is Channel:
                assert end.receive() is None
            else:
                assert list(end.messages()) == []
                assert end.closed


def test_messages_sent_before_the_end_are_received(pair):
    ours, theirs = pair
    Channel(ours).send(7, b"last words")
    Mailbox(theirs).put(1, bytes(1 << 22))  # never read: the socket ends with an error
    mailbox = Mailbox(theirs)
    ours.close()
    assert list(mailbox.messages()) == [(7, b"last words")]
    assert mailbox.closed
    mailbox.put(1, b"into nothing")
    assert mailbox.pending_bytes == 0


def test_a_message_of_300_mb(pair):
    ours, theirs = pair
    size = 300_000_000
    mailbox, channel = Mailbox(ours), Channel(theirs)
    received = []

    def echo():
        kind, data = channel.receive()
        channel.send(kind + 1, data)

    other = threading.Thread(target=echo)
    other.start()
    mailbox.put(1, bytes(size - 1) + b"x")
    # What the socket does not take waits, and does not hold anybody up.
    assert size - (32 << 20) < mailbox.pending_bytes < size + 9
    while not received:
        select.select([ours], [ours] if mailbox.pending_bytes else [], [])
        mailbox.send()
        received += mailbox.messages()
    other.join()
    assert mailbox.pending_bytes == 0
    ((kind, data),) = received
    assert kind == 2
    assert len(data) == size
    assert data.endswith(b"\0x")


def test_an_offer_is_dropped_when_the_other_side_does_not_read(pair):
    ours, theirs = pair
    channel = Channel(ours)
    for i in range(10_000):  # far more than fits; none of them waits
        channel.offer(1, b"%d" % i + bytes(300))
    found = list(Mailbox(theirs).messages())
    assert 10 < len(found) < 10_000
    assert found[0] == (1, b"0" + bytes(300))
    channel.offer(2, b"again")
    assert list(Mailbox(theirs).messages()) == [(2, b"again")]


def test_an_offer_to_a_closed_socket(pair):
    ours, theirs = pair
    theirs.close()
    with pytest.raises(OSError, match="Broken pipe"):
        Channel(ours).offer(1, b"x")


# -- open files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300])
def test_any_number_of_open_files(pair, tmp_path, count):
    ours, theirs = pair
    files = [os.open(tmp_path / str(i), os.O_RDWR | os.O_CREAT) for i in range(count)]
    sender = threading.Thread(target=lambda: Channel(ours).send_descriptors(files))
    sender.start()
    found = Channel(theirs).receive_descriptors(count)
    sender.join()
    try:
        assert [os.fstat(f).st_ino for f in found] == [os.fstat(f).st_ino for f in files]
        # A process that the user's code starts must not have the lock of the run.
        assert not any(map(os.get_inheritable, found))
        Channel(ours).send(9, b"after")
        assert Channel(theirs).receive() == (9, b"after")
    finally:
        for file in files + found:
            os.close(file)


def test_more_open_files_than_there_may_be(pair, monkeypatch):
    ours, theirs = pair
    monkeypatch.setattr(channel_module, "_MAX_DESCRIPTORS", 10)
    Channel(ours).send_descriptors([0] * 10)
    monkeypatch.setattr(channel_module, "_MAX_DESCRIPTORS", 4)  # room for so many
    with pytest.raises(OSError, match="Too many open files"):
        Channel(theirs).receive_descriptors(10)


def test_open_files_of_a_side_that_is_gone(pair):
    ours, theirs = pair
    ours.close()
    with pytest.raises(EOFError):
        Channel(theirs).receive_descriptors(1)


def test_a_socket_with_the_number_of_a_standard_stream():
    code = (
        "import os, socket, sys\n"
        "from shardwriter.writing.messages import avoid_standard_streams\n"
        "os.close(0); os.close(1)\n"
        "ends = [avoid_standard_streams(end) for end in socket.socketpair()]\n"
        "ends[0].sendall(b'x')\n"
        "ok = ends[1].recv(1) == b'x' and min(end.fileno() for end in ends) > 2\n"
        "os._exit(0 if ok else 1)\n"
    )
    assert os.spawnv(os.P_WAIT, os.sys.executable, [os.sys.executable, "-c", code]) == 0


def test_a_socket_with_another_number_is_left_alone(pair):
    assert avoid_standard_streams(pair[0]) is pair[0]


# -- pickled objects -------------------------------------------------------------------------------


slices = st.builds(
    slice,
    st.none() | st.integers(-9, 9),
    st.none() | st.integers(-9, 9),
    st.none() | st.integers(-3, 3).filter(bool),
)
steps = st.lists(st.tuples(slices, slices, slices), max_size=3)


@pytest.fixture(scope="module")
def mapped_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapped") / "array"
    path.write_bytes(os.urandom(40) + np.arange(7 * 5 * 6, dtype="<i4").tobytes())
    return path


@settings(max_examples=150)
@given(
    steps,
    st.permutations([0, 1, 2]),
    st.sampled_from("CF"),
    st.sampled_from(["<i4", "<i2", ">f4", "S4", [("a", "<i2"), ("b", "S2")]]),
    st.sampled_from([0, 3, 40]),
    st.booleans(),
)
def test_a_view_of_a_mapped_file(mapped_path, steps, axes, order, dtype, offset, plain):
    view = np.memmap(mapped_path, dtype, "r", offset, (7, 5, 6), order=order).transpose(axes)
    for some in steps:
        view = view[some]
    if plain:
        view = np.asarray(view)
    data, descriptors = pack(view, 1 << 20)
    found = unpack(data, descriptors)
    assert found.dtype == view.dtype
    assert found.shape == view.shape
    assert found.tobytes() == view.tobytes()
    if view.size:
        assert found.strides == view.strides
        assert str(mapped_path).encode() in data
        assert len(data) < 1_000


def test_scalars_and_repeated_rows_of_a_mapped_file(mapped_path):
    mapped = np.memmap(mapped_path, "<i4", "r", 40, (7, 30))
    for view in (mapped[3, 4], mapped[3:4, 4:5].reshape(()), np.broadcast_to(mapped[2], (4, 30))):
        found = unpack(*pack(view, 1 << 20))
        assert np.array_equal(found, view)


def test_arrays_that_are_in_no_file(mapped_path):
    mapped = np.memmap(mapped_path, "<i4", "r", 40, (7, 30))
    for array in (mapped + 1, mapped.copy(), np.array(mapped), mapped.astype("f8"), mapped[:0]):
        data, _ = pack(array, 1 << 20)
        assert np.array_equal(unpack(data, []), array)
        assert str(mapped_path).encode() not in data


def test_a_limit_of_bytes():
    assert len(pack(bytes(1000), 1100)[0]) <= 1100
    with pytest.raises(MessageTooLarge):
        pack(bytes(1000), 1000)
    with pytest.raises(MessageTooLarge):
        pack([np.zeros(1000)], 1000)


def test_open_files_travel_as_open_files(tmp_path):
    scratch = Scratch()
    scratch.append(b"content")
    data, descriptors = pack({"file": scratch, "same": scratch}, 1 << 20)
    assert descriptors == [scratch.fileno()]
    there = os.dup(scratch.fileno())
    scratch.close()
    found = unpack(data, [there])
    assert found["file"] is found["same"]
    assert found["file"].read(0, 7) == b"content"
    found["file"].close()
    with pytest.raises(TypeError, match="open file"):
        pickle.dumps(Descriptor(os.open(os.devnull, os.O_RDONLY)))


@pytest.mark.parametrize("item", [b"", None, 0, {"a": [1, "__main__"]}, np.arange(3), "__main__"])
def test_items_come_back_as_they_were(item):
    assert repr(pickle.loads(ItemPacker().pack(item))) == repr(item)


# -- errors on their way ---------------------------------------------------------------------------


def sent(error, cause=None):
    try:
        raise error from cause
    except BaseException as raised:
        return unpack_failure(pack_failure(raised), "worker 3 (process 7)", lambda i: i % 4)


def test_an_error_keeps_its_fields_and_its_cause():
    error = sent(CallableError("text", index=9, item="row 9", hint="do"), ValueError("boom"))
    assert type(error) is CallableError
    assert (error.index, error.item, error.hint, error.shard) == (9, "row 9", "do", 1)
    assert error.summary == "item 9, 'row 9', shard 1, worker 3 (process 7): text"
    assert repr(error.__cause__) == "ValueError('boom')"
    assert isinstance(error.__cause__.__cause__, RemoteTraceback)
    assert "in sent" in str(error.__cause__.__cause__)
    corrupt = sent(CorruptFile("text", kind="crc", path="p", offset=3))
    assert (corrupt.kind, corrupt.path, corrupt.offset, corrupt.shard) == ("crc", "p", 3, None)


def test_errors_that_can_not_travel():
    class Own(FeatureError):
        def __init__(self, lock):
            super().__init__("text", index=5, feature="f", path="p")
            self.lock = lock

    error = sent(Own(threading.Lock()), OSError(threading.Lock()))
    assert type(error) is FeatureError
    assert error.message == "Own: text"
    assert (error.index, error.feature, error.path, error.shard) == (5, "f", "p", 1)
    assert isinstance(error.__cause__, RemoteTraceback)
    other = sent(OSError(threading.Lock()))
    assert type(other) is RunError
    assert "raised OSError: <unlocked _thread.lock" in other.message
    assert other.worker == "worker 3 (process 7)"


def test_an_error_that_holds_too_much():
    error = sent(CallableError("text", index=1), ValueError(bytes(17 << 20)))
    assert error.index == 1
    assert isinstance(error.__cause__, RemoteTraceback)


def test_an_error_that_is_no_exception():
    error = sent(KeyboardInterrupt())
    assert type(error) is KeyboardInterrupt
    assert isinstance(error.__cause__, RemoteTraceback)


@pytest.mark.parametrize(
    ("status", "words", "advice"),
    [
        (None, "the process is gone", "--engine serial"),
        (0, "ended itself with code 0", "os._exit"),
        (7 << 8, "ended itself with code 7", "os._exit"),
        (signal.SIGKILL, "was killed (SIGKILL)", "fewer workers"),
        (signal.SIGSEGV, "ended by SIGSEGV", "native code"),
        (signal.SIGSEGV | 128, "ended by SIGSEGV", "native code"),  # it left a core file
        (signal.SIGTERM, "ended by SIGTERM", "--engine serial"),
        (63, "ended by signal 63", "--engine serial"),
    ],
)
def test_how_a_worker_died(status, words, advice):
    assert words in describe_exit(status)[0]
    error = worker_died("worker 3 (process 7)", status, 5, "shards 0, 4")
    assert isinstance(error, WorkerDied)
    assert words in str(error)
    assert error.summary.endswith("at this item")
    assert error.summary.startswith("item 5, worker 3")
    assert advice in error.hint
    assert worker_died("w", status, None, "shards 0, 4").summary.endswith(
        "while it wrote shards 0, 4"
    )


# -- clocks and seeds ------------------------------------------------------------------------------


class Clock:
    """A clock that goes on by what the work is said to take."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(stages, "perf_counter", lambda: self.now)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])  # all items are timed, or a few of them
def test_the_shares_of_the_stages(monkeypatch, scale):
    clock = Clock(monkeypatch)
    watch = StageTimer()
    for _ in range(1000):
        clock.now += 4 * scale  # the source
        timed = watch.start()
        for stage, spent in (("map", 3), ("encode", 2), ("write", 1)):
            clock.now += spent * scale
            if timed:
                watch.lap(stage)
        if timed:
            watch.stop()
    total = 10 * 1000 * scale
    assert watch.seconds["map"] == pytest.approx(0.3 * total, rel=0.1)
    assert watch.seconds["encode"] == pytest.approx(0.2 * total, rel=0.1)
    assert watch.seconds["write"] == pytest.approx(0.1 * total, rel=0.1)


def test_time_aside_is_counted_once(monkeypatch):
    clock = Clock(monkeypatch)
    watch = StageTimer("wait")
    watch.start()
    clock.now += 1
    with watch.aside("sync"):
        clock.now += 5
    clock.now += 1
    watch.lap("write")
    watch.stop()
    clock.now += 3
    watch.start()
    assert watch.seconds == dict.fromkeys(stages.STAGES, 0.0) | {"sync": 5, "write": 2, "wait": 3}
    other = StageTimer()
    other.add(watch.seconds)
    other.add({"map": 4})
    assert other.seconds == watch.seconds | {"map": 4}


def test_a_block_is_always_timed(monkeypatch):
    clock = Clock(monkeypatch)
    watch = StageTimer()
    for _ in range(10):
        watch.start_block()
        clock.now += 1e-6
        watch.lap("encode")
        watch.stop()
    assert watch.seconds["encode"] == pytest.approx(10e-6)


PINNED = 16278197082342726356


def test_the_seed_of_an_item_is_pinned():
    worker = Worker(1, 2, 4, range(1, 4, 2), 5, lambda index: index + 1000, [7])
    assert worker.item_index == 7
    assert worker.item_seed == PINNED
    assert Worker(0, 1, 9, range(9), 5, lambda index: index, [1007]).item_seed == PINNED
    assert Worker(0, 1, 9, range(9), 6, lambda index: index, [1007]).item_seed != PINNED
