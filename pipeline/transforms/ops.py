"""The ops of a chain, with torchvision's names, arguments and defaults where it has the thing.

Each op is a frozen dataclass, checked when it is made:

* geometry (crops, flips): moves pixels and changes none;
* resampling (Resize, RandomResizedCrop): see `pipeline.transforms.resize`;
* values (Normalize, ToDtype, ToTensor): maps pixels one by one;
* RandomErasing; and ToLayout, which only says how the finished image lies in memory.

Images are `[H, W, C]` between ops. Values are in units of 0 .. 255 until ToTensor,
`ToDtype(scale=True)` or Normalize bring them to units of 1 (`unit` below: 255 or 1). A float image
that a user callable returns keeps the units that reached the callable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError
from pipeline.transforms import checks, draws, portable
from rng import draw

Image = npt.NDArray[Any]
Step = tuple[list[int], list[float]]

# The one table of kinds. 6 .. 30 are free for later ops; 31 is a user callable.
KINDS = {
    "RandomCrop": draws.CROP,
    "RandomResizedCrop": draws.RESIZED_CROP,
    "RandomHorizontalFlip": draws.HFLIP,
    "RandomErasing": draws.ERASE,
    "RandomVerticalFlip": draws.VFLIP,
    "callable": draws.CALLABLE,
}

_PRESETS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0,), (1.0,)),
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "mlperf": ((123.68 / 255, 116.78 / 255, 103.94 / 255), (1 / 255, 1 / 255, 1 / 255)),
}
PRESETS = {**_PRESETS, "cifar": _PRESETS["cifar10"]}


@dataclass(frozen=True)
class Op:
    """What all ops share."""

    @property
    def kind(self) -> int:
        """The number of this kind of op in its addresses; 0 if it draws nothing."""
        return KINDS.get(type(self).__name__, 0)

    def new_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) this op makes of an image.

        Raises:
            ConfigError: the op cannot be used on such an image.
        """
        return height, width

    def check_channels(self, count: int) -> None:
        """Raise ConfigError if the op cannot be used on an image of `count` channels."""

    def step(self) -> Step:
        """Return the integers and floats of this op for `draws.draw_samples`."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data in one canonical form: it decides bytes."""
        return {"op": type(self).__name__}


