"""Reads one sample after the other from a dataset that can only be iterated.

The k-th item of `iter(dataset)` has position k. The process-wide generators are set before the
iterator is made and before each item, also before those that are passed over, so what a dataset
draws while it is iterated does not depend on where reading began.
"""

from collections.abc import Callable, Iterator
from typing import Any

OP = 2  # of purpose USER, for making the iterator
Seed = Callable[..., None]


class EndOfData(Exception):
    """The iterator has no such item."""


class Reader:
    """One iterator at a time over a dataset.

    Args:
        dataset: has `__iter__`.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._iterator: Iterator[Any] | None = None
        self._phase = -1
        self._next = 0

    def read(self, position: int, phase: int, seed: Seed) -> Any:
        """Return the item at a position; passes over those before it.

        Raises:
            EndOfData: there are fewer items.
            Exception: what the dataset raises; the next read begins anew.
        """
        if self._iterator is None or phase != self._phase or position < self._next:
            seed(0, phase, OP)
            self._iterator = iter(self._dataset)
            self._phase, self._next = phase, 0
        try:
            while True:
                seed(self._next, phase)
                item = next(self._iterator)
                self._next += 1
                if self._next > position:
                    return item
        except StopIteration:
            self._iterator = None
            raise EndOfData from None
        except BaseException:
            self._iterator = (
                None  # a generator that raised is over: what follows would look like its end
            )
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_iterator": None}
