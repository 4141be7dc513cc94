"""Cases from the field: interfaces and integration (H056 to H060)."""

import dataclasses
import functools
import threading
import typing

import numpy as np
import pytest

import pipeline
from pipeline import ConfigError, datasets
from pipeline import transforms as T
from tests.helpers import Images, make, python, walk

pytestmark = pytest.mark.usefixtures("launcher")


# ---------------------------------------------------------------- what travels to workers
class Holder:
    def __init__(self):
        self.handles = {"one": threading.Lock()}

    def __call__(self, sample):
        return sample

    def method(self, sample):
        return sample


class Plain:
    def method(self, sample):
        return sample[0] + 1, sample[1]


def test_h056_functions_of_any_kind_travel_to_workers_that_are_forked():
    def local(sample):
        return sample[0] * 2, sample[1]

    functions = [lambda sample: sample, local, Plain().method, functools.partial(local)]
    settings = {"transforms": [*functions, T.RandomHorizontalFlip()]}
    with make(Images(12), **settings) as loader:
        wanted = walk(loader)
    with make(Images(12), num_workers=1, **settings) as loader:
        assert walk(loader) == wanted


MAIN = """
import functools, sys
import numpy as np
from tests.helpers import Images, make, walk

class OfMain:
    def __init__(self, add): self.add = add
    def __call__(self, sample): return sample[0] + self.add, sample[1]
    def method(self, sample): return sample[0] ^ 1, sample[1]

functions = [lambda s: s, OfMain(3), OfMain(1).method, functools.partial(OfMain.__call__, OfMain(2))]
found = []
for how in ({}, {"num_workers": 1, "multiprocessing_context": "spawn"}):
    with make(Images(8), transforms=functions, **how) as loader:
        found.append(walk(loader))
assert found[0] == found[1] and len(found[0]) == 8
"""


def test_h056_functions_of_any_kind_travel_to_workers_that_are_spawned():
    python(MAIN)  # a script without a main guard, its class in __main__


def test_h056_what_cannot_travel_is_named_alike_for_every_start_method():
    holder = Holder()
    functions = {
        "transforms.0.handles.one (lock)": holder,
        "transforms.0.__self__.handles.one (lock)": holder.method,
        "transforms.0.func.__self__.handles.one (lock)": functools.partial(holder.method),
        "transforms.0.holder.handles.one (lock)": lambda sample: holder(sample),
    }
    for named, function in functions.items():
        told = set()
        for context in ("fork", "forkserver", "spawn"):
            how = {"num_workers": 1, "multiprocessing_context": context}
            with (
                make(Images(8), transforms=[function], **how) as loader,
                pytest.raises(ConfigError, match="cannot be sent to worker processes") as e,
            ):
                next(iter(loader))
            told.add(str(e.value))
        (text,) = told
        assert text.startswith(named)


# ---------------------------------------------------------------- configurations
TEXT = """
seed = 7
[dataset]
kind = "digits"
[loader]
batch_size = 8
[[transforms]]
kind = "RandomErasing"
"""


@pytest.mark.parametrize(
    ("key", "bad", "expected"),
    [
        ("transforms[0].p", '"0.1"', "a number"),
        ("transforms[0].p", "1.5", "[0, 1]"),
        ("transforms[0].p", "-0.1", "[0, 1]"),
        ("transforms[0].p", "nan", "a number"),
        ("loader.batch_size", "32.0", "an int >= 1"),
        ("loader.batch_size", '"32"', "an int >= 1"),
        ("loader.batch_size", "0", "an int >= 1"),
        ("loader.batch_size", "true", "an int >= 1"),
        ("seed", "1e3", "an int"),
    ],
)
def test_h057_a_value_of_another_type_is_refused_with_key_value_and_type(key, bad, expected):
    name, value = pipeline.config.parse_override(f"{key}={bad}")
    with pytest.raises(ConfigError) as e:
        pipeline.load_config(TEXT, {name: value})
    assert e.value.fields["field"] == key
    assert str(value) in e.value.what
    assert expected in e.value.what


def test_h057_numbers_with_an_exponent_are_numbers():
    config = pipeline.load_config(TEXT + "p = 1e-1\n")
    value = config.transforms[0].arguments["p"]
    assert (type(value), value) == (float, 0.1)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("loader.shufle", "nearest valid: loader.shuffle"),
        ("repoducible", 'nearest valid: mode = "reproducible"'),
        ("run.batch_size", "nearest valid: loader.batch_size"),
        ("transforms[0].prob", "transforms[0].prob: unknown key"),
    ],
)
def test_h058_a_misspelt_key_is_refused_with_the_nearest_one(key, says):
    with pytest.raises(ConfigError) as e:
        pipeline.load_config(TEXT, {key: True})
    assert e.value.fields["field"] == key
    assert says in e.value.what


# ---------------------------------------------------------------- batches
@pytest.mark.parametrize("shape", [(6, 5, 3), (1, 5, 3), (6, 1, 3), (1, 1, 3)])
@pytest.mark.parametrize("how", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_h059_batches_are_plain_memory_also_after_a_flip(shape, how):
    stored = np.random.default_rng(0).integers(0, 256, (9, *shape)).astype(np.uint8)
    data = datasets.ArrayDataset(stored, np.arange(9))

    def flipped(sample):
        return sample[0][:, ::-1], sample[1]  # a view with a negative stride

    for ops in ([T.RandomHorizontalFlip(p=1.0)], [flipped]):
        with make(data, transforms=ops, shuffle=False, **how) as loader:
            batches = list(loader)
        for images, _ in batches:
            assert images.flags.c_contiguous
            assert images.flags.aligned
            assert images.flags.writeable
            assert all(stride > 0 for stride in images.strides)
            assert images.ctypes.data % 64 == 0
        assert np.array_equal(np.concatenate([b[0] for b in batches]), stored[:, :, ::-1])


def test_h059_torch_takes_batches_as_they_are():
    torch = pytest.importorskip("torch")
    with make(Images(5), transforms=[T.RandomHorizontalFlip(p=1.0)]) as loader:
        for images, labels in loader:
            assert torch.from_numpy(images).data_ptr() == images.ctypes.data
            assert torch.from_numpy(labels).dtype == torch.int64


class Ordered(dict):
    """A dict of the user's."""


class Pair(typing.NamedTuple):
    number: float
    whole: int


@dataclasses.dataclass
class Record:
    pair: Pair
    text: str


class Nested:
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return Ordered(
            z=Record(Pair(i / 2, i), f"sample {i}"),
            a=((np.float64(i), (b"\xff" * i, None)), i % 2 == 0),
        )


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}], ids=["inline", "processes"])
def test_h060_containers_names_and_types_stay(how):
    with make(Nested(), batch_size=3, shuffle=False, transforms=[], **how) as loader:
        first, second = loader
    for batch, ids in ((first, [0, 1, 2]), (second, [3, 4, 5])):
        assert type(batch) is Ordered
        assert list(batch) == ["z", "a"]
        record, ((number, (raw, nothing)), even) = batch["z"], batch["a"]
        assert (type(record), type(record.pair)) == (Record, Pair)
        assert (record.pair.number.dtype, record.pair.whole.dtype) == (np.float64, np.int64)
        assert (number.dtype, even.dtype) == (np.float64, np.bool_)
        assert record.pair.whole.tolist() == ids
        assert record.pair.number.tolist() == [i / 2 for i in ids]
        assert record.text == [f"sample {i}" for i in ids]
        assert raw == [b"\xff" * i for i in ids]
        assert nothing == [None] * 3
        assert even.tolist() == [i % 2 == 0 for i in ids]
