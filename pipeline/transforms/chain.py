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
from pipeline.transforms import bilinear, checks, draws, fuse, ops, resize, rows
from pipeline.transforms.ops import Op
from pipeline.transforms.stream import Stream
from rng import address

Image = npt.NDArray[Any]
Shape = tuple[int, int, int]
RESIZING = (ops.Resize, ops.RandomResizedCrop)
TOGETHER = 1 << 20  # bytes of resized images that wait for the tail at a time
FIRST = np.zeros(1, np.int64)
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


class _Sample:
    """One sample's address."""

    __slots__ = ("key", "lanes", "phase", "position", "positions")

    def __init__(self, position: int, phase: int, key: int, lanes: int) -> None:
        self.position = position
        self.phase = phase
        self.key = key
        self.lanes = lanes
        self.positions = np.array([position], np.uint64)


class _Steps:
    """Ops encoded for `draws.draw_samples`."""

    def __init__(self, numbered: Sequence[tuple[Op, int]]) -> None:
        self.erasings = sum(isinstance(op, ops.RandomErasing) for op, _ in numbered)
        self.ints = np.zeros((len(numbered), draws.STEP_INTS), np.int64)
        self.floats = np.zeros((len(numbered), draws.STEP_FLOATS), np.float64)
        for row, (op, number) in enumerate(numbered):
            ints, floats = op.step()
            self.ints[row, 0] = op.kind or (
                draws.CENTER if isinstance(op, ops.CenterCrop) else draws.RESIZE
            )
            self.ints[row, 1] = number
            self.ints[row, 2 : 2 + len(ints)] = ints
            self.floats[row, : len(floats)] = floats

    def draw(self, sample: _Sample, height: int, width: int) -> tuple[Image, Image]:
        """Return the geometry row and the erased rectangles of one sample."""
        geo, erased = self.draw_many(
            sample.positions, sample.phase, sample.key, sample.lanes, height, width
        )
        return geo[0], erased[0]

    def draw_many(
        self,
        positions: npt.NDArray[np.uint64],
        phase: int,
        key: int,
        lanes: int,
        height: int,
        width: int,
    ) -> tuple[Image, Image]:
        """Return the geometry and the erased rectangles of samples, one row each."""
        geo = np.empty((len(positions), draws.GEO), np.int64)
        erased = np.empty((len(positions), self.erasings, draws.ERASED), np.int64)
        draws.draw_samples(
            positions,
            np.uint64(phase),
            np.uint64(key),
            np.uint64(lanes),
            self.ints,
            self.floats,
            height,
            width,
            geo,
            erased,
        )
        return geo, erased


class _Values:
    """What the tail's value ops make of uint8 images with `channels` channels."""

    def __init__(self, tail: Sequence[Any], channels: int) -> None:
        ramp = np.repeat(np.arange(256, dtype=np.uint8), channels).reshape(256, 1, channels)
        unit = 255
        pad = np.zeros((1, 1, channels), np.uint8)  # at most one op of a tail pads
        unit = 255
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
        self.table = _bits(np.ascontiguousarray(ramp[:, 0, :].T))
        self.mode, self.planar, self.pixels = _formula(tail, channels, ramp)
        self.pad = pad.reshape(-1)
        self.erase_fill = _bits(
            np.array(erase_fills, ramp.dtype).reshape(len(erase_fills), channels)
        )


