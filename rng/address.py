"""Addresses: every random number has one, and no two of one run are the same.

    key             = mix64(seed)                      64 bits, a bijection of the seed
    counter c0, c1  = position                         64 bits
            c2      = phase (or step)                  32 bits
            c3      = purpose:8 | op:8 | lane:16       32 bits

The fields are disjoint and range-checked (out of range raises, nothing wraps), and Philox at a
fixed key is a bijection: two different addresses never give the same block.

Source: DESIGN.md section 2; SplitMix64 by Steele, Lea, Flood, "Fast splittable pseudorandom number
generators" (OOPSLA'14), the output function of `java.util.SplittableRandom`.
"""

import hashlib
import numbers
import operator
from functools import lru_cache
from typing import Any

M32 = (1 << 32) - 1
M64 = (1 << 64) - 1

# The one table of purposes. 9..127 are reserved, 128..253 are free for users.
INIT = 1  # position = block of a tensor's global flat index
SHUFFLE = 2  # position = step << 8 | attempt; step 0: round keys of RandomAccessPermutation
AUGMENT = 3  # position = n:40 | block:24
DROPOUT = 4  # position = block of the global element index, c2 = step
NOISE = 5  # position = n:40 | block:24
SAMPLER = 6  # position = draw << 8 | attempt
USER = 7  # position = n:40 | block:24
GENERATOR = 8  # position = offset of a `Generator`, op = attempt of a bounded integer
FOLD = 0xFE  # key derivation from a number
NAME = 0xFF  # key derivation from a name


def check_seed(seed: int) -> int:
    """Return `seed` if it is an int in [0, 2**64).

    Raises:
        TypeError: not an int (bool, float and str are refused).
        ValueError: out of range.
    """
    return check_u64("seed", seed)


def check_u64(name: str, number: int) -> int:
    """Return `number` if it is an int in [0, 2**64).

    Raises:
        TypeError: not an int (bool, float and str are refused).
        ValueError: out of range.
    """
    value = whole(name, number)
    if not 0 <= value <= M64:
        raise ValueError(f"{name} must be in [0, 2**64), got {value}")
    return value


def whole(name: str, number: Any) -> int:
    """Return `number` as an int of Python's, which has no width at which it could wrap.

    Raises:
        TypeError: not an int (bool, float and str are refused).

    >>> import numpy
    >>> whole("n", numpy.int8(100)) << 24
    1677721600
    """
    if type(number) is int:
        return number
    try:
        if isinstance(number, bool):
            raise TypeError
        return int(operator.index(number))
    except TypeError:
        raise TypeError(
            f"{name} must be an int, got {number!r} ({type(number).__name__})"
        ) from None


_REAL: Any = numbers.Real  # numpy's too


def chance(p: float) -> float:
    """Return a chance as a float of Python's.

    Raises:
        TypeError: p is no float or int (bool, str and tensors are refused).
        ValueError: p is not in [0, 1].

    >>> chance(1)
    1.0
    """
    if type(p) is not float and (isinstance(p, bool) or not isinstance(p, _REAL)):
        raise TypeError(f"p must be a float in [0, 1], got {p!r} ({type(p).__name__})")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be in [0, 1], got {p!r}")
    return float(p)


