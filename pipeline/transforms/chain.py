"""A chain of ops: which samples it makes, in bulk or one by one, always with the same bytes.

    ops = head | tail      tail = the longest run of ops at the end that one kernel pass can do

The head runs op by op on arrays. The tail is any mix of crops with constant padding, flips, value
ops and layouts, then erasings: crops and flips compose into one affine map an axis, value ops into
a table over 0 .. 255, fills go through the value ops that follow them. It reads uint8 and writes
straight into the output slot. If the head hands it floats, it too runs op by op.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from pipeline.transforms import bilinear, checks, draws, fuse, ops, resize, resized
from pipeline.transforms.ops import Op
from pipeline.transforms.stream import Stream
from pipeline.transforms.tail import (
    RESIZING,
    Boxes,
    Plan,
    Sample,
    Steps,
    Values,
    bits_of,
    center_crop,
    is_step,
    move,
    tail_start,
)
from rng import address

Image = npt.NDArray[Any]
Shape = tuple[int, int, int]
TOGETHER = 1 << 20  # bytes of resized images that wait for the tail at a time
FIRST = np.zeros(1, np.int64)
_NO_PLAN = Plan((0, 0, 0, 0), (0, 0, 0), "HWC", fuse.TABLE)
FLOATS = ("float16", "float32", "float64")


def takes_rng(call: Callable[..., Any]) -> bool:
    """Return whether the callable's second positional parameter is for the stream.

    It is if it has no default value, or if it is called rng: `def blur(image, sigma=1.0)` must
    not be handed a stream as its sigma.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # some builtins do not tell
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(places) < 2:
        return False
    return places[1].default is inspect.Parameter.empty or places[1].name == "rng"


