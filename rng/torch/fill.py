"""Numbers of a stream into tensors: uniform, normal, truncated normal, Bernoulli, words.

    element i of a tensor (C order) = value first + i of `rng.Stream`, bit for bit, on every device

Three ways, one result: tensors of this machine's memory are filled by the numba kernels; those of CUDA and
ROCm by `rng.gpu`, where Triton is installed; any other (MPS, XPU, a traced graph) by torch's
integer operations. In a compiled graph a fill is one operation, which does the same.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from rng import address, fill, generator, stream, tables
from rng.torch import draws
from rng.torch.draws import Draw
from rng.torch.words import philox4x32, words

Source = stream.Stream | generator.Generator
_CHUNK = 1 << 22  # elements that pass through a buffer at a time
_NATIVE = {torch.float32, torch.float64, torch.float16, torch.bool, torch.uint8, torch.int32}


# ---------------------------------------------------------------- fills
# Each fills `out` in place with the values `first`, `first` + 1, ... of `source` and returns it.
# `source`: an `rng.Stream`, or an `rng.Generator`, which reserves its blocks (then `first` is 0). Ranges,
# words drawn and errors: the method of that name of `rng.Stream`; and TypeError for an `out` that is no
# dense tensor or a source of another type, ValueError for one that is expanded.
def uniform_(
    out: torch.Tensor, source: Source, low: float = 0.0, high: float = 1.0, first: int = 0
) -> torch.Tensor:
    """Fill with real numbers in [low, high): 24 bits, float64: 53.

    >>> from rng import Stream, address
    >>> here = Stream(address.mix64(42), address.site(address.USER))
    >>> uniform_(torch.empty(2), here).tolist() == here.uniform(np.empty(2, np.float32)).tolist()
    True
    """
    return _fill(out, draws.uniform(_dtype(out), low, high), source, first)


def normal_(
    out: torch.Tensor, source: Source, mean: float = 0.0, std: float = 1.0, first: int = 0
) -> torch.Tensor:
    """Fill with normal numbers."""
    return _fill(out, draws.normal(_dtype(out), mean, std), source, first)


def truncated_normal_(
    out: torch.Tensor,
    source: Source,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    first: int = 0,
) -> torch.Tensor:
    """Fill with normal numbers conditioned on [low, high]."""
    return _fill(out, draws.truncated_normal(_dtype(out), mean, std, low, high), source, first)


def bernoulli_(out: torch.Tensor, source: Source, p: float = 0.5, first: int = 0) -> torch.Tensor:
    """Fill with 1 (chance p, to 32 bits; 0 and 1 exact) and 0, of any dtype."""
    _dtype(out)
    return _fill(out, draws.bernoulli(p), source, first)


def words_(out: torch.Tensor, source: Source, first: int = 0) -> torch.Tensor:
    """Fill with words: int64 holds them as they are, int32 the same 32 bits.

    Raises:
        ValueError: another dtype.
    """
    if _dtype(out) not in (torch.int32, torch.int64):
        raise ValueError(f"words need an int32 or int64 tensor, got {out.dtype}")
    return _fill(out, draws.RAW, source, first)


def _dtype(out: torch.Tensor) -> torch.dtype:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be a torch tensor, got {type(out).__name__}")
    return out.dtype


# ---------------------------------------------------------------- where the words are
class Place(NamedTuple):
    """Where a tensor's numbers begin: number `first` of the blocks from `start` on, under a key."""

    key: int
    c3: int
    c2: int
    start: int
    first: int

    @property
    def parts(self) -> tuple[int, int]:
        """The key's two words."""
        return self.key & address.M32, self.key >> 32


