"""Threefry4x32: the second counter-based generator, additions, rotations and XORs alone.

The same contract as `rng.philox`, for comparison and for machines without a fast multiplier; no
promised byte of this package comes from it.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC'11),
section 3.2; constants and word order as in Random123's `threefry.h`. Twenty rounds.
"""

from typing import Any

import numpy as np
from numba import uint32
from numpy.typing import ArrayLike, NDArray

from rng import philox
from rng.kernel import kernel

PARITY = 0x1BD11BDA
ROUNDS = 20
_ROTATIONS = np.array(
    [(10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20)], np.uint32
)


def threefry4x32(counter: ArrayLike, key: ArrayLike, rounds: int = ROUNDS) -> NDArray[np.uint32]:
    """Return the blocks of `counter` under `key`: a bijection of the counters for each key.

    Args:
        counter: u32[..., 4], or integers in [0, 2**32).
        key: u32[..., 4]; its leading axes broadcast with the counter's.
        rounds: 0 ... 72.

    Returns:
        u32[..., 4].

    Raises:
        TypeError: rounds is not an int.
        ValueError: a last axis that is not 4, numbers out of range, rounds out of range.

    >>> [hex(word) for word in threefry4x32([0, 0, 0, 0], [0, 0, 0, 0])]
    ['0x9c6ca96a', '0xe17eae66', '0xfc10ecd4', '0x5256a7d8']
    """
    return philox.apply_blocks(_threefry, counter, key, 4, rounds, 72)


@kernel
def _threefry(counters: Any, keys: Any, rounds: Any, out: Any) -> None:
    one_key = keys.shape[0] == 1
    schedule = np.empty(5, np.uint32)
    for i in range(counters.shape[0]):
        schedule[4] = uint32(PARITY)
        for j in range(4):
            schedule[j] = keys[0 if one_key else i, j]
            schedule[4] ^= schedule[j]
            out[i, j] = counters[i, j] + schedule[j]
        for r in range(rounds):
            first, second = (1, 3) if r % 2 == 0 else (3, 1)
            _mix(out, i, 0, first, _ROTATIONS[r % 8, 0])
            _mix(out, i, 2, second, _ROTATIONS[r % 8, 1])
            if r % 4 == 3:
                s = r // 4 + 1
                for j in range(4):
                    out[i, j] += schedule[(s + j) % 5]
                out[i, 3] += uint32(s)


@kernel
def _mix(x: Any, i: Any, a: Any, b: Any, turn: Any) -> None:
    x[i, a] += x[i, b]
    x[i, b] = uint32(x[i, b] << turn | x[i, b] >> (uint32(32) - turn)) ^ x[i, a]
