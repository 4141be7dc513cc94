"""The generator: a seed and an offset, and nothing else.

    state  = (seed, offset), both in [0, 2**64)
    offset = blocks handed out so far; the block at offset b is the one at (GENERATOR, position b)

Whoever reserves [b, b + count) owns those blocks: what is drawn depends on b alone, not on threads.
"""

import json
import logging
import os
import threading

from rng import address

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
            ValueError: `count` is negative.
            OverflowError: fewer than `count` blocks are left of the 2**64.
        """
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
        return first

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
            ValueError: not such a line.
        """
        state = json.loads(text)
        if not isinstance(state, dict) or set(state) != {"seed", "offset"}:
            raise ValueError(f"expected the fields seed and offset, got {text!r}")
        return cls(state["seed"], state["offset"])

    def __getstate__(self) -> dict[str, int]:
        seed, offset = self.get_state()
        return {"seed": seed, "offset": offset}

    def __setstate__(self, state: dict[str, int]) -> None:
        self._lock = threading.Lock()
        self.set_state(**state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Generator):
            return NotImplemented
        return self.get_state() == other.get_state()

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, offset={self._offset})"


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
