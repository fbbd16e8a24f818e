"""The process engine as people use it: from any program, with any code and data of theirs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from processes import children

import shardwriter as sw
from shardwriter.sources.python import PythonSource
from shardwriter.writing import choose_engine as cores
from shardwriter.writing.messages import pack
from shardwriter.writing.worker import current_worker

# Where the package is, and what this process was told.
MODULES = os.pathsep.join(
    filter(None, [str(Path(sw.__file__).parents[1]), os.environ.get("PYTHONPATH")])
)
NUM_SHARDS = 4


def run(code, *arguments, how="file", cwd, python=(), check=True, **options):
    """Run a program of a few lines, as people start one."""
    code = textwrap.dedent(code)
    script = Path(cwd) / "script.py"
    command = [sys.executable, *python]
    if how == "file":
        script.write_text(code)
        command += [str(script)]
    elif how == "-c":
        command += ["-c", code]
    elif how == "stdin":
        command += ["-"]
        options["input"] = code
    elif how == "-m":
        command += ["-m", code]
    environment = {**os.environ, "PYTHONPATH": MODULES, **options.pop("env", {})}
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=check,
        cwd=cwd,
        env=environment,
        timeout=60,
        **options,
    )


def records(folder, name="t"):
    """All records, in the order of the items."""
    manifest = sw.load_manifest(folder / f"{name}.manifest.json")
    shards = [list(sw.read_records(folder / file)) for file in manifest.pattern.shard_files]
    n = len(shards)
    return [shards[i % n][i // n] for i in range(sum(map(len, shards)))]


def values(folder, feature="value"):
    found = [sw.decode_example(record)[feature].tolist() for record in records(folder)]
    return [value[0] if len(value) == 1 else value for value in found]


class Rows:
    """Items that are numbers."""

    def __init__(self, num_items=11):
        self.num_items = num_items

    def __len__(self):
        return self.num_items

    def __getitem__(self, index):
        return {"value": index}


@pytest.fixture(params=["strided", "sent"])
def data(request):
    """The items of Rows, in both ways that they come to the workers."""
    return Rows() if request.param == "strided" else (lambda: iter(Rows()[i] for i in range(11)))


# -- from any program ------------------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
import shardwriter as sw

class Item:
    def __init__(self, index):
        self.index = index

class Data:
    def __len__(self):
        return 9
    def __getitem__(self, index):
        return Item(index)

class Half(Exception):
    pass

factor = 10
def to_features(item):
    assert isinstance(item, Item)
    return {"value": item.index * factor}

def fail(item):
    raise Half("in the middle")

sw.write(Data(), sys.argv[1] + "/t@4", map=to_features, workers=2)
sw.write([Item(i) for i in range(9)], sys.argv[1] + "/u@4", map=lambda item: to_features(item),
         workers=2)
try:
    sw.write(Data(), sys.argv[1] + "/v@4", map=fail, workers=2)
except sw.DataError as error:
    cause = error.__cause__
    print(isinstance(cause, Half), cause, "in fail" in str(cause.__cause__))
print("done")
"""


@pytest.mark.parametrize("how", ["file", "-c", "stdin"])
def test_a_program_without_a_main_guard(tmp_path, how):
    done = run(SCRIPT, tmp_path, how=how, cwd=tmp_path)
    assert done.stdout == "True in the middle True\ndone\n"  # once: nothing imports the program
    assert done.stderr == ""
    expected = [i * 10 for i in range(9)]
    assert values(tmp_path) == expected
    assert records(tmp_path, "u") == records(tmp_path)


NOTEBOOK = """
import sys, types
cells = [
    "import shardwriter as sw",
    "class Item:\\n    def __init__(self, index): self.index = index",
    "class Data:\\n    def __len__(self): return 9\\n"
    "    def __getitem__(self, index): return Item(index)",
    "double = lambda item: {'value': 2 * item.index, 'item': isinstance(item, Item)}",
    "sw.write(Data(), out + '/t@4', map=double, workers=2)",
    "sw.write([Item(i) for i in range(9)], out + '/u@4', map=double, workers=2)",
]
main = types.ModuleType("__main__")
main.out = sys.argv[1]
sys.argv = ["ipykernel", "-f", "kernel.json"]
sys.modules["__main__"] = main
for cell in cells:
    exec(compile(cell, "<cell>", "exec"), main.__dict__)
"""


