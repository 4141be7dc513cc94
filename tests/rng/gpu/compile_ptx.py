"""Print the PTX of the kernels as JSON, {name: text}: run by test_ptx.py, without the interpreter.

Twice: from types written down here, and from calls of the functions that launch them, which Triton binds to types
and specialises as it does before a launch, and compiles to machine code (Triton brings ptxas), but does not start.

With an argument, such as gfx942: the assembly for that AMD device, of the types written down.
"""

import json
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime import driver

from rng import gpu
from rng.torch import draws, fill

TYPES = {
    "table": "*i32", "cell": "*i64", "shift": "fp64", "scale": "fp32", "most": "fp32",
    **dict.fromkeys(("base", "n", "pitch", "out_row", "out_step", "span", "columns"), "i64"),
}  # fmt: skip
FLOATS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}


def ptx(kernel, capability, constants, **types):
    types = {**TYPES, **types}
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in names
    }
    aligned = [name for name in names if signature[name].startswith("*") or name == "out_row"]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    amd = isinstance(capability, str)
    target = GPUTarget("hip", capability, 64) if amd else GPUTarget("cuda", capability, 32)
    made = compile(source, target, {"num_warps": 4, "enable_fp_fusion": False})
    return made.asm["amdgcn" if amd else "ptx"]


def fills(capability):
    """All kinds for float32, and the casts."""
    for kind in ("RAW", "UNIT", "RANGE", "INVERSE", "INVERSE_IN", "BERNOULLI"):
        shifts = (False, True) if kind in ("RANGE", "INVERSE") else (False,)
        for shift in shifts:
            for dtype, out in FLOATS.items():
                if dtype != "float32" and (shift or kind not in ("UNIT", "INVERSE")):
                    continue
                constants = {
                    "KIND": getattr(gpu, kind), "SHIFT": shift, "SCALE": True, "ALIGNED": True, "BLOCK": 512
                }  # fmt: skip
                out = "*i32" if kind == "RAW" else out
                text = ptx(gpu.fill_kernel, capability, constants, out=out, limit="i64")
                yield f"fill {kind} {dtype}{' shifted' if shift else ''}", text


def masks(capability):
    """Dropout of each dtype, and its mask."""
    for aligned in (True, False):
        constants = {"ALIGNED": aligned, "BLOCK": 512}
        place = "aligned" if aligned else "any"
        for dtype, pointer in FLOATS.items():
            text = ptx(gpu.dropout_kernel, capability, constants, x=pointer, out=pointer)
            yield f"dropout {dtype} {place}", text
        yield f"mask {place}", ptx(gpu.mask_kernel, capability, constants, out="*u8")


# ---------------------------------------------------------------- as launched
class Offline:
    """What Triton asks its driver before a launch."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability  # the cache of compiled kernels is the device's

    def get_current_stream(self, device):
        return 0


class Launches:
    """Stands for a kernel: compiles what would be launched."""

    def __init__(self, kernel, found):
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid):
        def launch(*args, **options):
            compiled = self.kernel.warmup(*args, grid=grid, **options)
            assert compiled.asm["cubin"]
            self.found.append(compiled.asm["ptx"])

        return launch


def launched(capability):
    """Every path of the launches: dense, odd begin, strides, rows, transposed; extreme keys and positions."""
    driver.set_active(Offline(capability))
    found = []
    names = ("fill_kernel", "dropout_kernel", "mask_kernel")
    kernels = {name: getattr(gpu, name) for name in names}
    for name, kernel in kernels.items():
        setattr(gpu, name, Launches(kernel, found))
    try:
        for name, call in _calls():
            found.clear()
            call()
            assert len(found) == 1, (name, len(found))
            yield f"launched {name}", found[0]
    finally:
        for name, kernel in kernels.items():
            setattr(gpu, name, kernel)


def _calls():
    table = draws.normal_table(torch.device("cpu"))
    last = fill.Place((1 << 64) - 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 63) + 5, 0)
    shapes = {  # rows, columns, pitch, out_row, out_step; first number
        "dense": ((1, 40001, 0, 0, 1), 0),
        "odd": ((1, 40001, 0, 0, 1), 3),
        "one": ((1, 1, 0, 0, 1), 0),
        "column": ((77, 1, 1, 1, 1), 0),
        "strided": ((40, 77, 77, 231, 3), 0),
        "transposed": ((77, 40, 40, 1, 77), 0),
    }
    kinds = {
        "words": draws.RAW,
        "uniform": draws.uniform(torch.float32, 0.0, 1.0),
        "normal shifted": draws.normal(torch.float32, 0.3, 1.7),
        "truncated": draws.truncated_normal(torch.float32, 0.0, 1.0, -9.0, 9.0),
        "Bernoulli": draws.bernoulli(1.0),
    }
    for shape, (place, first) in shapes.items():
        for kind, what in (
            kinds.items() if shape == "dense" else [("normal shifted", kinds["normal shifted"])]
        ):
            out = torch.empty(40 * 231, dtype=torch.int64 if kind == "words" else torch.float32)
            at = last._replace(first=first)
            yield (
                f"{shape} {kind}",
                lambda out=out, what=what, at=at, place=place: gpu.fill_rows(
                    out, table, what, at, *place
                ),
            )
    x, cell = torch.empty(4096, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64)
    bits = torch.empty(512, dtype=torch.uint8)
    for columns, name in ((4096, "dense"), (33, "odd"), (1, "column")):
        for limit in (0, 65536):
            yield (
                f"{name} dropout {limit}",
                lambda c=columns, t=limit: gpu.dropout(x, x, cell, c, t, 1.1, (1 << 64) - 1),
            )
        yield f"{name} mask", lambda c=columns: gpu.mask(bits, cell, 4096, c, 6554, (1 << 64) - 1)


if __name__ == "__main__":
    if sys.argv[1:]:
        wanted = [(arch, (fills, masks)) for arch in sys.argv[1:]]
    else:
        wanted = [(80, (fills, masks)), (90, (fills, masks, launched))]
    texts = {
        f"{'' if isinstance(arch, str) else 'sm_'}{arch} {name}": text
        for arch, makes in wanted
        for make in makes
        for name, text in make(arch)
    }
    print(json.dumps(texts))
