"""NVIDIA DALI, on the processor."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import workloads
from workloads import Work

from peers import Adapter


def prepare(one: Work) -> None:
    """W3: one .npy file for each picture."""
    folder = one.folder / "npy"
    done = folder / "done"
    if done.exists():
        return
    folder.mkdir(exist_ok=True)
    for i in range(one.count):
        np.save(folder / f"{i:05d}.npy", workloads.packed(one.folder)[i])
    done.touch()


class Feed:
    """W1, W4 and W5: the sample order and a gather by numpy."""

    def __init__(self, one: Work, seed: int) -> None:
        self.one, self.seed, self.step = one, seed, 0
        self.order = np.zeros(0, np.int64)

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        epoch, step = divmod(self.step, self.one.steps)
        if step == 0:
            self.order = np.random.default_rng([self.seed, epoch]).permutation(self.one.count)
        self.step += 1
        ids = self.order[step * self.one.batch : (step + 1) * self.one.batch]
        if self.one.kind == "W1":
            x = workloads.images(self.one.folder)[ids]
        elif self.one.kind == "W4":
            x = workloads.windows(self.one.folder)[ids]
        else:
            x = workloads.items(self.one.count)[ids].reshape(-1, 1)
        return x, ids.reshape(-1, 1).astype(np.int64)


class Dali(Adapter):
    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        from nvidia.dali import pipeline_def

        del state
        self.one = one

        @pipeline_def(batch_size=one.batch, num_threads=workers, device_id=None, seed=seed)
        def graph() -> Any:
            return _GRAPHS[one.kind](one, seed)

        self.pipeline = graph()
        self.pipeline.build()

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        for _ in range(self.one.steps):
            x, ids = (np.asarray(part.as_tensor()) for part in self.pipeline.run())
            if self.one.kind in ("W4", "W5"):
                yield x.reshape(len(x), -1) if self.one.kind == "W4" else x[:, 0], None
            else:
                yield x, ids.ravel()


def _erased(x: Any) -> Any:
    from nvidia.dali import fn, types
    from nvidia.dali import math as dm

    chosen = fn.cast(fn.random.coin_flip(probability=0.25), dtype=types.FLOAT)
    aspect = dm.exp(fn.random.uniform(range=(math.log(0.3), math.log(3.3))))
    area = fn.random.uniform(range=(0.02, 0.33))
    h = dm.min(dm.sqrt(area * aspect), 0.99) * chosen
    w = dm.min(dm.sqrt(area / aspect), 0.99) * chosen
    top = fn.random.uniform(range=(0.0, 1.0)) * (1 - h)
    left = fn.random.uniform(range=(0.0, 1.0)) * (1 - w)
    return fn.erase(
        x, anchor=fn.stack(top, left), shape=fn.stack(h, w), axis_names="HW", normalized=True,
        fill_value=0,
    )  # fmt: skip


def _normalised(x: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.crop_mirror_normalize(
        x, dtype=types.FLOAT, output_layout="CHW", mean=workloads.MEAN.tolist(),
        std=workloads.STD.tolist(), mirror=fn.random.coin_flip(probability=0.5),
    )  # fmt: skip


def _fed(one: Work, seed: int, layout: str = "") -> Any:
    from nvidia.dali import fn

    source = Feed(one, seed)
    return tuple(fn.external_source(source=source, num_outputs=2, batch=True, layout=[layout, ""]))


def _in_memory(one: Work, seed: int) -> Any:
    from nvidia.dali import fn, types

    x, ids = _fed(one, seed, "HWC")

    def corner() -> Any:
        return fn.cast(fn.random.uniform(range=(0, 8.999)), dtype=types.INT32) - 4

    size = fn.constant(idata=[32, 32])
    x = fn.slice(
        x, fn.stack(corner(), corner()), size, axes=[0, 1], out_of_bounds_policy="pad",
        fill_values=0,
    )  # fmt: skip
    return _erased(_normalised(x)), ids


def _jpegs(one: Work, seed: int) -> Any:
    from nvidia.dali import fn

    data, ids = fn.readers.file(
        files=workloads.paths(one.folder), labels=list(range(one.count)), random_shuffle=True,
        initial_fill=1024, seed=seed, name="reader", pad_last_batch=False,
    )  # fmt: skip
    image = fn.decoders.image_random_crop(
        data, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3],
        seed=seed + 1,
    )  # fmt: skip
    return _erased(_normalised(fn.resize(image, size=(224, 224)))), ids


def _decoded(one: Work, seed: int) -> Any:
    from nvidia.dali import fn, types

    x = fn.readers.numpy(
        file_root=str(one.folder / "npy"), file_filter="*.npy", random_shuffle=True,
        initial_fill=1024, seed=seed, name="reader",
    )  # fmt: skip
    x = fn.random_resized_crop(
        fn.reshape(x, layout="HWC"), size=(224, 224), random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3], seed=seed + 1,
    )  # fmt: skip
    # The reader of .npy files gives no index: this field only keeps the shape of a batch.
    return _normalised(x), fn.cast(fn.random.coin_flip(), dtype=types.INT64)


def _tokens(one: Work, seed: int) -> Any:
    from nvidia.dali import fn, types

    x, ids = _fed(one, seed)
    return fn.cast(x, dtype=types.INT64), ids


_GRAPHS = {"W1": _in_memory, "W2": _jpegs, "W3": _decoded, "W4": _tokens, "W5": _fed}
