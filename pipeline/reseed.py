"""Makes code we did not write deterministic: the process-wide generators, seeded for each sample.

A dataset or a transform that calls `random`, `numpy.random` or torch's CPU generator would get
numbers that depend on which worker runs it and on what ran before. So before each such sample these
generators are set from the sample's own address (purpose USER, op 0; a batch that a `collate_fn`
makes has its first sample's, op 1):

    blocks 0 … 155    the 624 words of numpy's Mersenne Twister
    blocks 156 … 311  the 624 words of Python's
    block 312         64 bits for torch's, where torch is imported

In a worker process they are ours. In the user's process they are put back afterwards, so that nobody
notices. In worker threads nothing is seeded: the generators belong to all threads at once.

Seeding by the libraries' own functions costs 5.6 us (`random.seed`) and keeps 32 bits of a seed
(`numpy.random.seed`); writing the 624 words where they lie costs less than 1 us and keeps all. That
place is found once, and only used where reading it gives exactly what the library says is there.
"""

import contextlib
import ctypes
import random  # noqa: TID251 - the generator of the user's code, never drawn from here
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import uint32, uint64

from pipeline.errors import ConfigError
from rng import address, philox
from rng.kernel import kernel

_WORDS = 624  # of a Mersenne Twister MT19937
OP = 0  # of purpose USER: functions have ops from 248 on
COLLATE_OP = 1
SAMPLER_OP = 3  # 2 makes the iterator of an iterable dataset


@kernel
def _fill(
    scratch: Any, ours: Any, theirs: Any, pair: Any, n: Any, phase: Any, site: Any, k0: Any, k1: Any
) -> None:
    """Give each generator its 624 words of the stream of a sample's address, and torch scratch[:2].

    All words are used up then: the next draw makes new ones.
    """
    k0, k1, c2, c3 = uint64(k0), uint64(k1), uint64(phase), uint64(site)
    at = uint64(n) << uint64(24)
    whole = uint64(_WORDS - _WORDS % philox.WORDS)
    for target, begin in ((ours, uint64(0)), (theirs, uint64(1))):
        # Where they are wanted, without a copy; the last blocks would leave the array.
        for first in range(uint64(0), whole, uint64(philox.WORDS)):
            philox.blocks(target, begin + first, at + (first >> uint64(2)), c2, c3, k0, k1)
        philox.blocks(scratch, uint64(0), at + (whole >> uint64(2)), c2, c3, k0, k1)
        for i in range(uint64(_WORDS) - whole):
            target[begin + whole + i] = scratch[i]
        at += uint64(_WORDS // 4)
    philox.blocks(scratch, uint64(0), at, c2, c3, k0, k1)
    ours[_WORDS] = theirs[0] = uint32(_WORDS)
    pair[0] = 0


class Reseeder:
    """Seeds the process-wide generators from the addresses of samples.

    Args:
        key: 64-bit key of the run.
        lanes: logical workers.
    """

    def __init__(self, key: int, lanes: int) -> None:
        self._k0, self._k1 = key & address.M32, key >> 32
        self._lanes = lanes
        self._scratch = np.empty(philox.WORDS, np.uint32)
        self._generator: Any = None
        flag = _pair_flag()
        self._pair_known = flag is not None
        self._pair: Any = np.zeros(1, np.int32) if flag is None else flag
        self._find_numpy()
        place = _python_words()
        self._python_known = place is not None
        self._python = np.empty(_WORDS + 1, np.uint32) if place is None else place

    def _find_numpy(self) -> None:
        generator = _numpy_generator()
        if type(generator).__name__ != "MT19937":
            raise ConfigError(
                f"numpy's global generator was replaced by {type(generator).__name__}: it cannot "
                f"be seeded for each sample",
                do="keep numpy's MT19937 there, or draw from the rng that functions are given",
            )
        self._generator = generator  # held, so that its words stay where they are
        known = _numpy_words(generator)
        self._numpy_known = known is not None
        self._numpy: Any = np.empty(_WORDS + 1, np.uint32) if known is None else known

    def seed(self, position: int, phase: int, op: int = OP) -> None:
        """Set every generator for the sample at `position` of `phase`.

        Args:
            position, phase: whose turn it is.
            op: what is done: 0 makes a sample; 1 collates a batch that begins there; 2 makes the
                iterator of a dataset; 3 asks a sampler for an index.
        """
        if _numpy_generator() is not self._generator:  # the user's code installed another one
            self._find_numpy()
        n, lane = divmod(position, self._lanes)
        if not self._pair_known:
            np.random.seed(0)  # noqa: NPY002, TID251 - forgets the second half of a normal pair
        _fill(
            self._scratch,
            self._numpy,
            self._python,
            self._pair,
            n,
            phase,
            address.USER << 24 | op << 16 | lane,
            self._k0,
            self._k1,
        )
        if not self._numpy_known:
            words = self._numpy[:_WORDS]
            np.random.set_state(("MT19937", words, _WORDS, 0, 0.0))  # noqa: NPY002, TID251
        if self._python_known:
            random._inst.gauss_next = None  # type: ignore[attr-defined]
        else:
            random.setstate((3, (*self._python[1:].tolist(), _WORDS), None))
        torch = sys.modules.get("torch")
        if torch is not None:
            low, high = self._scratch[:2].tolist()
            torch.default_generator.manual_seed(low | high << 32)

    def explain(self, position: int, phase: int) -> dict[str, Any]:
        """Seed for a sample, and return what with: the address, and the first words of each."""
        self.seed(position, phase)
        n, lane = divmod(position, self._lanes)
        low, high = self._scratch[:2].tolist()
        return {
            "address": {"purpose": address.USER, "op": OP, "lane": lane, "n": n, "phase": phase},
            "numpy": self._numpy[:4].tolist(),
            "random": self._python[1:5].tolist(),
            "torch": low | high << 32,
        }


class Saved:
    """The state of the process-wide generators, to be put back."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002, TID251
        torch = sys.modules.get("torch")
        self._torch = None if torch is None else torch.default_generator.get_state()

    def restore(self) -> None:
        """Put everything back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002, TID251
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)


