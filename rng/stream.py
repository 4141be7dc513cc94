"""Streams: every distribution, at an address, into any array.

    value i of a stream = f(word i) or f(words 2 i, 2 i + 1): fixed, and nothing is ever rejected
    except in `integers`, whose further attempts have addresses of their own

So any piece of a result can be made alone, by any thread, in any order: `first` is the number of
the first element.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rng import address, draw, fill, tables

NO_TABLE = tables.Table(np.zeros((1, 4), np.int32), np.uint64(0), np.zeros(4, np.float32))
NO_TABLE.rows.flags.writeable = False
_NO_REALS = np.zeros(3)
_F32, _F64, _U32, _U64 = (np.dtype(t) for t in (np.float32, np.float64, np.uint32, np.uint64))
_NO_RANGE = np.uint64(0), np.uint64(0)
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
    Each raises TypeError for what is not a number, ValueError for parameters out of range, for an
    `out` of another kind of numbers, read-only, or two of whose elements share memory, and
    OverflowError where the stream ends.

    Raises:
        TypeError: a field that is not an int.
        OverflowError: a field out of its range.

    >>> s = Stream(address.mix64(42), address.site(address.USER))
    >>> s.uniform(np.empty(4, np.float32)).tolist() == s.uniform(np.empty(8, np.float32))[:4].tolist()
    True
    """

    key: int
    c3: int
    c2: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("key", 64), ("c3", 32), ("c2", 32), ("start", 64)):
            number = address.whole(name, getattr(self, name))
            if not 0 <= number < 1 << bits:
                raise OverflowError(f"{name} must be in [0, 2**{bits}), got {number}")
            object.__setattr__(self, name, number)
        parts = (self.start, self.c2, self.c3, self.key & address.M32, self.key >> 32)
        object.__setattr__(self, "_parts", tuple(np.uint64(part) for part in parts))

    # ------------------------------------------------------------ words
    def uint32(self, out: Array, first: int = 0, threads: int | None = None) -> Array:
        """Words. Range [0, 2**32). Draws: 1 word each."""
        return self._fill(out, _U32, fill.RAW, first, threads)

    def uint64(self, out: Array, first: int = 0, threads: int | None = None) -> Array:
        """Pairs of words, the low half first. Range [0, 2**64). Draws: 2 words each."""
        return self._fill(out, _U64, fill.RAW, first, threads)

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
        `low` and `high` are rounded to the type of `out`.
        """
        _check_kind(out, "f")
        kind, real = _uniform(out.dtype, float(low), float(high))
        native = _F64 if out.dtype == _F64 else _F32
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
        _check_kind(out, "f")
        check_normal(mean, std)
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

        The word is mapped into the ranks whose value lies in the range (as float32, and in the type
        of `out`), so nothing is rejected; a range of probability P has about P * 2**32 of them.

        Raises:
            ValueError: the range holds none of the 2**32 values.
        """
        _check_kind(out, "f")
        check_normal(mean, std)
        cast = None if out.dtype == _F32 else cast_to(out.dtype)
        a, b = normal_ranks(cast, float(mean), float(std), float(low), float(high))
        return self._fill(
            out,
            _F32,
            fill.INVERSE_IN,
            first,
            threads,
            _reals(mean, std),
            (np.uint64(a), np.uint64(b - a + 1)),
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
        _check_kind(out, "f")
        check_normal(mean, std)
        return self._fill(
            out, _F32, fill.LOG, first, threads, _reals(mean, std), table=tables.NORMAL
        )

    def exponential(
        self, out: Array, scale: float = 1.0, first: int = 0, threads: int | None = None
    ) -> Array:
        """Exponential numbers of mean `scale`, at most 22.88 of it. Draws: 1 word each.

        0 only where `scale` is 0 or the product rounds to it. Source: `rng.tables`.
        """
        _check_kind(out, "f")
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
        """Gumbel numbers loc + scale * g, g in [-3.14, 22.88]. Draws: 1 word each.

        Source: `rng.tables`.
        """
        _check_kind(out, "f")
        _finite(loc=loc, scale=scale)
        _at_least(0.0, scale=scale)
        return self._inverse(out, tables.GUMBEL, loc, scale, first, threads)

    # ------------------------------------------------------------ whole numbers
    def bernoulli(
        self, out: Array, p: float = 0.5, first: int = 0, threads: int | None = None
    ) -> Array:
        """1 with chance p (to 32 bits; 0 and 1 exact), else 0. Draws: 1 word each."""
        _check_kind(out, "biuf")
        threshold = draw.bernoulli_threshold(p)
        number, start, c2, c3, k0, k1 = self._where(out, first, 1, threads)
        if threshold == 1 << 32:
            out[...] = 1
            return out

        def kernel(piece: Array, at: int) -> None:
            fill.bernoulli(
                piece.view(np.uint8),
                np.uint64(number + at),
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
            TypeError: `low` or `high` is not an int.
            ValueError: an empty range, one that `out` cannot hold, or a stream whose op is not 0 or
                whose purpose gives op another meaning (all but GENERATOR and 128 ... 253).

        Source: Lemire, "Fast random integer generation in an interval" (TOMACS 2019), algorithm 5.
        """
        low, high = address.whole("low", low), address.whole("high", high)
        _check_kind(out, "iu")
        info = np.iinfo(out.dtype)
        if not info.min <= low < high <= int(info.max) + 1:
            raise ValueError(
                f"integers needs low < high, both within {out.dtype}, got {low} and {high}"
            )
        purpose = self.c3 >> 24
        if self.c3 >> 16 & 0xFF or not (purpose == address.GENERATOR or 128 <= purpose < 254):
            raise ValueError(
                "integers needs a stream of op 0 and of the purpose GENERATOR or 128 ... 253: "
                f"further attempts use the op, got c3 = {self.c3:#010x}"
            )
        span = high - low
        wide = span > 1 << 32
        number, start, c2, c3, k0, k1 = self._where(out, first, 2 if wide else 1, threads)

        def kernel(piece: Array, at: int) -> None:
            fill.below(
                piece.view(np.uint64),
                np.uint64(number + at),
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
            ValueError: weights that are empty, negative, not finite or all 0, or an `out` that
                cannot hold their numbers.
        """
        w = np.asarray(weights, np.float64)
        if w.ndim != 1 or w.size == 0 or not np.isfinite(w).all() or (w < 0).any():
            raise ValueError("weights must be a non-empty list of finite numbers >= 0")
        with np.errstate(all="ignore"):
            sums = np.cumsum(w)
        if not (0.0 < sums[-1] < np.inf):
            raise ValueError(f"weights must have a positive finite sum, got {sums[-1]}")
        _check_kind(out, "iu")
        if w.size - 1 > np.iinfo(out.dtype).max:
            raise ValueError(f"out must hold integers up to {w.size - 1}, got dtype {out.dtype}")
        with np.errstate(all="ignore"):
            cuts = (sums / sums[-1] * 2.0**53).astype(np.uint64)
        number, *where = self._where(out, first, 2, threads)

        def kernel(piece: Array, at: int) -> None:
            first_word = np.uint64(2 * (number + at))
            _words(piece.view(_U32), first_word, where, fill.RAW)
            fill.search(piece.view(np.uint64), cuts)

        fill.through(out, np.int64, threads, kernel)
        return out

    # ------------------------------------------------------------ inside
    def _where(self, out: Array, first: int, words_each: int, threads: int | None) -> Any:
        """Return (first, start, c2, c3, k0, k1) for a kernel that is about to fill `out`.

        Everything else has been checked by now: here a generator reserves its blocks.
        """
        fill.check_out(out, threads)
        first = address.whole("first", first)
        n = out.size
        if (
            first < 0
            or words_each * (first + n) > 1 << 64
            or self.start + (words_each * (first + n) + 3) // 4 > 1 << 64
        ):
            raise OverflowError(
                f"values {first} ... {first + n} are not within positions [0, 2**64) of the stream"
            )
        return first, *self._parts  # type: ignore[attr-defined]

    def _inverse(
        self,
        out: Array,
        table: tables.Table,
        shift: float,
        scale: float,
        first: int,
        threads: int | None,
    ) -> Array:
        real = _reals(shift, scale)
        return self._fill(out, _F32, fill.INVERSE, first, threads, real, table=table)

    def _fill(
        self,
        out: Array,
        native: np.dtype[Any],
        kind: int,
        first: int,
        threads: int | None,
        real: Array = _NO_REALS,
        whole: tuple[Any, Any] = _NO_RANGE,
        table: tables.Table = NO_TABLE,
    ) -> Array:
        """Fill `out` with numbers of `kind`, made in dtype `native` of 4 or 8 bytes."""
        each = native.itemsize // 4
        number, *where = self._where(out, first, each, threads)

        def kernel(piece: Array, at: int) -> None:
            first_word = np.uint64(each * (number + at))
            _words(piece.view(_U32), first_word, where, kind, real, whole, table)

        fill.through(out, native, threads, kernel)
        return out


class Reserving(Stream):
    """The stream of a generator: each call reserves blocks of its own, once its arguments are right.

    Args:
        reserve: reserve(blocks) -> (start, c2, c3, k0, k1) of them.
    """

    def __init__(self, reserve: Callable[[int], tuple[Any, ...]]) -> None:
        super().__init__(0, address.site(address.GENERATOR))
        object.__setattr__(self, "_reserve", reserve)

    def _where(self, out: Array, first: int, words_each: int, threads: int | None) -> Any:
        fill.check_out(out, threads)
        return first, *self._reserve((words_each * out.size + 3) // 4)  # type: ignore[attr-defined]


def _words(
    words: Array,
    number: Any,
    where: Any,
    kind: int,
    real: Array = _NO_REALS,
    whole: tuple[Any, Any] = _NO_RANGE,
    table: tables.Table = NO_TABLE,
) -> None:
    """Fill u32[n] with numbers of `kind`, from word `number` on."""
    fill.words(words, number, *where, kind, real, *whole, *table)


def _check_kind(out: Array, kinds: str) -> None:
    """Raise where `out` does not hold numbers of one of numpy's kinds; "f" takes in bfloat16."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, got {type(out).__name__}")
    if out.dtype.kind in kinds:
        return
    if "f" not in kinds or not out.dtype.name.startswith(("bfloat", "float")):
        what = "real numbers" if kinds == "f" else "integers" if kinds == "iu" else "numbers"
        raise ValueError(f"out must hold {what}, got dtype {out.dtype}")


def check_normal(mean: float, std: float) -> None:
    """Raise ValueError where these are no mean and no standard deviation in float32."""
    _finite(mean=mean, std=std)
    _at_least(0.0, std=std)


def _finite(**values: float) -> None:
    for name, value in values.items():
        if not -_LARGEST <= value <= _LARGEST:
            raise ValueError(f"{name} must be finite in float32, got {value}")


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


Cast = Callable[[Any], float]
"""Rounds a number to the type that it will be stored in, and returns it as a float."""


@lru_cache
def cast_to(dtype: Any) -> Cast:
    """Return the rounding to a dtype of numpy's."""
    return lambda x: float(np.array(x).astype(dtype))


def _uniform(dtype: Any, low: float, high: float) -> tuple[int, Array]:
    real = _F64 if dtype == _F64 else _F32
    return uniform_parts(real, None if dtype == real else cast_to(dtype), low, high)


@lru_cache(256)
@np.errstate(all="ignore")  # what numpy is to do about rounding is no concern of ours
def uniform_parts(
    real: np.dtype[Any], cast: Cast | None, low: float, high: float
) -> tuple[int, Array]:
    """Return the kind and the f64[low, span, most] of uniform numbers; most: the last below high.

    Args:
        real: float32 or float64, in which they are made.
        cast: what rounds them afterwards, if anything: `most` is still below high then.
        low, high: of the range.

    Raises:
        ValueError: an empty or infinite range.
    """
    a, b = real.type(low), real.type(high)
    span = b - a
    if not (a < b and np.isfinite(span) and (cast is None or np.isfinite(cast(b)))):
        raise ValueError(f"uniform needs low < high and a finite range, got {low}, {high}")
    most = np.nextafter(b, a) if cast is None else _most_below(cast, a, b)
    unit = (a, b) == (0.0, 1.0) and cast is None
    if real == _F64:
        return fill.UNIT_64 if unit else fill.RANGE_64, np.array([a, span, most])
    return fill.UNIT_32 if unit else fill.RANGE_32, np.array([a, span, most], np.float64)


def _most_below(cast: Cast, a: Any, b: Any) -> np.float32:
    """Return the largest float32 x in [a, b) that is still below b when it is cast."""
    if not cast(a) < b:
        raise ValueError(f"there is no number in [{a}, {b}) in the type of the result")

    def order(x: Any) -> int:  # rises with x
        bits = int(np.float32(x).view(np.int32))
        return bits if bits >= 0 else -(bits & 0x7FFFFFFF)

    def number(place: int) -> Any:
        bits = place if place >= 0 else -place | 0x80000000
        return np.uint32(bits).view(np.float32)

    first, last = order(a), order(b)
    while last - first > 1:
        middle = (first + last) // 2
        if cast(number(middle)) < b:
            first = middle
        else:
            last = middle
    most: np.float32 = number(first)
    return most


@lru_cache(256)
def _reals(shift: float, scale: float) -> NDArray[np.float64]:
    return np.array([shift, scale, 0.0], np.float64) + 0.0  # -0.0 and 0.0 are one key


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
    with np.errstate(all="ignore"):
        return np.float32(np.float32(mean) + np.float32(value * np.float32(std)))


@lru_cache(256)
@np.errstate(all="ignore")
def normal_ranks(
    cast: Cast | None, mean: float, std: float, low: float, high: float
) -> tuple[int, int]:
    """Return the first and the last rank whose value lies in [low, high], also when it is cast.

    Raises:
        ValueError: there is none.
    """

    def value(rank: int) -> tuple[float, float]:
        x = _normal_at(rank, mean, std)
        return float(x), float(x) if cast is None else cast(x)

    def first_rank(inside: Any) -> int:
        a, b = 0, 1 << 32
        while a < b:
            middle = (a + b) // 2
            if inside(*value(middle)):
                b = middle
            else:
                a = middle + 1
        return a

    a = first_rank(lambda x, y: x >= low and y >= low)
    b = first_rank(lambda x, y: x > high or y > high) - 1
    if not (low <= high and a <= b):
        raise ValueError(
            f"no normal number of mean {mean} and std {std} lies in [{low}, {high}]; "
            "take a range nearer the mean"
        )
    return a, b
