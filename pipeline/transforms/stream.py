"""The stream of random numbers that a user callable gets: one for each sample and callable.

    block b of the stream = Philox(key, counter = (n:40 | b:24, phase, USER | op | lane))

So a callable's numbers depend on (seed, phase, position) and on which of the chain's callables it
is; not on workers, on other samples, or on what other ops draw. Each call takes whole blocks.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from rng import address, philox

Size = int | tuple[int, ...] | None


@njit(cache=True, nogil=True)
def _fill(out: Any, n: Any, block: Any, phase: Any, site: Any, k0: Any, k1: Any) -> None:
    for i in range(out.shape[0]):
        at = (n << uint64(24)) | (block + uint64(i))
        w0, w1, w2, w3 = philox.block(at, at >> uint64(32), phase, site, k0, k1)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = w0, w1, w2, w3


class Stream:
    """Random numbers at one sample's USER address.

    >>> stream = Stream(position=5, phase=0, key=1, lanes=16, op=248)
    >>> stream.integers(0, 10, 3).shape, 0.0 <= stream.uniform() < 1.0
    ((3,), True)
    """

    def __init__(self, position: int, phase: int, key: int, lanes: int, op: int) -> None:
        n, lane = divmod(position, lanes)
        address.sample_position(n)  # checks the range
        self._n = n
        self._phase = phase
        self._key = key
        self._site = address.site(address.USER, op, lane)
        self._block = 0

    def words(self, count: int) -> npt.NDArray[np.uint32]:
        """Return the stream's next `count` words; the rest of the last block is skipped."""
        blocks = -(-count // 4)
        if self._block + blocks > 1 << 24:
            raise OverflowError(
                f"a callable may draw 2**26 words for each sample, {count} more were asked for"
            )
        out = np.empty((blocks, 4), np.uint32)
        low, high = self._key & address.M32, self._key >> 32
        u64 = np.uint64
        _fill(
            out,
            u64(self._n),
            u64(self._block),
            u64(self._phase),
            u64(self._site),
            u64(low),
            u64(high),
        )
        self._block += blocks
        return out.reshape(-1)[:count]

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Size = None) -> Any:
        """Return float64 in [low, high): low + (high - low) * k * 2**-53. Draws: 2 words each."""
        count = _count(size)
        w = self.words(2 * count).astype(np.uint64)
        k = (w[0::2] >> np.uint64(5)) << np.uint64(26) | w[1::2] >> np.uint64(6)
        return _shaped(low + (k.astype(np.float64) * 2.0**-53) * (high - low), size)

    def integers(self, low: int, high: int | None = None, size: Size = None) -> Any:
        """Return int64 in [low, high), or [0, low), unbiased; the range is at most 2**32.

        Draws: 1 word each, and again those that are rejected.

        Raises:
            ValueError: an empty range, or one above 2**32.
        """
        first, end = (0, low) if high is None else (low, high)
        span = end - first
        if not 1 <= span <= 1 << 32:
            raise ValueError(f"integers needs 1 <= high - low <= 2**32, got [{first}, {end})")
        out = np.empty(_count(size), np.int64)
        todo = np.arange(out.size)
        limit = np.uint64((1 << 32) % span)
        while todo.size:
            product = self.words(todo.size).astype(np.uint64) * np.uint64(span)
            out[todo] = (product >> np.uint64(32)).astype(np.int64)
            todo = todo[(product & np.uint64(address.M32)) < limit]
        return _shaped(out + first, size)

    def permutation(self, n: int) -> npt.NDArray[np.int64]:
        """Return a uniform permutation of 0 .. n - 1 (Fisher-Yates, one word a step)."""
        out = np.arange(n, dtype=np.int64)
        for i in range(n - 1, 0, -1):
            j = int(self.integers(i + 1))
            out[i], out[j] = out[j], out[i]
        return out

    def numpy(self) -> Any:
        """Return a `numpy.random.Generator` seeded from this address, the same at each call.

        Its Philox4x64 counts in the low words of the counter; the address stands in the high ones.
        """
        import numpy.random as random  # noqa: TID251  (user code wants it; seeded by address)

        place = self._n << 24
        counter = np.array([0, 0, place, self._phase << 32 | self._site], np.uint64)
        key = np.array([self._key, 0], np.uint64)
        return random.Generator(random.Philox(key=key, counter=counter))


def _count(size: Size) -> int:
    if size is None:
        return 1
    return math.prod(size) if isinstance(size, tuple) else int(size)


def _shaped(values: npt.NDArray[Any], size: Size) -> Any:
    return values[0].item() if size is None else values.reshape(size)
