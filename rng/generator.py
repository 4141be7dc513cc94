"""The generator: a seed and an offset, and nothing else.

    state  = (seed, offset), both in [0, 2**64)
    offset = blocks handed out so far; the block at offset b is the one at (GENERATOR, position b)

Whoever reserves [b, b + count) owns those blocks: what is drawn depends on b alone, not on threads.
"""

import json
import logging
import os
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rng import address

_SITE = address.site(address.GENERATOR)
Array = NDArray[Any]
Shape = int | tuple[int, ...] | None

_log = logging.getLogger(__name__)


class Generator:
    """A stream of numbers whose whole state is (seed, offset).

    Args:
        seed: in [0, 2**64); all 64 bits count. None draws one from the operating system.
        offset: the block to start at, in [0, 2**64).

    Safe to share among threads: each call reserves its blocks at once, and the lock is never held
    while numbers are made.

    >>> g = Generator(42)
    >>> g.next_offset(10), g.next_offset(5), g.offset
    (0, 10, 15)
    >>> Generator.from_json(g.to_json())
    Generator(seed=42, offset=15)
    """

    def __init__(self, seed: int | None = None, offset: int = 0) -> None:
        self._lock = threading.Lock()
        self._stream: Any = None
        self._seed: int
        self._offset: int
        self._key: int
        self.set_state(entropy_seed() if seed is None else seed, offset)

    @property
    def seed(self) -> int:
        """The seed."""
        return self._seed

    @property
    def key(self) -> int:
        """The 64-bit key, mix64(seed)."""
        return self._key

    @property
    def offset(self) -> int:
        """Blocks handed out so far."""
        return self._offset

    def next_offset(self, count: int) -> int:
        """Reserve `count` blocks and return the first one's offset.

        Raises:
            TypeError: `count` is not an int.
            ValueError: `count` is negative.
            OverflowError: fewer than `count` blocks are left of the 2**64.
        """
        return self._reserve(address.whole("count", count))[0]

    def _reserve(self, count: int) -> tuple[int, Any]:
        """Return the first offset of `count` reserved blocks, and the key's words of that moment."""
        if count < 0:
            raise ValueError(f"count must be >= 0, got {count}")
        with self._lock:
            first = self._offset
            if first + count > address.M64:
                raise OverflowError(
                    f"the generator of seed {self._seed} has {address.M64 - first} blocks left, "
                    f"{count} were asked for"
                )
            self._offset = first + count
            return first, self._parts

    def _reserve_for_stream(self, blocks: int) -> tuple[Any, ...]:
        first, parts = self._reserve(blocks)
        return np.uint64(first), *parts

    def jump(self, blocks: int) -> "Generator":
        """Move `blocks` ahead, in constant time, and return self."""
        self.next_offset(blocks)
        return self

    def get_state(self) -> tuple[int, int]:
        """Return (seed, offset)."""
        with self._lock:
            return self._seed, self._offset

    def set_state(self, seed: int, offset: int) -> None:
        """Go to (seed, offset).

        Raises:
            TypeError: one of them is not an int.
            ValueError: one of them is not in [0, 2**64).
        """
        seed, offset = address.check_seed(seed), address.check_u64("offset", offset)
        with self._lock:
            self._seed, self._offset, self._key = seed, offset, address.mix64(seed)
            parts = (0, _SITE, self._key & address.M32, self._key >> 32)
            self._parts = tuple(np.uint64(part) for part in parts)

    def manual_seed(self, seed: int) -> "Generator":
        """Go to (seed, 0) and return self."""
        self.set_state(seed, 0)
        return self

    def to_json(self) -> str:
        """Return the state as a line of JSON."""
        seed, offset = self.get_state()
        return json.dumps({"seed": seed, "offset": offset})

    @classmethod
    def from_json(cls, text: str) -> "Generator":
        """Return a generator at a state made by `to_json`.

        Raises:
            TypeError: a field that is not an int.
            ValueError: not such a line, or a field out of range.
        """
        state = json.loads(text)
        if not isinstance(state, dict) or set(state) != {"seed", "offset"}:
            raise ValueError(f"expected the fields seed and offset, got {text!r}")
        return cls(state["seed"], state["offset"])

    # ------------------------------------------------------------ numbers
    # Each call reserves its blocks and fills a new array of `shape` and `dtype`, or `out`; `threads`
    # is the most threads to use. Ranges, errors and words drawn: the method of that name of `Stream`.
    # A call that raises has reserved nothing.
    def uint32(
        self, shape: Shape = None, *, out: Array | None = None, threads: int | None = None
    ) -> Array:
        """Return u32 words. Draws: 1 word each."""
        return self._fill("uint32", shape, np.uint32, out, threads)

    def uint64(
        self, shape: Shape = None, *, out: Array | None = None, threads: int | None = None
    ) -> Array:
        """Return u64 numbers. Draws: 2 words each."""
        return self._fill("uint64", shape, np.uint64, out, threads)

    def uniform(
        self,
        shape: Shape = None,
        low: float = 0.0,
        high: float = 1.0,
        *,
        dtype: Any = "float32",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return real numbers in [low, high). Draws: 1 word each, float64: 2.

        >>> Generator(42).uniform(2).tolist()
        [0.3186030983924866, 0.5093458294868469]
        """
        return self._fill("uniform", shape, dtype, out, threads, low, high)

    def normal(
        self,
        shape: Shape = None,
        mean: float = 0.0,
        std: float = 1.0,
        *,
        dtype: Any = "float32",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return normal numbers. Draws: 1 word each."""
        return self._fill("normal", shape, dtype, out, threads, mean, std)

    def truncated_normal(
        self,
        shape: Shape = None,
        mean: float = 0.0,
        std: float = 1.0,
        low: float = -2.0,
        high: float = 2.0,
        *,
        dtype: Any = "float32",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return normal numbers conditioned on [low, high]. Draws: 1 word each."""
        return self._fill("truncated_normal", shape, dtype, out, threads, mean, std, low, high)

    def lognormal(
        self,
        shape: Shape = None,
        mean: float = 0.0,
        std: float = 1.0,
        *,
        dtype: Any = "float32",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return exp(normal(mean, std)). Draws: 1 word each."""
        return self._fill("lognormal", shape, dtype, out, threads, mean, std)

    def exponential(
        self,
        shape: Shape = None,
        scale: float = 1.0,
        *,
        dtype: Any = "float32",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return exponential numbers of mean `scale`. Draws: 1 word each."""
        return self._fill("exponential", shape, dtype, out, threads, scale)

    def gumbel(
        self,
        shape: Shape = None,
        loc: float = 0.0,
        scale: float = 1.0,
        *,
        dtype: Any = "float32",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return Gumbel numbers. Draws: 1 word each."""
        return self._fill("gumbel", shape, dtype, out, threads, loc, scale)

    def bernoulli(
        self,
        shape: Shape = None,
        p: float = 0.5,
        *,
        dtype: Any = "bool",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return True (1) with chance p. Draws: 1 word each."""
        return self._fill("bernoulli", shape, dtype, out, threads, p)

    def integers(
        self,
        shape: Shape,
        low: int,
        high: int,
        *,
        dtype: Any = "int64",
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return integers in [low, high). Draws: 1 word each, 2 where high - low > 2**32.

        >>> Generator(42).integers(6, 1, 7).tolist()
        [2, 4, 1, 1, 6, 4]
        """
        return self._fill("integers", shape, dtype, out, threads, low, high)

    def random_int(self, low: int, high: int) -> int:
        """Return an int in [low, high], both ends included. Draws: 1 block.

        Raises:
            TypeError: one of them is not an int.
            ValueError: low > high, or a range beyond int64.
        """
        return int(self.integers(1, low, address.whole("high", high) + 1)[0])

    def categorical(
        self,
        shape: Shape,
        weights: Any,
        *,
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return i64 numbers of `weights`, with chances proportional to them. Draws: 2 words each."""
        return self._fill("categorical", shape, np.int64, out, threads, weights)

    def choice(self, values: Any, shape: Shape = None, weights: Any = None) -> Any:
        """Return elements of `values` (or of range(values)), drawn with replacement.

        Args:
            values: an array, drawn from along its first axis, or an int.
            shape: None returns one element.
            weights: chances, proportional to them; None: equal.

        Draws: as `integers` or `categorical`.

        Raises:
            TypeError: `values` is neither an array nor an int.
            ValueError: nothing to choose from, or weights that do not fit.
        """
        n = address.whole("values", values) if np.ndim(values) == 0 else len(values)
        if n < 1:
            raise ValueError(f"there must be something to choose from, got {values!r}")
        if weights is not None and np.size(weights) != n:
            raise ValueError(f"there are {n} values and {np.size(weights)} weights")
        size = () if shape is None else shape
        where = self.integers(size, 0, n) if weights is None else self.categorical(size, weights)
        return where[()] if np.ndim(values) == 0 else np.asarray(values)[where]

    def permutation(self, n: int) -> Array:
        """Return a random order of 0 ... n-1, as `rng.permutation`. Draws: 1 block, its key.

        Raises:
            TypeError: n is not an int.
            ValueError: n is out of range.
        """
        from rng import permute

        n = permute.check_n(n)
        return permute.permutation_from_key(n, self._new_key())

    def sample(self, n: int, k: int) -> Array:
        """Return k different numbers of 0 ... n-1 in random order, in O(k). Draws: 1 block.

        Raises:
            ValueError: k > n, or one of them out of range.
        """
        from rng import permute

        n = permute.check_n(n)
        k = permute.check_n(k, n, "k")
        return permute.sample_from_key(n, k, self._new_key())

    def _new_key(self) -> int:
        return int(self.uint64(1)[0])

    def _fill(
        self,
        name: str,
        shape: Shape,
        dtype: Any,
        out: Array | None,
        threads: int | None,
        *parameters: Any,
    ) -> Array:
        """Let the stream's method `name` fill `out` or a new array: it reserves the blocks."""
        if self._stream is None:
            from rng.stream import Reserving

            self._stream = Reserving(self._reserve_for_stream)
        if out is None:
            out = np.empty(() if shape is None else shape, dtype)
        elif shape is not None and out.shape != _size(shape):
            raise ValueError(f"out has shape {out.shape}, shape is {shape}")
        array: Array = getattr(self._stream, name)(out, *parameters, threads=threads)
        return array

    # ------------------------------------------------------------ copies
    def __getstate__(self) -> dict[str, int]:
        seed, offset = self.get_state()
        return {"seed": seed, "offset": offset}

    def __setstate__(self, state: dict[str, int]) -> None:
        self._lock = threading.Lock()
        self._stream = None
        self.set_state(**state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Generator):
            return NotImplemented
        return self.get_state() == other.get_state()

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, offset={self._offset})"


def _size(shape: Any) -> tuple[int, ...]:
    return tuple(shape) if isinstance(shape, Iterable) else (shape,)


# ---------------------------------------------------------------- the default generator
_default: Generator | None = None
_default_seed: int | None = None
_default_lock = threading.Lock()


def entropy_seed() -> int:
    """Return a seed from the operating system's entropy."""
    return int.from_bytes(os.urandom(8), "little")


def manual_seed(seed: int) -> Generator:
    """Seed the default generator and return it; loaders made later use this seed.

    Raises:
        TypeError: `seed` is not an int.
        ValueError: `seed` is not in [0, 2**64).

    >>> manual_seed(123)
    Generator(seed=123, offset=0)
    >>> default_seed()
    123
    """
    global _default_seed
    generator = default_generator().manual_seed(seed)
    _default_seed = generator.seed
    return generator


def auto_seed() -> int:
    """Return a seed from the operating system, having logged it and called `manual_seed` with it."""
    seed = entropy_seed()
    _log.info("seed %d drawn from the operating system", seed)
    manual_seed(seed)
    return seed


def default_generator() -> Generator:
    """Return the process's default generator; its seed is random until `manual_seed` is called."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Generator()
        return _default


def default_seed() -> int | None:
    """Return the seed given to `manual_seed` (or drawn by `auto_seed`), None before either."""
    return _default_seed
