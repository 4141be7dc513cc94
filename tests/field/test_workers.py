"""Cases from the field: workers and crashes (H029 to H039)."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest

import pipeline
from tests import helpers
from tests.field.cases import Syn, fp, fp_of, make
from tests.helpers import ROOT, descendants, python, rows, wait_until, walk

DEADLINE_S = 60.0
METHODS = ("fork", "spawn", "forkserver")
THREADS = {"worker_method": "thread"}


# ---------------------------------------------------------------- a worker dies
@pytest.mark.kill
def test_h029_a_killed_worker_is_replaced_and_no_byte_changes(launcher):
    data = helpers.Slow(100, 4.0)
    with helpers.make(helpers.Images(100)) as plain, helpers.make(data, num_workers=3) as loader:
        batches = iter(loader)
        found = rows(loader, next(batches))
        assert wait_until(lambda: len(loader.worker_pids()) == 3, DEADLINE_S)
        victim = loader.worker_pids()[1]
        os.kill(victim, signal.SIGKILL)
        for batch in batches:
            found += rows(loader, batch)
        assert found == walk(plain)
        for _ in range(20):  # one that held nothing is looked for four times a second
            if loader.restarts:
                break
            assert walk(loader) == walk(plain)
        assert loader.restarts == 1
        assert not helpers.runs(victim)
        assert wait_until(lambda: len(loader.worker_pids()) == 3, DEADLINE_S)
        assert victim not in loader.worker_pids()


# ---------------------------------------------------------------- starting
BUSY_PARENT = """
import io, threading, warnings
import numba, numpy as np, zmq
from PIL import Image
from tests.field.cases import *
from tests.field.cases import make

@numba.njit(parallel=True)
def total(x):
    s = 0.0
    for i in numba.prange(x.size):
        s += x[i]
    return s

file = io.BytesIO()
Image.fromarray(pixels(3)).save(file, "JPEG")
stop = threading.Event()
def busy():
    words = np.arange(5000.0)
    while not stop.is_set():
        np.sort(words[::-1])
        Image.open(io.BytesIO(file.getvalue())).load()
threads = [threading.Thread(target=busy) for _ in range(4)]
sockets = [zmq.Context.instance().socket(kind) for kind in (zmq.PUSH, zmq.PULL)]
sockets[1].bind("inproc://mine"); sockets[0].connect("inproc://mine")
total(np.ones(10_000))
for thread in threads: thread.start()
expected, found = fp_of(Syn(32)), set()
for _ in range({rounds}):
    with make(Syn(32), num_workers=1) as a, make(Syn(32), num_workers=2) as b:
        x, y = iter(a), iter(b)
        next(x), next(y)          # both start while the threads are busy
        list(x), list(y)
        a.set_epoch(0), b.set_epoch(0)
        found |= {{fp(a), fp(b)}}
        assert total(np.ones(10_000)) == 10_000.0
    sockets[0].send(b"x"); sockets[1].recv()
