import functools
import gc
import itertools
import json
import operator
import os
import threading
import weakref

import numpy as np
import pytest

import pipeline
from pipeline import ConfigError, DataLoader, StateError, datasets
from pipeline import transforms as T
from tests import helpers
from tests.helpers import Images, Numbers, Slow, make, walk

pytestmark = pytest.mark.usefixtures("launcher")

HOW = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 3, "worker_method": "thread"},
    {"num_workers": 2, "mode": "fast"},
    {"num_workers": 3, "worker_method": "thread", "mode": "fast"},
]
how = pytest.mark.parametrize("how", HOW, ids=lambda h: "-".join(str(v) for v in h.values()))


def numbers(n, **options):
    return DataLoader(Numbers(n), **{"seed": 3} | options)


# ---------------------------------------------------------------- arguments
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0), ("batch_size", -1), ("batch_size", 2.0), ("batch_size", True),
        ("batch_size", "4"), ("num_workers", -1), ("num_workers", 1.5),
        ("num_workers", None), ("shuffle", "yes"), ("shuffle", 1), ("drop_last", 1),
        ("timeout", -1), ("timeout", "1"), ("timeout", True), ("prefetch_factor", 0),
        ("prefetch_factor", 1.5), ("persistent_workers", None), ("in_order", "no"),
        ("worker_method", "fibre"), ("multiprocessing_context", "thread pool"),
        ("multiprocessing_context", 3), ("seed", -1), ("seed", 1 << 64), ("seed", 1.5),
        ("seed", "7"), ("seed", True), ("generator", "seven"), ("generator", -1),
        ("mode", "quick"), ("mode", None), ("split", ""), ("split", 1), ("lanes", 0),
        ("lanes", (1 << 16) + 1), ("order", "sorted"), ("streams", "renaissance"), ("rank", -1),
        ("rank", 1), ("world_size", 0), ("tail", "cut"), ("on_error", "ignore"),
        ("output", "list"), ("collate_fn", 1), ("worker_init_fn", "f"),
        ("pin_memory", 1),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_and_named(field, value):
    options = {"num_workers": 1} if field == "prefetch_factor" else {}
    with pytest.raises(ConfigError, match=field) as e:
        DataLoader(Numbers(5), **options | {field: value})
    assert isinstance(e.value, ValueError)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampler": [0, 1], "shuffle": True}, "mutually exclusive with shuffle"),
        (
            {"sampler": [0, 1], "rank": 0, "world_size": 2},
            "sampler cannot be combined with world_size",
        ),
        ({"drop_last": True, "tail": "short"}, "drop_last=True contradicts tail='short'"),
        ({"tail": "pad", "mode": "fast"}, "tail='pad' needs mode='reproducible'"),
        ({"tail": "even", "mode": "fast"}, "tail='even' needs mode='reproducible'"),
        ({"prefetch_factor": 2}, "prefetch_factor needs num_workers > 0"),
        ({"rank": 2, "world_size": 2}, "rank must be an int in \\[0, 1\\]"),
        ({"world_size": 2}, "world_size=2 without rank: every process would be rank 0"),
        ({"seed": 1, "generator": 2}, "seed=1 and generator=2 both give a seed"),
        (
            {"multiprocessing_context": "spawn"},
            "multiprocessing_context='spawn' needs num_workers > 0",
        ),
        ({"transforms": [3]}, "transforms\\[0\\] is 3"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        numbers(5, **options)


@pytest.mark.parametrize("dataset", [{1: 2}, "folder", iter([1]), int, object()])
def test_what_is_no_data_set_is_refused(dataset):
    with pytest.raises(ConfigError, match="dataset"):
        DataLoader(dataset)


def test_drop_last_that_leaves_nothing_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match="5 samples do not fill one batch of 8"):
        numbers(5, batch_size=8, drop_last=True)
    with pytest.raises(ConfigError, match="batch of 8"):
        numbers(5, batch_size=4, rank=0, world_size=2, tail="drop")


def test_a_timeout_without_workers_is_refused_by_the_pass_as_in_torch():
    loader = numbers(5, timeout=3)
    with pytest.raises(ConfigError, match="timeout=3 needs num_workers > 0"):
        next(iter(loader))
    loader.timeout = 0
    assert len(list(loader)) == 5


