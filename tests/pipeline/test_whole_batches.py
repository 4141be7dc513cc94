"""collate_fn, batch_sampler, batch_size=None, __getitems__, worker_init_fn, text, iterables."""

import collections
import dataclasses
import random
import typing

import numpy as np
import pytest

from pipeline import ConfigError, DataLoader, SampleError, StateError
from tests.helpers import wait_until

HOW = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 3, "prefetch_factor": 1, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "worker_method": "thread"},
]


class Texts:
    """Samples of an array, a number and text of any length."""

    def __init__(self, n=37):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        text = "é" * (i % 7) + str(i)
        return {"x": np.full((2, 3), i, np.float32), "n": i, "text": text,
                "raw": bytes([i]) * i if i % 3 else None, "pair": (i / 2, [f"a{i}"])}  # fmt: skip


class Numbers:
    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.int64(i), random.random()


def batches(loader, epochs=1):
    with loader:
        return [b for _ in range(epochs) for b in loader]


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return (
            type(a) is type(b)
            and len(a) == len(b)
            and all(same(x, y) for x, y in zip(a, b, strict=True))
        )
    return type(a) is type(b) and a == b


# ---------------------------------------------------------------- text
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_text_travels_beside_the_arrays(how, mode):
    data = Texts()
    got = batches(DataLoader(data, 5, shuffle=True, seed=3, mode=mode, **how), 2)
    ids = [i for b in got for i in b["n"].tolist()]
    assert sorted(ids) == sorted([*range(37)] * 2)
    for b in got:
        assert b["x"].dtype == np.float32
        for k, i in enumerate(b["n"].tolist()):
            one = data[i]
            assert (b["text"][k], b["raw"][k]) == (one["text"], one["raw"])
            assert (b["pair"][0][k], b["pair"][1][0][k]) == (i / 2, f"a{i}")
            assert (b["x"][k] == i).all()


def test_text_may_be_a_sample_by_itself_and_any_kind_of_it():
    class Color(str):
        pass

    data = ["a", Color("b"), np.str_("c"), b"d", None, "\ud800"]
    for how in HOW:
        assert batches(DataLoader(data, 4, **how)) == [["a", "b", "c", b"d"], [None, "\ud800"]]


def test_an_array_where_the_first_sample_had_text_is_refused_and_named():
    loader = DataLoader([("a", 1), (np.ones(2), 1)], 2)
    with pytest.raises(SampleError, match=r"field '0' is float64\[2\], another .* has text"):
        list(loader)


def test_batches_of_text_are_kept_by_the_user_and_not_overwritten():
    with DataLoader(Texts(200), 4, num_workers=2) as loader:
        kept = list(loader)
    assert [i for b in kept for i in b["x"][:, 0, 0].tolist()] == list(range(200))
    assert [t for b in kept for t in b["text"]] == [Texts()[i]["text"] for i in range(200)]


# ---------------------------------------------------------------- collate_fn
def pad(samples):
    width = max(len(text) for text, _ in samples)
    codes = np.zeros((len(samples), width), np.uint8)
    for row, (text, _) in zip(codes, samples, strict=True):
        row[: len(text)] = list(text.encode())
    return {"codes": codes, "text": [t for t, _ in samples], "noise": random.random()}


class Words:
    def __len__(self):
        return 29

    def __getitem__(self, i):
        return "w" * (i % 9), i


@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_a_collate_fn_makes_the_same_batches_however_many_workers(mode):
    runs = [
        batches(DataLoader(Words(), 4, shuffle=True, seed=1, mode=mode, collate_fn=pad, **how), 2)
        for how in HOW[:3]
    ]
    assert len(runs[0]) == 16
    for other in runs[1:]:
        assert all(same(a, b) for a, b in zip(runs[0], other, strict=True))
    assert len({b["noise"] for b in runs[0]}) == 16


def test_big_batches_of_a_collate_fn_are_views_and_stay_what_they_were():
    def big(samples):
        return np.stack([np.full(50_000, i, np.int64) for i, _ in samples])

    with DataLoader(Numbers(60), 2, num_workers=2, collate_fn=big) as loader:
        kept = list(loader)
    for k, b in enumerate(kept):
        assert b.flags.writeable
        assert (b == np.array([[2 * k], [2 * k + 1]])).all()


