import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rng
from rng import permute

SEEDS = st.integers(0, (1 << 64) - 1)


def test_known_answers(kat):
    for v in kat("addresses")["permutation"]:
        key = rng.address.mix64(v["seed"])
        got = permute.permutation_from_key(v["n"], key, v["epoch"], v["site"])
        assert got.tolist() == v["perm"]


@given(st.integers(0, 700), SEEDS, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 16) - 1))
@settings(max_examples=40)
def test_equals_the_reference(reference, n, seed, phase, lane):
    want = reference.permutation(reference.mix64(seed), n, lane, phase)
    assert permute.permutation(n, seed, phase, lane).tolist() == want


@given(st.integers(0, (1 << 56) - 1), st.integers(1, (1 << 64) - 1))
@settings(max_examples=100)
def test_bounded_draws_equal_the_reference_also_where_half_are_rejected(reference, i, m):
    key = reference.mix64(m)
    for n in (m, (1 << 63) + 1 + (m >> 2)):
        words = [np.uint64(w) for w in (i, n, 7, 2 << 24, key & 0xFFFFFFFF, key >> 32)]
        assert permute.bounded(*words) == reference.bounded(key, 0, 7, i, n)


def test_a_draw_that_might_be_rejected_is_looked_at_again(reference):
    # Found by search: in this order one of the draws of steps 704 ... 735 has a product whose bits
    # 32 ... 63 are 0, which sends the thirty-two of them through the exact path.
    seed, phase = 1, 2_740_223
    for n in (710, 720, 736, 800):
        want = reference.permutation(reference.mix64(seed), n, 0, phase)
        assert permute.permutation(n, seed, phase).tolist() == want


def test_every_dtype_of_out_gets_the_same_order():
    want = permute.permutation(1000, 3)
    assert want.dtype == np.uint32
    for dtype in (np.uint32, np.int64, np.uint64):
        out = np.empty(1000, dtype)
        assert permute.permutation(1000, 3, out=out) is out
        assert (out == want).all()


def test_a_large_order_is_a_permutation():
    order = permute.permutation(1_000_003, 5)
    assert (np.bincount(order, minlength=order.size) == 1).all()


@pytest.mark.parametrize("n", [*range(60, 70), 95, 96, 97, 98, 127, 128, 129, 130, 257, 1025])
def test_every_length_around_a_block_of_steps_equals_the_reference(reference, n):
    assert permute.permutation(n, 7).tolist() == reference.permutation(reference.mix64(7), n, 0, 0)


def test_phases_lanes_and_seeds_give_different_orders():
    orders = {
        permute.permutation(100, seed, phase, lane).tobytes()
        for seed in range(4)
        for phase in range(4)
        for lane in range(4)
    }
    assert len(orders) == 64


def test_all_orders_of_four_are_equally_likely():
    count = collections.Counter(
        permute.permutation(4, seed=1, phase=p).tobytes() for p in range(24_000)
    )
    chi2 = sum((c - 1000) ** 2 / 1000 for c in count.values())
    assert len(count) == 24
    assert chi2 < 49.7  # 23 degrees of freedom, p = 0.001


def test_what_does_not_fit_raises():
    for call in (
        lambda: permute.permutation(-1, 0),
        lambda: permute.permutation(1 << 57, 0),
        lambda: permute.permutation(5, -1),
        lambda: permute.permutation(5, 0, out=np.empty(4, np.uint32)),
        lambda: permute.permutation(5, 0, out=np.empty(5, np.int32)),
        lambda: permute.permutation(5, 0, out=np.empty(10, np.uint32)[::2]),
        lambda: permute.permutation_from_key(5, 1 << 64),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()


def test_phase_and_lane_out_of_range_raise():
    with pytest.raises(OverflowError, match="phase"):
        permute.permutation(5, 0, phase=1 << 32)
    with pytest.raises(OverflowError, match="lane"):
        permute.permutation(5, 0, lane=1 << 16)
    for call in (
        lambda: permute.permutation(5.0, 0),
        lambda: permute.permutation(5, 0, phase=1.5),
        lambda: permute.permutation(5, 0, lane=True),
        lambda: permute.permutation_from_key(5, 1.0),
        lambda: permute.permutation(2, 0, out=[0, 0]),
    ):
        with pytest.raises(TypeError, match=r"must be an int|numpy array"):
            call()
    want = permute.permutation(9, 1, 2, 3)
    assert (permute.permutation(np.int8(9), np.uint64(1), np.uint8(2), np.uint8(3)) == want).all()
