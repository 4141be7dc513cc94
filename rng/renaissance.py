"""The formulas of Tech-Renaissance's blog post 23, bit for bit, with their faults: for comparison only.

    block at offset b of a seed = Philox4x32-10, key = seed, counter = (low b, high b, 0, 0)
    r0 .. r3                    = its words; most draws use r0 alone

Nothing else of this package reads these streams. A fault is named where it is; DESIGN.md section 2
says what we do instead. `generator` is anything with `.seed` and `.next_offset(count)`, such as
`rng.Generator`, whose offset then counts what the formulas call offsets.

Every function gives the framework's bits on every machine, except where noted the last bits of
what passes through a logarithm, a sine or an exponential.

Source: the post of 2026 and the framework's public source, V4.20.692.
"""

import math
from typing import Any, Protocol

import numpy as np
from numba import float32
from numba import uint64 as u64
from numpy.typing import NDArray

from rng import address, philox
from rng.kernel import kernel

_GOLDEN = 0x9E3779B97F4A7C15
_F32 = np.float32
_STEP_24 = _F32(2.0**-24)


class Offsets(Protocol):
    """A seed and a counter of offsets."""

    @property
    def seed(self) -> int:
        """The seed."""

    def next_offset(self, count: int) -> int:
        """Reserve `count` offsets and return the first."""


def blocks(seed: int, offset: int, n: int) -> NDArray[np.uint32]:
    """Return u32[n, 4]: the blocks at offset, offset + 1, ... (mod 2**64).

    Fault: half of the counter is never used, so a seed has 2**64 blocks, not 2**128.

    Raises:
        TypeError: an argument that is not an int.
        ValueError: seed or offset not in [0, 2**64), n < 0.
    """
    n = _count("n", n)
    at = np.arange(n, dtype=np.uint64) + np.uint64(address.check_u64("offset", offset))
    counters = np.zeros((n, 4), np.uint32)
    counters[:, 0] = at & np.uint64(address.M32)
    counters[:, 1] = at >> np.uint64(32)
    seed = address.check_seed(seed)
    return philox.philox4x32(counters, [seed & address.M32, seed >> 32])


def uniform(seed: int, offset: int, n: int) -> NDArray[np.float32]:
    """Return f32[n] in [0, 1): (r0 >> 8) * 2**-24. Draws: 1 offset each, three words thrown away."""
    return (blocks(seed, offset, n)[:, 0] >> 8).astype(_F32) * _STEP_24


def uint64(seed: int, offset: int, n: int) -> NDArray[np.uint64]:
    """Return u64[n]: r0 << 32 | r1. Draws: 1 offset each."""
    r = blocks(seed, offset, n).astype(np.uint64)
    return r[:, 0] << np.uint64(32) | r[:, 1]


@np.errstate(all="ignore")
def normal_pairs(seed: int, offset: int, n: int) -> NDArray[np.float32]:
    """Return f32[n, 2]: Box-Muller pairs, cosine first. Draws: 1 offset a pair.

    Fault: the last bits are those of a libm (here: float64, rounded once; within 4 ulp of theirs).
    |z| <= 5.7681.
    """
    r = blocks(seed, offset, n)
    u1 = ((r[:, 0] >> 8) | np.uint32(1)).astype(_F32) * _STEP_24
    u2 = (r[:, 1] >> 8).astype(_F32) * _STEP_24
    radius = np.sqrt(_F32(-2.0) * np.log(u1.astype(np.float64)).astype(_F32))
    angle = (_F32(2.0 * math.pi) * u2).astype(np.float64)
    pair = [radius * np.cos(angle).astype(_F32), radius * np.sin(angle).astype(_F32)]
    return np.stack(pair, axis=1)


def normal_pair(seed: int, offset: int) -> tuple[np.float32, np.float32]:
    """Return one pair of `normal_pairs`."""
    z0, z1 = normal_pairs(seed, offset, 1)[0]
    return z0, z1


# ---------------------------------------------------------------- bulk fills of a generator
def fill_uint64(generator: Offsets, n: int) -> NDArray[np.uint64]:
    """Return u64[n]. Draws: n offsets."""
    return uint64(generator.seed, generator.next_offset(n), n)


