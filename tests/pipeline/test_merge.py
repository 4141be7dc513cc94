"""Samples unlike each other, compared with torch's own loader."""

import array
import collections
import typing

import numpy as np
import pytest

from pipeline import DataLoader, SampleError
from pipeline.merge import merge

torch = pytest.importorskip("torch")
from torch.utils import data as td  # noqa: E402

HOW = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "worker_method": "thread"},
]


class Point(typing.NamedTuple):
    x: object
    y: object


def i8(*values):
    return np.array(values, np.int8)


def f4(*values):
    return np.array(values, np.float32)


def bf16(*values):
    return torch.tensor(values, dtype=torch.bfloat16)


# Each a dataset of four samples, delivered two at a time.
CASES = {
    "int then float": [1, 1.5, 2, 3],
    "float then int": [1.5, 1, 2.5, 3],
    "batches of two kinds": [1, 2, 1.5, 2.5],
    "bool and int": [True, 2, False, True],
    "numpy and Python numbers": [np.int8(3), 1.5, np.float16(2), 3],
    "numpy numbers": [np.int8(3), np.int16(300), np.float32(1), np.float64(2)],
    "great ints and floats": [2**53 + 1, 1.5, 2**24 + 1, 0.5],
    "arrays": [i8(1, 2), f4(1.5, 2), f4(3, 4), i8(5, 6)],
    "arrays of ints and small floats": [np.arange(2), np.ones(2, np.float16), np.uint8([1, 2]), i8(3, 4)],
    "complex": [f4(1, 2), np.ones(2, np.complex64), np.ones(2), np.ones(2, np.complex64)],
    "0-dimensional arrays and numbers": [np.array(3), 4, np.array(1.5), 2],
    "tensors": [torch.ones(2), torch.ones(2).half(), torch.arange(2), torch.ones(2)],
    "shapes that differ from batch to batch": [f4(1), f4(2), f4(1, 2), f4(3, 4)],
    "bfloat16": [bf16(1, 2.5), bf16(3, 4), bf16(5, 6), bf16(7, 8)],
    "bfloat16 numbers": [bf16(1)[0], bf16(3)[0], bf16(5)[0], bf16(7)[0]],
    "bfloat16 and others": [bf16(1, 2.5), torch.ones(2).half(), bf16(5, 6), torch.arange(2)],
    "float8": [torch.ones(3).to(torch.float8_e4m3fn)] * 4,
    "empty bfloat16": [bf16()] * 4,
    "bfloat16 in a dict": [{"a": bf16(1, 2), "b": ("x", 3)}] * 4,
    "conjugates": [torch.tensor([1 + 2j]).conj()] * 4,
    "negatives": [torch.tensor([1 + 2j]).conj().imag] * 4,
    "more keys": [{"a": 1}, {"a": 2, "b": 3}, {"b": 1, "a": 2}, {"a": 3, "b": 2}],
    "keys of another batch": [{"a": 1}, {"a": 2}, {"b": 3}, {"b": 4}],
    "range": [range(3)] * 4,
    "bytearray": [bytearray(b"ab"), bytearray(b"cd")] * 2,
    "array.array": [array.array("i", [1, 2])] * 4,
    "deque": [collections.deque([1, 2.5])] * 4,
    "tuples and lists": [(1, 2.5), [3, 4.5], [5, 6.5], (7, 8.5)],
    "text in tuples": [("a", 1), ("b", 2), ("c", 3), ("d", 4)],
    "text deep in tuples": [{"t": ("a", ["b", "c"]), "u": "d"}] * 4,
    "text in named tuples": [Point("a", (1, "b"))] * 4,
    "text and numbers": ["a", 5, "b", "c"],
    "words and bytes": [b"a", "b", "c", b"d"],
    "named tuples": [Point(1, 2.5), Point(1.5, 2), Point(2, 3.0), Point(3, 4.0)],
    "named tuples and tuples": [Point(1, 2), (3, 4), Point(5, 6), (7, 8)],
}  # fmt: skip


def same(a, b):
    if isinstance(b, torch.Tensor):
        return (
            isinstance(a, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(
                a.float() if a.is_floating_point() else a.to(torch.complex64),
                b.float() if b.is_floating_point() else b.to(torch.complex64),
            )
        )
    if type(a) is not type(b):
        return False
    if isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in b)
    if isinstance(b, list | tuple | collections.deque):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize("samples", CASES.values(), ids=list(CASES))
def test_batches_are_those_of_torchs_loader(samples):
    check(samples, {"num_workers": 0})


TRAVEL = ["int then float", "bfloat16 in a dict", "bfloat16 and others", "text deep in tuples"]


@pytest.mark.parametrize("name", TRAVEL)
@pytest.mark.parametrize("more", HOW[1:], ids=["processes", "threads"])
def test_batches_of_workers_are_those_of_torchs_loader_too(name, more):
    check(CASES[name], more)


