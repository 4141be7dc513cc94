"""XXH3-64 of many short inputs in one call: the library's own function costs 0.1 us an input in calls.

Bit for bit what `xxhash.xxh3_64_intdigest` gives (seed 0), for inputs of up to 240 bytes; longer
ones pay for the library's call. Also: which lines of a long sample stand for it.

Source: Y. Collet, "XXH3 algorithm overview", xxhash specification 0.2 (2023).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import extending, types, uint64

from rng.kernel import kernel

# numba types the decorated function as if the typing context were an argument of the call.
intrinsic: Callable[[Any], Any] = extending.intrinsic

MOST = 240  # bytes of an input
LINE = 64  # bytes, a cache line
LINES = 2  # of a long sample
_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
        "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
        "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25


# The secret as a word at each of its bytes.
_WORDS = np.array(
    [int.from_bytes(_SECRET[k : k + 8].tobytes(), "little") for k in range(185)], "u8"
)


@intrinsic
def _u64(typingctx: Any, address: Any) -> Any:
    """Return the word at `address`, aligned or not."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.uint64), codegen


@intrinsic
def _u8(typingctx: Any, address: Any) -> Any:
    """Return the byte at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))

    return types.uint8(types.uint64), codegen


@intrinsic
def _fold(typingctx: Any, a: Any, b: Any) -> Any:
    """Return low XOR high half of the 128-bit product."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))
        return builder.xor(builder.trunc(product, ir.IntType(64)), high)

    return types.uint64(types.uint64, types.uint64), codegen


@kernel
def _u32(at: Any) -> Any:
    return (
        uint64(_u8(at))
        | uint64(_u8(at + uint64(1))) << uint64(8)
        | uint64(_u8(at + uint64(2))) << uint64(16)
        | uint64(_u8(at + uint64(3))) << uint64(24)
    )


@kernel
def _mix16(at: Any, k: Any) -> Any:
    words = _u64(at) ^ _WORDS[k], _u64(at + uint64(8)) ^ _WORDS[k + uint64(8)]
    return _fold(words[0], words[1])


@kernel
def _avalanche(h: Any) -> Any:
    h = (h ^ (h >> uint64(37))) * uint64(_MX1)
    return h ^ (h >> uint64(32))


@kernel
def _avalanche_64(h: Any) -> Any:
    h = (h ^ (h >> uint64(33))) * uint64(_P64_2)
    h = (h ^ (h >> uint64(29))) * uint64(_P64_3)
    return h ^ (h >> uint64(32))


@kernel
def _swapped(x: Any) -> Any:
    out = uint64(0)
    for _ in range(8):
        out = out << uint64(8) | x & uint64(0xFF)
        x >>= uint64(8)
    return out


@kernel
def _up_to_16(at: Any, n: Any) -> Any:
    if n > uint64(8):
        lo = _u64(at) ^ _WORDS[24] ^ _WORDS[32]
        hi = _u64(at + n - uint64(8)) ^ _WORDS[40] ^ _WORDS[48]
        return _avalanche(n + _swapped(lo) + hi + _fold(lo, hi))
    if n > uint64(3):
        h = (_u32(at + n - uint64(4)) | _u32(at) << uint64(32)) ^ _WORDS[8] ^ _WORDS[16]
        h ^= (h << uint64(49) | h >> uint64(15)) ^ (h << uint64(24) | h >> uint64(40))
        h *= uint64(_MX2)
        h ^= (h >> uint64(35)) + n
        h *= uint64(_MX2)
        return h ^ (h >> uint64(28))
    if n > uint64(0):
        first, last = uint64(_u8(at)), uint64(_u8(at + n - uint64(1)))
        middle = uint64(_u8(at + (n >> uint64(1))))
        packed = first << uint64(16) | middle << uint64(24) | last | n << uint64(8)
        secret = (_WORDS[0] ^ (_WORDS[0] >> uint64(32))) & uint64(0xFFFFFFFF)
        return _avalanche_64(packed ^ secret)
    return _avalanche_64(_WORDS[56] ^ _WORDS[64])


