"""What every test must leave behind: nothing. And a launcher kept warm for tests with processes."""

import gc
import os

import hypothesis
import pytest

from pipeline import engine
from tests.helpers import descendants, wait_until

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported: where several processes test, threads of OpenMP that spin for each other
    # make its small operations ten times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, and no timing: other tests run beside these.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same")

_OURS = ("memfd:samebatch", "socket:", "pidfd", "eventfd", "eventpoll")
# Other programs of the machine make names there at any time; test_rules.py makes sure that nothing of
# ours could make one of another name (no multiprocessing, no shared_memory).
_NAMES = ("samebatch",)


def _descriptors() -> set[str]:
    """Descriptors of the kinds that the package opens, as "number link"."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of listdir itself
            continue
        if any(kind in link for kind in _OURS):
            found.add(f"{fd} {link}")
    return found


def _shared_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(_NAMES)}


@pytest.fixture(autouse=True)
def workers_work(monkeypatch):
    """Small native batches cost so little that workers rest; tests of workers would test none."""
    monkeypatch.setattr(engine, "_HANDOVER_NS", 0)


@pytest.fixture(autouse=True)
def nothing_left():
    """After every test: no child process, no descriptor of ours, no name in /dev/shm."""
    children, names = descendants(), _shared_names()
    descriptors = _descriptors()
    yield

    def clean() -> bool:
        if descendants() <= children and _descriptors() <= descriptors:
            return True
        gc.collect()
        return False

    wait_until(clean, 10.0)
    assert descendants() - children == set()
    assert _descriptors() - descriptors == set()
    assert _shared_names() - names == set()


@pytest.fixture(scope="session")
def launcher():
    """One launcher for the whole session: starting one costs a second."""
    from pipeline.workers.pool import _Launcher

    held = _Launcher.get("fork")
    assert wait_until(lambda: bool(held.events(0.1)), 60.0)
    yield held
    held.release()
