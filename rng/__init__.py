"""Random numbers that have an address instead of a state.

    >>> import rng
    >>> g = rng.manual_seed(123)                         # the one line
    >>> rng.permutation(6, seed=123, phase=0).tolist()   # epoch 0
    [4, 0, 1, 5, 3, 2]
    >>> rng.permutation(6, seed=123, phase=1).tolist()   # epoch 1, without epoch 0
    [2, 1, 4, 0, 3, 5]
    >>> [hex(w) for w in rng.address.counter(rng.address.AUGMENT, op=9, lane=2, phase=1)]
    ['0x0', '0x0', '0x1', '0x3090002']

What is promised, for a given STREAM_VERSION:

    same bits on every machine, operating system, Python, numpy and numba version        yes
    same bits for any number of threads, any chunking, any start offset                  yes
    two addresses of one seed never share a block; two seeds never share a key           yes
    fit for cryptography                                                                 no
"""

from typing import TYPE_CHECKING, Any

from rng import address
from rng.generator import Generator, auto_seed, default_generator, default_seed, manual_seed
from rng.permute import permutation, permutation_from_key
from rng.philox import philox4x32

if TYPE_CHECKING:
    from rng import init
    from rng.access import RandomAccessPermutation
    from rng.bits import BitGenerator
    from rng.dropout import dropout_mask
    from rng.stream import Stream
    from rng.threefry import threefry4x32

STREAM_VERSION = 1

__all__ = [
    "STREAM_VERSION",
    "BitGenerator",
    "Generator",
    "RandomAccessPermutation",
    "Stream",
    "address",
    "auto_seed",
    "default_generator",
    "default_seed",
    "dropout_mask",
    "init",
    "manual_seed",
    "permutation",
    "permutation_from_key",
    "philox4x32",
    "threefry4x32",
]

# Parts that few programs need, or that need more than numpy and numba, load at first use.
_LAZY = {
    "BitGenerator": "bits",
    "RandomAccessPermutation": "access",
    "Stream": "stream",
    "dropout_mask": "dropout",
    "threefry4x32": "threefry",
}
_MODULES = ("dropout", "init", "quality", "renaissance", "stream", "torch")


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(f"rng.{_LAZY[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"rng.{name}")
    raise AttributeError(f"module 'rng' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
