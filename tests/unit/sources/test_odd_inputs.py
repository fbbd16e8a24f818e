"""Files that are damaged, hostile or odd: each is read right, or an error that says what and where.

What one item alone is to blame for is that item's error, and all others are read.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile

import numpy as np
import pytest
from detection_sets import (
    coco,
    coco_image,
    coco_object,
    gif,
    voc_object,
    voc_xml,
    write,
    write_coco,
    write_voc,
)

import shardwriter as sw
from shardwriter.errors import OptionError, SourceError
from shardwriter.formats.media import read_wav_header
from shardwriter.sources.find import open_source
from shardwriter.sources.tables import TableOptions


def outcomes(source):
    """Return what loading each item gives: features, or the words of its error."""
    found = []
    for item in source.items():
        try:
            found.append(source.load(item))
        except SourceError as error:
            found.append(str(error))
    return found


# -- folders ---------------------------------------------------------------------------------------


def circle(path):
    path.symlink_to(path.name)


def nowhere(path):
    path.symlink_to("missing")


ODD_FILES = {
    "a circle of links": circle,
    "a link to nothing": nowhere,
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("make", ODD_FILES.values(), ids=ODD_FILES)
@pytest.mark.parametrize("name", ["x.npy", "x.parquet", "x.tar", "x.csv", "x.jsonl"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, make, name):
    if name == "x.parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    make(tmp_path / name)
    with pytest.raises(SourceError, match="in spite of its name") as caught:
        open_source(str(tmp_path))
    assert name in caught.value.path


@pytest.mark.parametrize("name", ["x.npy", "x.parquet", "x.tar"])
def test_a_pipe_can_not_be_read_by_position(tmp_path, name):
    if name == "x.parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    os.mkfifo(tmp_path / name)
    format = {"x.npy": "numpy", "x.parquet": "parquet", "x.tar": "webdataset"}[name]
    with pytest.raises(SourceError, match="not a regular file"):
        open_source(str(tmp_path / name), format)


@pytest.mark.parametrize("make", [circle, nowhere])
def test_a_lost_link_costs_no_other_image(tmp_path, make):
    write_voc(tmp_path, {"a": [voc_object("cat")], "b": [voc_object("cat")]})
    (tmp_path / "JPEGImages/b.gif").unlink()
    make(tmp_path / "JPEGImages/b.gif")
    first, second = outcomes(open_source(str(tmp_path)))
    assert first["image/filename"] == "a.gif"
    assert "does not exist" in second


@pytest.mark.parametrize("make", [circle, nowhere])
def test_a_lost_link_among_images_is_named(tmp_path, make):
    write(tmp_path / "cat/1.gif", gif(1, 1))
    make(tmp_path / "cat/2.gif")
    with pytest.raises(SourceError, match="can not be read") as caught:
        open_source(str(tmp_path))
    assert caught.value.path.endswith("cat/2.gif")


def test_a_name_that_is_not_utf8(tmp_path):
    write_voc(tmp_path, {"a": []})
    for folder, content in (
        ("Annotations", voc_xml("a.gif").encode()),
        ("JPEGImages", gif(40, 20)),
    ):
        name = os.fsencode(tmp_path / folder) + (b"/\xff" + (b".xml", b".gif")[folder[0] == "J"])
        with open(name, "wb") as file:
            file.write(content)
    with pytest.raises(SourceError, match="name is not UTF-8"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("ending", ["flac", "mp3", "ogg"])
@pytest.mark.parametrize("folder", ["", "cat/"])
def test_other_audio_is_named(tmp_path, folder, ending):
    write(tmp_path / f"{folder}1.{ending}", b"fLaC")
    with pytest.raises(SourceError, match=rf"WAV is the only audio format.*\.{ending}") as caught:
        open_source(str(tmp_path))
    assert "ffmpeg" in caught.value.hint
    with pytest.raises(SourceError, match=rf"this folder has no WAV files, but 1 \.{ending}"):
        open_source(str(tmp_path), "audio")


@pytest.mark.parametrize("magic", [b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"])
def test_other_packers_are_named(tmp_path, magic):
    path = tmp_path / "x.tar.bz2"
    path.write_bytes(magic + bytes(100))
    with pytest.raises(SourceError, match=r"compressed with (bzip2|xz|zstd)"):
        open_source(str(path))


# -- annotations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a\0b.gif", "a\0b/c.gif"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_name_with_nul(tmp_path, name, place):
    images = [coco_image(0), coco_image(1)]
    document = coco(images, [coco_object(1, 0)])
    path = write_coco(tmp_path, document)
    images[place]["file_name"] = name
    write(tmp_path / "annotations/instances_val.json", json.dumps(document))
    with pytest.raises(SourceError, match="NUL character"):
        open_source(path)


@pytest.mark.parametrize("image_id", ["0", 0.0, [0], None])
def test_annotations_that_are_all_of_no_image_are_an_error(tmp_path, image_id):
    path = write_coco(tmp_path, coco([coco_image(0)], [coco_object(1, image_id)]))
    with pytest.raises(SourceError, match="none of the 1 annotations is for a listed image"):
        open_source(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"images": [], "annotations": [], "images": []}',
        '{"images": [], "annotations": [{"image_id": 1, "image_id": 2}]}',
    ],
)
def test_a_key_that_stands_twice(tmp_path, text):
    write(tmp_path / "x.json", text)
    with pytest.raises(SourceError, match=r"an object repeats the key 'image(s|_id)'"):
        open_source(str(tmp_path / "x.json"), "coco")


def test_an_image_that_stands_twice_is_told(tmp_path):
    images = [coco_image(0), coco_image(1, file_name="0.gif")]
    source = open_source(write_coco(tmp_path, coco(images, [coco_object(1, 1)])))
    assert source.num_items == 2
    assert any("that repeat a file name, written again: 1" in note for note in source.notes)


@pytest.mark.parametrize("tag", ["name", "bndbox"])
def test_an_object_with_two_names_or_boxes(tmp_path, tag):
    write_voc(tmp_path, {"a": [voc_object("cat")], "b": [voc_object("cat")]})
    doubled = voc_xml("a.gif", voc_object("cat")).replace(f"</{tag}>", f"</{tag}><{tag}>x</{tag}>")
    write(tmp_path / "Annotations/a.xml", doubled)
    first, second = outcomes(open_source(str(tmp_path)))
    assert f"object 0 has more than one <{tag}>" in first
    assert second["image/object/class/text"] == ["cat"]


# -- arrays ----------------------------------------------------------------------------------------


def test_text_of_no_length_is_empty(tmp_path):
    head = b"{'descr': '|S0', 'fortran_order': False, 'shape': (3,)}"
    head += b" " * (-(11 + len(head)) % 64) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head)
    np.full(1000, 255, np.uint8)  # what memory would hold that nobody has set
    assert outcomes(open_source(str(tmp_path / "a.npy"))) == [{"a": b""}] * 3


def test_numbers_that_are_no_characters_are_one_row(tmp_path):
    np.save(tmp_path / "a.npy", np.array([65, 0x110000, 66], np.uint32).view("U1"))
    source = open_source(str(tmp_path / "a.npy"))
    first, bad, last = outcomes(source)
    assert (first, last) == ({"a": "A"}, {"a": "B"})
    assert "not characters" in bad
    for workers in (1, 2):
        out = tmp_path / f"out{workers}/d@2"
        result = sw.write(str(tmp_path / "a.npy"), out, workers=workers, on_error="skip")
        assert (result.num_records, result.num_items) == (2, 3)


@pytest.mark.parametrize("save", [np.save, lambda path, a: np.savez_compressed(path, x=a)])
def test_arrays_of_columns_are_turned_in_pieces(tmp_path, monkeypatch, save):
    monkeypatch.setattr("shardwriter.sources.numpy._TRANSPOSE_BYTES", 100)
    array = np.asfortranarray(np.arange(7 * 5 * 3, dtype=">i4").reshape(7, 5, 3))
    name = "x.npy" if save is np.save else "t.npz"
    save(tmp_path / name, array)
    found = [features["x"] for features in outcomes(open_source(str(tmp_path / name), "numpy"))]
    assert np.array_equal(found, array)


def test_endings_of_arrays_in_capitals(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(2))
    (tmp_path / "B.NPY").write_bytes((tmp_path / "a.npy").read_bytes())
    assert set(open_source(str(tmp_path)).plan) == {"a", "B"}
    (tmp_path / "a.NPY").write_bytes((tmp_path / "a.npy").read_bytes())
    with pytest.raises(SourceError, match="two arrays are named 'a'"):
        open_source(str(tmp_path))


def test_members_of_an_archive_that_are_none(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(3))
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(SourceError, match=r"'readme\.txt' of this zip file is not an array"):
        open_source(str(tmp_path / "t.npz"))
    np.savez(tmp_path / "t.npz", x=np.arange(3))
    data = bytearray((tmp_path / "t.npz").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "t.npz").write_bytes(data)
    with pytest.raises(SourceError, match=r"'x\.npy' of this zip file is encrypted"):
        open_source(str(tmp_path / "t.npz"))


# -- tables ----------------------------------------------------------------------------------------


def arrow_table(tmp_path, **columns):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table(columns)
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as file:
        file.write_table(table)
    return str(tmp_path / "t.arrow")


def test_lists_without_a_type(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = arrow_table(tmp_path, a=pa.array([[], None, [None]], pa.list_(pa.null())))
    source = open_source(path)
    assert source.plan["a"].kind is None
    first, second, third = outcomes(source)
    assert first == second == {"a": sw.UNSET}
    assert "a list has a null in it" in third
    result = sw.write(path, tmp_path / "d@1", on_error="skip")
    assert (result.num_records, result.num_items) == (2, 3)


@pytest.mark.parametrize("nulls", [(), (1,)])
def test_tensors_of_one_shape(tmp_path, nulls):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    values = np.arange(18, dtype=np.int32).reshape(3, 2, 3)
    rows = [None if row in nulls else values[row].ravel() for row in range(3)]
    storage = pa.array(rows, pa.list_(pa.int32(), 6))
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3])
    path = arrow_table(tmp_path, a=pa.ExtensionArray.from_storage(kind, storage))
    source = open_source(path)
    assert source.plan["a"].shape == (2, 3)
    for row, features in enumerate(outcomes(source)):
        if row in nulls:
            assert features["a"] is sw.UNSET
        else:
            assert np.array_equal(features["a"], values[row])
    sw.write(path, tmp_path / "d@2")
    assert sw.open(tmp_path / "d")[2]["a"].shape == (2, 3)


def test_tensors_in_another_order_of_dimensions(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0])
    storage = pa.array([list(range(6))], pa.list_(pa.int32(), 6))
    path = arrow_table(tmp_path, a=pa.ExtensionArray.from_storage(kind, storage))
    with pytest.raises(SourceError, match="permuted dimensions"):
        _ = open_source(path).plan


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
@pytest.mark.parametrize(
    ("encoding", "named"), [("utf-16-le", "utf-16"), ("utf-16-be", "utf-16"), ("latin1", "latin-1")]
)
def test_text_in_another_encoding(tmp_path, name, encoding, named):
    text = {"x.csv": "\ufeffa,b\n1,ä\n", "x.jsonl": '\ufeff{"a": "ä"}\n'}[name]
    if encoding == "latin1":
        text = text.removeprefix("\ufeff")
    (tmp_path / name).write_bytes(text.encode(encoding))
    for source in (tmp_path / name, tmp_path):  # one is looked into, and the other's name suffices
        with pytest.raises(SourceError, match=r"UTF-8") as caught:
            _ = open_source(str(source)).plan
        assert f"--encoding {named}" in caught.value.hint
        found = open_source(str(source), table=TableOptions(encoding=named))
        assert list(found.load(0).values())[-1] == "ä"


# -- sound -----------------------------------------------------------------------------------------


def sound(num_bytes, riff_bytes, data=b"abcd"):
    body = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    body += b"data" + struct.pack("<I", num_bytes) + data
    return b"RIFF" + struct.pack("<I", riff_bytes) + body


@pytest.mark.parametrize("riff_bytes", [0, 36])
def test_a_header_that_was_never_filled_in(riff_bytes):
    with pytest.raises(ValueError, match="0 bytes of samples, but 4 bytes follow"):
        read_wav_header(sound(0, riff_bytes))
    assert read_wav_header(sound(0, 36, b"")).num_frames == 0
    assert read_wav_header(sound(0, 48, b"LIST\4\0\0\0abcd")).num_frames == 0
    assert read_wav_header(sound(4, riff_bytes)).num_frames == 2


# -- names that no file has ------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["auto", "csv", "jsonl", "numpy", "image-folder", "coco"])
def test_a_source_with_a_nul_in_its_name(format):
    with pytest.raises(OptionError, match="NUL, which file names cannot contain"):
        open_source("a\0b.csv", format)


def test_a_saved_dataset_that_names_a_file_with_a_nul(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "a\\u0000.arrow"}]}')
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(SourceError, match="NUL"):
        open_source(str(tmp_path))
