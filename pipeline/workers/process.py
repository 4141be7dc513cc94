"""PreprocessWorker: the loop of one worker, the same for processes, threads and the consumer.

    claim ─▶ make ─▶ commit            reproducible: written where it belongs
    claim ─▶ make ─▶ place ─▶ land     fast: written where there is room

A worker holds at most one chunk. It never decides anything: which samples, where and with which
random numbers stand in the work order and in the recipe.
"""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from pipeline.recipe import Recipe, SampleFailure
from pipeline.transfer import cells
from pipeline.transfer.regions import carries
from pipeline.transfer.station import Attached, Carried, WorkOrder
from pipeline.workers.protocol import PATIENCE_S, Report, Stage

_TEXT_CHARS = 1 << 18  # each becomes 12 bytes of JSON at most: below the channel's limit


class PreprocessWorker:
    """Makes chunks of samples until told to stop.

    Args:
        attached: its place at the station.
        recipe: how to make a sample.
        report: called with each report; must not block.
        in_consumer: it is the loader's own thread that works here.
        generators: whose the process-wide generators are, see `Recipe.fill`.
    """

    def __init__(
        self,
        attached: Attached,
        recipe: Recipe,
        report: Callable[[Report], None],
        *,
        in_consumer: bool = False,
        generators: str = "theirs",
    ) -> None:
        self.attached = attached
        self.recipe = recipe
        self._report = report
        self._scratch: list[np.ndarray] = []
        self._scratch_slots = 0
        self._in_consumer = in_consumer
        self._generators = generators
        self._process = os.getpid()
        self._finished: tuple[WorkOrder, list[np.ndarray], Carried | None] | None = None
        self._samples = 0
        self._work_ns = 0
        self._wait_ns = 0

    def run(self, alive: Callable[[], bool]) -> None:
        """Work until the station stops, or until `alive()` is false."""
        attached = self.attached
        attached.note(stage=Stage.IDLE, heartbeat_ns=time.monotonic_ns())
        while True:
            began = time.monotonic_ns()
            order = attached.claim(PATIENCE_S)
            self._wait_ns += time.monotonic_ns() - began
            if isinstance(order, WorkOrder):
                if not self.make(order, alive):
                    break
            elif order == cells.STOPPED or not alive():
                break
            else:
                attached.note(heartbeat_ns=time.monotonic_ns(), wait_ns=self._wait_ns)
        attached.note(stage=Stage.LEFT, pid=0)

    def help(self) -> bool:
        """Do one piece of work if there is one now, without ever waiting; return whether there was.

        For the consumer: it alone makes room, so it must not wait for a place in fast mode. It
        keeps the finished chunk until there is one.
        """
        if self._finished is not None:
            return self.put_down()
        order = self.attached.claim(0.0)
        if not isinstance(order, WorkOrder):
            return False
        if self._fill(order) and order.buffer < 0:
            self.put_down()
        return True

    @property
    def holds(self) -> bool:
        """Whether a finished chunk waits for a place."""
        return self._finished is not None

    def drop(self) -> None:
        """Forget the finished chunk; somebody will make it again."""
        self._finished = None

    def put_down(self) -> bool:
        """Place the chunk that was finished, if there is one and room for it."""
        if self._finished is None or not self._land(0.0):
            return False
        self._finished = None
        self.attached.note(stage=Stage.IDLE)
        return True

    def _land(self, patience_s: float) -> bool:
        assert self._finished is not None
        order, arrays, carried = self._finished
        return self.attached.land(order, arrays, patience_s, carried)

    def make(self, order: WorkOrder, alive: Callable[[], bool]) -> bool:
        """Make and publish one chunk; return False to stop."""
        if self._fill(order) and order.buffer < 0:
            self.attached.note(stage=Stage.PLACING)
            began = time.monotonic_ns()
            while not self._land(PATIENCE_S):
                if not alive():
                    return False
            self._wait_ns += time.monotonic_ns() - began
            self._finished = None
            self.attached.note(stage=Stage.IDLE, wait_ns=self._wait_ns)
        return True

    def _fill(self, order: WorkOrder) -> bool:
        """Make one chunk; reproducible mode also publishes it. False if a sample failed."""
        attached = self.attached
        began = time.monotonic_ns()
        attached.note(stage=Stage.WORKING, heartbeat_ns=began, position=int(order.positions[0]))
        fast = order.buffer < 0
        n = len(order.ids)
        target = self._room(n) if fast else attached.views.buffers[order.buffer]
        try:
            made = self.recipe.fill(
                target,
                0 if fast else order.slot,
                order.ids,
                order.positions,
                order.phase,
                self._generators,
                attached.begin,
            )
            if os.getpid() != self._process:
                _end_fork(None)
            carried = None
            if attached.regions is not None:
                carried = Carried() if made is None else made.carried()
                if not fast:
                    attached.carry(order, carried)
        except BaseException as e:  # sys.exit or KeyboardInterrupt of user code ends here too
            if os.getpid() != self._process:
                _end_fork(e)
            if self._in_consumer and isinstance(e, KeyboardInterrupt):
                raise  # the user's own Ctrl-C; the engine gives the chunk back
            self._report(error_report(attached.worker, order, e))
            attached.fail(order)
            attached.note(stage=Stage.IDLE)
            return False
        self._samples += n
        self._work_ns += time.monotonic_ns() - began
        # Counted before anybody can see that they are there.
        attached.note(samples=self._samples, work_ns=self._work_ns, wait_ns=self._wait_ns)
        if fast:
            self._finished = order, [array[:n] for array in target], carried
        else:
            attached.commit(order)
            attached.note(stage=Stage.IDLE)
        return True

    def _room(self, n: int) -> list[np.ndarray]:
        if self._scratch_slots < n:
            layout = self.attached.views.layout
            fields = layout.fields[:-1] if carries(layout) else layout.fields
            self._scratch = [np.empty((n, *one.shape), one.dtype) for one in fields]
            self._scratch_slots = n
        return self._scratch


def _end_fork(e: BaseException | None) -> NoReturn:
    """End a process that code of the user forked inside a sample.

    It has come back to where the sample was asked for. Going on would make it a second worker in
    the place of its parent, which commits the same chunk.
    """
    status = 0
    if isinstance(e, SystemExit):
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
    elif e is not None:
        traceback.print_exception(e)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status & 0xFF)


def error_report(worker: int, order: WorkOrder, e: BaseException) -> Report:
    """Return the report of a sample that failed."""
    sample_id, position, stage = int(order.ids[0]), int(order.positions[0]), "work"
    cause: BaseException = e
    if isinstance(e, SampleFailure):
        sample_id, position, stage = e.sample_id, e.position, e.stage
        cause = e.__cause__ or e
    return Report("error", worker, os.getpid(), describe_error(cause) | {
        "cell": order.cell,
        "sample_id": sample_id,
        "position": position,
        "phase": order.phase,
        "stage": stage,
    })  # fmt: skip


def describe_error(e: BaseException) -> dict[str, Any]:
    """Return the type, message and traceback of an exception as JSON-able text."""
    kind = type(e)
    try:
        message = str(e)
    except Exception as broken:
        message = f"<its __str__ raised {type(broken).__name__}>"
    text = "".join(traceback.format_exception(e))
    return {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "message": _cut(message),
        "traceback": _cut(text),
    }


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _TEXT_CHARS:
        return text
    half = _TEXT_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
