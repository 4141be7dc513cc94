"""A slow second implementation of the chain: plain ints for draws, numpy for pixels.

It shares no code with the package: Philox, addresses, draws, geometry and values are written out
again, each op by itself, in the order of the chain.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = {
    "RandomCrop": 1,
    "RandomResizedCrop": 2,
    "RandomHorizontalFlip": 3,
    "RandomErasing": 4,
    "RandomVerticalFlip": 5,
}
PRESETS = {
    "mnist": ([0.1307], [0.3081]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}


def philox(counter: list[int], key: int) -> list[int]:
    c, k = list(counter), [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@dataclass
class Address:
    position: int
    phase: int
    key: int
    lanes: int

    def block(self, number: int, b: int, purpose: int = 3) -> list[int]:
        n, lane = self.position // self.lanes, self.position % self.lanes
        at = n * 2**24 + b
        site = purpose * 2**24 + number * 2**16 + lane
        return philox([at % 2**32, at // 2**32, self.phase, site], self.key)

    def below(self, number: int, b: int, j: int, k: int, count: int) -> int:
        word = self.block(number, b)[j]
        for r in range(1, 256):
            if word * count % 2**32 >= 2**32 % count:
                break
            word = self.block(number, 0x10000 + k * 256 + r)[j]
        return word * count // 2**32

    def unit(self, number: int, b: int, j: int) -> float:
        return (self.block(number, b)[j] >> 8) / 2**24

    def hit(self, number: int, p: float) -> bool:
        return self.block(number, 0)[0] < round(p * 2**32)


def numbers(ops: list[Any]) -> list[int]:
    seen: dict[str, int] = {}
    out = []
    for op in ops:
        name = type(op).__name__
        out.append(KINDS.get(name, 0) * 8 + seen.get(name, 0))
        seen[name] = seen.get(name, 0) + 1
    return out


def shape_of_attempt(
    at: Address, number: int, b: int, area: int, scale: Any, ratio: Any
) -> tuple[float, float]:
    share = area * (scale[0] + at.unit(number, b, 0) * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = math.exp(low + at.unit(number, b, 1) * (high - low))
    return math.sqrt(share * aspect), math.sqrt(share / aspect)


def erase_rectangle(
    at: Address, number: int, op: Any, height: int, width: int
) -> tuple[int, int, int, int] | None:
    if not at.hit(number, op.p):
        return None
    for k in range(10):
        tall, wide = shape_of_attempt(at, number, 1 + k, height * width, op.scale, op.ratio)
        h, w = round(tall), round(wide)
        if 0 < h < height and 0 < w < width:
            top = at.below(number, 1 + k, 2, k, height - h + 1)
            left = at.below(number, 1 + k, 3, k, width - w + 1)
            return top, left, h, w
    return None


def resized_box(
    at: Address, number: int, op: Any, height: int, width: int
) -> tuple[int, int, int, int]:
    for k in range(10):
        wide, tall = shape_of_attempt(at, number, k, height * width, op.scale, op.ratio)
        h, w = round(tall), round(wide)
        if 0 < w <= width and 0 < h <= height:
            top = at.below(number, k, 2, k, height - h + 1)
            left = at.below(number, k, 3, k, width - w + 1)
            return top, left, h, w
    h, w = height, width
    if width / height < op.ratio[0]:
        h = min(height, max(1, round(width / op.ratio[0])))
    elif width / height > op.ratio[1]:
        w = min(width, max(1, round(height * op.ratio[1])))
    return (height - h) // 2, (width - w) // 2, h, w


def sides(padding: Any) -> tuple[int, int, int, int]:
    values = [0] if padding is None else [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = (values * 4)[:4]
    return left, top, right, bottom


def per_channel(value: Any, count: int, dtype: Any) -> np.ndarray:
    values = np.array(value, np.float32).reshape(-1)
    return np.broadcast_to(values, (count,)).astype(dtype)


def pad(image: np.ndarray, left: int, top: int, right: int, bottom: int, fill: Any, mode: str):
    around = ((top, bottom), (left, right))
    planes = []
    for c in range(image.shape[2]):
        if mode == "constant":
            value = per_channel(fill, image.shape[2], image.dtype)[c]
            planes.append(np.pad(image[:, :, c], around, constant_values=value))
        else:
            planes.append(np.pad(image[:, :, c], around, mode=mode))
    return np.stack(planes, axis=2)


def random_crop(at: Address, number: int, op: Any, image: np.ndarray) -> np.ndarray:
    th, tw = (op.size, op.size) if isinstance(op.size, int) else op.size
    image = pad(image, *sides(op.padding), op.fill, op.padding_mode)
    if op.pad_if_needed:
        x, y = max(tw - image.shape[1], 0), max(th - image.shape[0], 0)
        image = pad(image, x, y, x, y, op.fill, op.padding_mode)
    top = at.below(number, 0, 0, 0, image.shape[0] - th + 1)
    left = at.below(number, 0, 1, 0, image.shape[1] - tw + 1)
    return image[top : top + th, left : left + tw]


def center_crop(op: Any, image: np.ndarray) -> np.ndarray:
    th, tw = (op.size, op.size) if isinstance(op.size, int) else op.size
    h, w = image.shape[:2]
    y, x = max(th - h, 0), max(tw - w, 0)
    image = pad(image, x // 2, y // 2, (x + 1) // 2, (y + 1) // 2, 0, "constant")
    top, left = round((image.shape[0] - th) / 2.0), round((image.shape[1] - tw) / 2.0)
    return image[top : top + th, left : left + tw]


def weights(size: int, start: int, length: int, outputs: int) -> np.ndarray:
    """Return Pillow's integer weights as a matrix [outputs, size]."""
    out = np.zeros((outputs, size), np.int64)
    scale = length / outputs
    support = max(scale, 1.0)
    for x in range(outputs):
        center = start + (x + 0.5) * scale
        first = max(int(center - support + 0.5), 0)
        end = min(int(center + support + 0.5), size)
        shares = [
            max(1.0 - abs((i - center + 0.5) * (1.0 / support)), 0.0) for i in range(first, end)
        ]
        total = 0.0
        for share in shares:
            total += share
        out[x, first:end] = [int(0.5 + share / total * 2**22) for share in shares]
    return out


