"""Google's Grain."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import workloads
from workloads import Work

from peers import Adapter


class Indices:
    def __init__(self, one: Work) -> None:
        self.one = one

    def __len__(self) -> int:
        return self.one.count

    def __getitem__(self, i: int) -> int:
        return int(i)


class Drawn:
    """A sample whose transform draws: Grain gives a generator for each sample."""

    def __init__(self, one: Work) -> None:
        self.one = one

    def __call__(self, i: int, rng: Any) -> Any:
        return workloads.finish(self.one, workloads.raw(self.one, i), rng), i


class Fixed:
    def __init__(self, one: Work) -> None:
        self.one = one

    def __call__(self, i: int) -> Any:
        return workloads.finish(self.one, workloads.raw(self.one, i), None)


class Processes(Adapter):
    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():  # its workers need absl's flags parsed
            flags.FLAGS(["contender"])
        if one.kind in ("W2", "W3"):
            import cv2

            cv2.setNumThreads(1)
        self.one = one
        made = grain.MapDataset.source(Indices(one)).seed(seed).shuffle()
        if one.kind in ("W4", "W5"):
            made = made.map(Fixed(one))
        else:
            made = made.random_map(Drawn(one))
        made = made.batch(one.batch, drop_remainder=True).repeat(None)
        self.batches = iter(self.started(made, grain, workers))
        if state is not None:
            self.batches.set_state(state)

    def started(self, made: Any, grain: Any, workers: int) -> Any:
        made = made.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
        if not workers:
            return made
        return made.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
        )

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        for _ in range(self.one.steps):
            batch = next(self.batches)
            yield batch if isinstance(batch, tuple) else (batch, None)

    def state(self) -> Any:
        return self.batches.get_state()

    def state_after(self, steps: int) -> Any:
        """As by making them: without workers its state is the number of the next batch."""
        state = self.state()
        if self.one.name != "R":
            return super().state_after(steps)
        if isinstance(state, bytes):
            return json.dumps({**json.loads(state), "next_index": steps}).encode()
        return {**state, "next_index": steps}

    def close(self) -> None:
        with contextlib.suppress(AttributeError):  # iterators without workers have none
            self.batches.close()


class Threads(Processes):
    def started(self, made: Any, grain: Any, workers: int) -> Any:
        return made.to_iter_dataset(
            grain.ReadOptions(num_threads=workers, prefetch_buffer_size=2 * workers)
        )
