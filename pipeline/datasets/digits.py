"""scikit-learn's handwritten digits: real images that install with a package, no download.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits" (UCI, 1998), test part,
as the file `datasets/data/digits.csv.gz` of scikit-learn: 64 numbers 0..16 and the class a line.
"""

import importlib.util
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.datasets import common
from pipeline.datasets.arrays import ArrayDataset
from pipeline.errors import DatasetError

_INSTALL = 'install scikit-learn: pip install "samebatch[demo]"'


class Digits(ArrayDataset):
    """The 1,797 digits of scikit-learn: images `u8[N, 8, 8, 1]`, labels `i64[N]` in 0..9.

    The values 0..16 are multiplied by 15, to 0..240. `split="val"` (or "test") is every fifth
    sample (i % 5 == 4: 359 of them), "train" the other 1,438 (the default), "all" all of them.
    """

    def __init__(self, split: Literal["train", "val", "test", "all"] = "train") -> None:
        """Read the digits.

        Raises:
            ConfigError: another split.
            DatasetError: scikit-learn is not installed.
        """
        self.split = common.check_choice("split", split, ("train", "val", "test", "all"))
        self.classes = tuple("0123456789")
        table = np.loadtxt(_file(), delimiter=",", dtype=np.int64)
        self._ids = _members(split, len(table))
        table = table[self._ids]
        images = (table[:, :64] * 15).astype(np.uint8).reshape(-1, 8, 8, 1)
        super().__init__(images, table[:, 64].copy())

    def describe(self, i: int) -> str:
        """Return the name of sample `i` for messages, with its number in scikit-learn's order."""
        return f"Digits {self.split} sample {i} (digit {self._ids[i]} of scikit-learn's file)"


def _members(split: str, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    ids: np.ndarray[tuple[int], np.dtype[np.int64]] = np.arange(n)
    if split == "all":
        return ids
    held_out = ids % 5 == 4
    return np.flatnonzero(~held_out if split == "train" else held_out)


def _file() -> Path:
    # Not load_digits(): importing scikit-learn takes a second, its file 10 ms.
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DatasetError("Digits needs scikit-learn, which is not installed", do=_INSTALL)
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DatasetError(f"this scikit-learn has no file {path}", do=_INSTALL)
    return path
