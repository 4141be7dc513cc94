"""Fingerprints of what was delivered: of a sample's fields, of a batch, chained over a phase; the log.

    d[f, s]     = XXH3-64 of field f of sample s
    fingerprint = XXH3-128 of the batch's sample ids, positions, dtypes, shapes and d
    chain_0 = 0,  chain_{k+1} = BLAKE2b-128(chain_k, fingerprint_k)
    set digest  = sum over samples of a 64-bit hash of (sample id, position, d)

The chain proves the sequence (reproducible mode); the set digest proves that each sample came
exactly once with the same bytes (both modes, any batch size; the ranks' digests add up). They tell
whether two runs are the same; they are no protection against someone who wants them to look so.

Reading every byte again costs more than making it, where one kernel makes a whole chunk (12 KB of a
CIFAR image: 0.3 us of 1.2). So a log may look at `lines` of its long samples instead: then d is of
two cache lines, one out of each half of a sample, chosen by id and position. See docs/audit.md.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pipeline import xxh3
from pipeline.canonical import chunks
from pipeline.errors import ConfigError
from pipeline.tree import encode_text

FORMAT = "samebatch-audit-1"
SHORT = 2048  # bytes of a sample's field that are always looked at whole
_NBYTES = 16
_MASK = (1 << 8 * _NBYTES) - 1
U64 = npt.NDArray[np.uint64]


def covered(nbytes: int, whole: bool = True) -> int:
    """Return how many bytes of a field of a sample its digest looks at."""
    return nbytes if whole or nbytes <= SHORT else xxh3.LINES * xxh3.LINE


def sample_digests(
    arrays: Sequence[np.ndarray], ids: np.ndarray, positions: np.ndarray, whole: bool = True
) -> U64:
    """Return u64[F, n]: the digest of each field of each sample.

    With `whole`, digest [f, s] is `xxhash.xxh3_64_intdigest(arrays[f][s].tobytes())`.

    Args:
        arrays: [n, …] for each field.
        ids, positions: of the samples.
        whole: look at every byte; else at some lines of what is longer than `SHORT`.
    """
    n = len(ids)
    out = np.empty((len(arrays), n), np.uint64)
    for f, array in enumerate(arrays if n else ()):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        nbytes = flat.nbytes // n
        data = flat.reshape(n, nbytes)
        if covered(nbytes, whole) < nbytes:
            xxh3.lines(data, ids, positions, out[f])
        elif nbytes <= xxh3.MOST:
            xxh3.rows(data, out[f])
        else:
            view = flat.data
            out[f] = [
                xxhash.xxh3_64_intdigest(view[at : at + nbytes])
                for at in range(0, n * nbytes, nbytes)
            ]
    return out


class Digest:
    """What was delivered in a phase, so far.

    Attributes:
        samples: how many.
        batches: how many.
        last: u64[F, n], the digests of the last batch's samples.
    """

    def __init__(
        self, chain: str = "0" * 2 * _NBYTES, total: str = "0", *, whole: bool = True
    ) -> None:
        """Begin, or go on from what `chain` and `set` said.

        Args:
            chain: an earlier `chain`.
            total: an earlier `set`.
            whole: see `sample_digests`.
        """
        self._chain = bytes.fromhex(chain)
        low = int(total, 16)
        self._set = np.array([low & 0xFFFFFFFFFFFFFFFF, low >> 64], np.uint64)
        self._whole = whole
        self._kinds: tuple[Any, bytes] = ((), b"")
        self.samples = 0
        self.batches = 0
        self.last: U64 = np.empty((0, 0), np.uint64)

    @property
    def chain(self) -> str:
        """The digest of the batches in the order of delivery: 32 hex digits."""
        return self._chain.hex()

    @property
    def set(self) -> str:
        """The digest of the samples whatever their order: 32 hex digits."""
        return f"{int(self._set[1]) << 64 | int(self._set[0]):032x}"

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
            beside: the text leaves of each sample, if samples have any; they count as one more field.
        """
        ids, positions = _whole_numbers(ids, positions)
        digests = sample_digests(arrays, ids, positions, self._whole)
        if beside is not None:
            rest = [xxhash.xxh3_64_intdigest(encode_text(texts)) for texts in beside]
            digests = np.vstack([digests, np.array(rest, np.uint64)])
        return self._add(self._kinds_of(arrays), ids, positions, digests)

    def add_whole(self, batch: Any, ids: np.ndarray, positions: np.ndarray) -> str:
        """Add one batch that is an object of its own (`collate_fn`); return its fingerprint.

        All samples share its digest: what belongs to which of them is not known.
        """
        h = xxhash.xxh3_64()
        for chunk in chunks(batch):
            h.update(chunk)
        ids, positions = _whole_numbers(ids, positions)
        return self._add(b"", ids, positions, np.full((1, len(ids)), h.intdigest(), np.uint64))

    def _add(self, kinds: bytes, ids: np.ndarray, positions: np.ndarray, digests: U64) -> str:
        self.last = digests
        content = (
            ids.astype("<i8", copy=False).tobytes(),
            positions.astype("<u8", copy=False).tobytes(),
            kinds,
            digests.astype("<u8", copy=False).tobytes(),
        )
        fingerprint = xxhash.xxh3_128_digest(b"".join(content))
        self._chain = hashlib.blake2b(self._chain + fingerprint, digest_size=_NBYTES).digest()
        xxh3.add_up(ids, positions, digests, self._set)
        self.samples += len(ids)
        self.batches += 1
        return fingerprint.hex()

    def _kinds_of(self, arrays: Sequence[np.ndarray]) -> bytes:
        """Return the text of dtypes and shapes; they are the same for nearly every batch."""
        kinds = [(array.dtype, array.shape) for array in arrays]
        if kinds != self._kinds[0]:
            self._kinds = kinds, "".join(f"{d.str}{shape}" for d, shape in kinds).encode()
        return self._kinds[1]


