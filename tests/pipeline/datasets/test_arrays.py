import pickle

import numpy as np
import pytest

from pipeline import datasets
from pipeline.errors import ConfigError, DatasetError


def images(n=5, shape=(4, 3, 3)):
    return (np.arange(n * np.prod(shape)) % 251).astype(np.uint8).reshape(n, *shape)


def test_a_sample_is_an_image_and_an_int_label():
    data = datasets.ArrayDataset(images(), np.arange(5) * 10)
    image, label = data[3]
    assert len(data) == 5
    assert np.array_equal(image, images()[3])
    assert (type(label), label) == (int, 30)


def test_grey_images_get_a_channel_axis():
    data = datasets.ArrayDataset(np.zeros((2, 8, 6), np.uint8), np.zeros(2, np.int64))
    assert data[0][0].shape == (8, 6, 1)
    assert data.arrays()[0].shape == (2, 8, 6, 1)


def test_arrays_are_kept_not_copied_and_samples_are_copies():
    source = images()
    data = datasets.ArrayDataset(source, np.arange(5))
    assert data.arrays()[0] is source
    data[1][0][:] = 0
    assert np.array_equal(source, images())


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint8, bool])
def test_labels_keep_their_dtype(dtype):
    data = datasets.ArrayDataset(images(), np.array([0, 1, 0, 1, 1], dtype))
    assert np.asarray(data[1][1]).dtype == dtype
    assert data.arrays()[1].dtype == dtype


def test_index_counts_from_the_end_and_out_of_range_raises():
    data = datasets.ArrayDataset(np.arange(3))
    assert data[-1] == (2,)
    for i in (3, -4):
        with pytest.raises(IndexError):
            data[i]
    assert [x for (x,) in data] == [0, 1, 2]


def test_different_lengths_are_refused_with_both():
    with pytest.raises(DatasetError, match=r"\[5, 4\]"):
        datasets.ArrayDataset(images(5), np.arange(4))


@pytest.mark.parametrize("bad", [(), (np.array([object()]),), (np.float32(3),)])
def test_what_is_no_array_of_samples_is_refused(bad):
    with pytest.raises(ConfigError, match="ArrayDataset"):
        datasets.ArrayDataset(*bad)


def test_an_empty_data_set_has_length_0():
    data = datasets.ArrayDataset(np.zeros((0, 4, 4, 3), np.uint8), np.zeros(0, np.int64))
    assert len(data) == 0
    assert len(data.fingerprint()) == 32


def test_the_fingerprint_is_of_the_content():
    labels = np.array([0, 1, 2, 3, 4])
    print_of = lambda *arrays: datasets.ArrayDataset(*arrays).fingerprint()  # noqa: E731
    base = print_of(images(), labels)
    assert base == print_of(images().copy(), labels.copy())
    assert base == print_of(np.asfortranarray(images()), labels)
    changed = images()
    changed[2, 1, 1, 1] ^= 1
    assert base != print_of(changed, labels)
    assert base != print_of(images(), labels[[1, 0, 2, 3, 4]])
    assert base != print_of(images(), labels.astype(np.int32))
    assert base != print_of(images(4), labels[:4])


def test_the_fingerprint_stays_the_same_across_releases():
    """Else states saved earlier would be refused."""
    pixels = np.arange(48, dtype=np.uint8).reshape(2, 4, 2, 3)
    data = datasets.ArrayDataset(pixels, np.array([3, 1]))
    assert data.fingerprint() == "bc59788f3d5566215efb34536de48935"
    assert datasets.fingerprint([1, 2, 3]) == "56bc9d738b928b8942eafc61797395c0"


def test_a_large_array_is_sampled_from_its_first_to_its_last_byte():
    big = np.zeros((65, 1 << 20), np.uint8)
    base = datasets.ArrayDataset(big).fingerprint()
    for at in ((0, 0), (64, -1)):
        other = big.copy()
        other[at] = 1
        assert datasets.ArrayDataset(other).fingerprint() != base


def test_a_memmap_stays_one_and_pickles_as_a_name(tmp_path):
    source = images(1000, (32, 32, 3))
    np.save(tmp_path / "x.npy", source)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = datasets.ArrayDataset(mapped[100:], np.arange(900))
    assert isinstance(data.arrays()[0], np.memmap)
    assert type(data[0][0]) is np.ndarray
    blob = pickle.dumps(data)
    assert len(blob) < 20_000
    again = pickle.loads(blob)
    assert isinstance(again.arrays()[0], np.memmap)
    assert np.array_equal(again.arrays()[0], source[100:])
    assert again.fingerprint() == data.fingerprint()


def test_a_vanished_mapped_file_is_named(tmp_path):
    np.save(tmp_path / "x.npy", images())
    data = datasets.ArrayDataset(np.load(tmp_path / "x.npy", mmap_mode="r"))
    blob = pickle.dumps(data)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(DatasetError, match=r"x\.npy"):
        pickle.loads(blob)


def test_large_arrays_pickle_out_of_band():
    data = datasets.ArrayDataset(images(1000, (32, 32, 3)), np.arange(1000))
    buffers = []
    blob = pickle.dumps(data, 5, buffer_callback=buffers.append)
    assert len(blob) < 2000
    again = pickle.loads(blob, buffers=buffers)
    assert np.array_equal(again[7][0], data[7][0])
