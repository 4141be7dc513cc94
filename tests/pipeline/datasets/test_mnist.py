import gzip
import struct

import numpy as np
import pytest

from pipeline import datasets
from pipeline.errors import ConfigError, DatasetError

IMAGES = (np.arange(7 * 28 * 28) % 255).astype(np.uint8).reshape(7, 28, 28)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write(folder, prefix="train", images=None, labels=None, dash="-", gz=False):
    folder.mkdir(parents=True, exist_ok=True)
    pairs = {"images": (3, images or idx(IMAGES)), "labels": (1, labels or idx(LABELS))}
    for what, (ndim, data) in pairs.items():
        name = f"{prefix}-{what}{dash}idx{ndim}-ubyte"
        if gz:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("where", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize(("dash", "gz"), [("-", False), (".", False), ("-", True)])
def test_the_files_are_found_in_all_the_usual_places(tmp_path, where, dash, gz):
    write(tmp_path / where, dash=dash, gz=gz)
    data = datasets.MNIST(tmp_path)
    images, labels = data.arrays()
    assert np.array_equal(images[..., 0], IMAGES)
    assert images.shape == (7, 28, 28, 1)
    assert labels.tolist() == LABELS.tolist()
    assert labels.dtype == np.int64
    assert data[5][1] == 9


@pytest.mark.parametrize("split", ["test", "val"])
def test_test_and_val_are_the_t10k_files(tmp_path, split):
    write(tmp_path, "t10k")
    data = datasets.MNIST(str(tmp_path), split=split)
    assert len(data) == 7
    assert f"MNIST {split} sample 3 of" in data.describe(3)


@pytest.mark.parametrize("kind", [datasets.FashionMNIST, datasets.KMNIST])
def test_the_sets_of_the_same_format_have_folders_of_their_own(tmp_path, kind):
    write(tmp_path / kind.__name__ / "raw")
    assert len(kind(tmp_path)) == 7
    assert len(kind.classes) == 10


def test_missing_files_are_named_with_the_places_searched(tmp_path):
    with pytest.raises(DatasetError, match="train-images-idx3-ubyte") as caught:
        datasets.MNIST(tmp_path)
    assert str(tmp_path / "MNIST" / "raw") in str(caught.value)
    assert "https://" in str(caught.value)


GOOD = idx(IMAGES)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"images": GOOD[:-1]}, "5487 values, its header says"),
        ({"images": GOOD + b"x"}, "5489 values"),
        ({"images": b"\x89PNG" + GOOD[4:]}, "starts with 89504e47, expected 00000803"),
        ({"images": b"\0"}, "starts with 00,"),
        ({"images": idx(LABELS)}, "expected 00000803"),
        ({"labels": idx(LABELS[:5])}, "7 images"),
        ({"labels": idx(LABELS + 1)}, "largest 10"),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage, says):
    write(tmp_path, **damage)
    with pytest.raises(DatasetError, match=says):
        datasets.MNIST(tmp_path)


@pytest.mark.parametrize("cut", [5, 100, -3])
def test_damaged_compression_is_refused(tmp_path, cut):
    write(tmp_path, gz=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DatasetError, match=r"idx3-ubyte\.gz cannot be read"):
        datasets.MNIST(tmp_path)


def test_another_split_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="split"):
        datasets.MNIST(tmp_path, split="valid")
