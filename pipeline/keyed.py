"""Samples that are asked for by keys which are no ints: words, tuples, lists of indices.

A sample's id must be a number: it travels to the workers, and stands in logs and states. That of a key
is a digest of it, so it is the same in every process and every epoch:

    id = the first 62 bits of BLAKE2b(type and bytes of the key)

The random numbers of a sample hang on its position, as ever, and not on its id.
"""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline import datasets
from pipeline.canonical import chunks
from pipeline.errors import ConfigError


def is_index(key: Any) -> bool:
    """Return whether a sampler's value is an index (an int of any kind).

    >>> is_index(3), is_index("3"), is_index([3])
    (True, False, False)
    """
    try:
        operator.index(key)
    except TypeError:
        return False
    return True


def by_keys(dataset: Any, given: Sequence[Any]) -> bool:
    """Return whether a dataset is asked by keys: it is a mapping, or one of them is no index."""
    return isinstance(dataset, Mapping) or not all(map(is_index, given))


def id_of(key: Any) -> int:
    """Return the sample id of a key, in [0, 2**62).

    >>> id_of("a") == id_of("a") != id_of(b"a")
    True
    """
    digest = hashlib.blake2b(digest_size=8)
    for chunk in chunks(key):
        digest.update(chunk)
    return int.from_bytes(digest.digest(), "big") >> 2


def table_of(keys: Sequence[Any]) -> dict[int, Any]:
    """Return {id: key}.

    Raises:
        ConfigError: a key that has no bytes of its own.
    """
    table = {}
    for place, key in enumerate(keys):
        try:
            table[id_of(key)] = key
        except Exception as e:
            raise ConfigError(
                f"the sampler gave {key!r} at place {place}, which is no index and cannot be pickled "
                f"to make a sample id of: {e}",
                do="give ints, words, bytes, or tuples or lists of them",
            ) from e
    return table


class Keyed:
    """A dataset that is asked by sample id and asks another one by key.

    Args:
        inner: has `__getitem__(key)`.
        table: {id: key}.
    """

    def __init__(self, inner: Any, table: Mapping[int, Any]) -> None:
        self.inner = inner
        self.table = table
        if datasets.reads_together(inner):
            self.__getitems__ = self._together

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, sample_id: int) -> Any:
        return self.inner[self.table[sample_id]]

    def _together(self, ids: Sequence[int]) -> Any:
        return self.inner.__getitems__([self.table[i] for i in ids])

    def describe(self, sample_id: int) -> str:
        """Return the key of a sample, for messages."""
        kind = type(self.inner).__qualname__
        return f"{kind}[{self.table[sample_id]!r}]" if sample_id in self.table else kind

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset the epoch, if it wants to know."""
        tell = getattr(self.inner, "set_epoch", None)
        if callable(tell):
            tell(epoch)
