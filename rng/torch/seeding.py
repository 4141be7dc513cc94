"""One line that seeds everything and sets every switch of torch that makes runs repeatable.

    report = manual_seed(123)
    print(report)          what was set, from what to what; what stays open, as found on this machine

A switch that this torch has not is reported as missing; one that refuses is reported as refused.
Nothing of it is needed for this package's own numbers: it is for what torch computes beside them.

Source: torch's notes on reproducibility and on numerical accuracy; the table of what stays open is
that of section 7.1 of Tech-Renaissance's blog post 23, made longer.
"""

import os
import platform
import random  # noqa: TID251 - seeded for the user's code, never drawn from here
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import rng
from rng import address

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_GOOD_WORKSPACES = (":4096:8", ":16:8")


@dataclass(frozen=True)
class Setting:
    """One thing that was set.

    Attributes:
        name: as users write it, such as torch.backends.cudnn.benchmark.
        before, after: its values, as text.
        state: "set" (changed), "kept" (it was so already), "missing" (this torch has no such switch)
            or "refused" (it raised; `note` says what).
        note: what it is for, or why it was refused.
    """

    name: str
    before: str
    after: str
    state: str
    note: str = ""


@dataclass(frozen=True)
class Open:
    """One thing that can still change bits, and what it is in this process."""

    what: str
    found: str
    advice: str


@dataclass(frozen=True)
class Report:
    """What `manual_seed` did. `str(report)` is a table.

    Attributes:
        seed: the seed.
        settings: everything that was set, in order.
        open: what stays open.
        warnings: what came too late or was refused, also given by `warnings.warn`.
    """

    seed: int
    settings: tuple[Setting, ...]
    open: tuple[Open, ...]
    warnings: tuple[str, ...]

    def __getitem__(self, name: str) -> Setting:
        """Return the setting of a name.

        Raises:
            KeyError: there is none.
        """
        for one in self.settings:
            if one.name == name:
                return one
        raise KeyError(name)

    def __str__(self) -> str:
        lines = [f"seed {self.seed} (0x{self.seed:016x})", "", "set:"]
        width = max(len(one.name) for one in self.settings)
        for one in self.settings:
            changed = one.state == "set" and one.before
            change = f"{one.before} -> {one.after}" if changed else one.after
            if one.state in ("missing", "refused"):
                change = f"{one.state}: {one.note}" if one.note else one.state
            lines.append(f"  {one.name:<{width}}  {change}")
        lines += ["", "stays open (equal bits are only promised where these are equal):"]
        width = max(len(one.what) for one in self.open)
        for item in self.open:
            lines.append(f"  {item.what:<{width}}  {item.found}")
            lines.append(f"  {'':<{width}}  {item.advice}")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def manual_seed(seed: int, *, warn_only: bool = False) -> Report:
    """Seed torch (all devices), numpy, Python's random and this package; make torch deterministic.

    Call it first in a program, before anything touches a GPU: cuBLAS reads its workspace setting
    when it starts, and a later change warns.

    Args:
        seed: in [0, 2**64). Python and this package use all of it, and so does torch on a GPU;
            torch's CPU generator looks at its low 32 bits alone. numpy's global generator takes it
            as `numpy.random.seed` does below 2**32, else as its two halves.
        warn_only: operations of torch that have no deterministic form warn instead of raising.

    Returns:
        what was set, from what to what, and what stays open.

    Raises:
        TypeError: seed is not an int.
        ValueError: seed out of range.

    >>> manual_seed(123)["torch.backends.cudnn.benchmark"].after  # doctest: +SKIP
    'False'
    """
    seed = address.check_seed(seed)
    rng.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed if seed <= address.M32 else [seed & address.M32, seed >> 32])  # noqa: NPY002, TID251
    torch.manual_seed(seed)
    settings = [
        Setting(name, "", str(seed), "set", "seeded")
        for name in ("rng", "random", "numpy.random", "torch (CPU and all devices)")
    ]
    told: list[str] = []
    settings.append(_workspace(told))
    settings.append(_variable("NVIDIA_TF32_OVERRIDE", "0", "no TF32 in NVIDIA's libraries"))
    with warnings.catch_warnings():
        # Some releases of torch announce here that the older names of these switches will go.
        warnings.simplefilter("ignore")
        switches = list(_switches(warn_only))
        found = [_read(read) for _, read, *_ in switches]  # all, before one changes another
        settings += [_apply(*item) for item in zip(switches, found, strict=True)]
    told += [f"{s.name} could not be set: {s.note}" for s in settings if s.state == "refused"]
    for text in told:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return Report(seed, tuple(settings), tuple(_open()), tuple(told))


