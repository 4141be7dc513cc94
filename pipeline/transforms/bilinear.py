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
def weigh(
    size: Any,
    start: Any,
    length: Any,
    outputs: Any,
    flip: Any,
    shift: Any,
    bounds: Any,
    weights: Any,
) -> None:
    """Fill the weights of one axis, for the output places flip * x + shift, x = 0, 1, ...

    Args:
        size: of the image; start, length: of the box.
        outputs: places that the box is resampled to.
        flip, shift: 1 and 0 for all places in their order.
        bounds: i64[n, 2], written: first source place and number of places of each output.
        weights: i32[n, at least `taps`], written.
    """
    scale = float64(length) / float64(outputs)
    support = max(scale, 1.0)
    inverse = 1.0 / support
    for x in range(bounds.shape[0]):
        center = float64(start) + (float64(flip * x + shift) + 0.5) * scale
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
def reach(bounds: Any) -> tuple[Any, Any]:
    """Return [first, end) of the source places that any output needs."""
    n = bounds.shape[0] - 1
    last = max(bounds[0, 0] + bounds[0, 1], bounds[n, 0] + bounds[n, 1])
    return min(bounds[0, 0], bounds[n, 0]), last


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
    double = side + side
    down = side if lines < double or nbytes >= double else double
    right = double if nbytes >= double else side
    # Where the second half of a pair is: to the right, or below.
    second = side if right == double else side * pitch
    target_second = side * target_pitch if right == double else side
    for i in range((lines + down - uint64(1)) // down):
        line = min(i * down, lines - down)
        for j in range((nbytes + right - uint64(1)) // right):
            x = min(j * right, nbytes - right)
            at, to = source + line * pitch + x, target + x * target_pitch + line
            if down + right > double:
                rows.transpose_32(at, pitch, second, to, target_pitch, target_second)
            else:
                rows.transpose_16(at, pitch, second, to, target_pitch, target_second)


@kernel
def along_columns(
    middle: Any, wide: Any, nbytes: Any, weights: Any, count: Any, target: Any
) -> None:
    """Write one row of the result, `nbytes` long; all uint64.

    Args:
        middle: address of the first of the `count` rows to weigh, `wide` >= 16 bytes apart.
        weights: address of their int32 weights.
    """
    side = uint64(LINES)
    if nbytes >= side:
        rows.weigh_runs(middle, wide, weights, count, target, side, nbytes // side)
        if nbytes % side:
            x = nbytes - side
            rows.weigh_runs(middle + x, wide, weights, count, target + x, side, uint64(1))
        return
    few = np.empty(LINES, np.uint8)
    rows.weigh_runs(middle, wide, weights, count, uint64(few.ctypes.data), side, uint64(1))
    for x in range(nbytes):
        store_u8(target + x, few[x])


@kernel
def along_rows(
    source: Any,
    pitch: Any,
    channels: Any,
    x_bounds: Any,
    x_weights: Any,
    reached: Any,
    planar: Any,
    columns: Any,
    turned: Any,
    middle: Any,
    wide: Any,
) -> None:
    """Resample rows by the weights of columns: the first pass.

    Args:
        source: uint64, address of the image; pitch: bytes from row to row of it.
        channels: of the image.
        x_bounds, x_weights: see `weigh`.
        reached: (left, right, top, end) of the source that is needed.
        planar: whether a row of the result is channel after channel, else pixel after pixel.
        columns: u8[at least (right - left) * channels * LINES], turned: u8[outputs * channels *
            LINES]: scratch, columns of 16 bytes before and after the pass.
        middle: u8, written: end - top rows, rounded up to LINES, `wide` apart.
        wide: uint64.
    """
    left, right, top, end = reached
    width = x_bounds.shape[0]
    nbytes = (right - left) * channels
    columns_at, turned_at = uint64(columns.ctypes.data), uint64(turned.ctypes.data)
    middle_at = uint64(middle.ctypes.data)
    side, step = uint64(LINES), uint64(channels * LINES)
    by_channel = uint64((width if planar else 1) * LINES)
    by_pixel = uint64((1 if planar else channels) * LINES)
    x_at, x_row = uint64(x_weights.ctypes.data), uint64(4 * x_weights.shape[1])
    for block in range((end - top + LINES - 1) // LINES):
        first = max(min(top + block * LINES, end - LINES), top)
        lines = uint64(min(end - first, int64(LINES)))
        at = source + uint64(first * pitch + left * channels)
        _turn(at, uint64(pitch), lines, uint64(nbytes), columns_at, side)
        for x in range(width):
            place = columns_at + uint64(x_bounds[x, 0] - left) * step
            to = turned_at + uint64(x) * by_pixel
            weights = x_at + uint64(x) * x_row
            count = uint64(x_bounds[x, 1])
            rows.weigh_runs(place, step, weights, count, to, by_channel, uint64(channels))
        _turn(
            turned_at,
            side,
            uint64(width * channels),
            lines,
            middle_at + uint64(first - top) * wide,
            wide,
        )


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
    weigh(size[1], box[1], box[3], width, 1, 0, x_bounds, x_weights)
    weigh(size[0], box[0], box[2], height, 1, 0, y_bounds, y_weights)
    left, right = reach(x_bounds)
    top, end = reach(y_bounds)
    blocks = (end - top + LINES - 1) // LINES
    wide = uint64(max(row_nbytes, LINES))  # room for a vector
    columns = np.empty((right - left) * channels * LINES, np.uint8)
    turned = np.empty(row_nbytes * LINES, np.uint8)
    middle = np.empty(blocks * LINES * int64(wide), np.uint8)
    along_rows(
        source,
        pitch,
        channels,
        x_bounds,
        x_weights,
        (left, right, top, end),
        False,
        columns,
        turned,
        middle,
        wide,
    )
    middle_at = uint64(middle.ctypes.data)
    y_at, y_row = uint64(y_weights.ctypes.data), uint64(4 * y_weights.shape[1])
    for y in range(height):
        along_columns(
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
