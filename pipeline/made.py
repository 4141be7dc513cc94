"""What making a chunk gives besides the fixed fields in its slots."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.parcel import pack_batch
from pipeline.transfer.station import Carried

# How a slot came about: 0 as asked; 1 … MAX_ATTEMPTS another sample took its place; or not at all.
MAX_ATTEMPTS = 32
SKIPPED = 251
ENDED = 252


@dataclass(frozen=True)
class Failure:
    """A sample that could not be made, where that ends nothing (`on_error`).

    Attributes:
        epoch, position, sample_id: which.
        stage: "read", "transform …" or "collate".
        type, message: of the exception.
        replaced_by: the sample that took its place, or None: it was skipped.
    """

    epoch: int
    position: int
    sample_id: int
    stage: str
    type: str
    message: str
    replaced_by: int | None = None


@dataclass
class Made:
    """What a chunk gave.

    Attributes:
        beside: for each slot its text leaves, if samples have any.
        whole: what `collate_fn` made of the whole batch, if `is_whole`.
        status: uint8[n], how each slot came about; None: all as asked.
        failures: samples that were skipped or replaced.
    """

    beside: list[list[Any]] | None = None
    whole: Any = None
    is_whole: bool = False
    status: np.ndarray | None = None
    failures: list[Failure] = field(default_factory=list)

    def carried(self) -> Carried:
        """Return it in the form that travels.

        Raises:
            Exception: what `collate_fn` returned cannot be pickled.
        """
        if self.beside is None and not self.is_whole and not self.failures:
            return Carried(None, self.status)
        content = (self.beside, self.whole, self.is_whole, self.failures)
        return Carried(pack_batch(content), self.status)

    @classmethod
    def arrived(cls, content: Any) -> "Made":
        """Return what `carried` sent, without the status."""
        beside, whole, is_whole, failures = content
        return cls(beside, whole, is_whole, None, failures)
