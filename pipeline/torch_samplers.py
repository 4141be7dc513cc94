"""Samplers between torch and us: those of torch that we understand, and those that show our order.

torch tells a loader its order by a sampler object. Where we know what the object means (in order,
shuffled, a rank's share of either), the loader's own plan takes its place, because that one can be
resumed, cut for another world size, and computed for any epoch. Everything else stays as it is and is
read once for each epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from pipeline.loader import DataLoader
from pipeline.plan import Plan


class Link:
    """The engine a torch loader has now; its samplers follow when it gets another one."""

    def __init__(self, core: DataLoader) -> None:
        self.core = core


@dataclass(frozen=True)
class Source:
    """What samples come in what order, before rank and seed are known.

    Attributes:
        batch_size, drop_last: of one rank; batch_size is None for single samples.
        shuffle: our own order, shuffled.
        sampler, batch_sampler: what we do not understand; at most one of them.
        distributed: the sampler that says which rank this is.
        seed: a seed that comes with the sampler.
    """

    batch_size: int | None
    drop_last: bool
    shuffle: bool
    sampler: Any = None
    batch_sampler: Any = None
    distributed: DistributedSampler[Any] | None = None
    seed: int | None = None


def understand(source: Source, dataset: Any) -> Source:
    """Return `source` with as much of its samplers replaced by our own order as we understand."""
    batches = source.batch_sampler
    if type(batches) is BatchSampler:
        source = replace(
            source,
            batch_sampler=None,
            batch_size=batches.batch_size,
            drop_last=batches.drop_last,
            sampler=batches.sampler,
        )
    sampler, n = source.sampler, len(dataset)
    if isinstance(sampler, Ours) and len(sampler.link.core.dataset) == n:
        core = sampler.link.core
        return replace(source, sampler=None, shuffle=core.shuffle, seed=core.seed)
    if type(sampler) is SequentialSampler and len(sampler) == n:
        return replace(source, sampler=None)
    if type(sampler) is RandomSampler and _is_plain(sampler, n):
        seed = None if sampler.generator is None else sampler.generator.initial_seed()
        return replace(source, sampler=None, shuffle=True, seed=seed)
    # A subclass that draws in another way gives the indices of one rank, like any sampler.
    if isinstance(sampler, DistributedSampler) and _is_torchs(sampler, n):
        return replace(
            source,
            sampler=None,
            shuffle=bool(sampler.shuffle),
            distributed=sampler,
            seed=sampler.seed,
        )
    return source


def _is_plain(sampler: RandomSampler, n: int) -> bool:
    return not sampler.replacement and len(sampler) == n == len(sampler.data_source)


def _is_torchs(sampler: DistributedSampler[Any], n: int) -> bool:
    return type(sampler).__iter__ is DistributedSampler.__iter__ and len(sampler.dataset) == n


class Ours:
    """What the samplers of our own order share: they ask the engine, and pass epochs on to it."""

    link: Link

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the loader delivers next; trainers call this."""
        self.link.core.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        """Yield the sample ids of this rank in the epoch that runs or is due."""
        core = self.link.core
        order, plan = core._order_of(core.epoch), self._plan()
        for step in range(plan.steps()):
            yield from order.ids(plan.positions(step)[0]).tolist()

    def __len__(self) -> int:
        """Return the samples of this rank in one epoch."""
        plan = self._plan()
        steps = plan.steps()
        if steps == 0:
            return 0
        return (steps - 1) * plan.batch_size + len(plan.positions(steps - 1)[0])

    def _plan(self) -> Plan:
        core = self.link.core
        plan = core._plan(core._length)
        # The batch sampler cuts, and drops what fills no batch; alone, a sampler gives everything.
        return plan if plan.world_size > 1 else replace(plan, tail="short")


class InOrder(Ours, SequentialSampler):
    """The data set's order."""

    def __init__(self, link: Link, dataset: Any) -> None:
        self.link = link
        SequentialSampler.__init__(self, dataset)


class Shuffled(Ours, RandomSampler):
    """A new order each epoch."""

    def __init__(self, link: Link, dataset: Any, generator: Any) -> None:
        self.link = link
        RandomSampler.__init__(self, dataset, generator=generator)


class Shared(Ours, DistributedSampler[Any]):
    """One rank's share of either order. Trainers that see it do not share out a second time."""

    def __init__(self, link: Link, dataset: Any) -> None:
        self.link = link
        core = link.core
        DistributedSampler.__init__(
            self, dataset, core.world_size, core.rank, core.shuffle, core.seed, core.drop_last
        )

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the loader delivers next; trainers call this."""
        DistributedSampler.set_epoch(self, epoch)
        Ours.set_epoch(self, epoch)
