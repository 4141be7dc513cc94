"""One piece of memory for everything the workers share: a memfd, or plain memory for threads.

A memfd has no name, is not limited by /dev/shm, and its pages return when the last process that
has it is gone, however it went. Its pages are reserved at creation, so that too little memory
is an error here and now instead of a SIGBUS in the middle of an epoch. Its size is sealed.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import resource
from types import TracebackType
from typing import Self

from pipeline.errors import ConfigError

_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
_F_ADD_SEALS = 1033
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23


class Arena:
    """Shared memory with a descriptor (`fd`), or private memory (`fd` is -1) for threads.

    The creator and every process that attaches call `close`; memory that is still viewed by an
    array lives on until that array is gone.
    """

    def __init__(self, nbytes: int, fd: int, mapping: mmap.mmap) -> None:
        self.nbytes = nbytes
        self.fd = fd
        self.mapping = mapping
        self.memory = memoryview(mapping)

    @classmethod
    def create(cls, nbytes: int, purpose: str, hint: str = "", *, shared: bool = True) -> Self:
        """Return a new arena of `nbytes` zero bytes.

        Args:
            nbytes: size, at least 1.
            purpose: what it is for; shown in messages and in /proc.
            hint: which settings make it smaller; shown when there is not enough.
            shared: False makes private memory without a descriptor.

        Raises:
            ConfigError: not enough memory; says bytes needed and bytes free.
        """
        if nbytes > available_nbytes():
            raise _too_big(nbytes, purpose, hint, MemoryError())
        if not shared:
            try:
                return cls(nbytes, -1, mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE))
            except (OSError, OverflowError, ValueError) as e:
                raise _too_big(nbytes, purpose, hint, e) from e
        try:
            fd = os.memfd_create(f"samebatch:{purpose}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as e:
            raise _too_big(nbytes, purpose, hint, e) from e
        try:
            os.ftruncate(fd, nbytes)
            os.posix_fallocate(fd, 0, nbytes)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
            return cls(nbytes, fd, mmap.mmap(fd, nbytes))
        except (OSError, OverflowError, ValueError) as e:
            os.close(fd)
            raise _too_big(nbytes, purpose, hint, e) from e

    @classmethod
    def attach(cls, fd: int, *, private: bool = False) -> Self:
        """Return the arena behind a descriptor that another process created.

        Args:
            fd: owned by the new arena from here on.
            private: map copy-on-write: writes stay in this process.
        """
        nbytes = os.fstat(fd).st_size
        flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        return cls(nbytes, fd, mmap.mmap(fd, nbytes, flags=flags))

    def populate(self, *, write: bool) -> None:
        """Map every page into this process now, instead of by one fault each later.

        Args:
            write: for writing, which also allocates; else only what there is.
        """
        # Linux 5.14; where it is missing, pages are faulted in at first touch as ever.
        with contextlib.suppress(OSError, ValueError):
            self.mapping.madvise(_MADV_POPULATE_WRITE if write else _MADV_POPULATE_READ)

    def close(self) -> None:
        """Give the memory back. Safe to call twice."""
        # Views still alive keep the mapping: it goes with the last of them.
        with contextlib.suppress(BufferError):
            self.memory.release()
            self.mapping.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        # Its owner was interrupted before it could close it; or both are garbage of one cycle, and the
        # owner, collected after this, closes it too.
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _too_big(nbytes: int, purpose: str, hint: str, e: BaseException) -> ConfigError:
    code = getattr(e, "errno", None)
    if code == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ConfigError(
            f"cannot open a descriptor for {purpose}: all {limit} of this process are in use",
            do="raise the limit (ulimit -n) or close files",
        )
    name = errno.errorcode.get(code, "") if code else type(e).__name__
    return ConfigError(
        f"cannot reserve {nbytes:,} bytes of shared memory for {purpose} ({name}); "
        f"{available_nbytes():,} bytes are available",
        do=hint or "free memory or lower the batch size or the prefetch depth",
        nbytes=nbytes,
    )


def available_nbytes() -> int:
    """Return the bytes this process may still take, from the machine and its control group."""
    free = _meminfo("MemAvailable:")
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    return free if limit is None or used is None else min(free, max(0, limit - used))


def _meminfo(key: str) -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as f:
        for line in f:
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return 1 << 62  # unknown: let the kernel decide


def _cgroup(name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{name}") as f:
        return int(f.read())  # "max" is no number: no limit
    return None
