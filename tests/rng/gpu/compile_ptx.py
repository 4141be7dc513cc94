"""Print the PTX of the kernels as JSON, {name: text}: run by test_ptx.py, without the interpreter."""

import json

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from rng import gpu

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
    target = GPUTarget("cuda", capability, 32)
    return compile(source, target, {"num_warps": 4, "enable_fp_fusion": False}).asm["ptx"]


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


if __name__ == "__main__":
    texts = {
        f"sm_{capability} {name}": text
        for capability in (80, 90)
        for make in (fills, masks)
        for name, text in make(capability)
    }
    print(json.dumps(texts))
