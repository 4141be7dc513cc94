"""Processes for real: start, replace, close, fork, scripts without a guard."""

import os
import signal
import sys
import threading

import numpy as np
import pytest

from pipeline import ConfigError, DataLoader, WorkerError
from pipeline.workers import launcher as launchers
from pipeline.workers import pool as pools
from tests import helpers
from tests.helpers import (
    ROOT,
    Images,
    Numbers,
    Slow,
    complaints,
    make,
    python,
    wait_until,
    walk,
)

DEADLINE_S = 60.0


@pytest.fixture
def loader():
    with make(Slow(40, 2.0), num_workers=2) as loader:
        yield loader


def _started(loader, n=2):
    assert wait_until(lambda: len(loader.worker_pids()) == n, DEADLINE_S)
    return loader.worker_pids()


def test_workers_are_no_children_of_the_users_process(loader, launcher):
    next(iter(loader))
    pids = _started(loader)
    with open(f"/proc/{pids[0]}/stat") as f:
        parent = int(f.read().rpartition(")")[2].split()[1])
    assert parent == launcher._process.pid


def test_a_killed_worker_is_replaced_by_one_other(launcher):
    with make(Slow(4000, 3.0), num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        first = set(_started(loader))
        os.kill(min(first), signal.SIGKILL)
        for _ in iterator:
            if loader._engine.restarts:
                break
        assert len(first & set(_started(loader))) == 1
        assert loader._engine.restarts == 1


def test_close_leaves_no_process_and_no_descriptor(launcher):
    before = set(os.listdir("/proc/self/fd"))
    for method in ("forkserver", "spawn", "thread"):
        loader = make(Images(12), num_workers=2, multiprocessing_context=method)
        walk(loader, steps=1)
        pids = set(loader.worker_pids()) - {os.getpid()}
        loader.close()
        assert not any(map(helpers.runs, pids))
    del loader
    assert wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before, DEADLINE_S)


def test_close_waits_for_the_sample_that_is_being_made(launcher, tmp_path):
    class Writing(Numbers):
        def __getitem__(self, i):
            for k in range(200):
                with open(tmp_path / str(i), "a") as f:
                    f.write(f"{k}\n")
            return np.int64(i)

    loader = DataLoader(Writing(20), num_workers=2, prefetch_factor=1)
    next(iter(loader))
    loader.close()
    for path in tmp_path.iterdir():
        assert len(path.read_text().splitlines()) % 200 == 0


def test_close_kills_a_worker_that_hangs(launcher, monkeypatch):
    monkeypatch.setattr(pools, "_LEAVE_S", 0.2)

    class Hanging(Numbers):
        def __getitem__(self, i):
            while i:
                signal.pause()
            return np.int64(i)

    loader = DataLoader(Hanging(4), num_workers=1, timeout=0.2)
    iterator = iter(loader)
    next(iterator)
    pid = _started(loader, 1)[0]
    with pytest.raises(WorkerError, match="no batch came"):
        next(iterator)
    assert not helpers.runs(pid)


def test_a_thread_that_hangs_does_not_hang_close(monkeypatch):
    monkeypatch.setattr(pools, "_LEAVE_S", 0.1)
    gate = threading.Event()

    class Hanging(Numbers):
        def __getitem__(self, i):
            if i:
                gate.wait(DEADLINE_S)
            return np.int64(i)

    loader = DataLoader(Hanging(4), num_workers=1, worker_method="thread")
    next(iter(loader))
    loader.close()
    gate.set()


def test_a_launcher_that_dies_takes_its_workers_along_and_is_replaced():
    code = (
        "import os, signal\n"
        "from tests.helpers import *\n"
        "with make(Slow(40, 3.0), num_workers=2) as loader:\n"
        "    iterator = iter(loader)\n"
        "    found = rows(loader, next(iterator))\n"
        "    assert wait_until(lambda: len(loader.worker_pids()) == 2, 60)\n"
        "    for round in range(3):\n"
        "        pids = loader.worker_pids()\n"
        "        os.kill(loader._engine.pool._launcher._process.pid, signal.SIGKILL)\n"
        "        assert wait_until(lambda: not any(map(runs, pids)), 10)\n"
        "        found += rows(loader, next(iterator))\n"
        "    for batch in iterator: found += rows(loader, batch)\n"
        "print(found == walk(make(Images(40))), loader._engine)\n"
    )
    assert python(code).stdout.split() == ["True", "None"]


