"""Speed: of each kernel as a share of the copy bandwidth measured in the same run, beside torch and cupy.

A share counts the bytes that must move (written, and read where there is an input) against those that a copy of a
tensor of the same size reads and writes. Times are of the device (CUDA graphs of 20 calls), not of the launches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu_checks.bits import C3, KEY, STEP
from benchmarks.gpu_checks.device import Cpu
from rng.stream import Stream
from rng.torch import DropoutState, dropout, dropout_mask, fill

P = 0.1


@dataclass
class Row:
    """One thing to do, ours and others' ways to do it."""

    name: str
    nbytes: float  # that must move
    ours: Callable[[], Any] | None
    others: dict[str, Callable[[], Any]] = field(default_factory=dict)
    share: float = 0.0  # of the copy bandwidth that is aimed at
    most_us: float = 0.0  # that it may take at 2**25 elements
    ascend_ms: float = 0.0  # Tech-Renaissance's blog, Ascend 910, 32 M elements


def rows(device: Cpu, n: int) -> list[Row]:
    """Return what is measured, for n elements (a multiple of 8192)."""
    stream, state = Stream(KEY, C3, STEP), DropoutState(7, device.name)
    f, b = (torch.zeros(n, dtype=t, device=device.name) for t in (torch.float32, torch.uint8))
    half = {t: torch.zeros(n, dtype=t, device=device.name) for t in (torch.bfloat16, torch.float16)}
    made = [
        Row("uniform float32", 4 * n, lambda: fill.uniform_(f, stream),
            {"torch": lambda: f.uniform_()}, share=0.85, ascend_ms=0.5),
        Row("uniform bfloat16", 2 * n, lambda: fill.uniform_(half[torch.bfloat16], stream),
            {"torch": lambda: half[torch.bfloat16].uniform_()}),
        Row("normal float32", 4 * n, lambda: fill.normal_(f, stream),
            {"torch": lambda: f.normal_()}, share=0.60, ascend_ms=0.8),
        Row("truncated normal float32", 4 * n, lambda: fill.truncated_normal_(f, stream)),
        Row("Bernoulli uint8", n, lambda: fill.bernoulli_(b, stream, P),
            {"torch": lambda: b.bernoulli_(P)}, ascend_ms=0.4),
        Row("dropout mask, 1 bit", n / 8, lambda: dropout_mask((n // 4096, 4096), P, state, "a"),
            most_us=20.0, ascend_ms=0.3),
        Row("Gumbel (not on the device yet)", 4 * n, None, ascend_ms=1.2),
    ]  # fmt: skip
    for x, share in ((f, 0.85), (half[torch.bfloat16], 0.85), (half[torch.float16], 0.0)):
        made.append(_dropout(x.view(-1, 4096), share, state))
    return made + _cupy(device, n)


def _dropout(x: torch.Tensor, share: float, state: DropoutState) -> Row:
    """Return dropout forward: the backward pass is the same kernel."""
    name = f"dropout {str(x.dtype).removeprefix('torch.')}"
    others = {"torch": lambda: torch.native_dropout(x, P, True)}
    nbytes = 2.0 * x.numel() * x.element_size()
    return Row(name, nbytes, lambda: dropout(x, P, state, "a"), others, share)


def _cupy(device: Cpu, n: int) -> list[Row]:
    """Return cupy's own rows where it is installed: it keeps its own streams, so it is timed eagerly."""
    if device.name != "cuda":
        return []
    try:
        import cupy
    except ImportError:
        return []
    source = cupy.random.Generator(cupy.random.Philox4x3210(7))
    calls = {
        "uniform float32": lambda: source.random(n, dtype=cupy.float32),
        "normal float32": lambda: source.standard_normal(n, dtype=cupy.float32),
    }
    return [Row(f"{name}, cupy", 4 * n, None, {"cupy": call}) for name, call in calls.items()]


def copy_bandwidth(device: Cpu, n: int, rounds: int) -> float:
    """Return bytes per second, read and written, of a copy of n float32."""
    a, b = (torch.zeros(n, device=device.name) for _ in range(2))
    return 8 * n / device.seconds(lambda: b.copy_(a), rounds)


def measured(device: Cpu, n: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield one dict for each row; the first is the copy."""
    bandwidth = copy_bandwidth(device, n, rounds)
    yield {"row": "copy float32", "GB/s": round(bandwidth / 1e9, 1)}
    for row in rows(device, n):
        result: dict[str, Any] = {"row": row.name}
        if row.ours is not None:
            seconds = device.seconds(row.ours, rounds)
            share = row.nbytes / seconds / bandwidth
            result |= {"us": round(seconds * 1e6, 2), "share": round(share, 3)}
            result["eager_us"] = round(device.eager_seconds(row.ours, rounds) * 1e6, 2)
            if row.share:
                result |= {"aim": f">= {row.share:.0%} of copy", "met": share >= row.share}
            if row.most_us:
                most = row.most_us * n / (1 << 25)
                result |= {"aim": f"<= {most:.1f} us", "met": seconds * 1e6 <= most}
        for who, call in row.others.items():
            clock = device.eager_seconds if who == "cupy" else device.seconds
            result[f"{who}_us"] = round(clock(call, rounds) * 1e6, 2)
        if row.ascend_ms:
            result["ascend_us"] = row.ascend_ms * 1e3
        yield result


def line(result: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    if "GB/s" in result:
        return f"{result['row']:32} {result['GB/s']:>10} GB/s (read and written)"
    cells = [f"{result['row']:32}"]
    for key, width in (("us", 10), ("share", 8), ("eager_us", 10), ("torch_us", 10), ("cupy_us", 10),
                       ("ascend_us", 10)):  # fmt: skip
        value = result.get(key, "")
        cells.append(f"{f'{value:.0%}' if key == 'share' and value != '' else value:>{width}}")
    if "aim" in result:
        cells.append(f"  {result['aim']}: {'met' if result['met'] else 'NOT met'}")
    return " ".join(cells)


HEAD = " ".join(
    [f"{'':32}", f"{'ours us':>10}", f"{'of copy':>8}", f"{'eager us':>10}", f"{'torch us':>10}",
     f"{'cupy us':>10}", f"{'Ascend us':>10}"]
)  # fmt: skip