@pytest.mark.parametrize("huge", [2**70, -(2**70), 2**63])
def test_an_index_of_a_sampler_beyond_64_bits_is_refused_with_its_place(huge):
    with pytest.raises(ConfigError, match=f"index {huge} at place 1; the dataset has 5"):
        next(iter(numbers(5, sampler=[0, huge])))


def test_an_order_that_fits_into_no_memory_is_refused_with_its_bytes():
    class Vast(Numbers):
        def __len__(self):
            return 1 << 40

    with pytest.raises(
        ConfigError, match=r"1,099,511,627,776 samples.*8,796,093,022,208 bytes"
    ) as e:
        next(iter(DataLoader(Vast(1), shuffle=True, seed=1)))
    assert 'order="random_access"' in str(e.value)
    assert len(next(iter(DataLoader(Vast(1), shuffle=True, order="random_access", seed=1)))) == 1


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("epoch", lambda loader: loader.batch_at("a", 0)),
        ("step", lambda loader: loader.batch_at(0, 1.0)),
        ("epoch", lambda loader: loader.explain(True, 0)),
        ("step", lambda loader: loader.explain(0, "0")),
        ("slot", lambda loader: loader.explain(0, 0, None)),
        ("position", lambda loader: loader.explain(0, position=1.5)),
        ("position", lambda loader: loader.sample_at(0, "1")),
        ("epoch", lambda loader: loader.positions_at(None, 0)),
    ],
    ids=range(8),
)
def test_a_place_that_is_no_int_is_refused_by_its_name(name, call):
    with pytest.raises(TypeError, match=f"{name} must be an int, got"):
        call(numbers(5))


@pytest.mark.parametrize("name", ["rank", "world_size", "shuffle", "mode", "lanes", "on_error"])
def test_what_decides_the_plan_cannot_be_set(name):
    loader = numbers(5)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader"):
        setattr(loader, name, 1)
    assert len(list(loader)) == 5


def test_a_batch_without_a_sample_says_where_and_why():
    class Broken(Numbers):
        def __getitem__(self, i):
            if i >= 2:
                raise KeyError(f"gone {i}")
            return np.int64(i)

    loader = DataLoader(Broken(6), 2, on_error="skip", seed=1)
    with pytest.raises(
        IndexError,
        match=r"positions 2 \.\. 3: none of the 2 could be made.*sample 2 .*KeyError: 'gone",
    ):
        loader.batch_at(0, 1)
    with pytest.raises(IndexError, match="position 5: none of the 1 could be made"):
        loader.explain(0, position=5)
    assert [b.tolist() for b in loader] == [[0, 1]]


def test_too_little_memory_is_refused_with_the_settings_that_help():
    class Huge(Numbers):
        def __getitem__(self, i):
            return np.zeros(1 << 20, np.uint8)

    loader = DataLoader(Huge(1 << 22), batch_size=1 << 20, num_workers=2)
    with pytest.raises(
        ConfigError, match=r"bytes are available[\s\S]*lower batch_size \(1048576\)"
    ):
        next(iter(loader))
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_seeds_of_all_64_bits_work_and_differ(seed):
    orders = {
        s: [q for batch in numbers(40, seed=s, shuffle=True) for q in batch]
        for s in (seed, seed ^ 1, seed ^ (1 << 63))
    }
    assert len({tuple(o) for o in orders.values()}) == 3


def test_a_seed_may_come_as_a_generator_with_torch_or_our_attributes():
    class Torch:
        def initial_seed(self):
            return 5

    class Ours:
        seed = 5

    orders = [
        [int(q) for batch in DataLoader(Numbers(30), shuffle=True, **given) for q in batch]
        for given in ({"seed": 5}, {"generator": 5}, {"generator": Torch()}, {"generator": Ours()})
    ]
    assert all(order == orders[0] for order in orders)


def test_without_a_seed_one_is_drawn_once_and_kept(caplog):
    with caplog.at_level("INFO", "samebatch"):
        loader = DataLoader(Numbers(30), shuffle=True)
    assert str(loader.seed) in caplog.text
    assert loader.state_dict()["seed"] == loader.seed
    assert DataLoader(Numbers(30)).seed != loader.seed
    again = DataLoader(Numbers(30), shuffle=True)
    again.load_state_dict(loader.state_dict())
    assert again.seed == loader.seed
    assert walk(again) == walk(loader)


