"""Samples as trees of fixed fields: dicts, lists, tuples, named tuples, dataclasses of arrays.

`Structure.of(sample)` remembers the containers; `leaves` takes a sample apart, `build` puts batched
leaves together in the same containers. Numbers become arrays of one element a sample: bool,
int → int64, float → float64; numpy scalars and arrays keep their dtype.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np

from pipeline.errors import SampleError
from pipeline.transfer.layout import Field

_INT, _FLOAT = np.dtype(np.int64), np.dtype(np.float64)
_DO = (
    "return arrays or numbers of one shape and type for every sample (resize or pad images of "
    "different sizes; encode text as numbers)"
)


class Structure:
    """The containers of a sample and its fixed fields.

    Attributes:
        fields: one for each leaf, in order.
    """

    def __init__(self, sample: Any) -> None:
        leaves: list[tuple[str, np.ndarray]] = []
        self._build = _visit(sample, "", leaves)
        self.fields = tuple(Field(name or "sample", a.shape, a.dtype) for name, a in leaves)
        flat = type(sample) in (tuple, list) and len(sample) == len(leaves)
        self._flat: type | None = type(sample) if flat else None

    def leaves(self, sample: Any) -> list[np.ndarray]:
        """Return the leaves of another sample, checked against the fields.

        Raises:
            SampleError: another container, shape or dtype than the first sample's.
        """
        if type(sample) is self._flat:
            quick = self._flat_leaves(sample)
            if quick is not None:
                return quick
        found: list[tuple[str, np.ndarray]] = []
        _visit(sample, "", found)
        if len(found) != len(self.fields):
            raise SampleError(
                f"a sample has {len(found)} fields, the first one had {len(self.fields)} "
                f"({', '.join(f.name for f in self.fields)})",
                do=_DO,
            )
        names = {one.name: place for place, one in enumerate(self.fields)}
        if len(names) == len(found) == len(names.keys() & {name for name, _ in found}):
            found.sort(key=lambda leaf: names[leaf[0]])  # a dict with its keys in another order
        for (name, array), one in zip(found, self.fields, strict=True):
            if (
                array.shape != one.shape
                or array.dtype != one.dtype
                or (name or "sample") != one.name
            ):
                raise SampleError(
                    f"field {name or 'sample'!r} is {array.dtype}{list(array.shape)}, "
                    f"the first sample's {one.name!r} was {one.dtype}{list(one.shape)}",
                    do=_DO,
                )
        return [array for _, array in found]

    def _flat_leaves(self, sample: Any) -> list[np.ndarray] | None:
        """Return the leaves of a flat sample with the very fields of the first, the common case."""
        if len(sample) != len(self.fields):
            return None
        leaves = []
        for value, one in zip(sample, self.fields, strict=True):
            kind = type(value)
            if kind is np.ndarray:
                if value.dtype != one.dtype or value.shape != one.shape:
                    return None
                leaves.append(value)
                continue
            if one.shape or not (
                (kind is int and one.dtype == _INT and -(2**63) <= value < 2**63)
                or (kind is float and one.dtype == _FLOAT)
            ):
                return None
            leaves.append(np.asarray(value, one.dtype))
        return leaves

    def build(self, arrays: list[Any]) -> Any:
        """Return the containers of a sample around batched arrays, one for each field."""
        return self._build(list(arrays))


Builder = Callable[[list[Any]], Any]


def _visit(node: Any, name: str, leaves: list[tuple[str, np.ndarray]]) -> Builder:
    """Append the leaves below `node`; return what rebuilds it, taking leaves from the front."""
    below = f"{name}." if name else ""
    if isinstance(node, Mapping):
        keys = list(node)
        parts = [_visit(node[k], f"{below}{k}", leaves) for k in keys]
        return _Build(_mapping(node), keys, parts)
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        parts = [_visit(v, f"{below}{k}", leaves) for k, v in zip(node._fields, node, strict=True)]
        make: Callable[..., Any] = type(node)._make  # type: ignore[attr-defined]
        return _Build(make, None, parts)
    if isinstance(node, tuple | list):
        parts = [_visit(v, f"{below}{i}", leaves) for i, v in enumerate(node)]
        return _Build(tuple if isinstance(node, tuple) else list, None, parts)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [f.name for f in dataclasses.fields(node) if f.init]
        parts = [_visit(getattr(node, k), f"{below}{k}", leaves) for k in names]
        return _Build(_Dataclass(type(node)), names, parts)
    leaves.append((name, _leaf(node, name)))
    return _first


class _Build:
    """Picklable: structures travel to the workers."""

    def __init__(self, make: Callable[..., Any], keys: list[Any] | None, parts: list[Builder]):
        self.make, self.keys, self.parts = make, keys, parts

    def __call__(self, arrays: list[Any]) -> Any:
        values = [part(arrays) for part in self.parts]
        if self.keys is None:
            return self.make(values)
        return self.make(dict(zip(self.keys, values, strict=True)))


class _Dataclass:
    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __call__(self, values: dict[str, Any]) -> Any:
        return self.kind(**values)


def _first(arrays: list[Any]) -> Any:
    return arrays.pop(0)


def _mapping(node: Mapping[Any, Any]) -> Callable[..., Any]:
    if type(node) is dict:
        return dict
    return _Like(node) if isinstance(node, MutableMapping) else type(node)


class _Like:
    """Makes mappings of the user's kind, which may need more than their items (defaultdict)."""

    def __init__(self, node: MutableMapping[Any, Any]) -> None:
        self.empty = copy.copy(node)
        self.empty.clear()

    def __call__(self, values: dict[Any, Any]) -> MutableMapping[Any, Any]:
        made = copy.copy(self.empty)
        made.update(values)
        return made


def _leaf(node: Any, name: str) -> np.ndarray:
    if isinstance(node, np.ma.MaskedArray):
        raise SampleError(
            f"field {name or 'sample'!r} is a masked array, whose mask would be lost",
            do="return data and mask as two fields: array.data, array.mask",
        )
    if isinstance(node, np.ndarray):
        array = node
    elif isinstance(node, bool | int | float | complex | np.generic):
        try:
            array = np.asarray(node)
        except OverflowError:
            array = np.asarray(None)
    elif hasattr(node, "__array__") and not isinstance(node, type):
        array = np.asarray(node)
    else:
        array = np.asarray(None)
    if array.dtype.hasobject or array.dtype.kind not in "biufcSUVMm":
        raise SampleError(
            f"field {name or 'sample'!r} is of type {type(node).__qualname__}, which has no fixed "
            f"size in bytes",
            do=_DO,
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array
