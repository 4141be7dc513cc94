"""The numbers of `rng` on torch's tensors: the same bits on every device, eager or compiled.

    every value = the value of the numba functions of `rng` at the same address

Needs torch (`pip install samebatch[torch]`); `import rng` alone does not import it. On CUDA and ROCm the
kernels of `rng.gpu` are used where Triton is installed; it is imported at the first call that needs it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rng.torch import deterministic, fill, init, renaissance, seeding, words
    from rng.torch.fill import bernoulli_, normal_, truncated_normal_, uniform_, words_
    from rng.torch.layers import Dropout, bind
    from rng.torch.masks import dropout, dropout_mask
    from rng.torch.seeding import manual_seed
    from rng.torch.state import DropoutState

# name -> the module it is in; a module's own name stands for the module.
_LAZY = {
    "Dropout": "layers",
    "DropoutState": "state",
    "bernoulli_": "fill",
    "bind": "layers",
    "deterministic": "deterministic",
    "dropout": "masks",
    "dropout_mask": "masks",
    "fill": "fill",
    "init": "init",
    "manual_seed": "seeding",
    "normal_": "fill",
    "renaissance": "renaissance",
    "seeding": "seeding",
    "truncated_normal_": "fill",
    "uniform_": "fill",
    "words": "words",
    "words_": "fill",
}

__all__ = [
    "Dropout",
    "DropoutState",
    "bernoulli_",
    "bind",
    "deterministic",
    "dropout",
    "dropout_mask",
    "fill",
    "init",
    "manual_seed",
    "normal_",
    "renaissance",
    "seeding",
    "truncated_normal_",
    "uniform_",
    "words",
    "words_",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'rng.torch' has no attribute {name!r}")
    module = importlib.import_module(f"rng.torch.{_LAZY[name]}")
    return module if _LAZY[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
