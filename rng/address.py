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
from functools import lru_cache

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
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(
            f"{name} must be an int in [0, 2**64), got {number!r} ({type(number).__name__})"
        )
    value = int(number.__index__())
    if not 0 <= value <= M64:
        raise ValueError(f"{name} must be in [0, 2**64), got {value}")
    return value


def mix64(seed: int) -> int:
    """Return SplitMix64's output function of `seed`: a bijection on 64-bit integers.

    >>> hex(mix64(0))
    '0xe220a8397b1dcdaf'
    """
    z = (check_seed(seed) + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def site(purpose: int, op: int = 0, lane: int = 0) -> int:
    """Return counter word c3 = purpose:8 | op:8 | lane:16.

    Raises:
        OverflowError: a field out of its range.
    """
    _check("purpose", purpose, 8)
    _check("op", op, 8)
    _check("lane", lane, 16)
    return purpose << 24 | op << 16 | lane


def sample_position(n: int, block: int = 0) -> int:
    """Return the position n:40 | block:24 of a lane's n-th sample.

    Raises:
        OverflowError: a field out of its range.
    """
    _check("n", n, 40)
    _check("block", block, 24)
    return n << 24 | block


def attempt_position(index: int, attempt: int = 0) -> int:
    """Return the position index:56 | attempt:8 of a draw that may be rejected.

    Raises:
        OverflowError: a field out of its range.
    """
    _check("index", index, 56)
    _check("attempt", attempt, 8)
    return index << 8 | attempt


def counter(
    purpose: int, op: int = 0, lane: int = 0, phase: int = 0, position: int = 0
) -> tuple[int, int, int, int]:
    """Return the counter words (c0, c1, c2, c3) of an address.

    Raises:
        OverflowError: a field out of its range.

    >>> [hex(word) for word in counter(SHUFFLE, phase=7, lane=3, position=0x100)]
    ['0x100', '0x0', '0x7', '0x2000003']
    """
    _check("phase", phase, 32)
    _check("position", position, 64)
    return position & M32, position >> 32, phase, site(purpose, op, lane)


def decode(words: tuple[int, int, int, int]) -> dict[str, int]:
    """Return the fields of a counter: the inverse of `counter`.

    >>> decode(counter(AUGMENT, op=9, lane=2, phase=4, position=5))
    {'purpose': 3, 'op': 9, 'lane': 2, 'phase': 4, 'position': 5}
    """
    c0, c1, c2, c3 = words
    return {
        "purpose": c3 >> 24,
        "op": c3 >> 16 & 0xFF,
        "lane": c3 & 0xFFFF,
        "phase": c2,
        "position": c0 | c1 << 32,
    }


def fold_in(key: int, data: int) -> int:
    """Return a new 64-bit key from `key` and a 64-bit number, at its own address (FOLD)."""
    w = _block(key, counter(FOLD, position=data))
    return w[0] | w[1] << 32


@lru_cache(4096)  # a layer asks at every step
def named(key: int, name: str) -> int:
    """Return a new 64-bit key from `key` and a name, through 120 bits of BLAKE2s (NAME)."""
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


def _check(field: str, value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise OverflowError(f"address field {field} must be in [0, 2**{bits}), got {value}")


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
