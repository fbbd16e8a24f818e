"""Datasets as sequences: every view holds what arithmetic says, from any thread or process."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwriter as sw
from shardwriter.dataset.permutation import Permutation
from shardwriter.errors import OptionError, SourceChanged, UnequalSteps, WireError
from shardwriter.reading import dataset as dataset_module
from shardwriter.sources import shard_records
from shardwriter.storage import open_files as file_pool

N = 103
GONE = (4, 5, 60)
IDS = [i for i in range(N) if i not in GONE]


@pytest.fixture(scope="module", params=["none", "gzip", "zlib"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    rows = [{"id": i, "x": np.full((2, 3), i, np.float32), "s": f"n{i}"} for i in range(N)]
    skip = lambda row: sw.SKIP if row["id"] in GONE else row  # noqa: E731
    sw.write(rows, folder / "t@7", map=skip, compression=request.param)
    return folder


@pytest.fixture
def data(folder):
    with sw.open(folder / "t") as dataset:
        yield dataset


@pytest.fixture
def own(tmp_path):
    """A dataset that a test may damage: payloads of 20 to 80 bytes in 3 shards."""
    sw.write([bytes([i]) * (20 + i) for i in range(60)], tmp_path / "t@3")
    return tmp_path


def ids(dataset):
    return [int(row["id"]) for row in dataset]


def shard(folder, number):
    return sorted(folder.glob("*.tfrecord-*"))[number]


def replace_bytes(path, at, new):
    """Change a file in place, and say that nothing was changed."""
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(new)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


# -- what a sequence is ----------------------------------------------------------------------------


def test_examples_have_the_types_that_were_written(data):
    example = data[10]
    assert example["id"] == IDS[10]
    assert example["id"].dtype == np.int64
    assert example["x"].shape == (2, 3)
    assert example["x"].dtype == np.float32
    assert example["s"] == f"n{IDS[10]}"
    assert list(example) == list(next(iter(data[10:])))


def test_payloads_are_the_bytes_that_were_written(data, folder):
    raw = data.raw()
    assert raw[7] == data.payloads([7])[0]
    assert sw.decode_example(raw[7])["id"][0] == IDS[7]
    assert list(raw) == list(sw.open(folder / "t", decode=False)) == data.payloads(range(100))
    assert ids(raw.decoded()) == IDS


def test_indices_are_those_of_a_list(data):
    assert len(data) == len(IDS)
    for row in (0, 50, -1, -100, np.int64(3), True):
        assert data[row]["id"] == IDS[row]
    for row in (100, -101, np.uint8(200)):
        with pytest.raises(IndexError, match=f"record {row} of 100"):
            data[row]
    for row in (1.0, "1", None):
        with pytest.raises(TypeError):
            data[row]
    for rows in ([0, 100], [-101]):
        with pytest.raises(IndexError, match="of 100"):
            data[rows]
        with pytest.raises(IndexError):
            data.__getitems__(rows)
    with pytest.raises(IndexError, match="int64"):
        data[[0.5]]
    assert ids(data[[]]) == []
    assert ids(data[np.arange(100) % 50 == 3]) == [IDS[3], IDS[53]]
    assert data.__getitems__([3, 1, 1, -1])[2]["id"] == IDS[1]


_ROWS = st.integers(-130, 130) | st.none()
_STEPS = st.one_of(
    st.builds(slice, _ROWS, _ROWS, st.integers(-5, 5).filter(bool) | st.none()),
    st.lists(st.integers(0, 1 << 20), max_size=12).map(tuple),
    st.tuples(st.just("shuffle"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(
        st.just("split"),
        st.integers(1, 5),
        st.sampled_from(["drop", "pad", "wrap"]),
        st.integers(0, 1 << 20),
        st.integers(0, 1 << 20),
    ),
)


def taken(view, model, pads, step):
    """A step of a view, and of the list that it stands for."""
    if isinstance(step, slice):
        return view[step], model[step], pads[step]
    if step[:1] == ("shuffle",):
        order = Permutation(len(model), *step[1:])(np.arange(len(model))).tolist()
        return view.shuffle(*step[1:]), [model[i] for i in order], [pads[i] for i in order]
    if step[:1] == ("split",):
        world, uneven = step[1:3]
        if not model or (uneven == "drop" and len(model) < world):
            return view, model, pads
        rank, consumed = step[3] % world, step[4] % (len(model) + 1)
        remaining = len(model) - consumed
        count = remaining // world if uneven == "drop" else -(-remaining // world)
        draws = [consumed + t * world + rank for t in range(count)]
        return (
            view.split(rank, world, uneven, consumed),
            [model[q % len(model)] for q in draws],
            [(q >= len(model) and uneven == "pad") or pads[q % len(model)] for q in draws],
        )
    rows = [row % len(model) for row in step] if model else []
    return view[rows], [model[row] for row in rows], [pads[row] for row in rows]


@given(st.lists(_STEPS, max_size=4), st.randoms())
def test_views_of_views_are_what_lists_of_lists_are(folder, steps, random):
    view, model, pads = sw.open(folder / "t"), IDS, [False] * len(IDS)
    for step in steps:
        view, model, pads = taken(view, model, pads, step)
    has_pads = any(step[2:3] == ("pad",) for step in steps if not isinstance(step, slice))
    assert len(view) == len(model)
    examples = list(view)
    assert [int(example["id"]) for example in examples] == model
    assert all(
        example.get("is_pad", False) is pad for example, pad in zip(examples, pads, strict=True)
    )
    assert has_pads or not any("is_pad" in example for example in examples)
    if model:
        rows = [random.randrange(len(model)) for _ in range(5)]
        assert [int(view[row]["id"]) for row in rows] == [model[row] for row in rows]
        assert [view.source_index(row) for row in rows] == [model[row] for row in rows]
        assert [view.is_pad(row) for row in rows] == [pads[row] for row in rows]
        assert [int(e["id"]) for e in view.__getitems__(rows)] == [model[row] for row in rows]
        columns = view.columns(rows)
        assert columns["id"].tolist() == [model[row] for row in rows]
        assert columns["x"].shape == (5, 2, 3)
        assert "is_pad" not in columns or columns["is_pad"].tolist() == [pads[row] for row in rows]
        place = view.place(rows[0])
        assert place.shard_index == model[rows[0]] % 7
        with sw.open(place.path, decode=False) as alone:
            assert alone[place.record_index] == view.payloads(rows[:1])[0]
    again = pickle.loads(pickle.dumps(view))
    assert ids(again) == model
    assert repr(again) == repr(view)


def test_a_split_needs_a_policy_where_it_does_not_divide(data):
    with pytest.raises(UnequalSteps, match="100 records for 3 ranks"):
        data.split(0, 3)
    assert ids(data.split(1, 4)) == IDS[1::4]
    with pytest.raises(OptionError):
        data.split(3, 3)
    with pytest.raises(OptionError, match="seed is -1"):
        data.shuffle(-1)


def test_a_feature_that_is_called_like_the_mark_of_pads(tmp_path):
    sw.write([{"is_pad": i} for i in range(3)], tmp_path / "t@1")
    with pytest.raises(OptionError, match="has a feature of that name"):
        sw.open(tmp_path / "t").split(0, 2, "pad")
    assert len(sw.open(tmp_path / "t").raw().split(0, 2, "pad")) == 2


def test_records_that_are_empty_are_records(tmp_path):
    sw.write([b"", b"a", b"", b""], tmp_path / "t@2")
    dataset = sw.open(tmp_path / "t", decode=False)
    assert list(dataset) == [b"", b"a", b"", b""] == [dataset[i] for i in range(4)]


def test_what_is_no_example_says_how_to_read_it(own):
    dataset = sw.open(own / "t")
    for read in (lambda: dataset[4], lambda: list(dataset[4:]), lambda: dataset.columns([4])):
        with pytest.raises(WireError) as caught:
            read()
        error = caught.value
        assert (error.path, error.record_index, error.index) == (str(shard(own, 1)), 1, 4)
        assert "decode=False" in error.hint
    assert len(dataset.raw()[4]) == 24


def test_timings_are_measured_on_request(folder):
    assert sw.open(folder / "t").timings == {}
    dataset = sw.open(folder / "t", timings=True)
    assert dataset.timings == {"read": 0.0, "check": 0.0, "decode": 0.0}
    list(dataset)
    assert dataset[3]["id"] == IDS[3]
    assert all(seconds > 0 for seconds in dataset.timings.values())
    assert set(pickle.loads(pickle.dumps(dataset)).timings.values()) == {0.0}


def test_what_is_closed_is_not_read(folder):
    dataset = sw.open(folder / "t")
    view = dataset[3:]
    assert view[0]["id"] == IDS[3]
    dataset.close()
    dataset.close()
    for read in (lambda: view[0], lambda: list(view)):
        with pytest.raises(ValueError, match="closed"):
            read()


# -- reading in blocks -----------------------------------------------------------------------------


@pytest.mark.parametrize("most_bytes", [1, 300, 5000])
@pytest.mark.parametrize("large", [16, 60, 1 << 15])
def test_blocks_of_any_size_hold_the_same(folder, monkeypatch, most_bytes, large):
    expected = sw.open(folder / "t", decode=False).payloads(range(100))
    monkeypatch.setattr(dataset_module, "_BLOCK_BYTES", most_bytes)
    monkeypatch.setattr(dataset_module, "LARGE_BYTES", large)
    monkeypatch.setattr(dataset_module, "_WINDOW", 7)
    monkeypatch.setattr(shard_records, "LARGE_BYTES", large)
    monkeypatch.setattr(shard_records, "_BATCH_BYTES", most_bytes)
    monkeypatch.setattr(shard_records, "_HOLE_BYTES", most_bytes // 2)
    dataset = sw.open(folder / "t", decode=False)
    assert list(dataset) == expected
    assert list(dataset[::-3]) == expected[::-3]
    rows = np.random.default_rng(1).integers(0, 100, 300)
    assert dataset.payloads(rows) == [expected[row] for row in rows]
    assert list(dataset.shuffle(2)) == [expected[i] for i in Permutation(100, 2)(np.arange(100))]


def test_a_block_of_records_that_are_larger_than_most_is_cut(tmp_path, monkeypatch):
    sizes = [10] * 400 + [3000] * 20 + [10] * 400
    rows = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    sw.write(rows, tmp_path / "t@2")
    monkeypatch.setattr(dataset_module, "_BLOCK_BYTES", 8_000)
    dataset = sw.open(tmp_path / "t", decode=False)
    read, at_once = dataset._core.reader.payloads, []

    def noted(*places):
        payloads = read(*places)
        at_once.append(sum(map(len, payloads)))
        return payloads

    monkeypatch.setattr(dataset._core.reader, "payloads", noted)
    assert list(dataset) == rows
    assert max(at_once) <= 16_000
    assert len(at_once) > 5


def test_members_are_inflated_once_in_source_order(tmp_path, monkeypatch):
    blob = np.random.default_rng(0).integers(0, 99, 5000).astype(np.uint8).tobytes()
    rows = [blob[i:] + blob[:i] for i in range(1500)]
    sw.write(rows, tmp_path / "t@3", compression="gzip")
    inflated = []
    inflate_block = shard_records.inflate_block

    def counted(data, *arguments):
        inflated.append(len(data))
        return inflate_block(data, *arguments)

    monkeypatch.setattr(shard_records, "inflate_block", counted)
    dataset = sw.open(tmp_path / "t", decode=False)
    assert list(dataset) == rows
    num_members = int(dataset._core.reader.index.counts.sum())
    assert num_members > 6
    assert len(inflated) == num_members
    # A cache that holds one member only is only slower.
    monkeypatch.setattr(shard_records, "_MAX_BLOCKS_BYTES", 1)
    small = sw.open(tmp_path / "t", decode=False)
    assert small.payloads(range(0, 1500, 50)) == rows[::50]
    assert len(small._core.reader._blocks._blocks) == 1


def test_every_iteration_starts_again_and_may_end_early(data):
    before = threading.active_count()
    first = iter(data)
    assert next(first)["id"] == IDS[0]
    second = iter(data)
    assert next(second)["id"] == IDS[0]
    assert next(first)["id"] == IDS[1]
    for example in data:
        if example["id"] == IDS[2]:
            break
    del first, second
    assert threading.active_count() == before
    assert ids(data) == ids(data) == IDS


def test_numbers_over_int64_are_no_rows(data):
    for rows in (np.array([2**64 - 1], np.uint64), np.array([2**63], np.uint64)):
        with pytest.raises(IndexError):
            data.payloads(rows)
        with pytest.raises(IndexError):
            data[rows]


def test_rows_one_by_one_are_those_of_the_array(data):
    views = [
        data[3:90:2],
        data[[5, 4, 4, 90]],
        data.shuffle(1),
        data.split(1, 3, "pad"),
        data.shuffle(2).split(0, 3, "wrap")[::-1],
    ]
    for view in views:
        rows = [int(view.source_index(row)) for row in range(len(view))]  # in a window
        fresh = view[:]
        back = [fresh.source_index(row) for row in reversed(range(len(view)))]  # one by one
        assert back[::-1] == rows == ids(view)


def test_compressed_records_are_read_in_blocks_of_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_module, "_BLOCK_BYTES", 1 << 20)
    rows = [bytes([i]) * (1 << 17) for i in range(200)]
    sw.write(rows, tmp_path / "t@2", compression="gzip")
    (tmp_path / "t.manifest.json").unlink()  # with which the mean size is lost
    dataset = sw.open(tmp_path / "t", decode=False)
    blocks = []
    read = dataset._core.reader.payloads
    monkeypatch.setattr(
        dataset._core.reader, "payloads", lambda *places: blocks.append(read(*places)) or blocks[-1]
    )
    assert list(dataset) == rows
    assert max(sum(map(len, block)) for block in blocks) <= 2 << 20
    assert len(blocks) <= 30


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["length", "length CRC", "payload", "CRC"])
def test_a_damaged_record_is_named_and_others_are_read(own, at):
    dataset = sw.open(own / "t", decode=False)
    expected = list(dataset)
    row = 31  # record 10 of shard 1
    begin = int(dataset._core.reader.index.ends(1)[9])
    skip = {"length": 0, "length CRC": 8, "payload": 12, "CRC": 12 + len(expected[row])}[at]
    replace_bytes(shard(own, 1), begin + skip, b"\xfe")
    for read in (
        lambda: dataset[row],
        lambda: list(dataset),
        lambda: dataset.payloads([3, row, 5]),
        lambda: list(dataset.shuffle(1)),
    ):
        with pytest.raises(sw.DataError) as caught:
            read()
        error = caught.value
        assert error.kind in ("length-crc", "payload-crc", "index", "truncated")
        assert error.path == str(shard(own, 1))
        assert (error.record_index, error.offset, error.index) == (10, begin, row)
        assert "verify" in error.hint
    seen = []
    with pytest.raises(sw.DataError):
        seen += iter_into(seen, dataset)
    assert seen == expected[:row]
    rest = [i for i in range(60) if i != row]
    assert dataset.payloads(rest) == [dataset[i] for i in rest] == [expected[i] for i in rest]
    unchecked = sw.open(own / "t", decode=False, check=False)
    if at in ("payload", "CRC"):
        assert len(unchecked[row]) == len(expected[row])
    else:
        with pytest.raises(sw.DataError):
            unchecked[row]


def iter_into(seen, dataset):
    for payload in dataset:
        seen.append(payload)
    return []


def test_a_damaged_member_is_read_up_to_the_damage(tmp_path):
    rows = [os.urandom(500) for _ in range(200)]
    sw.write(rows, tmp_path / "t@1", compression="gzip")
    path = shard(tmp_path, 0)
    dataset = sw.open(tmp_path / "t", decode=False)
    replace_bytes(path, path.stat().st_size // 2, b"\x00" * 40)
    bad = []
    for row in range(200):
        try:
            assert dataset[row] == rows[row]
        except sw.DataError as error:
            assert (error.path, error.record_index, error.index) == (str(path), row, row)
            bad.append(row)
    assert bad
    assert bad[0] > 20
    with pytest.raises(sw.DataError):
        sw.open(tmp_path / "t", decode=False, check=False)[0]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_truncated_or_replaced_file_is_an_error(own, is_open):
    dataset = sw.open(own / "t", decode=False, max_open_files=1)
    assert dataset[1]
    if not is_open:
        assert dataset[2]
    path = shard(own, 1)
    data = path.read_bytes()
    path.write_bytes(data[:100])
    with pytest.raises(SourceChanged, match="has changed since the dataset was opened") as caught:
        dataset[58]
    assert caught.value.path == str(path)
    path.unlink()
    with pytest.raises(SourceChanged):
        dataset[58]
    assert dataset[2]


def test_an_index_that_was_replaced_is_not_taken_by_another_process(own):
    dataset = sw.open(own / "t", decode=False)
    whole = pickle.dumps(dataset)
    index = own / "t.index"
    os.utime(index, ns=(1, 1))
    with pytest.raises(SourceChanged):
        pickle.loads(whole)
    # What is mapped here goes along then.
    assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset)


# -- open files, threads, processes ----------------------------------------------------------------


def num_open(folder):
    links = Path("/proc/self/fd")
    if not links.is_dir():
        pytest.skip("there is no /proc")
    found = []
    for link in links.iterdir():
        try:
            found.append(os.readlink(link))
        except OSError:
            continue
    return sum(name.startswith(str(folder)) and ".tfrecord" in name for name in found)


@pytest.mark.parametrize("most", [1, 3])
def test_open_files_stay_within_the_limit(tmp_path, most):
    sw.write([bytes([i]) for i in range(90)], tmp_path / "t@30")
    dataset = sw.open(tmp_path / "t", decode=False, max_open_files=most)
    expected = [bytes([i]) for i in range(90)]
    assert list(dataset) == expected
    assert num_open(tmp_path) == most
    with ThreadPoolExecutor(8) as threads:
        rows = np.random.default_rng(0).integers(0, 90, 2000).tolist()
        assert list(threads.map(dataset.__getitem__, rows)) == [expected[row] for row in rows]
        blocks = [rows[i : i + 50] for i in range(0, 2000, 50)]
        found = list(threads.map(dataset.payloads, blocks))
    assert found == [[expected[row] for row in block] for block in blocks]
    assert num_open(tmp_path) <= most
    del dataset
    assert num_open(tmp_path) == 0


def test_threads_share_a_dataset(data, monkeypatch):
    monkeypatch.setattr(data._core.reader._blocks, "_max_bytes", 3000)
    rows = np.random.default_rng(3).integers(0, 100, 1500).tolist()
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda row: int(data[row]["id"]), rows))
        whole = list(threads.map(lambda seed: sorted(ids(data.shuffle(seed))), range(6)))
    assert found == [IDS[row] for row in rows]
    assert whole == [IDS] * 6


def test_another_process_has_files_of_its_own(data):
    """What a spawned worker of a loader gets."""
    view = data.shuffle(1)[5:]
    assert ids(view) == ids(view)
    script = """
