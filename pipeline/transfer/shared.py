"""Tables that every process sees in place, where other arrays are copied for the workers.

A table (the paths of millions of files, the offsets of records) lies in a memfd from the start. What
is sent to workers then names that memory by a descriptor instead of holding a second copy of it: see
`pipeline.workers.payload`. Tables are read-only, so that nothing can differ between processes.

    the arrays ─▶ their map ─▶ closing its descriptor when the last array is gone
"""

import contextlib
import os
import weakref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.transfer.arena import Arena

LEAST_NBYTES = 1 << 20  # smaller ones are not worth a descriptor
_ALIGN = 64
Table = npt.NDArray[Any]


class Place(NamedTuple):
    """Where bytes of a table are: a descriptor that is the table's own, and an offset."""

    fd: int
    offset: int


class _Known(NamedTuple):
    nbytes: int
    fd: int


# By address. No lock: each use is one atomic step of the dict, and a collection anywhere may end a table.
_known: dict[int, _Known] = {}


def share(*arrays: Table) -> tuple[Table, ...]:
    """Return read-only arrays of the same content, together in one piece of shared memory.

    Small ones stay where they are, read-only too.

    Args:
        arrays: contiguous, of numbers. What they hold is copied.

    Raises:
        ConfigError: not enough memory.

    >>> share(np.arange(3))[0].flags.writeable
    False
    """
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // _ALIGN) * _ALIGN
    if end < LEAST_NBYTES:
        views = [array.view() for array in arrays]
    else:
        arena = Arena.create(end, "table")
        memory = np.frombuffer(arena.memory, np.uint8)
        views = [
            memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            for array, start in zip(arrays, starts, strict=True)
        ]
        for view, array in zip(views, arrays, strict=True):
            view[...] = array
        address = memory.ctypes.data
        fd, arena.fd = arena.fd, -1  # the map's from here on: the arena must not close it
        _known[address] = _Known(end, fd)
        weakref.finalize(arena.mapping, _forget, address, fd)
    for view in views:
        view.flags.writeable = False
    return tuple(views)


def place(address: int, nbytes: int) -> Place | None:
    """Return where `nbytes` bytes at an address of this process are, if that is in a table."""
    for start, table in _known.copy().items():
        if start <= address and address + nbytes <= start + table.nbytes:
            return Place(table.fd, address - start)
    return None


def _forget(address: int, fd: int) -> None:
    _known.pop(address, None)
    with contextlib.suppress(OSError):
        os.close(fd)
