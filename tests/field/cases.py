"""What the cases from the field share: their made-up data, and digests of what is delivered.

Workers import this module by name.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline import datasets
from pipeline import transforms as T
from tests import helpers

BATCH = 16
OPS = (T.RandomHorizontalFlip(), T.RandomErasing(p=0.5))


def pixels(i):
    """uint8[32, 32, 3] whose first 8 bytes spell i."""
    flat = np.full(32 * 32 * 3, 77, np.uint8)
    flat[:8] = np.frombuffer(int(i).to_bytes(8, "little"), np.uint8)
    return flat.reshape(32, 32, 3)


class Syn:
    """n made-up images as a plain map-style dataset; any n, for nothing is stored."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return pixels(i), int(i)

    def describe(self, i):
        return f"syn/{i}"


def syn(n):
    """The same images in memory."""
    return datasets.ArrayDataset(np.stack([pixels(i) for i in range(n)]), np.arange(n))


def files(root, numbers, classes=5):
    """Write one small PNG for each number, in this order, into class folders; return the root."""
    for i in numbers:
        path = Path(root) / f"class{i % classes}" / f"{i:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(i)).save(path)
    return root


def make(dataset, **options):
    """A loader as the cases say: batch 16, shuffled, flip and erase on."""
    return helpers.make(dataset, **{"batch_size": BATCH, "transforms": list(OPS)} | options)


def fp(loader, epochs=1):
    """SHA-256 of ids, labels, pixels and masks of every batch, in the order of delivery."""
    h = hashlib.sha256()
    for _ in range(epochs):
        for batch in loader:
            for array in (*helpers.leaves(batch), loader.last.valid, loader.last.sample_ids):
                h.update(f"{array.dtype.str}{array.shape}".encode())
                h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


def fp_of(dataset, epochs=1, **options):
    """`fp` of a loader of its own."""
    with make(dataset, **options) as loader:
        return fp(loader, epochs)


def copied(state):
    """A state after the way through a file."""
    return json.loads(json.dumps(state))
