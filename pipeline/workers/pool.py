"""Owns every worker: start, watch, replace, close.

A process's death is an event: its pidfd becomes readable. It is looked at whenever the consumer
waits, so nothing runs in the background of the user's process.
"""

import contextlib
import json
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError, WorkerError
from pipeline.recipe import Recipe
from pipeline.transfer.arena import Arena
from pipeline.transfer.station import Attached, TransferStation
from pipeline.workers import entry, payload
from pipeline.workers.channel import Inbox
from pipeline.workers.health import stack_of_process, stack_of_thread
from pipeline.workers.launcher import MAX_FDS, MAX_MESSAGE_NBYTES
from pipeline.workers.process import PreprocessWorker, describe_error
from pipeline.workers.protocol import Report

_START_S = 120.0  # an interpreter that has not come up by then never will
_LEAVE_S = 5.0  # how long workers may finish their sample when the pool closes


@dataclass
class Death:
    """A worker process that ended.

    Attributes:
        worker: index in the pool.
        pid: of the process that is gone.
        status: exit status, or minus the signal; None if the launcher died too.
    """

    worker: int
    pid: int
    status: int | None

    def __str__(self) -> str:
        if self.status is None:
            return "with its launcher"
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


class _Launcher:
    """The loader's end of one launcher process; shared by all pools of a start method."""

    _live: dict[str, "_Launcher"] = {}  # noqa: RUF012 - one table for the process
    _lock = threading.RLock()  # a collection inside may end a loader of the same thread

    def __init__(self, method: str) -> None:
        self.method = method
        self.users = 0
        self._asked = False  # for a worker
        self.pid_of_creator = os.getpid()
        self.statuses: dict[int, int] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); " \
               "from pipeline.workers.launcher import main; main(sys.argv[2:])"  # fmt: skip
        environment = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"),
            "1",
        )
        # It inherits the mask: Ctrl-C before it can ignore SIGINT must not kill it.
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *_interpreter_flags(), "-P", "-c", code,
                     json.dumps(sys.path), str(theirs.fileno()), method],
                    stdin=subprocess.DEVNULL, cwd=_current_folder() or "/", pass_fds=[theirs.fileno()], env=environment,
                )  # fmt: skip
            except OSError as e:
                ours.close()
                raise WorkerError(f"cannot start the launcher of the workers: {e}") from e
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
        self._socket = ours

    @classmethod
    def get(cls, method: str) -> "_Launcher":
        with cls._lock:
            launcher = cls._live.get(method)
            if launcher is not None:
                launcher.users += 1  # before the look: a collection may release the last user
                if launcher.alive():
                    return launcher
                launcher.release()
            launcher = cls(method)
            launcher.users = 1
            cls._live[method] = launcher
            return launcher

    def alive(self) -> bool:
        return self.pid_of_creator == os.getpid() and self._process.poll() is None

    def release(self) -> None:
        self.let_go()
        self.end_if_unused()

    def let_go(self) -> None:
        """One user less."""
        with self._lock:
            self.users -= 1

    def end_if_unused(self) -> None:
        """End the process if nobody uses it. May be interrupted, and called again."""
        with self._lock:
            if self.users or self.pid_of_creator != os.getpid():
                return
            if self._live.get(self.method) is self:
                del self._live[self.method]
            self._socket.close()
            if not self._asked:
                self._process.kill()  # it may still be importing, and has nothing to put in order
            try:
                self._process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def start(self, request: dict[str, Any], fds: list[int]) -> None:
        """Ask for a worker; `events` tells when it runs."""
        self._asked = True
        data = json.dumps(request).encode()
        if len(data) > MAX_MESSAGE_NBYTES:
            raise ConfigError(f"sys.path and the sample's fields take {len(data)} bytes; too many")
        # If it died just now, `poll` sees that and asks another one.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._socket, [data], fds)

    def events(self, timeout_s: float) -> list[tuple[dict[str, Any], list[int]]]:
        """Return what the launcher said, waiting `timeout_s` at most for the first."""
        found = []
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while poll.poll(int(timeout_s * 1000)):
            timeout_s = 0.0
            try:
                # Another thread's pool may have read what poll() saw: never wait here.
                data, fds, _, _ = socket.recv_fds(
                    self._socket, MAX_MESSAGE_NBYTES, 4, socket.MSG_DONTWAIT
                )
            except OSError:
                break
            if not data:
                break
            found.append((json.loads(data), list(fds)))
        return found


