"""Watch: what the workers of a pool do, for `stats()`, for a timeout, and for samples that are stuck.

It only reads: the workers' lines in the arena, /proc, and stacks when there is something to tell.
It may be used from another thread than the consumer's.
"""

import logging
import os
import time
from dataclasses import dataclass
from typing import Any

from pipeline import datasets
from pipeline.errors import WorkerError
from pipeline.recipe import Recipe
from pipeline.stats import WorkerStats
from pipeline.transfer.station import Line, TransferStation
from pipeline.workers.health import state_of, usage_of
from pipeline.workers.pool import ProcessPool, ThreadPool
from pipeline.workers.protocol import Stage

_log = logging.getLogger("samebatch")
# A sample that takes so long is told of once, where no `timeout` ends the wait.
STUCK_S = 30.0
_NS = 1e-9


@dataclass
class _Past:
    """What the earlier processes of one worker did."""

    samples: int = 0
    work_ns: int = 0
    wait_ns: int = 0
    restarts: int = 0


class Watch:
    """Looks at the workers of one pool.

    Args:
        station, pool, recipe: theirs.
        workers: how many.
    """

    def __init__(
        self,
        station: TransferStation,
        pool: ProcessPool | ThreadPool,
        recipe: Recipe,
        workers: int,
    ) -> None:
        self._station = station
        self._pool = pool
        self._recipe = recipe
        self._workers = workers
        self._past = [_Past() for _ in range(workers)]
        self._told: set[tuple[int, int]] = set()  # (worker, when its sample began)
        self._asked_ns = [time.monotonic_ns()] * workers

    def retire(self, worker: int) -> None:
        """Keep what a dead worker has counted. Before another one takes its line."""
        line, past = self._station.line(worker), self._past[worker]
        past.samples += line.samples
        past.work_ns += line.work_ns
        past.wait_ns += line.wait_ns
        past.restarts += 1
        self._asked_ns[worker] = time.monotonic_ns()
        self._station.clear_line(worker)

    def workers(self) -> tuple[WorkerStats, ...]:
        """Return the stats of each worker."""
        return tuple(self._worker(w) for w in range(self._workers))

    def _worker(self, worker: int) -> WorkerStats:
        line, past = self._station.line(worker), self._past[worker]
        pid, thread = self._pool.place_of(worker)
        pid = line.pid or pid  # the pool hears of a start only while the consumer waits
        stage, since_ns = _stage(line, pid), line.heartbeat_ns or self._asked_ns[worker]
        position, sample_id = self._sample(line)
        busy = position is not None or stage == "starting"
        usage = usage_of(pid, thread) if pid else None
        return WorkerStats(
            worker,
            pid,
            stage,
            position,
            sample_id,
            max(0, time.monotonic_ns() - since_ns) * _NS if busy else 0.0,
            past.samples + line.samples,
            (past.work_ns + line.work_ns) * _NS,
            (past.wait_ns + line.wait_ns) * _NS,
            past.restarts,
            None if usage is None else usage.cpu_s,
            None if usage is None else usage.read_nbytes,
        )

    def _sample(self, line: Line) -> tuple[int | None, int | None]:
        """Return (position, sample id) of the sample a worker makes now."""
        if line.cell < 0 or line.stage not in (Stage.WORKING, Stage.PLACING):
            return None, None
        positions, ids = self._station.samples_of(line.cell)
        if line.position in positions:
            return line.position, ids[positions.index(line.position)]
        return None, None  # it went on while we looked

    # ------------------------------------------------------------ when something is wrong
    def look(self, locate: Any) -> None:
        """Log each sample once that has taken longer than `STUCK_S`.

        Args:
            locate: position → where it is, for messages.
        """
        for worker in range(self._workers):
            line = self._station.line(worker)
            age_s = (time.monotonic_ns() - line.heartbeat_ns) * _NS
            if line.cell < 0 or line.stage != Stage.WORKING or age_s < STUCK_S:
                continue
            if (worker, line.heartbeat_ns) not in self._told:
                self._told.add((worker, line.heartbeat_ns))
                _log.warning(
                    "a sample takes long (no error: timeout=0 waits for ever)\n  %s",
                    self._tell(self._worker(worker), locate),
                )

    def timed_out(self, timeout_s: float, locate: Any) -> WorkerError:
        """Return the error for a batch that did not come in time, with the stack of each worker.

        Args:
            timeout_s: how long was waited.
            locate: position → where it is, for messages.
        """
        found = self.workers()
        facts: list[dict[str, Any]] = [
            {
                "worker": one.worker,
                "pid": one.pid,
                "stage": one.stage,
                "position": one.position,
                "sample_id": one.sample_id,
                "path": self._path(one),
                "age_s": one.age_s,
                "stack": self._stack(one),
            }
            for one in found
        ]
        told = "\n  ".join(
            self._tell(one, locate, f["stack"]) for one, f in zip(found, facts, strict=True)
        )
        return WorkerError(
            f"DataLoader timed out after {timeout_s:g} seconds: no batch came for so long",
            where=told,
            do="look at the samples and the stacks above; raise timeout if they are only slow; "
            "iterating again goes on before this batch",
            timeout_s=timeout_s,
            workers=facts,
        )

    def _path(self, one: WorkerStats) -> str | None:
        if one.sample_id is None:
            return None
        return datasets.describe(self._recipe.dataset, one.sample_id)

    def _stack(self, one: WorkerStats) -> str:
        if one.stage == "idle":
            return ""
        return self._pool.stack_of(one.worker)

    def _tell(self, one: WorkerStats, locate: Any, stack: str | None = None) -> str:
        pid = f"pid {one.pid}" if one.pid else "no process"
        text = f"worker {one.worker} ({pid}) is {one.stage}"
        if one.age_s:
            text += f" for {one.age_s:.1f} s"
        if one.position is not None:
            text += f" at sample {one.sample_id} ({self._path(one)}); {locate(one.position)}"
        stack = self._stack(one) if stack is None else stack
        return text + "".join(f"\n    {line}" for line in stack.splitlines())


def _stage(line: Line, pid: int) -> str:
    if pid and pid != os.getpid():
        state = state_of(pid)
        if state in ("T", "t"):
            return "stopped"
        if not state or state in "ZX":
            return "gone"
    return Stage(line.stage).name.lower()
