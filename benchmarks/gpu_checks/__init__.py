"""The parts of `gpu_check.py`. Each has `checks(device)` or `rows(device)`, and runs on the CPU as well.

On the CPU a graph is a function that is called again and a stream is nothing, so that a test without a device runs
every line but those few of `device.py`; the Triton kernels run in Triton's interpreter there.
"""

from typing import NamedTuple


class Check(NamedTuple):
    """What was looked at, whether it holds, and what was seen."""

    name: str
    ok: bool
    seen: str = ""