import pickle, sys
view = pickle.load(sys.stdin.buffer)
print([int(row["id"]) for row in view], [int(view[i]["id"]) for i in (0, -1)])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(view), capture_output=True, check=False
    )
    expected = ids(view)
    assert done.stdout.decode() == f"{expected} {[expected[0], expected[-1]]}\n"
    assert done.stderr == b""


def test_a_program_that_has_all_numbers_in_use_is_served_with_fewer(tmp_path, monkeypatch):
    sw.write([bytes([i]) for i in range(20)], tmp_path / "t@20")
    dataset = sw.open(tmp_path / "t", decode=False)
    open_file, left = file_pool._open, [4]

    def scarce(path):
        if num_open(tmp_path) >= left[0]:
            raise OSError(24, "Too many open files")
        return open_file(path)

    monkeypatch.setattr(file_pool, "_open", scarce)
    assert list(dataset) == [bytes([i]) for i in range(20)]
    assert dataset[3] == b"\x03"
    left[0] = 0
    with pytest.raises(sw.RunError, match="open files") as caught:
        dataset.payloads(range(20))
    assert "ulimit" in caught.value.hint


_LOW_LIMIT = """
import resource, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import shardwriter as sw
dataset = sw.open(sys.argv[1], decode=False)
expected = [str(i).encode() for i in range(2000)]
assert list(dataset) == expected
assert [dataset[i] for i in range(0, 2000, 7)] == expected[::7]
order = list(dataset.shuffle(1))
assert sorted(order) == sorted(expected)
wrong = []
def read():
    if sorted(dataset.shuffle(2)) != sorted(expected):
        wrong.append(1)
threads = [threading.Thread(target=read) for _ in range(2)]
[t.start() for t in threads], [t.join() for t in threads]
assert not wrong
print("done")
"""


