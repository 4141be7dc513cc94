"""Bit identity: every kernel of rng/gpu.py, and rng.torch on the device, against the numba functions.

The reference is `rng.torch` on CPU tensors, which is numba, and is tested against `rng` in tests/rng/torch.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.gpu_checks import Check
from rng import address, gpu
from rng import dropout as reference
from rng.stream import Stream
from rng.torch import (
    Dropout,
    DropoutState,
    bind,
    deterministic,
    draws,
    fill,
    init,
    masks,
    renaissance,
)
from rng.torch import dropout as torch_dropout

KEY, C3, STEP = address.mix64(7), address.site(address.USER, 3, 9), 12
LAYER = address.named(address.mix64(42), "fc1")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
CARRY = (1 << 32) - 3  # a few blocks on, the counter's low word carries
LAST_ROW = (1 << 32) - 1  # of 8 columns: the last block before that carry
DRAWS: dict[str, tuple[str, tuple[float, ...]]] = {
    "uniform": ("uniform", (0.0, 1.0)),
    "uniform of a range": ("uniform", (-1.5, 2.25)),
    "normal": ("normal", (0.0, 1.0)),
    "normal, scaled and shifted": ("normal", (0.3, 1.7)),
    "truncated normal": ("truncated_normal", (0.1, 1.0, -1.0, 2.0)),
    "truncated normal, wide": ("truncated_normal", (0.0, 1.0, -9.0, 9.0)),
}
Case = tuple[Any, torch.Tensor, torch.Tensor]  # (what it is, got, wanted)


class Sizes(NamedTuple):
    """How much is tried."""

    counts: tuple[int, ...] = (1, 2, 3, 4, 5, 4095, 4096, 4097, 40001, (1 << 20) + 3)
    blocks: tuple[int, ...] = (64, 512, 2048)


def checks(device: str, sizes: Sizes) -> Iterator[Check]:
    """Yield all checks of one device."""
    for part in (fills, pieces, dropouts, fallbacks, layers, reductions):
        yield from part(device, sizes)


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits; a NaN is a NaN."""
    got, want = got.detach().cpu(), want.detach().cpu()
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if want.is_floating_point():
        nans = want.isnan()
        if not torch.equal(got.isnan(), nans):
            return False
        got, want = got.masked_fill(nans, 0.0), want.masked_fill(nans, 0.0)
    flat = (x.contiguous().view(-1).view(torch.uint8) for x in (got, want))
    return torch.equal(*flat)


def compared(name: str, cases: Iterable[Case]) -> Check:
    """Return one check of many cases; it names the first that differs."""
    count = 0
    for label, got, want in cases:
        count += 1
        if not same(got, want):
            return Check(name, False, f"differs: {label}")
    return Check(name, count > 0, f"{count} cases")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- kernels
def fills(device: str, sizes: Sizes) -> Iterator[Check]:
    """Yield the fills: words, Bernoulli, and every kind of every dtype."""
    for dtype in (torch.int64, torch.int32):
        yield compared(f"fill words {_short(dtype)}", _filled(device, sizes, dtype, draws.RAW))
    for dtype in (torch.uint8, torch.float32):
        cases = (
            case
            for p in (0.0, 1e-9, 0.3, 1.0)
            for case in _filled(device, sizes, dtype, draws.bernoulli(p))
        )
        yield compared(f"fill Bernoulli {_short(dtype)}", cases)
    for name, (kind, arguments) in DRAWS.items():
        for dtype in FLOATS:
            what = getattr(draws, kind)(dtype, *arguments)
            yield compared(f"fill {name} {_short(dtype)}", _filled(device, sizes, dtype, what))


def _filled(device: str, sizes: Sizes, dtype: torch.dtype, what: Any) -> Iterator[Case]:
    table = draws.normal_table(torch.device(device))
    for n in sizes.counts:
        for first, start in ((0, 0), (3, 0), (1, CARRY)):
            place = fill.Place(KEY, C3, STEP, start, first)
            want = torch.empty(n, dtype=dtype)
            fill.fill_rows(want, what, place)
            for block in sizes.blocks:
                got = torch.empty(n, dtype=dtype, device=device)
                gpu.fill_rows(got, table, what, place, 1, n, 0, 0, 1, block)
                yield (n, first, start, block), got, want


