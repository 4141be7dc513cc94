"""Batches as what the training code wants: numpy arrays, torch tensors or jax arrays, uncopied."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.collate import convert
from pipeline.errors import ConfigError
from pipeline.tree import tensor_of, torchs_name


def converter(output: str) -> Callable[[np.ndarray], Any]:
    """Return what makes a leaf of a batch out of an array.

    Args:
        output: "numpy", "torch" or "jax".

    Raises:
        ConfigError: that library is not installed.
    """
    if output == "torch":
        return _torch_tensor(_library("torch", "PyTorch", f"{output=}"))
    if output == "jax":
        return _jax_array(_library("jax", "JAX", f"{output=}"))
    return _same


def _same(array: np.ndarray) -> Any:
    return array


def _torch_tensor(torch: Any) -> Callable[[np.ndarray], Any]:
    def tensor(array: np.ndarray) -> Any:
        try:
            return tensor_of(torch, array)
        except TypeError as e:
            raise ConfigError(
                f"a field of dtype {array.dtype} cannot become a torch tensor",
                do="return numbers of a dtype that torch has, or str for text",
            ) from e

    return tensor


def _jax_array(jax: Any) -> Callable[[np.ndarray], Any]:
    def array_of(array: np.ndarray) -> Any:
        check_dtype(array.dtype, "jax")
        return jax.numpy.from_dlpack(array)

    return array_of


def sample_converter(output: str) -> Callable[[Any], Any]:
    """Return what makes a leaf of a sample that is not batched: as torch's `default_convert`, which
    makes tensors of numpy's numbers too, and leaves words and objects alone.
    """
    convert_array = converter(output)
    if output != "torch":
        return convert_array

    def leaf(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value if value.dtype.kind in "SUO" else convert_array(value)
        if isinstance(value, np.number | np.bool_):
            return convert_array(np.asarray(value))
        return value

    return leaf


def check_dtype(dtype: np.dtype[Any], output: str) -> None:
    """Refuse a field that only torch understands where the output is not torch's.

    Raises:
        ConfigError: it is one.
    """
    name = torchs_name(dtype)
    if name is not None and output != "torch":
        raise ConfigError(
            f"a field is of dtype torch.{name}, which {output} arrays do not have here",
            do='use output="torch", or return tensor.float()',
            field="output",
        )


def torch_for_pinning() -> Any:
    """Return torch.

    Raises:
        ConfigError: it is not installed.
    """
    return _library("torch", "PyTorch", "pin_memory=True")


def check_pinning() -> None:
    """Warn, as torch does, where memory cannot be page-locked because there is no accelerator."""
    torch = torch_for_pinning()
    if not torch.accelerator.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned "
            "memory won't be used.",
            stacklevel=2,
        )


def pinned(batch: Any) -> Any:
    """Return a batch with its tensors, and what has a `pin_memory` method, in page-locked memory."""
    torch = torch_for_pinning()
    if not torch.accelerator.is_available():
        return batch
    own = getattr(batch, "pin_memory", None)
    if callable(own):
        return own()

    def pin(leaf: Any) -> Any:
        method = getattr(leaf, "pin_memory", None)
        return method() if callable(method) else leaf

    return convert(batch, pin, every=True)


def _library(name: str, title: str, wanted: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ConfigError(
            f"{wanted} needs {title}, which is not installed",
            do=f"pip install {name}, or do without {wanted}",
        ) from e
