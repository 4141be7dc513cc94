"""MosaicML Streaming, from local MDS shards.

It imports torchvision for base classes of datasets that nobody uses here; where the wheel does not fit
the processor-only torch, empty modules stand in for it.
"""

import importlib
import importlib.machinery
import shutil
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import workloads
from workloads import Work

from peers import Adapter
from peers.torchs import generator, start, start_worker


def _stand_in() -> None:
    for name, member in (
        ("torchvision", ""),
        ("torchvision.datasets", "VisionDataset"),
        ("torchvision.transforms", ""),
        ("torchvision.transforms.functional", "to_tensor"),
    ):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        if member:
            setattr(module, member, type(member, (), {}))
        sys.modules[name] = module


try:
    importlib.import_module("torchvision")
except (ImportError, RuntimeError):  # its compiled operators belong to another torch
    for broken in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[broken]
    _stand_in()
importlib.import_module("streaming")

_COLUMNS = {
    "W1": "ndarray:uint8:32,32,3",
    "W2": "bytes",
    "W3": "ndarray:uint8:256,256,3",
    "W4": f"ndarray:uint16:{workloads.WINDOW}",
    "W5": "int32",
}


def prepare(one: Work) -> None:
    from streaming import MDSWriter

    folder = one.folder / f"mds_{one.kind}"
    if folder.exists():
        return
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    columns = {"x": _COLUMNS[one.kind], "y": "int64"}
    with MDSWriter(out=str(part), columns=columns, size_limit=1 << 26) as writer:
        for i in range(one.count):
            item = workloads.raw(one, i)
            if isinstance(item, np.ndarray):
                item = np.ascontiguousarray(item)
            writer.write({"x": item, "y": i})
    part.rename(folder)


class Mosaic(Adapter):
    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        import torch
        from streaming import StreamingDataLoader, StreamingDataset

        torch.manual_seed(seed)
        start(seed)

        class Finished(StreamingDataset):
            def __getitem__(self, i: int) -> Any:
                item = super().__getitem__(i)
                x = workloads.finish(one, item["x"], generator())
                return (x, int(item["y"])) if one.kind not in ("W4", "W5") else x

        dataset = Finished(
            local=str(one.folder / f"mds_{one.kind}"),
            shuffle=True,
            shuffle_seed=seed,
            batch_size=one.batch,
        )
        how = {"persistent_workers": True, "worker_init_fn": start_worker} if workers else {}
        self.loader = StreamingDataLoader(
            dataset, batch_size=one.batch, num_workers=workers, drop_last=True, **how
        )
        if state is not None:
            self.loader.load_state_dict(state)

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        for batch in self.loader:
            yield tuple(batch) if isinstance(batch, tuple | list) else (batch, None)

    def state(self) -> Any:
        return self.loader.state_dict()
