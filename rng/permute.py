"""Permutations: exact Fisher-Yates, every swap at its own address.

    for i = n-1 ... 1:  j = bounded(i, i + 1);  swap a[i], a[j]
    bounded(i, m):      attempt 0, 1, ...: block at (SHUFFLE, lane, phase, i << 8 | attempt);
                        r = word0 | word1 << 32, then r = word2 | word3 << 32:
                        the first with (r * m mod 2**64) >= 2**64 mod m gives (r * m) >> 64

Each step reads a block of its own, so a rejection never shifts another step, and the draws of many
steps are made side by side ahead of the swaps: the processor overlaps the swaps' cache misses.

Source: Durstenfeld, "Algorithm 235: random permutation" (CACM 1964); Lemire, "Fast random integer
generation in an interval" (TOMACS 2019), algorithm 5.
"""

from typing import Any

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from rng import address, philox, prefetch
from rng.kernel import kernel

MAX_N = 1 << 56
_BLOCKS = philox.BLOCKS
_AHEAD = (
    2 * _BLOCKS
)  # steps between knowing (and prefetching) a target and swapping: more is slower
_RING = 2 * _AHEAD  # targets kept: a power of two above _AHEAD
_CACHED = 1 << 17  # elements below which everything is in the cache anyhow


def permutation(
    n: int,
    seed: int,
    phase: int = 0,
    lane: int = 0,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return a uniformly random order of 0 ... n-1, the same on every machine.

    Args:
        n: length, 0 <= n <= 2**56.
        seed: in [0, 2**64).
        phase: in [0, 2**32), for example the epoch: another phase is another order.
        lane: in [0, 2**16), for shuffles local to a lane.
        out: u32[n], or i64[n], u64[n]; contiguous. Written and returned.

    Returns:
        u32[n] for n <= 2**32, else u64[n]; or `out`.

    Draws:
        one block for each step i = 1 ... n-1, at address (SHUFFLE, lane, phase, i << 8).

    Raises:
        ValueError: n or seed out of range, or an `out` that does not fit.
        OverflowError: phase or lane out of range.

    >>> permutation(8, seed=42)
    array([7, 1, 0, 2, 5, 6, 4, 3], dtype=uint32)
    """
    return permutation_from_key(n, address.mix64(seed), phase, lane, out)


def permutation_from_key(
    n: int,
    key: int,
    phase: int = 0,
    lane: int = 0,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return `permutation` for a ready 64-bit key, such as `address.named(key, "val")`.

    Raises:
        ValueError: n or key out of range, or an `out` that does not fit.
        OverflowError: phase or lane out of range.
    """
    n = check_n(n)
    key = address.check_u64("key", key)
    _, _, c2, c3 = address.counter(address.SHUFFLE, lane=lane, phase=phase)
    if out is None:
        out = np.empty(n, np.uint32 if n <= 1 << 32 else np.uint64)
    _check_out(out, n)
    words = out if out.dtype == np.uint32 else out.view(np.uint64)
    _fisher_yates(words, key & address.M32, key >> 32, c2, c3)
    return out


def check_n(n: int, most: int = MAX_N, name: str = "n") -> int:
    """Return `n` if it is an int in [0, most]; else raise TypeError or ValueError."""
    value = address.whole(name, n)
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be in [0, {most}], got {value}")
    return value


def _check_out(out: NDArray[Any], n: int) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, got {type(out).__name__}")
    if out.shape != (n,) or not out.flags.carray:
        raise ValueError(
            f"out must be a writable contiguous aligned array of shape ({n},), got shape {out.shape}"
        )
    if out.dtype not in (np.uint32, np.int64, np.uint64) or (
        out.dtype == np.uint32 and n > 1 << 32
    ):
        raise ValueError(f"out must be uint32 (n <= 2**32), int64 or uint64, got {out.dtype}")


def sample_from_key(n: int, k: int, key: int, phase: int = 0, lane: int = 0) -> NDArray[np.uint64]:
    """Return k different numbers of 0 ... n-1: `permutation_from_key(n, ...)[::-1][:k]`, in O(k).

    Args:
        n: 0 <= n <= 2**56.
        k: 0 <= k <= n.
        key, phase, lane: as there.

    Raises:
        ValueError: k or n out of range.
    """
    n = check_n(n)
    k = check_n(k, n, "k")
    key = address.check_u64("key", key)
    _, _, c2, c3 = address.counter(address.SHUFFLE, lane=lane, phase=phase)
    out = np.empty(k, np.uint64)
    k0, k1 = np.uint64(key & address.M32), np.uint64(key >> 32)
    _last_steps(out, np.uint64(n), k0, k1, np.uint64(c2), np.uint64(c3))
    return out


# ---------------------------------------------------------------- kernels
@kernel
def bounded(i: Any, m: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Return an exact uniform integer in [0, m), the one of index i. Draws: 1 block, rarely more.

    Where all 256 attempts fail (chance below 2**-512) the last one counts.
    """
    threshold = (uint64(0) - m) % m
    high = uint64(0)
    for attempt in range(uint64(256)):
        position = i << uint64(8) | attempt
        w0, w1, w2, w3 = philox.block(position, position >> uint64(32), c2, c3, k0, k1)
        high, low = philox.multiply(uint64(w0) | uint64(w1) << uint64(32), m)
        if low >= threshold:
            break
        high, low = philox.multiply(uint64(w2) | uint64(w3) << uint64(32), m)
        if low >= threshold:
            break
    return high


@kernel
def _fisher_yates(a: Any, k0: Any, k1: Any, c2: Any, c3: Any) -> None:
    """Fill `a` with 0 ... n-1 and shuffle it. `a`: u32[n] or u64[n]."""
    k0, k1, c2, c3 = uint64(k0), uint64(k1), uint64(c2), uint64(c3)
    n = uint64(a.size)
    for q in range(n):
        a[q] = q
    i = n
    while i > uint64(0xFFFFFFFF):  # step of index i - 1
        i -= uint64(1)
        j = bounded(i, i + uint64(1), c2, c3, k0, k1)
        a[i], a[j] = a[j], a[i]
    if i < uint64(2):
        return
    # Blocks of steps one after another; the targets of _AHEAD blocks are known before their swaps.
    target = np.empty(_RING, np.uint32)
    ring, ahead = uint64(_RING - 1), uint64(_AHEAD)
    place, itemsize = uint64(a.ctypes.data), uint64(a.itemsize)
    top = i - uint64(1)  # first of all steps; step number q is top - q, for q < top
    made = uint64(0)
    while made < top + ahead:
        at, count, suspect = made & ring, uint64(0), uint32(0)
        if made < top:
            count = min(uint64(_BLOCKS), top - made)
            if made >= ahead:
                done = made - ahead
                suspect = philox.steps_and_swaps(
                    target, at, top - made, c2, c3, k0, k1, a, done & ring, top - done
                )
            else:
                suspect = philox.steps(target, at, top - made, c2, c3, k0, k1)
        elif made >= ahead:
            done = made - ahead
            for q in range(done, min(done + uint64(_BLOCKS), top)):
                step, j = top - q, uint64(target[q & ring])
                held = a[step]
                a[step] = a[j]
                a[j] = held
        if suspect:
            for q in range(count):
                step = top - made - q
                target[at + q] = bounded(step, step + uint64(1), c2, c3, k0, k1)
        if n > uint64(_CACHED):
            for q in range(count):
                prefetch.to_write(place + uint64(target[at + q]) * itemsize)
        made += uint64(_BLOCKS)


@kernel
def _last_steps(out: Any, n: Any, k0: Any, k1: Any, c2: Any, c3: Any) -> None:
    """Make the first out.size steps of the shuffle of 0 ... n-1 in a hash table of what moved."""
    mask = uint64(1)
    while mask < uint64(2) * uint64(out.size):
        mask += mask
    mask -= uint64(1)
    places = np.full(mask + uint64(1), n, np.uint64)  # n: empty
    values = np.empty(mask + uint64(1), np.uint64)
    for q in range(uint64(out.size)):
        step = n - uint64(1) - q
        j = step
        if step > uint64(0):
            j = bounded(step, step + uint64(1), c2, c3, k0, k1)
        last = _find(places, step, n, mask)
        held = values[last] if places[last] == step else step
        at = _find(places, j, n, mask)
        out[q] = values[at] if places[at] == j else j
        places[at] = j
        values[at] = held


@kernel
def _find(places: Any, place: Any, empty: Any, mask: Any) -> Any:
    """Return the slot of `place`, or the free one where it belongs."""
    at = (place * uint64(0x9E3779B97F4A7C15)) >> uint64(20) & mask
    while places[at] != place and places[at] != empty:
        at = (at + uint64(1)) & mask
    return at
