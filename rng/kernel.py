"""`@kernel`: compiled by numba once on a machine, then read from a cache on disk; never stale.

numba's own cache looks only at the file a function stands in: change a function that another one
inlines, and the other is read back with the old code. Bytes are promised here, so the cache is keyed
by the sources of the function's module and of all that it imports from both packages. It also takes an unreadable cache for an empty one (a file cut
short by a full disk or a killed process) where numba would raise at every start.

The cache lies beside the sources, or in the user's cache folder where that cannot be written; the
environment variable NUMBA_CACHE_DIR moves it.
"""

import _thread
import functools
import hashlib
import logging
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import nrt

_log = logging.getLogger("samebatch")
_PACKAGES = ("rng", "pipeline")
# (module, names after "import"), also where a bracket spreads the names over lines.
_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+((?:rng|pipeline)\b[\w.]*)(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*))?",
    re.MULTILINE,
)
_FunctionCache: Any = FunctionCache  # numba's methods carry no types
_event: Any = event
_runtime: Any = nrt.rtsys
_compiler_lock: Any = global_compiler_lock


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function for use without the interpreter and its lock.

    Never with fastmath, never parallel: its bits are promised, and threads are the caller's.
    """
    dispatcher: Any = njit(nogil=True)(function)
    dispatcher._cache = _Cache(function)
    dispatcher.compile = functools.partial(_sheltered, dispatcher.compile)
    return dispatcher


def _sheltered(compile_: Callable[[Any], Any], signature: Any) -> Any:
    """Compile, or load from the cache, where no signal handler can raise.

    Ctrl-C in the middle leaves numba's tables half filled, and every later compilation of the process
    fails. Handlers run in the main thread only, so another one does it; the main one waits, and raises
    when that is done.
    """
    # The second: inside another compilation, which holds the lock. The third: no other thread runs any more.
    elsewhere = threading.get_ident() != threading.main_thread().ident
    if elsewhere or _compiler_lock.is_locked() or sys.is_finalizing():
        return compile_(signature)
    result: list[Any] = []
    error: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def work() -> None:
        try:
            result.append(compile_(signature))
        except BaseException as e:
            error.append(e)
        finally:
            done.release()

    try:
        # Not a threading.Thread: its `start` cannot be interrupted without harm either.
        _thread.start_new_thread(work, ())
    except RuntimeError:  # no thread can be started
        return compile_(signature)
    interruption: BaseException | None = None
    # The lock only wakes; whether it is over is read from what the thread left. (A handler may raise
    # just as the lock was acquired, and waiting for it once more would never end.)
    while not (result or error):
        try:
            done.acquire()
        except BaseException as e:  # of a signal handler
            interruption = e
    if interruption is not None:
        raise interruption
    if error:
        raise error[0]
    return result[0]


@functools.cache
def sources_digest(module: str) -> str:
    """Return 16 hex digits of the source of a module and of all it imports from both packages."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(_reached(module)):
        digest.update(f"{name}\0".encode() + _source(name) + b"\0")
    return digest.hexdigest()


def _reached(module: str) -> set[str]:
    """Return a module and the modules of both packages that it imports, directly or not."""
    found: set[str] = set()
    ahead = [module]
    while ahead:
        name = ahead.pop()
        if name not in found and _source(name):
            found.add(name)
            ahead += _imports(name)
    return found


@functools.cache
def _imports(module: str) -> list[str]:
    """Return what a module's import lines may name, modules or not; parsing would cost 2 ms each."""
    found = []
    for base, names in _IMPORT.findall(_source(module).decode()):
        found.append(base)
        found += [
            f"{base}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip()
        ]
    return found


@functools.cache
def _source(module: str) -> bytes:
    """Return a module's source, or nothing where there is no such module."""
    path = Path(__file__).parent.parent.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file.read_bytes()
    return b""


class _Cache(_FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, under a stamp of all sources; a damaged one counts as empty."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._stamp()
        try:
            # numba's own method first fills the tables of what a compiler knows: 0.2 s of the start of
            # each process. Code that is read back calls nothing but numba's runtime; where something
            # is compiled, the compiler fills them.
            _runtime.initialize(target_context)
            return self._load_overload(sig, target_context)
        except Exception as e:  # unpickling garbage can raise anything
            _log.info("the kernel cache of %s cannot be read (%r): compiling again", self._name, e)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        self._stamp()
        try:
            super().save_overload(sig, data)
        except Exception as e:
            # A damaged index: begin a new one. If even that fails, go on without a cache.
            try:
                self.flush()
                super().save_overload(sig, data)
            except OSError:
                _log.info("the kernel cache of %s cannot be written (%r)", self._name, e)

    def _stamp(self) -> None:
        file = self._cache_file
        if not isinstance(file._source_stamp, str):
            file._source_stamp = sources_digest(self._py_func.__module__)


class _Announcer(_event.Listener):  # type: ignore[misc]
    """Hears of each compilation in this process; speaks at the first of ours."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        """Say it once."""
        if self.said:
            return
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if getattr(function, "__module__", "").partition(".")[0] in _PACKAGES:
            self.said = True
            _log.warning(
                "samebatch: compiling kernels for this machine; once, about 10 s, then cached on disk"
            )

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


announcer = _Announcer()
_event.register("numba:compile", announcer)
