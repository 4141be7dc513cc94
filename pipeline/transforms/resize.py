"""Resampling of single images: arrays, PIL images, or files that are not decoded yet.

Such a file has `shape` (H, W, C), `region(top, left, height, width)`, which returns that part as
uint8[height, width, C], and `whole()`, which returns a PIL image; `datasets.jpeg.JpegFile` is one.
"""

import sys
from collections.abc import Callable
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


class SourceError(Exception):
    """The source of an image could not be decoded; `__cause__` is the error."""


def is_file(image: Any) -> bool:
    """Return whether `image` is a file that is not decoded yet."""
    return hasattr(type(image), "region")


def is_picture(image: Any) -> bool:
    """Return whether `image` has still to be turned into an array."""
    return is_file(image) or is_pillow(image)


def shape_of(image: Any) -> tuple[int, int, int]:
    """Return (H, W, C) of a picture.

    Raises:
        ConfigError: it is a PIL image whose mode is not L, RGB or RGBA.
    """
    if is_file(image):
        shape: tuple[int, int, int] = image.shape
        return shape
    if image.mode not in MODES:
        raise ConfigError(
            f"a PIL image has mode {image.mode!r}; expected one of {', '.join(MODES)}",
            do="convert it in the dataset, for instance with image.convert('RGB')",
        )
    return image.height, image.width, MODES[image.mode]


def to_array(image: Any) -> Image:
    """Return a picture as uint8[H, W, C], read-only.

    Raises:
        SourceError: a file cannot be decoded.
    """
    shape = shape_of(image)
    if is_file(image):
        image = _decoded(image.whole)
    return np.asarray(image, np.uint8).reshape(shape)


def _part(image: Any, top: int, left: int, height: int, width: int) -> Image:
    if is_file(image):
        part: Image = _decoded(image.region, top, left, height, width)
        return part
    return to_array(image.crop((left, top, left + width, top + height)))


def _decoded(decode: Callable[..., Any], *where: int) -> Any:
    try:
        return decode(*where)
    except Exception as error:  # Pillow raises many kinds
        raise SourceError from error


def resample(image: Any, box: tuple[int, int, int, int], size: tuple[int, int]) -> Image:
    """Return the part `box` of a uint8[H, W, C] array or picture at a new size.

    Args:
        image: the source. Of a picture no more is turned into an array than is needed.
        box: top, left, height, width.
        size: (height, width) of the result.

    Raises:
        SourceError: a file cannot be decoded.
    """
    source, at, shape = window(image, box, size)
    out = np.empty((*size, shape[2]), np.uint8)
    bilinear.resample(
        np.uint64(at),
        source.shape[1] * shape[2],
        shape[:2],
        shape[2],
        box,
        np.uint64(out.ctypes.data),
        size,
    )
    return out


def window(
    image: Any, box: tuple[int, int, int, int], size: tuple[int, int]
) -> tuple[Image, int, tuple[int, int, int]]:
    """Return what of an image is needed to resample `box` to `size`.

    Returns:
        A contiguous uint8 array; the address where the whole image's first pixel would be, with the
        array's bytes from row to row (it need not be valid: only the array is); the whole image's
        (H, W, C).

    Raises:
        ConfigError: the image is not uint8.
        SourceError: a file cannot be decoded.
    """
    top, left, tall, wide = box
    height, width, channels = shape_of(image) if is_picture(image) else image.shape
    y0 = x0 = 0
    if is_picture(image):
        # Weights reach half a source step over the box; whole steps and one more are taken.
        more_y, more_x = max(tall // size[0], 1) + 1, max(wide // size[1], 1) + 1
        y0, x0 = max(top - more_y, 0), max(left - more_x, 0)
        y1, x1 = min(top + tall + more_y, height), min(left + wide + more_x, width)
        image = _part(image, y0, x0, y1 - y0, x1 - x0)
    if image.dtype != np.uint8:
        raise ConfigError(
            f"Resize and RandomResizedCrop take uint8 images, got {image.dtype}",
            do="put them before ops and callables that make floats",
        )
    source = np.ascontiguousarray(image)
    pitch = source.shape[1] * channels
    at = (source.ctypes.data - y0 * pitch - x0 * channels) % 2**64
    return source, at, (height, width, channels)