def test_two_pools_share_a_launcher_and_survive_its_death():
    code = (
        "import os, signal\n"
        "from tests.helpers import *\n"
        "loaders = [make(Slow(40, 3.0), num_workers=2, seed=s) for s in (1, 2)]\n"
        "found = [[], []]\n"
        "for step, pair in enumerate(zip(*loaders, strict=True)):\n"
        "    for k in (0, 1): found[k] += rows(loaders[k], pair[k])\n"
        "    if step in (1, 5):\n"
        "        launchers = {l._engine.pool._launcher for l in loaders}\n"
        "        assert len(launchers) == 1 or step == 5  # one of them may not have looked yet\n"
        "        for launcher in launchers:\n"
        "            if launcher.alive(): os.kill(launcher._process.pid, signal.SIGKILL)\n"
        "for l in loaders: l.close()\n"
        "print(all(found[k] == walk(make(Images(40), seed=k + 1)) for k in (0, 1)))\n"
    )
    assert python(code).stdout.strip() == "True"


def test_what_does_not_pickle_is_refused_before_anything_starts(launcher):
    class Locked(Numbers):
        def __init__(self):
            super().__init__(4)
            self.lock = threading.Lock()

    with pytest.raises(ConfigError, match=r"dataset\.lock \(lock\) cannot be sent"):
        next(iter(DataLoader(Locked(), num_workers=1)))
    assert [x.tolist() for x in DataLoader(Locked(), num_workers=1, worker_method="thread")]


def test_a_pool_that_cannot_start_gives_everything_back(launcher, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, "x" * launchers.MAX_MESSAGE_NBYTES])
    with pytest.raises(ConfigError, match=r"sys\.path"):
        next(iter(make(Images(4), num_workers=1)))


def test_a_data_set_that_cannot_be_unpacked_says_why_and_hangs_nothing(launcher):
    class Trap:
        def __reduce__(self):
            return _explode, ()

    class Trapped(Images):
        trap = None

    data = Trapped(4)
    data.trap = Trap()
    with pytest.raises(ConfigError, match=r"not unpickled: ZeroDivisionError"):
        next(iter(make(data, num_workers=1)))


def _explode():
    return 1 // 0


def test_a_worker_that_cannot_begin_says_why_and_hangs_nothing(launcher):
    class OnlyHere(Images):
        home = os.getpid()

        def __setstate__(self, state):
            self.__dict__.update(state)
            if os.getpid() != self.home:
                raise OSError("no licence on this machine")

    with pytest.raises(WorkerError, match=r"could not work[\s\S]*no licence[\s\S]*Traceback"):
        next(iter(make(OnlyHere(4), num_workers=1)))


def test_workers_see_the_folder_that_was_current_when_the_loader_began(
    launcher, tmp_path, monkeypatch
):
    class Relative(Numbers):
        def __getitem__(self, i):
            with open("here") as f:
                return np.int64(f.read())

    (tmp_path / "here").write_text("41")
    monkeypatch.chdir(tmp_path)
    with DataLoader(Relative(3), num_workers=1) as loader:
        assert [x.tolist() for x in loader] == [[41]] * 3


def test_a_file_opened_by_each_worker_has_a_position_of_its_own(launcher, tmp_path):
    class Records(Numbers):
        file = None

        def __getitem__(self, i):
            if self.file is None:
                self.file = open(tmp_path / "records", "rb")  # noqa: SIM115
            self.file.seek(8 * i)
            return np.frombuffer(self.file.read(8), np.int64)[0]

        def __del__(self):
            if self.file is not None:
                self.file.close()

    np.arange(200).tofile(tmp_path / "records")
    with DataLoader(Records(200), batch_size=10, num_workers=4) as loader:
        assert loader.batch_at(0, 3).tolist() == list(range(30, 40))
        assert loader.sample_at(0, 7) == 7
        for _ in range(2):  # made here first, and the pool started anew: never a file sent along
            assert np.concatenate(list(loader)).tolist() == list(range(200))
            loader.close()
        assert loader.dataset.file is None