@dataclasses.dataclass
class Odd:
    parts: list
    name: str


def test_a_collate_fn_may_return_anything_that_pickles():
    def odd(samples):
        return Odd([lambda: len(samples), {1, 2}], "x")

    for how in HOW[:2]:
        (first, *_) = batches(DataLoader(Numbers(4), 2, collate_fn=odd, **how))
        assert first.parts[0]() == 2
        assert first.parts[1] == {1, 2}


def test_an_error_in_collate_fn_is_a_sample_error():
    def bad(samples):
        raise KeyError(len(samples))

    for how in HOW:
        with (
            DataLoader(Numbers(), 3, collate_fn=bad, **how) as loader,
            pytest.raises(SampleError, match=r"failed in collate: KeyError: 3") as e,
        ):
            next(iter(loader))
        assert e.value.fields["position"] == 0


def test_what_does_not_pickle_is_a_sample_error_and_hangs_nothing():
    def bad(samples):
        return (x for x in samples)

    with (
        DataLoader(Numbers(), 3, collate_fn=bad, num_workers=2) as loader,
        pytest.raises(SampleError, match="cannot pickle"),
    ):
        next(iter(loader))


# ---------------------------------------------------------------- no batches
@pytest.mark.parametrize("how", HOW, ids=str)
def test_without_a_batch_size_samples_come_one_by_one_as_they_are(how):
    class Ragged:
        def __len__(self):
            return 7

        def __getitem__(self, i):
            return np.arange(i), f"s{i}"

    loader = DataLoader(Ragged(), batch_size=None, **how)
    assert len(loader) == 7
    assert loader.batch_size is None
    got = batches(loader)
    assert [(x.tolist(), t) for x, t in got] == [([*range(i)], f"s{i}") for i in range(7)]
    doubled = DataLoader(Ragged(), None, collate_fn=lambda s: (s[1], s[1]), **how)
    assert batches(doubled)[3] == ("s3", "s3")


def test_batch_size_none_and_drop_last_exclude_each_other():
    with pytest.raises(ValueError, match="mutually exclusive with drop_last"):
        DataLoader(Numbers(), None, drop_last=True)


# ---------------------------------------------------------------- batch_sampler
SIZES = [[3, 1], [0], [5, 6, 7, 8, 2], [4, 9]]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_a_batch_sampler_may_give_batches_of_any_size(how, mode):
    loader = DataLoader(Numbers(10), batch_sampler=SIZES, mode=mode, **how)
    assert (loader.batch_size, loader.drop_last, len(loader)) == (None, False, 4)
    got = [ids.tolist() for ids, _ in batches(loader, 2)]
    assert got == SIZES * 2


def test_a_batch_sampler_resumes_at_every_step():
    full = batches(DataLoader(Numbers(10), batch_sampler=SIZES, seed=5))
    for stop in range(len(full) + 1):
        first = DataLoader(Numbers(10), batch_sampler=SIZES, seed=5, num_workers=2)
        iterator = iter(first)
        head = [next(iterator) for _ in range(stop)]
        state = first.state_dict()
        first.close()
        second = DataLoader(Numbers(10), batch_sampler=SIZES, seed=5)
        second.load_state_dict(state)
        tail = list(second) if stop < len(full) else []
        assert all(same(a, b) for a, b in zip(full, head + tail, strict=True))
        if stop == len(full):
            assert state["epoch"] == 1


def test_an_empty_batch_of_a_batch_sampler_is_refused_by_its_number():
    with pytest.raises(ConfigError, match="batch 1 of the batch_sampler is empty"):
        next(iter(DataLoader(Numbers(4), batch_sampler=[[0], [], [1]])))


def test_another_cut_of_the_same_order_is_not_resumed():
    first = DataLoader(Numbers(4), batch_sampler=[[0, 1], [2, 3]], seed=5)
    next(iter(first))
    second = DataLoader(Numbers(4), batch_sampler=[[0], [1], [2, 3]], seed=5)
    second.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match="another order"):
        next(iter(second))


