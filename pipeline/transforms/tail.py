"""What a chain works out before any sample: encoded draws, tables, shapes; and single ops.

`tail_start` says which ops one kernel pass can do, `Steps` and `Boxes` encode ops for the draw
kernels, `Values` and `Plan` hold what the pixel kernel takes; `move` does one op on one array.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.transforms import checks, draws, fuse, ops, rows
from pipeline.transforms.ops import Op

Image = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
RESIZING = (ops.Resize, ops.RandomResizedCrop)


class Sample:
    """One sample's address."""

    __slots__ = ("address", "key", "lanes", "phase", "position", "positions")

    def __init__(self, position: int, phase: int, key: int, lanes: int) -> None:
        self.position = position
        self.phase = phase
        self.key = key
        self.lanes = lanes
        self.positions = np.array([position], np.uint64)
        self.address = self.positions, phase, key, lanes


class Steps:
    """Ops encoded for `draws.draw_samples`."""

    def __init__(self, numbered: Sequence[tuple[Op, int]]) -> None:
        self.erasings = sum(isinstance(op, ops.RandomErasing) for op, _ in numbered)
        self.ints = np.zeros((len(numbered), draws.STEP_INTS), np.int64)
        self.floats = np.zeros((len(numbered), draws.STEP_FLOATS), np.float64)
        for row, (op, number) in enumerate(numbered):
            ints, floats = op.step()
            self.ints[row, 0] = op.kind or draws.CENTER
            self.ints[row, 1] = number
            self.ints[row, 2 : 2 + len(ints)] = ints
            self.floats[row, : len(floats)] = floats

    def draw(self, sample: Sample, height: int, width: int) -> tuple[Image, Image]:
        """Return the geometry row and the erased rectangles of one sample."""
        geo = np.empty((1, draws.GEO), np.int64)
        erased = np.empty((1, self.erasings, draws.RECTANGLE), np.int64)
        draws.draw_samples(
            sample.positions,
            np.uint64(sample.phase),
            np.uint64(sample.key),
            np.uint64(sample.lanes),
            self.ints,
            self.floats,
            height,
            width,
            geo,
            erased,
        )
        return geo[0], erased[0]


class Boxes:
    """What a resizing op takes of its images."""

    def __init__(self, op: ops.Resize | ops.RandomResizedCrop, number: int) -> None:
        self.number = number
        self.floats: F64 | None = None  # Resize takes all
        if isinstance(op, ops.RandomResizedCrop):
            self.floats = np.array([op.step()[1]], np.float64)

    def draw(
        self,
        positions: npt.NDArray[np.uint64],
        phase: int,
        key: int,
        lanes: int,
        height: int,
        width: int,
    ) -> npt.NDArray[np.int64]:
        """Return the boxes of n samples, `[n, RECTANGLE]`."""
        boxes = np.empty((len(positions), draws.RECTANGLE), np.int64)
        if self.floats is None:
            boxes[:] = (0, 0, 0, height, width)
            return boxes
        u64 = np.uint64
        draws.draw_boxes(
            positions,
            u64(phase),
            u64(key),
            u64(lanes),
            u64(self.number),
            self.floats,
            height,
            width,
            boxes,
        )
        return boxes


class Values:
    """What the tail's value ops make of uint8 images with `channels` channels."""

    def __init__(self, tail: Sequence[Any], channels: int) -> None:
        ramp = np.repeat(np.arange(256, dtype=np.uint8), channels).reshape(256, 1, channels)
        unit = 255
        pad = np.zeros((1, 1, channels), np.uint8)  # at most one op of a tail pads
        erase_fills: list[Image] = []
        for op in tail:
            op.check_channels(channels)
            if _may_pad(op):
                value = op.fill if isinstance(op, ops.RandomCrop) else 0
                pad = _pixel("RandomCrop.fill", value, channels, pad.dtype)
            elif isinstance(op, ops.RandomErasing):
                erase_fills.append(_pixel("RandomErasing.value", op.value, channels, ramp.dtype))
            elif isinstance(op, ops.ValueOp):
                erase_fills = [op.values(f, unit)[0] for f in erase_fills]
                ramp, unit = op.values(ramp, unit)
        self.dtype = ramp.dtype
        self.table = bits_of(np.ascontiguousarray(ramp[:, 0, :].T))
        self.mode, self.planar, self.pixels = _formula(tail, channels, ramp)
        self.pad = pad.reshape(-1)
        self.erase_fill = bits_of(
            np.array(erase_fills, ramp.dtype).reshape(len(erase_fills), channels)
        )


class Plan:
    """The shapes of the fused tail, as its kernel takes them."""

    def __init__(
        self,
        source: tuple[int, ...],
        finished: tuple[int, ...],
        layout: str,
        mode: int,
        stream: bool = False,
    ) -> None:
        self.source = source
        self.finished = finished
        channels = source[3]
        if layout == "CHW":
            _, height, width = finished
            strides = (height * width, width, 1)
        else:
            height, width, _ = finished
            strides = (1, width * channels, channels)
        self.planar = strides[2] == 1
        self.fields = np.array((*source, height, width, *strides, mode, stream), np.int64)


