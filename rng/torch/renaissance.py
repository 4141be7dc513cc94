"""The dropout of Tech-Renaissance's blog post 23 on any device of torch: for compatibility only.

    seed      int32[2] on the device (low half, high half); rotated there before every forward pass
    mask      u8[n]: 0 where `rng.renaissance.dropout_uniform(seed, n)` is below p
    forward   x * float32(1 / (1 - p)) where the mask is 1, else 0;   backward: dy likewise

Every value equals `rng.renaissance`, hence the framework's own, on every device, in eager mode (torch's
int64 wraps there; a compiler need not let it). Its faults are kept: a rotated seed has no jump (step
k costs k rotations), recomputing a forward pass rotates again and so draws another mask, a mask costs
a byte an element and must be stored, and the ranks' seeds are those of neighbouring global seeds. Use
`rng.torch.Dropout` for anything new.
"""

from typing import Any

import numpy as np
import torch

from rng import address
from rng import renaissance as formulas

_GOLDEN = 0x9E3779B97F4A7C15
_STAR = 0x2545F4914F6CDD1D
_MULTIPLIER = 0xD2B74407B1CE6E93
_LOW = 0xFFFFFFFF


def dropout_seed(
    global_seed: int, rank: int = 0, device: torch.device | str | None = None
) -> torch.Tensor:
    """Return int32[2]: a rank's dropout seed before its first rotation, low half first.

    Raises:
        TypeError, ValueError: as `rng.renaissance.dropout_rank_seed`.
    """
    seed = formulas.dropout_rank_seed(global_seed, rank)
    halves = np.array([seed & _LOW, seed >> 32], np.uint32).view(np.int32)
    return torch.tensor(halves.tolist(), dtype=torch.int32, device=device)


def seed_of(seed: torch.Tensor) -> int:
    """Return a seed as an int in [0, 2**64); waits for the device."""
    low, high = (half & _LOW for half in _checked(seed).tolist())
    return int(high << 32 | low)


def rotate_(seed: torch.Tensor) -> torch.Tensor:
    """Replace a seed by the next forward pass's, on its device, and return it.

    No value comes to the host, so a CUDA graph that captures it rotates at each replay.

    Raises:
        ValueError: not int32[2].

    >>> seed_of(rotate_(dropout_seed(42))) == formulas.rotate_dropout_seed(formulas.dropout_rank_seed(42, 0))
    True
    """
    s = _word(_checked(seed))
    s = torch.where(s == 0, torch.full_like(s, _signed(_GOLDEN)), s)
    s = s ^ _right(s, 12)
    s = s ^ (s << 25)
    s = s ^ _right(s, 27)
    s = s * _STAR
    return seed.copy_(torch.stack([_half(s & _LOW), _half(_right(s, 32))]))


def dropout_uniform(seed: torch.Tensor, n: int) -> torch.Tensor:
    """Return f32[n] in [0, 1] on the seed's device: element i from ten rounds on counter seed + i.

    Raises:
        TypeError: n is not an int.
        ValueError: a seed that is not int32[2], n < 0.
    """
    if address.whole("n", n) < 0:
        raise ValueError(f"n must be >= 0, got {n}")
    s = _word(_checked(seed))
    c = torch.arange(n, dtype=torch.int64, device=seed.device) + s
    a = s ^ _signed(_GOLDEN)
    b = a
    for _ in range(10):
        high, low = _multiply(c)
        c, a, b = high ^ a ^ b, low, low ^ b
    return _right(c, 32).to(torch.float32) * 2.0**-32


def dropout_mask(seed: torch.Tensor, n: int, p: float) -> torch.Tensor:
    """Return u8[n]: 0 where `dropout_uniform` is below p, else 1. Errors: as there."""
    return (dropout_uniform(seed, n) >= float(np.float32(p))).to(torch.uint8)