def test_a_thousand_shards_under_a_low_limit(tmp_path):
    sw.write([str(i).encode() for i in range(2000)], tmp_path / "t@1000")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _LOW_LIMIT, tmp_path / "t"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_program_may_end_with_a_dataset_open(folder):
    script = """
import ctypes, sys
import shardwriter as sw
from shardwriter.storage import open_files
open_files.rows = rows = iter(sw.open(sys.argv[1]))
next(rows), next(rows)
# As if an extension held the module: its names become None, one after the other.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(open_files))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script, folder / "t"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_a_fork_reads_on(folder):
    script = """
import os, sys
import shardwriter as sw
dataset = sw.open(sys.argv[1])
rows = iter(dataset)
first = [int(next(rows)["id"]) for _ in range(10)]
dataset._core.reader.pool._lock.acquire()  # as another thread may hold it at that moment
child = os.fork()
if not child:
    rest = [int(row["id"]) for row in rows]
    whole = [int(row["id"]) for row in dataset]
    single = [int(dataset[i]["id"]) for i in range(len(dataset))]
    os._exit(0 if first + rest == whole == single else 1)
assert os.waitpid(child, 0)[1] == 0
dataset._core.reader.pool._lock.release()
assert len(list(dataset)) == len(dataset)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, folder / "t"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pickle_is_small_and_opens_its_own_files(data):
    assert data[0]["id"] == IDS[0]
    copy = pickle.loads(pickle.dumps(data.shuffle(1)))
    assert copy._core.reader.pool.num_open == 0
    assert ids(copy) == ids(data.shuffle(1))
    assert len(pickle.dumps(data)) < 10_000


