"""A recipe makes samples: a pure function of (sample id, position, phase), for any worker.

    dataset[sample_id] ─▶ your functions f(sample, rng) ─▶ our transforms on the image ─▶ slot
                                                          (`whole`: ─▶ collate_fn ─▶ parcel)

Where an in-memory dataset meets only our transforms, a whole chunk is made by one compiled kernel
(`bulk`). Otherwise samples are made one by one, and the last transforms write straight into the
slot; text goes beside it. Both give the same bytes. A recipe is `whole` where something needs all
samples of a batch at once (a `collate_fn`, a dataset's `__getitems__`), where no sample can be
made before the workers run, or where samples turned out to be unlike the first (`loosened`): then one
worker makes a batch, and it travels as an object.
"""

import contextlib
import copy
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from pipeline import datasets
from pipeline.collate import as_is, stack
from pipeline.datasets.common import map_of
from pipeline.errors import ConfigError, SampleError
from pipeline.keyed import Keyed
from pipeline.made import ENDED, MAX_ATTEMPTS, SKIPPED, Failure, Made
from pipeline.merge import UnlikeOthers
from pipeline.reading import EndOfData, Reader, Seed
from pipeline.reseed import COLLATE_OP, Reseeder, seeded
from pipeline.transfer.layout import Field
from pipeline.transforms import Chain, Op, Stream, op_numbers, takes_rng
from pipeline.transforms.resize import SourceError
from pipeline.tree import Structure
from rng import address, philox4x32

_UNREAD = object()
_BIG_NBYTES = 4 << 20  # measured: batches of 6 and 38 MB take 0.85 and 0.75 of the time to fill


def _seed_nothing(position: int, phase: int, op: int = 0) -> None:
    """Where no code of the user runs, or where it would disturb other threads."""


def substitute(key: int, length: int, position: int, phase: int, attempt: int) -> int:
    """Return which sample takes the place of one that cannot be made: any, the same each time.

    From 64 bits at (SAMPLER, op 1, position << 8 | attempt) by multiply-high; the bias is below
    length / 2**64.
    """
    c0, c1, c2, c3 = address.counter(
        address.SAMPLER, op=_SUBSTITUTE_OP, phase=phase, position=position << 8 | attempt
    )
    counter = np.array([c0, c1, c2, c3], np.uint32)
    words = philox4x32(counter, np.array([key & address.M32, key >> 32], np.uint32))
    return (int(words[0]) | int(words[1]) << 32) * length >> 64


_SUBSTITUTE_OP = 1  # of purpose SAMPLER; 0 draws with replacement
_IMAGE_KEYS = ("image", "img", "pixel_values", "x")


def _tell_nobody(position: int) -> None:
    """Where nobody asks which sample is being made."""


class SampleFailure(Exception):
    """One sample could not be made; the original exception is `__cause__`.

    Attributes:
        sample_id, position: which one.
        stage: "read", "transform …" or "collate".
    """

    def __init__(self, sample_id: int, position: int, stage: str) -> None:
        super().__init__(f"sample {sample_id} at position {position} failed in {stage}")
        self.sample_id = sample_id
        self.position = position
        self.stage = stage

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleFailure, (self.sample_id, self.position, self.stage)


