"""Initial values of parameters, keyed by the parameter's name.

    element i of the flat tensor = f(word i mod 4 of block i div 4) at (INIT, key = named(seed, name))

A tensor does not depend on which others exist or in which order they are made, and a sub-box of it
(`box`: the shard of one process) gets exactly the values of the whole. All values are made in
float32 and cast once (orthogonal: in float64), so another dtype has the same values, rounded.

    gain: linear, sigmoid 1 · tanh 5/3 · relu sqrt(2) · leaky_relu sqrt(2 / (1 + a**2)) · selu 3/4
    fans of shape (out, in, *kernel): fan_in = in * prod(kernel), fan_out = out * prod(kernel)

Source: Glorot, Bengio (AISTATS 2010), eq. 16; He et al., "Delving deep into rectifiers" (ICCV
2015), eq. 10 and 14; Saxe et al., "Exact solutions to the nonlinear dynamics" (ICLR 2014) for
orthogonal; names and defaults as in torch.nn.init.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rng import address, fill
from rng.kernel import kernel
from rng.stream import Stream

Array = NDArray[Any]
Shape = int | Sequence[int]
Box = Sequence[slice] | None


def normal(
    shape: Shape,
    seed: int,
    name: str,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    box: Box = None,
    dtype: Any = "float32",
    out: Array | None = None,
) -> Array:
    """Return normal values.

    Args:
        shape: of the whole tensor.
        seed: in [0, 2**64).
        name: of the parameter.
        mean, std: of the values; std >= 0.
        box: one slice (step 1) for each axis: only this part is made.
        dtype: of the result.
        out: array to write to, of the box's (or the whole) shape.

    Draws: 1 word each.

    Raises:
        TypeError: a size or the seed is not an int, the name not a str, the box not of slices.
        ValueError: an argument out of range, a box or an `out` that does not fit, a dtype that is
            not real.

    >>> whole = normal((4, 6), seed=1, name="fc.weight")
    >>> part = normal((4, 6), seed=1, name="fc.weight", box=(slice(1, 3), slice(2, 6)))
    >>> (part == whole[1:3, 2:6]).all()
    np.True_
    """
    return _make(shape, seed, name, box, dtype, out, "normal", mean, std)


def uniform(
    shape: Shape,
    seed: int,
    name: str,
    low: float = 0.0,
    high: float = 1.0,
    *,
    box: Box = None,
    dtype: Any = "float32",
    out: Array | None = None,
) -> Array:
    """Return uniform values in [low, high), 24 bits. Draws, arguments, errors: as `normal`."""
    return _make(shape, seed, name, box, dtype, out, "uniform", low, high)


def truncated_normal(
    shape: Shape,
    seed: int,
    name: str,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    *,
    box: Box = None,
    dtype: Any = "float32",
    out: Array | None = None,
) -> Array:
    """Return normal values conditioned on [low, high]. Draws, arguments, errors: as `normal`."""
    return _make(shape, seed, name, box, dtype, out, "truncated_normal", mean, std, low, high)


def xavier_normal(shape: Shape, seed: int, name: str, gain: float = 1.0, **options: Any) -> Array:
    """Return normal values of std gain * sqrt(2 / (fan_in + fan_out)). Options: as `normal`."""
    fan_in, fan_out = fans(shape)
    std = gain * root(2.0, fan_in + fan_out)
    return normal(shape, seed, name, 0.0, std, **options)


def xavier_uniform(shape: Shape, seed: int, name: str, gain: float = 1.0, **options: Any) -> Array:
    """Return uniform values within gain * sqrt(6 / (fan_in + fan_out)). Options: as `normal`."""
    fan_in, fan_out = fans(shape)
    return _within(gain * root(6.0, fan_in + fan_out), shape, seed, name, options)


def kaiming_normal(
    shape: Shape,
    seed: int,
    name: str,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    gain: float | None = None,
    **options: Any,
) -> Array:
    """Return normal values of std gain / sqrt(fan).

    Args:
        shape, seed, name: as `normal`.
        a: slope of leaky_relu's negative side.
        mode: fan_in, fan_out or fan_avg.
        nonlinearity: see `gain_of`.
        gain: instead of the nonlinearity's.
        options: box, dtype, out, as `normal`.

    Raises:
        ValueError: fewer than two axes, an unknown mode or nonlinearity; otherwise as `normal`.
    """
    if gain is None:
        gain = gain_of(nonlinearity, a)
    fan = fan_of(shape, mode)
    std = gain / math.sqrt(fan) if fan else 0.0  # without fan there are no elements
    return normal(shape, seed, name, 0.0, std, **options)


def kaiming_uniform(
    shape: Shape,
    seed: int,
    name: str,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    gain: float | None = None,
    **options: Any,
) -> Array:
    """Return uniform values within gain * sqrt(3 / fan). Arguments: as `kaiming_normal`."""
    if gain is None:
        gain = gain_of(nonlinearity, a)
    return _within(gain * root(3.0, fan_of(shape, mode)), shape, seed, name, options)


def root(x: float, fan: float) -> float:
    """Return sqrt(x / fan); a tensor without fan has no elements, whatever their spread."""
    return math.sqrt(x / fan) if fan else 0.0


def _within(bound: float, shape: Shape, seed: int, name: str, options: dict[str, Any]) -> Array:
    """Return uniform values in [-bound, bound); zeros where bound is 0."""
    if bound == 0.0:
        return normal(shape, seed, name, 0.0, 0.0, **options)
    return uniform(shape, seed, name, -bound, bound, **options)


def constant(
    shape: Shape,
    value: float,
    *,
    box: Box = None,
    dtype: Any = "float32",
    out: Array | None = None,
) -> Array:
    """Return an array of `value`, of the box's (or the whole) shape. Draws: nothing.

    Raises:
        TypeError, ValueError: as `normal`.
    """
    part = tuple(b - a for a, b in box_of(_shape(shape), box))
    if out is None:
        out = np.empty(part, dtype)
    _check_out(out, part)
    out[...] = value
    return out


def zeros(
    shape: Shape, *, box: Box = None, dtype: Any = "float32", out: Array | None = None
) -> Array:
    """Return an array of zeros. Arguments and errors: as `constant`. Draws: nothing."""
    return constant(shape, 0.0, box=box, dtype=dtype, out=out)


def orthogonal(
    shape: Shape,
    seed: int,
    name: str,
    gain: float = 1.0,
    *,
    box: Box = None,
    dtype: Any = "float32",
    out: Array | None = None,
) -> Array:
    """Return gain times a matrix of orthonormal rows or columns (whichever are fewer).

    Axes after the first are flattened. The normal values of `normal` are factored by Householder
    reflections in float64, in one fixed order of operations, signs as for a positive diagonal of R:
    uniform among orthogonal matrices.

    Draws: 1 word for each element of the whole tensor.

    Raises:
        ValueError: fewer than two axes; otherwise as `normal`.
    """
    size = _shape(shape)
    if len(size) < 2:
        raise ValueError(f"orthogonal needs at least 2 axes, got shape {size}")
    rows, columns = size[0], math.prod(size[1:])
    whole = normal((rows, columns), seed, name, dtype=np.float64)
    tall = np.ascontiguousarray(whole if rows >= columns else whole.T)
    q = np.zeros(tall.shape, np.float64)
    if tall.size:
        _householder(tall, q)
    q = (q if rows >= columns else q.T).reshape(size) * gain
    part = q[tuple(slice(a, b) for a, b in box_of(size, box))]
    if out is None:
        out = np.empty(part.shape, dtype)
    _check_out(out, part.shape)
    with np.errstate(all="ignore"):
        out[...] = part
    return out


# ---------------------------------------------------------------- fans and gains
def fans(shape: Shape) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight of shape (out, in, *kernel).

    Raises:
        ValueError: fewer than two axes.

    >>> fans((64, 3, 7, 7))
    (147, 3136)
    """
    size = _shape(shape)
    if len(size) < 2:
        raise ValueError(f"fan_in and fan_out need at least 2 axes, got shape {size}")
    kernel = math.prod(size[2:])
    return size[1] * kernel, size[0] * kernel


