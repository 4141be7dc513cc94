"""Loads at plain addresses, inside kernels.

Source images are passed as addresses, so that a kernel is compiled once and not again for
read-only or oddly strided arrays.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

# numba types its decorator by the signature it returns; ours are built at compile time.
intrinsic: Callable[[Any], Any] = extending.intrinsic


@intrinsic
def load_u8(typingctx: Any, address: Any) -> Any:  # noqa: ARG001
    """Return the byte at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))

    return types.uint8(types.uint64), codegen
