import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.transfer import layout as at
from pipeline.transfer.layout import Field, Layout, format_control, views

DTYPES = ("u1", "i8", "f4", "f2", "c16", "?", "S5", "M8[s]")

fields = st.builds(
    Field,
    st.just("x"),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(DTYPES).map(np.dtype),
)


@st.composite
def layouts(draw):
    slots = draw(st.integers(1, 40))
    depth = draw(st.integers(1, 5))
    return Layout(
        fields=tuple(draw(st.lists(fields, min_size=1, max_size=4))),
        slots=slots,
        chunk=draw(st.integers(1, slots)),
        depth=depth,
        held=draw(st.integers(0, 3)),
        tickets=depth + draw(st.integers(0, 9)),
        workers=draw(st.integers(1, 9)),
    )


def _spans(made, memory):
    """(first byte, end) of every table and of every field of every buffer."""
    base = np.frombuffer(memory, np.uint8).ctypes.data
    arrays = [made.control, made.ids, made.positions, made.out_ids, made.out_positions]
    arrays += [array for buffer in made.buffers for array in buffer]
    return [(a.ctypes.data - base, a.ctypes.data - base + a.nbytes) for a in arrays if a.nbytes]


@given(layouts())
def test_no_two_tables_overlap_and_all_lie_inside(layout):
    memory = memoryview(bytearray(layout.nbytes))
    spans = sorted(_spans(views(layout, memory), memory))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert spans[0][0] == 0
    assert spans[-1][1] <= layout.nbytes


@given(layouts())
def test_every_field_of_every_buffer_begins_on_a_cache_line(layout):
    memory = memoryview(bytearray(layout.nbytes))
    made = views(layout, memory)
    base = made.control.ctypes.data
    for buffer in made.buffers:
        assert [(a.ctypes.data - base) % at.ALIGN_NBYTES for a in buffer if a.nbytes] == [
            0 for a in buffer if a.nbytes
        ]
    assert layout.buffers_at % at.PAGE_NBYTES == 0
    assert layout.buffer_nbytes % at.PAGE_NBYTES == 0


@given(layouts())
def test_arrays_have_the_shapes_that_the_layout_says(layout):
    made = views(layout, memoryview(bytearray(layout.nbytes)))
    assert len(made.buffers) == layout.depth + layout.held
    for buffer in made.buffers:
        for array, one in zip(buffer, layout.fields, strict=True):
            assert array.shape == (layout.slots, *one.shape)
            assert array.dtype == one.dtype
            assert array.flags.c_contiguous
            assert array.flags.writeable
    assert made.ids.shape == made.positions.shape == (layout.tickets, layout.slots)


@given(layouts())
def test_the_regions_of_the_control_words_do_not_overlap(layout):
    padded = -(-layout.tickets * layout.cells // at.LINE) * at.LINE
    spans = [
        (0, at.CONTROL_WORDS),
        (layout.worker_lines, layout.workers * at.LINE),
        (layout.ticket_rows, layout.tickets * at.TICKET_WORDS),
        (layout.in_states, padded),
        (layout.out_states, padded),
        (layout.out_sources, padded),
        (layout.region_cursors, layout.buffers * layout.region_step),
    ]
    for (start, n), (following, _) in itertools.pairwise(spans):
        assert start + n == following
        assert following % at.LINE == 0
    assert sum(spans[-1]) == layout.control_words
    assert layout.cells * layout.chunk >= layout.slots


def test_words_written_by_different_processes_share_no_cache_line():
    running = (
        at.W_CURSOR, at.W_OPENED, at.W_OUT_CURSOR, at.W_OUT_OPENED, at.W_STOP, at.W_WORKER_BELL,
        at.W_WORKERS_ASLEEP, at.W_CONSUMER_BELL, at.W_CONSUMER_WAITS, at.W_FAILED,
    )  # fmt: skip
    lines = [word // at.LINE for word in running]
    assert len(set(lines)) == len(lines)
    assert 0 not in lines  # what is written once stands on the first line
    assert max(running) < at.CONTROL_WORDS


def test_the_header_says_where_the_tables_are():
    layout = Layout((Field("x", (3,), np.dtype("f4")),), 10, 3, 2, 1, 4, 3)
    made = views(layout, memoryview(bytearray(layout.nbytes)))
    format_control(layout, made.control)
    words = made.control[[at.W_MAGIC, at.W_TICKETS, at.W_CELLS, at.W_IN_STATES, at.W_OUT_SOURCES]]
    assert words.tolist() == [at.MAGIC, 4, 4, layout.in_states, layout.out_sources]