class Recipe:
    """How to make the samples of one dataset.

    Args:
        dataset: map-style: `__len__` and `__getitem__`.
        transforms: our ops, which see the image, and functions `f(sample, rng)` or `f(sample)`,
            which see the whole sample as the dataset returned it; in any order.
        key: 64-bit key of the run.
        lanes: logical workers.
        collate_fn: makes a batch of a list of samples; with `unbatched`, of one sample.
        unbatched: batches are single samples (`batch_size=None`).
        worker_init_fn: called with the worker's number before it works.
        on_error: "raise", "skip" or "substitute".

    Raises:
        ConfigError: a transform that cannot work on these samples.
    """

    def __init__(
        self,
        dataset: Any,
        transforms: Sequence[Any],
        key: int,
        lanes: int,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        unbatched: bool = False,
        worker_init_fn: Callable[[int], Any] | None = None,
        on_error: str = "raise",
    ) -> None:
        datasets.check(dataset, by_keys=isinstance(dataset, Mapping))
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.unbatched = unbatched
        self.worker_init_fn = worker_init_fn
        self.on_error = on_error
        self.reader = Reader(dataset) if datasets.only_iterable(dataset) else None
        self._getitems = self.reader is None and datasets.reads_together(dataset)
        self._told_phase = -1  # the phase whose epoch the dataset was last told
        self.key = key
        self.lanes = lanes
        self.transforms = tuple(transforms)
        for number, t in enumerate(self.transforms):
            if not isinstance(t, Op) and not callable(t):
                raise ConfigError(
                    f"transforms[{number}] is {t!r}, neither one of ours nor callable",
                    do="use pipeline.transforms or a function f(sample, rng)",
                )
        self._arrays: tuple[np.ndarray, ...] | None = (
            _arrays_of(dataset) if datasets.stands_for(dataset, "arrays") else None
        )
        self._stages = self._split()
        # A dataset of ours may make the samples of a whole chunk itself.
        self._gathers = not self._stages and datasets.stands_for(dataset, "gather", "sources")
        # Whether no code of the user runs: then the consumer may help the workers.
        self.native = (
            all(isinstance(t, Op) for t in self.transforms)
            and type(dataset).__module__.startswith("pipeline.")
            and not isinstance(dataset, Keyed)
        )
        self.shuffled = False  # whether samples are read in no order; set by the loader
        self._names = [f"transform {_name_of(stage)}" for stage in self._stages]
        self._structure: Structure | None = None
        self._reseeder: Reseeder | None = None
        self._fields: tuple[Field, ...] | None = None
        self._tail: Chain | None = None
        last = self._stages[-1] if self._stages else None
        if isinstance(last, Chain):
            self._tail = last
        self.whole = (
            collate_fn is not None
            or unbatched
            or self._getitems
            or self.reader is not None
            or (worker_init_fn is not None and not self.native)
        )
        self.bulk = (
            not self.whole
            and self._arrays is not None
            and (
                not self._stages
                or (len(self._stages) == 1 and self._tail is not None and self._tail.bulk)
            )
        )
        self._decodes = (
            bool(self._stages)
            and isinstance(self._stages[0], Chain)
            and datasets.stands_for(dataset, "source", "decode", "label")
        )
        if self.bulk:
            self._fields = self._bulk_fields()
        elif self._gathers and not self.whole:
            self.bulk = True
            self._structure = Structure(dataset[0])
            self._fields = self._structure.fields
        elif self.whole:
            self._fields = ()

    # ------------------------------------------------------------ what comes out
    @property
    def fields(self) -> tuple[Field, ...] | None:
        """The fields of a sample; None until `probe` has seen one."""
        return self._fields

    def probe(self, sample_id: int, position: int, phase: int) -> None:
        """Make one sample to learn its fields; nothing if they are known.

        Raises:
            SampleFailure: it cannot be made.
        """
        if self._fields is None:
            self._structure = Structure(self.sample(sample_id, position, phase))
            self._fields = self._structure.fields

    @property
    def carries(self) -> bool:
        """Whether batches have more than fixed fields; known when `fields` are."""
        text = self._structure is not None and bool(self._structure.beside)
        return self.whole or text or (self.on_error != "raise" and not self.bulk)

    def begin_worker(self, worker: int, count: int) -> None:
        """Prepare a worker process for code of the user, and call its `worker_init_fn`."""
        self._worker = worker, count
        self._tell_torch()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)

    _worker: tuple[int, int] | None = None

    def _tell_torch(self) -> None:
        """Let `torch.utils.data.get_worker_info()` answer in this worker process."""
        module = sys.modules.get("torch.utils.data._utils.worker")
        if self._worker is None or module is None or module._worker_info is not None:
            return
        worker, count = (0, 1) if self.reader is not None else self._worker
        seed = (self.key + worker) & address.M64 >> 1
        module._worker_info = module.WorkerInfo(  # type: ignore[attr-defined]
            id=worker,
            num_workers=count,
            seed=seed,
            dataset=self.dataset.inner if isinstance(self.dataset, Keyed) else self.dataset,
        )

    def adopt(self, other: "Recipe") -> None:
        """Take over the fields that a copy of this recipe has learnt."""
        self._structure, self._fields = other._structure, other._fields

    def loosened(self, before: "Recipe | None" = None) -> "Recipe":
        """Return this recipe with each batch collated by itself, for samples unlike the first.

        Where all samples of a batch are like the first one ever seen, both make the same batch.

        Args:
            before: the recipe whose place it takes; this one.
        """
        known = before or self
        loose = copy.copy(self)
        loose.loose = True
        if known.loose:
            loose._first = known._first
        elif known._fields is not None:
            loose._first = known._structure, known._fields
        loose.whole, loose.bulk = True, False
        loose._structure, loose._fields = None, ()
        loose._reseeder = None
        return loose

    loose = False  # whether it is such a recipe
    _first: tuple[Structure | None, tuple[Field, ...]] | None = None  # what it knew before

    def nothing(self) -> Any:
        """Return a batch of no samples, where batches are objects."""
        if self._first is None:
            return []
        structure, fields = self._first
        arrays: list[Any] = [np.zeros((0, *one.shape), one.dtype) for one in fields]
        if structure is not None:
            return structure.build(arrays, [[] for _ in structure.beside])
        return tuple(arrays) if len(arrays) > 1 else arrays[0]

    def warm(self) -> None:
        """Compile or load the kernels of a bulk recipe, by making one sample.

        Before workers start: they then find them in the cache, instead of all compiling them.
        """
        if self.bulk and len(self.dataset):
            assert self._fields is not None
            scratch = [np.empty((1, *one.shape), one.dtype) for one in self._fields]
            self.fill(scratch, 0, np.zeros(1, np.int64), np.zeros(1, np.uint64), 0)

    def expect(self, batch_size: int) -> None:
        """Say how many samples a batch has. Before the recipe is sent to workers.

        Big batches are written past the caches: they do not stay there until they are read.
        """
        if self._tail is not None and self._fields:
            nbytes = batch_size * sum(one.nbytes for one in self._fields)
            self._tail.write_past_the_caches(nbytes >= _BIG_NBYTES)

    def advise(self) -> None:
        """Tell the system that mapped arrays are read here and there, where order is shuffled.

        Otherwise each access reads megabytes ahead, which are never used.
        """
        arrays = self.dataset.sources() if self._gathers else self._arrays or ()
        for array in arrays if self.shuffled else ():
            mapped = map_of(array)
            if mapped is not None:
                mapped.madvise(mmap.MADV_RANDOM)

    def build(
        self,
        arrays: list[Any],
        beside: list[list[Any]] | None = None,
        *,
        as_torch: bool = False,
    ) -> Any:
        """Return a batch: arrays, and text for each sample, in the containers of a sample, or those
        that torch makes of them.
        """
        if self._structure is not None:
            names = self._structure.beside
            columns = [[texts[k] for texts in beside or ()] for k in range(len(names))]
            return self._structure.build(arrays, columns, as_torch=as_torch)
        if len(arrays) == 1:
            return arrays[0]
        return list(arrays) if as_torch else tuple(arrays)

    def describe(self) -> list[Any]:
        """Return the canonical JSON-able description of the transforms, for digests."""
        return [stage.describe() for stage in self._stages]

    def explain(self, sample_id: int, position: int, phase: int) -> list[dict[str, Any]]:
        """Return every draw made for one sample, in order.

        Where code of the user runs, the first entry tells what the process-wide generators were
        seeded with.
        """
        draws: list[dict[str, Any]] = []
        with self._seeding("theirs") as seed:
            seed(position, phase)
            if not self.native and self._reseeder is not None:
                draws.append({"op": "generators", **self._reseeder.explain(position, phase)})
            sample = self._read(sample_id) if self._stages else None
            for stage in self._stages:
                if isinstance(stage, Chain):
                    image = _image_of(sample)[0]
                    # Arrays and files have a shape, Pillow's images a size.
                    shape = getattr(image, "shape", None) or (*image.size[::-1], 3)
                    draws += stage.explain(shape, position, phase, self.key, self.lanes)
                    made = stage.apply_one(image, position, phase, self.key, self.lanes, None)
                    sample = _with_image(sample, made)
                else:
                    draws.append(stage.explain(position, phase))
                    sample = stage(sample, position, phase)
        return draws

    # ------------------------------------------------------------ making
    def fill(
        self,
        buffers: Sequence[np.ndarray],
        slot: int,
        ids: np.ndarray,
        positions: np.ndarray,
        phase: int,
        generators: str = "theirs",
        begins: Callable[[int], None] = _tell_nobody,
    ) -> Made | None:
        """Make samples into slots [slot, slot + n) of a batch.

        Args:
            buffers: one array [slots, *shape] for each field.
            slot: first slot.
            ids: int64[n], sample ids.
            positions: uint64[n], places in the phase's order; they decide every draw.
            phase: uint32.
            generators: whose `random`, `numpy.random` and torch's generator are, where code of the
                user runs: "theirs": seeded for each sample, and put back; "ours": of a worker
                process, seeded; "shared": of many threads, left alone.
            begins: called with the position of each sample before it is made, where samples are made
                one by one.

        Returns:
            What they give besides fixed fields, or None.

        Raises:
            SampleFailure: a sample cannot be made; its slot and those after it are undefined.
        """
        n = len(ids)
        if self.bulk:
            self._fill_bulk(buffers, slot, slot + n, ids, positions, phase)
            return None
        if self.whole:
            with self._seeding(generators) as seed:
                return self._make_whole(ids.tolist(), positions.tolist(), phase, seed, begins)
        if self._structure is None:
            self.probe(int(ids[0]), int(positions[0]), phase)
        assert self._structure is not None
        made = Made(beside=[] if self._structure.beside else None)
        with self._seeding(generators) as seed:
            self._tell_epoch(phase)
            if self._structure.flat and not self._stages and self.on_error == "raise":
                self._fill_flat(
                    buffers, slot, ids.tolist(), positions.tolist(), phase, seed, begins
                )
                return made if self.carries else None
            for s, sample_id, position in zip(
                range(slot, slot + n), ids.tolist(), positions.tolist(), strict=True
            ):
                begins(position)

                def make(chosen: int, s: int = s, position: int = position) -> list[Any]:
                    seed(position, phase)
                    return self._fill_one(buffers, s, chosen, position, phase)

                if self.on_error == "raise":
                    text = make(sample_id)
                else:
                    text, status = self._tolerate(make, sample_id, position, phase, made)
                    if status:
                        made.status = np.zeros(n, np.uint8) if made.status is None else made.status
                        made.status[s - slot] = status
                    if status == SKIPPED:
                        for buffer in buffers[: len(self._structure.fields)]:
                            buffer[s] = np.zeros((), buffer.dtype)
                if made.beside is not None:
                    made.beside.append(text or [])
        return made if self.carries else None

    def _fill_flat(
        self,
        buffers: Sequence[np.ndarray],
        slot: int,
        ids: list[int],
        positions: list[int],
        phase: int,
        seed: Seed,
        begins: Callable[[int], None],
    ) -> None:
        """Make flat samples of a dataset that does all itself.

        One loop: after the user's code each function of ours would be cold in the processor's caches.
        """
        assert self._structure is not None
        dataset, put, process = self.dataset, self._structure.put, os.getpid()
        for s, (sample_id, position) in enumerate(zip(ids, positions, strict=True), slot):
            begins(position)
            seed(position, phase)
            try:
                sample = dataset[sample_id]
            except KeyboardInterrupt:
                raise
            except BaseException as e:  # sys.exit in a sample too
                if os.getpid() != process:
                    raise  # a process that the sample has forked ends here, as its author meant
                raise SampleFailure(sample_id, position, "read") from e
            if not put(sample, buffers, s):
                self._put_any(sample, buffers, s, sample_id, position, None)

    def _make_whole(
        self,
        ids: list[int],
        positions: list[int],
        phase: int,
        seed: Seed,
        begins: Callable[[int], None] = _tell_nobody,
    ) -> Made:
        """Make a batch as an object: all its samples, then `collate_fn`."""
        made = Made(is_whole=True)
        self._tell_torch()
        self._tell_epoch(phase)
        read = self._read_together(ids, positions, phase, seed)
        samples: list[Any] = []
        status = np.zeros(len(ids), np.uint8)
        for place, (sample_id, position) in enumerate(zip(ids, positions, strict=True)):
            begins(position)

            def make(chosen: int, place: int = place, position: int = position) -> Any:
                seed(position, phase)
                raw = read[place] if read is not None and chosen == ids[place] else _UNREAD
                return self._make(chosen, position, phase, None, raw, seed)

            try:
                if self.on_error == "raise":
                    samples.append(make(sample_id))
                    continue
                sample, code = self._tolerate(make, sample_id, position, phase, made)
            except EndOfData:
                status[place:] = ENDED
                break
            status[place] = code
            if code != SKIPPED:
                samples.append(sample)
        made.status = status if status.any() else None
        if samples:
            seed(positions[0], phase, COLLATE_OP)
            made.whole = self._collate(samples, ids, positions, status)
        return made

    def _collate(
        self, samples: list[Any], ids: list[int], positions: list[int], status: np.ndarray
    ) -> Any:
        collate = self.collate_fn
        try:
            if self.unbatched:
                return (collate or as_is)(samples[0])
            return (collate or stack)(samples)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            there = np.flatnonzero(status < SKIPPED).tolist()
            place = there[e.place] if isinstance(e, UnlikeOthers) else there[0]
            raise SampleFailure(ids[place], positions[place], "collate") from e

    def _read_together(
        self, ids: list[int], positions: list[int], phase: int, seed: Seed
    ) -> list[Any] | None:
        """Return the samples of a whole batch from a dataset that gives them at once."""
        if not self._getitems:
            return None
        seed(positions[0], phase)
        try:
            found = list(self.dataset.__getitems__(ids))
            if len(found) != len(ids):
                raise SampleError(
                    f"__getitems__ gave {len(found)} samples for {len(ids)} indices {ids[:16]}",
                    do="return one sample for each index, in the same order",
                )
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            if self.on_error != "raise" and isinstance(e, Exception):
                return None  # one by one, to find the one that fails
            raise SampleFailure(ids[0], positions[0], "read") from e
        return found

    def _tolerate(
        self, make: Callable[[int], Any], sample_id: int, position: int, phase: int, made: Made
    ) -> tuple[Any, int]:
        """Return (a sample, its status), also where it cannot be made."""
        try:
            return make(sample_id), 0
        except SampleFailure as e:
            cause = e.__cause__
            if not isinstance(cause, Exception):  # sys.exit is no broken sample
                raise
            found: tuple[Any, int] = (None, SKIPPED)
            replaced_by = None
            if self.on_error == "substitute":
                found, replaced_by = self._substitute(make, position, phase, e)
            kind = type(cause)
            message = str(cause)[:400]
            made.failures.append(
                Failure(
                    phase >> 1,
                    position,
                    sample_id,
                    e.stage,
                    f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
                    message,
                    replaced_by,
                )
            )
            return found

    def _substitute(
        self, make: Callable[[int], Any], position: int, phase: int, failure: SampleFailure
    ) -> tuple[tuple[Any, int], int]:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            other = substitute(self.key, len(self.dataset), position, phase, attempt)
            try:
                return (make(other), attempt), other
            except SampleFailure as e:
                if not isinstance(e.__cause__, Exception):
                    raise
        raise failure

    def _tell_epoch(self, phase: int) -> None:
        """Tell the dataset the epoch of what it is asked for, if it wants to know."""
        if self.native or phase == self._told_phase:
            return
        self._told_phase = phase
        tell = getattr(self.dataset, "set_epoch", None)
        if callable(tell):
            tell(phase >> 1)

    def sample(self, sample_id: int, position: int, phase: int) -> Any:
        """Return one finished sample, in the containers the dataset uses.

        Raises:
            SampleFailure: it cannot be made.
        """
        with self._seeding("theirs") as seed:
            self._tell_epoch(phase)
            if self._getitems:
                return self._make_whole([sample_id], [position], phase, seed).whole
            seed(position, phase)
            return self._make(sample_id, position, phase, None, seed=seed)

    @contextlib.contextmanager
    def _seeding(self, generators: str) -> Iterator[Seed]:
        """Give a function that seeds the process-wide generators for a sample, where needed."""
        if self.native or generators == "shared":
            yield _seed_nothing
            return
        if self._reseeder is None:
            self._reseeder = Reseeder(self.key, self.lanes)
        if generators == "ours":
            yield self._reseeder.seed
            return
        with seeded(self._reseeder) as seed:
            yield seed

    def __getstate__(self) -> dict[str, Any]:
        # The reseeder points into this process; a copy has told its dataset nothing yet.
        return {**vars(self), "_reseeder": None, "_told_phase": -1, "_worker": None}

    def _fill_bulk(
        self,
        buffers: Sequence[np.ndarray],
        lo: int,
        hi: int,
        ids: np.ndarray,
        positions: np.ndarray,
        phase: int,
    ) -> None:
        if self._gathers:
            self.dataset.gather(ids, [buffer[lo:hi] for buffer in buffers])
            return
        assert self._arrays is not None
        first = 0
        if self._tail is not None:
            self._tail.apply_bulk(
                self._arrays[0], ids, positions, phase, self.key, self.lanes, buffers[0][lo:hi]
            )
            first = 1
        for array, buffer in zip(self._arrays[first:], buffers[first:], strict=True):
            # "clip" writes without a temporary; ids come from the plan, inside the range. The method:
            # numpy's function of that name costs as much again as a small batch.
            array.take(ids, 0, buffer[lo:hi], "clip")

    def _fill_one(
        self, buffers: Sequence[np.ndarray], s: int, sample_id: int, position: int, phase: int
    ) -> list[Any]:
        assert self._structure is not None
        # The tail may write straight into the slot when the image is the first field.
        out = buffers[0][s] if self._tail is not None else None
        made = self._make(sample_id, position, phase, out)
        return self._put_any(made, buffers, s, sample_id, position, out)

    def _put_any(
        self,
        made: Any,
        buffers: Sequence[np.ndarray],
        s: int,
        sample_id: int,
        position: int,
        out: np.ndarray | None,
    ) -> list[Any]:
        """Write a sample into slot `s`, but for what is there already: `out`; return its text."""
        assert self._structure is not None
        try:
            leaves, text = self._structure.take_apart(made)
        except Exception as e:
            raise SampleFailure(sample_id, position, "collate") from e
        for buffer, leaf in zip(buffers, leaves, strict=False):  # the last may be `CARRIED`
            if not (out is not None and leaf is out):
                buffer[s] = leaf
        return text

    def _make(
        self,
        sample_id: int,
        position: int,
        phase: int,
        out: np.ndarray | None,
        raw: Any = _UNREAD,
        seed: Seed = _seed_nothing,
    ) -> Any:
        """Return a finished sample; `raw` is what the dataset gave for it, if it was read."""
        stage_name, process = "read", os.getpid()
        try:
            if self.reader is not None:
                raw = self.reader.read(position, phase, seed)
            sample = self._read(sample_id) if raw is _UNREAD else raw
            for number, stage in enumerate(self._stages):
                stage_name = self._names[number]
                if isinstance(stage, Chain):
                    image, _ = _image_of(sample)
                    target = out if stage is self._tail else None
                    if target is not None and number == len(self._stages) - 1:
                        target = self._slot_for(sample, target)
                    made = stage.apply_one(image, position, phase, self.key, self.lanes, target)
                    sample = _with_image(sample, made)
                else:
                    sample = stage(sample, position, phase)
            return sample
        except (KeyboardInterrupt, EndOfData):
            raise
        except SourceError as e:  # what is read late fails late
            raise SampleFailure(sample_id, position, "read") from e.__cause__
        except BaseException as e:  # sys.exit in a sample too
            if os.getpid() != process:
                raise  # a process that the sample has forked ends here, as its author meant
            raise SampleFailure(sample_id, position, stage_name) from e

    def _slot_for(self, sample: Any, out: np.ndarray) -> np.ndarray | None:
        """The slot of field 0, if the image is field 0 of the structure."""
        if self._structure is None:
            return None
        first = self._structure.fields[0].name
        _, where = _image_of(sample)
        return out if first in (where, "sample") else None

    def _read(self, sample_id: int) -> Any:
        dataset = self.dataset
        if self._decodes:  # what is not yet decoded or an array spares that where it is cropped
            return dataset.source(sample_id), dataset.label(sample_id)
        return dataset[sample_id]

    # ------------------------------------------------------------ stages
    def _split(self) -> "list[Any]":
        """Group consecutive ops into chains; each function is a stage of its own."""
        numbers = op_numbers(self.transforms)
        stages: list[Any] = []
        chains: list[Chain] = []
        ops: list[Op] = []
        chosen: list[int] = []

        def close() -> None:
            if ops:
                chains.append(self._chain(tuple(ops), tuple(chosen), stages, chains))
                stages.append(chains[-1])
                ops.clear()
                chosen.clear()

        for t, number in zip(self.transforms, numbers, strict=True):
            if isinstance(t, Op):
                ops.append(t)
                chosen.append(number)
                continue
            close()
            stages.append(UserStage(t, number, self.key, self.lanes))
        close()
        return stages

    def _chain(
        self, ops: Sequence[Op], numbers: Sequence[int], before: list[Any], chains: list[Chain]
    ) -> Chain:
        image: tuple[int, int, int] | None = None
        if not before and self._arrays is not None:
            shape = self._arrays[0].shape[1:]
            if self._arrays[0].dtype != np.uint8 or len(shape) not in (2, 3):
                raise ConfigError(
                    f"transforms work on images: uint8[H, W, C] or uint8[H, W]; the dataset's "
                    f"first array has samples {self._arrays[0].dtype}{list(shape)}",
                    do="give images first, or use a function f(sample, rng)",
                )
            height, width, channels = shape if len(shape) == 3 else (*shape, 1)
            image = int(height), int(width), int(channels)
        if chains:  # a float image that a function returns keeps units and layout it was given
            return Chain(ops, None, numbers, chains[-1].out_unit, chains[-1].out_layout)
        return Chain(ops, image, numbers)

    def _bulk_fields(self) -> tuple[Field, ...]:
        assert self._arrays is not None
        fields = []
        for place, array in enumerate(self._arrays):
            shape, dtype = array.shape[1:], array.dtype
            if place == 0 and self._tail is not None:
                assert self._tail.out_shape is not None
                shape, dtype = self._tail.out_shape, self._tail.out_dtype
            if dtype.hasobject:
                raise ConfigError(
                    f"array {place} of the dataset holds Python objects ({dtype})",
                    do="convert it to a numeric dtype",
                )
            native = dtype.newbyteorder("=")
            fields.append(Field(str(place), tuple(int(n) for n in shape), native))
        return tuple(fields)


