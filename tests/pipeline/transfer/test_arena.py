import contextlib
import fcntl
import os
import resource

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.transfer import arena as arenas
from pipeline.transfer.arena import Arena

F_GET_SEALS = 1034
SEAL, SHRINK, GROW = 1, 2, 4


def test_the_size_is_sealed():
    with Arena.create(8192, "test") as arena:
        assert fcntl.fcntl(arena.fd, F_GET_SEALS) & 7 == SEAL | SHRINK | GROW
        for nbytes in (0, 4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(arena.fd, nbytes)


def test_the_pages_are_reserved_at_creation():
    with Arena.create(1 << 20, "test") as arena:
        assert os.fstat(arena.fd).st_blocks * 512 >= 1 << 20


def test_new_memory_is_zero_and_shared_with_who_attaches():
    with Arena.create(4096, "test") as arena, Arena.attach(os.dup(arena.fd)) as other:
        assert not any(arena.memory)
        arena.memory[7] = 9
        assert other.memory[7] == 9
        assert other.nbytes == 4096


def test_a_private_mapping_keeps_its_writes_to_itself():
    with Arena.create(4096, "test") as arena, Arena.attach(os.dup(arena.fd), private=True) as own:
        own.memory[0] = 1
        assert (arena.memory[0], own.memory[0]) == (0, 1)


@pytest.mark.parametrize("shared", [True, False])
def test_too_much_memory_is_refused_with_the_numbers_and_what_to_do(shared):
    with pytest.raises(ConfigError) as e:
        Arena.create(1 << 60, "batches", "lower batch_size (4096)", shared=shared)
    assert f"{1 << 60:,} bytes" in str(e.value)
    assert "bytes are available" in str(e.value)
    assert "do: lower batch_size (4096)" in str(e.value)
    assert e.value.fields["nbytes"] == 1 << 60


def test_the_limit_of_a_control_group_counts(monkeypatch, tmp_path):
    limits = {"memory.max": 1 << 20, "memory.current": 1 << 19}
    monkeypatch.setattr(arenas, "_cgroup", limits.get)
    assert arenas.available_nbytes() == 1 << 19
    with pytest.raises(ConfigError, match="524,288 bytes are available"):
        Arena.create((1 << 19) + 1, "batches")


def test_no_free_descriptor_is_refused_with_the_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 8
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        message = rf"all {limit} of this process are in use[\s\S]*ulimit -n"
        with pytest.raises(ConfigError, match=message):
            Arena.create(4096, "batches")
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_failure_after_the_descriptor_was_made_closes_it(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match="ENOSPC"):
        Arena.create(4096, "batches")
    assert len(os.listdir("/proc/self/fd")) == before


def test_close_gives_the_descriptor_back_and_may_be_called_twice():
    arena = Arena.create(4096, "test")
    fd = arena.fd
    arena.close()
    arena.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    assert arena.fd == -1


@pytest.mark.parametrize("shared", [True, False])
def test_memory_that_is_viewed_survives_close(shared):
    arena = Arena.create(4096, "test", shared=shared)
    view = np.frombuffer(arena.memory, np.uint8)
    view[:] = 42
    arena.close()
    del arena
    assert (view == 42).all()
    view[0] = 1


def test_a_memfd_has_no_name_in_the_file_system():
    with Arena.create(4096, "test") as arena:
        assert os.readlink(f"/proc/self/fd/{arena.fd}") == "/memfd:samebatch:test (deleted)"
