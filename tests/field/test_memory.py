"""Cases from the field: shared memory and its growth (H040 to H042; H043 in covered_b.py)."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from pipeline import ConfigError
from pipeline.transfer import arena
from tests.helpers import ROOT, Images, descendants, make, python, runs, wait_until, walk

pytestmark = pytest.mark.usefixtures("launcher")
MIB = 1 << 20


class Wide:
    """Samples of one MiB."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return np.full(MIB, i, np.uint8)


@pytest.mark.parametrize("method", ["process", "thread"])
def test_h040_a_ring_that_does_not_fit_is_refused_before_a_page_is_touched(monkeypatch, method):
    monkeypatch.setattr(arena, "available_nbytes", lambda: 16 * MIB)
    how = {"num_workers": 1, "prefetch_factor": 1, "worker_method": method, "transforms": []}
    with (
        make(Wide(), batch_size=32, **how) as loader,
        pytest.raises(ConfigError, match="shared memory") as e,
    ):
        next(iter(loader))
    assert e.value.fields["nbytes"] >= 32 * MIB
    assert f"{e.value.fields['nbytes']:,} bytes" in str(e.value)
    assert f"{16 * MIB:,} bytes are available" in str(e.value)
    for setting in ("batch_size", "prefetch"):
        assert setting in e.value.do
    with make(Wide(), batch_size=2, **how) as loader:
        assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(64))


def test_h040_pages_are_there_before_anybody_writes():
    with arena.Arena.create(8 * MIB, "case 40") as one:
        assert os.fstat(one.fd).st_blocks * 512 >= 8 * MIB


# Its workers are no children of the process that is killed, so their numbers are told.
ENDLESS = """
import json, sys
from tests.helpers import Images, make
with make(Images(64), num_workers=2, transforms=[]) as loader:
    for step, batch in enumerate(loader):
        if step == 3:
            print(json.dumps(loader.worker_pids()), flush=True)
            sys.stdin.read()
"""
WHOLE = """
import json
from tests.helpers import Images, make, walk
with make(Images(64), num_workers=2, transforms=[]) as loader:
    print(json.dumps(walk(loader)))
"""


@pytest.mark.kill
def test_h041_a_start_after_a_killed_group_finds_nothing_in_its_way():
    names = set(os.listdir("/dev/shm"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(2):
        running = subprocess.Popen(
            [sys.executable, "-c", ENDLESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        with running:
            workers = json.loads(running.stdout.readline())
            below = {*workers, *descendants(running.pid)}
            os.killpg(running.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(map(runs, below)), 30), below  # noqa: B023
    found = json.loads(python(WHOLE).stdout)
    with make(Images(64), transforms=[]) as loader:
        assert [tuple(row) for row in found] == walk(loader)
    ours = {name for name in set(os.listdir("/dev/shm")) - names if "samebatch" in name}
    assert ours == set()


KEEPING = """
import json, os, resource
from tests.helpers import Images, make, walk, rows
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
with make(Images(3000), batch_size=1, num_workers=2) as loader:
    kept, told, most = [], [], 0
    for batch in loader:
        kept.append(batch)
        told += rows(loader, batch)
        if len(kept) % 100 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")))
    import hashlib
    again = []
    for images, labels in kept:
        h = hashlib.sha256(images[0].tobytes())
        h.update(labels[0].tobytes())
        again.append(h.hexdigest()[:24])
print(json.dumps([len(kept), again == [row[2] for row in told], most]))
"""


def test_h042_batches_that_are_kept_take_no_descriptors_and_keep_their_bytes():
    kept, same, descriptors = json.loads(python(KEEPING).stdout)
    assert (kept, same) == (3000, True)
    assert descriptors < 100
