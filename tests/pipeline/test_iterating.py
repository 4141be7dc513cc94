"""Unusual ways of going through a loader."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline import datasets

ROOT = Path(__file__).parent.parent.parent
DATA = datasets.ArrayDataset(np.arange(101))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_threads_that_share_an_iterator_share_its_batches(workers: int, mode: str) -> None:
    with pipeline.DataLoader(DATA, 7, seed=1, num_workers=workers, mode=mode) as loader:
        batches = iter(loader)
        seen: list[int] = []

        def take() -> None:
            for batch in batches:
                seen.extend(batch.tolist())

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(101))
        assert loader.epoch == 1


def test_set_epoch_during_a_pass_is_for_the_next_one() -> None:
    with pipeline.DataLoader(DATA, 7, shuffle=True, seed=1) as loader:
        expected = [b.tolist() for b in loader]
        fifth = None
        loader.set_epoch(0)
        found = []
        for batch in loader:
            loader.set_epoch(5)
            found.append(batch.tolist())
        assert found == expected
        assert loader.epoch == 5
        fifth = next(iter(loader))
        assert np.array_equal(fifth, loader.batch_at(5, 0))


def test_set_epoch_and_a_break_begin_that_epoch() -> None:
    with pipeline.DataLoader(DATA, 7, shuffle=True, seed=1) as loader:
        for _ in loader:
            break
        for _ in loader:
            loader.set_epoch(9)
            break
        assert np.array_equal(next(iter(loader)), loader.batch_at(9, 0))


PROGRAM = """
import multiprocessing, sys
sys.path.insert(0, {root!r})
import pipeline

class Numbers:
    def __len__(self): return 10
    def __getitem__(self, i): return i

def child(queue):
    with pipeline.DataLoader(Numbers(), 4, num_workers=1, seed=1) as loader:
        queue.put([batch.tolist() for batch in loader])

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


def test_a_loader_inside_a_spawned_child_knows_the_classes_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.format(root=str(ROOT)))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]"


def test_a_hung_sample_is_reported_soon_after_the_timeout() -> None:
    class Hanging:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, i: int) -> Any:
            if i == 9:
                threading.Event().wait()
            return i

    loader = pipeline.DataLoader(Hanging(), 4, seed=1, num_workers=2, timeout=1)
    with pytest.raises(pipeline.WorkerError, match="no batch came for"):
        list(loader)