def test_cells_of_a_notebook(tmp_path):
    run(NOTEBOOK, tmp_path, cwd=tmp_path)
    assert values(tmp_path) == [2 * i for i in range(9)]
    assert all(sw.decode_example(record)["item"] == [1] for record in records(tmp_path, "u"))


@pytest.mark.skipif(not find_spec("ipykernel"), reason="ipykernel is not installed")
def test_a_notebook_kernel(tmp_path):
    code = f"""
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel()
    client.execute_interactive('''
    import shardwriter as sw
    sw.write([{{"value": 1}}] * 9, {str(tmp_path)!r} + "/t@4", map=lambda f: f, workers=2)
    ''')
    manager.shutdown_kernel()
    """
    run(code, cwd=tmp_path)
    assert values(tmp_path) == [1] * 9


@pytest.mark.parametrize("package", ["tensorflow", "torch"])
def test_a_program_that_has_loaded(tmp_path, package):
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    code = f"""
    import sys
    import {package} as package
    import shardwriter as sw
    class Data:
        def __len__(self): return 9
        def __getitem__(self, index): return {{"value": index}}
    def to_features(item):
        assert "{package}" not in sys.modules  # its threads do not survive a fork
        return item
    sw.write(Data(), sys.argv[1] + "/t@4", map=to_features, workers=2)
    """
    run(code, tmp_path, cwd=tmp_path)
    assert values(tmp_path) == list(range(9))


def test_from_another_thread_and_beside_others(tmp_path, data):
    stop = threading.Event()
    busy = [threading.Thread(target=stop.wait) for _ in range(3)]
    writer = threading.Thread(
        target=lambda: sw.write(data, tmp_path / "t@4", map=lambda f: f, workers=2)
    )
    for thread in [*busy, writer]:
        thread.start()
    writer.join()
    stop.set()
    for thread in busy:
        thread.join()
    assert values(tmp_path) == list(range(11))


def test_two_writes_at_once(tmp_path):
    writers = [
        threading.Thread(target=sw.write, args=(Rows(), tmp_path / f"{n}@4"), kwargs={"workers": 2})
        for n in "ab"
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert records(tmp_path, "a") == records(tmp_path, "b")


def test_a_write_within_a_map(tmp_path):
    inner = tmp_path / "inner"

    def to_features(features):
        if features["value"] == 3:
            sw.write(Rows(), inner / "t@4", map=lambda f: f, workers=2)
        return features

    sw.write(Rows(), tmp_path / "t@4", map=to_features, workers=2)
    assert values(tmp_path) == values(inner)


# -- any code --------------------------------------------------------------------------------------


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, features):
        return {"value": features["value"] * self.factor}

    __call__ = scale


def scale(factor, features):
    return {"value": features["value"] * factor}


def closure(factor):
    def inner(features):
        return {"value": features["value"] * factor}

    return inner


@pytest.mark.parametrize(
    "function",
    [
        lambda features: {"value": features["value"] * 3},
        closure(3),
        partial(scale, 3),
        Scaler(3).scale,
        Scaler(3),
        partial(lambda factor, features: Scaler(factor)(features), 3),
    ],
    ids=["lambda", "closure", "partial", "method", "object", "partial-of-lambda"],
)
def test_a_map_of_any_kind(tmp_path, data, function):
    sw.write(data, tmp_path / "t@4", map=function, workers=2)
    assert values(tmp_path) == [3 * i for i in range(11)]


def test_a_dataset_and_items_of_classes_in_a_function(tmp_path):
    class Item:
        def __init__(self, index):
            self.index = index
            self.function = lambda: index

    class Data:
        def __len__(self):
            return 9

        def __getitem__(self, index):
            return Item(index)

    def to_features(item):
        assert type(item) is Item or type(item).__qualname__ == Item.__qualname__
        return {"value": item.function() + item.index}

    sw.write(Data(), tmp_path / "t@4", map=to_features, workers=2)
    sw.write([Item(i) for i in range(9)], tmp_path / "u@4", map=to_features, workers=2)
    assert values(tmp_path) == [2 * i for i in range(9)]
    assert records(tmp_path, "u") == records(tmp_path)


