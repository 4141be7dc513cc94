"""Arrays in memory, or mapped from a file: the dataset with the fastest path.

Invariant: `len(dataset) == array.shape[0]` of every array, every array is C-contiguous.
"""

import operator
from typing import Any

import numpy as np

from pipeline.datasets import common
from pipeline.errors import ConfigError, DatasetError

Array = np.ndarray[Any, Any]


class ArrayDataset:
    """Samples are the tuples of i-th entries of arrays with the same first dimension.

    The first array is usually the images, the second the labels. Images `u8[N, H, W]` get a
    channel axis: `u8[N, H, W, 1]`. Every other array is kept as it is; one that is not contiguous is
    copied. A `numpy.memmap` stays one, also in the workers: a file mapped with mode "r" or "r+" is
    mapped again there (read-only), not copied.

    A sample holds copies, so that a transform that works in place cannot change the data set.

    >>> dataset = ArrayDataset(np.zeros((2, 4, 4), np.uint8), np.array([7, 9]))
    >>> image, label = dataset[1]
    >>> image.shape, label
    ((4, 4, 1), 9)
    """

    def __init__(self, *arrays: Any) -> None:
        """Keep `arrays` (anything `numpy.asanyarray` takes).

        Raises:
            ConfigError: no array, an array of objects, or one without a first dimension.
            DatasetError: the first dimensions differ.
        """
        if not arrays:
            raise ConfigError("ArrayDataset needs at least one array", field="arrays")
        self._arrays = tuple(_prepared(i, array) for i, array in enumerate(arrays))
        lengths = [array.shape[0] for array in self._arrays]
        if len(set(lengths)) > 1:
            raise DatasetError(
                f"the arrays of an ArrayDataset must have the same length, got {lengths}",
                do="pass images and labels of the same samples, in the same order",
                lengths=lengths,
            )
        self._fingerprint: str | None = None

    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays themselves, not copies: images `u8[N, H, W, C]` first if there are any."""
        return self._arrays

    def fingerprint(self) -> str:
        """Return a digest of what the arrays hold, computed once (see `common.digest_arrays`)."""
        if self._fingerprint is None:
            self._fingerprint = common.digest_arrays(self._arrays)
        return self._fingerprint

    def describe(self, i: int) -> str:
        """Return the name of sample `i` for messages."""
        return f"{type(self).__name__}[{i}]"

    def __len__(self) -> int:
        return int(self._arrays[0].shape[0])

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        """Return the i-th entry of every array: arrays as copies, int64 numbers as int.

        Raises:
            IndexError: `i` is not in [-len, len).
        """
        i = operator.index(i)
        return tuple(_entry(array, i) for array in self._arrays)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in self._arrays)
        return f"{type(self).__name__}({shapes})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_arrays"] = tuple(_MappedFile.of(array) or array for array in self._arrays)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrays = tuple(
            array.open() if isinstance(array, _MappedFile) else array for array in state["_arrays"]
        )


def _prepared(number: int, given: Any) -> Array:
    array: Array = np.asanyarray(given)
    if array.dtype.hasobject or array.ndim == 0:
        what = "objects" if array.dtype.hasobject else "no first dimension"
        raise ConfigError(f"array {number} of an ArrayDataset has {what}", field="arrays")
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    if number == 0 and array.dtype == np.uint8 and array.ndim == 3:
        array = array[:, :, :, None]
    return array


def _entry(array: Array, i: int) -> Any:
    if array.ndim > 1:
        return np.array(array[i])
    value = array[i]
    return int(value) if array.dtype == np.int64 else value


class _MappedFile:
    """Where the bytes of a memmap are: pickles as a name, not as the content."""

    def __init__(self, path: str, dtype: str, shape: tuple[int, ...], start: int) -> None:
        self.path, self.dtype, self.shape, self.start = path, dtype, shape, start

    @classmethod
    def of(cls, array: Array) -> "_MappedFile | None":
        """Return the place of `array`, also of a contiguous part of a map; None if it has none."""
        place = common.file_place(array)
        return None if place is None else cls(place[0], array.dtype.str, array.shape, place[1])

    def open(self) -> Array:
        """Return the bytes as a read-only memmap.

        Raises:
            DatasetError: the file is gone or shorter than it was.
        """
        try:
            return np.memmap(self.path, np.dtype(self.dtype), "r", self.start, self.shape)
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"the mapped file {self.path!r} cannot be opened again: {error}",
                do="keep the file in place while the loader runs",
                path=self.path,
            ) from error
