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


def build(first_row, sharded=False):
    with torch.device("meta" if sharded else "cpu"):
        model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), Dropout(0.5), nn.Linear(9, 3))
    if sharded:  # 9 and 3 rows over two processes
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0])
        fully_shard(model)
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
    grads = [p.grad for p in model.parameters()]
    return outs, [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]


def batch():
    return (torch.arange(ROWS * 5) % 7 - 3.0).reshape(ROWS, 5)


WORKER = """
import sys, torch, torch.distributed as dist
from tests.rng.torch import test_parallel as t
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
rows = t.ROWS // 2
mine = t.batch()[rank * rows : (rank + 1) * rows]
model, state = t.build(rank * rows)
wrapped = torch.nn.parallel.DistributedDataParallel(model)
found = [t.train(model, state, mine, wrapped), t.train(*t.build(rank * rows, sharded=True), mine)]
torch.save(found, f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes_equal_one_with_copies_and_with_shards_of_the_weights(tmp_path):
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
    for way in range(2):  # DistributedDataParallel, FSDP
        of_rank = [part[way] for part in parts]
        for step, out in enumerate(outs):
            assert torch.equal(torch.cat([found[0][step] for found in of_rank]), out)
        for i, grad in enumerate(grads):  # the mean of the ranks' sums
            assert torch.equal(of_rank[0][1][i] * 2, grad)
            assert torch.equal(of_rank[1][1][i] * 2, grad)
