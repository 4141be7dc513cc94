"""CIFAR-10 and CIFAR-100, the "binary version".

A record: the label (CIFAR-100: coarse label, then fine label), then 1,024 bytes each of red, green
and blue, row by row. A file is records, nothing else.

The "python version" holds pickles. Unpickling runs whatever code the file names, so it is not read.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009) and
https://www.cs.toronto.edu/~kriz/cifar.html
"""

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.datasets import common
from pipeline.datasets.arrays import ArrayDataset
from pipeline.errors import DatasetError

_SPLITS = ("train", "test", "val")
_PIXELS_NBYTES = 3 * 32 * 32
_PAGE = "https://www.cs.toronto.edu/~kriz/"


class CIFAR10(ArrayDataset):
    """Small photographs of 10 classes: images `u8[N, 32, 32, 3]`, labels `i64[N]`.

    The files may lie in `root` or `root/cifar-10-batches-bin`. Nothing is downloaded.
    """

    folder: ClassVar[str] = "cifar-10-batches-bin"
    archive: ClassVar[str] = "cifar-10-binary.tar.gz"
    train_files: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    test_files: ClassVar[tuple[str, ...]] = ("test_batch.bin",)
    classes: tuple[str, ...] = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )

    def __init__(
        self, root: str | os.PathLike[str], split: Literal["train", "test", "val"] = "train"
    ) -> None:
        """Read one split ("val" is another word for "test").

        Raises:
            ConfigError: another split.
            DatasetError: a file is missing, damaged or of another format.
        """
        self.split = common.check_choice("split", split, _SPLITS)
        self._read(Path(root).expanduser(), label_nbytes=1, label_at=0, n_labels=10)

    def describe(self, i: int) -> str:
        """Return the name of sample `i` for messages."""
        where = common.printable(str(self._folder))
        return f"{type(self).__name__} {self.split} sample {i} of {where}"

    def _read(self, root: Path, label_nbytes: int, label_at: int, n_labels: int) -> None:
        names = self.train_files if self.split == "train" else self.test_files
        self._folder = self._find(root, names)
        where = common.printable(str(self._folder))
        record_nbytes = label_nbytes + _PIXELS_NBYTES
        records = np.concatenate([_records(self._folder / name, record_nbytes) for name in names])
        labels = records[:, label_at].astype(np.int64)
        if labels.max(initial=0) >= n_labels:
            raise DatasetError(
                f"label {labels.max()} in {where}; {type(self).__name__} has {n_labels} classes",
                do=f"get {_PAGE}{self.archive}: these files are of another format",
            )
        planes = records[:, label_nbytes:].reshape(-1, 3, 32, 32)
        super().__init__(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)

    @classmethod
    def _find(cls, root: Path, names: tuple[str, ...]) -> Path:
        folders = [root, root / cls.folder]
        for folder in folders:
            if all((folder / name).is_file() for name in names):
                return folder
        missing = [str(f / n) for f in folders for n in names if not (f / n).is_file()]
        pickled = [root / cls.folder.replace("-bin", "-py"), root / "cifar-100-python", root]
        note = ""
        if any((p / n.removesuffix(".bin")).is_file() for p in pickled for n in names):
            note = "; the python version is there, but it holds pickles, which are never loaded"
        raise DatasetError(
            f"not all of {', '.join(names)} for {cls.__name__}{note}",
            where="missing " + common.printable(", ".join(missing)),
            do=f"get {_PAGE}{cls.archive} (the binary version) and unpack it into the root",
            root=str(root),
        )


class CIFAR100(CIFAR10):
    """Small photographs of 100 classes in 20 groups: images `u8[N, 32, 32, 3]`, labels `i64[N]`.

    The files may lie in `root` or `root/cifar-100-binary`. Labels are the classes, or the groups
    with `coarse=True`. `classes` are the names in `fine_label_names.txt` (`coarse_...`) beside the
    data; () if that file is not there.
    """

    folder = "cifar-100-binary"
    archive = "cifar-100-binary.tar.gz"
    train_files: ClassVar[tuple[str, ...]] = ("train.bin",)
    test_files: ClassVar[tuple[str, ...]] = ("test.bin",)

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: Literal["train", "test", "val"] = "train",
        *,
        coarse: bool = False,
    ) -> None:
        """Read one split ("val" is another word for "test").

        Raises:
            ConfigError: another split.
            DatasetError: a file is missing, damaged or of another format.
        """
        self.split = common.check_choice("split", split, _SPLITS)
        self.coarse = coarse
        root = Path(root).expanduser()
        at, n_labels = (0, 20) if coarse else (1, 100)
        self._read(root, label_nbytes=2, label_at=at, n_labels=n_labels)
        self.classes = _names(self._folder / f"{'coarse' if coarse else 'fine'}_label_names.txt")


def _records(path: Path, record_nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    data = np.fromfile(path, np.uint8)
    if data.size == 0 or data.size % record_nbytes:
        name = common.printable(str(path))
        raise DatasetError(
            f"{name} has {data.size} bytes, expected a multiple of {record_nbytes}",
            do="get the file again, it is damaged",
            path=name,
        )
    return data.reshape(-1, record_nbytes)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text().split()) if path.is_file() else ()
