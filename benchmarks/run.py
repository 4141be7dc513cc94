"""Runs ours and the peers in turn, each in a fresh process and in its own virtual environment.

    python benchmarks/run.py                 the main table: about 20 minutes
    python benchmarks/run.py --all           and every other way to use them, resume, same bytes
    python benchmarks/run.py --peers torch,torch_batch,spdl --works W1,W4
    python benchmarks/run.py --quick         tiny data, one round: only to see that all of it works

Needs no package itself. Every result is written to `out/` at once: started again, it goes on where
it was stopped (`--fresh` begins anew). At the end `results/peers.json` is written, from which
`report.py` makes docs/benchmarks.md.

    main     five rounds; in each round the contenders of a workload take turns
    wide     one round of every other peer and count of workers
    checks   same bytes, resume, import, compilation on a fresh machine
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import environments
import measure
from peers import PEERS

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
SLOW_MS = "20"
WORKS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")
# The main table: ours, torch as most use it, and whoever was the fastest in any setting so far.
MAIN = {
    "W1": ("samebatch:2", "samebatch:0", "samebatch_threads:2", "samebatch_fast:2", "torch:2",
           "torch_batch:0", "spdl:2"),
    "W2": ("samebatch:2", "samebatch_threads:2", "samebatch_fast:2", "torch:2", "torch_pillow:2",
           "spdl:2", "grain_threads:2"),
    "W3": ("samebatch:2", "samebatch:0", "samebatch_threads:2", "samebatch_fast:2", "torch:2",
           "torch_batch:0", "spdl:2", "ffcv:2"),
    "W4": ("samebatch:2", "samebatch:0", "samebatch_threads:2", "samebatch_fast:2", "torch:2",
           "torch_batch:0", "ffcv:2"),
    "W5": ("samebatch:2", "samebatch:0", "samebatch_threads:2", "samebatch_fast:2", "torch:2",
           "torch_batch:0", "ffcv:2"),
    "W6": ("samebatch:2", "samebatch_fast:2", "torch:2"),
    "W7": ("samebatch:2", "samebatch_fast:2", "torch:2", "spdl:2"),
}  # fmt: skip
_STREAMS = ("streaming", "litdata", "webdataset")  # minutes each: wide only at two workers


@dataclass(frozen=True)
class Job:
    """One measurement in one process."""

    tier: str
    measure: str
    peer: str
    work: str
    workers: int
    round: int

    def __str__(self) -> str:
        return f"{self.measure:7} {self.work:3} {self.peer}:{self.workers} (round {self.round + 1})"


def jobs(tiers: list[str], rounds: int) -> Iterator[Job]:
    """Yield all jobs in order."""
    if "main" in tiers:
        for turn in range(rounds):  # the rounds of a workload lie apart: the machine drifts
            yield Job("main", "floors", "samebatch", "-", 0, turn)
            for work in WORKS:
                for contender in MAIN[work]:
                    peer, workers = contender.split(":")
                    yield Job("main", "rate", peer, work, int(workers), turn)
    if "wide" in tiers:
        for work in WORKS:
            for peer in PEERS.values():
                counts = (2,) if peer.name in _STREAMS else peer.workers
                for workers in counts if work in peer.works else ():
                    if f"{peer.name}:{workers}" not in MAIN[work]:
                        yield Job("wide", "rate", peer.name, work, workers, 0)
    if "checks" in tiers:
        yield from _checks()


def _checks() -> Iterator[Job]:
    yield Job("checks", "compile", "samebatch", "-", 2, 0)
    for peer in PEERS.values():
        for work in ("W1", "W2"):
            if work in peer.works and peer.name != "spdl_io":
                for workers in peer.workers:
                    yield Job("checks", "bytes", peer.name, work, workers, 0)
        if peer.resumes:
            yield Job("checks", "resume", peer.name, "W1", 2, 0)
        if peer.resumes and "R" in peer.works and "fast" not in peer.name:
            workers = 0 if 0 in peer.workers else 2
            yield Job("checks", "resume", peer.name, "R", workers, 0)
            if peer.name == "samebatch":
                yield Job("checks", "resume", peer.name, "R", 2, 0)


# ---------------------------------------------------------------- one job
class Runner:
    """Runs jobs in fresh processes.

    Attributes:
        skipped: peer or "peer work" -> why it is left out.
    """

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.skipped: dict[str, str] = {}
        self._slow = OUT / "slow_files.so"

    def prepare(self, wanted: list[Job]) -> None:
        """Make environments, data and formats; note what cannot be had."""
        ready: dict[str, str] = {}
        for name in dict.fromkeys(["samebatch", *(PEERS[job.peer].venv for job in wanted)]):
            ready[name] = environments.make(name)
            if ready[name]:
                print(f"left out: {name}: {ready[name]}", flush=True)
        if ready["samebatch"]:
            raise SystemExit("our own environment cannot be made: see above")
        quick = ["--quick"] if self.quick else []
        command = [environments.python("samebatch"), HERE / "data.py", *quick]
        subprocess.run([str(part) for part in command], check=True)
        if any(job.work == "W7" for job in wanted):
            self._build_slow()
        done: set[tuple[str, str]] = set()
        for job in wanted:
            peer = PEERS[job.peer]
            if ready[peer.venv]:
                self.skipped[job.peer] = ready[peer.venv]
            elif job.work in peer.prepares and (job.peer, job.work) not in done:
                done.add((job.peer, job.work))
                result = self.child(Job("", "prepare", job.peer, job.work, 0, 0), 900.0)
                if "error" in result:
                    why = f"its format cannot be written: {result['error'][-200:]}"
                    self.skipped[f"{job.peer} {job.work}"] = why

    def _build_slow(self) -> None:
        OUT.mkdir(exist_ok=True)
        compiler = shutil.which("gcc") or shutil.which("cc")
        why = "no C compiler for slow_files.c"
        if compiler:
            source = [compiler, "-O2", "-shared", "-fPIC", str(HERE / "slow_files.c")]
            command = [*source, "-o", str(self._slow), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            why = f"slow_files.c cannot be compiled: {done.stderr[:200]}"
        self.skipped["W7"] = why

    def why_not(self, job: Job) -> str:
        """Return why a job is left out, or ""."""
        names = (job.peer, f"{job.peer} {job.work}", job.work)
        return next((self.skipped[name] for name in names if name in self.skipped), "")

    def run(self, job: Job) -> dict[str, Any]:
        """Return what a job measured, or {"error": its last words}."""
        if job.measure == "floors":
            return self._finish([HERE / "floors.py"], "samebatch", {}, 120.0)
        if job.measure == "compile":
            return self._compile()
        return self.child(job, 400.0 if job.work == "R" else 150.0)

    def child(self, job: Job, limit_s: float, **environment: str) -> dict[str, Any]:
        """Run `contender.py` for a job."""
        command = [
            HERE / "contender.py", "--peer", job.peer, "--work", job.work,
            "--workers", str(job.workers), "--measure", job.measure,
        ]  # fmt: skip
        if job.work == "W7":
            environment |= {"LD_PRELOAD": str(self._slow), "SAMEBATCH_SLOW_MS": SLOW_MS}
        return self._finish(command, PEERS[job.peer].venv, environment, limit_s)

    def _compile(self) -> dict[str, Any]:
        """First batches with an empty kernel cache, as on a fresh machine; then again."""
        found: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as cache:
            for work in ("W1", "W2", "W3", "W4", "W5"):
                job = Job("", "first", "samebatch", work, 2, 0)
                for state in ("fresh", "warm"):
                    result = self.child(job, 150.0, NUMBA_CACHE_DIR=cache)
                    if "error" in result:
                        return result
                    found[f"{work} {state}"] = result["import_s"] + result["first_batch_s"]
        found["compile_s"] = sum(
            found[f"{work} fresh"] - found[f"{work} warm"]
            for work in ("W1", "W2", "W3", "W4", "W5")
        )
        return found

    def _finish(
        self, command: list[Any], venv: str, environment: dict[str, str], limit_s: float
    ) -> dict[str, Any]:
        words = [str(environments.python(venv)), *map(str, command)]
        if self.quick:
            words.append("--quick")
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        quiet = {"LITDATA_DISABLE_VERSION_CHECK": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=inherited | one_thread | quiet | environment,
                start_new_session=True,
            )
            try:
                out, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                return {"error": f"not done after {limit_s:.0f} s"}
            finally:
                _end(process)
            found = [line[7:] for line in out.splitlines() if line.startswith("RESULT ")]
            if found:
                result: dict[str, Any] = json.loads(found[-1])
                return result
            log.seek(0)
            return {"error": log.read()[-600:].strip() or f"status {process.returncode}"}


def _end(process: subprocess.Popen) -> None:
    """End what is left of a contender: its session holds nobody else."""
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


# ---------------------------------------------------------------- all jobs
def load(path: Path) -> tuple[dict[Job, dict[str, Any]], dict[Job, str]]:
    """Return the results so far, and the errors of what has none; a cut line is left out."""
    found: dict[Job, dict[str, Any]] = {}
    failed: dict[Job, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        result = entry.pop("result")
        if "error" in result:
            failed[Job(**entry)] = result["error"]
        else:
            found[Job(**entry)] = result
    return found, {job: why for job, why in failed.items() if job not in found}


def run(given: argparse.Namespace, wanted: list[Job], raw: Path) -> Runner:
    """Run what is not done yet."""
    runner = Runner(given.quick)
    done, _ = load(raw)
    todo = [job for job in wanted if job not in done]
    print(f"{len(wanted)} measurements, {len(wanted) - len(todo)} of them done before", flush=True)
    runner.prepare(wanted)
    began = time.monotonic()
    left = [job for job in todo if not runner.why_not(job)]
    for ran, job in enumerate(left, 1):
        result = runner.run(job)
        with raw.open("a") as file:
            file.write(json.dumps(asdict(job) | {"result": result}) + "\n")
        passed = time.monotonic() - began
        rest = passed / ran * (len(left) - ran) / 60
        print(
            f"[{ran}/{len(left)}, about {rest:.0f} min left] {job}: {summary(result)}",
            flush=True,
        )
    return runner


def summary(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"FAILED: {(result['error'].splitlines() or ['?'])[-1][:160]}"
    if "rate" in result:
        text = f"{result['rate']:,.0f} samples/s, first batch {result['first_batch_s']:.2f} s"
        if result["foreign_cores"] > 0.15:
            text += f"; others used {result['foreign_cores']:.1f} cores meanwhile"
        return text
    return ", ".join(f"{k} {v:.3g}" for k, v in result.items() if isinstance(v, float))[:160]


def write(path: Path, wanted: list[Job], raw: Path, runner: Runner) -> None:
    """Write all results with machine, versions and commit."""
    done, failed = load(raw)
    machine = measure.machine()
    venvs = dict.fromkeys(PEERS[job.peer].venv for job in done)
    machine["versions"] = {name: environments.versions(name) for name in venvs}
    entries = [asdict(job) | {"result": done[job]} for job in wanted if job in done]
    path.parent.mkdir(exist_ok=True)
    errors = {str(job): why for job, why in failed.items() if job in wanted}
    body = {
        "machine": machine,
        "slow_ms": SLOW_MS,
        "skipped": runner.skipped,
        "failed": errors,
        "jobs": entries,
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    foreign = [e["result"]["foreign_cores"] for e in entries if e["measure"] == "rate"]
    if foreign:
        print(f"others used {statistics.median(foreign):.2f} cores in the median run")
    print(f"written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all three tiers")
    parser.add_argument("--tiers", default="main", help="of main,wide,checks")
    parser.add_argument("--peers", help="only these, beside ours, e.g. torch,torch_batch,spdl")
    parser.add_argument("--works", help="only these, e.g. W1,W4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="tiny data and one round: a smoke test"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run measured")
    given = parser.parse_args()
    tiers = ["main", "wide", "checks"] if given.all else given.tiers.split(",")
    peers = given.peers.split(",") if given.peers else list(PEERS)
    works = given.works.split(",") if given.works else WORKS
    unknown = [n for n in (*peers, *works, *tiers) if n not in (*PEERS, *WORKS, *_TIERS)]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; peers: {', '.join(PEERS)}")
    wanted = [
        job
        for job in jobs(tiers, 1 if given.quick else given.rounds)
        if (job.peer in peers or job.peer.startswith("samebatch"))
        and job.work in (*works, "R", "-")
    ]
    OUT.mkdir(exist_ok=True)
    name = "quick" if given.quick else "peers"
    raw = OUT / f"{name}.jsonl"
    if given.fresh:
        raw.unlink(missing_ok=True)
    runner = run(given, wanted, raw)
    target = OUT / "quick.json" if given.quick else HERE / "results" / "peers.json"
    write(target, wanted, raw, runner)


_TIERS = ("main", "wide", "checks")

if __name__ == "__main__":
    sys.exit(main())
