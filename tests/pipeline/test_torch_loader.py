"""`pipeline.torch.DataLoader` with torch alone; the trainers are in tests/integrations."""

import inspect
import itertools
import json
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import pipeline.torch  # noqa: E402
import rng  # noqa: E402
from pipeline import ConfigError, StateError  # noqa: E402
from pipeline import transforms as T  # noqa: E402
from tests.helpers import ROOT, Images, Numbers  # noqa: E402

pytestmark = pytest.mark.usefixtures("launcher")
DataLoader = pipeline.torch.DataLoader
Theirs = torch.utils.data.DataLoader


def numbers(n, **options):
    return DataLoader(Numbers(n), **{"seed": 3} | options)


def values(loader):
    return [batch.tolist() for batch in loader]


def flat(batches):
    return [value for batch in batches for value in batch]


def engine(n, **options):
    """What the torch-free loader gives."""
    return [batch.tolist() for batch in pipeline.DataLoader(Numbers(n), **{"seed": 3} | options)]


# ---------------------------------------------------------------- the same batches, as tensors
@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]
)
def test_it_gives_the_engines_batches_as_tensors(workers):
    options = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 3,
        "transforms": [T.RandomCrop(12, padding=2)],
    }
    expected = list(pipeline.DataLoader(Images(10), **options))
    with DataLoader(Images(10), **options, **workers) as loader:
        assert isinstance(loader, Theirs)
        assert len(loader) == 3
        got = list(loader)
        assert loader.epoch == 1
    for (x, y), (a, b) in zip(got, expected, strict=True):
        assert isinstance(x, torch.Tensor)
        assert np.array_equal(x.numpy(), a)
        assert np.array_equal(y.numpy(), b)


def test_tensors_share_the_memory_of_the_batch_and_are_never_overwritten():
    with DataLoader(Images(64), batch_size=4, num_workers=2, seed=1) as loader:
        seen = {x.data_ptr() for x, y in loader}
        assert len(seen) < 16  # buffers of the arena, used again and again
        kept = [x for x, y in itertools.islice(loader, 3)]
        copies = [x.clone() for x in kept]
        list(loader)
        assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_nothing_starts_before_the_first_batch_is_wanted():
    with numbers(8, num_workers=2) as loader:
        batches = iter(loader)
        assert loader.worker_pids() == []
        assert len(batches) == 8
        next(batches)
        assert len(loader.worker_pids()) == 2


def test_torch_is_imported_only_when_it_is_asked_for():
    code = "import sys, pipeline; assert 'torch' not in sys.modules; pipeline.torch.DataLoader"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        pipeline.tensorflow  # noqa: B018


def test_global_generators_are_not_touched():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    values(DataLoader(Numbers(9), batch_size=2, shuffle=True))
    assert torch.equal(torch.random.get_rng_state(), before)


# ---------------------------------------------------------------- attributes
def test_it_takes_torchs_arguments_in_torchs_order_with_torchs_defaults():
    ours = inspect.signature(DataLoader.__init__).parameters
    theirs = inspect.signature(Theirs.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    different = {name for name, one in theirs.items() if ours[name].default != one.default}
    assert different == {"persistent_workers"}  # no byte depends on it


NAMES = (
    "dataset", "batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "pin_memory_device", "in_order",
    "collate_fn",
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 3, "drop_last": True, "shuffle": True}, {"num_workers": 1, "timeout": 5},
     {"num_workers": 1, "prefetch_factor": 3, "multiprocessing_context": "spawn"}],
)  # fmt: skip
def test_attributes_are_torchs(options):
    data = Numbers(7)
    ours, theirs = DataLoader(data, seed=1, **options), Theirs(data, **options)
    for name in NAMES:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert isinstance(ours.sampler, type(theirs.sampler))
    assert type(ours.batch_sampler) is type(theirs.batch_sampler)
    assert len(ours.sampler) == len(theirs.sampler)
    assert len(ours) == len(theirs) == len(ours.batch_sampler)


