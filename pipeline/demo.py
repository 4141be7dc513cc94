"""`samebatch demo`: one training, run in many ways; every batch and every weight comes out equal.

Real handwritten digits (scikit-learn's, nothing is downloaded), a small perceptron in numpy. Its
weights start from `rng.init` (INIT addresses) and its dropout masks come from `rng.dropout_mask`
(DROPOUT addresses), with the same seed as the loader's order and augmentation: one seed, and no
state anywhere but (epoch, offset) and the weights.
"""

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pipeline
import rng
from pipeline import datasets, state
from pipeline import transforms as T
from pipeline.audit import Digest
from rng import dropout as masks

SEED = 20_26
BATCH = 64
P_DROP = 0.1
RATE = 0.4
HIDDEN = 128


def jitter(sample: Any, stream: Any) -> Any:
    """Change contrast and brightness: a plain function, with a stream at its sample's address."""
    image, label = sample
    gain, shift = stream.uniform(0.8, 1.2), stream.uniform(-20.0, 20.0)
    return np.clip(image * gain + shift, 0, 255).astype(np.uint8), label


def make_loader(**how: Any) -> pipeline.DataLoader:
    """Return the demo's loader; `how` are the arguments that must not matter."""
    return pipeline.DataLoader(
        datasets.Digits("train"),
        batch_size=BATCH,
        shuffle=True,
        seed=SEED,
        transforms=[jitter, T.Normalize(preset="mnist"), T.RandomErasing(p=0.25)],
        **how,
    )


class Perceptron:
    """64 → 128 → 10, ReLU, dropout, softmax, plain SGD; everything in float32.

    The same operations in the same order on arrays of the same place in memory: numpy then gives
    the same bits each time on one machine.
    """

    def __init__(self) -> None:
        self.weights = {
            "hidden.weight": rng.init.kaiming_uniform((HIDDEN, 64), SEED, "hidden.weight"),
            "hidden.bias": rng.init.zeros((HIDDEN,)),
            "output.weight": rng.init.kaiming_uniform((10, HIDDEN), SEED, "output.weight"),
            "output.bias": rng.init.zeros((10,)),
        }

    def scores(self, x: np.ndarray, keep: np.ndarray | None = None) -> tuple[Any, Any]:
        """Return (hidden activations after dropout, class scores)."""
        w = self.weights
        hidden = np.maximum(x @ w["hidden.weight"].T + w["hidden.bias"], 0)
        if keep is not None:
            hidden = hidden * keep
        return hidden, hidden @ w["output.weight"].T + w["output.bias"]

    def step(self, images: np.ndarray, labels: np.ndarray, step: int) -> None:
        """Take one step of stochastic gradient descent."""
        w = self.weights
        n = len(labels)
        x = np.array(images, np.float32).reshape(n, 64)
        mask = rng.dropout_mask(n * HIDDEN, P_DROP, SEED, "hidden", step)
        kept = masks.unpack(mask, n * HIDDEN).reshape(n, HIDDEN)
        keep = kept * masks.scale_of(P_DROP)
        hidden, scores = self.scores(x, keep)
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(n), labels] -= 1
        p /= n
        back = (p @ w["output.weight"]) * keep * (hidden > 0)
        w["output.weight"] -= RATE * (p.T @ hidden)
        w["output.bias"] -= RATE * p.sum(0)
        w["hidden.weight"] -= RATE * (back.T @ x)
        w["hidden.bias"] -= RATE * back.sum(0)

    def digest(self) -> str:
        """Return 16 hex digits of all weights."""
        h = hashlib.blake2b(digest_size=8)
        for name in sorted(self.weights):
            h.update(name.encode() + self.weights[name].tobytes())
        return h.hexdigest()

    def accuracy(self) -> float:
        """Return the share of validation digits it gets right."""
        loader = pipeline.DataLoader(
            datasets.Digits("val"), 360, transforms=[T.Normalize(preset="mnist")], split="val"
        )
        images, labels = next(iter(loader))
        _, scores = self.scores(images.reshape(len(images), 64))
        return float((scores.argmax(1) == labels).mean())


@dataclass
class Result:
    """One run: digests of its batches, of its samples as a set, and of its final weights."""

    batches: str
    samples: str
    weights: str
    accuracy: float
    rate: float
    note: str = ""


class Training:
    """The training loop, which can be stopped after any batch and continued anywhere."""

    def __init__(self, loader: pipeline.DataLoader, epochs: int) -> None:
        self.loader = loader
        self.epochs = epochs
        self.model = Perceptron()
        self.digest = Digest()
        self.step = 0

    def run(self, stop_at: int | None = None, kill_at: int | None = None) -> str:
        """Train to the end, or up to step `stop_at`; SIGKILL a worker after step `kill_at`."""
        note = ""
        while self.loader.epoch < self.epochs:
            for images, labels in self.loader:
                self.model.step(images, labels, self.step)
                info = self.loader.last
                assert info is not None
                self.digest.add([images, labels], info.sample_ids, info.positions)
                self.step += 1
                if self.step == kill_at:
                    note = _kill_one(self.loader)
                if self.step == stop_at:
                    return note
        if note:
            note += f", workers replaced: {self.loader.restarts}"
        return note

    def result(self, seconds: float, note: str) -> Result:
        """Return what came out."""
        return Result(
            self.digest.chain[:16], self.digest.set[:16], self.model.digest(),
            self.model.accuracy(), self.digest.samples / seconds, note,
        )  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write the loader's state (JSON) and the weights."""
        state.save(self.loader.state_dict(), folder / "state.json")
        np.savez(folder / "weights.npz", **self.model.weights)  # type: ignore[arg-type]
        so_far = {"step": self.step, "chain": self.digest.chain, "set": self.digest.set}
        (folder / "progress.json").write_text(json.dumps(so_far))

    def load(self, folder: Path) -> None:
        """Continue what `save` wrote."""
        self.loader.load_state_dict(state.load(folder / "state.json"))
        with np.load(folder / "weights.npz") as arrays:
            self.model.weights = {name: arrays[name] for name in arrays.files}
        so_far = json.loads((folder / "progress.json").read_text())
        self.step = so_far["step"]
        self.digest = Digest(so_far["chain"], so_far["set"])


