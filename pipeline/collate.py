"""Samples to batches, where the slots of the arena are not used.

`stack` is the default of a batch; `as_is` that of a loader without batches (`batch_size=None`).
"""

import contextlib
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from pipeline.errors import SampleError
from pipeline.merge import UnlikeOthers, merge
from pipeline.tree import Structure, mapping_like, sequence_like


def stack(samples: Sequence[Any]) -> Any:
    """Return samples as one batch: arrays and numbers as [n, …], text as lists of n.

    Raises:
        UnlikeOthers: a sample does not fit the first.
        SampleError: no batch can hold it.
    """
    if not samples:
        return []
    structure: Structure | None = None
    parts = []
    with contextlib.suppress(SampleError):  # what is wrong is told by the place in the batch
        for sample in samples:
            structure = structure or Structure(sample)
            parts.append(structure.take_apart(sample))
    if structure is None or len(parts) < len(samples):
        return _merged(samples)
    arrays = [np.stack([fixed[k] for fixed, _ in parts]) for k in range(len(structure.fields))]
    beside = [[text[k] for _, text in parts] for k in range(len(structure.beside))]
    return structure.build(arrays, beside)


def _merged(samples: Sequence[Any]) -> Any:
    """Return samples unlike each other as a batch; where only the first does not fit, name that."""
    try:
        return merge(samples)
    except UnlikeOthers as e:
        error = e
    if error.place == 1 and len(samples) > 2:
        with contextlib.suppress(UnlikeOthers):
            merge(samples[1:])
            try:
                merge([samples[1], samples[0]])
            except UnlikeOthers as first:
                error, error.place = first, 0
    raise error


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
    if isinstance(node, MutableSequence) and not isinstance(node, bytearray):
        return sequence_like(node)([convert(v, array, every=every) for v in node])
    return array(node) if every else node


def as_torchs(node: Any, *, stacked: bool) -> Any:
    """Return a tree in the containers that torch's `default_collate` and `default_convert` give.

    Args:
        node: it.
        stacked: it is a batch, in which text at one place of the samples is a list; torch's has a
            tuple there within sequences.
    """
    if isinstance(node, Mapping):  # a new one: the sample may be the dataset's own
        return mapping_like(node)({k: as_torchs(v, stacked=stacked) for k, v in node.items()})
    if type(node) in (tuple, list) or (isinstance(node, tuple) and hasattr(node, "_fields")):
        values = [
            tuple(v) if stacked and _is_text(v) else as_torchs(v, stacked=stacked) for v in node
        ]
        return type(node)._make(values) if hasattr(node, "_fields") else values
    if isinstance(node, Sequence) and not isinstance(node, str | bytes | MutableSequence):
        return [as_torchs(v, stacked=stacked) for v in node]  # range and the like
    return node


def _is_text(node: Any) -> bool:
    """Return whether a part of a batch is the text of its samples."""
    return (
        type(node) is list and bool(node) and (node[0] is None or isinstance(node[0], str | bytes))
    )
