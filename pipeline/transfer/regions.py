"""What has no fixed size travels here: text beside arrays, and batches that a `collate_fn` made.

    region b = bytes [b · 4 GiB, (b + 1) · 4 GiB) of one sparse memfd, for batch buffer b
    its cursor, a control word = bytes reserved in it; back to 0 when the buffer is handed out again

Writers reserve by one atomic addition and write with system calls, so nothing needs to be sized
beforehand; pages stay for the next batch. A chunk writes one parcel; a hidden field of the batch
(`CARRIED`) says for each slot where it lies, and how the slot came about.
"""

import errno
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.transfer import cells as kernels
from pipeline.transfer.layout import Field, Layout

STRIDE_NBYTES = 1 << 32
_ALIGN = 64
_LEAST_NBYTES = 1 << 20  # of a mapping
# For each slot: offset and nbytes of its chunk's parcel (on the chunk's first slot), the chunk's
# slots, and the slot's status.
CARRIED = Field("\0carried", (4,), np.dtype(np.uint64))
C_OFFSET, C_NBYTES, C_SLOTS, C_STATUS = range(4)


def carries(layout: Layout) -> bool:
    """Return whether batches of this layout have regions."""
    return bool(layout.fields) and layout.fields[-1] == CARRIED


class Regions:
    """The regions of an arena's buffers, in one process.

    Args:
        fd: of the memfd; owned from here on.
        layout: of the arena.
        control: its control words.
    """

    def __init__(self, fd: int, layout: Layout, control: np.ndarray) -> None:
        self.fd = fd
        self._control = control
        self._first = layout.region_cursors
        self._step = layout.region_step
        self._mapped: dict[int, mmap.mmap] = {}

    @classmethod
    def create(cls, layout: Layout, control: np.ndarray) -> "Regions":
        """Return new, empty regions.

        Raises:
            ConfigError: the system gives no such memory.
        """
        try:
            fd = os.memfd_create("samebatch:regions", os.MFD_CLOEXEC)
            try:
                os.ftruncate(fd, layout.buffers * STRIDE_NBYTES)
            except BaseException:
                os.close(fd)
                raise
        except OSError as e:
            raise ConfigError(
                f"cannot make shared memory for text and batches of any size: {e}",
                do="raise the limits of open files and file size (ulimit -n, ulimit -f); or use "
                "num_workers=0",
            ) from e
        return cls(fd, layout, control)

    def used(self, buffer: int) -> int:
        """Return the bytes reserved in a buffer's region."""
        return int(self._control[self._first + buffer * self._step])

    def reset(self, buffer: int) -> None:
        """Begin a region anew. Only while nobody can write into the buffer."""
        self._control[self._first + buffer * self._step] = 0

    def write(self, buffer: int, nbytes: int, pieces: Sequence[tuple[int, Any]]) -> int:
        """Write pieces, (offset, bytes) each, into new room of `nbytes`; return where it begins.

        Raises:
            MemoryError: the region is full, or the machine's memory.
        """
        room = -(-nbytes // _ALIGN) * _ALIGN
        word = self._first + buffer * self._step
        start = int(kernels.reserve(self._control, word, room))
        if start + room > STRIDE_NBYTES:
            raise MemoryError(
                f"the text or the collated objects of one batch take more than "
                f"{STRIDE_NBYTES:,} bytes"
            )
        base = buffer * STRIDE_NBYTES + start
        try:
            for offset, data in pieces:
                view = memoryview(data).cast("B")
                done = 0
                while done < len(view):
                    done += os.pwrite(self.fd, view[done:], base + offset + done)
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM):
                raise MemoryError(f"no room for {nbytes:,} bytes of a batch: {e}") from e
            raise
        return start

    def memory(self, buffer: int, nbytes: int) -> np.ndarray:
        """Return uint8[nbytes], a view of the first bytes of a region."""
        mapped = self._mapped.get(buffer)
        if mapped is None or len(mapped) < nbytes:
            size = max(_LEAST_NBYTES, 1 << (nbytes - 1).bit_length())
            # The old mapping lives on while views of it do.
            mapped = mmap.mmap(self.fd, size, offset=buffer * STRIDE_NBYTES)
            self._mapped[buffer] = mapped
        return np.frombuffer(mapped, np.uint8, nbytes)

    def close(self) -> None:
        """Give the memory back; views of it stay valid. Safe to call twice."""
        self._mapped.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
