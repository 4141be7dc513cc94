"""Our resampling against plain integers, and against whichever Pillow is installed."""

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline.transforms import resize
from tests.pipeline.transforms import oracle

Box = tuple[int, int, int, int]


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, Box, tuple[int, int]]:
    h, w = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    top, left = draw(st.integers(0, h - 1)), draw(st.integers(0, w - 1))
    tall, wide = draw(st.integers(1, h - top)), draw(st.integers(1, w - left))
    size = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    shape = h, w, draw(st.sampled_from([1, 2, 3, 4]))
    kind = draw(st.sampled_from(["random", "white", "extremes"]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "white":
        image = np.full(shape, 255, np.uint8)
    elif kind == "extremes":
        image = generator.choice(np.array([0, 255], np.uint8), shape)
    else:
        image = generator.integers(0, 256, shape, np.uint8)
    return image, (top, left, tall, wide), size


@settings(max_examples=300, deadline=None)
@given(cases())
def test_any_box_at_any_size_is_the_plain_integers(
    case: tuple[np.ndarray, Box, tuple[int, int]],
) -> None:
    image, box, size = case
    assert np.array_equal(resize.resample(image, box, size), oracle.resample(image, box, size))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_the_bytes_are_pillows_and_hang_on_no_version_of_it(
    case: tuple[np.ndarray, Box, tuple[int, int]],
) -> None:
    image, box, size = case
    image = np.ascontiguousarray(image[:, :, :3] if image.shape[2] >= 3 else image[:, :, :1])
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    top, left, tall, wide = box
    corners = (left, top, left + wide, top + tall)
    theirs = np.array(picture.resize(size[::-1], Image.Resampling.BILINEAR, corners))
    theirs = theirs.reshape(*size, image.shape[2])
    ours = resize.resample(image, box, size)
    assert np.array_equal(resize.resample(picture, box, size), ours)
    if int(PIL.__version__.split(".")[0]) >= 13 and not np.array_equal(theirs, ours):
        # Pillow 13 takes columns first where the height shrinks more.
        turned = np.ascontiguousarray(image.transpose(1, 0, 2))
        ours = resize.resample(turned, (left, top, wide, tall), size[::-1]).transpose(1, 0, 2)
    assert np.array_equal(theirs, ours)


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (224, 224), (15, 17)])
@pytest.mark.parametrize("shape", [(1, 1000, 3), (1000, 1, 1), (300, 500, 3), (16, 16, 3)])
def test_large_and_thin_images(shape: tuple[int, int, int], size: tuple[int, int]) -> None:
    image = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    for box in ((0, 0, *shape[:2]), (shape[0] // 2, shape[1] // 2, 1, 1)):
        assert np.array_equal(resize.resample(image, box, size), oracle.resample(image, box, size))


def test_a_box_of_the_result_size_is_a_copy() -> None:
    image = np.random.default_rng(3).integers(0, 256, (30, 40, 3), np.uint8)
    assert np.array_equal(resize.resample(image, (3, 5, 20, 31), (20, 31)), image[3:23, 5:36])
