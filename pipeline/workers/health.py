"""How a worker is doing, seen from outside: its Python stacks, its processor time, whether it runs.

A worker process may be stuck inside C code that holds the interpreter's lock, so it cannot be asked.
It registers a real-time signal with `faulthandler`, whose handler is C code that writes the stack of
each thread into a memfd of the worker; the pool sends that signal and reads the memfd through
/proc. Signals of the user's code are left alone: a signal is taken that nobody handles, and it is
sent only while the worker still catches it.
"""

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

_PATIENCE_S = 1.0  # for a stack to be written
_LOOK_MS = 5
_CHARS = 1 << 15  # most of a stack that is told
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a process or thread has used since it started.

    Attributes:
        cpu_s: processor time, of the program and of the kernel for it.
        read_nbytes: bytes read from storage, or None where that is not told.
    """

    cpu_s: float
    read_nbytes: int | None


# ---------------------------------------------------------------- in the worker
def watch_me() -> dict[str, Any]:
    """Make this process show its stacks when asked; return what the pool needs to ask.

    Returns:
        {"signal", "fd"}, or {"why"} if it cannot be done.
    """
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            break
    else:
        return {"why": "every real-time signal is in use"}
    try:
        fd = os.memfd_create("samebatch:stack", os.MFD_CLOEXEC)
        faulthandler.register(number, fd, all_threads=True, chain=False)
    except (OSError, RuntimeError) as e:
        return {"why": str(e)}
    return {"signal": int(number), "fd": fd}


# ---------------------------------------------------------------- outside
def stack_of_process(pid: int, pidfd: int, watch: dict[str, Any] | None) -> str:
    """Return the stack of each thread of a worker process, newest call first, or why there is none.

    Args:
        pid, pidfd: its process.
        watch: what `watch_me` returned there, if it has said so yet.
    """
    state = state_of(pid)
    if state in ("T", "t"):
        return f"no stack: process {pid} is stopped (a debugger, or SIGSTOP; SIGCONT lets it go on)"
    if not state or state in "ZX":
        return f"no stack: process {pid} is gone"
    if watch is None or "why" in watch:
        return f"no stack: {(watch or {}).get('why', 'the worker has not begun yet')}"
    number = watch["signal"]
    if not _mask(pid, "SigCgt") >> (number - 1) & 1:  # it would kill
        return f"no stack: code of yours has reset signal {number}"
    try:
        fd = os.open(f"/proc/{pid}/fd/{watch['fd']}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        return f"no stack: {e}"
    try:
        before = os.fstat(fd).st_size
        signal.pidfd_send_signal(pidfd, number)
        if not _written(fd, before, pid, pidfd, number):
            kind = "in a system call that nothing interrupts" if state == "D" else "not answering"
            return f"no stack: process {pid} is {kind} (state {state})"
        text = os.pread(fd, _CHARS, before).decode("utf-8", "replace").rstrip()
    except OSError as e:
        return f"no stack: {e}"
    finally:
        os.close(fd)
    return text


def _written(fd: int, before: int, pid: int, pidfd: int, number: int) -> bool:
    """Wait until the signal's handler has written the stack, for a while."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and not poll.poll(_LOOK_MS):
        if os.fstat(fd).st_size > before:
            # While the handler runs, its thread blocks the signal.
            waiting = _mask(pid, "ShdPnd") | _mask(pid, "SigBlk")
            if not waiting >> (number - 1) & 1:
                return True
    return os.fstat(fd).st_size > before


def stack_of_thread(thread: threading.Thread) -> str:
    """Return the stack of a thread of this process, newest call last, or why there is none."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "no stack: the thread has ended"
    text = "".join(traceback.format_stack(frame)).rstrip()[-_CHARS:]
    return f"Thread {thread.name} (most recent call last):\n{text}"


def state_of(pid: int) -> str:
    """Return the letter of a process's state in /proc (R, S, D, T, t, Z, X), or "" if it is gone."""
    fields = _stat(f"/proc/{pid}/stat")
    return fields[0] if fields else ""


def usage_of(pid: int, thread: int | None = None) -> Usage | None:
    """Return what a process, or one thread of it (its native id), has used; None if it is gone."""
    folder = f"/proc/{pid}" if thread is None else f"/proc/{pid}/task/{thread}"
    fields = _stat(f"{folder}/stat")
    if len(fields) < 13:
        return None
    read = None
    with contextlib.suppress(OSError, ValueError), open(f"{folder}/io") as f:
        read = next(int(line.split()[1]) for line in f if line.startswith("read_bytes:"))
    return Usage((int(fields[11]) + int(fields[12])) * _TICK_S, read)


def _stat(path: str) -> list[str]:
    """Return the fields of a stat file after the name, which may hold anything."""
    try:
        with open(path) as f:
            return f.read().rpartition(")")[2].split()
    except OSError:
        return []


def _mask(pid: int, name: str) -> int:
    """Return a mask of signals of the process's first thread."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith(f"{name}:"):
                return int(line.split()[1], 16)
    return 0
