"""LitData, from local optimised chunks."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import workloads
from workloads import Work

from peers import Adapter
from peers.torchs import generator, start, start_worker


class Stored:
    def __init__(self, one: Work) -> None:
        self.one = one

    def __call__(self, i: int) -> dict[str, Any]:
        item = workloads.raw(self.one, i)
        return {"x": np.array(item) if isinstance(item, np.ndarray) else item, "y": i}


class Finished:
    def __init__(self, one: Work) -> None:
        self.one = one

    def __call__(self, item: dict[str, Any], *_: Any) -> Any:
        x = workloads.finish(self.one, item["x"], generator())
        return (x, item["y"]) if self.one.kind not in ("W4", "W5") else x


def prepare(one: Work) -> None:
    import litdata

    folder = one.folder / f"lit_{one.kind}"
    if (folder / "index.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    litdata.optimize(
        fn=Stored(one),
        inputs=list(range(one.count)),
        output_dir=str(folder),
        chunk_bytes="512KB" if one.kind == "W5" else "64MB",
        num_workers=2,
    )


class Lit(Adapter):
    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        import litdata
        import torch

        torch.manual_seed(seed)
        start(seed)
        dataset = litdata.StreamingDataset(
            str(one.folder / f"lit_{one.kind}"),
            shuffle=True,
            seed=seed,
            drop_last=True,
            transform=Finished(one),
        )
        how = {"persistent_workers": True, "worker_init_fn": start_worker} if workers else {}
        self.loader = litdata.StreamingDataLoader(
            dataset,
            batch_size=one.batch,
            num_workers=workers,
            drop_last=True,
            shuffle=True,
            **how,
        )
        if state is not None:
            self.loader.load_state_dict(state)

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        for batch in self.loader:
            yield tuple(batch) if isinstance(batch, tuple | list) else (batch, None)

    def state(self) -> Any:
        return self.loader.state_dict()
