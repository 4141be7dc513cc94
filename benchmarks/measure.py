"""Runs contenders in turn, each in a fresh process, and writes medians and ratios with their spread."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def rate(
    epochs: Callable[[], Iterator[tuple[Any, Any]]], seconds: float, least_epochs: int = 3
) -> dict[str, float]:
    """Sum every batch of whole epochs for about `seconds`, after one epoch that is not counted."""
    sink = 0.0
    began = time.perf_counter()
    first_s = None
    for x, _y in epochs():
        sink += float(x.sum())
        if first_s is None:
            first_s = time.perf_counter() - began
    x = _y = None  # a batch kept here would occupy a buffer for the whole run
    rates: list[float] = []
    total = 0.0
    while total < seconds or len(rates) < least_epochs:
        n = 0
        began = time.perf_counter()
        for x, y in epochs():
            sink += float(x.sum())
            n += len(y)
        passed = time.perf_counter() - began
        total += passed
        rates.append(n / passed)
    return {"rate": statistics.median(rates), "first_batch_s": first_s or 0.0, "sink": sink}


def main(contenders: dict[str, Callable[[], dict[str, float]]], base: str, name: str) -> None:
    """Run all contenders in turn, `--rounds` times; print and write medians and ratios to `base`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", choices=list(contenders))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(contenders))
    options = parser.parse_args()
    if options.child:
        print("RESULT " + json.dumps(contenders[options.child]()))
        return
    chosen = options.only or list(contenders)
    runs: dict[str, list[dict[str, float]]] = {c: [] for c in chosen}
    for round_ in range(options.rounds):
        for contender in chosen:
            command = [sys.executable, sys.argv[0], "--child", contender]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            line = next(x for x in done.stdout.splitlines() if x.startswith("RESULT "))
            runs[contender].append(json.loads(line[7:]))
            print(
                f"round {round_}  {contender:28} {runs[contender][-1]['rate']:12,.0f}/s", flush=True
            )
    table = {}
    for contender in chosen:
        rates = [r["rate"] for r in runs[contender]]
        table[contender] = {
            "rate_median": statistics.median(rates),
            "rate_min": min(rates),
            "rate_max": max(rates),
            "first_batch_s": statistics.median(r["first_batch_s"] for r in runs[contender]),
        }
        if base in runs:
            pairs = [a / b["rate"] for a, b in zip(rates, runs[base], strict=True)]
            table[contender] |= {
                f"ratio_to_{base}": statistics.median(pairs),
                "ratio_min": min(pairs),
                "ratio_max": max(pairs),
            }
    for contender, row in table.items():
        ratio = row.get(f"ratio_to_{base}", float("nan"))
        print(
            f"{contender:28} {row['rate_median']:12,.0f}/s  first {row['first_batch_s']:.3f} s  "
            f"{ratio:7.2f} x {base}  [{row.get('ratio_min', 0):.2f}, {row.get('ratio_max', 0):.2f}]"
        )
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    target.write_text(
        json.dumps({"machine": machine(), "runs": runs, "table": table}, indent=1) + "\n"
    )
    print(f"written to {target}")


def machine() -> dict[str, Any]:
    """Return what was measured where."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in facts if "model name" in line]
    model = models[0] if models else platform.processor()
    versions = {}
    for package in ("numpy", "numba", "torch", "samebatch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
    }
