"""Measures one loader on one workload, in this fresh process; prints one line of JSON.

    .venvs/torch/bin/python contender.py --peer torch --work W1 --workers 2

rate     samples/s from the first batch of an epoch to the first batch of the next, so that turnover
         is in it; processor seconds; turnover; the first batch; then memory, in an epoch of its own
first    construction to first batch alone
bytes    checksums of the first batches of two epochs
resume   state at 90 % of the first epoch, then the time from construction to the next batch
prepare  write the peer's own format
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import time
import warnings
import zlib
from typing import Any

import numpy as np
import processes
import workloads
from peers import PEERS, Peer
from workloads import Work

SEED = 1234
_LONG_S = 4.0  # after so long one measured epoch is enough: the rounds repeat it


class Consumer:
    """Sums every batch, as whoever uses it would at least read it once."""

    def __init__(self, one: Work) -> None:
        self.one = one
        self.sum = 0.0

    def take(self, batch: tuple[Any, Any]) -> int:
        """Return how many samples the batch has."""
        x = array(batch[0])
        self.check(x)
        self.sum += float(np.add.reduce(x, axis=None))
        return len(x)

    def check(self, x: np.ndarray) -> None:
        """Refuse a batch that is less than the workload asks for."""
        side = {"W1": 32, "W2": 224, "W3": 224}.get(self.one.kind)
        if side:
            wanted = np.dtype(np.float32), (3, side, side)
        elif self.one.kind == "W4":
            wanted = np.dtype(np.int64), (workloads.WINDOW,)
        else:
            wanted = x.dtype, ()
        if (x.dtype, x.shape[1:]) != wanted or len(x) > self.one.batch:
            raise SystemExit(f"{self.one.name}: a batch is {x.dtype}{list(x.shape)}")


def array(x: Any) -> np.ndarray:
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def fingerprint(batch: tuple[Any, Any]) -> list[Any]:
    """Return [checksum of the ids or None, checksum of the bytes]."""
    x = np.ascontiguousarray(array(batch[0]))
    ids = None
    if batch[1] is not None:
        ids = zlib.crc32(array(batch[1]).astype(np.int64).tobytes())
    return [ids, zlib.crc32(x.tobytes())]


def rate(peer: Peer, one: Work, workers: int, least_s: float) -> dict[str, Any]:
    loader, epoch, consumer, facts = begin(peer, one, workers)
    samples = facts.pop("samples")
    turnovers: list[float] = []
    rates: list[float] = []
    pid = os.getpid()
    began = start = time.perf_counter()
    total = 0
    cpu, busy = processes.cpu_s(pid), processes.busy_s()
    k = 0
    while True:
        for batch in epoch:
            samples += consumer.take(batch)
        batch = None  # kept on, it would occupy a buffer
        ended = time.perf_counter()
        k += 1
        epoch = iter(loader.epoch(k))
        batch = next(epoch)
        now = time.perf_counter()
        turnovers.append(now - ended)
        if k == 1:  # the cold epoch does not count
            cpu, busy = processes.cpu_s(pid), processes.busy_s()
            began = time.perf_counter()
        else:
            rates.append(samples / (now - start))
            total += samples
        start, samples = now, consumer.take(batch)
        batch = None
        passed = now - began
        if (len(rates) >= 3 and passed >= least_s) or (rates and passed >= _LONG_S):
            break
    wall = time.perf_counter() - began
    used = processes.cpu_s(pid) - cpu
    others = max(0.0, processes.busy_s() - busy - used) / wall
    facts |= {
        "rate": statistics.median(rates),
        "epochs": len(rates),
        "cpu_s_per_1000": 1000 * used / total,
        "turnover_ms": 1e3 * statistics.median(turnovers),
        "foreign_cores": others,
    }
    return facts | memory(loader, epoch, one, consumer)


def begin(peer: Peer, one: Work, workers: int) -> Any:
    """Import, construct, take the first batch."""
    began = time.perf_counter()
    importlib.import_module(peer.imports)
    if one.kind in ("W2", "W3") and peer.venv not in ("samebatch", "dali"):
        importlib.import_module("cv2")
    import_s = time.perf_counter() - began
    made = peer.adapter()
    workloads.load(one)
    consumer = Consumer(one)
    began = time.perf_counter()
    loader = made(one, workers, SEED)
    epoch = iter(loader.epoch(0))
    batch = next(epoch)
    first_s = time.perf_counter() - began
    samples = consumer.take(batch)
    facts = {"import_s": import_s, "first_batch_s": first_s, "samples": samples}
    return loader, epoch, consumer, facts


def memory(loader: Any, epoch: Any, one: Work, consumer: Consumer) -> dict[str, Any]:
    """Look at the memory five times in the rest of an epoch, which is not timed."""
    looks = [(0.0, 0.0, 0)]
    every = max(1, one.steps // 5)
    for step, batch in enumerate(epoch):
        consumer.take(batch)
        batch = None
        if step % every == 0:
            looks.append(processes.memory_mb(os.getpid()))
            if len(looks) == 6:
                break
    loader.close()
    most = max(looks)
    return {"pss_mb": most[0], "pss_own_mb": max(own for _, own, _ in looks), "processes": most[2]}


def first(peer: Peer, one: Work, workers: int) -> dict[str, Any]:
    loader, _, _, facts = begin(peer, one, workers)
    loader.close()
    del facts["samples"]
    return facts


def same_bytes(peer: Peer, one: Work, workers: int) -> dict[str, Any]:
    """Checksums of three batches of each of two epochs."""
    workloads.load(one)
    loader = peer.adapter()(one, workers, SEED)
    found = []
    for k in range(2):
        for step, batch in enumerate(loader.epoch(k)):
            if step < 3:
                found.append(fingerprint(batch))
            elif k == 1:
                break
    loader.close()
    return {"batches": found}


def resume(peer: Peer, one: Work, workers: int) -> dict[str, Any]:
    workloads.load(one)
    made = peer.adapter()
    before = made(one, workers, SEED)
    steps = one.steps * 9 // 10
    state = before.state_after(steps)
    going = getattr(before, "_going", None)
    wanted = fingerprint(next(going)) if going is not None else None
    before.close()
    del before, going
    began = time.perf_counter()
    after = made(one, workers, SEED, state)
    batch = next(iter(after.epoch(0)))
    passed = time.perf_counter() - began
    got = fingerprint(batch)
    after.close()
    return {
        "resume_s": passed,
        "ids_right": None if wanted is None or got[0] is None else got[0] == wanted[0],
        "bytes_right": None if wanted is None else got[1] == wanted[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=list(PEERS), required=True)
    parser.add_argument("--work", choices=workloads.NAMES, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--measure", choices=("rate", "first", "bytes", "resume", "prepare"), default="rate"
    )
    parser.add_argument("--seconds", type=float, default=1.2, help="least time that is measured")
    parser.add_argument("--quick", action="store_true", help="tiny data, to see that it works")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")  # of the peers: theirs to settle
    peer, one = PEERS[given.peer], workloads.work(given.work, given.quick)
    if given.measure == "prepare":
        peer.prepare(one)
        result: dict[str, Any] = {}
    elif given.measure == "rate":
        result = rate(peer, one, given.workers, 0.05 if given.quick else given.seconds)
    else:
        measure = {"first": first, "bytes": same_bytes, "resume": resume}[given.measure]
        result = measure(peer, one, given.workers)
    print("\nRESULT " + json.dumps(result), flush=True)
    os._exit(0)  # some peers hang at exit; what is measured is measured


if __name__ == "__main__":
    sys.exit(main())
