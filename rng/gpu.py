"""Triton kernels: numbers, dropout and its mask, with the bits of the numba functions of `rng`.

    value i of a fill     = f(word i mod 4 of block i div 4), or of two words (i mod 2, i div 2) for 64 bits
    element e of dropout  : lane e mod 8 (16 bits) of block e div 8

A program makes BLOCK blocks, each lane of it one block, so that a thread's words are neighbours in
memory and go out as one vector. The kernels know no grid: an element's address comes from its index, so
any BLOCK, any number of multiprocessors and any split of a tensor give the same bits. Integers until the
last line: no float32 is added, one multiplication rounds, and where a number is shifted (SHIFT) the sum is
made in float64, where that of two float32 has only the rounding of the cast. So no compiler setting can
change a bit. The ten round keys come from the host: the same for all, they need no register arithmetic.
"""

from typing import Any

import triton
import triton.language as tl

from rng import address, fill, philox

RAW, UNIT, RANGE, INVERSE, INVERSE_IN = (
    fill.RAW,
    fill.UNIT_32,
    fill.RANGE_32,
    fill.INVERSE,
    fill.INVERSE_IN,
)
BERNOULLI = 16  # a kind of its own here
BLOCK = 512  # Philox blocks of a program
_DROPOUT = address.site(address.DROPOUT)
ROWS = 32768  # rows of one launch: a grid's second axis ends at 65535

_M0, _M1 = tl.constexpr(philox.MULTIPLIER_0), tl.constexpr(philox.MULTIPLIER_1)
_RAW, _UNIT, _RANGE = tl.constexpr(RAW), tl.constexpr(UNIT), tl.constexpr(RANGE)
_INVERSE_IN, _BERNOULLI = tl.constexpr(INVERSE_IN), tl.constexpr(BERNOULLI)
_2_24, _2_28, _2_31 = (tl.constexpr(2.0**-power) for power in (24, 28, 31))

# Never specialised on their values: each seed and name would compile the kernel again.
_KEYS = [f"{half}{i}" for i in range(philox.ROUNDS) for half in "ab"]
_VALUES = ["base", "lead", "n", "c2", "c3", "shift", "scale", "most", "low", "span", "limit"]


def round_keys(key: int) -> tuple[int, ...]:
    """Return the two 32-bit keys of each round, signed, so that each has Triton's type i32."""
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    words = (
        word + i * step & 0xFFFFFFFF
        for i in range(philox.ROUNDS)
        for word, step in ((k0, philox.WEYL_0), (k1, philox.WEYL_1))
    )
    return tuple(signed(word, 32) for word in words)


