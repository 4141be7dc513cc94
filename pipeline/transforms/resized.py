"""Resize and the fused tail in one pass: from source images straight into their slots.

For chains that begin with Resize or RandomResizedCrop and go on with crops without padding, flips,
values and erasings. The bytes are those of `bilinear.resample` and then `fuse.render`, but no resized
image is written and read again:

    * flips and crops only choose and order the places whose weights are computed: they cost nothing;
    * the first pass leaves rows channel by channel where the output is CHW;
    * each row of the second pass is turned into values while it is in the L1 cache.

256 x 256 to 224 x 224 x 3 float32 (RandomResizedCrop, flip, Normalize), outputs in the L2 cache, best of
500 turns on a shared 2-core Sapphire Rapids: 76 us a sample, where resizing, then rendering took 121.
With outputs that are no longer in the cache when they are read, writing past it takes 112 instead of 150.
Of it: first pass 25 (8 of them transposing), second pass 20, weights 5, values and stores 24; filling the
output with ones takes 21, the consumer's sum 37. Looked at in the assembly: both passes are vector code
throughout (vpmovzxbd, vpmulld, vpaddd, vpmovusdb, 16 places at once), most of it for two taps. Two
transpositions at a time saved 2 us; 16-bit products would not help, since weights of 22 bits need two.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from pipeline.transforms import bilinear, draws, fuse, rows
from pipeline.transforms.bilinear import LINES
from pipeline.transforms.draws import FLIP_X, FLIP_Y, GEO, RECTANGLE, SHIFT_X, SHIFT_Y, TALL
from pipeline.transforms.fuse import (
    BY_CHANNEL,
    BY_PIXEL,
    BY_ROW,
    CHANNELS,
    COUNT,
    MODE,
    STREAM,
    TABLE,
    TALL_IN,
    TALL_OUT,
    WIDE_IN,
    WIDE_OUT,
)
from pipeline.transforms.rows import PIXELS
from rng.kernel import kernel

int64: Any = numba.int64
uint64: Any = numba.uint64
Array = npt.NDArray[Any]


@kernel
def render(
    images: Any,
    pitch: Any,
    plan: Array,
    size: Any,
    ids: Array,
    boxes: Array,
    positions: Array,
    phase: Any,
    key: Any,
    lanes: Any,
    steps: Array,
    shapes: Array,
    coefficients: Array,
    table: Array,
    erase_fill: Array,
    out: Array,
) -> Any:
    """Resample, draw and paint n samples; return -1, or the first i whose id or position is bad.

    Args:
        images: uint64, address of the source images, uint8 `[N, H, W, C]`.
        pitch: bytes from row to row of them.
        plan: i64[11], as for `fuse.render`; N, H, W, C of the source images.
        size: (height, width) that boxes are resampled to.
        boxes: i64[n, RECTANGLE], what is resampled of each sample's image.
        ids, positions, phase, key, lanes, steps, shapes, coefficients, table, erase_fill, out: as
            for `fuse.render`; the steps pad nothing.
    """
    n = ids.shape[0]
    count, tall, wide, channels = plan[COUNT], plan[TALL_IN], plan[WIDE_IN], plan[CHANNELS]
    height, width, mode = plan[TALL_OUT], plan[WIDE_OUT], plan[MODE]
    for i in range(n):
        if ids[i] < 0 or ids[i] >= count or positions[i] // lanes >= uint64(1 << 40):
            return int64(i)
    geo = np.empty((n, GEO), np.int64)
    erased = np.empty((n, erase_fill.shape[0], RECTANGLE), np.int64)
    draws.draw_samples(positions, phase, key, lanes, steps, shapes, size[0], size[1], geo, erased)

    planar, stream = plan[BY_PIXEL] == 1, uint64(plan[STREAM])
    parts, period = (channels, int64(1)) if planar else (int64(1), channels)
    line_nbytes = uint64(width * period)  # of one part's row
    row_nbytes = width * channels
    middle_wide = uint64(max(row_nbytes, LINES))
    tallest = widest = int64(1)
    for i in range(n):
        tallest, widest = max(tallest, boxes[i, draws.TALL]), max(widest, boxes[i, draws.WIDE])
    x_bounds, y_bounds = np.empty((width, 2), np.int64), np.empty((height, 2), np.int64)
    most_x, most_y = bilinear.taps(widest, size[1]), bilinear.taps(tallest, size[0])
    x_weights = np.empty((width, most_x), np.int32)
    y_weights = np.empty((height, most_y), np.int32)
    columns = np.empty(min(widest + 2 * most_x, wide) * channels * LINES, np.uint8)
    turned = np.empty(row_nbytes * LINES, np.uint8)
    blocks = (min(tallest + 2 * most_y, tall) + LINES - 1) // LINES
    middle = np.empty(
        blocks * LINES * int64(middle_wide) + LINES, np.uint8
    )  # a vector may reach over
    line = np.empty(max(int64(line_nbytes), LINES), np.uint8)
    middle_at, line_at = uint64(middle.ctypes.data), uint64(line.ctypes.data)
    out_at, coefficients_at = uint64(out.ctypes.data), uint64(coefficients.ctypes.data)
    coefficient_row = uint64(4 * coefficients.shape[1])
    y_at, y_row = uint64(y_weights.ctypes.data), uint64(4 * y_weights.shape[1])

    for i in range(n):
        start = i * (out.shape[0] // n)
        top, left = boxes[i, draws.TOP], boxes[i, draws.LEFT]
        box_tall, box_wide = boxes[i, draws.TALL], boxes[i, draws.WIDE]
        flip_x, shift_x, flip_y, shift_y = (
            geo[i, FLIP_X],
            geo[i, SHIFT_X],
            geo[i, FLIP_Y],
            geo[i, SHIFT_Y],
        )
        bilinear.weigh(wide, left, box_wide, size[1], flip_x, shift_x, x_bounds, x_weights)
        bilinear.weigh(tall, top, box_tall, size[0], flip_y, shift_y, y_bounds, y_weights)
        first_x, end_x = bilinear.reach(x_bounds)
        first_y, end_y = bilinear.reach(y_bounds)
        bilinear.along_rows(
            images + uint64(ids[i]) * uint64(tall * pitch),
            pitch,
            channels,
            x_bounds,
            x_weights,
            (first_x, end_x, first_y, end_y),
            planar,
            columns,
            turned,
            middle,
            middle_wide,
        )
        for part in range(parts):
            for y in range(height):
                bilinear.along_columns(
                    middle_at
                    + uint64(y_bounds[y, 0] - first_y) * middle_wide
                    + uint64(part) * line_nbytes,
                    middle_wide,
                    line_nbytes,
                    y_at + uint64(y) * y_row,
                    uint64(y_bounds[y, 1]),
                    line_at,
                )
                to = start + part * plan[BY_CHANNEL] + y * plan[BY_ROW]
                if mode == TABLE or line_nbytes < uint64(PIXELS):
                    fuse.look_up(table, part, period, line_at, line_nbytes, out, to)
                else:
                    fuse.convert(
                        mode,
                        uint64(period),
                        line_at,
                        line_nbytes,
                        coefficients_at + uint64(part) * coefficient_row,
                        out,
                        out_at + uint64(to * out.itemsize),
                        stream,
                    )
        for e in range(erased.shape[1]):
            if erased[i, e, TALL] > 0:
                fuse.erase(erased, i, e, erase_fill, plan, out, start)
    if stream:
        rows.fence()
    return int64(-1)
