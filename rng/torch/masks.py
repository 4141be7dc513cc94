"""Dropout on tensors: y = x * scale where the mask keeps, else 0; the mask is made, never stored.

    keep element (row, column)  <=>  lane e mod 8 of block e div 8 at (DROPOUT, step) >= threshold(p)
    e = (first row + row) * columns + column           lanes of 16 bits, as `rng.dropout_mask`

The operation `samebatch::dropout` is linear in x, and its own derivative: the backward pass is the same
operation on the gradient. Nothing is kept for it but the address, and the version of the state's cell, so that a
state that moved in between is an error and not another mask.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from rng import address
from rng import dropout as masks
from rng import fill as pieces
from rng.torch.fill import is_plain, uses_triton
from rng.torch.state import DropoutState
from rng.torch.words import philox4x32

_SITE = address.site(address.DROPOUT)
_C3, _BITS = np.uint64(_SITE), np.uint64(16)
_REAL = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_WHOLE = 1 << 16


def dropout(x: torch.Tensor, p: float, state: DropoutState, name: str) -> torch.Tensor:
    """Return x with elements dropped with chance p, the others multiplied by 1 / (1 - p).

    Args:
        x: float32, float16, bfloat16 or float64, [rows, ...]: its first axis counts samples.
        p: in [0, 1], rounded to a multiple of 2**-16; 0 and 1 are exact, and a dropped element is 0 also
            where x is inf or nan.
        state: the step and the first row, on x's device.
        name: of the layer: another name gives independent masks. One name used twice in a step gives the
            same mask twice.

    Returns:
        A new tensor like x. float16 and bfloat16 are multiplied in float32 and rounded once.

    Raises:
        TypeError: an argument of another type, or x not real, or not dense (sparse, nested).
        ValueError: p out of range, or x and the state on different devices.
        RuntimeError: in the backward pass, if the state has moved since; under vmap.
        OverflowError: on the CPU, elements whose numbers, from first_row * columns on, reach 2**63; devices do
            not check.

    >>> state = DropoutState(seed=42, step=3)
    >>> dropout(torch.ones(1, 8), 0.5, state, "fc1").tolist()
    [[2.0, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0, 0.0]]
    """
    if not isinstance(x, torch.Tensor) or not isinstance(state, DropoutState):
        raise TypeError(
            "dropout needs a tensor and an rng.torch.DropoutState, got "
            f"{type(x).__name__} and {type(state).__name__}"
        )
    return apply(x, threshold(p), state.cell, state.key(name))


def dropout_mask(size: Any, p: float, state: DropoutState, name: str) -> torch.Tensor:
    """Return the keep bits of a tensor of `size`, packed little-endian: u8[ceil(elements / 8)].

    Bit e % 8 of byte e // 8 belongs to element e (C order); bits after the last element are 0. Equal to
    `rng.dropout_mask` from the state's first row on. Made on the state's device.

    Args:
        size: of the whole tensor, ints of 0 or more; () is one element. Others: as `dropout`.

    Raises:
        TypeError, ValueError: as `dropout`; a size that is no sequence of ints, or has a negative one or more
            than 2**63 - 1 elements.

    >>> from rng import dropout_mask as reference
    >>> mask = dropout_mask((3, 5), 0.1, DropoutState(seed=42, step=3), "fc1")
    >>> mask.tolist() == reference(15, 0.1, seed=42, name="fc1", step=3).tolist()
    True
    """
    if not isinstance(state, DropoutState):
        raise TypeError(f"state must be an rng.torch.DropoutState, got {type(state).__name__}")
    shape = _sizes(size)
    count = math.prod(shape)
    columns = math.prod(shape[1:]) if count else 0
    bits: torch.Tensor = torch.ops.samebatch.keep_bits(
        state.cell, count, columns, _signed(state.key(name)), threshold(p), 0
    )
    return bits


def _sizes(size: Any) -> list[int]:
    """Return the numbers of a size."""
    if isinstance(size, str) or not isinstance(size, Iterable):
        raise TypeError(f"size must be a sequence of ints, got {size!r}")
    shape = [n if isinstance(n, torch.SymInt) else address.whole("size", n) for n in size]
    if any(n < 0 for n in shape) or math.prod(shape) >= 1 << 63:
        raise ValueError(
            f"size must have ints of 0 or more, and less than 2**63 elements, got {tuple(shape)}"
        )
    return shape


def threshold(p: float) -> int:
    """Return `rng.dropout.threshold(p)`.

    Raises:
        TypeError: p is no float or int.
        ValueError: p is not in [0, 1].
    """
    return int(address.chance(p) * _WHOLE + 0.5)


def apply(x: torch.Tensor, limit: int, cell: torch.Tensor, key: int) -> torch.Tensor:
    """Return x under the mask of a threshold, a cell and a key: `dropout` after its checks."""
    if x.dtype not in _REAL:
        raise TypeError(f"dropout needs float32, float16, bfloat16 or float64, got {x.dtype}")
    if x.layout is not torch.strided or x.is_nested:
        raise TypeError(
            "dropout needs a dense tensor x, whose rows and columns its mask hangs on, got "
            f"{'a nested one' if x.is_nested else x.layout}. Do: x.to_dense(), or a padded tensor"
        )
    if x.device != cell.device:
        raise ValueError(
            f"x is on {x.device} and the dropout state on {cell.device}; expected one device. "
            "Do: state.to(device), or bind(model, state) and model.to(device)"
        )
    out: torch.Tensor
    if torch.compiler.is_compiling():
        out = _InGraph.apply(x, cell, _signed(key), limit)
    elif torch._C._are_functorch_transforms_active():
        out = _Transformed.apply(x, cell, _signed(key), limit)
    elif is_plain(x):
        if (x.requires_grad and torch.is_grad_enabled()) or _is_dual(x):
            out = _Plain.apply(x, cell, _signed(key), limit)
        else:
            out = _by_numba(x, cell, key, limit)
    elif hasattr(x, "placements"):
        raise TypeError(
            "dropout of a DTensor: a part does not know its rows. Do: dropout of x.to_local(), of whole "
            "rows, with state.seek(first_row=...) of this part"
        )
    else:
        out = torch.ops.samebatch.dropout(x, cell, _signed(key), limit)
    return out


def _is_dual(x: torch.Tensor) -> bool:
    """Return whether a tensor has a tangent of forward-mode differentiation."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def _signed(key: int) -> int:
    """Return a key as the signed integer that an operation of torch takes."""
    return key - (1 << 64) if key >> 63 else key