# ---------------------------------------------------------------- sizes
@how
@pytest.mark.parametrize("drop", [False, True])
def test_every_size_is_delivered_exactly_once(how, drop):
    for n, batch in itertools.product((0, 1, 2, 3, 4, 5, 9), (1, 2, 4, 7)):
        if drop and 0 < n < batch:
            continue
        with numbers(n, batch_size=batch, drop_last=drop, shuffle=True, **how) as loader:
            sizes, seen = [], []
            for x in loader:
                assert x.shape == (len(x),)
                sizes.append(len(x))
                seen += x.tolist()
            whole, rest = divmod(n, batch)
            assert sizes == [batch] * whole + ([rest] if rest and not drop else [])
            assert len(loader) == len(sizes)
            assert len(set(seen)) == len(seen) == (whole * batch if drop else n)
            if not drop:
                assert sorted(seen) == list(range(n))


@how
def test_more_workers_than_samples_or_than_a_batch_work(how):
    options = how | ({"num_workers": 5} if how["num_workers"] else {})
    with numbers(3, batch_size=2, **options) as loader:
        assert sorted(q for x in loader for q in x.tolist()) == [0, 1, 2]


@how
def test_a_batch_of_one_keeps_its_first_dimension(how):
    with make(Images(3), batch_size=1, **how) as loader:
        assert [x.shape for x, _ in loader] == [(1, 3, 12, 12)] * 3


@how
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_an_empty_data_set_gives_empty_epochs(how, shuffle, drop):
    with numbers(0, batch_size=4, shuffle=shuffle, drop_last=drop, **how) as loader:
        assert len(loader) == 0
        assert list(loader) == []
        assert list(loader) == []
        assert loader.epoch == 2


def test_batches_are_cut_from_the_global_order_whatever_the_workers():
    for workers in range(1, 7):
        with numbers(103, batch_size=10, num_workers=workers) as loader:
            assert [len(x) for x in loader] == [10] * 10 + [3]


def test_equal_steps_on_every_rank_and_a_full_cover():
    for n, world, batch in itertools.product((0, 1, 5, 8, 23), (1, 2, 3, 8), (1, 2, 5)):
        for tail in ("short", "drop", "pad"):
            if tail == "drop" and 0 < n < world * batch:
                continue
            steps, seen = set(), []
            for rank in range(world):
                loader = numbers(n, batch_size=batch, rank=rank, world_size=world, tail=tail)
                delivered = 0
                for x in loader:
                    delivered += 1
                    seen += x[loader.last.valid].tolist()
                steps |= {len(loader), delivered}
            assert len(steps) == 1
            full = n if tail != "drop" else n - n % (batch * world)
            assert sorted(seen) == list(range(full))


def test_a_padded_tail_is_full_and_marked():
    loader = numbers(5, batch_size=4, tail="pad")
    assert [x.tolist() for x in loader] == [[0, 1, 2, 3], [4, 0, 1, 2]]
    assert loader.last.valid.tolist() == [True, False, False, False]


@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_a_rank_without_samples_of_its_own_gets_an_empty_batch_of_the_right_kind(mode):
    with make(Images(3), batch_size=2, rank=3, world_size=4, num_workers=1, mode=mode) as loader:
        (batch,) = list(loader)
        assert batch[0].shape == (0, 3, 12, 12)
        assert batch[0].dtype == np.float32
        assert batch[1].shape == (0,)


def test_ranks_see_other_parts_of_the_data_in_every_epoch():
    n, world = 200, 4
    seen = [set() for _ in range(world)]
    loaders = [
        numbers(n, batch_size=10, shuffle=True, rank=r, world_size=world) for r in range(world)
    ]
    for _ in range(12):
        of_epoch = [{q for x in loader for q in x.tolist()} for loader in loaders]
        assert set.union(*of_epoch) == set(range(n))
        assert sum(map(len, of_epoch)) == n
        for rank, ids in enumerate(of_epoch):
            seen[rank] |= ids
    assert min(len(ids) for ids in seen) > 0.85 * n


# ---------------------------------------------------------------- epochs
@how
def test_each_pass_is_the_next_epoch_with_another_order_and_other_pixels(how):
    with make(Images(20), **how) as loader:
        passes = []
        for epoch in range(3):
            assert loader.epoch == epoch
            passes.append(sorted(walk(loader)))
    for one in passes:
        assert sorted(i for _, i, _ in one) == list(range(20))
    by_id = [{i: digest for _, i, digest in one} for one in passes]
    assert all(by_id[0][i] != by_id[1][i] or by_id[1][i] != by_id[2][i] for i in range(20))
    with make(Images(20), **how) as fresh:
        fresh.set_epoch(2)
        assert sorted(walk(fresh)) == passes[2]


