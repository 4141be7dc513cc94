"""From words to numbers in torch's operations: the one description of a draw for all devices.

    unit      (w >> 8) * 2**-24
    range     min(low + unit * (high - low), most)          each operation rounded to float32
    normal    the integer table of `rng.tables`, then mean + z * std
    truncated the word is mapped into the ranks of the range first
    bernoulli w < p * 2**32

Whatever is made in float32 is cast once. The operations here are for eager mode, where each is rounded
by itself: a compiler could fuse a product and a sum. Compiled graphs call `rng.torch.ops` instead.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from rng import draw, fill, stream, tables

BERNOULLI = 16  # beside the kinds of `rng.fill`
_LOW = 0xFFFFFFFF
_2_32 = 1 << 32


def constant(function: Any) -> Any:
    """Let Dynamo call a function while it traces, and keep the result as a constant of the graph.

    As `torch.compiler.assume_constant_result`, which would import Dynamo here and now: a second or two.
    """
    function._dynamo_marked_constant = True
    return function


class Draw(NamedTuple):
    """What a word becomes: a kind of `rng.fill`, or BERNOULLI, and its numbers."""

    kind: int
    shift: float = 0.0
    scale: float = 1.0
    most: float = 0.0
    low: int = 0
    span: int = 0  # of ranks, or the threshold of BERNOULLI

    @property
    def words(self) -> int:
        """Words of one number."""
        return 2 if self.kind in (fill.UNIT_64, fill.RANGE_64) else 1


RAW = Draw(fill.RAW)


# ---------------------------------------------------------------- descriptions
@constant
def uniform(dtype: torch.dtype, low: float, high: float, wide: bool = True) -> Draw:
    """Return uniform numbers of [low, high); `wide`: those of float64 have 53 bits.

    Raises:
        ValueError: a range that is empty or infinite, also in `dtype`, or a dtype that is not real.
    """
    cast = _cast(dtype)
    if wide and dtype == torch.float64:
        real: np.dtype[Any] = np.dtype(np.float64)
        cast = None
    else:
        # float64 holds every float32: nothing is rounded afterwards.
        real = np.dtype(np.float32)
        cast = None if dtype == torch.float64 else cast
    kind, (shift, scale, most) = stream.uniform_parts(real, cast, float(low), float(high))
    return Draw(kind, float(shift), float(scale), float(most))


@constant
def normal(dtype: torch.dtype, mean: float, std: float) -> Draw:
    """Return normal numbers.

    Raises:
        ValueError: a number out of range, or a dtype that is not real.
    """
    _cast(dtype)
    stream.check_normal(mean, std)
    return Draw(fill.INVERSE, float(np.float32(mean)) + 0.0, float(np.float32(std)))


@constant
def truncated_normal(dtype: torch.dtype, mean: float, std: float, low: float, high: float) -> Draw:
    """Return normal numbers conditioned on [low, high], also after the cast to `dtype`.

    Raises:
        ValueError: a number out of range, a range that holds no value, or a dtype that is not real.
    """
    cast = _cast(dtype)
    stream.check_normal(mean, std)
    a, b = stream.normal_ranks(cast, float(mean), float(std), float(low), float(high))
    shift, scale = float(np.float32(mean)) + 0.0, float(np.float32(std))
    return Draw(fill.INVERSE_IN, shift, scale, 0.0, a, b - a + 1)


@constant
def bernoulli(p: float) -> Draw:
    """Return 1 with chance p, else 0.

    Raises:
        ValueError: p is not in [0, 1].
    """
    return Draw(BERNOULLI, span=draw.bernoulli_threshold(p))


_NUMPY = {torch.float16: np.float16, torch.float64: np.float64}


def check_real(dtype: torch.dtype) -> None:
    """Refuse a dtype that is not real.

    Raises:
        ValueError: it is not float32, float64, float16 or bfloat16.
    """
    _cast(dtype)


def _cast(dtype: torch.dtype) -> stream.Cast | None:
    """Return the rounding of float32 to a dtype, None where there is none."""
    if dtype == torch.float32:
        return None
    if dtype == torch.bfloat16:
        return bfloat16
    if dtype not in _NUMPY:
        raise ValueError(f"the tensor must hold float32, float64, float16 or bfloat16, got {dtype}")
    return stream.cast_to(np.dtype(_NUMPY[dtype]))


def bfloat16(x: Any) -> float:
    """Return a finite number rounded to bfloat16, to the nearest, halves to even.

    >>> bfloat16(1.00390625), bfloat16(1.01171875)
    (1.0, 1.015625)
    """
    bits = int(np.float32(x).view(np.uint32))
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return float(np.uint32(bits).view(np.float32))


# ---------------------------------------------------------------- numbers
def numbers(what: Draw, w: torch.Tensor) -> torch.Tensor:
    """Return the numbers that words become.

    Args:
        what: the draw.
        w: int64[..., n] words in [0, 2**32), `what.words` to a number.

    Returns:
        float32 (float64 for the 64-bit kinds), int64 of RAW, bool of BERNOULLI.
    """
    if what.kind == fill.RAW:
        return w
    if what.kind == BERNOULLI:
        return w < what.span
    if what.words == 2:
        low, high = w.unflatten(-1, (-1, 2)).unbind(-1)
        x = ((high << 21) | (low >> 11)).to(torch.float64) * 2.0**-53
        if what.kind == fill.RANGE_64:
            x = _shifted(x * what.scale, what.shift).clamp(max=what.most)
        return x
    if what.kind in (fill.UNIT_32, fill.RANGE_32):
        x = (w >> 8).to(torch.float32) * 2.0**-24
        if what.kind == fill.RANGE_32:
            x = _shifted(x * what.scale, what.shift).clamp(max=what.most)
        return x
    if what.kind == fill.INVERSE_IN:
        # w * span >> 32 by halves of w: span may be 2**32, the product 2**64.
        rank = what.low + (((w >> 16) * what.span + ((w & 0xFFFF) * what.span >> 16)) >> 16)
        w = rank ^ torch.where(rank >= 1 << 31, 0x7FFFFFFF, 0)
    x = _inverse(w)
    if what.scale != 1.0:
        x = x * what.scale
    return _shifted(x, what.shift)


def _inverse(w: torch.Tensor) -> torch.Tensor:
    """Return float32 normal numbers: see `rng.tables`."""
    x = (w << 1 | 1) & _LOW
    # The index of the leading one is the exponent of x as a float; without the bits that are cleared
    # here, no rounding can carry into it.
    e = ((x ^ (x & (x >> 8))).to(torch.float32).view(torch.int32) >> 23) - 127
    e = e.to(torch.int64)
    y = x << (31 - e)
    row = normal_table(w.device)[16 * e + (y >> 27 & 15)].to(torch.int64)
    c0, c1, c2, c3 = row.unbind(-1)
    t = (y & 0x7FFFFFF) << 4
    z = c0 + (((c1 + ((c2 + (c3 * t >> 32)) * t >> 32)) * t) >> 34)
    scale = torch.where(e == 31, 2.0**-31, 2.0**-28)
    return z.to(torch.float32) * torch.where(w >> 31 != 0, scale, -scale)


def _shifted(x: torch.Tensor, shift: float) -> torch.Tensor:
    return x if shift == 0.0 else x + shift


# ---------------------------------------------------------------- tables
_tables: dict[torch.device, torch.Tensor] = {}


def normal_table(device: torch.device) -> torch.Tensor:
    """Return int32[512, 4], the rows of `rng.tables.NORMAL`, on a device; made there once."""
    if device not in _tables:
        _tables[device] = torch.from_numpy(np.array(tables.NORMAL.rows)).to(device)
    return _tables[device]
