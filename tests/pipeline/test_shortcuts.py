"""What a dataset's `__getitem__` returns is what is delivered, whatever else the dataset has."""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pipeline
from pipeline import datasets
from pipeline import transforms as T

IMAGES = np.arange(20 * 4 * 4 * 3, dtype=np.uint64).astype(np.uint8).reshape(20, 4, 4, 3)
LABELS = np.arange(20)


def first(dataset: Any, **how: Any) -> Any:
    with pipeline.DataLoader(dataset, 4, seed=1, **how) as loader:
        return next(iter(loader))


class Changed(datasets.ArrayDataset):
    def __getitem__(self, i: int) -> Any:
        image, label = super().__getitem__(i)
        return image * 0, label + 1000


class Subset:
    """Passes everything else on, as wrappers do."""

    def __init__(self, dataset: Any, chosen: list[int]) -> None:
        self.dataset = dataset
        self.chosen = chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[self.chosen[i]]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transforms", [[], [T.RandomHorizontalFlip()]], ids=["plain", "flip"])
def test_a_subclass_that_changes_items_is_heard(workers: int, transforms: list[Any]) -> None:
    images, labels = first(Changed(IMAGES, LABELS), num_workers=workers, transforms=transforms)
    assert labels.tolist() == [1000, 1001, 1002, 1003]
    assert not images.any()


def test_a_subset_of_arrays_delivers_the_subset() -> None:
    _, labels = first(Subset(datasets.ArrayDataset(IMAGES, LABELS), [19, 18, 17, 16]))
    assert labels.tolist() == [19, 18, 17, 16]


def test_a_subclass_of_an_image_folder_is_heard(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(4):
        Image.fromarray(IMAGES[i]).save(tmp_path / "a" / f"{i}.png")

    class Shifted(datasets.ImageFolder):
        def __getitem__(self, i: int) -> Any:
            image, label = super().__getitem__(i)
            return image, label + 1000

    for transforms in ([], [T.RandomHorizontalFlip()]):
        _, labels = first(Shifted(tmp_path), transforms=transforms)
        assert labels.tolist() == [1000] * 4


class Namesake:
    """Owns the names of our optional methods, for purposes of its own."""

    arrays = 7

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> int:
        return i

    def decode(self) -> None:
        raise AssertionError

    def label(self, a: int, b: int) -> None:
        raise AssertionError

    def fingerprint(self, algorithm: str) -> str:
        raise AssertionError

    def versions(self, since: int) -> None:
        raise AssertionError


def test_methods_of_the_same_name_for_another_purpose_are_left_alone() -> None:
    assert first(Namesake()).tolist() == [0, 1, 2, 3]
    with pipeline.DataLoader(Namesake(), 4, seed=1) as loader:
        assert loader.state_dict()["length"] == 20


class Odd:
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


@pytest.mark.parametrize(
    "how", [{}, {"num_workers": 1}, {"num_workers": 1, "worker_method": "thread"}], ids=str
)
def test_structured_dtypes_work_with_every_kind_of_worker(how: dict[str, Any]) -> None:
    kind = np.dtype([("a", "<i4"), ("b", "<f8", (2,))])
    batch = first(Odd(lambda i: np.array([(i, (2.0, i))], kind)), **how)
    assert batch.dtype == kind
    assert batch["a"].ravel().tolist() == [0, 1, 2, 3]
    assert batch["b"][:, 0, 1].tolist() == [0, 1, 2, 3]


def test_keys_in_another_order_are_the_same_sample() -> None:
    batch = first(Odd(lambda i: {"a": i, "b": -i} if i % 2 else {"b": -i, "a": i}))
    assert batch["a"].tolist() == [0, 1, 2, 3]
    assert batch["b"].tolist() == [0, -1, -2, -3]


def test_a_defaultdict_stays_one() -> None:
    def make(i: int) -> Any:
        d: defaultdict[str, int] = defaultdict(int)
        d["x"] = i
        return d

    batch = first(Odd(make))
    assert isinstance(batch, dict)
    assert batch["x"].tolist() == [0, 1, 2, 3]


def test_a_masked_array_is_refused() -> None:
    with pytest.raises(pipeline.SampleError, match="mask would be lost"):
        first(Odd(lambda i: np.ma.masked_array([i], mask=[True])))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mapped_file_beyond_memory_is_read_where_it_is_needed(
    tmp_path: Path, workers: int
) -> None:
    path = tmp_path / "sparse.bin"
    count = (4 << 30) // 48
    with open(path, "wb") as f:
        f.truncate(count * 48)
    images = np.memmap(path, np.uint8, "r", shape=(count, 4, 4, 3))
    data = datasets.ArrayDataset(images, np.arange(count))
    loader = pipeline.DataLoader(
        data, 64, shuffle=True, order="random_access", seed=1, num_workers=workers
    )
    with loader:
        _, labels = next(iter(loader))
        assert len(set(labels.tolist())) == 64
        assert loader.state_dict()["length"] == count
    blocks = os.stat(path).st_blocks  # nothing was written, and a digest read pieces only
    assert blocks * 512 < 1 << 20


def test_pieces_read_from_a_file_are_those_of_the_array(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    values = np.arange(9 << 20, dtype=np.uint64)
    values.tofile(path)
    mapped = np.memmap(path, np.uint64, "r")
    assert (
        datasets.ArrayDataset(mapped).fingerprint() == datasets.ArrayDataset(values).fingerprint()
    )
    part = datasets.ArrayDataset(mapped[1000:]).fingerprint()
    assert part == datasets.ArrayDataset(values[1000:]).fingerprint()
