"""rng/gpu.py in Triton's interpreter, which must be chosen before Triton is imported."""

import importlib.util
import os
import sys

import pytest

collect_ignore = ["compile_ptx.py"]  # a script; it imports rng.gpu
_READY = (
    importlib.util.find_spec("triton") is not None and importlib.util.find_spec("torch") is not None
)
if _READY:
    import torch

    # Where there is a device, its own kernels must stay usable: `make gpu-check` checks them there.
    _READY = "triton" not in sys.modules and not torch.cuda.is_available()
if _READY:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # noqa: F401

    del os.environ["TRITON_INTERPRET"]


@pytest.fixture
def gpu(monkeypatch):
    """rng.gpu in Triton's interpreter, with a cast to bfloat16 that rounds as devices do."""
    if not _READY:
        pytest.skip("needs torch and Triton, no CUDA device, and to be the first to import Triton")
    import ml_dtypes
    import numpy as np
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read at each decoration and cast
    from rng import gpu

    cast = interpreter._convert_float

    def convert(data, source, target, mode):
        # The interpreter's own truncates, or rounds halves up; PTX's cvt.rn rounds halves to even.
        if str(target) == "bf16" and str(source) == "fp32":
            return data.astype(ml_dtypes.bfloat16).view(np.uint16)
        return cast(data, source, target, mode)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
    return gpu
