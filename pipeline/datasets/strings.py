"""A long list of texts without a Python object for each: for paths, captions, ids.

A Python list of strings is copied into every worker process, and costs 50 to 100 bytes a string more
than its characters; where processes are forked from one that has it, reference counts are written into
its pages, so that memory grows until every process has its own. Here all texts are one array of bytes:

    text i = blob[ends[i] : ends[i + 1]]      ends[0] = 0

which worker processes map in place (`pipeline.transfer.shared`).
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from pipeline.transfer import shared


class PackedStrings(Sequence[str]):
    """A read-only sequence of strings, in place of a list or tuple of them.

    Texts may hold any characters, also what `os.fsdecode` makes of file names that are not UTF-8.

    >>> names = PackedStrings(["one.png", "zwei.png", "três.png"])
    >>> names[2], len(names), names[:2].tolist(), "zwei.png" in names
    ('três.png', 3, ['one.png', 'zwei.png'], True)
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Pack `texts`; a generator needs no list at all.

        Raises:
            ConfigError: something in it is no string; or not enough memory.
        """
        blob, ends, text = bytearray(), [np.zeros(1, np.int64)], None
        some: list[int] = []
        if isinstance(texts, str):
            raise ConfigError(f"texts: expected a list of strings, got the string {texts!r}")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ConfigError(
                    f"texts[{number}]: expected a string, got {type(text).__name__}",
                    do="pack str(x), or os.fsdecode(path)",
                    field="texts",
                )
            blob += text.encode("utf-8", "surrogateescape")
            some.append(len(blob))
            if len(some) == 1 << 16:
                ends.append(np.array(some, np.int64))
                some.clear()
        ends.append(np.array(some, np.int64))
        self._blob, self._ends = shared.share(np.frombuffer(blob, np.uint8), np.concatenate(ends))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the texts take, in all processes together."""
        return int(self._blob.nbytes + self._ends.nbytes)

    def tolist(self) -> list[str]:
        """Return a list of the strings."""
        return list(self)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> "PackedStrings": ...
    def __getitem__(self, i: int | slice) -> "str | PackedStrings":
        """Return string `i`, or a slice as packed strings.

        Raises:
            IndexError: `i` is not in [-len, len).
        """
        if isinstance(i, slice):
            return PackedStrings(self[k] for k in range(*i.indices(len(self))))
        i, n = operator.index(i), len(self)
        if not -n <= i < n:
            raise IndexError(f"string {i} of {n}")
        return text_at(self._blob, self._ends, i % n).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for i in range(len(self)):
            yield text_at(self._blob, self._ends, i).decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedStrings):
            same: bool = np.array_equal(self._ends, other._ends)
            return same and np.array_equal(self._blob, other._blob)
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"PackedStrings({len(self)} strings, {self.nbytes} bytes)"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for table in (self._blob, self._ends):  # what is unpickled elsewhere is read-only too
            table.flags.writeable = False


def text_at(blob: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], i: int) -> bytes:
    """Return the bytes of text `i` of a packed table."""
    return blob[ends[i] : ends[i + 1]].tobytes()