def gain_of(nonlinearity: str, a: float = 0.01) -> float:
    """Return the recommended gain of a nonlinearity; `a` is leaky_relu's slope.

    Raises:
        ValueError: an unknown name.
    """
    gains: dict[str, Callable[[], float]] = {
        "linear": lambda: 1.0,
        "sigmoid": lambda: 1.0,
        "tanh": lambda: 5.0 / 3.0,
        "relu": lambda: math.sqrt(2.0),
        "leaky_relu": lambda: math.sqrt(2.0 / (1.0 + a * a)),
        "selu": lambda: 0.75,
    }
    if nonlinearity not in gains:
        raise ValueError(f"nonlinearity must be one of {', '.join(gains)}, got {nonlinearity!r}")
    return gains[nonlinearity]()


def fan_of(shape: Shape, mode: str) -> float:
    """Return fan_in, fan_out or fan_avg of a weight.

    Raises:
        ValueError: fewer than two axes, or an unknown mode.
    """
    fan_in, fan_out = fans(shape)
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    if mode not in fan:
        raise ValueError(f"mode must be fan_in, fan_out or fan_avg, got {mode!r}")
    return fan[mode]


# ---------------------------------------------------------------- boxes
def _shape(shape: Shape) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, Iterable) else (shape,)
    size = tuple(address.whole("a size", s) for s in sizes)
    if min(size, default=0) < 0:
        raise ValueError(f"sizes must be >= 0, got {size}")
    return size


