"""The stream of random numbers that a user callable gets: one for each sample and callable.

    block b of the stream = Philox(key, counter = (n:40 | b:24, phase, USER | op | lane))

So a callable's numbers depend on (seed, phase, position) and on which of the chain's callables it
is; not on workers, on other samples, or on what other ops draw. Each call takes whole blocks.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import uint64

from rng import address, philox
from rng.kernel import kernel

Size = int | tuple[int, ...] | None


@kernel
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
        first = self._take(blocks)
        out = np.empty((blocks, 4), np.uint32)
        low, high = self._key & address.M32, self._key >> 32
        u64 = np.uint64
        _fill(
            out,
            u64(self._n),
            u64(first),
            u64(self._phase),
            u64(self._site),
            u64(low),
            u64(high),
        )
        return out.reshape(-1)[:count]

    def _take(self, blocks: int) -> int:
        """Return the next block's number and go on by `blocks`."""
        first = self._block
        if first + blocks > 1 << 24:
            raise OverflowError(
                f"a callable may draw 2**26 words for each sample; it has drawn {4 * first} and "
                f"asks for {4 * blocks} more"
            )
        self._block = first + blocks
        return first

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Size = None) -> Any:
        """Return float64 in [low, high): low + (high - low) * k * 2**-53. Draws: 2 words each."""
        count = _count(size)
        w = self.words(2 * count).astype(np.uint64)
        k = (w[0::2] >> np.uint64(5)) << np.uint64(26) | w[1::2] >> np.uint64(6)
        values = low + (k.astype(np.float64) * 2.0**-53) * (high - low)
        if high > low:
            values = np.minimum(values, np.nextafter(high, low))  # it may round up to `high`
        return _shaped(values, size)

    def normal(self, mean: float = 0.0, std: float = 1.0, size: Size = None) -> Any:
        """Return normal numbers, float64 holding float32 values; |z| <= 6.338. Draws: 1 word each.

        Source: integer-only inverse of the distribution function, `rng.tables`.
        """
        from rng import stream

        count = _count(size)
        start = address.sample_position(self._n, self._take(-(-count // 4)))
        source = stream.Stream(self._key, self._site, self._phase, start)
        return _shaped(source.normal(np.empty(count, np.float64), mean, std, threads=1), size)

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
        return _shaped(self._below(np.full(_count(size), span, np.uint64)) + first, size)

    def permutation(self, n: int) -> npt.NDArray[np.int64]:
        """Return a uniform permutation of 0 .. n - 1.

        Draws: n - 1 words, and again those that are rejected.

        Source: Fisher and Yates, as in Knuth, volume 2, algorithm 3.4.2P.
        """
        chosen = self._below(np.arange(n, 1, -1, dtype=np.uint64))
        out = list(range(n))
        for i, j in zip(range(n - 1, 0, -1), chosen.tolist(), strict=True):
            out[i], out[j] = out[j], out[i]
        return np.array(out, np.int64)

    def _below(self, spans: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return an exact int64 in [0, span) for each span in [1, 2**32]."""
        out = np.empty(spans.size, np.int64)
        limits = np.uint64(1 << 32) % spans
        todo = np.arange(spans.size)
        while todo.size:
            product = self.words(todo.size).astype(np.uint64) * spans[todo]
            out[todo] = (product >> np.uint64(32)).astype(np.int64)
            todo = todo[(product & np.uint64(address.M32)) < limits[todo]]
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
