"""Lightning's Trainer: the same batches, a state in each checkpoint, ranks shared out by us."""

import itertools

import pytest

pytest.importorskip("lightning")

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint

import pipeline.torch
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

# Of Lightning's own: workers it finds too few, its logs, and what it calls in torch.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:You requested to overfit"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
STEPS = -(-N // 4)


class Module(pl.LightningModule):
    """Remembers a digest of each batch that it is trained on, and what it was validated on."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.seen, self.rows, self.validated = [], [], []

    def training_step(self, batch, batch_idx):
        self.seen.append(digest(batch))
        self.rows.append(row_digests(batch))
        return self.net.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.validated.append(digest(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trainer(**options):
    settings = {
        "max_epochs": 2, "accelerator": "cpu", "devices": 1, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
    }  # fmt: skip
    return pl.Trainer(**settings | options)


def checkpoints(folder, every=5):
    keep = ModelCheckpoint(
        folder, every_n_train_steps=every, save_top_k=-1, filename="{step}", save_last=False
    )
    return {"callbacks": [keep], "enable_checkpointing": True}


@pytest.mark.parametrize("workers", [0, 2])
def test_fit_trains_on_our_batches(workers):
    with make(num_workers=workers) as loader:
        module = Module()
        trainer().fit(module, loader)
        assert module.seen == engine(epochs=2)
        state = loader.state_dict()
        assert (state["epoch"], state["offset"]) == (2, 0)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (0, 2), (2, 0)])
def test_a_run_that_goes_on_from_the_middle_of_an_epoch_equals_one_that_never_stopped(
    tmp_path, before, after
):
    with make() as loader:
        whole = Module()
        trainer().fit(whole, loader)
    with make(num_workers=before) as loader:
        first = Module()
        trainer(max_steps=8, **checkpoints(tmp_path)).fit(first, loader)
    # Saved at step 5 although the loader of that run went on to step 8.
    with make(num_workers=after) as loader:
        second = Module()
        trainer().fit(second, loader, ckpt_path=tmp_path / "step=5.ckpt", weights_only=False)
    assert first.seen == whole.seen[:8]
    assert second.seen == whole.seen[5:]
    assert weights(second) == weights(whole)


@pytest.mark.parametrize("at", [1, STEPS - 1, STEPS, STEPS + 1])
def test_it_goes_on_from_about_an_epochs_end(tmp_path, at):
    with make() as loader:
        trainer(max_steps=at, **checkpoints(tmp_path, every=at)).fit(Module(), loader)
    with make() as loader:
        module = Module()
        path = tmp_path / f"step={at}.ckpt"
        trainer().fit(module, loader, ckpt_path=path, weights_only=False)
    assert module.seen == engine(epochs=2)[at:]


def test_several_loaders_and_validation_keep_their_places(tmp_path):
    def run(folder, **options):
        module = Pair()
        with make() as a, make(30, seed=8) as b, make(9, shuffle=False, split="val") as val:
            path = options.pop("ckpt_path", None)
            trainer(val_check_interval=4, **options).fit(
                module, {"a": a, "b": b}, val, ckpt_path=path, weights_only=False
            )
        return module

    class Pair(Module):
        def training_step(self, batch, batch_idx):
            self.seen.append({name: digest(one) for name, one in batch.items() if one})
            return self.net.loss(batch["a"])

    whole = run(tmp_path)
    run(tmp_path, max_steps=6, **checkpoints(tmp_path, every=6))
    rest = run(tmp_path, ckpt_path=tmp_path / "step=6.ckpt")
    assert rest.seen == whole.seen[6:]
    # Without the look at two batches that Lightning takes before it trains.
    left = rest.validated[2:]
    assert len(left) > 3
    assert left == whole.validated[-len(left) :]


def test_overfitting_takes_the_first_batches_in_the_data_sets_order():
    module = Module()
    with make() as loader:
        trainer(overfit_batches=3).fit(module, loader)
    assert module.seen[:3] == engine(shuffle=False)[:3]


# ---------------------------------------------------------------- ranks
def fit_ddp(rank, world, folder, replace=True):
    loader = make(batch_size=2)
    module = Module()
    one = trainer(
        max_epochs=1, devices=world, strategy="ddp", use_distributed_sampler=replace,
    )  # fmt: skip
    one.fit(module, loader)
    used = one.train_dataloader
    assert type(used) is pipeline.torch.DataLoader
    assert (used.rank, used.world_size) == (rank, world)
    assert [one.__name__ for one in used.transforms] == ["noisy"]
    return module.rows


@pytest.mark.parametrize("replace", [True, False])
def test_ranks_share_out_the_order_of_one(tmp_path, replace):
    found = on_ranks(
        __name__, "fit_ddp", 2, tmp_path, initialises=False, replace=replace
    )  # Lightning initialises
    alone = engine_rows()
    got = interleaved(found)
    assert got[:N] == alone
    assert got[N:] == alone[: -N % 2]


# ---------------------------------------------------------------- Fabric
def test_fabric_takes_the_loader_and_its_state_is_asked_of_ours():
    fabric = Fabric(accelerator="cpu", devices=1)
    with make() as loader:
        wrapped = fabric.setup_dataloaders(loader)
        assert [digest(b) for b in wrapped] == engine()
        got = [digest(b) for b in itertools.islice(wrapped, 3)]
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        got += [digest(b) for b in loader]
    assert got == engine(epochs=2)[STEPS:]


def test_fabric_saves_and_loads_the_loader(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1)
    with make() as loader:
        wrapped = fabric.setup_dataloaders(loader)
        for _ in itertools.islice(wrapped, 3):
            pass
        fabric.save(tmp_path / "c.ckpt", {"loader": loader})
    with make() as loader:
        wrapped = fabric.setup_dataloaders(loader)
        fabric.load(tmp_path / "c.ckpt", {"loader": loader}, weights_only=False)
        assert [digest(b) for b in wrapped] == engine()[3:]
