"""How far it scales: a model with the constants of this machine, a simulation, and a check of it here.

    .venvs/samebatch/bin/python benchmarks/scale.py [--quick]     (or any environment with samebatch)

Measures what one claim, one wake-up, one batch and one sample cost here, simulates 64 to 256 cores
with the real protocol (claims in order, a ring of buffers, batches taken in order), and writes the
tables of docs/scale.md between its markers, and results/scale.json. `--quick` only shows that it runs.
"""

import argparse
import heapq
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import processes
from numba import njit

import pipeline
import rng
from pipeline import datasets
from pipeline import transforms as T
from pipeline.recipe import Recipe
from pipeline.transfer import cells
from pipeline.transfer import layout as at
from pipeline.transfer.layout import Field, Layout, format_control
from pipeline.transfer.station import Attached, TransferStation

ROOT = Path(__file__).resolve().parent.parent
MARKS = "<!-- made by benchmarks/scale.py -->", "<!-- end -->"


@dataclass
class Constants:
    """What things cost here, in microseconds unless the name says otherwise."""

    claim_ns: float = 0.0  # claim and commit in compiled code, alone
    claim_shared_ns: float = 0.0  # the same, per claim, while two threads fight for the cells
    chunk_us: float = 0.0  # claim and commit as a worker calls them, from Python
    batch_us: float = 0.0  # the consumer: plan, open, take, deliver; no sample
    wake_us: float = 0.0  # from ringing a bell to the sleeper running
    copy_gb_s: float = 0.0  # one core
    sum_gb_s: float = 0.0  # one core, what the consumer reads at
    fisher_yates_ns: float = 0.0  # an element, of ten million
    random_access_ns: float = 0.0


@dataclass(frozen=True)
class Work:
    """One kind of work: `fixed_us` of a call for any number of samples, `sample_us` for each."""

    name: str
    batch: int
    nbytes: int
    fixed_us: float
    sample_us: float


# ---------------------------------------------------------------- constants
def seconds(call: Callable[[], Any], least_s: float) -> float:
    """Return the seconds of one call: the best of three rounds, interference only slows."""
    call()
    found = []
    for _ in range(3):
        calls, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < least_s or not calls:
            call()
            calls += 1
        found.append(passed / calls)
    return min(found)


@njit(nogil=True)
def _drain(control: Any, worker: int) -> int:
    count = 0
    while True:
        q = cells.claim(control, worker, 0, 0)
        if q < 0:
            return count
        cells.commit(control, worker, q)
        count += 1


def claims(threads: int) -> float:
    """Return ns of a claim with its commit, when `threads` do nothing else."""
    layout = Layout((Field("x", (), np.dtype("u1")),), 4096, 1, 4, 1, 8, 4)
    control = np.zeros(layout.control_words, np.uint64)
    format_control(layout, control)
    opened, best = 0, float("inf")
    for _ in range(8):
        for ticket in range(opened, opened + layout.tickets):
            row = layout.ticket_rows + ticket % layout.tickets * at.LINE
            control[row + at.T_CELLS] = layout.cells
            control[row + at.T_FLAGS] = 0
            cells.open_cells(control, ticket, layout.cells, False, 0, True, False)
        opened += layout.tickets
        others = [threading.Thread(target=_drain, args=(control, w)) for w in range(1, threads)]
        began = time.perf_counter()
        for other in others:
            other.start()
        _drain(control, 0)
        for other in others:
            other.join()
        count = layout.tickets * layout.cells
        best = min(best, (time.perf_counter() - began) / count * 1e9)
    return best


def per_chunk_and_batch(least_s: float) -> tuple[float, float]:
    """Return (us of a worker's claim and commit, us of a consumer's batch without either)."""
    dataset = datasets.ArrayDataset(np.arange(1 << 20, dtype=np.int32))
    recipe = Recipe(dataset, (), 1, 16)
    assert recipe.fields is not None
    ids = np.arange(64)
    positions = np.arange(64, dtype=np.uint64)
    layout = Layout(recipe.fields, 64, 1, 4, 4, 12, 2)
    station = TransferStation(layout, fast=False, shared=False)
    worker = Attached(station.views, 0, fast=False)

    def turn(chunk: int) -> None:
        station.can_open()
        station.open(ids, positions, 0, chunk)
        while not isinstance(order := worker.claim(0.0), int):
            worker.commit(order)
        station.wait(0.0)
        station.take()

    many, few = seconds(lambda: turn(1), least_s), seconds(lambda: turn(64), least_s)
    station.close()
    chunk_s = (many - few) / 63
    return chunk_s * 1e6, (few - chunk_s) * 1e6