def _formula(tail: Sequence[Any], channels: int, table: Image) -> tuple[int, Image, Image]:
    """Return how to compute the table `[256, 1, C]`, with the coefficients for CHW and HWC.

    PLAIN is v * s - m, DIVIDED v / 255 * s - m in float32. TABLE if neither gives these very bits
    for all 256 values.
    """
    s, m, divide = np.ones(channels, np.float32), np.zeros(channels, np.float32), False
    for op in tail:
        if isinstance(op, ops.Normalize):
            s, m = op.coefficients(channels, 1 if divide else 255)
        elif isinstance(op, ops.ToTensor) or (isinstance(op, ops.ToDtype) and op.scale):
            divide = True
    v = np.arange(256, dtype=np.float32).reshape(256, 1, 1)
    values = ((v / np.float32(255.0) if divide else v) * s - m).astype(table.dtype)
    mode = fuse.DIVIDED if divide else fuse.PLAIN
    if not np.array_equal(bits_of(values), bits_of(table)):
        mode = fuse.TABLE
    both = np.stack((s, m))
    pixels = np.resize(both[0], channels + rows.PIXELS), np.resize(both[1], channels + rows.PIXELS)
    planar = np.repeat(both.T, 1 + rows.PIXELS, axis=1)
    return mode, np.ascontiguousarray(planar), np.concatenate(pixels).reshape(1, -1)


def tail_start(chain: Sequence[Any]) -> int:
    """Return where the longest fusable run of ops at the end begins."""
    start = len(chain)
    moved = False
    padding: Any = None  # the one op that pads
    for op in reversed(chain):
        if isinstance(op, ops.RandomErasing):
            if moved:  # what is erased must not move any more
                break
        elif isinstance(op, ops.RandomCrop | ops.CenterCrop):
            constant = not isinstance(op, ops.RandomCrop) or op.padding_mode == "constant"
            if not constant or (padding and _may_pad(op)):
                break
            padding = op if _may_pad(op) else padding
            moved = True
        elif isinstance(op, ops.RandomHorizontalFlip | ops.RandomVerticalFlip):
            moved = True
        elif isinstance(op, ops.ValueOp):
            # Padding is bytes: what is padded after the value ops must be some byte's value, which
            # is certain only of 0, and not for Normalize.
            if padding and (isinstance(op, ops.Normalize) or not _pads_zero(padding)):
                break
        elif not isinstance(op, ops.ToLayout):
            break
        start -= 1
    return start


def is_step(op: Any) -> bool:
    """Return whether the op has a step in `draws.draw_samples`."""
    moves = ops.RandomCrop, ops.CenterCrop, ops.RandomHorizontalFlip, ops.RandomVerticalFlip
    return isinstance(op, (*moves, ops.RandomErasing))


def _may_pad(op: Any) -> bool:
    if isinstance(op, ops.RandomCrop):
        return op.pad_if_needed or any(checks.padding("RandomCrop.padding", op.padding))
    return isinstance(op, ops.CenterCrop)


def _pads_zero(op: Any) -> bool:
    return isinstance(op, ops.CenterCrop) or not any(checks.channels("fill", op.fill))


def _pixel(field: str, value: Any, channels: int, dtype: Any) -> Image:
    """Return one pixel `[1, 1, C]` of a value given as a number or one for each channel."""
    numbers = checks.broadcast(field, checks.channels(field, value), channels)
    if dtype == np.uint8 and any(not 0 <= v <= 255 or v != int(v) for v in numbers):
        raise checks.refuse(field, "an integer in 0 .. 255 where the image is uint8", value)
    return np.array(numbers, np.float64).astype(np.float32).astype(dtype).reshape(1, 1, -1)


def bits_of(values: Image) -> Image:
    """Return float16 as its bits, which kernels can copy; anything else as it is."""
    return values.view(np.uint16) if values.dtype == np.float16 else values


# ---------------------------------------------------------------- one op on one array
def move(op: Any, image: Image, geo: Image, erased: Image) -> Image:
    """Apply a drawn op to an image `[H, W, C]`, which is not written to."""
    if isinstance(op, ops.RandomHorizontalFlip):
        return image[:, ::-1] if geo[draws.FLIP_X] < 0 else image
    if isinstance(op, ops.RandomVerticalFlip):
        return image[::-1] if geo[draws.FLIP_Y] < 0 else image
    if isinstance(op, ops.RandomErasing):
        _, top, left, tall, wide = erased[0]
        if not tall:
            return image
        pixel = _pixel("RandomErasing.value", op.value, image.shape[2], image.dtype)
        out = image.copy()
        out[top : top + tall, left : left + wide] = pixel
        return out
    left, top, right, bottom = op.pads(image.shape[0], image.shape[1])
    if op.padding_mode == "constant":
        shape = (image.shape[0] + top + bottom, image.shape[1] + left + right, image.shape[2])
        padded = np.empty(shape, image.dtype)
        padded[...] = _pixel("RandomCrop.fill", op.fill, shape[2], image.dtype)
        padded[top : top + image.shape[0], left : left + image.shape[1]] = image
    else:
        padded = np.pad(image, ((top, bottom), (left, right), (0, 0)), mode=op.padding_mode)
    y, x = int(geo[draws.SHIFT_Y]) + top, int(geo[draws.SHIFT_X]) + left
    height, width = op.new_size(image.shape[0], image.shape[1])
    return padded[y : y + height, x : x + width]


def center_crop(image: Image, size: tuple[int, int]) -> Image:
    """Return the centre of an image, padded with 0 where it is smaller."""
    top, left = (
        (extra // 2 + (extra // 2 & 1 if extra & 1 else 0)) if extra >= 0 else -(-extra // 2)
        for extra in (image.shape[0] - size[0], image.shape[1] - size[1])
    )
    before = (max(-top, 0), max(-left, 0))
    after = (
        max(size[0] - image.shape[0] - before[0], 0),
        max(size[1] - image.shape[1] - before[1], 0),
    )
    padded = np.pad(image, ((before[0], after[0]), (before[1], after[1]), (0, 0)))
    top, left = top + before[0], left + before[1]
    return padded[top : top + size[0], left : left + size[1]]
