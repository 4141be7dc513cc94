"""Batch buffers on loan: a batch is a view of a buffer, which returns when the last view is gone.

    free + in flight + leased = buffers

The user may keep any batch for as long as he likes: nothing is ever written into a leased
buffer. When more than `held` batches are kept, further ones are copied into memory of their own,
so that the pipeline never waits for the user.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.transfer.layout import Field, field_offsets


class _Loan:
    """What every array of a delivered batch keeps alive; its end frees the buffer.

    numpy keeps the object behind `__array_interface__` as the base of the array and of all its
    views, and so do `torch.from_numpy` and DLPack.
    """

    __slots__ = ("__array_interface__", "_back", "_index", "_memory")

    def __init__(
        self, back: "deque[int]", index: int, memory: np.ndarray, interface: dict[str, Any]
    ) -> None:
        self.__array_interface__ = interface
        self._back = back
        self._index = index
        self._memory = memory  # a true export: the mapping outlives every loan

    def __del__(self) -> None:
        self._back.append(self._index)  # atomic, from whichever thread drops the last view


def _interface(memory: np.ndarray) -> dict[str, Any]:
    """Return how numpy finds uint8[n] of memory."""
    address = memory.ctypes.data
    return {"data": (address, False), "shape": memory.shape, "typestr": "|u1", "version": 3}


class Ring:
    """The buffers of one arena, or of private memory.

    Args:
        fields: of a sample.
        slots: samples in a full batch.
        memory: uint8[R, buffer_nbytes].
        held: how many may be on loan at once.
    """

    def __init__(self, fields: Sequence[Field], slots: int, memory: np.ndarray, held: int) -> None:
        self.fields = tuple(fields)
        self.slots = slots
        self.held = held
        self.copies = 0  # batches copied because too many were held
        self._memory = memory
        self._rows = list(memory)
        self._interfaces = [_interface(row) for row in self._rows]  # costs more than a small batch
        self._shapes = [(one.shape, one.dtype) for one in self.fields]
        self._offsets = field_offsets(self.fields, slots)[0]
        self._free: deque[int] = deque(range(len(memory)))
        self._back: deque[int] = deque()
        self._leased = 0

    @property
    def span(self) -> np.ndarray:
        """uint8[n]: the memory from the first buffer's first byte to the last one's last."""
        nbytes = (len(self._memory) - 1) * self._memory.strides[0] + self._memory.shape[1]
        return np.lib.stride_tricks.as_strided(self._memory[0], (nbytes,), (1,))

    @property
    def leased(self) -> int:
        """Buffers on loan now."""
        self._collect()
        return self._leased

    @property
    def occupancy(self) -> tuple[int, int, int]:
        """Return (buffers, free ones, lent ones); moves nothing, so any thread may ask."""
        back = len(self._back)
        return len(self._memory), len(self._free) + back, max(0, self._leased - back)

    def acquire(self) -> int | None:
        """Return a free buffer, or None."""
        self._collect()
        return self._free.pop() if self._free else None  # the last one used is still in a cache

    def release(self, index: int) -> None:
        """Give back a buffer that was acquired and never lent."""
        self._free.append(index)

    def lend(self, index: int, count: int) -> list[np.ndarray]:
        """Return the first `count` samples of each field of a filled buffer, and lend the buffer.

        The arrays are C-ordered and writable. If `held` buffers are on loan already, they are
        copies and the buffer is free at once.
        """
        self._collect()
        if self._leased >= self.held:
            self.copies += 1
            arrays = [a.copy() for a in self._arrays(self._rows[index], count)]
            self._free.append(index)
            return arrays
        self._leased += 1
        loan = _Loan(self._back, index, self._rows[index], self._interfaces[index])
        return self._arrays(np.asarray(loan), count)

    def lend_memory(self, index: int, memory: np.ndarray) -> np.ndarray:
        """Return memory that belongs to a filled buffer, uint8[n], and lend the buffer with it.

        If `held` buffers are on loan already, it is a copy and the buffer is free at once.
        """
        self._collect()
        if self._leased >= self.held:
            self.copies += 1
            self._free.append(index)
            return memory.copy()
        self._leased += 1
        return np.asarray(_Loan(self._back, index, memory, _interface(memory)))

    def views(self, index: int) -> list[np.ndarray]:
        """Return [slots, *shape] arrays of a buffer, for filling it."""
        return self._arrays(self._rows[index], self.slots)

    def _arrays(self, memory: np.ndarray, count: int) -> list[np.ndarray]:
        return [
            np.ndarray((count, *shape), dtype, memory, offset)
            for (shape, dtype), offset in zip(self._shapes, self._offsets, strict=True)
        ]

    def _collect(self) -> None:
        while self._back:
            self._free.append(self._back.popleft())
            self._leased -= 1


def private_ring(fields: Sequence[Field], slots: int, buffers: int, held: int) -> Ring:
    """Return a ring in this process's own memory."""
    nbytes = field_offsets(tuple(fields), slots)[1]
    memory: np.ndarray[Any, Any] = np.zeros((buffers, nbytes + 64), np.uint8)
    start = -memory.ctypes.data % 64
    aligned = np.lib.stride_tricks.as_strided(
        memory[:, start:], shape=(buffers, nbytes), strides=memory.strides
    )
    return Ring(fields, slots, aligned, held)
