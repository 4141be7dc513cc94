import subprocess
import sys

import numpy as np
import pytest

from pipeline import parcel
from pipeline.errors import ConfigError
from pipeline.workers import payload
from tests.helpers import python


def _sent(thing):
    with payload.pack(thing) as arena:
        return payload.unpack(arena)


def test_plain_objects_arrive_as_they_were():
    thing = {"a": [1, 2.5, "text", None], ("b", 3): {4, 5}, "bytes": b"x" * 100}
    assert _sent(thing) == thing


def test_functions_without_a_module_arrive_by_value():
    factor = 3
    assert _sent(lambda x: x * factor)(5) == 15

    class Local:
        def __init__(self):
            self.f = lambda x: x + factor

    assert _sent(Local()).f(1) == 4


def test_a_class_of_main_arrives_in_a_process_that_does_not_have_it():
    code = (
        "import os, subprocess, sys\n"
        "from pipeline.workers import payload\n"
        "class Mine:\n"
        "    def __init__(self, value): self.value = value\n"
        "    def double(self): return helper(self.value)\n"
        "def helper(x): return 2 * x\n"
        "arena = payload.pack(Mine(21))\n"
        "code = '''\n"
        "import sys\n"
        "from pipeline.transfer.arena import Arena\n"
        "from pipeline.workers import payload\n"
        "print(payload.unpack(Arena.attach(int(sys.argv[1]))).double())'''\n"
        "done = subprocess.run([sys.executable, '-c', code, str(arena.fd)], pass_fds=[arena.fd],\n"
        "                      capture_output=True, text=True, check=True)\n"
        "print(done.stdout)\n"
    )
    assert python(code).stdout.strip() == "42"


def test_big_arrays_are_not_in_the_pickle_and_not_copied_when_unpacked():
    array = np.arange(1 << 16, dtype=np.int64)
    with payload.pack({"x": array, "same": array, "small": np.arange(10)}) as arena:
        _, pickle_nbytes, count = parcel._HEADER.unpack_from(arena.memory)
        assert pickle_nbytes < 4096
        assert count == 1
        found = payload.unpack(arena)
        assert np.array_equal(found["x"], array)
        assert found["same"] is found["x"]
        whole = np.frombuffer(arena.memory, np.uint8)
        assert np.shares_memory(found["x"], whole)
        assert found["x"].ctypes.data % 64 == 0
        del found, whole


def test_one_worker_that_writes_into_its_array_changes_no_other():
    import os

    from pipeline.transfer.arena import Arena

    with payload.pack(np.zeros(1 << 16)) as arena:
        private = [Arena.attach(os.dup(arena.fd), private=True) for _ in range(2)]
        one, other = (payload.unpack(p) for p in private)
        one[:] = 7
        assert not other.any()
        for p in private:
            p.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a.T, lambda a: a[::2, 1::3],
        lambda a: a[5:5], lambda a: np.broadcast_to(a[0], (7, a.shape[1])),
        lambda a: a.astype(">i4"), np.asfortranarray,
    ],
    ids=["reversed", "mirrored", "transposed", "stepped", "empty", "broadcast", "swapped", "fortran"],
)  # fmt: skip
@pytest.mark.parametrize("rows", [10, 2000])
def test_arrays_with_any_strides_arrive(change, rows):
    array = change(np.arange(rows * 31, dtype=np.int32).reshape(rows, 31))
    found = _sent(array)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a, lambda a: a[100:200], lambda a: a[::2, 3:5], lambda a: a[::-1],
        lambda a: a[50:20:-3, ::-1], lambda a: a.T, lambda a: a[7][2:],
    ],
    ids=["whole", "part", "stepped", "reversed", "backwards", "transposed", "row"],
)  # fmt: skip
def test_memory_maps_travel_as_a_file_name_and_not_as_their_content(tmp_path, mode, change):
    path = tmp_path / "data.bin"
    values = np.arange(2000 * 16, dtype=np.float32)
    path.write_bytes(b"\0" * 77 + values.tobytes())
    array = change(np.memmap(path, np.float32, mode, 77, (2000, 16)))
    with payload.pack({"x": array}) as arena:
        assert arena.nbytes < 4096
        found = payload.unpack(arena)["x"]
    assert found.shape == array.shape
    assert np.array_equal(found, array)
    assert np.array_equal(np.fromfile(path, np.uint8)[77:].view(np.float32), values)


