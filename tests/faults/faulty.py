"""A data set in which something goes wrong, once, at a chosen moment. Workers import this module."""

import ctypes
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import numpy as np

from tests.helpers import Images

N = 40
MID = 13  # the sample in whose middle it happens


def _fail_to_allocate():
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), hard))
    try:
        np.ones(1 << 30, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _raise():
    raise ValueError("it is broken")


def _kill_launcher():
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait()  # it takes us along


STRIKES = {
    "exception": _raise,
    "exit": lambda: sys.exit(3),
    "memory": _fail_to_allocate,
    "_exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: signal.raise_signal(signal.SIGTERM),
    "stuck": lambda: threading.Event().wait(),
    "launcher": _kill_launcher,
    "parent": lambda: threading.Event().wait(),  # the test does it
    "ctrl-c": lambda: threading.Event().wait(),
    "ctrl-c twice": lambda: threading.Event().wait(),
}


class Faulty(Images):
    """Images; in a worker, `cause` strikes once at `moment`.

    In `folder`: "struck" exists as soon as it is about to strike; moments that the test chooses wait
    until the test writes into the pipe "gate".
    """

    def __init__(self, cause, moment, folder, n=N):
        super().__init__(n)
        self.cause = cause
        self.moment = moment
        self.folder = Path(folder)
        self.home = os.getpid()
        self.waits = False
        self.always = False
        os.mkfifo(self.folder / "gate")

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.moment == "start" and os.getpid() != self.home:
            self.strike()

    def __getitem__(self, i):
        if os.getpid() != self.home or threading.current_thread() is not threading.main_thread():
            self._in_worker(i)
        return super().__getitem__(i)

    def _in_worker(self, i):
        if self.moment == "first":
            self.strike()
        elif self.moment == "end" and self.cause in ("exception", "exit", "memory"):
            if i == self.n - 1:
                self.strike()
        elif self.moment == "mid" and i == MID:
            self.strike()
        elif self.moment == "close" and i == MID:
            self.strike(gated=True)
        elif self.moment in ("between", "end") and not self.waits:
            self.waits = True
            if self.cause in ("_exit", "segfault"):
                threading.Thread(target=self.strike, args=(True,), daemon=True).start()

    def strike(self, gated=False):
        try:
            os.close(os.open(self.folder / "struck", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            if not self.always:
                return
        if gated and self.cause not in ("parent", "ctrl-c", "ctrl-c twice"):
            with open(self.folder / "gate") as f:
                f.read()
        STRIKES[self.cause]()
