"""Resizing straight into the slot against resizing first and the rest after it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline import transforms as T
from pipeline.transforms import resized
from pipeline.transforms.chain import Chain

KEY, LANES = 0x1234_5678_9ABC_DEF0, 16


def untouched(image):
    return image


@st.composite
def chains(draw):
    size = draw(st.integers(1, 50)), draw(st.integers(1, 50))
    first = draw(
        st.sampled_from(
            [T.Resize(size), T.RandomResizedCrop(size), T.RandomResizedCrop(size, (1.0, 1.0))]
        )
    )
    tail = []
    for _ in range(draw(st.integers(0, 3))):
        inner = draw(st.integers(1, size[0])), draw(st.integers(1, size[1]))
        kind = draw(st.sampled_from(["crop", "center", "flip", "turn", "pad"]))
        if kind in ("crop", "center"):
            tail.append(T.RandomCrop(inner) if kind == "crop" else T.CenterCrop(inner))
            size = inner
        elif kind == "pad" and not any(isinstance(op, T.CenterCrop) for op in tail):
            more = size[0] + 3, size[1] + 2
            tail.append(T.CenterCrop(more))
            size = more
        else:
            p = draw(st.sampled_from([0.5, 1.0]))
            tail.append((T.RandomHorizontalFlip if kind == "flip" else T.RandomVerticalFlip)(p))
    layout = draw(st.sampled_from(["CHW", "HWC"]))
    dtype = draw(st.sampled_from(["float32", "float16"]))
    values = [
        [T.Normalize(0.4, 0.3, layout=layout, dtype=dtype)],
        [T.ToDtype(dtype, scale=True), T.ToLayout(layout)],
        [T.ToTensor(), T.Normalize(0.4, 0.3, layout=layout, dtype=dtype)],
        [T.Normalize(0.4, 0.3), T.ToDtype(dtype), T.ToDtype("uint8")],  # no formula: a table
        [T.ToLayout(layout)],
        [],
    ]
    tail += draw(st.sampled_from(values))
    if draw(st.booleans()):
        tail.append(T.RandomErasing(draw(st.sampled_from([0.5, 1.0])), value=7))
    return [first, *tail]


@settings(max_examples=400, deadline=None)
@given(
    chains(),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([1, 3, 3, 4]),
    st.integers(0, 2**40),
)
def test_the_bytes_are_those_of_one_op_after_the_other(ops, height, width, channels, position):
    generator = np.random.default_rng(height * 100 + width)
    images = generator.integers(0, 256, (3, height, width, channels), np.uint8)
    alone = Chain([ops[0], untouched, *ops[1:]])
    chain = Chain(ops, (height, width, channels))
    positions = np.array([position, position + 1, position + LANES], np.uint64)
    ids = np.array([2, 0, 2])
    out = np.empty((3, *chain.out_shape), chain.out_dtype)
    if chain.bulk:  # not where two ops pad
        chain.apply_bulk(images, ids, positions, 5, KEY, LANES, out)
    for i in range(3):
        expected = alone.apply_one(images[ids[i]], int(positions[i]), 5, KEY, LANES)
        single = Chain(ops).apply_one(images[ids[i]], int(positions[i]), 5, KEY, LANES)
        if chain.bulk:
            assert out[i].tobytes() == expected.tobytes()
        assert single.tobytes() == expected.tobytes()
        assert single.shape == expected.shape


@pytest.mark.parametrize("size", [(224, 224), (17, 300), (1, 1)])
@pytest.mark.parametrize("shape", [(375, 500, 3), (900, 40, 3), (5, 7, 1), (3000, 20, 1)])
def test_large_images_and_pictures(shape, size):
    image = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    picture = Image.fromarray(image if shape[2] == 3 else image[:, :, 0])
    ops = [T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), T.RandomErasing(0.5)]
    for position in range(20):
        expected = Chain([ops[0], untouched, *ops[1:]]).apply_one(image, position, 0, KEY, LANES)
        for source in (image, picture):
            made = Chain(ops).apply_one(source, position, 0, KEY, LANES)
            assert made.tobytes() == expected.tobytes()


def test_nothing_is_written_beside_the_slot():
    images = np.full((1, 40, 60, 3), 9, np.uint8)
    chain = Chain(
        [T.RandomResizedCrop((21, 33)), T.RandomHorizontalFlip(), T.ToTensor()], (40, 60, 3)
    )
    around = np.full((4, 3, 21, 33), -1.0, np.float32)
    zeros = np.zeros(2, np.int64)
    chain.apply_bulk(images, zeros, np.arange(2, dtype=np.uint64), 0, KEY, LANES, around[1:3])
    assert (around[[0, 3]] == -1.0).all()
    assert (around[1:3] == np.float32(9) / np.float32(255)).all()


def test_images_are_resized_straight_into_the_slot_where_nothing_pads(monkeypatch):
    calls = []
    kernel = resized.render
    monkeypatch.setattr(resized, "render", lambda *given: calls.append(1) or kernel(*given))
    image = np.zeros((30, 30, 3), np.uint8)
    for ops, straight in (
        ([T.RandomResizedCrop(20), T.Normalize(0.5, 0.5)], True),
        ([T.Resize(24), T.CenterCrop(20)], True),
        ([T.Resize(24), T.RandomCrop(20)], True),
        ([T.Resize(24), T.CenterCrop(25)], False),
        ([T.Resize(24), T.RandomCrop(24, padding=2)], False),
        ([T.RandomResizedCrop(20), untouched], False),
        ([T.RandomCrop(20), T.Resize(10)], False),
    ):
        calls.clear()
        Chain(ops).apply_one(image, 0, 0, KEY, LANES)
        assert bool(calls) == straight, ops
