"""Fingerprints: of a batch, chained over a phase, and one that order does not change.

    fingerprint(batch) = BLAKE2b-128 of its sample ids, positions, and every field's bytes
    chain_0 = 0,  chain_{k+1} = BLAKE2b-128(chain_k, fingerprint_k)
    set digest = sum over samples of BLAKE2b-128(sample id, position, bytes)  mod 2**128

The chain proves the sequence (reproducible mode), the set digest that each sample came exactly
once with the same bytes (both modes, any batch size, any world size when ranks are added up).
"""

import hashlib
from collections.abc import Sequence

import numpy as np

_NBYTES = 16
_MASK = (1 << 8 * _NBYTES) - 1


def fingerprint(arrays: Sequence[np.ndarray], ids: np.ndarray, positions: np.ndarray) -> str:
    """Return 32 hex digits for one batch.

    Args:
        arrays: its fields, in order.
        ids: int64[n], sample ids.
        positions: uint64[n].
    """
    h = hashlib.blake2b(digest_size=_NBYTES)
    h.update(np.ascontiguousarray(ids, "<i8").data)
    h.update(np.ascontiguousarray(positions, "<u8").data)
    for array in arrays:
        h.update(f"{array.dtype.str}{array.shape}".encode())
        h.update(_bytes(array))
    return h.hexdigest()


class Digest:
    """What was delivered in a phase, so far.

    Attributes:
        chain: of the batches in the order of delivery, 32 hex digits.
        samples: how many.
        batches: how many.
    """

    def __init__(self) -> None:
        self._chain = bytes(_NBYTES)
        self._set = 0
        self.samples = 0
        self.batches = 0

    @property
    def chain(self) -> str:
        """The chained digest."""
        return self._chain.hex()

    @property
    def set(self) -> str:
        """The digest that order does not change."""
        return f"{self._set:032x}"

    def add(self, arrays: Sequence[np.ndarray], ids: np.ndarray, positions: np.ndarray) -> str:
        """Add one batch; return its fingerprint."""
        print_ = fingerprint(arrays, ids, positions)
        link = self._chain + bytes.fromhex(print_)
        self._chain = hashlib.blake2b(link, digest_size=_NBYTES).digest()
        for s in range(len(ids)):
            h = hashlib.blake2b(digest_size=_NBYTES)
            h.update(int(ids[s]).to_bytes(8, "little", signed=True))
            h.update(int(positions[s]).to_bytes(8, "little"))
            for array in arrays:
                h.update(_bytes(array[s : s + 1]))
            self._set = (self._set + int.from_bytes(h.digest(), "little")) & _MASK
        self.samples += len(ids)
        self.batches += 1
        return print_


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
