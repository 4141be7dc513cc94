"""Augmentation: `Chain` turns source images into finished ones, every draw at its address.

>>> from pipeline import transforms as T
>>> chain = T.Chain([T.RandomCrop(32, padding=4), T.Normalize(preset="cifar10")], (32, 32, 3))
>>> chain.out_shape, chain.out_dtype, chain.bulk
((3, 32, 32), dtype('float32'), True)
"""

from pipeline.transforms.chain import Chain, op_numbers, takes_rng
from pipeline.transforms.ops import (
    KINDS,
    PRESETS,
    CenterCrop,
    Normalize,
    Op,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    ToLayout,
    ToTensor,
)
from pipeline.transforms.stream import Stream

__all__ = [
    "KINDS",
    "PRESETS",
    "CenterCrop",
    "Chain",
    "Normalize",
    "Op",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "Stream",
    "ToDtype",
    "ToLayout",
    "ToTensor",
    "op_numbers",
    "takes_rng",
]