def test_set_epoch_chooses_the_epoch_also_backwards_and_mid_pass():
    loader = numbers(12, batch_size=4, shuffle=True)
    epochs = [[x.tolist() for x in loader] for _ in range(3)]
    for epoch in (2, 0, 1, 1):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert [x.tolist() for x in loader] == epochs[epoch]
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(0)
    assert [x.tolist() for x in loader] == epochs[0]


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", True, 1 << 31])
def test_an_epoch_out_of_range_is_refused(epoch):
    with pytest.raises(ConfigError, match="epoch"):
        numbers(3).set_epoch(epoch)


@how
def test_leaving_an_epoch_early_starts_the_next_one_at_its_beginning(how):
    with make(Slow(23, 1.0), **how) as loader:
        for epoch in range(4):
            assert len(walk(loader, steps=2)) == 8
            assert loader.epoch == epoch
        last = walk(loader)
    with make(Images(23)) as other:
        other.set_epoch(4)
        assert sorted(walk(other)) == sorted(last)


@pytest.mark.parametrize("mode", ["reproducible", "fast"])
@pytest.mark.parametrize("steps", [9, 2])
def test_a_new_pass_waits_for_buffers_that_stragglers_still_fill(mode, steps):
    class Gated(Numbers):
        gate = threading.Event()
        waiting = threading.Semaphore(0)

        def __getitem__(self, i):
            if not Gated.gate.is_set() and i > 1:
                Gated.waiting.release()
                Gated.gate.wait(60)
            return np.int64(i)

    options = {"num_workers": 3, "worker_method": "thread", "prefetch_factor": 1, "mode": mode}
    given = list(range(steps + 4))
    with DataLoader(Gated(steps + 4), sampler=given, **options) as loader:
        iterator = iter(loader)
        kept = [next(iterator), next(iterator)]  # the user holds what he may
        for _ in range(3):  # and every worker is stuck in a buffer of its own
            assert Gated.waiting.acquire(timeout=60)
        given[:] = range(steps)
        threading.Timer(0.1, Gated.gate.set).start()
        assert sorted(int(x[0]) for x in loader) == list(range(steps))
        assert sorted(x.tolist() for x in kept) == [[0], [1]]


def test_nothing_starts_before_the_first_batch_is_asked_for():
    loader = numbers(10, num_workers=2)
    iterator = iter(loader)
    assert loader.worker_pids() == []
    next(iterator)
    assert helpers.wait_until(lambda: len(loader.worker_pids()) == 2, 20)
    loader.close()
    assert loader.worker_pids() == []


def test_of_several_iterators_the_last_one_started_goes_on():
    loader = numbers(6, batch_size=2)
    first, second = iter(loader), iter(loader)
    assert next(first).tolist() == [0, 1]
    assert next(second).tolist() == [0, 1]
    with pytest.raises(StateError, match="superseded"):
        next(first)
    assert [x.tolist() for x in second] == [[2, 3], [4, 5]]


def test_an_exhausted_iterator_stays_exhausted():
    loader = numbers(4, batch_size=2)
    iterator = iter(loader)
    assert len(iterator) == 2
    assert len(list(iterator)) == 2
    assert list(iterator) == []
    assert loader.epoch == 1


@how
def test_list_of_a_loader_holds_every_batch_unharmed(how):
    with make(Images(60), **how) as loader:
        batches = list(loader)
        assert len(batches) == 15
        before = [(x.copy(), y.copy()) for x, y in batches]
        walk(loader)
        gc.collect()
        for (x, y), (x0, y0) in zip(batches, before, strict=True):
            assert np.array_equal(x, x0)
            assert np.array_equal(y, y0)


def test_batches_outlive_their_loader():
    with make(Images(20), num_workers=2) as loader:
        batches = list(loader)
        copies = [x.copy() for x, _ in batches]
    del loader
    gc.collect()
    assert all(np.array_equal(x, c) for (x, _), c in zip(batches, copies, strict=True))


