"""The fused tail: one pass from uint8 source pixels to the finished image in its slot.

    out[c, y, x] = table[c, source[flip_y * y + shift_y, flip_x * x + shift_x, c]]   inside
                 = fill[c]                                                           in the padding
                 = erase_fill[e, c]                                                  in rectangle e

`table` is what the value ops of the chain make of 0 .. 255, so the bits do not depend on compiler
or machine. Where it is `v * s - m` or `v / 255 * s - m` in float32, rows are computed with these
same IEEE operations instead of being looked up; the chain checks all 256 values first.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import int64, njit, uint64

from pipeline.transforms import draws
from pipeline.transforms.draws import (
    ERASED,
    FLIP_X,
    FLIP_Y,
    GEO,
    HEIGHT,
    LEFT,
    SHIFT_X,
    SHIFT_Y,
    TALL,
    TOP,
    WIDE,
    WIDTH,
    X0,
    X1,
    Y0,
    Y1,
)
from pipeline.transforms.rows import load_u8

Array = npt.NDArray[Any]


@njit(cache=True, nogil=True)
def inside(flip: Any, shift: Any, low: Any, high: Any, size: Any) -> tuple[Any, Any]:
    """Return the range [a, b) of output places whose source place lies in [low, high)."""
    if flip > 0:
        a, b = low - shift, high - shift
    else:
        a, b = shift - high + 1, shift - low + 1
    a = min(max(a, 0), size)
    return a, min(max(b, a), size)


@njit(cache=True, nogil=True)
def paint(
    source: Any,
    pitch: Any,
    channels: Any,
    geo: Array,
    erased: Array,
    table: Array,
    fill: Array,
    erase_fill: Array,
    strides: Array,
    out: Array,
    start: Any,
) -> None:
    """Write one finished image.

    Args:
        source: address of the image, uint8 `[H, W, C]`, contiguous.
        pitch: bytes from row to row of it.
        channels: C.
        geo, erased: one row of what `draws.draw_samples` made.
        table: out dtype `[C, 256]`.
        fill: out dtype `[C]`; erase_fill: out dtype `[E, C]`.
        strides: i64[3]: elements from channel to channel, row to row, pixel to pixel of the output.
        out: the output, flat; start: where in it the image begins.
    """
    width, height = geo[WIDTH], geo[HEIGHT]
    xa, xb = inside(geo[FLIP_X], geo[SHIFT_X], geo[X0], geo[X1], width)
    ya, yb = inside(geo[FLIP_Y], geo[SHIFT_Y], geo[Y0], geo[Y1], height)
    sc, sy, sx = strides[0], strides[1], strides[2]
    for c in range(channels):
        for y in range(height):
            row = uint64(start + c * sc + y * sy)
            if y < ya or y >= yb:
                for x in range(width):
                    out[row + uint64(x * sx)] = fill[c]
                continue
            at = source + uint64((geo[FLIP_Y] * y + geo[SHIFT_Y]) * pitch + c)
            for x in range(xa):
                out[row + uint64(x * sx)] = fill[c]
            for x in range(xa, xb):
                place = geo[FLIP_X] * x + geo[SHIFT_X]
                out[row + uint64(x * sx)] = table[c, load_u8(at + uint64(place * channels))]
            for x in range(xb, width):
                out[row + uint64(x * sx)] = fill[c]
    for e in range(erased.shape[0]):
        top, left = erased[e, TOP], erased[e, LEFT]
        for c in range(channels):
            for y in range(top, top + erased[e, TALL]):
                row = uint64(start + c * sc + y * sy)
                for x in range(left, left + erased[e, WIDE]):
                    out[row + uint64(x * sx)] = erase_fill[e, c]


@njit(cache=True, nogil=True)
def render(
    images: Any,
    shape: Array,
    ids: Array,
    positions: Array,
    phase: Any,
    key: Any,
    lanes: Any,
    steps: Array,
    shapes: Array,
    table: Array,
    fill: Array,
    erase_fill: Array,
    strides: Array,
    out: Array,
) -> Any:
    """Draw and paint n samples; return -1, or the first i whose id or position is out of range.

    Args:
        images: address of the source images, uint8 `[N, H, W, C]`, contiguous.
        shape: i64[4]: N, H, W, C.
        ids: i64[n], which source image each sample takes.
        positions, phase, key, lanes, steps, shapes: see `draws.draw_samples`.
        table, fill, erase_fill, strides: see `paint`.
        out: flat, n finished images one after the other.
    """
    n = ids.shape[0]
    height, width, channels = shape[1], shape[2], shape[3]
    for i in range(n):
        if ids[i] < 0 or ids[i] >= shape[0] or positions[i] // lanes >= uint64(1 << 40):
            return int64(i)
    geo = np.empty((n, GEO), np.int64)
    erased = np.empty((n, erase_fill.shape[0], ERASED), np.int64)
    draws.draw_samples(positions, phase, key, lanes, steps, shapes, height, width, geo, erased)
    nbytes = uint64(height * width * channels)
    for i in range(n):
        paint(
            images + uint64(ids[i]) * nbytes,
            width * channels,
            channels,
            geo[i],
            erased[i],
            table,
            fill,
            erase_fill,
            strides,
            out,
            i * (out.shape[0] // n),
        )
    return int64(-1)