def test_a_dataset_that_can_not_be_sent_is_read_in_the_program(tmp_path):
    class Locked(Rows):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()
            self.processes = set()

        def __getitem__(self, index):
            self.processes.add(os.getpid())
            return super().__getitem__(index)

    notes = []
    locked = Locked()
    sw.write(locked, tmp_path / "t@4", workers=2, notify=notes.append)
    assert values(tmp_path) == list(range(11))
    assert locked.processes == {os.getpid()}
    assert any("loaded in one process" in note and "lock" in note for note in notes)


def test_a_dataset_that_is_too_large_to_be_sent_is_read_in_the_program(tmp_path):
    class Large(Rows):
        def __init__(self):
            super().__init__()
            self.table = np.zeros(9 << 20)

    notes = []
    sw.write(Large(), tmp_path / "t@4", workers=2, notify=notes.append)
    assert values(tmp_path) == list(range(11))
    assert any("64 MiB" in note for note in notes)


def test_falsy_items_and_empty_records(tmp_path):
    def items():
        yield from [b"", b"x", b"", b"", b"y", b"", b""]

    sw.write(items, tmp_path / "t@4", workers=2)
    assert records(tmp_path) == list(items())
    falsy = [0, None, "", (), [], {}, False, 0.0, b""]
    sw.write(falsy, tmp_path / "u@4", map=lambda item: repr(item).encode(), workers=2)
    assert records(tmp_path, "u") == [repr(item).encode() for item in falsy]


@pytest.mark.parametrize("num_items", [0, 1, 2, 1000])
def test_a_one_shot_generator_of_unknown_length(tmp_path, num_items):
    sw.write((b"%d" % i for i in range(num_items)), tmp_path / "t@4", workers=3)
    assert records(tmp_path) == [b"%d" % i for i in range(num_items)]


def test_every_item_is_loaded_and_mapped_once(tmp_path, data):
    log = tmp_path / "log"

    def note(what):
        with log.open("ab", buffering=0) as file:
            file.write(b"%s\n" % what.encode())

    class Noting(Rows):
        def __getitem__(self, index):
            note(f"load {index}")
            return super().__getitem__(index)

    def to_features(features):
        note(f"map {features['value']}")
        return features

    def items():
        yield from map(Noting().__getitem__, range(11))

    source = Noting() if isinstance(data, Rows) else items
    sw.write(source, tmp_path / "t@4", map=to_features, workers=2)
    expected = [f"{what} {i}" for what in ("load", "map") for i in range(11)]
    assert sorted(log.read_text().splitlines()) == sorted(expected)


# -- where the code runs ---------------------------------------------------------------------------


def test_what_a_map_prints_is_no_output(tmp_path):
    code = """
    import os, sys
    import shardwriter as sw
    def to_features(item):
        print("printed", item["value"])
        os.system("echo from a shell")
        return item
    sw.write([{"value": i} for i in range(4)], sys.argv[1] + "/t@2", map=to_features, workers=2)
    print("result")
    """
    done = run(code, tmp_path, cwd=tmp_path)
    assert done.stdout == "result\n"
    lines = sorted(done.stderr.splitlines())
    assert lines == ["from a shell"] * 4 + [f"printed {i}" for i in range(4)]