def test_batches_may_be_written_to():
    with make(Images(20), num_workers=2) as loader:
        for x, _ in loader:
            x += 1
        again = walk(loader)
    with make(Images(20)) as other:
        other.set_epoch(1)
        assert walk(other) == again


def test_persistent_workers_keep_their_processes_and_the_others_do_not():
    for persistent in (True, False):
        with numbers(8, num_workers=2, persistent_workers=persistent) as loader:
            pids = []
            for _ in range(2):
                for _ in loader:
                    helpers.wait_until(lambda loader=loader: len(loader.worker_pids()) == 2, 20)
                    pids.append(sorted(loader.worker_pids()))
            assert (pids[0] == pids[-1]) is persistent


# ---------------------------------------------------------------- samplers
def test_a_sampler_gives_the_order_and_is_read_again_each_epoch():
    class Growing:
        def __init__(self):
            self.calls = 0

        def __iter__(self):
            self.calls += 1
            return iter([9, np.int64(0), -1, self.calls])

        def __len__(self):
            return 4

    loader = numbers(10, sampler=Growing(), batch_size=3)
    assert [x.tolist() for x in loader] == [[9, 0, 9], [1]]
    assert [x.tolist() for x in loader] == [[9, 0, 9], [2]]
    assert len(loader) == 2


@pytest.mark.parametrize(
    ("sampler", "text"),
    [([0, 10], "index 10 at place 1"), ([-11], "index -11")],
)
def test_a_sampler_that_gives_no_index_is_refused(sampler, text):
    with pytest.raises(ConfigError, match=text):
        list(numbers(10, sampler=sampler))


def test_a_key_that_the_data_set_does_not_take_is_an_error_of_the_sample_that_names_it():
    with pytest.raises(pipeline.SampleError, match=r"Numbers\['a'\]\) failed in read: ValueError"):
        list(numbers(10, sampler=["a"]))


def test_a_sampler_may_give_nothing_or_hide_its_length():
    assert list(numbers(10, sampler=[])) == []

    class Endless:
        def __iter__(self):
            return iter(range(5))

    loader = numbers(10, sampler=Endless(), batch_size=2)
    assert [x.tolist() for x in loader] == [[0, 1], [2, 3], [4]]
    with pytest.raises(TypeError):
        len(loader)
    assert loader.state_dict()["epoch"] == 1


def test_a_sampler_may_give_more_than_the_data_set_has_and_its_place_is_kept():
    def loader():
        return numbers(5, sampler=[0, 1, 2, 3, 4] * 4, batch_size=3)

    first = loader()
    done = [x.tolist() for _, x in zip(range(3), first, strict=False)]
    second = loader()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert (
        functools.reduce(operator.iadd, done + [x.tolist() for x in second], [])
        == [0, 1, 2, 3, 4] * 4
    )
    assert second.epoch == 1


@pytest.mark.parametrize("sampler", [None, range(8)])
def test_leaving_after_the_last_batch_is_the_end_of_the_epoch(sampler):
    for how_ in HOW:
        with numbers(10, sampler=sampler, batch_size=4, **how_) as loader:
            for step, _ in enumerate(loader, 1):
                if step == len(loader):
                    break
            assert loader.state_dict()["epoch"] == 1
            loader.close()
            assert (loader.state_dict()["epoch"], loader.state_dict()["offset"]) == (1, 0)
            assert len(list(loader)) == len(loader)
            assert loader.epoch == 2


# ---------------------------------------------------------------- random access
@how
def test_batch_at_and_sample_at_give_what_a_pass_delivers(how):
    if how.get("mode") == "fast":
        how = how | {"mode": "reproducible"}
    with make(Images(22), **how) as loader:
        for epoch in range(2):
            for step, batch in enumerate(loader):
                positions = loader.last.positions
                for a, b in zip(batch, loader.batch_at(epoch, step), strict=True):
                    assert np.array_equal(a, b)
                for s, position in enumerate(positions.tolist()):
                    x, y = loader.sample_at(epoch, position)
                    assert np.array_equal(x, batch[0][s])
                    assert y == batch[1][s]
        assert loader.epoch == 2
        with pytest.raises(IndexError):
            loader.batch_at(0, 6)
        with pytest.raises(IndexError):
            loader.sample_at(0, 22)