# ---------------------------------------------------------------- switches
Get = Callable[[], Any]
Set = Callable[[Any], Any]
Switch = tuple[str, Get, Set, Any, str]


def _switches(warn_only: bool) -> Iterator[Switch]:
    """Yield (name, read, write, wanted value, what for), in the order in which they are set."""
    backends = torch.backends
    yield (
        "torch.use_deterministic_algorithms",
        lambda: ("False", "warn_only", "True")[torch.get_deterministic_debug_mode()],
        lambda value: torch.use_deterministic_algorithms(True, warn_only=value == "warn_only"),
        "warn_only" if warn_only else "True",
        "kernels that give the same bits each time, or an error or a warning",
    )
    for path, wanted, note in (
        ("torch.utils.deterministic.fill_uninitialized_memory", True, "torch.empty is filled"),
        ("torch.backends.cudnn.deterministic", True, "deterministic convolutions"),
        ("torch.backends.cudnn.benchmark", False, "no choice of a kernel by its speed"),
        ("torch.backends.mkldnn.deterministic", True, "the same for oneDNN"),
    ):
        yield _attribute(path, wanted, note)
    if torch.version.hip:
        yield _attribute("torch.backends.miopen.immediate", True, "no search by MIOpen")
    if hasattr(backends, "fp32_precision"):  # torch 2.9 and later
        yield _attribute("torch.backends.fp32_precision", "ieee", "no TF32 or bfloat16 inside")
        for place in (
            "cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn",
        ):  # fmt: skip
            path = f"torch.backends.{place}.fp32_precision"
            yield _attribute(path, "ieee", "float32 is float32")
    # The older names too: code that still reads them raises where the two disagree.
    yield (
        "torch.set_float32_matmul_precision",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "highest",
        "float32 is float32",
    )
    for path, wanted, note in (
        ("torch.backends.cuda.matmul.allow_tf32", False, "the older name"),
        ("torch.backends.cudnn.allow_tf32", False, "the older name"),
        (
            "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
            False,
            "float16 products are summed in float32",
        ),
        (
            "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
            False,
            "bfloat16 products are summed in float32",
        ),
        (
            "torch.backends.cuda.matmul.allow_fp16_accumulation",
            False,
            "float16 products are summed in float32",
        ),
    ):
        yield _attribute(path, wanted, note)
    yield (
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp",
        lambda: backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        lambda value: backends.cuda.allow_fp16_bf16_reduction_math_sdp(value),
        False,
        "attention sums in float32",
    )


def _attribute(path: str, wanted: Any, note: str) -> Switch:
    owner, _, name = path.removeprefix("torch.").rpartition(".")

    def holder() -> Any:
        at: Any = torch
        for part in owner.split("."):
            at = getattr(at, part)
        return at

    return path, lambda: getattr(holder(), name), lambda v: setattr(holder(), name, v), wanted, note


def _read(read: Get) -> Any:
    """Return a switch's value, or the error of one that cannot be read."""
    try:
        return read()
    except (AttributeError, AssertionError, RuntimeError) as e:
        return e


