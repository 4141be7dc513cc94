"""Runs of pixels as explicit vector code, for use inside kernels.

`gather` intrinsics move pixels (bytes to bytes), `convert` intrinsics compute values (bytes to the
output's dtype), each at plain addresses and 16 at a time. The last step is moved back to end with
the row, so no access leaves it; hence rows of 16 or more only. `transpose_16` and `weigh_runs` serve
resampling. Written as LLVM vectors since the
auto-vectoriser leaves such short rows scalar (four times slower, measured), and since an
@intrinsic compiles in a fraction of the time of an inlined function.

    float32, plain    v * s - m            two rounded operations; LLVM may not contract them,
    float32, divided  v / 255 * s - m      as no fast-math flag is set
    uint16 (float16)  the same, then rounded to nearest even by integer operations
    uint8             v

Coefficients lie in one float32 array: `period` + 16 values of s, repeating with the period, then as
many of m.

Source: float32 to float16: Giesen, "float_to_half_fast3_rtne", public domain.
"""

# ruff: noqa: ARG001  (the signature of an @intrinsic is numba's)

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

# numba types the decorated function as if the typing context were an argument of the call.
intrinsic: Callable[[Any], Any] = extending.intrinsic
_declare: Any = cgutils.get_or_insert_function
_memset: Any = cgutils.memset
_variable: Any = cgutils.alloca_once_value

PIXELS = 16
_LINE_NBYTES = 64  # of a cache
I8, I16, I32, I64, F32 = (
    ir.IntType(8),
    ir.IntType(16),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
)


def _vector(element: Any, count: int) -> Any:
    return ir.VectorType(element, count)


def _constant(vector: Any, value: Any) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _shuffle(builder: Any, vector: Any, order: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(I32, len(order)), order)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _load(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    place = builder.add(address, I64(offset))
    return builder.load(builder.inttoptr(place, kind.as_pointer()), align=1)


def _nbytes(element: Any) -> int:
    return 4 if element == F32 else int(element.width) // 8


def _store(builder: Any, address: Any, value: Any, stream: bool = False) -> None:
    """Store a vector; with `stream` past the caches, at an address that is a multiple of its size."""
    align = value.type.count * _nbytes(value.type.element) if stream else 1
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)
    if stream:
        stored.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))


def _splat(builder: Any, scalar: Any, count: int) -> Any:
    empty = ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined)
    return _shuffle(builder, builder.insert_element(empty, scalar, I32(0)), [0] * count)


def _half(builder: Any, value: Any) -> Any:
    """Return <n x i16>: float32 rounded to float16, to nearest even."""
    count = value.type.count
    ints, floats = _vector(I32, count), _vector(F32, count)

    def c(x: int) -> Any:
        return _constant(ints, x)

    bits = builder.bitcast(value, ints)
    sign = builder.and_(bits, c(0x80000000))
    bits = builder.xor(bits, sign)
    magic = c((127 - 15 + 23 - 10 + 1) << 23)
    tiny = builder.fadd(builder.bitcast(bits, floats), builder.bitcast(magic, floats))
    small = builder.sub(builder.bitcast(tiny, ints), magic)
    odd = builder.and_(builder.lshr(bits, c(13)), c(1))
    normal = builder.add(bits, c((((15 - 127) << 23) + 0xFFF) & 0xFFFFFFFF))
    normal = builder.lshr(builder.add(normal, odd), c(13))
    is_nan = builder.icmp_unsigned(">", bits, c(0x7F800000))
    large = builder.select(is_nan, c(0x7E00), c(0x7C00))
    out = builder.select(builder.icmp_unsigned("<", bits, c(113 << 23)), small, normal)
    out = builder.select(builder.icmp_unsigned(">=", bits, c((127 + 16) << 23)), large, out)
    return builder.trunc(builder.or_(out, builder.lshr(sign, c(16))), _vector(I16, count))


