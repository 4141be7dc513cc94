import pickle

import numpy as np
import pytest

import pipeline
from pipeline import datasets
from pipeline.errors import ConfigError, DatasetError

TOKENS = (np.arange(1000) * 7919 % 50257).astype(np.uint16)


@pytest.fixture(params=["array", "bare", "npy"])
def source(request, tmp_path):
    if request.param == "array":
        return TOKENS
    if request.param == "bare":
        TOKENS.tofile(tmp_path / "tokens.bin")
        return tmp_path / "tokens.bin"
    np.save(tmp_path / "tokens.npy", TOKENS)
    return str(tmp_path / "tokens.npy")


@pytest.mark.parametrize(
    ("window", "stride", "targets", "count"),
    [(100, None, False, 10), (100, None, True, 9), (64, 10, False, 94), (999, 1, True, 1)],
)
def test_windows_start_at_multiples_of_the_stride(source, window, stride, targets, count):
    data = datasets.TokenWindows(source, window, stride=stride, targets=targets)
    assert len(data) == count
    start = (count - 1) * (stride or window)
    last = data[count - 1][0] if targets else data[-1]
    assert last.dtype == np.int64
    assert np.array_equal(last, TOKENS[start : start + window])
    if targets:
        assert np.array_equal(data[count - 1][1], TOKENS[start + 1 : start + window + 1])


@pytest.mark.parametrize("output", ["int64", "uint16", "int32"])
@pytest.mark.parametrize("targets", [False, True])
def test_the_kernel_gives_the_same_as_single_samples(source, targets, output):
    data = datasets.TokenWindows(source, 33, stride=5, targets=targets, output=output)
    ids = np.array([0, 193, 7, 7])
    out = [np.zeros((4, 33), output) for _ in range(1 + targets)]
    data.gather(ids, out)
    for k, i in enumerate(ids.tolist()):
        sample = data[i] if targets else (data[i],)
        for made, wanted in zip(out, sample, strict=True):
            assert wanted.dtype == made.dtype
            assert np.array_equal(made[k], wanted)


def test_a_pickled_dataset_maps_the_file_again(tmp_path):
    TOKENS.tofile(tmp_path / "tokens.bin")
    data = datasets.TokenWindows(tmp_path / "tokens.bin", 10)
    packed = pickle.dumps(data)
    again = pickle.loads(packed)
    assert len(packed) < TOKENS.nbytes
    assert np.array_equal(again[3], data[3])
    assert again.fingerprint() == data.fingerprint()


@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
def test_a_loader_gives_the_same_batches_for_any_workers(source, how, launcher):
    def batches(**how):
        data = datasets.TokenWindows(source, 50, stride=3, targets=True)
        with pipeline.DataLoader(data, 16, shuffle=True, seed=3, **how) as loader:
            assert loader._recipe.bulk
            return [(x.copy(), y.copy()) for x, y in loader]

    alone, shared = batches(), batches(**how)
    assert len(alone) == len(shared) == -(-317 // 16)
    for (x, y), (x2, y2) in zip(alone, shared, strict=True):
        assert np.array_equal(x, x2)
        assert np.array_equal(y, y2)
        assert np.array_equal(x[:, 1:], y[:, :-1])


def test_a_function_of_the_user_gets_single_windows():
    data = datasets.TokenWindows(TOKENS, 100)
    with pipeline.DataLoader(data, 2, seed=1, transforms=[lambda x: x[::2] + 1]) as loader:
        assert np.array_equal(next(iter(loader))[1], TOKENS[100:200:2] + 1)


def test_a_subclass_that_changes_its_samples_is_asked_for_them():
    class Halved(datasets.TokenWindows):
        def __getitem__(self, i):
            return super().__getitem__(i) // 2

    with pipeline.DataLoader(Halved(TOKENS, 100), 2, seed=1) as loader:
        assert np.array_equal(next(iter(loader))[0], TOKENS[:100] // 2)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"window": 0}, "window"),
        ({"window": True}, "window"),
        ({"window": 8, "stride": 0}, "stride"),
        ({"window": 8, "output": "uint8"}, "output"),
        ({"window": 8, "output": "float32"}, "output"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, field):
    with pytest.raises(ConfigError, match=field):
        datasets.TokenWindows(TOKENS, **arguments)


def test_a_file_that_holds_no_window_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="1000 tokens, less than one window of 1001"):
        datasets.TokenWindows(TOKENS, 1000, targets=True)
    with pytest.raises(DatasetError, match="not one row of integers"):
        datasets.TokenWindows(TOKENS.reshape(10, 100), 10)
    with pytest.raises(DatasetError, match="cannot be mapped"):
        datasets.TokenWindows(tmp_path / "missing.bin", 10)
    with pytest.raises(ConfigError, match="dtype"):
        datasets.TokenWindows(tmp_path / "missing.bin", 10, dtype="float32")
