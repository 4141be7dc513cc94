"""Any object as bytes, the same for equal ones: what fingerprints see of batches of a `collate_fn`."""

import pickle
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def chunks(node: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a tree of containers, arrays, tensors, numbers and text.

    Other objects go by their pickle, which equal objects need not share.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(node, torch.Tensor) and node.device.type == "cpu":
        yield f"t{node.dtype}{tuple(node.shape)}".encode()
        plain = node.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        yield plain.view(torch.uint8).numpy().data if plain.numel() else b""
    elif isinstance(node, np.ndarray | np.generic) and not np.asarray(node).dtype.hasobject:
        array = np.ascontiguousarray(node)
        yield f"a{array.dtype.str}{np.shape(node)}".encode()
        yield array.reshape(-1).view(np.uint8).data if array.size else b""
    elif node is None or isinstance(node, bool | int | float | complex):
        yield f"n{node!r};".encode()
    elif isinstance(node, str | bytes):
        raw = node.encode("utf-8", "surrogatepass") if isinstance(node, str) else node
        yield (b"s" if isinstance(node, str) else b"b") + struct.pack("<Q", len(raw))
        yield raw
    elif isinstance(node, Mapping):
        yield f"m{len(node)};".encode()
        for key, value in node.items():
            yield from chunks(key)
            yield from chunks(value)
    elif isinstance(node, list | tuple):
        yield f"l{len(node)};".encode()
        for part in node:
            yield from chunks(part)
    elif is_dataclass(node) and not isinstance(node, type):
        yield f"d{type(node).__qualname__};".encode()
        for one in fields(node):
            yield from chunks(getattr(node, one.name))
    else:
        raw = pickle.dumps(node, 4)
        yield b"o" + struct.pack("<Q", len(raw))
        yield raw
