"""Image headers: format by content, size in pixels, and nothing but ValueError for the rest."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import imagesize
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.formats.media import EXTENSIONS, ImageHeader, image_format, read_header


def png(width, height):
    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(20)


def bmp(width, height):
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


def jpeg(width, height):
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + (
        b"\xff\xc0" + struct.pack(">H", len(frame) + 2) + frame + b"\xff\xd9"
    )


def turned_jpeg(width, height):
    """A JPEG whose EXIF says that it is to be shown turned by 90 degrees."""
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    exif = b"Exif\0\0" + tiff
    plain = jpeg(width, height)
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + plain[20:]


MAKERS = {"png": png, "gif": gif, "bmp": bmp, "jpeg": jpeg}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\xff\xd8\xff\xe1", "jpeg"),
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"GIF87a", "gif"),
        (b"GIF89a", "gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
        (b"BM", "bmp"),
        (b"II*\0", "tiff"),
        (b"MM\0*", "tiff"),
        (b"", None),
        (b"\xff\xd8", None),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"GIF88a", None),
        (b"II\0*", None),
        (b"%PDF-1.4", None),
    ],
)
def test_a_format_is_told_by_its_first_bytes(head, expected):
    assert image_format(head) == expected


@pytest.mark.parametrize("kind", MAKERS)
@given(st.integers(1, 60), st.integers(1, 60))
def test_format_height_and_width_are_read(kind, width, height):
    assert read_header(MAKERS[kind](width, height)) == ImageHeader(kind, height, width)


def test_a_bitmap_that_begins_at_its_top_row_has_a_height_too():
    assert read_header(bmp(7, -5)) == ImageHeader("bmp", 5, 7)


def test_the_size_is_that_of_the_stored_pixels():
    assert read_header(turned_jpeg(7, 5)) == ImageHeader("jpeg", 5, 7)
    assert imagesize.get(io.BytesIO(turned_jpeg(7, 5)), exif_rotation=True) == (5, 7)


def test_an_empty_file_is_called_empty():
    with pytest.raises(ValueError, match="empty"):
        read_header(b"")


@pytest.mark.parametrize("data", [b"x", b"hello, world, this is text", b"%PDF-1.4 ..."])
def test_what_is_no_image_is_said_with_its_beginning(data):
    with pytest.raises(ValueError, match="not a known image format") as caught:
        read_header(data)
    assert repr(data[:8]) in str(caught.value)


@pytest.mark.parametrize("kind", MAKERS)
def test_an_image_without_pixels_is_broken(kind):
    with pytest.raises(ValueError, match=kind):
        read_header(MAKERS[kind](0, 5))


@pytest.mark.parametrize("kind", MAKERS)
def test_every_truncation_gives_the_size_or_a_value_error(kind):
    whole = MAKERS[kind](7, 5)
    for size in range(len(whole)):
        try:
            header = read_header(whole[:size])
        except ValueError:
            continue
        assert header == ImageHeader(kind, 5, 7), size


@given(st.sampled_from([*MAKERS]), st.data())
def test_damaged_headers_raise_nothing_else(kind, data):
    broken = bytearray(MAKERS[kind](7, 5))
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = read_header(bytes(broken))
    except ValueError:
        return
    assert header.width > 0
    assert header.height > 0


@given(
    st.sampled_from(
        [
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"GIF89a",
            b"BM",
            b"II*\0",
            b"MM\0*",
            b"RIFF\x20\0\0\0WEBP",
            b"RIFF\x20\0\0\0WEBPVP8 ",
            b"RIFF\x20\0\0\0WEBPVP8X",
            b"RIFF\x20\0\0\0WEBPVP8L",
        ]
    ),
    st.binary(max_size=80),
)
def test_any_bytes_behind_a_magic_number_raise_nothing_else(magic, rest):
    with contextlib.suppress(ValueError):
        read_header(magic + rest)


def test_images_of_the_test_data(data_dir):
    folder = data_dir / "python-pillow+Pillow" / "Tests" / "images"
    for name, kind in [
        ("jpg", "jpeg"),
        ("png", "png"),
        ("gif", "gif"),
        ("bmp", "bmp"),
        ("webp", "webp"),
    ]:
        assert read_header((folder / f"hopper.{name}").read_bytes()) == (kind, 128, 128), name
    with pytest.raises(ValueError, match="gif"):
        read_header((folder / "zero_width.gif").read_bytes())


def test_images_of_the_test_data_are_read_or_refused(data_dir):
    found = 0
    for path in sorted(data_dir.rglob("*")):
        if path.suffix.lower() in EXTENSIONS and path.is_file():
            data = path.read_bytes()[: 1 << 16]
            with contextlib.suppress(ValueError):
                found += read_header(data).width > 0
    assert found > 20


def test_jpegs_are_measured_as_imagesize_does(data_dir):
    """Segment by segment, where that is possible; cut off anywhere, never another size."""
    folder = "tensorflow_data_validation/statistics/generators/testdata"
    paths = sorted((data_dir / "tensorflow+data-validation" / folder).glob("*.jpg"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        header = read_header(data)
        size = imagesize.get(io.BytesIO(data), exif_rotation=False)
        assert (header.width, header.height) == size
        for end in range(4, 1200, 7):
            try:
                found = read_header(data[:end])
            except ValueError:
                continue
            assert found == header
