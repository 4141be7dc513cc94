import collections
import dataclasses
import pickle
import typing

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SampleError
from pipeline.tree import Structure, decode_text, encode_text


class Point(typing.NamedTuple):
    x: float
    y: np.ndarray


@dataclasses.dataclass
class Record:
    image: np.ndarray
    label: int
    derived: int = dataclasses.field(init=False, default=0)


class Ordered(dict):
    """A dict of the user's."""


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
SAMPLES = [
    (ARRAY, 3),
    [ARRAY, 3.5],
    {"image": ARRAY, "label": True},
    {"a": {"b": (1, [2, {"c": ARRAY}])}, "d": np.int8(4)},
    Point(1.0, ARRAY),
    Record(ARRAY, 4),
    collections.OrderedDict(x=ARRAY, y=1),
    Ordered(x=ARRAY),
    ARRAY,
    5,
    np.float16(2.5),
    (),
    {0: 1, "mixed": 2},
    collections.defaultdict(list, {"x": ARRAY, "y": 2}),
    np.array(b"abc"),
    (np.datetime64("2020-01-01"), 2 + 3j, np.zeros((0, 4))),
]


def _batched(sample, n=3):
    structure = Structure(sample)
    arrays = [
        np.stack([leaf] * n) if leaf.ndim else np.full(n, leaf)
        for leaf in structure.take_apart(sample)[0]
    ]
    return structure.build(arrays)


def _same(batch, sample):
    assert type(batch) is type(sample) or not isinstance(sample, dict | list | tuple)
    if isinstance(sample, dict):
        assert list(batch) == list(sample)
        return all(_same(batch[k], sample[k]) for k in sample)
    if isinstance(sample, tuple | list):
        return all(_same(b, s) for b, s in zip(batch, sample, strict=True))
    if dataclasses.is_dataclass(sample):
        return _same(batch.image, sample.image) and _same(batch.label, sample.label)
    assert batch.shape == (3, *np.shape(sample))
    return all(np.array_equal(row, sample) for row in batch)


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_a_batch_has_the_containers_of_a_sample(sample):
    assert _same(_batched(sample), sample)


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_structures_travel_to_workers(sample):
    structure = Structure(sample)
    again = pickle.loads(cloudpickle.dumps(structure))
    assert again.fields == structure.fields
    assert [a.tobytes() for a in again.take_apart(sample)[0]] == [
        a.tobytes() for a in structure.take_apart(sample)[0]
    ]


def test_fields_are_named_by_their_way_from_the_sample():
    names = [f.name for f in Structure({"a": {"b": (1, [2, {"c": 3}])}, "d": 4}).fields]
    assert names == ["a.b.0", "a.b.1.0", "a.b.1.1.c", "d"]
    assert [f.name for f in Structure(Point(1, ARRAY)).fields] == ["x", "y"]
    assert [f.name for f in Structure(ARRAY).fields] == ["sample"]


def test_python_numbers_have_fixed_dtypes():
    dtypes = [f.dtype for f in Structure((True, 1, 1.0, 1j, np.uint8(1))).fields]
    assert dtypes == [np.bool_, np.int64, np.float64, np.complex128, np.uint8]


def test_arrays_of_the_other_byte_order_become_native():
    (field,) = Structure(np.arange(3, dtype=">i4")).fields
    assert field.dtype.isnative
    assert Structure(np.arange(3, dtype=">i4")).take_apart(np.arange(3, dtype=">i4"))[0][
        0
    ].tolist() == [
        0,
        1,
        2,
    ]


def test_what_tells_its_array_is_an_array():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return ARRAY

    assert Structure((Tensor(), 1)).fields[0].shape == (2, 3)


