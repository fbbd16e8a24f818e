"""NumPy files: a row is that of the array, whatever way the array lies in the file."""

from __future__ import annotations

import io
import os
import random
import struct
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import shardwriter as sw
from shardwriter.errors import FeatureError, OptionError, SourceChanged, SourceError
from shardwriter.formats.example import encode_example
from shardwriter.schema.feature_types import parse_schema_option
from shardwriter.sources.find import open_source
from shardwriter.sources.numpy import NumpyRows
from shardwriter.writing.encode import ItemEncoder
from shardwriter.writing.options import DatasetOptions


def records_of(source):
    encoder = ItemEncoder(source, DatasetOptions(), 1)
    return [record for _, record in encoder.records(enumerate(source.items()))]


def saved(path, array, **options):
    np.save(path, array, **options)
    return open_source(path)


# -- what is read ----------------------------------------------------------------------------------


DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?", sizes=(8, 16, 32)),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32)),
    hnp.boolean_dtypes(),
)


@given(
    array=hnp.arrays(DTYPES, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)),
    order=st.sampled_from("CF"),
    way=st.sampled_from(["npy", "npz", "packed"]),
)
def test_any_array_gives_its_rows(tmp_path_factory, array, order, way):
    path = str(tmp_path_factory.getbasetemp() / f"any.{'npy' if way == 'npy' else 'npz'}")
    array = np.array(array, order=order)
    if way == "npy":
        np.save(path, array)
    else:
        (np.savez if way == "npz" else np.savez_compressed)(path, any=array)
    source = NumpyRows([path])
    native = array.astype(array.dtype.newbyteorder("="))
    kinds = {"any": source.plan["any"].kind}
    assert source.plan["any"].dtype == native.dtype.name
    expected = [encode_example({"any": np.asarray(row)}, kinds) for row in native]
    assert records_of(source) == expected
    assert [encode_example(source.load(i), kinds) for i in range(len(array))] == expected
    if len(array):
        places = random.Random(0).choices(range(len(array)), k=20)
        found = source.load_columns(places)["any"].values
        assert np.array_equal(found, native[places], equal_nan=array.dtype.kind == "f")


def test_names_of_features(tmp_path):
    rows = np.zeros(3, [("a", "i4"), ("b", [("c", "f4", (2,)), ("d", "S2")])])
    rows["b"]["d"] = b"xy"
    source = saved(tmp_path / "t.npy", rows)
    assert {n: t.shape for n, t in source.plan.items()} == {"a": (), "b/c": (2,), "b/d": ()}
    row = source.load(1)
    assert (row["a"].dtype, row["b/c"].tolist(), row["b/d"]) == (np.int32, [0, 0], b"xy")
    np.savez(tmp_path / "t.npz", x=rows, y=[1, 2, 3])
    assert set(open_source(tmp_path / "t.npz").plan) == {"x/a", "x/b/c", "x/b/d", "y"}
    assert set(saved(tmp_path / "alone.npy", np.zeros(3)).plan) == {"alone"}


def test_a_folder_and_a_glob_of_arrays(tmp_path):
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.arange(4))
    for data in (tmp_path, str(tmp_path / "*.npy"), str(tmp_path / "[xy].npy")):
        source = open_source(data)
        assert source.kind == "numpy"
        assert source.load(2) == {"x": 2, "y": 2}
    assert source.digest() == open_source(tmp_path).digest()


def test_text(tmp_path):
    np.savez(
        tmp_path / "t.npz", u=np.array(["é", "bc"], ">U4"), s=[b"a", b"bcd"], m=[["a", "b"]] * 2
    )
    source = open_source(tmp_path / "t.npz")
    assert source.load(0) == {"u": "é", "s": b"a", "m": ["a", "b"]}
    assert [(t.kind, t.dtype, t.shape) for t in source.plan.values()] == [
        ("bytes", "string", ()),
        ("bytes", "bytes", ()),
        ("bytes", "string", (2,)),
    ]
    expected = [{"u": "é", "s": b"a", "m": ["a", "b"]}, {"u": "bc", "s": b"bcd", "m": ["a", "b"]}]
    assert records_of(source) == list(map(encode_example, expected))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("in_zip", [False, True])
def test_versions_of_the_format(tmp_path, version, in_zip):
    array = np.zeros(2, [("ü" if version == (3, 0) else "u", "<i8")])
    with warnings.catch_warnings(), io.BytesIO() as file:
        warnings.simplefilter("ignore")
        np.lib.format.write_array(file, array, version)
        data = file.getvalue()
    path = tmp_path / f"t.{'npz' if in_zip else 'npy'}"
    if in_zip:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
    else:
        path.write_bytes(data)
    (value,) = open_source(path).load(1).values()
    assert value == 0