def _value(builder: Any, dtype: Any, pixels: Any, divide: bool, s: Any, m: Any) -> Any:
    """Return the output vector of a vector of uint8 values."""
    if dtype == types.uint8:
        return pixels
    floats = _vector(F32, pixels.type.count)
    value = builder.uitofp(builder.zext(pixels, _vector(I32, floats.count)), floats)
    if divide:
        value = builder.fdiv(value, _constant(floats, 255.0))
    value = builder.fsub(builder.fmul(value, s), m)
    return _half(builder, value) if dtype == types.uint16 else value


def _steps(builder: Any, count: Any) -> Any:
    """Loop over the first places of steps of 16 that cover `count` >= 16 and stay inside."""
    last = builder.sub(count, I64(PIXELS))
    steps = builder.lshr(builder.add(count, I64(PIXELS - 1)), I64(4))
    return _Steps(builder, steps, last)


class _Steps:
    def __init__(self, builder: Any, steps: Any, last: Any) -> None:
        self.builder = builder
        self.last = last
        self.loop = cgutils.for_range(builder, steps)

    def __enter__(self) -> Any:
        builder = self.builder
        x = builder.mul(self.loop.__enter__().index, I64(PIXELS))
        return builder.select(builder.icmp_unsigned("<", x, self.last), x, self.last)

    def __exit__(self, *failure: Any) -> None:
        self.loop.__exit__(*failure)


