"""Hints to the processor, for use inside kernels: this cache line is needed soon.

Where the next accesses are known and lie here and there, their waits for memory overlap. A hint reads nothing:
the address need not be valid.
"""

# ruff: noqa: ARG001  (the signature of an @intrinsic is numba's)

from typing import Any

from llvmlite import ir
from numba import types

from rng.philox import intrinsic


def _hint(write: int) -> Any:
    @intrinsic
    def prefetch(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
            call = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            builder.call(call, [builder.inttoptr(args[0], pointer), i32(write), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(types.uint64), codegen

    return prefetch


to_read = _hint(0)
to_write = _hint(1)
