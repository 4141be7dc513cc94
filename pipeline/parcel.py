"""Objects of any size as bytes in shared memory, and back without copying their arrays.

    parcel = header │ where each big buffer is │ pickle │ buffer 0 │ buffer 1 │ …

Arrays and CPU tensors are not in the pickle: they lie beside it, 64-byte aligned, and come back as
views of that memory. Pickles are only ever read from memory that our own processes wrote.
"""

import io
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

_HEADER = struct.Struct("<8sQQ")  # magic, pickle_nbytes, count of entries
_MAGIC = b"SAMEBPAY"
_ENTRY = struct.Struct("<QQQ")  # memory (0: this one, k: the k-th other), offset, nbytes
_ALIGN = 64
_SMALL_NBYTES = 1 << 10  # smaller buffers stay inside the pickle


@dataclass(frozen=True)
class Parcel:
    """What to write where.

    Attributes:
        nbytes: of all of it.
        pieces: (offset, bytes) in order of offset.
    """

    nbytes: int
    pieces: list[tuple[int, memoryview]]


class DamagedParcel(ValueError):
    """This memory holds no parcel."""


def _nowhere(_raw: memoryview) -> tuple[int, int] | None:
    return None


def pack(
    obj: Any,
    dump: Callable[[Any, Any, Callable[[pickle.PickleBuffer], bool]], None],
    small_nbytes: int = _SMALL_NBYTES,
    elsewhere: Callable[[memoryview], tuple[int, int] | None] = _nowhere,
) -> Parcel:
    """Return an object as a parcel.

    Args:
        obj: it.
        dump: called with (obj, file, buffer_callback); pickles with protocol 5.
        small_nbytes: smaller buffers stay inside the pickle.
        elsewhere: called with each big buffer; returns (k, offset) where it lies in the k-th of
            the other memories that the reader has, counted from 1, or None.
    """
    buffers: list[memoryview] = []

    def inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < small_nbytes:
            return True
        buffers.append(raw)
        return False

    sink = io.BytesIO()
    dump(obj, sink, inside)
    body = sink.getvalue()
    places = [elsewhere(raw) for raw in buffers]
    entries = []
    at = _round_up(_HEADER.size + _ENTRY.size * len(buffers) + len(body))
    for raw, place in zip(buffers, places, strict=True):
        entries.append((*(place or (0, at)), raw.nbytes))
        at = at if place else _round_up(at + raw.nbytes)
    head = _HEADER.pack(_MAGIC, len(body), len(buffers))
    head += b"".join(_ENTRY.pack(*entry) for entry in entries)
    pieces = [(0, memoryview(head + body))]
    pieces += [(o, raw) for (k, o, _), raw in zip(entries, buffers, strict=True) if not k]
    return Parcel(at, pieces)


def unpack(memory: Any, others: Sequence[Any] = ()) -> Any:
    """Return the object; its arrays are views of `memory`, a buffer of bytes, and of the others.

    Raises:
        DamagedParcel: there is none.
        Exception: what unpickling raises.
    """
    magic, body_nbytes, count = _HEADER.unpack_from(memory, 0)
    if magic != _MAGIC:
        raise DamagedParcel("this memory holds no parcel")
    entries = [_ENTRY.unpack_from(memory, _HEADER.size + i * _ENTRY.size) for i in range(count)]
    start = _HEADER.size + count * _ENTRY.size
    body = memory[start : start + body_nbytes]
    memories = [memory, *others]
    return pickle.loads(body, buffers=[memories[k][o : o + n] for k, o, n in entries])


def pickle_nbytes(memory: Any) -> int:
    """Return the bytes of what is not a big buffer."""
    return int(_HEADER.unpack_from(memory, 0)[1])


def pack_batch(obj: Any) -> Parcel:
    """Return a batch that a `collate_fn` made as a parcel.

    Raises:
        Exception: it cannot be pickled.
    """
    try:
        return pack(obj, _dump_quickly)
    except (pickle.PicklingError, AttributeError, TypeError):
        return pack(obj, _dump_by_value)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor:
            return _reduce_tensor(obj, torch)
        return NotImplemented


class _ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor:
            reduced = _reduce_tensor(obj, torch)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)


def _dump_quickly(obj: Any, file: Any, callback: Callable[[pickle.PickleBuffer], bool]) -> None:
    _Pickler(file, protocol=5, buffer_callback=callback).dump(obj)


def _dump_by_value(obj: Any, file: Any, callback: Callable[[pickle.PickleBuffer], bool]) -> None:
    _ValuePickler(file, protocol=5, buffer_callback=callback).dump(obj)


def _reduce_tensor(tensor: Any, torch: Any) -> Any:
    """Return how to make a plain CPU tensor from a buffer; others go torch's own way."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized or tensor.grad_fn is not None:
        return NotImplemented
    own = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data: Any = own.view(-1).view(torch.uint8).numpy() if own.numel() else np.empty(0, np.uint8)
    name = str(tensor.dtype).removeprefix("torch.")
    return _tensor, (pickle.PickleBuffer(data), name, tuple(own.shape), tensor.requires_grad)


def _tensor(data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    raw = np.frombuffer(data, np.uint8)
    if not raw.size:
        return torch.empty(shape, dtype=kind, requires_grad=requires_grad)
    if not raw.flags.writeable:  # a small one, which lay inside the pickle
        raw = raw.copy()
    made = torch.from_numpy(raw).view(kind).reshape(shape)
    return made.requires_grad_() if requires_grad else made


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
