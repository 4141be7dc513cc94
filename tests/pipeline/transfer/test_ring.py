import gc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pipeline.transfer.layout import Field
from pipeline.transfer.ring import private_ring

FIELDS = (Field("x", (3,), np.dtype("f4")), Field("y", (), np.dtype("i8")))


def _lent(ring, value, count=4):
    index = ring.acquire()
    assert index is not None
    for array in ring.views(index):
        array[:] = value
    return ring.lend(index, count)


def test_a_buffer_returns_when_the_last_view_is_gone():
    ring = private_ring(FIELDS, 4, buffers=2, held=2)
    x, y = _lent(ring, 1)
    row = x[1:3, ::2]
    del x, y
    assert ring.leased == 1
    del row
    assert ring.leased == 0


def test_a_view_of_a_view_and_a_memoryview_keep_the_buffer():
    ring = private_ring(FIELDS, 4, buffers=1, held=1)
    arrays = _lent(ring, 7)
    kept = memoryview(arrays[0].reshape(-1).view(np.uint8)[4:])
    del arrays
    gc.collect()
    assert ring.acquire() is None
    assert kept[:4] == np.float32(7).tobytes()
    del kept
    assert ring.acquire() == 0


def test_a_kept_batch_is_never_overwritten():
    ring = private_ring(FIELDS, 4, buffers=3, held=2)
    kept = [_lent(ring, value) for value in range(20)]
    for value, (x, y) in enumerate(kept):
        assert (x == value).all()
        assert (y == value).all()


def test_batches_beyond_held_are_copies_and_their_buffer_is_free_at_once():
    ring = private_ring(FIELDS, 4, buffers=3, held=2)
    kept = [_lent(ring, value) for value in range(5)]
    assert (ring.leased, ring.copies) == (2, 3)
    assert ring.acquire() is not None
    del kept


def test_with_nothing_held_every_batch_is_a_copy():
    ring = private_ring(FIELDS, 4, buffers=1, held=0)
    kept = [_lent(ring, value)[0] for value in range(3)]
    assert [int(x[0, 0]) for x in kept] == [0, 1, 2]


def test_a_lent_batch_is_writable_aligned_and_as_long_as_asked():
    ring = private_ring(FIELDS, 4, buffers=1, held=1)
    x, y = _lent(ring, 0, count=3)
    assert x.shape == (3, 3)
    assert y.shape == (3,)
    x += 1
    assert x.ctypes.data % 64 == y.ctypes.data % 64 == 0
    assert x.flags.c_contiguous


def test_batches_outlive_their_ring():
    ring = private_ring(FIELDS, 4, buffers=2, held=2)
    x, _ = _lent(ring, 5)
    del ring
    gc.collect()
    assert (x == 5).all()


def test_torch_keeps_the_buffer_too():
    torch = pytest.importorskip("torch")
    ring = private_ring(FIELDS, 4, buffers=1, held=1)
    tensor = torch.from_numpy(_lent(ring, 3)[0])
    assert ring.acquire() is None
    assert float(tensor[0, 0]) == 3
    del tensor
    assert ring.acquire() == 0


class Lending(RuleBasedStateMachine):
    """free + in flight + leased = buffers, and what the user holds stays as it was."""

    batches = Bundle("batches")
    BUFFERS, HELD = 5, 3

    def __init__(self):
        super().__init__()
        self.ring = private_ring(FIELDS, 4, self.BUFFERS, self.HELD)
        self.flying = []
        self.value = 0

    @rule()
    def acquire(self):
        index = self.ring.acquire()
        free = self.BUFFERS - len(self.flying) - self.ring.leased
        if index is None:
            assert free == 0
        else:
            assert index not in self.flying
            self.flying.append(index)

    @rule()
    def release(self):
        if self.flying:
            self.ring.release(self.flying.pop())

    @rule(target=batches, count=st.integers(1, 4))
    def lend(self, count):
        if not self.flying:
            return None
        index = self.flying.pop(0)
        self.value += 1
        for array in self.ring.views(index):
            array[:] = self.value
        return [self.value, self.ring.lend(index, count)]

    @rule(batch=batches)
    def look(self, batch):
        if batch is not None and batch[1] is not None:
            for array in batch[1]:
                assert (array == batch[0]).all()

    @rule(batch=batches)
    def keep_a_view(self, batch):
        if batch is not None and batch[1] is not None:
            batch[1] = [batch[1][0][:1]]

    @rule(batch=consumes(batches))
    def drop(self, batch):
        if batch is not None:
            batch[1] = None

    @invariant()
    def all_buffers_are_somewhere(self):
        assert 0 <= self.ring.leased <= self.HELD
        free = self.ring._free
        assert len(free) + len(self.flying) + self.ring.leased == self.BUFFERS
        assert len(set(free)) == len(free)
        assert not set(free) & set(self.flying)


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