def fill_bernoulli(generator: Offsets, n: int, p: float, dtype: Any = "int8") -> NDArray[Any]:
    """Return 0/1 [n]: r0 < floor(float32(p * 2**32)). Draws: n offsets.

    Fault: p = 1 gives zeros, as 2**32 does not fit their 32 bits.
    """
    threshold = np.uint32(int(_F32(_F32(p) * _F32(2.0**32))) & address.M32)
    return (blocks(generator.seed, generator.next_offset(n), n)[:, 0] < threshold).astype(dtype)


def fill_int8(generator: Offsets, n: int, low: int, high: int) -> NDArray[np.int8]:
    """Return i8[n] in [low, high], both ends: low + r0 mod range. Draws: n offsets. Fault: biased."""
    r0 = blocks(generator.seed, generator.next_offset(n), n)[:, 0]
    return (low + (r0 % np.uint32(high - low + 1)).astype(np.int64)).astype(np.int8)


def fill_int32(generator: Offsets, n: int, low: int, high: int) -> NDArray[np.int32]:
    """Return i32[n] in [low, high): low + u64 mod range. Draws: n offsets. Fault: biased.

    Raises:
        ValueError: low >= high (theirs crashes).
    """
    if low >= high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    u = fill_uint64(generator, n) % np.uint64(high - low)
    return (low + u.astype(np.int64)).astype(np.int32)


@np.errstate(all="ignore")
def fill_uniform(generator: Offsets, n: int, low: float, high: float) -> NDArray[np.float32]:
    """Return f32[n]: low + u * (high - low). Draws: n offsets. Fault: `high` may come."""
    u = uniform(generator.seed, generator.next_offset(n), n)
    return _F32(low) + u * (_F32(high) - _F32(low))


@np.errstate(all="ignore")
def fill_normal(
    generator: Offsets, n: int, mean: float = 0.0, std: float = 1.0
) -> NDArray[np.float32]:
    """Return f32[n]: mean + std * z of pair i div 2. Draws: (n + 1) div 2 offsets."""
    pairs = (n + 1) // 2
    z = normal_pairs(generator.seed, generator.next_offset(pairs), pairs).reshape(-1)[:n]
    return _F32(mean) + _F32(std) * z


def fill_truncated_normal(
    generator: Offsets, n: int, mean: float, std: float, low: float, high: float
) -> NDArray[np.float32]:
    """Return f32[n] in [low, high] by rejection, up to 1000 at a time.

    Draws: as many offsets as it takes. Fault: what later draws get depends on these values.

    Raises:
        ValueError: a range that no number of the pairs reaches (theirs never ends).
    """
    reach = 5.769 * std
    if not (low < high and low <= mean + reach and high >= mean - reach):
        raise ValueError(f"no normal number of mean {mean} and std {std} is in [{low}, {high}]")
    kept = np.empty(0, _F32)
    while kept.size < n:
        some = fill_normal(generator, min(1000, n - kept.size), mean, std)
        kept = np.concatenate([kept, some[(some >= _F32(low)) & (some <= _F32(high))]])
    return kept


def random_int(generator: Offsets, low: int, high: int) -> int:
    """Return an int in [low, high], both ends: low + u64 mod range. Draws: 1 offset. Fault: biased."""
    low, high = address.whole("low", low), address.whole("high", high)
    if low > high:
        raise ValueError(f"low must be at most high, got {low} and {high}")
    return low + int(uint64(generator.seed, generator.next_offset(1), 1)[0]) % (high - low + 1)


# ---------------------------------------------------------------- seeds, order, positions
def initial_seed(global_seed: int, worker: int) -> int:
    """Return the seed of a worker: global ^ (worker << 32)."""
    return (address.check_seed(global_seed) ^ (_count("worker", worker) << 32)) & address.M64


def augment_seed(global_seed: int, worker: int, phase: int) -> int:
    """Return the seed of a worker's augmentations: initial ^ (phase << 16).

    Fault: theirs is set at the worker's first sample and never again, so a run that starts at a
    phase differs from one that reaches it.
    """
    return (initial_seed(global_seed, worker) ^ (_count("phase", phase) << 16)) & address.M64


