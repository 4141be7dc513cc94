"""TransferStation: workers fill batch buffers in shared memory, the consumer takes full ones.

    open ──▶ claim ─ fill ─ commit (reproducible: a chunk's place is its position)
             claim ─ make ─ place ─ land (fast: the next free place when it is finished)
    take ◀── all cells of a batch DONE ── lend ── buffer returns when its last view is gone

One consumer (the process of the loader) opens tickets, takes batches, cancels and recovers; any
number of workers (processes or threads, and the consumer itself) claim and commit. What they
share is an arena and nothing else.

    opened tickets ≥ those with a buffer ≥ taken ones;   tickets with a buffer − taken ≤ depth
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.errors import InternalError
from pipeline.parcel import Parcel, unpack
from pipeline.transfer import cells as kernels
from pipeline.transfer import layout as at
from pipeline.transfer.arena import Arena
from pipeline.transfer.layout import Layout, Views, format_control, views
from pipeline.transfer.regions import C_NBYTES, C_SLOTS, C_STATUS, Regions, carries
from pipeline.transfer.ring import Ring

SPINS = 200  # about 10 us before sleeping


@dataclass(frozen=True)
class WorkOrder:
    """One chunk to make: samples `ids` at `positions` of a phase.

    In reproducible mode they belong into slots [slot, slot + len(ids)) of buffer `buffer`; in
    fast mode `buffer` is -1 and their place is found when they are finished.
    """

    cell: int
    ticket: int
    slot: int
    buffer: int
    phase: int
    short: bool
    ids: np.ndarray  # int64[n]
    positions: np.ndarray  # uint64[n]


@dataclass(frozen=True)
class Taken:
    """A full batch: its arrays, and what they hold."""

    ticket: int
    arrays: list[np.ndarray]
    ids: np.ndarray  # int64[n], a copy
    positions: np.ndarray  # uint64[n], a copy
    status: np.ndarray | None = None  # uint8[n], if the layout has regions
    carried: list[Any] = field(default_factory=list)  # (first slot, slots, what came beside them)


@dataclass(frozen=True)
class Carried:
    """What a chunk gives besides fixed fields.

    Attributes:
        parcel: an object as bytes, or None.
        status: uint8[n], how each slot came about, or None for all 0.
    """

    parcel: Parcel | None = None
    status: np.ndarray | None = None


@dataclass(frozen=True)
class Line:
    """What a worker says of itself in the arena; `cell` is -1 if it holds none."""

    pid: int
    stage: int
    cell: int
    heartbeat_ns: int
    samples: int
    work_ns: int
    wait_ns: int
    position: int


class Attached:
    """The worker's side: claims work and publishes it. Made once by each worker.

    Args:
        views_: of the arena.
        worker: its index.
        fast: the station's mode.
        regions: where what has no fixed size goes, if the layout has them.
    """

    def __init__(
        self, views_: Views, worker: int, *, fast: bool, regions: Regions | None = None
    ) -> None:
        self.regions = regions
        self.views = views_
        self.worker = worker
        self.fast = fast
        self.control = views_.control
        layout = views_.layout
        self._cells = layout.cells
        self._tickets = layout.tickets
        self._rows = layout.ticket_rows
        self._line = layout.worker_lines + worker * at.LINE

    def claim(self, patience_s: float) -> WorkOrder | int:
        """Return a chunk to make, or kernels.NOTHING after `patience_s`, or kernels.STOPPED."""
        spins = SPINS if patience_s else 0
        q = kernels.claim(self.control, self.worker, int(patience_s * 1e9), spins)
        if q < 0:
            if q == kernels.BROKEN:
                raise InternalError("the cursor ran into a cell that was never opened")
            return int(q)
        ticket, k = divmod(q, self._cells)
        row = ticket % self._tickets
        _, buffer, slots, phase, chunk, used, flags, _ = self.control[
            self._rows + row * at.LINE : self._rows + row * at.LINE + at.TICKET_WORDS
        ].tolist()
        lo = k * chunk
        hi = min(slots, lo + chunk)
        short = bool(flags & kernels.SHORT_LAST) and k == used - 1
        return WorkOrder(
            q,
            ticket,
            lo,
            -1 if self.fast else buffer,
            phase,
            short,
            self.views.ids[row, lo:hi],
            self.views.positions[row, lo:hi],
        )

    def commit(self, order: WorkOrder) -> None:
        """Publish a chunk that was written into its own slots."""
        if not kernels.commit(self.control, self.worker, order.cell):
            raise InternalError(f"worker {self.worker} committed cell {order.cell} it did not own")

    def carry(self, order: WorkOrder, carried: Carried) -> None:
        """Put what a chunk gives besides its fixed fields beside its own slots.

        Raises:
            MemoryError: there is no room.
        """
        self._carry(order.buffer, order.slot, len(order.ids), carried)

    def _carry(self, buffer: int, slot: int, n: int, carried: Carried) -> None:
        assert self.regions is not None
        rows = self.views.buffers[buffer][-1][slot : slot + n]
        rows[:] = 0
        if carried.status is not None:
            rows[:, C_STATUS] = carried.status
        parcel = carried.parcel
        if parcel is not None:
            start = self.regions.write(buffer, parcel.nbytes, parcel.pieces)
            rows[0, : C_SLOTS + 1] = start, parcel.nbytes, n

    def land(
        self,
        order: WorkOrder,
        made: Sequence[np.ndarray],
        patience_s: float,
        carried: Carried | None = None,
    ) -> bool:
        """Publish a finished chunk in the next free place; False if no place was free in time.

        Args:
            order: the chunk.
            made: one array [n, *shape] for each fixed field.
            patience_s: how long to wait for a place.
            carried: what it gives besides.
        """
        p = kernels.place(self.control, self.worker, order.cell, order.short, int(patience_s * 1e9))
        if p == kernels.NOTHING:
            return False
        if p == kernels.STOPPED:
            kernels.commit(self.control, self.worker, order.cell)  # of an abandoned pass
            return True
        if p == kernels.BROKEN:
            raise InternalError("the output cursor ran into a cell that was never opened")
        ticket, k = divmod(p, self._cells)
        row = self._rows + ticket % self._tickets * at.LINE
        buffer, chunk = int(self.control[row + at.T_BUFFER]), int(self.control[row + at.T_CHUNK])
        lo = k * chunk
        hi = lo + len(order.ids)
        for target, source in zip(self.views.buffers[buffer], made, strict=carried is None):
            target[lo:hi] = source
        if carried is not None:
            self._carry(buffer, lo, hi - lo, carried)
        self.views.out_ids[buffer, lo:hi] = order.ids
        self.views.out_positions[buffer, lo:hi] = order.positions
        if not kernels.land(self.control, self.worker, order.cell, p):
            raise InternalError(f"worker {self.worker} filled cell {p} it did not own")
        return True

    def fail(self, order: WorkOrder) -> None:
        """Say that a sample of this chunk cannot be made."""
        kernels.fail(self.control, self.worker, order.cell)

    def begin(self, position: int) -> None:
        """Say that the sample at `position` is being made from now on."""
        self.control[self._line + at.L_POSITION] = position
        self.control[self._line + at.L_HEARTBEAT_NS] = time.monotonic_ns()

    def note(self, **words: int) -> None:
        """Set words of this worker's own line, by name: pid, stage, samples, …"""
        for name, value in words.items():
            self.control[self._line + _LINE_WORDS[name]] = value


