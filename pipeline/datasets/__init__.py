"""Datasets: where samples come from.

A dataset is anything with `__len__` and `__getitem__(i)`. Ours give `(image u8[H, W, C], label)`
and tell more: `arrays()` of what lies in memory, `fingerprint()`, `describe(i)`, `versions()`.

>>> from pipeline import datasets
>>> import numpy as np
>>> dataset = datasets.ArrayDataset(np.zeros((3, 8, 8, 1), np.uint8), np.arange(3))
>>> len(dataset), dataset[2][1]
(3, 2)
"""

from pipeline.datasets.arrays import ArrayDataset
from pipeline.datasets.cifar import CIFAR10, CIFAR100
from pipeline.datasets.digits import Digits
from pipeline.datasets.image_folder import ImageFolder
from pipeline.datasets.mapstyle import (
    check,
    describe,
    fingerprint,
    only_iterable,
    reads_together,
    settings,
    stands_for,
    versions,
)
from pipeline.datasets.mnist import KMNIST, MNIST, FashionMNIST
from pipeline.datasets.strings import PackedStrings
from pipeline.datasets.tokens import TokenWindows

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "KMNIST",
    "MNIST",
    "ArrayDataset",
    "Digits",
    "FashionMNIST",
    "ImageFolder",
    "PackedStrings",
    "TokenWindows",
    "check",
    "describe",
    "fingerprint",
    "only_iterable",
    "reads_together",
    "settings",
    "stands_for",
    "versions",
]
