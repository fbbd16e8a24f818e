"""What Python can iterate over or index, as a source."""

from __future__ import annotations

import collections
import io
import sys
import types

import numpy as np
import pytest

from shardwriter.errors import CallableError, OptionError, SourceError
from shardwriter.sources.callables import import_reference, is_reference
from shardwriter.sources.python import PythonSource


def loaded(source):
    return [source.load(item) for item in source.items()]


class TorchLike:
    """A map-style dataset: no __iter__, and no IndexError at its end."""

    def __init__(self, length=5):
        self.length = length
        self.calls = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        assert type(index) is int
        self.calls.append(index)
        return {"x": index * index}


class Again:
    """An iterable that can be read any number of times."""

    def __iter__(self):
        return iter([{"x": 1}, {"x": 2}])


# -- what it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        [{"x": 0}, {"x": 1}],
        ({"x": 0}, {"x": 1}),
        collections.deque([{"x": 0}, {"x": 1}]),
        lambda: [{"x": 0}, {"x": 1}],
    ],
)
def test_sequences_give_any_item(data):
    source = PythonSource(data)
    assert (source.num_items, source.random_access, source.resumable) == (2, True, True)
    assert source.load(source.item(1)) == {"x": 1}
    assert loaded(source) == loaded(source) == [{"x": 0}, {"x": 1}]


def test_a_torch_dataset_needs_no_iter_and_is_read_once_an_item():
    data = TorchLike()
    source = PythonSource(data)
    assert source.num_items == 5
    assert data.calls == []
    assert loaded(source) == [{"x": i * i} for i in range(5)]
    assert data.calls == [0, 1, 2, 3, 4]


def test_a_class_of_a_dataset_is_called():
    assert PythonSource(TorchLike).num_items == 5


def test_a_callable_dataset_is_not_called():
    class Dataset(TorchLike):
        def __call__(self):
            raise AssertionError

    assert PythonSource(Dataset(3)).num_items == 3


def test_a_numpy_array_is_a_sequence_of_its_rows():
    source = PythonSource(np.arange(6).reshape(3, 2))
    assert [row.tolist() for row in loaded(source)] == [[0, 1], [2, 3], [4, 5]]


def test_iterables_do_not_know_their_length():
    source = PythonSource(Again())
    assert (source.num_items, source.random_access, source.resumable) == (None, False, True)
    assert loaded(source) == loaded(source) == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("data", [{}, {"a": 1}, "text", b"bytes", 5, None, object()])
def test_what_is_no_series_of_items_is_refused(data):
    with pytest.raises(SourceError, match=r"SOURCE is a \w+; expected"):
        PythonSource(data)
    with pytest.raises(SourceError, match=r"SOURCE is a \w+; expected"):
        PythonSource(lambda: data)


@pytest.mark.parametrize("data", [{b"a", b"b"}, frozenset([b"a"])])
def test_a_set_is_refused_since_its_order_is_that_of_the_process(data):
    with pytest.raises(SourceError, match="no order"):
        PythonSource(data)


@pytest.mark.parametrize("data", [[], (), iter([]), TorchLike(0), lambda: iter([])])
def test_nothing_is_a_source_of_no_items(data):
    assert list(PythonSource(data).items()) == []


def test_the_callers_data_is_left_as_it_was():
    inner = {"x": [1, 2]}
    data = [inner, b"record"]
    loaded(PythonSource(data))
    assert data == [{"x": [1, 2]}, b"record"]
    assert data[0] is inner


@pytest.mark.parametrize("make", [list, iter, lambda items: lambda: iter(items)])
def test_falsy_items_are_items(make):
    items = [b"", {}, 0, None, [], ""]
    source = PythonSource(make(items))
    assert loaded(source) == items


# -- reading again -------------------------------------------------------------------------------


def numbers():
    yield {"x": 1}
    yield {"x": 2}


def test_a_generator_function_is_called_for_each_reading():
    source = PythonSource(numbers)
    assert source.resumable
    assert loaded(source) == loaded(source) == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize(
    "make", [numbers, lambda: iter([1, 2]), lambda: map(str, [1]), lambda: zip([1])]
)
def test_an_iterator_is_read_once_and_then_refused(make):
    source = PythonSource(make())
    assert not source.resumable
    assert list(source.items())
    for _ in range(2):
        with pytest.raises(SourceError, match="already read"):
            source.items()


def test_an_iterator_that_was_begun_is_refused_too():
    source = PythonSource(numbers())
    next(source.items())
    with pytest.raises(SourceError, match="already read"):
        source.items()


def test_a_function_that_gives_the_same_iterator_again_is_refused():
    iterator = numbers()
    source = PythonSource(lambda: iterator)
    assert len(list(source.items())) == 2
    with pytest.raises(SourceError, match="already read"):
        source.items()


def test_a_function_is_called_once_a_reading():
    calls = []

    def make():
        calls.append(1)
        return numbers()

    source = PythonSource(make)
    list(source.items())
    assert len(calls) == 1
    list(source.items())
    assert len(calls) == 2


# -- errors of the user's own --------------------------------------------------------------------