def test_epochs_of_a_batch_sampler_may_have_bigger_batches_than_before():
    class Growing:
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return 1

        def __iter__(self):
            yield list(range(1 + 3 * self.epoch))

    with DataLoader(Numbers(), batch_sampler=Growing(), num_workers=2) as loader:
        assert [len(ids) for _ in range(3) for ids, _ in loader] == [1, 4, 7]


@pytest.mark.parametrize(
    "more", [{"batch_size": 2}, {"shuffle": True}, {"sampler": [0]}, {"drop_last": True}], ids=str
)
def test_a_batch_sampler_excludes_what_it_decides(more):
    with pytest.raises(ValueError, match="mutually exclusive with batch_size"):
        DataLoader(Numbers(), batch_sampler=SIZES, **more)


# ---------------------------------------------------------------- samplers
def test_a_sampler_that_draws_from_global_generators_depends_on_seed_and_epoch_only():
    class Shuffled:
        def __len__(self):
            return 23

        def __iter__(self):
            return iter(random.sample(range(23), 23))

    def orders(seed):
        with DataLoader(Numbers(), 23, sampler=Shuffled(), seed=seed) as loader:
            return [ids.tolist() for _ in range(2) for ids, _ in loader]

    state = random.getstate()
    first = orders(1)
    assert random.getstate() == state
    random.seed(9)
    assert orders(1) == first
    assert first[0] != first[1]
    assert orders(2) != first


class Endless:
    """A sampler without an end and without a length."""

    def __iter__(self):
        while True:
            yield random.randrange(23)


@pytest.mark.parametrize("how", HOW[:2], ids=str)
def test_an_endless_sampler_is_read_as_far_as_needed_and_resumes(how):
    loader = DataLoader(Numbers(), 4, sampler=Endless(), seed=2, **how)
    with pytest.raises(TypeError):
        len(loader)
    iterator = iter(loader)
    full = [next(iterator)[0].tolist() for _ in range(12)]
    loader.close()
    again = DataLoader(Numbers(), 4, sampler=Endless(), seed=2, **how)
    iterator = iter(again)
    head = [next(iterator)[0].tolist() for _ in range(5)]
    state = again.state_dict()
    assert state["offset"] == 20
    again.close()
    third = DataLoader(Numbers(), 4, sampler=Endless(), seed=2)
    third.load_state_dict(state)
    iterator = iter(third)
    assert head + [next(iterator)[0].tolist() for _ in range(7)] == full


def test_a_sampler_without_a_length_may_end():
    class Some:
        def __iter__(self):
            return iter(range(10))

    for how in HOW:
        assert [len(b[0]) for b in batches(DataLoader(Numbers(), 4, sampler=Some(), **how), 2)] == [
            4, 4, 2, 4, 4, 2,
        ]  # fmt: skip
        kept = DataLoader(Numbers(), 4, sampler=Some(), drop_last=True, **how)
        assert [len(b[0]) for b in batches(kept)] == [4, 4]


def test_a_sample_drawn_twice_gets_different_random_numbers():
    got = batches(DataLoader(Numbers(), 8, sampler=[3] * 8))[0]
    assert got[0].tolist() == [3] * 8
    assert len(set(got[1].tolist())) == 8


# ---------------------------------------------------------------- __getitems__
class Together(Numbers):
    def __getitems__(self, indices):
        return [(np.int64(i), random.random(), len(indices)) for i in indices]


def test_getitems_reads_whole_batches_and_does_not_depend_on_workers():
    runs = [batches(DataLoader(Together(), 5, shuffle=True, seed=1, **how), 2) for how in HOW[:3]]
    assert runs[0][0][2].tolist() == [5] * 5
    for other in runs[1:]:
        assert all(same(a, b) for a, b in zip(runs[0], other, strict=True))


def test_getitems_that_gives_too_few_is_an_error():
    class Few(Numbers):
        def __getitems__(self, indices):
            return [(1, 2)]

    with pytest.raises(SampleError, match="gave 1 samples for 5 indices"):
        next(iter(DataLoader(Few(), 5)))


