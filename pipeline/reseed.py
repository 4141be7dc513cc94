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
from numba import uint64

from pipeline.errors import ConfigError
from rng import address, philox
from rng.kernel import kernel

_WORDS = 624  # of a Mersenne Twister MT19937
OP = 0  # of purpose USER: functions have ops from 248 on
COLLATE_OP = 1
SAMPLER_OP = 3  # 2 makes the iterator of an iterable dataset


@kernel
def _fill(
    scratch: Any, ours: Any, theirs: Any, n: Any, phase: Any, site: Any, k0: Any, k1: Any
) -> None:
    """Fill u32[1280] with the stream of a sample's address; give each generator its part."""
    for q in range(uint64(scratch.shape[0] // philox.WORDS)):
        at = (uint64(n) << uint64(24)) | (q * uint64(philox.BLOCKS))
        philox.blocks(
            scratch,
            q * uint64(philox.WORDS),
            at,
            uint64(phase),
            uint64(site),
            uint64(k0),
            uint64(k1),
        )
    for i in range(uint64(_WORDS)):
        ours[i] = scratch[i]
        theirs[i] = scratch[uint64(_WORDS) + i]


class Reseeder:
    """Seeds the process-wide generators from the addresses of samples.

    Args:
        key: 64-bit key of the run.
        lanes: logical workers.
    """

    def __init__(self, key: int, lanes: int) -> None:
        self._k0, self._k1 = key & address.M32, key >> 32
        self._lanes = lanes
        self._scratch = np.empty(-(-(2 * _WORDS + 4) // philox.WORDS) * philox.WORDS, np.uint32)
        self._generator: Any = None
        self._find_numpy()
        place = _python_words()
        self._python_known = place is not None
        self._python = np.empty(_WORDS + 1, np.uint32) if place is None else place
        self._python_state = self._python[1:]

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
        self._numpy: Any = np.empty(_WORDS, np.uint32) if known is None else known

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
        np.random.seed(0)  # noqa: NPY002, TID251 - forgets the second half of a normal pair
        _fill(
            self._scratch,
            self._numpy,
            self._python_state,
            n,
            phase,
            address.USER << 24 | op << 16 | lane,
            self._k0,
            self._k1,
        )
        if not self._numpy_known:
            np.random.set_state(("MT19937", self._numpy, _WORDS, 0, 0.0))  # noqa: NPY002, TID251
        if self._python_known:
            self._python[0] = _WORDS  # all words are used up: the next draw makes new ones
            random._inst.gauss_next = None  # type: ignore[attr-defined]
        else:
            random.setstate((3, (*self._python_state.tolist(), _WORDS), None))
        torch = sys.modules.get("torch")
        if torch is not None:
            low, high = self._scratch[2 * _WORDS : 2 * _WORDS + 2].tolist()
            torch.default_generator.manual_seed(low | high << 32)

    def explain(self, position: int, phase: int) -> dict[str, Any]:
        """Seed for a sample, and return what with: the address, and the first words of each."""
        self.seed(position, phase)
        n, lane = divmod(position, self._lanes)
        words = self._scratch.tolist()
        low, high = words[2 * _WORDS : 2 * _WORDS + 2]
        return {
            "address": {"purpose": address.USER, "op": OP, "lane": lane, "n": n, "phase": phase},
            "numpy": words[:4],
            "random": words[_WORDS : _WORDS + 4],
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
    """Return a view u32[624] of the state words of numpy's global generator, if that is known."""
    pointer = (ctypes.c_uint32 * _WORDS).from_address(generator.ctypes.state_address)
    words = np.ctypeslib.as_array(pointer)
    return words if np.array_equal(words, generator.state["state"]["key"]) else None


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
