"""`samebatch bench`: how fast the loader is on this machine, on made-up data, within a minute.

Four loads, each with 0 workers, processes, threads, and processes in fast mode. They take turns,
round after round; a figure is the median of the rounds. The consumer sums every batch. The floor is
what one core would do with the kernel and that sum alone: no order, no claims, no hand-over.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import pipeline
import rng
from pipeline import datasets
from pipeline import transforms as T
from pipeline.recipe import Recipe

_SEED = 1234
_LEAST_S = 0.25  # of each turn; whole epochs


@dataclass(frozen=True)
class Load:
    """One kind of data.

    Attributes:
        name: what it is.
        batch: samples of a batch.
        dataset, transforms: the loader's arguments.
    """

    name: str
    batch: int
    dataset: Any
    transforms: tuple[Any, ...]


def loads(quick: bool) -> list[Load]:
    """Return the loads; `quick`: tiny ones, to see that it works."""
    size = 1 if quick else 16
    generator = rng.Generator(_SEED)

    def pixels(n: int, side: int) -> np.ndarray:
        flat = generator.integers((n * side * side * 3,), 0, 256)
        return flat.astype(np.uint8).reshape(n, side, side, 3)

    tokens = generator.integers((size << 18,), 0, 32_000).astype(np.uint16)
    flip, normalize = T.RandomHorizontalFlip(), T.Normalize(preset="imagenet")
    images, pictures, items = size * 1024, size * 16, size * 4096
    return [
        Load(
            "32x32 images: crop, flip, normalise, erase",
            512,
            datasets.ArrayDataset(pixels(images, 32), np.arange(images)),
            (T.RandomCrop(32, padding=4), flip, normalize, T.RandomErasing(p=0.25)),
        ),
        Load(
            "256x256 images: random resized crop 224",
            16 if quick else 64,
            datasets.ArrayDataset(pixels(pictures, 256), np.arange(pictures)),
            (T.RandomResizedCrop(224), flip, normalize),
        ),
        Load("windows of 1,024 tokens", 32, datasets.TokenWindows(tokens, 1024), ()),
        Load("4-byte items", 256, datasets.ArrayDataset(np.arange(items, dtype=np.int32)), ()),
    ]


def ways(workers: int) -> dict[str, dict[str, Any]]:
    """Return the ways to use the loader, by the heads of their columns."""
    return {
        "0 workers": {"num_workers": 0},
        f"{workers} processes": {"num_workers": workers},
        f"{workers} threads": {"num_workers": workers, "worker_method": "thread"},
        "fast mode": {"num_workers": workers, "mode": "fast"},
    }


def measure(load: Load, workers: int, rounds: int, least_s: float) -> dict[str, list[float]]:
    """Return samples/s of every round, for each way."""
    loaders = {
        name: pipeline.DataLoader(
            load.dataset,
            load.batch,
            shuffle=True,
            drop_last=True,
            seed=_SEED,
            transforms=load.transforms,
            **how,
        )
        for name, how in ways(workers).items()
    }
    try:
        for loader in loaders.values():
            _epoch(loader)  # kernels, workers and pages get ready
        found: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(rounds):
            for name, loader in loaders.items():
                found[name].append(_rate(loader, least_s))
        return found
    finally:
        for loader in loaders.values():
            loader.close()


def _epoch(loader: pipeline.DataLoader) -> int:
    samples = 0
    for batch in loader:
        x = batch[0] if isinstance(batch, tuple) else batch
        np.add.reduce(x, axis=None)
        samples += len(x)
    return samples


def _rate(loader: pipeline.DataLoader, least_s: float) -> float:
    samples, began = 0, time.perf_counter()
    while True:
        samples += _epoch(loader)
        passed = time.perf_counter() - began
        if passed >= least_s:
            return samples / passed


def floor(load: Load, least_s: float) -> float:
    """Return samples/s of one core with the kernel and the consumer's sum alone."""
    recipe = Recipe(load.dataset, load.transforms, _SEED, 16)
    recipe.probe(0, 0, 0)
    assert recipe.fields is not None
    buffers = [np.zeros((load.batch, *one.shape), one.dtype) for one in recipe.fields]
    order = rng.permutation(len(load.dataset), _SEED)
    steps = len(order) // load.batch
    step = 0

    def make() -> None:
        nonlocal step
        first = step % steps * load.batch
        step += 1
        positions = np.arange(first, first + load.batch, dtype=np.uint64)
        recipe.fill(buffers, 0, order[first : first + load.batch], positions, 0)
        np.add.reduce(buffers[0], axis=None)

    return load.batch / _seconds(make, least_s)


def copying(least_s: float) -> float:
    """Return GB/s copied by one core, 64 MB at a time."""
    source = np.ones(64 << 20, np.uint8)
    target = np.empty_like(source)
    return source.nbytes / _seconds(lambda: np.copyto(target, source), least_s) / 1e9


def _seconds(call: Callable[[], object], least_s: float) -> float:
    """Return the seconds of one call, after one that does not count."""
    call()
    calls, began = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        passed = time.perf_counter() - began
        if passed >= least_s:
            return passed / calls


def machine() -> dict[str, Any]:
    """Return what is measured where."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.release(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("numpy", "numba", "pillow")},
        "samebatch": pipeline.__version__,
        "stream_version": rng.STREAM_VERSION,
    }


def report(workers: int | None, rounds: int, quick: bool, path: str | None) -> int:
    """Measure, print a table, write JSON if asked for; return 0."""
    where = machine()
    workers = workers or max(1, min(4, where["cores"]))
    least_s = 0.01 if quick else _LEAST_S
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    print(f"samebatch {where['samebatch']}, Python {where['python']}, {versions}")
    print(f"{where['processor']}, {where['cores']} cores, Linux {where['system']}")
    speed = copying(least_s)
    print(f"one core copies {speed:.1f} GB/s\n")
    heads = [*ways(workers), "floor, 1 core", "reproducible / fast"]
    print(" " * 44 + "".join(f"{head:>{len(head) + 4}}" for head in heads))
    results = []
    for load in loads(quick):
        found = measure(load, workers, rounds, least_s)
        least = floor(load, least_s)
        ordered, unordered = found[f"{workers} processes"], found["fast mode"]
        ratios = [a / b for a, b in zip(ordered, unordered, strict=True)]
        cells = [f"{statistics.median(rates):,.0f}" for rates in found.values()]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        row = [*cells, f"{least:,.0f}", ratio]
        print(
            f"{load.name:44}"
            + "".join(f"{c:>{len(h) + 4}}" for c, h in zip(row, heads, strict=True)),
            flush=True,
        )
        results.append({"load": load.name, "batch": load.batch, "rates": found, "floor": least})
    print(f"\nsamples/s, the median of {rounds} rounds; the consumer sums every batch")
    if path:
        body = {"machine": where, "copy_gb_per_s": speed, "workers": workers, "loads": results}
        Path(path).write_text(json.dumps(body, indent=1) + "\n")
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--workers", type=_count, help="default: the cores, at most 4")
    parser.add_argument("--rounds", type=_count, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny data, only to see that it works")
    parser.add_argument("--json", metavar="FILE", help="write every round's figures to FILE too")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
