"""Engines turn a pass (which positions, in which batches) into filled batches.

* `Inline`: the consumer makes each batch itself when it is asked for (0 workers).
* `Pooled`: a TransferStation and a pool of processes or threads; the consumer opens tickets, takes
  full batches, replaces dead workers, and helps where that is safe and it would only wait.

Both give the same bytes: they only decide who calls `Recipe.fill`.
"""

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline import datasets
from pipeline.audit import Digest
from pipeline.errors import SampleError, WorkerError
from pipeline.made import ENDED, SKIPPED, Failure, Made
from pipeline.plan import Order, Plan, Streamed
from pipeline.recipe import Recipe, SampleFailure, substitute
from pipeline.stats import Clock, RingStats, Stats, verdict
from pipeline.transfer import cells
from pipeline.transfer.layout import Layout
from pipeline.transfer.regions import CARRIED
from pipeline.transfer.ring import private_ring
from pipeline.transfer.station import Attached, Taken, TransferStation
from pipeline.watch import Watch
from pipeline.workers.pool import Death, ProcessPool, ThreadPool
from pipeline.workers.process import PreprocessWorker, describe_error
from pipeline.workers.protocol import EXIT_CRASH, Report

# Batches the user may hold before further ones are copied: the last, the current, and two he keeps
# (a batch to look at again, the last of the epoch before).
HELD = 4
_PATIENCE_S = 0.02
LEAVE_S = 5.0  # how long workers may finish their sample when the loader closes
HURRY_S = 0.5  # … after an error, and at the end of the process
START_S = 30.0  # workers that take longer to start are subject to `timeout`
_PAUSED_S = 2.0  # a consumer that waits looks fifty times a second
_LOOK_S = 0.25  # how often workers are looked at while batches keep coming
_MAX_KILLS = 5  # a chunk that kills so many workers is given up
_CHUNK_NBYTES = 4 << 20  # most bytes of a bulk chunk; measured: half a batch of 6 MB beats less
_AHEAD_NBYTES = 16 << 20  # bulk batches made ahead: what stays in the cache until it is consumed
_CHUNK_NS = 1_000_000  # of work a chunk of single samples should have: claiming one takes 0.03 ms
_HANDOVER_NS = 100_000  # of work in a batch, below which handing it over costs more than making it
_WEIGHED_STEPS = 8  # … on average over so many batches
_PRICEY = 4  # workers that take so many times longer are not worth a trial
_MOST_STEPS = 4096  # from one trial to the next, where they fail
_USAGE_S = 0.5  # how often the processor time of workers is asked for
_WAITING = 0.6  # workers that use less than this share of their working time wait for storage
_TRIES = 5  # of a step of closing that is interrupted
_TOGETHER = 1 << 14  # positions whose ids are looked up in one call
_TIMED_STEPS = 16  # the processor's time is asked for at one of so many cheap batches


@dataclass(slots=True)  # frozen ones take four times as long to make
class Batch:
    """One delivered batch.

    Attributes:
        arrays: one [n, *shape] for each field.
        ids: int64[n], sample ids.
        positions: uint64[n].
        real: how many are not padding.
        step: place in the pass.
        beside: the text leaves of each sample, if they have any.
        whole: the batch itself, where `collate_fn` made it; then there are no arrays.
        is_whole: whether it did.
        replaced: bool[n], another sample took the place of one that cannot be made.
        covered: uint64[m], the positions that are done with this batch: those delivered, padding
            excluded, and those skipped.
        failures: samples that were skipped or replaced.
        ended: the data ended in this batch or before it (iterable datasets).
    """

    arrays: list[np.ndarray]
    ids: np.ndarray
    positions: np.ndarray
    real: int
    step: int
    beside: list[list[Any]] | None = None
    whole: Any = None
    is_whole: bool = False
    replaced: np.ndarray | None = None
    covered: np.ndarray | None = None
    failures: tuple[Failure, ...] = ()
    ended: bool = False


