"""A permutation without memory: element i of a random order, for sets too big to shuffle.

    b    = bits of n - 1, split into a left half of b // 2 and a right half of the others
    step = left ^= F(right), then right ^= F(left), ROUNDS halves in all: a bijection of [0, 2**b)
    F    = two of Philox's rounds: multiply to 64 bits, XOR high half, low half and key, twice
    keys = word r of the blocks at (SHUFFLE, lane, phase, position 0 << 8 | attempt): step 0, which
           Fisher-Yates never reads
    walk = repeated until the result is below n: less than two steps on average

Below 2**16 elements a Feistel network is visibly not uniform, so the order there is Fisher-Yates'
own, held in memory. Above, use Fisher-Yates all the same if 4 n bytes can be spared: it is exact.

Source: Black, Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002), generalised Feistel
and cycle walking; Mitchell, Stokes, Frank, Holmes, "Bandwidth-optimal random shuffling for GPUs"
(2021) for the use.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import ArrayLike, NDArray

from rng import address, permute, philox
from rng.kernel import kernel
from rng.stream import Stream

ROUNDS = 12
MAX_N = 1 << 40
EXACT_BELOW = 1 << 16


class RandomAccessPermutation:
    """A random order of 0 ... n-1 that is never stored: `order[i]` costs the same for every i.

    Args:
        n: 0 <= n <= 2**40.
        seed: in [0, 2**64).
        phase: in [0, 2**32).
        lane: in [0, 2**16).

    Index with an int >= 0, a slice or an array of such ints; `inverse` tells where a number stands.
    Below 2**16 it is `rng.permutation(n, seed, phase, lane)` itself.

    Draws: 6 blocks when made, none later.

    Raises:
        TypeError: an argument or an index that is not an int.
        ValueError: n or seed out of range.
        OverflowError: phase or lane out of range.
        IndexError: an index that is not in [0, n).

    >>> order = RandomAccessPermutation(10**9, seed=42)
    >>> order[0], order.inverse(order[123])
    (695431486, 123)
    """

    def __init__(self, n: int, seed: int, phase: int = 0, lane: int = 0) -> None:
        self._n = permute.check_n(n, MAX_N)
        seed = address.check_seed(seed)
        _, _, c2, c3 = address.counter(address.SHUFFLE, lane=lane, phase=phase)
        self._parameters = (self._n, seed, c2, c3 & 0xFFFF)
        self._order: NDArray[np.uint32] | None = None
        self._places: NDArray[np.uint32] | None = None
        self._bits = np.uint64(max((self._n - 1).bit_length(), 2) if self._n else 2)
        if self._n < EXACT_BELOW:
            self._order = permute.permutation(self._n, seed, phase, lane)
            self._places = np.empty_like(self._order)
            self._places[self._order] = np.arange(self._n, dtype=np.uint32)
        stream = Stream(address.mix64(seed), c3, c2)
        self._keys = stream.uint32(np.empty(2 * ROUNDS, np.uint32)).astype(np.uint64)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._at(np.arange(*index.indices(self._n), dtype=np.int64))
        return self._look_up(index, self._at)

    def __contains__(self, value: Any) -> bool:
        return value in range(self._n)

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self._n, 4096):
            yield from self[first : first + 4096].tolist()

    def inverse(self, values: Any) -> Any:
        """Return i such that self[i] == value, for an int or an array of ints.

        Raises:
            IndexError: a value is not in [0, n).
        """
        return self._look_up(values, self._find)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parameters

    def __repr__(self) -> str:
        n, seed, phase, lane = self._parameters
        return f"RandomAccessPermutation(n={n}, seed={seed}, phase={phase}, lane={lane})"

    def _look_up(self, index: ArrayLike, function: Any) -> Any:
        places = np.asarray(index)
        if places.size == 0 and isinstance(index, Sequence):
            places = places.astype(np.int64)
        if places.dtype == object:
            numbers = [address.whole("an index", i) for i in places.flat]
            raise IndexError(f"index must be in [0, {self._n}), got {numbers}")
        if places.dtype.kind not in "iu":
            raise TypeError(f"an index must be an int or an array of ints, got {places.dtype}")
        if places.size and not (int(places.min()) >= 0 and int(places.max()) < self._n):
            raise IndexError(
                f"index must be in [0, {self._n}), got {places.min()} ... {places.max()}"
            )
        found = function(places.astype(np.int64).reshape(-1)).reshape(places.shape)
        return int(found) if found.ndim == 0 else found

    def _at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Replace places by what stands there."""
        if self._order is not None:
            return self._order[places].astype(np.int64)
        _encode(places.view(np.uint64), np.uint64(self._n), self._bits, self._keys)
        return places

    def _find(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Replace values by where they stand."""
        if self._places is not None:
            return self._places[values].astype(np.int64)
        _decode(values.view(np.uint64), np.uint64(self._n), self._bits, self._keys)
        return values


# ---------------------------------------------------------------- kernels
@kernel
def _function(x: Any, k0: Any, k1: Any) -> Any:
    """Return 32 mixed bits of x < 2**32."""
    low = uint64(0xFFFFFFFF)
    p = (x ^ k0) * uint64(philox.MULTIPLIER_0)
    x = (p >> uint64(32)) ^ (p & low) ^ k1
    p = x * uint64(philox.MULTIPLIER_1)
    return (p >> uint64(32)) ^ (p & low)


@kernel
def _encode(values: Any, n: Any, bits: Any, keys: Any) -> None:
    right_bits = bits - (bits >> uint64(1))
    left_mask = (uint64(1) << (bits >> uint64(1))) - uint64(1)
    right_mask = (uint64(1) << right_bits) - uint64(1)
    for q in range(values.size):
        x = values[q]
        while True:
            left, right = x >> right_bits, x & right_mask
            for r in range(0, 2 * ROUNDS, 4):
                left ^= _function(right, keys[r], keys[r + 1]) & left_mask
                right ^= _function(left, keys[r + 2], keys[r + 3]) & right_mask
            x = left << right_bits | right
            if x < n:
                break
        values[q] = x


@kernel
def _decode(values: Any, n: Any, bits: Any, keys: Any) -> None:
    right_bits = bits - (bits >> uint64(1))
    left_mask = (uint64(1) << (bits >> uint64(1))) - uint64(1)
    right_mask = (uint64(1) << right_bits) - uint64(1)
    for q in range(values.size):
        x = values[q]
        while True:
            left, right = x >> right_bits, x & right_mask
            for r in range(2 * ROUNDS - 4, -1, -4):
                right ^= _function(left, keys[r + 2], keys[r + 3]) & right_mask
                left ^= _function(right, keys[r], keys[r + 1]) & left_mask
            x = left << right_bits | right
            if x < n:
                break
        values[q] = x