@contextlib.contextmanager
def seeded(reseeder: Reseeder) -> Iterator[Callable[..., None]]:
    """Give a reseeder's `seed`; put the generators back afterwards."""
    saved = Saved()
    try:
        yield reseeder.seed
    finally:
        saved.restore()


def _numpy_generator() -> Any:
    return np.random.get_bit_generator()  # type: ignore[attr-defined]  # noqa: TID251


def _numpy_words(generator: Any) -> np.ndarray | None:
    """Return a view u32[625] of numpy's global generator: its words and index, if that is known."""
    pointer = (ctypes.c_uint32 * (_WORDS + 1)).from_address(generator.ctypes.state_address)
    words = np.ctypeslib.as_array(pointer)
    state = generator.state["state"]
    return words if words.tolist() == [*state["key"].tolist(), state["pos"]] else None


def _pair_flag() -> np.ndarray | None:
    """Return a view i32[1] of what says whether numpy keeps the second of a pair of normals, if that is known.

    `np.random.seed` resets it too, but fills all words first. In the object it stands before the number kept,
    which is looked for by its value.
    """
    owner = np.random.mtrand._rand  # noqa: TID251
    before = np.random.get_state(legacy=False)  # noqa: NPY002, TID251
    mark = 0.7390851332151607
    try:
        np.random.set_state({**before, "has_gauss": 1, "gauss": mark})  # noqa: NPY002, TID251
        size = type(owner).__basicsize__
        places = [
            at
            for at in range(8, size - 7, 8)
            if ctypes.c_double.from_address(id(owner) + at).value == mark
        ]
        if len(places) != 1:
            return None
        where = (ctypes.c_int32 * 1).from_address(id(owner) + places[0] - 8)
        flag = np.ctypeslib.as_array(where)
        for value in (0, 1):
            was = int(flag[0])
            flag[0] = value
            known = np.random.get_state(legacy=False)["has_gauss"] == value  # noqa: NPY002, TID251
            if was not in (0, 1) or not known:
                flag[0] = was
                return None
        return flag
    finally:
        np.random.set_state(before)  # noqa: NPY002, TID251


def _python_words() -> np.ndarray | None:
    """Return a view u32[625] of Python's global generator: its index and words, if that is known.

    CPython's `RandomObject` is an object header, `int index`, `uint32_t state[624]`.
    """
    if sys.implementation.name != "cpython":
        return None
    where = id(random._inst) + object.__basicsize__
    words = np.ctypeslib.as_array((ctypes.c_uint32 * (_WORDS + 1)).from_address(where))
    _, state, _ = random.getstate()
    return words if words.tolist() == [state[-1], *state[:-1]] else None
