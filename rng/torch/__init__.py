"""The numbers of `rng` on torch's tensors: the same bits on every device, eager or compiled.

    every value = the value of the numba functions of `rng` at the same address

Needs torch (`pip install samebatch[torch]`); `import rng` alone does not import it. On CUDA and ROCm the
kernels of `rng.gpu` are used where Triton is installed; it is imported at the first call that needs it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rng.torch import deterministic, renaissance, seeding, words
    from rng.torch.seeding import manual_seed

# name -> the module it is in; a module's own name stands for the module.
_LAZY = {
    "deterministic": "deterministic",
    "manual_seed": "seeding",
    "renaissance": "renaissance",
    "seeding": "seeding",
    "words": "words",
}

__all__ = ["deterministic", "manual_seed", "renaissance", "seeding", "words"]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'rng.torch' has no attribute {name!r}")
    module = importlib.import_module(f"rng.torch.{_LAZY[name]}")
    return module if _LAZY[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
