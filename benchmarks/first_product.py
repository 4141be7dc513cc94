"""Question: in-memory images, the same augmentation: how many times PyTorch's DataLoader?

50,000 uint8 32x32x3, crop (pad 4) + flip + normalise + erase (p 0.25), float32 CHW, batch 512, 2
workers; the consumer sums every batch. And: reproducible mode beside fast mode, on that load and
on one where 2 % of the samples are 20 times slower. Command and results: see README.md here.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measure import main, rate

N, BATCH, WORKERS = 50_000, 512, 2
SECONDS = 4.0
MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], np.float32) * 255
SCALE = (1 / STD).reshape(3, 1, 1).astype(np.float32)
SHIFT = (-MEAN / STD).reshape(3, 1, 1).astype(np.float32)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.Generator(np.random.Philox(key=[1, 1]))
    return rng.integers(0, 256, (N, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, N)


def ours(**how: Any) -> dict[str, float]:
    import pipeline
    from pipeline import datasets
    from pipeline import transforms as T

    loader = pipeline.DataLoader(
        datasets.ArrayDataset(*data()),
        batch_size=BATCH,
        shuffle=True,
        seed=1,
        drop_last=True,
        transforms=[
            T.RandomCrop(32, padding=4),
            T.RandomHorizontalFlip(),
            T.Normalize(preset="imagenet"),
            T.RandomErasing(p=0.25),
        ],
        **{"num_workers": WORKERS, **how},
    )
    try:
        return rate(lambda: iter(loader), SECONDS)
    finally:
        loader.close()


def augment(img: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What a competent user writes per sample in numpy."""
    padded = np.zeros((40, 40, 3), np.uint8)
    padded[4:36, 4:36] = img
    i, j = int(rng.integers(0, 9)), int(rng.integers(0, 9))
    crop = padded[i : i + 32, j : j + 32]
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    out = np.multiply(np.ascontiguousarray(crop.transpose(2, 0, 1)), SCALE, dtype=np.float32)
    out += SHIFT
    if rng.random() < 0.25:
        for _ in range(10):
            area = 1024 * rng.uniform(0.02, 0.33)
            aspect = math.exp(rng.uniform(math.log(0.3), math.log(3.3)))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if h < 32 and w < 32:
                top, left = int(rng.integers(0, 33 - h)), int(rng.integers(0, 33 - w))
                out[:, top : top + h, left : left + w] = 0
                break
    return out


def torch_loader() -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    images, labels = data()

    class Plain(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.rng: np.random.Generator | None = None

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
            if self.rng is None:
                self.rng = np.random.default_rng(torch.initial_seed())
            return augment(images[i], self.rng), int(labels[i])

    loader = torch.utils.data.DataLoader(
        Plain(),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        drop_last=True,
        persistent_workers=True,
        prefetch_factor=4,
    )

    def epochs() -> Iterator[tuple[np.ndarray, Any]]:
        for x, y in loader:
            yield x.numpy(), y

    return rate(epochs, SECONDS)


class Skewed:
    """100 us of work a sample, 2 ms for 2 % of them."""

    def __len__(self) -> int:
        return 8192

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        until = time.perf_counter_ns() + (2_000_000 if i * 2654435761 % 100 < 2 else 100_000)
        while time.perf_counter_ns() < until:
            pass
        return np.full((16, 16), i % 256, np.uint8), i


def skewed(**how: Any) -> dict[str, float]:
    import pipeline

    loader = pipeline.DataLoader(
        Skewed(), batch_size=64, shuffle=True, seed=1, num_workers=WORKERS, **how
    )
    try:
        return rate(lambda: iter(loader), SECONDS)
    finally:
        loader.close()


if __name__ == "__main__":
    main(
        {
            "torch": torch_loader,
            "samebatch": ours,
            "samebatch_fast": lambda: ours(mode="fast"),
            "samebatch_threads": lambda: ours(worker_method="thread"),
            "samebatch_inline": lambda: ours(num_workers=0),
            "skewed": skewed,
            "skewed_fast": lambda: skewed(mode="fast"),
        },
        base="torch",
        name="first_product",
    )