def _whole_numbers(ids: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(positions, np.uint64)


def row_names(fields: Sequence[str], rows: int) -> tuple[str, ...]:
    """Return the names of rows of digests: the fields', then "rest": text, or a batch that is whole."""
    return tuple([*fields, "rest"][:rows]) if rows > len(fields) else tuple(fields[:rows])


# ---------------------------------------------------------------- the log
class AuditLog:
    """A file of JSON lines: one when a pass begins, one for each batch.

    A line is one write at the end of the file, so that several processes may share it, and a killed
    one leaves whole lines. A line that was cut short all the same (a full disk) is closed before
    the next one is written; `samebatch verify` tells of it.

    Args:
        path: the file; made if it does not exist, else continued.
        whole: see `sample_digests`.
    """

    def __init__(self, path: str | os.PathLike[str], whole: bool) -> None:
        self.path = path
        self.whole = whole
        self._fd = -1
        self._head = ""

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write the line of a pass that begins.

        Args:
            facts: what decides the bytes: "epoch", "offset", "rank", "world_size", "seed", …

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            if self._fd < 0:
                self._open()
        except OSError as e:
            raise ConfigError(
                f"the audit log {os.fspath(self.path)!r} cannot be written: {e.strerror}",
                do="make its folder, or choose another file",
                field="audit",
            ) from e
        self._head = f'"epoch":{facts["epoch"]},"rank":{facts["rank"]},'
        line = {"format": FORMAT, **facts, "whole": self.whole}
        self._write(json.dumps(line) + "\n")

    def batch(
        self,
        step: int,
        offset: int,
        real: int,
        ids: np.ndarray,
        positions: np.ndarray,
        fingerprint: str,
        digest: Digest,
    ) -> None:
        """Write the line of a batch.

        Args:
            step: its place in the epoch.
            offset: samples delivered after it.
            real: how many samples are not padding.
            ids, positions: of its samples.
            fingerprint: what `digest.add` returned.
            digest: with the batch added.
        """
        n = len(ids)
        first = int(positions[0]) if n else 0
        run = n == 0 or (int(positions[-1]) - first == n - 1 and bool(_rises(positions)))
        where = f"[{first},{first + n}]" if run else f'"{_hex(positions)}"'
        if self.whole:
            each = '","'.join(row.astype(">u8").tobytes().hex() for row in digest.last)
            detail = f'"ids":"{_hex(ids)}","digests":["{each}"]'
        else:
            each = '","'.join(xxhash.xxh3_64_hexdigest(row.data) for row in digest.last)
            detail = f'"fields":["{each}"]'
        self._write(
            f'{{{self._head}"step":{step},"offset":{offset},"samples":{n},"real":{real},'
            f'"fingerprint":"{fingerprint}","chain":"{digest.chain}","set":"{digest.set}",'
            f'"positions":{where},{detail}}}\n'
        )

    def close(self) -> None:
        """Close the file; `begin` opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):  # else the constructor raised
            self.close()

    def _open(self) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_size:
                with open(self.path, "rb") as f:
                    f.seek(-1, os.SEEK_END)
                    if f.read(1) != b"\n":
                        os.write(fd, b"\n")
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _write(self, line: str) -> None:
        data = line.encode()
        done = os.write(self._fd, data)
        while done < len(data):  # a signal, or a pipe that is full
            done += os.write(self._fd, data[done:])


def _rises(positions: np.ndarray) -> Any:
    return (positions[1:] - positions[:-1] == 1).all()


def _hex(values: np.ndarray) -> str:
    """Return numbers one after the other, each in 8 hex digits, or 16 where one needs more."""
    wide = len(values) > 0 and int(values.max()) >> 32
    return values.astype(">u8" if wide else ">u4").tobytes().hex()