# ---------------------------------------------------------------- scripts
SCRIPT = """
import numpy as np
from pipeline import DataLoader

class Mine:                                   # a class of __main__, no guard, a lambda
    def __len__(self): return 10
    def __getitem__(self, i): return np.int64(SQUARE(i))

SQUARE = lambda i: i * i
for method in {methods}:
    loader = DataLoader(Mine(), batch_size=5, num_workers=2, multiprocessing_context=method,
                        transforms=[lambda x: x + 1])
    print([x.tolist() for x in loader])
"""
SQUARES = [[1, 2, 5, 10, 17], [26, 37, 50, 65, 82]]


def test_a_script_needs_no_main_guard(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(methods=("fork", "spawn")))
    done = python(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')")
    assert done.stdout.splitlines() == [str(SQUARES)] * 2
    assert complaints(done.stderr) == []


def test_a_script_on_standard_input_works_and_its_loader_needs_no_close():
    import subprocess

    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT.format(methods=("forkserver",)), text=True,
        capture_output=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=100,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str(SQUARES)]
    assert complaints(done.stderr) == []
    assert done.returncode == 0


def test_workers_start_from_a_process_with_busy_threads(launcher):
    stop = threading.Event()
    words = np.random.default_rng(0).random(10_000)

    def busy():
        while not stop.is_set():
            np.sort(words)

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with make(Images(8), num_workers=2) as a, make(Images(8), num_workers=1) as b:
                assert walk(a) == walk(b)
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_S)


# ---------------------------------------------------------------- fork in user code
FORK = """
import os, sys
from tests.helpers import *
how = {how}
with make(Slow(40, 1.0), **how) as loader:
    iterator = iter(loader)
    found = rows(loader, next(iterator))
    pid = os.fork()
    if pid == 0:
        if {uses}:
            mine = found + [row for batch in iterator for row in rows(loader, batch)]
            again = walk(loader)
            loader.close()
            first = make(Images(40))
            good = sorted(mine) == sorted(walk(first)) and sorted(again) == sorted(walk(first))
            print("child", good, flush=True)
        sys.exit(0)                # runs the exit handlers, which must not stop the parent's workers
    if {waits}:
        os.waitpid(pid, 0)
    for batch in iterator:
        found += rows(loader, batch)
    if not {waits}:
        os.waitpid(pid, 0)
    print("parent", sorted(found) == sorted(walk(make(Images(40)))), flush=True)
"""
FORKS = [
    {"num_workers": 2},
    {"num_workers": 2, "mode": "fast"},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 0},
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", FORKS, ids=str)
@pytest.mark.parametrize("waits", [True, False])
def test_a_child_forked_by_the_user_disturbs_neither_itself_nor_its_parent(how, waits):
    done = python(FORK.format(how=how, uses=True, waits=waits))
    assert sorted(done.stdout.splitlines()) == ["child True", "parent True"]


@pytest.mark.parametrize("how", FORKS[:2], ids=str)
def test_a_forked_child_that_only_ends_stops_no_worker_of_its_parent(how):
    done = python(FORK.format(how=how, uses=False, waits=True))
    assert done.stdout.splitlines() == ["parent True"]


def test_workers_die_with_the_loader_although_a_forked_child_lives_on():
    code = (
        "import os, sys, signal\n"
        "from tests.helpers import *\n"
        "loader = make(Slow(40, 1.0), num_workers=2)\n"
        "next(iter(loader))\n"
        "wait_until(lambda: len(loader.worker_pids()) == 2, 60)\n"
        "pids = loader.worker_pids()\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), *pids, flush=True)\n"
        "    signal.pause()\n"
        "sys.stdin.read()\n"
    )
    import subprocess

    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    forked, *pids = [int(word) for word in child.stdout.readline().split()]
    try:
        child.kill()
        child.wait(DEADLINE_S)
        assert helpers.runs(forked)
        assert wait_until(lambda: not any(map(helpers.runs, pids)), 2.0)
    finally:
        os.kill(forked, signal.SIGKILL)
        child.stdin.close()
        child.stdout.close()


def test_a_launcher_that_comes_up_ahead_is_taken_over_or_ended_at_once():
    with pools.starting("spawn"):
        launcher = pools._Launcher._live["spawn"]
        with make(Images(20), num_workers=1, multiprocessing_context="spawn") as loader:
            assert len(walk(loader)) == 20
            assert loader._engine.pool._launcher is launcher
        assert launcher.alive()
    assert launcher._process.returncode == 0
    with pools.starting("spawn"):
        unused = pools._Launcher._live["spawn"]
    assert unused._process.returncode == -signal.SIGKILL
    assert "spawn" not in pools._Launcher._live
