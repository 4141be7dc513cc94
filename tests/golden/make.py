"""Golden digests of whole phases, one file for each STREAM_VERSION: `python tests/golden/make.py`.

Run by hand only, when STREAM_VERSION was raised: what is in a file of an earlier version is the
promise that was given, and never changes.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

import rng  # noqa: E402
from pipeline import DataLoader, datasets  # noqa: E402
from pipeline import transforms as T  # noqa: E402
from tests.helpers import leaves  # noqa: E402

EPOCHS = 2


def pixels(n, height, width, channels=3):
    """uint8[n, height, width, channels]: bytes of Philox words; no file, no download."""
    nbytes = n * height * width * channels
    counters = np.zeros((-(-nbytes // 16), 4), np.uint32)
    counters[:, 0] = np.arange(len(counters))
    words = rng.philox4x32(counters, np.array([2024, 0], np.uint32)).astype("<u4")
    return words.reshape(-1).view(np.uint8)[:nbytes].reshape(n, height, width, channels)


def arrays():
    """101 images in memory with their labels."""
    return datasets.ArrayDataset(pixels(101, 32, 32), np.arange(101) % 10)


def folder(root):
    """24 PNG files in three class folders; PNG holds every pixel, whatever library reads it."""
    source = pixels(24, 20, 24)
    for i in range(24):
        path = Path(root) / f"class{i % 3}" / f"{i:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(source[i]).save(path)
    return datasets.ImageFolder(root)


def noise(sample, stream):
    """A function of the user that draws from its own stream."""
    image, label = sample
    values = np.asarray(image).astype(np.float64) + stream.uniform(-4, 4, np.shape(image))
    return np.clip(np.rint(values), 0, 255).astype(np.uint8), label


STANDARD = [
    T.RandomCrop(32, padding=4),
    T.RandomHorizontalFlip(),
    T.Normalize(preset="cifar10"),
    T.RandomErasing(p=0.25),
]


def phases(root):
    """{name: (data set, options)}."""
    data, files = arrays(), folder(root)
    plain = {"batch_size": 16, "shuffle": True, "seed": 123, "transforms": STANDARD}
    small = [T.RandomCrop(16), T.RandomHorizontalFlip(), T.Normalize(preset="imagenet")]
    return {
        "arrays": (data, plain),
        "arrays, seed 2**63 + 5": (data, plain | {"seed": 2**63 + 5}),
        "arrays, val": (data, plain | {"split": "val"}),
        "arrays, split of another name": (data, plain | {"split": "probe"}),
        "arrays, 1 lane": (data, plain | {"lanes": 1}),
        "arrays, 1000 lanes": (data, plain | {"lanes": 1000}),
        "arrays, in order": (data, plain | {"shuffle": False}),
        "arrays, no transforms": (data, plain | {"transforms": []}),
        "arrays, float16 and HWC": (
            data,
            plain | {"transforms": [*STANDARD, T.ToDtype("float16"), T.ToLayout("HWC")]},
        ),
        "arrays, a function of the user first": (data, plain | {"transforms": [noise, *STANDARD]}),
        "folder": (files, plain | {"batch_size": 5, "transforms": small}),
        "folder, resized": (
            files,
            plain | {"batch_size": 5, "transforms": [T.RandomResizedCrop(16), T.ToTensor()]},
        ),
    }


def digest(dataset, options, **how):
    """SHA-256 of positions, ids and bytes of the first epochs, batch by batch."""
    h = hashlib.sha256()
    with DataLoader(dataset, **options | how) as loader:
        for _ in range(EPOCHS):
            for batch in loader:
                h.update(loader.last.positions.astype("<u8").tobytes())
                h.update(loader.last.sample_ids.astype("<i8").tobytes())
                for array in leaves(batch):
                    h.update(f"{array.dtype.str}{array.shape}".encode())
                    h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


def main():
    path = HERE / f"v{rng.STREAM_VERSION}.json"
    with tempfile.TemporaryDirectory() as root:
        digests = {name: digest(*of) for name, of in phases(root).items()}
    facts = {"stream_version": rng.STREAM_VERSION, "epochs": EPOCHS, "phases": digests}
    path.write_text(json.dumps(facts, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