# ---------------------------------------------------------------- geometry
@dataclass(frozen=True)
class RandomCrop(Op):
    """Cut a window of `size` at a uniform place, after padding.

    Args:
        size: an int (square) or (height, width).
        padding: pixels added before: an int, (left and right, top and bottom), or
            (left, top, right, bottom).
        pad_if_needed: then also add what the image still lacks, on both sides.
        fill: value of the added pixels: a number, or one for each channel.
        padding_mode: "constant", "edge", "reflect" or "symmetric", as in `numpy.pad`.

    Draws: block 0: word 0 top, word 1 left; also if the image already has that size.

    Raises:
        ConfigError: a bad argument; or an image smaller than `size`, without `pad_if_needed`.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        checks.size("RandomCrop.size", self.size)
        checks.padding("RandomCrop.padding", self.padding)
        checks.flag("RandomCrop.pad_if_needed", self.pad_if_needed)
        checks.channels("RandomCrop.fill", self.fill)
        modes = ("constant", "edge", "reflect", "symmetric")
        checks.one_of("RandomCrop.padding_mode", self.padding_mode, modes)

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (left, top, right, bottom) of an image of this size."""
        left, top, right, bottom = checks.padding("RandomCrop.padding", self.padding)
        if self.pad_if_needed:
            tall, wide = checks.size("RandomCrop.size", self.size)
            more_y = max(tall - height - top - bottom, 0)
            more_x = max(wide - width - left - right, 0)
            return left + more_x, top + more_y, right + more_x, bottom + more_y
        return left, top, right, bottom

    def new_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the window, if it fits."""
        size = checks.size("RandomCrop.size", self.size)
        left, top, right, bottom = self.pads(height, width)
        if height + top + bottom < size[0] or width + left + right < size[1]:
            raise ConfigError(
                f"RandomCrop.size is {size[0]}x{size[1]} but the image is only "
                f"{height}x{width}, {height + top + bottom}x{width + left + right} with padding",
                do="use a smaller size, more padding, or pad_if_needed=True",
                field="RandomCrop.size",
            )
        return size

    def check_channels(self, count: int) -> None:
        """Raise ConfigError if `fill` has another number of channels."""
        checks.broadcast("RandomCrop.fill", checks.channels("RandomCrop.fill", self.fill), count)

    def step(self) -> Step:
        """Return the size, the padding and whether to pad more."""
        return [
            *checks.size("RandomCrop.size", self.size),
            *checks.padding("RandomCrop.padding", self.padding),
            int(self.pad_if_needed),
        ], []

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {
            "op": "RandomCrop",
            "size": list(checks.size("size", self.size)),
            "padding": list(checks.padding("padding", self.padding)),
            "pad_if_needed": self.pad_if_needed,
            "fill": list(checks.channels("fill", self.fill)),
            "padding_mode": self.padding_mode,
        }


@dataclass(frozen=True)
class CenterCrop(Op):
    """Cut the centre of `size`; a smaller image is padded with 0, as torchvision does.

    Draws: nothing.
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        checks.size("CenterCrop.size", self.size)

    def new_size(self, height: int, width: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the size of the window."""
        return checks.size("CenterCrop.size", self.size)

    def step(self) -> Step:
        """Return the size."""
        return [*checks.size("CenterCrop.size", self.size)], []

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {"op": "CenterCrop", "size": list(checks.size("size", self.size))}


@dataclass(frozen=True)
class RandomHorizontalFlip(Op):
    """Mirror left and right with chance `p`.

    Draws: block 0, word 0: a flip iff word < round(p * 2**32); p = 0 and p = 1 are exact.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        checks.probability("RandomHorizontalFlip.p", self.p)

    def step(self) -> Step:
        """Return the threshold."""
        return [draw.bernoulli_threshold(float(self.p))], []

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {"op": "RandomHorizontalFlip", "p": float(self.p)}


@dataclass(frozen=True)
class RandomVerticalFlip(Op):
    """Mirror top and bottom with chance `p`.

    Draws: block 0, word 0: a flip iff word < round(p * 2**32); p = 0 and p = 1 are exact.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        checks.probability("RandomVerticalFlip.p", self.p)

    def step(self) -> Step:
        """Return the threshold."""
        return [draw.bernoulli_threshold(float(self.p))], []

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {"op": "RandomVerticalFlip", "p": float(self.p)}


# ---------------------------------------------------------------- resampling
@dataclass(frozen=True)
class Resize(Op):
    """Resample to `size`: bilinear, widened when shrinking (antialias); see `bilinear`.

    Args:
        size: an int: the short side gets this length, the other follows; or (height, width).
        interpolation: "bilinear".

    Draws: nothing.
    """

    size: int | Sequence[int]
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        checks.size("Resize.size", self.size)
        checks.one_of("Resize.interpolation", self.interpolation, ("bilinear",))

    def _exact(self) -> tuple[int, int] | None:
        if isinstance(self.size, Sequence) and len(self.size) == 2:
            return checks.size("Resize.size", self.size)
        return None

    def new_size(self, height: int, width: int) -> tuple[int, int]:
        """Return `size`, or the short side as asked and the long one in proportion, cut down."""
        exact = self._exact()
        if exact:
            return exact
        short = checks.size("Resize.size", self.size)[0]
        if width <= height:
            return max(1, short * height // width), short
        return short, max(1, short * width // height)

    def step(self) -> Step:
        """Return nothing: the box is the whole image."""
        return [], []

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        exact = self._exact()
        size = list(exact) if exact else checks.size("Resize.size", self.size)[0]
        return {"op": "Resize", "size": size, "interpolation": self.interpolation}


@dataclass(frozen=True)
class RandomResizedCrop(Op):
    """Cut a random part of the image and resample it to `size` (bilinear, antialias, as Resize).

    Args:
        size: an int (square) or (height, width).
        scale: range of the part's share of the area.
        ratio: range of the part's width / height, uniform in its logarithm.
        interpolation: "bilinear".

    Draws: attempt k = 0 .. 9 reads block k: word 0 area, word 1 log ratio, word 2 top, word 3
        left; the first that fits in the image counts. If none does: the largest centred part
        with the ratio clamped into its range (torchvision's fallback).
    """

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        checks.size("RandomResizedCrop.size", self.size)
        checks.interval("RandomResizedCrop.scale", self.scale, 0.0, 1.0)
        checks.interval("RandomResizedCrop.ratio", self.ratio, 0.0)
        allowed = ("bilinear",)
        checks.one_of("RandomResizedCrop.interpolation", self.interpolation, allowed)

    def new_size(self, height: int, width: int) -> tuple[int, int]:  # noqa: ARG002
        """Return `size`."""
        return checks.size("RandomResizedCrop.size", self.size)

    def step(self) -> Step:
        """Return the size, and the ranges of area and ratio."""
        low, high = (float(r) for r in self.ratio)
        return [*checks.size("RandomResizedCrop.size", self.size)], [
            *_ranges(self.scale, self.ratio),
            low,
            high,
        ]

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {
            "op": "RandomResizedCrop",
            "size": list(checks.size("size", self.size)),
            "scale": [float(v) for v in self.scale],
            "ratio": [float(v) for v in self.ratio],
            "interpolation": self.interpolation,
        }


# ---------------------------------------------------------------- erasing
@dataclass(frozen=True)
class RandomErasing(Op):
    """Fill a random rectangle with `value`, with chance `p`.

    Before Normalize, `value` is in units of 0 .. 255 as the pixels are; after it, it is written
    as it stands. (torchvision's "random" value is not offered.)

    Args:
        p: chance that anything is erased.
        scale: range of the rectangle's share of the area.
        ratio: range of its height / width, uniform in its logarithm.
        value: a number, or one for each channel.

    Draws: block 0, word 0: the gate, erase iff word < round(p * 2**32). Attempt k = 0 .. 9 reads
        block 1 + k: word 0 area, word 1 log ratio, word 2 top, word 3 left; the first with
        0 < height < H and 0 < width < W counts (torchvision's rule); ten misses: nothing erased.

    Source: Zhong et al., "Random Erasing Data Augmentation" (2017), algorithm 1.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] = 0

    def __post_init__(self) -> None:
        checks.probability("RandomErasing.p", self.p)
        checks.interval("RandomErasing.scale", self.scale, 0.0, 1.0)
        checks.interval("RandomErasing.ratio", self.ratio, 0.0)
        checks.channels("RandomErasing.value", self.value)

    def check_channels(self, count: int) -> None:
        """Raise ConfigError if `value` has another number of channels."""
        values = checks.channels("RandomErasing.value", self.value)
        checks.broadcast("RandomErasing.value", values, count)

    def step(self) -> Step:
        """Return the gate's threshold, and the ranges of area and ratio."""
        return [draw.bernoulli_threshold(float(self.p))], _ranges(self.scale, self.ratio)

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {
            "op": "RandomErasing",
            "p": float(self.p),
            "scale": [float(v) for v in self.scale],
            "ratio": [float(v) for v in self.ratio],
            "value": list(checks.channels("value", self.value)),
        }


def _ranges(scale: Sequence[float], ratio: Sequence[float]) -> list[float]:
    """Return scale low, scale span, log ratio low, log ratio span."""
    log_low, log_high = portable.log(float(ratio[0])), portable.log(float(ratio[1]))
    return [float(scale[0]), float(scale[1]) - float(scale[0]), log_low, log_high - log_low]


# ---------------------------------------------------------------- values, layout
@dataclass(frozen=True)
class ValueOp(Op):
    """An op that maps each value by itself, one map for each channel."""

    def values(self, image: Image, unit: int) -> tuple[Image, int]:
        """Return the mapped image `[H, W, C]` and its unit (255 or 1).

        The defining operations, elementwise in float32; kernels use their table over 0 .. 255.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Normalize(ValueOp):
    """Bring values to (v / 255 - mean) / std, and choose dtype and layout of the finished image.

    Defined as float32(float32(v) * s) - m with s = float32(1 / (255 std)), m = float32(mean / std)
    for each channel, each operation rounded to float32; float16 is that, cast once. Where values
    already are in units of 1 (after ToTensor, as torchvision is used), s = float32(1 / std).

    Args:
        mean, std: a number, or one for each channel, in units of 1.
        preset: instead of them: "none", "mnist", "cifar10" ("cifar"), "imagenet" or "mlperf".
        dtype: "float32" or "float16".
        layout: "CHW" or "HWC".

    Draws: nothing.
    """

    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None
    preset: str | None = None
    dtype: str = "float32"
    layout: str = "CHW"

    # The last three are keyword only, as `inplace` stands third in torchvision's signature.
    def __init__(
        self,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        *,
        preset: str | None = None,
        dtype: str = "float32",
        layout: str = "CHW",
    ) -> None:
        for name, value in (
            ("mean", mean),
            ("std", std),
            ("preset", preset),
            ("dtype", dtype),
            ("layout", layout),
        ):
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if checks.dtype("Normalize.dtype", self.dtype) == "uint8":
            raise checks.refuse("Normalize.dtype", "'float32' or 'float16'", self.dtype)
        checks.one_of("Normalize.layout", self.layout, checks.LAYOUTS)
        if self.preset is not None:
            checks.one_of("Normalize.preset", self.preset, tuple(PRESETS))
            if self.mean is not None or self.std is not None:
                raise ConfigError(
                    f"Normalize.preset is {self.preset!r} but mean or std is given as well",
                    do="give either a preset or mean and std",
                    field="Normalize.preset",
                )
            return
        if self.mean is None or self.std is None:
            field = "Normalize.mean" if self.mean is None else "Normalize.std"
            raise ConfigError(
                f"{field} is missing",
                do=f"give mean and std, or a preset: {', '.join(PRESETS)}",
                field=field,
            )
        checks.channels("Normalize.mean", self.mean)
        if any(not s > 0.0 for s in checks.channels("Normalize.std", self.std)):
            raise checks.refuse("Normalize.std", "greater than 0", self.std)

    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std, in units of 1."""
        if self.preset is not None:
            return PRESETS[self.preset]
        return checks.channels("Normalize.mean", self.mean), checks.channels(
            "Normalize.std", self.std
        )

    def check_channels(self, count: int) -> None:
        """Raise ConfigError if mean or std has another number of channels."""
        self.coefficients(count, 255)

    def coefficients(self, count: int, unit: int) -> tuple[Image, Image]:
        """Return s and m: float32[count]."""
        mean, std = self.mean_std()
        means = checks.broadcast(f"Normalize.{self._source('mean')}", mean, count)
        stds = checks.broadcast(f"Normalize.{self._source('std')}", std, count)
        s = np.array([1.0 / (unit * b) for b in stds], np.float64).astype(np.float32)
        m = np.array([a / b for a, b in zip(means, stds, strict=True)], np.float64)
        return s, m.astype(np.float32)

    def _source(self, name: str) -> str:
        return "preset" if self.preset is not None else name

    def values(self, image: Image, unit: int) -> tuple[Image, int]:
        """Return the normalised image."""
        s, m = self.coefficients(image.shape[2], 255 if image.dtype == np.uint8 else unit)
        out = image.astype(np.float32)
        out *= s
        out -= m
        return out.astype(checks.dtype("Normalize.dtype", self.dtype), copy=False), 1

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data; a preset is written out."""
        mean, std = self.mean_std()
        return {
            "op": "Normalize",
            "mean": list(mean),
            "std": list(std),
            "dtype": checks.dtype("dtype", self.dtype),
            "layout": self.layout,
        }


@dataclass(frozen=True)
class ToDtype(ValueOp):
    """Cast to "float32", "float16" or "uint8".

    With scale=True values in units of 0 .. 255 become float32(v) / 255 (a true division), and
    values in units of 1 become uint8 by float32(v) * 255.999 cut down, as in torchvision. A float
    without scale becomes uint8 cut down and clamped to 0 .. 255.

    Draws: nothing.
    """

    dtype: Any = "float32"
    scale: bool = False

    def __post_init__(self) -> None:
        checks.dtype("ToDtype.dtype", self.dtype)
        checks.flag("ToDtype.scale", self.scale)

    def values(self, image: Image, unit: int) -> tuple[Image, int]:
        """Return the cast image."""
        dtype = checks.dtype("ToDtype.dtype", self.dtype)
        if image.dtype == np.uint8:
            unit = 255
        if dtype == "uint8":
            if image.dtype == np.uint8:
                return image, 255
            wide = image.astype(np.float32)
            if self.scale and unit == 1:
                wide *= np.float32(255.999)
                unit = 255
            return np.clip(np.trunc(wide), 0.0, 255.0).astype(np.uint8), unit
        out = image.astype(np.float32)
        if self.scale and unit == 255:
            out /= np.float32(255.0)
            unit = 1
        return out.astype(dtype, copy=False), unit

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {
            "op": "ToDtype",
            "dtype": checks.dtype("dtype", self.dtype),
            "scale": self.scale,
        }


@dataclass(frozen=True)
class ToTensor(ValueOp):
    """Make a float32 image in [0, 1], laid out CHW: ToDtype("float32", scale=True) and ToLayout.

    Draws: nothing.
    """

    def values(self, image: Image, unit: int) -> tuple[Image, int]:
        """Return the scaled image."""
        return ToDtype("float32", scale=True).values(image, unit)


@dataclass(frozen=True)
class ToLayout(Op):
    """Lay the image out as "CHW" or "HWC". Draws: nothing."""

    layout: str = "CHW"

    def __post_init__(self) -> None:
        checks.one_of("ToLayout.layout", self.layout, checks.LAYOUTS)

    def describe(self) -> dict[str, Any]:
        """Return the op as JSON-able data."""
        return {"op": "ToLayout", "layout": self.layout}


def layout_after(op: Any, layout: str) -> str:
    """Return how the image is laid out after an op that found it in `layout`."""
    if isinstance(op, Normalize | ToLayout):
        return op.layout
    return "CHW" if isinstance(op, ToTensor) else layout
