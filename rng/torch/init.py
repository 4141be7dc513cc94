"""Initial values of tensors, keyed by the parameter's name: `rng.init` on any device and any shard.

    init.kaiming_uniform_(model.fc1.weight, seed=7, name="fc1.weight")
    init.materialize(model, seed=7, rules={"*.head.weight": init.zeros_})

Names, further arguments and defaults are those of torch.nn.init. Element i of the whole tensor depends on (seed,
name, i) alone: not on the device, on what else is made, nor on how a DTensor is split. All values are made in
float32 and cast once; those of `orthogonal_` in float64, on the host.

Every function fills in place, returns the tensor, and takes (constants need neither size nor box):

    seed, name     the address; `name` is the parameter's name in the model
    size, box      of a plain tensor that is a part of a larger one: the whole's size, and one slice (step 1)
                   for each axis. A DTensor knows its own.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from rng import address
from rng import init as host
from rng.torch import draws, fill
from rng.torch.draws import Draw

Box = Sequence[slice] | None
Size = Sequence[int] | None
_SITE = address.site(address.INIT)


# ---------------------------------------------------------------- distributions
def normal_(
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with normal values.

    Raises:
        TypeError: not a dense tensor, a seed that is not an int, a name that is not a str.
        ValueError: an argument out of range, a dtype that is not real, a box that does not fit, a tensor that
            is expanded.

    >>> normal_(torch.empty(2), seed=1, name="w").tolist() == host.normal(2, 1, "w").tolist()
    True
    """
    return _fill(tensor, draws.normal(_dtype(tensor), mean, std), seed, name, size, box)


