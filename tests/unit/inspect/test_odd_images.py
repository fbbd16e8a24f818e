"""Odd image files: what is recorded of them, what is refused, and what they become when resized."""

from __future__ import annotations

import json
import struct
import warnings
import zlib

import numpy as np
import pytest
from detection_sets import coco, coco_image, coco_object, write
from image_files import file_of, frames, opened, photo, picture, pil

import shardwriter as sw
from shardwriter.errors import SourceError
from shardwriter.formats.media import read_header


def png_header(width, height):
    """Return a PNG file that says it has this size, and has no pixels."""
    data = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (data, b"IEND")
    ends = b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + ends


def with_thumbnail():
    """Return a JPEG file of 40 x 30 pixels whose Exif block has one of 9 x 8 in it."""
    small = photo(8, 9)
    entries = struct.pack("<HHI4s", 0x112, 3, 1, b"\1\0\0\0")
    first = b"II*\0\x08\0\0\0" + struct.pack("<H", 1) + entries + struct.pack("<I", 26)
    second = struct.pack("<HHHIIHHIII", 2, 0x201, 4, 1, 56, 0x202, 4, 1, len(small), 0)
    return photo(exif=b"Exif\0\0" + first + second + small)


def bmp(height, header_bytes=40):
    """Return a BMP file, 40 pixels wide, with one of the two kinds of header."""
    rows = bytes(40 * 3 * abs(height))
    start = b"BM" + struct.pack("<IHHI", 14 + header_bytes + len(rows), 0, 0, 14 + header_bytes)
    if header_bytes == 12:
        return start + struct.pack("<IHHHH", 12, 40, height, 1, 24) + rows
    numbers = (40, 40, height, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return start + struct.pack("<IiiHHIIiiII", *numbers) + rows


def scaled_webp():
    """Return a WebP file whose frame asks to be shown larger: 2 bits beside each side."""
    data = bytearray(file_of(picture(), "WEBP"))
    data[27] |= 0x40
    data[29] |= 0x80
    return bytes(data)


def tiff_pages():
    return file_of(picture(), "TIFF", save_all=True, append_images=[picture(60, 80)])


ODD = {
    "truncated.jpg": (photo(quality=95)[:-300], "jpeg"),
    "cmyk.jpg": (file_of(picture(mode="CMYK"), "JPEG"), "jpeg"),
    "turned.jpg": (photo(orientation=6), "jpeg"),
    "png.jpg": (file_of(picture(), "PNG"), "png"),
    "progressive.jpg": (photo(progressive=True), "jpeg"),
    "restarts.jpg": (photo(restart_marker_blocks=1), "jpeg"),
    "thumbnail.jpg": (with_thumbnail(), "jpeg"),
    "profile.jpg": (photo(icc_profile=bytes(200_000)), "jpeg"),
    "filled.jpg": (photo()[:2] + b"\xff\xff\xff" + photo()[2:], "jpeg"),
    "junk.jpg": (photo()[:20] + bytes(4) + photo()[20:], "jpeg"),
    "animated.gif": (frames("GIF"), "gif"),
    "animated.webp": (frames("WEBP"), "webp"),
    "animated.png": (frames("PNG"), "png"),
    "lossless.webp": (file_of(picture(), "WEBP", lossless=True), "webp"),
    "scaled.webp": (scaled_webp(), "webp"),
    "deep.png": (file_of(picture(mode="I;16"), "PNG"), "png"),
    "palette.png": (file_of(picture(mode="P"), "PNG"), "png"),
    "down.bmp": (bmp(-30), "bmp"),
    "old.bmp": (bmp(30, 12), "bmp"),
    "pages.tif": (tiff_pages(), "tiff"),
    "häß lich\u0301.JPEG": (photo(), "jpeg"),
}
REFUSED = {
    "empty.jpg": (b"", "the file is empty"),
    "text.jpg": (b"not a picture\n", "not a known image format: the file begins with b'not a pi'"),
    "zero.png": (png_header(0, 30), "broken or cut off"),
    "zero.bmp": (bmp(0), "broken or cut off"),
    "cut.bmp": (bmp(30)[:20], "broken or cut off"),
    "cut.webp": (file_of(picture(), "WEBP")[:24], "broken or cut off"),
    "cut.jpg": (photo()[:30], "broken or cut off"),
    "cut.png": (file_of(picture(), "PNG")[:20], "broken or cut off"),
}
CAN_NOT_BE_RESIZED = {
    "truncated.jpg": "decoded",
    "animated.gif": "2 frames",
    "animated.webp": "2 frames",
    "animated.png": "2 frames",
    "pages.tif": "2 frames",
}


@pytest.fixture
def folder(tmp_path):
    for name, (data, _) in ODD.items():
        write(tmp_path / "data/odd" / name, data)
    return tmp_path / "data"


@pytest.mark.parametrize("name", ODD)
def test_headers(name):
    data, format = ODD[name]
    assert read_header(data) == (format, 30, 40)


def test_images_of_any_size():
    for side in (1, 100_000):
        assert read_header(png_header(side, side))[1:] == (side, side)
    for size in ((1, 1), (1, 16_000), (16_000, 1)):
        for options in ({}, {"lossless": True}):
            assert read_header(file_of(picture(*size), "WEBP", **options))[1:] == size
        assert read_header(file_of(picture(*size), "BMP"))[1:] == size


def test_a_folder_passes_them_through(folder, tmp_path):
    sw.write(folder, tmp_path / "t@2")
    found = {e["image/filename"].rpartition("/")[2]: e for e in sw.open(tmp_path / "t")}
    assert found.keys() == ODD.keys()
    for name, (data, format) in ODD.items():
        example = found[name]
        assert example["image/encoded"] == data
        assert (example["image/format"], example["image/height"], example["image/width"]) == (
            *(format, 30, 40),
        )


def test_a_folder_resizes_them_or_says_why_not(folder, tmp_path):
    manifest = sw.write(
        *(folder, tmp_path / "t@2"), images=sw.ImageOptions(max_side=20), on_error="skip"
    )
    ledger = (tmp_path / "t.errors.jsonl").read_text().splitlines()
    told = {line["item"][4:]: line for line in map(json.loads, ledger)}
    assert told.keys() == CAN_NOT_BE_RESIZED.keys()
    for name, words in CAN_NOT_BE_RESIZED.items():
        assert words in told[name]["message"]
        assert told[name]["feature"] == "image/encoded"
    assert manifest.num_records == len(ODD) - len(told)
    for example in sw.open(tmp_path / "t"):
        size = opened(example["image/encoded"]).size
        assert size == (example["image/width"], example["image/height"])
        assert size == ((15, 20) if "turned" in example["image/filename"] else (20, 15))


@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_no_size_is_refused_by_every_source(tmp_path, name):
    data, words = REFUSED[name]
    write(tmp_path / "folder/a" / name, data)
    write(tmp_path / "pairs/images" / name, data)
    write(tmp_path / "pairs/masks" / name, photo())
    image = coco_image(1, file_name=name, width=40, height=30)
    write(tmp_path / "coco/instances_val.json", json.dumps(coco([image], [coco_object(1, 1)])))
    write(tmp_path / "coco/val" / name, data)
    for source in ("folder", "pairs", "coco"):
        with pytest.raises(SourceError, match=words) as caught:
            sw.write(tmp_path / source, tmp_path / "t@1")
        assert caught.value.path.endswith(name)
        manifest = sw.write(tmp_path / source, tmp_path / source / "out/t@1", on_error="skip")
        assert (manifest.num_items, manifest.num_records) == (1, 0)


def test_an_image_that_is_turned_has_the_size_of_its_stored_pixels(tmp_path):
    # 40 x 30 pixels are stored, and shown as 30 x 40: masks and boxes go by the stored ones.
    write(tmp_path / "pairs/images/1.jpg", photo(orientation=6))
    write(tmp_path / "pairs/masks/1.png", file_of(picture(mode="L"), "PNG"))
    (pair,) = sw.write(tmp_path / "pairs", tmp_path / "t@1") and sw.open(tmp_path / "t")
    assert (pair["image/width"], pair["image/height"]) == (40, 30)
    write(tmp_path / "pairs/masks/1.png", file_of(picture(40, 30, "L"), "PNG"))
    with pytest.raises(SourceError, match="30 x 40 pixels"):
        sw.write(tmp_path / "pairs", tmp_path / "u@1")
    for size in ((40, 30), (30, 40)):
        image = coco_image(1, file_name="1.jpg", width=size[0], height=size[1])
        document = coco([image], [coco_object(1, 1, bbox=[1, 2, 3, 4])])
        write(tmp_path / "coco/instances_val.json", json.dumps(document))
        write(tmp_path / "coco/val/1.jpg", photo(orientation=6))
        if size == (40, 30):
            sw.write(tmp_path / "coco", tmp_path / "v@1")
        else:
            with pytest.raises(SourceError, match="40 x 30") as caught:
                sw.write(tmp_path / "coco", tmp_path / "w@1")
            assert "EXIF" in caught.value.hint


def test_every_real_image_is_measured_as_pillow_does(data_dir):
    endings = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
    paths = [p for p in data_dir.rglob("*") if p.suffix.lower() in endings and p.is_file()]
    num_same = 0
    for path in paths:
        data = path.read_bytes()
        try:
            header = tuple(read_header(data))
        except ValueError:
            header = None
        try:
            with warnings.catch_warnings(), pil.open(path) as image:
                warnings.simplefilter("ignore")
                expected = (image.format.lower().replace("mpo", "jpeg"), *image.size[::-1])
        except OSError:
            expected = None
        assert header == expected, path
        num_same += header is not None
    assert num_same >= 100


def test_real_images_are_resized_or_refused_by_name(data_dir, tmp_path):
    root = data_dir / "python-pillow+Pillow" / "Tests" / "images"
    if not root.is_dir():
        pytest.skip(f"{root} is not there")
    refused = {}
    for path in sorted(root.glob("*.*")):
        write(tmp_path / "data" / path.name, path.read_bytes())
    sw.write(
        *(tmp_path / "data", tmp_path / "t@2"),
        images=sw.ImageOptions(resize=(24, 16)),
        on_error="skip",
    )
    for line in (tmp_path / "t.errors.jsonl").read_text().splitlines():
        refused[json.loads(line)["item"]] = json.loads(line)["message"]
    for example in sw.open(tmp_path / "t"):
        assert opened(example["image/encoded"]).size == (24, 16)
    broken = ("broken.png", "truncated_image.png", "truncated_jpeg.jpg", "zero_width.gif")
    assert set(broken) <= refused.keys() <= {*broken, "no_palette.gif"}


def test_masks_of_real_pairs_keep_their_colours(data_dir, tmp_path):
    path = data_dir / "cvat-ai+datumaro" / "tests" / "assets" / "camvid_dataset"
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    name = "image/segmentation/class/encoded"
    sw.write(path, tmp_path / "a@1")
    sw.write(path, tmp_path / "b@1", images=sw.ImageOptions(resize=(23, 31)))
    for whole, other in zip(sw.open(tmp_path / "a"), sw.open(tmp_path / "b"), strict=True):
        before, after = (
            {tuple(colour) for colour in np.asarray(opened(e[name]).convert("RGB")).reshape(-1, 3)}
            for e in (whole, other)
        )
        assert after
        assert after <= before
        assert opened(other[name]).size == opened(other["image/encoded"]).size == (23, 31)


def test_areas_of_real_objects_follow(data_dir, tmp_path):
    folder = data_dir / "cvat-ai+datumaro" / "tests" / "assets" / "coco_dataset" / "coco_stuff"
    path = folder / "annotations" / "stuff_val.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    sw.write(path, tmp_path / "a@1")
    sw.write(path, tmp_path / "b@1", images=sw.ImageOptions(resize=(100, 60)))
    for whole, other in zip(sw.open(tmp_path / "a"), sw.open(tmp_path / "b"), strict=True):
        num_pixels = whole["image/width"] * whole["image/height"]
        area = "image/object/area"
        assert other[area].tolist() == pytest.approx(
            (whole[area] * 6000 / num_pixels).tolist(), rel=1e-6
        )
        counts = "image/object/segmentation/rle/counts"
        assert other[counts].sum() / 6000 == whole[counts].sum() / num_pixels >= 1
        box = "image/object/bbox/xmax"
        assert np.array_equal(other[box], whole[box])
