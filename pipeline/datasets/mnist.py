"""MNIST and the sets of its format: idx files, plain or .gz.

An idx file: two zero bytes, a type (8 = u8), the number of dimensions, each dimension as a
big-endian u32, then the values. Images are 3-D (magic 0x803), labels 1-D (0x801).

Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", FILE FORMATS.
"""

import gzip
import os
import zlib
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.datasets import common
from pipeline.datasets.arrays import ArrayDataset
from pipeline.errors import DatasetError

_SPLITS = ("train", "test", "val")


class MNIST(ArrayDataset):
    """Handwritten digits: images `u8[N, 28, 28, 1]`, labels `i64[N]` in 0..9, in the file's order.

    The files may lie in `root`, `root/raw` or, as torchvision keeps them, `root/MNIST/raw`, with a
    "-" or a "." before "idx", with or without ".gz". Nothing is downloaded.
    """

    folder: ClassVar[str] = "MNIST"
    url: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    classes: ClassVar[tuple[str, ...]] = tuple("0123456789")

    def __init__(
        self, root: str | os.PathLike[str], split: Literal["train", "test", "val"] = "train"
    ) -> None:
        """Read one split ("val" is another word for "test").

        Raises:
            ConfigError: another split.
            DatasetError: a file is missing, damaged or of another format, or the two differ in length.
        """
        self.split = common.check_choice("split", split, _SPLITS)
        prefix = "train" if split == "train" else "t10k"
        self._file = self._find(Path(root).expanduser(), f"{prefix}-images", "idx3-ubyte")
        labels_file = self._find(Path(root).expanduser(), f"{prefix}-labels", "idx1-ubyte")
        images, labels = read_idx(self._file, 3), read_idx(labels_file, 1)
        if len(images) != len(labels) or (labels.size and labels.max() >= len(self.classes)):
            largest = labels.max(initial=0)
            raise DatasetError(
                f"{self._file} has {len(images)} images, {labels_file} {len(labels)} labels, the "
                f"largest {largest}; expected as many labels, below {len(self.classes)}",
                do="take both files from the same source",
            )
        super().__init__(images, labels.astype(np.int64))

    def describe(self, i: int) -> str:
        """Return the name of sample `i` for messages, with the file that holds it."""
        return (
            f"{type(self).__name__} {self.split} sample {i} of {common.printable(str(self._file))}"
        )

    @classmethod
    def _find(cls, root: Path, stem: str, end: str) -> Path:
        names = [f"{stem}{dash}{end}{gz}" for gz in ("", ".gz") for dash in "-."]
        folders = [root, root / "raw", root / cls.folder / "raw"]
        for folder in folders:
            for name in names:
                if (folder / name).is_file():
                    return folder / name
        places = ", ".join(common.printable(str(folder)) for folder in folders)
        raise DatasetError(
            f"no file {stem}-{end} or {stem}-{end}.gz for {cls.__name__}",
            where=f"searched {places}",
            do=f"get {stem}-{end}.gz from {cls.url} and put it there",
            root=str(root),
        )


class FashionMNIST(MNIST):
    """Zalando's pictures of clothes, in MNIST's format (`root/FashionMNIST/raw` is searched too)."""

    folder = "FashionMNIST"
    url = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    classes: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )


class KMNIST(MNIST):
    """Handwritten Kuzushiji, in MNIST's format (`root/KMNIST/raw` is searched too)."""

    folder = "KMNIST"
    url = "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"
    classes: ClassVar[tuple[str, ...]] = (
        "o",
        "ki",
        "su",
        "tsu",
        "na",
        "ha",
        "ma",
        "ya",
        "re",
        "wo",
    )


def read_idx(path: Path, ndim: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the u8 values of an idx file (plain or .gz) with `ndim` dimensions.

    Raises:
        DatasetError: wrong magic, wrong number of values, or damaged compression.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (EOFError, zlib.error, OSError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__}: {error})") from error
    magic = bytes([0, 0, 8, ndim])
    header = 4 + 4 * ndim
    if data[:4] != magic or len(data) < header:
        raise _damaged(
            path,
            f"starts with {data[:4].hex() or 'nothing'}, expected {magic.hex()} (idx, u8, {ndim}-D)",
        )
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", ndim, offset=4))
    count = int(np.prod(shape, dtype=object))
    if len(data) - header != count:
        raise _damaged(path, f"has {len(data) - header} values, its header says {shape} = {count}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()


def _damaged(path: Path, what: str) -> DatasetError:
    name = common.printable(str(path))
    return DatasetError(f"{name} {what}", do="get the file again, it is damaged", path=name)