def test_persistent_workers_is_what_was_given_or_whether_there_are_workers():
    assert numbers(3).persistent_workers is False
    assert numbers(3, num_workers=1).persistent_workers is True
    with numbers(3, num_workers=1, persistent_workers=False) as loader:
        assert loader.persistent_workers is False
        list(loader)
        assert loader.worker_pids() == []


@pytest.mark.parametrize(
    "name",
    [
        "batch_size",
        "batch_sampler",
        "sampler",
        "drop_last",
        "dataset",
        "persistent_workers",
        "transforms",
        "tail",
        "lanes",
        "seed",
        "rank",
    ],
)
def test_what_torch_fixes_and_what_decides_bytes_cannot_be_set(name):
    loader = numbers(5)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader"):
        setattr(loader, name, getattr(loader, name))


def test_what_torch_lets_be_set_acts_on_the_next_pass():
    with numbers(12, batch_size=4, shuffle=True) as loader:
        expected = [engine(12, batch_size=4, shuffle=True)]
        list(loader)
        loader.num_workers, loader.timeout, loader.prefetch_factor = 2, 60, 1
        assert values(loader) == [loader.batch_at(1, i).tolist() for i in range(3)]
        assert len(loader.worker_pids()) == 2
        assert (loader.timeout, loader.epoch) == (60, 2)
        batches = iter(loader)
        next(batches)
        loader.num_workers = loader.timeout = 0  # torch refuses a timeout without workers
        assert next(batches).tolist() == loader.batch_at(2, 1).tolist()  # a running pass goes on
        assert values(loader) == [loader.batch_at(3, i).tolist() for i in range(3)]
        assert loader.worker_pids() == []
        loader.in_order = False
        assert sorted(flat(values(loader))) == list(range(12))
        assert loader.mode == "fast"
        assert values(numbers(12, batch_size=4, shuffle=True)) == expected[0]


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"batch_size": None, "drop_last": True}, {"num_workers": -1}, {"timeout": -1},
     {"prefetch_factor": 2}, {"persistent_workers": True}, {"shuffle": True, "sampler": [0]},
     {"batch_sampler": [[0]], "batch_size": 2}, {"batch_sampler": [[0]], "shuffle": True},
     {"multiprocessing_context": "spawn"}, {"num_workers": 1, "multiprocessing_context": "threads"},
     {"num_workers": 1, "multiprocessing_context": 3}],
)  # fmt: skip
def test_torchs_errors_are_torchs(options):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        Theirs(Numbers(4), **options)
    with pytest.raises(type(theirs.value)) as ours:
        DataLoader(Numbers(4), **options)
    assert str(ours.value) == str(theirs.value)


def test_the_engines_errors_are_the_engines():
    with pytest.raises(ConfigError, match="mode must be one of"):
        numbers(4, mode="quick")


def test_what_the_engine_has_is_found_here_too():
    loader = numbers(10, batch_size=4, shuffle=True)
    next(iter(loader))
    assert loader.last.sample_ids.tolist() == loader.batch_at(0, 0).tolist()
    assert loader.sample_at(0, 0) == loader.batch_at(0, 0)[0]
    assert (loader.seed, loader.rank, loader.world_size, loader.mode) == (3, 0, 1, "reproducible")
    assert not hasattr(loader, "even_batches")
    with pytest.raises(AttributeError, match="no attribute 'even_batches'"):
        loader.even_batches  # noqa: B018