stop.set()
for thread in threads: thread.join()
for socket in sockets: socket.close()
print(found == {{expected}})
"""


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_h030_loaders_start_beside_busy_threads_kernels_and_sockets(rounds):
    assert python(BUSY_PARENT.format(rounds=rounds)).stdout.strip() == "True"


WARNS = """
from tests.field.cases import *
print(fp_of(Syn(64), 2, num_workers=2, multiprocessing_context={method!r}))
"""


@pytest.mark.parametrize("method", METHODS)
def test_h031_every_start_method_gives_the_same_bytes_without_a_warning(method):
    code = "import warnings; warnings.simplefilter('error')\n" + WARNS.format(method=method)
    done = python(code)
    assert done.stdout.strip() == fp_of(Syn(64), 2)
    assert helpers.complaints(done.stderr) == []


def test_h031_another_start_method_is_refused_by_name():
    with pytest.raises(pipeline.ConfigError, match=r"forkserver.*got 'vfork'"):
        make(Syn(8), num_workers=1, multiprocessing_context="vfork")


FILL = """
import sys
import rng
from rng import draw
print("ready", flush=True)
sys.stdin.readline()
print(draw.unit(0x80000000), rng.permutation(8, seed=42).tolist(), flush=True)
"""


def _cache(folder):
    """A copy of the package that has no cache yet, and the environment of its processes."""
    leave = shutil.ignore_patterns("*.nb[ic]", "__pycache__")
    shutil.copytree(ROOT / "rng", folder / "rng", ignore=leave)
    return {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "PYTHONPATH")}


FILLED = "0.5 [7, 1, 0, 2, 5, 6, 4, 3]"


@pytest.mark.parametrize(
    "processes", [3, *(pytest.param(6, marks=pytest.mark.slow, id=f"6 {i}") for i in range(20))]
)
def test_h032_processes_that_fill_an_empty_cache_at_once_all_work(processes, tmp_path):
    environment = _cache(tmp_path)
    assert set(_together(FILL, tmp_path, environment, processes)) == {FILLED}
    assert list(tmp_path.rglob("*.nbi"))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_h032_processes_that_meet_a_damaged_cache_at_once_all_work(keep, tmp_path):
    environment = _cache(tmp_path)
    _together(FILL, tmp_path, environment, 1)
    files = list(tmp_path.rglob("*.nb[ic]"))
    assert files
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * keep)])
    assert set(_together(FILL, tmp_path, environment, 6)) == {FILLED}


def _together(code, folder, environment, count):
    """What each of `count` processes says that begin their work at once."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(count)
    ]  # fmt: skip
    try:
        for child in children:
            if child.stdout.readline() != "ready\n":
                pytest.fail(child.communicate()[1])
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        told = [child.communicate(timeout=120) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
    for child, (_, complaint) in zip(children, told, strict=True):
        assert child.returncode == 0, complaint
    return [out.strip() for out, _ in told]


MESSAGES = """
import zmq
from tests.field.cases import *
from tests.field.cases import make
context = zmq.Context.instance()
publisher, subscriber = context.socket(zmq.PUB), context.socket(zmq.SUB)
publisher.bind("inproc://field")
subscriber.connect("inproc://field")
subscriber.setsockopt(zmq.SUBSCRIBE, b"")
subscriber.setsockopt(zmq.RCVTIMEO, 60_000)

def exchange():
    for i in range(100):
        publisher.send(b"%d" % i)
        assert subscriber.recv() == b"%d" % i

exchange()
for _ in range(2):  # the second loader receives its workers' reports like the first
    with make(Syn(64), num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        exchange()
        list(batches)
        helpers.wait_until(lambda: len(loader.worker_pids()) == 2, 60)
        print(fp(loader), len(loader.worker_pids()))
    exchange()
print(context.closed)
publisher.close(), subscriber.close()
context.term()                # would wait for ever for a socket of ours
"""


def test_h033_the_users_messages_go_on_beside_the_loaders():
    with make(Syn(64)) as loader:
        loader.set_epoch(1)
        expected = fp(loader)
    told = python(MESSAGES).stdout.splitlines()
    assert told == [f"{expected} 2", f"{expected} 2", "False"]


JOB = """
import sys
from tests.field.cases import *
from tests.field.cases import make
print("ready", flush=True)
sys.stdin.readline()
with make(Syn(64), num_workers=1) as a, make(Syn(64), num_workers=1) as b:
    x, y = iter(a), iter(b)
    next(x), next(y)
    list(x), list(y)
    print(fp(a), fp(b))
"""


@pytest.mark.parametrize("jobs", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_h034_many_jobs_of_one_user_do_not_meet(jobs):
    with make(Syn(64)) as loader:
        loader.set_epoch(1)
        expected = fp(loader)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert set(_together(JOB, ROOT, environment, jobs)) == {f"{expected} {expected}"}


# ---------------------------------------------------------------- leaving early
def _held():
    """Threads, children, descriptors and shared mappings of this process."""
    with open("/proc/self/maps") as f:
        segments = sum("memfd:" in line for line in f)
    return (
        len(os.listdir("/proc/self/task")), len(descendants()), len(os.listdir("/proc/self/fd")),
        segments,
    )  # fmt: skip


@pytest.mark.parametrize(
    "how", [{}, {"num_workers": 2}, {"num_workers": 2, **THREADS}], ids=["0", "2", "2 threads"]
)
def test_h038_iterators_that_are_dropped_leave_nothing_behind(how, launcher):
    with make(Syn(256), **how) as loader:
        for _ in range(5):
            next(iter(loader))
        if how == {"num_workers": 2}:
            assert wait_until(lambda: len(loader.worker_pids()) == 2, DEADLINE_S)
        before = _held()
        for _ in range(300):
            next(iter(loader))
        assert wait_until(lambda: _held() == before, DEADLINE_S), (before, _held())


@pytest.mark.parametrize(
    ("how", "times"), [({"num_workers": 2}, 12), ({"num_workers": 2, **THREADS}, 300)],
    ids=["processes", "threads"],
)  # fmt: skip
def test_h038_loaders_that_are_dropped_leave_nothing_behind(how, times, launcher):
    def use():
        next(iter(make(Syn(256), **how)))

    for _ in range(3):
        use()
    assert wait_until(lambda: not _workers_of(launcher) and not _worker_threads(), DEADLINE_S)
    before = _held()  # at rest: a thread that was just ending would be missed afterwards
    for _ in range(times):
        use()
    assert wait_until(lambda: not _workers_of(launcher), DEADLINE_S)
    assert wait_until(lambda: _held() == before, DEADLINE_S), (before, _held())


def _worker_threads():
    return [t for t in threading.enumerate() if t.name.startswith("samebatch-")]


def _workers_of(launcher):
    return descendants(launcher._process.pid)


# ---------------------------------------------------------------- open files
class Records:
    """Fixed records of a file that is open since the constructor: seek and read."""

    def __init__(self, path, n):
        self.path, self.n = path, n
        self.open()

    def open(self):
        self.file = open(self.path, "rb")  # noqa: SIM115

    def close(self):
        self.file.close()

    def read(self, i):
        self.file.seek(8 * i)
        return self.file.read(8)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.frombuffer(self.read(i), np.int64)[0]


class Zipped(Records):
    """The same records as members of an archive."""

    def open(self):
        self.file = zipfile.ZipFile(self.path)

    def read(self, i):
        return self.file.read(f"{i}")


class Reopening:
    """What the refusal asks for: the file is opened again where the dataset arrives."""

    def __getstate__(self):
        return {"path": self.path, "n": self.n}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.open()

    def __del__(self):
        self.file.close()


class ReopeningRecords(Reopening, Records):
    pass


class ReopeningZipped(Reopening, Zipped):
    pass


N = 200


@pytest.fixture
def stored(tmp_path):
    """{kind: path} of the records 0, 1, … as a plain file and as an archive."""
    np.arange(N).tofile(tmp_path / "plain")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        for i in range(N):
            archive.writestr(f"{i}", np.int64(i).tobytes())
    return tmp_path


@pytest.mark.parametrize("kind", [Records, Zipped])
def test_h039_a_file_open_since_the_constructor_is_never_shared_with_workers(kind, stored):
    data = kind(stored / ("zip" if kind is Zipped else "plain"), N)
    try:
        expected = fp_of(helpers.Numbers(N), transforms=[])
        assert fp_of(data, transforms=[]) == expected
        for method in METHODS:
            with make(data, transforms=[], num_workers=4, multiprocessing_context=method) as loader:
                with pytest.raises(pipeline.ConfigError, match=r"dataset\.file") as e:
                    next(iter(loader))
                assert "pickle" in str(e.value)
                assert "one position" in e.value.do  # threads would share it: not a way out
    finally:
        data.close()


@pytest.mark.parametrize("kind", [ReopeningRecords, ReopeningZipped])
@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_h039_a_file_that_each_worker_opens_gives_the_right_records(kind, method, stored, launcher):
    data = kind(stored / ("zip" if kind is ReopeningZipped else "plain"), N)
    how = {"num_workers": 4, "multiprocessing_context": method}
    assert fp_of(data, 2, transforms=[], **how) == fp_of(helpers.Numbers(N), 2, transforms=[])
