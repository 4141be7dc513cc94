"""Accelerate: `prepare` leaves the loader ours, its checkpoints keep our state, nothing swaps us out."""

import itertools

import pytest

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState, PartialState

import pipeline.torch
from pipeline import ConfigError
from tests.integrations.common import (
    N,
    Net,
    digest,
    engine,
    engine_rows,
    interleaved,
    make,
    on_ranks,
    row_digests,
    weights,
)


@pytest.fixture(autouse=True)
def _a_fresh_accelerate():
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    PartialState._reset_state()


def train(accelerator, loader, steps=None, net=None, optimizer=None):
    """Train for an epoch or for some steps; return the digests of the batches."""
    seen = []
    for batch in itertools.islice(loader, steps):
        seen.append(digest(batch))
        if net is not None:
            with accelerator.accumulate(net):
                accelerator.backward(net.loss(batch))
                optimizer.step()
                optimizer.zero_grad()
    return seen


CONFIGURATIONS = {
    "default": {},
    "stateful": {"use_stateful_dataloader": True},
    "dispatch": {"dispatch_batches": True},
    "split": {"split_batches": True},
    "seedable": {"use_seedable_sampler": True},
}


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_prepare_leaves_the_loader_ours(options):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    with make(num_workers=2) as loader:
        assert accelerator.prepare(loader) is loader
        assert train(accelerator, loader) + train(accelerator, loader) == engine(epochs=2)
        assert accelerator.prepare_data_loader(loader) is loader


@pytest.mark.parametrize("accumulate", [1, 4, 5])
def test_gradients_are_stepped_at_an_epochs_end(accumulate):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    with make() as loader:
        net = Net()
        net, _optimizer, loader = accelerator.prepare(
            net, torch.optim.SGD(net.parameters(), lr=0.1), loader
        )
        stepped = []
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net.loss(batch))
                stepped.append(accelerator.sync_gradients)
        n = len(loader)
        assert stepped == [step % accumulate == 0 or step == n for step in range(1, n + 1)]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0), (0, 2)])
@pytest.mark.parametrize("stop", [1, 5, 12, 15])
def test_save_state_and_load_state_go_on_at_the_next_batch(tmp_path, before, after, stop):
    def run(workers, folder=None, steps=None):
        accelerator = Accelerator(cpu=True)
        net = Net()
        with make(num_workers=workers) as loader:
            net, optimizer, loader = accelerator.prepare(
                net, torch.optim.SGD(net.parameters(), lr=0.1), loader
            )
            if folder:
                accelerator.load_state(folder)
            seen = []
            while loader.state_dict()["epoch"] < 2 and (steps is None or len(seen) < steps):
                left = None if steps is None else steps - len(seen)
                seen += train(accelerator, loader, left, net, optimizer)
            if steps is not None:
                accelerator.save_state(tmp_path / "kept")
        return seen, weights(net)

    whole, expected = run(0)
    assert whole == engine(epochs=2)
    first, _ = run(before, steps=stop)
    rest, trained = run(after, tmp_path / "kept")
    assert first + rest == whole
    assert trained == expected


def test_what_would_swap_us_out_says_so_instead():
    accelerator = Accelerator(cpu=True)
    with make() as loader:
        accelerator.prepare(loader)
        for swap in (
            lambda: skip_first_batches(loader, 3),
            lambda: accelerator.skip_first_batches(loader, 3),
            lambda: prepare_data_loader(loader, put_on_device=True),
        ):
            with pytest.raises(ConfigError, match="would put a plain torch DataLoader"):
                swap()
        assert pipeline.torch.skip_first_batches(loader, 3) is loader
        assert [digest(b) for b in loader] == engine()[3:]


# ---------------------------------------------------------------- ranks
def share(rank, world, folder, batch_size=2):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(make(batch_size=batch_size))
    assert type(loader) is pipeline.torch.DataLoader
    assert (loader.rank, loader.world_size) == (rank, world)
    rows, gathered = [], []
    for batch in loader:
        rows.append(row_digests(batch))
        gathered += [int(v) for v in accelerator.gather_for_metrics(batch[0][:, 0].contiguous())]
    return [rows, gathered]


def test_ranks_share_out_the_order_of_one(tmp_path):
    world = 3
    found = on_ranks(__name__, "share", world, tmp_path, initialises=False)
    alone = engine_rows()
    got = interleaved([rows for rows, _ in found])
    assert got[:N] == alone
    assert got[N:] == alone[: -N % world]  # every rank has as many
    for _, gathered in found:
        assert sorted(gathered) == list(range(N))  # the samples that fill up are left out
