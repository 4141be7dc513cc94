"""What differs between a CUDA device and the CPU: graphs, streams, clocks."""

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_WARM = 3  # calls before a capture: kernels compile, caches fill


class Cpu:
    """The CPU, which has none of it."""

    name = "cpu"

    def capture(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Return what repeats a step."""
        for _ in range(_WARM):
            step()
        return step

    def stream(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context whose work runs beside what comes after it."""
        return contextlib.nullcontext()

    def wait(self) -> None:
        """Wait for everything."""

    def busy(self, seconds: float) -> None:
        """Occupy the current stream for about so long."""

    def seconds(self, call: Callable[[], Any], rounds: int) -> float:
        """Return the median seconds of a call."""
        call()
        found = []
        for _ in range(rounds):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    eager_seconds = seconds


class Cuda(Cpu):
    """The current CUDA device."""

    name = "cuda"
    _CALLS = 20  # in one graph, so that the time to start one does not count

    def __init__(self) -> None:
        self._cycles_per_s = 0.0

    def capture(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Return the replay of a CUDA graph of the step."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    @contextlib.contextmanager
    def stream(self) -> Any:
        """Run the block on a stream of its own, after what the current stream was given so far."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield

    def wait(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize()

    def busy(self, seconds: float) -> None:
        """Let a kernel spin for about so long."""
        if not self._cycles_per_s:
            cycles = 20_000_000
            took = self.eager_seconds(lambda: torch.cuda._sleep(cycles), 5)
            self._cycles_per_s = cycles / took
        torch.cuda._sleep(int(seconds * self._cycles_per_s))

    def seconds(self, call: Callable[[], Any], rounds: int) -> float:
        """Return the median seconds of a call, without the time that the host takes to launch it."""

        def several() -> None:
            for _ in range(self._CALLS):
                call()

        return self.eager_seconds(self.capture(several), rounds) / self._CALLS

    def eager_seconds(self, call: Callable[[], Any], rounds: int) -> float:
        """Return the median seconds of a call on the device, as it stands between two events."""
        call()
        found = []
        for _ in range(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(found)


def device_of(name: str) -> Cpu:
    """Return the device of a name."""
    return Cuda() if name == "cuda" else Cpu()