def loader_batch(least_s: float) -> float:
    """Return us of a batch of one item without workers: plan, order, deliver, all in Python."""
    dataset = datasets.ArrayDataset(np.arange(1 << 14, dtype=np.int32))
    with pipeline.DataLoader(dataset, 1, shuffle=True, seed=1) as loader:
        return seconds(lambda: sum(1 for _ in loader), least_s) / len(dataset) * 1e6


def wake() -> float:
    """Return us from ringing to running: half a round trip between two threads on two bells."""
    words = np.zeros(16, np.uint64)
    rounds = 2000

    def answer() -> None:
        _pingpong(words, 8, 0, rounds, False)

    other = threading.Thread(target=answer)
    other.start()
    began = time.perf_counter()
    _pingpong(words, 0, 8, rounds, True)
    other.join()
    return (time.perf_counter() - began) / rounds / 2 * 1e6


@njit(nogil=True)
def _pingpong(words: Any, mine: int, theirs: int, rounds: int, starts: bool) -> None:
    for turn in range(rounds):
        if starts:
            cells.add(words, theirs, np.uint64(1))
            cells.futex_wake(words, theirs, 1)
        while cells.load(words, mine) <= np.uint64(turn):
            cells.futex_wait(words, mine, np.uint64(turn), 20_000_000)
        if not starts:
            cells.add(words, theirs, np.uint64(1))
            cells.futex_wake(words, theirs, 1)


def constants(least_s: float, elements: int) -> Constants:
    source = np.ones(1 << 26, np.uint8)
    target = np.empty_like(source)
    floats = source.view(np.float32)
    order = rng.RandomAccessPermutation(1 << 32, seed=1)
    places = np.arange(1 << 16)
    chunk_us, station_us = per_chunk_and_batch(least_s)
    return Constants(
        claim_ns=claims(1),
        claim_shared_ns=claims(2),
        chunk_us=chunk_us,
        batch_us=station_us + loader_batch(least_s),
        wake_us=wake(),
        copy_gb_s=source.nbytes / seconds(lambda: np.copyto(target, source), least_s) / 1e9,
        sum_gb_s=source.nbytes / seconds(lambda: np.add.reduce(floats), least_s) / 1e9,
        fisher_yates_ns=seconds(lambda: rng.permutation(elements, 1), least_s) / elements * 1e9,
        random_access_ns=seconds(lambda: order[places], least_s) / len(places) * 1e9,
    )


def works(least_s: float) -> list[Work]:
    """Return the kinds of work, with a call's fixed cost and each sample's, by two sizes."""
    generator = rng.Generator(1)
    images = generator.integers((4096 * 3072,), 0, 256).astype(np.uint8).reshape(-1, 32, 32, 3)
    tokens = generator.integers((1 << 22,), 0, 32_000).astype(np.uint16)
    flip, normal = T.RandomHorizontalFlip(), T.Normalize(preset="imagenet")
    ops = (T.RandomCrop(32, padding=4), flip, normal, T.RandomErasing(p=0.25))
    kinds = (
        ("W1, 32x32 images", 512, datasets.ArrayDataset(images, np.arange(4096)), ops),
        ("W4, 1,024 tokens", 32, datasets.TokenWindows(tokens, 1024), ()),
        ("W5, 4-byte items", 256, datasets.ArrayDataset(np.arange(1 << 17, dtype=np.int32)), ()),
    )
    made = [_work(name, batch, Recipe(data, t, 1, 16), least_s) for name, batch, data, t in kinds]
    # Not measured here: the decode and resize of issue 5, one core's 0.9 ms a file.
    return [*made, Work("W2, JPEGs (900 us each)", 64, 3 * 224 * 224 * 4, 10.0, 900.0)]


def _work(name: str, batch: int, recipe: Recipe, least_s: float) -> Work:
    assert recipe.fields is not None
    n = len(recipe.dataset)
    ids = rng.permutation(n, 1)
    buffers = [np.zeros((batch, *one.shape), one.dtype) for one in recipe.fields]
    positions = np.arange(n, dtype=np.uint64)

    def cost(size: int) -> float:
        first = iter(range(0, 1 << 40, size))

        def call() -> None:
            at_ = next(first) % (n - size)
            recipe.fill(buffers, 0, ids[at_ : at_ + size], positions[at_ : at_ + size], 0)

        return seconds(call, least_s) * 1e6

    one, whole = cost(1), cost(batch)
    sample_us = max(1e-4, (whole - one) / (batch - 1))
    nbytes = sum(field.nbytes for field in recipe.fields)
    return Work(name, batch, nbytes, max(0.0, one - sample_us), sample_us)


