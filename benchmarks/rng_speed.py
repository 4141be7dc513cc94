"""How fast are our fills, shuffles and masks beside numpy's and torch's, in one run?

    python benchmarks/rng_speed.py [--part fills|orders|small] [--log2 25] [--rounds 7] [--threads 2]

Every contender of a row is timed once a round, in turn, so that a busy machine slows all of them
alike; a figure is the median of the rounds in ns per value, a ratio the median of the rounds'
ratios (peer / ours). Results with machine, versions and commit: benchmarks/results/rng_speed.json;
a run of one part leaves the rows of the others there as they are.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import rng  # noqa: E402
from rng import dropout  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

Call = Callable[[], Any]


def fills(n: int, threads: int) -> dict[str, dict[str, Call]]:
    """Rows of {contender: call}; the first contender is ours, n values each."""
    stream = rng.Stream(rng.address.mix64(1), rng.address.site(rng.address.USER))
    f, w = np.zeros(n, np.float32), np.zeros(n, np.uint32)
    d = np.zeros(n, np.float64)
    mask, g, p = np.zeros(n // 8, np.uint8), np.random.Generator(np.random.PCG64(1)), None
    p = np.random.Generator(np.random.Philox(1))
    x = np.ones(n, np.float32)
    rows: dict[str, dict[str, Call]] = {}
    for k in sorted({1, threads}):
        rows |= {
            f"uint32, {k}T": {
                "ours": lambda k=k: stream.uint32(w, threads=k),
                "fill": lambda: w.fill(1),
            },
            f"uniform float32, {k}T": {
                "ours": lambda k=k: stream.uniform(f, threads=k),
                "fill": lambda: f.fill(1),
                "numpy Philox": lambda: p.random(dtype=np.float32, out=f),
                "numpy PCG64": lambda: g.random(dtype=np.float32, out=f),
            },
            f"uniform float64, {k}T": {
                "ours": lambda k=k: stream.uniform(d, threads=k),
                "numpy Philox": lambda: p.random(out=d),
            },
            f"normal float32, {k}T": {
                "ours": lambda k=k: stream.normal(f, threads=k),
                "numpy PCG64": lambda: g.standard_normal(dtype=np.float32, out=f),
            },
            f"gumbel float32, {k}T": {"ours": lambda k=k: stream.gumbel(f, threads=k)},
            f"exponential float32, {k}T": {
                "ours": lambda k=k: stream.exponential(f, threads=k),
                "numpy PCG64": lambda: g.standard_exponential(dtype=np.float32, out=f),
            },
            f"mask p=0.1, {k}T": {
                "ours": lambda k=k: rng.dropout_mask(n, 0.1, 1, "a", 0, out=mask, threads=k)
            },
            f"dropout apply float32, {k}T": {
                "ours": lambda k=k: dropout.apply(x, mask, 1.1, out=f, threads=k)
            },
            f"dropout mask + apply + result, {k}T": {
                "ours": lambda k=k: dropout.dropout(x, 0.1, 1, "a", 0, threads=k)
            },
        }
        if torch is not None:
            add_torch(rows, k, n)
    return rows


def add_torch(rows: dict[str, dict[str, Call]], k: int, n: int) -> None:
    t, b, x = torch.zeros(n), torch.zeros(n, dtype=torch.uint8), torch.ones(n)

    def with_threads(call: Call) -> Call:
        def timed() -> None:
            if torch.get_num_threads() != k:
                torch.set_num_threads(k)
            call()

        return timed

    for row, call in {
        "uniform float32": lambda: t.uniform_(),
        "normal float32": lambda: t.normal_(),
        "gumbel float32": lambda: t.exponential_().log_().neg_(),
        "exponential float32": lambda: t.exponential_(),
        "mask p=0.1": lambda: b.bernoulli_(0.9),
        "dropout apply float32": lambda: torch.native_dropout(x, 0.1, True),
        "dropout mask + apply + result": lambda: torch.native_dropout(x, 0.1, True),
    }.items():
        rows[f"{row}, {k}T"]["torch"] = with_threads(call)


def orders(n: int) -> dict[str, dict[str, Call]]:
    g, out = np.random.Generator(np.random.PCG64(1)), np.empty(n, np.uint32)
    row: dict[str, Call] = {
        "ours": lambda: rng.permutation(n, 1),
        "ours, out=": lambda: rng.permutation(n, 1, out=out),
        "numpy PCG64": lambda: g.permutation(n),
    }
    if torch is not None:
        row["torch"] = lambda: torch.randperm(n)
    return {f"permutation of {n}": row}


def access(n: int) -> dict[str, dict[str, Call]]:
    order = rng.RandomAccessPermutation(n, 1)
    return {f"random access, n = {n}": {"ours": lambda: order[: 1 << 20]}}


def small() -> dict[str, dict[str, Call]]:
    """Rows of a thousand calls for four numbers each."""
    g, p = rng.Generator(1), np.random.Generator(np.random.Philox(1))

    def often(call: Call) -> Call:
        def calls() -> None:
            for _ in range(1000):
                call()

        return calls

    rows = {
        "a call for four uniform float32": {
            "ours": often(lambda: g.uniform(4)),
            "numpy Philox": often(lambda: p.random(4, dtype=np.float32)),
        },
        "a call for four normal float32": {
            "ours": often(lambda: g.normal(4)),
            "numpy Philox": often(lambda: p.standard_normal(4, dtype=np.float32)),
        },
        "a call for four integers": {
            "ours": often(lambda: g.integers(4, 0, 10)),
            "numpy Philox": often(lambda: p.integers(0, 10, 4)),
        },
    }
    if torch is not None:
        rows["a call for four uniform float32"]["torch"] = often(lambda: torch.rand(4))
        rows["a call for four normal float32"]["torch"] = often(lambda: torch.randn(4))
        rows["a call for four integers"]["torch"] = often(lambda: torch.randint(0, 10, (4,)))
    return rows


def measure(rows: dict[str, dict[str, Call]], n: int, rounds: int) -> list[dict[str, Any]]:
    results = []
    for name, calls in rows.items():
        seconds: dict[str, list[float]] = {who: [] for who in calls}
        for r in range(rounds + 1):
            for who, call in calls.items():
                start = time.perf_counter()
                call()
                if r:  # the first round warms up
                    seconds[who].append(time.perf_counter() - start)
        result: dict[str, Any] = {"row": name, "n": n, "ns": {}, "ratio": {}}
        for who, times in seconds.items():
            result["ns"][who] = round(statistics.median(times) / n * 1e9, 3)
            ratios = [t / o for t, o in zip(times, seconds["ours"], strict=True)]
            if who != "ours":
                result["ratio"][who] = round(statistics.median(ratios), 2)
        print(f"{name:38}", "  ".join(f"{w} {v}" for w, v in result["ns"].items()))
        print(" " * 38, "  ".join(f"{w} / ours {v}" for w, v in result["ratio"].items()))
        results.append(result)
    return results


def machine() -> dict[str, Any]:
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), cpu)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "torch": None if torch is None else torch.__version__,
        "commit": commit.stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log2", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--part", choices=["fills", "orders", "small"], action="append")
    options = parser.parse_args()
    n = 1 << options.log2
    here = machine()
    parts = options.part or ["fills", "orders", "small"]
    results = []
    if "fills" in parts:
        results += measure(fills(n, options.threads), n, options.rounds)
    if "orders" in parts:
        results += measure(orders(1_281_167), 1_281_167, 3 * options.rounds)
        results += measure(orders(10**8), 10**8, 3)
        results += measure(access(10**9), 1 << 20, options.rounds)
    if "small" in parts:
        results += measure(small(), 1000, 3 * options.rounds)
    target = ROOT / "benchmarks" / "results" / "rng_speed.json"
    target.parent.mkdir(exist_ok=True)
    measured = {result["row"] for result in results}
    if target.exists():
        kept = json.loads(target.read_text())["results"]
        results = [old for old in kept if old["row"] not in measured] + results
    target.write_text(json.dumps({"machine": here, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
