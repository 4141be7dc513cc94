"""Loaders that end in unusual ways."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pipeline

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
folder = tempfile.mkdtemp(); os.chdir(folder); shutil.rmtree(folder)
import pipeline
class Numbers:
    def __len__(self): return 40
    def __getitem__(self, i): return i
with pipeline.DataLoader(Numbers(), 4, num_workers=2, seed=1) as loader:
    print(sum(int(b.sum()) for b in loader))
"""


def test_a_removed_folder_and_warnings_as_errors_do_not_matter() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c",
         f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "780"
    assert "Warning" not in done.stderr, done.stderr