def dropout(x: torch.Tensor, p: float, seed: torch.Tensor, training: bool = True) -> torch.Tensor:
    """Rotate the seed, and return x with elements dropped and the others scaled by 1 / (1 - p).

    Args:
        x: floating. Elements are counted in C order, those of four axes as if these were
            [N, H, W, C] instead of torch's [N, C, H, W]. float16 and bfloat16 are multiplied in
            float32 and rounded once.
        p: in [0, 1).
        seed: int32[2] on x's device; changed in place.
        training: False returns a copy and leaves the seed.

    Raises:
        TypeError: x is not floating, p no number, or the seed no tensor.
        ValueError: p not in [0, 1), or a seed that is not int32[2] on x's device.
    """
    if not x.is_floating_point():
        raise TypeError(f"x must be floating, got {x.dtype}")
    _check_p(p)
    if _checked(seed).device != x.device:
        raise ValueError(f"seed must be on x's device {x.device}, got {seed.device}")
    if not training:
        return x.clone()
    rotate_(seed)
    flat = dropout_mask(seed, x.numel(), p)
    if x.dim() == 4:
        n, channels, height, width = x.shape
        mask = flat.view(n, height, width, channels).permute(0, 3, 1, 2)
    else:
        mask = flat.view(x.shape)
    result: torch.Tensor = _Dropout.apply(x, mask, _scale(p))
    return result


class Dropout(torch.nn.Module):
    """The framework's dropout layer.

    Args:
        p: in [0, 1).
        seed: int32[2] from `dropout_seed`. Layers may share one, which then rotates before each of
            them; it is a buffer, so it moves and is saved with the module.
    """

    def __init__(self, p: float, seed: torch.Tensor) -> None:
        super().__init__()
        _check_p(p)
        self.p = p
        self.seed: torch.Tensor
        self.register_buffer("seed", _checked(seed))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `dropout(x, ...)`, or a copy in evaluation."""
        return dropout(x, self.p, self.seed, self.training)

    def extra_repr(self) -> str:
        """Return p for the module's text."""
        return f"p={self.p}"


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _apply(x, mask, scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return _apply(gradients[0], mask, ctx.scale), None, None


def _apply(x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.where(mask != 0, x.to(wide) * scale, x.new_zeros((), dtype=wide)).to(x.dtype)


def _scale(p: float) -> float:
    return float(np.float32(1.0) / (np.float32(1.0) - np.float32(p)))


# ---------------------------------------------------------------- 64 bits in torch's int64
def _check_p(p: float) -> None:
    if address.chance(p) == 1.0:
        raise ValueError(f"p must be in [0, 1), got {p!r}")


def _checked(seed: torch.Tensor) -> torch.Tensor:
    if not isinstance(seed, torch.Tensor):
        raise TypeError(f"seed must be a torch tensor, got {type(seed).__name__}")
    if seed.dtype != torch.int32 or seed.shape != (2,):
        raise ValueError(f"seed must be int32[2], got {seed.dtype}{list(seed.shape)}")
    return seed


def _word(seed: torch.Tensor) -> torch.Tensor:
    halves = seed.to(torch.int64)
    return (halves[0] & _LOW) | (halves[1] << 32)


def _half(x: torch.Tensor) -> torch.Tensor:
    """Return the int32 with the bits of an int64 in [0, 2**32)."""
    return (x - ((x >> 31) << 32)).to(torch.int32)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _right(x: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right as if unsigned."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _multiply(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (high, low) words of the 128-bit product with the multiplier, from 32-bit halves.

    int64 products wrap as unsigned ones do; only the shifts have to know.
    """
    m1, m0 = _MULTIPLIER >> 32, _MULTIPLIER & _LOW
    c1, c0 = _right(c, 32), c & _LOW
    p0, p1, p2 = c0 * m0, c1 * m0, c0 * m1
    middle = _right(p0, 32) + (p1 & _LOW) + (p2 & _LOW)
    high = c1 * m1 + _right(p1, 32) + _right(p2, 32) + (middle >> 32)
    return high, c * _signed(_MULTIPLIER)
