"""samebatch: a data loader whose every batch is a pure function of (data, configuration, seed, phase,
position).

>>> import pipeline
>>> from pipeline import datasets, transforms as T
>>> import numpy as np
>>> images, labels = np.zeros((8, 4, 4, 3), np.uint8), np.arange(8)
>>> loader = pipeline.DataLoader(
...     datasets.ArrayDataset(images, labels), batch_size=4, shuffle=True, seed=7,
...     transforms=[T.RandomHorizontalFlip(), T.Normalize(preset="cifar10")],
... )
>>> [(x.shape, y.tolist()) for x, y in loader]
[((4, 3, 4, 4), [6, 1, 3, 7]), ((4, 3, 4, 4), [0, 5, 2, 4])]
"""

import importlib as _importlib
from typing import Any as _Any

import rng as _rng

if not hasattr(_rng, "STREAM_VERSION"):
    raise ImportError(
        f"`import rng` found {getattr(_rng, '__file__', _rng)!r}, which is not samebatch's: a file or "
        "folder named rng comes earlier on sys.path; rename it"
    )

from pipeline.compare import verify
from pipeline.config import Config, load_config
from pipeline.errors import (
    AuditError,
    ConfigError,
    DatasetError,
    InternalError,
    SamebatchError,
    SampleError,
    StateError,
    WorkerError,
)
from pipeline.loader import BatchInfo, DataLoader, from_config
from pipeline.transfer.device import to_device
from rng import STREAM_VERSION

__version__ = "0.1.0"
__all__ = [
    "STREAM_VERSION",
    "AuditError",
    "BatchInfo",
    "Config",
    "ConfigError",
    "DataLoader",
    "DatasetError",
    "InternalError",
    "SamebatchError",
    "SampleError",
    "StateError",
    "WorkerError",
    "from_config",
    "load_config",
    "to_device",
    "verify",
]


def __getattr__(name: str) -> _Any:
    if name == "torch":  # imports torch, so it waits until it is asked for
        return _importlib.import_module("pipeline.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