def test_nothing_is_left_for_the_garbage_collector(folder):
    gc.collect()
    gc.disable()
    try:
        dataset = sw.open(folder / "t")
        list(dataset.shuffle(1))
        assert dataset[1]
        assert num_open(folder) > 0
        del dataset
        assert num_open(folder) == 0
    finally:
        gc.enable()


def test_grain_and_torch_find_what_they_ask_for(data):
    """Grain: len, getitem and a repr that is the same in every process; torch: getitems too."""
    assert {"__len__", "__getitem__", "__getitems__"} <= set(dir(type(data)))
    assert repr(data) == "<Dataset 't': 100 examples>"
    assert repr(data.raw()[:5]) == "<Dataset 't': 5 payloads, range(0, 5)>"
    assert "0x" not in repr(data.shuffle(1).split(0, 4)[[1, 2]])


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_blocks_are_bounded_where_records_become_large(
    tmp_path, compression, has_manifest, monkeypatch
):
    # Large ones that compress well: the size of the file does not show it.
    rows = [b"%05d" % i for i in range(6000)] + [bytes(1 << 20) for _ in range(40)]
    sw.write(rows, tmp_path / "t@2", compression=compression)
    if not has_manifest:
        (tmp_path / "t.manifest.json").unlink()
    dataset = sw.open(tmp_path / "t", decode=False)
    at_once = []
    payloads = dataset._core.reader.payloads

    def noted(shards, positions):
        read = payloads(shards, positions)
        at_once.append(sum(map(len, read)))
        return read

    monkeypatch.setattr(dataset._core.reader, "payloads", noted)
    assert list(dataset) == rows
    assert max(at_once) <= 20 << 20


def test_pads_hide_no_feature_by_a_detour(tmp_path):
    sw.write([{"is_pad": i} for i in range(3)], tmp_path / "t@1")
    padded = sw.open(tmp_path / "t").raw().split(0, 2, "pad")
    with pytest.raises(OptionError, match="padding is marked by"):
        padded.decoded()
