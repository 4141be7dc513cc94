"""Cases from the field about speed (H073 to H075), counted and not timed; benchmarks/ has the speeds."""

import gc
import json
import threading
import tracemalloc

import pytest

from tests.helpers import Images, Numbers, make, python, wait_until, walk

pytestmark = pytest.mark.usefixtures("launcher")


def _first_batch(n, **options):
    """(bytes at most taken, objects left) by the first batch of n samples."""
    with make(Numbers(n), batch_size=16, transforms=[], **options) as loader:
        gc.collect()
        before = len(gc.get_objects())
        tracemalloc.start()
        try:
            batch = next(iter(loader))
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(set(batch.tolist())) == 16
        return most, len(gc.get_objects()) - before


def test_h073_an_order_is_four_bytes_a_sample_and_no_python_objects():
    _first_batch(1000)  # kernels are loaded once
    n = 16_000_000
    most, objects = _first_batch(n)
    assert most < 4 * n * 1.25 + (1 << 24)
    assert objects < 10_000


def test_h073_an_order_by_random_access_takes_no_memory_however_long():
    _first_batch(1000, order="random_access")
    most, objects = _first_batch(10**12, order="random_access")
    assert most < 1 << 24  # loading a kernel takes some, an order would take 4 TB
    assert objects < 10_000


THREADS = """
import json, os
from pathlib import Path
import numba
from tests.helpers import Images, make
before = dict(os.environ), numba.get_num_threads()
found, told = [], []
with make(Images(64), num_workers=2) as loader:
    for batch in loader:
        for pid in loader.worker_pids():
            found.append([t.read_text().strip() for t in Path(f"/proc/{pid}/task").glob("*/comm")])
            told.append(Path(f"/proc/{pid}/environ").read_text().split(chr(0)))
after = dict(os.environ), numba.get_num_threads()
print(json.dumps([found, told, before == after]))
"""


def test_h074_a_worker_computes_with_one_thread_whatever_the_machine_has():
    settings = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    code = python(THREADS, env=dict.fromkeys(settings, "8")).stdout
    found, told, same = json.loads(code)
    assert found
    for names in found:
        # Beside the two of ZeroMQ the one that computes; one more has been seen, for a moment.
        assert len([name for name in names if not name.startswith("ZMQbg")]) <= 2, names
    for environment in told:
        assert {f"{name}=1" for name in settings} <= set(environment)
    assert same


class Held(Images):
    """Sample 0 waits until it is let go; the others are told of."""

    def __init__(self, n, go):
        super().__init__(n)
        self.go = go
        self.made = set()

    def __getitem__(self, i):
        if i == 0:
            assert self.go.wait(60)
        self.made.add(i)
        return super().__getitem__(i)


def test_h075_one_slow_sample_holds_up_no_sample_that_fits_into_the_ring():
    go = threading.Event()
    data = Held(64, go)
    ahead = {"num_workers": 2, "worker_method": "thread", "prefetch_factor": 4}
    with make(data, batch_size=4, shuffle=False, **ahead) as loader:
        found = []
        consumer = threading.Thread(target=lambda: found.extend(walk(loader)))
        # Once freely: the first sample, which tells the fields, is made by the consumer.
        go.set()
        loader.batch_at(0, 0)
        data.made.clear()
        go.clear()
        consumer.start()
        # Sample 0 is not there, and all others of the ring's batches are made meanwhile.
        assert wait_until(lambda: len(data.made) >= 4 * 2 * 4 - 1, 60), sorted(data.made)
        assert 0 not in data.made
        assert found == []
        go.set()
        consumer.join(60)
    assert [row[1] for row in found] == list(range(64))


def test_h075_both_modes_make_each_sample_once_and_no_other():
    counts = []
    for mode in ("reproducible", "fast"):

        class Counted(Images):
            calls = 0
            lock = threading.Lock()

            def __getitem__(self, i):
                with self.lock:
                    type(self).calls += 1
                return super().__getitem__(i)

        how = {"num_workers": 3, "worker_method": "thread", "mode": mode}
        with make(Counted(60), **how) as loader:
            assert len({row[1] for row in walk(loader)}) == 60
        counts.append(Counted.calls)
    assert counts[0] == counts[1]
    assert counts[0] <= 62  # and the first, read to learn the fields
