"""Samples to batches, where the slots of the arena are not used.

`stack` is the default of a batch; `as_is` that of a loader without batches (`batch_size=None`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from pipeline.errors import SampleError
from pipeline.tree import Structure


class UnlikeOthers(SampleError):
    """One sample of a batch does not fit the first one.

    Attributes:
        place: which, counted from the batch's first.
    """

    place = 0


def stack(samples: Sequence[Any]) -> Any:
    """Return samples as one batch: arrays and numbers as [n, …], text as lists of n.

    Raises:
        UnlikeOthers: a sample has other containers, shapes or dtypes than the first.
    """
    parts = []
    structure: Structure | None = None
    for place, sample in enumerate(samples):
        try:
            structure = structure or Structure(sample)
            parts.append(structure.take_apart(sample))
        except SampleError as e:
            unlike = UnlikeOthers(e.what, where=e.where, do=e.do)
            unlike.place = place
            raise unlike from e
    if structure is None:
        return []
    arrays = [
        np.stack([fixed[k] for fixed, _ in parts]) if parts else np.empty((0, *one.shape))
        for k, one in enumerate(structure.fields)
    ]
    beside = [[text[k] for _, text in parts] for k in range(len(structure.beside))]
    return structure.build(arrays, beside)


def as_is(sample: Any) -> Any:
    """Return the sample."""
    return sample


def convert(node: Any, array: Callable[[Any], Any], *, every: bool = False) -> Any:
    """Return a tree with `array(leaf)` for each numpy array in it; containers are kept.

    Args:
        node: it.
        array: what to do with a leaf.
        every: do it with every leaf that is not text or None.
    """
    if isinstance(node, np.ndarray):
        return array(node)
    if node is None or isinstance(node, str | bytes):
        return node
    if isinstance(node, Mapping):
        changed = {k: convert(v, array, every=every) for k, v in node.items()}
        if type(node) is dict:
            return changed
        try:
            return type(node)(changed)  # type: ignore[call-arg]
        except TypeError:
            return changed
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*(convert(v, array, every=every) for v in node))
    if isinstance(node, list | tuple):
        return type(node)(convert(v, array, every=every) for v in node)
    if is_dataclass(node) and not isinstance(node, type):
        return replace(
            node,
            **{
                f.name: convert(getattr(node, f.name), array, every=every)
                for f in fields(node)
                if f.init
            },
        )
    return array(node) if every else node
