"""``decode="images"``: image files as arrays of pixels, decoded where the batches are made."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwriter.errors import FeatureError, MissingExtra, OptionError
from shardwriter.writing.images import is_mask

if TYPE_CHECKING:
    from shardwriter.reading.dataset import Dataset

_AS_STORED: Final = frozenset(["L", "LA", "RGB", "RGBA"])
_AS_RGB: Final = frozenset(["CMYK", "YCbCr", "LAB", "HSV"])


def image_names(data: Dataset) -> tuple[str, ...]:
    """Return the features of a dataset that its schema knows as images.

    Raises:
        OptionError: There are none, or records have no features.
        MissingExtra: Pillow is not installed.
    """
    if not data.is_decoded or data.feature_lists is not None:
        raise OptionError(
            "decode='images' is for decoded Examples",
            hint="decode images in map=, or open the dataset with decode=True",
        )
    names = tuple(n for n, feature in data.features.items() if feature.type.encoding == "image")
    if not names:
        raise OptionError(
            f"no feature of {data.name!r} is known as an image",
            path=data.path,
            hint="write the dataset with schema='NAME=image', or decode images in map=",
        )
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"decode='images' needs Pillow: {error}", hint='pip install "shardwriter[images]"'
        ) from error
    return names


def decode_image(name: str, data: Any) -> NDArray[np.uint8] | None:
    """Return the pixels of an image file, ``uint8[height, width, channels]``, as they are stored.

    Grey has 1 channel, grey with alpha 2, colours 3, with alpha 4. Palettes become colours; those
    of a mask, which is known by its name, stay numbers.

    Args:
        name: The feature.
        data: The file's bytes; None gives None.

    Raises:
        FeatureError: They can not be decoded, or hold more than 8 bits.
    """
    if data is None:
        return None
    if not isinstance(data, bytes):
        raise FeatureError(
            f"an image file is bytes, and this is of type {type(data).__name__}",
            feature=name,
            hint="decode it in map=",
        )
    from PIL import Image

    try:
        with Image.open(BytesIO(data)) as image:
            if image.mode == "1":
                pixels = np.array(image.convert("L"))
            elif image.mode == "P" and is_mask(name):
                pixels = np.array(image)
            elif image.mode == "P":
                has_alpha = "transparency" in image.info
                pixels = np.array(image.convert("RGBA" if has_alpha else "RGB"))
            elif image.mode in _AS_RGB:
                pixels = np.array(image.convert("RGB"))
            elif image.mode in _AS_STORED:
                pixels = np.array(image)
            else:
                raise FeatureError(
                    f"its pixels ({image.mode}) do not fit uint8",
                    feature=name,
                    hint="decode it in map=, without decode='images'",
                )
    except FeatureError:
        raise
    except Exception as error:  # Pillow's plugins raise what comes along
        raise FeatureError(
            f"the image can not be decoded: {error}",
            feature=name,
            hint="shard-stats --features counts broken images; write the dataset again without it",
        ) from error
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def stacked(images: list[Any]) -> Any:
    """Return ``uint8[b, height, width, channels]`` where all sizes are equal, else the list."""
    shapes = {None if image is None else image.shape for image in images}
    return np.stack(images) if len(shapes) == 1 and None not in shapes else images