def test_the_last_words_of_a_map_are_not_lost(tmp_path):
    code = """
    import os, sys
    import shardwriter as sw
    def to_features(item):
        print("here I am")
        os._exit(1)
    sw.write([b"1"] * 4, sys.argv[1] + "/t@2", map=to_features, workers=2)
    """
    done = run(code, tmp_path, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "here I am" in done.stderr


def test_stdin_belongs_to_the_program(tmp_path):
    code = """
    import sys
    import shardwriter as sw
    def to_features(item):
        return {"value": len(sys.stdin.read())}
    def items():
        for line in sys.stdin:
            yield line
    sw.write(items, sys.argv[1] + "/t@2", map=to_features, workers=2)
    """
    run(code, tmp_path, cwd=tmp_path, input="a\nb\nc\n")
    assert values(tmp_path) == [0, 0, 0]


def test_a_program_without_standard_streams(tmp_path):
    code = """
    import os, sys
    import shardwriter as sw
    def to_features(item):
        print("to nowhere")
        os.write(1, b"nowhere either")
        return item
    class Data:
        def __len__(self): return 9
        def __getitem__(self, index): return {"value": index}
    sw.write(Data(), sys.argv[1] + "/t@4", map=to_features, workers=2)
    sw.write(map(Data().__getitem__, range(9)), sys.argv[1] + "/u@4", map=to_features, workers=2)
    """
    Path(tmp_path, "script.py").write_text(textwrap.dedent(code))
    command = f"exec {sys.executable} script.py {tmp_path} <&- >&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": MODULES}
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=60)
    assert values(tmp_path) == list(range(9))
    assert records(tmp_path, "u") == records(tmp_path)


def test_folder_and_paths_are_those_of_the_program(tmp_path):
    (tmp_path / "beside.py").write_text("def features(i): return {'value': i + 1}\n")
    there = tmp_path / "there"
    there.mkdir()
    (there / "elsewhere.py").write_text("def more(i): return i + 1\n")
    code = """
    import os, pathlib, sys
    import beside
    import shardwriter as sw
    os.chdir("there")
    sys.path.insert(0, "")
    sys.path.append(pathlib.Path("of no use"))
    import elsewhere
    os.environ["OF_THE_PROGRAM"] = "7"
    def to_features(i):
        import elsewhere
        assert os.getcwd() == sys.argv[1] + "/there"
        assert os.environ["OF_THE_PROGRAM"] == "7"
        return beside.features(elsewhere.more(i))
    sw.write(list(range(9)), sys.argv[1] + "/t@4", map=to_features, workers=2)
    """
    run(code, tmp_path, cwd=tmp_path)
    assert values(tmp_path) == [i + 2 for i in range(9)]


def test_a_source_that_changes_the_environment(tmp_path):
    code = """
    import os, sys
    import shardwriter as sw
    def items():
        os.environ["LATE"] = "1"
        os.environ.pop("EARLY", None)
        return [b"x"] * 4
    def to_features(item):
        return {"value": [int("LATE" in os.environ), int("EARLY" in os.environ)]}
    sw.write(items, sys.argv[1] + "/t@2", map=to_features, workers=2)
    """
    run(code, tmp_path, cwd=tmp_path, env={"EARLY": "1"})
    assert values(tmp_path) == [[1, 0]] * 4


