"""numpy's distributions on an address: a BitGenerator that reads the words of a stream.

    numpy.random.Generator(BitGenerator(seed)).standard_normal(3)

32-bit draws take one word, 64-bit draws two (low half first), doubles the upper 53 bits of two.
What numpy makes of them may change from one numpy version to the next; the words do not.
"""

import ctypes
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
from numba import cfunc, float64, types, uint64

from rng import address, philox
from rng.kernel import kernel
from rng.stream import Stream

# The state: u64[_SIZE] = key halves, c2, c3, next position, words used, then the words themselves.
_K0, _K1, _C2, _C3, _POSITION, _USED, _WORDS = range(7)
_SIZE = _WORDS + philox.WORDS // 2


class BitGenerator(np.random.BitGenerator):  # noqa: TID251
    """numpy's BitGenerator interface to a stream of this package.

    Args:
        where: a seed (then the stream is that of `rng.Generator(seed)`: the same words) or a
            `Stream`.

    Raises:
        TypeError, ValueError: `where` is neither an int in [0, 2**64) nor a `Stream`.

    >>> import numpy
    >>> g = numpy.random.Generator(BitGenerator(42))
    >>> g.random(2).tolist() == numpy.random.Generator(BitGenerator(42)).random(2).tolist()
    True
    """

    def __init__(self, where: int | Stream) -> None:
        super().__init__(0)
        if not isinstance(where, Stream):
            where = Stream(address.mix64(where), address.site(address.GENERATOR))
        self._words = np.zeros(_SIZE, np.uint64)
        self.state = {**dataclasses.asdict(where), "word": 0}
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        interface = (ctypes.c_void_p * 5).from_address(pointer(self.capsule, b"BitGenerator"))
        interface[0] = self._words.ctypes.data
        functions: list[Any] = [_next_64, _next_32, _next_double, _next_64]
        for i, function in enumerate(functions):
            interface[i + 1] = function.address

    @property
    def state(self) -> Mapping[str, Any]:
        """The stream's fields, how many of its words were used, how many were spawned: JSON.

        Setting it raises TypeError for a field that is not an int, ValueError for missing fields and
        OverflowError for fields out of range.
        """
        w = [int(x) for x in self._words[:_WORDS]]
        made = 4 * ((w[_POSITION] - self._stream.start) & address.M64)
        return {
            "bit_generator": type(self).__name__,
            **dataclasses.asdict(self._stream),
            "word": made - philox.WORDS + w[_USED],
            "spawned": self._spawned,
        }

    @state.setter
    def state(self, value: Mapping[str, Any]) -> None:
        names = [field.name for field in dataclasses.fields(Stream)]
        if not {*names, "word"} <= set(value):
            raise ValueError(f"expected the fields {', '.join(names)}, word; got {value!r}")
        stream = Stream(**{name: value[name] for name in names})
        word = address.whole("word", value["word"])
        if not 0 <= word <= 4 * ((1 << 64) - philox.BLOCKS - stream.start):
            raise OverflowError(f"word must be within positions [0, 2**64), got {word}")
        self._stream: Stream = stream
        self._spawned = address.whole("spawned", value.get("spawned", 0))
        block = stream.start + word // philox.WORDS * philox.BLOCKS
        parts = (stream.key & address.M32, stream.key >> 32, stream.c2, stream.c3, block)
        self._words[:_USED] = parts
        self._words[_USED] = philox.WORDS
        _refill(self._words)
        self._words[_USED] = word % philox.WORDS

    def spawn(self, n_children: int) -> list["BitGenerator"]:
        """Return generators with keys derived from this one's key and how many it has spawned.

        Raises:
            TypeError, ValueError: `n_children` is not an int >= 0.
        """
        if address.whole("n_children", n_children) < 0:
            raise ValueError(f"n_children must be >= 0, got {n_children}")
        stream, first = self._stream, self._spawned
        self._spawned += n_children
        key = address.named(stream.key, "spawn")
        return [
            BitGenerator(Stream(address.fold_in(key, i), stream.c3, stream.c2))
            for i in range(first, first + n_children)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.state,)


def _restore(state: Mapping[str, Any]) -> BitGenerator:
    made = BitGenerator(0)
    made.state = state
    return made


# ---------------------------------------------------------------- kernels
_pointer_to: Callable[[Any], Any] = types.CPointer
_array_at: Any = numba.carray  # type: ignore[attr-defined]
_STATE = _pointer_to(types.uint64)


@kernel
def _refill(s: Any) -> None:
    words = s[_WORDS:].view(np.uint32)
    philox.blocks(words, uint64(0), s[_POSITION], s[_C2], s[_C3], s[_K0], s[_K1])
    s[_POSITION] += uint64(philox.BLOCKS)
    s[_USED] = uint64(0)


@kernel
def _take(s: Any) -> Any:
    """Return the next word, as u64."""
    if s[_USED] == uint64(philox.WORDS):
        _refill(s)
    used = s[_USED]
    s[_USED] = used + uint64(1)
    pair = s[uint64(_WORDS) + (used >> uint64(1))]
    return pair >> (uint64(32) * (used & uint64(1))) & uint64(0xFFFFFFFF)


@cfunc(types.uint64(_STATE), cache=True)
def _next_64(pointer: Any) -> Any:
    s = _array_at(pointer, _SIZE)
    low = _take(s)
    return low | _take(s) << uint64(32)


@cfunc(types.uint32(_STATE), cache=True)
def _next_32(pointer: Any) -> Any:
    return _take(_array_at(pointer, _SIZE))


@cfunc(types.float64(_STATE), cache=True)
def _next_double(pointer: Any) -> Any:
    s = _array_at(pointer, _SIZE)
    low = _take(s)
    return float64((low | _take(s) << uint64(32)) >> uint64(11)) * 2.0**-53
