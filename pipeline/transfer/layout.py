"""Every byte position of the arena; no other file knows one.

    control words │ worker lines │ tickets │ cells │ ids │ positions │ buffer 0 │ buffer 1 │ …

Control words are uint64, those written by different processes on cache lines of their own.
A **ticket** is the work order of one batch: which samples, at which positions, into which buffer.
Ticket t lives in row t mod T. A **cell** is one chunk of a ticket: `chunk` slots, claimed as a
whole. Cell (t, k) has the absolute number q = t·K + k and the state word at q mod (T·K).

    free buffers = R − in flight − leased;   leased ≤ R − depth, so that `depth` always fly
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

MAGIC = 0x53414D4542415431  # "SAMEBAT1"
LINE = 8  # uint64 words in one cache line
PAGE_NBYTES = 4096
ALIGN_NBYTES = 64

# Control words (index in uint64 words). Written once by the creator:
W_MAGIC = 0
W_TICKETS = 1  # T
W_CELLS = 2  # K, cells of a full ticket
W_WORKER_LINES = 3  # where each table starts, in words
W_TICKET_ROWS = 4
W_IN_STATES = 5
W_OUT_STATES = 6
W_OUT_SOURCES = 7
# Written while running, each on its own line:
W_CURSOR = 1 * LINE  # version:16 | next cell:48; workers and the supervisor, by swap
W_OPENED = 2 * LINE  # tickets opened for claims; consumer
W_OUT_CURSOR = 3 * LINE  # fast mode: as W_CURSOR for the cells of buffers
W_OUT_OPENED = 4 * LINE  # fast mode: tickets that have a buffer; consumer
W_STOP = 5 * LINE  # 1: workers leave; consumer
W_WORKER_BELL = 6 * LINE  # futex word, counts events workers may sleep for; consumer
W_WORKERS_ASLEEP = 7 * LINE  # how many sleep; workers
W_CONSUMER_BELL = 8 * LINE  # futex word, counts events the consumer may sleep for; workers
W_CONSUMER_WAITS = 9 * LINE  # ticket + 1 the consumer waits for, ANY, or 0; consumer
W_FAILED = 10 * LINE  # cells that ended FAILED, ever; workers
W_RESTING = 11 * LINE  # workers that rest even if there is work; consumer, once
CONTROL_WORDS = 12 * LINE

ANY = (1 << 63) - 1

# One line for each worker, written by it alone; read by the supervisor and `stats`.
L_PID = 0
L_STAGE = 1  # one of protocol.Stage
L_CELL = 2  # absolute cell + 1 it works on, or 0
L_HEARTBEAT_NS = 3  # CLOCK_MONOTONIC at the last change of stage
L_SAMPLES = 4  # samples finished
L_WORK_NS = 5
L_WAIT_NS = 6
L_POSITION = 7  # position it works on

# One row for each ticket, written by the consumer before it opens the ticket.
T_SEQ = 0
T_BUFFER = 1
T_SLOTS = 2  # samples in the batch
T_PHASE = 3
T_CHUNK = 4  # slots of a full cell
T_CELLS = 5  # cells in use
T_FLAGS = 6
T_RUN = 7  # which pass, so that a straggler of an abandoned one finds no place in the next
TICKET_WORDS = LINE

# State words: generation << 16 | state.
FREE = 0
DONE = 1
FAILED = 2
RESERVED = 3  # fast mode: the cell that only the phase's short last chunk may take
CLAIMED = 4  # + worker
GENERATION_SHIFT = 16
MAX_WORKERS = (1 << GENERATION_SHIFT) - CLAIMED - 1
VERSION_SHIFT = 48


@dataclass(frozen=True)
class Field:
    """One fixed-shape field of a sample, and so of every batch.

    Attributes:
        name: for messages, e.g. "image" or "1" (place in the sample).
        shape: of one sample.
        dtype: of its elements, native byte order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """Where everything is in an arena.

    Attributes:
        fields: of a sample.
        slots: B, most samples in one batch.
        chunk: C, slots of one cell; divides nothing in particular except in fast mode (B).
        depth: batches in flight.
        held: batches that the user may hold before further ones are copied.
        tickets: T, work orders in flight; at least `depth`.
        workers: lines for them; the consumer has the last one.
    """

    fields: tuple[Field, ...]
    slots: int
    chunk: int
    depth: int
    held: int
    tickets: int
    workers: int

    def __post_init__(self) -> None:
        assert 1 <= self.chunk <= max(self.slots, 1)
        assert self.tickets >= self.depth >= 1
        assert 1 <= self.workers <= MAX_WORKERS

    @property
    def buffers(self) -> int:
        """R, batch buffers in the ring."""
        return self.depth + self.held

    @property
    def cells(self) -> int:
        """K, cells of a full ticket."""
        return max(1, -(-self.slots // self.chunk))

    # ------------------------------------------------------------ in uint64 words
    @property
    def worker_lines(self) -> int:
        """First word of the worker lines."""
        return CONTROL_WORDS

    @property
    def ticket_rows(self) -> int:
        """First word of the ticket rows."""
        return self.worker_lines + self.workers * LINE

    @property
    def in_states(self) -> int:
        """First word of the states of cells to be made."""
        return self.ticket_rows + self.tickets * TICKET_WORDS

    @property
    def out_states(self) -> int:
        """First word of the states of cells of buffers (fast mode)."""
        return self.in_states + self._padded_cells

    @property
    def out_sources(self) -> int:
        """First word of: which cell + 1 was put into this cell of a buffer (fast mode)."""
        return self.out_states + self._padded_cells

    @property
    def region_cursors(self) -> int:
        """First of the words that say how much of each buffer's region is used."""
        return self.out_sources + self._padded_cells

    @property
    def region_step(self) -> int:
        """Words from one buffer's cursor to the next."""
        return LINE

    @property
    def control_words(self) -> int:
        """Words of the control region."""
        return self.region_cursors + self.buffers * self.region_step

    @property
    def _padded_cells(self) -> int:
        return -(-self.tickets * self.cells // LINE) * LINE

    # ------------------------------------------------------------ in bytes
    @property
    def ids_at(self) -> int:
        """First byte of int64[T, B], sample ids of each ticket."""
        return _round_up(self.control_words * 8, PAGE_NBYTES)

    @property
    def positions_at(self) -> int:
        """First byte of uint64[T, B], positions of each ticket."""
        return self.ids_at + _round_up(self.tickets * self.slots * 8, ALIGN_NBYTES)

    @property
    def out_ids_at(self) -> int:
        """First byte of int64[R, B], sample ids that ended in each buffer (fast mode)."""
        return self.positions_at + _round_up(self.tickets * self.slots * 8, ALIGN_NBYTES)

    @property
    def out_positions_at(self) -> int:
        """First byte of uint64[R, B], positions that ended in each buffer (fast mode)."""
        return self.out_ids_at + _round_up(self.buffers * self.slots * 8, ALIGN_NBYTES)

    @property
    def buffers_at(self) -> int:
        """First byte of buffer 0."""
        end = self.out_positions_at + _round_up(self.buffers * self.slots * 8, ALIGN_NBYTES)
        return _round_up(end, PAGE_NBYTES)

    @cached_property
    def field_offsets(self) -> tuple[int, ...]:
        """First byte of each field inside a buffer."""
        return field_offsets(self.fields, self.slots)[0]

    @cached_property
    def buffer_nbytes(self) -> int:
        """Bytes of one buffer, a whole number of pages."""
        return field_offsets(self.fields, self.slots)[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole arena."""
        return self.buffers_at + self.buffers * self.buffer_nbytes


def field_offsets(fields: tuple[Field, ...], slots: int) -> tuple[tuple[int, ...], int]:
    """Return where each field of a batch of `slots` samples starts, and the batch's bytes."""
    at = 0
    offsets = []
    for one in fields:
        offsets.append(at)
        at += _round_up(one.nbytes * slots, ALIGN_NBYTES)
    return tuple(offsets), max(PAGE_NBYTES, _round_up(at, PAGE_NBYTES))


@dataclass
class Views:
    """numpy views of an arena's memory, made once by each process that attaches to it."""

    layout: Layout
    control: np.ndarray  # uint64[control_words]
    ids: np.ndarray  # int64[T, B]
    positions: np.ndarray  # uint64[T, B]
    out_ids: np.ndarray  # int64[R, B]
    out_positions: np.ndarray  # uint64[R, B]
    buffers: list[list[np.ndarray]] = field(default_factory=list)  # [R][field] -> [B, *shape]


def views(layout: Layout, memory: memoryview) -> Views:
    """Return numpy views of `memory`, which has at least `layout.nbytes` bytes."""
    assert len(memory) >= layout.nbytes, (len(memory), layout.nbytes)

    def at(offset: int, dtype: str, *shape: int) -> np.ndarray:
        count = math.prod(shape)
        return np.frombuffer(memory, dtype, count, offset).reshape(shape)

    tickets, rows, slots = layout.tickets, layout.buffers, layout.slots
    result = Views(
        layout,
        at(0, "u8", layout.control_words),
        at(layout.ids_at, "i8", tickets, slots),
        at(layout.positions_at, "u8", tickets, slots),
        at(layout.out_ids_at, "i8", rows, slots),
        at(layout.out_positions_at, "u8", rows, slots),
    )
    for r in range(rows):
        start = layout.buffers_at + r * layout.buffer_nbytes
        result.buffers.append(buffer_views(layout.fields, slots, memory, start))
    return result


def buffer_views(
    fields: tuple[Field, ...], slots: int, memory: memoryview, start: int
) -> list[np.ndarray]:
    """Return one array [slots, *shape] for each field of the batch buffer at byte `start`."""
    arrays = []
    for one, offset in zip(fields, field_offsets(fields, slots)[0], strict=True):
        flat = np.frombuffer(memory, np.uint8, one.nbytes * slots, start + offset)
        arrays.append(flat.view(one.dtype).reshape(slots, *one.shape))
    return arrays


def format_control(layout: Layout, control: np.ndarray) -> None:
    """Write the words of the creator into a fresh control region."""
    control[:] = 0
    control[W_TICKETS] = layout.tickets
    control[W_CELLS] = layout.cells
    control[W_WORKER_LINES] = layout.worker_lines
    control[W_TICKET_ROWS] = layout.ticket_rows
    control[W_IN_STATES] = layout.in_states
    control[W_OUT_STATES] = layout.out_states
    control[W_OUT_SOURCES] = layout.out_sources
    control[W_MAGIC] = MAGIC


def _round_up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