def _kill_one(loader: pipeline.DataLoader) -> str:
    """SIGKILL a worker, wait until it is gone, and say which."""
    pid = loader.worker_pids()[0]
    fd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([fd], [], [], 10)
    finally:
        os.close(fd)
    return f"killed pid {pid}"


def train(epochs: int, kill_at: int | None = None, **how: Any) -> Result:
    """Train once, with a loader made `how`."""
    with make_loader(**how) as loader:
        training = Training(loader, epochs)
        began = time.perf_counter()
        note = training.run(kill_at=kill_at)
        return training.result(time.perf_counter() - began, note)


def stop_and_continue(epochs: int) -> Result:
    """Stop in the middle of an epoch with 2 workers; a new process goes on with 3."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with make_loader(num_workers=2) as loader:
            training = Training(loader, epochs)
            training.run(stop_at=training.epochs * len(loader) // 2 + 3)
            training.save(folder)
            at = loader.state_dict()
        command = [sys.executable, "-m", "pipeline.cli", "demo", "--continue-from", name]
        done = subprocess.run(
            [*command, "--workers", "3", "--epochs", str(epochs)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    result = Result(**json.loads(done.stdout.splitlines()[-1]))
    result.note = f"stopped at epoch {at['epoch']}, offset {at['offset']}"
    return result


def continue_from(folder: Path, workers: int, epochs: int) -> int:
    """The new process of `stop_and_continue`: go on and print the result as JSON."""
    with make_loader(num_workers=workers) as loader:
        training = Training(loader, epochs)
        training.load(folder)
        before = training.digest.samples
        began = time.perf_counter()
        training.run()
        result = training.result(time.perf_counter() - began, "")
        assert training.digest.samples > before
    print(json.dumps(vars(result)))
    return 0


def main(epochs: int) -> int:
    """Run the demo and print its table; return 1 if anything differs."""
    data = datasets.Digits("train")
    print(f"{len(data)} handwritten digits, {epochs} epochs, batches of {BATCH}")
    print(f"seed {SEED}  0x{SEED:016x}\n")
    head = f"{'run':44} {'batches':16} {'weights':16} {'accuracy':>8} {'images/s':>9}"
    print(head)
    print("-" * len(head))
    first = train(epochs)
    _print("0 workers (the reference)", first, first)
    middle = epochs * -(-len(data) // BATCH) // 2
    runs: list[tuple[str, Any]] = [
        ("1 process", lambda: train(epochs, num_workers=1)),
        ("2 processes", lambda: train(epochs, num_workers=2)),
        ("5 processes", lambda: train(epochs, num_workers=5)),
        ("2 processes, prefetch 8", lambda: train(epochs, num_workers=2, prefetch_factor=8)),
        ("2 processes, prefetch 2, spawned", lambda: train(
            epochs, num_workers=2, prefetch_factor=2, multiprocessing_context="spawn")),
        ("2 threads", lambda: train(epochs, num_workers=2, worker_method="thread")),
        ("5 threads, prefetch 8", lambda: train(
            epochs, num_workers=5, worker_method="thread", prefetch_factor=8)),
        ("3 processes, one killed (SIGKILL)", lambda: train(
            epochs, kill_at=middle, num_workers=3)),
        ("stopped; a new process goes on with 3", lambda: stop_and_continue(epochs)),
    ]  # fmt: skip
    equal = True
    for name, run in runs:
        result = run()
        same = (result.batches, result.samples, result.weights) == (
            first.batches, first.samples, first.weights,
        )  # fmt: skip
        equal = equal and same
        _print(name, result, first)
    print(
        "\nfast mode: batches as they fill, so the order differs; every sample has the same bytes"
    )
    for name, how in (
        ("2 processes, fast", {"num_workers": 2}),
        ("5 threads, fast", {"num_workers": 5, "worker_method": "thread"}),
    ):
        result = train(epochs, mode="fast", **how)
        same = result.samples == first.samples
        equal = equal and same
        mark = "equal" if same else f"DIFFERS from {first.samples}"
        print(f"{name:44} set of samples {result.samples}  {mark}  {result.rate:9,.0f} images/s")
    print("\nall equal" if equal else "\nNOT EQUAL: please report this with the table above")
    return 0 if equal else 1


def _print(name: str, result: Result, first: Result) -> None:
    same = (result.batches, result.weights, result.samples) == (
        first.batches, first.weights, first.samples,
    )  # fmt: skip
    mark = "" if result is first else ("  equal" if same else "  DIFFERS")
    note = f"  ({result.note})" if result.note else ""
    print(
        f"{name:44} {result.batches} {result.weights} {result.accuracy:8.3f} "
        f"{result.rate:9,.0f}{mark}{note}",
        flush=True,
    )
