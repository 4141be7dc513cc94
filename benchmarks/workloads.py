"""The seven workloads: their data, and the transforms a competent user writes in numpy and OpenCV.

Every loader, ours too, gets the same data and delivers the same kind of batch, which the consumer
sums. Labels are sample indices, so that coverage and order can be checked. Imports numpy alone at
the top: each peer's virtual environment has that much.

    W1  50,000 images 32x32 in memory: crop (pad 4), flip, normalise, erase .25        batch 512
    W2  2,000 JPEGs of about 500x375: random resized crop 224, flip, normalise, erase  batch 64
    W3  the same, decoded before to 256x256: random resized crop 224, flip, normalise  batch 64
    W4  64 M uint16 tokens: windows of 1,024 in random order, as int64                 batch 32
    W5  131,072 items of 4 bytes as they are                                           batch 256
    W6  W1's data through a plain Dataset, one sample at a time in numpy               batch 512
    W7  W2, where opening 10 % of the files takes 20 ms more (see `slow_files.c`)      batch 64
    R   10,000,000 items of 4 bytes, to resume in                                      batch 1,000
"""

import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(os.environ.get("SAMEBATCH_BENCH_DATA", Path(__file__).parent / "data"))
MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], np.float32) * 255
SCALE = (1 / STD).astype(np.float32)
SHIFT = (-MEAN / STD).astype(np.float32)
WINDOW = 1024


@dataclass(frozen=True)
class Work:
    """One workload.

    Attributes:
        name, text: "W1", and what it is.
        batch, count: samples of a batch and of an epoch.
        folder: where its data lies.
    """

    name: str
    text: str
    batch: int
    count: int
    folder: Path

    @property
    def steps(self) -> int:
        """Batches of an epoch; a short last one is left out by all."""
        return self.count // self.batch

    @property
    def kind(self) -> str:
        """The workload whose data and transforms it has."""
        return {"W6": "W1", "W7": "W2", "R": "W5"}.get(self.name, self.name)


# name: text, batch, count, count of a smoke test
_TABLE = {
    "W1": ("32x32 images in memory: crop, flip, normalise, erase", 512, 50_000, 4_096),
    "W2": ("JPEGs of about 500x375: random resized crop, flip, normalise, erase", 64, 2_000, 128),
    "W3": ("decoded 256x256 images: random resized crop, flip, normalise", 64, 2_000, 128),
    "W4": ("windows of 1,024 tokens of a file of 64 M", 32, 65_536, 1_024),
    "W5": ("4-byte items as they are", 256, 131_072, 8_192),
    "W6": ("W1 through a plain Dataset, sample by sample in numpy", 512, 50_000, 4_096),
    "W7": ("W2 with 10 % of the files slow to open", 64, 2_000, 128),
    "R": ("4-byte items, to resume in", 1_000, 10_000_000, 100_000),
}
NAMES = tuple(_TABLE)


def work(name: str, quick: bool = False) -> Work:
    """Return a workload; `quick`: the tiny one of a smoke test."""
    text, batch, count, tiny = _TABLE[name]
    if quick:
        return Work(name, text, batch, tiny, DATA / "quick")
    return Work(name, text, batch, count, DATA / "full")


# ---------------------------------------------------------------- data
@functools.cache
def images(folder: Path) -> np.ndarray:
    """W1: u8[N, 32, 32, 3], in memory."""
    return np.load(folder / "images32.npy")


@functools.cache
def packed(folder: Path) -> np.ndarray:
    """W3: u8[N, 256, 256, 3], mapped."""
    return np.load(folder / "images256.npy", mmap_mode="r")


@functools.cache
def paths(folder: Path) -> list[str]:
    """W2: the files, in the order of sample indices."""
    lines = (folder / "jpegs.txt").read_text().splitlines()
    return [str(folder / line) for line in lines]


@functools.cache
def windows(folder: Path) -> np.ndarray:
    """W4: u16[N, 1024], mapped."""
    return np.memmap(folder / "tokens.bin", np.uint16, "r").reshape(-1, WINDOW)


@functools.cache
def items(count: int) -> np.ndarray:
    """W5: i32[N]."""
    return np.arange(count, dtype=np.int32)


