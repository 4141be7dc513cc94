"""Samples that are unlike each other as one batch, by the rules of torch's `default_collate`.

    containers   the first sample's; a dict's keys are the first's, sequences need one length
    arrays       of one shape; dtypes are promoted as torch does: floats before ints, whatever their size
    numbers      after a float: float64; else promoted, a Python float among ints being a float32
    text         after text: a list of whatever there is

Each batch is merged by itself, so what a batch is depends on its samples alone.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from pipeline.errors import SampleError
from pipeline.tree import leaf, mapping_like, sequence_like, tensor_of, torchs_name

_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
# What torch makes of Python's numbers where it infers a dtype.
_INFERRED = {bool: np.bool_, int: np.int64, float: np.float32, complex: np.complex64}


class UnlikeOthers(SampleError):
    """One sample of a batch does not fit the first one.

    Attributes:
        place: which, counted from the batch's first.
    """

    place = 0
    also: type[Exception] = RuntimeError  # what torch raises


class MissingKey(UnlikeOthers):
    """A dict of a batch has not every key of the first one."""

    also: type[Exception] = KeyError


def merge(nodes: Sequence[Any], name: str = "") -> Any:
    """Return the nodes at one place of all samples as one.

    Args:
        nodes: one for each sample, at least one.
        name: of the place, for messages.

    Raises:
        UnlikeOthers: one that does not fit the first.
        SampleError: a leaf that no batch can hold.
    """
    first = nodes[0]
    below = f"{name}." if name else ""
    if isinstance(first, Mapping):
        return _mappings(nodes, first, name)
    if first is None or isinstance(first, str | bytes):
        return _texts(nodes, first, name)
    if is_dataclass(first) and not isinstance(first, type):
        for place, node in enumerate(nodes):
            if type(node) is not type(first):
                raise _unlike(place, name, node, f"a {type(first).__name__}")
        names = [f.name for f in fields(first) if f.init]
        return type(first)(**{k: merge([getattr(n, k) for n in nodes], below + k) for k in names})
    if isinstance(first, Sequence):
        for place, node in enumerate(nodes):
            if not isinstance(node, Sequence) or isinstance(node, str | bytes):
                raise _unlike(place, name, node, f"a {type(first).__name__}")
            if len(node) != len(first):
                raise _unlike(
                    place, name, node,
                    f"a {type(first).__name__} of {len(first)}: each element in list of batch "
                    "should be of equal size",
                )  # fmt: skip
        keys = getattr(first, "_fields", range(len(first)))
        columns = zip(*nodes, strict=True)
        values = [merge(column, f"{below}{k}") for k, column in zip(keys, columns, strict=True)]
        if isinstance(first, tuple):
            make: Any = type(first)._make if hasattr(first, "_fields") else tuple  # type: ignore[attr-defined]
            return make(values)
        return values if isinstance(first, list) else sequence_like(first)(values)
    return _stack(nodes, name)


def _mappings(nodes: Sequence[Any], first: Mapping[Any, Any], name: str) -> Any:
    below = f"{name}." if name else ""
    for place, node in enumerate(nodes):
        if not isinstance(node, Mapping):
            raise _unlike(place, name, node, f"a {type(first).__name__}")
        for key in first:
            if key not in node:
                error = MissingKey(
                    f"{name or 'the sample'} has no key {key!r}, which the batch's first sample has; "
                    f"it has {', '.join(map(repr, node))}",
                    do="give every sample the same keys, or a collate_fn",
                )
                error.place = place
                raise error
    return mapping_like(first)({k: merge([n[k] for n in nodes], f"{below}{k}") for k in first})


def _texts(nodes: Sequence[Any], first: str | bytes | None, name: str) -> list[Any]:
    kinds = str | bytes | None if first is None else str | bytes | None | bool | int | float
    for place, node in enumerate(nodes):
        if not isinstance(node, kinds):
            raise _unlike(place, name, node, "None" if first is None else "text")
    return list(nodes)


def _stack(nodes: Sequence[Any], name: str) -> np.ndarray:
    arrays = []
    for place, node in enumerate(nodes):
        try:
            arrays.append(leaf(node, name))
        except SampleError as e:
            unlike = UnlikeOthers(e.what, where=e.where, do=e.do)
            unlike.place = place
            raise unlike from e
        if arrays[-1].shape != arrays[0].shape:
            raise _unlike(place, name, arrays[-1], _told(arrays[0]))
    if all(a.dtype == arrays[0].dtype for a in arrays):
        return np.stack(arrays)
    wanted, numbers = _wanted(nodes, arrays)
    if wanted is None:
        place = next(k for k, a in enumerate(arrays) if a.dtype != arrays[0].dtype)
        raise _unlike(
            place, name, arrays[place], f"{_told(arrays[0])}, and neither holds the other"
        )
    if torchs_name(wanted) is not None:
        return _stacked_by_torch(arrays)
    if numbers and wanted.kind == "f":  # torch reads numbers as doubles first
        arrays = [a.astype(np.float64) for a in arrays]
    return np.stack([a.astype(wanted, copy=False) for a in arrays])


def _wanted(
    nodes: Sequence[Any], arrays: Sequence[np.ndarray]
) -> tuple[np.dtype[Any] | None, bool]:
    """Return (the dtype of the batch, or None if there is none; whether these are numbers)."""
    numbers = not any(
        hasattr(node, "__array__") and not isinstance(node, np.generic) for node in nodes
    )
    if type(nodes[0]) is float:
        real = all(a.dtype.kind in "biuf" for a in arrays)
        return (np.dtype(np.float64) if real else None), numbers
    dtypes = [
        np.dtype(_INFERRED[type(node)])
        if type(node) in _INFERRED and a.dtype != np.uint64
        else a.dtype
        for node, a in zip(nodes, arrays, strict=True)
    ]
    return promoted(dtypes), numbers


def promoted(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the dtype that holds elements of all, as torch promotes; None if there is none.

    >>> promoted([np.dtype("i8"), np.dtype("f2")])
    dtype('float16')
    """
    torchs = next((d for d in dtypes if torchs_name(d) is not None), None)
    if torchs is not None:
        good = all(torchs_name(d) is not None or d.kind in _RANKS for d in dtypes)
        return torchs if good else None
    if not all(d.kind in _RANKS for d in dtypes):
        return None
    rank = max(_RANKS[d.kind] for d in dtypes)
    if rank == 3:  # complex numbers take the precision of floats
        return np.result_type(*(d for d in dtypes if d.kind in "fc"))
    found = np.result_type(*(d for d in dtypes if _RANKS[d.kind] == rank))
    return found if _RANKS[found.kind] == rank else None  # int64 and uint64: no int holds both


def _stacked_by_torch(arrays: Sequence[np.ndarray]) -> np.ndarray:
    torch: Any = sys.modules["torch"]
    tensors = [tensor_of(torch, np.array(array)) for array in arrays]
    return leaf(torch.stack(tensors), "")


def _told(array: np.ndarray) -> str:
    return f"{torchs_name(array.dtype) or array.dtype}{list(array.shape)}"


def _unlike(place: int, name: str, found: Any, first: str) -> UnlikeOthers:
    kind = _told(found) if isinstance(found, np.ndarray) else f"of type {type(found).__name__}"
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        kind += f" with {len(found)} elements"
    error = UnlikeOthers(
        f"field {name or 'sample'!r} is {kind}, another sample of the batch has {first}",
        do="return arrays or numbers of one shape and type for every sample (resize or pad images of "
        "different sizes), or give a collate_fn that makes batches of them",
    )
    error.place = place
    return error
