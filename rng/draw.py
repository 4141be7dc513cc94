"""From words to numbers, inside kernels. Each says how many words it draws: always the same.

No libm function and no contractible a*b+c stands on a value path, so the bits do not depend on
compiler, flags or machine.
"""

from typing import Any

from numba import float64, int64, uint32, uint64

from rng import address
from rng.kernel import kernel

UNIT_24 = 2.0**-24


@kernel
def unit(word: Any) -> Any:
    """Return a float64 in [0, 1): (word >> 8) * 2**-24, exact also as float32. Draws: 1 word."""
    return float64(uint32(word) >> uint32(8)) * UNIT_24


@kernel
def below(word: Any, n: Any) -> Any:
    """Return an int in [0, n) for 1 <= n < 2**32, or -1: draw again at the next attempt.

    Exact and unbiased: multiply-high with rejection; -1 comes with chance (2**32 mod n) / 2**32.
    Draws: 1 word.

    Source: Lemire, "Fast random integer generation in an interval" (TOMACS 2019), algorithm 5.
    """
    product = uint64(uint32(word)) * uint64(n)
    low = uint32(product & uint64(0xFFFFFFFF))
    if uint64(low) < uint64(n) and uint64(low) < (uint64(0x100000000) - uint64(n)) % uint64(n):
        return int64(-1)
    return int64(product >> uint64(32))


def bernoulli_threshold(p: float) -> int:
    """Return t such that `word < t` has chance p, p rounded to 32 bits; p = 0 and 1 are exact.

    Raises:
        TypeError: p is no number.
        ValueError: p is not in [0, 1].

    >>> bernoulli_threshold(0.5) == 2**31, bernoulli_threshold(1.0) == 2**32
    (True, True)
    """
    return round(address.chance(p) * 4294967296.0)