def _gather(channels: int, mirror: bool, planar: bool) -> Any:
    """Return the intrinsic gather(source, pitch, target, target_pitch, plane, count, lines).

    All uint64. source: address of the source pixel of the first target pixel; the next ones lie to
    its right, if mirrored to its left. target: address of the first target byte. The pitches are
    bytes from row to row (two's complement where rows run upwards), plane: bytes from channel to
    channel of the target, if planar; count: pixels of a row, at least 16; lines: rows.
    """
    places = [PIXELS - 1 - i if mirror else i for i in range(PIXELS)]
    order = [place * channels + c for place in places for c in range(channels)]
    parts = [order[c::channels] for c in range(channels)] if planar else [order]

    @intrinsic
    def gather(
        typingctx: Any,
        source: Any,
        pitch: Any,
        target: Any,
        target_pitch: Any,
        plane: Any,
        count: Any,
        lines: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, pitch, target, target_pitch, plane, count, lines = args
            if mirror:
                source = builder.sub(source, I64((PIXELS - 1) * channels))
            with cgutils.for_range(builder, lines) as loop:
                line_from = builder.add(source, builder.mul(loop.index, pitch))
                line_to = builder.add(target, builder.mul(loop.index, target_pitch))
                with _steps(builder, count) as x:
                    shift = builder.mul(x, I64(channels))
                    at = builder.sub(line_from, shift) if mirror else builder.add(line_from, shift)
                    pixels = _load(builder, at, 0, _vector(I8, PIXELS * channels))
                    to = builder.add(line_to, x if planar else shift)
                    for part in parts:
                        _store(builder, to, _shuffle(builder, pixels, part))
                        to = builder.add(to, plane)
            return context.get_dummy_value()

        return types.void(*[types.uint64] * 7), codegen

    return gather


gather_1 = _gather(1, mirror=False, planar=True)  # also copies interleaved rows
gather_1_mirrored = _gather(1, mirror=True, planar=True)
split_3 = _gather(3, mirror=False, planar=True)
split_3_mirrored = _gather(3, mirror=True, planar=True)
gather_3_mirrored = _gather(3, mirror=True, planar=False)


def _convert(divide: bool, periodic: bool) -> Any:
    """Return the intrinsic convert(out, source, target, count, coefficients, period, stream).

    out: the output array, for its dtype alone; the rest are uint64: address of the first byte,
    address of the first output element, elements (at least 16), address of the coefficients,
    their period if periodic (element i takes coefficient i mod period), and whether to write past
    the caches, which is done where the target consists of whole cache lines.
    """

    @intrinsic
    def convert(
        typingctx: Any,
        out: Any,
        source: Any,
        target: Any,
        count: Any,
        coefficients: Any,
        period: Any,
        stream: Any,
    ) -> Any:
        dtype = out.dtype

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, source, target, count, coefficients, period, stream = args
            # Pairs of 256-bit vectors: 14 % faster for float32 than 512 bits where there are such;
            # the longer arithmetic of float16 is faster in whole ones.
            lanes = PIXELS // 2 if dtype == types.float32 else PIXELS
            floats, size = _vector(F32, lanes), dtype.bitwidth // 8
            second = builder.add(
                coefficients, builder.mul(builder.add(period, I64(PIXELS)), I64(4))
            )
            plain: list[Any] = []
            if not periodic:
                plain = [_load(builder, where, 0, floats) for where in (coefficients, second)]

            def each(streaming: bool) -> None:
                with _steps(builder, count) as x:
                    at, to = builder.add(source, x), builder.add(target, builder.mul(x, I64(size)))
                    if periodic:
                        shift = builder.mul(builder.urem(x, period), I64(4))
                        s_at, m_at = builder.add(coefficients, shift), builder.add(second, shift)
                    for k in range(0, PIXELS, lanes):
                        pixels = _load(builder, at, k, _vector(I8, lanes))
                        if periodic:
                            s = _load(builder, s_at, 4 * k, floats)
                            m = _load(builder, m_at, 4 * k, floats)
                        else:
                            s, m = plain
                        value = _value(builder, dtype, pixels, divide, s, m)
                        _store(builder, builder.add(to, I64(k * size)), value, streaming)

            odd = builder.or_(
                builder.and_(target, I64(_LINE_NBYTES - 1)), builder.and_(count, I64(PIXELS - 1))
            )
            lines = builder.icmp_unsigned("==", odd, I64(0))
            wanted = builder.icmp_unsigned("!=", stream, I64(0))
            with builder.if_else(builder.and_(lines, wanted)) as (then, otherwise):
                with then:
                    each(streaming=True)
                with otherwise:
                    each(streaming=False)
            return context.get_dummy_value()

        u64 = types.uint64
        return types.void(out, u64, u64, u64, u64, u64, u64), codegen

    return convert


@intrinsic
def fence(typingctx: Any) -> Any:
    """Let what was written past the caches be seen before all that follows."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


convert_plane = _convert(divide=False, periodic=False)
convert_plane_divided = _convert(divide=True, periodic=False)
convert_pixels = _convert(divide=False, periodic=True)
convert_pixels_divided = _convert(divide=True, periodic=True)


@intrinsic
def load_u8(typingctx: Any, address: Any) -> Any:
    """Return the byte at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], I8.as_pointer()))

    return types.uint8(types.uint64), codegen


@intrinsic
def store_u8(typingctx: Any, address: Any, value: Any) -> Any:
    """Set the byte at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint8), codegen


@intrinsic
def set_bytes(typingctx: Any, address: Any, count: Any, value: Any) -> Any:
    """Set `count` bytes from `address` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, count, value = args
        pointer = builder.inttoptr(address, I8.as_pointer())
        _memset(builder, pointer, count, value)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint8), codegen