def box_of(size: tuple[int, ...], box: Box) -> list[tuple[int, int]]:
    """Return (first, last) of each axis."""
    if box is None:
        return [(0, n) for n in size]
    if len(box) != len(size):
        raise ValueError(f"box has {len(box)} slices, the tensor {len(size)} axes")
    ranges = []
    for part, n in zip(box, size, strict=True):
        if not isinstance(part, slice):
            raise TypeError(f"box must be of slices, got {part!r}")
        a, b, step = part.indices(n)
        if step != 1:
            raise ValueError(f"box must have slices of step 1, got {part}")
        ranges.append((a, max(a, b)))
    return ranges


def _check_out(out: Array, size: tuple[int, ...]) -> None:
    fill.check_out(out)
    if out.shape != size:
        raise ValueError(f"out must have shape {size}, got {out.shape}")


def _make(
    shape: Shape,
    seed: int,
    name: str,
    box: Box,
    dtype: Any,
    out: Array | None,
    kind: str,
    *parameters: float,
) -> Array:
    """Fill the box of a tensor, run by run of elements that are neighbours in the whole."""
    size = _shape(shape)
    ranges = box_of(size, box)
    part = tuple(b - a for a, b in ranges)
    if out is None:
        out = np.empty(part, dtype)
    _check_out(out, part)
    if kind == "uniform" and out.dtype == np.float64:
        # Stream.uniform would make 53 bits of two words: other values than those of float32.
        out[...] = _make(shape, seed, name, box, np.float32, None, kind, *parameters)
        return out
    key = address.named(address.mix64(seed), name)
    make = getattr(Stream(key, address.site(address.INIT)), kind)
    for index, first in runs(size, ranges):
        run: Array = out[(*index, ...)]  # type: ignore[arg-type]  # an array, also where it is a scalar
        make(run, *parameters, first=first)
    return out


def runs(
    size: tuple[int, ...], ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (index, first) for the runs of a box whose elements are neighbours in the whole tensor.

    Args:
        size: of the whole tensor.
        ranges: [first, last) of each axis of the box.

    `index` picks the run out of the box, and `first` is the global flat index of its first element.

    >>> list(runs((3, 4), [(1, 3), (0, 4)])), list(runs((3, 4), [(1, 3), (2, 4)]))
    ([((), 4)], [((0,), 6), ((1,), 10)])
    """
    part = tuple(b - a for a, b in ranges)
    axis = len(size)  # axes from this one on are whole
    while axis and part[axis - 1] == size[axis - 1]:
        axis -= 1
    if axis == 0:
        yield (), 0
        return
    strides = [math.prod(size[i + 1 :]) for i in range(len(size))]
    base = ranges[axis - 1][0] * strides[axis - 1]
    for index in np.ndindex(*part[: axis - 1]):
        yield index, base + sum((ranges[i][0] + k) * strides[i] for i, k in enumerate(index))


# ---------------------------------------------------------------- kernel
@kernel
def _householder(a: Any, q: Any) -> None:
    """Overwrite `a` (f64[m, n], m >= n) and set q to Q of its QR factors, with R's diagonal > 0.

    Sums run over rows in order, side by side for all columns: one order, whatever the machine.
    """
    m, n = a.shape
    scale = np.empty(n, np.float64)
    sign = np.empty(n, np.float64)
    dots = np.empty(n, np.float64)
    for k in range(n):
        norm = 0.0
        for i in range(k, m):
            norm += a[i, k] * a[i, k]
        norm = np.sqrt(norm)
        alpha = -norm if a[k, k] > 0.0 else norm
        sign[k] = -1.0 if a[k, k] > 0.0 else 1.0
        a[k, k] -= alpha
        # v = a[k:, k]; v.v = 2 alpha (alpha - a_kk) = -2 alpha v_0
        scale[k] = -1.0 / (alpha * a[k, k]) if norm > 0.0 else 0.0
        _reflect(a, a, k, k + 1, scale[k], dots)
    for k in range(n):
        q[k, k] = sign[k]
    for k in range(n - 1, -1, -1):
        _reflect(a, q, k, k, scale[k], dots)


@kernel
def _reflect(v: Any, a: Any, k: Any, first: Any, scale: Any, dots: Any) -> None:
    """Replace columns first ... of `a` by their reflection: a -= scale * v (v . a), v = v[k:, k]."""
    m, n = a.shape
    for j in range(first, n):
        dots[j] = 0.0
    for i in range(k, m):
        x = v[i, k]
        for j in range(first, n):
            dots[j] += x * a[i, j]
    for i in range(k, m):
        x = v[i, k] * scale
        for j in range(first, n):
            a[i, j] -= x * dots[j]
