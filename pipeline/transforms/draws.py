"""The draws of a chain: from a sample's address to the parameters of every op. No pixels here.

    n, lane  = position div lanes, position mod lanes
    word     = Philox(key, counter = (n:40 | block:24, phase, AUGMENT | op | lane))[j]
    op       = kind << 3 | occurrence of that kind in the chain

Every op reads a fixed range of blocks of its own op number, whatever branch it takes; so no op's
draws depend on another op, on the image or on the probability. An exact integer that must be drawn
again (chance below 2**-16 for images) reads the same word of block 0x10000 | k << 8 | r, r = 1, 2,
..., where k is the attempt (0 for RandomCrop).

| kind | op | blocks | words |
|---|---|---|---|
| 1 | RandomCrop | 0 | top, left |
| 2 | RandomResizedCrop | k = 0 .. 9 | area, log aspect, top, left |
| 3 | RandomHorizontalFlip | 0 | gate |
| 4 | RandomErasing | 0; 1 + k, k = 0 .. 9 | gate; area, log aspect, top, left |
| 5 | RandomVerticalFlip | 0 | gate |
| 31 | user callable | its own stream, purpose USER | |

Geometry of a sample is one affine map an axis: output column x comes from source column
`flip_x * x + shift_x` if that lies in [x0, x1), else it is fill; crops and flips in any order
compose into it (rows likewise). `draw_samples` does all but resizing, `draw_boxes` that.
"""

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from pipeline.transforms import portable
from rng import draw, philox
from rng.kernel import kernel

# As callables these are typed as signatures, which they are not inside kernels.
float64: Any = numba.float64
int64: Any = numba.int64
uint64: Any = numba.uint64

CROP, RESIZED_CROP, HFLIP, ERASE, VFLIP, CALLABLE = 1, 2, 3, 4, 5, 31
CENTER = 64  # a step without draws: no kind of op, it never reaches an address
ATTEMPTS = 10
REDRAW = 0x10000
STEP_INTS, STEP_FLOATS = 9, 6

# Fields of a sample's geometry row (int64).
FLIP_X, SHIFT_X, FLIP_Y, SHIFT_Y, X0, X1, Y0, Y1, WIDTH, HEIGHT = range(10)
GEO = 10
# Fields of a rectangle (int64): a box to resize, or what is erased (height 0: nothing is).
ATTEMPT, TOP, LEFT, TALL, WIDE = range(5)
RECTANGLE = 5

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Int = Any  # int64, or uint64 for what goes into an address
Words = tuple[Any, Any, Any, Any]


@kernel
def words(n: Int, block: Int, phase: Int, site: Int, k0: Int, k1: Int) -> Words:
    """Return the four words of block `block` of the n-th sample of a lane. All uint64."""
    at = (uint64(n) << uint64(24)) | uint64(block)
    block_words: Words = philox.block(at, at >> uint64(32), phase, site, k0, k1)
    return block_words


@kernel
def pick(
    word: Any, count: Int, j: Int, k: Int, n: Int, phase: Int, site: Int, k0: Int, k1: Int
) -> Int:
    """Return an exact int in [0, count): from `word`, or from word j of the redraw blocks of k.

    All uint64 but `count`, so that one compiled version serves all.
    """
    value = draw.below(word, count)
    r = uint64(1)
    while value < 0 and r < uint64(256):
        w0, w1, w2, w3 = words(n, uint64(REDRAW) | k << uint64(8) | r, phase, site, k0, k1)
        low, high = w1 if j & uint64(1) else w0, w3 if j & uint64(1) else w2
        value = draw.below(high if j & uint64(2) else low, count)
        r += uint64(1)
    return max(value, int64(0))  # 255 rejections in a row: chance below 2**-255


@kernel
def round_even(x: Any) -> Int:
    """Return x >= 0 rounded to the nearest int, halves to even, as Python's `round`."""
    k = int64(x)
    rest = x - float64(k)  # exact
    if rest > 0.5 or (rest == 0.5 and k & 1):
        k += 1
    return k


@kernel
def gate(threshold: Int, n: Int, phase: Int, site: Int, k0: Int, k1: Int) -> Any:
    """Return whether a flip or an erasing happens. Draws: block 0, word 0."""
    w = words(n, uint64(0), phase, site, k0, k1)
    return uint64(w[0]) < uint64(threshold)


@kernel
def crop_corner(
    rows: Int, columns: Int, n: Int, phase: Int, site: Int, k0: Int, k1: Int
) -> tuple[Int, Int]:
    """Return (top, left), uniform in [0, rows) x [0, columns). Draws: block 0, words 0 and 1."""
    w = words(n, uint64(0), phase, site, k0, k1)
    top = pick(w[0], rows, uint64(0), uint64(0), n, phase, site, k0, k1)
    left = pick(w[1], columns, uint64(1), uint64(0), n, phase, site, k0, k1)
    return top, left