def _transpose(pairs: int) -> Any:
    """Return the intrinsic transpose(source, pitch, second, target, target_pitch, target_second)."""
    lanes = [16 * lane for lane in range(pairs)]
    masks = [
        ir.Constant(
            ir.VectorType(I32, 16 * pairs),
            [
                k
                for at in lanes
                for i in range(8)
                for k in (at + i + half, at + i + half + 16 * pairs)
            ],
        )
        for half in (0, 8)
    ]

    @intrinsic
    def transpose(
        typingctx: Any,
        source: Any,
        pitch: Any,
        second: Any,
        target: Any,
        target_pitch: Any,
        target_second: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, pitch, second, target, target_pitch, target_second = args
            kind = _vector(I8, 16)
            runs = []
            for _ in range(16):
                run = _load(builder, source, 0, kind)
                if pairs == 2:
                    other = _load(builder, builder.add(source, second), 0, kind)
                    mask = ir.Constant(ir.VectorType(I32, 32), list(range(32)))
                    run = builder.shuffle_vector(run, other, mask)
                runs.append(run)
                source = builder.add(source, pitch)
            for _ in range(4):  # a perfect shuffle of the 256 bytes, four times
                runs = [
                    builder.shuffle_vector(runs[i], runs[i + 8], mask)
                    for i in range(8)
                    for mask in masks
                ]
            for run in runs:
                if pairs == 2:
                    _store(builder, target, _shuffle(builder, run, list(range(16))))
                    other = _shuffle(builder, run, list(range(16, 32)))
                    _store(builder, builder.add(target, target_second), other)
                else:
                    _store(builder, target, run)
                target = builder.add(target, target_pitch)
            return context.get_dummy_value()

        return types.void(*[types.uint64] * 6), codegen

    return transpose


# Copy 16 runs of 16 bytes, `pitch` apart, so that byte j of run i becomes byte i of run j. The second
# does the same to 16 further runs, `second` bytes on, in the other halves of the same registers: the
# shuffles, which are what costs, are then half as many.
transpose_16 = _transpose(1)
transpose_32 = _transpose(2)


@intrinsic
def weigh_runs(
    typingctx: Any,
    source: Any,
    pitch: Any,
    weights: Any,
    taps: Any,
    target: Any,
    target_step: Any,
    runs: Any,
) -> Any:
    """Weigh runs of 16 bytes: byte = min((2**21 + sum of weights[t] * byte[t]) >> 22, 255).

    All uint64. Run r reads the 16 bytes at source + 16 * r + t * pitch for t in [0, taps) and writes
    16 at target + r * target_step; weights: address of int32[taps].

    One to four taps have code of their own, in which weights stay in registers.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, pitch, weights, taps, target, target_step, runs = args
        ints = _vector(I32, 16)

        def pixels(at: Any) -> Any:
            return builder.zext(_load(builder, at, 0, _vector(I8, 16)), ints)

        def weight(t: Any) -> Any:
            at = builder.add(weights, builder.mul(t, I64(4)))
            return _splat(builder, _load(builder, at, 0, I32), 16)

        def finish(to: Any, total: Any) -> None:
            value = builder.lshr(total, _constant(ints, 22))
            most = _constant(ints, 255)
            value = builder.select(builder.icmp_unsigned("<", value, most), value, most)
            _store(builder, to, builder.trunc(value, _vector(I8, 16)))

        def each(make: Any) -> None:
            with cgutils.for_range(builder, runs) as loop:
                at = builder.add(source, builder.mul(loop.index, I64(16)))
                finish(builder.add(target, builder.mul(loop.index, target_step)), make(at))

        def few(count: int) -> None:
            splats = [weight(I64(t)) for t in range(count)]

            def make(at: Any) -> Any:
                total = _constant(ints, 1 << 21)
                for splat in splats:
                    total = builder.add(total, builder.mul(pixels(at), splat))
                    at = builder.add(at, pitch)
                return total

            each(make)

        def many(at: Any) -> Any:
            total = _variable(builder, _constant(ints, 1 << 21))
            with cgutils.for_range(builder, taps) as loop:
                place = builder.add(at, builder.mul(loop.index, pitch))
                product = builder.mul(pixels(place), weight(loop.index))
                builder.store(builder.add(builder.load(total), product), total)
            return builder.load(total)

        end = builder.append_basic_block("weighed")
        other = builder.append_basic_block("many")
        switch = builder.switch(taps, other)
        for count in (1, 2, 3, 4):
            block = builder.append_basic_block(f"taps{count}")
            switch.add_case(I64(count), block)
            builder.position_at_end(block)
            few(count)
            builder.branch(end)
        builder.position_at_end(other)
        each(many)
        builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(*[types.uint64] * 7), codegen
