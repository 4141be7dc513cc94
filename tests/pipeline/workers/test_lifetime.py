"""Loaders that end in unusual ways."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pipeline
from tests.helpers import runs, wait_until

ROOT = Path(__file__).parent.parent.parent.parent


class Numbers:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> int:
        return i


def test_loaders_in_reference_cycles_are_collected_without_a_hang() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.loader = pipeline.DataLoader(Numbers(), 4, seed=1, num_workers=1)
            self.callbacks = [self.step]

        def step(self) -> Any:
            return next(iter(self.loader))

    for _ in range(3):
        Trainer().step()
        gc.collect()


PROGRAM = """
import os, shutil, tempfile
import pipeline
folder = tempfile.mkdtemp(); os.chdir(folder); shutil.rmtree(folder)
class Numbers:
    def __len__(self): return 40
    def __getitem__(self, i): return i
with pipeline.DataLoader(Numbers(), 4, num_workers=2, seed=1) as loader:
    print(sum(int(b.sum()) for b in loader))
"""


def test_a_removed_folder_and_resource_warnings_as_errors_do_not_matter() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c",
         f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "780"
    assert "Warning" not in done.stderr, done.stderr


STUCK = """
import os, sys, threading
sys.path.insert(0, {root!r})
import pipeline
class Stuck:
    def __len__(self): return 40
    def __getitem__(self, i):
        if i == 5:
            os.write(1, b"stuck\\n")  # one piece: two processes write here
            threading.Event().wait()
        return i
loader = pipeline.DataLoader(Stuck(), 4, num_workers=1, seed=1)
batches = iter(loader)
next(batches)
os.write(1, b"%d\\n" % loader.worker_pids()[0])
next(batches)
"""


@pytest.mark.kill
def test_a_worker_inside_a_long_sample_dies_with_parent_and_launcher() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.format(root=str(ROOT))], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    said.discard("stuck")
    worker = int(said.pop())
    launcher = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
    for pid in (launcher, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: not runs(worker), 5.0), "it outlived its parent and its launcher"


def test_an_interrupt_ends_the_workers_and_loses_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipeline.DataLoader(Numbers(), 4, seed=1, num_workers=2) as loader:
        batches = iter(loader)
        first = next(batches).tolist()
        pids = loader.worker_pids()

        def interrupt() -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(loader._engine, "take", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert loader.worker_pids() == []
        assert not any(map(runs, pids))
        rest = [i for batch in loader for i in batch.tolist()]
        assert first + rest == list(range(40))
