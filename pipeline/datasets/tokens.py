"""Windows of a long row of tokens: the dataset of language models.

    start(i) = i * stride,   sample i = tokens[start(i) : start(i) + window]

Shuffled, `stride=window` gives each token once an epoch, in windows of random order; `stride=1`
gives windows that begin anywhere. Which window a position gets is the order's doing, so nothing is
drawn here.
"""

import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import uint64

from pipeline.datasets.arrays import ArrayDataset
from pipeline.errors import ConfigError, DatasetError
from rng import prefetch
from rng.kernel import kernel

Array = np.ndarray[Any, Any]
_AHEAD = 1 << 13  # bytes of the next window that are asked for; the rest is read in a row anyhow


class TokenWindows:
    """Samples are `tokens[window]`, or with `targets` the pair (tokens, tokens one further on).

    The file is mapped, also in the workers, never read whole. A chunk of samples is gathered,
    and widened to `output`, by one compiled kernel, straight into the batch.

    >>> windows = TokenWindows(np.arange(9, dtype=np.uint16), 4, targets=True)
    >>> len(windows)
    2
    >>> windows[1]
    (array([4, 5, 6, 7]), array([5, 6, 7, 8]))
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Array,
        window: int,
        *,
        stride: int | None = None,
        targets: bool = False,
        dtype: str = "uint16",
        output: str = "int64",
    ) -> None:
        """Map the tokens; none is read.

        Args:
            source: a `.npy` file, a file of bare tokens (any other name), or an array[tokens].
            window: tokens of a sample, at least 1.
            stride: tokens from the start of a window to the start of the next; None is `window`.
            targets: give the next token of each token too, from windows of one token more.
            dtype: of a file of bare tokens, in the byte order of this machine.
            output: dtype of a sample; it must hold every value of the tokens' own.

        Raises:
            ConfigError: an argument that cannot be used.
            DatasetError: no such file, not one row of integers, or not a whole window.
        """
        self._window = _count("window", window)
        self._stride = _count("stride", window if stride is None else stride)
        self._span = self._window + bool(targets)
        self._targets = bool(targets)
        self._name = "tokens" if isinstance(source, np.ndarray) else os.fspath(source)
        tokens = source if isinstance(source, np.ndarray) else _mapped(self._name, dtype)
        if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
            raise DatasetError(
                f"{self._name} holds {tokens.dtype}{list(tokens.shape)}, not one row of integers",
                do="save the tokens of all documents one after the other, as one array[tokens]",
            )
        self._output = _integer("output", output)
        if not np.can_cast(tokens.dtype, self._output):
            raise ConfigError(
                f"output={output!r} cannot hold every {tokens.dtype} of {self._name}",
                do="use output='int64', or the dtype of the tokens themselves",
                field="output",
            )
        if len(tokens) < self._span:
            raise DatasetError(
                f"{self._name} holds {len(tokens)} tokens, less than one window of {self._span}",
                do="use a smaller window",
            )
        self._rows = ArrayDataset(tokens)  # maps the file again in the workers; knows its digest
        self._length = (len(tokens) - self._span) // self._stride + 1

    _tokens: Array | None = None  # what `gather` reads

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tokens": None}

    def sources(self) -> tuple[Array, ...]:
        """Return the arrays that samples are gathered from, maps of files among them."""
        return self._rows.arrays()

    def gather(self, ids: Array, out: Sequence[Array]) -> None:
        """Make many samples at once.

        Args:
            ids: int64[n], each in [0, len).
            out: an array[n, window] of `output` for the tokens, and one for the targets.
        """
        tokens = self._tokens
        if tokens is None:  # one type for the kernel, mapped or not, writable or not
            tokens = self._tokens = self._rows.arrays()[0].view(np.ndarray)
            tokens.flags.writeable = False
        for shift, rows in enumerate(out):
            _gather(tokens, ids, self._stride, shift, rows)

    def fingerprint(self) -> str:
        """Return a digest of the tokens (see `common.digest_arrays`)."""
        return self._rows.fingerprint()

    def settings(self) -> dict[str, Any]:
        """Return the arguments that decide what a sample is."""
        return {
            "window": self._window,
            "stride": self._stride,
            "targets": self._targets,
            "output": self._output.name,
        }

    def describe(self, i: int) -> str:
        """Return the file and the first token of window `i`."""
        return f"{self._name}, tokens from {i * self._stride}"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Any:
        """Return window `i`, and with `targets` the window one token on: `output[window]` each.

        Raises:
            IndexError: `i` is not in [-len, len).
        """
        i, n = operator.index(i), self._length
        if not -n <= i < n:
            raise IndexError(f"window {i} of {n}")
        start = i % n * self._stride
        row = self._rows.arrays()[0][start : start + self._span].astype(self._output)
        if not self._targets:
            return row.view(np.ndarray)
        return row[:-1].view(np.ndarray), row[1:].view(np.ndarray)

    def __repr__(self) -> str:
        return f"TokenWindows({self._name!r}, {self._length} windows of {self._window})"


@kernel
def _gather(tokens: Any, ids: Any, stride: Any, shift: Any, out: Any) -> None:
    n, window = out.shape
    place = uint64(tokens.ctypes.data) + uint64(shift * tokens.itemsize)
    step, nbytes = uint64(stride * tokens.itemsize), uint64(window * tokens.itemsize)
    for k in range(n):
        start = ids[k] * stride + shift
        if k + 1 < n:  # windows lie here and there: the next one comes while this one is widened
            ahead = place + uint64(ids[k + 1]) * step
            for line in range(uint64(0), min(nbytes, uint64(_AHEAD)), uint64(64)):
                prefetch.to_read(ahead + line)
        row = tokens[start : start + window]
        for j in range(window):  # vectorised: widening loads and wide stores
            out[k, j] = row[j]


def _mapped(path: str, dtype: str) -> Array:
    kind = _integer("dtype", dtype)
    try:
        if path.endswith(".npy"):
            mapped: Array = np.load(path, mmap_mode="r")
            return mapped
        return np.memmap(path, kind, "r")
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"the tokens of {path!r} cannot be mapped: {error}",
            do="give a .npy file, or a file of bare tokens with its dtype",
            path=path,
        ) from error


def _integer(field: str, given: str) -> np.dtype[Any]:
    try:
        kind = np.dtype(given)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "ui":
        raise ConfigError(f"{field} must be a type of integers, got {given!r}", field=field)
    return kind


def _count(field: str, given: int) -> int:
    if isinstance(given, bool) or not hasattr(given, "__index__") or operator.index(given) < 1:
        raise ConfigError(
            f"{field} must be a whole number of at least 1, got {given!r}", field=field
        )
    return operator.index(given)