class UserStage:
    """A function of the user on the whole sample, with a stream at the sample's address."""

    def __init__(self, function: Callable[..., Any], op: int, key: int, lanes: int) -> None:
        self.function = function
        self.op = op
        self.key = key
        self.lanes = lanes
        self._with_rng = takes_rng(function)

    def __call__(self, sample: Any, position: int, phase: int) -> Any:
        """Return what the function makes of a sample."""
        if self._with_rng:
            return self.function(sample, Stream(position, phase, self.key, self.lanes, self.op))
        return self.function(sample)

    def describe(self) -> str:
        """Return its qualified name."""
        f = self.function
        inner = getattr(f, "func", f)
        name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
        module = getattr(inner, "__module__", None) or type(inner).__module__
        return f"{module}.{name}"

    def explain(self, position: int, phase: int) -> dict[str, Any]:
        """Return its name and the address of its stream, which is None if it takes none."""
        n, lane = divmod(position, self.lanes)
        stream = {"purpose": address.USER, "op": self.op, "lane": lane, "n": n, "phase": phase}
        told: dict[str, Any] = {"op": self.describe(), "number": self.op}
        if not self._with_rng:
            return {**told, "stream": None}
        words = Stream(position, phase, self.key, self.lanes, self.op).words(4)
        return {**told, "stream": stream, "words": [words.tolist()]}


