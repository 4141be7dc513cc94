"""What the datasets share: digests of their content, printable names, the checks of arguments."""

import hashlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError

WHOLE_NBYTES = 64 << 20  # arrays up to this size are hashed whole
PIECES, PIECE_NBYTES = 4096, 4096  # larger ones by this many evenly spaced pieces


def digest(parts: Iterable[bytes | np.ndarray[Any, Any]]) -> str:
    """Return 32 hex digits of BLAKE2b over `parts`, each preceded by its length.

    >>> digest([b"ab", b"c"]) == digest([b"a", b"bc"])
    False
    """
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else _flat(part).data
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


def _flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def digest_arrays(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    """Return a digest of the shapes, dtypes and bytes of `arrays`.

    Arrays above 64 MiB are not read whole: 4096 evenly spaced pieces of 4 KiB stand for them, the
    first and the last bytes always among them. A change between the pieces goes unseen.
    """
    parts: list[bytes | np.ndarray[Any, Any]] = []
    for array in arrays:
        parts.append(f"{array.dtype.str}{array.shape}".encode())
        flat = _flat(array)
        if flat.size <= WHOLE_NBYTES:
            parts.append(flat)
        else:
            last = flat.size - PIECE_NBYTES
            starts = [last * i // (PIECES - 1) for i in range(PIECES)]
            parts.append(_pieces(array, flat, starts))
    return digest(parts)


def _pieces(
    array: np.ndarray[Any, Any], flat: np.ndarray[Any, Any], starts: list[int]
) -> bytes | np.ndarray[Any, Any]:
    """Return the pieces; of a file by reading just them, where faults would read megabytes ahead."""
    place = file_place(array)
    if place is None:
        return np.concatenate([flat[s : s + PIECE_NBYTES] for s in starts])
    path, first = place
    with open(path, "rb", buffering=0) as file:
        return b"".join(os.pread(file.fileno(), PIECE_NBYTES, first + s) for s in starts)


def map_of(array: np.ndarray[Any, Any]) -> mmap.mmap | None:
    """Return the map an array is a view of, or None."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def file_place(array: np.ndarray[Any, Any]) -> tuple[str, int] | None:
    """Return the file and the offset of a contiguous view of a memmap; None if it has none.

    A map with mode "c" may differ from its file, and an empty array has no map.
    """
    base = map_of(array)
    if not isinstance(array, np.memmap) or array.mode == "c" or not array.size or base is None:
        return None
    if array.filename is None:
        return None
    # numpy keeps the offset of the whole map in its parts: the addresses tell the truth.
    mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    inside = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    return str(Path(array.filename).absolute()), mapped_from + inside


def printable(name: bytes | str) -> str:
    r"""Return `name` as text that prints on one line and encodes as UTF-8, whatever its bytes.

    Bytes that are not UTF-8 and characters that do not print are shown as escapes.

    >>> printable(b"ma\xf1ana\n.png")
    'ma\\xf1ana\\x0a.png'
    """
    raw = name if isinstance(name, bytes) else os.fsencode(name)
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def check_choice(field: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`.

    Raises:
        ConfigError: it is not; the message names `field` and the choices.
    """
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{field}: expected one of {names}, got {value!r}", field=field)
    return value
