"""Cells of the fault table that happen to the whole program: signals, and deaths from outside."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.faults import table
from tests.helpers import ROOT, descendants, runs, wait_until

pytestmark = pytest.mark.kill
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def zygote():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.zygote"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait(DEADLINE_S)
    process.stdout.close()


@pytest.fixture
def nothing_left():
    """Replaces the check of conftest: the zygote is no leak. Each cell looks for itself."""


@pytest.fixture
def begin(zygote, tmp_path):
    """Starts the program of a cell; returns its pid."""

    def start(cause, moment):
        job = {"cause": cause, "moment": moment, "folder": str(tmp_path)}
        zygote.stdin.write(json.dumps(job) + "\n")
        zygote.stdin.flush()
        return int(zygote.stdout.readline())

    return start


def _ended(zygote):
    assert zygote.stdout.readline() == "ended\n"


def _at_the_moment(folder, moment):
    for name in ("closing" if moment == "close" else "struck", "ready"):
        assert wait_until((folder / name).exists, DEADLINE_S), (folder / "err").read_text()


def _report(folder):
    text = (folder / "out").read_text()
    assert text, (folder / "err").read_text()
    return json.loads(text)


def _quiet(folder):
    """Nothing of ours on standard error."""
    text = (folder / "err").read_text()
    assert "Traceback" not in text, text


def _moments(*quick):
    """Every moment; those not named only in the long run."""
    return [m if m in quick else pytest.param(m, marks=pytest.mark.slow) for m in table.MOMENTS]


@pytest.mark.parametrize("moment", _moments("start", "mid", "close"))
def test_a_launcher_that_is_killed(begin, zygote, tmp_path, moment):
    begin("launcher", moment)
    _ended(zygote)
    assert _report(tmp_path) == [table.TABLE["launcher"][1][moment], []]


@pytest.mark.parametrize("moment", _moments("start", "mid", "close"))
@pytest.mark.parametrize("cause", ["ctrl-c", "ctrl-c twice"])
def test_an_interrupt_of_the_whole_group(begin, zygote, tmp_path, cause, moment):
    pid = begin(cause, moment)
    _at_the_moment(tmp_path, moment)
    os.killpg(pid, signal.SIGINT)
    if cause == "ctrl-c twice":
        # Two at once are one signal.
        assert wait_until((tmp_path / "came1").exists, DEADLINE_S)
        assert wait_until((tmp_path / "closing").exists, DEADLINE_S)
        os.killpg(pid, signal.SIGINT)
    _ended(zygote)
    assert _report(tmp_path) == [table.TABLE[cause][1][moment], []]
    _quiet(tmp_path)


@pytest.mark.parametrize("moment", _moments("start", "mid", "close"))
def test_a_parent_that_is_killed(begin, zygote, tmp_path, moment):
    pid = begin("parent", moment)
    _at_the_moment(tmp_path, moment)
    below = descendants(pid)
    assert below
    os.kill(pid, signal.SIGKILL)
    _ended(zygote)
    assert wait_until(lambda: not any(map(runs, below)), 3.0)
    assert table.TABLE["parent"][1][moment] == "gone"
    _quiet(tmp_path)
