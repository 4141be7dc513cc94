"""What `loader.stats()` says: in every mode, at every moment, and who the bottleneck is."""

import logging
import os
import signal
import threading

import numpy as np
import pytest

import pipeline
from pipeline import watch
from pipeline.stats import ConsumerStats, WorkerStats, verdict
from tests.helpers import Images, Numbers, Slow, make, runs, wait_until, walk

WAYS = [
    ("inline", {}),
    ("process", {"num_workers": 2}),
    ("thread", {"num_workers": 2, "worker_method": "thread"}),
    ("process", {"num_workers": 2, "mode": "fast"}),
]


@pytest.mark.parametrize(("kind", "how"), WAYS)
def test_before_during_and_after_iterating(kind, how, launcher):
    with make(Images(40), **how) as loader:
        before = loader.stats()
        assert (before.kind, before.workers, before.ring) == ("none", (), None)
        assert before.bottleneck == "unknown"
        held = []
        for batch in loader:
            held.append(batch)
            now = loader.stats()
            assert now.kind == kind
            assert now.consumer.batches == len(held)
            ring = now.ring
            assert ring.free + ring.in_flight + ring.ready + ring.lent == ring.buffers
            assert min(ring.free, ring.in_flight, ring.ready, ring.lent) >= 0
        assert now.ring.lent >= 4
        assert now.ring.copies >= 4
        del held, batch
        after = loader.stats()
        made = sum(one.samples for one in after.workers) + after.consumer.help_samples
        assert made >= 40
        assert after.consumer.help_share == (1.0 if kind == "inline" else 0.0)
        assert after.ring.lent <= 1
        assert (after.epoch, after.offset) == (1, 0)
    assert loader.stats().consumer.batches == 10
    assert loader.stats().workers == after.workers or kind == "process"


def test_a_stuck_and_a_stopped_worker_are_seen(launcher, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    class Stuck(Numbers):
        def __getitem__(self, i):
            if i == 3:
                with open(gate) as f:  # until somebody opens it for writing
                    f.read()
            return np.int64(i)

    with make(Stuck(40), batch_size=1, shuffle=False, transforms=[], num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)

        def seen():
            return [one for one in loader.stats().workers if one.position == 3 and one.age_s > 0.2]

        assert wait_until(seen, 30)
        assert (seen()[0].sample_id, seen()[0].stage) == (3, "working")
        os.kill(seen()[0].pid, signal.SIGSTOP)
        assert wait_until(lambda: seen()[0].stage == "stopped", 10)
        os.kill(seen()[0].pid, signal.SIGCONT)
        os.close(os.open(gate, os.O_WRONLY))
        assert [int(x[0]) for x in iterator] == list(range(1, 40))


def test_restarts_and_the_counts_of_dead_workers_are_kept(launcher):
    with make(Slow(60, 3.0), num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        for _ in range(2):
            assert wait_until(lambda: any(map(runs, loader.worker_pids())), 30)
            killed = next(filter(runs, loader.worker_pids()))
            os.kill(killed, signal.SIGKILL)
            assert wait_until(lambda pid=killed: not runs(pid), 30)  # or it would be killed twice
            next(iterator)
        rest = sum(1 for _ in iterator)
        stats = loader.stats()
        assert rest == 12
        assert stats.restarts == sum(one.restarts for one in stats.workers) >= 1
        # A chunk whose worker died before it could say so is counted once or twice.
        assert sum(one.samples for one in stats.workers) >= 60 - 2 * 4


def test_a_sample_that_takes_long_is_logged_once_with_its_stack(launcher, monkeypatch, caplog):
    monkeypatch.setattr(watch, "STUCK_S", 0.3)
    with make(Slow(8, 1.0), num_workers=1, shuffle=False, batch_size=1) as loader:
        walk(loader)

    class Long(Images):
        def __getitem__(self, i):
            if i == 5:
                threading.Event().wait(2.0)
            return super().__getitem__(i)

    caplog.set_level(logging.WARNING, "samebatch")
    with make(Long(8), num_workers=1, shuffle=False, batch_size=1) as loader:
        walk(loader)
    told = [r.getMessage() for r in caplog.records if "takes long" in r.getMessage()]
    assert len(told) == 1
    assert "sample 5 (/data/0005.png)" in told[0]
    assert "position=5" in told[0]
    assert "in __getitem__" in told[0]


def _worker(work, cpu, read=0):
    return WorkerStats(0, 1, "idle", None, None, 0.0, 9, work, 0.0, 0, cpu, read)


@pytest.mark.parametrize(
    ("consumer", "worker", "expected"),
    [
        ((1, 1.0, 0.0, 0.0), _worker(1, 1), "unknown"),
        ((9, 0.05, 0.0, 1.0), _worker(1, 1), "consumer"),
        ((9, 1.0, 0.0, 1.0), _worker(1, 0.9), "cpu"),
        ((9, 1.0, 0.0, 1.0), _worker(1, 0.1, 5 << 20), "storage"),
        ((9, 1.0, 0.0, 1.0), _worker(1, 0.1), "workers"),
        ((9, 1.0, 0.0, 1.0), _worker(1, None, None), "workers"),
    ],
)
def test_the_verdict(consumer, worker, expected):
    batches, *times = consumer
    assert verdict(ConsumerStats(batches, *times, 0, 0.0), [worker]) == expected


def test_slow_samples_are_the_workers_fault_also_for_a_stretch_of_time(launcher):
    with make(Slow(60, 8.0), num_workers=1) as loader:
        walk(loader)
        assert loader.stats().bottleneck == "workers"  # they sleep: neither processor nor storage
        before = loader.stats()
        walk(loader)
        stretch = loader.stats().since(before)
        assert stretch.consumer.batches == 15
        assert sum(one.samples for one in stretch.workers) >= 60


def test_inline_work_is_measured_too():
    def busy(sample):
        for _ in range(20_000):
            pass
        return sample

    with make(Images(40), transforms=[busy]) as loader:
        walk(loader)
        assert loader.stats().bottleneck in ("cpu", "workers")  # a busy machine may take the time
        assert loader.stats().consumer.help_s > 0


def test_stats_are_read_from_another_thread_while_the_loader_runs_and_closes(launcher):
    loader = make(Slow(80, 1.0), num_workers=2)
    stop, seen, wrong = threading.Event(), [], []

    def look():
        while not stop.is_set():
            try:
                seen.append(loader.stats().line())
            except Exception as e:
                wrong.append(e)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(3):
            walk(loader)
            loader.close()
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert any("bottleneck" in line for line in seen)


def test_the_error_of_a_timeout_is_torchs_and_says_everything(launcher):
    class Stuck(Images):
        def __getitem__(self, i):
            if i == 9:
                threading.Event().wait(60)
            return super().__getitem__(i)

    with make(Stuck(40), shuffle=False, num_workers=2, timeout=0.5) as loader:
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds") as e:
            walk(loader)
        assert isinstance(e.value, pipeline.WorkerError)
        (stuck,) = [one for one in e.value.fields["workers"] if one["position"] is not None]
        assert (stuck["sample_id"], stuck["position"], stuck["stage"]) == (9, 9, "working")
        assert stuck["path"] == "/data/0009.png"
        assert 0.4 < stuck["age_s"] < 60
        assert "in __getitem__" in stuck["stack"]
        assert "/data/0009.png" in str(e.value)
        assert loader.state_dict()["offset"] == 8
