"""What a loader is doing now, and what it waited for: the facts behind `DataLoader.stats()`.

    free + in flight + ready + lent = buffers of the ring
    elapsed in passes = waited + helped + busy, seen by the consumer

Counters go on for as long as the workers do; `later.since(earlier)` gives those of a stretch of time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

_FEW_BATCHES = 2  # no verdict from fewer
_WAITS = 0.1  # a consumer that waits for more than this share of its time is not the bottleneck
_BUSY = 0.7  # share of the work that is processor time, above which processors are the limit
_IDLE = 0.5  # … below which something else is
_READ_NBYTES = 1 << 20  # read from storage; less is noise
_NS = 1e-9
_WORK_S = 0.05  # of work; less is too little to say why


@dataclass(frozen=True)
class WorkerStats:
    """One worker.

    Attributes:
        worker: its index.
        pid: of its process; 0 while there is none. Threads have the pid of this process.
        stage: "starting", "idle", "working", "placing" (fast mode: has a finished chunk and no
            place for it), "left"; "stopped" (SIGSTOP, a debugger) or "gone" (about to be replaced).
        position: place in the epoch's order of the sample it makes, or None.
        sample_id: index in the dataset of that sample, or None.
        age_s: how long it has been at that sample (in-memory arrays: at that chunk); while it is
            starting, how long that takes; 0 otherwise.
        samples: finished.
        work_s, wait_s: time spent making samples, and waiting for work or for a place.
        restarts: how often it was replaced.
        cpu_s: processor time used, or None where it cannot be told.
        read_nbytes: read from storage (not from the page cache), or None.
    """

    worker: int
    pid: int
    stage: str
    position: int | None
    sample_id: int | None
    age_s: float
    samples: int
    work_s: float
    wait_s: float
    restarts: int
    cpu_s: float | None = None
    read_nbytes: float | None = None


@dataclass(frozen=True)
class RingStats:
    """The batch buffers.

    Attributes:
        buffers: in all.
        free: nobody has them.
        in_flight: being filled (also for a pass that was abandoned, until its stragglers stop).
        ready: full, not delivered yet.
        lent: batches that the user holds.
        copies: batches that were copied because too many were held.
    """

    buffers: int
    free: int
    in_flight: int
    ready: int
    lent: int
    copies: int


@dataclass(frozen=True)
class ConsumerStats:
    """The process, or thread, that iterates.

    Attributes:
        batches: delivered.
        wait_s: waiting for batches.
        help_s: making samples itself: all of them with 0 workers, else instead of waiting.
        busy_s: everything else during passes, above all the code of the user's loop.
        help_samples: samples it made.
        help_share: of all samples made, in [0, 1].
    """

    batches: int
    wait_s: float
    help_s: float
    busy_s: float
    help_samples: int
    help_share: float


@dataclass(frozen=True)
class Stats:
    """A loader at one moment.

    Attributes:
        kind: who makes batches: "inline", "process", "thread", or "none" before the first batch.
        epoch: of the pass that runs, or of the next one.
        offset: samples of it delivered, of all ranks.
        workers: one entry each.
        ring: the batch buffers, or None before the first batch.
        consumer: the one who iterates.
        restarts: workers that were replaced.
        bottleneck: "consumer": it hardly ever waits (less than 10 % of its time). Otherwise making
            samples is the limit: "cpu" if at least 70 % of that was measured to be processor time,
            "storage" if less than half of it was and at least 1 MiB was read from storage,
            "workers" if neither can be told. "unknown" before the second batch.
    """

    kind: str
    epoch: int
    offset: int
    workers: tuple[WorkerStats, ...]
    ring: RingStats | None
    consumer: ConsumerStats
    restarts: int
    bottleneck: str

    def since(self, earlier: "Stats") -> "Stats":
        """Return these stats with the counters of the time since `earlier`, and its bottleneck."""
        before = {one.worker: one for one in earlier.workers}
        workers = tuple(_worker_since(one, before.get(one.worker)) for one in self.workers)
        a, b = earlier.consumer, self.consumer
        if b.batches < a.batches:  # the loader was closed in between
            return self
        total = sum(one.samples for one in workers) + b.help_samples - a.help_samples
        consumer = ConsumerStats(
            b.batches - a.batches,
            b.wait_s - a.wait_s,
            b.help_s - a.help_s,
            b.busy_s - a.busy_s,
            b.help_samples - a.help_samples,
            (b.help_samples - a.help_samples) / max(total, 1),
        )
        return replace(
            self,
            workers=workers,
            consumer=consumer,
            restarts=self.restarts - earlier.restarts,
            bottleneck=verdict(consumer, workers),
        )

    def line(self) -> str:
        """Return one line of text: the bottleneck, the ring, who waits, what each worker does."""
        c = self.consumer
        elapsed = max(c.wait_s + c.help_s + c.busy_s, 1e-9)
        parts = [
            f"bottleneck {self.bottleneck}",
            f"waits {c.wait_s / elapsed:.0%}",
            f"helps {c.help_s / elapsed:.0%}",
        ]
        if self.ring is not None:
            r = self.ring
            parts.append(f"ready {r.ready} flying {r.in_flight} free {r.free} lent {r.lent}")
            parts += [f"copies {r.copies}"] if r.copies else []
        parts += [f"restarts {self.restarts}"] if self.restarts else []
        parts += [_short(one) for one in self.workers]
        return " | ".join(parts)


class Clock:
    """Where the consumer's time goes; a few readings of the clock for each batch."""

    def __init__(self) -> None:
        self._batches = 0
        self._wait_ns = self._help_ns = self._busy_ns = 0
        self._left_ns = 0  # when the last batch was handed out, 0 outside a pass

    def begin(self) -> None:
        """A pass begins; the time since the last one counts for nobody."""
        self._left_ns = 0

    def enter(self) -> None:
        """The next batch is asked for."""
        now = time.monotonic_ns()
        if self._left_ns:
            self._busy_ns += now - self._left_ns

    def leave(self, delivered: bool) -> None:
        """It is handed out, or the pass is over."""
        self._left_ns = time.monotonic_ns() if delivered else 0
        self._batches += delivered

    def waited(self, began: int) -> None:
        """Count the time since `began` (`time.monotonic_ns`) as waiting."""
        self._wait_ns += time.monotonic_ns() - began

    def helped(self, began: int) -> int:
        """Count the time since `began` as making samples; return it, in nanoseconds."""
        passed = time.monotonic_ns() - began
        self._help_ns += passed
        return passed

    def stats(self, help_samples: int, help_share: float) -> ConsumerStats:
        """Return the times so far."""
        times = (self._wait_ns * _NS, self._help_ns * _NS, self._busy_ns * _NS)
        return ConsumerStats(self._batches, *times, help_samples, help_share)