def test_files_of_others(data_dir):
    for name in ("pypi+numpy/data/python3.npy", "pypi+numpy/data/win64python2.npy"):
        path = data_dir / name
        if not path.is_file():
            pytest.skip("numpy's own files are not there")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 2 wrote one of them
            expected = np.load(path)
        assert np.array(
            [row[path.stem] for row in map(open_source(path).load, range(2))]
        ).tolist() == (expected[:2].tolist())
    samples = data_dir / "pypi+matplotlib/matplotlib/mpl-data/sample_data"
    array = np.load(samples / "axes_grid/bivariate_normal.npy")
    source = open_source(samples / "axes_grid/bivariate_normal.npy")
    assert source.num_items == len(array)
    assert (source.load(7)["bivariate_normal"] == array[7]).all()


def test_what_a_map_gets_is_its_own(tmp_path):
    source = saved(tmp_path / "x.npy", np.ones((2, 2)))
    source.load(0)["x"] += 1
    assert source.load(0)["x"].tolist() == [1, 1]


def test_copies_are_noted(tmp_path):
    assert saved(tmp_path / "x.npy", np.ones((2, 2))).notes == []
    assert saved(tmp_path / "x.npy", np.asfortranarray(np.ones((2, 3)))).notes[0].endswith(": x")
    np.savez_compressed(tmp_path / "t.npz", a=[1, 2])
    assert open_source(tmp_path / "t.npz").notes[0].endswith(": a")


def test_only_the_rows_are_read(tmp_path):
    path = tmp_path / "x.npy"
    np.lib.format.open_memmap(path, "w+", np.uint8, (1 << 20, 1 << 16)).flush()  # 64 GiB, a hole
    source = open_source(path)
    assert source.num_items == 1 << 20
    assert not source.load((1 << 20) - 1)["x"].any()
    assert len(source.load_columns(range(5))["x"].values) == 5


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "words", "hint"),
    [
        (np.array([{}, 1], object), "not unpickled", "save"),
        (np.zeros(2, [("a", "O")]), "not unpickled", "save"),
        (np.array(7), "0-d array", "remove it"),
        (np.zeros(2, "M8[s]"), "can not be stored in a feature", "int64"),
        (np.zeros(2, "c8"), "can not be stored in a feature", "real"),
        (np.zeros(2, "V3"), "can not be stored in a feature", "numbers or text"),
        (np.zeros((2, 2, 2), "U1"), "can not be stored in a feature", "numbers or text"),
    ],
)
def test_arrays_without_a_place(tmp_path, array, words, hint):
    with pytest.raises(SourceError, match=words) as caught:
        saved(tmp_path / "x.npy", array)
    assert caught.value.path.endswith("x.npy")
    assert hint in caught.value.hint
    np.savez(tmp_path / "t.npz", x=array)
    with pytest.raises(SourceError, match=words):
        open_source(tmp_path / "t.npz")


def test_nothing_is_unpickled(tmp_path, data_dir):
    found = sorted((data_dir / "pypi+numpy/data").glob("*objarr*"))
    if not found:
        pytest.skip("numpy's own files are not there")
    for path in found:
        with pytest.raises(SourceError, match="not unpickled"):
            open_source(path)


def test_lengths_have_to_be_equal(tmp_path):
    np.savez(tmp_path / "t.npz", a=[1, 2], b=[1, 2, 3])
    with pytest.raises(SourceError, match="'b' has 3 rows, but 'a' has 2"):
        open_source(tmp_path / "t.npz")


def test_files_that_do_not_go_together(tmp_path):
    np.savez(tmp_path / "a.npz", a=[1])
    np.save(tmp_path / "b.npy", [1])
    with pytest.raises(SourceError, match=r"not all are \.npy"):
        open_source(tmp_path)
    with pytest.raises(SourceError, match=r"no \.npy or \.npz file"):
        open_source(os.path.dirname(__file__), "numpy")
    with pytest.raises(OptionError, match="no such file"):
        open_source(tmp_path / "none.npy", "numpy")


def test_a_header_that_no_parser_takes(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4))
    path.write_bytes(path.read_bytes().replace(b"}", b" "))
    with pytest.raises(SourceError, match="not a complete NumPy file"):
        open_source(path)


