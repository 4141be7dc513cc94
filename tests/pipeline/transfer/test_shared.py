import os

import numpy as np
import pytest

from pipeline.transfer import shared
from pipeline.transfer.arena import Arena


def address(array):
    return array.ctypes.data


def test_small_arrays_stay_where_they_are_but_read_only():
    array = np.arange(10)
    (table,) = shared.share(array)
    assert np.shares_memory(table, array)
    assert not table.flags.writeable
    assert array.flags.writeable
    assert shared.place(address(table), table.nbytes) is None


def test_large_arrays_share_one_memory_that_another_map_shows():
    numbers = np.arange(1 << 17, dtype=np.int64)
    odd = np.arange(1001, dtype=np.uint8).reshape(7, 143)
    one, two = shared.share(odd, numbers)
    assert np.array_equal(one, odd)
    assert np.array_equal(two, numbers)
    with pytest.raises(ValueError, match="read-only"):
        two[0] = 1
    places = [shared.place(address(t), t.nbytes) for t in (one, two)]
    assert places[0].fd == places[1].fd
    assert [p.offset for p in places] == [0, 1024]
    with Arena.attach(os.dup(places[1].fd)) as arena:
        again = np.frombuffer(arena.memory, np.int64, 1 << 17, places[1].offset).copy()
    assert np.array_equal(again, numbers)


def test_a_part_has_a_place_and_what_reaches_out_of_the_table_has_none():
    (table,) = shared.share(np.zeros(1 << 21, np.uint8))
    assert shared.place(address(table) + 100, 50).offset == 100
    assert shared.place(address(table), (1 << 21) + 64) is None
    assert shared.place(address(table) - 1, 10) is None


def test_the_descriptor_goes_with_the_last_array():
    (table,) = shared.share(np.zeros(1 << 21, np.uint8))
    part = table[5:10]
    start, fd = address(table), shared.place(address(table), 1).fd
    del table
    assert os.fstat(fd).st_size == 1 << 21
    assert part.sum() == 0
    del part
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert shared.place(start, 1) is None
