"""Two processes that share a batch are one process: docs/torch.md."""

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rng.torch import Dropout, DropoutState, bind, init  # noqa: E402

ROWS, STEPS = 6, 2


def build(first_row):
    model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), Dropout(0.5), nn.Linear(9, 3))
    state = bind(model, DropoutState(7, first_row=first_row))
    init.materialize(model, 7)
    with torch.no_grad():  # small whole numbers: sums are exact, so their order does not count
        for p in model.parameters():
            p.copy_((p * 8).round())
    return model, state


def train(model, state, x, wrapped=None):
    """Return the outputs and gradients of STEPS steps."""
    outs = []
    for _ in range(STEPS):
        out = (wrapped or model)(x)
        out.sum().backward()
        outs.append(out.detach())
        state.advance()
    return outs, [p.grad for p in model.parameters()]


def batch():
    return (torch.arange(ROWS * 5) % 7 - 3.0).reshape(ROWS, 5)


WORKER = """
import sys, torch, torch.distributed as dist
from tests.rng.torch import test_parallel as t
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
rows = t.ROWS // 2
model, state = t.build(rank * rows)
wrapped = torch.nn.parallel.DistributedDataParallel(model)
torch.save(t.train(model, state, t.batch()[rank * rows : (rank + 1) * rows], wrapped), f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes_equal_one(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = []
    try:
        for rank in range(2):
            with open(tmp_path / f"{rank}.log", "w") as log:
                command = [sys.executable, "-c", WORKER, str(rank), str(tmp_path)]
                ranks.append(subprocess.Popen(command, env=environment, stderr=log))
        for rank, process in enumerate(ranks):
            assert process.wait(150) == 0, (tmp_path / f"{rank}.log").read_text()[-3000:]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    outs, grads = train(*build(0), batch())
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for step, out in enumerate(outs):
        assert torch.equal(torch.cat([part[0][step] for part in parts]), out)
    for i, grad in enumerate(grads):  # the mean of the ranks' sums
        assert torch.equal(parts[0][1][i] * 2, grad)
        assert torch.equal(parts[1][1][i] * 2, grad)
