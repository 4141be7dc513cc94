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
    counter: tuple[Number, Number, Number, Number], key: tuple[int, int]
) -> tuple[torch.Tensor, ...]:
    """Return the four words of each block, as int64 tensors of the shape of c0.

    Args:
        counter: c0 (a tensor), c1, c2, c3: in [0, 2**32), of its shape or numbers.
        key: k0, k1, in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    # Both halves of a round at once: half as many operations, and a graph that inductor compiles in
    # seconds (it expands an operation at each use, and would expand ten rounds of scalars for minutes).
    shape = torch.broadcast_shapes(*(getattr(c, "shape", ()) for c in counter))
    a, b = (
        torch.stack([_like(x, c0, shape), _like(y, c0, shape)]) for x, y in ((c0, c2), (c1, c3))
    )
    ones = [1] * len(shape)
    factors = torch.tensor([philox.MULTIPLIER_0, philox.MULTIPLIER_1], device=c0.device)
    factors = factors.view(2, *ones)
    lower, upper = factors & 0xFFFF, factors >> 16
    steps = (philox.WEYL_0, philox.WEYL_1)
    keys = [
        [k + i * step & _LOW for k, step in zip(key, steps, strict=True)]
        for i in range(philox.ROUNDS)
    ]
    for k in torch.tensor(keys, device=c0.device).view(-1, 2, *ones).unbind(0):
        p, q = a * lower, a * upper
        high, low = (q + (p >> 16)) >> 16, (p + ((q & 0xFFFF) << 16)) & _LOW
        a, b = high.flip(0) ^ b ^ k, low.flip(0)
    return a[0], b[0], a[1], b[1]


def _like(x: Number, c0: torch.Tensor, shape: Any) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x.expand(shape)
    return torch.full(shape, x, dtype=torch.int64, device=c0.device)


def positions(start: int, count: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return counter words c0, c1 of the `count` positions from `start` in [0, 2**64) on."""
    low = torch.arange(count, dtype=torch.int64, device=device) + (start & _LOW)
    return low & _LOW, (low >> 32) + (start >> 32) & _LOW


def words(
    start: int, first: int, n: int, c2: Number, c3: int, key: tuple[int, int], device: Any
) -> torch.Tensor:
    """Return int64[n]: words first ... first + n - 1 of a stream."""
    lead = first & 3
    c0, c1 = positions(start + (first >> 2), (lead + n + 3) >> 2, device)
    blocks = philox4x32((c0, c1, c2, c3), key)
    return torch.stack(blocks, 1).reshape(-1)[lead : lead + n]