def shuffle_seed(global_seed: int, worker: int, phase: int) -> int:
    """Return the seed of a worker's order: initial ^ (phase << 32).

    Fault: depends on worker ^ phase alone: 64 workers and 300 phases give 320 streams, not 19,200.
    """
    return (initial_seed(global_seed, worker) ^ (_count("phase", phase) << 32)) & address.M64


def shuffle(n: int, seed: int, order: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the Fisher-Yates order of 0 ... n-1, or of a copy of `order`: j = r0(i) mod (i + 1).

    Draws: the block at offset i for step i. Fault: biased by up to n / 2**32, and a single order
    stands for the pass of all ranks.

    Raises:
        ValueError: n < 0, or an `order` that has not n elements.
    """
    n = _count("n", n)
    values = np.arange(n, dtype=np.int64) if order is None else np.array(order)
    if values.shape != (n,):
        raise ValueError(f"order must have shape ({n},), got {values.shape}")
    if n > 1:
        _swaps(values, blocks(seed, 0, n)[:, 0])
    return values


def write_position(call: int, worker: int, workers: int, batch_size: int) -> tuple[int, int]:
    """Return (batch, slot) of the call-th sample of a worker: divmod(call * workers + worker)."""
    call, worker = _count("call", call), _count("worker", worker)
    workers, batch_size = _count("workers", workers, 1), _count("batch_size", batch_size, 1)
    return divmod(call * workers + worker, batch_size)


def station_batches(
    samples: int,
    batch_size: int,
    world: int = 1,
    rank: int = 0,
    *,
    drop_last: bool = False,
    train: bool = True,
) -> list[list[int]]:
    """Return what a rank's transfer station delivers: the rank's own sequence numbers, batch by batch.

    Args:
        samples: of the whole data set; sample s is the (s div world)-th of rank s mod world.
        batch_size, world: >= 1.
        rank: in [0, world).
        drop_last: send no batch that is not full on all ranks (training only).
        train: in training a rank that has one sample fewer than rank 0 appends a copy of its first.

    Faults: a rank without any sample delivers one that nobody ever wrote (here -1), labelled 0; the
    copy is of the rank's own first sample, so it is counted twice; drop_last is ignored outside
    training. Their fast mode hangs where workers >= batch_size, and loses the last partial batch.
    Draws: nothing.

    Raises:
        TypeError, ValueError: a number that is not an int, or out of range.

    >>> station_batches(11, 2, world=2, rank=1)
    [[0, 1], [2, 3], [4, 0]]
    """
    samples, batch_size = _count("samples", samples), _count("batch_size", batch_size, 1)
    world, rank = _count("world", world, 1), _count("rank", rank)
    if rank >= world:
        raise ValueError(f"rank must be below world, got {rank} and {world}")
    short = train and samples % world != 0 and rank >= samples % world
    last = ((samples + world - 1) // world + batch_size - 1) // batch_size - 1
    own = list(range((samples - rank + world - 1) // world))
    batches = [own[i : i + batch_size] for i in range(0, len(own), batch_size)]
    if not (train and drop_last):
        if short and last >= 0:
            if len(batches) <= last:
                batches.append([])
            batches[-1].append(0 if own else -1)
    elif samples % (batch_size * world):
        batches = batches[:last]
    return batches


# ---------------------------------------------------------------- dropout
def dropout_rank_seed(global_seed: int, rank: int) -> int:
    """Return a rank's dropout seed: mix64(global + rank).

    Fault: (g, rank + 1) and (g + 1, rank) share a seed.
    """
    return address.mix64((address.check_seed(global_seed) + _count("rank", rank)) & address.M64)


def rotate_dropout_seed(seed: int) -> int:
    """Return the seed of the next forward pass: xorshift64*, 0 replaced by the golden constant.

    Fault: step k costs k rotations, and recomputing in the backward pass draws another mask.
    """
    s = address.check_seed(seed) or _GOLDEN
    s ^= s >> 12
    s = (s ^ (s << 25)) & address.M64
    s ^= s >> 27
    return (s * 0x2545F4914F6CDD1D) & address.M64


def dropout_uniform(seed: int, n: int) -> NDArray[np.float32]:
    """Return f32[n] in [0, 1]: element i from ten rounds on counter seed + i.

    Fault: called Philox 2x64, which it is not; may round up to 1.
    """
    out = np.empty(_count("n", n), np.float32)
    _dropout_uniform(out, np.uint64(address.check_seed(seed)))
    return out


def dropout_mask(seed: int, n: int, p: float) -> NDArray[np.uint8]:
    """Return u8[n]: 0 where `dropout_uniform` is below p, else 1. Fault: a byte an element."""
    return (dropout_uniform(seed, n) >= _F32(p)).view(np.uint8)


def ascend_bit_mask(
    seed: int, offset0: int, offset1: int, n: int, keep_prob: float
) -> NDArray[np.uint8]:
    """Return the packed keep bits of Ascend's kernel (PyTorch path), padded to 128 bits.

    Element i is word i mod 4 of the block at 128-bit counter offset0 + offset1 * 2**64 + i div 4;
    kept where float32(word) * 2**-32 + 2**-33 < keep_prob; bits little-endian in each byte.

    Raises:
        TypeError: seed, an offset or n is not an int.
        ValueError: seed or an offset not in [0, 2**64), n < 0.

    Source: hicann/ops-math, stateless_drop_out_gen_mask.
    """
    seed, n = address.check_seed(seed), _count("n", n)
    low = np.arange((n + 3) // 4, dtype=np.uint64) + np.uint64(
        address.check_u64("offset0", offset0)
    )
    high = np.uint64(address.check_u64("offset1", offset1)) + (low < np.uint64(offset0))
    counters = np.stack([low, high], axis=1).astype("<u8").view("<u4")
    key = [seed & address.M32, seed >> 32]
    words = philox.philox4x32(counters, key).reshape(-1)[:n]
    u = words.astype(_F32) * _F32(2.0**-32) + _F32(2.0**-33)
    out = np.zeros((n + 127) // 128 * 16, np.uint8)
    packed = np.packbits(u < _F32(keep_prob), bitorder="little")
    out[: packed.size] = packed
    return out


# ---------------------------------------------------------------- augmentations
def erase_rect(
    generator: Offsets,
    height: int,
    width: int,
    p: float = 0.5,
    scale: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
) -> tuple[int, int, int, int] | None:
    """Return (top, left, height, width) of the rectangle to erase, or None.

    Draws: 1 offset for the gate (none if p <= 0), 2 a try for at most ten tries, 2 for the place:
    depends on the values.
    """
    if p <= 0 or not _draw(generator) < _F32(p):
        return None
    low, high = _logs(ratio)
    height, width = _count("height", height), _count("width", width)
    for _ in range(10):
        area = _between(generator, scale[0], scale[1]) * _F32(height * width)
        aspect = _exp(low + _draw(generator) * (high - low))
        h, w = _sides(area, aspect)
        if 0 < h < height and 0 < w < width:
            top = random_int(generator, 0, height - h)
            return top, random_int(generator, 0, width - w), h, w
    return None


def crop_box(
    generator: Offsets,
    width: int,
    height: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0),
) -> tuple[int, int, int, int]:
    """Return (x, y, w, h) of a random resized crop; ten misses give the centre.

    Draws: 2 offsets a try, 2 for the place. Unlike torchvision, x is drawn before y.
    """
    low, high = _logs(ratio)
    height, width = _count("height", height), _count("width", width)
    for _ in range(10):
        area = _between(generator, scale[0], scale[1]) * _F32(height * width)
        aspect = _exp(low + _draw(generator) * (high - low))
        w, h = _sides(area, aspect)
        if 0 < w <= width and 0 < h <= height:
            x = random_int(generator, 0, width - w)
            return x, random_int(generator, 0, height - h), w, h
    return _centre(width, height, ratio)


def fast_crop_boxes(
    generator: Offsets,
    width: int,
    height: int,
    passes: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0),
) -> tuple[tuple[int, int, int, int], list[tuple[int, int, int, int]]]:
    """Return ((x, y, w, h) of the part to decode, one box for each pass inside its `window`).

    Draws: 2 offsets a try, 2 for the place, then 3 a pass if there are several. Fault: neither the
    areas nor the places have the distribution of `crop_box`.
    """
    low, high = _logs(ratio)
    first, last = (_F32(np.cbrt(_F32(s))) for s in scale)
    for _ in range(10):
        if passes == 1:
            small, large = _logs(scale)
            share = _exp(small + _draw(generator) * (large - small))
        else:
            share = first + _draw(generator) * (last - first)
            share = share * share if passes == 2 else share
        aspect = _exp(low + _draw(generator) * (high - low))
        w, h = _sides(share * _F32(width * height), aspect)
        if 0 < w <= width and 0 < h <= height:
            x, y = _place(generator, width - w), _place(generator, height - h)
            break
    else:
        x, y, w, h = _centre(width, height, ratio)
        aspect = _F32(w) / _F32(h)
    left, top, across, down = window(x, y, w, h, width, height)
    if passes == 1:
        return (x, y, w, h), [(x - left, y - top, w, h)]
    boxes = []
    for _ in range(passes):
        share = first + _draw(generator) * (last - first)
        area = _F32(w) * _F32(h) * (share if passes == 2 else share * share)
        a, b = min(int(np.sqrt(area * aspect)), across), min(int(np.sqrt(area / aspect)), down)
        boxes.append((_place(generator, across - a), _place(generator, down - b), a, b))
    return (x, y, w, h), boxes


def window(x: int, y: int, w: int, h: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Return (x, y, w, h) of the 16-pixel blocks of a JPEG that a crop touches. Draws: nothing."""
    left, top = x // 16 * 16, y // 16 * 16
    right, bottom = min(-(-(x + w) // 16) * 16, width), min(-(-(y + h) // 16) * 16, height)
    return left, top, right - left, bottom - top


def random_crop_place(generator: Offsets, width: int, height: int, size: int) -> tuple[int, int]:
    """Return (x, y) of a crop of `size`: floor(u * (room + 1)). Draws: 2 offsets, always."""
    x = _place(generator, width - size)
    return x, _place(generator, height - size)


def jitter_draws(
    generator: Offsets, brightness: float, contrast: float, saturation: float, hue: float
) -> list[tuple[int, np.float32]]:
    """Return (which, factor) in the order applied: 0 brightness, 1 contrast, 2 saturation, 3 hue.

    Draws: 1 offset for each enabled one but the first, for the order, then 1 for each.
    """
    amounts = [_F32(a) for a in (brightness, contrast, saturation, hue)]
    order = [which for which in range(4) if amounts[which] > 0]
    for i in range(len(order) - 1, 0, -1):
        j = int(_draw(generator) * _F32(i + 1))
        order[i], order[j] = order[j], order[i]
    drawn = []
    for which in order:
        a = amounts[which]
        low, high = (-a, a) if which == 3 else (max(_F32(0), _F32(1) - a), _F32(1) + a)
        drawn.append((which, low + _draw(generator) * (high - low)))
    return drawn


# Mean and standard deviation of each channel, by the number of their presets.
_CIFAR = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MLPERF = (123.68 / 255, 116.78 / 255, 103.94 / 255), (1 / 255,) * 3
PRESETS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0,) * 3, (1.0,) * 3),
    "mnist": ((0.1307,), (0.3081,)),
    "cifar": _CIFAR,
    "imagenet": _IMAGENET,
    "mlperf": _MLPERF,
}


