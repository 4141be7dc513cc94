"""Philox4x32: a keyed bijection of 128-bit counters, the only source of random words.

`block(counter, key)` is pure: word j of block i depends on nothing but (i, key). Every
number of this package is such a word at an address (see `rng.address`).

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC'11),
section 3.3; constants and word order as in Random123's `philox.h`. Ten rounds.
"""

# ruff: noqa: ARG001, ARG005  (the signature of an @intrinsic is numba's)
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types, uint32, uint64
from numba.core import cgutils
from numpy.typing import ArrayLike, NDArray

from rng import address
from rng.kernel import kernel

# numba types the decorated function as if the typing context were an argument of the call.
intrinsic: Callable[[Any], Any] = extending.intrinsic
tuple_of: Callable[[Any], Any] = types.Tuple
_pack: Any = cgutils.pack_array

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
ROUNDS = 10

LANES = 8  # counters in one vector
CHAINS = 4  # vectors in flight: enough to hide the multiplier's latency
BLOCKS = LANES * CHAINS  # blocks written by one `blocks`, `units` or `steps`
WORDS = 4 * BLOCKS

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_I64, LANES)


def philox4x32(counter: ArrayLike, key: ArrayLike, rounds: int = ROUNDS) -> NDArray[np.uint32]:
    """Return the blocks of `counter` under `key`: a bijection of the counters for each key.

    Args:
        counter: u32[..., 4], or integers in [0, 2**32).
        key: u32[..., 2]; its leading axes broadcast with the counter's.
        rounds: 0 ... 16; 10 everywhere else in this package, fewer for study.

    Returns:
        u32[..., 4].

    Raises:
        TypeError: rounds is not an int.
        ValueError: a last axis that is not 4 (key: 2), numbers out of range, rounds out of range.

    >>> [hex(word) for word in philox4x32([0, 0, 0, 0], [0, 0])]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    return apply_blocks(_philox, counter, key, 2, rounds, 16)


def apply_blocks(
    kernel: Any, counter: ArrayLike, key: ArrayLike, key_words: int, rounds: int, most: int
) -> NDArray[np.uint32]:
    """Return kernel(counters u32[n, 4], keys u32[n or 1, key_words], rounds, out) on any shapes.

    Raises:
        ValueError: shapes or numbers that do not fit.
    """
    rounds = address.whole("rounds", rounds)
    if not 0 <= rounds <= most:
        raise ValueError(f"rounds must be in [0, {most}], got {rounds}")
    c, k = _words("counter", counter, 4), _words("key", key, key_words)
    shape = np.broadcast_shapes(c.shape[:-1], k.shape[:-1])
    counters = np.ascontiguousarray(np.broadcast_to(c, (*shape, 4))).reshape(-1, 4)
    if k.ndim > 1:
        k = np.ascontiguousarray(np.broadcast_to(k, (*shape, key_words)))
    out = np.empty((*shape, 4), np.uint32)
    kernel(counters, k.reshape(-1, key_words), rounds, out.reshape(-1, 4))
    return out


def _words(name: str, values: ArrayLike, last: int) -> NDArray[np.uint32]:
    array = np.asarray(values)
    if array.ndim < 1 or array.shape[-1] != last:
        raise ValueError(f"{name} must have a last axis of {last} words, got shape {array.shape}")
    if array.dtype == np.uint32:
        return array
    if array.dtype.kind not in "iu" or (
        array.size and not (int(array.min()) >= 0 and int(array.max()) < 1 << 32)
    ):
        raise ValueError(f"{name} must hold integers in [0, 2**32)")
    return array.astype(np.uint32)


@kernel
def _philox(counters: Any, keys: Any, rounds: Any, out: Any) -> None:
    """Philox4x32 with a number of rounds chosen at run time."""
    one_key = keys.shape[0] == 1
    for i in range(counters.shape[0]):
        k0, k1 = keys[0 if one_key else i]
        c0, c1, c2, c3 = counters[i]
        for _ in range(rounds):
            p0 = uint64(c0) * uint64(MULTIPLIER_0)
            p1 = uint64(c2) * uint64(MULTIPLIER_1)
            c0, c1 = uint32(uint32(p1 >> uint64(32)) ^ c1 ^ k0), uint32(p1)
            c2, c3 = uint32(uint32(p0 >> uint64(32)) ^ c3 ^ k1), uint32(p0)
            k0, k1 = uint32(k0 + uint32(WEYL_0)), uint32(k1 + uint32(WEYL_1))
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = c0, c1, c2, c3


# ---------------------------------------------------------------- inside kernels
# An @intrinsic costs 0.2 s to compile where an inlined @njit function costs 1.4 s, at the same
# speed; 64-bit lanes whose high halves are masked only at the multiply vectorise best. Written as
# explicit vectors because the automatic vectoriser leaves a third of the speed behind.
def _splat(builder: Any, value: Any) -> Any:
    """Return a vector whose lanes all hold `value`."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, value, _I32(0))
    return builder.shuffle_vector(
        first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    )