def finished(
    recipe: Recipe,
    arrays: list[np.ndarray],
    ids: np.ndarray,
    positions: np.ndarray,
    real: int,
    one: "Pass",
    step: int,
    status: np.ndarray | None,
    made: Made,
) -> Batch:
    """Return a batch from what was made: without the slots that stayed empty."""
    beside = made.beside
    replaced, covered = None, positions[:real]
    ended = False
    if status is not None and status.any():
        replaced = (status > 0) & (status < SKIPPED)
        ids = ids.copy()
        for slot in np.flatnonzero(replaced).tolist():
            position, attempt = int(positions[slot]), int(status[slot])
            ids[slot] = substitute(recipe.key, len(recipe.dataset), position, one.phase, attempt)
        covered = positions[:real][status[:real] != ENDED]
        ended = bool((status == ENDED).any())
        keep = status < SKIPPED
        if not keep.all():
            arrays = [a[keep] for a in arrays]
            ids, positions, replaced = ids[keep], positions[keep], replaced[keep]
            beside = None if beside is None else [b for b, k in zip(beside, keep, strict=True) if k]
            real = int(keep[:real].sum())
    return Batch(
        arrays,
        ids,
        positions,
        real,
        step,
        beside,
        made.whole,
        made.is_whole,
        replaced,
        covered,
        tuple(made.failures),
        ended,
    )