def test_batch_at_needs_no_pass_and_changes_none():
    loader = make(Images(22))
    before = loader.batch_at(5, 3)
    assert loader.state_dict()["epoch"] == 0
    loader.set_epoch(5)
    batches = list(loader)
    assert all(np.array_equal(a, b) for a, b in zip(before, batches[3], strict=True))


# ---------------------------------------------------------------- state
def test_the_state_counts_what_was_delivered_not_what_was_made():
    for workers, prefetch in itertools.product((1, 2), (1, 2, 8)):
        options = {"num_workers": workers, "prefetch_factor": prefetch, "batch_size": 4}
        with numbers(60, **options) as loader:
            assert loader.state_dict()["offset"] == 0
            for k, _ in enumerate(loader, 1):
                assert loader.state_dict()["offset"] == 4 * k % 60


def test_a_state_loaded_in_the_middle_of_a_pass_takes_effect_at_once():
    reference = walk(make(Images(40)))
    for how_ in HOW[:3]:
        with make(Images(40), **how_) as loader:
            iterator = iter(loader)
            for _ in range(5):
                next(iterator)
            state = loader.state_dict()
            rest = [helpers.rows(loader, batch) for batch in iterator]
            assert functools.reduce(operator.iadd, rest, []) == reference[20:]
            iterator = iter(loader)
            next(iterator)
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            again = [helpers.rows(loader, batch) for batch in iterator]
            assert again == rest


def test_a_state_may_be_loaded_twice():
    with make(Images(40)) as loader:
        walk(loader, steps=3)
        state = loader.state_dict()
        for _ in range(2):
            loader.load_state_dict(state)
            assert walk(loader, steps=2)[0][0] == 12


def test_the_state_at_the_end_of_an_epoch_is_the_start_of_the_next():
    for n in (16, 18):
        for how_ in HOW:
            with make(Images(n), **how_) as loader:
                iterator = iter(loader)
                for _ in range(len(loader)):
                    next(iterator)
                after_last = loader.state_dict()
                assert list(iterator) == []
                exhausted = loader.state_dict()
                assert after_last == exhausted
                assert (exhausted["epoch"], exhausted["offset"]) == (1, 0)
                second = sorted(walk(loader))
            with make(Images(n)) as other:
                other.load_state_dict(after_last)
                assert sorted(walk(other)) == second


def test_positions_in_a_state_are_absolute_over_several_stops():
    whole = walk(make(Images(100), batch_size=1))
    found, state = [], {}
    for stop in (30, 40, 41, 97, 100):
        loader = make(Images(100), batch_size=1)
        loader.load_state_dict(state)
        found += walk(loader, steps=stop - len(found))
        state = loader.state_dict()
        assert state["offset"] == stop % 100
    assert found == whole


def test_a_state_is_small_json_and_the_same_on_every_rank():
    states = []
    for rank in range(3):
        loader = make(Images(50), rank=rank, world_size=3)
        walk(loader, steps=2)
        states.append(json.dumps(loader.state_dict()))
    assert states[0] == states[1] == states[2]
    assert len(states[0]) < 1024


def test_a_state_that_does_not_fit_is_refused_field_by_field_and_nothing_changes():
    loader = make(Images(20))
    walk(loader, steps=2)
    state = loader.state_dict()
    other = make(Images(21), lanes=8, transforms=[T.RandomHorizontalFlip()])
    with pytest.raises(StateError) as e:
        other.load_state_dict(state)
    for name in ("length: the state has 20, this loader 21", "lanes", "transforms"):
        assert name in str(e.value)
    assert other.state_dict()["offset"] == 0
    assert sorted(e.value.fields["different"]) == ["dataset", "lanes", "length", "transforms"]


def test_an_allowed_difference_is_recorded_in_later_states():
    loader = make(Images(20))
    walk(loader, steps=2)
    other = make(Images(20), transforms=[T.RandomHorizontalFlip()])
    other.load_state_dict(loader.state_dict(), allow=["transforms"])
    assert other.state_dict()["overridden"] == ["transforms"]
    assert walk(other)[0][0] == 8


def test_a_seed_that_was_given_is_part_of_what_must_fit():
    loader = numbers(10)
    with pytest.raises(StateError, match="seed: the state has 3, this loader 4"):
        numbers(10, seed=4).load_state_dict(loader.state_dict())


def test_other_library_versions_are_told():
    loader = numbers(10)
    state = loader.state_dict()
    state["versions"] = state["versions"] | {"numba": "0.1"}
    with pytest.warns(UserWarning, match="numba 0.1 ->"):
        loader.load_state_dict(state)


