"""Makes the data of all workloads, the same bytes each time; nothing is downloaded.

    python benchmarks/data.py [--quick]

Needs numpy, Pillow and OpenCV. The JPEGs are 1/f noise with soft shapes and grain: quality 90, mean
69 KB, as photographs of ImageNet's size are.
"""

import argparse
import os
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import workloads

# (width, height): how many of 100
SIZES = {
    (500, 375): 40, (375, 500): 12, (500, 333): 14, (333, 500): 6, (500, 400): 5, (400, 300): 5,
    (500, 500): 4, (640, 480): 5, (480, 360): 4, (320, 240): 2, (256, 256): 1, (800, 600): 1,
    (1024, 768): 1,
}  # fmt: skip
CLASSES = 100


def generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=list(key)))


def picture(rng: np.random.Generator, w: int, h: int) -> np.ndarray:
    """Return u8[h, w, 3] that compresses like a photograph."""
    import cv2

    made = np.zeros((h, w, 3), np.float32)
    slope = rng.uniform(0.58, 0.82)  # amplitude falls with each octave, as in natural images
    cells, amplitude = 4, 60.0
    while cells < max(w, h):
        shape = max(2, cells * h // max(w, h)), max(2, cells * w // max(w, h)), 3
        noise = rng.standard_normal(shape).astype(np.float32)
        noise[..., 1:] *= 0.55
        made += cv2.resize(noise, (w, h), interpolation=cv2.INTER_CUBIC) * amplitude
        amplitude *= slope
        cells *= 2
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    tilt = (x / w - 0.5) * rng.uniform(-60, 60) + (y / h - 0.5) * rng.uniform(-60, 60)
    made += tilt[..., None]
    for _ in range(rng.integers(3, 9)):  # things with soft edges
        centre = int(rng.integers(0, w)), int(rng.integers(0, h))
        axes = int(rng.integers(0, w // 3)), int(rng.integers(0, h // 3))
        mask = np.zeros((h, w), np.float32)
        cv2.ellipse(mask, centre, axes, float(rng.uniform(0, 180)), 0, 360, 1.0, -1)
        mask = cv2.GaussianBlur(mask, (0, 0), rng.uniform(0.6, 2.5))[..., None]
        colour = rng.standard_normal(3).astype(np.float32) * np.array([55, 25, 25], np.float32)
        step, turn = rng.uniform(0.05, 0.6), rng.uniform(0, np.pi)
        wave = np.sin((x * np.cos(turn) + y * np.sin(turn)) * step)[..., None]
        made = made * (1 - 0.7 * mask) + mask * (colour + wave * rng.uniform(0, 18))
    grain = rng.standard_normal((h, w)).astype(np.float32) * rng.uniform(2.0, 8.0)
    made[..., 0] += grain + 120
    made[..., 1:] += 128
    return cv2.cvtColor(np.clip(made, 0, 255).astype(np.uint8), cv2.COLOR_YCrCb2RGB)


def jpeg(job: tuple[Path, int]) -> tuple[str, np.ndarray]:
    """Write one file; return its path and the picture at 256x256."""
    import cv2
    from PIL import Image

    folder, i = job
    cv2.setNumThreads(1)
    rng = generator(i, 7)
    sizes = [size for size, many in SIZES.items() for _ in range(many)]
    w, h = sizes[int(rng.integers(0, len(sizes)))]
    image = picture(rng, w, h)
    path = f"jpegs/c{i % CLASSES:03d}/{i:05d}.jpg"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(folder / path, quality=90)
    scale = 256 / min(w, h)
    w, h = max(256, round(w * scale)), max(256, round(h * scale))
    small = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA)
    top, left = (h - 256) // 2, (w - 256) // 2
    return path, small[top : top + 256, left : left + 256]


def make(quick: bool) -> Path:
    """Make what is not there yet; return the folder."""
    one = workloads.work("W1", quick)
    folder = one.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "images32.npy").exists():
        rng = generator(1, 1)
        images = rng.integers(0, 256, (one.count, 32, 32, 3), dtype=np.uint8)
        _whole(folder / "images32.npy", lambda path: np.save(path, images))
    if not (folder / "tokens.bin").exists():
        count = workloads.work("W4", quick).count * workloads.WINDOW
        tokens = generator(2, 1).integers(0, 32_000, count, dtype=np.uint16)
        _whole(folder / "tokens.bin", tokens.tofile)
    if not (folder / "jpegs.txt").exists():  # written last
        count = workloads.work("W2", quick).count
        packed = np.lib.format.open_memmap(
            folder / "images256.npy", "w+", np.uint8, (count, 256, 256, 3)
        )
        names = []
        with Pool(os.cpu_count()) as pool:
            made = pool.imap(jpeg, [(folder, i) for i in range(count)], chunksize=8)
            for i, (path, small) in enumerate(made):
                packed[i] = small
                names.append(path)
        packed.flush()
        _whole(folder / "jpegs.txt", lambda path: path.write_text("\n".join(names) + "\n"))
    return folder


def _whole(path: Path, write) -> None:
    """Write a file under another name first: one cut short is not taken for a whole one."""
    part = path.with_name("part-" + path.name)
    write(part)
    part.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the tiny data of a smoke test")
    folder = make(parser.parse_args().quick)
    sizes = np.array([os.path.getsize(path) for path in workloads.paths(folder)]) / 1e3
    print(
        f"{folder}: {len(sizes)} JPEGs of {sizes.mean():.1f} KB on average "
        f"(median {np.median(sizes):.1f}, most {sizes.max():.1f})"
    )


if __name__ == "__main__":
    main()
