"""SPDL: a pipeline of functions in threads."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import workloads
from workloads import Work

from peers import Adapter


class Order:
    """Gives (epoch, step, ids), epoch after epoch; or one index at a time."""

    def __init__(self, one: Work, seed: int, whole: bool) -> None:
        self.one, self.seed, self.whole, self.epoch = one, seed, whole, 0

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = np.random.default_rng([self.seed, epoch]).permutation(self.one.count)
        size = self.one.batch
        for step in range(self.one.steps):
            ids = order[step * size : (step + 1) * size]
            if self.whole:
                yield epoch, step, ids
            else:
                yield from ((epoch, 0, int(i)) for i in ids)


class Batches(Adapter):
    """`workers` threads, each making whole batches; results in the order of the input."""

    order = "input"

    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        from spdl.pipeline import PipelineBuilder

        del state
        if one.kind in ("W2", "W3"):
            import cv2

            cv2.setNumThreads(1)
        builder = PipelineBuilder()
        threads = self.stages(builder, one, workers, seed)
        self.pipeline = builder.add_sink(2).build(num_threads=threads)
        self.pipeline.start()

    def stages(self, builder: Any, one: Work, workers: int, seed: int) -> int:
        def make(job: tuple[int, int, np.ndarray]) -> tuple[np.ndarray, Any]:
            epoch, step, ids = job
            rng = np.random.default_rng([seed, epoch, step])
            made = workloads.batch(one, ids, rng)
            return made, None if one.kind in ("W4", "W5") else ids

        builder.add_source(Order(one, seed, whole=True), continuous=True)
        builder.pipe(make, concurrency=workers, output_order=self.order)
        return workers

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        yield from self.pipeline.get_iterator()

    def close(self) -> None:
        self.pipeline.stop()


class Completion(Batches):
    order = "completion"


class OwnDecoder(Batches):
    """SPDL's FFmpeg decoder, with a filter graph that crops, scales and flips each image."""

    def stages(self, builder: Any, one: Work, workers: int, seed: int) -> int:
        import spdl.io

        def make(job: tuple[int, int, int]) -> tuple[np.ndarray, int]:
            epoch, _, i = job
            rng = np.random.default_rng([seed, epoch, i])
            area = rng.uniform(0.08, 1)
            aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            left, top = rng.random(), rng.random()
            filters = (
                f"crop=w='min(iw,sqrt(iw*ih*{area * aspect:.5f}))'"
                f":h='min(ih,sqrt(iw*ih*{area / aspect:.5f}))'"
                f":x='(iw-ow)*{left:.5f}':y='(ih-oh)*{top:.5f}':exact=1"
                f",scale=224:224:flags=bilinear{',hflip' if rng.random() < 0.5 else ''}"
                ",format=pix_fmts=rgb24"
            )
            decoded = spdl.io.load_image(workloads.paths(one.folder)[i], filter_desc=filters)
            return workloads.erase(workloads.normalise(spdl.io.to_numpy(decoded)), rng), i

        def collate(made: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
            return np.stack([x for x, _ in made]), np.array([i for _, i in made])

        builder.add_source(Order(one, seed, whole=False), continuous=True)
        builder.pipe(make, concurrency=workers, output_order="input")
        builder.aggregate(one.batch, drop_last=True).pipe(collate)
        return workers + 1