def signed(number: int, bits: int) -> int:
    """Return the signed integer of the same `bits` bits."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


# ---------------------------------------------------------------- words
@triton.jit
def _round(c0, c1, c2, c3, a, b):
    """One round of Philox4x32."""
    high0, high1 = tl.umulhi(c0, _M0), tl.umulhi(c2, _M1)
    low0 = tl.mul(c0, _M0, sanitize_overflow=False)
    low1 = tl.mul(c2, _M1, sanitize_overflow=False)
    key0, key1 = a.to(tl.uint32, bitcast=True), b.to(tl.uint32, bitcast=True)
    return high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0


@triton.jit
def _words(
    position, c2, c3,
    a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
):  # fmt: skip
    """Return the four words, uint32[BLOCK] each, of the blocks at `position`, int64[BLOCK]."""
    x0 = position.to(tl.uint32)
    x1 = (position >> 32).to(tl.uint32)
    x2 = tl.zeros_like(x0) | c2.to(tl.uint32, bitcast=True)
    x3 = tl.zeros_like(x0) | c3.to(tl.uint32, bitcast=True)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a0, b0)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a1, b1)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a2, b2)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a3, b3)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a4, b4)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a5, b5)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a6, b6)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a7, b7)
    x0, x1, x2, x3 = _round(x0, x1, x2, x3, a8, b8)
    return _round(x0, x1, x2, x3, a9, b9)


@triton.jit
def _in_order(w0, w1, w2, w3):
    """Return [4 * BLOCK]: the words, block after block."""
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


# ---------------------------------------------------------------- numbers
@triton.jit
def _inverse(w, table):
    """Return float32 normal numbers of words: `rng.tables`, integers until the last line."""
    x = (w << 1) | 1
    # The index of the leading one is the exponent of x as a float; without the bits that are cleared
    # here, no rounding can carry into it.
    bits = (x ^ (x & (x >> 8))).to(tl.float32).to(tl.int32, bitcast=True)
    e = (bits >> 23) - 127
    y = x << (31 - e).to(tl.uint32)
    row = table + 4 * (16 * e + ((y >> 27) & 15).to(tl.int32))
    row = row.to(tl.pointer_type(tl.int64), bitcast=True)  # two loads a row, not four
    t = ((y << 5) >> 1).to(tl.int64)
    left, right = tl.load(row), tl.load(row + 1)
    c0, c1 = left.to(tl.int32), (left >> 32).to(tl.int32)
    c2, c3 = right.to(tl.int32), (right >> 32).to(tl.int32)
    a = c2 + ((c3.to(tl.int64) * t) >> 32).to(tl.int32)
    a = c1 + ((a.to(tl.int64) * t) >> 32).to(tl.int32)
    z = c0 + ((a.to(tl.int64) * t) >> 34).to(tl.int32)
    lower, upper = tl.where(e == 31, -_2_31, -_2_28), tl.where(e == 31, _2_31, _2_28)
    return z.to(tl.float32) * tl.where((w >> 31) != 0, upper, lower)  # powers of two: exact


@triton.jit
def _affine(x, shift, SHIFT: tl.constexpr):
    """Return float32(x + shift); a float32 sum is exact in float64 but for the cast's one rounding."""
    if SHIFT:
        x = (x.to(tl.float64) + shift).to(tl.float32)
    return x