def _scale(limit: int, dtype: torch.dtype) -> float:
    if limit == _WHOLE:
        return 0.0
    exact = 1.0 / (1.0 - limit / _WHOLE)
    return exact if dtype == torch.float64 else float(np.float32(exact))


@lru_cache(maxsize=256)  # not of `_scale`, which Dynamo traces
def _scale_32(limit: int) -> float:
    return _scale(limit, torch.float32)


def _columns(x: torch.Tensor) -> int:
    shape = x.shape
    columns: int = x.numel() // shape[0] if shape and shape[0] else x.numel()
    return columns


# ---------------------------------------------------------------- forward and backward
class _Dropout(torch.autograd.Function):
    """Dropout in eager mode."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, cell: torch.Tensor, key: int, limit: int
    ) -> torch.Tensor:
        """Return dropout of x."""
        ctx.address = cell, key, limit
        ctx.version = cell._version
        return _below_autograd(x, cell, key, limit)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return dropout of the gradient, whose mask is made again."""
        cell, key, limit = ctx.address
        if cell._version != ctx.version:
            raise RuntimeError(
                "the dropout state has moved since the forward pass, so the backward pass would make "
                "another mask; expected: forward, backward, then state.advance() or state.seek()"
            )
        return apply(grad, limit, cell, key & address.M64), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return dropout of the tangent: dropout is linear."""
        cell, key, limit = ctx.address
        return apply(tangent, limit, cell, key & address.M64)


class _Plain(_Dropout):
    """Dropout of a tensor that `is_plain`: not asked a second time."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, cell: torch.Tensor, key: int, limit: int
    ) -> torch.Tensor:
        """Return dropout of x."""
        ctx.address = cell, key, limit
        ctx.version = cell._version
        return _by_numba(x, cell, key, limit)


class _Transformed(_Dropout):
    """Dropout under torch.func: the form that its transformations need, five times as slow."""

    @staticmethod
    def forward(x: torch.Tensor, cell: torch.Tensor, key: int, limit: int) -> torch.Tensor:  # type: ignore[override]
        """Return dropout of x."""
        return _below_autograd(x, cell, key, limit)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        """Keep the address."""
        ctx.address = inputs[1:]
        ctx.version = inputs[1]._version

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:  # noqa: ARG004
        """Refuse."""
        _refuse_vmap()


def _below_autograd(x: torch.Tensor, cell: torch.Tensor, key: int, limit: int) -> torch.Tensor:
    if is_plain(x):
        return _by_numba(x, cell, key, limit)
    with torch._C._AutoDispatchBelowAutograd():
        out: torch.Tensor = torch.ops.samebatch.dropout(x, cell, key, limit)
    return out


