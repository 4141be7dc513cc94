import json
import pickle

import numpy as np
import pytest

import rng


def test_numpy_reads_the_words_of_the_stream():
    want = rng.Generator(42).uint64(1000)
    assert (rng.BitGenerator(42).random_raw(1000) == want).all()
    words = rng.Generator(42).uint32(10)
    g = np.random.Generator(rng.BitGenerator(42))
    assert (g.integers(0, 2**32, 10, dtype=np.uint32) == words).all()
    doubles = np.random.Generator(rng.BitGenerator(42)).random(5)
    assert (doubles == rng.Generator(42).uniform(5, dtype="float64")).all()
    here = rng.Stream(7, rng.address.site(rng.address.USER, lane=3), 1, 99)
    assert (rng.BitGenerator(here).random_raw(50) == here.uint64(np.empty(50, np.uint64))).all()


def test_its_state_can_be_kept_and_set():
    bits = rng.BitGenerator(1)
    for used in (0, 1, 63, 64, 65, 500):
        bits.random_raw(used)
        copy = pickle.loads(pickle.dumps(bits))
        state = bits.state
        ahead = bits.random_raw(100)
        assert (copy.random_raw(100) == ahead).all()
        bits.state = state
        assert (bits.random_raw(100) == ahead).all()


def test_its_normals_are_normal():
    x = np.random.Generator(rng.BitGenerator(3)).standard_normal(100_000)
    assert abs(x.mean()) < 0.015
    assert abs(x.var() - 1) < 0.02


def test_its_state_is_json_and_checked():
    bits = rng.BitGenerator(5)
    bits.random_raw(3)
    state = json.loads(json.dumps(bits.state))
    other = rng.BitGenerator(0)
    other.state = state
    assert (other.random_raw(9) == bits.random_raw(9)).all()
    for bad, error in (
        ({"word": 0}, ValueError),
        (state | {"word": -1}, OverflowError),
        (state | {"word": 1 << 66}, OverflowError),
        (state | {"key": 1 << 64}, OverflowError),
        (state | {"word": 1.0}, TypeError),
    ):
        with pytest.raises(error):
            other.state = bad
    assert (other.random_raw(9) == bits.random_raw(9)).all()


def test_children_have_keys_of_their_own():
    g = np.random.Generator(rng.BitGenerator(5))
    first = g.spawn(2)
    copied = pickle.loads(pickle.dumps(g))
    more, again = g.spawn(1), copied.spawn(1)
    assert more[0].random() == again[0].random()
    assert len({x.bit_generator.state["key"] for x in [g, *first, *more]}) == 4
    with pytest.raises(ValueError, match="n_children"):
        g.bit_generator.spawn(-1)
