"""The kernels on shared words against the model without memory, with the same random moves."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.errors import InternalError
from pipeline.transfer import cells as kernels
from pipeline.transfer import layout as at
from pipeline.transfer import slots
from pipeline.transfer.layout import Field, Layout, format_control

WORKERS = 3
LAYOUT = Layout((Field("x", (), np.dtype("u1")),), 6, 2, 2, 1, 3, WORKERS)
workers = st.integers(0, WORKERS - 1)


def _control(layout=LAYOUT):
    control = np.zeros(layout.control_words, np.uint64)
    format_control(layout, control)
    return control


def _state(control, q, table=None):
    ring = LAYOUT.tickets * LAYOUT.cells
    word = int(control[(table or LAYOUT.in_states) + q % ring])
    return word >> at.GENERATION_SHIFT, word & 0xFFFF


def _open(control, ticket, used=LAYOUT.cells):
    row = LAYOUT.ticket_rows + ticket % LAYOUT.tickets * at.LINE
    control[row + at.T_CELLS] = used
    control[row + at.T_FLAGS] = 0
    kernels.open_cells(control, ticket, used, False, 0, True, False)


def _recover(control, worker, fast=False):
    freed = np.zeros(LAYOUT.tickets * LAYOUT.cells, np.int64)
    return freed[: kernels.recover(control, worker, freed, fast)].tolist()


class Cells(RuleBasedStateMachine):
    """Every legal move leaves the words as the model says; the model refuses the others."""

    @initialize()
    def begin(self):
        self.control = _control()
        self.model = {}  # absolute cell -> model of the cell in its place
        self.row = [slots.Cell() for _ in range(LAYOUT.tickets * LAYOUT.cells)]
        self.opened = 0

    def _place(self, q):
        return q % len(self.row)

    @rule(used=st.integers(1, LAYOUT.cells))
    def open(self, used):
        ticket = self.opened
        places = [self._place(ticket * LAYOUT.cells + k) for k in range(LAYOUT.cells)]
        if any(self.row[i].state not in (slots.DONE, slots.FAILED) for i in places):
            busy = next(i for i in places if self.row[i].state not in (slots.DONE, slots.FAILED))
            with pytest.raises(InternalError, match="illegal move open"):
                self.row[busy].open()
            return
        _open(self.control, ticket, used)
        for k, i in enumerate(places):
            cell = self.row[i].open()
            self.row[i] = cell if k < used else cell.cancel()
        self.opened += 1

    @rule(worker=workers)
    def claim(self, worker):
        q = kernels.claim(self.control, worker, 0, 0)
        first = max(0, (self.opened - LAYOUT.tickets) * LAYOUT.cells)
        free = [
            c
            for c in range(first, self.opened * LAYOUT.cells)
            if self.row[self._place(c)].state == slots.FREE
        ]
        assert q == (min(free) if free else kernels.NOTHING)
        if free:
            self.row[self._place(q)] = self.row[self._place(q)].claim(worker)

    @rule(worker=workers, place=st.integers(0, 8), good=st.booleans())
    def leave(self, worker, place, good):
        cell = self.row[place]
        q = self._absolute(place)
        if q is None:
            return
        move, kernel = ("commit", kernels.commit) if good else ("fail", kernels.fail)
        if cell.state == slots.CLAIMED and cell.worker == worker:
            assert kernel(self.control, worker, q)
            self.row[place] = getattr(cell, move)(worker)
        else:
            assert not kernel(self.control, worker, q)  # and nothing has changed: see `same`
            with pytest.raises(InternalError, match=f"illegal move {move} by {worker}"):
                getattr(cell, move)(worker)

    @rule(worker=workers)
    def die(self, worker):
        freed = _recover(self.control, worker)
        mine = [
            i for i, cell in enumerate(self.row) if (cell.state, cell.worker) == ("CLAIMED", worker)
        ]
        cancelled = {i for i in mine if kernels.cancelled(self.control, self._absolute(i))}
        assert {self._place(q) for q in freed} == set(mine) - cancelled
        for i in range(len(self.row)):
            self.row[i] = self.row[i].recover(worker)
            if i in cancelled:
                self.row[i] = self.row[i].cancel()

    @rule(back=st.integers(1, LAYOUT.tickets))
    def cancel(self, back):
        ticket = self.opened - back
        if ticket < 0:
            return
        kernels.cancel(self.control, ticket, False)
        for k in range(LAYOUT.cells):
            i = self._place(ticket * LAYOUT.cells + k)
            self.row[i] = self.row[i].cancel()

    def _absolute(self, place):
        generation = self.row[place].generation
        return (generation - 1) * len(self.row) + place if generation else None

    @invariant()
    def same(self):
        if not hasattr(self, "row"):
            return
        names = {at.FREE: slots.FREE, at.DONE: slots.DONE, at.FAILED: slots.FAILED}
        for i, cell in enumerate(self.row):
            generation, state = _state(self.control, i)
            if cell.generation == 0:
                continue  # never opened
            assert generation == cell.generation
            if state >= at.CLAIMED:
                assert (cell.state, cell.worker) == (slots.CLAIMED, state - at.CLAIMED)
            else:
                assert (cell.state, cell.worker) == (names[state], None)

    @invariant()
    def a_ticket_is_complete_when_all_its_cells_are_over(self):
        for ticket in range(
            max(0, getattr(self, "opened", 0) - LAYOUT.tickets), getattr(self, "opened", 0)
        ):
            states = {
                self.row[self._place(ticket * LAYOUT.cells + k)].state for k in range(LAYOUT.cells)
            }
            if states == {slots.DONE}:
                expected = kernels.READY
            elif states <= {slots.DONE, slots.FAILED}:
                expected = kernels.BAD
            else:
                expected = kernels.PENDING
            assert kernels.ticket_state(self.control, ticket, False) == expected


TestCells = Cells.TestCase
TestCells.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_a_cell_is_claimed_by_one_worker_only():
    control = _control()
    _open(control, 0)
    assert [kernels.claim(control, w, 0, 0) for w in (0, 1, 2, 0)] == [0, 1, 2, kernels.NOTHING]


def test_the_claim_itself_records_who_owns_the_cell():
    control = _control()
    _open(control, 0)
    q = kernels.claim(control, 2, 0, 0)
    assert _state(control, q) == (1, at.CLAIMED + 2)


def test_workers_are_told_to_stop_whether_there_is_work_or_not():
    control = _control()
    kernels.stop(control)
    assert kernels.claim(control, 0, 0, 0) == kernels.STOPPED
    _open(control, 0)
    assert kernels.claim(control, 0, 10**9, 0) == kernels.STOPPED


def test_a_late_helper_cannot_skip_a_cell_that_became_free_again():
    control = _control()
    _open(control, 0)
    assert kernels.claim(control, 0, 0, 0) == 0
    control[at.W_CURSOR] = 0  # worker 0 died between its claim and moving the cursor
    late = int(control[at.W_CURSOR])  # what a helper saw before it was stopped by the scheduler
    assert _recover(control, 0) == [0]
    assert int(control[at.W_CURSOR]) != late  # its compare-and-swap fails
    assert int(control[at.W_CURSOR]) & ((1 << at.VERSION_SHIFT) - 1) == 0
    assert kernels.claim(control, 1, 0, 0) == 0


@pytest.mark.parametrize("moved", [False, True])
def test_a_cursor_moved_back_changes_its_version_even_if_it_stays(moved):
    control = _control()
    _open(control, 0)
    kernels.claim(control, 0, 0, 0)
    if moved:
        kernels.claim(control, 1, 0, 0)
    before = int(control[at.W_CURSOR]) >> at.VERSION_SHIFT
    _recover(control, 0)
    assert int(control[at.W_CURSOR]) >> at.VERSION_SHIFT == before + 1


def test_the_version_of_the_cursor_wraps_without_touching_the_cell():
    control = _control()
    _open(control, 0)
    control[at.W_CURSOR] = np.uint64(0xFFFF << at.VERSION_SHIFT)
    assert kernels.claim(control, 0, 0, 0) == 0
    assert _recover(control, 0) == [0]
    assert int(control[at.W_CURSOR]) == 0
    assert kernels.claim(control, 1, 0, 0) == 0


def test_recovery_touches_only_what_the_dead_worker_held():
    control = _control()
    _open(control, 0)
    for w in (0, 1, 2):
        kernels.claim(control, w, 0, 0)
    assert _recover(control, 1) == [1]
    assert [_state(control, q)[1] for q in range(3)] == [at.CLAIMED, at.FREE, at.CLAIMED + 2]
    assert kernels.commit(control, 0, 0)
    assert not kernels.commit(control, 1, 1)


def test_a_cursor_that_runs_into_a_cell_that_was_never_opened_says_so():
    control = _control()
    control[at.W_OPENED] = 1
    assert kernels.claim(control, 0, 0, 0) == kernels.BROKEN
