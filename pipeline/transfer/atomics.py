"""Atomic operations on shared uint64 arrays, and futex sleep and wake, for `@njit` code.

Memory order: `load` acquires, `store` releases, `add`, `swap` and `exchange` do both and are
sequentially consistent. They work on any 1-d uint64 array, mapped memory of several processes
included. A futex word is the low half of a uint64 word (little-endian machines).

Inline assembly would kill the process here (no assembler is initialised), so `pause` goes
through LLVM's target intrinsic, and system calls through libc's `syscall`, which is resolved by
name and therefore cacheable.
"""

import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import int64, types, uint64
from numba.extending import intrinsic

from rng.kernel import kernel

if sys.byteorder != "little":  # pragma: no cover - no such machine is supported by numba today
    raise ImportError("samebatch needs a little-endian machine: futex words are low halves")

_MACHINE = platform.machine()
_SYS_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "arm64": 98}.get(_MACHINE, -1)
_SYS_GETPPID = {"x86_64": 110, "AMD64": 110, "aarch64": 173, "arm64": 173}.get(_MACHINE, -1)
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1

_syscall: Any = types.ExternalFunction(
    "syscall",
    types.int64(
        types.int64,
        types.uintp,
        types.int64,
        types.int64,
        types.uintp,
        types.int64,
        types.int64,
    ),
)


def _intrinsic(function: Callable[..., Any]) -> Any:
    """numba's decorator, whose type stub would ask callers for the typing context."""
    return intrinsic(function)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@_intrinsic
def load(typingctx: Any, words: Any, index: Any) -> Any:
    """Return words[index], acquiring."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.load_atomic(p, "acquire", 8)

    return types.uint64(words, types.intp), codegen


@_intrinsic
def store(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Set words[index], releasing."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _pointer(context, builder, sig.args[0], args[0], args[1])
        builder.store_atomic(args[2], p, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.uint64), codegen


@_intrinsic
def add(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Add to words[index] and return what was there before; a full fence."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.atomic_rmw("add", p, args[2], "seq_cst")

    return types.uint64(words, types.intp, types.uint64), codegen


@_intrinsic
def exchange(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Set words[index] and return what was there before; a full fence."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.atomic_rmw("xchg", p, args[2], "seq_cst")

    return types.uint64(words, types.intp, types.uint64), codegen


@_intrinsic
def swap(typingctx: Any, words: Any, index: Any, expected: Any, value: Any) -> Any:
    """Compare-and-swap: set words[index] to `value` if it is `expected`; return what was seen."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _pointer(context, builder, sig.args[0], args[0], args[1])
        result = builder.cmpxchg(p, args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(result, 0)

    return types.uint64(words, types.intp, types.uint64, types.uint64), codegen


@_intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the processor that this is a spin loop (x86 only; nothing elsewhere)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _MACHINE in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), codegen


@_intrinsic
def _address(typingctx: Any, words: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        p = _pointer(context, builder, sig.args[0], args[0], args[1])
        return builder.ptrtoint(p, ir.IntType(64))

    return types.uintp(words, types.intp), codegen


@kernel
def futex_wait(words: Any, index: Any, seen: Any, timeout_ns: Any) -> None:
    """Sleep while the low half of words[index] is still `seen`, `timeout_ns` at most.

    Returns early on a wake-up, a signal or a changed word: the caller looks again.
    """
    timeout = np.empty(2, np.int64)
    timeout[0] = timeout_ns // 1_000_000_000
    timeout[1] = timeout_ns % 1_000_000_000
    _syscall(
        int64(_SYS_FUTEX),
        _address(words, index),
        int64(_FUTEX_WAIT),
        int64(uint64(seen) & uint64(0xFFFFFFFF)),
        _address(timeout, 0),
        int64(0),
        int64(0),
    )


@kernel
def futex_wake(words: Any, index: Any, count: Any) -> None:
    """Wake at most `count` sleepers of words[index]."""
    _syscall(
        int64(_SYS_FUTEX),
        _address(words, index),
        int64(_FUTEX_WAKE),
        int64(count),
        types.uintp(0),
        int64(0),
        int64(0),
    )


@kernel
def parent_pid() -> Any:
    """Return getppid(), callable without the interpreter."""
    return _syscall(
        int64(_SYS_GETPPID),
        types.uintp(0),
        int64(0),
        int64(0),
        types.uintp(0),
        int64(0),
        int64(0),
    )


SUPPORTED = sys.platform == "linux" and _SYS_FUTEX > 0