def load(one: Work) -> None:
    """Load what lies in memory: for a user too, that happens before there is a loader."""
    if one.kind == "W1":
        images(one.folder)
    elif one.kind == "W5":
        items(one.count)


def raw(one: Work, i: int) -> Any:
    """Return an item as it is stored: pixels, the bytes of a file, tokens, a number."""
    if one.kind == "W1":
        return images(one.folder)[i]
    if one.kind == "W2":
        return Path(paths(one.folder)[i]).read_bytes()
    if one.kind == "W3":
        return packed(one.folder)[i]
    if one.kind == "W4":
        return windows(one.folder)[i]
    return int(items(one.count)[i])


# ---------------------------------------------------------------- one sample at a time
def resized_crop_box(h: int, w: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return (top, left, height, width), as torchvision's RandomResizedCrop draws them."""
    lo, hi = math.log(3 / 4), math.log(4 / 3)
    for _ in range(10):
        area, aspect = h * w * rng.uniform(0.08, 1.0), math.exp(rng.uniform(lo, hi))
        cw, ch = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < cw <= w and 0 < ch <= h:
            return int(rng.integers(0, h - ch + 1)), int(rng.integers(0, w - cw + 1)), ch, cw
    side = min(h, w)
    return (h - side) // 2, (w - side) // 2, side, side


def erase(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Erase one rectangle of f32[C, H, W] in place, as torchvision's RandomErasing, p = 0.25."""
    if rng.random() >= 0.25:
        return x
    _, h, w = x.shape
    lo, hi = math.log(0.3), math.log(3.3)
    for _ in range(10):
        area, aspect = h * w * rng.uniform(0.02, 0.33), math.exp(rng.uniform(lo, hi))
        eh, ew = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if eh < h and ew < w:
            top, left = int(rng.integers(0, h - eh + 1)), int(rng.integers(0, w - ew + 1))
            x[:, top : top + eh, left : left + ew] = 0
            break
    return x


def normalise(image: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return u8[H, W, 3] as f32[3, H, W]: split, then two passes, the fastest plain way found."""
    import cv2

    if out is None:
        out = np.empty((3, *image.shape[:2]), np.float32)
    for channel, plane in enumerate(cv2.split(image)):
        np.multiply(plane, SCALE[channel], out=out[channel], dtype=np.float32)
        out[channel] += SHIFT[channel]
    return out


def augment32(
    image: np.ndarray, rng: np.random.Generator, out: np.ndarray | None = None
) -> np.ndarray:
    """W1: return f32[3, 32, 32]."""
    padded = np.zeros((40, 40, 3), np.uint8)
    padded[4:36, 4:36] = image
    top, left = int(rng.integers(0, 9)), int(rng.integers(0, 9))
    crop = padded[top : top + 32, left : left + 32]
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    planes = np.ascontiguousarray(crop.transpose(2, 0, 1))  # at 32x32 faster than cv2.split
    out = np.multiply(planes, SCALE.reshape(3, 1, 1), out=out, dtype=np.float32)
    out += SHIFT.reshape(3, 1, 1)
    return erase(out, rng)


def augment224(
    image: np.ndarray,
    rng: np.random.Generator,
    out: np.ndarray | None = None,
    erasing: bool = True,
) -> np.ndarray:
    """W2 and W3 with OpenCV: return f32[3, 224, 224]."""
    import cv2

    top, left, h, w = resized_crop_box(*image.shape[:2], rng)
    crop = image[top : top + h, left : left + w]
    crop = cv2.resize(crop, (224, 224), interpolation=cv2.INTER_LINEAR)
    if rng.random() < 0.5:
        crop = cv2.flip(crop, 1)
    x = normalise(crop, out)
    return erase(x, rng) if erasing else x


def decode(data: bytes) -> np.ndarray:
    """Return the pixels u8[H, W, 3] of a JPEG, by OpenCV."""
    import cv2

    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def opencv(data: bytes, rng: np.random.Generator, out: np.ndarray | None = None) -> np.ndarray:
    """W2 with OpenCV."""
    return augment224(decode(data), rng, out)


def pillow(data: bytes, rng: np.random.Generator, out: np.ndarray | None = None) -> np.ndarray:
    """W2 with Pillow, as torchvision's default path does it."""
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    top, left, h, w = resized_crop_box(image.size[1], image.size[0], rng)
    image = image.crop((left, top, left + w, top + h)).resize((224, 224), Image.BILINEAR)
    if rng.random() < 0.5:
        image = image.transpose(Image.FLIP_LEFT_RIGHT)
    return erase(normalise(np.asarray(image), out), rng)


def finish(
    one: Work,
    item: Any,
    rng: np.random.Generator,
    out: np.ndarray | None = None,
    jpeg: Any = opencv,
) -> Any:
    """Return the finished sample of a stored item."""
    if one.kind == "W1":
        return augment32(item, rng, out)
    if one.kind == "W2":
        return jpeg(item, rng, out)
    if one.kind == "W3":
        return augment224(item, rng, out, erasing=False)
    if one.kind == "W4":
        return item.astype(np.int64)
    return item


# ---------------------------------------------------------------- a whole batch at a time
@functools.cache
def _render32() -> Any:
    import numba

    @numba.njit(nogil=True, cache=True)
    def render(source, ids, tops, lefts, flips, boxes, scale, shift, out):
        for n in range(len(ids)):
            image, top, left = source[ids[n]], tops[n] - 4, lefts[n] - 4
            for c in range(3):
                plane, a, b = out[n, c], scale[c], shift[c]
                for i in range(32):
                    y = i + top
                    if y < 0 or y >= 32:
                        for j in range(32):
                            plane[i, j] = b
                    else:
                        row = image[y]
                        for j in range(32):
                            x = (31 - j if flips[n] else j) + left
                            plane[i, j] = np.float32(row[x, c]) * a + b if 0 <= x < 32 else b
                for i in range(boxes[n, 0], boxes[n, 1]):
                    for j in range(boxes[n, 2], boxes[n, 3]):
                        plane[i, j] = 0

    return render


def batch32(source: np.ndarray, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """W1 as an expert writes it once per-sample Python hurts: drawn in numpy, one fused kernel."""
    n = len(ids)
    tops, lefts = rng.integers(0, 9, n), rng.integers(0, 9, n)
    flips = rng.random(n) < 0.5
    boxes = np.zeros((n, 4), np.int64)
    erased = np.flatnonzero(rng.random(n) < 0.25)
    m = len(erased)
    area = 1024 * rng.uniform(0.02, 0.33, m)
    aspect = np.exp(rng.uniform(math.log(0.3), math.log(3.3), m))
    h = np.minimum(31, np.rint(np.sqrt(area * aspect))).astype(np.int64)
    w = np.minimum(31, np.rint(np.sqrt(area / aspect))).astype(np.int64)
    y, x = (rng.random(m) * (33 - h)).astype(np.int64), (rng.random(m) * (33 - w)).astype(np.int64)
    boxes[erased] = np.stack([y, y + h, x, x + w], 1)
    out = np.empty((n, 3, 32, 32), np.float32)
    _render32()(source, np.asarray(ids, np.int64), tops, lefts, flips, boxes, SCALE, SHIFT, out)
    return out


def batch(one: Work, ids: Any, rng: np.random.Generator, jpeg: Any = opencv) -> np.ndarray:
    """Return a finished batch."""
    ids = np.asarray(ids)
    if one.kind == "W1":
        return batch32(images(one.folder), ids, rng)
    if one.kind in ("W2", "W3"):
        out = np.empty((len(ids), 3, 224, 224), np.float32)
        for k, i in enumerate(ids):
            finish(one, raw(one, i), rng, out[k], jpeg)
        return out
    if one.kind == "W4":
        return windows(one.folder)[ids].astype(np.int64)
    return items(one.count)[ids]


class PlainImages:
    """W6: a Dataset as users have it, drawing from `numpy.random`; nothing of ours in it."""

    def __init__(self, source: np.ndarray) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        image = np.pad(self.source[i], ((4, 4), (4, 4), (0, 0)))
        top, left = np.random.randint(0, 9, 2)
        image = image[top : top + 32, left : left + 32]
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        x = (image.transpose(2, 0, 1) - MEAN.reshape(3, 1, 1)) / STD.reshape(3, 1, 1)
        if np.random.rand() < 0.25:
            h, w = np.random.randint(4, 20, 2)
            top, left = np.random.randint(0, 33 - h), np.random.randint(0, 33 - w)
            x[:, top : top + h, left : left + w] = 0
        return x, i