class _User:
    """A user callable in a chain."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.wants_stream = takes_rng(call)

    kind = draws.CALLABLE

    @property
    def name(self) -> str:
        named = self.call if hasattr(self.call, "__qualname__") else type(self.call)
        return f"{named.__module__}.{named.__qualname__}"


def op_numbers(chain: Sequence[Any]) -> list[int]:
    """Return the op number of each op or callable: kind << 3 | occurrence; 0 if it draws nothing.

    Whoever splits a list of transforms into several chains numbers the whole list first.

    Raises:
        ConfigError: more than eight of a kind.

    >>> from pipeline import transforms as T
    >>> op_numbers([T.RandomCrop(8), T.ToTensor(), T.RandomCrop(4), print])
    [8, 0, 9, 248]
    """
    seen: dict[int, int] = {}
    numbers = []
    for i, op in enumerate(chain):
        kind = op.kind if isinstance(op, Op | _User) else draws.CALLABLE
        occurrence = seen.get(kind, 0)
        seen[kind] = occurrence + 1
        if kind and occurrence > 7:
            name = type(op).__name__ + " ops" if isinstance(op, Op) else "functions"
            raise ConfigError(
                f"transforms[{i}] is one too many: a chain may have 8 {name}",
                do="put several functions into one",
                field=f"transforms[{i}]",
            )
        numbers.append(kind << 3 | occurrence if kind else 0)
    return numbers


class Chain:
    """The ops of a pipeline, ready to make samples.

    Args:
        ops: ops of this package and user callables, in order. A callable is called as
            `f(image, rng)` if it has a second positional parameter (without a default, or named
            rng), else `f(image)`. It gets an array of its own, laid out as it then is, and may
            return uint8 or float arrays of any size; `rng` is a `Stream`.
        image: (H, W, C) if every source image has that shape, else None.
        numbers: the ops' numbers, where this chain is a part of a longer list; see `op_numbers`.
        unit, layout: of the images that come in, where this chain is a later part: `out_unit` and
            `out_layout` of the one before.

    Attributes:
        out_shape: of a finished image; None if it is not known before one is made.
        out_dtype: of a finished image; None if not known.
        bulk: whether `apply_bulk` can be used.
        out_unit: what a finished image counts as 1: 255 or 1.
        out_layout: of a finished image, "HWC" or "CHW".

    Raises:
        ConfigError: an op that is none, or that cannot be used on such images.
    """

    def __init__(
        self,
        ops: Sequence[Any],
        image: tuple[int, int, int] | None = None,
        numbers: Sequence[int] | None = None,
        unit: int = 255,
        layout: str = "HWC",
    ) -> None:
        self._made_of = (tuple(ops), image, numbers, unit, layout)
        self._source_unit, self._source_layout = unit, layout
        self._ops: list[Any] = [_checked(op, i) for i, op in enumerate(ops)]
        self._numbers = op_numbers(self._ops) if numbers is None else list(numbers)
        self._image = None if image is None else (int(image[0]), int(image[1]), int(image[2]))
        self._tail = tail_start(self._ops)
        numbered = list(zip(self._ops, self._numbers, strict=True))
        self._steps = [Steps([pair]) if is_step(pair[0]) else None for pair in numbered]
        self._boxes = [Boxes(*pair) if isinstance(pair[0], RESIZING) else None for pair in numbered]
        self._tail_steps = Steps([pair for pair in numbered[self._tail :] if is_step(pair[0])])
        self._values: dict[int, Values] = {}
        self._pads: dict[tuple[int, int], bool] = {}  # whether the tail pads an image of a size
        self._finished: dict[tuple[int, ...], Shape] = {}  # what the tail makes of a shape
        self._streams = False
        self._plan = _NO_PLAN
        self._last: tuple[Image | None, int] = (None, 0)  # asking for an address is slow
        self._layout = layout
        self.out_unit = unit
        for op in self._ops:
            self._layout = layout_after(op, self._layout)
            self.out_unit = unit_after(op, self.out_unit)
        self.out_layout = self._layout
        self._resizes = self._tail == 1 and isinstance(self._ops[0], RESIZING)
        self.bulk = self._image is not None and (self._tail == 0 or self._resizes)
        self.out_shape, self.out_dtype = self._static()

    def __reduce__(self) -> tuple[Any, ...]:
        return Chain, self._made_of

    # ------------------------------------------------------------ before any sample
    def _static(self) -> tuple[tuple[int, ...] | None, Any]:
        """Walk the chain with shapes and types alone; also the early check of every op."""
        shape: Shape | None = self._image
        dtype: Any = np.dtype(np.uint8)
        for op in self._ops:
            if isinstance(op, _User):
                shape = dtype = None
                continue
            if shape is not None:
                op.check_channels(shape[2])
                shape = (*op.new_size(shape[0], shape[1]), shape[2])
            if isinstance(op, ops.ValueOp):
                dtype = np.dtype(_out_dtype(op))
        if self.bulk and shape is not None:
            self._values_of(shape[2])  # checks fills
        return None if shape is None else self._laid_out(shape), dtype

    def _laid_out(self, shape: Shape) -> tuple[int, int, int]:
        return (shape[2], shape[0], shape[1]) if self._layout == "CHW" else shape

    def _values_of(self, channels: int) -> Values:
        values = self._values.get(channels)
        if values is None:
            values = self._values[channels] = Values(self._ops[self._tail :], channels)
        return values

    def write_past_the_caches(self, wanted: bool) -> None:
        """Say whether what is finished is read only after much else was written.

        Then its cache lines need not be read before they are written, which is a third of the traffic of memory.
        """
        self._streams, self._plan = wanted, _NO_PLAN

    # ------------------------------------------------------------ many samples
    def apply_bulk(
        self,
        images: Image,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.uint64],
        phase: int,
        key: int,
        lanes: int,
        out: Image,
    ) -> None:
        """Make n samples in one kernel call, without the GIL.

        Args:
            images: uint8[N, H, W, C], contiguous, of the chain's `image` shape.
            ids: int64[n]: which source image each sample takes.
            positions: uint64[n]: decide every draw.
            phase, key, lanes: see `rng.address`.
            out: `[n, *out_shape]` of `out_dtype`, written.

        Raises:
            ConfigError: a shape or dtype that does not fit, an id or address out of range.
        """
        if not self.bulk or self._image is None or self.out_shape is None:
            raise ConfigError(
                "this chain cannot run in bulk: it has user callables or no fixed image shape",
                do="use apply_one",
            )
        count = len(ids)
        if images.dtype != np.uint8 or images.shape[1:] != self._image:
            raise ConfigError(
                f"the images are {images.dtype}{list(images.shape)}, "
                f"expected uint8[N, {', '.join(map(str, self._image))}]"
            )
        if len(positions) != count:
            raise ConfigError(f"{count} ids but {len(positions)} positions")
        self._check_out(out, (count, *self.out_shape), self.out_dtype)
        _check_address(phase, lanes)
        if not count:
            return
        ids = np.ascontiguousarray(ids, np.int64)
        positions = np.ascontiguousarray(positions, np.uint64)
        last, at = self._last
        if last is not images:
            if not images.flags.c_contiguous:
                raise ConfigError("the images are not contiguous", do="use np.ascontiguousarray")
            at = images.ctypes.data
            self._last = (images, at)
        if self._resizes:
            self._resize_bulk(images, at, ids, positions, phase, key, lanes, out)
        else:
            self._render(images, at, ids, positions, phase, key, lanes, out)

    def _resize_bulk(
        self,
        images: Image,
        at: int,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.uint64],
        phase: int,
        key: int,
        lanes: int,
        out: Image,
    ) -> None:
        """Resample a few samples at a time, so that they are in the cache for the tail."""
        count, height, width, channels = images.shape
        size = self._ops[0].new_size(height, width)
        taken = self._boxes[0]
        assert taken is not None
        if self._is_straight(size):
            boxes = taken.draw(positions, phase, key, lanes, height, width)
            self._straight(
                at, width, images.shape, size, ids, boxes, positions, phase, key, lanes, out
            )
            return
        few = max(1, TOGETHER // (size[0] * size[1] * channels))
        small = np.empty((min(few, len(ids)), *size, channels), np.uint8)
        for lo in range(0, len(ids), few):
            part = slice(lo, min(lo + few, len(ids)))
            n = part.stop - lo
            boxes = taken.draw(positions[part], phase, key, lanes, height, width)
            bad = bilinear.resample_many(
                np.uint64(at), count, height, width, channels, ids[part], boxes, small[:n]
            )
            if bad >= 0:
                self._refuse(lo + bad, ids, positions, count)
            self._render(
                small[:n],
                small.ctypes.data,
                np.arange(n),
                positions[part],
                phase,
                key,
                lanes,
                out[part],
            )

    def _is_straight(self, size: tuple[int, int]) -> bool:
        """Return whether images resized to `size` go into their slots in one pass: nothing pads."""
        known = self._pads.get(size)
        if known is None:
            height, width = size
            known = not self._resizes
            for op in self._ops[self._tail :]:
                tall, wide = op.new_size(height, width)
                if isinstance(op, ops.RandomCrop):
                    known |= any(op.pads(height, width))
                known |= isinstance(op, ops.CenterCrop) and (tall > height or wide > width)
                height, width = tall, wide
            if len(self._pads) < 1000:
                self._pads[size] = known
        return not known

    def _straight(
        self,
        at: int,
        row: int,
        shape: tuple[int, ...],
        size: tuple[int, int],
        ids: npt.NDArray[np.int64],
        boxes: npt.NDArray[np.int64],
        positions: npt.NDArray[np.uint64],
        phase: int,
        key: int,
        lanes: int,
        out: Image,
    ) -> None:
        """Resample boxes of images (N, H, W, C) at address `at`, `row` pixels from row to row."""
        target = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        values = self._values_of(shape[3])
        plan = self._plan
        if plan.source != shape or plan.finished != out.shape[1:]:
            plan = self._plan = Plan(shape, out.shape[1:], self._layout, values.mode, self._streams)
        bad = resized.render(
            np.uint64(at),
            row * shape[3],
            plan.fields,
            size,
            ids,
            boxes,
            positions,
            np.uint64(phase),
            np.uint64(key),
            np.uint64(lanes),
            self._tail_steps.ints,
            self._tail_steps.floats,
            values.planar if plan.planar else values.pixels,
            values.table,
            values.erase_fill,
            bits_of(target).reshape(-1),
        )
        if bad >= 0:
            self._refuse(bad, ids, positions, shape[0])
        if target is not out:
            out[...] = target

    def _refuse(self, i: int, ids: Image, positions: Image, count: int) -> None:
        raise ConfigError(
            f"sample {i} of the chunk has id {ids[i]} and position {positions[i]}; "
            f"expected an id in [0, {count}) and a position below lanes * 2**40"
        )

    def _render(
        self,
        images: Image,
        at: int,
        ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.uint64],
        phase: int,
        key: int,
        lanes: int,
        out: Image,
    ) -> None:
        """Run the fused tail on checked arguments; `at` is the address of `images`."""
        target = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        values = self._values_of(images.shape[3])
        plan = self._plan
        if plan.source != images.shape or plan.finished != out.shape[1:]:
            plan = self._plan = Plan(
                images.shape, out.shape[1:], self._layout, values.mode, self._streams
            )
        bad = fuse.render(
            np.uint64(at),
            plan.fields,
            ids,
            positions,
            np.uint64(phase),
            np.uint64(key),
            np.uint64(lanes),
            self._tail_steps.ints,
            self._tail_steps.floats,
            values.planar if plan.planar else values.pixels,
            values.table,
            values.pad,
            values.erase_fill,
            bits_of(target).reshape(-1),
        )
        if bad >= 0:
            self._refuse(bad, ids, positions, len(images))
        if target is not out:
            out[...] = target

    # ------------------------------------------------------------ one sample
    def apply_one(
        self,
        image: Any,
        position: int,
        phase: int,
        key: int,
        lanes: int,
        out: Image | None = None,
    ) -> Image:
        """Make one sample; return `out`, or a new array.

        Args:
            image: uint8 `[H, W, C]` or `[H, W]` array, never written to, or a PIL image, or a file
                that is not decoded yet (see `resize`).
            position, phase, key, lanes: the sample's address.
            out: where to write, of the finished image's shape and dtype.

        Raises:
            ConfigError: the image does not fit the ops, or the result does not fit `out`.
            SourceError: a file cannot be decoded.
        """
        _check_address(phase, lanes)
        sample = Sample(position, phase, key, lanes)
        address.sample_position(position // lanes)  # checks the range
        current, unit, layout = _source(image), self._source_unit, self._source_layout
        if layout == "CHW" and not resize.is_picture(current):
            current = np.moveaxis(current, 0, 2)
        if self._resizes and (resize.is_picture(current) or current.dtype == np.uint8):
            made = self._resize_one(current, sample, out)
            if made is not None:
                return made
        for i in range(self._tail):
            current, unit = self._apply(i, current, unit, layout, sample)
            layout = layout_after(self._ops[i], layout)
        if resize.is_picture(current):
            current = resize.to_array(current)
        if current.dtype == np.uint8:
            return self._finish_fused(np.ascontiguousarray(current), sample, out)
        for i in range(self._tail, len(self._ops)):
            current, unit = self._apply(i, current, unit, layout, sample)
        return self._finish(current, out)

    def _resize_one(self, image: Any, sample: Sample, out: Image | None) -> Image | None:
        """Make a sample in one pass, or return None if the tail pads."""
        height, width, channels = (
            resize.shape_of(image) if resize.is_picture(image) else image.shape
        )
        size = self._ops[0].new_size(height, width)
        if not self._is_straight(size):
            return None
        taken = self._boxes[0]
        assert taken is not None
        values, shape = self._values_of(channels), self._finished_shape((*size, channels))
        if out is None:
            out = np.empty(shape, values.dtype)
        self._check_out(out, shape, values.dtype)
        boxes = taken.draw(*sample.address, height, width)
        _, top, left, tall, wide = boxes[0].tolist()
        source, at, whole = resize.window(image, (top, left, tall, wide), size)
        row = source.shape[1]
        self._straight(at, row, (1, *whole), size, FIRST, boxes, *sample.address, out[None])
        return out

    def _finished_shape(self, given: Shape) -> Shape:
        """Return what the tail makes of the shape of an image."""
        shape = self._finished.get(given)
        if shape is None:
            height, width, channels = given
            for op in self._ops[self._tail :]:
                height, width = op.new_size(height, width)
            shape = self._laid_out((height, width, channels))
            if len(self._finished) < 1000:
                self._finished[given] = shape
        return shape

    def _finish_fused(self, image: Image, sample: Sample, out: Image | None) -> Image:
        values = self._values_of(image.shape[2])
        shape = self._finished_shape(image.shape)
        if out is None:
            out = np.empty(shape, values.dtype)
        self._check_out(out, shape, values.dtype)
        self._render(
            image[None],
            image.ctypes.data,
            FIRST,
            sample.positions,
            sample.phase,
            sample.key,
            sample.lanes,
            out[None],
        )
        return out

    def _finish(self, image: Image, out: Image | None) -> Image:
        finished = image.transpose(2, 0, 1) if self._layout == "CHW" else image
        if out is None:
            out = np.empty(finished.shape, finished.dtype)
        self._check_out(out, finished.shape, finished.dtype)
        out[...] = finished
        return out

    def _check_out(self, out: Image, shape: tuple[int, ...], dtype: Any) -> None:
        if out.shape != shape or out.dtype != dtype:
            raise ConfigError(
                f"the transforms make {dtype}{list(shape)}, "
                f"but the slot is {out.dtype}{list(out.shape)}",
                do="end the chain so that every image gets the same shape and dtype, "
                "for instance with RandomCrop, Resize((h, w)) or ToDtype",
            )

    def _apply(self, i: int, image: Any, unit: int, layout: str, sample: Sample) -> tuple[Any, int]:
        """Apply op i to an image `[H, W, C]` by itself."""
        op = self._ops[i]
        if isinstance(op, _User):
            return self._call(i, op, image, layout, sample), unit
        height, width, channels = (
            resize.shape_of(image) if resize.is_picture(image) else image.shape
        )
        op.check_channels(channels)
        size = op.new_size(height, width)
        boxes = self._boxes[i]
        if boxes is not None:
            _, top, left, tall, wide = boxes.draw(*sample.address, height, width)[0].tolist()
            return resize.resample(image, (top, left, tall, wide), size), 255
        if resize.is_picture(image):
            image = resize.to_array(image)
        if isinstance(op, ops.ValueOp):
            result: tuple[Image, int] = op.values(image, unit)
            return result
        if isinstance(op, ops.ToLayout):
            return image, unit
        if isinstance(op, ops.CenterCrop):
            return center_crop(image, size), unit
        steps = self._steps[i]
        assert steps is not None
        geo, erased = steps.draw(sample, height, width)
        return move(op, image, geo, erased), unit

    def _call(self, i: int, op: _User, image: Any, layout: str, sample: Sample) -> Image:
        """Call a user callable with an array of its own; return its result as `[H, W, C]`."""
        array = resize.to_array(image) if resize.is_picture(image) else image
        array = np.array(array.transpose(2, 0, 1) if layout == "CHW" else array, order="C")
        if op.wants_stream:
            number = self._numbers[i]
            stream = Stream(sample.position, sample.phase, sample.key, sample.lanes, number)
            result = op.call(array, stream)
        else:
            result = op.call(array)
        if resize.is_pillow(result):
            return resize.to_array(result)
        got = np.asarray(result)
        if got.ndim not in (2, 3) or got.dtype.name not in ("uint8", *FLOATS) or not got.size:
            raise ConfigError(
                f"the transform {op.name} returned {got.dtype}{list(got.shape)}; expected an "
                "image: uint8 or float, 2 or 3 dimensions",
            )
        if got.dtype == np.float64:
            got = got.astype(np.float32)
        if got.ndim == 2:
            return got[:, :, None]
        return got.transpose(1, 2, 0) if layout == "CHW" else got

    # ------------------------------------------------------------ descriptions
    def explain(
        self, image_shape: tuple[int, ...], position: int, phase: int, key: int, lanes: int
    ) -> list[dict[str, Any]]:
        """Return every draw of one sample: op, number, counters read, and what came of them.

        `counters` is the op's whole range of blocks, `words` is what was read of it: the four words
        of each block up to the attempt that counted (of 2**16 and more images, one integer is drawn
        again, from blocks that are not listed). User callables appear with the counter of their
        stream's first block; the image's shape is taken to stay as it is across them.
        """
        first = int(self._source_layout == "CHW")
        height, width = int(image_shape[first]), int(image_shape[first + 1])
        sample = Sample(position, phase, key, lanes)
        found = []
        for i, (op, number) in enumerate(zip(self._ops, self._numbers, strict=True)):
            if isinstance(op, _User):
                stream = [_counter(sample, number, 0, address.USER)]
                found.append({"op": op.name, "number": number, "counters": stream})
                continue
            if number:
                blocks = _BLOCKS[op.kind]
                counters = [_counter(sample, number, b, address.AUGMENT) for b in blocks]
                outcome = self._outcome(i, sample, height, width)
                entry = {"op": type(op).__name__, "number": number, "counters": counters}
                read = _read_blocks(op.kind, outcome)
                words = [block_words(sample, number, b, address.AUGMENT) for b in read]
                found.append({**entry, "words": words, **outcome})
            height, width = op.new_size(height, width)
        return found

    def _outcome(self, i: int, sample: Sample, height: int, width: int) -> dict[str, Any]:
        """Return what the draws of op i come to on an image of this size."""
        op, steps, boxes = self._ops[i], self._steps[i], self._boxes[i]
        if boxes is not None:
            row = boxes.draw(*sample.address, height, width)[0]
            return {"fallback": bool(row[draws.ATTEMPT] == draws.ATTEMPTS), **_rectangle(row)}
        assert steps is not None
        geo, erased = steps.draw(sample, height, width)
        if isinstance(op, ops.RandomErasing):
            row = erased[0]
            gate = {"erase": bool(row[draws.TALL] > 0), "gate": bool(row[draws.ATTEMPT] >= 0)}
            return {**gate, **_rectangle(row)}
        if isinstance(op, ops.RandomCrop):
            pads = op.pads(height, width)
            top, left = int(geo[draws.SHIFT_Y]) + pads[1], int(geo[draws.SHIFT_X]) + pads[0]
            return {"top": top, "left": left, "padding": list(pads)}
        axis = draws.FLIP_X if isinstance(op, ops.RandomHorizontalFlip) else draws.FLIP_Y
        return {"flip": bool(geo[axis] < 0)}

    def describe(self) -> list[dict[str, Any]]:
        """Return the chain as JSON-able data in one canonical form: it decides bytes."""
        return [
            {"op": "callable", "name": op.name} if isinstance(op, _User) else op.describe()
            for op in self._ops
        ]


_BLOCKS: dict[int, range] = {
    draws.CROP: range(1),
    draws.RESIZED_CROP: range(draws.ATTEMPTS),
    draws.HFLIP: range(1),
    draws.VFLIP: range(1),
    draws.ERASE: range(1 + draws.ATTEMPTS),
}


def layout_after(op: Any, layout: str) -> str:
    """Return how the image is laid out after an op that found it in `layout`."""
    return ops.layout_after(op, layout)


def _checked(op: Any, i: int) -> Any:
    if isinstance(op, type) and issubclass(op, Op):
        raise ConfigError(
            f"transforms[{i}] is the class {op.__name__}, expected an op made from it",
            do=f"write T.{op.__name__}(...)",
            field=f"transforms[{i}]",
        )
    if isinstance(op, Op):
        return op
    if not callable(op):
        raise checks.refuse(f"transforms[{i}]", "an op or a callable", op)
    return _User(op)


def _out_dtype(op: Any) -> str:
    return "float32" if isinstance(op, ops.ToTensor) else checks.dtype("dtype", op.dtype)


def unit_after(op: Any, unit: int) -> int:
    """Return what counts as 1 after an op: 255 or 1."""
    if isinstance(op, ops.Normalize | ops.ToTensor):
        return 1
    if isinstance(op, ops.ToDtype) and op.scale:
        return 255 if checks.dtype("ToDtype.dtype", op.dtype) == "uint8" else 1
    return unit


def _source(image: Any) -> Any:
    """Return a source image as `[H, W, C]` or picture."""
    if resize.is_picture(image):
        resize.shape_of(image)
        return image
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    known = array.dtype == np.uint8 or array.dtype.name in FLOATS
    if array.ndim != 3 or not known or not array.size:
        raise ConfigError(
            f"an image is {array.dtype}{list(array.shape)}; expected uint8[H, W, C] or uint8[H, W]"
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _check_address(phase: int, lanes: int) -> None:
    if not 0 <= phase < 1 << 32 or not 1 <= lanes <= 1 << 16:
        raise ConfigError(
            f"phase is {phase} and lanes is {lanes}; expected phase in [0, 2**32) and "
            "lanes in [1, 2**16]"
        )


def _counter(sample: Sample, number: int, block: int, purpose: int) -> tuple[int, ...]:
    n, lane = divmod(sample.position, sample.lanes)
    place = address.sample_position(n, block)
    return address.counter(purpose, number, lane, sample.phase, place)


def block_words(sample: Sample, number: int, block: int, purpose: int) -> list[int]:
    """Return the four words of one block of an op, as the kernels read them."""
    n, lane = divmod(sample.position, sample.lanes)
    u64 = np.uint64
    site = u64(address.site(purpose, number, lane))
    low, high = u64(sample.key & address.M32), u64(sample.key >> 32)
    words = draws.words(u64(n), u64(block), u64(sample.phase), site, low, high)
    return [int(w) for w in words]


def _read_blocks(kind: int, outcome: dict[str, Any]) -> range:
    """Return which of an op's blocks were read: up to the attempt that counted."""
    if kind == draws.RESIZED_CROP:
        return range(min(outcome["attempt"] + 1, draws.ATTEMPTS))
    if kind == draws.ERASE:
        return range(1 + min(outcome["attempt"] + 1, draws.ATTEMPTS))
    return _BLOCKS[kind]


def _rectangle(row: Image) -> dict[str, int]:
    """Return a rectangle and which attempt gave it, in words."""
    return dict(zip(("attempt", "top", "left", "height", "width"), row.tolist(), strict=True))