# ---------------------------------------------------------------- worker_init_fn
class NeedsInit:
    handle = None

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i, NeedsInit.handle * 10


def test_worker_init_fn_runs_in_each_worker_before_the_first_sample(tmp_path):
    def start(worker):
        NeedsInit.handle = 5
        (tmp_path / str(worker)).touch()

    with DataLoader(NeedsInit(), 4, num_workers=2, worker_init_fn=start) as loader:
        assert [x.tolist() for _, x in loader] == [[50] * 4] * 2
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 30)
    assert NeedsInit.handle is None


def test_a_worker_init_fn_that_fails_is_told_with_its_error():
    def start(worker):
        raise OSError("no such disk")

    with (
        DataLoader(NeedsInit(), 4, num_workers=2, worker_init_fn=start) as loader,
        pytest.raises(RuntimeError, match="no such disk"),
    ):
        next(iter(loader))


# ---------------------------------------------------------------- iterables
class Stream:
    """Shuffles through a buffer with the global generator, as many do."""

    def __init__(self, n=21):
        self.n = n

    def __iter__(self):
        buffer = []
        for i in range(self.n):
            buffer.append(i)
            if len(buffer) == 5:
                yield buffer.pop(random.randrange(5)), f"t{i}"
        random.shuffle(buffer)
        for i in buffer:
            yield i, "end"


@pytest.mark.parametrize("drop", [False, True])
def test_an_iterable_gives_the_same_batches_however_many_workers(drop):
    runs = [batches(DataLoader(Stream(), 4, seed=6, drop_last=drop, **how), 2) for how in HOW[:3]]
    assert [len(b[0]) for b in runs[0]] == ([4] * 5 if drop else [4] * 5 + [1]) * 2
    if not drop:
        assert sorted(i for b in runs[0][:6] for i in b[0].tolist()) == list(range(21))
    assert any(not same(a, b) for a, b in zip(runs[0][:5], runs[0][-5:], strict=True))
    for other in runs[1:]:
        assert all(same(a, b) for a, b in zip(runs[0], other, strict=True))


def test_an_iterable_resumes_at_every_step_also_in_another_epoch():
    full = batches(DataLoader(Stream(), 4, seed=6), 2)
    for stop in range(len(full)):
        first = DataLoader(Stream(), 4, seed=6, num_workers=2)
        head = []
        while len(head) < stop:
            for b in first:
                head.append(b)
                if len(head) == stop:
                    break
        state = first.state_dict()
        first.close()
        second = DataLoader(Stream(), 4, seed=6)
        second.load_state_dict(state)
        tail = list(second)
        if stop < 6:
            tail += list(second)
        assert all(same(a, b) for a, b in zip(full, head + tail, strict=True)), stop


def test_an_empty_iterable_and_one_that_fills_its_last_batch():
    for how in HOW:
        assert batches(DataLoader(Stream(0), 4, **how), 2) == []
        assert [len(b[0]) for b in batches(DataLoader(Stream(8), 4, **how), 2)] == [4] * 4


def test_leaving_an_iterable_after_its_last_batch_begins_the_next_epoch():
    loader = DataLoader(Stream(6), 4, seed=6)
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert loader.state_dict()["epoch"] == 1
    assert [len(b[0]) for b in loader] == [4, 2]
    assert loader.epoch == 2


@pytest.mark.parametrize("how", HOW[:3], ids=str)  # threads share the generators it draws from
def test_a_state_behind_the_last_full_batch_of_an_iterable_goes_on_with_the_next_epoch(how):
    loader = DataLoader(Stream(8), 4, seed=6)
    iterator = iter(loader)
    next(iterator), next(iterator)  # nobody knows yet that there is no more
    state = loader.state_dict()
    expected = list(loader)
    with DataLoader(Stream(8), 4, seed=6, **how) as other:
        other.load_state_dict(state)
        got = list(other)
        assert len(got) == len(expected) == 2
        assert all(same(a, b) for a, b in zip(got, expected, strict=True))
        assert other.epoch == 2
        assert len(list(other)) == 2


