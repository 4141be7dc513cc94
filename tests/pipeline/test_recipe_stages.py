"""Functions between ops: the whole sample goes in and out, and the image keeps units and layout."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import pipeline
from pipeline import datasets
from pipeline import transforms as T

IMAGES = np.arange(24 * 12 * 10 * 3, dtype=np.uint64).astype(np.uint8).reshape(24, 12, 10, 3)
LABELS = np.arange(24)
OPS = [T.RandomCrop(8), T.ToTensor(), T.Normalize(mean=0.5, std=0.25)]


def batches(dataset: Any, transforms: list[Any]) -> list[Any]:
    with pipeline.DataLoader(dataset, 5, shuffle=True, seed=3, transforms=transforms) as loader:
        return list(loader)


def same(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_function_that_changes_nothing_changes_no_byte(at: int) -> None:
    plain = batches(datasets.ArrayDataset(IMAGES, LABELS), OPS)
    split = batches(datasets.ArrayDataset(IMAGES, LABELS), [*OPS[:at], same, *OPS[at:]])
    for (x, y), (u, v) in zip(plain, split, strict=True):
        assert np.array_equal(x, u)
        assert np.array_equal(y, v)


def test_a_function_sees_the_image_laid_out_as_it_is() -> None:
    seen = []

    def look(sample: Any) -> Any:
        seen.append(sample[0].shape)
        return sample

    batches(datasets.ArrayDataset(IMAGES, LABELS), [look, T.ToTensor(), look])
    assert set(seen) == {(12, 10, 3), (3, 12, 10)}


class Pair(NamedTuple):
    picture: np.ndarray
    label: int


class Containers:
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        return self.make(IMAGES[i], i)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: {"y": y, "image": x},
        lambda x, y: Pair(x, y),
        lambda x, y: x,
    ],
    ids=["tuple", "list", "dict", "named tuple", "bare"],
)
def test_ops_find_the_image_in_every_container(make: Any) -> None:
    plain = batches(datasets.ArrayDataset(IMAGES, LABELS), OPS)
    for (x, _), batch in zip(plain, batches(Containers(make), OPS), strict=True):
        found = batch["image"] if isinstance(batch, dict) else batch
        found = found if isinstance(found, np.ndarray) else found[0]
        assert np.array_equal(found, x)
        example = make(IMAGES[0], 0)
        assert type(batch) is type(example)


def test_a_dict_without_an_image_is_refused_by_name() -> None:
    with pytest.raises(pipeline.SampleError, match=r"keys \['pixels'\].*image"):
        batches(Containers(lambda x, y: {"pixels": x}), OPS)


def test_grey_images_without_a_channel_axis_work() -> None:
    (x, _), *_ = batches(datasets.ArrayDataset(IMAGES[..., 0].copy(), LABELS), OPS)
    assert x.shape == (5, 1, 8, 8)