def _place(source: Source, first: int, count: int, each: int) -> Place:
    """Return where `count` numbers from `first` on are; a generator reserves their blocks."""
    first = address.whole("first", first)
    if isinstance(source, generator.Generator):
        if first:
            raise ValueError(f"a generator has no number {first}: it reserves its blocks anew")
        site = address.site(address.GENERATOR)
        key = source.key
        return Place(key, site, 0, source.next_offset(-(-each * count // 4)), 0)
    if not isinstance(source, stream.Stream):
        raise TypeError(
            f"source must be an rng.Stream or rng.Generator, got {type(source).__name__}"
        )
    last = source.start + (each * (first + count) + 3) // 4
    if first < 0 or each * (first + count) > 1 << 64 or last > 1 << 64:
        raise OverflowError(
            f"values {first} ... {first + count} are not within positions [0, 2**64) of the stream"
        )
    return Place(source.key, source.c3, source.c2, source.start, first)


def check_memory(out: torch.Tensor, name: str = "out") -> None:
    """Refuse a tensor whose elements have no place each in memory, as torch's own operations in place do.

    Raises:
        TypeError: a sparse or nested tensor.
        ValueError: an expanded one: several elements are one number, the last that was written.
    """
    if out.layout is not torch.strided or out.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, got {'a nested one' if out.is_nested else out.layout}"
        )
    if hasattr(out, "placements"):
        raise TypeError(
            f"{name} is a DTensor; expected a plain tensor. Do: rng.torch.init has DTensors"
        )
    if any(n > 1 and step == 0 for n, step in zip(out.shape, out.stride(), strict=True)):
        raise ValueError(
            f"{name} is expanded (size {tuple(out.shape)}, strides {out.stride()}): several elements share "
            f"one place in memory; expected one each. Do: {name}.clone()"
        )


def _fill(out: torch.Tensor, what: Draw, source: Source, first: int) -> torch.Tensor:
    check_memory(out)  # before a generator moves
    place = _place(source, first, out.numel(), what.words)
    if out.numel() == 0 or out.is_meta:
        return out
    with torch.no_grad():
        if torch.compiler.is_compiling():
            _in_graph(out, what, place)
        else:
            fill_rows(out.detach(), what, place)
    return out


def _in_graph(out: torch.Tensor, what: Draw, place: Place) -> None:
    """Fill by an operation that a compiler leaves as it is, so that none of its settings changes a bit."""
    numbers = [_signed(number) for number in place]
    torch.ops.samebatch.fill_(out, [*what[:1], *what[4:]], list(what[1:4]), numbers)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _fill_op(out: torch.Tensor, kind: list[int], real: list[float], numbers: list[int]) -> None:
    what = Draw(kind[0], real[0], real[1], real[2], kind[1], kind[2])
    fill_rows(out, what, Place(*(number & address.M64 for number in numbers)))


_library = torch.library.Library("samebatch", "FRAGMENT")
_library.define("fill_(Tensor(a!) out, int[] kind, float[] real, int[] numbers) -> ()")
_library.impl("fill_", _fill_op, "CompositeExplicitAutograd")
_library.impl("fill_", lambda out, kind, real, numbers: None, "Meta")  # noqa: ARG005


# ---------------------------------------------------------------- the three ways
def fill_rows(out: torch.Tensor, what: Draw, place: Place, pitch: int | None = None) -> None:
    """Fill a tensor with numbers place.first + 0, 1, ... in C order.

    With `pitch`, `out` is a matrix, and its row r begins with number place.first + r * pitch: a piece of
    a wider one.
    """
    if is_plain(out):
        _by_numba(out, what, place, pitch)
    elif uses_triton(out) and what.words == 1:
        _by_triton(out, what, place, pitch)
    else:
        _by_torch(out, what, place, pitch)
    changed(out)


def changed(x: torch.Tensor) -> None:
    """Tell autograd that a tensor has other values: kernels write past it, so it would not notice.

    A backward pass that needs the old ones raises then, as after torch's own operations in place.
    """
    if not (torch.compiler.is_compiling() or x.is_inference()):
        torch.autograd.graph.increment_version(x)


def is_plain(x: torch.Tensor) -> bool:
    """Return whether numba may read and write a tensor's memory: not traced, wrapped or compiled."""
    return (
        x.device.type == "cpu"
        and type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.layout is torch.strided
        and not x.is_neg()  # the memory of a negative view has the other sign
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


_has_triton: bool | None = None


def uses_triton(x: torch.Tensor) -> bool:
    """Return whether `rng.gpu` works on a tensor."""
    global _has_triton
    if x.device.type != "cuda" or type(x) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if _has_triton is None:
        import importlib.util

        _has_triton = importlib.util.find_spec("triton") is not None
    return _has_triton


def _by_numba(out: torch.Tensor, what: Draw, place: Place, pitch: int | None) -> None:
    if out.dtype in _NATIVE:
        array = out.numpy()
        if pitch is None:
            _native(array, what, place)
            return
        for r in range(out.shape[0]):
            _native(array[r], what, place._replace(first=place.first + r * pitch))
        return
    # bfloat16, integers: by way of a buffer, cast by torch.
    for r, row in enumerate(out if pitch is not None else [out]):
        at = place.first + r * (pitch or 0)
        flat = row.view(-1) if row.is_contiguous() else row.reshape(-1)
        buffer = np.empty(min(_CHUNK, flat.numel()), _buffer_dtype(what))
        for a in range(0, flat.numel(), _CHUNK):
            piece = buffer[: flat.numel() - a]
            _native(piece, what, place._replace(first=at + a))
            flat[a : a + piece.size].copy_(torch.from_numpy(piece))
        if flat.data_ptr() != row.data_ptr() or not row.is_contiguous():
            row.copy_(flat.view(row.shape))


def _buffer_dtype(what: Draw) -> Any:
    if what.kind == fill.RAW:
        return np.uint32
    return np.uint8 if what.kind == draws.BERNOULLI else np.float32


def _native(out: Any, what: Draw, place: Place) -> None:
    """Fill a numpy array, as `rng.Stream` does."""
    k0, k1 = place.parts
    at = tuple(np.uint64(part) for part in (place.start, place.c2, place.c3, k0, k1))
    if what.kind == draws.BERNOULLI:
        if what.span == 1 << 32:
            out[...] = 1
            return
        native: Any = np.uint8

        def kernel(piece: Any, first: int) -> None:
            number = np.uint64(place.first + first)
            fill.bernoulli(piece.view(np.uint8), number, *at, np.uint32(what.span))

        native = np.bool_ if out.dtype == np.bool_ else np.uint8
    else:
        if what.kind == fill.RAW and out.dtype == np.int32:
            out = out.view(np.uint32)
        real = np.array([what.shift, what.scale, what.most])
        table = tables.NORMAL if what.kind in (fill.INVERSE, fill.INVERSE_IN) else stream.NO_TABLE
        native = (
            np.float64 if what.words == 2 else np.uint32 if what.kind == fill.RAW else np.float32
        )

        def kernel(piece: Any, first: int) -> None:
            number = np.uint64(what.words * (place.first + first))
            low, span = np.uint64(what.low), np.uint64(what.span)
            fill.words(piece.view(np.uint32), number, *at, what.kind, real, low, span, *table)

    fill.through(out, np.dtype(native), None, kernel)


def _by_triton(out: torch.Tensor, what: Draw, place: Place, pitch: int | None) -> None:
    from rng import gpu

    if out.dtype == torch.bool:
        bytes_ = torch.empty(out.shape, dtype=torch.uint8, device=out.device)
        _by_triton(bytes_, what, place, pitch)
        out.copy_(bytes_)
        return
    matrix = _matrix(out, pitch)
    target = torch.empty(out.shape, dtype=out.dtype, device=out.device) if matrix is None else out
    rows, columns, out_row, out_step, step = matrix or _matrix(target, pitch)  # type: ignore[misc]
    with torch.cuda.device(out.device):
        table = draws.normal_table(out.device)
        gpu.fill_rows(target, table, what, place, rows, columns, step, out_row, out_step)
    if target is not out:
        out.copy_(target)


def _matrix(out: torch.Tensor, pitch: int | None) -> tuple[int, int, int, int, int] | None:
    """Return (rows, columns, row stride, column stride, pitch), None where strides say no such thing."""
    if pitch is not None:
        return out.shape[0], out.shape[1], out.stride(0), out.stride(1), pitch
    if out.is_contiguous():
        return 1, out.numel(), 0, 1, 0
    if out.dim() == 1:
        return 1, out.shape[0], 0, out.stride(0), 0
    if out.dim() == 2:
        return out.shape[0], out.shape[1], out.stride(0), out.stride(1), out.shape[1]
    return None


def _by_torch(out: torch.Tensor, what: Draw, place: Place, pitch: int | None) -> None:
    if pitch is None:
        out.copy_(
            _stored(_values_in_chunks(what, place, out.numel(), out.device), out).view(out.shape)
        )
        return
    columns = out.shape[1]
    for a in range(0, out.shape[0], max(1, _CHUNK // columns)):
        part = out[a : a + max(1, _CHUNK // columns)]
        at = place._replace(first=place.first + a * pitch)
        part.copy_(_stored(_scattered(what, at, part.shape[0], columns, pitch, out.device), out))


def _stored(values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return numbers in the form that a copy to `out` keeps the bits of."""
    if values.dtype == torch.int64 and out.dtype == torch.int32:
        return (values ^ 1 << 31) - (1 << 31)  # the signed integer of the same bits
    return values


def _values(what: Draw, place: Place, n: int, device: torch.device) -> torch.Tensor:
    each = what.words
    w = words(place.start, each * place.first, each * n, place.c2, place.c3, place.parts, device)
    return draws.numbers(what, w)


def _values_in_chunks(what: Draw, place: Place, n: int, device: torch.device) -> torch.Tensor:
    """Return n numbers; words of 64 bits are held for a part of them at a time."""
    if n <= _CHUNK:
        return _values(what, place, n, device)
    parts = [
        _values(what, place._replace(first=place.first + a), min(_CHUNK, n - a), device)
        for a in range(0, n, _CHUNK)
    ]
    return torch.cat(parts)


def _scattered(
    what: Draw, place: Place, rows: int, columns: int, pitch: int, device: torch.device
) -> torch.Tensor:
    """Return numbers[rows, columns] of a piece of a wider matrix; each element makes its own block."""
    lead = place.first & 3
    row = torch.arange(rows, dtype=torch.int64, device=device)[:, None] * pitch
    index = row + (torch.arange(columns, dtype=torch.int64, device=device) + lead)
    base = place.start + (place.first >> 2)
    low = (index >> 2) + (base & address.M32)
    c1 = (low >> 32) + (base >> 32) & address.M32
    blocks = philox4x32((low & address.M32, c1, place.c2, place.c3), place.parts)
    which = index & 3
    w = torch.where(
        which < 2,
        torch.where(which == 0, blocks[0], blocks[1]),
        torch.where(which == 2, blocks[2], blocks[3]),
    )
    return draws.numbers(what, w)