def _rounds(
    builder: Any, states: list[Any], k0: Any, k1: Any, between: Callable[[int], None] | None = None
) -> list[Any]:
    """Return the ten rounds of each of `states`, all scalars or all vectors of 64-bit lanes.

    `between(i)` may write other instructions after the i-th round of any state.
    """
    kind = states[0][0].type
    vector = isinstance(kind, ir.VectorType)

    def constant(value: int) -> Any:
        return ir.Constant(kind, [value] * LANES if vector else value)

    low, half = constant(0xFFFFFFFF), constant(32)
    m0, m1 = constant(MULTIPLIER_0), constant(MULTIPLIER_1)
    for r in range(ROUNDS):
        if r:
            k0 = builder.add(k0, _I64(WEYL_0))
            k1 = builder.add(k1, _I64(WEYL_1))
        key0 = _splat(builder, k0) if vector else k0
        key1 = _splat(builder, k1) if vector else k1
        for s, (a0, a1, a2, a3) in enumerate(states):
            p0 = builder.mul(builder.and_(a0, low), m0)
            p1 = builder.mul(builder.and_(a2, low), m1)
            states[s] = (
                builder.xor(builder.lshr(p1, half), builder.xor(a1, key0)),
                p1,
                builder.xor(builder.lshr(p0, half), builder.xor(a3, key1)),
                p0,
            )
            if between:
                between(r * len(states) + s)
    return states


def _join(builder: Any, low: Any, high: Any) -> Any:
    """Return low | high << 32 of the low halves of two vectors."""
    mask = ir.Constant(_VECTOR, [0xFFFFFFFF] * LANES)
    half = ir.Constant(_VECTOR, [32] * LANES)
    return builder.or_(builder.and_(low, mask), builder.shl(high, half))


def _vector_rounds(
    builder: Any,
    position: Any,
    stride: int,
    c2: Any,
    c3: Any,
    k0: Any,
    k1: Any,
    between: Callable[[int], None] | None = None,
) -> list[Any]:
    """Return the blocks at position, position + stride, ...: CHAINS states of LANES lanes."""
    half = ir.Constant(_VECTOR, [32] * LANES)
    base, v2, v3 = _splat(builder, position), _splat(builder, c2), _splat(builder, c3)
    states = []
    for chain in range(CHAINS):
        steps = [((chain * LANES + i) * stride) & 0xFFFFFFFFFFFFFFFF for i in range(LANES)]
        at = builder.add(base, ir.Constant(_VECTOR, steps))
        states.append((at, builder.lshr(at, half), v2, v3))
    return _rounds(builder, states, k0, k1, between)


def _store(context: Any, builder: Any, array: Any, kind: Any, offset: Any, vectors: Any) -> None:
    """Store vectors one after another from element `offset` of an array on."""
    data = builder.gep(context.make_array(kind)(context, builder, array).data, [offset])
    base = builder.bitcast(data, _I8.as_pointer())
    at = 0
    for vector in vectors:
        pointer = builder.bitcast(builder.gep(base, [_I64(at)]), vector.type.as_pointer())
        builder.store(vector, pointer, align=4)
        at += vector.type.count * (8 if vector.type.element == _I64 else 4)


