"""Samplers of keys that are no indices, compared with torch's own loader."""

import numpy as np
import pytest

import pipeline
from pipeline import ConfigError, DataLoader, SampleError

torch = pytest.importorskip("torch")
from torch.utils import data as td  # noqa: E402

HOW = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]
how = pytest.mark.parametrize("how", HOW, ids=["inline", "processes", "threads"])
WORDS = {"a": 1, "bb": 2, "ccc": 3, ("d", 4): 4, b"e": 5}


class Squares:
    """Takes an index or a list of them, as many datasets that are read in bulk."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return np.asarray(i) ** 2


class Paths:
    """Takes words."""

    def __len__(self):
        return 4

    def __getitem__(self, name):
        if name == "bad":
            raise OSError("no such file")
        return name, len(name)


@how
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (WORDS, {"sampler": list(WORDS), "batch_size": 2}),
        (WORDS, {"batch_sampler": [["bb", "a"], [b"e"], [("d", 4), "ccc", "a"]]}),
        ({5: 1.5, -3: 2.5}, {"sampler": [-3, 5, -3], "batch_size": 2}),
        ({0: 1.5, 1: 2.5, 2: 3.5}, {"batch_size": 2}),
        (Paths(), {"sampler": ["x", "yy", "x", "zzz"], "batch_size": 2}),
        (Squares(), {"sampler": [[3, 1], [2], [9, 0, 4]], "batch_size": None}),
        (
            Squares(),
            {
                "sampler": td.BatchSampler(td.SequentialSampler(Squares()), 4, drop_last=False),
                "batch_size": None,
            },
        ),
    ],
    ids=["dict", "batches", "other ints", "numbered dict", "words", "lists", "torch's lists"],
)
def test_any_key_reaches_the_dataset_as_in_torch(dataset, options, how):
    expected = [str(b) for b in td.DataLoader(dataset, **options)]
    loader = DataLoader(dataset, output="torch", seed=1, **options, **how)
    with loader:
        for _ in range(2):
            assert [str(b) for b in loader] == expected
        assert [str(loader.batch_at(7, k)) for k in range(len(expected))] == expected
        assert len(loader) == len(expected)


def test_epochs_with_other_keys_reach_workers_that_run_already():
    class Moving:
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return 3

        def __iter__(self):
            return iter([f"{self.epoch}-{i}" for i in range(3)])

    for how in HOW:
        with DataLoader(Paths(), 2, sampler=Moving(), seed=1, **how) as loader:
            iterator = iter(loader)
            assert next(iterator)[0] == ["0-0", "0-1"]
            assert loader.batch_at(5, 1)[0] == ["5-2"]
            assert next(iterator)[0] == ["0-2"]
            assert [b[0] for b in loader] == [["1-0", "1-1"], ["1-2"]]


def test_a_pass_over_keys_is_resumed_and_its_ids_are_those_of_the_keys(tmp_path):
    keys = [f"k{i}" for i in range(9)]

    def make(name, **more):
        return DataLoader(Paths(), 2, sampler=keys, seed=1, audit=tmp_path / name, **more)

    with make("whole") as loader:
        full = [b[0] for b in loader]
    first = make("first", num_workers=2)
    iterator = iter(first)
    head = [next(iterator)[0] for _ in range(2)]
    with make("second") as second:
        second.load_state_dict(first.state_dict())
        first.close()
        assert head + [b[0] for b in second] == full
    assert pipeline.verify(tmp_path / "whole", [tmp_path / "first", tmp_path / "second"])
    other = DataLoader(Paths(), 2, sampler=keys[::-1], seed=1)
    other.load_state_dict(loader_state(keys))
    with pytest.raises(pipeline.StateError, match="another order"):
        next(iter(other))


def loader_state(keys):
    loader = DataLoader(Paths(), 2, sampler=keys, seed=1)
    next(iter(loader))
    return loader.state_dict()


@how
def test_an_error_names_the_key(how):
    with (
        DataLoader(Paths(), 2, sampler=["x", "bad"], seed=1, **how) as loader,
        pytest.raises(SampleError, match=r"Paths\['bad'\]\) failed in read.*no such file"),
    ):
        list(loader)


def test_what_keys_cannot_have_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="on_error='skip' needs samples with indices"):
        next(iter(DataLoader(Paths(), sampler=["x"], on_error="skip")))
    with pytest.raises(ConfigError, match=r"'x', not an index(?s:.*)needs a __len__"):
        next(iter(DataLoader(Paths(), sampler=iter(["x"]))))
    with pytest.raises(ConfigError, match=r"keys 'a', 'bb'(?s:.*)sampler=list\(dataset\)"):
        DataLoader(WORDS)
    with pytest.raises(ConfigError, match="place 0, which is no index and cannot be pickled"):
        next(iter(DataLoader(Paths(), sampler=[lambda: 0])))
