"""Bulk fills: element i of a stream depends on its address and on i, and on nothing else.

    word i of a stream  = word i mod 4 of the block at position start_block + i div 4
    32-bit value i      = word i              64-bit value i = words 2 i, 2 i + 1 (low half first)

The words are written straight into the result, WORDS at a time, and turned into numbers in place
while they are in the first-level cache. Chunks are independent, so threads split the elements at
will; results that are not contiguous, or of another dtype, pass through a small buffer.
"""

# ruff: noqa: ARG001  (the signature of an @intrinsic is numba's)
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, types, uint32, uint64
from numpy.typing import NDArray

from rng import address, philox
from rng.kernel import kernel

_CHUNK = 4 * philox.WORDS  # words made, then transformed: 2 KiB of the first-level cache
_BUFFER = 1 << 16  # elements that pass through a buffer at a time
_PER_THREAD = 1 << 19  # fewer elements than this are not worth a thread

# What the words become: a branch of `words`.
RAW, UNIT_32, RANGE_32, UNIT_64, RANGE_64, INVERSE, INVERSE_IN, LOG = range(8)


# ---------------------------------------------------------------- threads, shapes, dtypes
def cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_pieces(n: int, threads: int | None, work: Callable[[int, int], None]) -> None:
    """Call work(a, b) on pieces [a, b) that cover [0, n), on at most `threads` threads.

    Pieces begin at multiples of 2**16. None: a thread for each 2**19 elements, at most one for
    each processor.

    Raises:
        TypeError: threads is not an int.
        ValueError: threads < 1.
    """
    check_threads(threads)
    count = n // _PER_THREAD
    if count > 1:
        count = min(count, threads or cpus())
    if count < 2:
        work(0, n)
        return
    step = (-(-n // count) + _BUFFER - 1) // _BUFFER * _BUFFER
    cuts = list(range(0, n, step))
    with ThreadPoolExecutor(len(cuts) - 1) as pool:
        others = [pool.submit(work, a, min(a + step, n)) for a in cuts[1:]]
        work(0, step)
        for other in others:
            other.result()


def check_threads(threads: int | None) -> None:
    """Raise TypeError or ValueError where `threads` is no number of threads."""
    if threads is not None and address.whole("threads", threads) < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")


def check_out(out: NDArray[Any], threads: int | None = None) -> None:
    """Raise where `out` cannot be filled.

    Raises:
        TypeError: not an array, or threads is not an int.
        ValueError: read-only, or two of its elements may share memory, or threads < 1.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, got {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable")
    if not out.flags.forc and out.size > 1:
        reach = out.itemsize
        for stride, n in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True)):
            if n > 1 and stride < reach:
                raise ValueError("out must not have elements that share memory")
            reach += stride * (n - 1)
    check_threads(threads)


def through(
    out: NDArray[Any],
    native: Any,
    threads: int | None,
    kernel: Callable[[NDArray[Any], int], None],
) -> None:
    """Call kernel(piece, first) until all of `out` is written, element i of the C order as number i.

    `piece` is a contiguous array of dtype `native`: a part of `out` if that has the dtype and is
    contiguous, else a buffer that is then copied with one cast. `out` has passed `check_out`.
    """
    flat: Any = out.reshape(-1) if out.flags.c_contiguous else out.flat
    if out.dtype == native and out.flags.carray:
        if out.size < 2 * _PER_THREAD:
            kernel(flat, 0)
            return
        in_pieces(out.size, threads, lambda a, b: kernel(flat[a:b], a))
        return

    def work(a: int, b: int) -> None:
        buffer = np.empty(min(_BUFFER, b - a), native)
        for first in range(a, b, _BUFFER):
            piece = buffer[: min(_BUFFER, b - first)]
            kernel(piece, first)
            with np.errstate(all="ignore"):  # beyond the largest float16 is inf: no need to warn
                flat[first : first + piece.size] = piece

    in_pieces(out.size, threads, work)


# ---------------------------------------------------------------- kernels
_I32, _I64, _F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
_V4, _V8 = ir.VectorType(_I64, 4), ir.VectorType(_I32, 8)


@philox.intrinsic
def _inverse_8(
    typingctx: Any, words: Any, at: Any, rows: Any, upper: Any, s0: Any, s1: Any, s2: Any, s3: Any
) -> Any:
    """Replace the eight words from words[at] by the bits of their float32 values: `rng.tables`."""
    signature = types.void(words, types.uint64, rows, types.uint64, *[types.float32] * 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), _V8.as_pointer())
        table = context.make_array(sig.args[2])(context, builder, args[2]).data
        table = builder.bitcast(table, ir.VectorType(_I64, 2).as_pointer())
        w = builder.load(pointer, align=4)
        builder.store(_inverse(builder, w, table, args[3], args[4:]), pointer, align=4)
        return context.get_dummy_value()

    return signature, codegen


def _all(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _splat(builder: Any, value: Any, count: int) -> Any:
    kind = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, count), [0] * count)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def _inverse(builder: Any, w: Any, table: Any, upper: Any, scales: Any) -> Any:
    """Return the bits of the values of eight words; even and odd lanes are worked on apart."""
    pairs = builder.bitcast(w, _V4)
    low, high = _all(_V4, 0xFFFFFFFF), _all(_V4, 32)
    c0, product = [], []
    for lane in (builder.and_(pairs, low), builder.lshr(pairs, high)):
        first, p = _polynomial(builder, lane, table, upper)
        c0.append(first)
        product.append(p)
    p8 = builder.or_(
        builder.lshr(product[0], high), builder.and_(product[1], _all(_V4, 0xFFFFFFFF00000000))
    )
    c8 = builder.or_(builder.and_(c0[0], low), builder.shl(c0[1], high))
    z = builder.add(builder.ashr(builder.bitcast(p8, _V8), _all(_V8, 2)), builder.bitcast(c8, _V8))
    floats = ir.VectorType(ir.FloatType(), 8)
    side = builder.icmp_signed("<", w, _all(_V8, 0))
    top = builder.icmp_signed("<", builder.shl(w, _all(_V8, 1)), _all(_V8, 0))
    s = [_splat(builder, scale, 8) for scale in scales]
    scale = builder.select(side, builder.select(top, s[3], s[2]), builder.select(top, s[1], s[0]))
    return builder.bitcast(builder.fmul(builder.sitofp(z, floats), scale), _V8)


def _polynomial(builder: Any, w: Any, table: Any, upper: Any) -> tuple[Any, Any]:
    """Return (c0, a * t) of four words in 64-bit lanes; the low half of c0's lanes counts."""

    def extended(x: Any) -> Any:  # low half, signed: with it a product is one vpmuldq
        return builder.ashr(builder.shl(x, _all(_V4, 32)), _all(_V4, 32))

    x = builder.and_(builder.or_(builder.shl(w, _all(_V4, 1)), _all(_V4, 1)), _all(_V4, 0xFFFFFFFF))
    # 2**52 + x as a double, less 2**52: exponent and mantissa are E and what follows the
    # leading one.
    doubles = ir.VectorType(_F64, 4)
    magic = builder.bitcast(builder.or_(x, _all(_V4, 0x4330000000000000)), doubles)
    exact = builder.fsub(magic, ir.Constant(doubles, [2.0**52] * 4))
    bits = builder.bitcast(exact, _V4)
    row = builder.sub(builder.lshr(bits, _all(_V4, 48)), _all(_V4, 16 * 1023))
    side = builder.sub(_all(_V4, 0), builder.lshr(w, _all(_V4, 31)))
    row = builder.add(row, builder.and_(side, _splat(builder, upper, 4)))
    t = builder.and_(builder.lshr(bits, _all(_V4, 17)), _all(_V4, 0x7FFFFFFF))
    loaded = []
    for i in range(4):
        index = builder.extract_element(row, _I32(i))
        loaded.append(builder.load(builder.gep(table, [index]), align=4))

    def shuffle(a: Any, b: Any, lanes: list[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))

    a = shuffle(loaded[0], loaded[2], [0, 1, 2, 3])
    b = shuffle(loaded[1], loaded[3], [0, 1, 2, 3])
    c01 = shuffle(a, b, [0, 4, 2, 6])
    c23 = shuffle(a, b, [1, 5, 3, 7])
    high = _all(_V4, 32)
    p = builder.mul(extended(builder.lshr(c23, high)), t)
    p = builder.mul(extended(builder.add(c23, builder.lshr(p, high))), t)
    c1 = builder.lshr(c01, high)
    p = builder.mul(extended(builder.add(c1, builder.lshr(p, high))), t)
    return c01, p


@kernel
def words(
    out: Any,
    first: Any,
    start: Any,
    c2: Any,
    c3: Any,
    k0: Any,
    k1: Any,
    kind: Any,
    real: Any,
    low: Any,
    span: Any,
    rows: Any,
    upper: Any,
    scales: Any,
) -> None:
    """Fill `out` (u32[n], contiguous) from word `first` on."""
    n = uint64(out.size)
    lead = first & uint64(3)  # words of the first block that come before `first`
    position = start + (first >> uint64(2))
    at = uint64(0)
    if lead > uint64(0):
        at = min(uint64(4) - lead, n)
        where = (position, c2, c3, k0, k1)
        _part(out, at - at, at, lead, where, kind, real, low, span, rows, upper, scales)
        position += uint64(1)
    # Vectors stored across two cache lines cost a sixth of the speed: begin at a line, if blocks can.
    place = uint64(out.ctypes.data) + at * uint64(4)
    if n > uint64(2 * _CHUNK) and place & uint64(15) == uint64(0):
        blocks = (uint64(0) - (place >> uint64(4))) & uint64(3)
        if blocks > uint64(0):
            zero, count = uint64(0), blocks << uint64(2)
            where = (position, c2, c3, k0, k1)
            _part(out, at, count, zero, where, kind, real, low, span, rows, upper, scales)
            position += blocks
            at += count
    whole = (n - at) // uint64(_CHUNK) * uint64(_CHUNK) + at
    while at < whole:
        for q in range(uint64(0), uint64(_CHUNK), uint64(philox.WORDS)):
            block = position + (q >> uint64(2))
            if kind == UNIT_32:
                philox.units(out, at + q, block, c2, c3, k0, k1)
            else:
                philox.blocks(out, at + q, block, c2, c3, k0, k1)
        if kind > UNIT_32:
            _transform(out, at, uint64(_CHUNK), kind, real, low, span, rows, upper, scales)
        position += uint64(_CHUNK // 4)
        at += uint64(_CHUNK)
    if at < n:
        where = (position, c2, c3, k0, k1)
        zero = uint64(0)
        _part(out, at, n - at, zero, where, kind, real, low, span, rows, upper, scales)


@kernel
def _part(
    out: Any,
    at: Any,
    count: Any,
    lead: Any,
    where: Any,
    kind: Any,
    real: Any,
    low: Any,
    span: Any,
    rows: Any,
    upper: Any,
    scales: Any,
) -> None:
    """Write out[at : at + count], less than a chunk, by way of a buffer; skip `lead` words."""
    position, c2, c3, k0, k1 = where
    buffer = np.empty(_CHUNK, np.uint32)
    for q in range(uint64(0), lead + count, uint64(philox.WORDS)):
        philox.blocks(buffer, q, position + (q >> uint64(2)), c2, c3, k0, k1)
    if kind != RAW:
        need = (lead + count + uint64(7)) & ~uint64(7)
        _transform(buffer, uint64(0), need, kind, real, low, span, rows, upper, scales)
    for q in range(count):
        out[at + q] = buffer[lead + q]


@kernel
def _transform(
    words: Any,
    base: Any,
    need: Any,
    kind: Any,
    real: Any,
    low: Any,
    span: Any,
    rows: Any,
    upper: Any,
    scales: Any,
) -> None:
    """Turn words[base : base + need] into numbers, in place; `need` is a multiple of 8."""
    floats = words.view(np.float32)
    shift, scale, most = float32(real[0]), float32(real[1]), float32(real[2])
    if kind == UNIT_32:
        for q in range(need):
            floats[base + q] = float32(int32(words[base + q] >> uint32(8))) * float32(2.0**-24)
    elif kind == RANGE_32:
        for q in range(need):
            unit = float32(int32(words[base + q] >> uint32(8))) * float32(2.0**-24)
            floats[base + q] = min(float32(shift + float32(unit * scale)), most)
    elif kind <= RANGE_64:
        _transform_64(words, base >> uint64(1), need >> uint64(1), kind, real)
    else:
        if kind == INVERSE_IN:
            for q in range(need):
                rank = uint32(low + ((uint64(words[base + q]) * span) >> uint64(32)))
                mirror = uint32(0x7FFFFFFF) if rank >= uint32(0x80000000) else uint32(0)
                words[base + q] = rank ^ mirror
        s0, s1, s2, s3 = scales[0], scales[1], scales[2], scales[3]
        for q in range(uint64(0), need, uint64(8)):
            _inverse_8(words, base + q, rows, upper, s0, s1, s2, s3)
        if kind == LOG:
            for q in range(need):
                floats[base + q] = float32(_exp(real[0] + real[1] * float64(floats[base + q])))
        elif shift != float32(0.0) or scale != float32(1.0):
            for q in range(need):
                floats[base + q] = float32(shift + float32(floats[base + q] * scale))


@kernel
def _transform_64(words: Any, base: Any, need: Any, kind: Any, real: Any) -> None:
    """Turn `need` pairs of words into float64, in place."""
    longs, doubles = words.view(np.uint64), words.view(np.float64)
    shift, scale, most = real[0], real[1], real[2]
    if kind == UNIT_64:
        for q in range(need):
            doubles[base + q] = float64(longs[base + q] >> uint64(11)) * 2.0**-53
    else:
        for q in range(need):
            unit = float64(longs[base + q] >> uint64(11)) * 2.0**-53
            doubles[base + q] = min(shift + unit * scale, most)


@kernel
def _exp(x: Any) -> Any:
    """Return exp(x) to 1e-11 of itself by additions and multiplications alone: no libm."""
    x = min(max(x, -700.0), 700.0)
    k = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0  # nearest integer
    r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    p = 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _power_of_two(int64(k))


@philox.intrinsic
def _power_of_two(typingctx: Any, k: Any) -> Any:
    """Return 2.0**k for -1022 <= k <= 1023."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.shl(builder.add(args[0], _I64(1023)), _I64(52))
        return builder.bitcast(bits, _F64)

    return types.float64(types.int64), codegen


@kernel
def bernoulli(
    out: Any, first: Any, start: Any, c2: Any, c3: Any, k0: Any, k1: Any, threshold: Any
) -> None:
    """Fill `out` (u8[n], contiguous) with `word < threshold`, from word `first` on."""
    n = uint64(out.size)
    buffer = np.empty(_CHUNK, np.uint32)
    at = uint64(0)
    lead = first & uint64(3)
    position = start + (first >> uint64(2))
    while at < n:
        count = min(uint64(_CHUNK) - lead, n - at)
        for q in range(uint64(0), count + lead, uint64(philox.WORDS)):
            philox.blocks(buffer, q, position + (q >> uint64(2)), c2, c3, k0, k1)
        for q in range(count):
            out[at + q] = buffer[lead + q] < uint32(threshold)
        at += count
        position += uint64(_CHUNK // 4)
        lead = uint64(0)


@kernel
def below(
    out: Any,
    first: Any,
    start: Any,
    c2: Any,
    c3: Any,
    k0: Any,
    k1: Any,
    wide: Any,
    low: Any,
    count: Any,
) -> None:
    """Fill `out` (u64[n], contiguous) with low + [0, count), mod 2**64, from number `first` on.

    One word each, or two if `wide`; count = 0 stands for 2**64. A rejected draw reads the same word
    of the same position again with the attempt as `op`.
    """
    n = uint64(out.size)
    each = uint64(2) if wide else uint64(1)
    buffer = np.empty(_CHUNK, np.uint32)
    longs = buffer.view(np.uint64)
    per = uint64(_CHUNK) // each
    half = uint64(1) << uint64(32)
    limit = uint64(0)
    if wide and count > uint64(0):
        limit = (uint64(0) - count) % count
    elif not wide:
        limit = (half - count) % count
    at = uint64(0)
    position = start + ((first * each) >> uint64(2))
    lead = ((first * each) & uint64(3)) // each
    while at < n:
        some = min(per - lead, n - at)
        for q in range(uint64(0), (some + lead) * each, uint64(philox.WORDS)):
            philox.blocks(buffer, q, position + (q >> uint64(2)), c2, c3, k0, k1)
        for q in range(some):
            place = lead + q
            if wide:
                value = longs[place]
                if count > uint64(0):
                    value, rest = philox.multiply(value, count)
                    if rest < limit:
                        block = position + (place >> uint64(1))
                        value = again(block, place & uint64(1), limit, c2, c3, k0, k1, wide, count)
            else:
                product = uint64(buffer[place]) * count
                value = product >> uint64(32)
                if (product & (half - uint64(1))) < limit:
                    block = position + (place >> uint64(2))
                    value = again(block, place & uint64(3), limit, c2, c3, k0, k1, wide, count)
            out[at + q] = low + value
        at += some
        position += uint64(_CHUNK // 4)
        lead = uint64(0)


@kernel
def again(
    position: Any,
    place: Any,
    limit: Any,
    c2: Any,
    c3: Any,
    k0: Any,
    k1: Any,
    wide: Any,
    count: Any,
) -> Any:
    """Return the draw at `place` of a block whose attempt 0 was rejected: attempts 1 ... 255."""
    value = uint64(0)
    for attempt in range(uint64(1), uint64(256)):
        site = c3 + (attempt << uint64(16))
        w = philox.block(position, position >> uint64(32), c2, site, k0, k1)
        if wide:
            low, high = (w[0], w[1]) if place == uint64(0) else (w[2], w[3])
            value, rest = philox.multiply(uint64(low) | uint64(high) << uint64(32), count)
        else:
            word = w[0]
            if place == uint64(1):
                word = w[1]
            elif place == uint64(2):
                word = w[2]
            elif place == uint64(3):
                word = w[3]
            product = uint64(word) * count
            value, rest = product >> uint64(32), product & uint64(0xFFFFFFFF)
        if rest >= limit:
            break
    return value


@kernel
def search(out: Any, cuts: Any) -> None:
    """Replace each u64 x of `out` by the first k with (x >> 11) < cuts[k], in place."""
    for q in range(out.size):
        x = out[q] >> uint64(11)
        low, high = 0, cuts.size - 1
        while low < high:
            middle = (low + high) >> 1
            if x < cuts[middle]:
                high = middle
            else:
                low = middle + 1
        out[q] = uint64(low)
