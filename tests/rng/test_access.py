import pickle

import numpy as np
import pytest

import rng
from rng import RandomAccessPermutation

SIZES = [0, 1, 2, 5, 1000, (1 << 16) - 1, 1 << 16, 70_001, 200_000]


@pytest.mark.parametrize("n", SIZES)
def test_it_is_a_permutation_and_inverse_undoes_it(n):
    order = RandomAccessPermutation(n, 3, 5)
    values = order[:]
    assert len(order) == n
    assert (np.bincount(values, minlength=n) == 1).all()
    assert (order.inverse(values) == np.arange(n)).all()
    if n < 1 << 16:
        assert (values == rng.permutation(n, 3, 5)).all()


@pytest.mark.parametrize("n", [10**9, (1 << 40) - 1, 1 << 40])
def test_huge_orders_are_one_to_one(n):
    order = RandomAccessPermutation(n, 1)
    places = np.unique(rng.Generator(2).integers(50_000, 0, n))
    values = order[places]
    assert (order.inverse(values) == places).all()
    assert values.min() >= 0
    assert values.max() < n
    assert np.unique(values).size == places.size


def test_indexing():
    order = RandomAccessPermutation(100_000, 9, phase=2, lane=3)
    assert order[7] == order[np.array([3, 7])][1] == order[5:9].tolist()[2] == list(order)[7]
    assert order[[[1, 2], [3, 4]]].shape == (2, 2)
    assert (pickle.loads(pickle.dumps(order))[:50] == order[:50]).all()
    for bad in (100_000, -1, [0, 100_000]):
        with pytest.raises(IndexError, match="100000"):
            order[bad]
    for bad in (0.5, True, None, [True], "1"):
        with pytest.raises(TypeError, match="index"):
            order[bad]
    with pytest.raises(IndexError, match="index"):
        order[1 << 70]
    assert order[[]].shape == order.inverse([]).shape == (0,)
    assert 99_999 in order
    assert 100_000 not in order
    narrow = RandomAccessPermutation(np.int32(100_000), np.uint64(9), np.int8(2), np.int16(3))
    assert narrow[7] == order[np.uint8(7)] == order[7]
    with pytest.raises(TypeError, match="phase"):
        RandomAccessPermutation(100_000, 9, 2.5)
    with pytest.raises(ValueError, match="n must be"):
        RandomAccessPermutation((1 << 40) + 1, 0)


def test_phases_lanes_and_seeds_give_other_orders():
    n = 1 << 17
    orders = [
        RandomAccessPermutation(n, seed, phase, lane)[:1000]
        for seed in (0, 1)
        for phase in (0, 1)
        for lane in (0, 1)
    ]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            assert (a == b).sum() < 5


@pytest.mark.parametrize("n", [1 << 16, 70_001, 1 << 20, 1_281_167])
def test_neighbours_are_unrelated_where_four_rounds_fail(n):
    for seed in range(4):
        x = RandomAccessPermutation(n, seed)[:].astype(np.float64)
        x -= x.mean()
        for lag in (1, 2, 3, 16, 256):
            correlation = (x[lag:] * x[:-lag]).mean() / x.var()
            assert abs(correlation) < 4.5 / np.sqrt(n)
        trend = (x * (np.arange(n) - n / 2)).mean() / x.var()
        assert abs(trend) < 4.5 / np.sqrt(n)


def test_classes_do_not_come_in_runs():
    n, classes = 1 << 17, 10
    for seed in range(4):
        label = RandomAccessPermutation(n, seed)[:] * classes // n  # sorted by class at first
        same = (label[1:] == label[:-1]).mean()
        assert abs(same - 1 / classes) < 4.5 * np.sqrt(0.09 / n)
        batches = label[: n // 256 * 256].reshape(-1, 256)
        counts = (batches == 3).sum(1)
        assert counts.var() == pytest.approx(256 * 0.09, rel=0.3)


def test_as_many_fixed_points_as_chance_gives():
    n = 1 << 16
    fixed = sum(
        int((RandomAccessPermutation(n, seed)[:] == np.arange(n)).sum()) for seed in range(64)
    )
    assert abs(fixed - 64) < 4.5 * 8  # Poisson of mean 1 each
