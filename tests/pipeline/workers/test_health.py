"""Stacks of processes that cannot be asked."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from pipeline.workers import health
from tests.helpers import ROOT, wait_until

CHILD = """
import ctypes, json, signal, sys
sys.path.insert(0, {root!r})
from pipeline.workers.health import watch_me
print(json.dumps(watch_me()), flush=True)
def stuck_in_here():
    {body}
stuck_in_here()
"""


@pytest.fixture
def child(request):
    import json

    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(root=str(ROOT), body=request.param)],
        stdout=subprocess.PIPE, stdin=subprocess.PIPE,
    )  # fmt: skip
    watch = json.loads(process.stdout.readline())
    pidfd = os.pidfd_open(process.pid)
    yield process, pidfd, watch
    process.kill()
    process.wait()
    os.close(pidfd)
    process.stdout.close()
    process.stdin.close()


# PyDLL keeps the interpreter's lock: no thread of the process could answer.
HOLDS = "ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)"


@pytest.mark.parametrize("child", [HOLDS, "sys.stdin.read()"], indirect=True)
def test_a_process_that_holds_the_interpreters_lock_shows_its_stack_again_and_again(child):
    process, pidfd, watch = child
    wait_until(lambda: health.state_of(process.pid) == "S", 20)
    for _ in range(3):
        text = health.stack_of_process(process.pid, pidfd, watch)
        assert text.count("in stuck_in_here") == 1
    assert process.poll() is None


@pytest.mark.parametrize("child", ["sys.stdin.read()"], indirect=True)
def test_a_stopped_process_and_one_that_is_gone_say_so(child):
    process, pidfd, watch = child
    process.send_signal(signal.SIGSTOP)
    assert wait_until(lambda: health.state_of(process.pid) == "T", 10)
    assert "is stopped" in health.stack_of_process(process.pid, pidfd, watch)
    process.kill()
    process.wait()
    assert "is gone" in health.stack_of_process(process.pid, pidfd, watch)
    assert health.usage_of(process.pid) is None


@pytest.mark.parametrize(
    "child",
    [
        "[signal.signal(n, signal.SIG_DFL) for n in range(34, 65)]; "
        "print('reset', flush=True); sys.stdin.read()"
    ],
    indirect=True,
)
def test_a_process_that_has_reset_the_signal_is_not_killed_by_it(child):
    process, pidfd, watch = child
    assert process.stdout.readline() == b"reset\n"
    assert "has reset signal" in health.stack_of_process(process.pid, pidfd, watch)
    assert process.poll() is None


def test_the_stack_of_a_thread():
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, args=(60,), name="waits")
    thread.start()
    try:
        assert "Thread waits" in health.stack_of_thread(thread)
        assert "wait" in health.stack_of_thread(thread)
    finally:
        gate.set()
        thread.join()
    assert "has ended" in health.stack_of_thread(thread)


def test_what_a_process_and_a_thread_have_used():
    sum(range(3_000_000))
    whole, own = (
        health.usage_of(os.getpid()),
        health.usage_of(os.getpid(), threading.get_native_id()),
    )
    assert whole.cpu_s >= own.cpu_s > 0