@contextlib.contextmanager
def starting(method: str) -> Iterator[None]:
    """Let the launcher of a method come up meanwhile, for a pool that is made inside."""
    launcher = _Launcher.get(method)
    try:
        yield
    finally:
        launcher.release()


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed: workers stay where they start
        return ""


def _interpreter_flags() -> list[str]:
    return [f for f in subprocess._args_from_interpreter_flags() if f != "-P"]  # type: ignore[attr-defined]


def _forget_after_fork() -> None:
    """A forked child of the user must not hold the sockets whose end of file means our death."""
    _Launcher._lock = threading.RLock()  # a thread that this process does not have may hold it
    for launcher in _Launcher._live.values():
        with contextlib.suppress(OSError):
            os.close(launcher._socket.detach())
        launcher._process.returncode = 0  # it is not this process's child
    _Launcher._live = {}
    for pool in list(_pools):
        pool._forget()


_pools: "weakref.WeakSet[ProcessPool]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_after_fork)


class ProcessPool:
    """Worker processes on one station.

    Args:
        station: shared one.
        recipe: how to make a sample; pickled once for all.
        count: workers.
        method: "fork" (from the launcher) or "spawn".
    """

    def __init__(self, station: TransferStation, recipe: Recipe, count: int, method: str) -> None:
        self.count = count
        self.method = method
        self.owner = os.getpid()
        self.restarts = 0
        self.token = secrets.token_hex(8)
        self._station = station
        self._reports: list[Report] = []
        self._pids: dict[int, int] = {}  # worker -> pid
        self._pidfds: dict[int, int] = {}  # worker -> pidfd
        self._wanted: set[int] = set()  # asked for, not started yet
        self._refused = ""  # why one of them cannot be started
        self.asked_at = time.monotonic()
        self.ready: set[int] = set()
        self._watches: dict[int, tuple[int, dict[str, Any]]] = {}  # worker -> (pid, how to ask)
        # As they are now: a worker that is replaced later finds the same modules and files.
        self._folder = _current_folder()
        self._sys_path = [p or self._folder for p in sys.path if p or self._folder]
        self._carried: Arena | None = None
        self._lent: list[payload.Lent] = []
        self._let_go = False
        self._inbox = Inbox()
        try:
            self._launcher = _Launcher.get(method)
        except BaseException:
            self._inbox.close()
            raise
        self._closed = False
        _pools.add(self)
        try:
            recipe.warm()  # while the launcher comes up
            self._carried = payload.pack(recipe, self._lent)
            payload.hint(self._carried, count)
            for worker in range(count):
                self.start(worker)
        except BaseException:
            self.close()
            raise

    _closed = True  # until there is something to close

    def __del__(self) -> None:
        self.close(0.0)  # its owner was interrupted before it could close it

    def start(self, worker: int) -> None:
        """Ask for worker number `worker`; returns at once."""
        assert self._carried is not None
        request = {
            "worker": worker,
            "count": self.count,
            "token": self.token,
            "endpoint": self._inbox.endpoint,
            "secret": self._inbox.secret,
            "fast": self._station.fast,
            "cwd": self._folder,
            "sys_path": self._sys_path,
            "layout": entry.describe_layout(self._station.layout),
        }
        self._wanted.add(worker)
        self.asked_at = time.monotonic()
        try:
            fds = [self._station.arena.fd, self._carried.fd]
            if self._station.regions is not None:
                fds.append(self._station.regions.fd)
            fds += [one.fd for one in self._lent]
            assert len(fds) <= MAX_FDS
            self._launcher.start(request, fds)
        except BaseException:
            self._wanted.discard(worker)
            raise

    def copy_of_recipe(self) -> Recipe:
        """Return the recipe as a worker gets it; its big arrays lie in the workers' own memory."""
        assert self._carried is not None
        with Arena.attach(os.dup(self._carried.fd), private=True) as carried:
            lent = [Arena.attach(os.dup(one.fd), private=True) for one in self._lent]
            copy: Recipe = payload.unpack(carried, [one.memory for one in lent])
            for one in lent:
                one.close()
            return copy

    def pids(self) -> list[int]:
        """Return the process ids of the workers that run."""
        self._listen(0.0)
        begun = {w: self._station.line(w).pid for w in self._wanted}  # before the launcher says so
        return list((self._pids | {w: pid for w, pid in begun.items() if pid}).values())

    def poll(self, timeout_s: float = 0.0) -> list[Death]:
        """Return the workers that died since the last call.

        Raises:
            WorkerError: the launcher cannot start them.
        """
        self._listen(timeout_s)
        if self._refused:
            raise WorkerError(
                f"a worker process cannot be started: {self._refused}",
                do="raise the limits of processes, open files and memory (ulimit -u, -n, -v), or lower "
                "num_workers; num_workers=0 and worker_method='thread' need no process",
            )
        if not self._launcher.alive():
            return self._launcher_died()
        late = time.monotonic() - self.asked_at > _START_S
        if self._wanted and late:
            raise WorkerError(
                f"workers {sorted(self._wanted)} did not start within {_START_S:.0f} s",
                do="look at the messages of the launcher above; try num_workers=0",
            )
        poll = select.poll()
        by_fd = {fd: worker for worker, fd in self._pidfds.copy().items()}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        deaths = []
        for fd, _ in poll.poll(0):
            worker = by_fd[fd]
            pid = self._pids[worker]
            deaths.append(Death(worker, pid, self._status(pid)))
            self._bury(worker)
        return deaths

    def _launcher_died(self) -> list[Death]:
        """Its workers die with it; report them all and find a new launcher."""
        deadline = time.monotonic() + _LEAVE_S
        deaths = []
        for worker, fd in list(self._pidfds.items()):
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(max(0, int(1000 * (deadline - time.monotonic()))))
            deaths.append(Death(worker, self._pids[worker], None))
            self._bury(worker)
        deaths += [Death(worker, -1, None) for worker in self._wanted]
        self._wanted.clear()
        if self.restarts > 8:
            raise WorkerError("the launcher of the workers died again and again")
        self._launcher.release()
        self._launcher = _Launcher.get(self.method)
        return deaths

    def _status(self, pid: int) -> int | None:
        deadline = time.monotonic() + 1.0
        while pid not in self._launcher.statuses:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._listen(min(left, 0.05))  # another pool may be the one to receive it
        return self._launcher.statuses.pop(pid)

    def _bury(self, worker: int) -> None:
        os.close(self._pidfds.pop(worker))
        del self._pids[worker]
        self.ready.discard(worker)

    def _listen(self, timeout_s: float) -> None:
        for message, fds in self._launcher.events(timeout_s):
            if message["event"] == "exited":
                self._launcher.statuses[message["pid"]] = message["status"]
            elif message["event"] == "started":
                self._launcher.statuses.pop(message["pid"], None)  # of an earlier process
                _route(self._launcher, message, fds)
            elif message["event"] == "failed":
                _refuse(self._launcher, message)
        while (report := self._inbox.receive()) is not None:
            self._note(report)

    def _note(self, report: Report) -> None:
        if report.kind == "hello":
            self.ready.add(report.worker)
        elif report.kind == "watch":
            self._watches[report.worker] = report.pid, report.body
        else:
            self._reports.append(report)

    def error_of(self, cell: int, timeout_s: float = 2.0) -> Report | None:
        """Return the report of a failed cell, or None if its worker died before sending it."""
        deadline = time.monotonic() + timeout_s
        while True:
            for report in self._reports:
                if report.kind == "error" and report.body["cell"] == cell:
                    return report
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            received = self._inbox.receive(left)
            if received is not None:
                self._note(received)

    def place_of(self, worker: int) -> tuple[int, int | None]:
        """Return (pid, None) of a worker; pid 0 if it has no process now. Any thread may ask."""
        return self._pids.get(worker, 0), None

    def stack_of(self, worker: int) -> str:
        """Return the stacks of a worker's threads, or why there are none."""
        self._listen(0.0)
        pid, pidfd = self._pids.get(worker, 0), self._pidfds.get(worker, -1)
        if pidfd < 0:
            return "no stack: the launcher has not started its process yet"
        said_by, watch = self._watches.get(worker, (0, {}))
        return stack_of_process(pid, pidfd, watch if said_by == pid else None)

    def crash_of(self, worker: int) -> Report | None:
        """Return the last crash report of a worker."""
        self._listen(0.0)
        crashes = [r for r in self._reports if r.kind == "crash" and r.worker == worker]
        return crashes[-1] if crashes else None

    def forget_reports(self) -> None:
        """Drop reports of passes that are over."""
        self._reports.clear()

    def close(self, patience_s: float = _LEAVE_S) -> None:
        """Stop every worker, waiting for the sample it works on, `patience_s` at most.

        May be interrupted anywhere, and called again to go on.
        """
        if self._closed or self.owner != os.getpid():
            return
        self._station.stop()
        deadline = time.monotonic() + patience_s
        while self._wanted and self._launcher.alive() and time.monotonic() < deadline:
            self._listen(0.05)
        for worker, fd in list(self._pidfds.items()):
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(max(0, int(1000 * (deadline - time.monotonic())))):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                poll.poll(1000)
            self._bury(worker)
        if not self._let_go:
            self._let_go = True
            self._launcher.let_go()
        self._launcher.end_if_unused()
        self._inbox.close()
        if self._carried is not None:
            self._carried.close()
            self._carried = None
            self._lent.clear()
        self._closed = True

    def _forget(self) -> None:
        """In a forked child: close our copies of descriptors; the pool belongs to the parent."""
        self._closed = True
        for fd in self._pidfds.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self._pidfds = {}