def _apply(switch: Switch, before: Any) -> Setting:
    name, read, write, wanted, note = switch
    if isinstance(before, AttributeError | AssertionError):
        # A module takes any attribute, so one that cannot be read must not be written.
        return Setting(name, "", "", "missing", f"not in torch {torch.__version__}")
    if isinstance(before, RuntimeError):  # older and newer names of the TF32 switches disagreed
        before = "unclear"
    try:
        write(wanted)
        after = read()
    except Exception as e:  # whatever it is: the report and a warning tell it
        return Setting(name, str(before), str(before), "refused", f"{type(e).__name__}: {e}")
    if after != wanted:
        return Setting(name, str(before), str(after), "refused", f"stays {after!r}")
    return Setting(name, str(before), str(after), "kept" if before == after else "set", note)


# ---------------------------------------------------------------- environment
def _workspace(told: list[str]) -> Setting:
    """Set cuBLAS's workspace, which it reads once, when it starts."""
    before = os.environ.get(WORKSPACE)
    if before in _GOOD_WORKSPACES:
        return Setting(WORKSPACE, str(before), str(before), "kept", "deterministic cuBLAS")
    os.environ[WORKSPACE] = _GOOD_WORKSPACES[0]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        told.append(
            f"CUDA was initialised before manual_seed could set {WORKSPACE} (it was {before}): "
            f"cuBLAS may have started without it, and products may differ from run to run; call "
            f"rng.torch.manual_seed before anything touches the GPU, or start the program with "
            f"{WORKSPACE}={_GOOD_WORKSPACES[0]}"
        )
    after = os.environ[WORKSPACE]
    return Setting(WORKSPACE, str(before), after, "set", "deterministic cuBLAS")


def _variable(name: str, wanted: str, note: str) -> Setting:
    before = os.environ.get(name)
    os.environ[name] = wanted
    return Setting(name, str(before), wanted, "kept" if before == wanted else "set", note)


# ---------------------------------------------------------------- what stays open
def _open() -> Iterator[Open]:
    cuda = torch.cuda.is_available()
    yield Open(
        "kind of GPU",
        ", ".join(_devices()) if cuda else "none in use",
        "another generation, or another number of multiprocessors, may sum in another order",
    )
    yield Open(
        "driver and libraries",
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {_cudnn()}, "
        f"HIP {torch.version.hip}",
        "cuBLAS, cuDNN and the driver's compiler choose kernels: keep them with the checkpoint",
    )
    yield Open(
        "compiler",
        f"triton {_version('triton')}, python {platform.python_version()}",
        "torch.compile may fuse and reorder float operations: equal from run to run, not to eager",
    )
    yield Open(
        "processor",
        f"{platform.machine()}, {_capability()}, {torch.get_num_threads()} threads",
        "torch's CPU kernels sum by vector width and, some of them, by number of threads",
    )
    yield Open(
        "world size and collectives",
        f"NCCL_ALGO={os.environ.get('NCCL_ALGO')}",
        "an all-reduce sums in an order that depends on the number of ranks and on NCCL's choice",
    )
    yield Open(
        "operations without a deterministic form",
        f"warn only: {torch.is_deterministic_algorithms_warn_only_enabled()}",
        "they raise (or warn): see torch.use_deterministic_algorithms for the list",
    )
    yield Open(
        "Python's hashes",
        f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED')}, {sys.flags.hash_randomization=}",
        "the order of sets of strings: read when Python starts, so set it in the environment",
    )
    yield Open(
        "numbers drawn by torch itself",
        "torch.rand, nn.Dropout, nn.init",
        "differ between CPU, kinds of GPU and shardings, and on the CPU see 32 bits of the seed: "
        "rng.torch's do not",
    )


def _devices() -> list[str]:
    found = []
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        found.append(
            f"{facts.name} ({facts.major}.{facts.minor}, {facts.multi_processor_count} multiprocessors)"
        )
    return list(dict.fromkeys(found))


def _cudnn() -> Any:
    return torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None


def _capability() -> str:
    cpu = getattr(torch.backends, "cpu", None)
    return cpu.get_cpu_capability() if cpu is not None else "unknown capability"


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