@triton.jit
def _value(
    w, table, shift, scale, most, low, span, limit,
    KIND: tl.constexpr, SHIFT: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Return the numbers of words, uint32[4 * BLOCK]."""
    if KIND == _RAW:
        value = w
    elif KIND == _BERNOULLI:
        value = (w.to(tl.int64) < limit).to(tl.int32)
    elif KIND == _UNIT or KIND == _RANGE:  # noqa: SIM109  (not python)
        value = (w >> 8).to(tl.int32).to(tl.float32) * _2_24
        if KIND == _RANGE:
            value = tl.minimum(_affine(value * scale, shift, SHIFT), most)
    else:
        if KIND == _INVERSE_IN:
            # span <= 2**32: the product is exact in 64 bits but for that one value, where it is w.
            wide = ((w.to(tl.uint64) * span.to(tl.uint64)) >> 32).to(tl.uint32)
            rank = low.to(tl.uint32, bitcast=True) + tl.where(span == 4294967296, w, wide)
            w = rank ^ tl.where((rank >> 31) != 0, 0x7FFFFFFF, 0).to(tl.uint32)
        value = _inverse(w, table)
        if SCALE:
            value = value * scale
        value = _affine(value, shift, SHIFT)
    return value


@triton.jit(do_not_specialize=[*_VALUES, *_KEYS])
def fill_kernel(
    out, table, base: tl.int64, lead, n: tl.int64, pitch: tl.int64, out_row: tl.int64, out_step: tl.int64,
    c2, c3, shift: tl.float64, scale, most, low, span: tl.int64, limit: tl.int64,
    a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
    KIND: tl.constexpr, SHIFT: tl.constexpr, SCALE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill row program_id(1) with `n` numbers from number lead + row * pitch of position `base` on.

    `out_row`, `out_step`: strides of `out`, in elements. ALIGNED: every row begins with a block, and
    out_step is 1.
    """
    chunk = tl.program_id(0).to(tl.int64) * BLOCK
    row = tl.program_id(1).to(tl.int64)
    index = lead + row * pitch
    position = base + (index >> 2) + chunk + tl.arange(0, BLOCK)
    w0, w1, w2, w3 = _words(
        position, c2, c3,
        a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
    )  # fmt: skip
    value = _value(
        _in_order(w0, w1, w2, w3), table, shift, scale, most, low, span, limit, KIND, SHIFT, SCALE
    ).to(out.dtype.element_ty)
    left = n - chunk * 4
    at = tl.arange(0, BLOCK * 4)
    if ALIGNED:
        out += row * out_row + chunk * 4
        if left >= BLOCK * 4:
            tl.store(out + at, value)
        else:
            tl.store(out + at, value, mask=at < left)
    else:
        at = at.to(tl.int64) - (
            index & 3
        )  # below 0: of the chunk before, or before the first number
        inside = (at < left) & (at >= -4 * chunk)
        tl.store(out + row * out_row + (chunk * 4 + at) * out_step, value, mask=inside)


# ---------------------------------------------------------------- dropout
@triton.jit
def _place(cell, columns, ALIGNED: tl.constexpr):
    """Return (step, first block, elements of it that come before the first row)."""
    index = tl.load(cell + 1) * columns
    lead = index & 7
    if ALIGNED:
        lead = lead * 0
    return tl.load(cell).to(tl.int32), index >> 3, lead.to(tl.int32)


@triton.jit(do_not_specialize=["n", "columns", "limit", "scale", "c3", *_KEYS])
def dropout_kernel(
    x, out, cell, n: tl.int64, columns: tl.int64, limit, scale, c3,
    a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write x * scale, or 0 where the element's lane is below `limit`. The backward pass is the same.

    `cell`: int64 (step, first row); an element's global index is first row * columns + its place.
    ALIGNED: `columns` is a multiple of 8.
    """
    step, base, lead = _place(cell, columns, ALIGNED)
    chunk = tl.program_id(0).to(tl.int64) * BLOCK
    w0, w1, w2, w3 = _words(
        base + chunk + tl.arange(0, BLOCK), step, c3,
        a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
    )  # fmt: skip
    w = _in_order(w0, w1, w2, w3)
    lanes = tl.interleave((w & 0xFFFF).to(tl.int32), (w >> 16).to(tl.int32))
    at = tl.arange(0, BLOCK * 8)
    left = n - chunk * 8
    x += chunk * 8
    out += chunk * 8
    if ALIGNED:
        if left >= BLOCK * 8:
            whole = tl.where(lanes >= limit, tl.load(x + at).to(tl.float32) * scale, 0.0)
            tl.store(out + at, whole.to(out.dtype.element_ty))
        else:
            part = tl.load(x + at, mask=at < left).to(tl.float32) * scale
            part = tl.where(lanes >= limit, part, 0.0)
            tl.store(out + at, part.to(out.dtype.element_ty), mask=at < left)
    else:
        at -= lead
        inside = (at < left) & (at >= -8 * chunk)
        some = tl.where(lanes >= limit, tl.load(x + at, mask=inside).to(tl.float32) * scale, 0.0)
        tl.store(out + at, some.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _kept(w0, w1, w2, w3, limit):
    """Return a block's eight keep bits, int32[BLOCK]."""
    bits = ((w0 & 0xFFFF).to(tl.int32) >= limit).to(tl.int32)
    bits |= ((w0 >> 16).to(tl.int32) >= limit).to(tl.int32) << 1
    bits |= ((w1 & 0xFFFF).to(tl.int32) >= limit).to(tl.int32) << 2
    bits |= ((w1 >> 16).to(tl.int32) >= limit).to(tl.int32) << 3
    bits |= ((w2 & 0xFFFF).to(tl.int32) >= limit).to(tl.int32) << 4
    bits |= ((w2 >> 16).to(tl.int32) >= limit).to(tl.int32) << 5
    bits |= ((w3 & 0xFFFF).to(tl.int32) >= limit).to(tl.int32) << 6
    return bits | ((w3 >> 16).to(tl.int32) >= limit).to(tl.int32) << 7


@triton.jit(do_not_specialize=["n", "columns", "limit", "c3", *_KEYS])
def mask_kernel(
    out, cell, n: tl.int64, columns: tl.int64, limit, c3,
    a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keep bits of `n` elements to u8[ceil(n / 8)]: a byte a lane. Arguments: as above."""
    step, base, lead = _place(cell, columns, ALIGNED)
    chunk = tl.program_id(0).to(tl.int64) * BLOCK
    position = base + chunk + tl.arange(0, BLOCK)
    w0, w1, w2, w3 = _words(
        position, step, c3,
        a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
    )  # fmt: skip
    bits = _kept(w0, w1, w2, w3, limit)
    if not ALIGNED:
        w0, w1, w2, w3 = _words(
            position + 1, step, c3,
            a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7, a8, b8, a9, b9,
        )  # fmt: skip
        bits = ((bits | _kept(w0, w1, w2, w3, limit) << 8) >> lead) & 0xFF
    at = tl.arange(0, BLOCK)
    left = n - chunk * 8
    if left >= BLOCK * 8:
        tl.store(out + chunk + at, bits.to(tl.uint8))
    else:
        rest = left.to(tl.int32) - at * 8  # elements from this byte on
        kept = bits & ((1 << tl.maximum(tl.minimum(rest, 8), 0)) - 1)
        tl.store(out + chunk + at, kept.to(tl.uint8), mask=rest > 0)


# ---------------------------------------------------------------- launches
# The tensors are torch's, on the current device; `block` changes the grid and no bit. fp_fusion is off
# for good measure: nothing here could be fused.
def fill_rows(
    out: Any,
    table: Any,
    what: Any,
    place: Any,
    rows: int,
    columns: int,
    pitch: int,
    out_row: int,
    out_step: int,
    block: int = BLOCK,
) -> None:
    """Fill row r, column c of `out` with number place.first + r * pitch + c.

    Args:
        out: tensor, its element (r, c) at r * out_row + c * out_step.
        table: int32[512, 4], the rows of `rng.tables.NORMAL`, contiguous.
        what: `rng.torch.draws.Draw`, of one word a number.
        place: `rng.torch.fill.Place`.
        rows, columns, pitch, out_row, out_step: see above; pitch is 0 where there is one row.
        block: Philox blocks of a program, a power of two.
    """
    lead = place.first & 3
    aligned = lead == 0 and out_step == 1 and pitch % 4 == 0
    chunks = triton.cdiv(columns + (0 if aligned else 3), 4 * block)
    keys = round_keys(place.key)
    for row in range(0, rows, ROWS):
        first = lead + row * pitch
        base = place.start + (place.first >> 2) + (first >> 2)
        fill_kernel[(chunks, min(rows - row, ROWS))](
            out if row == 0 else out[row:],
            table,
            signed(base, 64),
            first & 3,
            columns,
            pitch,
            out_row,
            out_step,
            signed(place.c2, 32),
            signed(place.c3, 32),
            what.shift,
            what.scale,
            what.most,
            signed(what.low, 32),
            what.span,
            what.span,
            *keys,
            KIND=what.kind,
            SHIFT=what.shift != 0.0,
            SCALE=what.scale != 1.0,
            ALIGNED=aligned,
            BLOCK=block,
            enable_fp_fusion=False,
        )


def dropout(
    x: Any,
    out: Any,
    cell: Any,
    columns: int,
    limit: int,
    scale: float,
    key: int,
    block: int = BLOCK,
) -> None:
    """Write x * scale, or 0 where an element is dropped, to `out`: forward and backward pass alike.

    Args:
        x, out: contiguous tensors of one shape and dtype: float32, float16 or bfloat16.
        cell: int64[2], (step, first row), on the device.
        columns: elements of a row.
        limit, scale: `rng.dropout.threshold(p)` and `scale_of(p)`.
        key: of the layer, 64 bits.
        block: Philox blocks of a program, a power of two.
    """
    n = x.numel()
    aligned = columns % 8 == 0
    grid = (triton.cdiv(n + (0 if aligned else 7), 8 * block),)
    dropout_kernel[grid](
        x, out, cell, n, columns, limit, scale, _DROPOUT, *round_keys(key),
        ALIGNED=aligned, BLOCK=block, enable_fp_fusion=False,
    )  # fmt: skip


def mask(
    out: Any, cell: Any, n: int, columns: int, limit: int, key: int, block: int = BLOCK
) -> None:
    """Write the keep bits of `n` elements to `out`, u8[ceil(n / 8)]. Arguments: as `dropout`."""
    grid = (triton.cdiv(n, 8 * block),)
    mask_kernel[grid](
        out, cell, n, columns, limit, _DROPOUT, *round_keys(key),
        ALIGNED=columns % 8 == 0, BLOCK=block, enable_fp_fusion=False,
    )  # fmt: skip
