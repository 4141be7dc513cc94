import collections

import numpy as np
import pytest

from pipeline import datasets
from pipeline.errors import ConfigError


class Squares:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return i * i


class Iterated:
    def __iter__(self):
        return iter(range(4))


class IterableDataset(Squares):
    """As torch's: has __getitem__ by inheritance, but is to be iterated."""


class NoLength(Squares):
    def __len__(self):
        raise TypeError("unknown length")


@pytest.mark.parametrize(
    "good",
    [Squares(), [1, 2], (1,), np.zeros(3), range(5), [], Iterated(), IterableDataset()],
)
def test_anything_with_length_and_index_is_a_dataset(good):
    datasets.check(good)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Squares, "class Squares itself"),
        (NoLength(), "len.. fails .TypeError: unknown length"),
        ({"train": [1], "test": [2]}, "keys 'train', 'test'"),
        (collections.OrderedDict(), "OrderedDict"),
        ("data/cats", "ImageFolder"),
        (None, "NoneType without"),
        (iter([1]), "iterator, which can be read only once"),
        ({1, 2}, "set without __getitem__"),
    ],
)
def test_what_is_not_map_style_is_refused_with_the_reason(bad, says):
    with pytest.raises(ConfigError, match=says):
        datasets.check(bad)


def test_helpers_fall_back_on_class_and_length():
    data = Squares()
    assert datasets.fingerprint(data) == datasets.fingerprint(Squares())
    assert datasets.fingerprint(data) != datasets.fingerprint([0, 1, 4, 9])
    assert datasets.fingerprint([1]) != datasets.fingerprint([1, 2])
    assert datasets.describe(data, 3) == "Squares[3]"
    assert datasets.versions(data) == {}
    assert datasets.settings(data) == {}


def test_helpers_ask_the_dataset_first():
    class Told(Squares):
        def fingerprint(self):
            return "abc"

        def describe(self, i):
            return f"square {i}"

        def versions(self):
            return {"maths": 1}

        def settings(self):
            return {"power": 2}

    data = Told()
    assert datasets.fingerprint(data) == "abc"
    assert datasets.describe(data, 3) == "square 3"
    assert datasets.versions(data) == {"maths": "1"}
    assert datasets.settings(data) == {"power": 2}


def test_describe_never_raises():
    class Broken(Squares):
        def describe(self, i):
            raise KeyError(i)

    assert datasets.describe(Broken(), 2).endswith("Broken[2]")
