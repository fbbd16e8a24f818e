"""Image files of all kinds, made by Pillow, and what they show."""

from __future__ import annotations

import io

import numpy as np
import pytest

pil = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def pixels(height=30, width=40, channels=3):
    """Return a picture whose corners differ: a slope down, one across, and a third."""
    down, across = np.mgrid[0:height, 0:width]
    planes = [down * 255 // max(1, height - 1), across * 255 // max(1, width - 1), 255 - down]
    found = np.stack([*planes, planes[0]][:channels], axis=2).astype(np.uint8)
    return found[:, :, 0] if channels == 1 else found


def picture(height=30, width=40, mode="RGB"):
    if mode == "I;16":
        return pil.fromarray((pixels(height, width, 1).astype(np.uint16) * 256) + 7)
    return pil.fromarray(pixels(height, width)).convert(mode)


def file_of(image, format="JPEG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def photo(height=30, width=40, *, orientation=None, **options):
    """Return a JPEG file."""
    if orientation is not None:
        exif = pil.Exif()
        exif[0x0112] = orientation
        exif[0x010F] = "a camera"
        options["exif"] = exif
    return file_of(picture(height, width), "JPEG", **{"quality": 95, **options})


def opened(data):
    image = pil.open(io.BytesIO(data))
    image.load()
    return image


def frames(format):
    """Return a file with two frames."""
    other = pil.fromarray(pixels()[::-1])
    return file_of(picture(), format, save_all=True, append_images=[other])
