"""What a worker is given, pickled once for all of them into one shared memory.

Objects go by cloudpickle, so that lambdas, local functions and classes of a notebook, of a script
without a `__main__` guard or of a script on standard input arrive by value. Big arrays are not in
the pickle: they lie beside it and are mapped copy-on-write, so all workers share one copy until
one of them writes. Memory-mapped arrays travel as (file, offset), never as their content. Tables
(`pipeline.transfer.shared`) are not copied at all: they are lent by their descriptors.
"""

import contextlib
import functools
import logging
import mmap
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from pipeline import parcel
from pipeline.errors import ConfigError
from pipeline.transfer import shared
from pipeline.transfer.arena import Arena

_log = logging.getLogger("samebatch")
_SMALL_NBYTES = 1 << 15  # smaller buffers stay inside the pickle
MOST_LENT = 6  # a message to the launcher carries so few descriptors; further tables are copied
_HEAVY_NBYTES = 256 << 20  # Python objects of all workers together that are worth a word


class Lent(NamedTuple):
    """A table's memory: its descriptor, good as long as `kept` is."""

    fd: int
    kept: memoryview


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.memmap:
            reduced = _reduce_memmap(obj)
            if reduced is not None:
                return reduced
        return super().reducer_override(obj)


def _reduce_memmap(array: "np.memmap[Any, Any]") -> Any:
    """Return a recipe that maps the same bytes of the same file, or None if there is none."""
    if array.filename is None or array.mode not in ("r", "c", "r+") or array.size == 0:
        return None
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root.base, mmap.mmap) or not isinstance(root, np.memmap):
        return None
    offset = root.offset + array.ctypes.data - root.ctypes.data
    mode = "c" if array.mode == "r+" else array.mode
    path = os.path.abspath(os.fspath(array.filename))
    return _open_memmap, (path, array.dtype.str, mode, offset, array.shape, array.strides)


def _open_memmap(
    path: str, dtype: str, mode: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    item = np.dtype(dtype)
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    below = -sum(r for r in reach if r < 0)  # bytes before the first element
    span = below + sum(r for r in reach if r > 0) + item.itemsize
    flat = np.memmap(path, np.uint8, mode, offset - below, (span,))
    return np.ndarray(shape, item, flat, below, strides)


def pack(obj: Any, lent: list[Lent] | None = None) -> Arena:
    """Return shared memory that holds `obj`.

    Args:
        obj: what to send.
        lent: tables are appended here, and named in the memory by their place; `unpack` needs them
            in this order. None: their content is copied as that of other arrays.

    Raises:
        ConfigError: it cannot be pickled; the message names the object, or memory lacks.
    """
    try:
        with _main_by_value():
            made = parcel.pack(obj, _dump, _SMALL_NBYTES, lambda raw: _lend(raw, lent))
    except Exception as e:
        raise ConfigError(
            f"{_culprit(obj)} cannot be sent to worker processes: {type(e).__name__}: {e}",
            do="open files, locks and handles when they are first used (in __getitem__), not in "
            "the constructor; or use num_workers=0. With worker_method='thread' all workers would share "
            "it: an open file has one position, and they would read at each other's",
        ) from e
    arena = Arena.create(
        max(made.nbytes, 1), "dataset", "a dataset of memory-mapped files is not copied"
    )
    for offset, raw in made.pieces:
        _write(arena.fd, offset, raw)
    return arena


def _dump(obj: Any, file: Any, callback: Callable[[pickle.PickleBuffer], bool]) -> None:
    _Pickler(file, protocol=5, buffer_callback=callback).dump(obj)


def hint(arena: Arena, workers: int) -> None:
    """Say in the log what to do where Python objects will fill the memory of many workers."""
    nbytes = parcel.pickle_nbytes(arena.memory)
    if nbytes * workers >= _HEAVY_NBYTES:
        _log.warning(
            "samebatch: the data set and the transforms hold Python objects, %d MB when pickled; each of "
            "%d workers keeps its own, two to four times as large. Long lists of texts take their bytes "
            "only once as datasets.PackedStrings(texts), long lists of numbers as numpy arrays",
            nbytes >> 20,
            workers,
        )


def _lend(raw: memoryview, lent: list[Lent] | None) -> tuple[int, int] | None:
    """Return (number of the memory that is lent, offset) if the bytes are a table's."""
    place = None
    if lent is not None and raw.readonly:
        place = shared.place(np.frombuffer(raw, np.uint8).ctypes.data, raw.nbytes)
    if lent is None or place is None:
        return None
    known = [one.fd for one in lent]
    if place.fd not in known:
        if len(lent) == MOST_LENT:
            return None
        known.append(place.fd)
        lent.append(Lent(place.fd, raw))
    return known.index(place.fd) + 1, place.offset


@contextlib.contextmanager
def _main_by_value() -> Iterator[None]:
    """Send what a script defines by value also where multiprocessing calls it `__mp_main__`."""
    main = sys.modules.get("__mp_main__")
    if main is None:
        yield
        return
    cloudpickle.register_pickle_by_value(main)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(main)


def unpack(arena: Arena, lent: Sequence[memoryview] = ()) -> Any:
    """Return the object; its big arrays are views of the arena's memory, or of what is lent.

    Args:
        arena: what `pack` returned, or another map of it.
        lent: maps of the memory that `pack` appended to its `lent`, in that order.

    Raises:
        ConfigError: unpickling fails; the message names the error.
    """
    try:
        return parcel.unpack(arena.memory, [one.toreadonly() for one in lent])
    except parcel.DamagedParcel as e:
        raise ConfigError("this memory holds no payload for a worker") from e
    except Exception as e:
        raise ConfigError(
            f"the data set or a transform can be pickled, but not unpickled: "
            f"{type(e).__name__}: {e}",
            do="look at its __reduce__ or __setstate__; or use num_workers=0 or "
            "worker_method='thread'",
        ) from e


def _write(fd: int, offset: int, data: memoryview) -> None:
    data = data.cast("B")
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done : done + (1 << 30)], offset + done)


def _culprit(obj: Any) -> str:
    """Return which part of a payload does not pickle, as precisely as can be told."""
    found, path = obj, "the work"
    for _ in range(8):
        for name, part in _parts(found).items():
            try:
                cloudpickle.dumps(part)
            except Exception:
                path, found = (name if path == "the work" else f"{path}.{name}"), part
                break
        else:
            break
    return f"{path} ({type(found).__qualname__})"


def _parts(obj: Any) -> dict[str, Any]:
    """Return what an object holds that would be pickled with it, by name."""
    if isinstance(obj, dict):
        return {str(k): v for k, v in obj.items()}
    if isinstance(obj, list | tuple):
        return {str(i): v for i, v in enumerate(obj)}
    if isinstance(obj, types.MethodType):
        return {"__self__": obj.__self__}
    if isinstance(obj, functools.partial):
        return {"func": obj.func, "args": obj.args, "keywords": obj.keywords}
    if isinstance(obj, types.FunctionType):
        found = dict(vars(obj))
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing was assigned to it yet
                found[name] = cell.cell_contents
        return found
    return dict(vars(obj)) if hasattr(obj, "__dict__") else {}
