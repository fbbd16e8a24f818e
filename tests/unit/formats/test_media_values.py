"""``sw.jpeg`` and ``sw.png``: files of pixels, known as images wherever they come."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from image_files import file_of, opened, photo, picture, pil, pixels

import shardwriter as sw
from shardwriter.errors import FeatureError, MissingExtra, SchemaConflict
from shardwriter.formats.media import EncodedImage
from shardwriter.reading.pictures import save_pictures
from shardwriter.sources.shard_sets import load_manifest


@pytest.mark.parametrize(
    ("array", "mode"),
    [
        (pixels(channels=1), "L"),
        (pixels(channels=1)[:, :, None], "L"),
        (pixels(channels=3)[:, :, :2], "LA"),
        (pixels(), "RGB"),
        (pixels(channels=4), "RGBA"),
        (pixels()[::-1, ::2], "RGB"),
        (np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000, "I;16"),
        (np.arange(12, dtype=">u2").reshape(3, 4, 1) * 5000, "I;16"),
        (np.eye(5, dtype=bool), "1"),
        (np.zeros((1, 1), np.uint8), "L"),
    ],
)
def test_png_keeps_every_pixel(array, mode):
    data = sw.png(array)
    image = opened(data)
    assert (image.format, image.mode) == ("PNG", mode)
    assert np.array_equal(np.asarray(image), array.squeeze(2) if array.shape[2:] == (1,) else array)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_png_of_pil_images(mode):
    image = picture(mode=mode)
    made = opened(sw.png(image))
    assert made.mode == mode
    assert np.array_equal(np.asarray(made), np.asarray(image))


def test_png_keeps_numbers_that_the_palette_has_no_colour_for():
    image = pil.fromarray(np.array([[0, 1, 255]], np.uint8)).convert("L")
    image = pil.frombytes("P", (3, 1), image.tobytes())
    image.putpalette([0, 0, 0, 255, 0, 0])
    assert np.asarray(opened(sw.png(image))).tolist() == [[0, 1, 255]]


def test_jpeg_is_near_and_quality_decides_how():
    sizes = []
    for quality in (30, 95, 100):
        data = sw.jpeg(pixels(), quality)
        image = opened(data)
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (40, 30))
        sizes.append(len(data))
        far = np.abs(np.asarray(image).astype(int) - pixels()).mean()
    assert far < 2
    assert sizes == sorted(set(sizes))
    assert sw.jpeg(pixels()) == sw.jpeg(pixels(), quality=95, subsampling="4:2:0")
    assert len(sw.jpeg(pixels(), subsampling="4:4:4")) > len(sw.jpeg(pixels()))
    assert opened(sw.jpeg(pixels(channels=1))).mode == "L"
    assert opened(sw.jpeg(picture(mode="CMYK"))).mode == "CMYK"


def test_of_a_pil_image_only_pixels_and_the_colour_profile_are_kept():
    image = opened(photo(orientation=6, icc_profile=b"profile", comment=b"secret"))
    for made in (opened(sw.jpeg(image)), opened(sw.png(image))):
        assert made.size == (40, 30)
        assert made.info["icc_profile"] == b"profile"
        assert not made.getexif()
        assert "comment" not in made.info
    assert "exif" in image.info  # the caller's own is left alone


@pytest.mark.parametrize(
    ("make", "value", "hint"),
    [
        (sw.png, pixels() / 255, "astype"),
        (sw.jpeg, pixels().astype(np.float32), "astype"),
        (sw.png, pixels().transpose(2, 0, 1), "transpose"),
        (sw.png, np.zeros((4, 4, 5), np.uint8), "uint8"),
        (sw.png, np.zeros((0, 4), np.uint8), "uint8"),
        (sw.png, np.zeros((2, 2, 3), np.uint16), "uint8"),
        (sw.png, np.zeros((2, 2), np.int64), "uint8"),
        (sw.png, np.zeros(4, np.uint8), "uint8"),
        (sw.png, "a.png", "uint8"),
        (sw.jpeg, pixels(channels=4), "uint8"),
        (sw.jpeg, np.zeros((2, 2), np.uint16), "uint8"),
        (sw.jpeg, np.zeros((2, 2), bool), "uint8"),
        (sw.jpeg, picture(mode="RGBA"), "sw.png"),
        (sw.jpeg, picture(mode="P"), "convert"),
        (sw.png, picture(mode="CMYK"), "convert"),
        (sw.png, picture(mode="F"), "convert"),
    ],
)
def test_other_pixels_are_refused_by_name(make, value, hint):
    with pytest.raises(FeatureError, match=make.__name__) as caught:
        make(value)
    assert hint in caught.value.hint


def test_wrong_options_and_sides_are_refused():
    for options in ({"quality": 0}, {"quality": 9.5}, {"subsampling": "4:1:1"}):
        with pytest.raises(FeatureError, match="jpeg"):
            sw.jpeg(pixels(), **options)
    with pytest.raises(FeatureError, match="can not encode the image"):
        sw.jpeg(np.zeros((1, 70_000), np.uint8))


def test_an_encoded_image_is_bytes_that_travel():
    data = sw.png(pixels())
    travelled = pickle.loads(pickle.dumps(data))
    assert type(travelled) is EncodedImage
    assert (travelled, travelled.format) == (data, "png")
    assert bytes(data) == data
    assert sw.encode_example({"x": data}) == sw.encode_example({"x": bytes(data)})


@pytest.mark.parametrize("workers", [1, 2])
def test_the_schema_knows_an_image_without_being_told(tmp_path, workers):
    def row(number):
        make = sw.png if number % 2 else sw.jpeg
        return {"image": make(pixels(20 + number)), "one": sw.png(pixels()), "x": number}

    rows = [row(number) for number in range(7)]
    sw.write(rows, tmp_path / "t@2", workers=workers)
    features = load_manifest(tmp_path / "t.manifest.json").schema["features"]
    assert (features["image"]["encoding"], features["image"]["format"]) == ("image", "image")
    assert (features["one"]["encoding"], features["one"]["format"]) == ("image", "png")
    assert [example["image"] for example in sw.open(tmp_path / "t")] == [r["image"] for r in rows]


def test_a_map_makes_images(tmp_path):
    sw.write([{"n": 3}], tmp_path / "t@1", map=lambda row: {"image": sw.png(pixels(row["n"]))})
    assert (
        load_manifest(tmp_path / "t.manifest.json").schema["features"]["image"]["encoding"]
        == "image"
    )
    with sw.open_writer(tmp_path / "u@1") as writer:
        writer.write({"image": sw.jpeg(pixels())})
    assert (
        load_manifest(tmp_path / "u.manifest.json").schema["features"]["image"]["format"] == "jpeg"
    )


def test_saved_pictures_are_the_files(tmp_path):
    rows = [{"a": sw.png(pixels()), "b": sw.jpeg(pixels())}]
    sw.write(rows, tmp_path / "t@1")
    (record,) = sw.read_records(next(tmp_path.glob("t.tfrecord*")))
    features = sw.load_manifest(tmp_path / "t.manifest.json").schema["features"]
    saved = save_pictures(0, sw.decode_example(record), features, str(tmp_path / "pictures"))
    assert [Path(path).name for path in saved] == ["0-a.png", "0-b.jpg"]
    assert [Path(path).read_bytes() for path in saved] == [rows[0]["a"], rows[0]["b"]]


def test_images_and_other_bytes_are_not_one_feature(tmp_path):
    with pytest.raises(SchemaConflict, match="encodings"):
        sw.write([{"x": sw.png(pixels())}, {"x": b"\0"}], tmp_path / "t@1")
    rows = [{"x": sw.png(pixels())}, {"x": file_of(picture())}]
    sw.write(rows, tmp_path / "t@1", schema="x=image")  # said so, files are images too


@pytest.mark.parametrize("value", [picture(), [picture()], opened(photo())])
def test_a_pil_image_is_no_value_and_the_error_names_what_makes_one(tmp_path, value):
    with pytest.raises(FeatureError, match="not an image object") as caught:
        sw.write([{"x": value}], tmp_path / "t@1")
    assert "sw.png(image)" in caught.value.hint
    assert caught.value.feature == "x"


def test_pillow_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    for call in (
        lambda: sw.png(pixels()),
        lambda: sw.jpeg(pixels()),
        lambda: sw.write([{}], tmp_path / "t@1", images=sw.ImageOptions(max_side=9)),
    ):
        with pytest.raises(MissingExtra) as caught:
            call()
        assert caught.value.hint == 'pip install "shardwriter[images]"'
    assert not list(tmp_path.iterdir())
