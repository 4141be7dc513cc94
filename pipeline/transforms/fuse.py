"""The fused tail: one pass from uint8 source pixels to the finished image in its slot.

    out[c, y, x] = table[c, source[flip_y * y + shift_y, flip_x * x + shift_x, c]]   in sight
                 = table[c, pad[c]]                                                  in the padding
                 = erase_fill[e, c]                                                  in rectangle e

Two stages, a block of rows at a time: bytes are gathered into a small scratch, cropped, flipped and
split into channels; then each channel's run of bytes becomes values, written in the order of the
output. So padding, flips, odd widths and layouts concern bytes only, and one converter serves all.
(One stage that writes three planes at once saves 0.07 of 0.67 us for a 32x32 image without padding,
measured on Sapphire Rapids; it would need vector code for each layout's edges.)

`table` is what the value ops of the chain make of 0 .. 255, so the bits do not depend on compiler
or machine. Where it is `v * s - m` or `v / 255 * s - m` in float32, rows are computed with these
same IEEE operations instead of being looked up; the chain compares all 256 values first.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import int64, uint64

from pipeline.transforms import draws, rows
from pipeline.transforms.draws import (
    FLIP_X,
    FLIP_Y,
    GEO,
    LEFT,
    RECTANGLE,
    SHIFT_X,
    SHIFT_Y,
    TALL,
    TOP,
    WIDE,
    X0,
    X1,
    Y0,
    Y1,
)
from pipeline.transforms.rows import PIXELS, load_u8, store_u8
from rng import prefetch
from rng.kernel import kernel

PLAIN, DIVIDED, TABLE = 0, 1, 2  # how values are computed
AHEAD = 16384  # bytes: images up to this size are asked for one sample ahead
SCRATCH = 16384  # bytes of source pixels between the two stages: they stay in the L1 cache
# Fields of a plan.
COUNT, TALL_IN, WIDE_IN, CHANNELS, TALL_OUT, WIDE_OUT, BY_CHANNEL, BY_ROW = range(8)
BY_PIXEL, MODE, STREAM = range(8, 11)

Array = npt.NDArray[Any]


@kernel
def inside(flip: Any, shift: Any, low: Any, high: Any, size: Any) -> tuple[Any, Any]:
    """Return the range [a, b) of output places whose source place lies in [low, high)."""
    if flip > 0:
        a, b = low - shift, high - shift
    else:
        a, b = shift - high + 1, shift - low + 1
    a = min(max(a, 0), size)
    return a, min(max(b, a), size)


@kernel
def _gather(
    source: Any,
    pitch: Any,
    target: Any,
    target_pitch: Any,
    plane: Any,
    count: Any,
    lines: Any,
    channels: Any,
    flip: Any,
    planar: Any,
) -> None:
    """Copy a rectangle of pixels to bytes. All uint64, but for the flags.

    Args:
        source: address of the source pixel of the first target pixel; the next ones lie to its
            right, or with `flip` to its left.
        pitch: bytes from row to row of the source, two's complement.
        target, target_pitch: address of the first target byte, bytes from row to row.
        plane: bytes from channel to channel of the target, if planar.
        count, lines, channels: pixels of a row, rows, bytes of a source pixel.
        flip, planar: whether to mirror; whether the target is channel after channel.
    """
    wide = count >= uint64(PIXELS)
    if wide and channels == uint64(3) and planar:
        if flip:
            rows.split_3_mirrored(source, pitch, target, target_pitch, plane, count, lines)
        else:
            rows.split_3(source, pitch, target, target_pitch, plane, count, lines)
    elif wide and channels == uint64(1) and flip:
        rows.gather_1_mirrored(source, pitch, target, target_pitch, plane, count, lines)
    elif wide and channels == uint64(3) and flip:
        rows.gather_3_mirrored(source, pitch, target, target_pitch, plane, count, lines)
    elif wide and not flip and (channels == uint64(1) or not planar):
        rows.gather_1(source, pitch, target, target_pitch, plane, count * channels, lines)
    else:
        step = uint64(1) if planar else channels
        across = plane if planar else uint64(1)
        for line in range(lines):
            for x in range(count):
                at = source + line * pitch
                at = at - x * channels if flip else at + x * channels
                to = target + line * target_pitch + x * step
                for c in range(channels):
                    store_u8(to + c * across, load_u8(at + c))


@kernel
def convert(
    mode: Any,
    period: Any,
    source: Any,
    count: Any,
    coefficients: Any,
    out: Any,
    to: Any,
    stream: Any,
) -> None:
    """Compute `count` >= 16 values from the bytes at `source` into out[to:].

    Args:
        mode: PLAIN or DIVIDED.
        period, source, count, coefficients: uint64, see `rows`.
        out: for its dtype.
        to: address of the first output element.
        stream: uint64, whether to write past the caches; then a `rows.fence` must follow.
    """
    if mode == PLAIN:
        if period == uint64(1):
            rows.convert_plane(out, source, to, count, coefficients, period, stream)
        else:
            rows.convert_pixels(out, source, to, count, coefficients, period, stream)
    elif period == uint64(1):
        rows.convert_plane_divided(out, source, to, count, coefficients, period, stream)
    else:
        rows.convert_pixels_divided(out, source, to, count, coefficients, period, stream)


@kernel
def look_up(
    table: Any, channel: Any, period: Any, source: Any, count: Any, out: Any, start: Any
) -> None:
    """Look up `count` values: element i is of channel `channel` + i mod `period`."""
    for i in range(uint64(count)):
        row = uint64(channel) + i % uint64(period)
        out[uint64(start) + i] = table[row, load_u8(source + i)]


@kernel
def _prefill(scratch: Any, plane: Any, planar: Any, pad: Any) -> None:
    """Set every byte at `scratch` to its channel's padding; `plane` pixels."""
    channels = uint64(pad.shape[0])
    if not planar:
        rows.set_bytes(scratch, plane * channels, pad[0])
    for c in range(channels):
        if planar:
            rows.set_bytes(scratch + c * plane, plane, pad[c])
        elif pad[c] != pad[0]:
            for k in range(plane):
                store_u8(scratch + k * channels + c, pad[c])


