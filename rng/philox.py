"""Philox4x32: a keyed bijection of 128-bit counters, the only source of random words.

`block(counter, key)` is pure: word j of block i depends on nothing but (i, key). Every
number of this package is such a word at an address (see `rng.address`).

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC'11),
section 3.3; constants and word order as in Random123's `philox.h`. Ten rounds.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
ROUNDS = 10


# ---------------------------------------------------------------- inside kernels
# An @intrinsic costs 0.2 s to compile where an inlined @njit function costs 1.4 s, at the same
# speed; 64-bit lanes whose high halves are masked only at the multiply vectorise best.
@intrinsic  # type: ignore[untyped-decorator]
def block(typingctx: Any, c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Return one block: the four uint32 words at counter (c0, c1, c2, c3) under key (k0, k1).

    For use inside `@njit` code. Each argument is an integer; its low 32 bits count.
    """
    signature = types.UniTuple(types.uint32, 4)(
        types.uint64, types.uint64, types.uint64, types.uint64, types.uint64, types.uint64
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        i32 = ir.IntType(32)
        low = ir.Constant(i64, 0xFFFFFFFF)
        s32 = ir.Constant(i64, 32)
        m0 = ir.Constant(i64, MULTIPLIER_0)
        m1 = ir.Constant(i64, MULTIPLIER_1)
        w0 = ir.Constant(i64, WEYL_0)
        w1 = ir.Constant(i64, WEYL_1)
        a0, a1, a2, a3, key0, key1 = args
        for r in range(ROUNDS):
            if r:
                key0 = builder.add(key0, w0)
                key1 = builder.add(key1, w1)
            p0 = builder.mul(builder.and_(a0, low), m0)
            p1 = builder.mul(builder.and_(a2, low), m1)
            a0, a1, a2, a3 = (
                builder.xor(builder.lshr(p1, s32), builder.xor(a1, key0)),
                p1,
                builder.xor(builder.lshr(p0, s32), builder.xor(a3, key1)),
                p0,
            )
        words = [builder.trunc(a, i32) for a in (a0, a1, a2, a3)]
        return cgutils.pack_array(builder, words)

    return signature, codegen
