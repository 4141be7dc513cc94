"""Does a GPU make the same bits, in graphs and streams too, and how fast?

    make gpu-check                              # or PYTHONPATH=. python benchmarks/gpu_check.py
    python benchmarks/gpu_check.py --only bits,speed --log2 27

Runs from the repository, with torch, Triton and numba installed (and pipeline's packages, for `feeding`); without
a CUDA device it says so and ends well. Every check is printed; the exit status is 1 if one fails. Speeds below
their aim are told and fail nothing. Results with machine and commit: benchmarks/results/gpu_check.json.
"""

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

RESULTS = ROOT / "benchmarks" / "results" / "gpu_check.json"
NEEDS = ("torch", "triton", "numba", "numpy")
PARTS = ("bits", "graphs", "compiled", "feeding", "speed")


def missing() -> str:
    """Return why nothing can be checked here, "" if it can."""
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed in {sys.executable}"
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device"


def run(name: str, parts: Iterable[str], n: int, rounds: int, quick: bool) -> dict[str, Any]:
    """Run parts on a device, print each line, and return the results."""
    from benchmarks.gpu_checks.device import device_of

    device, checks, table = device_of(name), [], []
    for part in parts:
        print(f"\n{part}", flush=True)
        if part == "speed":
            from benchmarks.gpu_checks import speed

            print(speed.HEAD)
            for result in speed.measured(device, n, rounds):
                print(speed.line(result), flush=True)
                table.append(result)
            continue
        for check in _checks(part, device, quick):
            print(
                f"  {'ok  ' if check['ok'] else 'FAIL'}  {check['name']:48} {check['seen']}",
                flush=True,
            )
            checks.append(check)
    return {"checks": checks, "speed": table}


def _checks(part: str, device: Any, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the checks of a part; an error in one is a failed check, and the other parts go on."""
    try:
        for check in _of(part, device, quick):
            yield {"part": part, **check._asdict()}
    except Exception as e:  # whatever a device throws belongs to the results
        seen = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
        yield {"part": part, "name": f"{part} ends", "ok": False, "seen": seen}


def _of(part: str, device: Any, quick: bool) -> Iterator[Any]:
    if part == "bits":
        from benchmarks.gpu_checks import bits

        return bits.checks(device.name, bits.Sizes((5, 4097), (512,)) if quick else bits.Sizes())
    if part == "feeding":
        try:
            from benchmarks.gpu_checks import feeding
        except ModuleNotFoundError as e:
            from benchmarks.gpu_checks import Check

            return iter([Check("feeding: skipped", True, str(e))])
        return feeding.checks(device, 1 << 20 if quick else 1 << 26)
    from benchmarks.gpu_checks import graphs

    if part == "compiled":
        return graphs.compiled(device)
    return graphs.checks(device, 4099 if quick else (1 << 22) + 3)


def machine(name: str) -> dict[str, Any]:
    """Return what was measured where."""
    import numba
    import torch
    import triton

    def told(*command: str) -> str:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": told("git", "describe", "--always", "--dirty"),
        "python": platform.python_version(),
        "versions": {m.__name__: m.__version__ for m in (torch, triton, numba)},
        "device": platform.machine(),
    }
    if name == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        try:
            driver = told(*query)
        except FileNotFoundError:  # ROCm
            driver = ""
        facts |= {
            "device": gpu.name,
            "capability": f"{gpu.major}.{gpu.minor}",
            "multiprocessors": gpu.multi_processor_count,
            "memory_GiB": round(gpu.total_memory / 2**30, 1),
            "driver": driver,
            "cuda": torch.version.cuda or torch.version.hip,
        }
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument(
        "--log2", type=int, default=25, help="elements of the speeds, a power of two"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="few and small sizes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if why := missing():
        print(f"gpu-check: skipped, {why}")
        return 0
    facts = machine("cuda")
    print(json.dumps(facts, indent=1))
    results = run("cuda", parts, 1 << options.log2, options.rounds, options.quick)
    options.out.write_text(json.dumps({"machine": facts, **results}, indent=1) + "\n")
    failed = [check["name"] for check in results["checks"] if not check["ok"]]
    print(f"\n{len(results['checks'])} checks, {len(failed)} failed; written to {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
