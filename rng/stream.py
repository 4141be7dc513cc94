"""Streams: every distribution, at an address, into any array.

    value i of a stream = f(word i) or f(words 2 i, 2 i + 1): fixed, and nothing is ever rejected
    except in `integers`, whose further attempts have addresses of their own

So any piece of a result can be made alone, by any thread, in any order: `first` is the number of
the first element.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rng import address, draw, fill, tables

_NO_TABLE = tables.Table(np.zeros((1, 4), np.int32), 0, np.zeros(4, np.float32))
_NO_TABLE.rows.flags.writeable = False
Array = NDArray[Any]
_LARGEST = 3.4028234663852886e38  # of float32


@dataclass(frozen=True)
class Stream:
    """The blocks at `start`, `start` + 1, ... of an address.

    Args:
        key: 64 bits, `address.mix64(seed)` or derived from it.
        c3: counter word 3, `address.site(purpose, op, lane)`.
        c2: counter word 2, the phase or step.
        start: position of the first block.

    Every method fills `out` (any shape, strides; written in C order) with the values `first`,
    `first` + 1, ... and returns it; `threads` is the most threads to use (None: as fits the size).
    Each raises ValueError for parameters out of range or a read-only `out`, OverflowError where the
    stream ends.

    >>> s = Stream(address.mix64(42), address.site(address.USER))
    >>> s.uniform(np.empty(4, np.float32)).tolist() == s.uniform(np.empty(8, np.float32))[:4].tolist()
    True
    """

    key: int
    c3: int
    c2: int = 0
    start: int = 0

    # ------------------------------------------------------------ words
    def uint32(self, out: Array, first: int = 0, threads: int | None = None) -> Array:
        """Words. Range [0, 2**32). Draws: 1 word each."""
        return self._fill(out, np.uint32, fill.RAW, first, threads)

    def uint64(self, out: Array, first: int = 0, threads: int | None = None) -> Array:
        """Pairs of words, the low half first. Range [0, 2**64). Draws: 2 words each."""
        return self._fill(out, np.uint64, fill.RAW, first, threads)

    # ------------------------------------------------------------ real numbers
    def uniform(
        self,
        out: Array,
        low: float = 0.0,
        high: float = 1.0,
        first: int = 0,
        threads: int | None = None,
    ) -> Array:
        """Uniform real numbers in [low, high); `high` itself never comes, whatever the rounding.

        float64 `out`: 53 bits, low + u * (high - low) in float64. Draws: 2 words each.
        Any other: 24 bits, in float32, then cast once. Draws: 1 word each.
        """
        kind, real = _uniform(out.dtype, float(low), float(high))
        native = np.float64 if out.dtype == np.float64 else np.float32
        return self._fill(out, native, kind, first, threads, real)

    def normal(
        self,
        out: Array,
        mean: float = 0.0,
        std: float = 1.0,
        first: int = 0,
        threads: int | None = None,
    ) -> Array:
        """Normal numbers: float32 mean + std * z, |z| <= 6.338, then cast once. Draws: 1 word each.

        Source: integer-only inverse of the distribution function, `rng.tables`.
        """
        _finite(mean=mean, std=std)
        _at_least(0.0, std=std)
        return self._inverse(out, tables.NORMAL, mean, std, first, threads)

    def truncated_normal(
        self,
        out: Array,
        mean: float = 0.0,
        std: float = 1.0,
        low: float = -2.0,
        high: float = 2.0,
        first: int = 0,
        threads: int | None = None,
    ) -> Array:
        """Normal numbers conditioned on [low, high], both ends included. Draws: 1 word each.

        The word is mapped into the ranks whose value lies in the range, so nothing is rejected; a
        range of probability P has about P * 2**32 different values.

        Raises:
            ValueError: the range holds none of the 2**32 values.
        """
        _finite(mean=mean, std=std)
        _at_least(0.0, std=std)
        a, b = _ranks(float(mean), float(std), float(low), float(high))
        return self._fill(
            out,
            np.float32,
            fill.INVERSE_IN,
            first,
            threads,
            (mean, std, 0.0),
            (a, b - a + 1),
            tables.NORMAL,
        )

    def lognormal(
        self,
        out: Array,
        mean: float = 0.0,
        std: float = 1.0,
        first: int = 0,
        threads: int | None = None,
    ) -> Array:
        """Numbers exp(mean + std * z), z as in `normal`. Draws: 1 word each.

        The exponential is a fixed polynomial in float64, rounded once to float32.
        """
        _finite(mean=mean, std=std)
        _at_least(0.0, std=std)
        return self._fill(
            out, np.float32, fill.LOG, first, threads, (mean, std, 0.0), table=tables.NORMAL
        )

    def exponential(
        self, out: Array, scale: float = 1.0, first: int = 0, threads: int | None = None
    ) -> Array:
        """Exponential numbers of mean `scale`, at most 22.88 of it, never 0. Draws: 1 word each."""
        _finite(scale=scale)
        _at_least(0.0, scale=scale)
        return self._inverse(out, tables.EXPONENTIAL, 0.0, scale, first, threads)

    def gumbel(
        self,
        out: Array,
        loc: float = 0.0,
        scale: float = 1.0,
        first: int = 0,
        threads: int | None = None,
    ) -> Array:
        """Gumbel numbers loc + scale * g, g in [-3.14, 22.88]. Draws: 1 word each."""
        _finite(loc=loc, scale=scale)
        _at_least(0.0, scale=scale)
        return self._inverse(out, tables.GUMBEL, loc, scale, first, threads)

    # ------------------------------------------------------------ whole numbers
    def bernoulli(
        self, out: Array, p: float = 0.5, first: int = 0, threads: int | None = None
    ) -> Array:
        """1 with chance p (to 32 bits; 0 and 1 exact), else 0. Draws: 1 word each."""
        threshold = draw.bernoulli_threshold(p)
        start, c2, c3, k0, k1 = self._check(first, out.size, 1)
        if threshold == 1 << 32:
            out[...] = 1
            return out

        def kernel(piece: Array, at: int) -> None:
            fill.bernoulli(
                piece.view(np.uint8),
                np.uint64(first + at),
                start,
                c2,
                c3,
                k0,
                k1,
                np.uint32(threshold),
            )

        fill.through(out, np.bool_ if out.dtype == np.bool_ else np.uint8, threads, kernel)
        return out

    def integers(
        self, out: Array, low: int, high: int, first: int = 0, threads: int | None = None
    ) -> Array:
        """Integers in [low, high), exact and unbiased.

        Draws: 1 word each if high - low <= 2**32, else 2; a rejected one (chance below
        (high - low) / 2**32, / 2**64) is drawn again at the same position with op = attempt.

        Raises:
            ValueError: an empty range, one that `out` cannot hold, or a stream whose op is not 0.

        Source: Lemire, "Fast random integer generation in an interval" (TOMACS 2019), algorithm 5.
        """
        low, high = int(low), int(high)
        if out.dtype.kind not in "iu":
            raise ValueError(f"out must hold integers, got dtype {out.dtype}")
        info = np.iinfo(out.dtype)
        if not info.min <= low < high <= int(info.max) + 1:
            raise ValueError(
                f"integers needs low < high, both within {out.dtype}, got {low} and {high}"
            )
        if self.c3 >> 16 & 0xFF:
            raise ValueError("integers needs a stream whose op is 0: further attempts use it")
        span = high - low
        wide = span > 1 << 32
        start, c2, c3, k0, k1 = self._check(first, out.size, 2 if wide else 1)

        def kernel(piece: Array, at: int) -> None:
            fill.below(
                piece.view(np.uint64),
                np.uint64(first + at),
                start,
                c2,
                c3,
                k0,
                k1,
                wide,
                np.uint64(low & address.M64),
                np.uint64(span & address.M64),
            )

        fill.through(out, np.int64 if out.dtype.kind == "i" else np.uint64, threads, kernel)
        return out

    def categorical(
        self, out: Array, weights: ArrayLike, first: int = 0, threads: int | None = None
    ) -> Array:
        """Numbers 0 ... k-1 with chances proportional to `weights`, to 2**-53. Draws: 2 words each.

        A weight of 0 is never drawn.

        Raises:
            ValueError: weights that are empty, negative, not finite or all 0.
        """
        w = np.asarray(weights, np.float64)
        if w.ndim != 1 or w.size == 0 or not np.isfinite(w).all() or (w < 0).any():
            raise ValueError("weights must be a non-empty list of finite numbers >= 0")
        sums = np.cumsum(w)
        if not (0.0 < sums[-1] < np.inf):
            raise ValueError(f"weights must have a positive finite sum, got {sums[-1]}")
        cuts = (sums / sums[-1] * 2.0**53).astype(np.uint64)

        def kernel(piece: Array, at: int) -> None:
            numbers = piece.view(np.uint64)
            self.uint64(numbers, first + at, 1)
            fill.search(numbers, cuts)

        fill.through(out, np.int64, threads, kernel)
        return out

    # ------------------------------------------------------------ inside
    def _check(self, first: int, n: int, words_each: int) -> Any:
        """Return (start, c2, c3, k0, k1) for a kernel, having checked that the stream goes so far."""
        if first < 0 or self.start + (words_each * (first + n) + 3) // 4 > 1 << 64:
            raise OverflowError(
                f"values {first} ... {first + n} are not within positions [0, 2**64) of the stream"
            )
        return self._parts

    @cached_property
    def _parts(self) -> Any:
        parts = (self.start, self.c2, self.c3, self.key & address.M32, self.key >> 32)
        return tuple(np.uint64(part) for part in parts)

    def _inverse(
        self,
        out: Array,
        table: tables.Table,
        shift: float,
        scale: float,
        first: int,
        threads: int | None,
    ) -> Array:
        real = (shift, scale, 0.0)
        return self._fill(out, np.float32, fill.INVERSE, first, threads, real, table=table)

    def _fill(
        self,
        out: Array,
        native: Any,
        kind: int,
        first: int,
        threads: int | None,
        real: tuple[Any, Any, Any] = (0.0, 1.0, 0.0),
        whole: tuple[int, int] = (0, 0),
        table: tables.Table = _NO_TABLE,
    ) -> Array:
        """Fill `out` with numbers of `kind`, made in dtype `native` of 4 or 8 bytes."""
        each = np.dtype(native).itemsize // 4
        start, c2, c3, k0, k1 = self._check(first, out.size, each)
        numbers = _reals(*(x + 0.0 for x in real))  # -0.0 and 0.0 are one key
        low, span = np.uint64(whole[0]), np.uint64(whole[1])
        upper = np.uint64(table.upper)

        def kernel(piece: Array, at: int) -> None:
            number = np.uint64(each * (first + at))
            words = piece.view(np.uint32)
            fill.words(
                words,
                number,
                start,
                c2,
                c3,
                k0,
                k1,
                kind,
                numbers,
                low,
                span,
                table.rows,
                upper,
                table.scales,
            )

        fill.through(out, native, threads, kernel)
        return out


def _finite(**values: float) -> None:
    for name, value in values.items():
        if not -_LARGEST <= value <= _LARGEST:
            raise ValueError(f"{name} must be finite in float32, got {value}")


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


@lru_cache(256)
def _uniform(dtype: Any, low: float, high: float) -> tuple[int, tuple[Any, Any, Any]]:
    """Return the kind and the (low, span, most) of uniform numbers; most: the last below high."""
    real: Any = np.float64 if dtype == np.float64 else np.float32
    with np.errstate(over="ignore"):
        a, b = real(low), real(high)
        span = b - a
    if not (a < b and np.isfinite(span)):
        raise ValueError(
            f"uniform needs low < high and a finite range in {real.__name__}, got {low} and {high}"
        )
    most = np.nextafter(b, a)
    if dtype == np.float16:  # the cast may round up to `high`
        half = np.float16(b)
        most = real(half if half < b else np.nextafter(half, np.float16(-np.inf)))
    unit = (a, b) == (0.0, 1.0) and dtype != np.float16
    if real is np.float64:
        return fill.UNIT_64 if unit else fill.RANGE_64, (a, span, most)
    return fill.UNIT_32 if unit else fill.RANGE_32, (a, span, most)


@lru_cache(256)
def _reals(*numbers: float) -> NDArray[np.float64]:
    return np.array(numbers, np.float64)


# ---------------------------------------------------------------- truncation
def _normal_at(rank: int, mean: float, std: float) -> np.float32:
    """Return the value of the normal number of a rank: it rises with the rank, 0 ... 2**32 - 1."""
    word = rank ^ (0x7FFFFFFF if rank >> 31 else 0)
    x = (2 * word + 1) & address.M32
    e = x.bit_length() - 1
    y = x << (31 - e) & address.M32
    t = (y << 5 & address.M32) >> 1
    c0, c1, c2, c3 = (int(c) for c in tables.NORMAL.rows[16 * e + (y >> 27 & 15)])
    z = c0 + ((c1 + ((c2 + ((c3 * t) >> 32)) * t >> 32)) * t >> 34)
    value = np.float32(z) * tables.NORMAL.scales[2 * (word >> 31) + (e == 31)]
    with np.errstate(over="ignore"):
        return np.float32(np.float32(mean) + np.float32(value * np.float32(std)))


@lru_cache(256)
def _ranks(mean: float, std: float, low: float, high: float) -> tuple[int, int]:
    """Return the first and the last rank whose value lies in [low, high]."""

    def first_rank(inside: Any) -> int:
        a, b = 0, 1 << 32
        while a < b:
            middle = (a + b) // 2
            if inside(float(_normal_at(middle, mean, std))):
                b = middle
            else:
                a = middle + 1
        return a

    a = first_rank(lambda value: value >= low)
    b = first_rank(lambda value: value > high) - 1
    if not (low <= high and a <= b):
        raise ValueError(
            f"no normal number of mean {mean} and std {std} lies in [{low}, {high}]; "
            "take a range nearer the mean"
        )
    return a, b
