"""The launcher: a small process that is forked into workers, and buries them.

    loader's process ──socket──▶ launcher ──fork──▶ worker 0, worker 1, …

Forking the user's process is unsafe as soon as it has a thread (numpy alone starts some), and a
fresh interpreter costs the import of numba for every worker. The launcher is a fresh interpreter
that imports once, warms the kernels, never starts a thread, and forks in milliseconds. It knows
nothing of the user's `__main__`: no `if __name__ == "__main__"` guard is needed.

It dies with the loader's process (end of file on the socket), and its workers die with it
(PR_SET_PDEATHSIG), also after SIGKILL of either. Method "spawn" gives each worker a fresh
interpreter of its own, started by the same launcher.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_MS = 500
MAX_MESSAGE_NBYTES = 1 << 16
MAX_FDS = 16  # of one request: the arena, the payload, regions, the tables that are lent


def main(argv: list[str]) -> None:
    """Serve requests on the socket whose descriptor is argv[0]; argv[1] is "fork" or "spawn"."""
    with socket.socket(fileno=int(argv[0])) as sock:
        _serve(sock, argv[1])


def _serve(sock: socket.socket, method: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's business
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the thread that began us had blocked
    _adopt_orphans()
    parent = os.getppid()
    if method == "fork":
        _warm()
    wake_r, wake_w = os.pipe()
    for fd in (wake_r, wake_w):
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.collect()
    gc.freeze()  # keeps the pages that workers share unwritten
    workers: set[int] = set()
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(wake_r, select.POLLIN)
    _send(sock, {"event": "up", "pid": os.getpid()})
    while os.getppid() == parent:
        for fd, _ in poll.poll(_POLL_MS):
            if fd == wake_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
                continue
            try:
                data, fds, _flags, _address = socket.recv_fds(sock, MAX_MESSAGE_NBYTES, MAX_FDS)
            except ConnectionResetError:  # the parent left messages unread
                data, fds = b"", []
            if not data:
                _end(workers)
                return
            request = json.loads(data)
            whose = {"worker": request["worker"], "token": request["token"]}
            try:
                pid = _start(request, fds, method, [sock.fileno(), wake_r, wake_w])
                workers.add(pid)
                fds.append(os.pidfd_open(pid))
                _send(sock, {"event": "started", "pid": pid, **whose}, fds[-1:])
            except OSError as e:
                _send(sock, {"event": "failed", "why": str(e), **whose})
            for fd_ in fds:
                os.close(fd_)
        for pid, status in _reap(workers):
            _send(sock, {"event": "exited", "pid": pid, "status": status})
    _end(workers)


def _start(request: dict[str, Any], fds: list[int], method: str, own: list[int]) -> int:
    """Fork a worker and return its pid; the child never returns."""
    launcher = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        _die_with_parent(launcher)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in own:
            os.close(fd)
        if method == "spawn":
            for fd in fds:
                os.set_inheritable(fd, True)
            code = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); " \
                   "from pipeline.workers.launcher import spawned; spawned(sys.argv[2], sys.argv[3])"  # fmt: skip
            arguments = [json.dumps(sys.path), json.dumps(request), json.dumps(fds)]
            os.execv(sys.executable, [sys.executable, "-P", "-c", code, *arguments])
        status = _work(request, fds)
        atexit._run_exitfuncs()  # what the user's code has registered, e.g. the end of its processes
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def spawned(request: str, fds: str) -> None:
    """Run a worker in a fresh interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(_work(json.loads(request), json.loads(fds)))


def _work(request: dict[str, Any], fds: list[int]) -> int:
    from pipeline.workers.entry import work

    return work(request, fds)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(71)


def _reap(workers: set[int]) -> list[tuple[int, int]]:
    gone = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        if pid in workers:  # no orphan
            workers.discard(pid)
            gone.append((pid, os.waitstatus_to_exitcode(status)))
    return gone


def _adopt_orphans() -> None:
    """Become the parent of processes that code of the user started in a worker that then died.

    Nobody else would end them: e.g. the children of a multiprocessing.Pool wait for ever.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end(workers: set[int]) -> None:
    """Leave no process behind: workers were told to stop already, or their loader is dead."""
    left = workers | _children()
    while left:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        left = _children()  # their children are ours now


def _children() -> set[int]:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as f:
        return set(map(int, f.read().split()))
    return set()


def _send(sock: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    # A dead parent is noticed by the loop.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(sock, [json.dumps(message).encode()], fds or [])


def _warm() -> None:
    """Import what workers need and load their kernels, once instead of once a worker."""
    from pipeline.workers import entry
    from rng.kernel import announcer

    announcer.said = True  # the loader's process says it
    entry.warm()
