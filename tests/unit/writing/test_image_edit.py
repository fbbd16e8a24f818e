"""One image encoded again: pixels, modes, formats, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from image_files import file_of, frames, opened, photo, picture, pil

import shardwriter as sw
from shardwriter.errors import SourceError
from shardwriter.formats.media import read_header
from shardwriter.writing.images import reencode_image


def reencode(data, width=20, height=15, **options):
    options = {"quality": 95, **options}
    return reencode_image(data, read_header(data), lambda *_size: (width, height), **options)


def shown(data):
    """Return pixels as they are displayed, without another way of turning them than Pillow's."""
    from PIL import ImageOps

    return np.asarray(ImageOps.exif_transpose(opened(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "I;16"])
def test_a_png_keeps_its_mode(mode):
    made = opened(reencode(file_of(picture(mode=mode), "PNG")))
    assert (made.format, made.mode, made.size) == ("PNG", mode, (20, 15))
    expected = picture(mode=mode).resize((20, 15), pil.Resampling.LANCZOS)
    assert np.array_equal(np.asarray(made), np.asarray(expected))


def test_16_bits_stay_16_bits():
    deep = pil.fromarray(np.full((30, 40), 50_001, np.uint16))
    assert np.asarray(opened(reencode(file_of(deep, "PNG")))).tolist() == [[50_001] * 20] * 15


def test_palettes_and_bits_are_mixed_as_colours_and_greys():
    for mode, mixed in (("P", "RGB"), ("1", "L")):
        assert opened(reencode(file_of(picture(mode=mode), "PNG"))).mode == mixed
    seen_through = picture(mode="P")
    assert opened(reencode(file_of(seen_through, "PNG", transparency=0))).mode == "RGBA"
    assert opened(reencode(file_of(picture(mode="L"), "PNG", transparency=9))).mode == "LA"


def test_what_can_not_be_seen_gives_no_colour():
    corner = np.zeros((2, 2, 4), np.uint8)
    corner[0, 0] = 200, 100, 50, 255
    corner[1, 1] = 255, 255, 255, 0
    made = np.asarray(opened(reencode(sw.png(corner), 1, 1)))
    assert made[0, 0, :3].tolist() == pytest.approx([200, 100, 50], abs=2)


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (photo(), "JPEG"),
        (photo(progressive=True), "JPEG"),
        (photo(restart_marker_blocks=1), "JPEG"),
        (file_of(picture(), "WEBP"), "WEBP"),
        (file_of(picture(), "GIF"), "PNG"),
        (file_of(picture(), "BMP"), "PNG"),
        (file_of(picture(), "TIFF"), "PNG"),
        (file_of(picture(mode="I;16"), "TIFF"), "PNG"),
    ],
)
def test_formats(data, format):
    made = reencode(data)
    assert (opened(made).format, opened(made).size) == (format, (20, 15))
    far = np.abs(shown(made) - shown(file_of(opened(data).resize((20, 15)), "PNG")))
    assert far.mean() < 8


@pytest.mark.parametrize("size", [(40, 30), (20, 15)])
def test_a_lossless_webp_stays_lossless(size):
    flat = np.random.default_rng(0).integers(0, 256, (30, 40, 4), np.uint8)
    data = file_of(pil.fromarray(flat), "WEBP", lossless=True, exact=True)
    expected = opened(data).resize(size, pil.Resampling.LANCZOS)
    assert np.array_equal(np.asarray(opened(reencode(data, *size))), np.asarray(expected))
    lossy = file_of(pil.fromarray(flat), "WEBP")
    assert len(reencode(lossy, 40, 30, quality=10)) < len(reencode(lossy, 40, 30, quality=95))


def test_cmyk_stays_cmyk_and_shows_the_same():
    data = file_of(picture(mode="CMYK"), "JPEG", quality=95)
    made = opened(reencode(data))
    assert made.mode == "CMYK"
    assert np.abs(shown(reencode(data)) - shown(reencode(photo()))).mean() < 5


def test_the_colour_profile_stays_and_nothing_else_does():
    for data in (
        photo(icc_profile=b"profile", comment=b"secret", orientation=3),
        file_of(picture(), "PNG", icc_profile=b"profile", dpi=(72, 72)),
        file_of(picture(), "WEBP", icc_profile=b"profile"),
    ):
        made = opened(reencode(data))
        assert made.info["icc_profile"] == b"profile"
        assert not made.getexif()
        assert {"comment", "exif", "dpi"}.isdisjoint(made.info)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF"])
def test_an_image_is_rotated_by_its_exif_tag(orientation, format):
    exif = pil.Exif()
    exif[0x0112] = orientation
    data = file_of(picture(), format, exif=exif)
    sideways = orientation > 4
    seen = []

    def half(width, height):
        seen.append((width, height))
        return width // 2, height // 2

    made = reencode_image(data, read_header(data), half, quality=95)
    assert seen == [(30, 40) if sideways else (40, 30)]
    assert opened(made).size == ((15, 20) if sideways else (20, 15))
    assert not opened(made).getexif()
    reference = pil.fromarray(shown(data).astype(np.uint8)).resize(opened(made).size)
    assert np.abs(shown(made) - np.asarray(reference)).mean() < 4


def test_annotated_images_are_not_rotated_and_lose_the_tag():
    made = reencode(photo(orientation=6), rotate=False)
    assert opened(made).size == (20, 15)
    assert not opened(made).getexif()
    assert np.abs(shown(made) - shown(reencode(photo()))).mean() < 1
    exif = pil.Exif()
    exif[0x0112] = 6
    with pytest.raises(SourceError, match="rotation tag"):
        reencode(file_of(picture(), "TIFF", exif=exif), rotate=False)