def test_a_module_of_a_package_with_relative_imports(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("def double(i): return 2 * i\n")
    (package / "tool.py").write_text(
        "import sys\n"
        "import shardwriter as sw\n"
        "from .helper import double\n"
        "def to_features(i):\n"
        "    from . import helper\n"
        "    return {'value': double(i) + helper.double(i)}\n"
        "sw.write(list(range(9)), sys.argv[1] + '/t@4', map=to_features, workers=2)\n"
    )
    run("package.tool", tmp_path, how="-m", cwd=tmp_path)
    assert values(tmp_path) == [4 * i for i in range(9)]


def test_modules_in_the_current_folder_do_not_disturb(tmp_path):
    # Only what the program itself would import from there may be taken.
    for name in ("json", "socket", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    script = tmp_path / "scripts" / "write.py"
    script.parent.mkdir()
    script.write_text(
        "import sys\nimport shardwriter as sw\n"
        "sw.write([b'x'] * 9, sys.argv[1] + '/t@4', map=lambda r: r, workers=2)\n"
    )
    command = [sys.executable, str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": MODULES}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    assert records(tmp_path) == [b"x"] * 9


@pytest.mark.parametrize(
    ("python", "env"),
    [
        (["-O"], {}),
        (["-X", "utf8"], {}),
        (["-W", "error"], {}),
        (["-s", "-B"], {}),
        ([], {"PYTHONHASHSEED": "7"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, (list, dict)) else None,
)
def test_how_python_was_started(tmp_path, python, env):
    code = """
    import sys, warnings
    import shardwriter as sw
    def facts():
        return [__debug__, sys.flags.utf8_mode, sys.flags.optimize, "error" in sys.warnoptions,
                sys.flags.no_user_site, sys.flags.dont_write_bytecode, sys.flags.hash_randomization
                and hash("text") % 1000]
    def check(item):
        assert_equal(facts(), here)
        return item
    def assert_equal(one, other):
        if one != other:
            raise ValueError(f"{one} {other}")
    here = facts()
    if len(sys.argv) > 2:
        here[-1] = facts()[-1]
    sw.write([b"x"] * 4, sys.argv[1] + "/t@2", map=check, workers=2)
    """
    run(code, tmp_path, cwd=tmp_path, python=python, env={"PYTHONHASHSEED": "0", **env})
    assert records(tmp_path) == [b"x"] * 4


# -- current_worker --------------------------------------------------------------------------------


def worker_seen(features):
    worker = current_worker()
    return {
        "value": features["value"],
        "index": worker.item_index,
        "seed": worker.item_seed.to_bytes(8, "little"),
        "worker": worker.index,
        "num_workers": worker.num_workers,
        "shards": list(worker.shards),
        "num_shards": worker.num_shards,
    }


@pytest.mark.parametrize("shuffle_seed", [None, 5])
def test_the_current_worker_of_a_map(tmp_path, shuffle_seed):
    seeds = {}
    for num_workers in (1, 2, 3):
        for way in ("strided", "sent"):
            source = Rows() if way == "strided" else [Rows()[i] for i in range(11)]
            folder = tmp_path / f"{num_workers}{way}"
            sw.write(
                source,
                folder / "t@4",
                map=worker_seen,
                workers=num_workers,
                shuffle_seed=shuffle_seed,
            )
            rows = [sw.decode_example(record) for record in records(folder)]
            for index, row in enumerate(rows):
                assert row["index"].tolist() == [index]
                assert row["num_workers"] == [num_workers]
                assert 0 <= row["worker"] < num_workers
                assert index % NUM_SHARDS in row["shards"]
                assert row["num_shards"] == [NUM_SHARDS]
                seeds.setdefault(row["value"].tolist()[0], set()).add(bytes(row["seed"][0]))
    assert all(len(found) == 1 for found in seeds.values()), "a seed depends on the workers"
    assert len(set.union(*seeds.values())) == 11
    assert current_worker() is None


# -- memory-mapped arrays --------------------------------------------------------------------------


@pytest.fixture
def mapped_file(tmp_path):
    path = tmp_path / "mapped"
    path.write_bytes(bytes(64) + np.arange(12_000, dtype="<i4").tobytes())
    return path


VIEWS = {
    "whole": lambda m: m,
    "sliced": lambda m: m[10:90:3],
    "reversed": lambda m: m[::-1],
    "both": lambda m: m[::-2, ::-1],
    "corner": lambda m: m[5:, 3:40],
    "twice": lambda m: m[5:][::2][1:],
    "plain": lambda m: np.asarray(m)[7:],
    "other-type": lambda m: m.view("<f4"),
}


@pytest.mark.parametrize(
    ("mode", "view"), [*(("r", name) for name in VIEWS), ("r+", "both"), ("c", "both")]
)
def test_a_memory_mapped_dataset(tmp_path, mapped_file, mode, view):
    array = VIEWS[view](np.memmap(mapped_file, "<i4", mode, 64, (100, 120)))

    class Data:
        def __init__(self):
            self.array = array

        def __len__(self):
            return len(self.array)

        def __getitem__(self, index):
            return np.ascontiguousarray(self.array[index]).tobytes()

    if mode != "c":
        assert len(pack(Data(), 1 << 20)[0]) < 10_000  # where it is, and not what it holds
    sw.write(Data(), tmp_path / "t@4", workers=2)
    assert records(tmp_path) == [row.tobytes() for row in array]


def test_a_memory_mapped_array_as_the_source(tmp_path, mapped_file):
    array = np.memmap(mapped_file, "<i4", "r", 64, (120, 100), order="F")
    source = PythonSource(array[::-1, :50])
    assert source.sendable
    assert len(pack(source, 1 << 20)[0]) < 2_000
    sw.write(array[::-1, :50], tmp_path / "t@4", map=lambda row: {"value": row}, workers=2)
    assert values(tmp_path) == array[::-1, :50].tolist()


def test_changing_a_mapped_array_in_a_map_does_not_change_the_file(tmp_path, mapped_file):
    before = mapped_file.read_bytes()
    array = np.memmap(mapped_file, "<i4", "r+", 64, (100, 120))

    def add(row):
        row += 1
        return {"value": row}

    sw.write(array, tmp_path / "t@4", map=add, workers=2)
    assert values(tmp_path) == (array + 1).tolist()
    assert mapped_file.read_bytes() == before


def test_a_copy_on_write_map_is_sent_with_its_changes(tmp_path, mapped_file):
    array = np.memmap(mapped_file, "<i4", "c", 64, (100, 120))
    array[50] = 7
    sw.write(array, tmp_path / "t@4", map=lambda row: {"value": row}, workers=2)
    assert values(tmp_path) == array.tolist()


@pytest.mark.parametrize("what", ["deleted", "truncated"])
def test_a_mapped_file_that_is_gone_is_sent_as_it_is_mapped(tmp_path, mapped_file, what):
    array = np.memmap(mapped_file, "<i4", "r", 64, (100, 120))[:10]
    if what == "deleted":
        mapped_file.unlink()
    else:
        os.truncate(mapped_file, 64 + 4 * 1200 - 1)  # the page is there, the last number is not
    expected = array.tolist()
    sw.write(array, tmp_path / "t@4", map=lambda row: {"value": row}, workers=2)
    assert values(tmp_path) == expected


# -- slow sources, and what a write costs ----------------------------------------------------------


def test_a_slow_source_costs_nothing_and_items_do_not_wait_for_its_end(tmp_path):
    arrived = tmp_path / "arrived"

    def to_features(item):
        with arrived.open("a") as file:
            file.write(f"{time.monotonic()}\n")
        return item

    def items():
        for i in range(3):
            yield b"%d" % i
            if i < 2:
                begun.append((time.monotonic(), cpu_s(), time.process_time()))
                time.sleep(1.5)
                busy.append(cpu_s() + time.process_time() - sum(begun[-1][1:]))

    def cpu_s():
        """Of the workers and the template, by the system's books."""
        ticks = 0
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path("/proc", entry, "stat").read_text()
                    environment = Path("/proc", entry, "environ").read_bytes()
                except OSError:
                    continue
                if str(tmp_path).encode() in environment:
                    ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    begun, busy = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARK_OF_THIS_TEST", str(tmp_path))
        sw.write(items, tmp_path / "t@2", map=to_features, workers=2)
    assert busy[-1] < 0.05 * 1.5  # the first one has the start of the processes in it
    # Each was worked on while the source slept, and did not wait for the next one.
    first = [float(line) for line in arrived.read_text().splitlines()]
    assert first[1] - begun[1][0] < 1.0


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.filterwarnings("error")
def test_nothing_is_left_open_after_many_writes(tmp_path):
    def fail(record):
        raise ValueError("boom")

    sw.write(Rows(), tmp_path / "first@4", workers=2)
    gc.collect()  # what tests before have left behind
    before, started = open_files(), children(os.getpid())
    for i in range(6):
        sw.write(Rows() if i % 2 else [b"x"] * 9, tmp_path / f"t{i}@4", workers=2)
        with pytest.raises(sw.DataError):
            sw.write(Rows() if i % 2 else [b"x"] * 9, tmp_path / "u@4", map=fail, workers=2)
    gc.collect()
    assert open_files() <= before  # fewer: a library of other tests has closed one of its own
    assert children(os.getpid()) == started  # none is left, not even one that has ended


PEAK = """
import resource, sys, time
import shardwriter as sw
from shardwriter.writing import process
assert process.PENDING_BYTES > 8 << 20

def slow(record):
    time.sleep(0.002)
    return record

num_items = int(sys.argv[2])
process.PENDING_BYTES = 8 << 20  # the bound is reached soon
items = (bytes(200_000) for _ in range(num_items))
sw.write(items, sys.argv[1] + "/t@4", map=lambda record: slow(record[:9]), workers=2,
         run=sw.RunOptions(overwrite=True))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_data(tmp_path):
    once, tenfold = (int(run(PEAK, tmp_path, n, cwd=tmp_path).stdout) for n in (200, 2_000))
    assert tenfold < 1.2 * once


def test_one_large_item_among_small_ones(tmp_path):
    code = """
    import sys
    import shardwriter as sw
    def items():
        for i in range(1000):
            yield bytes(200_000_000) if i == 500 else b"%d" % i
    manifest = sw.write(items, sys.argv[1] + "/t@4", workers=2)
    print(manifest.num_records, manifest.payload_bytes)
    """
    done = run(code, tmp_path, cwd=tmp_path)
    small = sum(len(str(i)) for i in range(1000) if i != 500)
    assert done.stdout.split() == ["1000", str(200_000_000 + small)]


@pytest.mark.parametrize("way", ["strided", "sent"])
def test_more_shards_than_open_files(tmp_path, way):
    code = """
    import sys
    import shardwriter as sw
    class Data:
        def __len__(self): return 8000
        def __getitem__(self, index): return b"%d" % index
    source = Data() if sys.argv[2] == "strided" else map(Data().__getitem__, range(8000))
    sw.write(source, sys.argv[1] + "/t@4000", workers=2)
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    limited = ["bash", "-c", 'ulimit -n 256; exec "$@"', "bash"]
    subprocess.run(
        [*limited, sys.executable, script, str(tmp_path), way],
        check=True,
        env={**os.environ, "PYTHONPATH": MODULES},
        timeout=100,
    )
    assert sw.stats(tmp_path / "t").verdict.startswith("OK: 8,000 records in 4,000 shards")


# -- how many workers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("v2", "v1", "expected"),
    [
        (None, None, 8),
        ("max 100000", None, 8),
        ("200000 100000", None, 2),
        ("150000 100000", None, 2),
        ("20000 100000", None, 1),
        ("9900000 100000", None, 8),
        ("", None, 8),
        ("garbage", None, 8),
        ("1 2 3", None, 8),
        ("100000 0", None, 8),
        ("9" * 4000 + " 1", None, 8),
        (b"\xff\xfe", None, 8),
        (None, ("-1", "100000"), 8),
        (None, ("300000\n", "100000\n"), 3),
        (None, ("", ""), 8),
        (None, ("x", "0"), 8),
        (None, ("100000", None), 8),
    ],
)
def test_cores_under_a_quota(tmp_path, monkeypatch, v2, v1, expected):
    def at(name, content):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    monkeypatch.setattr(cores, "_CGROUP_V2", at("v2", v2))
    monkeypatch.setattr(cores, "_CGROUP_V1", tuple(map(at, "qp", v1 or (None, None))))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert cores.usable_cores() == expected


def test_a_quota_that_can_not_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "_CGROUP_V2", tmp_path)  # a folder
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3), raising=False)
    assert cores.usable_cores() == 3


def test_without_affinity(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(cores, "_CGROUP_V2", tmp_path / "none")
    monkeypatch.setattr(cores, "_CGROUP_V1", (tmp_path / "none",) * 2)
    assert cores.usable_cores() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_one_core_is_one_worker(tmp_path):
    code = """
    import os, sys
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import shardwriter as sw
    def to_features(record):
        return {"value": [os.getpid(), sw.current_worker().num_workers]}
    sw.write([b"x"] * 8, sys.argv[1] + "/t@4", map=to_features, workers=None)
    print(os.getpid())
    """
    program = int(run(code, tmp_path, cwd=tmp_path).stdout)
    assert values(tmp_path) == [[program, 1]] * 8