@kernel
def area_and_aspect(w: Words, height: Int, width: Int, shapes: F64, s: Int) -> tuple[float, float]:
    """Return sqrt(area * aspect) and sqrt(area / aspect) from words 0 and 1 of a block.

    Args:
        w: the block.
        height, width: of the image.
        shapes: f64[S, STEP_FLOATS], row s: scale low, scale span, log ratio low, log ratio span.
    """
    area = float64(height * width) * (shapes[s, 0] + draw.unit(w[0]) * shapes[s, 1])
    aspect = portable.exp(shapes[s, 2] + draw.unit(w[1]) * shapes[s, 3])
    return math.sqrt(area * aspect), math.sqrt(area / aspect)


@kernel
def erase_rectangle(
    threshold: Int,
    shapes: F64,
    s: Int,
    height: Int,
    width: Int,
    n: Int,
    phase: Int,
    site: Int,
    k0: Int,
    k1: Int,
) -> tuple[Int, Int, Int, Int, Int]:
    """Return (attempt, top, left, height, width) of the erased rectangle.

    attempt is -1 if the gate stays shut and 10 if every attempt missed; the rectangle is then
    empty. Draws: blocks 0 .. 10.
    """
    if not gate(threshold, n, phase, site, k0, k1):
        return -1, 0, 0, 0, 0
    for k in range(ATTEMPTS):
        w = words(n, uint64(1 + k), phase, site, k0, k1)
        tall, wide = area_and_aspect(w, height, width, shapes, s)
        h, v = round_even(tall), round_even(wide)
        if 0 < h < height and 0 < v < width:
            top = pick(w[2], height - h + 1, uint64(2), uint64(k), n, phase, site, k0, k1)
            left = pick(w[3], width - v + 1, uint64(3), uint64(k), n, phase, site, k0, k1)
            return k, top, left, h, v
    return ATTEMPTS, 0, 0, 0, 0


@kernel
def resized_box(
    shapes: F64, s: Int, height: Int, width: Int, n: Int, phase: Int, site: Int, k0: Int, k1: Int
) -> tuple[Int, Int, Int, Int, Int]:
    """Return (attempt, top, left, height, width) of the part of the image that is resized.

    attempt is 10 for the fallback, torchvision's centre crop at the ratio clamped into its range.
    Row s of `shapes`: as for `area_and_aspect`, then ratio low and high. Draws: blocks 0 .. 9.
    """
    for k in range(ATTEMPTS):
        w = words(n, uint64(k), phase, site, k0, k1)
        wide, tall = area_and_aspect(w, height, width, shapes, s)
        h, v = round_even(tall), round_even(wide)
        if 0 < v <= width and 0 < h <= height:
            top = pick(w[2], height - h + 1, uint64(2), uint64(k), n, phase, site, k0, k1)
            left = pick(w[3], width - v + 1, uint64(3), uint64(k), n, phase, site, k0, k1)
            return k, top, left, h, v
    h, v = height, width
    ratio = float64(width) / float64(height)
    if ratio < shapes[s, 4]:
        h = min(height, max(1, round_even(float64(width) / shapes[s, 4])))
    elif ratio > shapes[s, 5]:
        v = min(width, max(1, round_even(float64(height) * shapes[s, 5])))
    return ATTEMPTS, (height - h) // 2, (width - v) // 2, h, v


# ---------------------------------------------------------------- a whole chain
@kernel
def _crop(geo: I64, i: Int, top: Int, left: Int, height: Int, width: Int) -> None:
    """Cut a window at (top, left), which may reach outside: outside is fill."""
    for axis in range(2):
        flip, shift, low, high = 2 * axis, 2 * axis + 1, X0 + 2 * axis, X1 + 2 * axis
        size = geo[i, WIDTH + axis]
        first, last = geo[i, shift], geo[i, shift] + geo[i, flip] * (size - 1)
        geo[i, low] = max(geo[i, low], min(first, last))
        geo[i, high] = min(geo[i, high], max(first, last) + 1)
        geo[i, shift] += geo[i, flip] * (left if axis == 0 else top)
    geo[i, WIDTH], geo[i, HEIGHT] = width, height


@kernel
def _mirror(geo: I64, i: Int, axis: Int) -> None:
    geo[i, 2 * axis + 1] += geo[i, 2 * axis] * (geo[i, WIDTH + axis] - 1)
    geo[i, 2 * axis] = -geo[i, 2 * axis]