def test_pinning_without_an_accelerator_warns_as_torch_does():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = numbers(4, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found") as told:
        assert values(loader) == [[0], [1], [2], [3]]
    assert told[0].filename == __file__


# ---------------------------------------------------------------- samplers
def test_the_samplers_show_the_order_of_the_epoch():
    loader = numbers(10, batch_size=4, shuffle=True)
    assert isinstance(loader.sampler, RandomSampler)
    for _ in range(3):
        shown = list(loader.batch_sampler)
        assert shown == values(loader)
    loader.sampler.set_epoch(0)
    assert loader.epoch == 0
    assert values(loader) == engine(10, batch_size=4, shuffle=True)
    assert isinstance(numbers(3).sampler, SequentialSampler)
    assert list(numbers(3).sampler) == [0, 1, 2]


def test_samplers_that_we_understand_become_our_own_order():
    data, expected = Numbers(10), engine(10, batch_size=4, shuffle=True)
    for options in (
        {"sampler": RandomSampler(data), "batch_size": 4},
        {"batch_sampler": BatchSampler(RandomSampler(data), 4, drop_last=False)},
        {"sampler": numbers(10, shuffle=True).sampler, "batch_size": 4},
    ):
        loader = DataLoader(data, seed=3, **options)
        assert loader.sampler is options.get("sampler", loader.sampler)
        assert values(loader) == expected
        assert loader.state_dict()["listed"] is None
    loader = DataLoader(
        data, batch_size=4, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(3))
    )
    assert loader.seed == 3
    assert values(loader) == expected
    assert values(
        DataLoader(data, batch_size=4, sampler=SequentialSampler(data), seed=3)
    ) == engine(10, batch_size=4)


def test_other_samplers_are_read_each_epoch():
    picked = [3, 3, 1, 9]
    loader = numbers(10, batch_size=3, sampler=picked)
    assert loader.sampler is picked
    assert values(loader) == [[3, 3, 1], [9]]
    with_weights = WeightedRandomSampler([1.0] * 10, 6, generator=torch.Generator().manual_seed(1))
    assert sum(len(b) for b in values(numbers(10, batch_size=4, sampler=with_weights))) == 6
    repeating = RandomSampler(
        Numbers(10), replacement=True, num_samples=25, generator=torch.Generator().manual_seed(1)
    )
    assert sum(len(b) for b in values(numbers(10, batch_size=4, sampler=repeating))) == 25


# ---------------------------------------------------------------- ranks
def sharded(n, world, shuffle=True, drop_last=False, **options):
    """The loaders of all ranks, each with torch's DistributedSampler."""
    data = Numbers(n)
    return [
        DataLoader(
            data,
            sampler=DistributedSampler(data, world, rank, shuffle=shuffle, drop_last=drop_last),
            **options,
        )
        for rank in range(world)
    ]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("n", [12, 13, 16, 23])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler_drops", [False, True])
def test_a_distributed_sampler_says_which_rank_this_is(n, world, drop_last, sampler_drops):
    loaders = sharded(n, world, drop_last=sampler_drops, batch_size=2, seed=3)
    for loader in loaders:
        assert isinstance(loader.sampler, DistributedSampler)
    if drop_last:
        data = Numbers(n)
        loaders = [
            DataLoader(
                data,
                batch_size=2,
                seed=3,
                drop_last=True,
                sampler=DistributedSampler(data, world, r, drop_last=sampler_drops),
            )
            for r in range(world)
        ]
    alone = flat(engine(n, batch_size=2 * world, shuffle=True))
    batches = [values(loader) for loader in loaders]
    assert len({len(b) for b in batches}) == 1
    assert len(batches[0]) == len(loaders[0])
    found = []
    for step in zip(*batches, strict=True):
        assert len({len(b) for b in step}) == 1  # the same sizes: no rank waits, no mean of nothing
        found += flat(step)
    if drop_last:
        assert found == alone[: n - n % (2 * world)]
    elif sampler_drops:
        assert found == alone[: n - n % world]
    else:
        assert found[:n] == alone
        assert found[n:] == alone[: -n % world]  # as DistributedSampler fills up


def test_len_is_that_of_torch_with_a_distributed_sampler():
    for n, world, batch in itertools.product([5, 12, 13, 23], [2, 3], [1, 2, 4]):
        for ours in sharded(n, world, batch_size=batch, seed=1):
            theirs = Theirs(Numbers(n), batch_size=batch, sampler=ours.sampler)
            assert len(ours) == len(theirs)


