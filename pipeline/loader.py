"""DataLoader: PyTorch's, with batches that are a pure function of (data, configuration, seed, phase,
position).

    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2, seed=7)
    for images, labels in loader: ...          # epoch 0; the next loop is epoch 1
    state = loader.state_dict()                # small JSON; resume with load_state_dict

The position of a loader is (epoch, offset): the next sample to deliver. The end of epoch e is
(e + 1, 0). Everything else is recomputed from it.
"""

import atexit
import contextlib
import itertools
import json
import logging
import operator
import os
import platform
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numba
import numpy as np

import rng
from pipeline import audit as audits
from pipeline import datasets, outputs
from pipeline.collate import as_torchs, convert
from pipeline.config import Config, build_dataset, build_transforms
from pipeline.engine import (
    Batch,
    Engine,
    Inline,
    Pass,
    Pooled,
    empty_batch,
    fingerprint_of,
    finished,
    sample_error,
    to_the_end,
)
from pipeline.errors import ConfigError, SampleError, StateError, WorkerError
from pipeline.explain import Explanation, explained
from pipeline.keyed import Keyed, by_keys, id_of, table_of
from pipeline.made import Failure
from pipeline.plan import (
    MAX_POSITIONS,
    ORDERS,
    TAILS,
    Coverage,
    Cuts,
    Cutting,
    Listed,
    Order,
    Plan,
    Streamed,
    checked_ids,
    cut,
    make_order,
)
from pipeline.reading import EndOfData
from pipeline.recipe import Recipe, SampleFailure
from pipeline.reseed import SAMPLER_OP, Reseeder, seeded
from pipeline.state import State, short_digest
from pipeline.stats import Stats, nothing
from pipeline.tree import UnlikeFirst
from pipeline.workers import payload
from pipeline.workers.pool import ProcessPool, starting
from rng import address

_log = logging.getLogger("samebatch")
MODES = ("reproducible", "fast")
ON_ERROR = ("raise", "skip", "substitute")
OUTPUTS = ("numpy", "torch", "jax")
_MOST_BATCHES = 1 << 24
_MOST_PROBES = 1000
_METHODS = {"fork": "fork", "forkserver": "fork", "spawn": "spawn", "thread": "thread"}
_CLOSE_S = 10.0  # how long `close` waits for another thread to leave the loader
_EXIT_S = 2.0  # the same at the end of the process
_live: "weakref.WeakSet[DataLoader]" = weakref.WeakSet()


class BatchInfo(NamedTuple):
    """What the last delivered batch holds.

    Attributes:
        epoch: its epoch.
        step: its place in the epoch's pass, counted from where the pass began.
        positions: uint64[n], global places in the epoch's order.
        sample_ids: int64[n].
        real: how many samples are no padding; they come first.
        substitutes: `replaced`, or None where there is none.
    """

    epoch: int
    step: int
    positions: np.ndarray
    sample_ids: np.ndarray
    real: int
    substitutes: np.ndarray | None = None

    # Made when they are asked for: there is one of these for every batch.
    @property
    def valid(self) -> np.ndarray:
        """bool[n], False for padding (tail="pad" or "even")."""
        return np.arange(len(self.sample_ids)) < self.real

    @property
    def replaced(self) -> np.ndarray:
        """bool[n], True where another sample took the place of one that cannot be made."""
        if self.substitutes is None:
            return np.zeros(len(self.sample_ids), bool)
        return self.substitutes


