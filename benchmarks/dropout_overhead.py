"""What does a call of rng.torch.dropout cost on the CPU beside torch's own, forward and with backward?

    python benchmarks/dropout_overhead.py [--rounds 15] [--threads 1] [--quick]

The contenders of a row take turns; a figure is the median of the rounds in microseconds per call, a ratio
the median of the rounds' ratios. The smallest tensors show the overhead: their numbers cost next to nothing.
`--threads` are torch's; ours takes all processors from 2**20 elements on, torch's dropout one anyway.
Aim: at most 2.5 times torch. Results: benchmarks/results/dropout_overhead.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import machine
from torch.nn import functional as F

from rng.torch import DropoutState, dropout

RESULTS = Path(__file__).parent / "results" / "dropout_overhead.json"
SHAPES = [(1, 8), (8, 8), (64, 128), (64, 1024), (1024, 1024), (1024, 4096)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
P, AIM = 0.1, 2.5


def calls(x: torch.Tensor, backward: bool) -> list[Callable[[], Any]]:
    """Return one step of ours, and one of torch."""
    state = DropoutState(seed=7)
    if not backward:
        return [lambda: dropout(x, P, state, "a"), lambda: F.dropout(x, P)]
    leaf, grad = x.clone().requires_grad_(), torch.ones_like(x)

    def ours() -> None:
        leaf.grad = None
        dropout(leaf, P, state, "a").backward(grad)

    def torchs() -> None:
        leaf.grad = None
        F.dropout(leaf, P).backward(grad)

    return [ours, torchs]


def seconds(call: Callable[[], Any], times: int) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def row(shape: tuple[int, int], dtype: torch.dtype, backward: bool, rounds: int) -> dict[str, Any]:
    """Return the figures of one row, and print them."""
    both = calls(torch.randn(shape).to(dtype), backward)
    times = max(3, min(2000, (1 << 21) // (shape[0] * shape[1])))
    for call in both:
        seconds(call, 3)
    found = [[seconds(call, times) for call in both] for _ in range(rounds)]
    ours, torchs = (statistics.median(column) * 1e6 for column in zip(*found, strict=True))
    ratio = statistics.median(a / b for a, b in found)
    name = f"{shape[0]} x {shape[1]} {str(dtype)[6:]}, forward{' and backward' if backward else ''}"
    print(f"{name:44} {ours:9.1f} us  torch {torchs:9.1f} us  ratio {ratio:.2f}", flush=True)
    return {
        "row": name, "ours_us": round(ours, 2), "torch_us": round(torchs, 2), "ratio": round(ratio, 2)
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the smallest shapes only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [
        row(shape, dtype, backward, options.rounds)
        for backward in (False, True)
        for dtype in DTYPES
        for shape in SHAPES[: 2 if options.quick else None]
    ]
    most = max(rows, key=lambda one: one["ratio"])
    print(f"most: {most['ratio']} times torch ({most['row']}); the aim is at most {AIM}")
    body = {"machine": machine() | {"threads": options.threads}, "rows": rows}
    options.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
