"""The moves of `pipeline.transfer.slots` on shared atomic words, as `@njit` kernels.

Words and protocol: `pipeline.transfer.layout`. No lock is held anywhere, so a process may die
between any two instructions.

* claim: swap the cell FREE → CLAIMED(w); then move the cursor on. The cursor is only a hint
  that anybody may advance past a cell that is not FREE. Its version changes whenever recovery
  moves it back, so that a late helper cannot skip a cell that became FREE again.
* sleep and wake: the sleeper announces itself, looks again, then sleeps on a bell that it read
  before. The waker changes the state with a full fence, then looks for sleepers. Every sleep is
  timed, for liveness checks, never for correctness.
* fast mode: a finished chunk takes the next free cell of the buffers, in finishing order. The
  cell records its source *before* it is DONE, so that recovery knows whether a dead worker's
  chunk was delivered. The short last chunk has its place kept (RESERVED), so that only the last
  batch of a phase is short.
"""

from typing import Any

from numba import int64, uint64

from pipeline.transfer import layout as at
from pipeline.transfer.atomics import (
    add,
    exchange,
    futex_wait,
    futex_wake,
    load,
    pause,
    store,
    swap,
)
from rng.kernel import kernel

# What waiting calls return instead of a cell or a ticket.
NOTHING = -1
STOPPED = -2
BROKEN = -3  # the arena is not what it should be

PENDING = 0
READY = 1
BAD = 2

# numba freezes globals: plain ints keep the kernels typed as int64.
_W_TICKETS, _W_CELLS, _W_LINES, _W_ROWS = (
    at.W_TICKETS,
    at.W_CELLS,
    at.W_WORKER_LINES,
    at.W_TICKET_ROWS,
)
_W_IN, _W_OUT, _W_SRC = at.W_IN_STATES, at.W_OUT_STATES, at.W_OUT_SOURCES
_W_CURSOR, _W_OPENED = at.W_CURSOR, at.W_OPENED
_W_OUT_CURSOR, _W_OUT_OPENED = at.W_OUT_CURSOR, at.W_OUT_OPENED
_W_STOP, _W_BELL, _W_ASLEEP = at.W_STOP, at.W_WORKER_BELL, at.W_WORKERS_ASLEEP
_W_CBELL, _W_CWAITS, _W_FAILED = at.W_CONSUMER_BELL, at.W_CONSUMER_WAITS, at.W_FAILED
_T_CELLS, _T_FLAGS, _T_RUN = at.T_CELLS, at.T_FLAGS, at.T_RUN
_FREE, _DONE, _FAILED, _RESERVED, _CLAIMED = (
    at.FREE,
    at.DONE,
    at.FAILED,
    at.RESERVED,
    at.CLAIMED,
)
_W_RESTING = at.W_RESTING
_LINE = at.LINE
_L_CELL = at.L_CELL
_ANY = at.ANY
_CELL_MASK = (1 << at.VERSION_SHIFT) - 1
_VERSION = 1 << at.VERSION_SHIFT
_ALL = 0x7FFFFFFF

CANCELLED = 1  # bits of a ticket's flags
SHORT_LAST = 2


@kernel
def _word(generation: Any, state: Any) -> Any:
    return uint64(generation) << uint64(16) | uint64(state)