def failing(k, error):
    for i in range(k):
        yield {"x": i}
    raise error


@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("wrap", [lambda make: make, lambda make: make()])
def test_an_error_in_the_iterator_says_how_far_it_came(wrap, k):
    cause = ZeroDivisionError("oh")
    source = PythonSource(wrap(lambda: failing(k, cause)))
    seen = []
    with pytest.raises(CallableError, match="raised ZeroDivisionError: oh") as caught:
        seen.extend(source.items())
    assert caught.value.index == k
    assert caught.value.__cause__ is cause


def test_an_error_in_iter_is_the_sources():
    class Broken:
        def __iter__(self):
            raise OSError("no such bucket")

    with pytest.raises(CallableError, match="no such bucket") as caught:
        list(PythonSource(Broken()).items())
    assert caught.value.index == 0


def test_errors_of_our_own_and_interrupts_pass():
    for error in (SourceError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            list(PythonSource(failing(1, error)).items())
        assert caught.value is error


def test_a_function_that_wants_arguments_is_refused():
    with pytest.raises(SourceError, match="without arguments"):
        PythonSource(lambda path: [path])


def test_a_type_error_inside_the_function_is_not_taken_for_a_missing_argument():
    def make():
        return len(5)

    with pytest.raises(CallableError, match="no len") as caught:
        PythonSource(make)
    assert isinstance(caught.value.__cause__, TypeError)


# -- module:callable -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["m:f", "pkg.mod:Class.method", "_a1:_b"])
def test_references(text):
    assert is_reference(text)


@pytest.mark.parametrize(
    "text", ["m", "m:", ":f", "a/b:c", "C:\\data", "m:f()", "1m:f", "m f:g", ""]
)
def test_what_is_no_reference(text):
    assert not is_reference(text)
    with pytest.raises(OptionError, match="not module:callable"):
        import_reference(text, "--map")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_current_folder_is_found(module):
    module(
        "swt_mine", "class A:\n    @staticmethod\n    def f():\n        return [1]\nDATA = [1, 2]\n"
    )
    assert import_reference("swt_mine:DATA", "SOURCE") == [1, 2]
    assert import_reference("swt_mine:A.f", "SOURCE")() == [1]
    source = PythonSource(import_reference("swt_mine:A.f", "SOURCE"), name="swt_mine:A.f")
    told = source.digest()
    assert (told["name"], told["num_items"]) == ("swt_mine:A.f", 1)
    assert told["code"]["module"] == "swt_mine"
    assert source.fingerprint()["identified"]
    module("swt_mine", "class A:\n    f = staticmethod(lambda: [2])\n")
    assert PythonSource(lambda: [2], name="swt_mine:A.f").digest() != told


def test_data_that_was_handed_over_is_known_by_its_length_alone():
    assert PythonSource([1]).digest() == PythonSource([2]).digest()
    assert not PythonSource([1]).fingerprint()["identified"]
    assert PythonSource(lambda: [1]).fingerprint()["identified"]


def test_a_dataset_that_inherits_a_getitem_and_has_an_iter_is_iterated_over():
    class Dataset:
        def __getitem__(self, index):
            raise NotImplementedError

    class IterableDataset(Dataset):
        def __len__(self):
            return 2

        def __iter__(self):
            return iter([{"x": 1}, {"x": 2}])

    source = PythonSource(IterableDataset())
    assert not source.random_access
    assert list(source.items()) == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("what", ["factory", "length"])
def test_an_error_in_the_users_code_is_told_as_such(what):
    class Broken:
        def __len__(self):
            raise ValueError("no length today")

        def __getitem__(self, index):
            return index

    def factory():
        raise ValueError("no data today")

    with pytest.raises(CallableError, match="today") as caught:
        PythonSource(Broken() if what == "length" else factory)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "text", ["swt_none:f", "os.none:f", "swt_none.sub:f", "json.py:load", "a.:f", "a..b:f"]
)
def test_a_module_that_is_not_there(text):
    with pytest.raises(OptionError, match="there is no module") as caught:
        import_reference(text, "--map")
    assert caught.value.message.startswith("--map")


@pytest.mark.parametrize("text", ["json:none", "json:loads.none", "json:loads..x"])
def test_a_name_that_is_not_there(text):
    with pytest.raises(OptionError, match="module 'json' has no"):
        import_reference(text, "--map")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import swt_missing_dependency\n", ModuleNotFoundError),
        ("from json import nothing\n", ImportError),
        ("def f(:\n", SyntaxError),
        ("1 / 0\n", ZeroDivisionError),
    ],
)
def test_an_error_inside_the_module_is_told_with_its_cause(module, text, error):
    module("swt_broken", text)
    with pytest.raises(OptionError, match=error.__name__) as caught:
        import_reference("swt_broken:f", "SOURCE")
    assert isinstance(caught.value.__cause__, error)


def test_an_open_text_file_is_an_iterator_of_lines():
    source = PythonSource(io.StringIO("a\nb\n"))
    assert list(source.items()) == ["a\n", "b\n"]
    with pytest.raises(SourceError):
        source.items()


def test_a_module_is_no_source():
    with pytest.raises(SourceError):
        PythonSource(types)
