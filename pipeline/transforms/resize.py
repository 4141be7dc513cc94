"""Resampling of single images, arrays or PIL images; and what chains need to know of the latter."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from pipeline.transforms import bilinear

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
    """Return a PIL image as uint8[H, W, C], read-only."""
    shape = shape_of(image)
    return np.asarray(image, np.uint8).reshape(shape)


def resample(image: Any, box: tuple[int, int, int, int], size: tuple[int, int]) -> Image:
    """Return the part `box` of a uint8[H, W, C] array or PIL image at a new size.

    Args:
        image: the source. Of a PIL image no more is turned into an array than is needed.
        box: top, left, height, width.
        size: (height, width) of the result.
    """
    top, left, tall, wide = box
    height, width, channels = shape_of(image) if is_pillow(image) else image.shape
    y0 = x0 = 0
    if is_pillow(image):
        # Weights reach half a source step over the box; whole steps and one more are taken.
        more_y, more_x = max(tall // size[0], 1) + 1, max(wide // size[1], 1) + 1
        y0, x0 = max(top - more_y, 0), max(left - more_x, 0)
        y1, x1 = min(top + tall + more_y, height), min(left + wide + more_x, width)
        image = to_array(image.crop((x0, y0, x1, y1)))
    if image.dtype != np.uint8:
        raise ConfigError(
            f"Resize and RandomResizedCrop take uint8 images, got {image.dtype}",
            do="put them before ops and callables that make floats",
        )
    source = np.ascontiguousarray(image)
    pitch = source.shape[1] * channels
    out = np.empty((*size, channels), np.uint8)
    bilinear.resample(
        np.uint64((source.ctypes.data - y0 * pitch - x0 * channels) % 2**64),
        pitch,
        (height, width),
        channels,
        box,
        np.uint64(out.ctypes.data),
        size,
    )
    return out
