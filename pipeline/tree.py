"""Samples as trees: dicts, lists, tuples, named tuples, dataclasses of arrays, numbers and text.

    arrays, tensors, numbers   fixed fields, in the arena: batched to [n, …]
    str, bytes, None           beside them, of any length: batched to a list of n
    other sequences            a container: range, deque, bytearray (as in torch)

`Structure(sample)` remembers the containers; `take_apart` gives the leaves of another sample,
`build` puts batched leaves together in the same containers. Numbers become arrays of one element a
sample: bool, int → int64, float → float64; numpy scalars and arrays keep their dtype. A tensor of a
dtype that numpy has not (bfloat16) is a field of a dtype that carries torch's name, see `marked`.
"""

import copy
import dataclasses
import struct
import sys
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from pipeline.errors import SampleError
from pipeline.transfer.layout import Field

_INT, _FLOAT = np.dtype(np.int64), np.dtype(np.float64)
_DO = (
    "return arrays or numbers of one shape and type for every sample (resize or pad images of "
    "different sizes), or give a collate_fn that makes batches of them"
)
Text = str | bytes | None
_NUMBERS: dict[Any, type] = {_INT: int, _FLOAT: float}
_MOST = 1 << 63
_MARK = "torch."


class UnlikeFirst(SampleError):
    """A sample has other containers, shapes or dtypes than the first one that was seen."""


def marked(name: str, nbytes: int) -> np.dtype[Any]:
    """Return the dtype of raw elements that only torch understands: one unsigned int, named for it.

    >>> marked("bfloat16", 2)
    dtype([('torch.bfloat16', '<u2')])
    """
    raw = np.dtype(f"u{nbytes}") if nbytes <= 8 else np.dtype(f"V{nbytes}")
    return np.dtype([(_MARK + name, raw)])


def torchs_name(dtype: np.dtype[Any]) -> str | None:
    """Return the torch dtype that `marked` was given; None of any other dtype."""
    names = dtype.names
    if names is None or len(names) != 1 or not names[0].startswith(_MARK):
        return None
    return str(names[0]).removeprefix(_MARK)


def tensor_of(torch: Any, array: np.ndarray) -> Any:
    """Return an array as a tensor that shares its memory, also one of a `marked` dtype.

    Raises:
        TypeError: torch has no such dtype.
    """
    name = torchs_name(array.dtype)
    if name is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(array.dtype[0])).view(getattr(torch, name))