# ---------------------------------------------------------------- simulation
def simulate(
    workers: int,
    chunks: int,
    work_us: Callable[[int], float],
    serial_us: float,
    chunk_us: float,
    consumer_us: float,
    wake_us: float,
    depth: int,
    batches: int,
) -> float:
    """Return batches/s of the protocol.

    Chunks are claimed in order; a claim is exclusive for `serial_us` (the cache lines of cursor and
    cell travel), then takes its worker `chunk_us` and `work_us(chunk)`. A batch can be claimed once
    the one `depth` before it is taken. Batches are taken in order, `consumer_us` each, `wake_us`
    later where the consumer slept.
    """
    free = [0.0] * workers
    cursor = 0.0
    opened = [0.0] * depth
    taken = 0.0
    for batch in range(batches):
        may, done = opened[batch % depth], 0.0
        for chunk in range(chunks):
            begins = max(heapq.heappop(free), cursor, may)
            cursor = begins + serial_us
            ends = cursor + chunk_us + work_us(batch * chunks + chunk)
            heapq.heappush(free, ends)
            done = max(done, ends)
        if done > taken:
            taken = done + wake_us
        taken += consumer_us
        opened[batch % depth] = taken
    return batches / taken * 1e6


def limits(work: Work, c: Constants, cores: int, chunk: int, touches: bool) -> dict[str, float]:
    """Return samples/s that each part alone would allow."""
    chunks = -(-work.batch // chunk)
    per_chunk = c.chunk_us + work.fixed_us + chunk * work.sample_us
    consumer = c.batch_us + chunks * c.claim_ns / 1e3
    if touches:
        consumer += work.batch * work.nbytes / (c.sum_gb_s * 1e3)
    # A line goes from core to core for the cursor, the cell's claim and its commit.
    serial_us = max(c.claim_shared_ns, c.claim_ns) / 1e3
    return {
        "workers": (cores - 1) * chunk / per_chunk * 1e6,
        "claims": chunk / serial_us * 1e6,
        "consumer": work.batch / consumer * 1e6,
    }


def simulated(work: Work, c: Constants, cores: int, chunk: int, depth: int, touches: bool) -> float:
    """Return samples/s on `cores`, one of them the consumer's."""
    chunks = -(-work.batch // chunk)
    consumer = work.batch / limits(work, c, cores, chunk, touches)["consumer"] * 1e6
    made = chunk * work.sample_us + work.fixed_us
    serial = max(c.claim_shared_ns, c.claim_ns) / 1e3
    batches = max(4 * depth, min(2000, 200_000 // chunks))
    rate = simulate(
        cores - 1, chunks, lambda _: made, serial, c.chunk_us, consumer, c.wake_us, depth, batches
    )
    return rate * work.batch


# ---------------------------------------------------------------- check of the simulation, here
class Spinning:
    """Samples that take the same time, whatever runs beside them: what the model assumes."""

    def __init__(self, us: int, count: int) -> None:
        self.us, self.count = us, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> int:
        until = time.perf_counter_ns() + self.us * 1000
        while time.perf_counter_ns() < until:
            pass
        return i


def check(c: Constants, quick: bool) -> list[dict[str, float]]:
    """Measure loaders with 1 and 2 workers on work of known length, and simulate the same."""
    rows = []
    for us in (50, 400):
        count, batch = (1024, 32) if quick else (8192, 32)
        dataset = Spinning(us, count)
        with pipeline.DataLoader(dataset, batch, seed=1) as alone:
            list(alone)
            epochs = []
            for _ in range(3):
                began = time.perf_counter()
                list(alone)
                epochs.append(time.perf_counter() - began)
            sample_us = min(epochs) / count * 1e6
        for workers in (1, 2):
            with pipeline.DataLoader(dataset, batch, seed=1, num_workers=workers) as loader:
                rates = []
                for turn in range(2 if quick else 6):
                    began = time.perf_counter()
                    samples = sum(len(x) for x in loader)
                    if turn:  # the first starts the workers
                        rates.append(samples / (time.perf_counter() - began))
            chunk = max(1, min(batch // (2 * workers), round(200 / sample_us)))
            chunks = -(-batch // chunk)
            depth = max(4, min(8, 2 * workers))
            simulated_rate = batch * simulate(
                workers, chunks, lambda _, n=chunk, us=sample_us: n * us, c.claim_ns / 1e3,
                c.chunk_us, c.batch_us, c.wake_us, depth, 2000,
            )  # fmt: skip
            rows.append(
                {
                    "sample_us": sample_us,
                    "workers": workers,
                    "measured": statistics.median(rates),
                    "simulated": simulated_rate,
                }
            )
    return rows


# ---------------------------------------------------------------- tables
def tables(
    c: Constants, kinds: list[Work], checked: list[dict[str, float]], foreign: float
) -> list[str]:
    where = measure.machine()
    lines = [
        "", f"Measured on {where['cpu']}, {where['cores']} cores, commit {where['commit']}, "
        f"{where['date']}; other programs used {foreign:.1f} cores meanwhile"
        + (": mistrust the figures." if foreign > 0.15 else "."), "", "| constant | here |", "|---|---:|",
        f"| claim and commit, compiled, one core | {c.claim_ns:.0f} ns |",
        f"| the same, of each claim while two cores fight for the cells | {c.claim_shared_ns:.0f} ns |",
        f"| claim and commit as a worker calls them | {c.chunk_us:.1f} us |",
        f"| the consumer's part of a batch | {c.batch_us:.0f} us |",
        f"| a wake-up | {c.wake_us:.0f} us |",
        f"| copying, one core | {c.copy_gb_s:.1f} GB/s |",
        f"| summing, one core | {c.sum_gb_s:.1f} GB/s |",
        f"| Fisher-Yates, an element | {c.fisher_yates_ns:.1f} ns |",
        f"| random access, an element | {c.random_access_ns:.1f} ns |",
        "", "### Simulation against measurement, here", "",
        "| work of a sample | workers | measured, samples/s | simulated | simulated / measured |",
        "|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    lines += [
        f"| {row['sample_us']:.0f} us | {row['workers']} | {row['measured']:,.0f} | "
        f"{row['simulated']:,.0f} | {row['simulated'] / row['measured']:.2f} |"
        for row in checked
    ]
    lines += ["", "### 64 to 256 cores", "",
              "| workload | cores | chunk | samples/s if the consumer touches every byte | first limit | "
              "samples/s if it hands batches over | first limit | memory written, GB/s |",
              "|---|---:|---:|---:|---|---:|---|---:|"]  # fmt: skip
    for work in kinds:
        for cores in (2, 64, 128, 256):
            lines.append(_row(work, c, cores))
    lines += ["", "### The order of an epoch", "",
              "| samples | Fisher-Yates: memory | time, one core | random access: memory | time of a batch of 1,024 |",
              "|---:|---:|---:|---:|---:|"]  # fmt: skip
    for power in (6, 9, 10, 12):
        n = 10**power
        lines.append(
            f"| 10^{power} | {8 * n / 1e9:,.3g} GB | {c.fisher_yates_ns * n / 1e9:,.3g} s or more | "
            f"0 | {c.random_access_ns * 1024 / 1e3:.0f} us |"
        )
    return [*lines, ""]


def chunk_of(work: Work, workers: int) -> int:
    """Return what the engine chooses (see `engine.Pooled`): a share of the batch for each worker."""
    if work.sample_us > 100:
        return max(1, min(work.batch // (2 * workers), round(200 / work.sample_us)))
    return max(1, -(-work.batch // workers))


def _row(work: Work, c: Constants, cores: int) -> str:
    workers = cores - 1
    chunk, depth = chunk_of(work, workers), 8
    cells_ = []
    fastest = 0.0
    for touches in (True, False):
        rate = simulated(work, c, cores, chunk, depth, touches)
        found = limits(work, c, cores, chunk, touches)
        found["batches in flight"] = depth * work.batch / _latency_us(work, c, chunk) * 1e6
        first = min(found, key=lambda name: found[name])
        cells_ += [f"{rate:,.0f}", first]
        fastest = max(fastest, rate)
    written = fastest * work.nbytes / 1e9
    return f"| {work.name} | {cores} | {chunk} | {' | '.join(cells_)} | {written:,.1f} |"


def _latency_us(work: Work, c: Constants, chunk: int) -> float:
    """Return how long a batch is in flight at least, if every chunk has a worker."""
    return c.chunk_us + work.fixed_us + chunk * work.sample_us + c.batch_us + c.wake_us


def write(document: Path, lines: list[str]) -> None:
    text = document.read_text()
    head, _, rest = text.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    document.write_text(f"{head}{MARKS[0]}\n{chr(10).join(lines)}\n{MARKS[1]}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="show that it runs; writes nothing")
    quick = parser.parse_args().quick
    os.chdir(ROOT)
    least_s = 0.01 if quick else 0.3
    began, busy = time.perf_counter(), processes.busy_s()
    cpu = processes.cpu_s(os.getpid())
    c = constants(least_s, 10**5 if quick else 10**7)
    kinds = works(least_s)
    checked = check(c, quick)
    own = processes.cpu_s(os.getpid()) - cpu
    foreign = max(0.0, processes.busy_s() - busy - own) / (time.perf_counter() - began)
    lines = tables(c, kinds, checked, foreign)
    print("\n".join(lines))
    if not quick:
        write(ROOT / "docs" / "scale.md", lines)
        body = {
            "machine": measure.machine(),
            "constants": asdict(c),
            "works": [asdict(work) for work in kinds],
            "check": checked,
        }
        (ROOT / "benchmarks/results/scale.json").write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
