"""Floors: what this machine can do at best. Printed as one line of JSON.

    .venvs/samebatch/bin/python floors.py [--quick]

memcpy      GB/s copied by one process, and by two together
touch       the consumer's sum of a batch
decode      one file: Pillow, OpenCV; the whole picture, nothing else
kernel      our kernels alone: a chunk made into one warm buffer, no loader, no workers
wake        a round trip of two futexes between two processes (a multiprocessing.Semaphore)
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import workloads


def timed(call: Callable[[], Any], rounds: int = 5, least_s: float = 0.05) -> float:
    """Return seconds of one call: the median of rounds of at least `least_s`."""
    call()
    times, calls = [], 1
    while len(times) < rounds:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        passed = time.perf_counter() - began
        if passed < least_s:
            calls *= 2
        else:
            times.append(passed / calls)
    return statistics.median(times)


def _copy(start: Any, results: Any, nbytes: int) -> None:
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    start.wait()
    results.put(nbytes / timed(lambda: np.copyto(target, source)) / 1e9)


def memcpy(nbytes: int) -> dict[str, float]:
    found = {}
    for count in (1, 2):
        start, results = multiprocessing.Barrier(count), multiprocessing.Queue()
        workers = [
            multiprocessing.Process(target=_copy, args=(start, results, nbytes))
            for _ in range(count)
        ]
        for worker in workers:
            worker.start()
        found[f"memcpy, {count} at once: GB/s"] = sum(results.get() for _ in workers)
        for worker in workers:
            worker.join()
    return found


def touch() -> dict[str, float]:
    shapes = {
        "W1": ((512, 3, 32, 32), np.float32),
        "W2": ((64, 3, 224, 224), np.float32),
        "W4": ((32, 1024), np.int64),
        "W5": ((256,), np.int32),
    }
    found = {}
    for name, (shape, dtype) in shapes.items():
        x = np.ones(shape, dtype)
        seconds = timed(lambda x=x: np.add.reduce(x, axis=None))
        found[f"touch {name}: us/sample"] = 1e6 * seconds / shape[0]
    return found


def decode(quick: bool) -> dict[str, float]:
    from pipeline.datasets import pixels

    one = workloads.work("W2", quick)
    files = [Path(path).read_bytes() for path in workloads.paths(one.folder)[:200]]

    def per_second(call: Callable[[bytes], Any]) -> float:
        return len(files) / timed(lambda: [call(data) for data in files], rounds=3)

    found = {"decode, Pillow: images/s of a core": per_second(lambda d: pixels.decode(d, "RGB"))}
    try:
        import cv2
    except ImportError:
        return found
    cv2.setNumThreads(1)
    found["decode, OpenCV: images/s of a core"] = per_second(workloads.decode)
    return found


def kernel(quick: bool) -> dict[str, float]:
    """Make batches by the recipe alone, over and over into one buffer."""
    from peers import ours

    found = {}
    for name in ("W1", "W3", "W4", "W5"):
        one = workloads.work(name, quick)
        loader = ours.Processes(one, 0, 1).loader
        first = loader.batch_at(0, 0)  # compiles, and learns the fields
        arrays = list(first) if isinstance(first, tuple) else [first]
        recipe = loader._recipe
        ids = np.random.default_rng(1).integers(0, one.count, (64, one.batch))
        positions = np.arange(64 * one.batch, dtype=np.uint64).reshape(64, one.batch)
        step = iter(range(1 << 40))

        def make(recipe=recipe, arrays=arrays, ids=ids, positions=positions, step=step):
            k = next(step) % 64
            recipe.fill(arrays, 0, ids[k], positions[k], 0)

        found[f"kernel {name}: us/sample of a core"] = 1e6 * timed(make) / one.batch
        loader.close()
    return found


def _answer(asked: Any, answered: Any) -> None:
    while asked.acquire():
        answered.release()


def wake() -> dict[str, float]:
    asked, answered = multiprocessing.Semaphore(0), multiprocessing.Semaphore(0)
    other = multiprocessing.Process(target=_answer, args=(asked, answered), daemon=True)
    other.start()

    def turn() -> None:
        asked.release()
        answered.acquire()

    seconds = timed(turn)
    other.terminate()
    other.join()
    return {"wake, round trip: us": 1e6 * seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    found = memcpy(1 << 22 if quick else 1 << 28)
    for part in (touch(), decode(quick), kernel(quick), wake()):
        found |= part
    print("\nRESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
