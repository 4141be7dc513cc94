"""Fingerprints: of a batch, chained over a phase, and one that order does not change.

    d(sample)   = XXH3-128 of its fields' bytes
    fingerprint = BLAKE2b-128 of the batch's sample ids, positions, shapes, dtypes and d's
    chain_0 = 0,  chain_{k+1} = BLAKE2b-128(chain_k, fingerprint_k)
    set digest  = sum over samples of XXH3-128(sample id, position, d)  mod 2**128

The chain proves the sequence (reproducible mode); the set digest proves that each sample came
exactly once with the same bytes (both modes, any batch size; the ranks' digests add up). They tell
whether two runs are the same; they are no protection against someone who wants them to look so.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from pipeline.canonical import chunks
from pipeline.tree import encode_text

_NBYTES = 16
_MASK = (1 << 8 * _NBYTES) - 1


def sample_digests(arrays: Sequence[np.ndarray]) -> list[bytes]:
    """Return 16 bytes for each sample of a batch.

    Args:
        arrays: [n, …] for each field, C-contiguous.
    """
    n = len(arrays[0]) if arrays else 0
    fields = []
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        fields.append((flat.data, flat.nbytes // max(n, 1)))
    if len(fields) == 1:
        data, nbytes = fields[0]
        return [xxhash.xxh3_128_digest(data[s * nbytes : (s + 1) * nbytes]) for s in range(n)]
    digests = []
    for s in range(n):
        h = xxhash.xxh3_128()
        for data, nbytes in fields:
            h.update(data[s * nbytes : (s + 1) * nbytes])
        digests.append(h.digest())
    return digests


class Digest:
    """What was delivered in a phase, so far.

    Attributes:
        samples: how many.
        batches: how many.
    """

    def __init__(self, chain: str = "0" * 2 * _NBYTES, total: str = "0") -> None:
        """Begin, or go on from what `chain` and `set` said.

        Args:
            chain: an earlier `chain`.
            total: an earlier `set`.
        """
        self._chain = bytes.fromhex(chain)
        self._set = int(total, 16)
        self.samples = 0
        self.batches = 0

    @property
    def chain(self) -> str:
        """The digest of the batches in the order of delivery: 32 hex digits."""
        return self._chain.hex()

    @property
    def set(self) -> str:
        """The digest of the samples whatever their order: 32 hex digits."""
        return f"{self._set:032x}"

    def add(
        self,
        arrays: Sequence[np.ndarray],
        ids: np.ndarray,
        positions: np.ndarray,
        beside: Sequence[Sequence[Any]] | None = None,
    ) -> str:
        """Add one batch; return its fingerprint, 32 hex digits.

        Args:
            arrays: its fields, in order.
            ids: int64[n], sample ids.
            positions: uint64[n].
            beside: the text leaves of each sample, if samples have any.
        """
        digests = sample_digests(arrays) if arrays or not beside else [b""] * len(ids)
        if beside is not None:
            digests = [
                xxhash.xxh3_128_digest(d + encode_text(texts))
                for d, texts in zip(digests, beside, strict=True)
            ]
        return self._add(arrays, ids, positions, digests)

    def add_whole(self, batch: Any, ids: np.ndarray, positions: np.ndarray) -> str:
        """Add one batch that is an object of its own (`collate_fn`); return its fingerprint.

        All samples share its digest: what belongs to which of them is not known.
        """
        h = xxhash.xxh3_128()
        for chunk in chunks(batch):
            h.update(chunk)
        return self._add((), ids, positions, [h.digest()] * len(ids))

    def _add(
        self,
        arrays: Sequence[np.ndarray],
        ids: np.ndarray,
        positions: np.ndarray,
        digests: list[bytes],
    ) -> str:
        h = hashlib.blake2b(digest_size=_NBYTES)
        h.update(np.ascontiguousarray(ids, "<i8").tobytes())
        h.update(np.ascontiguousarray(positions, "<u8").tobytes())
        for array in arrays:
            h.update(f"{array.dtype.str}{array.shape}".encode())
        h.update(b"".join(digests))
        link = self._chain + h.digest()
        self._chain = hashlib.blake2b(link, digest_size=_NBYTES).digest()
        total = self._set
        for i, q, d in zip(ids.tolist(), positions.tolist(), digests, strict=True):
            one = xxhash.xxh3_128_intdigest(struct.pack("<qQ", i, q) + d)
            total += one
        self._set = total & _MASK
        self.samples += len(ids)
        self.batches += 1
        return h.hexdigest()
