"""torch's DataLoader, made of ours: passes `isinstance`, has torch's attributes and their meaning.

    from pipeline.torch import DataLoader        # instead of torch.utils.data
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4, seed=7)

It holds a `pipeline.DataLoader` (its engine) with output="torch" and overrides only what decides who
makes the batches; what torch's class checks and keeps is left to torch's class. Everything else of
`pipeline.DataLoader` (`batch_at`, `last`, `seed`, ...) is found on it too.

Rank and world size, the first that says so:
    1. `rank=` and `world_size=`;
    2. a `DistributedSampler` given as `sampler=`; its shuffle, seed and drop_last count as well;
    3. torch.distributed, if it is initialised when the loader is made or its first pass begins, and
       no other sampler, batch sampler or iterable data set decides what a rank gets (torch's
       meaning). This is where we differ from torch, whose loader would give everything to every
       rank: a warning says so, and naming rank and world size silences it;
    4. else this is the only rank. The variables RANK and WORLD_SIZE are not enough; if they are set,
       a warning says that they are not used.
`tail=None` is as in `pipeline.DataLoader` in case 1, and gives all ranks equal batches ("even", or
"trim" with the sampler's drop_last) in cases 2 and 3 and after `Accelerator.prepare`.

The seed, the first there is: `seed=`, `generator=`, `rng.manual_seed`, the sampler's,
`torch.manual_seed`, one drawn from the operating system. All ranks of a process group agree on it.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

import torch
from torch import distributed
from torch.utils.data import BatchSampler, IterableDataset, default_collate, default_convert
from torch.utils.data._utils import pin_memory as pinning

import rng
from pipeline import loader as loaders
from pipeline.errors import ConfigError
from pipeline.state import State
from pipeline.torch_samplers import InOrder, Link, Ours, Shared, Shuffled, Source, understand
from rng import address

_log = logging.getLogger("samebatch")
_UNSEEDED = 67280421310721  # torch's generator has this seed until somebody gives it one
_OURS = (
    "worker_method", "seed", "mode", "transforms", "split", "lanes", "order", "streams", "rank",
    "world_size", "tail", "on_error", "audit", "audit_bytes",
)  # fmt: skip
# torch lets these be set at any time; the next pass has them.
_SETTABLE = (
    "num_workers", "collate_fn", "timeout", "worker_init_fn", "prefetch_factor", "in_order",
    "multiprocessing_context",
)  # fmt: skip
# Of accelerate.data_loader: they make a plain torch loader out of the attributes of ours.
_REBUILDERS = ("skip_first_batches", "prepare_data_loader")
_STATE_FIELDS = ("format", *(one.name for one in fields(State)))


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Delivers the batches of a dataset as tensors, epoch after epoch.

    Args:
        dataset … in_order: torch's, with torch's meaning, defaults and errors; `persistent_workers`
            None (the default) keeps the workers where there are any. It decides no byte.
        worker_method … audit_bytes: see `pipeline.DataLoader`.

    Raises:
        ValueError, TypeError: what torch's class refuses.
        ConfigError: a value that cannot be used (also a ValueError).

    Tensors share the memory of the batch; one that you keep is never overwritten.

    >>> import numpy as np
    >>> from pipeline import datasets
    >>> data = datasets.ArrayDataset(np.arange(10), np.arange(10) % 2)
    >>> loader = DataLoader(data, batch_size=4, shuffle=True, seed=1)
    >>> isinstance(loader, torch.utils.data.DataLoader), len(loader)
    (True, 3)
    >>> [x.tolist() for x, y in loader] == [loader.batch_at(0, i)[0].tolist() for i in range(3)]
    True
    """

    # What Accelerate's save_state and load_state look for: it then keeps `state_dict()`.
    use_stateful_dataloader = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
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
        persistent_workers: bool | None = None,
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
        audit: str | os.PathLike[str] | None = None,
        audit_bytes: str | None = None,
    ) -> None:
        kept = num_workers > 0 if persistent_workers is None else persistent_workers
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn,
            pin_memory, drop_last, timeout, worker_init_fn, multiprocessing_context, generator,
            prefetch_factor=prefetch_factor, persistent_workers=kept,
            pin_memory_device=pin_memory_device, in_order=in_order,
        )  # fmt: skip
        # Lightning makes a loader again from those of the instance's variables that have the name
        # of an argument, so each argument is kept there as it was given: a rank that was only found
        # out must not contradict the sampler it then passes. Properties show what came of them.
        self.__dict__.update(
            worker_method=worker_method, seed=seed, mode=mode, transforms=transforms, split=split,
            lanes=lanes, order=order, streams=streams, rank=rank, world_size=world_size, tail=tail,
            on_error=on_error, audit=audit, audit_bytes=audit_bytes,
        )  # fmt: skip
        self._persistent = persistent_workers
        self._prefetch = prefetch_factor
        self._source = Source(
            batch_size, drop_last, bool(shuffle), sampler, batch_sampler
        )  # as given
        self._prepared = False  # by Accelerate
        self._stale = False
        self._drawn_alone: int | None = None  # a seed that no other rank has been asked about
        self.end_of_dataloader, self.remainder = False, -1
        self._install()

    # ------------------------------------------------------------ making the engine
    def _install(self) -> None:
        """Make the engine for the attributes and ranks as they are now, at the old one's place."""
        dataset = self.__dict__["dataset"]
        old = self.__dict__.get("_link")
        iterable = isinstance(dataset, IterableDataset)
        source = self._source if iterable else understand(self._source, dataset)
        self._distributed = source.distributed
        rank, world, self._ranks_from = self._choose_ranks(source, iterable)
        seed, fixed = (old.core.seed, True) if old else self._choose_seed(source, world)
        if old and world > 1 and seed is not None and seed == self._drawn_alone:
            seed = _agree(seed)  # made before there was a process group: each rank has its own
        core = loaders.DataLoader(
            dataset,
            batch_size=source.batch_size,
            shuffle=source.shuffle,
            drop_last=source.drop_last,
            num_workers=self.num_workers,
            timeout=self.timeout,
            multiprocessing_context=self.multiprocessing_context if self.num_workers else None,
            generator=self.generator if seed is None else None,
            prefetch_factor=self._prefetch if self.num_workers else None,
            persistent_workers=True if self._persistent is None else self._persistent,
            in_order=self.in_order,
            rank=rank,
            world_size=world,
            seed=seed,
            tail=self._choose_tail(source, world),
            output="torch",
            **self._passed_on(source),
        )
        if old:
            core._take_over(old.core)
            old.core.close()
            old.core = core
        else:
            if not fixed:
                core._seed_given = False  # a state may bring its own
            self._link = Link(core)
        self.__dict__["in_order"] = core.in_order
        self.__dict__["_stale"] = False
        if self._source.sampler is None and self._source.batch_sampler is None and not iterable:
            self._show_order(dataset, core)

    def _passed_on(self, source: Source) -> dict[str, Any]:
        """Return the engine's arguments that need no decision."""
        found = {
            name: self.__dict__[name]
            for name in _OURS
            if name not in ("seed", "rank", "world_size", "tail")
        }
        given = self._source
        batched = given.batch_size is not None or given.batch_sampler is not None
        plain = default_collate if batched else default_convert
        if self.collate_fn is not plain:
            found["collate_fn"] = self.collate_fn
        optional = {
            "sampler": source.sampler,
            "batch_sampler": source.batch_sampler,
            "worker_init_fn": self.worker_init_fn,
        }
        return found | {name: value for name, value in optional.items() if value is not None}

    def _show_order(self, dataset: Any, core: loaders.DataLoader) -> None:
        """Put samplers that show our order where torch's class has put its own."""
        sampler: Any
        if core.world_size > 1:
            sampler = Shared(self._link, dataset)
        elif core.shuffle:
            sampler = Shuffled(self._link, dataset, self.generator)
        else:
            sampler = InOrder(self._link, dataset)
        self.__dict__["sampler"] = sampler
        if self.batch_size is not None:
            # Of torch's very own class: Lightning replaces the sampler of no other.
            batches = BatchSampler(sampler, self.batch_size, self.drop_last)
            self.__dict__["batch_sampler"] = batches

    def _choose_ranks(self, source: Source, iterable: bool) -> tuple[int, int, str]:
        """Return (rank, world size, who said so)."""
        rank, world = self.__dict__["rank"], self.__dict__["world_size"]
        sampler = source.distributed
        if rank is not None or world is not None:
            if sampler is not None and (rank, world) != (sampler.rank, sampler.num_replicas):
                raise ConfigError(
                    f"rank={rank} and world_size={world} contradict the sampler, which is rank "
                    f"{sampler.rank} of {sampler.num_replicas}",
                    do="give one of them",
                )
            if rank is None and world != 1:
                raise ConfigError(
                    f"world_size={world} without rank: every process would be rank 0",
                    do=f"give rank too, in [0, {world - 1}]"
                    if isinstance(world, int)
                    else "give rank too",
                    field="rank",
                )
            return rank or 0, 1 if world is None else world, "arguments"
        if sampler is not None:
            return sampler.rank, sampler.num_replicas, "sampler"
        if source.sampler is None and source.batch_sampler is None and not iterable:
            rank, world = _group()
            if world > 1:
                warnings.warn(
                    f"this loader delivers the share of rank {rank} of {world}, taken from "
                    "torch.distributed; pass rank= and world_size= to say so yourself (rank=0, "
                    "world_size=1 delivers everything on every rank)",
                    stacklevel=_users_level(),
                )
                return rank, world, "group"
        return 0, 1, ""

    def _choose_seed(self, source: Source, world: int) -> tuple[int | None, bool]:
        """Return (seed or None for the engine to choose, whether a state must have the same)."""
        seed = self.__dict__["seed"]
        if seed is not None or self.generator is not None or rng.default_seed() is not None:
            return seed, True
        if source.seed is not None:
            return source.seed & address.M64, False
        mine = torch.initial_seed() & address.M64
        if mine == _UNSEEDED:
            mine = int.from_bytes(os.urandom(8), "little")
        if world > 1:
            mine = _agree(mine)
        else:
            self._drawn_alone = mine
        _log.info("seed %d (0x%016x), torch's or drawn from the operating system", mine, mine)
        return mine, False

    def _choose_tail(self, source: Source, world: int) -> str | None:
        tail: str | None = self.__dict__["tail"]
        if tail is not None or source.drop_last or world == 1:
            return tail
        if source.distributed is not None and source.distributed.drop_last:
            return "trim"
        fast = self.__dict__["mode"] == "fast" or not self.in_order
        if fast or (self._ranks_from == "arguments" and not self._prepared):
            return None
        return "even"

    def _sync(self, *, begins: bool = False) -> None:
        """Make the engine again if an attribute was set, or the ranks became known, since."""
        if self._link.core._pass is not None and not begins:
            return
        if not self._stale and self._ranks_from == "" and _group()[1] > 1:
            source = self._source
            self._stale = (
                (source.sampler, source.batch_sampler) == (None, None)
                and not isinstance(self.__dict__["dataset"], IterableDataset)
            )  # fmt: skip
        if self._stale:
            self._install()

    # ------------------------------------------------------------ attributes
    @property
    def dataset(self) -> Any:
        """The data set.

        Raises:
            ConfigError: Accelerate asks, in order to make a plain torch loader from it.
        """
        caller = sys._getframe(1)
        if (
            caller.f_globals.get("__name__") == "accelerate.data_loader"
            and caller.f_code.co_name in _REBUILDERS
        ):
            raise ConfigError(
                f"accelerate.data_loader.{caller.f_code.co_name} would put a plain torch DataLoader "
                "in the place of this one: without its transforms, its seeds and its state",
                do="resume with loader.load_state_dict(state) (Accelerator.load_state does it), or "
                "with pipeline.torch.skip_first_batches(loader, n), and prepare it with "
                "Accelerator.prepare; in transformers use pipeline.integrations."
                "StatefulTrainerCallback",
            )
        return self.__dict__["dataset"]

    @dataset.setter
    def dataset(self, value: Any) -> None:
        self.__dict__["dataset"] = value

    # These four are data descriptors, so they go before what __init__ keeps under the same names.
    seed = property(lambda self: self._link.core.seed, doc="The seed, also when none was given.")
    mode = property(lambda self: self._link.core.mode, doc='"reproducible" or "fast".')
    rank = property(lambda self: self._link.core.rank, doc="This rank.")
    world_size = property(lambda self: self._link.core.world_size, doc="All ranks.")

    def __setattr__(self, attr: str, val: Any) -> None:
        made = "_link" in self.__dict__
        if made and attr in _OURS:
            raise ValueError(
                f"{attr} attribute should not be set after {type(self).__name__} is initialized"
            )
        super().__setattr__(attr, val)
        if made and attr in _SETTABLE:
            if attr == "prefetch_factor":
                self._prefetch = val
            if attr == "in_order":
                self.__dict__["mode"] = "reproducible" if val else "fast"
            self._stale = True

    def __getattr__(self, name: str) -> Any:
        link = self.__dict__.get("_link")
        if link is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(link.core, name)

    # ------------------------------------------------------------ iterating
    def __iter__(self) -> "_Iterator":  # type: ignore[override, unused-ignore]
        """Return an iterator of one pass. Nothing starts before its first `next`."""
        return self._get_iterator()

    def _get_iterator(self) -> "_Iterator":  # type: ignore[override, unused-ignore]
        return _Iterator(self)

    def __len__(self) -> int:
        """Return the batches of a whole epoch, the same for every rank."""
        self._sync()
        return len(self._link.core)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next pass delivers; the sampler is told too."""
        sampler = self.sampler if self._source.batch_sampler is None else self.batch_sampler
        if not isinstance(sampler, Ours) and callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)
        self._link.core.set_epoch(epoch)

    def skip(self, batches: int) -> None:
        """Leave out so many batches at the beginning of the next pass; no sample is read."""
        self._sync()
        self._link.core.skip(batches)

    def _open(self) -> Iterator[Any]:
        """Return the engine's iterator of the pass that is due."""
        self._sync(begins=True)
        core = self._link.core
        core._settle()
        if self._distributed is not None:
            core.set_epoch(self._distributed.epoch)
        self._warn(core)
        self.end_of_dataloader, self.remainder = False, -1
        if self._gradient_state() is not None:
            if core._tail not in ("drop", "trim"):
                self.remainder = len(self.__dict__["dataset"]) % self.total_batch_size
            self._gradient_state()._add_dataloader(self)
        return iter(core)

    def _keep_in_step(self) -> None:
        """Let the user's DistributedSampler name the epoch that is due next.

        Any `sampler.set_epoch` of his is then seen by its value when the next pass begins, and one
        who forgets it gets new epochs all the same.
        """
        core = self._link.core
        if self._distributed is not None:
            here = core._fresh and not core._continues
            self._distributed.epoch = core._epoch if here else core._epoch + 1

    def _warn(self, core: loaders.DataLoader) -> None:
        if self.pin_memory and self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the "
                f"device, ignore pin_memory_device='{self.pin_memory_device}'.",
                stacklevel=_users_level(),
            )
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device "
                "pinned memory won't be used.",
                stacklevel=_users_level(),
            )
        told = os.environ.get("WORLD_SIZE", "1")
        alone = self._ranks_from == "" and "RANK" in os.environ and _group() == (0, 1)
        if alone and told.isdecimal() and int(told) > 1 and core.sampler is None:
            warnings.warn(
                f"WORLD_SIZE={told} is set, but torch.distributed is not initialised: this loader "
                "delivers everything on every rank; initialise first, or pass rank= and "
                "world_size=",
                stacklevel=_users_level(),
            )

    def _hand_over(self, batch: Any) -> Any:
        core = self._link.core
        if core._pass is not None and core.last is not None:
            self.end_of_dataloader = core.last.step + 1 >= core._pass.steps
        if self.pin_memory and torch.accelerator.is_available():
            batch = pinning.pin_memory(batch)
        if self._gradient_state() is not None:
            from accelerate.state import PartialState
            from accelerate.utils import send_to_device

            device = PartialState().device
            if device.type != "cpu":
                batch = send_to_device(batch, device, non_blocking=self.pin_memory)
        return batch

    def _over(self) -> None:
        state = self._gradient_state()
        if state is not None:
            state._remove_dataloader(self)

    # ------------------------------------------------------------ Accelerate
    @property
    def _is_accelerate_prepared(self) -> bool:
        """True: `Accelerator.prepare`, which alone asks, then leaves this loader as it is.

        So this is also the moment at which the loader begins to do what Accelerate's own do:
        move batches to the device, and tell the gradient state where an epoch ends.
        """
        if not self._prepared:
            self._prepared = True
            self._stale = self.world_size > 1
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """`Accelerator.prepare` marks what it returns; of ours it has asked before that."""

    def _gradient_state(self) -> Any:
        if not self._prepared or "accelerate" not in sys.modules:
            return None
        from accelerate.state import GradientState

        return GradientState()

    @property
    def total_batch_size(self) -> int:
        """Samples of one step of all ranks."""
        core = self._link.core
        return (core.batch_size or 1) * core.world_size

    @property
    def total_dataset_length(self) -> int:
        """Samples of the data set."""
        return len(self.__dict__["dataset"])

    # ------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, as small JSON-able facts, the same on every rank.

        What is not set is None instead of missing: torch.distributed.checkpoint loads only names
        that the loader's own state has.
        """
        self._sync()
        facts = self._link.core.state_dict()
        return {name: facts.get(name) for name in _STATE_FIELDS}

    def load_state_dict(self, state_dict: Mapping[str, Any], *, allow: Iterable[str] = ()) -> None:
        """Continue where a state was taken; {} does nothing. See `pipeline.DataLoader`."""
        self._sync()
        self._link.core.load_state_dict(state_dict, allow=allow)
        if state_dict:
            self._keep_in_step()

    def set_state(self, state: bytes | str) -> None:
        """Continue where `get_state` was called; see `pipeline.DataLoader.set_state`."""
        self._sync()
        self._link.core.set_state(state)
        self._keep_in_step()

    def close(self) -> None:
        """Stop the workers and give memory back. The loader can be iterated again afterwards."""
        self._over()
        self._link.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: arguments and position, no workers."""
        facts = dict(self.__dict__)
        core = facts.pop("_link").core
        for name in ("sampler", "batch_sampler"):
            if self._source.sampler is None and self._source.batch_sampler is None:
                facts.pop(name)
        facts["_resume"] = core._seed, core._seed_given, core.state_dict()
        return facts

    def __setstate__(self, facts: dict[str, Any]) -> None:
        facts = dict(facts)
        seed, given, state = facts.pop("_resume")
        chosen = facts["seed"]
        self.__dict__.update(facts | {"seed": seed})
        if "sampler" not in facts:
            self.__dict__.update(sampler=None, batch_sampler=None)
        self._install()
        self.__dict__["seed"] = chosen
        self._link.core._seed_given = given
        self._link.core.load_state_dict(state)


