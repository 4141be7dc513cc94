"""Max pooling and sums of squares whose bits depend on no order of threads: the same on any device.

    max_pool2d      gradient of a cell = sum over the windows that chose it, in row order, by one
                    addition a window into a cell of its own: nothing is scattered, no atomics
    sum_of_squares  block b of 8192 elements -> partial b, by a fixed tree of float64 additions;
                    partials -> total, by the same tree

All of it is elementwise torch operations in a fixed order, so CPU and GPU, and any number of
threads, give the same bits. Squares of float32, float16 and bfloat16 are exact in float64: a
compiler that fuses multiply and add (torch.compile) cannot change a sum of them either.

Source: the two fixed-order reductions of Tech-Renaissance's blog post 23, section 5.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F

BLOCK = 8192  # elements of one partial sum
_PIECE = 1 << 24  # elements squared at once: 64 MiB of float64 after the first addition


# ---------------------------------------------------------------- max pooling
def max_pool2d(
    x: torch.Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Return the largest value of each window, as `torch.nn.functional.max_pool2d`.

    Of equal values the first one gets the gradient (rows, then columns); of nans the last. The
    gradient of a cell is summed in float32 (float64 for float64), over its windows in row order, and
    rounded to x's dtype once; torch's own backward pass on a GPU adds float16 in another order.

    Args:
        x: floating, [N, C, H, W] or [C, H, W].
        kernel_size, stride, padding, dilation, ceil_mode: as torch; stride None is kernel_size.

    Raises:
        TypeError: x is not floating.
        RuntimeError: sizes that do not fit, from torch.

    >>> x = torch.tensor([[[[1.0, 3.0, 3.0]]]], requires_grad=True)
    >>> max_pool2d(x, (1, 2), stride=1).sum().backward()
    >>> x.grad
    tensor([[[[0., 2., 0.]]]])
    """
    if not x.is_floating_point():
        raise TypeError(f"x must be floating, got {x.dtype}")
    kernel = _pair(kernel_size)
    steps = kernel if stride is None else _pair(stride)
    result: torch.Tensor = _MaxPool2d.apply(
        x, kernel, steps, _pair(padding), _pair(dilation), ceil_mode
    )
    return result


class MaxPool2d(torch.nn.MaxPool2d):
    """`torch.nn.MaxPool2d` with the backward pass of `max_pool2d`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the pooled input.

        Raises:
            ValueError: made with return_indices=True.
        """
        if self.return_indices:
            raise ValueError("return_indices=True has no deterministic form: use torch's MaxPool2d")
        return max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


class _MaxPool2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        ceil_mode: bool,
    ) -> torch.Tensor:
        y, index = F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, True)
        ctx.geometry = x.shape, kernel, stride, padding, dilation
        ctx.save_for_backward(_chosen(index, x.shape[-1], kernel, stride, padding, dilation))
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (chosen,) = ctx.saved_tensors
        return _gather(gradients[0], chosen, *ctx.geometry), None, None, None, None, None


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    pair = tuple(value)
    return (pair[0], pair[0]) if len(pair) == 1 else (pair[0], pair[1])


