"""Resampling: bilinear, widened when shrinking, bytes equal to Pillow's."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError

Image = npt.NDArray[Any]
MODES = {"L": 1, "RGB": 3, "RGBA": 4}


def is_pillow(image: Any) -> bool:
    """Return whether `image` is a PIL image, without importing Pillow."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(image, module.Image)


def shape_of(image: Any) -> tuple[int, int, int]:
    """Return (H, W, C) of a PIL image.

    Raises:
        ConfigError: its mode is not L, RGB or RGBA.
    """
    if image.mode not in MODES:
        raise ConfigError(
            f"a PIL image has mode {image.mode!r}; expected one of {', '.join(MODES)}",
            do="convert it in the dataset, for instance with image.convert('RGB')",
        )
    return image.height, image.width, MODES[image.mode]


def to_array(image: Any) -> Image:
    """Return a PIL image as a new uint8[H, W, C]."""
    shape = shape_of(image)
    return np.array(image, np.uint8).reshape(shape)


def resample(image: Any, box: tuple[int, int, int, int], size: tuple[int, int]) -> Image:
    """Return the part `box` of a uint8[H, W, C] array or PIL image at a new size.

    Args:
        image: the source.
        box: top, left, height, width.
        size: (height, width) of the result.
    """
    from PIL import Image as pillow

    top, left, height, width = box
    corners = (left, top, left + width, top + height)
    target = (size[1], size[0])
    if is_pillow(image):
        return to_array(image.resize(target, pillow.Resampling.BILINEAR, corners))
    if image.dtype != np.uint8:
        raise ConfigError(
            f"Resize and RandomResizedCrop take uint8 images, got {image.dtype}",
            do="put them before ops and callables that make floats",
        )
    count = image.shape[2]
    if count in (1, 3, 4):
        flat = image[:, :, 0] if count == 1 else image
        source = pillow.fromarray(np.ascontiguousarray(flat))
        return to_array(source.resize(target, pillow.Resampling.BILINEAR, corners))
    planes = [resample(image[:, :, c : c + 1], box, size) for c in range(count)]
    return np.concatenate(planes, axis=2)