class Structure:
    """The containers of a sample and its leaves.

    Attributes:
        fields: one for each fixed leaf, in order.
        beside: names of the leaves of any length, in order.
    """

    def __init__(self, sample: Any) -> None:
        leaves = _Leaves()
        self._build = _visit(sample, "", leaves)
        self.fields = tuple(Field(name or "sample", a.shape, a.dtype) for name, a in leaves.fixed)
        self.beside = tuple(name or "sample" for name, _ in leaves.beside)
        # Nothing nested and no text: the leaves are the elements themselves.
        elements = [str(i) for i in range(len(sample))] if type(sample) in (tuple, list) else None
        flat = [name for name, _ in leaves.fixed] == elements and not leaves.beside
        self._flat: type | None = type(sample) if flat else None
        # What fits each leaf of a flat sample: see `_fits`.
        self._leaves: list[tuple[Any, tuple[int, ...], type | None]] = [
            (one.dtype, one.shape, None if one.shape else _NUMBERS.get(one.dtype))
            for one in self.fields
        ]

    @property
    def flat(self) -> bool:
        """Whether a sample is a tuple or list of arrays and numbers alone."""
        return self._flat is not None

    def put(self, sample: Any, buffers: Sequence[np.ndarray], s: int) -> bool:
        """Write a flat sample with the very fields of the first into slot `s`: the shortest way.

        Returns:
            False where it is not one; then `take_apart` tells what it is, and the slot is undefined.
        """
        given: Any = sample
        if type(sample) is not self._flat or len(given) != len(self._leaves):
            return False
        for value, buffer, (dtype, shape, number) in zip(
            given, buffers, self._leaves, strict=False
        ):
            if not _fits(value, dtype, shape, number):
                return False
            buffer[s] = value
        return True

    def take_apart(self, sample: Any) -> tuple[list[np.ndarray], list[Text]]:
        """Return the leaves of another sample, checked against the first one's.

        Returns:
            (one array for each field, one value for each leaf beside).

        Raises:
            UnlikeFirst: another container, shape or dtype than the first sample's.
            SampleError: a leaf that no batch can hold.
        """
        if type(sample) is self._flat:
            quick = self._flat_leaves(sample)
            if quick is not None:
                return quick, []
        leaves = _Leaves()
        _visit(sample, "", leaves)
        found = _ordered(leaves.fixed, [one.name for one in self.fields])
        beside = _ordered(leaves.beside, list(self.beside))
        self._check_kinds(leaves)
        if len(found) != len(self.fields) or len(beside) != len(self.beside):
            raise UnlikeFirst(
                f"a sample has {_count(found, beside)}, the first one had "
                f"{_count(self.fields, self.beside)} "
                f"({', '.join([*(f.name for f in self.fields), *self.beside])})",
                do=_DO,
            )
        for (name, array), one in zip(found, self.fields, strict=True):
            if (
                array.shape != one.shape
                or array.dtype != one.dtype
                or (name or "sample") != one.name
            ):
                raise UnlikeFirst(
                    f"field {name or 'sample'!r} is {array.dtype}{list(array.shape)}, "
                    f"the first sample's {one.name!r} was {one.dtype}{list(one.shape)}",
                    do=_DO,
                )
        for (name, _), wanted in zip(beside, self.beside, strict=True):
            if (name or "sample") != wanted:
                raise UnlikeFirst(
                    f"field {name or 'sample'!r} is text, the first sample's text was {wanted!r}",
                    do=_DO,
                )
        return [array for _, array in found], [value for _, value in beside]

    def _check_kinds(self, leaves: "_Leaves") -> None:
        """Refuse text where the first sample had a number or an array, and the other way round."""
        fields = {one.name: one for one in self.fields}
        for name, value in leaves.beside:
            one = fields.get(name or "sample")
            if one is not None:
                raise UnlikeFirst(
                    f"field {one.name!r} is of type {type(value).__name__}, which has no fixed "
                    f"size in bytes; the first sample's was {one.dtype}{list(one.shape)}",
                    do=_DO,
                )
        for name, array in leaves.fixed:
            if (name or "sample") in self.beside:
                raise UnlikeFirst(
                    f"field {name or 'sample'!r} is {array.dtype}{list(array.shape)}, the first "
                    f"sample's was text or None",
                    do=_DO,
                )

    def _flat_leaves(self, sample: Any) -> list[np.ndarray] | None:
        """Return the leaves of a flat sample with the very fields of the first, the common case."""
        if len(sample) != len(self._leaves):
            return None
        leaves = []
        for value, (dtype, shape, number) in zip(sample, self._leaves, strict=True):
            if not _fits(value, dtype, shape, number):
                return None
            leaves.append(value if type(value) is np.ndarray else np.asarray(value, dtype))
        return leaves

    def build(
        self, arrays: Sequence[Any], beside: Sequence[Any] = (), *, as_torch: bool = False
    ) -> Any:
        """Return the containers of a sample around batched leaves.

        Args:
            arrays: one for each field.
            beside: one list for each leaf beside them.
            as_torch: in the containers of torch's `default_collate`: lists instead of plain tuples,
                and text in a sequence as a tuple.
        """
        return self._build(_Leaves(list(arrays), list(beside), as_torch))


def _fits(value: Any, dtype: Any, shape: tuple[int, ...], number: type | None) -> bool:
    """Return whether a leaf is an array of a dtype and shape, or a number of the type that stands for it."""
    kind = type(value)
    if kind is np.ndarray:
        return bool(value.dtype == dtype and value.shape == shape)
    return kind is number and (kind is not int or -_MOST <= value < _MOST)


@dataclasses.dataclass
class _Leaves:
    fixed: list[Any] = dataclasses.field(default_factory=list)
    beside: list[Any] = dataclasses.field(default_factory=list)
    as_torch: bool = False


def _ordered(found: list[tuple[str, Any]], wanted: list[str]) -> list[tuple[str, Any]]:
    """Return named leaves in the wanted order, for a dict with its keys in another order."""
    names = {name: place for place, name in enumerate(wanted)}
    if len(names) == len(found) == len(names.keys() & {name or "sample" for name, _ in found}):
        return sorted(found, key=lambda leaf: names[leaf[0] or "sample"])
    return found


def _count(fixed: Sequence[Any], beside: Sequence[Any]) -> str:
    text = f" and {len(beside)} of text" if beside else ""
    return f"{len(fixed)} fields{text}"


def encode_text(values: Sequence[Text]) -> bytes:
    """Return text leaves of one sample as bytes: equal values, equal bytes."""
    parts = []
    for value in values:
        if value is None:
            parts.append(b"n")
            continue
        kind = b"s" if isinstance(value, str) else b"b"
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        parts.append(kind + _LENGTH.pack(len(raw)) + raw)
    return b"".join(parts)


def decode_text(data: bytes) -> list[Text]:
    """Return what `encode_text` was given."""
    values: list[Text] = []
    at = 0
    while at < len(data):
        kind = data[at : at + 1]
        at += 1
        if kind == b"n":
            values.append(None)
            continue
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        raw = data[at : at + length]
        at += length
        values.append(raw.decode("utf-8", "surrogatepass") if kind == b"s" else raw)
    return values


_LENGTH = struct.Struct("<Q")
Builder = Callable[[_Leaves], Any]


