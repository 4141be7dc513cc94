"""Dropout masks of one bit an element, and the layer itself on numpy arrays.

    bit of element e = (lane e of the stream) >= threshold         1 keeps, 0 drops
    threshold        = p * 2**bits rounded, halves up; is `bits` wide, so p counts as threshold / 2**bits
    scale            = 1 / (1 - threshold / 2**bits)
    address          = (DROPOUT, position = block of e, c2 = step), the name folded into the key

A mask depends on (seed, name, step, element) alone: the backward pass makes the same bits again
from the step, nothing is stored, and a part of a tensor (`first`) gets the bits of the whole.
"""

# ruff: noqa: ARG001  (the signature of an @intrinsic is numba's)
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types, uint8, uint32, uint64
from numpy.typing import NDArray

from rng import address, fill, philox
from rng.kernel import kernel

Array = NDArray[Any]
_numba: Any = numba  # whose types do not name carray
carray: Any = _numba.carray
_LANES = 256  # elements of one inner step: whole blocks for every width, whole bytes of mask
_BUFFER = 1 << 16


def threshold(p: float, bits: int = 16) -> int:
    """Return the t for which an element is dropped where its lane of `bits` bits is < t.

    Raises:
        TypeError: bits is not an int, or p no number.
        ValueError: p is not in [0, 1], or bits is not 8, 16 or 32.

    >>> threshold(0.1), threshold(0.0), threshold(1.0)
    (6554, 0, 65536)
    """
    if address.whole("bits", bits) not in (8, 16, 32):
        raise ValueError(f"bits must be 8, 16 or 32, got {bits!r}")
    p = address.chance(p)  # Python's: numpy's small floats would round here
    return int(p * (1 << bits) + 0.5)


def scale_of(p: float, bits: int = 16) -> np.float32:
    """Return float32 1 / (1 - the quantised p); 0 where everything is dropped."""
    t = threshold(p, bits)
    return np.float32(0.0 if t == 1 << bits else 1.0 / (1.0 - t / (1 << bits)))


def dropout_mask(
    n: int,
    p: float,
    seed: int,
    name: str,
    step: int,
    bits: int = 16,
    first: int = 0,
    out: Array | None = None,
    threads: int | None = None,
) -> NDArray[np.uint8]:
    """Return the keep bits of `n` elements, packed little-endian: element e is bit e % 8 of byte e // 8.

    Args:
        n: number of elements >= 0.
        p: chance to drop one, in [0, 1]; 0 and 1 are exact.
        seed: in [0, 2**64).
        name: of the layer: another name gives independent masks.
        step: in [0, 2**32): another step gives an independent mask.
        bits: 8, 16 or 32: width of a lane; p is rounded to a multiple of 2**-bits.
        first: number of the first element, a multiple of 8.
        out: u8[ceil(n / 8)], contiguous; written and returned.
        threads: most threads to use; None: as fits the size.

    Returns:
        u8[ceil(n / 8)]; bits after the last element are 0.

    Draws:
        `bits` bits an element: 128 / bits elements a block.

    Raises:
        TypeError: n, seed, step, bits, first or threads is not an int, or name not a str.
        ValueError: an argument out of range, or an `out` that does not fit.
        OverflowError: a step out of range, or elements beyond 2**64.

    >>> unpack(dropout_mask(10, 0.5, seed=42, name="fc1", step=0), 10).tolist()
    [False, False, True, False, False, False, False, False, True, False]
    """
    key = address.named(address.mix64(seed), name)
    return mask_from_key(n, threshold(p, bits), key, 0, step, bits, first, out, threads)