class _Plan:
    """The shapes of the fused tail, as its kernel takes them."""

    def __init__(
        self, source: tuple[int, ...], finished: tuple[int, ...], layout: str, mode: int
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
        self.fields = np.array((*source, height, width, *strides, mode), np.int64)


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
    if not np.array_equal(_bits(values), _bits(table)):
        mode = fuse.TABLE
    both = np.stack((s, m))
    pixels = np.resize(both[0], channels + rows.PIXELS), np.resize(both[1], channels + rows.PIXELS)
    planar = np.repeat(both.T, 1 + rows.PIXELS, axis=1)
    return mode, np.ascontiguousarray(planar), np.concatenate(pixels).reshape(1, -1)


def _bits(values: Image) -> Image:
    """Return float16 as its bits, which kernels can copy; anything else as it is."""
    return values.view(np.uint16) if values.dtype == np.float16 else values


def _pixel(field: str, value: Any, channels: int, dtype: Any) -> Image:
    """Return one pixel `[1, 1, C]` of a value given as a number or one for each channel."""
    numbers = checks.broadcast(field, checks.channels(field, value), channels)
    if dtype == np.uint8 and any(not 0 <= v <= 255 or v != int(v) for v in numbers):
        raise checks.refuse(field, "an integer in 0 .. 255 where the image is uint8", value)
    return np.array(numbers, np.float64).astype(np.float32).astype(dtype).reshape(1, 1, -1)


def _may_pad(op: Any) -> bool:
    if isinstance(op, ops.RandomCrop):
        return op.pad_if_needed or any(checks.padding("RandomCrop.padding", op.padding))
    return isinstance(op, ops.CenterCrop)


def _tail_start(chain: Sequence[Any]) -> int:
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


def _pads_zero(op: Any) -> bool:
    return isinstance(op, ops.CenterCrop) or not any(checks.channels("fill", op.fill))


class Chain:
    """The ops of a pipeline, ready to make samples.

    Args:
        ops: ops of this package and user callables, in order. A callable is called as
            `f(image, rng)` if it has a second positional parameter (without a default, or named
            rng), else `f(image)`. It gets an array of its own, laid out as it then is, and may
            return uint8 or float arrays of any size; `rng` is a `Stream`.
        image: (H, W, C) if every source image has that shape, else None.
        numbers: the ops' numbers, where this chain is a part of a longer list; see `op_numbers`.

    Attributes:
        out_shape: of a finished image; None if it is not known before one is made.
        out_dtype: of a finished image; None if not known.
        bulk: whether `apply_bulk` can be used.

    Raises:
        ConfigError: an op that is none, or that cannot be used on such images.
    """

    def __init__(
        self,
        ops: Sequence[Any],
        image: tuple[int, int, int] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self._made_of = (tuple(ops), image, numbers)
        self._ops: list[Any] = [_checked(op, i) for i, op in enumerate(ops)]
        self._numbers = op_numbers(self._ops) if numbers is None else list(numbers)
        self._image = None if image is None else (int(image[0]), int(image[1]), int(image[2]))
        self._tail = _tail_start(self._ops)
        self._steps = [
            _Steps([(op, number)]) if getattr(op, "kind", 0) and not isinstance(op, _User) else None
            for op, number in zip(self._ops, self._numbers, strict=True)
        ]
        self._head_steps = _Steps(
            [
                (op, number)
                for op, number in zip(self._ops[:1], self._numbers, strict=False)
                if isinstance(op, RESIZING)
            ]
        )
        tail = zip(self._ops[self._tail :], self._numbers[self._tail :], strict=True)
        self._tail_steps = _Steps([(op, number) for op, number in tail if _is_step(op)])
        self._values: dict[int, _Values] = {}
        self._plan = _Plan((0, 0, 0, 0), (0, 0, 0), "HWC", fuse.TABLE)
        self._last: tuple[Image | None, int] = (None, 0)  # asking for an address is slow
        self._layout = "HWC"
        for op in self._ops:
            self._layout = layout_after(op, self._layout)
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

    def _values_of(self, channels: int) -> _Values:
        values = self._values.get(channels)
        if values is None:
            values = self._values[channels] = _Values(self._ops[self._tail :], channels)
        return values

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
        few = max(1, TOGETHER // (size[0] * size[1] * channels))
        resized = np.empty((min(few, len(ids)), *size, channels), np.uint8)
        steps = self._head_steps
        for lo in range(0, len(ids), few):
            part = slice(lo, min(lo + few, len(ids)))
            n = part.stop - lo
            geo, _ = steps.draw_many(positions[part], phase, key, lanes, height, width)
            bad = bilinear.resample_many(
                np.uint64(at), count, height, width, channels, ids[part], geo, resized[:n]
            )
            if bad >= 0:
                self._refuse(lo + bad, ids, positions, count)
            self._render(
                resized[:n],
                resized.ctypes.data,
                np.arange(n),
                positions[part],
                phase,
                key,
                lanes,
                out[part],
            )

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
            plan = self._plan = _Plan(images.shape, out.shape[1:], self._layout, values.mode)
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
            _bits(target).reshape(-1),
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
            image: uint8 `[H, W, C]` or `[H, W]` array, never written to, or a PIL image.
            position, phase, key, lanes: the sample's address.
            out: where to write, of the finished image's shape and dtype.

        Raises:
            ConfigError: the image does not fit the ops, or the result does not fit `out`.
        """
        _check_address(phase, lanes)
        sample = _Sample(position, phase, key, lanes)
        address.sample_position(position // lanes)  # checks the range
        current, unit, layout = _source(image), 255, "HWC"
        for i in range(self._tail):
            current, unit = self._apply(i, current, unit, layout, sample)
            layout = layout_after(self._ops[i], layout)
        if resize.is_pillow(current):
            current = resize.to_array(current)
        if current.dtype == np.uint8:
            return self._finish_fused(np.ascontiguousarray(current), sample, out)
        for i in range(self._tail, len(self._ops)):
            current, unit = self._apply(i, current, unit, layout, sample)
        return self._finish(current, out)

    def _finish_fused(self, image: Image, sample: _Sample, out: Image | None) -> Image:
        height, width, channels = image.shape
        values = self._values_of(channels)
        for op in self._ops[self._tail :]:
            height, width = op.new_size(height, width)
        shape = self._laid_out((height, width, channels))
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

    def _apply(
        self, i: int, image: Any, unit: int, layout: str, sample: _Sample
    ) -> tuple[Any, int]:
        """Apply op i to an image `[H, W, C]` by itself."""
        op = self._ops[i]
        if isinstance(op, _User):
            return self._call(i, op, image, layout, sample), unit
        height, width, channels = resize.shape_of(image) if resize.is_pillow(image) else image.shape
        op.check_channels(channels)
        size = op.new_size(height, width)
        if isinstance(op, ops.Resize):
            return resize.resample(image, (0, 0, height, width), size), 255
        steps = self._steps[i]
        if isinstance(op, ops.RandomResizedCrop) and steps:
            geo, _ = steps.draw(sample, height, width)
            top, left, tall, wide = (int(v) for v in geo[draws.BOX_TOP :])
            return resize.resample(image, (top, left, tall, wide), size), 255
        if resize.is_pillow(image):
            image = resize.to_array(image)
        if isinstance(op, ops.ValueOp):
            result: tuple[Image, int] = op.values(image, unit)
            return result
        if isinstance(op, ops.ToLayout):
            return image, unit
        if isinstance(op, ops.CenterCrop):
            return _center_crop(image, size), unit
        if steps is None:
            raise ConfigError(f"{type(op).__name__} cannot be applied")
        geo, erased = steps.draw(sample, height, width)
        return _move(op, image, geo, erased), unit

    def _call(self, i: int, op: _User, image: Any, layout: str, sample: _Sample) -> Image:
        """Call a user callable with an array of its own; return its result as `[H, W, C]`."""
        array = resize.to_array(image) if resize.is_pillow(image) else image
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

        User callables appear with the counter of their stream's first block; the image's shape is
        taken to stay as it is across them.
        """
        height, width = int(image_shape[0]), int(image_shape[1])
        sample = _Sample(position, phase, key, lanes)
        found = []
        for op, number, steps in zip(self._ops, self._numbers, self._steps, strict=True):
            name = op.name if isinstance(op, _User) else type(op).__name__
            entry: dict[str, Any] = {"op": name, "number": number}
            if isinstance(op, _User):
                entry["counters"] = [_counter(sample, number, 0, address.USER)]
                found.append(entry)
                continue
            if steps is not None:
                geo, erased = steps.draw(sample, height, width)
                blocks = _BLOCKS[op.kind]
                entry["counters"] = [_counter(sample, number, b, address.AUGMENT) for b in blocks]
                entry.update(_outcome(op, height, width, geo, erased))
                found.append(entry)
            height, width = op.new_size(height, width)
        return found

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


def _is_step(op: Any) -> bool:
    return isinstance(op, ops.CenterCrop) or bool(op.kind)


def _out_dtype(op: Any) -> str:
    return "float32" if isinstance(op, ops.ToTensor) else checks.dtype("dtype", op.dtype)


def _source(image: Any) -> Any:
    """Return a source image as `[H, W, C]` or PIL image."""
    if resize.is_pillow(image):
        resize.shape_of(image)
        return image
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    known = array.dtype.name in ("uint8", *FLOATS)
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


def _counter(sample: _Sample, number: int, block: int, purpose: int) -> tuple[int, ...]:
    n, lane = divmod(sample.position, sample.lanes)
    place = address.sample_position(n, block)
    return address.counter(purpose, number, lane, sample.phase, place)


def _outcome(op: Any, height: int, width: int, geo: Image, erased: Image) -> dict[str, Any]:
    """Return what an op's draws came to, in plain words and ints."""
    if isinstance(op, ops.RandomCrop):
        left, top, _, _ = op.pads(height, width)
        return {
            "top": int(geo[draws.SHIFT_Y]) + top,
            "left": int(geo[draws.SHIFT_X]) + left,
            "padding": list(op.pads(height, width)),
        }
    if isinstance(op, ops.RandomHorizontalFlip):
        return {"flip": bool(geo[draws.FLIP_X] < 0)}
    if isinstance(op, ops.RandomVerticalFlip):
        return {"flip": bool(geo[draws.FLIP_Y] < 0)}
    row = erased[0] if isinstance(op, ops.RandomErasing) else geo[draws.BOX_ATTEMPT :]
    attempt, top, left, tall, wide = (int(v) for v in row)
    rectangle = {"top": top, "left": left, "height": tall, "width": wide}
    if isinstance(op, ops.RandomErasing):
        return {"erase": tall > 0, "gate": attempt >= 0, "attempt": attempt, **rectangle}
    return {"fallback": attempt == draws.ATTEMPTS, "attempt": attempt, **rectangle}


def _center_crop(image: Image, size: tuple[int, int]) -> Image:
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


def _move(op: Any, image: Image, geo: Image, erased: Image) -> Image:
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


# Earlier names.
_number = op_numbers
_wants_stream = takes_rng