@pytest.mark.parametrize(
    "bad",
    [object(), np.array([None]), 2**70, int, np.array(["a"], object)],
    ids=["object", "objects", "huge", "class", "words"],
)
def test_what_has_no_fixed_size_is_refused_with_its_place_and_type(bad):
    with pytest.raises(SampleError, match=r"field 'x\.0' is of type .* no fixed size"):
        Structure({"x": (bad, 1)})


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ((ARRAY,), "1 fields, the first one had 2"),
        ((ARRAY, 3, 3), "3 fields"),
        ((ARRAY.T, 3), r"float32\[3, 2\], the first sample's '0' was float32\[2, 3\]"),
        ((ARRAY.astype("f8"), 3), "float64"),
        ((ARRAY, 3.0), r"field '1' is float64\[\]"),
        ({"0": ARRAY, "2": 3}, "field '2'"),
    ],
    ids=["fewer", "more", "shape", "dtype", "float", "name"],
)
def test_a_sample_unlike_the_first_is_refused_with_both(other, text):
    structure = Structure((ARRAY, 3))
    with pytest.raises(SampleError, match=text):
        structure.take_apart(other)[0]


def test_a_dict_with_its_keys_in_another_order_is_the_same_sample():
    structure = Structure({"a": 1, "b": 2.0})
    assert [leaf.item() for leaf in structure.take_apart({"b": 5.0, "a": 4})[0]] == [4, 5.0]


def test_text_leaves_are_taken_apart_beside_the_fields_and_put_back():
    sample = {"a": "x", "b": (1, None, [b"y"]), "c": np.str_("z")}
    structure = Structure(sample)
    assert [f.name for f in structure.fields] == ["b.0"]
    assert structure.beside == ("a", "b.1", "b.2.0", "c")
    _, text = structure.take_apart(sample)
    assert text == ["x", None, b"y", "z"]
    assert type(text[3]) is str
    built = structure.build([np.array([1, 2])], [["x", "q"], [None, None], [b"y", b""], ["z", ""]])
    assert built["b"][2] == [[b"y", b""]]
    assert list(built) == ["a", "b", "c"]


@given(st.lists(st.one_of(st.none(), st.text(), st.binary()), max_size=6))
def test_text_survives_its_encoding(values):
    assert decode_text(encode_text(values)) == values


@pytest.mark.parametrize(
    "sample",
    [
        (np.zeros((2, 3), np.float32), 7, 0.5),
        (np.zeros((3, 2), np.float32).T, -(1 << 63), float("nan")),
        (np.zeros((2, 3)), 7, 0.5),
        (np.zeros((2, 4), np.float32), 7, 0.5),
        (np.zeros((2, 3), np.float32), 1 << 63, 0.5),
        (np.zeros((2, 3), np.float32), True, 0.5),
        (np.zeros((2, 3), np.float32), 7, 1),
        (np.zeros((2, 3), np.float32), np.int64(7), np.float64(0.5)),
        (np.zeros((2, 3), np.float32), np.int32(7), 0.5),
        (np.zeros((2, 3), np.float32), 7),
        (np.zeros((2, 3), np.float32), 7, 0.5, 1),
        [np.zeros((2, 3), np.float32), 7, 0.5],
        (np.ma.zeros((2, 3), np.float32), 7, 0.5),
        (np.zeros((2, 3), np.float32), "7", 0.5),
        {"0": np.zeros((2, 3), np.float32)},
        7,
    ],
    ids=repr,
)
def test_the_short_way_writes_what_the_long_way_takes_apart(sample):
    structure = Structure((np.ones((2, 3), np.float32), 3, 0.25))
    assert structure.flat
    buffers = [np.full((4, *one.shape), 77, one.dtype) for one in structure.fields]
    if not structure.put(sample, buffers, 2):
        return  # then it is taken apart, which tells what is wrong, if anything is
    leaves, text = structure.take_apart(sample)
    assert text == []
    for buffer, leaf in zip(buffers, leaves, strict=True):
        assert buffer[2].tobytes() == leaf.tobytes()
        assert (buffer[[0, 1, 3]] == 77).all()


def test_the_short_way_takes_the_common_samples():
    structure = Structure((np.ones((2, 3), np.float32), 3, 0.25))
    buffers = [np.zeros((4, *one.shape), one.dtype) for one in structure.fields]
    assert structure.put((np.ones((2, 3), np.float32), 5, 1.5), buffers, 1)
    assert not Structure({"a": 1}).flat
    assert not Structure((1, "text")).flat
    assert not Structure((1, (2, 3))).flat