@pytest.mark.parametrize("pack", [None, np.savez, np.savez_compressed])
def test_any_cut_of_a_file_is_told(tmp_path, pack):
    path = tmp_path / ("x.npz" if pack else "x.npy")
    (pack or np.save)(path, np.arange(40))
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(SourceError) as caught:
            open_source(path, "numpy")
        assert caught.value.path == str(path)


def test_a_damaged_member_is_told(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random(1000))
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match="not a complete NumPy file"):
        open_source(path)


@pytest.mark.parametrize(
    "head",
    [
        b"\x93NUMPY\x09\x00" + bytes(20),
        b"\x93NUMPY\x01\x00" + struct.pack("<H", 9) + b"{'a': 1}\n",
        b"\x93NUMPY\x03\x00" + struct.pack("<I", 9) + b"{'a': 1}\n",
        b"\x93NUMPY\x03\x00" + struct.pack("<I", 9) + b"__import_",
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", 60)
        + b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}   \n",
    ],
)
def test_headers_that_are_none(tmp_path, head):
    path = tmp_path / "x.npy"
    path.write_bytes(head)
    with pytest.raises(SourceError):
        open_source(path)


def test_a_change_is_noticed(tmp_path):
    source = saved(tmp_path / "x.npy", np.arange(10))
    np.save(tmp_path / "x.npy", np.arange(11))
    with pytest.raises(SourceChanged, match="has changed"):
        source.load(3)


def test_one_bad_row_can_be_skipped(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.array([1, 2**63, 3], np.uint64))
    with pytest.raises(FeatureError, match="int64") as caught:
        sw.write(path, tmp_path / "a/t@1")
    assert (caught.value.index, caught.value.item, caught.value.feature) == (1, "row 1", "x")
    assert sw.write(path, tmp_path / "b/t@1", on_error="skip").num_records == 2


def test_fixed_types(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(3, dtype=np.uint8), y=np.ones(3))
    source = open_source(tmp_path / "t.npz", schema=parse_schema_option("x=float,y=float"))
    assert records_of(source)[2] == encode_example({"x": 2.0, "y": 1.0})
    for schema, words in (
        ("y=int64", "has int64"),
        ("x=string", "has string"),
        ("z=float", "does not exist"),
    ):
        with pytest.raises(SourceError, match=words):
            open_source(tmp_path / "t.npz", schema=parse_schema_option(schema))


# -- engines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [np.savez, np.savez_compressed])
def test_all_engines_give_the_same_bytes(tmp_path, pack):
    pack(tmp_path / "t.npz", x=np.arange(600).reshape(200, 3), name=np.array(["a", "é"] * 100))
    for shuffle_seed in (None, 3):
        digests = []
        for workers in (1, 2):
            out = tmp_path / f"{workers}-{shuffle_seed}"
            sw.write(tmp_path / "t.npz", out / "t@3", workers=workers, shuffle_seed=shuffle_seed)
            digests.append([path.read_bytes() for path in sorted(out.glob("t*"))])
        assert digests[0] == digests[1]


# -- headers that no array has ---------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize(
    ("descr", "order", "shape", "message"),
    [
        ("[]", False, "(3,)", "records without fields"),
        ("[('a', [])]", False, "(3,)", "records without fields"),
        ("[('a', '<f4', (0,))]", False, "(10000000000000,)", "rows without values"),
        ("'<f4'", False, "(10000000000000, 0)", "rows without values"),
        ("'<f4'", True, "(10000000000000, 0)", "rows without values"),
        ("'<U0'", False, "(10000000000000,)", "rows without values"),
        ("'<f4'", False, "(0, 10000000000000000000000)", "not a complete NumPy file"),
        ("'<f4'", False, "(" + "1," * 100 + ")", "not a complete NumPy file"),
        ("'<f4'", False, "(True,)", "not a complete NumPy file"),
        ("'<f4'", False, "[3]", "not a complete NumPy file"),
        ("'<f4'", "'x'", "(3,)", "not a complete NumPy file"),
        ("'<f4'", False, "None", "not a complete NumPy file"),
        ("None", False, "(3,)", "not a complete NumPy file"),
        ("5", False, "(3,)", "not a complete NumPy file"),
        ("[" * 9000, False, "(3,)", "not a complete NumPy file"),
    ],
)
def test_a_header_that_no_array_has_is_refused(tmp_path, version, descr, order, shape, message):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + size + text + bytes(12))
    with pytest.raises(SourceError, match=message):
        open_source(path)


def test_few_rows_without_a_value_are_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 0), "f4"))
    assert open_source(tmp_path / "x.npy").num_items == 3