@kernel
def _start(geo: I64, i: Int, height: Int, width: Int) -> None:
    geo[i, FLIP_X], geo[i, SHIFT_X], geo[i, X0], geo[i, X1], geo[i, WIDTH] = 1, 0, 0, width, width
    geo[i, FLIP_Y], geo[i, SHIFT_Y], geo[i, Y0], geo[i, Y1], geo[i, HEIGHT] = (
        1,
        0,
        0,
        height,
        height,
    )


@kernel
def _center(size: Int, target: Int) -> Int:
    """Return the offset of torchvision's centre crop, negative where the image is padded."""
    if target > size:
        return -((target - size) // 2)
    extra = size - target
    half = extra // 2
    return half + 1 if extra & 1 and half & 1 else half  # round(extra / 2), halves to even


@kernel
def draw_samples(
    positions: npt.NDArray[np.uint64],
    phase: Int,
    key: Int,
    lanes: Int,
    steps: I64,
    shapes: F64,
    height: Int,
    width: Int,
    geo: I64,
    erased: I64,
) -> None:
    """Fill the geometry and the erased rectangles of every sample.

    Args:
        positions: u64[n]; decide every draw.
        phase, key, lanes: uint64.
        steps: i64[S, STEP_INTS]: step, op, then its integers (see `ops.*.step`).
        shapes: f64[S, STEP_FLOATS]: the numbers of `area_and_aspect` and `resized_box`.
        height, width: of every source image.
        geo: i64[n, GEO], written.
        erased: i64[n, E, RECTANGLE], written.
    """
    k0, k1 = key & uint64(0xFFFFFFFF), key >> uint64(32)
    for i in range(positions.shape[0]):
        n = positions[i] // lanes
        base = (uint64(3) << uint64(24)) | (positions[i] - n * lanes)
        _start(geo, i, height, width)
        rectangle = 0
        for s in range(steps.shape[0]):
            kind = steps[s, 0]
            site = base | (uint64(steps[s, 1]) << uint64(16))
            if kind == CROP:
                # Padding is always applied first; pad_if_needed then adds what is still missing.
                rows = geo[i, HEIGHT] + steps[s, 5] + steps[s, 7]
                columns = geo[i, WIDTH] + steps[s, 4] + steps[s, 6]
                pad_y = max(steps[s, 2] - rows, 0) if steps[s, 8] else 0
                pad_x = max(steps[s, 3] - columns, 0) if steps[s, 8] else 0
                top, left = crop_corner(
                    rows + 2 * pad_y - steps[s, 2] + 1,
                    columns + 2 * pad_x - steps[s, 3] + 1,
                    n,
                    phase,
                    site,
                    k0,
                    k1,
                )
                _crop(
                    geo,
                    i,
                    top - steps[s, 5] - pad_y,
                    left - steps[s, 4] - pad_x,
                    steps[s, 2],
                    steps[s, 3],
                )
            elif kind in (HFLIP, VFLIP):
                if gate(steps[s, 2], n, phase, site, k0, k1):
                    _mirror(geo, i, 0 if kind == HFLIP else 1)
            elif kind == ERASE:
                found = erase_rectangle(
                    steps[s, 2], shapes, s, geo[i, HEIGHT], geo[i, WIDTH], n, phase, site, k0, k1
                )
                for field in range(RECTANGLE):
                    erased[i, rectangle, field] = found[field]
                rectangle += 1
            elif kind == CENTER:
                _crop(
                    geo,
                    i,
                    _center(geo[i, HEIGHT], steps[s, 2]),
                    _center(geo[i, WIDTH], steps[s, 3]),
                    steps[s, 2],
                    steps[s, 3],
                )


@kernel
def draw_boxes(
    positions: npt.NDArray[np.uint64],
    phase: Int,
    key: Int,
    lanes: Int,
    op: Int,
    shapes: F64,
    height: Int,
    width: Int,
    boxes: I64,
) -> None:
    """Fill what RandomResizedCrop takes of every sample.

    Args:
        positions, phase, key, lanes, height, width: see `draw_samples`.
        op: uint64, its number; shapes: f64[1, STEP_FLOATS].
        boxes: i64[n, RECTANGLE], written.
    """
    k0, k1 = key & uint64(0xFFFFFFFF), key >> uint64(32)
    for i in range(positions.shape[0]):
        n = positions[i] // lanes
        site = (uint64(3) << uint64(24)) | (op << uint64(16)) | (positions[i] - n * lanes)
        box = resized_box(shapes, 0, height, width, n, phase, site, k0, k1)
        for field in range(RECTANGLE):
            boxes[i, field] = box[field]
