"""Which positions make which batch: pure arithmetic, known for every step without iterating.

    global batch g of a pass that starts at offset o = positions [o + g·G, o + (g+1)·G),  G = B·world
    rank r's batch = the contiguous block r of it

The order of a phase maps positions to sample ids; it is a function of (key, phase) alone. Rank and
world size only cut it, so they never decide what a position holds.
"""

import bisect
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import rng
from pipeline.errors import ConfigError
from rng import address
from rng.permute import permutation_from_key

TAILS = ("short", "even", "trim", "drop", "pad")
MAX_POSITIONS = 1 << 40


@dataclass(frozen=True)
class Plan:
    """How one rank cuts a phase of `length` positions into batches.

    Attributes:
        length: N, positions in the phase.
        batch_size: B, samples of one rank's full batch.
        world_size: ranks.
        rank: this one.
        tail: what happens to the last N mod G positions: "short": shared out evenly, smaller
            batches (an empty one if there are fewer positions than ranks); "even": shared out
            evenly, and filled up to equal batches with at most world_size - 1 positions from the
            start of the order, marked (torch's DistributedSampler); "trim": shared out evenly, the
            at most world_size - 1 positions too many left out (the same with drop_last); "drop":
            left out; "pad": full batches, filled up like "even".
    """

    length: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    tail: str = "short"

    def __post_init__(self) -> None:
        assert self.batch_size >= 1
        assert 0 <= self.rank < self.world_size
        assert self.tail in TAILS

    @property
    def global_batch(self) -> int:
        """G, samples of one step of all ranks."""
        return self.batch_size * self.world_size

    def steps(self, offset: int = 0) -> int:
        """Return the number of batches from `offset` to the end: the same for every rank."""
        left = max(0, self.length - offset)
        if self.tail == "drop":
            return left // self.global_batch
        if self.tail == "trim":
            left -= left % self.world_size
        return -(-left // self.global_batch)

    def offset_after(self, step: int, offset: int = 0) -> int:
        """Return how many samples all ranks have had after `step` (0-based) of such a pass."""
        return min(self.length, offset + (step + 1) * self.global_batch)

    def step_of(self, position: int) -> int:
        """Return the step of a whole phase whose batches, of all ranks, hold a position."""
        return position // self.global_batch

    def ends_at(self, offset: int) -> bool:
        """Return whether a pass is over at `offset`."""
        return self.steps(offset) == 0

    def positions(self, step: int, offset: int = 0) -> tuple[np.ndarray, int]:
        """Return this rank's positions at a step of a pass that starts at `offset`.

        Returns:
            (uint64[n], how many of them are real); those after are padding.

        Raises:
            IndexError: there is no such step.
        """
        if not 0 <= step < self.steps(offset):
            raise IndexError(f"step {step} is not in [0, {self.steps(offset)})")
        first = offset + step * self.global_batch
        left = self.length - first
        if left >= self.global_batch:
            lo = first + self.rank * self.batch_size
            return np.arange(lo, lo + self.batch_size, dtype=np.uint64), self.batch_size
        if self.tail in ("pad", "even"):
            width = self.batch_size if self.tail == "pad" else -(-left // self.world_size)
            lo = first + self.rank * width
            wide = np.arange(lo, lo + width, dtype=np.uint64)
            return wide % np.uint64(self.length), max(0, min(width, self.length - lo))
        if self.tail == "trim":
            left -= left % self.world_size
        share, more = divmod(left, self.world_size)
        lo = first + self.rank * share + min(self.rank, more)
        n = share + (self.rank < more)
        return np.arange(lo, lo + n, dtype=np.uint64), n

    def full_batches(self, step: int, most: int, offset: int = 0) -> np.ndarray:
        """Return the positions of up to `most` full batches from `step` on: uint64[n, batch_size].

        Many at once, because small batches cost little more than the calls that look them up.
        """
        left = self.length - offset - step * self.global_batch
        count = max(0, min(most, left // self.global_batch))
        first = offset + step * self.global_batch + self.rank * self.batch_size
        starts = np.arange(count, dtype=np.uint64) * np.uint64(self.global_batch)
        inside = np.arange(first, first + self.batch_size, dtype=np.uint64)
        return starts[:, None] + inside

    def all_positions(self, offset: int) -> np.ndarray:
        """Return every position this rank still has to deliver from `offset`, padding excluded."""
        parts = [
            positions[:real]
            for positions, real in (self.positions(s, offset) for s in range(self.steps(offset)))
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)


@dataclass(frozen=True)
class Cuts(Plan):
    """Batches of any sizes, as a `batch_sampler` gives them.

    Attributes:
        bounds: batch k holds positions [bounds[k], bounds[k + 1]); bounds[0] is 0.
    """

    bounds: tuple[int, ...] = (0,)

    def steps(self, offset: int = 0) -> int:
        """Return the number of batches from `offset` to the end."""
        return len(self.bounds) - 1 - self._at(offset)

    def step_of(self, position: int) -> int:
        """Return the batch of a whole phase that holds a position."""
        return bisect.bisect_right(self.bounds, position) - 1

    def _at(self, offset: int) -> int:
        """Return the batch that `offset` lies in or begins; empty ones there are over."""
        return min(max(0, bisect.bisect_right(self.bounds, offset) - 1), len(self.bounds) - 1)

    def offset_after(self, step: int, offset: int = 0) -> int:
        """Return how many samples were delivered after `step` of such a pass."""
        return self.bounds[self._at(offset) + step + 1]

    def full_batches(self, step: int, most: int, offset: int = 0) -> np.ndarray:
        """Return none: batches are of any sizes."""
        del step, most, offset
        return np.empty((0, self.batch_size), np.uint64)

    def positions(self, step: int, offset: int = 0) -> tuple[np.ndarray, int]:
        """Return (uint64[n], n): the positions of a step of a pass that starts at `offset`."""
        if not 0 <= step < self.steps(offset):
            raise IndexError(f"step {step} is not in [0, {self.steps(offset)})")
        k = self._at(offset) + step
        lo = max(self.bounds[k], offset)
        return np.arange(lo, self.bounds[k + 1], dtype=np.uint64), self.bounds[k + 1] - lo


class Order(Protocol):
    """Maps positions of one phase to sample ids."""

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return int64[n] for uint64[n]."""
        ...


class Sequential:
    """Position q holds sample q."""

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return the positions."""
        return positions.astype(np.int64)


class Listed:
    """Positions index a list: a permutation, or what a sampler gave.

    Attributes:
        listed: ids.
        keys: {id: key} where the sampler gave keys that are no indices (`pipeline.keyed`); else None.
    """

    keys: Mapping[int, Any] | None = None

    def __init__(self, listed: np.ndarray) -> None:
        self.listed = listed

    def digest(self) -> str:
        """Return 16 hex digits of the list."""
        data = np.ascontiguousarray(self.listed, "<i8").data
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return the listed ids."""
        return self.listed[positions.astype(np.int64)].astype(np.int64)


class RandomAccess:
    """A permutation computed index by index: O(1) memory, for sets too big to hold an order."""

    def __init__(self, n: int, seed: int, phase: int) -> None:
        self._permutation: Any = rng.RandomAccessPermutation(n, seed, phase)

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return the permuted positions."""
        found: np.ndarray = np.asarray(self._permutation[positions])
        return found.astype(np.int64)


ORDERS = ("fisher_yates", "random_access")


def make_order(kind: str, n: int, key: int, phase: int) -> Order:
    """Return the order of a phase.

    Args:
        kind: "sequential", "fisher_yates" or "random_access".
        n: positions.
        key: 64-bit key of the run, split folded in.
        phase: uint32.

    Raises:
        ConfigError: too many positions, or no memory for the order.
    """
    if n > MAX_POSITIONS:
        raise ConfigError(f"a dataset may have 2**40 samples, this one has {n}")
    if kind == "sequential" or n < 2:
        return Sequential()
    if kind == "random_access":
        return RandomAccess(n, address.unmix64(key), phase)
    try:
        return Listed(permutation_from_key(n, key, phase))
    except MemoryError as e:
        raise ConfigError(
            f"no memory for a shuffled order of {n:,} samples: it takes "
            f"{n * (4 if n <= 1 << 32 else 8):,} bytes",
            do='use order="random_access", which takes none',
            field="order",
        ) from e


class Streamed:
    """Positions index what a sampler without a length gives, read as far as is needed.

    Args:
        read: gives the next index, or raises StopIteration.
        length: of the dataset.
        within: what to enter while reading.
    """

    def __init__(
        self,
        read: Callable[[], Any],
        length: int,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._read = read
        self._length = length
        self._within = within
        self._kept: deque[int] = deque()
        self._first = 0  # position of the first one kept
        self._over = False
        self._hash = hashlib.blake2b(digest_size=8)

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return the ids at successive positions; fewer where the sampler ends."""
        if not len(positions):
            return np.empty(0, np.int64)
        lo, hi = int(positions[0]), int(positions[-1]) + 1
        self._read_to(hi)
        end = min(hi, self._first + len(self._kept))
        return np.array([self._kept[q - self._first] for q in range(lo, end)], np.int64)

    def delivered(self, offset: int) -> None:
        """Forget the ids below `offset`; they are in the digest from now on."""
        while self._first < offset:
            upto = min(offset, self._first + 4096)
            self._read_to(upto)
            ids = [self._kept.popleft() for _ in range(min(upto - self._first, len(self._kept)))]
            if not ids:
                return
            self._hash.update(np.array(ids, "<i8").tobytes())
            self._first += len(ids)

    def digest(self) -> str:
        """Return 16 hex digits of what was delivered."""
        return self._hash.hexdigest()

    def _read_to(self, hi: int) -> None:
        if self._over or self._first + len(self._kept) >= hi:
            return
        with self._within():
            while self._first + len(self._kept) < hi:
                try:
                    index = self._read()
                except StopIteration:
                    self._over = True
                    return
                self._kept.append(int(checked_ids([index], self._length)[0]))


class Cutting(Listed):
    """A list with the places where a `batch_sampler` cut it.

    Attributes:
        bounds: batch k is listed[bounds[k] : bounds[k + 1]].
    """

    def __init__(self, listed: np.ndarray, bounds: tuple[int, ...]) -> None:
        super().__init__(listed)
        self.bounds = bounds

    def digest(self) -> str:
        """Return 16 hex digits of the list and its cuts."""
        cuts = np.array(self.bounds, "<i8").tobytes()
        return hashlib.blake2b(super().digest().encode() + cuts, digest_size=8).hexdigest()


def cut(batches: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return all that a `batch_sampler` gave in one list, and where its batches begin and end.

    Raises:
        ConfigError: it gave something else than lists with something in them.
    """
    flat: list[Any] = []
    bounds = [0]
    for number, batch in enumerate(batches):
        try:
            flat += list(batch)
        except TypeError as e:
            raise ConfigError(
                f"batch {number} of the batch_sampler is {batch!r}, not a list of indices",
                do="give lists of ints; for single indices use sampler",
            ) from e
        if len(flat) == bounds[-1]:
            raise ConfigError(
                f"batch {number} of the batch_sampler is empty: there is no sample to make a batch of",
                do="leave out empty lists",
                field="batch_sampler",
            )
        bounds.append(len(flat))
    return flat, tuple(bounds)


def checked_ids(listed: Sequence[Any], length: int) -> np.ndarray:
    """Return indices that a sampler gave as int64[n] in [0, length).

    Raises:
        ConfigError: they are something else.
    """
    try:
        ids = np.array([i.__index__() for i in listed], np.int64)
    except AttributeError:
        bad = next(i for i in listed if not hasattr(i, "__index__"))
        raise ConfigError(
            f"the sampler gave {bad!r}, not an index of the dataset",
            do="give ints; for other keys the sampler needs a __len__",
        ) from None
    except OverflowError:
        at = next(k for k, i in enumerate(listed) if not -(2**63) <= i.__index__() < 2**63)
        raise ConfigError(
            f"the sampler gave index {listed[at]} at place {at}; the dataset has {length} samples"
        ) from None
    wrong = np.flatnonzero((ids < -length) | (ids >= length))
    if len(wrong):
        at = int(wrong[0])
        raise ConfigError(
            f"the sampler gave index {ids[at]} at place {at}; the dataset has {length} samples"
        )
    found: np.ndarray = np.where(ids < 0, ids + length, ids)
    return found


class Coverage:
    """Which of the places 0, 1, 2, … were delivered, as few ranges (fast mode).

    prefix = all places below it were delivered;   ahead = ranges delivered beyond it
    """

    def __init__(self, prefix: int = 0, ahead: Sequence[tuple[int, int]] = ()) -> None:
        self.prefix = prefix
        self.ahead: list[tuple[int, int]] = sorted((int(a), int(b)) for a, b in ahead)

    def copy(self) -> "Coverage":
        """Return an independent copy."""
        return Coverage(self.prefix, self.ahead)

    def add(self, places: np.ndarray) -> None:
        """Mark int64[n] places as delivered."""
        n = len(places)
        starts_next = n > 0 and not self.ahead and places[0] == self.prefix
        if starts_next and places[-1] - places[0] == n - 1 and (places[1:] > places[:-1]).all():
            self.prefix += n  # simply the next ones, in order
            return
        places = np.sort(places.astype(np.int64))
        cuts = np.flatnonzero(np.diff(places) != 1) + 1
        runs = [(int(r[0]), int(r[-1]) + 1) for r in np.split(places, cuts) if len(r)]
        merged: list[tuple[int, int]] = []
        for lo, hi in sorted(self.ahead + runs):
            if lo <= self.prefix:
                self.prefix = max(self.prefix, hi)
            elif merged and lo <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
            else:
                merged.append((lo, hi))
        self.ahead = [(lo, hi) for lo, hi in merged if hi > self.prefix]
        while self.ahead and self.ahead[0][0] <= self.prefix:
            self.prefix = max(self.prefix, self.ahead.pop(0)[1])

    def missing(self, length: int) -> np.ndarray:
        """Return int64[m]: the places below `length` that were not delivered."""
        keep = np.ones(max(0, length - self.prefix), bool)
        for lo, hi in self.ahead:
            keep[max(0, lo - self.prefix) : max(0, hi - self.prefix)] = False
        return np.flatnonzero(keep) + self.prefix