def _name_of(stage: Any) -> str:
    if isinstance(stage, Chain):
        return " > ".join(str(one["op"]) for one in stage.describe())
    return str(stage.describe())


def _arrays_of(dataset: Any) -> tuple[np.ndarray, ...] | None:
    """Return the arrays of an in-memory dataset, or None if they are not one entry a sample."""
    given = dataset.arrays()
    good = isinstance(given, tuple | list) and len(given) > 0
    if good and all(isinstance(a, np.ndarray) and a.shape[:1] == (len(dataset),) for a in given):
        return tuple(given)
    return None


def _image_of(sample: Any) -> tuple[Any, str]:
    """Return the image of a sample and the name of its place."""
    if isinstance(sample, tuple | list):
        if sample:
            name = sample._fields[0] if hasattr(sample, "_fields") else "0"
            return sample[0], name
    elif isinstance(sample, Mapping):
        for key in _IMAGE_KEYS:
            if key in sample:
                return sample[key], key
        raise SampleError(
            f"a sample is a dict with keys {sorted(map(str, sample))}, none of them an image",
            do=f"name the image one of {', '.join(_IMAGE_KEYS)}, or use a function f(sample, rng)",
        )
    return sample, "sample"


def _with_image(sample: Any, image: Any) -> Any:
    """Return the sample with another image."""
    if isinstance(sample, tuple):
        if hasattr(sample, "_fields"):
            return type(sample)(image, *sample[1:])
        return (image, *sample[1:])
    if isinstance(sample, list):
        return [image, *sample[1:]]
    if isinstance(sample, Mapping):
        key = _image_of(sample)[1]
        if isinstance(sample, MutableMapping):
            changed = copy.copy(sample)  # also of kinds that need more than their items
            changed[key] = image
            return changed
        kind: Any = type(sample)
        return kind({**sample, key: image})
    return image
