"""torch.distributed with gloo: what all ranks deliver is what one delivers; any world goes on."""

import itertools

import pytest

pytest.importorskip("torch")

from torch.distributed import init_process_group
from torch.utils.data.distributed import DistributedSampler

from tests.integrations.common import (
    N,
    Rows,
    engine_rows,
    interleaved,
    make,
    on_ranks,
    row_digests,
)

pytestmark = pytest.mark.slow  # processes that import torch


def share(rank, world, folder, way, epochs=2, steps=None, state=None, **options):
    """Deliver; return ([batches of digests], state)."""
    data = Rows(N)
    if way == "arguments":
        loader = make(rank=rank, world_size=world, tail="even", **options)
    elif way == "sampler":
        loader = make(
            shuffle=None, sampler=DistributedSampler(data, world, rank, shuffle=True), **options
        )
    else:
        loader = make(**options)
    with loader:
        if state:
            loader.load_state_dict(state)
        found = []
        for _ in range(epochs):
            found += [row_digests(batch) for batch in itertools.islice(loader, steps)]
        return [found, loader.state_dict(), [loader.rank, loader.world_size, loader.seed]]


def made_before(rank, world, folder):
    """A loader without a seed from before there was a process group, and one that loads a state."""
    loader, resumed = make(seed=None, batch_size=2), make(seed=None, batch_size=2)
    resumed.load_state_dict(make(seed=99).state_dict())
    init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    found = []
    for one in (loader, resumed):
        rows = [row_digests(batch) for batch in one]
        found.append([rows, one.state_dict(), [one.rank, one.world_size, one.seed]])
    return found


def filled_up(rows, world):
    """What ranks deliver of an epoch: all, and the first again until each has as many."""
    return rows + rows[: -len(rows) % world]


WAYS = ("group", "sampler", "arguments")


def share_all_ways(rank, world, folder):
    return [
        share(rank, world, folder, way, batch_size=2, num_workers=workers)
        for way in WAYS
        for workers in (0, 2)
    ]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_out_the_order_of_one(tmp_path, world):
    one = make(batch_size=2 * world)
    epochs = [[d for batch in one for d in row_digests(batch)] for _ in range(2)]
    assert epochs[0] == engine_rows()
    expected = [d for rows in epochs for d in filled_up(rows, world)]
    for ranks in zip(*on_ranks(__name__, "share_all_ways", world, tmp_path), strict=True):
        assert [facts for _, _, facts in ranks] == [[rank, world, 7] for rank in range(world)]
        assert interleaved([rows for rows, _, _ in ranks]) == expected
        states = [state for _, state, _ in ranks]
        assert all(state == states[0] for state in states)


def test_any_world_goes_on_with_the_state_of_another(tmp_path):
    alone = engine_rows()
    got, state = [], None
    for number, (world, steps) in enumerate([(2, 2), (3, 2), (1, None)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        options = {"way": "group", "epochs": 1, "steps": steps, "state": state, "batch_size": 2}
        found = on_ranks(__name__, "share", world, folder, **options)
        got += interleaved([rows for rows, _, _ in found])
        state = found[-1][1]
    assert got == alone
    assert (state["epoch"], state["offset"]) == (1, 0)


def test_ranks_agree_on_a_seed_that_nobody_gave(tmp_path):
    found = on_ranks(__name__, "share", 3, tmp_path, way="group", seed=None, epochs=1)
    seeds = {facts[2] for _, _, facts in found}
    assert len(seeds) == 1
    rows = engine_rows(seed=seeds.pop())
    assert interleaved([rows for rows, _, _ in found]) == filled_up(rows, 3)


def test_ranks_agree_on_the_seed_of_a_loader_that_was_made_before_there_were_ranks(tmp_path):
    found = on_ranks(__name__, "made_before", 2, tmp_path, initialises=False)
    for ranks in zip(*found, strict=True):
        assert [facts[:2] for _, _, facts in ranks] == [[0, 2], [1, 2]]
        seeds = {facts[2] for _, _, facts in ranks}
        assert len(seeds) == 1
        rows = engine_rows(seed=seeds.pop())
        assert interleaved([rows for rows, _, _ in ranks]) == filled_up(rows, 2)
    assert found[0][1][2][2] == 99