class _Iterator:
    """One pass; see `pipeline.loader`."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._inner: Iterator[Any] | None = None
        self._name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        with torch.autograd.profiler.record_function(self._name):
            try:
                if self._inner is None:
                    self._inner = self._loader._open()
                    batch = next(self._inner)
                    self._loader._keep_in_step()
                else:
                    batch = next(self._inner)
                return self._loader._hand_over(batch)
            except StopIteration:
                self._loader._over()
                raise
            except BaseException:
                self._loader._over()
                self._loader._keep_in_step()
                raise

    def get_state(self) -> bytes:
        """Return the loader's position as JSON text (Grain's name for it)."""
        state: bytes = self._loader.get_state()
        return state

    def set_state(self, state: bytes | str) -> None:
        """Go on where `get_state` was called; see `pipeline.DataLoader.set_state`."""
        self._loader.set_state(state)

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Return a loader whose next pass leaves out its first `num_batches` batches.

    As `accelerate.skip_first_batches`, which it calls for loaders of others; ours is returned itself,
    and reads nothing of what is left out.
    """
    if isinstance(dataloader, DataLoader):
        dataloader.skip(num_batches)
        return dataloader
    from accelerate import skip_first_batches

    return skip_first_batches(dataloader, num_batches)


def _group() -> tuple[int, int]:
    """Return (rank, world size) of the default process group; (0, 1) without one."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _agree(proposal: int) -> int:
    """Return the seed that all ranks take: that of the first one which asked.

    Goes through the store of the process group and not through a collective: a loader that only some
    ranks make must not hang.
    """
    if _group()[1] == 1:
        raise ConfigError(
            "several ranks need one seed, and there is no process group to agree on one",
            do="pass seed=, call rng.manual_seed, or initialise torch.distributed first",
            field="seed",
        )
    store = distributed.distributed_c10d._get_default_store()
    found = int(store.compare_set("samebatch/seed", "", str(proposal)))
    if found != proposal:
        _log.info("seed %d of another rank instead of %d", found, proposal)
    return found


def _users_level() -> int:
    """Return the stacklevel of the first caller outside this file."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame, level = frame.f_back, level + 1
    return level