@pytest.mark.filterwarnings("ignore:Truncated File Read")  # Pillow says so, and goes on
def test_a_broken_tag_turns_nothing():
    data = photo(orientation=6)
    at = data.index(struct.pack(">HHI", 0x0112, 3, 1))
    for wrong in (0, 9, 65535):
        broken = data[: at + 8] + struct.pack(">H", wrong) + data[at + 10 :]
        assert opened(reencode(broken)).size == (20, 15)
    assert opened(reencode(data[: at - 2] + b"\xff\xff" + data[at:])).size == (20, 15)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16"])
def test_masks_are_chosen_and_never_mixed(mode):
    classes = np.array([[0, 1, 3], [255, 1, 3]], np.uint8)
    big = np.kron(classes, np.ones((10, 10), np.uint8))
    if mode == "P":
        mask = pil.frombytes("P", (30, 20), big.tobytes())
        mask.putpalette(bytes(range(12)))
    elif mode == "I;16":
        mask = pil.fromarray(big.astype(np.uint16) * 257)
    else:
        mask = pil.fromarray(big).convert(mode)
    data = file_of(mask, "PNG", **({"bits": 8} if mode == "P" else {}))
    for size in ((3, 2), (7, 5), (60, 40)):
        made = opened(reencode(data, *size, is_mask=True))
        assert (made.mode, made.size, made.format) == (mode, size, "PNG")
        before = opened(data)
        columns = ((np.arange(size[0]) + 0.5) * 30 / size[0]).astype(int)
        rows = ((np.arange(size[1]) + 0.5) * 20 / size[1]).astype(int)
        assert np.array_equal(np.asarray(made), np.asarray(before)[rows][:, columns])
        if mode == "P":
            assert made.getpalette()[:12] == before.getpalette()[:12]


def test_a_jpeg_with_a_second_picture_in_it_gives_its_first():
    data = file_of(picture(), "MPO", save_all=True, append_images=[picture(60, 80)])
    assert opened(data).n_frames == 2
    made = opened(reencode(data))
    assert (made.format, made.size) == ("JPEG", (20, 15))


def test_a_mask_is_never_made_a_jpeg():
    assert opened(reencode(photo(), is_mask=True)).format == "PNG"


@pytest.mark.parametrize(("width", "height"), [(75, 50), (150, 100), (299, 200), (700, 468)])
def test_a_far_larger_jpeg_is_decoded_smaller_and_looks_the_same(width, height):
    rng = np.random.default_rng(0)
    rough = pil.fromarray(rng.integers(0, 256, (40, 60), np.uint8)).resize((1203, 805))
    data = file_of(rough, "JPEG", quality=95)
    made = shown(reencode(data, width, height, quality=100)).astype(float)
    whole = opened(data).resize((width, height), pil.Resampling.LANCZOS).convert("RGB")
    error = ((made - np.asarray(whole).astype(float)) ** 2).mean()
    assert 10 * np.log10(255**2 / error) > 40  # 25 where the last columns are stretched


# -- what is refused -------------------------------------------------------------------------------


def _deep_colour(format):
    """Return a file with 16 bits of each of three colours, which Pillow itself does not write."""
    import zlib

    if format == "PNG":
        header = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)
        parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" + bytes(12)) * 2), (b"IEND", b"")]
        chunks = (
            struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d))
            for n, d in parts
        )
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
    tags = [
        *((256, 3, 1, 2), (257, 3, 1, 2), (258, 3, 3, 200), (259, 3, 1, 1), (262, 3, 1, 2)),
        *((273, 4, 1, 210), (277, 3, 1, 3), (278, 3, 1, 2), (279, 4, 1, 24)),
    ]
    table = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return (
        (b"II*\0\x08\0\0\0" + table).ljust(200, b"\0") + struct.pack("<HHH", 16, 16, 16) + bytes(28)
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (photo()[:-200], "can not be decoded"),
        (photo().replace(b"\xff\xda", b"\x00\xda"), "can not be decoded: (?!'MPO')"),
        (file_of(picture(), "PNG")[:-60], "can not be decoded"),
        (file_of(picture(), "WEBP")[:-60], "can not be decoded"),
        (file_of(picture(), "GIF")[:-60], "can not be decoded"),
        (frames("GIF"), "2 frames"),
        (frames("WEBP"), "2 frames"),
        (frames("PNG"), "2 frames"),
        (frames("TIFF"), "2 frames"),
        (_deep_colour("PNG"), "16 bits a colour"),
        (_deep_colour("TIFF"), "16 bits a colour"),
        (file_of(picture(mode="CMYK"), "TIFF"), "CMYK"),
        (file_of(picture(mode="F"), "TIFF"), "mode F"),
        (file_of(picture(mode="I"), "TIFF"), "mode I"),
    ],
)
def test_an_image_that_can_not_be_encoded_again_is_refused(data, words):
    with pytest.raises(SourceError, match=words) as caught:
        reencode(data)
    assert caught.value.hint


def test_a_header_that_promises_too_much_is_refused():
    data = bytearray(file_of(picture(), "PNG"))
    for side, words in ((60_000, "over Pillow.s limit"), (10_000, "over Pillow.s limit|decoded")):
        data[16:24] = struct.pack(">II", side, side)
        import zlib

        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        with pytest.raises(SourceError, match=words):
            reencode(bytes(data))


def test_a_result_that_is_too_large_is_refused():
    for size in ((65_501, 1), (20_000, 20_000)):
        with pytest.raises(SourceError, match="would become"):
            reencode(photo(), *size)