def test_a_worker_cannot_change_the_file_of_a_map_opened_for_writing(tmp_path):
    path = tmp_path / "data.bin"
    array = np.memmap(path, np.uint8, "w+", shape=(100,))
    array.flush()
    again = np.memmap(path, np.uint8, "r+", shape=(100,))
    found = _sent(again)
    found[:] = 9
    assert path.read_bytes() == bytes(100)


class Holder:
    """An object with something in it."""

    def __init__(self, thing):
        self.inner = {"things": [0, thing]}


def test_what_cannot_be_pickled_is_named_with_the_way_to_it(tmp_path):
    with open(tmp_path / "file", "w") as f, pytest.raises(ConfigError) as e:
        payload.pack(Holder(f))
    assert "inner.things.1 (TextIOWrapper) cannot be sent to worker processes" in str(e.value)
    assert "when they are first used" in str(e.value)


def test_a_lock_is_named_too():
    import threading

    with pytest.raises(ConfigError, match=r"inner\.things\.1 \(lock\)"):
        payload.pack(Holder(threading.Lock()))


def test_other_memory_is_not_taken_for_a_payload():
    from pipeline.transfer.arena import Arena

    with Arena.create(4096, "test") as arena, pytest.raises(ConfigError, match="no payload"):
        payload.unpack(arena)


def test_packing_needs_no_module_of_the_tests():
    # The launcher knows nothing of the user's modules: see test_pool for the whole way.
    done = subprocess.run(
        [sys.executable, "-c", "import pipeline.workers.payload, sys; print('pytest' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "False"


# ---------------------------------------------------------------- tables
def test_a_table_is_lent_and_not_copied():
    import os

    from pipeline.transfer import shared
    from pipeline.transfer.arena import Arena

    numbers, other = shared.share(np.arange(1 << 18), np.arange(1 << 16))
    lent = []
    with payload.pack({"a": numbers, "part": numbers[7:70_000], "b": other}, lent) as arena:
        assert arena.nbytes < 4096
        assert len(lent) == 1
        with Arena.attach(os.dup(lent[0].fd), private=True) as table:
            found = payload.unpack(arena, [table.memory])
            assert np.array_equal(found["a"], numbers)
            assert np.array_equal(found["part"], numbers[7:70_000])
            assert np.array_equal(found["b"], other)
            assert np.shares_memory(found["a"], np.frombuffer(table.memory, np.uint8))
            assert not found["a"].flags.writeable
            del found


def test_where_nothing_can_be_lent_a_table_is_copied():
    from pipeline.transfer import shared

    tables = [shared.share(np.full(1 << 20, i, np.uint8))[0] for i in range(payload.MOST_LENT + 2)]
    assert [int(t[-1]) for t in _sent(tables)] == list(range(payload.MOST_LENT + 2))
    lent = []
    with payload.pack(tables, lent) as arena:
        assert len(lent) == payload.MOST_LENT
        assert arena.nbytes > 2 << 20
        found = payload.unpack(arena, [one.kept for one in lent])
        assert [int(t[-1]) for t in found] == list(range(payload.MOST_LENT + 2))
        del found


def test_many_python_objects_are_spoken_of(caplog, monkeypatch):
    monkeypatch.setattr(payload, "_HEAVY_NBYTES", 8 << 20)
    names = [f"{i:040}" for i in range(50_000)]
    with caplog.at_level("WARNING", "samebatch"), payload.pack(names) as arena:
        payload.hint(arena, 2)
        assert not caplog.records
        payload.hint(arena, 8)
    assert "2 MB when pickled; each of 8 workers" in caplog.text
    assert "datasets.PackedStrings(texts)" in caplog.text