def test_an_empty_state_does_nothing():
    loader = numbers(10)
    loader.load_state_dict({})
    assert loader.state_dict()["offset"] == 0


def test_seeking_reads_only_what_is_delivered():
    class Virtual(Numbers):
        def __init__(self):
            super().__init__(10**8)
            self.reads = []

        def __getitem__(self, i):
            self.reads.append(i)
            return np.int64(i)

    data = Virtual()
    loader = DataLoader(data, batch_size=4, seed=1, shuffle=True, order="random_access")
    state = loader.state_dict() | {"offset": 90_000_000}
    loader.load_state_dict(state)
    x = next(iter(loader))
    assert len(data.reads) <= 5
    assert loader.last.positions.tolist() == list(range(90_000_000, 90_000_004))
    assert loader.state_dict()["offset"] == 90_000_004
    assert len(set(x.tolist())) == 4


# ---------------------------------------------------------------- output
def test_containers_of_the_data_set_come_back_around_batches():
    class Dicts(Numbers):
        def __getitem__(self, i):
            return {"image": np.full((2, 3), i, np.float32), "meta": (i, [float(i), i % 2 == 0])}

    for how_ in HOW:
        with DataLoader(Dicts(6), batch_size=3, **how_) as loader:
            for batch in loader:
                assert list(batch) == ["image", "meta"]
                assert batch["image"].shape == (3, 2, 3)
                assert batch["meta"][0].dtype == np.int64
                assert batch["meta"][1][0].dtype == np.float64
                assert batch["meta"][1][1].dtype == np.bool_
                assert isinstance(batch["meta"][1], list)


def test_torch_tensors_share_the_memory_of_the_batch():
    torch = pytest.importorskip("torch")
    with make(Images(20), output="torch", num_workers=2) as loader:
        for x, y in loader:
            assert isinstance(x, torch.Tensor)
            assert x.dtype == torch.float32
            assert y.dtype == torch.int64
        loader.set_epoch(0)
        kept = list(loader)
    with make(Images(20)) as other:
        for (x, _), (a, _) in zip(kept, other, strict=True):
            assert np.array_equal(x.numpy(), a)


def test_torch_output_without_torch_says_what_to_install():
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="pip install torch"):
            make(Images(4), output="torch")


# ---------------------------------------------------------------- endings
@pytest.mark.parametrize("how_", [h for h in HOW if h["num_workers"]], ids=str)
def test_a_dropped_loader_leaves_no_worker(how_):
    loader = make(Images(40), **how_)
    walk(loader, steps=1)
    pids = set(loader.worker_pids()) - {os.getpid()}
    threads = [t for t in threading.enumerate() if t.name.startswith("samebatch-")]
    gone = weakref.ref(loader)
    del loader
    assert gone() is None  # without a cycle: no need to wait for the collector
    assert helpers.wait_until(lambda: not any(map(helpers.runs, pids)), 10)
    assert helpers.wait_until(lambda: not any(t.is_alive() for t in threads), 10)


def test_dropping_an_iterator_many_times_keeps_counts_constant():
    with numbers(40, batch_size=2, num_workers=2) as loader:
        counts = set()
        for k in range(100):
            for _ in loader:
                break
            if k == 0:
                pool = loader._engine.pool
                helpers.wait_until(lambda pool=pool: pool.pids() and len(pool.ready) == 2, 20)
            elif k > 5:
                fds = len(os.listdir("/proc/self/fd"))
                counts.add((fds, threading.active_count(), len(loader.worker_pids())))
        assert len(counts) == 1


def test_a_closed_loader_can_be_used_again():
    with make(Images(20), num_workers=2) as loader:
        first = walk(loader)
        loader.close()
        loader.close()
        loader.set_epoch(0)
        assert walk(loader) == first


def test_closing_in_the_middle_of_a_pass_keeps_the_position():
    reference = walk(make(Images(20)))
    loader = make(Images(20), num_workers=2)
    walk(loader, steps=2)
    state = loader.state_dict()
    loader.close()
    assert loader.state_dict() == state
    with make(Images(20)) as other:
        other.load_state_dict(loader.state_dict())
        assert walk(other) == reference[8:]