def _chosen(
    index: torch.Tensor,
    width: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    """Return which cell of its own window each window chose: row * kernel width + column.

    One byte a window up to 256 cells, as the seed's; torch's index takes eight.
    """
    rows, columns = index.shape[-2:]
    top = torch.arange(rows, device=index.device).mul_(stride[0]).sub_(padding[0])[:, None]
    left = torch.arange(columns, device=index.device).mul_(stride[1]).sub_(padding[1])
    row = (index.div(width, rounding_mode="floor") - top).div_(dilation[0], rounding_mode="floor")
    column = (index.remainder(width) - left).div_(dilation[1], rounding_mode="floor")
    cell = row.mul_(kernel[1]).add_(column)
    return cell.to(torch.uint8 if kernel[0] * kernel[1] <= 256 else torch.int32)


def _gather(
    dy: torch.Tensor,
    chosen: torch.Tensor,
    shape: torch.Size,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    """Return the gradient of the input.

    For one cell of the windows at a time: different windows have different cells there, so each
    addition has its own target. From the last cell to the first, a given input cell meets its
    windows in row order.
    """
    height, width = shape[-2:]
    rows, columns = dy.shape[-2:]
    wide = torch.promote_types(dy.dtype, torch.float32)
    # With ceil_mode the last windows may reach beyond the padding.
    down = (rows - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1
    across = (columns - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
    size = max(down, height + 2 * padding[0]), max(across, width + 2 * padding[1])
    padded = dy.new_zeros((*shape[:-2], *size), dtype=wide)
    given = dy.to(wide)
    nothing = given.new_zeros(())
    for cell in range(kernel[0] * kernel[1] - 1, -1, -1):
        top, left = cell // kernel[1] * dilation[0], cell % kernel[1] * dilation[1]
        target = padded[
            ...,
            top : top + (rows - 1) * stride[0] + 1 : stride[0],
            left : left + (columns - 1) * stride[1] + 1 : stride[1],
        ]
        target += torch.where(chosen == cell, given, nothing)
    inside = padded[..., padding[0] : padding[0] + height, padding[1] : padding[1] + width]
    return inside.to(dy.dtype).contiguous()


# ---------------------------------------------------------------- sums of squares
def sum_of_squares(x: torch.Tensor) -> torch.Tensor:
    """Return f64[] on x's device: the sum of squares of all elements, in a fixed order.

    Element e of the flat tensor is in block e div 8192; the value is a function of the elements in
    order alone, not of the device, the threads or the order in which blocks finish.

    Args:
        x: floating, any shape and strides; not tracked by autograd. Squares of float64 are rounded,
            all others are exact.

    Raises:
        TypeError: x is not floating.

    >>> sum_of_squares(torch.tensor([3.0, 4.0]))
    tensor(25., dtype=torch.float64)
    """
    return _tree(block_sums(x))


def block_sums(x: torch.Tensor) -> torch.Tensor:
    """Return f64[ceil(n / 8192)]: the sum of squares of each block, the first of the two stages."""
    if not x.is_floating_point():
        raise TypeError(f"x must be floating, got {x.dtype}")
    flat = x.detach().reshape(-1)
    pieces = [_partials(flat[at : at + _PIECE]) for at in range(0, flat.numel(), _PIECE)]
    return torch.cat(pieces) if pieces else flat.new_zeros(1, dtype=torch.float64)


def _partials(flat: torch.Tensor) -> torch.Tensor:
    blocks = -(-flat.numel() // BLOCK)
    short = blocks * BLOCK - flat.numel()
    if short:
        flat = F.pad(flat, (0, short))
    halves = flat.view(blocks, 2, BLOCK // 2)
    first, second = halves[:, 0].double(), halves[:, 1].double()
    return _tree(first * first + second * second)


def _tree(values: torch.Tensor) -> torch.Tensor:
    """Return the sums along the last axis: the second half is added to the first, again and again."""
    n = values.shape[-1]
    size = 1 << (n - 1).bit_length()
    if size > n:
        values = F.pad(values, (0, size - n))
    while size > 1:
        size //= 2
        values = values[..., :size] + values[..., size:]
    return values[..., 0]


def norm(x: torch.Tensor) -> torch.Tensor:
    """Return f64[]: the square root of `sum_of_squares`."""
    return sum_of_squares(x).sqrt()


def trust_ratio(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    *,
    trust_coefficient: float = 0.001,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
    gradient_scale: float = 1.0,
    most: float = 100.0,
) -> torch.Tensor:
    """Return f64[]: LARS's factor for the learning rate of one parameter.

        trust_coefficient * |w| / (|g| / gradient_scale + weight_decay * |w| + eps), at most `most`

    and 1 where a norm is below 1e-12 or not a number. It stays on the device: no wait, and a CUDA
    graph can capture it.

    Args:
        weight, gradient: floating, any shape.
        trust_coefficient, weight_decay, eps: of LARS.
        gradient_scale: the loss scale that the gradient still carries.
        most: upper end.

    Source: You, Gitman, Ginsburg, "Large batch training of convolutional networks" (2017).
    """
    w, g = norm(weight), norm(gradient)
    ratio = trust_coefficient * w / (g / gradient_scale + weight_decay * w + eps)
    usable = (w >= 1e-12) & (g >= 1e-12) & ratio.isfinite()
    return torch.where(usable, ratio.clamp(max=most), torch.ones_like(ratio))


def trust_ratios(parameters: Iterable[torch.Tensor], **options: float) -> list[torch.Tensor]:
    """Return `trust_ratio` of each parameter that has a gradient, in order. Options: as there."""
    return [trust_ratio(p, p.grad, **options) for p in parameters if p.grad is not None]