@dataclass
class Pass:
    """One ordered pass, from an offset to the end of the phase, as one rank sees it.

    Attributes:
        epoch, phase: which; phase is the packed word of the addresses.
        offset: where it began (samples of all ranks).
        plan, order: positions of a step, ids of positions.
        split, seed: for messages.
        left: fast mode after a resume: the positions still missing; else None.
        delivered: batches the user has had.
        last: batches, once it is known where data of unknown length ends.
        resumes: it begins in the middle of an epoch, where a state says.
    """

    epoch: int
    phase: int
    offset: int
    plan: Plan
    order: Order
    split: str
    seed: int
    left: np.ndarray | None = None
    delivered: int = 0
    last: int | None = None
    resumes: bool = False

    def __post_init__(self) -> None:
        self._planned = self.plan.steps(self.offset)
        # Full batches looked up together: the first step, and [steps, batch_size] of both kinds.
        self._from = 0
        self._ids: np.ndarray = np.empty((0, 0), np.int64)
        self._positions: np.ndarray = self._ids
        self._together = 1
        self._looks_ahead = not isinstance(self.order, Streamed)  # which tells where it was read to

    def leave_only(self, left: np.ndarray) -> None:
        """Begin again with these positions, uint64[m]: batches were delivered in no order."""
        self.left, self.delivered = left, 0
        self._ids = self._positions = np.empty((0, 0), np.int64)

    @property
    def steps(self) -> int:
        """Batches in this pass; too many while it is not known where its data end."""
        if self.last is not None:
            return self.last
        if self.left is not None:
            return -(-len(self.left) // self.plan.batch_size)
        return self._planned

    def over(self, offset: int) -> bool:
        """Return whether nothing is left to deliver at `offset`."""
        known = self.last is not None and self.delivered >= self.last
        return known or self.plan.ends_at(offset)

    def work(self, step: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return (ids, positions, real) of a step."""
        place = step - self._from
        if not 0 <= place < len(self._ids) and not self._look_up(step):
            return self._work(step)
        place = step - self._from
        return self._ids[place], self._positions[place], self.plan.batch_size

    def _look_up(self, step: int) -> bool:
        """Find the samples of the full batches from `step` on, more each time; False if there is none."""
        if not self._looks_ahead or self.left is not None or step < 0:
            return False
        positions = self.plan.full_batches(step, self._together, self.offset)
        if not len(positions):
            return False
        self._from, self._positions = step, positions
        self._ids = self.order.ids(positions.reshape(-1)).reshape(positions.shape)
        self._together = min(2 * self._together, max(1, _TOGETHER // self.plan.batch_size))
        return True

    def _work(self, step: int) -> tuple[np.ndarray, np.ndarray, int]:
        if self.left is not None:
            size = self.plan.batch_size
            positions = self.left[step * size : (step + 1) * size]
            real = len(positions)
            if self.plan.tail == "pad" and real < size:
                more = np.arange(size - real, dtype=np.uint64) % np.uint64(self.plan.length)
                positions = np.concatenate([positions, more])
        else:
            positions, real = self.plan.positions(step, self.offset)
        ids = self.order.ids(positions)
        if len(ids) < len(positions):  # a sampler of unknown length is over
            self.last = step + (len(ids) > 0 and self.plan.tail != "drop")
            kept = len(ids) if self.last > step else 0
            return ids[:kept], positions[:kept], min(real, kept)
        return ids, positions, real

    def locate(self, position: int) -> str:
        """Return where a position is, for messages."""
        step, inside = divmod(position - self.offset, self.plan.global_batch)
        return (
            f"split={self.split} epoch={self.epoch} position={position} step={step} "
            f"slot={inside % self.plan.batch_size} rank={self.plan.rank} seed={self.seed}"
        )


class Engine(Protocol):
    """What makes batches."""

    def begin(self, one: Pass, step: int = 0) -> None:
        """Start a pass, or go on with it at a step; what is in flight of an earlier one is abandoned."""

    def take(self) -> Batch | None:
        """Return the pass's next batch, or None at its end."""

    def cancel(self) -> None:
        """Abandon the pass."""

    def close(self, *, hurry: bool = False) -> None:
        """Give everything back; in a hurry, kill what does not stop at once."""

    def interrupt(self, e: BaseException) -> None:
        """Let the thread that waits in `take` raise `e` instead, soon."""

    def pids(self) -> list[int]:
        """Return the worker processes."""

    @property
    def restarts(self) -> int:
        """Workers replaced."""

    @property
    def buffers(self) -> np.ndarray:
        """uint8[n]: the memory of all batch buffers; the same object for the engine's life."""

    def stats(self, epoch: int, offset: int) -> Stats:
        """Return what is going on."""


def sample_error(
    recipe: Recipe, failure: SampleFailure, one: Pass, who: str, text: str = "", kind: str = ""
) -> SampleError:
    """Return the error the user sees for a sample that failed in a pass, made by `who`."""
    told = describe_error(failure.__cause__) if failure.__cause__ else {"type": "", "message": ""}
    name, message = kind or told["type"], text or told["message"]
    whole = failure.stage == "collate" and not name.startswith("pipeline.")
    raised = type(failure.__cause__) if failure.__cause__ else _known(name)
    return SampleError.like(
        getattr(raised, "also", raised),
        f"{'the batch that begins with ' if whole else ''}sample {failure.sample_id} "
        f"({datasets.describe(recipe.dataset, failure.sample_id)}) "
        f"failed in {failure.stage}: {name.removeprefix('builtins.')}: {message}",
        where=f"{one.locate(failure.position)} {who}".rstrip(),
        do=f"{_again(failure, one)} --set seed={one.seed}; repair or remove the sample",
        sample_id=failure.sample_id,
        position=failure.position,
        stage=failure.stage,
        type=name,
        epoch=one.epoch,
        seed=one.seed,
    )


def _again(failure: SampleFailure, one: Pass) -> str:
    """Return the calls that show a failure again: of one sample, or of all that it went together with."""
    what, call, option, number = "it alone", "sample_at", "position", failure.position
    if failure.stage == "collate":
        what, call, option = "its batch", "batch_at", "step"
        number = one.plan.step_of(failure.position)
    return (
        f"make {what} to see the error again: loader.{call}({one.epoch}, {number}), or "
        f"samebatch replay CONFIG --epoch {one.epoch} --{option} {number}"
    )


def _known(name: str) -> type[BaseException] | None:
    """Return a type of exception by the name a worker gave, if this process has it."""
    module, _, rest = name.rpartition(".")
    found: Any = sys.modules.get(module)
    kind = getattr(found, rest, None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


def fingerprint_of(digest: Digest, batch: Batch) -> str:
    """Add a batch to a digest; return its fingerprint."""
    if batch.is_whole:
        return digest.add_whole(batch.whole, batch.ids, batch.positions)
    return digest.add(batch.arrays, batch.ids, batch.positions, batch.beside)


def empty_batch(recipe: Recipe, step: int) -> Batch:
    """Return a batch without samples, for a rank that has none left."""
    assert recipe.fields is not None
    if recipe.whole:
        none = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        return Batch([], *none, 0, step, None, recipe.nothing(), True)
    arrays = [np.zeros((0, *one.shape), one.dtype) for one in recipe.fields]
    return Batch(arrays, np.zeros(0, np.int64), np.zeros(0, np.uint64), 0, step)


class Inline:
    """The consumer makes every batch, in its own thread."""

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        self._recipe = recipe
        assert recipe.fields is not None
        recipe.expect(batch_size)
        self._ring = private_ring(recipe.fields, batch_size, HELD + 1, HELD)
        self._views = [self._ring.views(i) for i in range(HELD + 1)]
        self.buffers = self._ring.span
        self._pass: Pass | None = None
        self._step = 0
        self._clock = Clock()
        self._samples = self._cpu_ns = self._timed_ns = 0

    def begin(self, one: Pass, step: int = 0) -> None:
        """Start a pass, or go on with it at a step."""
        self._pass, self._step = one, step
        self._clock.begin()

    def take(self) -> Batch | None:
        """Return the pass's next batch, or None at its end."""
        self._clock.enter()
        batch = self._take()
        self._clock.leave(batch is not None)
        return batch

    def _take(self) -> Batch | None:
        one, step = self._pass, self._step
        if one is None or step >= one.steps:
            return None
        ids, positions, real = one.work(step)
        if step >= one.steps:
            return None
        if not len(ids):
            self._step = step + 1
            return empty_batch(self._recipe, step)
        buffer = self._ring.acquire()
        assert buffer is not None  # lend() copies before the last one goes
        try:
            timed = not self._recipe.bulk or not step % _TIMED_STEPS
            cpu_ns = time.thread_time_ns() if timed else 0
            began = time.monotonic_ns()
            made = self._recipe.fill(self._views[buffer], 0, ids, positions, one.phase)
            passed = self._clock.helped(began)
            if timed:
                self._cpu_ns += time.thread_time_ns() - cpu_ns
                self._timed_ns += passed
            self._samples += len(ids)
        except SampleFailure as e:
            self._ring.release(buffer)
            who = "worker=none (in the loader's own process)"
            raise sample_error(self._recipe, e, one, who) from e.__cause__
        except BaseException:
            self._ring.release(buffer)
            raise
        self._step = step + 1
        if made is None:
            return Batch(self._ring.lend(buffer, len(ids)), ids, positions, real, step)
        if made.is_whole:
            self._ring.release(buffer)
            arrays = []
        else:
            arrays = self._ring.lend(buffer, len(ids))
        return finished(self._recipe, arrays, ids, positions, real, one, step, made.status, made)

    def cancel(self) -> None:
        """Abandon the pass."""
        self._pass = None

    def interrupt(self, e: BaseException) -> None:
        """Do nothing: a sample that is being made in this process cannot be interrupted."""

    def close(self, *, hurry: bool = False) -> None:
        """Abandon the pass; there is nothing else to give back."""
        del hurry
        self._pass = None

    def stats(self, epoch: int, offset: int) -> Stats:
        """Return what is going on."""
        consumer = self._clock.stats(self._samples, float(self._samples > 0))
        buffers, free, lent = self._ring.occupancy
        ring = RingStats(buffers, free, buffers - free - lent, 0, lent, self._ring.copies)
        cpu_share = self._cpu_ns / max(1, self._timed_ns)
        bottleneck = verdict(consumer, (), cpu_share * consumer.help_s)
        return Stats("inline", epoch, offset, (), ring, consumer, 0, bottleneck)

    def pids(self) -> list[int]:
        """Return no process."""
        return []

    @property
    def restarts(self) -> int:
        """Return 0."""
        return 0


class Pooled:
    """Workers on a station.

    Args:
        recipe: with known fields.
        batch_size: most samples of a batch.
        workers: how many.
        method: "fork" or "spawn" (processes), or "thread".
        depth: batches in flight; None chooses.
        fast: deliver as batches fill, samples in the order in which they were finished.
        timeout_s: longest wait for a batch; 0 is for ever.
        sample_ns: time one sample took in `probe`, or 0.
    """

    def __init__(
        self,
        recipe: Recipe,
        batch_size: int,
        workers: int,
        method: str,
        depth: int | None,
        fast: bool,
        timeout_s: float,
        sample_ns: int,
    ) -> None:
        self._recipe = recipe
        self._fast = fast
        self._timeout_s = timeout_s
        self._batch_size = batch_size
        self._workers = workers
        self._sample_ns = sample_ns
        self._chunk = batch_size
        assert recipe.fields is not None
        recipe.expect(batch_size)
        smallest = self._bulk_chunk() if recipe.bulk else max(1, -(-batch_size // 512))
        if recipe.whole:
            smallest = batch_size
        if fast:
            smallest = _divisor(batch_size, smallest)
        if depth is None:
            depth = self._default_depth()
        layout = Layout(
            fields=(*recipe.fields, CARRIED) if recipe.carries else recipe.fields,
            slots=batch_size,
            chunk=smallest,
            depth=depth,
            held=HELD,
            tickets=8 * depth + workers + 2,
            workers=workers + 1,
        )
        hint = (
            f"lower batch_size ({batch_size}) or prefetch_factor: {layout.buffers} batches of "
            f"{layout.buffer_nbytes:,} bytes are kept"
        )
        processors = len(os.sched_getaffinity(0))
        resting = max(0, workers - max(1, processors - 1)) if self._helps_always() else 0
        self.station = TransferStation(
            layout, fast=fast, shared=method != "thread", hint=hint, resting=resting
        )
        self.buffers = self.station.ring.span
        self._own = Attached(self.station.views, workers, fast=fast, regions=self.station.regions)
        self._own_reports: list[Report] = []
        self._helper = PreprocessWorker(
            self._own, recipe, self._own_reports.append, in_consumer=True
        )
        self._pass: Pass | None = None
        self._steps: dict[int, tuple[int, int]] = {}  # ticket -> (step, real)
        self._next = 0
        self._delivered = 0
        self._kills: dict[int, int] = {}  # cell -> workers it killed
        self._deaths = 0  # since the last batch
        self._looked_at = time.monotonic()
        self._deadline = math.inf
        self._checked = time.monotonic()
        self._alone = False  # the consumer makes the batches, and the workers rest
        self._alone_ns = 0  # of work in one of them, on average
        self._alone_samples = 0
        self._weighed = 0, 0  # (samples, ns) of all workers when they were last looked at
        self._trial = self._trial_steps = _WEIGHED_STEPS  # batches until one, and between two
        self._usage = 0.0, 0.0, 0.0  # when it was asked for; work and processor time of workers, s
        self._storage_is_slow = False
        self._interrupt: BaseException | None = None
        self._clock = Clock()
        pool: ProcessPool | ThreadPool | None = None
        try:
            pool = (
                ThreadPool(self.station, recipe, workers)
                if method == "thread"
                else ProcessPool(self.station, recipe, workers, method)
            )
            self.pool = pool
            self._watch = Watch(self.station, pool, recipe, workers)
        except BaseException:  # Ctrl-C too
            to_the_end(
                lambda: pool.close(HURRY_S) if pool is not None else None, self.station.close
            )
            raise

    def _sample_nbytes(self) -> int:
        assert self._recipe.fields is not None
        return max(1, sum(one.nbytes for one in self._recipe.fields))

    def _bulk_chunk(self) -> int:
        most = max(1, -(-self._batch_size // self._workers))
        return int(min(most, max(1, _CHUNK_NBYTES // self._sample_nbytes())))

    def _default_depth(self) -> int:
        """Return how many batches to make ahead.

        The workers of a bulk recipe share each batch evenly, so two batches ahead are enough, and
        fewer bytes in flight are faster (6 MB batches: 4 buffers 1.2 us a sample, 8 buffers 2.0).
        Single samples may be slow: there, a window of many samples keeps the others busy.
        """
        if not self._recipe.bulk:
            return max(4, min(8, 2 * self._workers))
        batch_nbytes = self._batch_size * self._sample_nbytes()
        return int(max(2, min(8, _AHEAD_NBYTES // batch_nbytes)))

    def pids(self) -> list[int]:
        """Return the worker processes."""
        return self.pool.pids()

    @property
    def restarts(self) -> int:
        """Workers replaced since the pool started."""
        return self.pool.restarts

    # ------------------------------------------------------------ a pass
    def begin(self, one: Pass, step: int = 0) -> None:
        """Start a pass, or go on with it at a step; what is in flight of an earlier one is abandoned."""
        self.cancel()
        self._pass = one
        self._next = self._delivered = step
        self._clock.begin()
        self._choose_chunk()
        self._feed()

    def cancel(self) -> None:
        """Abandon the pass."""
        if self._pass is not None:
            self.station.cancel()
            self._helper.put_down()
            self.pool.forget_reports()
            self._own_reports.clear()
            self._steps.clear()
            self._pass = None

    def take(self) -> Batch | None:
        """Return the pass's next batch, or None at its end.

        Raises:
            SampleError: a sample failed.
            WorkerError: workers die again and again, or nothing came for `timeout_s`.
        """
        self._clock.enter()
        try:
            batch = self._take()
        except Exception:
            self._heed()
            raise
        self._clock.leave(batch is not None)
        return batch

    def _heed(self) -> None:
        """Raise what `interrupt` was given: this engine is being closed, whatever else went wrong."""
        if self._interrupt is not None:
            raise self._interrupt from None

    def _take(self) -> Batch | None:
        one = self._pass
        if one is None:
            return None
        if self._delivered == one.steps:
            if one.last is not None:  # batches beyond the end of the data may be in flight
                self.cancel()
            self._pass = None
            self._steps.clear()
            return None
        if self._alone and self._next == self._delivered:
            batch = self._make_alone(one)
            if batch is not None:
                return batch
        self._checked = time.monotonic()
        self._deadline = self._checked + self._timeout_s if self._timeout_s else math.inf
        self._feed()
        if self._delivered == one.steps:  # only now it is known that the data end here
            return self.take()
        while not self._steps and self._next < one.steps:
            # Every buffer is still being filled by stragglers of an abandoned pass.
            began = time.monotonic_ns()
            self.station.wait_for_straggler(_PATIENCE_S)
            self._clock.waited(began)
            self._look()
            self._check()
            self._feed()
        if not self._steps:  # only a step without samples for this rank is left
            self._delivered += 1
            return empty_batch(self._recipe, self._delivered - 1)
        self._await(one)
        taken = self.station.take()
        step, real = self._steps.pop(taken.ticket)
        self._delivered += 1
        self._deaths = 0
        if self._helps_always():
            self._weigh()
        self._feed()
        if self.station.regions is None:
            return Batch(taken.arrays, taken.ids, taken.positions, real, step)
        return finished(
            self._recipe,
            taken.arrays,
            taken.ids,
            taken.positions,
            real,
            one,
            step,
            taken.status,
            self._arrived(taken),
        )

    def _arrived(self, taken: Taken) -> Made:
        """Put together what the chunks of a batch gave besides fixed fields."""
        whole = Made()
        for slot, slots, content in taken.carried:
            made = Made.arrived(content)
            whole.failures += made.failures
            if made.is_whole:
                whole.whole, whole.is_whole = made.whole, True
            if made.beside is not None:
                if whole.beside is None:
                    whole.beside = [[]] * len(taken.ids)
                whole.beside[slot : slot + slots] = made.beside
        whole.failures.sort(key=lambda f: f.position)
        return whole

    # ------------------------------------------------------------ batches that cost next to nothing
    def _weigh(self) -> None:
        """Look now and then whether a batch of a native bulk recipe costs less than handing it over.

        Bytes do not depend on who makes them, so the consumer then does, for as long as that is true. It is tried
        out: what workers take tells little where they compete for the interpreter's lock.
        """
        self._trial -= 1
        if self._trial > 0:
            return
        samples, work_ns = self.station.totals()
        count, spent = samples - self._weighed[0], work_ns - self._weighed[1]
        self._weighed = samples, work_ns
        if count > 0 and spent * self._batch_size < count * _PRICEY * _HANDOVER_NS:
            self._alone, self._alone_ns = True, _HANDOVER_NS // 2
        self._trial = self._trial_steps

    def _make_alone(self, one: Pass) -> Batch | None:
        """Return the next batch, made here; None where the workers are better at it."""
        if time.monotonic() - self._looked_at > _LOOK_S:
            self._look()
        step = self._next
        ids, positions, real = one.work(step)
        buffer = self.station.ring.acquire() if len(ids) else None
        if buffer is None:  # a rank without samples, or stragglers in every buffer
            self._alone = self._alone and not len(ids)
            return None
        try:
            began = time.monotonic_ns()
            self._recipe.fill(self.station.views.buffers[buffer], 0, ids, positions, one.phase)
            passed = self._clock.helped(began)
        except BaseException:
            self.station.ring.release(buffer)
            raise
        self._alone_samples += len(ids)
        self._alone_ns += (passed - self._alone_ns) // _WEIGHED_STEPS
        if self._alone_ns >= _HANDOVER_NS:  # dear, or from a slow disk, where workers read ahead
            self._alone = False
            self._trial_steps = min(2 * self._trial_steps, _MOST_STEPS)
        self._next = self._delivered = step + 1
        return Batch(self.station.ring.lend(buffer, len(ids)), ids, positions, real, step)

    def _feed(self) -> None:
        one = self._pass
        assert one is not None
        if self._alone:
            return
        while self._next < one.steps and self.station.can_open():
            ids, positions, real = one.work(self._next)
            if self._next >= one.steps:
                return
            if len(ids):
                if not self._fast and not self._recipe.bulk and not self._recipe.whole:
                    self._adapt_chunk()
                ticket = self.station.open(ids, positions, one.phase, self._chunk)
                self._steps[ticket] = (self._next, real)
            self._next += 1

    def _choose_chunk(self) -> None:
        smallest = self.station.layout.chunk
        if self._recipe.bulk or self._recipe.whole:
            self._chunk = smallest
        elif self._sample_ns:
            self._chunk = self._sized(self._sample_ns)
        else:
            self._chunk = smallest

    def _sized(self, sample_ns: float) -> int:
        """Return a chunk of about `_CHUNK_NS` of work, at least two for each worker and batch."""
        smallest = self.station.layout.chunk
        most = max(smallest, self._batch_size // (2 * self._workers))
        chunk = max(smallest, min(most, round(_CHUNK_NS / max(sample_ns, 1.0))))
        return _divisor(self._batch_size, chunk) if self._fast else chunk

    def _adapt_chunk(self) -> None:
        samples, work_ns = self.station.totals()
        if samples >= 64:
            self._chunk = self._sized(work_ns / samples)

    # ------------------------------------------------------------ waiting
    def _await(self, one: Pass) -> None:
        now = time.monotonic()
        if now - self._looked_at > _LOOK_S:
            self._look()
        while True:
            state = self.station.wait(0.0)
            if state == cells.PENDING:
                if self._help():
                    continue
                began = time.monotonic_ns()
                state = self.station.wait(_PATIENCE_S)
                self._clock.waited(began)
            if state == cells.READY:
                return
            if state == cells.BAD:
                self._raise_failed(one)
            self._look()
            if self._fast:
                self._feed()
            self._check()

    def _check(self) -> None:
        assert self._pass is not None
        now, before = time.monotonic(), self._checked
        self._checked = now
        if now - before > _PAUSED_S:
            self._deadline += now - before  # everybody was stopped (Ctrl-Z), not only the workers
        if not self._timeout_s:
            self._watch.look(self._pass.locate)
        elif not self.pool.ready and now - self.pool.asked_at < START_S:
            self._deadline = now + self._timeout_s  # start-up does not count
        elif now > self._deadline:
            raise self._watch.timed_out(self._timeout_s, self._pass.locate)

    def _help(self) -> bool:
        if not self._helper.holds and not self._may_help():
            return False
        began = time.monotonic_ns()
        try:
            return self._helper.help()
        except BaseException:  # Ctrl-C: nobody writes into that chunk any more
            self._helper.drop()
            self.station.recover(self._own.worker)
            raise
        finally:
            self._clock.helped(began)

    def _may_help(self) -> bool:
        """Helping is safe where no code of the user runs; it pays for cheap samples, while the workers
        are still starting, and while they wait for storage. Not if a wait must end in time: a read cannot be
        interrupted.
        """
        if self._helps_always():
            return True
        if not self._recipe.native:
            return False
        return not self.pool.ready or (self._workers_wait() and not self._timeout_s)

    def _workers_wait(self) -> bool:
        """Return whether the workers spend their time waiting, so that one more could use the processors."""
        asked_at, work_s, cpu_s = self._usage
        now = time.monotonic()
        if now - asked_at > _USAGE_S:
            found = self._watch.workers()
            work, cpu = sum(one.work_s for one in found), sum(one.cpu_s or 0.0 for one in found)
            known = bool(asked_at) and all(one.cpu_s is not None for one in found)
            self._storage_is_slow = known and cpu - cpu_s < _WAITING * (work - work_s)
            self._usage = now, work, cpu
        return self._storage_is_slow

    def _helps_always(self) -> bool:
        return self._recipe.native and self._recipe.bulk

    def _look(self) -> None:
        self._heed()
        self._looked_at = time.monotonic()
        for death in self.pool.poll():
            self._replace(death)

    def _replace(self, death: Death) -> None:
        assert isinstance(self.pool, ProcessPool)
        freed = self.station.recover(death.worker)
        self._watch.retire(death.worker)
        crash = self.pool.crash_of(death.worker) if death.status == EXIT_CRASH else None
        if crash is not None:
            raise WorkerError(
                f"worker {death.worker} (pid {death.pid}) could not work: "
                f"{crash.body['type']}: {crash.body['message']}",
                where=crash.body["traceback"],
            )
        self._deaths += 1
        self.pool.restarts += 1
        for cell in freed:
            self._kills[cell] = self._kills.get(cell, 0) + 1
            if self._kills[cell] >= _MAX_KILLS:
                positions, ids = self.station.samples_of(cell)
                names = ", ".join(datasets.describe(self._recipe.dataset, i) for i in ids[:8])
                raise WorkerError(
                    f"{_MAX_KILLS} workers died ({death}) while making positions "
                    f"{_ranges(positions)} (samples {ids[:16]}: {names})",
                    where=f"last one: worker {death.worker}, pid {death.pid}",
                    do="look for a crash in native code or too little memory with these samples; "
                    "num_workers=0 shows it in this process",
                    positions=positions,
                    sample_ids=ids,
                )
        if self._deaths > 3 * self._workers + 5:
            raise WorkerError(
                f"{self._deaths} workers died ({death}) without a batch being finished",
                do="num_workers=0 shows in this process what goes wrong",
            )
        self.pool.start(death.worker)

    def _raise_failed(self, one: Pass) -> None:
        for _, cell in self.station.failed():
            report = next((r for r in self._own_reports if r.body["cell"] == cell), None)
            report = report or self.pool.error_of(cell)
            positions, ids = self.station.samples_of(cell)
            if report is None:
                failure = SampleFailure(ids[0], positions[0], "work")
                text = "its worker died before it could say why"
                raise sample_error(self._recipe, failure, one, "", text)
            body = report.body
            failure = SampleFailure(body["sample_id"], body["position"], body["stage"])
            name = f"worker={report.worker} (pid {report.pid})"
            if report.worker == self._own.worker:
                name = "worker=none (made in the loader's own process, which was helping)"
            who = f"{name}\n  worker's traceback:\n{_indented(body['traceback'])}"
            raise sample_error(self._recipe, failure, one, who, body["message"], body["type"])

    def stats(self, epoch: int, offset: int) -> Stats:
        """Return what is going on. Any thread may ask."""
        workers = self._watch.workers()
        helped = self.station.line(self._own.worker).samples + self._alone_samples
        made = helped + sum(one.samples for one in workers)
        consumer = self._clock.stats(helped, helped / max(made, 1))
        buffers, free, lent = self.station.ring.occupancy
        ready = min(self.station.ready(), buffers - free - lent)
        in_flight = buffers - free - lent - ready
        ring = RingStats(buffers, free, in_flight, ready, lent, self.station.ring.copies)
        kind = "process" if isinstance(self.pool, ProcessPool) else "thread"
        bottleneck = verdict(consumer, workers)
        return Stats(kind, epoch, offset, workers, ring, consumer, self.pool.restarts, bottleneck)

    def close(self, *, hurry: bool = False) -> None:
        """Stop the workers and give the memory back; batches held by the user stay valid.

        May be interrupted anywhere, and called again to go on.
        """
        self._pass = None
        self.pool.close(HURRY_S if hurry else LEAVE_S)
        self.station.close()

    def interrupt(self, e: BaseException) -> None:
        """Let the thread that waits in `take` raise `e` instead, soon."""
        self._interrupt = e

    def forget(self) -> None:
        """In a forked child: close our copy of the descriptor; all else belongs to the parent."""
        self.station.arena.close()
        if self.station.regions is not None:
            self.station.regions.close()


def to_the_end(*steps: Callable[[], None]) -> None:
    """Run each step to its end. One that is interrupted (Ctrl-C, a handler of the user that raises) is
    run again, a few times at most; then the interruption is raised.
    """
    interruption: BaseException | None = None
    for step in steps:
        for _ in range(_TRIES):
            try:
                step()
                break
            except BaseException as e:
                interruption = interruption or e
    if interruption is not None:
        raise interruption


def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of n that is at most `most`."""
    return next(d for d in range(min(n, max(1, most)), 0, -1) if n % d == 0)


def _ranges(positions: list[int]) -> str:
    if len(positions) > 1 and positions == list(range(positions[0], positions[-1] + 1)):
        return f"{positions[0]}..{positions[-1]}"
    return str(positions[:16])


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.rstrip().splitlines())
