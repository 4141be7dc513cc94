"""CUDA graphs, streams and compiled graphs: the masks of replay k are those of step k in eager mode on the CPU."""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_checks import Check
from benchmarks.gpu_checks.bits import C3, KEY, STEP, Case, compared
from benchmarks.gpu_checks.device import Cpu
from rng.stream import Stream
from rng.torch import Dropout, DropoutState, dropout, fill

ROWS, COLUMNS, P, SEED = 24, 333, 0.3, 42


def checks(device: Cpu, n: int) -> Iterator[Check]:
    """Yield all checks; `n`: numbers of one fill."""
    yield compared("graph: replay k is step k, after seeks too", _replays(device))
    yield compared("graph: a module of two layers in training", _training(device))
    yield compared("graph: fills", _fills(device, n))
    yield compared("streams: fills and dropout side by side", _streams(device, n))


def _x() -> torch.Tensor:
    return torch.linspace(-2, 2, ROWS * COLUMNS).reshape(ROWS, COLUMNS)


def _eager(step: int, first_row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dropout and its gradient of one step, on the CPU."""
    x = _x().requires_grad_()
    out = dropout(x, P, DropoutState(SEED, step=step, first_row=first_row), "a")
    (grad,) = torch.autograd.grad(out, x, _x())
    return out.detach(), grad


def _replays(device: Cpu) -> Iterator[Case]:
    state = DropoutState(SEED, device.name)
    x, weight = _x().to(device.name).requires_grad_(), _x().to(device.name)
    out, grad = torch.empty_like(weight), torch.empty_like(weight)

    def step() -> None:
        y = dropout(x, P, state, "a")
        grad.copy_(torch.autograd.grad(y, x, weight)[0])
        out.copy_(y.detach())
        state.advance()

    replay = device.capture(step)
    # Where to go before these replays: (step, first row) -> replays from there.
    for at, row, count in ((0, 0, 5), (17, 0, 3), ((1 << 32) - 2, 0, 2), (3, 1 << 30, 2)):
        state.seek(at, row)
        for k in range(at, at + count):
            replay()
            device.wait()
            want = _eager(k, row)
            yield ("forward", k, row), out, want[0]
            yield ("backward", k, row), grad, want[1]
        expected = (at + count) & 0xFFFFFFFF
        yield ("step", at), state.cell[:1].cpu() & 0xFFFFFFFF, torch.tensor([expected])
    # From another tensor on the device, as a training loop that is itself a graph would do.
    state.seek(torch.tensor([9], device=device.name), 0)
    replay()
    device.wait()
    yield ("seek by a tensor",), out, _eager(9, 0)[0]


def _training(device: Cpu) -> Iterator[Case]:
    """Yield the masks of two layers in a captured forward and backward pass."""
    state = DropoutState(SEED, device.name)
    one, two = Dropout(P, state, "one"), Dropout(0.5, state, "two")
    x = torch.ones(ROWS, COLUMNS, device=device.name, requires_grad=True)
    grad = torch.zeros(ROWS, COLUMNS, device=device.name)

    def step() -> None:
        y = two(one(x))
        grad.copy_(torch.autograd.grad(y, x, torch.ones_like(y))[0])
        state.advance()

    replay = device.capture(step)
    state.seek(100)
    for k in range(100, 104):
        replay()
        device.wait()
        host = DropoutState(SEED, step=k)
        plain = torch.ones(ROWS, COLUMNS)
        yield k, grad, dropout(dropout(plain, 0.5, host, "two"), P, host, "one")


def _fills(device: Cpu, n: int) -> Iterator[Case]:
    out, half = torch.empty(n, device=device.name), torch.empty(n, device=device.name).bfloat16()

    def step() -> None:
        fill.normal_(out, Stream(KEY, C3, STEP))
        fill.uniform_(half, Stream(KEY, C3, STEP), -1.0, 2.0)

    replay = device.capture(step)
    out.zero_()
    half.zero_()
    replay()
    device.wait()
    yield "normal", out, fill.normal_(torch.empty(n), Stream(KEY, C3, STEP))
    want = torch.empty(n, dtype=torch.bfloat16)
    yield "uniform", half, fill.uniform_(want, Stream(KEY, C3, STEP), -1.0, 2.0)


def _streams(device: Cpu, n: int) -> Iterator[Case]:
    """Yield what several streams made at the same time, on memory of their own."""
    outs = [torch.empty(n, device=device.name) for _ in range(4)]
    device.wait()
    state = DropoutState(SEED, device.name)
    x = torch.ones(n, device=device.name)
    for i, out in enumerate(outs):
        with device.stream():
            device.busy(1e-3 * (i + 1))
            fill.normal_(out, Stream(KEY, C3, i))
            out.mul_(dropout(x, 0.5, state, f"layer {i}"))
    device.wait()
    host = DropoutState(SEED)
    for i, out in enumerate(outs):
        want = fill.normal_(torch.empty(n), Stream(KEY, C3, i))
        yield i, out, want * dropout(torch.ones(n), 0.5, host, f"layer {i}")


def compiled(device: Cpu) -> Iterator[Check]:
    """Yield torch.compile with inductor: equal to eager mode, backward too."""

    def cases() -> Iterator[Case]:
        state = DropoutState(SEED, device.name)

        def step(x: torch.Tensor) -> Any:
            return dropout(dropout(x * 1.1, P, state, "a"), 0.5, state, "b") * 2 + x

        graph = torch.compile(step, fullgraph=True)
        for k in range(3):
            found = []
            for function in (step, graph):
                x = _x().to(device.name).requires_grad_()
                out = function(x)
                out.backward(torch.ones_like(out))
                found.append((out, x.grad))
            yield ("forward", k), found[1][0], found[0][0]
            yield ("backward", k), found[1][1], found[0][1]
            state.advance()

    yield compared("compiled dropout equals eager dropout", cases())
