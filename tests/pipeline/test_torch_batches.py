"""torch tensors in samples and batches, and torch's own functions as collate_fn and sampler."""

import numpy as np
import pytest

from pipeline import DataLoader
from tests.helpers import wait_until

torch = pytest.importorskip("torch")
from torch.utils import data as td  # noqa: E402

HOW = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "worker_method": "thread"},
]


class Tensors(td.Dataset):
    def __len__(self):
        return 13

    def __getitem__(self, i):
        noise = torch.rand(2)
        return {"x": torch.full((2, 3), float(i)), "y": i, "noise": noise, "name": f"s{i}"}


def batches(loader, epochs=1):
    with loader:
        return [b for _ in range(epochs) for b in loader]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_tensors_go_in_and_come_out_without_a_copy(how):
    got = batches(DataLoader(Tensors(), 4, output="torch", **how))
    assert [b["y"].tolist() for b in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]
    for b in got:
        assert b["x"].dtype == torch.float32
        assert b["x"].shape == (len(b["y"]), 2, 3)
        assert b["name"] == [f"s{i}" for i in b["y"].tolist()]


def test_torchs_default_collate_gives_what_torchs_loader_gives():
    plain = Tensors()
    ours = DataLoader(plain, 4, collate_fn=td.default_collate, num_workers=2)
    for a, b in zip(batches(ours), td.DataLoader(plain, 4), strict=True):
        assert list(a) == list(b)
        assert torch.equal(a["x"], b["x"])
        assert torch.equal(a["y"], b["y"])
        assert a["y"].dtype == b["y"].dtype
        assert a["name"] == b["name"]


def test_torchs_generator_is_set_for_each_sample_however_many_workers():
    runs = [batches(DataLoader(Tensors(), 4, seed=3, **how), 2) for how in HOW[:2]]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a["noise"], b["noise"])
    assert len({x.tobytes() for b in runs[0] for x in b["noise"]}) == 26


ODD = [
    torch.arange(5),
    torch.rand(3, 4).t(),
    torch.zeros(0, 3),
    torch.rand(700, 3).to(torch.bfloat16),
    torch.rand(5, dtype=torch.complex64).conj(),
    torch.tensor(3.5),
    torch.ones(3, requires_grad=True),
    torch.eye(3).to_sparse(),
    torch.nn.Parameter(torch.ones(2)),
]


@pytest.mark.parametrize("tensor", ODD, ids=range(len(ODD)))
def test_every_kind_of_tensor_survives_the_way_from_a_worker(tensor):
    (got,) = batches(DataLoader([0], 1, collate_fn=lambda _: tensor, num_workers=1))
    assert type(got) is type(tensor)
    assert (got.dtype, got.shape, got.requires_grad) == (
        tensor.dtype, tensor.shape, tensor.requires_grad,
    )  # fmt: skip
    assert torch.equal(got.to_dense(), tensor.to_dense())


def test_collated_tensors_are_views_that_stay_when_kept():
    def big(samples):
        return torch.full((len(samples), 50_000), samples[0])

    kept = batches(DataLoader(list(range(40)), 2, collate_fn=big, num_workers=2))
    assert [int(b[0, 0]) for b in kept] == list(range(0, 40, 2))
    assert all((b == b[0, 0]).all() for b in kept)


@pytest.mark.parametrize(
    "make",
    [
        lambda: td.RandomSampler(range(13)),
        lambda: td.RandomSampler(range(13), replacement=True, num_samples=20),
        lambda: td.WeightedRandomSampler([1.0] * 13, 20),
        lambda: td.SubsetRandomSampler(range(5)),
    ],
    ids=["random", "replacement", "weighted", "subset"],
)
def test_torchs_samplers_become_functions_of_seed_and_epoch(make):
    def orders():
        loader = DataLoader(list(range(13)), 4, sampler=make(), seed=5, num_workers=0)
        return [x for b in batches(loader, 2) for x in b.tolist()]

    before = torch.get_rng_state()
    first = orders()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert orders() == first
    assert first[: len(first) // 2] != first[len(first) // 2 :]


def test_torchs_batch_sampler_and_subset():
    subset = td.Subset(Tensors(), [3, 5, 7, 9])
    sampler = td.BatchSampler(td.SequentialSampler(subset), 3, drop_last=False)
    runs = [batches(DataLoader(subset, batch_sampler=sampler, seed=1, **how)) for how in HOW[:2]]
    for got in runs:
        assert [b["y"].tolist() for b in got] == [[3, 5, 7], [9]]
    np.testing.assert_array_equal(runs[0][0]["noise"], runs[1][0]["noise"])


class Info(td.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        info = td.get_worker_info()
        return (-1, -1) if info is None else (info.id, info.num_workers)


def test_worker_info_answers_in_workers_and_only_there(tmp_path):
    def start(worker):
        assert td.get_worker_info().id == worker
        assert td.get_worker_info().dataset is not None
        (tmp_path / str(worker)).touch()

    with DataLoader(Info(), 8, num_workers=2, worker_init_fn=start) as loader:
        got = [tuple(pair) for a, b in loader for pair in zip(a.tolist(), b.tolist(), strict=True)]
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 60)
    assert set(got) <= {(0, 2), (1, 2)}
    assert td.get_worker_info() is None
    assert batches(DataLoader(Info(), 64))[0][0].tolist() == [-1] * 64


class Split(td.IterableDataset):
    """Shares its items between workers, as torch's documentation says."""

    def __iter__(self):
        info = td.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 10, step))


@pytest.mark.parametrize("how", HOW, ids=str)
def test_an_iterable_dataset_that_splits_itself_still_comes_whole_and_in_order(how):
    assert [b.tolist() for b in batches(DataLoader(Split(), 4, **how))] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9],
    ]  # fmt: skip


def test_pin_memory_without_an_accelerator_warns_as_torch_does():
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    loader = DataLoader(Tensors(), 4, output="torch", pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        next(iter(loader))


def test_a_dtype_that_torch_has_not_is_refused_by_name():
    with pytest.raises(ValueError, match="dtype datetime64"):
        next(iter(DataLoader(np.zeros(4, "M8[s]"), 2, output="torch")))
