"""Bilinear resampling in integers: the bytes of Pillow before version 13.

    weights of output place x: the triangle of half width max(scale, 1) around its centre, cut off at
    the image's edges, scaled to sum 1 in float64, then rounded to 22 bits after the point
    byte = min((2**21 + sum of weight * byte) >> 22, 255), first along rows, then along columns

The part of the image that is resampled is a box of whole pixels; weights reach over its edges into
the rest of the image. Along rows, 16 rows at a time are turned into 16-byte columns, so that both
passes are sums of 16-byte vectors.

Rows always come first. Pillow 13 takes columns first where the height shrinks much more than the
width, which moves some bytes by one: so its bytes depend on its version, and ours do not. Each
channel is resampled by itself (Pillow weighs the colours of RGBA by alpha).

Source: the algorithm of Pillow's libImaging/Resample.c (8 bits per channel), reimplemented.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from pipeline.transforms import draws, rows
from pipeline.transforms.rows import load_u8, store_u8
from rng.kernel import kernel

float64: Any = numba.float64
int64: Any = numba.int64
uint64: Any = numba.uint64
Array = npt.NDArray[Any]
LINES = 16  # rows that are resampled together


@kernel
def _weigh(size: Any, start: Any, length: Any, bounds: Any, weights: Any) -> None:
    """Fill the weights of one axis.

    Args:
        size: of the image; start, length: of the box.
        bounds: i64[outputs, 2], written: first source place and number of places of each output.
        weights: i32[outputs, at least `taps`], written.
    """
    outputs = bounds.shape[0]
    scale = float64(length) / float64(outputs)
    support = max(scale, 1.0)
    inverse = 1.0 / support
    for x in range(outputs):
        center = float64(start) + (float64(x) + 0.5) * scale
        first = max(int64(center - support + 0.5), int64(0))
        count = min(int64(center + support + 0.5), size) - first
        total = 0.0
        for t in range(count):
            total += max(1.0 - abs((float64(t + first) - center + 0.5) * inverse), 0.0)
        for t in range(count):
            share = max(1.0 - abs((float64(t + first) - center + 0.5) * inverse), 0.0) / total
            weights[x, t] = int64(0.5 + share * 4194304.0)
        bounds[x, 0], bounds[x, 1] = first, count


@kernel
def taps(length: Any, outputs: Any) -> Any:
    """Return the most weights an output place can have."""
    return int64(max(float64(length) / float64(outputs), 1.0)) * 2 + 3


@kernel
def _turn(source: Any, pitch: Any, lines: Any, nbytes: Any, target: Any, target_pitch: Any) -> None:
    """Transpose `lines` x `nbytes` bytes; all uint64."""
    side = uint64(LINES)
    if lines < side or nbytes < side:
        for line in range(lines):
            for x in range(nbytes):
                byte = load_u8(source + line * pitch + x)
                store_u8(target + x * target_pitch + line, byte)
        return
    for i in range((lines + side - uint64(1)) // side):
        line = min(i * side, lines - side)
        for j in range((nbytes + side - uint64(1)) // side):
            x = min(j * side, nbytes - side)
            rows.transpose_16(
                source + line * pitch + x, pitch, target + x * target_pitch + line, target_pitch
            )


@kernel
def _along_columns(
    middle: Any, wide: Any, nbytes: Any, weights: Any, count: Any, target: Any
) -> None:
    """Write one row of the result, `nbytes` long; all uint64.

    Args:
        middle: address of the first of the `count` rows to weigh, `wide` >= 16 bytes apart.
        weights: address of their int32 weights.
    """
    side = uint64(LINES)
    if nbytes >= side:
        for j in range((nbytes + side - uint64(1)) // side):
            x = min(j * side, nbytes - side)
            rows.weigh_16(middle + x, wide, weights, count, target + x)
        return
    few = np.empty(LINES, np.uint8)
    rows.weigh_16(middle, wide, weights, count, uint64(few.ctypes.data))
    for x in range(nbytes):
        store_u8(target + x, few[x])


@kernel
def resample(
    source: Any,
    pitch: Any,
    size: Any,
    channels: Any,
    box: Any,
    target: Any,
    finished: Any,
) -> None:
    """Resample a box of one image.

    Args:
        source: uint64, address of the image, uint8 `[H, W, C]`.
        pitch: bytes from row to row of it.
        size: (H, W); channels: C.
        box: (top, left, height, width).
        target: uint64, address of the result, uint8, contiguous.
        finished: (height, width) of the result.
    """
    height, width = finished
    row_nbytes = width * channels
    x_bounds, y_bounds = np.empty((width, 2), np.int64), np.empty((height, 2), np.int64)
    x_weights = np.empty((width, taps(box[3], width)), np.int32)
    y_weights = np.empty((height, taps(box[2], height)), np.int32)
    _weigh(size[1], box[1], box[3], x_bounds, x_weights)
    _weigh(size[0], box[0], box[2], y_bounds, y_weights)
    left, right = x_bounds[0, 0], x_bounds[width - 1, 0] + x_bounds[width - 1, 1]
    top, end = y_bounds[0, 0], y_bounds[height - 1, 0] + y_bounds[height - 1, 1]
    nbytes = (right - left) * channels
    blocks = (end - top + LINES - 1) // LINES

    # Columns of 16 bytes before and after the first pass; then whole rows, with room for a vector.
    columns, turned = np.empty(nbytes * LINES, np.uint8), np.empty(row_nbytes * LINES, np.uint8)
    wide = uint64(max(row_nbytes, LINES))
    middle = np.empty(blocks * LINES * int64(wide), np.uint8)
    columns_at, turned_at = uint64(columns.ctypes.data), uint64(turned.ctypes.data)
    middle_at = uint64(middle.ctypes.data)
    side, step = uint64(LINES), uint64(channels * LINES)
    x_at, x_row = uint64(x_weights.ctypes.data), uint64(4 * x_weights.shape[1])
    for block in range(blocks):
        first = max(min(top + block * LINES, end - LINES), top)
        lines = uint64(min(end - first, int64(LINES)))
        at = source + uint64(first * pitch + left * channels)
        _turn(at, uint64(pitch), lines, uint64(nbytes), columns_at, side)
        for x in range(width):
            place = columns_at + uint64(x_bounds[x, 0] - left) * step
            to = turned_at + uint64(x) * step
            for c in range(channels):
                shift = uint64(c * LINES)
                weights = x_at + uint64(x) * x_row
                count = uint64(x_bounds[x, 1])
                rows.weigh_16(place + shift, step, weights, count, to + shift)
        _turn(
            turned_at, side, uint64(row_nbytes), lines, middle_at + uint64(first - top) * wide, wide
        )

    y_at, y_row = uint64(y_weights.ctypes.data), uint64(4 * y_weights.shape[1])
    for y in range(height):
        _along_columns(
            middle_at + uint64(y_bounds[y, 0] - top) * wide,
            wide,
            uint64(row_nbytes),
            y_at + uint64(y) * y_row,
            uint64(y_bounds[y, 1]),
            target + uint64(y * row_nbytes),
        )


@kernel
def resample_many(
    images: Any,
    count: Any,
    height: Any,
    width: Any,
    channels: Any,
    ids: Array,
    boxes: Array,
    out: Array,
) -> Any:
    """Resample the boxes of n samples; return -1, or the first i whose id is out of range.

    Args:
        images: uint64, address of the source images, uint8 `[count, height, width, channels]`.
        ids: i64[n], which source image each sample takes.
        boxes: i64[n, draws.RECTANGLE].
        out: u8[n, height, width, channels] of the result, written.
    """
    pitch = width * channels
    at = uint64(out.ctypes.data)
    nbytes = uint64(out.shape[1] * out.shape[2] * out.shape[3])
    for i in range(ids.shape[0]):
        if ids[i] < 0 or ids[i] >= count:
            return int64(i)
        resample(
            images + uint64(ids[i]) * uint64(height * pitch),
            pitch,
            (height, width),
            channels,
            (
                boxes[i, draws.TOP],
                boxes[i, draws.LEFT],
                boxes[i, draws.TALL],
                boxes[i, draws.WIDE],
            ),
            at + uint64(i) * nbytes,
            (out.shape[1], out.shape[2]),
        )
    return int64(-1)