def test_set_epoch_of_the_users_own_sampler_works_and_forgetting_it_does_not_repeat_an_epoch():
    loader = sharded(12, 2, batch_size=2, seed=3)[1]
    epochs = [values(loader) for _ in range(3)]  # nobody calls set_epoch
    assert len({str(e) for e in epochs}) == 3
    sampler = loader.sampler
    for epoch in (0, 2, 1):
        sampler.set_epoch(epoch)
        assert values(loader) == epochs[epoch]
    for _ in itertools.islice(loader, 1):  # given up in the middle, then wanted again
        pass
    sampler.set_epoch(1)
    assert values(loader) == epochs[1]
    loader.set_epoch(2)
    assert sampler.epoch == 2
    assert values(loader) == epochs[2]


def test_the_samplers_seed_counts_if_nobody_gave_one():
    data = Numbers(12)
    of_sampler = DataLoader(data, batch_size=6, sampler=DistributedSampler(data, 2, 0, seed=8))
    assert of_sampler.seed == 8
    assert values(of_sampler) == values(
        DataLoader(data, batch_size=6, shuffle=True, seed=8, rank=0, world_size=2)
    )


def test_given_ranks_share_out_each_sample_exactly_once():
    for n, world in itertools.product([12, 13, 23], [2, 3]):
        loaders = [
            numbers(n, batch_size=2, shuffle=True, rank=r, world_size=world) for r in range(world)
        ]
        assert all(isinstance(loader.sampler, DistributedSampler) for loader in loaders)
        assert [list(loader.sampler) for loader in loaders] == [flat(values(x)) for x in loaders]
        steps = zip(
            *[
                values(numbers(n, batch_size=2, shuffle=True, rank=r, world_size=world))
                for r in range(world)
            ],
            strict=True,
        )
        assert [q for step in steps for b in step for q in b] == flat(
            engine(n, batch_size=2 * world, shuffle=True)
        )


@pytest.mark.parametrize(
    ("options", "text"),
    [({"world_size": 2}, "without rank"), ({"rank": 2, "world_size": 2}, "rank must be an int"),
     ({"rank": 0, "world_size": 3, "sampler": DistributedSampler(Numbers(5), 2, 0)}, "contradict the sampler")],
)  # fmt: skip
def test_ranks_that_cannot_be_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        numbers(5, **options)


def test_ranks_without_a_common_seed_are_refused():
    loaders = [lambda: DataLoader(Numbers(5), rank=0, world_size=2)]
    for make in loaders:
        with pytest.raises(ConfigError, match="several ranks need one seed"):
            make()


# ---------------------------------------------------------------- seeds
def test_torchs_seed_is_taken_where_somebody_set_it():
    torch.manual_seed(77)
    try:
        assert DataLoader(Numbers(5)).seed == 77
        assert DataLoader(Numbers(5), generator=torch.Generator().manual_seed(6)).seed == 6
        assert DataLoader(Numbers(5), seed=9).seed == 9
        state = numbers(5, shuffle=True).state_dict()
        loader = DataLoader(Numbers(5), shuffle=True)
        loader.load_state_dict(state)  # the seed was not the user's own word: the state's is taken
        assert loader.seed == 3
    finally:
        torch.manual_seed(67280421310721)
    drawn = {DataLoader(Numbers(5)).seed for _ in range(3)}
    assert len(drawn) == 3


def test_rng_manual_seed_goes_before_torchs(monkeypatch):
    monkeypatch.setattr(rng, "default_seed", lambda: 12)
    assert DataLoader(Numbers(5)).seed == 12


# ---------------------------------------------------------------- state
@pytest.mark.parametrize("stop", range(6))
def test_a_state_continues_anywhere(stop):
    whole = numbers(17, batch_size=4, shuffle=True)
    expected = values(whole) + values(whole)
    loader = numbers(17, batch_size=4, shuffle=True, num_workers=1)
    for _ in itertools.islice(loader, stop):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    for other in (
        numbers(17, batch_size=4, shuffle=True),
        numbers(17, batch_size=4, shuffle=True, num_workers=2),
    ):
        other.load_state_dict(state)
        other.set_epoch(state["epoch"])  # what trainers do before each pass
        left = values(other)
        if stop < 5:
            left += values(other)
        assert left == expected[stop:]
        other.close()