def test_the_same_of_a_sampler_without_a_length():
    class Endless:
        def __iter__(self):
            return iter(range(8))

    loader = DataLoader(Numbers(8), 4, sampler=Endless(), seed=6)
    iterator = iter(loader)
    next(iterator), next(iterator)
    other = DataLoader(Numbers(8), 4, sampler=Endless(), seed=6)
    other.load_state_dict(loader.state_dict())
    assert [b[0].tolist() for b in other] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert other.epoch == 2


def test_skipping_behind_the_end_after_a_resume_is_an_empty_pass():
    loader = DataLoader(Numbers(8), 4, seed=6)
    iterator = iter(loader)
    next(iterator)
    other = DataLoader(Numbers(8), 4, seed=6)
    other.load_state_dict(loader.state_dict())
    other.skip(9)
    assert list(other) == []


def test_an_iterable_without_a_length_has_none():
    with pytest.raises(TypeError):
        len(DataLoader(Stream()))


def test_an_error_of_an_iterable_is_told_again_where_it_was():
    class Bad:
        def __iter__(self):
            yield from range(5)
            raise ValueError("torn")

    for how in HOW:
        with DataLoader(Bad(), 2, **how) as loader:
            got = []
            for _ in range(2):
                with pytest.raises(SampleError, match="torn") as e:
                    got.extend(b.tolist() for b in loader)
                assert e.value.fields["position"] == 5
            assert got == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "more", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}], ids=str
)
def test_an_iterable_has_its_own_order(more):
    with pytest.raises(ValueError, match="IterableDataset: expected unspecified"):
        DataLoader(Stream(), **more)


# ---------------------------------------------------------------- epochs and attributes
def test_the_epoch_reaches_a_dataset_that_wants_to_know_it():
    class Told(Numbers):
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __getitem__(self, i):
            return self.epoch

    for how in HOW:
        with DataLoader(Told(4), 4, **how) as loader:
            assert [b.tolist() for _ in range(3) for b in loader] == [[e] * 4 for e in range(3)]
            loader.set_epoch(7)
            assert next(iter(loader)).tolist() == [7] * 4