@kernel
def erase(erased: Any, i: Any, e: Any, erase_fill: Any, plan: Any, out: Any, start: Any) -> None:
    """Fill rectangle e of sample i."""
    top, left, wide = erased[i, e, TOP], erased[i, e, LEFT], uint64(erased[i, e, WIDE])
    for c in range(erase_fill.shape[1]):
        value = erase_fill[e, c]
        for y in range(top, top + erased[i, e, TALL]):
            to = uint64(start + c * plan[BY_CHANNEL] + y * plan[BY_ROW] + left * plan[BY_PIXEL])
            if plan[BY_PIXEL] == 1:
                for x in range(wide):
                    out[to + x] = value
            else:
                for x in range(wide):
                    out[to + x * uint64(plan[BY_PIXEL])] = value


@kernel
def render(
    images: Any,
    plan: Array,
    ids: Array,
    positions: Array,
    phase: Any,
    key: Any,
    lanes: Any,
    steps: Array,
    shapes: Array,
    coefficients: Array,
    table: Array,
    pad: Array,
    erase_fill: Array,
    out: Array,
) -> Any:
    """Draw and paint n samples; return -1, or the first i whose id or position is out of range.

    Args:
        images: uint64, address of the source images, uint8 `[N, H, W, C]`, contiguous.
        plan: i64[11], the PLAN fields: N, H, W, C of the source; height and width of a finished
            image; elements from channel to channel, row to row, pixel to pixel of it; and PLAIN,
            DIVIDED or TABLE; whether to write past the caches.
        ids: i64[n], which source image each sample takes.
        positions, phase, key, lanes, steps, shapes: see `draws.draw_samples`.
        coefficients: f32, a row for each channel if the output is CHW, else one row; see `rows`.
        table: out dtype `[C, 256]`.
        pad: u8[C], what padding is before the table.
        erase_fill: out dtype `[E, C]`.
        out: flat, n finished images one after the other.
    """
    n = ids.shape[0]
    count, tall, wide, channels = plan[COUNT], plan[TALL_IN], plan[WIDE_IN], plan[CHANNELS]
    height, width, mode = plan[TALL_OUT], plan[WIDE_OUT], plan[MODE]
    for i in range(n):
        if ids[i] < 0 or ids[i] >= count or positions[i] // lanes >= uint64(1 << 40):
            return int64(i)
    geo = np.empty((n, GEO), np.int64)
    erased = np.empty((n, erase_fill.shape[0], RECTANGLE), np.int64)
    draws.draw_samples(positions, phase, key, lanes, steps, shapes, tall, wide, geo, erased)

    planar, stream = plan[BY_PIXEL] == 1, uint64(plan[STREAM])
    parts, period = (channels, int64(1)) if planar else (int64(1), channels)
    pixel = uint64(period)
    row_nbytes = width * channels
    block = min(height, max(SCRATCH // row_nbytes, int64(1)))
    scratch = np.empty(block * row_nbytes, np.uint8)
    scratch_at = uint64(scratch.ctypes.data)
    out_at, coefficients_at = uint64(out.ctypes.data), uint64(coefficients.ctypes.data)
    coefficient_row = uint64(4 * coefficients.shape[1])
    pitch = wide * channels
    image_nbytes = uint64(tall * pitch)
    for i in range(n):
        start = i * (out.shape[0] // n)
        xa, xb = inside(geo[i, FLIP_X], geo[i, SHIFT_X], geo[i, X0], geo[i, X1], width)
        ya, yb = inside(geo[i, FLIP_Y], geo[i, SHIFT_Y], geo[i, Y0], geo[i, Y1], height)
        if xa == xb:
            ya, yb = height, height
        source = images + uint64(ids[i]) * image_nbytes
        source += uint64((geo[i, FLIP_X] * xa + geo[i, SHIFT_X]) * channels)
        if i + 1 < n and image_nbytes <= uint64(AHEAD):
            ahead = images + uint64(ids[i + 1]) * image_nbytes
            for k in range(uint64(0), image_nbytes, uint64(64)):
                prefetch.to_read(ahead + k)
        for y in range(0, height, block):
            end = min(y + block, height)
            plane = (end - y) * width  # pixels of this block
            if xb - xa < width or yb - ya < height:
                _prefill(scratch_at, uint64(plane), planar, pad)
            first, last = max(y, ya), min(end, yb)
            if first < last:
                _gather(
                    source + uint64((geo[i, FLIP_Y] * first + geo[i, SHIFT_Y]) * pitch),
                    uint64(geo[i, FLIP_Y] * pitch),
                    scratch_at + uint64((first - y) * width + xa) * pixel,
                    uint64(width) * pixel,
                    uint64(plane),
                    uint64(xb - xa),
                    uint64(last - first),
                    uint64(channels),
                    geo[i, FLIP_X] < 0,
                    planar,
                )
            for part in range(parts):
                to = start + part * plan[BY_CHANNEL] + y * plan[BY_ROW]
                if mode == TABLE or plane * period < PIXELS:
                    at = scratch_at + uint64(part * plane)
                    look_up(table, part, period, at, plane * period, out, to)
                else:
                    convert(
                        mode,
                        pixel,
                        scratch_at + uint64(part * plane),
                        uint64(plane * period),
                        coefficients_at + uint64(part) * coefficient_row,
                        out,
                        out_at + uint64(to * out.itemsize),
                        stream,
                    )
        for e in range(erased.shape[1]):
            if erased[i, e, TALL] > 0:
                erase(erased, i, e, erase_fill, plan, out, start)
    if stream:
        rows.fence()
    return int64(-1)
