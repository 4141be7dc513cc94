"""Where a worker process begins: attach to the arena, unpack the work, run the loop."""

import os
import sys
import time
from typing import Any

import numpy as np

from pipeline.transfer import cells
from pipeline.transfer.arena import Arena
from pipeline.transfer.atomics import parent_pid
from pipeline.transfer.layout import Field, Layout, format_control, views
from pipeline.transfer.regions import Regions, carries
from pipeline.transfer.station import Attached
from pipeline.workers import channel, payload
from pipeline.workers.health import watch_me
from pipeline.workers.process import PreprocessWorker, describe_error
from pipeline.workers.protocol import EXIT_CRASH, EXIT_LEFT, EXIT_ORPHAN, Report, Stage


def work(request: dict[str, Any], fds: list[int]) -> int:
    """Run one worker until it is told to stop; return its exit status.

    Args:
        request: {"worker", "count", "endpoint", "secret", "fast", "layout", "sys_path", "cwd"}.
        fds: [arena, payload, regions if the layout has them, tables that are lent ...].
    """
    worker = int(request["worker"])
    outbox = channel.Outbox(request["endpoint"], request["secret"])
    try:
        outbox.send(Report("watch", worker, os.getpid(), watch_me()))
        sys.path[:] = request["sys_path"]
        if request["cwd"]:
            os.chdir(request["cwd"])
        arena = Arena.attach(fds[0])
        carried = Arena.attach(fds[1], private=True)
        layout: Layout = _layout(request["layout"])
        seen = views(layout, arena.memory)
        tables = fds[2:]
        regions = Regions(tables.pop(0), layout, seen.control) if carries(layout) else None
        lent = [Arena.attach(fd, private=True) for fd in tables]
        attached = Attached(seen, worker, fast=bool(request["fast"]), regions=regions)
        attached.note(pid=os.getpid(), stage=Stage.STARTING, heartbeat_ns=time.monotonic_ns())
        carried.populate(write=False)
        arena.populate(write=True)
        recipe = payload.unpack(carried, [one.memory for one in lent])
        recipe.advise()
        recipe.begin_worker(worker, int(request["count"]))
        preprocess = PreprocessWorker(attached, recipe, outbox.send, generators="ours")
        outbox.send(Report("hello", worker, os.getpid(), {"python": sys.version.split()[0]}))
        parent = parent_pid()
        preprocess.run(lambda: bool(parent_pid() == parent))
        return EXIT_LEFT if parent_pid() == parent else EXIT_ORPHAN
    except BaseException as e:
        outbox.send(Report("crash", worker, os.getpid(), describe_error(e)))
        return EXIT_CRASH
    finally:
        outbox.close()


def describe_layout(layout: Layout) -> dict[str, Any]:
    """Return a layout as JSON-able facts, for `work`."""
    return {
        "fields": [
            [f.name, list(f.shape), np.lib.format.dtype_to_descr(f.dtype)] for f in layout.fields
        ],
        "slots": layout.slots,
        "chunk": layout.chunk,
        "depth": layout.depth,
        "held": layout.held,
        "tickets": layout.tickets,
        "workers": layout.workers,
    }


def _layout(facts: dict[str, Any]) -> Layout:
    fields = tuple(Field(n, tuple(shape), _dtype(d)) for n, shape, d in facts["fields"])
    return Layout(**{**facts, "fields": fields})


def _dtype(descr: Any) -> np.dtype[Any]:
    """Undo `dtype_to_descr` after JSON, which has made lists of its tuples."""
    if isinstance(descr, str):
        return np.dtype(descr)
    return np.dtype([(name, _dtype(d), *map(tuple, shape)) for name, d, *shape in descr])


def warm() -> None:
    """Load the kernels that every worker calls, once in the launcher instead of in each worker."""
    layout = Layout((Field("x", (), np.dtype("u1")),), 1, 1, 1, 1, 1, 1)
    control = np.zeros(layout.control_words, np.uint64)
    format_control(layout, control)
    cells.claim(control, 0, 0, 0)  # nothing is open
    cells.commit(control, 0, 0)  # and nothing was claimed: both leave the words as they are
    parent_pid()
