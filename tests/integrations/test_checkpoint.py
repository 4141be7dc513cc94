"""torch.distributed.checkpoint: the loader's state beside a model's, saved and loaded by any world."""

import itertools

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp

from tests.integrations.common import (
    N,
    Net,
    engine_rows,
    interleaved,
    make,
    on_ranks,
    row_digests,
    weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*assuming the intent is to")
OTHERS = {
    "reproducible": {},
    "fast": {"mode": "fast"},
    "audit": {"audit": "log.jsonl"},
    "sampler": {"shuffle": None, "sampler": [*range(N - 1, -1, -1)]},
    "substitute": {"on_error": "substitute"},
}


def trained(loader, net, steps):
    rows = []
    for batch in itertools.islice(loader, steps):
        net.loss(batch).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        rows += row_digests(batch)
    return rows


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("steps", [0, 5, 12])
def test_a_loader_goes_on_beside_its_model(tmp_path, options, steps):
    net = Net()
    with make(**options) as loader:
        rows = trained(loader, net, steps)
        dcp.save({"net": net, "loader": loader}, checkpoint_id=tmp_path / "c")
        state = loader.state_dict()
    other = Net()
    with torch.no_grad():
        other.fc.weight.zero_()
    with make(**options) as loader:
        dcp.load({"net": other, "loader": loader}, checkpoint_id=tmp_path / "c")
        assert loader.state_dict() == state
        assert weights(other) == weights(net)
        if steps < 12:
            rows += trained(loader, other, None)
    if "sampler" in options:
        expected = engine_rows(shuffle=None, sampler=options["sampler"])
    else:
        expected = engine_rows()
    if "mode" in options:
        rows, expected = sorted(rows), sorted(expected)
    assert rows == expected


def test_a_loader_far_into_its_run_takes_an_earlier_checkpoint(tmp_path):
    with make(mode="fast", num_workers=2) as loader:
        rows = trained(loader, Net(), 4)
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / "c")
        trained(loader, Net(), 6)
        dcp.load({"loader": loader}, checkpoint_id=tmp_path / "c")
        rows += trained(loader, Net(), None)
        assert sorted(rows) == sorted(engine_rows())


def test_the_state_alone_can_be_kept_as_a_dict(tmp_path):
    with make() as loader:
        rows = trained(loader, Net(), 3)
        dcp.save({"state": loader.state_dict()}, checkpoint_id=tmp_path / "c")
    with make() as loader:
        found = {"state": loader.state_dict()}
        dcp.load(found, checkpoint_id=tmp_path / "c")
        loader.load_state_dict(found["state"])
        assert rows + trained(loader, Net(), None) == engine_rows()


# ---------------------------------------------------------------- ranks
def go_on(rank, world, folder, path, loads, steps):
    net = Net()
    with make(batch_size=2) as loader:
        if loads:
            dcp.load({"net": net, "loader": loader}, checkpoint_id=path)
        rows = [row_digests(batch) for batch in itertools.islice(loader, steps)]
        dcp.save({"net": net, "loader": loader}, checkpoint_id=f"{folder}/c")
    return rows


@pytest.mark.slow
def test_another_world_goes_on(tmp_path):
    got, path = [], ""
    for number, (world, steps) in enumerate([(2, 4), (3, None)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        options = {"path": path, "loads": bool(path), "steps": steps}
        got += interleaved(on_ranks(__name__, "go_on", world, folder, **options))
        path = str(folder / f"go_on-{world}" / "c")
    assert got == engine_rows()
