"""What several test files share: data sets, digests of what a loader delivers, processes.

Workers import this module by name, so it imports nothing that they do not need.
"""

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

import pipeline
from pipeline import transforms as T

ROOT = Path(__file__).parent.parent


# ---------------------------------------------------------------- waiting
def wait_until(condition, deadline_s):
    """Look until the condition holds or the time is over; return whether it holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        select.select([], [], [], 0.005)
    return True


def descendants(pid=None):
    """Processes below this one that run (zombies of others do not count)."""
    found = set()
    waiting = [pid or os.getpid()]
    while waiting:
        at = waiting.pop()
        for task in _listdir(f"/proc/{at}/task"):
            for child in _text(f"/proc/{at}/task/{task}/children").split():
                if int(child) not in found:
                    found.add(int(child))
                    waiting.append(int(child))
    return {child for child in found if runs(child)}


def runs(pid):
    """Whether a process is there and not a zombie."""
    status = _text(f"/proc/{pid}/stat")
    return bool(status) and status.rpartition(")")[2].split()[0] not in "ZX"


def _text(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _listdir(path):
    try:
        return os.listdir(path)
    except OSError:
        return []


def complaints(text):
    """Lines of standard error, without what is said once on a fresh machine."""
    return [line for line in text.splitlines() if "compiling kernels" not in line]


def python(code, *arguments, stdin=None, check=True, timeout=120, **options):
    """Run code in a fresh interpreter at the repository's root; return the finished process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout,
        cwd=options.pop("cwd", ROOT), env=environment, **options,
    )  # fmt: skip
    if check:
        assert done.returncode == 0, done.stderr[-4000:]
    return done


# ---------------------------------------------------------------- data
def image(i, height=12, width=12, channels=3):
    """A small image that is different for every i."""
    n = height * width * channels
    values = (np.arange(n, dtype=np.uint64) + np.uint64(i * n)) * np.uint64(0x9E3779B97F4A7C15)
    return (values >> np.uint64(56)).astype(np.uint8).reshape(height, width, channels)


def images(n, **size):
    """uint8[n, 12, 12, 3]."""
    return np.stack([image(i, **size) for i in range(n)])


# By EXIF orientation: which transposition stores a picture so that the tag's turn gives it back.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


class Images:
    """A plain map-style data set."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return image(i), i % 7

    def describe(self, i):
        return f"/data/{i:04d}.png"

    def fingerprint(self):
        return f"{self.n} images"


class Sleeps:
    """Before a data set: each sample takes 0 to `most_ms` ms, another time at every call."""

    def __init__(self, n, most_ms=5.0):
        super().__init__(n)
        self.most_ms = most_ms

    def __getitem__(self, i):
        time.sleep(os.urandom(1)[0] / 255 * self.most_ms / 1000)
        return super().__getitem__(i)


class Slow(Sleeps, Images):
    """The same images, slowly."""


class Numbers:
    """Samples are numbers: cheap, and easy to check."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.int64(i)


OPS = (
    T.RandomCrop(12, padding=2),
    T.RandomHorizontalFlip(),
    T.Normalize(preset="cifar10"),
    T.RandomErasing(p=0.5),
)


# ---------------------------------------------------------------- what was delivered
def leaves(batch):
    """The arrays of a batch."""
    if isinstance(batch, dict):
        return [leaf for value in batch.values() for leaf in leaves(value)]
    if isinstance(batch, tuple | list):
        return [leaf for value in batch for leaf in leaves(value)]
    return [np.asarray(batch)]


def rows(loader, batch):
    """[(position, id, digest)] of the batch that the loader just delivered."""
    arrays = leaves(batch)
    last = loader.last
    found = []
    for s in range(len(last.positions)):
        if last.valid[s]:
            h = hashlib.sha256()
            for array in arrays:
                h.update(np.ascontiguousarray(array[s]).tobytes())
            found.append((int(last.positions[s]), int(last.sample_ids[s]), h.hexdigest()[:24]))
    return found


def walk(loader, steps=None):
    """[(position, id, digest)] of one pass, or of its first steps, in the order of delivery."""
    found = []
    if steps == 0:
        return found
    for step, batch in enumerate(loader, 1):
        found += rows(loader, batch)
        if step == steps:
            break
    return found


def fingerprint(loader, epochs=1):
    """SHA-256 of ids, labels and bytes, batch by batch in the order of delivery."""
    h = hashlib.sha256()
    for _ in range(epochs):
        for batch in loader:
            h.update(loader.last.sample_ids.astype("<i8").tobytes())
            for array in leaves(batch):
                h.update(f"{array.dtype.str}{array.shape}".encode())
                h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


def make(dataset, **options):
    """A loader with the settings that most tests use."""
    settings = {"batch_size": 4, "shuffle": True, "seed": 7, "transforms": list(OPS)} | options
    return pipeline.DataLoader(dataset, **settings)


RESUME = """
import json, sys
from tests.helpers import Images, make, walk
settings = json.loads(sys.argv[1])
state = json.loads(sys.argv[2])
with make(Images(settings.pop("n")), **settings) as loader:
    loader.load_state_dict(state)
    print(json.dumps([walk(loader), loader.state_dict()]))
"""


def resumed(state, **settings):
    """(rows, state at the end) of a pass that continues in a fresh process."""
    found, after = json.loads(python(RESUME, json.dumps(settings), json.dumps(state)).stdout)
    return [tuple(row) for row in found], after
