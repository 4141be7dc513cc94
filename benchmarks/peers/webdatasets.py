"""WebDataset, from 16 tar shards, so that 1, 2 and 4 workers have equal shares."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import workloads
from workloads import Work

from peers import Adapter
from peers.torchs import generator, start, start_worker

SHARDS = 16
_SHAPES = {
    "W1": (np.uint8, (32, 32, 3)),
    "W3": (np.uint8, (256, 256, 3)),
    "W4": (np.uint16, (workloads.WINDOW,)),
    "W5": (np.int32, ()),
}


def prepare(one: Work) -> None:
    import webdataset

    folder = one.folder / f"wds_{one.kind}"
    if folder.exists():
        return
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    each = -(-one.count // SHARDS)
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(part / f"{shard:05d}.tar")) as tar:
            for i in range(shard * each, min(one.count, (shard + 1) * each)):
                item = workloads.raw(one, i)
                data = item if isinstance(item, bytes) else np.asarray(item).tobytes()
                if one.kind == "W5":
                    data = np.int32(item).tobytes()
                end = "jpg" if one.kind == "W2" else "bin"
                tar.write({"__key__": f"{i:08d}", "cls": str(i).encode(), end: data})
    part.rename(folder)


class Wds(Adapter):
    def __init__(self, one: Work, workers: int, seed: int, state: Any = None) -> None:
        import torch
        import webdataset

        del state
        torch.manual_seed(seed)
        start(seed)

        def finished(stored: dict[str, Any]) -> tuple[Any, int]:
            if one.kind == "W2":
                item: Any = stored["jpg"]
            else:
                dtype, shape = _SHAPES[one.kind]
                item = np.frombuffer(stored["bin"], dtype).reshape(shape)
            return workloads.finish(one, item, generator()), int(stored["cls"])

        def collated(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
            x = torch.from_numpy(np.stack([x for x, _ in samples]))
            return x, torch.tensor([y for _, y in samples])

        shards = sorted(str(path) for path in (one.folder / f"wds_{one.kind}").glob("*.tar"))
        made = webdataset.WebDataset(shards, shardshuffle=SHARDS, detshuffle=True, seed=seed)
        made = made.shuffle(1000).map(finished)
        made = made.batched(one.batch, collation_fn=collated, partial=False)
        how = {"persistent_workers": True, "worker_init_fn": start_worker} if workers else {}
        self.loader = webdataset.WebLoader(made, batch_size=None, num_workers=workers, **how)

    def epoch(self, k: int) -> Iterator[tuple[Any, Any]]:
        del k
        yield from ((x, y) for x, y in self.loader)