def test_fixed_attributes_are_fixed_and_others_take_effect():
    loader = DataLoader(Numbers(4), 2, num_workers=2)
    for name in ("batch_size", "sampler", "batch_sampler", "drop_last", "dataset"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after"):
            setattr(loader, name, None)
    assert isinstance(next(iter(loader)), tuple)
    loader.collate_fn = len
    loader.num_workers = 1
    with pytest.raises(ConfigError, match="num_workers"):
        loader.num_workers = -1
    assert list(loader) == [2, 2]
    loader.close()


# ---------------------------------------------------------------- on_error
class Broken(Numbers):
    bad = frozenset({2, 3, 11, 22})

    def __getitem__(self, i):
        if i in self.bad:
            raise OSError(f"cannot read {i}")
        return np.int64(i), random.random(), f"t{i}"


Pair = collections.namedtuple("Pair", "ids noise")


def collate(samples):
    return Pair(np.array([s[0] for s in samples]), random.random())


@pytest.mark.parametrize("collate_fn", [None, collate])
@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_broken_samples_are_left_out_or_replaced_the_same_way_each_time(policy, collate_fn, caplog):
    runs, failures = [], []
    for how in HOW[:3]:
        loader = DataLoader(
            Broken(), 4, shuffle=True, seed=4, on_error=policy, collate_fn=collate_fn, **how
        )
        runs.append(batches(loader, 2))
        failures.append(loader.failures)
    sizes = [len(b[0]) for b in runs[0]]
    assert sum(sizes) == (2 * 19 if policy == "skip" else 2 * 23)
    ids = [i for b in runs[0] for i in b[0].tolist()]
    assert not set(ids) & Broken.bad
    assert failures[0] == failures[1] == failures[2]
    assert [f.sample_id in Broken.bad for f in failures[0]] == [True] * 8
    assert {f.message for f in failures[0]} == {f"cannot read {i}" for i in Broken.bad}
    assert all((f.replaced_by is None) == (policy == "skip") for f in failures[0])
    assert "cannot read 11" in caplog.text
    for other in runs[1:]:
        assert all(same(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("mode", ["reproducible", "fast"])
@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_broken_samples_count_as_done_in_both_modes(policy, mode):
    for how in HOW:
        with DataLoader(Broken(), 4, seed=4, on_error=policy, mode=mode, **how) as loader:
            ids = []
            for b in loader:
                ids += b[0].tolist()
                assert loader.last.sample_ids.tolist() == b[0].tolist()
                assert b[2] == [f"t{i}" for i in b[0]]
            assert set(range(23)) - Broken.bad == set(ids)
            assert loader.state_dict()["epoch"] == 1
            assert loader.state_dict()["failures"] == 4


def test_the_policy_is_part_of_the_state():
    state = DataLoader(Broken(), 4, seed=4, on_error="skip").state_dict()
    with pytest.raises(StateError, match="on_error"):
        DataLoader(Broken(), 4, seed=4).load_state_dict(state)
    other = DataLoader(Broken(), 4, seed=4, on_error="skip")
    other.load_state_dict(state)


def test_a_batch_whose_samples_all_fail_is_passed_over():
    class Half(Numbers):
        def __getitem__(self, i):
            if i < 8:
                raise ValueError(i)
            return i

    for how in HOW:
        got = batches(DataLoader(Half(12), 4, on_error="skip", **how))
        assert [b.tolist() for b in got] == [[8, 9, 10, 11]]


def test_where_every_sample_fails_substitution_gives_up_and_says_why():
    class None_(Numbers):
        def __getitem__(self, i):
            raise ValueError("always")

    for how in HOW:
        with (
            DataLoader(None_(), 4, on_error="substitute", **how) as loader,
            pytest.raises(SampleError, match="always"),
        ):
            next(iter(loader))


class Point(typing.NamedTuple):
    x: typing.Any
    name: str


def test_containers_are_kept_in_whole_batches_too():
    data = [Point(np.arange(2), f"p{i}") for i in range(4)]
    for how in HOW:
        (b,) = batches(DataLoader(data, 4, worker_init_fn=lambda w: None, **how))
        assert type(b) is Point
        assert b.x.shape == (4, 2)
        assert b.name == ["p0", "p1", "p2", "p3"]


class Unlike:
    """Some samples have another shape than the first."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return np.full(3 if i in (3, 5, 7, 8) else 2, i)


def _first_numbers(batches):
    return [batch[:, 0].tolist() for batch in batches]


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_what_samples_are_compared_with_does_not_depend_on_where_a_pass_begins(policy):
    def loader(**how):
        return DataLoader(Unlike(), 3, shuffle=True, seed=1, on_error=policy, **how)

    whole = _first_numbers(loader())
    assert all(set(batch).isdisjoint((3, 5, 7, 8)) for batch in whole)
    first = loader()
    iterator = iter(first)
    states = []
    for _ in range(2):
        next(iterator)
        states.append(first.state_dict())
    for steps, state in enumerate(states, 1):
        resumed = loader()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert _first_numbers([resumed.batch_at(0, steps)]) == whole[steps : steps + 1]
        assert _first_numbers(resumed) == whole[steps:]
    if policy == "substitute":
        ranks = [_first_numbers(loader(rank=r, world_size=2)) for r in range(2)]
        assert [a + b for a, b in zip(*ranks, strict=True)] == [
            whole[k] + whole[k + 1] for k in range(0, 4, 2)
        ]


def test_the_count_of_failures_goes_on_after_a_resume():
    def loader():
        return DataLoader(Broken(), 4, seed=1, on_error="skip")

    first = loader()
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    rest = list(iterator)
    resumed = loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iterator = iter(resumed)
    for _ in rest[:2]:
        next(iterator)
    again = loader()
    iterator = iter(again)
    for _ in range(3):
        next(iterator)
    assert resumed.state_dict() == again.state_dict()
    with pytest.raises(StateError, match="failures"):
        loader().load_state_dict({**state, "failures": -5})