@kernel
def _up_to_240(at: Any, n: Any) -> Any:
    h = n * uint64(_P64_1)
    if n <= uint64(128):
        for i in range(uint64(0), (n - uint64(1)) // uint64(32) + uint64(1)):
            h += _mix16(at + uint64(16) * i, uint64(32) * i)
            h += _mix16(at + n - uint64(16) * (i + uint64(1)), uint64(32) * i + uint64(16))
        return _avalanche(h)
    for i in range(uint64(0), uint64(8)):
        h += _mix16(at + uint64(16) * i, uint64(16) * i)
    h = _avalanche(h)
    for i in range(uint64(8), n // uint64(16)):
        h += _mix16(at + uint64(16) * i, uint64(16) * (i - uint64(8)) + uint64(3))
    return _avalanche(h + _mix16(at + n - uint64(16), uint64(119)))


@kernel
def _rows(at: Any, nbytes: Any, out: Any) -> None:
    for s in range(uint64(0), uint64(out.shape[0])):
        row = at + s * nbytes
        out[s] = _up_to_16(row, nbytes) if nbytes <= uint64(16) else _up_to_240(row, nbytes)


@kernel
def _mix64(h: Any) -> Any:
    """SplitMix64's output function."""
    h = (h ^ (h >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> uint64(27))) * uint64(0x94D049BB133111EB)
    return h ^ (h >> uint64(31))


@kernel
def _lines(at: Any, nbytes: Any, ids: Any, positions: Any, out: Any) -> None:
    half = nbytes // uint64(2 * LINE)
    for s in range(uint64(0), uint64(out.shape[0])):
        row = at + s * nbytes
        h = _mix64(uint64(ids[s]) + positions[s] * uint64(_P64_1))
        first = row + ((h >> uint64(32)) * half >> uint64(32)) * uint64(LINE)
        second = row + (half + ((h & uint64(0xFFFFFFFF)) * half >> uint64(32))) * uint64(LINE)
        # XXH3 of the 128 bytes, one line after the other.
        h = uint64(2 * LINE) * uint64(_P64_1)
        for i in range(uint64(0), uint64(4)):
            h += _mix16(first + uint64(16) * i, uint64(32) * i)
            h += _mix16(second + uint64(16) * (uint64(3) - i), uint64(32) * i + uint64(16))
        out[s] = _avalanche(h)


@kernel
def _sum(ids: Any, positions: Any, digests: Any, total: Any) -> None:
    for s in range(ids.shape[0]):
        h = _mix64(_mix64(uint64(ids[s]) + uint64(_P64_1)) + positions[s])
        for f in range(digests.shape[0]):
            h = _mix64(h ^ digests[f, s])
        total[0] += h
        if total[0] < h:
            total[1] += uint64(1)


def rows(data: npt.NDArray[np.uint8], out: npt.NDArray[np.uint64]) -> None:
    """Write the XXH3-64 of each row.

    Args:
        data: u8[n, B], contiguous, B <= 240.
        out: u64[n], written.
    """
    assert data.shape[1] <= MOST
    assert data.flags.c_contiguous
    _rows(np.uint64(data.ctypes.data), np.uint64(data.shape[1]), out)


def lines(
    data: npt.NDArray[np.uint8],
    ids: npt.NDArray[np.int64],
    positions: npt.NDArray[np.uint64],
    out: npt.NDArray[np.uint64],
) -> None:
    """Write the XXH3-64 of two lines of 64 bytes of each row, one out of each half.

    Which lines is chosen by id and position.

    Args:
        data: u8[n, B], contiguous, B >= 128.
        ids, positions: of the samples.
        out: u64[n], written.
    """
    assert data.shape[1] >= LINES * LINE
    assert data.flags.c_contiguous
    _lines(np.uint64(data.ctypes.data), np.uint64(data.shape[1]), ids, positions, out)


def add_up(
    ids: npt.NDArray[np.int64],
    positions: npt.NDArray[np.uint64],
    digests: npt.NDArray[np.uint64],
    total: npt.NDArray[np.uint64],
) -> None:
    """Add a 64-bit hash of each sample's (id, position, digests) to total.

    Args:
        digests: u64[F, n].
        total: u64[2], low and high word, written.
    """
    _sum(ids, positions, digests, total)
