"""What the tests of all trainers share: samples, a loader, digests, several ranks on one machine.

Workers and ranks import this module by name, so it imports no trainer.
"""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import torch

import pipeline
import pipeline.torch
from tests.helpers import ROOT

N = 46  # no multiple of the batch sizes and world sizes below


class Rows:
    """Sample i is (float32[8], float32): the first number is i, so that a batch tells its order."""

    def __init__(self, n=N):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x = np.arange(8, dtype=np.float32) / 8 + np.float32(i)
        return x, np.float32(i % 5)


def noisy(sample, rng):
    """Random numbers in every sample but its first, at the sample's address."""
    x, y = sample
    x = x.copy()
    x[1:] += rng.normal(size=7).astype(np.float32)
    return x, y


ARGUMENTS = {"batch_size": 4, "shuffle": True, "seed": 7, "transforms": [noisy]}


def make(n=N, **options):
    return pipeline.torch.DataLoader(Rows(n), **ARGUMENTS | options)


def engine(epochs=1, n=N, **options):
    """Digests of the batches of the loader without torch, the same for any trainer."""
    with pipeline.DataLoader(Rows(n), **ARGUMENTS | options) as loader:
        return [digest(batch) for _ in range(epochs) for batch in loader]


def digest(batch):
    """16 hex digits of the bytes of (x, y), arrays or tensors, with their dtypes and shapes."""
    h = hashlib.sha256()
    for leaf in batch:
        array = np.asarray(leaf)
        h.update(f"{array.dtype.str}{array.shape}".encode())
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()[:16]


def names(batch):
    """The ids of a batch's samples."""
    return [int(v) for v in np.asarray(batch[0])[:, 0]]


def row_digests(batch):
    return [digest((x, y)) for x, y in zip(*map(np.asarray, batch), strict=True)]


def engine_rows(n=N, **options):
    """Digests of the samples of one epoch in the order of a single rank."""
    with pipeline.DataLoader(Rows(n), **ARGUMENTS | options) as loader:
        return [d for batch in loader for d in row_digests(batch)]


class Net(torch.nn.Module):
    """A model small enough to be trained in no time, with weights that do not depend on anything."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 1)
        with torch.no_grad():
            self.fc.weight.copy_(torch.arange(8.0).reshape(1, 8) / 100)
            self.fc.bias.zero_()

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.fc(x / 50)[:, 0], y)


def weights(model):
    """The bytes of all parameters, for equality."""
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


# ---------------------------------------------------------------- several ranks
_RANK = """
import datetime, importlib, json, os, sys, warnings
warnings.simplefilter("ignore")
import torch.distributed as dist
module, function, folder, arguments = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
test = importlib.import_module(module)
if getattr(test, "INITIALISES", True):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=world, timeout=datetime.timedelta(seconds=100))
found = getattr(test, function)(rank, world, folder, **json.loads(arguments))
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
with open(f"{folder}/rank{rank}.json", "w") as f:
    json.dump(found, f)
"""


def on_ranks(module, function, world, folder, initialises=True, **arguments):
    """Run module.function(rank, world, folder, **arguments) in `world` processes; return what each
    returned. A process group (gloo) is there unless `initialises` is false.
    """
    code = _RANK if initialises else _RANK.replace('"INITIALISES", True', '"INITIALISES", False')
    folder = folder / f"{function}-{world}"
    folder.mkdir()
    port = str(_free_port())
    ranks = []
    try:
        for rank in range(world):
            environment = {
                **os.environ, "PYTHONPATH": str(ROOT), "RANK": str(rank), "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            command = [sys.executable, "-c", code, module, function, str(folder)]
            ranks.append(
                subprocess.Popen(
                    [*command, json.dumps(arguments)],
                    env=environment,
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        for rank, one in enumerate(ranks):
            text, _ = one.communicate(timeout=120)
            assert one.returncode == 0, f"rank {rank}: {text[-4000:]}"
    finally:
        for one in ranks:
            if one.poll() is None:
                one.kill()
            one.communicate()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]


def _free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def interleaved(ranks):
    """The samples of all ranks in the global order: step by step, rank after rank."""
    return [d for step in zip(*ranks, strict=True) for batch in step for d in batch]
