"""The station as a whole, driven move by move in one thread: nothing is lost, repeated or mixed."""

import gc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.errors import InternalError
from pipeline.transfer import cells as kernels
from pipeline.transfer import layout as at
from pipeline.transfer.layout import Field, Layout
from pipeline.transfer.station import Attached, TransferStation, WorkOrder

FIELD = Field("x", (2,), np.dtype("i8"))
WORKERS = 3
MOMENTS = ("claimed", "placed", "written", "sourced", "landed")


def _layout(slots=6, chunk=2, depth=2, held=1, tickets=6):
    return Layout((FIELD,), slots, chunk, depth, held, tickets, WORKERS)


def _station(fast=False, **sizes):
    station = TransferStation(_layout(**sizes), fast=fast, shared=False)
    return station, [Attached(station.views, w, fast=fast) for w in range(WORKERS)]


def _made(order):
    """What a sample of these tests holds: its position twice, made for its id."""
    return np.stack([order.positions.astype(np.int64), order.ids * 10], axis=1)


def _open(station, first, n, phase=0):
    positions = np.arange(first, first + n, dtype=np.uint64)
    return station.open(positions.astype(np.int64) + 1000, positions, phase)


def _work(station, attached, order):
    if station.fast:
        assert attached.land(order, [_made(order)], 0.0)
    else:
        station.views.buffers[order.buffer][0][order.slot : order.slot + len(order.ids)] = _made(
            order
        )
        attached.commit(order)


def _check(taken):
    (x,) = taken.arrays
    assert x[:, 0].tolist() == taken.positions.tolist()
    assert x[:, 1].tolist() == [i * 10 for i in taken.ids.tolist()]
    assert taken.ids.tolist() == [q + 1000 for q in taken.positions.tolist()]