def _autograd(x: torch.Tensor, cell: torch.Tensor, key: int, limit: int) -> torch.Tensor:
    out: torch.Tensor = _Dropout.apply(x, cell, key, limit)
    return out


def _refuse_vmap(*_: Any) -> Any:
    raise RuntimeError(
        "dropout under torch.vmap: each example of the mapped axis would get the same mask; expected a "
        "batch whose first axis counts samples. Do: call dropout outside of vmap"
    )


class _InGraph(torch.autograd.Function):
    """Dropout in a compiled graph: the bits by one operation, the rest fused with what is around it."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, cell: torch.Tensor, key: int, limit: int
    ) -> torch.Tensor:
        """Return dropout of x."""
        ctx.save_for_backward(cell)
        ctx.key, ctx.limit = key, limit
        return _select(
            x, torch.ops.samebatch.keep_bits(cell, x.numel(), _columns(x), key, limit, 0), limit
        )

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return dropout of the gradient. Another `call`: so that no pass keeps the forward's bits."""
        (cell,) = ctx.saved_tensors
        bits = torch.ops.samebatch.keep_bits(
            cell, grad.numel(), _columns(grad), ctx.key, ctx.limit, 1
        )
        return _select(grad, bits, ctx.limit), None, None, None


def _select(x: torch.Tensor, bits: torch.Tensor, limit: int) -> torch.Tensor:
    """Return x * scale where a packed bit is 1, else 0."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    keep = ((bits[:, None] >> places) & 1).reshape(-1)[: x.numel()].view(x.shape) != 0
    return _kept(x, keep, limit)


def _kept(x: torch.Tensor, keep: torch.Tensor, limit: int) -> torch.Tensor:
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    return torch.where(keep, wide * _scale(limit, x.dtype), 0.0).to(x.dtype)


# ---------------------------------------------------------------- in numba, in Triton, in torch
def _by_numba(x: torch.Tensor, cell: torch.Tensor, key: int, limit: int) -> torch.Tensor:
    n = x.numel()
    if x.dtype == torch.float64:
        bits = _bits_by_numba(cell, n, _columns(x), key, limit)
        keep = torch.from_numpy(masks.unpack(bits, n)).view(x.shape)
        return torch.empty_like(x).copy_(_kept(x.detach(), keep, limit))
    out = torch.empty_like(x)
    if x.dtype == torch.float32 and x.is_contiguous() and out.is_contiguous():
        _fused(x, out, n, cell, key, limit)
        return out
    if x.dtype != torch.float32 and x.is_contiguous():
        wide = x.float()  # new memory; in half the time that all the options below take
    else:
        wide = x.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    _fused(wide, wide, n, cell, key, limit)
    return out.copy_(wide)


def _fused(
    x: torch.Tensor, out: torch.Tensor, n: int, cell: torch.Tensor, key: int, limit: int
) -> None:
    """Let numba do all in one pass over contiguous float32 tensors."""
    step, row = cell.tolist()
    first = _first(row, _columns(x), n)
    source, target, scale = x.data_ptr(), out.data_ptr(), _scale_32(limit)
    k0, k1 = key & address.M32, key >> 32 & address.M32
    if n < 1 << 20:
        masks.fused_kernel(source, target, n, first, limit, scale, step, k0, k1)
        return

    def work(a: int, b: int) -> None:
        begin = source + 4 * a, target + 4 * a, b - a
        masks.fused_kernel(*begin, first + a, limit, scale, step, k0, k1)

    pieces.in_pieces(n, None, work)


def _first(row: int, columns: int, n: int) -> int:
    """Return the number of the first of n elements."""
    first = row * columns
    if first + n > 1 << 63 or first < 0:
        raise OverflowError(
            f"first_row {row} in rows of {columns} elements: their numbers must be in [0, 2**63), got "
            f"{first} ... {first + n - 1}"
        )
    return first


def _bits_by_numba(cell: torch.Tensor, n: int, columns: int, key: int, limit: int) -> Any:
    """Return u8[ceil(n / 8)]: the keep bits, as `rng.dropout_mask`, from any element on."""
    step, row = cell.tolist()
    first = _first(row, columns, n)
    lead = first & 7
    bits: Any = np.empty((lead + n + 7) // 8, np.uint8)
    if limit == 0 or limit == _WHOLE:
        bits[:] = 0 if limit else 255
    else:
        at = (_BITS, np.uint32(limit), np.uint64(step & address.M32), _C3)
        k0, k1 = np.uint64(key & address.M32), np.uint64(key >> 32 & address.M32)
        base = first - lead

        def work(a: int, b: int) -> None:
            masks.mask_kernel(bits[a // 8 : (b + 7) // 8], np.uint64(base + a), *at, k0, k1)

        if n < 1 << 20:
            work(0, lead + n)
        else:
            pieces.in_pieces(lead + n, None, work)
    if lead:
        following = np.append(bits[1:], np.uint8(0))
        bits = ((bits >> lead) | (following << (8 - lead)))[: (n + 7) // 8]
    if n % 8:
        bits[-1] &= (1 << n % 8) - 1
    return bits


def _by_triton(x: torch.Tensor, cell: torch.Tensor, key: int, limit: int) -> torch.Tensor:
    from rng import gpu

    out = torch.empty_like(x)
    source = x.contiguous()
    target = out if out.is_contiguous() else torch.empty_like(source)
    with torch.cuda.device(x.device):
        gpu.dropout(
            source, target, cell, _columns(x), limit, _scale(limit, x.dtype), key & address.M64
        )
    return out if target is out else out.copy_(target)


def _keep(cell: torch.Tensor, n: int, columns: int, key: int, limit: int) -> torch.Tensor:
    """Return bool[n] by torch's operations; where the first row is stays on the device."""
    base = cell[1] * columns
    aligned = columns % 8 == 0
    blocks = (n + 7) // 8 + (0 if aligned else 1)
    at = torch.arange(blocks, dtype=torch.int64, device=cell.device) + (base >> 3)
    parts = (key & address.M32, key >> 32 & address.M32)
    w = torch.stack(
        philox4x32((at & address.M32, at >> 32, cell[0] & address.M32, _SITE), parts), 1
    )
    lanes = torch.stack((w & 0xFFFF, w >> 16), 2).reshape(-1)
    if aligned:
        return lanes[:n] >= limit
    return lanes[torch.arange(n, device=cell.device) + (base & 7)] >= limit