def check(samples, more):
    expected = list(td.DataLoader(samples, 2))
    with DataLoader(samples, 2, output="torch", seed=1, **more) as loader:
        for _ in range(2):
            got = list(loader)
            assert len(got) == 2
            for a, b in zip(got, expected, strict=True):
                assert same(a, b), (a, b)
        assert same(loader.batch_at(0, 1), expected[1])


@pytest.mark.parametrize("samples", CASES.values(), ids=list(CASES))
def test_batches_that_are_merged_are_those_of_the_arena_where_samples_are_alike(samples):
    batch = merge([samples[0]] * 3)
    with DataLoader([samples[0]] * 3, 3, output="torch", seed=1) as loader:
        (expected,) = list(loader)
    with DataLoader([0], 1, collate_fn=lambda _: batch) as loader:
        (got,) = loader
    theirs = td.default_collate([samples[0]] * 3)
    assert same(expected, theirs)
    if isinstance(got, np.ndarray) and got.dtype.names is None:
        assert got.tobytes() == expected.numpy().tobytes()


class Samples:
    """Int samples but for some floats."""

    def __init__(self, n, floats):
        self.n, self.floats = n, floats

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"x": np.full(3, i, np.float32 if i in self.floats else np.int16), "i": i}


@pytest.mark.parametrize("more", HOW, ids=["inline", "processes", "threads"])
@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_a_pass_goes_on_where_samples_become_unlike(more, mode):
    options = {"batch_size": 4, "seed": 1, "mode": mode, "shuffle": True}
    with DataLoader(Samples(42, {17, 30}), **options, **more) as loader:
        for epoch in range(2):
            got = list(loader)
            assert sorted(i for b in got for i in b["i"].tolist()) == list(range(42))
            assert loader.epoch == epoch + 1
            for b in got:
                assert b["x"][:, 0].tolist() == b["i"].tolist()
                floats = {17, 30} & set(b["i"].tolist())
                assert b["x"].dtype == (np.float32 if floats else np.int16)
            if mode == "reproducible":
                steps = [loader.batch_at(epoch, k)["x"] for k in range(len(got))]
                assert all(np.array_equal(a["x"], b) for a, b in zip(got, steps, strict=True))
                assert loader.last.step == len(got) - 1


def test_a_resume_from_every_step_gives_the_same_batches():
    def make(**more):
        return DataLoader(Samples(20, {9, 13}), 4, seed=1, shuffle=True, **more)

    full = [b["x"] for b in make()]
    for stop in range(len(full)):
        first = make(num_workers=2)
        iterator = iter(first)
        head = [next(iterator)["x"] for _ in range(stop)]
        second = make()
        second.load_state_dict(first.state_dict())
        first.close()
        got = head + [b["x"] for b in second]
        assert [(x.dtype, x.tolist()) for x in got] == [(x.dtype, x.tolist()) for x in full]


REFUSED = {
    "shapes": ([f4(1), f4(1, 2)], "sample 1 .*another sample of the batch has float32", RuntimeError),
    "a missing key": ([{"a": 1, "b": 2}, {"a": 3}], "sample 1 .*no key 'b'.*it has 'a'", KeyError),
    "lengths": ([(1, 2), (1, 2, 3)], "sample 1 .*of equal size", RuntimeError),
    "text": ([5, "a"], "sample 1 .*of type str", RuntimeError),
    "nothing": ([5, None], "sample 1 .*of type NoneType", RuntimeError),
    "objects": ([5, object()], "sample 1 .*of type object", RuntimeError),
    "containers": ([[5], 5], "sample 1 .*of type int", RuntimeError),
    "dates": ([np.datetime64("2020"), 5], "sample 1 .*neither holds the other", RuntimeError),
    "64 bits": ([np.uint64([1]), np.int64([1])], "neither holds the other", RuntimeError),
    "sparse": ([torch.eye(2).to_sparse()] * 2, "layout 'sparse coo'.*default collate_fn", RuntimeError),
}  # fmt: skip


@pytest.mark.parametrize(("samples", "text", "kind"), REFUSED.values(), ids=list(REFUSED))
def test_what_makes_no_batch_is_refused_by_its_sample_as_in_torch(samples, text, kind):
    with pytest.raises((RuntimeError, TypeError, KeyError)):
        next(iter(td.DataLoader(samples, 2)))
    refused(samples, text, kind, {"num_workers": 0})


def test_where_only_the_first_of_a_batch_does_not_fit_it_is_named():
    loader = DataLoader([f4(1), f4(2), f4(1), f4(1, 2), f4(3), f4(4)], 3, seed=1)
    with pytest.raises(SampleError, match=r"sample 3 .*float32\[2\], another .* has float32\[1\]"):
        list(loader)


@pytest.mark.parametrize("more", HOW[1:], ids=["processes", "threads"])
def test_a_missing_key_is_a_key_error_from_workers_too(more):
    refused(*REFUSED["a missing key"], more)


def refused(samples, text, kind, more):
    with DataLoader(samples, 2, output="torch", seed=1, **more) as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match=f"(?s){text}") as e:
                next(iter(loader))
            assert isinstance(e.value, kind)