_LINE_WORDS = {
    "pid": at.L_PID,
    "stage": at.L_STAGE,
    "heartbeat_ns": at.L_HEARTBEAT_NS,
    "samples": at.L_SAMPLES,
    "work_ns": at.L_WORK_NS,
    "wait_ns": at.L_WAIT_NS,
    "position": at.L_POSITION,
}


class TransferStation:
    """The consumer's side of an arena.

    Args:
        layout: sizes.
        fast: atomic slots, delivery as batches fill; else positional slots, delivery in order.
        shared: a memfd that other processes can attach to; else memory of this process.
        hint: which settings make the arena smaller, for the message when memory lacks.
        resting: workers that are not woken for new work while others are awake: where the
            consumer helps, more of them than processors would only take turns with it.

    Raises:
        ConfigError: not enough memory.
    """

    def __init__(
        self, layout: Layout, *, fast: bool, shared: bool, hint: str = "", resting: int = 0
    ) -> None:
        self.layout = layout
        self._resting = 0 if fast else resting
        self.fast = fast
        self.arena = Arena.create(layout.nbytes, "batches", hint, shared=shared)
        self.views = views(layout, self.arena.memory)
        format_control(layout, self.views.control)
        self.control = self.views.control
        self.regions: Regions | None = None
        if carries(layout):
            try:
                self.regions = Regions.create(layout, self.control)
            except BaseException:
                self.arena.close()
                raise
        self.control[at.W_RESTING] = self._resting
        whole = np.frombuffer(self.arena.memory, np.uint8, layout.nbytes)
        memory = whole[layout.buffers_at :].reshape(layout.buffers, layout.buffer_nbytes)
        self.ring = Ring(layout.fields, layout.slots, memory, layout.held)
        self.run = 0
        self._opened = 0  # tickets opened
        self._placed = 0  # tickets that have a buffer (the same in reproducible mode)
        self._next = 0  # reproducible mode: next ticket to take
        self._taken = np.zeros(layout.tickets, np.uint64)  # fast mode: ticket + 1 by row
        self._buffer_of: dict[int, int] = {}
        self._slots_of: dict[int, int] = {}
        self._zombies: deque[int] = deque()  # cancelled tickets somebody still works on
        self._failures = 0
        self._first = 0  # first ticket of this pass

    # ------------------------------------------------------------ opening
    @property
    def in_flight(self) -> int:
        """Batches opened in this pass and not taken yet."""
        return len(self._slots_of)

    def can_open(self) -> bool:
        """Return whether `open` would succeed now."""
        if self.fast:
            self._place_buffers()
            if self._opened - self._placed > self.layout.workers + 1:
                return False
        else:
            self._bury()
            if self.in_flight >= self.layout.depth:
                return False  # buffers that nobody holds stay untouched, and the cache warm
        row_free = self._row_free(self._opened)
        return row_free and (self.fast or self._has_buffer())

    def open(
        self, ids: np.ndarray, positions: np.ndarray, phase: int, chunk: int | None = None
    ) -> int:
        """Hand out the work of one batch; return its ticket. Call only after `can_open`.

        Args:
            ids: int64[n], 1 <= n <= slots.
            positions: uint64[n].
            phase: uint32.
            chunk: slots of a cell, at least the layout's; in fast mode the same for a whole pass
                and a divisor of `slots`.
        """
        ticket = self._opened
        n = len(ids)
        row = ticket % self.layout.tickets
        chunk = chunk or self.layout.chunk
        used = -(-n // chunk)
        short = self.fast and n % chunk != 0
        buffer = 0
        if not self.fast:
            found = self.ring.acquire()
            if found is None:
                raise InternalError("open() without a free buffer")
            buffer = found
            self._hand_out(ticket, buffer)
        start = self.layout.ticket_rows + row * at.LINE
        flags = kernels.SHORT_LAST if short else 0
        self.control[start : start + at.TICKET_WORDS] = (
            ticket,
            buffer,
            n,
            phase,
            chunk,
            used,
            flags,
            self.run,
        )
        self.views.ids[row, :n] = ids
        self.views.positions[row, :n] = positions
        self._opened = ticket + 1
        self._slots_of[ticket] = n
        kernels.open_cells(self.control, ticket, used, short, self._resting, True, False)
        if self.fast:
            self._place_buffers()
        return ticket

    def _hand_out(self, ticket: int, buffer: int) -> None:
        self._buffer_of[ticket] = buffer
        self._placed = ticket + 1
        if self.regions is not None:
            self.regions.reset(buffer)

    def _has_buffer(self) -> bool:
        index = self.ring.acquire()
        if index is None:
            return False
        self.ring.release(index)
        return True

    def _row_free(self, ticket: int) -> bool:
        """Return whether the row of `ticket` is not needed by an earlier one any more."""
        earlier = ticket - self.layout.tickets
        if earlier < 0:
            return True
        if earlier in self._slots_of or earlier in self._buffer_of or earlier in self._zombies:
            return False
        state = kernels.ticket_state(self.control, earlier, False)
        # Fast mode: a chunk may fail after its ticket's buffer was filled by others and taken.
        # The row stays until `failed` has told it.
        return bool(state == kernels.READY or (state == kernels.BAD and earlier < self._first))

    def _place_buffers(self) -> None:
        """Fast mode: give buffers to opened tickets, in order."""
        self._bury()
        while self._placed < self._opened:
            if len(self._buffer_of) - len(self._zombies) > self.layout.depth:
                return
            buffer = self.ring.acquire()
            if buffer is None:
                return
            ticket = self._placed
            start = self.layout.ticket_rows + ticket % self.layout.tickets * at.LINE
            self.control[start + at.T_BUFFER] = buffer
            self._hand_out(ticket, buffer)
            used = int(self.control[start + at.T_CELLS])
            short = bool(int(self.control[start + at.T_FLAGS]) & kernels.SHORT_LAST)
            kernels.open_cells(self.control, ticket, used, short, 0, False, True)

    # ------------------------------------------------------------ taking
    def wait(self, patience_s: float) -> int:
        """Return kernels.READY if `take` has a batch, BAD if a sample failed, or PENDING."""
        patience = int(patience_s * 1e9)
        spins = SPINS if patience else 0
        if not self.fast:
            return int(
                kernels.wait(self.control, self._next, self._new_failures(), patience, spins)
            )
        if self._new_failures() and self.failed():
            return kernels.BAD
        self._place_buffers()
        ticket = kernels.wait_any(
            self.control, self._next, self._due(), self._taken, self._failures, patience, spins
        )
        return kernels.READY if ticket >= 0 else kernels.PENDING

    def _due(self) -> int:
        """Fast mode: end of the tickets that may be taken now. A short batch is the last one."""
        last = self._placed - 1
        short = self._slots_of.get(last, self.layout.slots) < self.layout.slots
        return last if short and len(self._slots_of) > 1 else self._placed

    def wait_for_straggler(self, patience_s: float) -> None:
        """Wait until nobody writes into some buffer of an abandoned pass, `patience_s` at most."""
        if self._zombies:
            patience = int(patience_s * 1e9)
            kernels.wait(self.control, self._zombies[0], self._new_failures(), patience, 0)

    def _new_failures(self) -> int:
        self._failures = int(self.control[at.W_FAILED])
        return self._failures

    def failed(self) -> list[tuple[int, int]]:
        """Return (ticket, cell) of every chunk of this pass that FAILED."""
        found = []
        for ticket in range(max(self._first, self._opened - self.layout.tickets), self._opened):
            generation, row = divmod(ticket, self.layout.tickets)
            start = self.layout.in_states + row * self.layout.cells
            words = self.control[start : start + self.layout.cells]
            failed = np.uint64((generation + 1) << at.GENERATION_SHIFT | at.FAILED)
            found += [
                (ticket, ticket * self.layout.cells + int(k))
                for k in np.flatnonzero(words == failed)
            ]
        return found

    def take(self) -> Taken:
        """Return the next full batch, and lend its buffer. Call only when `wait` said READY."""
        if self.fast:
            ticket = int(kernels.first_complete(self.control, self._next, self._due(), self._taken))
            if ticket < 0:
                raise InternalError("take() without a full batch")
            kernels.settle(self.control, ticket)
            self._taken[ticket % self.layout.tickets] = ticket + 1
        else:
            ticket = self._next
            self._next += 1
        n = self._slots_of.pop(ticket)
        buffer = self._buffer_of.pop(ticket)
        if self.fast:
            ids = self.views.out_ids[buffer, :n].copy()
            positions = self.views.out_positions[buffer, :n].copy()
            while self._next < self._placed and self._next not in self._slots_of:
                self._next += 1
        else:
            row = ticket % self.layout.tickets
            ids = self.views.ids[row, :n].copy()
            positions = self.views.positions[row, :n].copy()
        if self.regions is None:
            return Taken(ticket, self.ring.lend(buffer, n), ids, positions)
        return self._take_carried(ticket, buffer, n, ids, positions)

    def _take_carried(
        self, ticket: int, buffer: int, n: int, ids: np.ndarray, positions: np.ndarray
    ) -> Taken:
        """Return a batch with what came beside its fields; only one of the two is lent."""
        assert self.regions is not None
        rows = self.views.buffers[buffer][-1][:n].copy()
        used = self.regions.used(buffer)
        memory = self.regions.memory(buffer, used) if used else np.empty(0, np.uint8)
        arrays: list[np.ndarray] = []
        if len(self.layout.fields) > 1:
            arrays = self.ring.lend(buffer, n)[:-1]  # parcels hold text only, which is copied
        elif used:
            memory = self.ring.lend_memory(buffer, memory)
        else:
            self.ring.release(buffer)
        carried = []
        for slot in np.flatnonzero(rows[:, C_NBYTES]).tolist():
            start, nbytes, slots, _ = rows[slot].tolist()
            carried.append((slot, slots, unpack(memory[start : start + nbytes])))
        return Taken(ticket, arrays, ids, positions, rows[:, C_STATUS].astype(np.uint8), carried)

    # ------------------------------------------------------------ ending a pass
    def cancel(self) -> None:
        """Abandon every batch in flight. Their buffers return when nobody writes there."""
        for ticket in range(self._placed, self._opened if self.fast else 0):
            # Never got a buffer: its cells are over before anybody could take one.
            kernels.open_cells(self.control, ticket, 0, False, 0, False, True)
            self._placed = ticket + 1
        # In fast mode also the tickets that were taken: a chunk of theirs may still look for a place.
        for ticket in range(max(self._first, self._opened - self.layout.tickets), self._opened):
            kernels.cancel(self.control, ticket, self.fast)
            if ticket in self._slots_of:
                self._zombies.append(ticket)
        self._slots_of.clear()
        self._next = self._first = self._opened
        self.run += 1
        kernels.ring_workers(self.control)

    def _bury(self) -> None:
        """Take back buffers of cancelled tickets that nobody writes into any more."""
        for _ in range(len(self._zombies)):
            ticket = self._zombies.popleft()
            over = kernels.ticket_state(self.control, ticket, False) != kernels.PENDING and (
                not self.fast or kernels.ticket_state(self.control, ticket, True) != kernels.PENDING
            )
            if not over:
                self._zombies.append(ticket)
            elif ticket in self._buffer_of:
                self.ring.release(self._buffer_of.pop(ticket))

    # ------------------------------------------------------------ faults
    def recover(self, worker: int) -> list[int]:
        """Give back what a dead worker held, for others to make; return its cells.

        Call only when the worker's process is known to be gone.
        """
        freed = np.zeros(self.layout.tickets * self.layout.cells, np.int64)
        count = kernels.recover(self.control, worker, freed, self.fast)
        return [int(q) for q in freed[:count]]

    def holds(self, worker: int) -> int:
        """Return the cell a worker works on, or -1."""
        line = self.layout.worker_lines + worker * at.LINE
        return int(self.control[line + at.L_CELL]) - 1

    def line(self, worker: int) -> Line:
        """Return what a worker says of itself."""
        start = self.layout.worker_lines + worker * at.LINE
        pid, stage, cell, *rest = self.control[start : start + at.LINE].tolist()
        return Line(pid, stage, cell - 1, *rest)

    def clear_line(self, worker: int) -> None:
        """Empty the line of a dead worker, for the next one."""
        start = self.layout.worker_lines + worker * at.LINE
        self.control[start : start + at.LINE] = 0

    def ready(self) -> int:
        """Return how many full batches wait to be taken."""
        complete = 0
        for ticket in list(self._slots_of):
            if ticket in self._buffer_of:
                state = kernels.ticket_state(self.control, ticket, self.fast)
                complete += state == kernels.READY
        return complete

    def samples_of(self, cell: int) -> tuple[list[int], list[int]]:
        """Return (positions, sample ids) of a cell."""
        ticket, k = divmod(cell, self.layout.cells)
        row = ticket % self.layout.tickets
        start = self.layout.ticket_rows + row * at.LINE
        n = int(self.control[start + at.T_SLOTS])
        chunk = int(self.control[start + at.T_CHUNK])
        lo = k * chunk
        hi = min(n, lo + chunk)
        return self.views.positions[row, lo:hi].tolist(), self.views.ids[row, lo:hi].tolist()

    def totals(self) -> tuple[int, int]:
        """Return (samples, nanoseconds of work) of all workers since they started."""
        lines = self.control[self.layout.worker_lines : self.layout.ticket_rows]
        by_worker = lines.reshape(self.layout.workers, at.LINE)
        return int(by_worker[:, at.L_SAMPLES].sum()), int(by_worker[:, at.L_WORK_NS].sum())

    def stop(self) -> None:
        """Tell all workers to leave."""
        kernels.stop(self.control)

    def close(self) -> None:
        """Give the memory back; batches still held by the user stay valid."""
        kernels.stop(self.control)
        self.arena.close()
        if self.regions is not None:
            self.regions.close()
