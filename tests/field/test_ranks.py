"""Cases from the field: several ranks (H061 to H065)."""

import itertools

import numpy as np
import pytest

import rng
from pipeline import ConfigError
from tests.helpers import Images, Numbers, make, rows


def _ranks(dataset, world, **options):
    """One loader after another, for each rank."""
    for rank in range(world):
        with make(dataset, rank=rank, world_size=world, transforms=[], **options) as loader:
            yield loader


def _delivered(loader):
    """[[ids that are no padding]] of one pass."""
    return [loader.last.sample_ids[loader.last.valid].tolist() for _ in loader]


@pytest.mark.parametrize("tail", ["short", "even", "pad"])
def test_h061_an_evaluation_counts_each_sample_once(tail):
    for n, world in itertools.product((1, 7, 10, 16), (1, 3, 4)):
        ids = []
        for loader in _ranks(Numbers(n), world, batch_size=3, shuffle=False, tail=tail):
            ids += [i for batch in _delivered(loader) for i in batch]
        assert sorted(ids) == list(range(n)), (n, world)


@pytest.mark.parametrize("tail", ["short", "even", "trim", "drop", "pad"])
def test_h062_every_rank_has_the_same_number_of_steps(tail):
    for n, world, batch in itertools.product((0, 1, 7, 23, 60), (1, 2, 3, 8), (1, 2, 5)):
        options = {"batch_size": batch, "tail": tail}
        if tail == "drop" and 0 < n < batch * world:
            with pytest.raises(ConfigError, match="do not fill"):
                list(_ranks(Numbers(n), world, **options))
            continue
        told, sizes = set(), []
        for loader in _ranks(Numbers(n), world, **options):
            told.add(len(loader))
            sizes.append([len(batch) for batch in loader])
            assert len(sizes[-1]) == len(loader), (n, world, batch)
        assert len(told) == 1, (n, world, batch)
        if tail != "short":  # for training: batches of one size at each step
            assert all(one == sizes[0] for one in sizes), (n, world, batch)


def test_h063_ranks_see_other_parts_in_every_epoch():
    epochs, world, n = 8, 4, 1000
    seen = [
        [{i for batch in _delivered(loader) for i in batch} for _ in range(epochs)]
        for loader in _ranks(Numbers(n), world, batch_size=25)
    ]
    for rank in seen:
        assert len(set.union(*rank)) > 0.85 * n
    for epoch in zip(*seen, strict=True):
        assert sum(map(len, epoch)) == n
        assert set.union(*epoch) == set(range(n))


def test_h064_order_and_pixels_do_not_know_of_ranks():
    def steps(world):
        """[[(position, id, digest)]] of the steps of two epochs, in the order of positions."""
        found = []
        for rank in range(world):
            options = {"batch_size": 24 // world, "rank": rank, "world_size": world}
            with make(Images(100), **options) as loader:
                found.append([rows(loader, batch) for _ in range(2) for batch in loader])
        return [sorted(itertools.chain(*step)) for step in zip(*found, strict=True)]

    alone = steps(1)
    assert [len(step) for step in alone] == [24, 24, 24, 24, 4] * 2
    for world in (2, 3, 4, 8):
        assert steps(world) == alone, world


def test_h065_a_weight_has_its_values_however_it_is_cut():
    rows, columns = 1000, 777
    whole = rng.init.normal((rows, columns), 7, "layer.weight")
    for world in (2, 3, 7):
        cuts = [rows * r // world for r in range(world + 1)]
        parts = [
            rng.init.normal(
                (rows, columns), 7, "layer.weight", box=(slice(a, b), slice(0, columns))
            )
            for a, b in itertools.pairwise(cuts)
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes(), world
    cuts = [columns * r // 4 for r in range(5)]
    parts = [
        rng.init.normal((rows, columns), 7, "layer.weight", box=(slice(0, rows), slice(a, b)))
        for a, b in itertools.pairwise(cuts)
    ]
    assert np.concatenate(parts, axis=1).tobytes() == whole.tobytes()
    other = rng.init.normal((rows, columns), 7, "other.weight")
    assert (other == whole).mean() < 0.01