def test_states_are_shared_with_the_loader_without_torch():
    ours, plain = numbers(9, batch_size=2), pipeline.DataLoader(Numbers(9), batch_size=2, seed=3)
    next(iter(ours))
    plain.load_state_dict(ours.state_dict())
    assert next(iter(plain)).tolist() == [2, 3]
    ours.load_state_dict(plain.state_dict())
    assert next(iter(ours)).tolist() == [4, 5]
    ours.load_state_dict({})
    batches = iter(ours)
    next(batches)
    batches.set_state(ours.get_state())
    assert next(batches).tolist() == [2, 3]


def test_the_state_has_the_same_names_at_any_time():
    loader = numbers(9, batch_size=2)
    names = set(loader.state_dict())
    next(iter(loader))
    assert set(loader.state_dict()) == names
    assert set(numbers(9, sampler=[1, 2, 3]).state_dict()) == names
    assert len(json.dumps(loader.state_dict())) < 1024


def test_states_that_do_not_fit_are_refused():
    with pytest.raises(StateError, match="length"):
        numbers(9).load_state_dict(numbers(8).state_dict())


def test_an_unknown_world_joins_at_the_offset_that_a_smaller_one_had():
    first = numbers(24, batch_size=4, shuffle=True)
    got = [b.tolist() for b in itertools.islice(first, 2)]
    state = first.state_dict()
    ranks = [numbers(24, batch_size=4, shuffle=True, rank=r, world_size=2) for r in range(2)]
    for loader in ranks:
        loader.load_state_dict(state)
    rest = [b for step in zip(*map(values, ranks), strict=True) for b in step]
    assert got + rest == engine(24, batch_size=4, shuffle=True)


def test_a_state_goes_on_with_a_distributed_sampler_that_counts_from_zero():
    loader = sharded(24, 2, batch_size=2, seed=3)[1]
    epochs = [values(loader) for _ in range(5)]
    loader.set_epoch(3)
    list(itertools.islice(loader, 2))
    state = loader.state_dict()
    again = sharded(24, 2, batch_size=2, seed=3)[1]
    again.load_state_dict(state)
    assert again.sampler.epoch == 3
    again.sampler.set_epoch(3)
    assert values(again) == epochs[3][2:]
    assert values(again) == epochs[4]
    batches = iter(again)
    next(batches)
    again.load_state_dict(state)  # under a running iterator
    assert [b.tolist() for b in batches] == epochs[3][2:]
    assert values(again) == epochs[4]


# ---------------------------------------------------------------- skipping, pickling
def test_skip_first_batches_reads_nothing_of_what_it_skips():
    class Counting(Numbers):
        read = 0

        def __getitem__(self, i):
            Counting.read += 1
            return super().__getitem__(i)

    loader = DataLoader(Counting(40), batch_size=4, shuffle=True, seed=3)
    assert pipeline.torch.skip_first_batches(loader, 7) is loader
    assert values(loader) == engine(40, batch_size=4, shuffle=True)[7:]
    assert Counting.read <= 13  # 12, and one to learn the fields
    assert len(values(loader)) == 10


def test_what_accelerate_asks_and_marks_is_taken():
    loader = numbers(5)
    assert loader._is_accelerate_prepared is True
    loader._is_accelerate_prepared = True  # Accelerator.prepare's last word, since 1.15
    assert flat(values(loader)) == [0, 1, 2, 3, 4]


def test_a_loader_can_be_sent_to_another_process():
    with numbers(17, batch_size=4, shuffle=True, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        other = pickle.loads(pickle.dumps(loader))
        assert isinstance(other.sampler, RandomSampler)
        assert list(other.batch_sampler) == list(loader.batch_sampler)
        assert next(iter(other)).tolist() == next(batches).tolist()
        other.close()
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(batches)


def test_no_warning_without_a_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values(numbers(5))


def test_world_size_in_the_environment_alone_is_not_taken_and_said_so(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.warns(UserWarning, match="WORLD_SIZE=2 is set"):
        assert len(values(numbers(5))) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flat(values(numbers(5, rank=1, world_size=2))) == [1, 3]
