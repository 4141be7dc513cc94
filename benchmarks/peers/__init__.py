"""The loaders that are compared. Each adapter sets its loader up as its own documentation advises.

An adapter is a class; its constructor is what counts as the cold start:

    Adapter(one: Work, workers: int, seed: int, state=None)
    epoch(k)  -> iterator of (x, ids): f32[B, 3, H, W] and indices (W1 to W3, W6, W7);
                 i64[B, 1024] and None (W4); i32[B] or i64[B] and None (W5)
    state()   -> where it is, for those that can resume
    state_after(steps) -> its state as after that many batches of the first epoch
    close()

This module imports none of them: it also runs where they are not installed.
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_FIVE = ("W1", "W2", "W3", "W4", "W5")


@dataclass(frozen=True)
class Peer:
    """One loader in one way to use it.

    Attributes:
        name: how results call it.
        where: module of this package, and class, of its adapter.
        venv: virtual environment it runs in (see `environments.py`).
        imports: what is imported before it can be used; timed on its own.
        works: workloads it can do.
        workers: counts of workers it can be asked for.
        text: how it is set up.
        resumes: it has a state to resume from.
        prepares: it reads a format of its own, which `prepare(one)` of its module writes.
    """

    name: str
    where: str
    venv: str
    imports: str
    works: tuple[str, ...]
    workers: tuple[int, ...]
    text: str
    resumes: bool = False
    prepares: tuple[str, ...] = ()

    def adapter(self) -> Any:
        """Return the adapter's class."""
        module, kind = self.where.split(":")
        return getattr(importlib.import_module(f"peers.{module}"), kind)

    def prepare(self, one: Any) -> None:
        """Write the data of a workload in the peer's own format, once."""
        module = importlib.import_module(f"peers.{self.where.split(':')[0]}")
        module.prepare(one)


class Adapter:
    """What adapters have in common."""

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        """Return an iterator of epoch k."""
        raise NotImplementedError

    def state_after(self, steps: int) -> Any:
        """Return the state after `steps` batches of the first epoch, by making them."""
        batches = self.epoch(0)
        for _ in range(steps):
            next(batches)
        self._going = batches  # a state may need its iterator alive
        return self.state()

    def state(self) -> Any:
        """Return where it is."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""


_OURS = (*_FIVE, "W6", "W7", "R")
_TORCH = (*_FIVE, "W6", "W7", "R")
PEERS = {
    peer.name: peer
    for peer in (
        Peer("samebatch", "ours:Processes", "samebatch", "pipeline", _OURS, (0, 1, 2, 4),
             "processes, reproducible mode", resumes=True),
        Peer("samebatch_threads", "ours:Threads", "samebatch", "pipeline", _OURS, (1, 2, 4),
             "threads, reproducible mode", resumes=True),
        Peer("samebatch_fast", "ours:Fast", "samebatch", "pipeline", _OURS, (1, 2, 4),
             "processes, fast mode", resumes=True),
        Peer("samebatch_fast_threads", "ours:FastThreads", "samebatch", "pipeline", _OURS, (1, 2),
             "threads, fast mode", resumes=True),
        Peer("torch", "torchs:Plain", "torch", "torch", _TORCH, (0, 1, 2, 4),
             "DataLoader, __getitem__ in numpy and OpenCV, persistent workers, default collate"),
        Peer("torch_pillow", "torchs:Pillow", "torch", "torch", ("W2", "W7"), (0, 1, 2, 4),
             "as torch, decode and resize by Pillow: torchvision's default path"),
        Peer("torch_batch", "torchs:Whole", "torch", "torch", (*_FIVE, "R"), (0, 1, 2, 4),
             "DataLoader, __getitems__ makes the whole batch (W1: one fused numba kernel)"),
        Peer("torch_completion", "torchs:Completion", "torch", "torch", ("W2", "W7"), (2, 4),
             "as torch, in_order=False"),
        Peer("torchdata", "torchs:Stateful", "torch", "torchdata.stateful_dataloader",
             (*_FIVE, "R"), (0, 1, 2), "StatefulDataLoader, as torch", resumes=True),
        Peer("spdl", "spdls:Batches", "spdl", "spdl.pipeline", (*_FIVE, "W7"), (1, 2, 4),
             "PipelineBuilder, threads, whole-batch functions, input order"),
        Peer("spdl_completion", "spdls:Completion", "spdl", "spdl.pipeline", ("W2", "W7"), (2, 4),
             "as spdl, output_order='completion'"),
        Peer("spdl_io", "spdls:OwnDecoder", "spdl", "spdl.pipeline", ("W2",), (1, 2, 4),
             "SPDL's own FFmpeg decoder with a random filter graph for each image"),
        Peer("grain", "grains:Processes", "grain", "grain", (*_FIVE, "R"), (0, 1, 2, 4),
             "MapDataset, mp_prefetch(workers)", resumes=True),
        Peer("grain_threads", "grains:Threads", "grain", "grain", (*_FIVE, "W7"), (1, 2, 4),
             "MapDataset, ReadOptions(num_threads=workers)", resumes=True),
        Peer("dali", "dalis:Dali", "dali", "nvidia.dali", (*_FIVE, "W7"), (1, 2, 4),
             "pipeline without a GPU; W2 image_random_crop decoder, W3 numpy reader, others "
             "external_source", prepares=("W3",)),
        Peer("ffcv", "ffcvs:Ffcv", "ffcv", "ffcv.loader", _FIVE, (1, 2, 4),
             ".beton files, os_cache; W1's erasing is a compiled operation of ours; W2 written "
             "again at quality 90", prepares=_FIVE),
        Peer("streaming", "streamings:Mosaic", "streaming", "peers.streamings", _FIVE, (0, 1, 2),
             "MosaicML StreamingDataset (MDS, local) and StreamingDataLoader", resumes=True,
             prepares=_FIVE),
        Peer("litdata", "litdatas:Lit", "litdata", "litdata", _FIVE, (0, 1, 2),
             "optimised chunks, StreamingDataset and StreamingDataLoader", resumes=True,
             prepares=_FIVE),
        Peer("webdataset", "webdatasets:Wds", "webdataset", "webdataset", _FIVE, (0, 1, 2),
             "16 tar shards, shuffle(1000): an approximate shuffle", prepares=_FIVE),
    )
}  # fmt: skip