class DataLoader:
    """Delivers the batches of a dataset, epoch after epoch.

    Args:
        dataset: map-style: `__len__` and `__getitem__(i)` (or `__getitems__(indices)` for whole
            batches), also a dict; or iterable: `__iter__`, read by one worker, in its own order.
        batch_size: samples of one rank's batch. None gives single samples, not batched.
        shuffle: a new order each epoch; else (the default) the dataset's.
        sampler: gives the order instead: an iterable of indices, read again each epoch, with the
            process-wide generators set from the epoch's address meanwhile. It may give any keys that
            the dataset takes (see `pipeline.keyed`); workers then start anew in an epoch whose keys
            are new.
        batch_sampler: gives lists of indices, one for each batch, of any sizes.
        num_workers: 0 makes batches in this process.
        collate_fn: makes a batch of a list of samples (of one sample if batch_size is None), in a
            worker. By default arrays and numbers are stacked in the dataset's containers, and text
            becomes lists.
        pin_memory: put tensors into page-locked memory, where there is an accelerator.
        drop_last: leave out the samples that fill no whole batch (of all ranks).
        timeout: seconds to wait for a batch before an error; 0 is for ever. The first sample is made
            in this process, to learn its fields, and is not covered. Without workers a pass that has
            a timeout raises.
        worker_init_fn: called with the worker's number in each worker process before it works;
            `torch.utils.data.get_worker_info()` answers there.
        multiprocessing_context: "forkserver" (default), "spawn", or "fork", which is the same as
            "forkserver" here: workers are forked from a clean process of ours, never from yours.
            "thread" is worker_method="thread".
        generator: another way to give a seed: an int, or an object with `initial_seed()` or `seed`;
            not beside `seed`.
        prefetch_factor: batches that are made ahead, for each worker.
        persistent_workers: keep workers between epochs; no effect on any byte.
        in_order: False is mode="fast".
        worker_method: "process" or "thread".
        seed: in [0, 2**64). None takes `rng.manual_seed`'s, or draws one, logs it and keeps it.
        mode: "reproducible": batches in order, each sample in its place. "fast": batches as they
            fill, samples in the order in which they were finished; each has the same bytes.
        transforms: ops of `pipeline.transforms`, and functions `f(sample, rng)` or `f(sample)`.
        split: "train", "val" or another name; each has its own random numbers.
        lanes: logical workers, 1..65536. Part of the addresses, hence of the bytes.
        order: of a shuffled epoch: "fisher_yates" (exact), or "random_access" (no memory).
        streams: "sample".
        rank, world_size: which share of each global batch; default 0 of 1, else both are needed.
        tail: what to do with the last samples: "short", "even", "trim", "drop" or "pad"
            (see `pipeline.plan`).
        on_error: what to do with a sample that cannot be made: "raise"; "skip": leave it out of
            its batch; "substitute": put another one in its place, drawn at its address. What
            happened is in `failures` and in the log. Where `__getitems__` raises, its samples are
            read one by one, to find the broken one. One unlike the first is broken too.
        output: "numpy" arrays, or "torch" tensors or "jax" arrays that share their memory.
        audit: a file that gets a line of JSON with a fingerprint for each batch (docs/audit.md).
        audit_bytes: "all" of each sample; or "some" of long samples that are made in bulk, where
            looking at all costs more than making them; None is "some" there, else "all".

    Raises:
        ConfigError: a value that cannot be used (also a ValueError).

    Batches are the dataset's containers around arrays [n, …] (with output="torch", those of torch's
    `default_collate`); a batch may be kept for as long as you like and is never overwritten. Samples
    unlike each other are collated by torch's rules, see `pipeline.merge`.

    >>> import numpy as np
    >>> from pipeline import datasets
    >>> data = datasets.ArrayDataset(np.arange(10), np.arange(10) % 2)
    >>> loader = DataLoader(data, batch_size=4, shuffle=True, seed=1)
    >>> sorted(int(x) for xs, ys in loader for x in xs) == list(range(10)), len(loader)
    (True, 3)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_method: str = "process",
        seed: int | None = None,
        mode: str = "reproducible",
        transforms: Sequence[Any] | None = None,
        split: str = "train",
        lanes: int = 16,
        order: str = "fisher_yates",
        streams: str = "sample",
        rank: int | None = None,
        world_size: int | None = None,
        tail: str | None = None,
        on_error: str = "raise",
        output: str = "numpy",
        audit: str | os.PathLike[str] | None = None,
        audit_bytes: str | None = None,
    ) -> None:
        self._engine: Engine | None = None
        self._closing: Engine | None = None  # one whose `close` has not come to its end
        datasets.check(dataset, by_keys=sampler is not None or batch_sampler is not None)
        self.dataset = dataset
        self._keys: Mapping[int, Any] = {}  # of the samples, where a sampler gives no indices
        self._iterable = datasets.only_iterable(dataset)
        self.streams = _choice("streams", streams, ("sample",))
        self.collate_fn = _function("collate_fn", collate_fn)
        self.worker_init_fn = _function("worker_init_fn", worker_init_fn)
        self.pin_memory = _pinning("pin_memory", pin_memory)
        self.pin_memory_device = pin_memory_device
        self.on_error = _choice("on_error", on_error, ON_ERROR)
        self.batch_sampler = batch_sampler
        if batch_sampler is not None:
            if (batch_size, bool(shuffle), sampler, drop_last) != (1, False, None, False):
                raise ConfigError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                    "sampler, and drop_last",
                    field="batch_sampler",
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ConfigError(
                "batch_size=None option disables auto-batching and is mutually exclusive with "
                "drop_last",
                field="batch_size",
            )
        self._unbatched = batch_size is None and batch_sampler is None
        self.batch_size = (
            None if batch_size is None else _whole("batch_size", batch_size, 1, 1 << 32)
        )
        self._full = 1 if self.batch_size is None else self.batch_size  # samples of a full batch
        self.num_workers = _whole("num_workers", num_workers, 0, 4096)
        self.drop_last = _flag("drop_last", drop_last)
        self.timeout = _seconds("timeout", timeout)
        self.persistent_workers = _flag("persistent_workers", persistent_workers)
        self.prefetch_factor = prefetch_factor
        if prefetch_factor is not None:
            _whole("prefetch_factor", prefetch_factor, 1, 1 << 20)
            if self.num_workers == 0:
                raise ConfigError(
                    "prefetch_factor needs num_workers > 0", do="leave prefetch_factor at None"
                )
        self.shuffle = False if shuffle is None else _flag("shuffle", shuffle)
        self.sampler = sampler
        if sampler is not None and self.shuffle:
            raise ConfigError("sampler option is mutually exclusive with shuffle", field="sampler")
        self.mode = _choice("mode", mode, MODES)
        if not _flag("in_order", in_order):
            self.mode = "fast"
        self.in_order = self.mode == "reproducible"
        self.split = _text("split", split)
        self.lanes = _whole("lanes", lanes, 1, 1 << 16)
        self.order = _choice("order", order, ORDERS)
        self.output = _choice("output", output, OUTPUTS)
        self._to_output = outputs.converter(self.output)
        self._sample_to_output = outputs.sample_converter(self.output)
        self._loose = False  # samples are unlike the first: each batch is collated by itself
        self.world_size = _whole("world_size", 1 if world_size is None else world_size, 1, 1 << 24)
        if rank is None and self.world_size > 1:
            raise ConfigError(
                f"world_size={self.world_size} without rank: every process would be rank 0",
                do=f"give rank too, in [0, {self.world_size - 1}]",
                field="rank",
            )
        self.rank = _whole("rank", 0 if rank is None else rank, 0, self.world_size - 1)
        if (sampler is not None or batch_sampler is not None) and self.world_size > 1:
            raise ConfigError(
                "sampler cannot be combined with world_size > 1: a sampler gives one rank's indices",
                do="use shuffle=True with rank and world_size, or world_size=1 with your sampler",
            )
        if self._iterable:
            self._check_iterable()
        if self.on_error == "skip" and self.world_size > 1:
            raise ConfigError(
                "on_error='skip' would give ranks batches of different sizes",
                do="use on_error='substitute'",
                field="on_error",
            )
        self._method = _start_method(multiprocessing_context, worker_method)
        if multiprocessing_context is not None and self.num_workers == 0:
            raise ConfigError(
                f"multiprocessing_context={multiprocessing_context!r} needs num_workers > 0: without "
                "workers no process is started",
                do="leave multiprocessing_context at None, or give num_workers",
                field="multiprocessing_context",
            )
        self.multiprocessing_context = multiprocessing_context
        self.worker_method = "thread" if self._method == "thread" else "process"
        self._tail = self._chosen_tail(tail)
        self.transforms = list(transforms or [])
        self._seed, self._seed_given = _choose_seed(seed, generator)
        self.generator = generator
        if audit_bytes is not None:
            _choice("audit_bytes", audit_bytes, ("some", "all"))
        self._length = _length(dataset)
        self._key = 0
        self._recipe = self._make_recipe()
        self._local: Recipe | None = None
        self._check_length()
        self._dataset_print: str | None = None
        self._epoch = 0
        self._offset = 0
        self._fresh = True  # the next pass starts at (epoch, offset); else at the next epoch
        self._pass: Pass | None = None
        self._coverage: Coverage | None = None
        self._resumed_ahead: tuple[tuple[int, int], ...] = ()
        self._overridden: tuple[str, ...] = ()
        self._listed: str | None = None  # digest of what the sampler gave in this epoch
        self._following: int | None = None  # set_epoch during a pass: the epoch after it
        self._lock = threading.RLock()  # several threads may share an iterator
        self._serial = 0  # which iterator owns the pass
        self._continues = False  # that iterator goes on where the loader was put
        self._resumes = False  # the next pass begins where a state says
        self._orders: dict[int, Order] = {}
        self._last_stats: Stats | None = None
        self.last: BatchInfo | None = None
        self.failures: list[Failure] = []
        self._failed_before = 0  # failures before the state that was loaded
        whole = audit_bytes == "all" or (audit_bytes is None and not self._long_in_bulk())
        self._audit = audits.AuditLog(audit, whole) if audit is not None else None
        self.digest = audits.Digest(whole=whole) if audit is not None else None
        self._digest_at = (0, 0)  # the (epoch, offset) up to which `digest` tells
        self._stale = False  # an attribute was set: the workers know an older one
        self._ready = True
        _live.add(self)

    _ready = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self._ready and name in _FIXED:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized"
            )
        if self._ready and name in _CHECKS:
            value = _CHECKS[name](name, value)
            object.__setattr__(self, "_stale", True)
        object.__setattr__(self, name, value)

    def _refresh(self) -> None:
        """Let workers know attributes that were set since they started."""
        if self._stale:
            self._close_engine()
            self._recipe, self._local = self._make_recipe(), None
            self._stale = False

    def _check_iterable(self) -> None:
        for name, value in (
            ("shuffle", self.shuffle),
            ("sampler", self.sampler),
            ("batch_sampler", self.batch_sampler),
        ):
            if value is not None and value is not False:
                raise ConfigError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                    f"{name}={value!r}",
                    do="shuffle inside the dataset, or use a map-style dataset",
                    field=name,
                )
        if self.on_error != "raise":
            raise ConfigError(
                f"on_error={self.on_error!r} needs a map-style dataset: an iterator that failed is "
                "over",
                do="catch errors inside the dataset",
                field="on_error",
            )

    # ------------------------------------------------------------ construction
    def _chosen_tail(self, tail: str | None) -> str:
        if tail is None:
            return "drop" if self.drop_last else "short"
        _choice("tail", tail, TAILS)
        if self.drop_last and tail != "drop":
            raise ConfigError(f"drop_last=True contradicts tail={tail!r}", do="give one of them")
        if tail in ("pad", "even") and self.mode == "fast":
            raise ConfigError(f"tail={tail!r} needs mode='reproducible'", do="use tail='short'")
        return tail

    def _check_length(self) -> None:
        # n = 0 is an empty epoch, with or without drop_last; a batch that can never fill is not.
        n, full = self._length, self._full * self.world_size
        if self._tail == "drop" and 0 < n < full and not self._sampled:
            raise ConfigError(
                f"drop_last leaves nothing: {n} samples do not fill one batch of {full} "
                f"(batch_size {self._full} x world_size {self.world_size})",
                do="lower batch_size, or keep the last batch (drop_last=False)",
                samples=n,
                batch=full,
            )

    def _make_recipe(self) -> Recipe:
        key = address.mix64(self._seed)
        if self.split not in ("train", "val"):
            key = address.named(key, f"split/{self.split}")
        self._key = key
        recipe = Recipe(
            Keyed(self.dataset, self._keys) if self._keys else self.dataset,
            self.transforms,
            key,
            self.lanes,
            collate_fn=self.collate_fn,
            unbatched=self._unbatched,
            worker_init_fn=self.worker_init_fn if self.num_workers else None,
            on_error=self.on_error,
        )
        recipe.shuffled = self.shuffle or self._sampled
        return recipe.loosened(self._recipe) if self._loose else recipe

    def _keyed(self, keys: Sequence[Any], bounds: tuple[int, ...] | None = None) -> Listed:
        """Return the order of a sampler that gave keys instead of indices."""
        if self.on_error != "raise":
            raise ConfigError(
                f"on_error={self.on_error!r} needs samples with indices, and the sampler gave "
                f"{next(iter(keys), None)!r}",
                do="use on_error='raise', or a sampler of ints",
                field="on_error",
            )
        table = table_of(keys)
        ids = np.array([id_of(key) for key in keys], np.int64)
        order = Listed(ids) if bounds is None else Cutting(ids, bounds)
        order.keys = table
        return order

    def _knows(self, order: Order) -> bool:
        """Return whether the samples of an order can be asked for; if not, let this be so.

        The workers that run know the keys of the epochs before.
        """
        keys = order.keys if isinstance(order, Listed) else None
        if keys is None or keys.keys() <= self._keys.keys():
            return True
        self._keys = keys
        return False

    def _get_to_know(self, order: Order) -> None:
        """Let samples of an order be made in this process, while a pass may run."""
        if not self._knows(order):
            if self._pass is not None and isinstance(self._pass.order, Listed):
                self._keys = {**(self._pass.order.keys or {}), **self._keys}
            self._local, self._stale = self._make_recipe(), True

    @property
    def _sampled(self) -> bool:
        """Whether the order comes from an object of the user's."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def _in_any_order(self) -> bool:
        """Whether batches are delivered as they fill, made of samples as they are finished."""
        return self.mode == "fast" and not (
            self._recipe.whole
            or self.batch_sampler is not None
            or (self.sampler is not None and not hasattr(self.sampler, "__len__"))
        )

    def _long_in_bulk(self) -> bool:
        """Return whether looking at every byte costs much beside making it."""
        fields = self._recipe.fields if self._recipe.bulk else None
        return any(f.nbytes > audits.SHORT for f in fields or ())

    # ------------------------------------------------------------ facts
    @property
    def seed(self) -> int:
        """The seed, also when none was given."""
        return self._seed

    def field_names(self) -> tuple[str, ...]:
        """Return the names of a batch's arrays, in order; () before a sample was made."""
        if self._recipe.whole:
            return ()
        return tuple(f.name for f in self._recipe.fields or ())

    @property
    def epoch(self) -> int:
        """The epoch of the pass that runs, or that the next one will be."""
        if self._pass is not None or self._fresh:
            return self._pass.epoch if self._pass is not None else self._epoch
        return self._epoch + 1

    def __len__(self) -> int:
        """Return the batches of a whole epoch, the same for every rank.

        Raises:
            TypeError: nobody knows: an iterable dataset or a sampler without a length.
        """
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        length = self._length
        if self.sampler is not None:
            length = len(self.sampler)  # type: ignore[arg-type]
        elif self._iterable:
            length = len(self.dataset)
        return self._plan(length).steps()

    def _plan(self, length: int) -> Plan:
        return Plan(length, self._full, self.world_size, self.rank, self._tail)

    def _plan_of(self, order: Order) -> Plan:
        """Return how an epoch's order is cut; a sampler may give more or fewer than the dataset."""
        if isinstance(order, Cutting):
            sizes = np.diff(order.bounds)
            full = int(sizes.max()) if len(sizes) else 1
            return Cuts(len(order.listed), full, bounds=order.bounds)
        if isinstance(order, Streamed):
            return self._plan(MAX_POSITIONS)
        return self._plan(len(order.listed) if isinstance(order, Listed) else self._length)

    def _phase(self, epoch: int) -> int:
        epoch = _index("epoch", epoch)
        if not 0 <= epoch < 1 << 31:
            raise ConfigError(f"epoch must be in [0, 2**31), got {epoch}")
        return epoch * 2 + (self.split == "val")

    @property
    def _order_kind(self) -> str:
        return self.order if self.shuffle else "sequential"

    def _order_of(self, epoch: int) -> Order:
        if self._sampled:
            return self._ask_sampler(epoch)
        found = self._orders.get(epoch)
        if found is None:
            found = make_order(self._order_kind, self._length, self._key, self._phase(epoch))
            self._orders = {e: o for e, o in self._orders.items() if abs(e - epoch) <= 1}
            self._orders[epoch] = found
        return found

    def _ask_sampler(self, epoch: int) -> Order:
        """Return the order of the user's sampler for an epoch.

        It is asked under the process-wide generators of the epoch's own address, so that one that
        draws from them gives the same order whenever it is asked; they are put back afterwards.
        """
        sampler: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        for one in (sampler, getattr(sampler, "sampler", None)):
            tell = getattr(one, "set_epoch", None)
            if callable(tell):
                tell(epoch)
        reseeder = Reseeder(self._key, self.lanes)
        phase = self._phase(epoch)
        if hasattr(sampler, "__len__") or self.batch_sampler is not None:
            with seeded(reseeder) as seed:
                seed(0, phase, SAMPLER_OP)
                given = list(itertools.islice(sampler, _MOST_BATCHES))
            if len(given) == _MOST_BATCHES and not hasattr(sampler, "__len__"):
                raise ConfigError(
                    f"the batch_sampler gave {_MOST_BATCHES} batches and has no end in sight",
                    do="give it a __len__, or let it end its epochs",
                    field="batch_sampler",
                )
            if self.batch_sampler is None:
                if self._keys or by_keys(self.dataset, given):
                    return self._keyed(given)
                return Listed(checked_ids(given, self._length))
            flat, bounds = cut(given)
            if self._keys or by_keys(self.dataset, flat):
                return self._keyed(flat, bounds)
            return Cutting(checked_ids(flat, self._length), bounds)
        drawn = itertools.count()
        iterator: Iterator[Any] | None = None

        def read() -> Any:
            nonlocal iterator
            reseeder.seed(next(drawn), phase, SAMPLER_OP)
            if iterator is None:
                iterator = iter(sampler)
            return next(iterator)

        return Streamed(read, self._length, lambda: seeded(reseeder))

    # ------------------------------------------------------------ iterating
    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of one pass. Nothing starts before its first `next`."""
        return _Iterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next pass delivers; one that runs goes on to its end.

        Calling it with the epoch of a state just loaded keeps the state's offset.
        """
        epoch = _whole("epoch", epoch, 0, (1 << 31) - 1)
        if self._pass is not None:
            self._following = epoch
            return
        if self._fresh and epoch == self._epoch:
            return
        self._epoch, self._offset, self._fresh = epoch, 0, True
        self._resumed_ahead = ()

    def skip(self, batches: int) -> None:
        """Leave out so many batches at the beginning of the next pass; no sample is read.

        Args:
            batches: whole batches of every rank; beyond the end of the pass it is empty.

        Raises:
            StateError: the pass goes on from a fast-mode state with samples delivered ahead.
        """
        batches = _whole("batches", batches, 0, (1 << 40) - 1)
        self._settle()
        if batches and self._resumed_ahead:
            raise StateError(
                "a pass that continues a fast-mode state has no fixed batches to skip",
                where=f"epoch={self._epoch} offset={self._offset}",
                do="load the state of the batch you want, or use mode='reproducible'",
            )
        plan = self._plan_of(self._order_of(self._epoch))
        self._resumes = self._resumes and not batches
        if batches:
            last = min(batches, plan.steps(self._offset)) - 1
            self._offset = plan.offset_after(last, self._offset) if last >= 0 else self._offset
            if last + 1 < batches:
                self._offset = plan.length

    def _settle(self) -> None:
        """Give up the running pass; (epoch, offset) is then where the next one begins."""
        self._abandon()
        self._refresh()
        if not self._fresh or self._following is not None:
            following = self._epoch + 1 if self._following is None else self._following
            self._epoch, self._offset, self._resumed_ahead = following, 0, ()
        self._fresh, self._following = True, None

    def _take_over(self, other: "DataLoader") -> None:
        """Go on where another loader of the same samples is."""
        other._settle()
        self._epoch, self._offset, self._fresh = other._epoch, other._offset, True
        self._resumed_ahead, self._listed = other._resumed_ahead, other._listed
        self._overridden, self._seed_given = other._overridden, other._seed_given

    def _begin(self) -> None:
        """Start the pass that is due."""
        self._settle()
        resumes, self._resumes = self._resumes, False
        if self.timeout and self.num_workers == 0:  # here, as in torch: both can be set later
            raise ConfigError(
                f"timeout={self.timeout:g} needs num_workers > 0: what this process makes itself "
                "cannot be interrupted",
                do="leave timeout at 0, or give num_workers",
                field="timeout",
            )
        self._fresh = False
        processes = self.num_workers > 0 and self._method != "thread"
        # It imports for half a second: meanwhile samples are ordered, and their fields learnt.
        with starting(self._method) if processes else contextlib.nullcontext():
            self._begin_pass(resumes)

    def _begin_pass(self, resumes: bool) -> None:
        order = self._order_of(self._epoch)
        if not self._knows(order):
            self._close_engine()
            self._recipe, self._local = self._make_recipe(), None
        self._check_listed(order)
        plan = self._plan_of(order)
        self._pass = one = self._make_pass(self._epoch, self._offset, plan, order)
        one.resumes = resumes and self._offset > 0
        if self._in_any_order or self._resumed_ahead:
            self._cover(one)
        if one.steps == 0:
            return
        if self._recipe.fields is None and not self._learn_fields(one):
            return
        if self._audit is not None:
            self._begin_audit(self._audit, one)
        if self.pin_memory:
            outputs.check_pinning()
        if self._engine is not None and plan.batch_size > self._slots:
            self._close_engine()  # a batch_sampler gives bigger batches than in epochs before
        if self._engine is None:
            self._recipe.advise()
            self._slots = plan.batch_size
            self._engine = self._make_engine()
        self._engine.begin(one)

    _slots = 0  # samples of the largest batch the engine can hold

    def _check_listed(self, order: Order) -> None:
        """Remember what a sampler gave; in a resumed epoch it must be what it gave before."""
        if isinstance(order, Streamed):
            order.delivered(self._offset)
        elif not isinstance(order, Listed) or not self._sampled:
            return
        found = order.digest()
        wanted = self._listed if self._offset or self._resumed_ahead else None
        if wanted is not None and found != wanted:
            self._fresh = True
            raise StateError(
                f"the sampler gave another order than in the epoch that is to continue: "
                f"digest {found}, the state has {wanted}",
                where=f"epoch={self._epoch} offset={self._offset}",
                do="make the sampler depend on a seed and the epoch alone, or use shuffle=True; "
                f"set_epoch({self._epoch + 1}) goes on with the next epoch",
            )
        self._listed = found

    def _cover(self, one: Pass) -> None:
        """Keep account of single positions: some beyond the offset may be delivered already."""
        if self.world_size == 1:
            self._mine = range(one.offset, one.plan.length)  # takes no memory, however long
        else:
            self._mine = one.plan.all_positions(one.offset)
        self._coverage = done = Coverage(0, self._resumed_ahead_places())
        if done.ahead or done.prefix:
            one.left = self._left(done)

    def _left(self, done: Coverage) -> np.ndarray:
        """Return uint64[m], this rank's positions that are still to be delivered."""
        left = done.missing(len(self._mine))
        if isinstance(self._mine, range):
            left = left.astype(np.uint64) + np.uint64(self._mine.start)
        else:
            left = self._mine[left]
        if self._tail == "drop":
            left = left[: len(left) // self._full * self._full]
        return left

    def _may_loosen(self, kind: str) -> bool:
        """Return whether batches are to be collated one by one because of an error of this kind.

        Where broken samples are left out or replaced, those unlike the first are broken; and a log
        has the fields of the first.
        """
        return kind == _UNLIKE and self.on_error == "raise" and self._audit is None

    def _loosen(self, one: Pass) -> None:
        """Go on with the running pass where it is, each batch collated by itself."""
        _log.info("samples are unlike the first one: each batch is collated by itself from now on")
        self._close_engine()  # if this is interrupted, nothing has changed yet
        self._recipe, self._local = self._recipe.loosened(), None
        self._loose = True
        if self._coverage is not None:  # batches were delivered in no order
            one.leave_only(self._left(self._coverage))
        self._engine = self._make_engine()
        self._engine.begin(one, one.delivered)

    def _make_pass(self, epoch: int, offset: int, plan: Plan, order: Order) -> Pass:
        return Pass(epoch, self._phase(epoch), offset, plan, order, self.split, self._seed)

    _mine: np.ndarray | range = range(0)  # this rank's positions of the pass, in fast mode

    def _places(self, positions: Any) -> np.ndarray:
        """Return where positions stand among this rank's."""
        if isinstance(self._mine, range):
            first, end = self._mine.start, self._mine.stop
            places = np.clip(np.asarray(positions, np.uint64), first, max(first, end))
            return (places - np.uint64(first)).astype(np.int64)
        found: np.ndarray = np.searchsorted(self._mine, positions)
        return found

    def _resumed_ahead_places(self) -> list[tuple[int, int]]:
        ranges = []
        for lo, hi in self._resumed_ahead:
            a, b = self._places([lo, hi]).tolist()
            if b > a:
                ranges.append((a, b))
        return ranges

    def _learn_fields(self, one: Pass) -> bool:
        """Learn the fields of a sample; return False if the pass has none, which is then over."""
        self._probe(one)
        found = self._recipe.fields
        for field in found or ():
            outputs.check_dtype(field.dtype, self.output)
        return found is not None

    def _probe(self, one: Pass) -> None:
        """Learn the fields of a sample from one that is made here.

        Where samples that are unlike are left out or replaced, it is the dataset's first that can be
        made: what they are compared with must not depend on where a pass begins, or on the rank.
        """
        began = time.perf_counter_ns()
        fixed = ((i, i, 0) for i in range(min(self._length, _MOST_PROBES)))
        if self.on_error == "raise" or self._iterable or not self._probe_any(fixed):
            self._probe_first(one)
        self._recipe.adopt(self._here())
        self._probe_ns = time.perf_counter_ns() - began

    def _probe_first(self, one: Pass) -> None:
        ids, positions, _ = one.work(0)
        if not len(ids):  # a rank without a sample of its own still needs the fields
            positions = np.array([one.offset], np.uint64)
            ids = one.order.ids(positions)
        if not len(ids):
            return  # the sampler gives no more: this pass is over
        try:
            self._here().probe(int(ids[0]), int(positions[0]), one.phase)
        except SampleFailure as e:
            # Broken ones are dealt with later.
            if self.on_error == "raise" or not self._probe_any(_first_of(one)):
                who = "worker=none (first sample, made alone)"
                raise sample_error(self._recipe, e, one, who) from e.__cause__

    def _probe_any(self, candidates: Iterable[tuple[int, int, int]]) -> bool:
        """Learn the fields from the first (sample id, position, phase) that can be made."""
        for candidate in candidates:
            try:
                self._here().probe(*candidate)
            except SampleFailure as e:
                if not isinstance(e.__cause__, Exception):
                    raise
            else:
                return True
        return False

    _probe_ns = 0

    def _here(self) -> Recipe:
        """Return the recipe for samples that are made in this process.

        Worker processes get the data set as the user made it, not one that has opened files here:
        code of the user therefore runs on a copy.
        """
        if self._local is None:
            pool = getattr(self._engine, "pool", None)
            if self.num_workers == 0 or self._method == "thread" or self._recipe.native:
                self._local = self._recipe
            elif isinstance(pool, ProcessPool):  # the workers' memory serves this copy too
                self._local = pool.copy_of_recipe()
            else:
                with payload.pack(self._recipe) as carried:
                    self._local = payload.unpack(carried)
        return self._local

    def _make_engine(self) -> Engine:
        if self.num_workers == 0:
            return Inline(self._recipe, self._slots)
        depth = None
        if self.prefetch_factor is not None:
            depth = self.prefetch_factor * self.num_workers
        if self._method != "thread":
            self._local = None  # before the workers' memory is there: one copy less at a time
        return Pooled(
            self._recipe,
            self._slots,
            1 if self._iterable else self.num_workers,  # an iterator cannot be shared
            self._method,
            depth,
            self._in_any_order,
            self.timeout,
            self._probe_ns,
        )

    def _next(self) -> Any:
        """Return the next batch of the running pass; StopIteration at its end."""
        one = self._pass
        assert one is not None
        try:
            batch = self._engine.take() if self._engine is not None and one.steps else None
        except SampleError as e:
            if self._recipe.loose or not self._may_loosen(e.fields.get("type", "")):
                raise
            self._loosen(one)
            return self._next()
        if batch is None:
            return self._end(one)
        if batch.ended:
            one.last = batch.step + 1
            partial = self._tail == "drop" and batch.real < one.plan.batch_size
            if not len(batch.covered if batch.covered is not None else ()) or partial:
                return self._end(one)
        delivered = self._deliver(batch)
        before = self._offset, None if self._coverage is None else self._coverage.copy()
        try:
            self._advance(one, batch)
            if self._audit is not None:
                self._log_batch(self._audit, one, batch)
            info = BatchInfo(
                one.epoch, batch.step, batch.positions, batch.ids, batch.real, batch.replaced
            )
            _set(self, "last", info)
            one.delivered = batch.step + 1
            if isinstance(one.order, Streamed):
                one.order.delivered(self._offset)
            if batch.failures:
                self._note(one, batch)
        except BaseException:  # it does not reach the user: it was not delivered
            self._offset, self._coverage = before
            raise
        if not len(batch.ids) and batch.failures:
            return self._next()  # every sample of it was skipped
        return delivered

    def _end(self, one: Pass) -> Any:
        """End a pass. One that a state continues behind the last batch is over before it began: only
        now, where nobody knows the length of the data; then the next epoch is due.
        """
        self._finish(one)
        if one.resumes and not one.delivered:
            self._begin()
            return self._next()
        raise StopIteration

    def _note(self, one: Pass, batch: Batch) -> None:
        """Keep account of samples that were skipped or replaced, and tell of them."""
        for failure in batch.failures:
            what = "skipped"
            if failure.replaced_by is not None:
                what = f"replaced by sample {failure.replaced_by}"
            _log.warning(
                "sample %d (%s) failed in %s and was %s: %s: %s  [%s]",
                failure.sample_id,
                datasets.describe(self._recipe.dataset, failure.sample_id),
                failure.stage,
                what,
                failure.type,
                failure.message,
                one.locate(failure.position),
            )
        self.failures += batch.failures

    def _advance(self, one: Pass, batch: Batch) -> None:
        """Count what was delivered, not what was made."""
        if self._coverage is None and not batch.ended:
            _set(self, "_offset", one.plan.offset_after(batch.step, one.offset))
            return
        covered = batch.positions[: batch.real] if batch.covered is None else batch.covered
        if self._coverage is None:
            self._offset = int(covered[-1]) + 1
            return
        done = self._coverage
        if isinstance(self._mine, range):  # all of them lie in it
            done.add(covered.astype(np.int64) - self._mine.start)
        else:
            done.add(self._places(covered))
        if self.world_size == 1:
            self._offset = one.offset + done.prefix
        elif done.prefix == len(self._mine):
            steps = one.plan.steps(one.offset)
            self._offset = one.plan.offset_after(steps - 1, one.offset) if steps else one.offset
        else:
            self._offset = one.offset + done.prefix // self._full * one.plan.global_batch

    def _ahead(self) -> tuple[tuple[int, int], ...]:
        """Fast mode: ranges of positions delivered at or beyond the offset."""
        if self._coverage is None:
            return ()
        done = self._coverage
        if isinstance(self._mine, range):
            first = self._mine.start
            return tuple((first + lo, first + hi) for lo, hi in done.ahead)
        places = [(0, done.prefix), *done.ahead]
        ranges = []
        for lo, hi in places:
            positions = self._mine[lo:hi]
            positions = positions[positions >= np.uint64(self._offset)].astype(np.int64)
            cuts = np.flatnonzero(np.diff(positions) != 1) + 1
            ranges += [(int(r[0]), int(r[-1]) + 1) for r in np.split(positions, cuts) if len(r)]
        return tuple(ranges)

    def _deliver(self, batch: Batch) -> Any:
        if batch.is_whole:
            delivered = batch.whole
            if self.collate_fn is None:
                delivered = self._converted(delivered)
        else:
            arrays = batch.arrays
            if self.output != "numpy":
                arrays = [self._to_output(a) for a in arrays]
            delivered = self._recipe.build(arrays, batch.beside, as_torch=self.output == "torch")
        return outputs.pinned(delivered) if self.pin_memory else delivered

    def _converted(self, batch: Any) -> Any:
        """Return a batch, or a single sample, that no `collate_fn` has made, as the output wants it."""
        if self.output == "torch":
            changed = convert(
                batch,
                self._sample_to_output if self._unbatched else self._to_output,
                every=self._unbatched,
            )
            return as_torchs(changed, stacked=not self._unbatched)
        if self.output != "numpy":
            return convert(batch, self._to_output)
        if "torch" in sys.modules:
            convert(batch, lambda array: outputs.check_dtype(array.dtype, self.output))
        return batch

    def _finish(self, one: Pass) -> None:
        following = one.epoch + 1 if self._following is None else self._following
        self._epoch, self._offset, self._fresh, self._following = following, 0, True, None
        self._pass, self._coverage, self._resumed_ahead = None, None, ()
        self._close_audit()
        if not self.persistent_workers:
            self._close_engine()

    def _abandon(self) -> None:
        self._continues = False
        self._close_audit()
        if self._pass is not None:
            if self._engine is not None:
                self._engine.cancel()
            ahead = self._ahead()
            if self._pass.over(self._offset + sum(b - a for a, b in ahead)):
                self._finish(self._pass)
                return
            if (self._offset, self._resumed_ahead) == (self._pass.offset, ahead):
                self._fresh = True  # nothing was delivered: this pass is still due
            self._resumed_ahead = ahead
            self._pass, self._coverage = None, None

    def _close_audit(self) -> None:
        if self._audit is not None:
            self._audit.close()

    def _begin_audit(self, log: audits.AuditLog, one: Pass) -> None:
        """Go on with the chain where it ended, else begin one; say in the log what follows."""
        goes_on = one.offset > 0 or bool(self._resumed_ahead)
        goes_on = goes_on and self._digest_at == (one.epoch, one.offset)
        so_far = (self.digest.chain, self.digest.set) if self.digest and goes_on else ()
        self.digest = audits.Digest(*so_far, whole=log.whole)
        self._digest_at = (one.epoch, one.offset)
        facts = self._state().to_dict()
        facts |= {"epoch": one.epoch, "offset": one.offset, "tail": self._tail}
        facts |= {"rank": self.rank, "world_size": self.world_size, "batch_size": self.batch_size}
        facts["versions"] |= {"numpy": np.__version__, "python": platform.python_version()}
        for name in ("format", "ahead", "audit"):
            facts.pop(name, None)
        assert self._recipe.fields is not None
        facts["fields"] = [
            [f.name, f.dtype.str, *f.shape, audits.covered(f.nbytes, log.whole)]
            for f in (() if self._recipe.whole else self._recipe.fields)
        ]
        log.begin(facts | {"chain": self.digest.chain, "set": self.digest.set})

    def _log_batch(self, log: audits.AuditLog, one: Pass, batch: Batch) -> None:
        """Write down a batch that is about to be delivered."""
        assert self.digest is not None
        ids, positions = batch.ids, batch.positions
        before = self.digest.chain, self.digest.set
        try:
            print_ = fingerprint_of(self.digest, batch)
            step = one.offset // one.plan.global_batch + batch.step
            log.batch(step, self._offset, batch.real, ids, positions, print_, self.digest)
        except BaseException:  # it will not be delivered
            self.digest = audits.Digest(*before, whole=log.whole)
            raise
        self._digest_at = (one.epoch, self._offset)

    # ------------------------------------------------------------ random access
    def batch_at(self, epoch: int, step: int) -> Any:
        """Return one batch of any epoch, made here and now, without iterating.

        Args:
            epoch: which.
            step: the batch's place in the whole epoch.

        Raises:
            TypeError: epoch or step is no int.
            IndexError: the epoch has no such step.
            SampleError: a sample cannot be made.
        """
        epoch, step = _index("epoch", epoch), _index("step", step)
        order = self._order_of(epoch)
        self._get_to_know(order)
        plan = self._plan_of(order)
        one = self._make_pass(epoch, 0, plan, order)
        ids, positions, real = one.work(step)
        if step >= one.steps:
            raise IndexError(f"step {step} is not in [0, {one.steps})")
        return self._deliver(self._made(one, ids, positions, real, step))

    def positions_at(self, epoch: int, step: int) -> np.ndarray:
        """Return uint64[n], the positions of this rank's batch at a step of a whole epoch.

        Raises:
            IndexError: the epoch has no such step.
        """
        epoch, step = _index("epoch", epoch), _index("step", step)
        return self._plan_of(self._order_of(epoch)).positions(step)[0]

    def made_at(self, epoch: int, positions: np.ndarray) -> Batch:
        """Return the samples at any positions of an epoch, made here and now.

        Args:
            epoch: which.
            positions: uint64[n].

        Raises:
            IndexError: no such position.
            SampleError: a sample cannot be made.
        """
        order = self._order_of(epoch)
        self._get_to_know(order)
        plan = self._plan_of(order)
        if len(positions) and int(positions.max()) >= plan.length:
            raise IndexError(f"position {positions.max()} is not in [0, {plan.length})")
        one = self._make_pass(epoch, 0, plan, order)
        ids = order.ids(positions)
        if len(ids) < len(positions):
            raise IndexError(f"position {positions.max()} is beyond what the sampler gives")
        return self._made(one, ids, positions, len(ids), 0)

    def _made(
        self, one: Pass, ids: np.ndarray, positions: np.ndarray, real: int, step: int
    ) -> Batch:
        recipe = self._here()
        if recipe.fields is None:
            first = int(positions[0]) if len(positions) else 0
            self._probe(self._make_pass(one.epoch, first, one.plan, one.order))
        assert recipe.fields is not None
        if not len(ids):
            return empty_batch(recipe, step)
        arrays = [np.zeros((len(ids), *f.shape), f.dtype) for f in recipe.fields]
        try:
            made = recipe.fill(arrays, 0, ids, positions, one.phase)
        except SampleFailure as e:
            unlike = isinstance(e.__cause__, UnlikeFirst) and not recipe.loose
            if unlike and self._may_loosen(_UNLIKE):
                self._loose = self._stale = True  # from the next pass on; here and now already
                self._local = recipe.loosened()
                return self._made(one, ids, positions, real, step)
            raise sample_error(self._recipe, e, one, "") from e.__cause__
        if made is None:
            return Batch(arrays, ids, positions, real, step)
        batch = finished(recipe, arrays, ids, positions, real, one, step, made.status, made)
        if not len(batch.ids):
            raise IndexError(self._why_empty(one, ids, positions, batch.failures))
        return batch

    def _why_empty(
        self, one: Pass, ids: np.ndarray, positions: np.ndarray, failures: Sequence[Failure]
    ) -> str:
        where = f"position {positions[0]}"
        if len(positions) > 1:
            where = f"positions {positions[0]} .. {positions[-1]}"
        told = f"epoch {one.epoch} has no sample at {where}: "
        if not failures:
            return told + "the data end before it"
        first = failures[0]
        return (
            f"{told}none of the {len(ids)} could be made and on_error='skip' leaves them out; sample "
            f"{first.sample_id} ({datasets.describe(self._recipe.dataset, first.sample_id)}) failed in "
            f"{first.stage}: {first.type}: {first.message}"
        )

    def explain(
        self, epoch: int, step: int | None = None, slot: int = 0, *, position: int | None = None
    ) -> Explanation:
        """Return every draw that is made for one sample, what came of it, and the sample's digest.

        Args:
            epoch: which.
            step, slot: of the epoch's batches, and of the batch's samples; or
            position: in the epoch's order.

        Raises:
            ConfigError: neither a step nor a position, or both.
            TypeError: one of them is no int.
            IndexError: the epoch has no such sample.
            SampleError: it cannot be made.
        """
        if (step is None) == (position is None):
            raise ConfigError("explain needs either a step (and slot) or a position")
        epoch, slot = _index("epoch", epoch), _index("slot", slot)
        if step is not None:
            positions = self.positions_at(epoch, step)
            if not 0 <= slot < len(positions):
                raise IndexError(f"slot {slot} is not in [0, {len(positions)})")
            position = int(positions[slot])
        position = _index("position", position)
        if position < 0:
            raise IndexError(f"position {position} is negative")
        batch = self.made_at(epoch, np.array([position], np.uint64))
        digest = audits.Digest()
        fingerprint_of(digest, batch)
        names = audits.row_names(self.field_names(), len(digest.last))
        digests = {name: f"{int(digest.last[f, 0]):016x}" for f, name in enumerate(names)}
        return explained(
            self._here(), digests, int(batch.ids[0]), position, epoch, self._phase(epoch),
            self.split, self._seed,
        )  # fmt: skip

    def sample_at(self, epoch: int, position: int) -> Any:
        """Return one finished sample: the one at a global position of an epoch.

        Raises:
            IndexError: no such position.
            Exception: whatever the dataset or a transform raises.
        """
        epoch, position = _index("epoch", epoch), _index("position", position)
        order = self._order_of(epoch)
        length = self._plan_of(order).length
        if not 0 <= position < length:
            raise IndexError(f"position {position} is not in [0, {length})")
        self._get_to_know(order)
        ids = order.ids(np.array([position], np.uint64))
        if not len(ids):
            raise IndexError(f"position {position} is beyond what the sampler gives")
        try:
            return self._here().sample(int(ids[0]), position, self._phase(epoch))
        except EndOfData:
            raise IndexError(f"position {position} is beyond the end of the data") from None
        except SampleFailure as e:
            raise (e.__cause__ or e) from None

    # ------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, as small JSON-able facts (see `pipeline.state`)."""
        return self._state().to_dict()

    def _state(self) -> State:
        epoch, offset, ahead = self._epoch, self._offset, self._resumed_ahead
        if self._pass is not None:
            ahead = self._ahead()
        done = offset + sum(b - a for a, b in ahead)
        one = self._pass
        over = self._plan(self._length).ends_at(done) if one is None else one.over(done)
        if over and (offset or ahead) and (self._pass is not None or not self._sampled):
            epoch, offset, ahead = epoch + 1, 0, ()
        many = self.mode == "fast" and self.world_size > 1
        return State(
            stream_version=rng.STREAM_VERSION,
            seed=self._seed,
            split=self.split,
            epoch=epoch,
            offset=offset,
            mode=self.mode,
            lanes=self.lanes,
            order=self._order_name(),
            streams=self.streams,
            length=self._length,
            dataset=self._fingerprint(),
            transforms=short_digest(self._described()),
            versions={"numba": numba.__version__, **datasets.versions(self.dataset)},
            ahead=ahead,
            rank=self.rank if many else None,
            world_size=self.world_size if many else None,
            batch_size=self._full if many else None,
            audit=self._chain_at(epoch, offset, ahead),
            overridden=self._overridden,
            listed=self._listed_so_far() if self._sampled and (offset or ahead) else None,
            on_error=self.on_error if self.on_error != "raise" else None,
            # Where there are several ranks, each sees its own; states are the same on all of them.
            failures=(self._failed_before + len(self.failures) or None)
            if self.world_size == 1
            else None,
        )

    def _chain_at(self, epoch: int, offset: int, ahead: Any) -> tuple[str, ...]:
        """Return chain and set digest of what was delivered, for the state: the same on all ranks,
        so there is none where there are several.
        """
        begun = offset > 0 or bool(ahead)
        if self.digest is None or self.world_size > 1 or not begun:
            return ()
        if self._digest_at != (epoch, offset):
            return ()
        return self.digest.chain, self.digest.set

    def get_state(self) -> bytes:
        """Return `state_dict()` as JSON text in UTF-8 (Grain's name for it)."""
        return json.dumps(self.state_dict(), sort_keys=True).encode()

    def set_state(self, state: bytes | str) -> None:
        """Continue where `get_state` was called.

        Raises:
            StateError: it is damaged, or does not fit (see `load_state_dict`).
        """
        try:
            facts = json.loads(state)
        except (TypeError, ValueError) as e:
            raise StateError(
                f"this is not a state of samebatch: {e}",
                do="give set_state what get_state returned",
            ) from e
        self.load_state_dict(facts)

    def _listed_so_far(self) -> str | None:
        if self._pass is not None and isinstance(self._pass.order, Streamed):
            return self._pass.order.digest()
        return self._listed

    def _order_name(self) -> str:
        if self.batch_sampler is not None:
            return f"batch_sampler:{_name(self.batch_sampler)}"
        if self.sampler is not None:
            return f"sampler:{_name(self.sampler)}"
        return self._order_kind

    def _described(self) -> list[Any]:
        """Return what decides bytes beside the data: JSON-able, for a digest."""
        described = [self._recipe.describe(), datasets.settings(self.dataset)]
        if self.collate_fn is not None:
            described.append({"collate_fn": _name_of_function(self.collate_fn)})
        return described

    def _fingerprint(self) -> str:
        if self._dataset_print is None:
            self._dataset_print = datasets.fingerprint(self.dataset)
        return self._dataset_print

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Iterable[str] = ()) -> None:
        """Continue where a state was taken; {} does nothing.

        It may come from a loader with other workers, prefetch, start method, batch size, world
        size or mode. A running iterator continues at the new position too.

        Args:
            state: from `state_dict`.
            allow: names of fields that may differ, e.g. ["dataset"]; recorded in later states.

        Raises:
            StateError: it does not fit; names each field with both values. Nothing has changed.
        """
        if not state:
            return
        loaded = State.from_dict(state)
        if not self._seed_given:
            now = State(**{**_as_fields(self._state()), "seed": loaded.seed})
        else:
            now = self._state()
        overridden = loaded.check(now, allow)
        changed = {
            name: (old, now.versions.get(name))
            for name, old in loaded.versions.items()
            if now.versions.get(name) != old
        }
        if changed:
            text = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed.items())
            warnings.warn(
                f"the state was saved with other library versions ({text}); decoded pixels may "
                "differ",
                stacklevel=2,
            )
        running = self._pass is not None or self._continues
        self._abandon()
        if loaded.seed != self._seed:
            self._seed = loaded.seed
            self._close_engine()
            self._recipe, self._local = self._make_recipe(), None
            self._orders = {}
        self._epoch, self._offset, self._fresh = loaded.epoch, loaded.offset, True
        self._resumed_ahead, self._listed = loaded.ahead, loaded.listed
        self._failed_before, self.failures = loaded.failures or 0, []
        self._following, self._resumes = None, True
        if self.digest is not None:
            self.digest = audits.Digest(*loaded.audit)
            self._digest_at = (loaded.epoch, loaded.offset) if loaded.audit else (0, 0)
        self._overridden = tuple(dict.fromkeys((*loaded.overridden, *overridden)))
        self._continues = running

    # ------------------------------------------------------------ ending
    def close(self) -> None:
        """Stop the workers and give memory back. The loader can be iterated again afterwards.

        A thread that waits for a batch meanwhile gets a WorkerError.

        Raises:
            WorkerError: another thread makes a sample in this process and does not come back.
        """
        closed = WorkerError(
            "the loader was closed by another thread while this one waited for a batch",
            do="let the thread that iterates stop first",
        )
        if not self._hold(closed, _CLOSE_S):
            raise WorkerError(
                f"cannot close: another thread has been making a batch for {_CLOSE_S:.0f} s",
                do="let the thread that iterates stop first",
            )
        try:
            if self._engine is not None:
                self._engine.interrupt(closed)  # a signal handler of this thread may close it
            to_the_end(self._abandon, self._close_engine)
        finally:
            self._lock.release()

    def _fail(self, e: BaseException) -> None:
        """After an error: the loader stays before this batch, and the next pass begins there."""

        def end() -> None:
            if not isinstance(e, SampleError):  # Ctrl-C comes at any moment: start afresh
                self._close_engine(hurry=True)

        def stay() -> None:
            self._abandon()
            self._fresh = True

        try:
            to_the_end(end, stay)
        except BaseException:  # a second Ctrl-C, while the loader was cleaning up
            to_the_end(lambda: self._close_engine(hurry=True))
            raise

    def _hold(self, e: BaseException, patience_s: float) -> bool:
        """Take the lock; a thread that waits for a batch raises `e`. False if it does not come back."""
        if self._lock.acquire(blocking=False):
            return True
        engine = self._engine
        if engine is not None:
            engine.interrupt(e)
        return self._lock.acquire(timeout=patience_s)

    def _close_engine(self, *, hurry: bool = False) -> None:
        """Close the engine; if this is interrupted, the next call goes on, in a hurry."""
        if self._closing is not None:
            self._closing.close(hurry=True)
            self._closing = None
        if self._engine is not None:
            engine, self._closing, self._engine = self._engine, self._engine, None
            self._last_stats = engine.stats(self._epoch, self._offset)
            engine.close(hurry=hurry)
            self._closing = None

    def _leave_to_parent(self) -> None:
        """In a forked child: the workers are the parent's; ours start when they are needed."""
        self._lock = threading.RLock()  # a thread that this process does not have may hold it
        self._closing = None
        if isinstance(self._engine, Pooled):
            engine, self._engine = self._engine, None
            engine.forget()
            running = self._pass is not None
            self._abandon()
            self._fresh, self._continues = self._fresh or running, running

    def stats(self) -> Stats:
        """Return what each worker does, how full the ring is, and who waits for whom.

        Works at any moment, also from another thread. Counters begin with the workers; after
        `close` they are those of the workers that were. See `pipeline.stats`.
        """
        engine = self._engine
        if engine is None:
            return self._last_stats or nothing(self.epoch, self._offset)
        return engine.stats(self.epoch, self._offset)

    def worker_pids(self) -> list[int]:
        """Return the process ids of the worker processes that run now."""
        if not self._lock.acquire(blocking=False):  # another thread iterates: only look
            return [one.pid for one in self.stats().workers if one.pid]
        try:
            return self._engine.pids() if self._engine is not None else []
        finally:
            self._lock.release()

    @property
    def buffers(self) -> np.ndarray | None:
        """uint8[n]: the memory of all batch buffers, to be pinned; None before the first batch."""
        return self._engine.buffers if self._engine is not None else None

    @property
    def restarts(self) -> int:
        """How many dead workers were replaced since the pool started."""
        return self._engine.restarts if self._engine is not None else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the constructor raised early
            self._close_engine()

    def __getstate__(self) -> Any:
        raise TypeError("a DataLoader cannot be pickled: send its state_dict() instead")


