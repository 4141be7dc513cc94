"""samebatch, by its public surface only."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import workloads
from workloads import Work

import pipeline
from peers import Adapter
from pipeline import datasets
from pipeline import transforms as T


def dataset(one: Work) -> Any:
    if one.name == "W6":
        return workloads.PlainImages(workloads.images(one.folder))
    if one.kind == "W1":
        return datasets.ArrayDataset(workloads.images(one.folder), np.arange(one.count))
    if one.kind == "W2":
        return datasets.ImageFolder(one.folder / "jpegs")
    if one.kind == "W3":
        return datasets.ArrayDataset(workloads.packed(one.folder), np.arange(one.count))
    if one.kind == "W4":
        return datasets.TokenWindows(one.folder / "tokens.bin", workloads.WINDOW)
    return datasets.ArrayDataset(workloads.items(one.count))


def transforms(one: Work) -> list[Any]:
    if one.name == "W6" or one.kind in ("W4", "W5"):
        return []
    first = T.RandomCrop(32, padding=4) if one.kind == "W1" else T.RandomResizedCrop(224)
    made = [first, T.RandomHorizontalFlip(), T.Normalize(preset="imagenet")]
    return made if one.kind == "W3" else [*made, T.RandomErasing(p=0.25)]


class Processes(Adapter):
    how: ClassVar[dict[str, Any]] = {}

    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        self.loader = pipeline.DataLoader(
            dataset(one),
            one.batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            seed=seed,
            transforms=transforms(one),
            **self.how,
        )
        if state is not None:
            self.loader.load_state_dict(state)

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k  # each pass is the next epoch
        for batch in self.loader:
            if isinstance(batch, np.ndarray):
                yield batch, None
            else:
                yield batch[0], self.loader.last.sample_ids

    def state(self) -> Any:
        return self.loader.state_dict()

    def close(self) -> None:
        self.loader.close()


class Threads(Processes):
    how: ClassVar[dict[str, Any]] = {"worker_method": "thread"}


class Fast(Processes):
    how: ClassVar[dict[str, Any]] = {"mode": "fast"}


class FastThreads(Processes):
    how: ClassVar[dict[str, Any]] = {"mode": "fast", "worker_method": "thread"}
