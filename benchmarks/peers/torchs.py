"""PyTorch's DataLoader, and torchdata's StatefulDataLoader."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import workloads
from workloads import Work

from peers import Adapter

_generator: Any = None  # of this process: what users do with numpy in workers


def generator() -> np.random.Generator:
    global _generator
    if _generator is None:
        _generator = np.random.default_rng(0)
    return _generator


def start(seed: int) -> None:
    """Seed this process, one thread each for torch and OpenCV: the loader has the processors."""
    global _generator
    import torch

    _generator = np.random.default_rng(seed)
    np.random.seed(seed % 2**32)
    torch.set_num_threads(1)
    try:
        import cv2

        cv2.setNumThreads(1)
    except ImportError:  # W1, W4 and W5 need none
        return


def start_worker(_: int) -> None:
    """The usual worker_init_fn: numpy seeded from torch's seed of the worker."""
    import torch

    start(torch.initial_seed())


class Samples:
    """Map-style: one sample at a time."""

    def __init__(self, one: Work, jpeg: Any) -> None:
        self.one, self.jpeg = one, jpeg
        self.pairs = one.kind not in ("W4", "W5")

    def __len__(self) -> int:
        return self.one.count

    def __getitem__(self, i: int) -> Any:
        item = workloads.raw(self.one, i)
        x = workloads.finish(self.one, item, generator(), None, self.jpeg)
        return (x, i) if self.pairs else x


class Batches(Samples):
    """`__getitems__`: torch asks for a whole batch."""

    def __getitems__(self, ids: list[int]) -> Any:
        x = workloads.batch(self.one, ids, generator(), self.jpeg)
        return (x, np.asarray(ids)) if self.pairs else x


def as_tensors(made: Any) -> Any:
    import torch

    if isinstance(made, tuple):
        return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in made)
    return torch.from_numpy(np.ascontiguousarray(made))


def as_pair(batch: Any) -> tuple[Any, Any]:
    return tuple(batch) if isinstance(batch, tuple | list) else (batch, None)


class Plain(Adapter):
    samples: Any = Samples
    jpeg = staticmethod(workloads.opencv)
    in_order = True

    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        import torch

        start(seed)
        made = self.samples(one, self.jpeg)
        if one.name == "W6":
            made = workloads.PlainImages(workloads.images(one.folder))
        how = {"persistent_workers": True, "worker_init_fn": start_worker} if workers else {}
        if not self.in_order:
            how["in_order"] = False
        self.loader = self.kind()(
            made,
            batch_size=one.batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            generator=torch.Generator().manual_seed(seed),
            collate_fn=as_tensors if self.samples is Batches else None,
            **how,
        )
        if state is not None:
            self.loader.load_state_dict(state)

    def kind(self) -> Any:
        from torch.utils.data import DataLoader

        return DataLoader

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        for batch in self.loader:
            yield as_pair(batch)

    def state(self) -> Any:
        return self.loader.state_dict()

    def close(self) -> None:
        iterator = getattr(self.loader, "_iterator", None)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class Pillow(Plain):
    jpeg = staticmethod(workloads.pillow)


class Whole(Plain):
    samples = Batches


class Completion(Plain):
    in_order = False


class Stateful(Plain):
    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        if one.name == "R":  # else it would take minutes to come to the state
            self.samples = Batches
        super().__init__(one, workers, seed, state)

    def kind(self) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader
