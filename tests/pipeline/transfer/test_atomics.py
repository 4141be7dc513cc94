import subprocess
import sys
import threading

import numpy as np
from numba import njit, uint64

from pipeline.transfer import atomics
from pipeline.transfer.arena import Arena
from tests.helpers import ROOT

DEADLINE_S = 20.0


@njit(cache=True, nogil=True)
def count_up(words, index, times):
    for _ in range(times):
        atomics.add(words, index, uint64(1))


@njit(cache=True, nogil=True)
def count_up_by_swap(words, index, times):
    for _ in range(times):
        while True:
            seen = atomics.load(words, index)
            if atomics.swap(words, index, seen, seen + uint64(1)) == seen:
                break


@njit(cache=True, nogil=True)
def sleep_while_zero(words, index, timeout_ns):
    while atomics.load(words, index) == 0:
        atomics.futex_wait(words, index, uint64(0), timeout_ns)


@njit(cache=True, nogil=True)
def set_and_wake(words, index):
    atomics.store(words, index, uint64(1))
    atomics.futex_wake(words, index, 1)


@njit(cache=True, nogil=True)
def exchanged(words, index, value):
    return atomics.exchange(words, index, uint64(value))


@njit(cache=True, nogil=True)
def send(words, rounds):
    for i in range(rounds):
        words[8] = uint64(i)  # plain
        atomics.store(words, 0, uint64(i + 1))  # published
        while atomics.load(words, 16) != i + 1:
            atomics.pause()


@njit(cache=True, nogil=True)
def receive(words, rounds):
    wrong = 0
    for i in range(rounds):
        while atomics.load(words, 0) != i + 1:
            atomics.pause()
        wrong += int(words[8] != i)
        atomics.store(words, 16, uint64(i + 1))
    return wrong


def _in_threads(*jobs):
    threads = [threading.Thread(target=job[0], args=job[1:]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_adding_in_threads_loses_no_update():
    words = np.zeros(16, np.uint64)
    _in_threads(*[(count_up, words, 8, 100_000)] * 4)
    assert words[8] == 400_000


def test_compare_and_swap_in_threads_loses_no_update():
    words = np.zeros(16, np.uint64)
    _in_threads(*[(count_up_by_swap, words, 3, 20_000)] * 4)
    assert words[3] == 80_000


def test_adding_in_processes_loses_no_update():
    code = (
        "import sys, numpy as np\n"
        "from pipeline.transfer.arena import Arena\n"
        "import importlib.util\n"
        "spec = importlib.util.spec_from_file_location('atoms', sys.argv[2])\n"
        "atoms = importlib.util.module_from_spec(spec); spec.loader.exec_module(atoms)\n"
        "arena = Arena.attach(int(sys.argv[1]))\n"
        "words = np.frombuffer(arena.memory, np.uint64)\n"
        "atoms.count_up(words, 0, 100_000); atoms.count_up_by_swap(words, 8, 20_000)\n"
    )
    with Arena.create(4096, "test") as arena:
        command = [sys.executable, "-c", code, str(arena.fd), __file__]
        children = [
            subprocess.Popen(command, pass_fds=[arena.fd], cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
            for _ in range(2)
        ]
        words = np.frombuffer(arena.memory, np.uint64)
        count_up(words, 0, 100_000)
        assert [child.wait(60) for child in children] == [0, 0]
        assert (words[0], words[8]) == (300_000, 40_000)


def test_what_was_written_before_a_store_is_seen_after_the_load():
    words = np.zeros(24, np.uint64)
    wrong = []
    _in_threads((send, words, 300), (lambda: wrong.append(receive(words, 300)),))
    assert wrong == [0]


def test_exchange_returns_what_was_there():
    words = np.full(2, 5, np.uint64)
    assert exchanged(words, 1, 9) == 5
    assert words.tolist() == [5, 9]


def test_a_sleeper_is_woken_long_before_its_time_is_over():
    words = np.zeros(8, np.uint64)
    sleeper = threading.Thread(target=sleep_while_zero, args=(words, 0, 10**12), daemon=True)
    sleeper.start()
    set_and_wake(words, 0)
    sleeper.join(DEADLINE_S)
    assert not sleeper.is_alive()


def test_a_wait_for_a_changed_word_returns_at_once():
    words = np.ones(8, np.uint64)
    atomics.futex_wait(words, 0, np.uint64(0), 10**15)


def test_a_wait_without_a_waker_ends_when_its_time_is_over():
    words = np.zeros(8, np.uint64)
    atomics.futex_wait(words, 0, np.uint64(0), 1000)


def test_the_parent_is_known_without_the_interpreter():
    import os

    assert atomics.parent_pid() == os.getppid()
    assert atomics.SUPPORTED
