"""What the consumer makes itself: native batches that cost next to nothing (workers rest), and samples for which
workers wait for storage.
"""

import os
import signal
import time

import numpy as np
import pytest
from PIL import Image

from pipeline import datasets, engine
from tests.helpers import fingerprint, image, images, make, rows, runs, wait_until, walk

N, BATCH = 403, 4


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """However slow this machine is now, making a batch here is worth it."""
    monkeypatch.setattr(engine, "_HANDOVER_NS", 1 << 60)


def arrays(n=N):
    return datasets.ArrayDataset(images(n), np.arange(n) % 7)


@pytest.mark.parametrize("method", ["process", "thread"])
@pytest.mark.parametrize("options", [
    {}, {"drop_last": True}, {"tail": "pad"}, {"world_size": 3, "rank": 1}, {"shuffle": False},
], ids=str)  # fmt: skip
def test_the_same_bytes_as_without_workers_and_with_workers_that_work(method, options, monkeypatch):
    with make(arrays(), num_workers=2, worker_method=method, **options) as loader:
        alone = fingerprint(loader, 3)
        assert loader._engine._alone_samples > 2 * len(loader) * BATCH * 0.8
    with make(arrays(), num_workers=0, **options) as loader:
        assert fingerprint(loader, 3) == alone
    monkeypatch.setattr(engine, "_HANDOVER_NS", 0)
    with make(arrays(), num_workers=2, worker_method=method, **options) as loader:
        assert fingerprint(loader, 3) == alone
        assert loader._engine._alone_samples == 0


def test_fast_mode_delivers_the_same_set():
    with make(arrays(), num_workers=2, mode="fast") as loader, make(arrays()) as inline:
        for _ in range(2):
            assert sorted(walk(loader)) == sorted(walk(inline))
        assert loader._engine._alone_samples


@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_resumes_at_any_step_whoever_makes_the_batches(mode):
    with make(arrays(), num_workers=2, mode=mode) as loader, make(arrays()) as inline:
        whole = walk(inline)
        walk(loader)
        loader.set_epoch(0)
        for step in (1, 7, 50, 99):
            loader.set_epoch(0)
            before = walk(loader, step)
            state = loader.state_dict()
            with make(arrays(), num_workers=1, mode=mode) as other:
                other.load_state_dict(state)
                assert sorted(before + walk(other)) == sorted(whole)


def test_kept_batches_are_never_overwritten():
    with make(arrays(), num_workers=2) as loader:
        walk(loader)
        kept = [(batch, [leaf.copy() for leaf in batch]) for batch in loader]
        assert all(np.array_equal(a, b) for x, y in kept for a, b in zip(x, y, strict=True))


def test_workers_take_over_while_batches_are_dear_and_trials_become_rarer(monkeypatch):
    monkeypatch.setattr(engine, "_HANDOVER_NS", 10_000_000)
    with make(arrays(4003), num_workers=2) as loader, make(arrays(4003)) as inline:
        got, batches = [], iter(loader)

        def deliver():
            got.extend(rows(loader, next(batches)))
            return loader._engine._alone

        assert wait_until(deliver, 60.0)
        fill = loader._recipe.fill

        def slowly(*arguments, **options):
            until = time.perf_counter() + 0.05
            while time.perf_counter() < until:
                pass
            return fill(*arguments, **options)

        loader._recipe.fill = slowly
        assert wait_until(lambda: not deliver(), 60.0)
        assert loader._engine._trial_steps == 2 * engine._WEIGHED_STEPS
        del loader._recipe.fill
        for batch in batches:
            got += rows(loader, batch)
        assert got == walk(inline)


def test_a_resting_worker_that_dies_is_replaced():
    with make(arrays(), num_workers=2) as loader:
        assert wait_until(lambda: walk(loader) and len(loader.worker_pids()) == 2, 60.0)
        pids = loader.worker_pids()
        os.kill(pids[0], signal.SIGKILL)
        assert wait_until(lambda: walk(loader) and loader.restarts == 1, 60.0)
        assert wait_until(lambda: walk(loader) and all(map(runs, loader.worker_pids())), 60.0)


def test_an_interrupted_batch_is_made_again():
    with make(arrays(), num_workers=2) as loader, make(arrays()) as inline:
        walk(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        got = [row for _ in range(5) for row in rows(loader, next(batches))]
        assert loader._engine._alone
        fill = loader._recipe.fill

        def interrupted(*arguments, **options):
            fill(*arguments, **options)
            raise KeyboardInterrupt

        loader._recipe.fill = interrupted
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        del loader._recipe.fill
        assert got + walk(loader) == walk(inline)


# ---------------------------------------------------------------- workers that wait for storage
@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for k in range(60):
        path = root / f"class{k % 2}" / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image(k)).save(path)
    return datasets.ImageFolder(root)


def helped(loader, epochs):
    """How many samples the consumer makes in so many epochs after the worker has started."""
    assert wait_until(lambda: walk(loader) and loader._engine.pool.ready, 60.0)
    before = loader.stats().consumer.help_samples
    rows_ = [walk(loader) for _ in range(epochs)]
    return loader.stats().consumer.help_samples - before, rows_


def test_the_consumer_helps_while_storage_is_slow(files, monkeypatch):
    monkeypatch.setattr(engine, "_USAGE_S", 0.0)
    monkeypatch.setattr(engine, "_WAITING", float("inf"))
    with make(files, num_workers=1) as loader, make(files) as inline:
        count, found = helped(loader, 10)
        assert count > 0
        inline.set_epoch(loader.epoch - 10)
        assert [walk(inline) for _ in range(10)] == found


@pytest.mark.parametrize(("waiting", "options"), [
    (-1.0, {}), (float("inf"), {"timeout": 60}),
], ids=["storage is fast", "a wait must end in time"])  # fmt: skip
def test_it_leaves_single_samples_to_the_workers_otherwise(files, monkeypatch, waiting, options):
    monkeypatch.setattr(engine, "_USAGE_S", 0.0)
    monkeypatch.setattr(engine, "_WAITING", waiting)
    with make(files, num_workers=1, **options) as loader:
        assert helped(loader, 3)[0] == 0
