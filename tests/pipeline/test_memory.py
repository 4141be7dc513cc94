"""What a tree of processes takes, by /proc/*/smaps_rollup: tables are there once, and nothing grows."""

import json

import pytest

from tests.helpers import python

# PSS shares out a page among those who map it, so its sum over the tree is what the tree takes.
COMMON = """
import gc, json, sys
import numpy as np
import pipeline
from pipeline import datasets
from tests.helpers import descendants
import os

def tree(field="Pss:", own=True):
    total = 0
    for pid in [os.getpid()] * own + sorted(descendants()):
        with open(f"/proc/{pid}/smaps_rollup") as f:
            total += sum(int(line.split()[1]) for line in f if line.startswith(field)) * 1024
    return total

class Names:
    "A user's data set that holds a long list of names; each page of memory holds a hundred."
    def __init__(self, names, each=10): self.names, self.each = names, each
    def __len__(self): return len(self.names) // self.each
    def __getitem__(self, i):
        name = self.names[i * self.each]
        return np.array([len(name), ord(name[-5]), i], np.int64)

def texts(n):
    return datasets.PackedStrings(f"class_{i // 1000:05}/a photograph {i:09}.jpg" for i in range(n))

def loader(names, workers, each=10):
    return pipeline.DataLoader(Names(names, each), 1000, shuffle=True, num_workers=workers, seed=1)

def passes(one, epochs):
    most = 0
    for _ in range(epochs):
        for step, batch in enumerate(one):
            if step == 8:
                most = max(most, tree())
        most = max(most, tree())
    return most
"""


def run(code, *arguments, timeout=170):
    return json.loads(python(COMMON + code, *arguments, timeout=timeout).stdout)


TABLE = """
n, workers, epochs, each = (int(a) for a in sys.argv[1:])
for _ in range(2):  # the first also loads kernels, and compiles them on a fresh machine
    with loader(texts(50_000), workers, 1) as one:
        small = passes(one, 1)
names = texts(n)
with loader(names, workers, each) as one:
    large = passes(one, epochs)
print(json.dumps([names.nbytes, small, large]))
"""


def check_table(*arguments, timeout=170):
    table, small, large = run(TABLE, *arguments, timeout=timeout)
    assert large - small < 1.3 * table, (
        f"{(large - small) / table:.2f} times the table's {table} bytes"
    )


def test_a_table_of_names_is_there_once_for_all_workers():
    check_table(1_000_000, 4, 1, 10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_million_names_are_there_once_for_eight_workers_over_three_epochs():
    check_table(10_000_000, 8, 3, 1, timeout=3600)


PRIVATE = """
names = texts(300_000)
with loader(names, 2) as one:
    batches = iter(one)
    for _ in range(20):
        next(batches)
    before = tree("Private_Dirty:", own=False)
    for batch in batches:
        pass
    grown = tree("Private_Dirty:", own=False) - before
print(json.dumps([names.nbytes, grown]))
"""


def test_a_pass_over_packed_names_writes_no_page_of_a_worker():
    nbytes, grown = run(PRIVATE)
    assert grown < 0.15 * nbytes, (nbytes, grown)


FOLDER = """
folder, workers = sys.argv[1], 4
data = datasets.ImageFolder(folder)
class Paths(datasets.ImageFolder):
    def __getitem__(self, i): return len(self.path(i)), self.label(i)
paths = Paths(folder, extensions=(".jpg",))
from pipeline.transfer import shared
before = len(shared._known)
assert paths._blob.nbytes > 1 << 20
with pipeline.DataLoader(paths, 1000, num_workers=2, seed=1) as one:
    lengths = np.concatenate([batch[0] for batch in one])
    lent = len(one._engine.pool._lent)
    carried = one._engine.pool._carried.nbytes
print(json.dumps([paths._blob.nbytes, lent, carried, int(lengths.sum()), before]))
"""


def test_the_paths_of_a_folder_are_lent_to_the_workers(tmp_path):
    folder = tmp_path / "a class with a long name so that the table is large"
    folder.mkdir()
    name = "x" * 200
    for i in range(4500):
        (folder / f"{name}{i:06}.jpg").touch()
    nbytes, lent, carried, length, tables = run(FOLDER, tmp_path)
    assert (lent, tables) == (1, 2)
    assert carried < nbytes / 10
    assert length == nbytes + 4500 * (len(str(tmp_path)) + 1)


ARRAY = """
class Own:
    def __init__(self, n): self.rows = np.ones((n, 4096), np.uint8)
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return self.rows[i, :8]
found = []
for n in (64, 24576):
    with pipeline.DataLoader(Own(n), 64, num_workers=2, seed=1) as one:
        for batch in one:
            pass
        one.batch_at(0, 0)
        gc.collect()
        found.append(tree())
print(json.dumps([24576 * 4096, *found]))
"""


def test_an_array_of_the_user_is_there_twice_at_most():
    """Once as it was given, once for all workers and for what is made beside them."""
    nbytes, small, large = run(ARRAY)
    assert large - small < 2.2 * nbytes, (large - small) / nbytes


EPOCHS = """
epochs = int(sys.argv[1])
found = []
with loader(texts(20_000), 2) as one:
    for epoch in range(epochs):
        for batch in one:
            pass
        found.append(tree("Anonymous:"))
print(json.dumps(found))
"""


@pytest.mark.parametrize("epochs", [50])
def test_memory_is_flat_over_fifty_epochs(epochs):
    found = run(EPOCHS, epochs)
    assert max(found[10:]) - found[10] < 3 << 20, [n >> 10 for n in found]