def resample(image: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int]):
    """Rows first, then columns, each rounded to a byte."""
    top, left, h, w = box
    along = weights(image.shape[1], left, w, size[1])
    down = weights(image.shape[0], top, h, size[0])
    middle = (np.einsum("xi,yic->yxc", along, image.astype(np.int64)) + 2**21) >> 22
    out = (np.einsum("yi,ixc->yxc", down, np.minimum(middle, 255)) + 2**21) >> 22
    return np.minimum(out, 255).astype(np.uint8)


def normalize(op: Any, image: np.ndarray, unit: int) -> np.ndarray:
    mean, std = PRESETS[op.preset] if op.preset else (op.mean, op.std)
    count = image.shape[2]
    means = np.broadcast_to(np.array(mean, np.float64).reshape(-1), (count,))
    stds = np.broadcast_to(np.array(std, np.float64).reshape(-1), (count,))
    out = np.empty(image.shape, np.float32)
    for c in range(count):
        s, m = np.float32(1.0 / (unit * stds[c])), np.float32(means[c] / stds[c])
        out[:, :, c] = image[:, :, c].astype(np.float32) * s - m
    return out.astype(op.dtype)


def apply(ops: list[Any], image: np.ndarray, at: Address) -> np.ndarray:
    """Return the finished image: every op by itself, in order."""
    unit, layout = 255, "HWC"
    for op, number in zip(ops, numbers(ops), strict=True):
        name = type(op).__name__
        h, w, count = image.shape
        if name == "RandomCrop":
            image = random_crop(at, number, op, image)
        elif name == "CenterCrop":
            image = center_crop(op, image)
        elif name == "Resize":
            size = op.size
            if isinstance(size, int):
                size = (
                    (max(1, int(size * h / w)), size)
                    if w <= h
                    else (size, max(1, int(size * w / h)))
                )
            image = resample(image, (0, 0, h, w), size)
        elif name == "RandomResizedCrop":
            size = (op.size, op.size) if isinstance(op.size, int) else op.size
            image = resample(image, resized_box(at, number, op, h, w), size)
        elif name == "RandomHorizontalFlip":
            image = image[:, ::-1] if at.hit(number, op.p) else image
        elif name == "RandomVerticalFlip":
            image = image[::-1] if at.hit(number, op.p) else image
        elif name == "RandomErasing":
            found = erase_rectangle(at, number, op, h, w)
            if found:
                top, left, tall, wide = found
                image = image.copy()
                value = per_channel(op.value, count, image.dtype)
                image[top : top + tall, left : left + wide] = value
        elif name == "Normalize":
            image = normalize(op, image, 255 if image.dtype == np.uint8 else unit)
            unit, layout = 1, op.layout
        elif name == "ToTensor" or (name == "ToDtype" and op.dtype != "uint8"):
            scale = name == "ToTensor" or op.scale
            dtype = "float32" if name == "ToTensor" else op.dtype
            was = 255 if image.dtype == np.uint8 else unit
            image = image.astype(np.float32)
            if scale and was == 255:
                image, unit = image / np.float32(255), 1
            image = image.astype(dtype)
            layout = "CHW" if name == "ToTensor" else layout
        elif name == "ToLayout":
            layout = op.layout
    return np.ascontiguousarray(image.transpose(2, 0, 1) if layout == "CHW" else image)