def _die_at(station, attached, order, moment):
    """Do what a fast worker does until `moment`, where it is killed."""
    if moment == "claimed":
        return
    control, layout = station.control, station.layout
    ring = layout.tickets * layout.cells
    p = int(kernels.place(control, attached.worker, order.cell, order.short, 0))
    if p < 0 or moment == "placed":
        return
    ticket, k = divmod(p, layout.cells)
    row = layout.ticket_rows + ticket % layout.tickets * at.LINE
    buffer, lo = int(control[row + at.T_BUFFER]), k * int(control[row + at.T_CHUNK])
    n = len(order.ids)
    station.views.buffers[buffer][0][lo : lo + n] = _made(order)
    station.views.out_ids[buffer, lo : lo + n] = order.ids
    station.views.out_positions[buffer, lo : lo + n] = order.positions
    if moment == "written":
        return
    control[layout.out_sources + p % ring] = order.cell + 1
    if moment == "sourced":
        return
    control[layout.out_states + p % ring] = (p // ring + 1) << at.GENERATION_SHIFT | at.DONE


# ---------------------------------------------------------------- reproducible
def test_a_batch_is_taken_in_order_and_only_when_all_its_cells_are_done():
    station, (a, b, _) = _station()
    _open(station, 0, 6)
    _open(station, 6, 6)
    orders = [a.claim(0.0) for _ in range(6)]
    for order in orders[3:]:
        _work(station, a, order)
    assert station.wait(0.0) == kernels.PENDING
    for order in orders[:3]:
        assert station.wait(0.0) == kernels.PENDING
        _work(station, a, order)
    for first in (0, 6):
        assert station.wait(0.0) == kernels.READY
        taken = station.take()
        assert taken.positions.tolist() == list(range(first, first + 6))
        _check(taken)
    assert b.claim(0.0) == kernels.NOTHING
    station.close()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_a_batch_may_be_shorter_than_its_buffer(n):
    station, (a, *_) = _station()
    _open(station, 0, n)
    sizes = []
    while isinstance(order := a.claim(0.0), WorkOrder):
        sizes.append(len(order.ids))
        _work(station, a, order)
    assert sum(sizes) == n
    assert len(sizes) == -(-n // 2)
    taken = station.take()
    assert len(taken.arrays[0]) == n
    _check(taken)
    station.close()


def test_cells_may_be_larger_than_the_layout_says():
    station, (a, *_) = _station()
    station.open(np.arange(6), np.arange(6, dtype=np.uint64), 0, chunk=4)
    orders = [a.claim(0.0), a.claim(0.0)]
    assert [(o.slot, len(o.ids)) for o in orders] == [(0, 4), (4, 2)]
    assert a.claim(0.0) == kernels.NOTHING
    station.close()


def test_no_more_than_depth_batches_fly_while_the_user_holds_what_he_may():
    station, (a, *_) = _station()
    kept = []
    for first in range(0, 60, 6):
        assert station.can_open()
        _open(station, first, 6)
        while isinstance(order := a.claim(0.0), WorkOrder):
            _work(station, a, order)
        kept.append(station.take())
    for taken in kept:
        _check(taken)
    assert station.ring.copies == 9
    station.close()


def test_opening_without_a_buffer_is_our_own_fault():
    station, _ = _station(depth=1, held=0)
    _open(station, 0, 6)
    assert not station.can_open()
    with pytest.raises(InternalError, match="without a free buffer"):
        _open(station, 6, 6)
    station.close()


def test_a_commit_by_a_worker_that_was_declared_dead_is_our_own_fault():
    station, (a, b, _) = _station()
    _open(station, 0, 6)
    order = a.claim(0.0)
    assert station.recover(0) == [order.cell]
    with pytest.raises(InternalError, match="worker 0 committed cell 0 it did not own"):
        a.commit(order)
    assert b.claim(0.0).cell == order.cell
    station.close()


def test_a_failed_sample_is_told_when_its_batch_is_due():
    station, (a, *_) = _station()
    _open(station, 0, 6)
    _open(station, 6, 6)
    orders = [a.claim(0.0) for _ in range(6)]
    a.fail(orders[4])
    for i in (0, 1, 2, 3, 5):
        _work(station, a, orders[i])
    assert station.wait(0.0) == kernels.READY
    station.take()
    assert station.wait(0.0) == kernels.BAD
    assert station.failed() == [(1, orders[4].cell)]
    assert station.samples_of(orders[4].cell) == ([8, 9], [1008, 1009])
    station.close()


def test_what_a_worker_holds_is_known():
    station, (a, *_) = _station()
    _open(station, 0, 6)
    assert station.holds(0) == -1
    order = a.claim(0.0)
    assert station.holds(0) == order.cell
    a.commit(order)
    assert station.holds(0) == -1
    station.close()


@pytest.mark.parametrize("fast", [False, True])
def test_a_straggler_of_an_abandoned_pass_writes_into_no_batch_of_the_next(fast):
    station, (a, b, _) = _station(fast)
    _open(station, 0, 6)
    late = a.claim(0.0)
    station.cancel()
    done = []
    for first in range(100, 148, 6):
        assert station.can_open()
        _open(station, first, 6)
        if first == 112:
            _work(station, a, late)  # finished after all, into a buffer nobody reads
        while isinstance(order := b.claim(0.0), WorkOrder):
            _work(station, b, order)
        assert station.wait(0.0) == kernels.READY
        taken = station.take()
        _check(taken)
        done += taken.positions.tolist()
    assert sorted(done) == list(range(100, 148))
    station.close()


@pytest.mark.parametrize("fast", [False, True])
def test_buffers_of_an_abandoned_pass_return_when_their_last_writer_is_done(fast):
    station, attached = _station(fast, held=0)
    for first in (0, 6):
        _open(station, first, 6)
    orders = [attached[w].claim(0.0) for w in (0, 1, 2)]
    orders += [attached[0].claim(0.0)]  # one of the second batch
    station.cancel()
    for order in orders:
        worker = 0 if order is orders[3] else orders.index(order)
        _work(station, attached[worker], order)
    station.can_open()
    assert len(station.ring._free) == station.layout.buffers - (len(station._buffer_of))
    _open(station, 100, 6)
    while isinstance(order := attached[0].claim(0.0), WorkOrder):
        _work(station, attached[0], order)
    taken = station.take()
    _check(taken)
    station.close()


# ---------------------------------------------------------------- fast
def test_a_finished_chunk_takes_the_next_free_place():
    station, (a, _b, _c) = _station(fast=True)
    _open(station, 0, 6)
    _open(station, 6, 6)
    orders = [a.claim(0.0) for _ in range(6)]
    for i in (5, 0, 3):
        _work(station, a, orders[i])
    assert station.wait(0.0) == kernels.READY
    taken = station.take()
    assert taken.positions.tolist() == [10, 11, 0, 1, 6, 7]
    _check(taken)
    assert station.wait(0.0) == kernels.PENDING
    for i in (4, 2, 1):
        _work(station, a, orders[i])
    taken = station.take()
    assert taken.positions.tolist() == [8, 9, 4, 5, 2, 3]
    _check(taken)
    station.close()


def test_the_short_last_chunk_has_its_place_kept_at_the_end_of_the_last_batch():
    station, (a, _b, _) = _station(fast=True)
    _open(station, 0, 6)
    _open(station, 6, 3)  # cells of 2 and 1
    orders = [a.claim(0.0) for _ in range(5)]
    assert [o.short for o in orders] == [False, False, False, False, True]
    for i in (4, 3, 2, 1):
        _work(station, a, orders[i])
    assert len(station.take().positions) == 6
    _work(station, a, orders[0])
    taken = station.take()
    assert taken.positions.tolist() == [0, 1, 8]
    _check(taken)
    station.close()


def test_a_short_batch_is_taken_last_though_it_is_full_first():
    station, (a, *_) = _station(fast=True)
    _open(station, 0, 6)
    _open(station, 6, 1)
    orders = [a.claim(0.0) for _ in range(4)]
    _work(station, a, orders[3])
    assert station.wait(0.0) == kernels.PENDING
    for order in orders[:3]:
        _work(station, a, order)
    assert [len(station.take().positions) for _ in range(2)] == [6, 1]
    station.close()


def test_a_chunk_without_a_place_waits_and_finds_one_later():
    station, (a, b, _) = _station(fast=True, depth=1, held=0)
    _open(station, 0, 6)
    assert station.can_open()
    _open(station, 6, 6)  # no buffer yet
    orders = [a.claim(0.0) for _ in range(4)]
    for order in orders[:3]:
        _work(station, a, order)
    assert not b.land(orders[3], [_made(orders[3])], 0.0)
    _check(station.take())
    station.wait(0.0)  # gives the free buffer to the second batch
    _work(station, a, orders[3])
    station.close()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("short", [False, True])
def test_a_worker_that_dies_at_any_moment_loses_and_repeats_nothing(moment, short):
    station, (a, b, _) = _station(fast=True)
    n = 3 if short else 6
    _open(station, 0, n)
    orders = [a.claim(0.0)] if not short else [b.claim(0.0), a.claim(0.0)]
    _die_at(station, a, orders[-1], moment)
    if short:
        _work(station, b, orders[0])
    freed = station.recover(0)
    assert freed == ([] if moment == "landed" else [orders[-1].cell])
    while isinstance(order := b.claim(0.0), WorkOrder):
        _work(station, b, order)
    assert station.wait(0.0) == kernels.READY
    taken = station.take()
    assert sorted(taken.positions.tolist()) == list(range(n))
    _check(taken)
    station.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_may_die_at_any_moment_of_an_abandoned_pass(moment):
    station, (a, b, _) = _station(fast=True)
    _open(station, 0, 6)
    _die_at(station, a, a.claim(0.0), moment)
    station.cancel()
    assert station.recover(0) == []
    assert station.can_open()
    assert not station._zombies
    _open(station, 50, 6)
    while isinstance(order := b.claim(0.0), WorkOrder):
        _work(station, b, order)
    _check(station.take())
    station.close()


def test_a_chunk_that_was_delivered_before_its_worker_died_is_not_made_again():
    station, (a, b, _) = _station(fast=True)
    _open(station, 0, 6)
    _open(station, 6, 6)
    orders = [b.claim(0.0) for _ in range(3)]
    _die_at(station, a, a.claim(0.0), "landed")  # in the first buffer; it still says CLAIMED
    orders += [b.claim(0.0) for _ in range(2)]
    for order in orders:
        _work(station, b, order)
    for _ in range(2):
        _check(station.take())
    for first in range(12, 42, 6):  # the first row, with the sources of its buffer, is used again
        assert station.can_open()
        _open(station, first, 6)
        while isinstance(order := b.claim(0.0), WorkOrder):
            _work(station, b, order)
        _check(station.take())
    assert station.recover(0) == []
    station.close()


def test_a_place_of_a_later_pass_is_not_for_a_straggler_that_was_about_to_take_it():
    station, (a, *_) = _station(fast=True)
    _open(station, 0, 6)
    a.claim(0.0)
    run = station.run
    station.cancel()
    _open(station, 6, 6)
    # What `place` does after it saw that its ticket is not cancelled: too early to see it.
    cursor, opened = at.W_OUT_CURSOR, at.W_OUT_OPENED
    base = station.layout.out_states
    taken = kernels._take(station.control, cursor, opened, base, 0, run)
    assert taken == kernels.STOPPED
    assert kernels._take(station.control, cursor, opened, base, 0, station.run) >= 0
    station.close()


def test_a_straggler_of_a_batch_that_was_taken_is_sent_home_when_the_pass_is_abandoned():
    station, (a, b, _) = _station(fast=True)
    _open(station, 0, 6)
    _open(station, 6, 6)
    late = a.claim(0.0)
    for _ in range(3):
        _work(station, b, b.claim(0.0))
    _check(station.take())  # the first batch, without the chunk that `a` holds
    for _ in range(2):
        _work(station, b, b.claim(0.0))
    assert station.in_flight == 1
    while True:  # no place is left but the one that `a` would need
        p = kernels.place(station.control, 1, late.cell, False, 0)
        if p < 0:
            break
    station.cancel()
    assert a.land(late, [_made(late)], 0.0)
    assert station._row_free(station.layout.tickets)
    station.close()


@pytest.mark.parametrize("n", [1, 3, 6])
def test_an_abandoned_batch_that_nobody_began_gives_its_buffer_back_at_once(n):
    for fast in (False, True):
        station, _ = _station(fast)
        _open(station, 0, n)
        station.cancel()
        assert station.can_open()
        assert len(station.ring._free) == station.layout.buffers
        station.close()


def test_a_failure_in_fast_mode_is_told_also_if_the_batch_it_was_opened_with_is_gone():
    station, (a, b, _) = _station(fast=True)
    _open(station, 0, 6)
    _open(station, 6, 6)
    slow = a.claim(0.0)
    for _ in range(3):
        _work(station, b, b.claim(0.0))
    assert station.wait(0.0) == kernels.READY
    _check(station.take())  # the first ticket's buffer, filled by others
    a.fail(slow)
    assert station.wait(0.0) == kernels.BAD
    assert [cell for _, cell in station.failed()] == [slow.cell]
    station.close()


def test_failures_of_an_abandoned_pass_are_forgotten():
    for fast in (False, True):
        station, (a, b, _) = _station(fast)
        _open(station, 0, 6)
        late = a.claim(0.0)
        a.fail(b.claim(0.0))
        station.cancel()
        _open(station, 6, 6)
        a.fail(late)
        assert station.failed() == []
        while isinstance(order := b.claim(0.0), WorkOrder):
            _work(station, b, order)
        assert station.wait(0.0) == kernels.READY
        station.close()


@pytest.mark.parametrize("fast", [False, True])
def test_batches_outlive_the_station(fast):
    station, (a, *_) = _station(fast)
    _open(station, 0, 6)
    while isinstance(order := a.claim(0.0), WorkOrder):
        _work(station, a, order)
    taken = station.take()
    station.close()
    del station, a, order
    gc.collect()
    _check(taken)


def test_a_buffer_that_a_straggler_frees_late_is_used_though_all_is_opened():
    station, (a, b, _) = _station(fast=True, depth=1, held=0)
    _open(station, 0, 6)
    late = a.claim(0.0)
    station.cancel()
    assert station.can_open()
    _open(station, 6, 6)  # the only buffer is the straggler's
    order = b.claim(0.0)
    assert not b.land(order, [_made(order)], 0.0)
    _work(station, a, late)
    assert station.wait(0.0) == kernels.PENDING
    _work(station, b, order)
    while isinstance(order := b.claim(0.0), WorkOrder):
        _work(station, b, order)
    assert station.wait(0.0) == kernels.READY
    _check(station.take())
    station.close()


# ---------------------------------------------------------------- any order of moves
class Passes(RuleBasedStateMachine):
    """Open, work, die, take, keep, abandon in any order: each sample exactly once in its pass."""

    FAST = False

    @initialize()
    def begin(self):
        self.station, self.attached = _station(self.FAST, depth=2, held=1, tickets=6)
        self.held = [None] * WORKERS  # what each worker works on
        self.kept = []
        self.first = 0
        self.ended = False
        self._new_pass()

    def _new_pass(self):
        self.opened, self.done = [], []
        self.begun = self.station._opened
        self.ended = False
        self.first = (self.first // 1000 + 1) * 1000

    @rule(n=st.sampled_from([6, 6, 6, 5, 4, 3, 1]))
    def open(self, n):
        if self.ended or not self.station.can_open():
            return
        _open(self.station, self.first, n)
        self.opened += range(self.first, self.first + n)
        self.first += n
        self.ended = n < 6  # only the last batch of a pass is short

    @rule(w=st.integers(0, WORKERS - 1))
    def claim(self, w):
        if self.held[w] is None:
            order = self.attached[w].claim(0.0)
            self.held[w] = order if isinstance(order, WorkOrder) else None

    @rule(w=st.integers(0, WORKERS - 1))
    def finish(self, w):
        order = self.held[w]
        if order is None:
            return
        if self.FAST:
            if not self.attached[w].land(order, [_made(order)], 0.0):
                assert order.ticket >= self.begun  # only of this pass may it have to wait
                return
        else:
            _work(self.station, self.attached[w], order)
        self.held[w] = None

    @rule(w=st.integers(0, WORKERS - 1), moment=st.sampled_from(MOMENTS))
    def die(self, w, moment):
        order, self.held[w] = self.held[w], None
        if order is not None and self.FAST:
            _die_at(self.station, self.attached[w], order, moment)
        self.station.recover(w)

    @rule(keep=st.booleans())
    def take(self, keep):
        if self.station.in_flight and self.station.wait(0.0) == kernels.READY:
            taken = self.station.take()
            _check(taken)
            assert not set(taken.positions.tolist()) & set(self.done)
            self.done += taken.positions.tolist()
            if keep:
                self.kept.append(taken)

    @rule()
    def drop_the_oldest(self):
        if self.kept:
            self.kept.pop(0)

    @rule()
    def abandon(self):
        self.station.cancel()
        self._new_pass()

    @invariant()
    def what_is_kept_stays_as_it_was(self):
        for taken in getattr(self, "kept", []):
            _check(taken)

    @invariant()
    def every_buffer_is_in_one_place(self):
        if hasattr(self, "station"):
            station = self.station
            leased = station.ring.leased
            assert len(station.ring._free) + len(station._buffer_of) + leased == 3
            assert leased <= 1

    def teardown(self):
        if not hasattr(self, "station"):
            return
        for _ in range(10):  # everybody finishes what there is
            for w in range(WORKERS):
                self.finish(w)
            for w in range(WORKERS):
                self.claim(w)
            self.take(keep=False)
            if not self.station.in_flight and not any(self.held):
                break
        for _ in range(60):
            if not self.station.in_flight:
                break
            for w in range(WORKERS):
                self.claim(w)
                self.finish(w)
            self.take(keep=False)
        assert sorted(self.done) == self.opened
        self.station.close()


class FastPasses(Passes):
    """The same with atomic slots."""

    FAST = True


TestPasses = Passes.TestCase
TestFastPasses = FastPasses.TestCase
TestPasses.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestFastPasses.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