@kernel
def _take(control: Any, cursor: Any, opened: Any, base: Any, worker: Any, run: Any) -> Any:
    """Claim the next FREE cell of one table; return it or NOTHING. One pass, no waiting.

    With `run` >= 0 only a cell of that pass is taken, STOPPED if the next one is of another.
    """
    cells = int64(control[_W_CELLS])
    ring = int64(control[_W_TICKETS]) * cells
    while True:
        seen = load(control, cursor)
        q = int64(seen & uint64(_CELL_MASK))
        if q >= int64(load(control, opened)) * cells:
            return int64(NOTHING)
        generation = q // ring + 1
        i = base + q % ring
        state = load(control, i)
        free = _word(generation, _FREE)
        if state == free:
            # The swap below holds only for this generation, hence for this row as read here.
            row = int64(control[_W_ROWS]) + (q // cells % int64(control[_W_TICKETS])) * _LINE
            if run >= 0 and int64(load(control, row + _T_RUN)) != run:
                return int64(STOPPED)
            if swap(control, i, free, _word(generation, _CLAIMED + worker)) == free:
                swap(control, cursor, seen, seen + uint64(1))
                return q
        elif int64(state >> uint64(16)) >= generation:
            # Gone: help the cursor on, over all unused cells of a ticket at once.
            step = uint64(1)
            if int64(state >> uint64(16)) == generation:
                ticket = q // cells
                row = int64(control[_W_ROWS]) + (ticket % int64(control[_W_TICKETS])) * _LINE
                if q - ticket * cells >= int64(load(control, row + _T_CELLS)):
                    step = uint64((ticket + 1) * cells - q)
            swap(control, cursor, seen, seen + step)
        else:
            return int64(BROKEN)


@kernel
def _sleep(control: Any, bell: Any, patience_ns: Any) -> None:
    futex_wait(control, _W_BELL, bell, patience_ns)


@kernel
def _rested(control: Any, patience_ns: Any) -> Any:
    """Sleep if fewer workers do than should rest; return whether this one did.

    The others, and the consumer that helps, have all processors: one more would only take turns
    with them. Whoever is woken when enough others sleep works on.
    """
    resting = int64(control[_W_RESTING])
    if resting == 0:
        return False
    bell = load(control, _W_BELL)
    rest = int64(add(control, _W_ASLEEP, uint64(1))) < resting
    if rest:
        _sleep(control, bell, patience_ns)
    add(control, _W_ASLEEP, uint64(-1))
    return rest


@kernel
def claim(control: Any, worker: Any, patience_ns: Any, spins: Any) -> Any:
    """Return a cell that now belongs to `worker`; or NOTHING after `patience_ns`; or STOPPED."""
    base = int64(control[_W_IN])
    if load(control, _W_STOP) != 0:
        return int64(STOPPED)
    if patience_ns > 0 and _rested(control, patience_ns):
        return int64(NOTHING)
    q = _take(control, _W_CURSOR, _W_OPENED, base, worker, int64(-1))
    if q == NOTHING and patience_ns > 0:
        for _ in range(spins):
            pause()
            if int64(load(control, _W_CURSOR) & uint64(_CELL_MASK)) < int64(
                load(control, _W_OPENED)
            ) * int64(control[_W_CELLS]):
                break
        q = _take(control, _W_CURSOR, _W_OPENED, base, worker, int64(-1))
        if q == NOTHING:
            bell = load(control, _W_BELL)
            add(control, _W_ASLEEP, uint64(1))
            q = _take(control, _W_CURSOR, _W_OPENED, base, worker, int64(-1))
            if q == NOTHING and load(control, _W_STOP) == 0:
                _sleep(control, bell, patience_ns)
            add(control, _W_ASLEEP, uint64(-1))
            if q == NOTHING:
                if load(control, _W_STOP) != 0:
                    return int64(STOPPED)
                q = _take(control, _W_CURSOR, _W_OPENED, base, worker, int64(-1))
    if q >= 0:
        store(control, int64(control[_W_LINES]) + worker * _LINE + _L_CELL, uint64(q + 1))
    return q


@kernel
def _complete(control: Any, base: Any, ticket: Any) -> Any:
    """Return READY, BAD (all over, some FAILED) or PENDING for the cells of one ticket."""
    tickets = int64(control[_W_TICKETS])
    cells = int64(control[_W_CELLS])
    row = ticket % tickets
    generation = ticket // tickets + 1
    used = int64(control[int64(control[_W_ROWS]) + row * _LINE + _T_CELLS])
    done = _word(generation, _DONE)
    failed = _word(generation, _FAILED)
    result = READY
    for k in range(used):
        state = load(control, base + row * cells + k)
        if state != done:
            if state != failed:
                return PENDING
            result = BAD
    return result


@kernel
def ticket_state(control: Any, ticket: Any, out: Any) -> Any:
    """Return READY, BAD or PENDING; `out`: by the cells of its buffer (fast mode)."""
    return _complete(control, int64(control[_W_OUT] if out else control[_W_IN]), ticket)


@kernel
def _ring_consumer(control: Any) -> None:
    add(control, _W_CBELL, uint64(1))
    futex_wake(control, _W_CBELL, 1)


@kernel
def _leave(control: Any, worker: Any, q: Any, final: Any) -> Any:
    """Swap the cell CLAIMED(worker) → final; False if it was not this worker's."""
    cells = int64(control[_W_CELLS])
    ring = int64(control[_W_TICKETS]) * cells
    generation = q // ring + 1
    i = int64(control[_W_IN]) + q % ring
    mine = _word(generation, _CLAIMED + worker)
    ok = swap(control, i, mine, _word(generation, final)) == mine
    store(control, int64(control[_W_LINES]) + worker * _LINE + _L_CELL, uint64(0))
    return ok


@kernel
def reserve(control: Any, word: Any, nbytes: Any) -> Any:
    """Add to a region's cursor; return what it was."""
    return add(control, word, uint64(nbytes))


@kernel
def commit(control: Any, worker: Any, q: Any) -> Any:
    """Publish the cell's bytes and wake the consumer if it waits for this batch."""
    ok = _leave(control, worker, q, _DONE)
    ticket = q // int64(control[_W_CELLS])
    if load(control, _W_CWAITS) == uint64(ticket + 1) and ticket_state(control, ticket, False):
        _ring_consumer(control)
    return ok


@kernel
def fail(control: Any, worker: Any, q: Any) -> Any:
    """Mark the cell FAILED and wake the consumer."""
    ok = _leave(control, worker, q, _FAILED)
    add(control, _W_FAILED, uint64(1))
    _ring_consumer(control)
    return ok


@kernel
def cancelled(control: Any, q: Any) -> Any:
    """Return whether the consumer abandoned the ticket of this cell."""
    row = (q // int64(control[_W_CELLS])) % int64(control[_W_TICKETS])
    flags = load(control, int64(control[_W_ROWS]) + row * _LINE + _T_FLAGS)
    return (flags & uint64(CANCELLED)) != 0


# ---------------------------------------------------------------- fast mode: atomic slots
@kernel
def _take_reserved(control: Any, worker: Any, q: Any) -> Any:
    cells = int64(control[_W_CELLS])
    if int64(load(control, _W_OUT_OPENED)) <= q // cells:
        return int64(NOTHING)
    ring = int64(control[_W_TICKETS]) * cells
    generation = q // ring + 1
    i = int64(control[_W_OUT]) + q % ring
    kept = _word(generation, _RESERVED)
    if swap(control, i, kept, _word(generation, _CLAIMED + worker)) == kept:
        return q
    return int64(NOTHING)


@kernel
def place(control: Any, worker: Any, q: Any, short: Any, patience_ns: Any) -> Any:
    """Return the cell of a buffer where finished chunk q goes: the next free one.

    Returns NOTHING after `patience_ns` without a free one, or STOPPED.
    """
    base = int64(control[_W_OUT])
    if load(control, _W_STOP) != 0 or cancelled(control, q):
        return int64(STOPPED)
    row = (q // int64(control[_W_CELLS])) % int64(control[_W_TICKETS])
    run = int64(control[int64(control[_W_ROWS]) + row * _LINE + _T_RUN])
    p = (
        _take_reserved(control, worker, q)
        if short
        else _take(control, _W_OUT_CURSOR, _W_OUT_OPENED, base, worker, run)
    )
    if p == NOTHING:
        bell = load(control, _W_BELL)
        add(control, _W_ASLEEP, uint64(1))
        p = (
            _take_reserved(control, worker, q)
            if short
            else _take(control, _W_OUT_CURSOR, _W_OUT_OPENED, base, worker, run)
        )
        if p == NOTHING and load(control, _W_STOP) == 0 and not cancelled(control, q):
            _sleep(control, bell, patience_ns)
        add(control, _W_ASLEEP, uint64(-1))
    return p


@kernel
def land(control: Any, worker: Any, q: Any, p: Any) -> Any:
    """Publish chunk q in the buffer cell p: source first, then the buffer, then the chunk.

    The consumer may have marked the chunk DONE meanwhile (`settle`); that is no fault.
    """
    cells = int64(control[_W_CELLS])
    ring = int64(control[_W_TICKETS]) * cells
    store(control, int64(control[_W_SRC]) + p % ring, uint64(q + 1))
    generation = p // ring + 1
    i = int64(control[_W_OUT]) + p % ring
    mine = _word(generation, _CLAIMED + worker)
    ok = swap(control, i, mine, _word(generation, _DONE)) == mine
    _leave(control, worker, q, _DONE)
    if load(control, _W_CWAITS) == uint64(_ANY) and ticket_state(control, p // cells, True):
        _ring_consumer(control)
    return ok


@kernel
def first_complete(control: Any, lo: Any, hi: Any, taken: Any) -> Any:
    """Return the first ticket of [lo, hi) whose buffer is full and not taken, or NOTHING."""
    tickets = int64(control[_W_TICKETS])
    for t in range(lo, hi):
        if taken[t % tickets] != uint64(t + 1) and ticket_state(control, t, True) == READY:
            return t
    return int64(NOTHING)


@kernel
def settle(control: Any, ticket: Any) -> None:
    """Mark DONE every chunk that stands in the full buffer of `ticket`, before it is delivered.

    Its worker may have died between publishing it and saying so; recovery would redo it.
    """
    tickets = int64(control[_W_TICKETS])
    cells = int64(control[_W_CELLS])
    ring = tickets * cells
    row = ticket % tickets
    for k in range(int64(control[int64(control[_W_ROWS]) + row * _LINE + _T_CELLS])):
        q = int64(load(control, int64(control[_W_SRC]) + row * cells + k)) - 1
        generation = q // ring + 1
        i = int64(control[_W_IN]) + q % ring
        state = load(control, i)
        if state >> uint64(16) == uint64(generation) and state & uint64(0xFFFF) >= uint64(_CLAIMED):
            swap(control, i, state, _word(generation, _DONE))


# ---------------------------------------------------------------- the consumer
@kernel
def open_cells(
    control: Any, ticket: Any, used: Any, short: Any, resting: Any, inputs: Any, outputs: Any
) -> None:
    """Make the cells of a ticket FREE and let workers see them.

    The ticket's row, ids and positions are written before. `inputs`: cells to be made;
    `outputs`: cells of its buffer (fast mode). `resting`: how many workers may sleep on while
    there is work.
    """
    tickets = int64(control[_W_TICKETS])
    cells = int64(control[_W_CELLS])
    row = ticket % tickets
    generation = ticket // tickets + 1
    for k in range(cells):
        state = _FREE if k < used else _DONE
        if inputs:
            store(control, int64(control[_W_IN]) + row * cells + k, _word(generation, state))
        if outputs:
            if short and k == used - 1:
                state = _RESERVED
            store(control, int64(control[_W_SRC]) + row * cells + k, uint64(0))
            store(control, int64(control[_W_OUT]) + row * cells + k, _word(generation, state))
    if inputs:
        store(control, _W_OPENED, uint64(ticket + 1))
    if outputs:
        store(control, _W_OUT_OPENED, uint64(ticket + 1))
    add(control, _W_BELL, uint64(1))
    spare = int64(load(control, _W_ASLEEP)) - resting
    if spare > 0:
        futex_wake(control, _W_BELL, min(spare, used) if inputs else spare)


@kernel
def wait(control: Any, ticket: Any, failures: Any, patience_ns: Any, spins: Any) -> Any:
    """Wait until the ticket is READY or BAD; return PENDING after `patience_ns`."""
    for _ in range(spins + 1):
        state = ticket_state(control, ticket, False)
        if state != PENDING or patience_ns <= 0:
            return state
        pause()
    bell = load(control, _W_CBELL)
    exchange(control, _W_CWAITS, uint64(ticket + 1))
    state = ticket_state(control, ticket, False)
    if state == PENDING and int64(load(control, _W_FAILED)) == failures:
        futex_wait(control, _W_CBELL, bell, patience_ns)
        state = ticket_state(control, ticket, False)
    exchange(control, _W_CWAITS, uint64(0))
    return state


@kernel
def wait_any(
    control: Any,
    lo: Any,
    hi: Any,
    taken: Any,
    failures: Any,
    patience_ns: Any,
    spins: Any,
) -> Any:
    """Wait for any full buffer among tickets [lo, hi); return it, or NOTHING."""
    for _ in range(spins + 1):
        t = first_complete(control, lo, hi, taken)
        if t != NOTHING or patience_ns <= 0:
            return t
        pause()
    bell = load(control, _W_CBELL)
    exchange(control, _W_CWAITS, uint64(_ANY))
    t = first_complete(control, lo, hi, taken)
    if t == NOTHING and int64(load(control, _W_FAILED)) == failures:
        futex_wait(control, _W_CBELL, bell, patience_ns)
        t = first_complete(control, lo, hi, taken)
    exchange(control, _W_CWAITS, uint64(0))
    return t


@kernel
def cancel(control: Any, ticket: Any, outputs: Any) -> None:
    """Abandon a ticket: cells that nobody has begun are over; workers drop finished chunks."""
    tickets = int64(control[_W_TICKETS])
    cells = int64(control[_W_CELLS])
    row = ticket % tickets
    generation = ticket // tickets + 1
    flags = int64(control[_W_ROWS]) + row * _LINE + _T_FLAGS
    exchange(control, flags, load(control, flags) | uint64(CANCELLED))
    done = _word(generation, _DONE)
    for k in range(cells):
        swap(control, int64(control[_W_IN]) + row * cells + k, _word(generation, _FREE), done)
        if outputs:
            i = int64(control[_W_OUT]) + row * cells + k
            swap(control, i, _word(generation, _FREE), done)
            swap(control, i, _word(generation, _RESERVED), done)


@kernel
def ring_workers(control: Any) -> None:
    """Wake every worker that sleeps."""
    add(control, _W_BELL, uint64(1))
    futex_wake(control, _W_BELL, _ALL)


@kernel
def stop(control: Any) -> None:
    """Tell all workers to leave."""
    exchange(control, _W_STOP, uint64(1))
    ring_workers(control)


@kernel
def _move_back(control: Any, cursor: Any, lowest: Any) -> None:
    while True:
        seen = load(control, cursor)
        q = int64(seen & uint64(_CELL_MASK))
        back = lowest if lowest < q else q
        fresh = (seen & ~uint64(_CELL_MASK)) + uint64(_VERSION) | uint64(back)
        if swap(control, cursor, seen, fresh) == seen:
            return


@kernel
def _delivered(control: Any, q: Any) -> Any:
    """Return whether chunk q already stands in a full cell of a buffer (fast mode)."""
    ring = int64(control[_W_TICKETS]) * int64(control[_W_CELLS])
    for i in range(ring):
        if load(control, int64(control[_W_SRC]) + i) == uint64(q + 1) and (
            load(control, int64(control[_W_OUT]) + i) & uint64(0xFFFF)
        ) == uint64(_DONE):
            return True
    return False


@kernel
def recover(control: Any, worker: Any, freed: Any, fast: Any) -> Any:
    """Give back what a *dead* worker held; return how many cells, listed in `freed`.

    Only after its process is known to be gone: nobody can still write there.
    """
    tickets = int64(control[_W_TICKETS])
    cells = int64(control[_W_CELLS])
    ring = tickets * cells
    mine = uint64(_CLAIMED + worker)
    count = 0
    lowest = int64(_CELL_MASK)
    out_lowest = int64(_CELL_MASK)
    for i in range(ring):
        if fast:
            at_out = int64(control[_W_OUT]) + i
            state = load(control, at_out)
            if state & uint64(0xFFFF) == mine:
                generation = int64(state >> uint64(16))
                p = (generation - 1) * ring + i
                row = int64(control[_W_ROWS]) + (i // cells) * _LINE
                flags = load(control, row + _T_FLAGS)
                back = _FREE
                if flags & uint64(CANCELLED):
                    back = _DONE
                elif flags & uint64(SHORT_LAST) and i % cells == int64(control[row + _T_CELLS]) - 1:
                    back = _RESERVED
                store(control, at_out, _word(generation, back))
                if back == _FREE and p < out_lowest:
                    out_lowest = p
    for i in range(ring):
        at_in = int64(control[_W_IN]) + i
        state = load(control, at_in)
        if state & uint64(0xFFFF) == mine:
            generation = int64(state >> uint64(16))
            q = (generation - 1) * ring + i
            flags = load(control, int64(control[_W_ROWS]) + (i // cells) * _LINE + _T_FLAGS)
            if flags & uint64(CANCELLED) or (fast and _delivered(control, q)):
                store(control, at_in, _word(generation, _DONE))
            else:
                store(control, at_in, _word(generation, _FREE))
                if q < lowest:
                    lowest = q
                freed[count] = q
                count += 1
    _move_back(control, _W_CURSOR, lowest)
    if fast:
        _move_back(control, _W_OUT_CURSOR, out_lowest)
    ring_workers(control)
    _ring_consumer(control)
    return count