def _visit(node: Any, name: str, leaves: _Leaves) -> Builder:
    """Append the leaves below `node`; return what rebuilds it, taking leaves from the front."""
    below = f"{name}." if name else ""
    if isinstance(node, Mapping):
        keys = list(node)
        parts = [_visit(node[k], f"{below}{k}", leaves) for k in keys]
        return _Build(mapping_like(node), keys, parts)
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
    if node is None or isinstance(node, str | bytes):
        plain = node if node is None or type(node) in (str, bytes) else _plain(node)
        leaves.beside.append((name, plain))
        return _first_beside
    if isinstance(node, Sequence):
        parts = [_visit(v, f"{below}{i}", leaves) for i, v in enumerate(node)]
        return _Build(sequence_like(node), None, parts)
    leaves.fixed.append((name, leaf(node, name)))
    return _first


def _plain(text: str | bytes) -> str | bytes:
    """Return text of a kind of its own (`numpy.str_`, an enumeration) as what it spells."""
    return str.__str__(text) if isinstance(text, str) else bytes(text)


class _Build:
    """Picklable: structures travel to the workers."""

    def __init__(self, make: Callable[..., Any], keys: list[Any] | None, parts: list[Builder]):
        self.make, self.keys, self.parts = make, keys, parts

    def __call__(self, leaves: _Leaves) -> Any:
        values = [part(leaves) for part in self.parts]
        if self.keys is None:
            if leaves.as_torch:
                texts = [part is _first_beside for part in self.parts]
                values = [tuple(v) if t else v for v, t in zip(values, texts, strict=True)]
                return values if self.make is tuple else self.make(values)
            return self.make(values)
        return self.make(dict(zip(self.keys, values, strict=True)))


class _Dataclass:
    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __call__(self, values: dict[str, Any]) -> Any:
        return self.kind(**values)


def _first(leaves: _Leaves) -> Any:
    return leaves.fixed.pop(0)


def _first_beside(leaves: _Leaves) -> Any:
    return leaves.beside.pop(0)


def sequence_like(node: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Return what makes sequences of the user's kind (deque); of `range` and the like, lists."""
    if not isinstance(node, MutableSequence) or isinstance(node, bytearray):
        return list
    return _LikeSequence(node)


class _LikeSequence:
    """Makes sequences of the user's kind, which may need more than their items."""

    def __init__(self, node: MutableSequence[Any]) -> None:
        self.empty: Any = None
        try:
            self.empty = copy.copy(node)
            self.empty.clear()
        except (TypeError, AttributeError):
            self.empty = None

    def __call__(self, values: list[Any]) -> Any:
        if self.empty is None:
            return values
        made = copy.copy(self.empty)
        try:
            made.extend(values)
        except TypeError:  # it holds numbers only (array.array)
            return values
        return made


def mapping_like(node: Mapping[Any, Any]) -> Callable[..., Any]:
    """Return what makes mappings of the user's kind out of a dict."""
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


def leaf(node: Any, name: str) -> np.ndarray:
    """Return an array or number of a sample as an array; tensors share their memory.

    Raises:
        SampleError: it has no fixed size in bytes, or no batch can hold it.
    """
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
        array = _array_of(node, name)
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


def _array_of(node: Any, name: str) -> np.ndarray:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(node, torch.Tensor):
        return np.asarray(node)
    own = node.detach()  # numpy does not see a tensor that requires a gradient
    try:
        return np.asarray(own)
    except (TypeError, RuntimeError) as e:
        return _raw(own, name, e)


def _raw(tensor: Any, name: str, e: Exception) -> np.ndarray:
    """Return a tensor that numpy cannot see: its conjugate is due, or it has a dtype of torch's own."""
    import torch

    kind = str(tensor.layout).removeprefix("torch.").replace("_", " ")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else kind
        raise SampleError(
            f"field {name or 'sample'!r} is a tensor of layout {kind!r}; batches of such tensors "
            "are not supported by the default collate_fn, nor by torch's",
            do="give a collate_fn that makes batches of them, or return tensor.to_dense()",
        ) from e
    if tensor.device.type != "cpu" or tensor.is_quantized:
        what = f"on {tensor.device}" if tensor.device.type != "cpu" else "quantized"
        raise SampleError(
            f"field {name or 'sample'!r} is a tensor that is {what}",
            do="return plain tensors on the CPU, or give a collate_fn",
        ) from e
    own = tensor.resolve_conj().resolve_neg().contiguous()
    dtype = marked(str(own.dtype).removeprefix("torch."), own.element_size())
    try:
        return np.asarray(own)
    except (TypeError, RuntimeError):
        if not own.numel():
            return np.empty(tuple(own.shape), dtype)
        raw: np.ndarray = own.reshape(-1).view(torch.uint8).numpy()
        return raw.view(dtype).reshape(tuple(own.shape))