def verdict(
    consumer: ConsumerStats, workers: Sequence[WorkerStats], inline_cpu_s: float | None = None
) -> str:
    """Return who is the bottleneck; see `Stats`.

    Args:
        consumer: its times.
        workers: theirs.
        inline_cpu_s: processor time of what the consumer made, if that was measured.
    """
    if consumer.batches < _FEW_BATCHES:
        return "unknown"
    unready = consumer.wait_s + consumer.help_s
    if unready < _WAITS * (unready + consumer.busy_s):
        return "consumer"
    measured = [one for one in workers if one.cpu_s is not None]
    work_s = sum(max(one.work_s, one.age_s) for one in measured)
    cpu_s = sum(one.cpu_s or 0.0 for one in measured)
    if inline_cpu_s is not None:
        work_s, cpu_s = work_s + consumer.help_s, cpu_s + inline_cpu_s
    if work_s < _WORK_S:
        return "workers"
    if cpu_s >= _BUSY * work_s:
        return "cpu"
    read = sum(one.read_nbytes or 0 for one in measured)
    return "storage" if cpu_s < _IDLE * work_s and read >= _READ_NBYTES else "workers"


def nothing(epoch: int, offset: int) -> Stats:
    """Return the stats of a loader that has not begun."""
    consumer = ConsumerStats(0, 0.0, 0.0, 0.0, 0, 0.0)
    return Stats("none", epoch, offset, (), None, consumer, 0, "unknown")


def _worker_since(now: WorkerStats, before: WorkerStats | None) -> WorkerStats:
    if before is None or now.samples < before.samples:
        return now
    same = now.pid == before.pid
    return replace(
        now,
        samples=now.samples - before.samples,
        work_s=now.work_s - before.work_s,
        wait_s=now.wait_s - before.wait_s,
        restarts=now.restarts - before.restarts,
        cpu_s=_less(now.cpu_s, before.cpu_s if same else 0.0),
        read_nbytes=_less(now.read_nbytes, before.read_nbytes if same else 0),
    )


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _short(one: WorkerStats) -> str:
    text = f"w{one.worker} {one.stage}"
    if one.position is not None:
        text += f" q{one.position} #{one.sample_id}"
    return f"{text} {one.age_s:.1f}s" if one.age_s >= 1.0 else text
