"""Pictures of records as files: `show --save-images`, and the PNGs that raw pixels become."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardwriter as sw
from shardwriter.errors import OptionError
from shardwriter.formats.media import encode_png, read_header
from shardwriter.reading.pictures import pictures_of, save_pictures

GIF = (
    b"GIF89a\x02\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x00\x00\x00\x00\x00,"
    b"\x00\x00\x00\x00\x02\x00\x01\x00\x00\x02\x02D\n\x00;"
)


def decode_png(data: bytes) -> NDArray[np.uint8]:
    """The pixels of a PNG with unfiltered rows."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, packed, size = 8, b"", (0, 0, 0)
    while place < len(data):
        length, name = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + length]
        (crc,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert crc == zlib.crc32(name + body)
        if name == b"IHDR":
            width, height, depth, colours, *rest = struct.unpack(">IIBBBBB", body)
            assert (depth, rest) == (8, [0, 0, 0])
            size = (height, width, {0: 1, 4: 2, 2: 3, 6: 4}[colours])
        elif name == b"IDAT":
            packed += body
        place += 12 + length
    assert name == b"IEND"
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(size[0], -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(size)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_png_has_the_pixels(height: int, width: int, channels: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    data = encode_png(pixels)
    assert np.array_equal(decode_png(data), pixels)
    assert read_header(data) == ("png", height, width)


def test_tensorflow_reads_our_png(tf: Any) -> None:
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    assert np.array_equal(tf.io.decode_png(encode_png(pixels)).numpy(), pixels)


@pytest.mark.parametrize("shape", [(2, 2, 5), (4,), (0, 3), (1, 1, 1, 1)])
def test_no_picture_has_such_a_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="image"):
        encode_png(np.zeros(shape, np.uint8))
    with pytest.raises(ValueError, match="float32"):
        encode_png(np.zeros((2, 2), np.float32))  # type: ignore[arg-type]


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("features", "schema", "shape"),
    [
        ({"x": [bytes(12)]}, {"x": {"dtype": "uint8", "shape": [2, 2, 3]}}, (2, 2, 3)),
        ({"x": [bytes(6)]}, {"x": {"dtype": "uint8", "shape": [2, 3]}}, (2, 3, 1)),
        ({"x": ints(*range(6))}, {"x": {"dtype": "uint8", "shape": [2, 3]}}, (2, 3, 1)),
        ({"x": ints(*range(6))}, {"x": {"dtype": "int64", "shape": [2, 3]}}, None),
        ({"x": [bytes(24)]}, {"x": {"dtype": "float32", "shape": [2, 3]}}, None),
        ({"x": [bytes(12)], "height": ints(2), "width": ints(2)}, {}, (2, 2, 3)),
        ({"a/x": [bytes(8)], "a/height": ints(4), "a/width": ints(2)}, {}, (4, 2, 1)),
        ({"x": [bytes(8)], "height": ints(2), "width": ints(2), "depth": ints(2)}, {}, (2, 2, 2)),
        ({"x": [bytes(9)], "height": ints(2), "width": ints(2)}, {}, None),
        ({"x": [bytes(9)], "height": ints(0), "width": ints(2)}, {}, None),
        ({"x": [bytes(9)], "height": ints(2**62), "width": ints(2**62)}, {}, None),
        ({"x": [bytes(9)], "height": ints(-3), "width": ints(-3)}, {}, None),
        ({"x": [b"text"]}, {}, None),
        ({"x": None}, {"x": {"dtype": "uint8", "shape": [2, 3]}}, None),
    ],
)
def test_raw_pixels_need_a_shape(
    features: dict[str, Any], schema: dict[str, Any], shape: tuple[int, ...] | None
) -> None:
    found = list(pictures_of(features, schema))
    shapes = [decode_png(picture.data).shape for picture in found]
    assert shapes == ([] if shape is None else [shape])


def test_files_are_named_by_record_and_feature(tmp_path: Path) -> None:
    folder = str(tmp_path / "new" / "look")
    features = {"image/encoded": [GIF], "../a b": [GIF, b"none", GIF], "image encoded": [GIF]}
    paths = save_pictures(7, features, {}, folder)
    assert sorted(Path(path).relative_to(folder).as_posix() for path in paths) == [
        "7-a_b-0.gif",
        "7-a_b-2.gif",
        "7-image_encoded.gif",
        "7-image_encoded_2.gif",
    ]
    assert {Path(path).read_bytes() for path in paths} == {GIF}
    with pytest.raises(OptionError, match="not overwritten"):
        save_pictures(7, features, {}, folder)
    assert save_pictures(8, {"x": [b"text"]}, {}, str(tmp_path / "unused")) == []
    assert not (tmp_path / "unused").exists()


def show(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shardwriter", "show", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_show_saves_what_it_shows(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    sw.write([{"p": pixels + i, "photo": GIF, "id": i} for i in range(5)], tmp_path / "t@2")
    done = show(tmp_path / "t", "--start", 1, "--count", 2, "--save-images", tmp_path / "look")
    assert (done.returncode, done.stderr) == (0, f"note: wrote 4 images to {tmp_path / 'look'}\n")
    names = ["1-p.png", "1-photo.gif", "2-p.png", "2-photo.gif"]
    assert sorted(path.name for path in (tmp_path / "look").iterdir()) == names
    for i in (1, 2):
        saved = (tmp_path / "look" / f"{i}-p.png").read_bytes()
        assert np.array_equal(decode_png(saved), pixels + i)
    again = show(tmp_path / "t", "--start", 2, "--save-images", tmp_path / "look")
    assert again.returncode == 2
    assert "2-p.png" in again.stderr
    done_json = show(tmp_path / "t", "--save-images", tmp_path / "json", "--json")
    assert json.loads(done_json.stdout)["index"] == 0


def test_show_says_that_there_are_no_pictures(dataset: Path) -> None:
    done = show(dataset / "t", "--save-images", dataset / "look")
    assert done.returncode == 0
    assert "no images in these records" in done.stderr
    assert not (dataset / "look").exists()