@intrinsic
def block(typingctx: Any, c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Return one block: the four uint32 words at counter (c0, c1, c2, c3) under key (k0, k1).

    For use inside `@njit` code. Each argument is an integer; its low 32 bits count.
    """
    signature = tuple_of([types.uint32] * 4)(*[types.uint64] * 6)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (state,) = _rounds(builder, [args[:4]], args[4], args[5])
        return _pack(builder, [builder.trunc(a, _I32) for a in state])

    return signature, codegen


@intrinsic
def blocks(
    typingctx: Any, out: Any, offset: Any, position: Any, c2: Any, c3: Any, k0: Any, k1: Any
) -> Any:
    """Write the BLOCKS blocks at `position`, `position` + 1, ... to out[offset : offset + WORDS].

    For use inside `@njit` code; `out` is a contiguous u32 array, its bounds are not checked. Word j
    of block i goes to element 4 * i + j.
    """
    signature = types.void(out, *[types.uint64] * 6)
    return signature, _block_writer(lambda builder, words: words)


@intrinsic
def units(
    typingctx: Any, out: Any, offset: Any, position: Any, c2: Any, c3: Any, k0: Any, k1: Any
) -> Any:
    """Write float32(word >> 8) * 2**-24 of each word, where `blocks` writes the word."""

    def convert(builder: Any, words: Any) -> Any:
        count = words.type.count
        floats = ir.VectorType(ir.FloatType(), count)
        upper = builder.lshr(words, ir.Constant(words.type, [8] * count))
        return builder.fmul(builder.sitofp(upper, floats), ir.Constant(floats, [2.0**-24] * count))

    signature = types.void(out, *[types.uint64] * 6)
    return signature, _block_writer(convert)


def _block_writer(convert: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return the code generator of `blocks`, each vector of words going through `convert`."""
    order = [i + LANES * odd for i in range(LANES) for odd in (0, 1)]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, at, start = args[:3]
        vectors = []
        for a0, a1, a2, a3 in _vector_rounds(builder, start, 1, *args[3:]):
            longs = builder.shuffle_vector(
                _join(builder, a0, a1),
                _join(builder, a2, a3),
                ir.Constant(ir.VectorType(_I32, 2 * LANES), order),
            )
            words = builder.bitcast(longs, ir.VectorType(_I32, 4 * LANES))
            vectors.append(convert(builder, words))
        _store(context, builder, array, sig.args[0], at, vectors)
        return context.get_dummy_value()

    return codegen


@intrinsic
def steps(
    typingctx: Any, out: Any, offset: Any, step: Any, c2: Any, c3: Any, k0: Any, k1: Any
) -> Any:
    """Write the targets of the BLOCKS shuffle steps step, step - 1, ... to `out` from `offset` on.

    For use inside `@kernel` code; `out` is a contiguous u32 array. Target of step i: r * (i + 1) >> 64,
    r = word0 | word1 << 32 of the block at position i << 8, for i < 2**32 - 1. Returns nonzero if
    one of the r may have to be rejected: where bits 32 ... 63 of its product are 0.
    """
    signature = types.uint32(out, *[types.uint64] * 6)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _targets(context, builder, sig, args, None)

    return signature, codegen


@intrinsic
def steps_and_swaps(
    typingctx: Any,
    out: Any,
    offset: Any,
    step: Any,
    c2: Any,
    c3: Any,
    k0: Any,
    k1: Any,
    a: Any,
    done: Any,
    first: Any,
) -> Any:
    """Do as `steps`, and meanwhile make the swaps of the BLOCKS steps first, first - 1, ... in `a`.

    Their targets are out[done], out[done + 1], ... The swaps stand between the rounds, so that the
    processor waits for the one while it computes the other.
    """
    signature = types.uint32(out, *[types.uint64] * 6, a, types.uint64, types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        targets = context.make_array(sig.args[0])(context, builder, args[0]).data
        data = context.make_array(sig.args[7])(context, builder, args[7]).data

        def between(i: int) -> None:
            if i < BLOCKS:
                one = builder.gep(data, [builder.sub(args[9], _I64(i))])
                j = builder.load(builder.gep(targets, [builder.add(args[8], _I64(i))]))
                other = builder.gep(data, [builder.zext(j, _I64)])
                held, taken = builder.load(one), builder.load(other)
                builder.store(taken, one)
                builder.store(held, other)

        return _targets(context, builder, sig, args, between)

    return signature, codegen


def _targets(
    context: Any, builder: Any, sig: Any, args: Any, between: Callable[[int], None] | None
) -> Any:
    """Write what `steps` documents; `between` as in `_rounds`."""
    at, step = args[1:3]
    low, half = (ir.Constant(_VECTOR, [v] * LANES) for v in (0xFFFFFFFF, 32))
    zero = ir.Constant(_VECTOR, [0] * LANES)
    suspect = ir.Constant(ir.IntType(LANES), 0)
    targets = []
    position = builder.shl(step, _I64(8))
    states = _vector_rounds(builder, position, -256, args[3], args[4], args[5], args[6], between)
    for chain, (a0, a1, _, _) in enumerate(states):
        down = ir.Constant(_VECTOR, [1 - chain * LANES - i for i in range(LANES)])
        m = builder.and_(builder.add(_splat(builder, step), down), low)
        carry = builder.lshr(builder.mul(builder.and_(a0, low), m), half)
        product = builder.add(builder.mul(builder.and_(a1, low), m), carry)
        none = builder.icmp_unsigned("==", builder.and_(product, low), zero)
        suspect = builder.or_(suspect, builder.bitcast(none, suspect.type))
        target = builder.lshr(product, half)
        targets.append(builder.trunc(target, ir.VectorType(_I32, LANES)))
    _store(context, builder, args[0], sig.args[0], at, targets)
    return builder.zext(suspect, _I32)


@intrinsic
def multiply(typingctx: Any, a: Any, b: Any) -> Any:
    """Return (high, low), the two 64-bit halves of the product of two u64."""
    signature = tuple_of([types.uint64] * 2)(types.uint64, types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i128 = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], i128), builder.zext(args[1], i128))
        high = builder.trunc(builder.lshr(product, i128(64)), _I64)
        return context.make_tuple(builder, sig.return_type, (high, builder.trunc(product, _I64)))

    return signature, codegen
