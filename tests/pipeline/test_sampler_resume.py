"""A custom sampler and a resume: either the same order, or a refusal; never lost samples."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

import pipeline
from pipeline import datasets

DATA = datasets.ArrayDataset(np.arange(20))


class Shuffling:
    """Like torch's RandomSampler without a generator: another order each time."""

    turns = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        Shuffling.turns += 1
        return iter(np.roll(np.arange(20), Shuffling.turns).tolist())


def stopped(sampler: object) -> str:
    with pipeline.DataLoader(DATA, 4, sampler=sampler, seed=1) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        return json.dumps(loader.state_dict())


def test_a_sampler_with_another_order_is_refused_on_resume() -> None:
    saved = stopped(Shuffling())
    with pipeline.DataLoader(DATA, 4, sampler=Shuffling(), seed=1) as loader:
        loader.load_state_dict(json.loads(saved))
        with pytest.raises(pipeline.StateError, match="another order"):
            next(iter(loader))
        loader.set_epoch(1)
        assert sum(len(b) for b in loader) == 20


def test_a_sampler_with_the_same_order_continues() -> None:
    order = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    saved = stopped(order)
    with pipeline.DataLoader(DATA, 4, sampler=order, seed=1) as loader:
        loader.load_state_dict(json.loads(saved))
        assert np.concatenate(list(loader)).tolist() == order[8:]
