"""FFCV: one file, pipelines compiled by numba in every process."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import workloads
from workloads import Work

from peers import Adapter


class Items:
    def __init__(self, one: Work) -> None:
        self.one = one

    def __len__(self) -> int:
        return self.one.count

    def __getitem__(self, i: int) -> tuple[Any, int]:
        item = workloads.raw(self.one, i)
        if self.one.kind == "W2":
            item = workloads.decode(item)
        elif isinstance(item, np.ndarray):
            item = np.array(item)
        return item, i


def prepare(one: Work) -> None:
    from ffcv.fields import IntField, NDArrayField, RGBImageField
    from ffcv.writer import DatasetWriter

    path = one.folder / f"{one.kind}.beton"
    if path.exists():
        return
    fields = {
        "W1": lambda: RGBImageField(write_mode="raw"),
        "W2": lambda: RGBImageField(write_mode="jpg", jpeg_quality=90),
        "W3": lambda: RGBImageField(write_mode="raw"),
        "W4": lambda: NDArrayField(np.dtype("uint16"), (workloads.WINDOW,)),
        "W5": IntField,
    }
    part = path.with_suffix(".part")
    columns = {"x": fields[one.kind](), "y": IntField()}
    DatasetWriter(str(part), columns, num_workers=2).from_indexed_dataset(Items(one))
    part.rename(path)


def erasing() -> Any:
    """Return a RandomErasing operation: FFCV has none that is torchvision's."""
    from dataclasses import replace

    from ffcv.pipeline.compiler import Compiler
    from ffcv.pipeline.operation import Operation

    class RandomErasing(Operation):
        def generate_code(self) -> Any:
            parallel = Compiler.get_iterator()
            low, high = math.log(0.3), math.log(3.3)

            def erase(images, *_):
                for n in parallel(images.shape[0]):
                    if np.random.rand() < 0.25:
                        h, w = images.shape[1], images.shape[2]
                        area = h * w * np.random.uniform(0.02, 0.33)
                        aspect = math.exp(np.random.uniform(low, high))
                        eh = min(h - 1, int(math.sqrt(area * aspect)))
                        ew = min(w - 1, int(math.sqrt(area / aspect)))
                        top = np.random.randint(0, h - eh + 1)
                        left = np.random.randint(0, w - ew + 1)
                        images[n, top : top + eh, left : left + ew] = 0
                return images

            erase.is_parallel = True
            return erase

        def declare_state_and_memory(self, previous: Any) -> Any:
            return replace(previous, jit_mode=True), None

    return RandomErasing()


class Ffcv(Adapter):
    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        from ffcv.fields.decoders import IntDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import Squeeze, ToTensor

        del state
        self.one = one
        columns = {"x": _operations(one), "y": [IntDecoder(), ToTensor(), Squeeze()]}
        if one.kind in ("W4", "W5"):
            columns["y"] = None  # not read
        self.loader = Loader(
            str(one.folder / f"{one.kind}.beton"),
            batch_size=one.batch,
            num_workers=workers,
            os_cache=True,
            order=OrderOption.RANDOM,
            seed=seed,
            drop_last=True,
            pipelines=columns,
        )

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        for batch in self.loader:
            if self.one.kind == "W4":
                yield batch[0].astype(np.int64), None
            elif self.one.kind == "W5":
                yield batch[0], None
            else:
                yield batch


def _operations(one: Work) -> list[Any]:
    from ffcv.fields.decoders import IntDecoder, NDArrayDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.transforms import (
        NormalizeImage,
        RandomHorizontalFlip,
        RandomTranslate,
        Squeeze,
        ToTensor,
        ToTorchImage,
    )

    if one.kind == "W4":
        return [NDArrayDecoder()]
    if one.kind == "W5":
        return [IntDecoder(), ToTensor(), Squeeze()]
    mean, std = workloads.MEAN.astype(np.float64), workloads.STD.astype(np.float64)
    ends = [NormalizeImage(mean, std, np.float32)]
    if one.kind != "W3":
        ends.append(erasing())
    ends += [ToTensor(), ToTorchImage()]
    if one.kind == "W1":
        return [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(4), *ends]
    return [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip(), *ends]