def mask_from_key(
    n: int,
    limit: int,
    key: int,
    layer: int,
    step: int,
    bits: int = 16,
    first: int = 0,
    out: Array | None = None,
    threads: int | None = None,
) -> NDArray[np.uint8]:
    """Return `dropout_mask` for a ready key, threshold and op:8 | lane:16 field.

    Raises:
        TypeError, ValueError, OverflowError: as there.
    """
    n, first, layer = (
        address.whole(*item) for item in (("n", n), ("first", first), ("layer", layer))
    )
    if n < 0 or first < 0 or first % 8:
        raise ValueError(f"n must be >= 0 and first a multiple of 8, got {n} and {first}")
    if first + n > 1 << 64:
        raise OverflowError(f"elements must be in [0, 2**64), got {first} ... {first + n}")
    key = address.check_u64("key", key)
    if address.whole("bits", bits) not in (8, 16, 32):
        raise ValueError(f"bits must be 8, 16 or 32, got {bits!r}")
    if not 0 <= address.whole("limit", limit) <= 1 << bits:
        raise ValueError(f"limit must be in [0, 2**{bits}], got {limit}")
    _, _, c2, c3 = address.counter(address.DROPOUT, layer >> 16, layer & 0xFFFF, step)
    size = (n + 7) // 8
    if out is None:
        out = np.empty(size, np.uint8)
    fill.check_out(out, threads)
    if out.dtype != np.uint8 or out.shape != (size,) or not out.flags.c_contiguous:
        raise ValueError(f"out must be a contiguous uint8 array of shape ({size},)")
    k0, k1 = np.uint64(key & address.M32), np.uint64(key >> 32)
    limit32 = np.uint32(limit & address.M32)

    def work(a: int, b: int) -> None:
        at = np.uint64(first + a)
        piece = out[a // 8 : (b + 7) // 8]
        mask_kernel(piece, at, bits, limit32, np.uint64(c2), np.uint64(c3), k0, k1)

    if limit == 0:
        out[:] = 255
    elif limit == 1 << bits:
        out[:] = 0
    else:
        fill.in_pieces(n, threads, work)
    if n % 8:
        out[-1] &= (1 << n % 8) - 1
    return out


def unpack(mask: Array, n: int) -> NDArray[np.bool_]:
    """Return bool[n]: the first n bits of a packed mask.

    Raises:
        TypeError: n is not an int, or the mask not u8[...].
        ValueError: n < 0, or the mask has fewer bits.
    """
    if address.whole("n", n) < 0:
        raise ValueError(f"n must be >= 0, got {n}")
    if mask.size * 8 < n:
        raise ValueError(f"a mask of {mask.size} bytes has fewer than {n} bits")
    return np.unpackbits(mask, count=n, bitorder="little").view(np.bool_)


def apply(
    x: Array, mask: Array, scale: float, out: Array | None = None, threads: int | None = None
) -> Array:
    """Return x * scale where the mask keeps, 0 where it drops (also where x is inf or nan).

    The same call is the backward pass, on the gradient.

    Args:
        x: f32 or f16, any shape; f16 is multiplied in float32 and rounded once.
        mask: packed, at least x.size bits, in C order.
        scale: `scale_of(p)`.
        out: array of x's shape and dtype; it may be x itself, or overlap x or the mask.
        threads: most threads to use; None: as fits the size.

    Raises:
        TypeError: an `out` or a mask that is not an array.
        ValueError: arrays that do not fit.
    """
    x = np.asarray(x)
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"mask must be a numpy array, got {type(mask).__name__}")
    if x.dtype not in (np.float32, np.float16):
        raise ValueError(f"x must be float32 or float16, got {x.dtype}")
    if out is None:
        out = np.empty(x.shape, x.dtype)
    fill.check_out(out, threads)
    if out.shape != x.shape or out.dtype != x.dtype:
        raise ValueError(f"out must be a writeable {x.dtype} array of shape {x.shape}")
    if mask.dtype != np.uint8 or mask.size * 8 < x.size or not mask.flags.c_contiguous:
        raise ValueError(f"mask must hold {x.size} bits in contiguous bytes, got {mask.size} bytes")
    if np.may_share_memory(out, mask):
        mask = mask.copy()
    same = out.ctypes.data == x.ctypes.data and out.strides == x.strides
    if not same and np.may_share_memory(out, x):
        x = x.copy()
    factor = np.float32(scale)
    direct_way = x.dtype == np.float32 and x.flags.aligned and out.flags.aligned
    if direct_way and x.flags.c_contiguous and out.flags.c_contiguous:
        source, target = x.reshape(-1), out.reshape(-1)

        def direct(a: int, b: int) -> None:
            _apply(source[a:b], target[a:b], mask[a // 8 : (b + 7) // 8], factor)

        fill.in_pieces(x.size, threads, direct)
        return out

    read = x.reshape(-1) if x.flags.c_contiguous else x.flat
    write = out.reshape(-1) if out.flags.c_contiguous else out.flat

    def buffered(a: int, b: int) -> None:
        for first in range(a, b, _BUFFER):
            last = min(first + _BUFFER, b)
            piece = np.array(read[first:last], np.float32)
            _apply(piece, piece, mask[first // 8 : (last + 7) // 8], factor)
            with np.errstate(all="ignore"):
                write[first:last] = piece

    fill.in_pieces(x.size, threads, buffered)
    return out


def dropout(
    x: Array,
    p: float,
    seed: int,
    name: str,
    step: int,
    bits: int = 16,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Return x with elements dropped with chance p and the others scaled by 1 / (1 - p quantised).

    Forward and backward pass alike: `dropout(gradient, ...)` with the same arguments drops the same
    elements. p = 0 returns a copy, p = 1 zeros.

    Raises:
        TypeError, ValueError, OverflowError: as `dropout_mask` and `apply`.
    """
    mask = dropout_mask(np.size(x), p, seed, name, step, bits, threads=threads)
    return apply(x, mask, float(scale_of(p, bits)), out, threads)


# ---------------------------------------------------------------- kernels
@philox.intrinsic
def _compare(typingctx: Any, mask: Any, at: Any, lanes: Any, limit: Any) -> Any:
    """Write the bits lanes[0:_LANES] >= limit to mask[at : at + _LANES // 8]."""
    width = lanes.dtype.bitwidth
    signature = types.void(mask, types.uint64, lanes, types.uint32)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lane, i32 = ir.IntType(width), ir.IntType(32)
        vector = ir.VectorType(lane, 32)
        data = context.make_array(sig.args[2])(context, builder, args[2]).data
        data = builder.bitcast(data, vector.as_pointer())
        target = context.make_array(sig.args[0])(context, builder, args[0]).data
        target = builder.bitcast(builder.gep(target, [args[1]]), i32.as_pointer())
        value = args[3] if width == 32 else builder.trunc(args[3], lane)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, i32(0))
        zeros = ir.Constant(ir.VectorType(i32, 32), [0] * 32)
        limits = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)
        for i in range(_LANES // 32):
            loaded = builder.load(builder.gep(data, [i32(i)]), align=4)
            keep = builder.bitcast(builder.icmp_unsigned(">=", loaded, limits), i32)
            builder.store(keep, builder.gep(target, [i32(i)]), align=1)
        return context.get_dummy_value()

    return signature, codegen


@kernel
def mask_kernel(
    out: Any, first: Any, bits: Any, limit: Any, c2: Any, c3: Any, k0: Any, k1: Any
) -> None:
    """Fill `out` (u8[n]) with the keep bits from element `first` on, a multiple of 8."""
    words = np.empty(_LANES, np.uint32)
    lanes_16, lanes_8 = words.view(np.uint16), words.view(np.uint8)
    some = np.empty(_LANES // 8, np.uint8)
    each = uint64(128) // uint64(bits)  # elements of a block
    lead = (first % each) >> uint64(3)  # mask bytes of the first block that come before `first`
    position = first // each
    blocks = uint64(_LANES) // each
    n = uint64(out.size)
    at = uint64(0)
    while at < n:
        for q in range(uint64(0), blocks, uint64(philox.BLOCKS)):
            philox.blocks(words, q << uint64(2), position + q, c2, c3, k0, k1)
        position += blocks
        whole = lead == uint64(0) and n - at >= uint64(_LANES // 8)
        target = out if whole else some
        base = at if whole else uint64(0)
        if bits == 16:
            _compare(target, base, lanes_16, limit)
        elif bits == 8:
            _compare(target, base, lanes_8, limit)
        else:
            _compare(target, base, words, limit)
        if whole:
            at += uint64(_LANES // 8)
        else:
            count = min(uint64(_LANES // 8) - lead, n - at)
            for q in range(count):
                out[at + q] = some[lead + q]
            at += count
            lead = uint64(0)


@philox.intrinsic
def _select_8(typingctx: Any, x: Any, out: Any, at: Any, keep: Any, scale: Any) -> Any:
    """Write eight elements: x * scale where the bit of `keep` is 1, else 0."""
    signature = types.void(x, out, types.uint64, types.uint8, types.float32)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        floats = ir.VectorType(ir.FloatType(), 8)

        def place(i: int) -> Any:
            data = context.make_array(sig.args[i])(context, builder, args[i]).data
            return builder.bitcast(builder.gep(data, [args[2]]), floats.as_pointer())

        keep = builder.bitcast(args[3], ir.VectorType(ir.IntType(1), 8))
        first = builder.insert_element(ir.Constant(floats, ir.Undefined), args[4], i32(0))
        zeros = ir.Constant(ir.VectorType(i32, 8), [0] * 8)
        scales = builder.shuffle_vector(first, ir.Constant(floats, ir.Undefined), zeros)
        product = builder.fmul(builder.load(place(0), align=4), scales)
        nothing = ir.Constant(floats, [0.0] * 8)
        builder.store(builder.select(keep, product, nothing), place(1), align=4)
        return context.get_dummy_value()

    return signature, codegen


@kernel
def _apply(x: Any, out: Any, mask: Any, scale: Any) -> None:
    """Fill out (f32[n]) with x * scale or 0; out may be x."""
    n = uint64(x.size)
    whole = n >> uint64(3)
    for b in range(whole):
        _select_8(x, out, b << uint64(3), mask[b], scale)
    for q in range(whole << uint64(3), n):
        keep = mask[whole] >> uint8(q & uint64(7)) & uint8(1)
        out[q] = x[q] * scale if uint32(keep) else np.float32(0.0)


@philox.intrinsic
def _floats(typingctx: Any, address: Any) -> Any:
    """Return a pointer to the float32 at an address."""
    pointer: Any = types.CPointer
    signature = pointer(types.float32)(types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.FloatType().as_pointer())

    return signature, codegen


@kernel
def fused_kernel(
    x: Any, out: Any, n: Any, first: Any, limit: Any, scale: Any, step: Any, k0: Any, k1: Any
) -> None:
    """Write x * scale, or 0 where element first + i is dropped, to `out`, f32[n] both at an address.

    All arguments are int64 (scale: float64): Python's numbers enter a kernel in half the time that an
    array needs. Lanes of 16 bits; out may be x; limit in [0, 2**16].
    """
    source, target = carray(_floats(x), n), carray(_floats(out), n)
    words = np.empty(philox.WORDS, np.uint32)  # BLOCKS blocks: _LANES lanes
    lanes = words.view(np.uint16)
    bits = np.empty(_LANES // 8, np.uint8)
    factor, most = np.float32(scale), uint32(limit)
    lead = uint64(first) & uint64(7)
    position, count = uint64(first) >> uint64(3), uint64(n)
    c2, c3 = uint64(step) & uint64(0xFFFFFFFF), uint64(address.DROPOUT << 24)
    at = uint64(0)
    while at < count:
        some = min(uint64(_LANES) - lead, count - at)
        if most > uint32(0xFFFF):  # a lane is at most that: all are dropped
            bits[:] = uint8(0)
        else:
            philox.blocks(words, uint64(0), position, c2, c3, uint64(k0), uint64(k1))
            _compare(bits, uint64(0), lanes, most)
        done = uint64(0)
        if lead == uint64(0):
            done = some & ~uint64(7)
            for b in range(done >> uint64(3)):
                _select_8(source, target, at + (b << uint64(3)), bits[b], factor)
        for q in range(done, some):
            lane = lead + q
            keep = bits[lane >> uint64(3)] >> uint8(lane & uint64(7)) & uint8(1)
            target[at + q] = source[at + q] * factor if uint32(keep) else np.float32(0.0)
        at += some
        position += uint64(_LANES // 8)
        lead = uint64(0)  # from here on lanes and elements begin together
