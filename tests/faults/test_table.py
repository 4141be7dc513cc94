"""Each cell of the fault table, with real processes."""

import contextlib
import gc
import itertools
import os
import signal
import threading

import pytest

import pipeline
from pipeline import engine as engines
from tests import helpers
from tests.faults import faulty, table
from tests.helpers import Images, make, runs, wait_until, walk

pytestmark = [pytest.mark.kill, pytest.mark.usefixtures("launcher")]

BATCH = 4
DEADLINE_S = 60.0
INSIDE = [c for c in table.TABLE if c in (*table.SOFT, *table.HARD, "stuck")]


def expected(epoch=0):
    with make(Images(faulty.N), shuffle=False, batch_size=BATCH) as loader:
        loader.set_epoch(epoch)
        return walk(loader)


def _ours():
    """Mappings of our memory in this process."""
    with open("/proc/self/maps") as f:
        return sum("memfd:samebatch" in line for line in f)


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Makes the loader of a cell; afterwards no mapping is left."""
    gc.collect()
    before = _ours()
    loaders = []

    def make_cell(cause, moment, **how):
        data = faulty.Faulty(cause, moment, tmp_path)
        settings = {"num_workers": 2, "shuffle": False, "batch_size": BATCH, "prefetch_factor": 2}
        if cause == "stuck":
            settings["timeout"] = 0.5
            monkeypatch.setattr(engines, "START_S", 1.0)
        if moment == "start" and table.TABLE[cause][1]["start"] != "same":
            settings["num_workers"] = 1  # others might do all the work before it is seen
        if moment == "close" or cause == "stuck":
            monkeypatch.setattr(engines, "LEAVE_S", 0.5)
        loader = make(data, **settings | how)
        loaders.append(loader)
        return loader, data

    yield make_cell
    for loader in loaders:
        loader.close()
    loaders.clear()

    def clean():
        gc.collect()
        return _ours() <= before

    assert wait_until(clean, 10)


def _go_on(loader, iterator, found):
    """Deliver the rest of the epoch through this iterator; return the error on the way, if any."""
    error = None
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return error
        except (pipeline.SamebatchError, ValueError, MemoryError, SystemExit) as e:
            assert error is None, "it struck once only"
            error = e
            iterator = iter(loader)
            continue
        found += helpers.rows(loader, batch)


def _named(error, cause):
    """The outcome that an error is, with its text checked."""
    if error is None:
        return "same"
    text = str(error)
    if isinstance(error, pipeline.SampleError):
        kind = {"exception": "ValueError: it is broken", "exit": "SystemExit: 3"}
        assert kind.get(cause, "MemoryError") in text
        assert "/data/00" in text
        assert "position=" in text
        assert "in strike" in text  # the worker's traceback
        return "sample"
    assert isinstance(error, pipeline.WorkerError | pipeline.ConfigError), error
    if "timed out" in text:
        assert "in strike" in text  # the stack
        return "timeout"
    assert "could not work" in text
    assert {"exception": "it is broken", "exit": "SystemExit"}.get(cause, "MemoryError") in text
    return "begin"


def _idle(loader):
    stats = loader.stats()
    full = (
        loader.mode == "fast" or stats.ring.in_flight == 0
    )  # else they are idle for a moment only
    return full and stats.workers and all(one.stage in ("idle", "placing") for one in stats.workers)


def _strike_from_outside(loader, data, cause):
    """Let an idle worker die, or stand still."""
    assert wait_until(lambda: _idle(loader), DEADLINE_S)
    victim = loader.stats().workers[0].pid
    if cause in ("_exit", "segfault"):
        before = {one.pid for one in loader.stats().workers}
        with open(data.folder / "gate", "w"):
            pass
        assert wait_until(lambda: not all(map(runs, before)), DEADLINE_S)
        return
    if cause == "launcher":
        victim = loader._engine.pool._launcher._process.pid
    number = {
        "launcher": signal.SIGKILL,
        "kill": signal.SIGKILL,
        "term": signal.SIGTERM,
        "stuck": signal.SIGSTOP,
    }[cause]
    os.kill(victim, number)
    if cause != "stuck":
        assert wait_until(lambda: not runs(victim), DEADLINE_S)


def _run(loader, data, cause, moment):
    """Make a cell happen; return the name of what happened. The bytes are checked on the way."""
    found, iterator = [], iter(loader)
    if moment in ("start", "first", "mid") or (moment == "end" and cause in table.SOFT):
        error = _go_on(loader, iterator, found)
        assert (data.folder / "struck").exists()
    elif moment == "between" and cause in table.SOFT:
        error = _in_the_users_loop(loader, iterator, found, cause)
        assert error is None
        return "yours"
    else:
        found += helpers.rows(loader, next(iterator))
        if moment == "end":
            error = _go_on(loader, iterator, found)
            assert error is None
        _strike_from_outside(loader, data, cause)
        if moment == "end":
            assert found == expected() or loader.mode == "fast"
            found, iterator = [], iter(loader)
        error = _go_on(loader, iterator, found)
    assert sorted(found) == expected(epoch=int(moment == "end" and cause not in table.SOFT))
    assert found == sorted(found) or loader.mode == "fast"
    return _named(error, cause)


def _in_the_users_loop(loader, iterator, found, cause):
    found += helpers.rows(loader, next(iterator))
    with pytest.raises((ValueError, SystemExit, MemoryError)):  # noqa: PT012
        for batch in iterator:
            found += helpers.rows(loader, batch)
            faulty.STRIKES[cause]()
    error = _go_on(loader, iterator, found)
    assert sorted(found) == expected()
    return error


def _run_close(loader, data):
    """Something goes wrong while the loader closes; then go on from its state."""
    found, iterator = [], iter(loader)
    while not (data.folder / "struck").exists() and len(found) < 2 * BATCH:
        found += helpers.rows(loader, next(iterator))
    assert wait_until((data.folder / "struck").exists, DEADLINE_S)
    closing = threading.Thread(target=loader.close)
    closing.start()
    assert wait_until(lambda: loader._closing is not None or not closing.is_alive(), DEADLINE_S)
    with contextlib.suppress(OSError):  # nobody reads any more: it was killed already
        os.close(os.open(data.folder / "gate", os.O_WRONLY | os.O_NONBLOCK))
    closing.join(20)
    assert not closing.is_alive()
    state = loader.state_dict()
    loader.load_state_dict(state)
    found += walk(loader)
    assert sorted(found) == expected()
    return "quiet"


def _check(cell, cause, moment, **how):
    loader, data = cell(cause, moment, **how)
    found = _run_close(loader, data) if moment == "close" else _run(loader, data, cause, moment)
    assert found == table.TABLE[cause][1][moment]


QUICK = [(c, m) for c in INSIDE for m in table.MOMENTS if c not in ("exit", "segfault", "term")]
QUICK += [("exit", "mid"), ("segfault", "mid"), ("segfault", "between"), ("term", "between")]


@pytest.mark.parametrize(("cause", "moment"), QUICK)
def test_the_outcome_of_a_cell(cell, cause, moment):
    _check(cell, cause, moment)


@pytest.mark.parametrize("cause", table.SOFT)
@pytest.mark.parametrize("moment", ["first", "mid", "end", "close", "between"])
def test_the_outcome_of_a_cell_with_threads(cell, cause, moment):
    _check(cell, cause, moment, worker_method="thread")


@pytest.mark.parametrize(
    ("cause", "moment"), [("kill", "mid"), ("exception", "mid"), ("kill", "between")]
)
def test_the_outcome_of_a_cell_in_fast_mode(cell, cause, moment):
    _check(cell, cause, moment, mode="fast")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reproducible", "fast"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(("cause", "moment"), list(itertools.product(INSIDE, table.MOMENTS)))
def test_every_cell_for_every_start_method_and_mode(cell, cause, moment, method, mode):
    _check(cell, cause, moment, multiprocessing_context=method, mode=mode)


# ---------------------------------------------------------------- again and again
@pytest.mark.parametrize("cause", ["kill", "_exit"])
def test_workers_that_always_die_at_the_start_are_given_up(cell, cause):
    loader, data = cell(cause, "start")
    data.always = True
    with pytest.raises(pipeline.WorkerError, match="without a batch being finished") as e:
        next(iter(loader))
    assert {"kill": "SIGKILL", "_exit": "exit status 3"}[cause] in str(e.value)
    loader.close()