def _on_device(x: torch.Tensor, cell: torch.Tensor, key: int, limit: int) -> torch.Tensor:
    """`samebatch::dropout` below autograd, on any device."""
    if x.numel() == 0:
        return torch.empty_like(x)
    if is_plain(x):
        return _by_numba(x, cell, key, limit)
    if uses_triton(x) and x.dtype != torch.float64:
        return _by_triton(x, cell, key, limit)
    keep = _keep(cell, x.numel(), _columns(x), key, limit).view(x.shape)
    return torch.empty_like(x).copy_(_kept(x, keep, limit))


def _bits_on_device(
    cell: torch.Tensor, n: int, columns: int, key: int, limit: int, call: int
) -> torch.Tensor:
    """`samebatch::keep_bits` on any device; `call` has no meaning for it."""
    del call
    if is_plain(cell):
        return torch.from_numpy(_bits_by_numba(cell, n, columns, key, limit))
    if n and uses_triton(cell):
        from rng import gpu

        bits = torch.empty((n + 7) // 8, dtype=torch.uint8, device=cell.device)
        with torch.cuda.device(cell.device):
            gpu.mask(bits, cell, n, columns, limit, key & address.M64)
        return bits
    keep = torch.zeros((n + 7) // 8 * 8, dtype=torch.uint8, device=cell.device)
    keep[:n] = _keep(cell, n, columns, key, limit)
    places = torch.arange(8, dtype=torch.uint8, device=cell.device)
    return (keep.view(-1, 8) << places).sum(1, dtype=torch.uint8)


_library = torch.library.Library("samebatch", "FRAGMENT")
_library.define("dropout(Tensor x, Tensor cell, int key, int limit) -> Tensor")
_library.impl("dropout", _on_device, "CompositeExplicitAutograd")
_library.impl("dropout", _autograd, "Autograd")
_library.impl("dropout", lambda x, cell, key, limit: torch.empty_like(x), "Meta")  # noqa: ARG005
_library.impl("dropout", _refuse_vmap, "FuncTorchBatched")
_library.define(
    "keep_bits(Tensor cell, SymInt n, SymInt columns, int key, int limit, int call) -> Tensor"
)
_library.impl("keep_bits", _bits_on_device, "CompositeExplicitAutograd")
_library.impl(
    "keep_bits",
    lambda cell, n, columns, key, limit, call: cell.new_empty((n + 7) // 8, dtype=torch.uint8),  # noqa: ARG005
    "Meta",
)