class _Iterator:
    """One pass. Several may exist; the one that was started last owns the loader's pass."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._serial = 0
        self._over = False

    def __iter__(self) -> "_Iterator":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        with self._loader._lock:
            return self._advance(self._loader)

    def get_state(self) -> bytes:
        """Return the loader's position as JSON text (Grain's name for it)."""
        return self._loader.get_state()

    def set_state(self, state: bytes | str) -> None:
        """Go on where `get_state` was called; see `DataLoader.set_state`."""
        self._loader.set_state(state)

    def _advance(self, loader: DataLoader) -> Any:
        if self._over:
            raise StopIteration
        begins = self._serial == 0
        if begins:
            loader._serial += 1
            self._serial = loader._serial
        elif self._serial != loader._serial:
            raise StateError(
                "this iterator was superseded: a later one was started on the same loader",
                do="use one iterator at a time, or one loader for each",
            )
        try:
            if begins or loader._continues:
                loader._begin()
            if loader._pass is None:
                raise StopIteration
            return loader._next()
        except StopIteration:
            self._over = True
            raise
        except BaseException as e:
            self._over = True
            loader._fail(e)
            raise


def from_config(config: Config, dataset: Any = None) -> DataLoader:
    """Return the loader that a configuration describes.

    Args:
        config: from `load_config`.
        dataset: used instead of the configuration's [dataset].

    Raises:
        ConfigError, DatasetError: as `DataLoader` and the dataset's constructor.
    """
    chosen = build_dataset(config) if dataset is None else dataset
    return DataLoader(chosen, transforms=build_transforms(config), **config.loader_kwargs())


def _first_of(one: Pass) -> Iterator[tuple[int, int, int]]:
    """Give (sample id, position, phase) of the first samples of a pass."""
    for position in range(one.offset, min(one.plan.length, one.offset + _MOST_PROBES)):
        places = np.array([position], np.uint64)
        yield int(one.order.ids(places)[0]), position, one.phase


def _as_fields(state: State) -> dict[str, Any]:
    return {name: getattr(state, name) for name in State.__dataclass_fields__}


_UNLIKE = f"{UnlikeFirst.__module__}.{UnlikeFirst.__qualname__}"
_set = object.__setattr__  # for what changes with every batch: DataLoader's own looks at names


# ---------------------------------------------------------------- arguments
def _choose_seed(seed: int | None, generator: Any) -> tuple[int, bool]:
    """Return (seed, whether the user fixed it)."""
    if seed is not None and generator is not None:
        raise ConfigError(
            f"seed={seed!r} and generator={generator!r} both give a seed",
            do="give one of them",
            field="generator",
        )
    if seed is not None:
        return _checked_seed("seed", seed), True
    if generator is not None:
        value = generator
        if callable(getattr(generator, "initial_seed", None)):
            value = generator.initial_seed() & address.M64
        elif hasattr(generator, "seed") and not callable(generator.seed):
            value = generator.seed
        return _checked_seed("generator", value), True
    given = rng.default_seed()
    if given is not None:
        return given, True
    drawn = int.from_bytes(os.urandom(8), "little")
    _log.info("seed %d (0x%016x), drawn from the operating system", drawn, drawn)
    return drawn, False


def _checked_seed(name: str, value: Any) -> int:
    try:
        return address.check_seed(value)
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"{name} must be an int in [0, 2**64), got {value!r} ({type(value).__name__})",
            field=name,
        ) from e


def _whole(name: str, value: Any, low: int, high: int) -> int:
    good = not isinstance(value, bool | np.bool_) and hasattr(value, "__index__")
    if good and low <= operator.index(value) <= high:
        return operator.index(value)
    raise ConfigError(
        f"{name} must be an int in [{low}, {high}], got {value!r} ({type(value).__name__})",
        field=name,
    )


def _index(name: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    return operator.index(value)


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ConfigError(f"{name} must be True or False, got {value!r}", field=name)


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    raise ConfigError(
        f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}", field=name
    )


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise ConfigError(f"{name} must be a name, got {value!r}", field=name)


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    raise ConfigError(f"{name} must be a number of seconds >= 0, got {value!r}", field=name)


def _start_method(context: Any, worker_method: str) -> str:
    _choice("worker_method", worker_method, ("process", "thread"))
    if worker_method == "thread":
        return "thread"
    if context is None:
        return "fork"
    name = context if isinstance(context, str) else None
    if name is None and callable(getattr(context, "get_start_method", None)):
        name = context.get_start_method()
    if name not in _METHODS:
        raise ConfigError(
            f"multiprocessing_context must be one of {', '.join(map(repr, _METHODS))} or a "
            f"multiprocessing context, got {context!r}",
            field="multiprocessing_context",
        )
    return _METHODS[name]


def _name_of_function(function: Any) -> str:
    inner = getattr(function, "func", function)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return f"{getattr(inner, '__module__', None) or type(inner).__module__}.{name}"


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _pinning(name: str, value: Any) -> bool:
    if _flag(name, value):
        outputs.torch_for_pinning()
    return bool(value)


def _length(dataset: Any) -> int:
    """Return a dataset's length; that of one that can only be iterated is never known for sure."""
    return MAX_POSITIONS if datasets.only_iterable(dataset) else len(dataset)


def _function(name: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise ConfigError(f"{name} must be a function or None, got {value!r}", field=name)


# As in torch the first six cannot be set once a loader is made, and no more can ours …
_FIXED = frozenset((
    "batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers",
    "shuffle", "rank", "world_size", "mode", "split", "lanes", "order", "streams", "on_error",
    "output", "transforms", "worker_method",
))  # fmt: skip
# … and these can; a pass that begins later uses them.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "num_workers": lambda name, value: _whole(name, value, 0, 4096),
    "prefetch_factor": lambda name, v: None if v is None else _whole(name, v, 1, 1 << 20),
    "timeout": lambda name, value: _seconds(name, value),
    "pin_memory": lambda name, value: _pinning(name, value),
    "collate_fn": _function,
    "worker_init_fn": _function,
}


def _after_fork() -> None:
    for loader in list(_live):
        loader._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    for loader in list(_live):
        # SystemExit ends a thread without a word. One that does not come back ends with the process,
        # and so do the workers.
        if loader._hold(SystemExit(), _EXIT_S):
            try:
                loader._close_engine(hurry=True)
            finally:
                loader._lock.release()