def pieces(device: str, sizes: Sizes) -> Iterator[Check]:
    """Yield pieces of a wider matrix, odd strides, and shards over ranks."""
    rows, columns = 40, 77
    what = draws.uniform(torch.float32, 0.0, 1.0)
    whole = fill.uniform_(torch.empty(rows, columns), Stream(KEY, C3, STEP))
    table = draws.normal_table(torch.device(device))

    def fill_(out: torch.Tensor, first: int, shape: Any, strides: Any, block: int) -> None:
        place = fill.Place(KEY, C3, STEP, 0, first)
        gpu.fill_rows(out, table, what, place, *shape, columns, *strides, block)

    def strided() -> Iterator[Case]:
        for block in sizes.blocks:
            for step in (1, 3, 5):
                memory = torch.zeros(rows, columns * step + 2, device=device)
                fill_(memory, 0, (rows, columns), (memory.stride(0), step), block)
                yield (step, block), memory[:, : columns * step : step], whole
            for column in (0, 4, 13):
                part = torch.empty(9, 31, device=device)
                fill_(part, 4 * columns + column, (9, 31), (31, 1), block)
                yield (column, block), part, whole[4:13, column : column + 31]

    def shards() -> Iterator[Case]:
        for block, world in itertools.product(sizes.blocks, (3, 4, 5, 7)):
            cuts = [whole.numel() * r // world for r in range(world + 1)]
            for a, b in itertools.pairwise(cuts):
                part = torch.empty(b - a, device=device)
                fill_(part, a, (1, b - a), (0, 1), block)
                yield (world, a, block), part, whole.view(-1)[a:b]

    yield compared("fill rows of a wider matrix, odd strides", strided())
    yield compared("fill shards over 3, 4, 5 and 7 ranks", shards())


def dropouts(device: str, sizes: Sizes) -> Iterator[Check]:
    """Yield dropout of each dtype, and its mask."""
    for dtype in FLOATS:
        yield compared(f"dropout kernel {_short(dtype)}", _dropped(device, sizes, dtype))
    yield compared("mask kernel", _masked(device, sizes))


def _cells(n: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (columns, cell) of n elements."""
    yield n, torch.tensor([3, 3])
    yield 8, torch.tensor([3, LAST_ROW])
    yield 8, torch.tensor([(1 << 32) - 1, 0])


def _dropped(device: str, sizes: Sizes, dtype: torch.dtype) -> Iterator[Case]:
    for n, p in itertools.product(sizes.counts, (0.0, 0.1, 1.0)):
        x = torch.linspace(-2, 2, n).to(dtype)
        if p:
            x[::7], x[3::7] = float("inf"), float("nan")
        limit, scale = reference.threshold(p), float(reference.scale_of(p))
        for columns, cell in _cells(n):
            keep = torch.from_numpy(
                reference.unpack(masks._bits_by_numba(cell, n, columns, LAYER, limit), n)
            )
            want = torch.where(keep, x.float() * scale, 0.0).to(dtype)
            for block in sizes.blocks:
                out, source = torch.empty(n, dtype=dtype, device=device), x.to(device)
                gpu.dropout(source, out, cell.to(device), columns, limit, scale, LAYER, block)
                yield (n, p, columns, cell.tolist(), block), out, want


def _masked(device: str, sizes: Sizes) -> Iterator[Case]:
    for n, p in itertools.product(sizes.counts, (0.1, 1.0)):
        limit = reference.threshold(p)
        for columns, cell in _cells(n):
            want = torch.from_numpy(masks._bits_by_numba(cell, n, columns, LAYER, limit))
            for block in sizes.blocks:
                out = torch.full(((n + 7) // 8,), 0xAA, dtype=torch.uint8, device=device)
                gpu.mask(out, cell.to(device), n, columns, limit, LAYER, block)
                yield (n, p, columns, cell.tolist(), block), out, want


# ---------------------------------------------------------------- what stands on them
def fallbacks(device: str, sizes: Sizes) -> Iterator[Check]:
    """Yield torch's integer operations, which every other kind of device uses."""

    def filled() -> Iterator[Case]:
        for (kind, arguments), dtype in itertools.product(DRAWS.values(), (*FLOATS, torch.float64)):
            what = getattr(draws, kind)(dtype, *arguments)
            for n in sizes.counts:
                place = fill.Place(KEY, C3, STEP, CARRY, 3)
                want = fill_on("cpu", n, dtype, what, place)
                got = torch.empty(n, dtype=dtype, device=device)
                fill._by_torch(got, what, place, None)
                yield (kind, dtype, n), got, want

    def kept() -> Iterator[Case]:
        for n in sizes.counts:
            for columns, cell in _cells(n):
                bits = masks._bits_by_numba(cell, n, columns, LAYER, 6554)
                got = masks._keep(cell.to(device), n, columns, LAYER, 6554)
                yield (n, columns), got, torch.from_numpy(reference.unpack(bits, n))

    yield compared("torch's integer operations: fills", filled())
    yield compared("torch's integer operations: dropout", kept())


def fill_on(device: str, n: int, dtype: torch.dtype, what: Any, place: Any) -> torch.Tensor:
    """Return what `rng.torch` makes on a device."""
    out = torch.empty(n, dtype=dtype, device=device)
    fill.fill_rows(out, what, place)
    return out


class Net(nn.Module):
    """A few layers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = Dropout(0.3)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).mean((2, 3))))


def layers(device: str, sizes: Sizes) -> Iterator[Check]:
    """Yield weights by name, and dropout as users call it, forward and backward."""

    def weights() -> Iterator[Case]:
        made = {}
        for where in ("cpu", device):
            with torch.device("meta"):
                model = Net()
            made[where] = init.materialize(model, 7, device=where)
        for name, want in made["cpu"].state_dict().items():
            yield name, made[device].state_dict()[name], want
        for kind in ("xavier_normal_", "trunc_normal_", "orthogonal_"):
            for dtype in (*FLOATS, torch.float64):
                both = [
                    getattr(init, kind)(
                        torch.empty(33, 17, dtype=dtype, device=w), seed=1, name="w"
                    )
                    for w in ("cpu", device)
                ]
                yield (kind, dtype), both[1], both[0]

    def called() -> Iterator[Case]:
        for dtype, n in itertools.product((*FLOATS, torch.float64), (7, 8, 4097)):
            x = torch.linspace(-3, 3, 6 * n).reshape(6, n).to(dtype)
            found = {}
            for where in ("cpu", device):
                state = bind(nn.Sequential(Dropout(0.3)), DropoutState(7, where, STEP, 5))
                leaf = x.to(where).t().contiguous().t().requires_grad_()  # of another layout
                out = torch_dropout(leaf, 0.3, state, "a")
                out.backward(torch.ones_like(leaf))
                found[where] = out, leaf.grad
            yield from (
                ((dtype, n, which), got, want)
                for which, got, want in zip(
                    ("forward", "backward"), found[device], found["cpu"], strict=True
                )
            )

    del sizes
    yield compared("weights by name", weights())
    yield compared("dropout, forward and backward", called())


def reductions(device: str, sizes: Sizes) -> Iterator[Check]:
    """Yield the reductions in a fixed order, and the dropout of the seed."""

    def pooled() -> Iterator[Case]:
        x = torch.linspace(-5, 5, 2 * 3 * 17 * 19).sin().reshape(2, 3, 17, 19)
        found = []
        for where in ("cpu", device):
            leaf = x.to(where).requires_grad_()
            out = deterministic.max_pool2d(leaf, 3, 2, 1)
            out.backward(torch.linspace(-1, 1, out.numel(), device="cpu").view(out.shape).to(where))
            found.append((out, leaf.grad))
        yield "forward", found[1][0], found[0][0]
        yield "backward", found[1][1], found[0][1]

    def summed() -> Iterator[Case]:
        for n in sizes.counts:
            x = fill.normal_(torch.empty(n), Stream(KEY, C3, STEP))
            yield n, deterministic.sum_of_squares(x.to(device)), deterministic.sum_of_squares(x)

    def seeds() -> Iterator[Case]:
        both = [renaissance.dropout_seed(42, 1, where) for where in ("cpu", device)]
        for n in sizes.counts:
            for seed in both:
                renaissance.rotate_(seed)
            yield n, both[1], both[0]
            yield n, *(renaissance.dropout_uniform(s, n) for s in reversed(both))

    yield compared("max pooling in a fixed order", pooled())
    yield compared("sums of squares in a fixed order", summed())
    yield compared("the seed's own dropout", seeds())
