import numpy as np
import pytest

from pipeline import datasets
from pipeline.errors import DatasetError


def records(n, label_nbytes, seed=0):
    made = np.random.default_rng(seed).integers(0, 256, (n, label_nbytes + 3072)).astype(np.uint8)
    made[:, 0] = np.arange(n) % 10
    if label_nbytes == 2:
        made[:, 1] = np.arange(n) + 50
    return made


def write10(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(1, 6):
        (folder / f"data_batch_{i}.bin").write_bytes(records(3, 1, i).tobytes())
    (folder / "test_batch.bin").write_bytes(records(4, 1).tobytes())


@pytest.mark.parametrize("where", ["", "cifar-10-batches-bin"])
def test_planes_become_pixels(tmp_path, where):
    write10(tmp_path / where)
    train = datasets.CIFAR10(tmp_path)
    images, labels = train.arrays()
    assert images.shape == (15, 32, 32, 3)
    assert images.flags.c_contiguous
    second = records(3, 1, 2)[1]  # sample 4 of all
    for y, x, c in [(0, 0, 0), (5, 9, 1), (31, 31, 2)]:
        assert images[4, y, x, c] == second[1 + c * 1024 + y * 32 + x]
    assert labels.tolist() == [0, 1, 2] * 5
    assert len(datasets.CIFAR10(tmp_path, split="test")) == 4
    assert len(train.classes) == 10


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(records(6, 2).tobytes())
    (folder / "fine_label_names.txt").write_text("".join(f"c{i}\n" for i in range(100)))
    fine, coarse = datasets.CIFAR100(tmp_path), datasets.CIFAR100(tmp_path, coarse=True)
    assert fine.arrays()[1].tolist() == [50, 51, 52, 53, 54, 55]
    assert coarse.arrays()[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(fine.arrays()[0], coarse.arrays()[0])
    assert fine.fingerprint() != coarse.fingerprint()
    assert fine.classes[50] == "c50"
    assert coarse.classes == ()


@pytest.mark.parametrize("damage", [b"", b"x" * 3072])
def test_a_file_that_is_not_whole_records_is_refused(tmp_path, damage):
    write10(tmp_path)
    (tmp_path / "data_batch_4.bin").write_bytes(damage)
    with pytest.raises(DatasetError, match=rf"data_batch_4.bin has {len(damage)} bytes"):
        datasets.CIFAR10(tmp_path)


def test_labels_out_of_range_tell_another_format(tmp_path):
    write10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"\x63" * 3073)
    with pytest.raises(DatasetError, match="label 99"):
        datasets.CIFAR10(tmp_path, "test")


def test_missing_files_are_named_and_pickles_are_never_loaded(tmp_path):
    write10(tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(DatasetError, match=r"data_batch_2\.bin") as caught:
        datasets.CIFAR10(tmp_path)
    assert "pickles" not in str(caught.value)
    python = tmp_path / "py" / "cifar-10-batches-py"
    python.mkdir(parents=True)
    (python / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DatasetError, match="pickles, which are never loaded"):
        datasets.CIFAR10(tmp_path / "py")
