"""Code that uses process-wide generators: the same numbers for any worker, and nobody else's touched."""

import random
from typing import Any

import numpy as np
import pytest

import pipeline
import rng
from pipeline import datasets, reseed
from rng import address


class Drawing:
    """A dataset that draws from everything."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {
            "i": i,
            "random": random.random(),
            "gauss": random.gauss(0.0, 1.0),
            "numpy": np.random.rand(),
            "normal": np.random.randn(),  # keeps a second one: must not leak into the next sample
        }


KEYS = ("random", "gauss", "numpy", "normal")


def epochs(**how: Any) -> list[dict[str, np.ndarray]]:
    with pipeline.DataLoader(Drawing(), 16, shuffle=True, seed=5, **how) as loader:
        passes = [list(loader) for _ in range(2)]
    return [{k: np.concatenate([b[k] for b in p]) for k in ("i", *KEYS)} for p in passes]


def test_every_sample_of_every_epoch_has_numbers_of_its_own() -> None:
    first, second = epochs()
    for key in KEYS:
        assert len(set(first[key]) | set(second[key])) == 128


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 1},
        {"num_workers": 4},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
        {"num_workers": 3, "prefetch_factor": 1},
    ],
    ids=str,
)
def test_workers_draw_what_the_consumer_would_have_drawn(how: dict[str, Any]) -> None:
    for one, other in zip(epochs(), epochs(**how), strict=True):
        for key in ("i", *KEYS):
            assert np.array_equal(one[key], other[key]), key


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generators_of_the_user_are_not_touched(workers: int) -> None:
    random.seed(1)
    np.random.seed(1)
    random.gauss(0.0, 1.0)  # leaves a second number behind
    np.random.randn()
    before = random.getstate(), np.random.get_state()
    with pipeline.DataLoader(Drawing(), 16, seed=5, num_workers=workers) as loader:
        list(loader)
        loader.batch_at(3, 1)
        loader.sample_at(3, 1)
    assert random.getstate() == before[0]
    after = np.random.get_state()
    assert all(np.array_equal(a, b) for a, b in zip(before[1], after, strict=True))


def test_a_function_without_a_stream_is_seeded_too() -> None:
    def noisy(sample: Any) -> Any:
        return sample[0] + np.random.rand(), sample[1]

    data = datasets.ArrayDataset(np.zeros(20), np.arange(20))
    seen = []
    for workers in (0, 3):
        with pipeline.DataLoader(
            data, 5, seed=2, transforms=[noisy], num_workers=workers
        ) as loader:
            seen.append(np.concatenate([x for x, _ in loader]))
    assert np.array_equal(*seen)
    assert len(set(seen[0])) == 20


def test_the_fast_way_and_the_libraries_own_give_the_same_state() -> None:
    fast = reseed.Reseeder(77, 16)
    slow = reseed.Reseeder(77, 16)
    slow._numpy_known = slow._python_known = False
    slow._pair_known = False
    slow._pair = np.zeros(1, np.int32)
    slow._numpy = np.empty(625, np.uint32)
    slow._python = np.empty(625, np.uint32)
    saved = reseed.Saved()
    try:
        states = []
        for one in (fast, slow):
            one.seed(1234, 6)
            draws = [random.random(), *np.random.randint(0, 2**31, 4).tolist(), np.random.randn()]
            one.seed(1234, 6)
            states.append((draws, random.getstate()))
        assert states[0] == states[1]
        assert fast._numpy_known
        assert fast._python_known
        assert fast._pair_known
    finally:
        saved.restore()


def test_states_are_the_words_at_the_address_of_the_sample() -> None:
    key, lanes, position, phase = 0x123456789ABCDEF0, 16, 1234, 6
    n, lane = divmod(position, lanes)
    counters = np.array(
        [address.counter(address.USER, lane=lane, phase=phase, position=n << 24 | b)
         for b in range(313)], np.uint32,
    )  # fmt: skip
    words = rng.philox4x32(counters, np.array([key & address.M32, key >> 32], np.uint32)).reshape(
        -1
    )
    saved = reseed.Saved()
    try:
        np.random.seed(1)
        np.random.randn()  # keeps the second of a pair
        random.seed(1)
        random.gauss(0.0, 1.0)
        one = reseed.Reseeder(key, lanes)
        one.seed(position, phase)
        theirs = np.random.get_state(legacy=False)
        assert theirs["state"]["key"].tolist() == words[:624].tolist()
        assert (theirs["state"]["pos"], theirs["has_gauss"]) == (624, 0)
        assert random.getstate() == (3, (*words[624:1248].tolist(), 624), None)
        assert one._scratch[:2].tolist() == words[1248:1250].tolist()  # torch's
    finally:
        saved.restore()


def test_looking_for_the_second_of_a_pair_changes_nothing() -> None:
    saved = reseed.Saved()
    try:
        np.random.seed(1)
        np.random.randn()
        before = np.random.get_state()
        flag = reseed._pair_flag()
        assert flag.tolist() == [1]
        assert all(np.array_equal(a, b) for a, b in zip(before, np.random.get_state(), strict=True))
    finally:
        saved.restore()


def test_another_generator_installed_by_the_user_is_seeded_or_refused() -> None:
    mine = np.random.get_bit_generator()
    expected, _ = epochs()
    try:
        np.random.set_bit_generator(np.random.MT19937(9))
        found, _ = epochs()
        assert np.array_equal(found["numpy"], expected["numpy"])
        np.random.set_bit_generator(np.random.PCG64(9))
        with pytest.raises(pipeline.ConfigError, match="replaced by PCG64"):
            epochs()
    finally:
        np.random.set_bit_generator(mine)