def test_two_loaders_at_a_time_do_not_disturb_each_other():
    with make(Slow(30, 1.0), num_workers=2) as a, make(Slow(30, 1.0), num_workers=2, seed=8) as b:
        pairs = []
        for x, y in zip(a, b, strict=True):
            pairs.append((helpers.rows(a, x), helpers.rows(b, y)))
    for k, seed in enumerate((7, 8)):
        assert functools.reduce(operator.iadd, (p[k] for p in pairs), []) == walk(
            make(Images(30), seed=seed)
        )


def test_loaders_in_several_threads_do_not_disturb_each_other():
    found = {}

    def run(seed):
        with make(Slow(30, 1.0), num_workers=2, seed=seed) as loader:
            found[seed] = walk(loader)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for seed in range(4):
        assert found[seed] == walk(make(Images(30), seed=seed))


def test_a_loader_is_not_pickled_by_accident():
    import pickle

    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(numbers(3))


def test_no_batch_within_the_timeout_is_an_error_that_names_what_the_workers_do():
    gate = threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, i):
            if i == 5:
                gate.wait(60)
            return np.int64(i)

    loader = DataLoader(
        Stuck(8), batch_size=2, num_workers=1, worker_method="thread", timeout=0.2, seed=1
    )
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(pipeline.WorkerError, match=r"after 0.2 seconds[\s\S]*position=5"):
        next(iterator)
    state = loader.state_dict()
    assert state["offset"] == 4
    gate.set()
    assert [x.tolist() for x in loader] == [[4, 5], [6, 7]]
    loader.close()


def test_in_memory_arrays_and_the_same_as_objects_give_the_same_bytes():
    data = datasets.ArrayDataset(helpers.images(30), np.arange(30) % 7)
    whole = walk(make(Images(30)))
    for how_ in HOW:
        with make(data, **how_) as loader:
            assert sorted(walk(loader)) == sorted(whole)


# ---------------------------------------------------------------- skipping, Grain's names
@how
@pytest.mark.parametrize("batches", [0, 1, 3, 5, 9])
def test_skipping_leaves_out_the_first_batches_of_one_pass(how, batches):
    expected = [b.tolist() for b in numbers(17, batch_size=4, shuffle=True)]
    with numbers(17, batch_size=4, shuffle=True, **how) as loader:
        loader.skip(batches)
        got = [b.tolist() for b in loader]
        if loader.mode == "fast":
            left = sorted(q for b in expected[batches:] for q in b)
            assert sorted(q for b in got for q in b) == left
        else:
            assert got == expected[batches:]
        assert loader.epoch == 1
        assert sum(len(b) for b in loader) == 17


def test_skipping_counts_from_where_the_next_pass_begins():
    loader = numbers(20, batch_size=4, shuffle=True)
    first = next(iter(loader)).tolist()
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.skip(2)
    assert loader.state_dict()["offset"] == 12
    loader.set_epoch(0)  # what trainers do before each pass: the epoch that is due anyway
    assert (
        next(iter(loader)).tolist()
        == numbers(20, batch_size=4, shuffle=True).batch_at(0, 3).tolist()
    )
    assert first == loader.batch_at(0, 0).tolist()
    loader.skip(1)  # of the next pass: this one was given up
    assert next(iter(loader)).tolist() == loader.batch_at(1, 1).tolist()


def test_a_fast_mode_state_with_samples_ahead_has_no_batches_to_skip():
    loader = numbers(20, batch_size=4, mode="fast")
    ahead = loader.state_dict() | {"offset": 4, "ahead": [[8, 12]]}
    loader.load_state_dict(ahead)
    loader.skip(0)
    with pytest.raises(StateError, match="no fixed batches to skip"):
        loader.skip(1)


def test_grains_names_for_the_state_give_json_bytes():
    loader = numbers(20, batch_size=4, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = batches.get_state()
    assert isinstance(state, bytes)
    assert json.loads(state) == loader.state_dict() == json.loads(loader.get_state())
    expected = next(batches).tolist()
    other = numbers(20, batch_size=4, shuffle=True)
    other.set_state(state)
    assert next(iter(other)).tolist() == expected
    batches.set_state(state)
    assert next(batches).tolist() == expected


@pytest.mark.parametrize("state", [b"", b"{", b"[]x", None, 3])
def test_damaged_grain_states_are_refused(state):
    with pytest.raises(StateError, match="not a state of samebatch"):
        numbers(5).set_state(state)