@np.errstate(all="ignore")
def fused_normalization(
    generator: Offsets | None,
    pixels: NDArray[np.uint8],
    preset: str,
    *,
    half: bool = False,
    flip: bool = False,
    erase_p: float = 0.0,
    scale: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
) -> NDArray[Any]:
    """Return an image normalised, flipped and erased, as their last operation does in one pass.

    Args:
        generator: None takes their path without random numbers: it always flips (if `flip`) and
            erases a square at the top left (if erase_p > 0).
        pixels: u8[height, width, channels].
        preset: none, mnist, cifar, imagenet or mlperf, of as many channels.
        half: give f16 of four channels, those that are not there 0, instead of f32.
        flip: flip left and right with chance 1/2.
        erase_p, scale, ratio: as `erase_rect`; what is erased is 0 after normalising.

    Returns:
        f32[height, width, channels], or f16[height, width, 4].

    Draws: 1 offset to flip, if `flip`; then as `erase_rect`.

    Faults: with the compiler flags of their build 40 to 58 % of the f32 values are those of a fused
    multiply-add, and differ from build to build (here: each operation rounds); f16 values are not
    those of f32 rounded, as they come from another formula; erasing draws a number of offsets that
    depends on the values.

    Raises:
        ValueError: an unknown preset, or pixels that do not fit it.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    mean, std = (np.array(x, _F32) for x in PRESETS[preset])
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != mean.size:
        raise ValueError(f"pixels must be u8[height, width, {mean.size}], got {pixels.shape}")
    height, width, channels = pixels.shape
    values = pixels.astype(_F32)
    if half:
        made = np.zeros((height, width, 4), np.float16)
        factor = _F32(1.0) / (_F32(255.0) * std)
        made[..., :channels] = values * factor - mean / std
    else:
        made = (values * (_F32(1.0) / _F32(255.0)) - mean) / std
    if flip and (generator is None or _draw(generator) < _F32(0.5)):
        made = made[:, ::-1].copy()
    if erase_p > 0 and generator is None:
        side = _round(np.sqrt(_F32(scale[1]) * _F32(height * width)))
        made[: min(side, height - 1), : min(side, width - 1)] = 0
    elif generator is not None:
        rect = erase_rect(generator, height, width, erase_p, scale, ratio)
        if rect is not None:
            top, left, h, w = rect
            made[top : top + h, left : left + w] = 0
    return made


def _count(name: str, value: int, least: int = 0) -> int:
    """Return a number as an int of Python's, which does not wrap.

    Raises:
        TypeError, ValueError: not an int, or below `least`.
    """
    number = address.whole(name, value)
    if number < least:
        raise ValueError(f"{name} must be >= {least}, got {number}")
    return number


def _draw(generator: Offsets) -> np.float32:
    u: np.float32 = uniform(generator.seed, generator.next_offset(1), 1)[0]
    return u


def _place(generator: Offsets, room: int) -> int:
    return min(int(_draw(generator) * _F32(room + 1)), room)


def _sides(area: np.float32, aspect: np.float32) -> tuple[int, int]:
    return _round(np.sqrt(area * aspect)), _round(np.sqrt(area / aspect))


def _centre(width: int, height: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """Return the largest centred crop whose shape is within the ratios."""
    w, h = width, height
    shape = _F32(width) / _F32(height)
    if shape < _F32(ratio[0]):
        h = _round(_F32(width) / _F32(ratio[0]))
    elif shape > _F32(ratio[1]):
        w = _round(_F32(height) * _F32(ratio[1]))
    return (width - w) // 2, (height - h) // 2, w, h


def _between(generator: Offsets, low: float, high: float) -> np.float32:
    return _F32(low) + _draw(generator) * (_F32(high) - _F32(low))


def _logs(ratio: tuple[float, float]) -> tuple[np.float32, np.float32]:
    return _F32(math.log(_F32(ratio[0]))), _F32(math.log(_F32(ratio[1])))


def _exp(x: np.float32) -> np.float32:
    return _F32(math.exp(x))


def _round(x: np.float32) -> int:
    return math.floor(float(x) + 0.5)


# ---------------------------------------------------------------- kernels
@kernel
def _swaps(values: Any, r0: Any) -> None:
    for i in range(values.size - 1, 0, -1):
        j = r0[i] % (i + 1)
        values[i], values[j] = values[j], values[i]


@kernel
def _dropout_uniform(out: Any, seed: Any) -> None:
    for i in range(u64(out.size)):
        c = seed + i
        a = seed ^ u64(0x9E3779B97F4A7C15)
        b = a
        for _ in range(10):
            high, low = philox.multiply(u64(0xD2B74407B1CE6E93), c)
            c, a, b = high ^ a ^ b, low, low ^ b
        out[i] = float32(c >> u64(32)) * float32(2.0**-32)