def mix64(seed: int) -> int:
    """Return SplitMix64's output function of `seed`: a bijection on 64-bit integers.

    >>> hex(mix64(0))
    '0xe220a8397b1dcdaf'
    """
    z = (check_seed(seed) + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def unmix64(key: int) -> int:
    """Return the seed whose key is `key`: the inverse of `mix64`.

    >>> unmix64(mix64(7))
    7
    """
    z = key & M64
    for shift, factor in ((31, 0x319642B2D24D8EC3), (27, 0x96DE1B173F119089), (30, 1)):
        z ^= z >> shift ^ z >> 2 * shift  # undoes z ^= z >> shift for shift >= 22
        z = z * factor & M64
    return (z - 0x9E3779B97F4A7C15) & M64


def site(purpose: int, op: int = 0, lane: int = 0) -> int:
    """Return counter word c3 = purpose:8 | op:8 | lane:16.

    Raises:
        TypeError: a field that is not an int.
        OverflowError: a field out of its range.
    """
    return (
        _check("purpose", purpose, 8) << 24 | _check("op", op, 8) << 16 | _check("lane", lane, 16)
    )


def sample_position(n: int, block: int = 0) -> int:
    """Return the position n:40 | block:24 of a lane's n-th sample.

    Raises:
        TypeError: a field that is not an int.
        OverflowError: a field out of its range.
    """
    return _check("n", n, 40) << 24 | _check("block", block, 24)


def attempt_position(index: int, attempt: int = 0) -> int:
    """Return the position index:56 | attempt:8 of a draw that may be rejected.

    Raises:
        TypeError: a field that is not an int.
        OverflowError: a field out of its range.
    """
    return _check("index", index, 56) << 8 | _check("attempt", attempt, 8)


def counter(
    purpose: int, op: int = 0, lane: int = 0, phase: int = 0, position: int = 0
) -> tuple[int, int, int, int]:
    """Return the counter words (c0, c1, c2, c3) of an address.

    Raises:
        TypeError: a field that is not an int.
        OverflowError: a field out of its range.

    >>> [hex(word) for word in counter(SHUFFLE, phase=7, lane=3, position=0x100)]
    ['0x100', '0x0', '0x7', '0x2000003']
    """
    phase, position = _check("phase", phase, 32), _check("position", position, 64)
    return position & M32, position >> 32, phase, site(purpose, op, lane)


def decode(words: tuple[int, int, int, int]) -> dict[str, int]:
    """Return the fields of a counter: the inverse of `counter`.

    Raises:
        TypeError: a word that is not an int.
        OverflowError: a word that is not in [0, 2**32).

    >>> decode(counter(AUGMENT, op=9, lane=2, phase=4, position=5))
    {'purpose': 3, 'op': 9, 'lane': 2, 'phase': 4, 'position': 5}
    """
    c0, c1, c2, c3 = (_check("word", word, 32) for word in words)
    return {
        "purpose": c3 >> 24,
        "op": c3 >> 16 & 0xFF,
        "lane": c3 & 0xFFFF,
        "phase": c2,
        "position": c0 | c1 << 32,
    }


def fold_in(key: int, data: int) -> int:
    """Return a new 64-bit key from `key` and a 64-bit number, at its own address (FOLD).

    Raises:
        TypeError: one of them is not an int.
        ValueError: `key` is not in [0, 2**64).
        OverflowError: `data` is not in [0, 2**64).
    """
    w = _block(check_u64("key", key), counter(FOLD, position=data))
    return w[0] | w[1] << 32


def named(key: int, name: str) -> int:
    """Return a new 64-bit key from `key` and a name, through 120 bits of BLAKE2s (NAME).

    Raises:
        TypeError: `key` is not an int or `name` not a str.
        ValueError: `key` is not in [0, 2**64).
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r} ({type(name).__name__})")
    return _named(check_u64("key", key), name)


@lru_cache(4096)  # a layer asks at every step
def _named(key: int, name: str) -> int:
    h = hashlib.blake2s(name.encode(), digest_size=15).digest()
    c3 = NAME << 24 | int.from_bytes(h[12:15], "little")
    words = (
        int.from_bytes(h[0:4], "little"),
        int.from_bytes(h[4:8], "little"),
        int.from_bytes(h[8:12], "little"),
        c3,
    )
    w = _block(key, words)
    return w[0] | w[1] << 32


def _check(field: str, value: Any, bits: int) -> int:
    """Return a field as an int that is in its range."""
    number = whole(f"address field {field}", value)
    if not 0 <= number < 1 << bits:
        raise OverflowError(f"address field {field} must be in [0, 2**{bits}), got {number}")
    return number


def _block(key: int, words: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 on plain ints: a key is derived a few times a run, never in a loop."""
    c0, c1, c2, c3 = words
    k0, k1 = key & M32, key >> 32
    for r in range(10):
        if r:
            k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M32, (p0 >> 32) ^ c3 ^ k1, p0 & M32
    return c0, c1, c2, c3
