import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rng import init
from rng.stream import Stream

KINDS = {
    "normal": (0.5, 2.0),
    "uniform": (-1.0, 3.0),
    "truncated_normal": (0.0, 1.0, -1.0, 2.0),
    "xavier_normal": (2.0,),
    "xavier_uniform": (),
    "kaiming_normal": (0.1, "fan_out"),
    "kaiming_uniform": (0.0, "fan_avg", "tanh"),
    "orthogonal": (2.0,),
}


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=2, max_size=4)))
    box = []
    for n in shape:
        a = draw(st.integers(0, n))
        box.append(slice(a, draw(st.integers(a, n))))
    return shape, tuple(box)


@given(boxes(), st.sampled_from(sorted(KINDS)))
@settings(max_examples=120)
def test_a_box_holds_the_values_of_the_whole(shape_and_box, kind):
    shape, box = shape_and_box
    make, args = getattr(init, kind), KINDS[kind]
    whole = make(shape, 5, "w", *args)
    part = make(shape, 5, "w", *args, box=box)
    assert part.tobytes() == whole[box].tobytes()


def test_element_i_is_word_i_of_the_init_address(reference):
    key = reference.named(reference.mix64(3), "layer.weight")
    got = init.uniform((3, 5), 3, "layer.weight")
    want = [(reference.word(key, reference.INIT, 0, 0, i) >> 8) * 2.0**-24 for i in range(15)]
    assert got.ravel().tolist() == want
    stream = Stream(key, reference.INIT << 24)
    assert (init.normal(15, 3, "layer.weight") == stream.normal(np.empty(15, np.float32))).all()


def test_names_and_seeds_give_other_values():
    values = {init.normal((4, 4), seed, name).tobytes() for seed in (1, 2) for name in ("a", "b")}
    assert len(values) == 4


@pytest.mark.parametrize(("shape", "fans"), [((50, 400), (400, 50)), ((32, 16, 5, 5), (400, 800))])
def test_the_spread_is_the_formula(shape, fans):
    fan_in, fan_out = fans
    assert init.fans(shape) == fans
    for value, std in (
        (init.kaiming_normal(shape, 1, "w", nonlinearity="relu"), math.sqrt(2 / fan_in)),
        (init.kaiming_normal(shape, 1, "w", 0.2, "fan_out"), math.sqrt(2 / 1.04 / fan_out)),
        (init.kaiming_uniform(shape, 1, "w", 1.0), math.sqrt(1 / fan_in)),
        (init.kaiming_uniform(shape, 1, "w", gain=3.0), 3 / math.sqrt(fan_in)),
        (init.kaiming_normal(shape, 1, "w", gain=0.5), 0.5 / math.sqrt(fan_in)),
        (init.xavier_normal(shape, 1, "w", 3.0), 3 * math.sqrt(2 / (fan_in + fan_out))),
        (init.xavier_uniform(shape, 1, "w"), math.sqrt(2 / (fan_in + fan_out))),
    ):
        assert value.std() == pytest.approx(std, rel=0.03)
        assert abs(value.mean()) < 5 * std / math.sqrt(value.size)


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9), (8, 3, 3, 2), (1, 1)])
def test_orthogonal_rows_or_columns_are_orthonormal(shape):
    q = init.orthogonal(shape, 7, "w", gain=2.0, dtype="float64").reshape(shape[0], -1) / 2.0
    product = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
    assert np.abs(product - np.eye(len(product))).max() < 1e-14


def test_constants_and_out():
    out = np.empty((2, 3), np.float16)
    assert init.constant((2, 3), 1.5, out=out) is out
    assert (out == 1.5).all()
    assert (init.zeros(4, dtype="float64") == np.zeros(4)).all()
    target = np.empty((3, 4), np.float32, order="F")
    assert (init.normal((3, 4), 1, "w", out=target) == init.normal((3, 4), 1, "w")).all()
    assert init.normal((), 1, "w").shape == ()


def test_every_dtype_has_the_values_of_float32_rounded():
    for make in (init.normal, init.uniform, init.truncated_normal, init.kaiming_uniform):
        values = make((5, 7), 1, "w")
        for dtype in (np.float64, np.float16):
            box = (slice(1, 4), slice(2, 7))
            assert (make((5, 7), 1, "w", dtype=dtype) == values.astype(dtype)).all()
            assert (make((5, 7), 1, "w", dtype=dtype, box=box) == values[box].astype(dtype)).all()


def test_tensors_without_elements_and_gains_of_zero():
    for make in (
        init.kaiming_normal,
        init.kaiming_uniform,
        init.xavier_normal,
        init.xavier_uniform,
        init.orthogonal,
        init.normal,
    ):
        for shape in ((0, 5), (5, 0), (0, 0), (3, 4, 0)):
            assert make(shape, 1, "w").shape == shape
        if make is not init.normal:
            assert not make((3, 3), 1, "w", gain=0.0).any()
    for mode in ("fan_in", "fan_out", "fan_avg"):
        assert init.kaiming_uniform((5, 0), 1, "w", mode=mode).size == 0
    assert init.constant((4, 6), 2.0, box=(slice(1, 3), slice(0, 6))).shape == (2, 6)
    assert (
        init.zeros(np.array([2, 3])).shape == init.normal(np.int64(6), 1, "w").reshape(2, 3).shape
    )


def test_sizes_names_and_boxes_of_the_wrong_kind_raise():
    for call in (
        lambda: init.normal((2.7, 3), 1, "w"),
        lambda: init.normal(True, 1, "w"),
        lambda: init.normal((2, 3), 1, b"w"),
        lambda: init.normal((2, 3), 1.0, "w"),
        lambda: init.normal((2, 3), 1, "w", box=(1, slice(3))),
        lambda: init.normal(2, 1, "w", out=[0.0, 0.0]),
    ):
        with pytest.raises(TypeError, match="must be"):
            call()


def test_what_does_not_fit_raises():
    for call, words in (
        (lambda: init.kaiming_normal((3,), 1, "w"), "2 axes"),
        (lambda: init.orthogonal((3,), 1, "w"), "2 axes"),
        (lambda: init.kaiming_normal((3, 3), 1, "w", mode="fan"), "fan_avg"),
        (lambda: init.kaiming_normal((3, 3), 1, "w", nonlinearity="x"), "nonlinearity"),
        (lambda: init.normal((3, 3), 1, "w", box=(slice(1),)), "axes"),
        (lambda: init.normal((3, 3), 1, "w", box=(slice(1), slice(0, 3, 2))), "step 1"),
        (lambda: init.normal((3, 3), 1, "w", out=np.empty((3, 2))), "shape"),
        (lambda: init.normal((3, 3), 1, "w", std=-1.0), "std"),
        (lambda: init.normal((3, -3), 1, "w"), "sizes"),
        (lambda: init.normal((3, 3), 1, "w", dtype="int32"), "real"),
        (lambda: init.constant((3, 3), 1.0, out=np.empty(3)), "shape"),
        (lambda: init.uniform((3, 3), 1, "w", 1.0, 1.0), "low < high"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
