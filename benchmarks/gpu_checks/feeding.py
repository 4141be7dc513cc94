"""Feeding a device: the bytes that arrive, pinning, and how much of the copies hides behind computing."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import pipeline
from benchmarks.gpu_checks import Check
from benchmarks.gpu_checks.device import Cpu
from pipeline import datasets
from pipeline import transforms as T
from pipeline.transfer.device import pin


def checks(device: Cpu, nbytes: int) -> Iterator[Check]:
    """Yield all checks; `nbytes`: of a batch whose copy is timed."""
    for workers in (0, 2):
        yield _arrived(device, workers)
    if device.name == "cuda":  # without one there is neither a copy nor anything beside it
        yield from _overlap(device, nbytes)


def _loader(workers: int) -> Any:
    n = 512
    images = (np.arange(n * 32 * 32 * 3, dtype=np.uint64) * 0x9E3779B9 >> 7).astype(np.uint8)
    data = datasets.ArrayDataset(images.reshape(n, 32, 32, 3), np.arange(n) % 10)
    return pipeline.DataLoader(
        data, batch_size=48, shuffle=True, num_workers=workers, worker_method="thread", seed=7,
        transforms=[T.RandomCrop(32, padding=4), T.Normalize(preset="cifar10")],
    )  # fmt: skip


def _arrived(device: Cpu, workers: int) -> Check:
    with _loader(workers) as loader:
        want = [[a.tobytes() for a in batch] for _ in range(2) for batch in loader]
    loader = _loader(workers)
    with pipeline.to_device(loader, device.name) as feeder:
        kept = [batch for _ in range(2) for batch in feeder]  # kept: no buffer may be used again
        pinned = device.name != "cuda" or torch.from_numpy(loader.buffers).is_pinned()
        got = [[t.cpu().numpy().tobytes() for t in batch] for batch in kept]
    seen = f"{len(want)} batches, {'pinned' if pinned else 'not pinned'}"
    return Check(f"feeding: bytes, {workers} workers", got == want and pinned, seen)


def _overlap(device: Cpu, nbytes: int) -> Iterator[Check]:
    """Yield how much of the copying hides: copies and kernels that take as long, apart and together."""
    memory = np.zeros((4, nbytes), np.uint8)
    pinned = pin(memory)
    batches, steps = list(memory), 24
    host = [torch.from_numpy(batch) for batch in batches]
    target = torch.empty(nbytes, dtype=torch.uint8, device=device.name)
    copy_s = device.eager_seconds(lambda: target.copy_(host[0], non_blocking=True), 9)

    def run(busy_s: float) -> None:
        order = itertools.islice(itertools.cycle(batches), steps)
        for _batch in pipeline.to_device(list(order), device.name):
            if busy_s:
                device.busy(busy_s)

    device.busy(copy_s)  # calibrates
    alone = device.eager_seconds(lambda: [device.busy(copy_s) for _ in range(steps)], 5)
    copies = device.eager_seconds(lambda: run(0.0), 5)
    together = device.eager_seconds(lambda: run(copy_s), 5)
    hidden = (alone + copies - together) / min(alone, copies)
    pinned.close()
    rate = nbytes / copy_s / 1e9
    seen = (
        f"{steps} batches of {nbytes / 2**20:.0f} MiB at {rate:.1f} GB/s: copies {copies * 1e3:.2f} ms, "
        f"kernels {alone * 1e3:.2f} ms, together {together * 1e3:.2f} ms"
    )
    yield Check(f"feeding: {hidden:.0%} of the copies hide behind kernels", hidden > 0.5, seen)
