"""Philox4x32-10 in torch's integer operations: for every device, in eager mode and compiled.

    word i = word i mod 4 of the block at position start + i div 4        lanes of 16 bits: low half first

Words live in int64 tensors, in [0, 2**32). The multiply-high is made of two products below 2**48, so
nothing overflows: not in C++, where that would be undefined, nor on a device without 128-bit products.
"""

from typing import Any

import torch

from rng import philox

_LOW = 0xFFFFFFFF
Number = Any  # a Python int, or an int64 tensor that broadcasts with the counters


def philox4x32(
    counter: tuple[Number, Number, Number, Number], key: tuple[Number, Number]
) -> tuple[torch.Tensor, ...]:
    """Return the four words of each block, as int64 tensors of the counters' common shape.

    Args:
        counter: c0, c1, c2, c3, in [0, 2**32); at least c0 a tensor.
        key: k0, k1, in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for i in range(philox.ROUNDS):
        if i:
            k0, k1 = (k0 + philox.WEYL_0) & _LOW, (k1 + philox.WEYL_1) & _LOW
        high0, low0 = _multiply(c0, philox.MULTIPLIER_0)
        high1, low1 = _multiply(c2, philox.MULTIPLIER_1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _multiply(a: Number, m: int) -> tuple[Number, Number]:
    """Return the high and the low 32 bits of a * m, both in [0, 2**32)."""
    lower, upper = a * (m & 0xFFFF), a * (m >> 16)
    return (upper + (lower >> 16)) >> 16, (lower + ((upper & 0xFFFF) << 16)) & _LOW


def positions(start: int, count: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return counter words c0, c1 of the `count` positions from `start` in [0, 2**64) on."""
    low = torch.arange(count, dtype=torch.int64, device=device) + (start & _LOW)
    return low & _LOW, (low >> 32) + (start >> 32) & _LOW


def words(
    start: int, first: int, n: int, c2: Number, c3: int, key: tuple[Number, Number], device: Any
) -> torch.Tensor:
    """Return int64[n]: words first ... first + n - 1 of a stream."""
    lead = first & 3
    c0, c1 = positions(start + (first >> 2), (lead + n + 3) >> 2, device)
    blocks = philox4x32((c0, c1, c2, c3), key)
    return torch.stack(blocks, 1).reshape(-1)[lead : lead + n]