def test_bfloat16_is_refused_where_the_output_has_none():
    for more in ({}, {"collate_fn": None, "worker_init_fn": print, "num_workers": 1}):
        with (
            DataLoader([bf16(1)] * 2, 2, **more) as loader,
            pytest.raises(ValueError, match=r'(?s)dtype torch\.bfloat16.*output="torch"'),
        ):
            next(iter(loader))


def test_bfloat16_keeps_its_bytes_in_the_audit_log(tmp_path):
    import pipeline

    for name, workers in (("a", 0), ("b", 2)):
        data = [bf16(i, i + 0.5) for i in range(8)]
        with DataLoader(
            data, 2, output="torch", seed=1, num_workers=workers, audit=tmp_path / name
        ) as loader:
            list(loader)
    assert pipeline.verify(tmp_path / "a", tmp_path / "b")


def test_where_there_is_a_log_samples_unlike_the_first_are_refused(tmp_path):
    with (
        DataLoader([1, 1.5], 2, seed=1, audit=tmp_path / "a") as loader,
        pytest.raises(SampleError, match="field 'sample' is float64"),
    ):
        next(iter(loader))


def test_a_tensor_that_requires_a_gradient_comes_without():
    with DataLoader([torch.ones(2, requires_grad=True)] * 2, 2, output="torch") as loader:
        assert not next(iter(loader)).requires_grad


@pytest.mark.parametrize(
    "sample",
    [(f4(1), "a"), ["a", ("b", np.float32(2))], {"a": (np.array(["x"]), 1)}, range(3), bf16(2), Point(1, "a")],
    ids=["tuple", "list", "words", "range", "bfloat16", "named tuple"],
)  # fmt: skip
def test_single_samples_are_converted_as_by_torch(sample):
    (expected,) = td.DataLoader([sample], batch_size=None)
    with DataLoader([sample], batch_size=None, output="torch") as loader:
        (got,) = loader
    assert str(got) == str(expected)
    assert type(got) is type(expected)


# ---------------------------------------------------------------- what a breaker found
class Listed:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


ODD = [*[1] * 9, 2.5, 1, 1]


def told(batches):
    return [(b.dtype, b.tolist()) for b in batches]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [
    lambda i: ((i, i), f"s{i}"), lambda i: ({"a": i, "b": i}, f"s{i}"), lambda i: ((i, i), None),
    lambda i: [[i], [i, b"x"]], lambda i: ((i,), i),
], ids=["tuple and text", "dict and text", "tuple and None", "lists", "nested number"])  # fmt: skip
def test_nested_samples_are_not_flat_and_keep_their_text(make, workers):
    torch = pytest.importorskip("torch")
    data = Listed([make(i) for i in range(8)])
    plain = DataLoader(data, batch_size=4, num_workers=workers)
    with plain:
        numpy = [str(batch) for batch in plain]
        assert [str(plain.batch_at(0, k)) for k in range(2)] == numpy
    if make(0)[1] is not None:
        with DataLoader(data, batch_size=4, num_workers=workers, output="torch") as loader:
            want = [str(batch) for batch in torch.utils.data.DataLoader(data, batch_size=4)]
            assert [str(batch) for batch in loader] == want


def test_a_nested_first_sample_does_not_take_flat_ones():
    data = Listed([*[({"a": 1}, 0)] * 2, *[(1, 0)] * 2])
    with DataLoader(data, batch_size=4) as loader, pytest.raises(SampleError, match="dict"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interruption_while_batches_become_loose_harms_nothing(workers):
    with DataLoader(Listed(ODD), batch_size=2, num_workers=workers) as loader:
        want, found, batches = told(loader), [], iter(loader)
    with DataLoader(Listed(ODD), batch_size=2, num_workers=workers) as loader:
        batches, close = iter(loader), loader._close_engine
        found = [next(batches) for _ in range(4)]

        def interrupted(**how):
            close(**how)
            del loader._close_engine
            raise KeyboardInterrupt

        loader._close_engine = interrupted
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert told([*found, *loader]) == want
        assert told(loader) == want


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("look", [lambda x: x.batch_at(0, 4), lambda x: x.explain(0, 4, 1)],
                         ids=["batch_at", "explain"])  # fmt: skip
def test_looking_at_an_odd_batch_leaves_the_running_pass_alone(look, workers):
    with DataLoader(Listed(ODD), batch_size=2, num_workers=workers) as loader:
        want = told(loader)
    with DataLoader(Listed(ODD), batch_size=2, num_workers=workers) as loader:
        batches = iter(loader)
        found = [next(batches)]
        look(loader)
        assert told([*found, *batches]) == want
        assert told(loader) == want


def test_an_empty_batch_of_a_rank_has_the_containers_of_the_others():
    data = Listed([{"x": i if i != 5 else 0.5} for i in range(37)])
    with DataLoader(data, batch_size=4, world_size=3, rank=2, tail="short") as loader:
        last = list(loader)[-1]
        assert last["x"].shape == (0,)