def _route(launcher: _Launcher, message: dict[str, Any], fds: list[int]) -> None:
    """Give a started worker's pidfd to the pool that asked; several pools share a launcher."""
    for pool in list(_pools):
        if pool._launcher is launcher and message["token"] == pool.token:
            pool._wanted.discard(message["worker"])
            if not fds:  # the system had no descriptor left for it
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                pool._refused = f"all {limit} descriptors of this process are in use"
                return
            pool._pids[message["worker"]] = message["pid"]
            pool._pidfds[message["worker"]] = fds[0]
            return
    for fd in fds:
        os.close(fd)


def _refuse(launcher: _Launcher, message: dict[str, Any]) -> None:
    """Tell the pool that asked that the launcher cannot start a worker."""
    for pool in list(_pools):
        if pool._launcher is launcher and message["token"] == pool.token:
            pool._wanted.discard(message["worker"])
            pool._refused = message["why"]


class ThreadPool:
    """Worker threads on one station of this process."""

    def __init__(self, station: TransferStation, recipe: Recipe, count: int) -> None:
        self.count = count
        self.restarts = 0
        self.owner = os.getpid()
        self.asked_at = time.monotonic()
        self.ready = set(range(count))
        recipe.warm()
        self._station = station
        self._reports: list[Report] = []
        self._arrived = threading.Condition()
        self._open = True
        self._threads = []
        for worker in range(count):
            attached = Attached(station.views, worker, fast=station.fast, regions=station.regions)
            thread = threading.Thread(
                target=_thread_loop,
                args=(attached, recipe, self._deliver, weakref.ref(self)),
                name=f"samebatch-{worker}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def _deliver(self, report: Report) -> None:
        with self._arrived:
            self._reports.append(report)
            self._arrived.notify_all()

    def place_of(self, worker: int) -> tuple[int, int | None]:
        """Return (this process, the thread's native id)."""
        return self.owner, self._threads[worker].native_id if self._threads else None

    def stack_of(self, worker: int) -> str:
        """Return the stack of a worker's thread, or why there is none."""
        return stack_of_thread(self._threads[worker])

    def pids(self) -> list[int]:
        """Return this process: threads have no pid of their own."""
        return [os.getpid()]

    def poll(self, timeout_s: float = 0.0) -> list[Death]:
        """Return an empty list unless a worker thread ended by a fault of ours, which raises."""
        del timeout_s  # threads do not die of signals
        crash = next((r for r in self._reports if r.kind == "crash"), None)
        if crash is not None:
            raise WorkerError(
                f"worker thread {crash.worker} failed: {crash.body['message']}",
                where=crash.body["traceback"],
            )
        return []

    def error_of(self, cell: int, timeout_s: float = 2.0) -> Report | None:
        """Return the report of a failed cell."""

        def found() -> Report | None:
            for report in self._reports:
                if report.kind == "error" and report.body["cell"] == cell:
                    return report
            return None

        with self._arrived:
            self._arrived.wait_for(lambda: found() is not None, timeout_s)
            return found()

    def forget_reports(self) -> None:
        """Drop reports of passes that are over."""
        with self._arrived:
            self._reports.clear()

    def close(self, patience_s: float = _LEAVE_S) -> None:
        """Stop every thread, waiting for the sample it works on, `patience_s` at most.

        A thread cannot be killed: one that hangs is left behind, with its memory.
        """
        self._open = False
        self._station.stop()
        deadline = time.monotonic() + patience_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []


def _thread_loop(
    attached: Attached,
    recipe: Recipe,
    deliver: Any,
    pool: "weakref.ref[ThreadPool]",
) -> None:
    worker = PreprocessWorker(attached, recipe, deliver, generators="shared")
    try:
        if recipe.worker_init_fn is not None:
            recipe.worker_init_fn(attached.worker)
        worker.run(lambda: (p := pool()) is not None and p._open)
    except BaseException as e:
        deliver(Report("crash", attached.worker, os.getpid(), describe_error(e)))