def uniform_(
    tensor: torch.Tensor,
    a: float = 0.0,
    b: float = 1.0,
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with uniform values in [a, b). Errors: as `normal_`."""
    what = draws.uniform(_dtype(tensor), a, b, wide=False)
    return _fill(tensor, what, seed, name, size, box)


def trunc_normal_(
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with normal values conditioned on [a, b]. Errors: as `normal_`."""
    what = draws.truncated_normal(_dtype(tensor), mean, std, a, b)
    return _fill(tensor, what, seed, name, size, box)


def xavier_uniform_(
    tensor: torch.Tensor,
    gain: float = 1.0,
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with uniform values within gain * sqrt(6 / (fan_in + fan_out)). Errors: as `normal_`."""
    fan_in, fan_out = host.fans(_whole(tensor, size))
    return _within(tensor, gain * host.root(6.0, fan_in + fan_out), seed, name, size, box)


def xavier_normal_(
    tensor: torch.Tensor,
    gain: float = 1.0,
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with normal values of std gain * sqrt(2 / (fan_in + fan_out)). Errors: as `normal_`."""
    fan_in, fan_out = host.fans(_whole(tensor, size))
    std = gain * host.root(2.0, fan_in + fan_out)
    return normal_(tensor, 0.0, std, seed=seed, name=name, size=size, box=box)


def kaiming_uniform_(
    tensor: torch.Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with uniform values within gain * sqrt(3 / fan). Errors: as `rng.init.kaiming_normal`."""
    gain, fan = host.gain_of(nonlinearity, a), host.fan_of(_whole(tensor, size), mode)
    return _within(tensor, gain * host.root(3.0, fan), seed, name, size, box)


def kaiming_normal_(
    tensor: torch.Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with normal values of std gain / sqrt(fan). Errors: as `rng.init.kaiming_normal`."""
    fan = host.fan_of(_whole(tensor, size), mode)
    std = host.gain_of(nonlinearity, a) / math.sqrt(fan) if fan else 0.0
    return normal_(tensor, 0.0, std, seed=seed, name=name, size=size, box=box)


def orthogonal_(
    tensor: torch.Tensor,
    gain: float = 1.0,
    *,
    seed: int,
    name: str,
    size: Size = None,
    box: Box = None,
) -> torch.Tensor:
    """Fill with gain times orthonormal rows or columns; each process factors the whole matrix.

    Raises:
        TypeError, ValueError: as `rng.init.orthogonal`.
    """
    draws.check_real(_dtype(tensor))
    whole: Any = None
    with torch.no_grad():
        for part, sizes, ranges in _parts(tensor, size, box):
            if whole is None:
                whole = host.orthogonal(sizes, seed, name, gain, dtype=np.float64)
            piece = whole[tuple(slice(a, b) for a, b in ranges)]
            part.copy_(torch.from_numpy(_to_round(np.ascontiguousarray(piece), part.dtype)))
    return _changed(tensor)


def _to_round(x: Any, dtype: torch.dtype) -> Any:
    """Return float64 numbers in a form that torch rounds to `dtype` once.

    It casts to float16 and bfloat16 by way of float32, which rounds twice. Rounded to odd (toward zero,
    with the last bit set where that was inexact), a float32 rounds as the float64 would.
    """
    if dtype not in (torch.float16, torch.bfloat16):
        return x
    near = x.astype(np.float32)
    bits = near.view(np.uint32) - (np.abs(near) > np.abs(x))
    return (bits | (near != x)).astype(np.uint32).view(np.float32)


# ---------------------------------------------------------------- constants
# These draw nothing: seed and name are taken so that all rules are called alike.
def constant_(
    tensor: torch.Tensor,
    val: float,
    *,
    seed: int | None = None,  # noqa: ARG001
    name: str | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """Fill with `val`. Expanded tensors too, as torch does: their elements are equal anyway."""
    _dtype(tensor)
    _refuse_partial(tensor)
    with torch.no_grad():
        _local(tensor).fill_(val)
    return _changed(tensor)


def zeros_(
    tensor: torch.Tensor, *, seed: int | None = None, name: str | None = None
) -> torch.Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0, seed=seed, name=name)


def ones_(
    tensor: torch.Tensor, *, seed: int | None = None, name: str | None = None
) -> torch.Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0, seed=seed, name=name)


def materialize(
    model: torch.nn.Module, seed: int, rules: Any = None, device: torch.device | str | None = None
) -> torch.nn.Module:
    """Give every parameter of a model its value by its name; those on the meta device get memory first.

    Args:
        model: changed in place. Wrappers' parts of a name (`_orig_mod`, `module` ...) do not count.
        seed: in [0, 2**64).
        rules: {pattern or module type: initialiser}, the first that fits wins, before torch's own defaults
            for its layers. A pattern (fnmatch, "*.bias") fits qualified names; its initialiser is called as
            f(tensor, seed=, name=). For a type it is {parameter's own name: initialiser}, or a function from
            the module to that.
        device: for what is on the meta device; None: the CPU.

    Returns:
        The model. Buffers that were not on the meta device keep their values.

    A tensor that several modules share (tied weights) has the name, and the rule, of the first of them in the
    order of `model.named_modules()`, as in `named_parameters()`.

    Raises:
        TypeError: rules that are no mapping, or hold something else than the above.
        ValueError: parameters or buffers without a rule; a rule that fits nothing in the model, be it a pattern,
            a type or a name in a type's rule; two parameters of one name. Before anything is changed.

    >>> model = torch.nn.Linear(4, 3, device="meta")
    >>> materialize(model, seed=7).weight.device.type
    'cpu'
    """
    from rng.torch import materialize as module

    return module.materialize(model, seed, rules, device)


# ---------------------------------------------------------------- inside
def _dtype(tensor: torch.Tensor) -> torch.dtype:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor must be a torch tensor, got {type(tensor).__name__}")
    return tensor.dtype


def _within(
    tensor: torch.Tensor, bound: float, seed: int, name: str, size: Size, box: Box
) -> torch.Tensor:
    """Fill with uniform values in [-bound, bound); zeros where bound is 0."""
    if bound == 0.0:
        return normal_(tensor, 0.0, 0.0, seed=seed, name=name, size=size, box=box)
    return uniform_(tensor, -bound, bound, seed=seed, name=name, size=size, box=box)


def _fill(
    tensor: torch.Tensor, what: Draw, seed: int, name: str, size: Size, box: Box
) -> torch.Tensor:
    key = address.named(address.mix64(seed), name)
    with torch.no_grad():
        for part, sizes, ranges in _parts(tensor, size, box):
            if part.numel() and not part.is_meta:
                _fill_box(part, what, key, sizes, ranges)
    return _changed(tensor)


def _changed(tensor: torch.Tensor) -> torch.Tensor:
    """Tell autograd of a DTensor's new values: its version is not that of its part here."""
    if hasattr(tensor, "to_local"):
        fill.changed(tensor)
    return tensor


def _fill_box(
    part: torch.Tensor,
    what: Draw,
    key: int,
    size: tuple[int, ...],
    ranges: Sequence[tuple[int, int]],
) -> None:
    """Fill a box of a tensor of `size`: rows of a wider matrix at a time."""
    shape = tuple(part.shape)
    axis = len(size)  # axes from this one on are whole
    while axis and shape[axis - 1] == size[axis - 1]:
        axis -= 1
    strides = [int(np.prod(size[i + 1 :], dtype=np.int64)) for i in range(len(size))]
    first = sum(a * stride for (a, _), stride in zip(ranges, strides, strict=True))
    if axis <= 1:  # one run
        fill.fill_rows(part, what, fill.Place(key, _SITE, 0, 0, first))
        return
    # Whole axes go along with the last one that is cut: rows of `columns`, one `pitch` apart.
    columns = int(np.prod(shape[axis - 1 :], dtype=np.int64))
    target = (
        part
        if part.is_contiguous()
        else torch.empty_like(part, memory_format=torch.contiguous_format)
    )
    rows = target.view(*shape[: axis - 1], columns)
    for index in np.ndindex(*shape[: axis - 2]):
        at = first + sum(k * strides[i] for i, k in enumerate(index))
        place = fill.Place(key, _SITE, 0, 0, at)
        fill.fill_rows(rows[index], what, place, strides[axis - 2])
    if target is not part:
        part.copy_(target)


def _whole(tensor: torch.Tensor, size: Size) -> tuple[int, ...]:
    _dtype(tensor)
    return tuple(tensor.shape) if size is None else tuple(size)


def _parts(
    tensor: torch.Tensor, size: Size, box: Box
) -> Iterator[tuple[torch.Tensor, tuple[int, ...], list[tuple[int, int]]]]:
    """Yield (part, size of the whole, [first, last) of each axis) for the boxes of a tensor here."""
    whole = _whole(tensor, size)
    axes = _axes_of_dtensor(tensor)
    if axes is None:
        ranges = host.box_of(whole, box)
        if tuple(b - a for a, b in ranges) != tuple(tensor.shape):
            raise ValueError(
                f"the box {ranges} of a tensor of size {whole} does not fit one of {tuple(tensor.shape)}"
            )
        fill.check_memory(tensor, "tensor")
        yield tensor.detach(), whole, ranges
        return
    if size is not None or box is not None:
        raise ValueError("a DTensor knows its size and box; expected neither")
    local = _local(tensor)
    fill.check_memory(local, "tensor")
    for choice in np.ndindex(*(len(runs) for runs in axes)):
        picked = [runs[i] for runs, i in zip(axes, choice, strict=True)]
        place = tuple(slice(at, at + b - a) for at, a, b in picked)
        yield local[place], whole, [(a, b) for _, a, b in picked]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values that this process holds."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _axes_of_dtensor(tensor: torch.Tensor) -> list[list[tuple[int, int, int]]] | None:
    """Return the runs (place here, first, last) of each axis that this process holds of a DTensor.

    A run is one of indices that are neighbours in the whole too: an axis that several mesh axes split has
    more than one. DTensor itself splits the indices, without communication.
    """
    if not hasattr(tensor, "placements"):
        return None
    from torch.distributed.tensor import Replicate, distribute_tensor

    _refuse_partial(tensor)
    mesh, axes = tensor.device_mesh, []
    for axis, n in enumerate(tensor.shape):
        along = [
            _moved(p) if getattr(p, "dim", None) == axis else Replicate() for p in tensor.placements
        ]
        indices = torch.arange(n, device=mesh.device_type)
        if any(not isinstance(p, Replicate) for p in along):
            indices = distribute_tensor(indices, mesh, along, src_data_rank=None).to_local()
        held = indices.cpu().numpy()
        cuts = [0, *(np.flatnonzero(np.diff(held) != 1) + 1).tolist(), held.size]
        runs = [(a, int(held[a]), int(held[b - 1]) + 1) for a, b in pairwise(cuts) if b > a]
        axes.append(runs)
    return axes


def _refuse_partial(tensor: Any) -> None:
    """Refuse a DTensor whose values are the sums of those that processes hold."""
    if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        raise ValueError(
            f"a DTensor of placements {tensor.placements} has the sum of what processes hold; expected "
            "Shard and Replicate. Do: tensor.redistribute(...) first"
        )


def _moved(placement: Any) -> Any:
    """Return a placement that splits axis 0 as this one splits its own."""
    from torch.distributed.tensor import Shard

    factor = getattr(placement, "split_factor", None)
    return Shard(0) if factor is None else type(placement)(0, split_factor=factor)


Initialiser = Callable[..., Any]
"""init(tensor, *, seed, name): any function above, or functools.partial of one."""
