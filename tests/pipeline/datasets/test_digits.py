import numpy as np
import pytest

from pipeline import datasets
from pipeline.datasets import digits
from pipeline.errors import ConfigError, DatasetError


def test_digits_equal_scikit_learns():
    pytest.importorskip("sklearn")
    data = datasets.Digits("all")
    images, labels = data.arrays()
    assert images.shape == (1797, 8, 8, 1)
    assert (images.dtype, labels.dtype, images.max()) == (np.uint8, np.int64, 240)
    assert labels[:10].tolist() == list(range(10))
    # The sum of all values 0..16 of load_digits().data, scikit-learn 1.9.
    assert images.astype(int).sum() == 15 * 561718


def test_train_and_val_share_no_sample_and_leave_none():
    pytest.importorskip("sklearn")
    whole, train, val = (datasets.Digits(split) for split in ("all", "train", "val"))
    assert (len(train), len(val)) == (1438, 359)
    ids = [data._ids for data in (train, val)]
    assert sorted(np.concatenate(ids)) == list(range(1797))
    assert np.array_equal(val.arrays()[0], whole.arrays()[0][4::5])
    assert "sample 4 (digit 5 " in train.describe(4)
    assert datasets.Digits("test").fingerprint() == val.fingerprint()


def test_without_scikit_learn_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DatasetError, match="pip install"):
        datasets.Digits()


def test_another_split_is_refused():
    with pytest.raises(ConfigError, match="'train', 'val'"):
        datasets.Digits("valid")
