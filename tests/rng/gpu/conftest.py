"""rng/gpu.py in Triton's interpreter, which must be chosen before Triton is imported."""

import importlib.util
import os
import sys

import pytest

collect_ignore = ["compile_ptx.py"]  # a script; it imports rng.gpu
_MISSING = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
_WHY = f"needs {' and '.join(_MISSING)}" if _MISSING else ""
_LATE = "triton" in sys.modules
if not _MISSING:
    import torch

    if torch.cuda.is_available():
        # Its own kernels must stay usable: `make gpu-check` checks them there.
        _WHY = "this machine has CUDA: make gpu-check"
if not _WHY and not _LATE:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # noqa: F401

    del os.environ["TRITON_INTERPRET"]


@pytest.fixture
def gpu(monkeypatch):
    """rng.gpu in Triton's interpreter, with a cast to bfloat16 that rounds as devices do."""
    if _WHY:
        pytest.skip(_WHY)
    import ml_dtypes
    import numpy as np
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read at each decoration and cast
    from rng import gpu

    # Errors and no skips: nobody would see that no kernel is tested.
    assert not _LATE, "something imported Triton before this directory was collected"
    assert type(gpu.fill_kernel).__name__ == "InterpretedFunction", "something imported rng.gpu"

    cast = interpreter._convert_float

    def convert(data, source, target, mode):
        # The interpreter's own truncates, or rounds halves up; PTX's cvt.rn rounds halves to even.
        if str(target) == "bf16" and str(source) == "fp32":
            return data.astype(ml_dtypes.bfloat16).view(np.uint16)
        return cast(data, source, target, mode)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
    return gpu
