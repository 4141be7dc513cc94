"""Bad arguments are refused with the name of the field and the value that was given."""

import math
from typing import Any

import numpy as np
import pytest

from pipeline import transforms as T
from pipeline.errors import ConfigError

BAD = [
    (T.RandomCrop, {"size": 0}, "RandomCrop.size"),
    (T.RandomCrop, {"size": "32"}, "RandomCrop.size"),
    (T.RandomCrop, {"size": 32.0}, "RandomCrop.size"),
    (T.RandomCrop, {"size": True}, "RandomCrop.size"),
    (T.RandomCrop, {"size": (1, 2, 3)}, "RandomCrop.size"),
    (T.RandomCrop, {"size": 32, "padding": -1}, "RandomCrop.padding"),
    (T.RandomCrop, {"size": 32, "padding": (1, 2, 3)}, "RandomCrop.padding"),
    (T.RandomCrop, {"size": 32, "padding": "4"}, "RandomCrop.padding"),
    (T.RandomCrop, {"size": 32, "pad_if_needed": 1}, "RandomCrop.pad_if_needed"),
    (T.RandomCrop, {"size": 32, "fill": "0"}, "RandomCrop.fill"),
    (T.RandomCrop, {"size": 32, "padding_mode": "wrap"}, "RandomCrop.padding_mode"),
    (T.CenterCrop, {"size": None}, "CenterCrop.size"),
    (T.Resize, {"size": -3}, "Resize.size"),
    (T.Resize, {"size": 3, "interpolation": "bicubic"}, "Resize.interpolation"),
    (T.RandomResizedCrop, {"size": 8, "scale": (0.0, 1.0)}, "RandomResizedCrop.scale"),
    (T.RandomResizedCrop, {"size": 8, "scale": (0.5, 0.1)}, "RandomResizedCrop.scale"),
    (T.RandomResizedCrop, {"size": 8, "ratio": (0, 1)}, "RandomResizedCrop.ratio"),
    (T.RandomHorizontalFlip, {"p": 1.5}, "RandomHorizontalFlip.p"),
    (T.RandomVerticalFlip, {"p": "0.1"}, "RandomVerticalFlip.p"),
    (T.RandomErasing, {"p": -0.1}, "RandomErasing.p"),
    (T.RandomErasing, {"p": math.nan}, "RandomErasing.p"),
    (T.RandomErasing, {"p": True}, "RandomErasing.p"),
    (T.RandomErasing, {"scale": (0.1, 1.1)}, "RandomErasing.scale"),
    (T.RandomErasing, {"ratio": (3.3, 0.3)}, "RandomErasing.ratio"),
    (T.RandomErasing, {"value": "random"}, "RandomErasing.value"),
    (T.RandomErasing, {"value": (1, math.inf)}, "RandomErasing.value"),
    (T.Normalize, {}, "Normalize.mean"),
    (T.Normalize, {"mean": 0.5}, "Normalize.std"),
    (T.Normalize, {"mean": 0.5, "std": 0.0}, "Normalize.std"),
    (T.Normalize, {"mean": "0.5", "std": 1.0}, "Normalize.mean"),
    (T.Normalize, {"preset": "cifar11"}, "Normalize.preset"),
    (T.Normalize, {"preset": "mnist", "mean": 0.5}, "Normalize.preset"),
    (T.Normalize, {"preset": "mnist", "dtype": "uint8"}, "Normalize.dtype"),
    (T.Normalize, {"preset": "mnist", "dtype": "float64"}, "Normalize.dtype"),
    (T.Normalize, {"preset": "mnist", "layout": "NCHW"}, "Normalize.layout"),
    (T.ToDtype, {"dtype": "int32"}, "ToDtype.dtype"),
    (T.ToDtype, {"dtype": "float32", "scale": 1}, "ToDtype.scale"),
    (T.ToLayout, {"layout": "chw"}, "ToLayout.layout"),
]


@pytest.mark.parametrize(("op", "arguments", "field"), BAD)
def test_a_bad_argument_names_its_field(op: Any, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field.replace(".", r"\.")) as caught:
        op(**arguments)
    assert caught.value.fields["field"] == field


def test_numpy_numbers_and_dtypes_are_taken() -> None:
    assert T.RandomErasing(p=np.float32(0.5)).describe()["p"] == 0.5
    assert T.RandomCrop(np.int64(5)).describe()["size"] == [5, 5]
    assert T.ToDtype(np.float16).describe()["dtype"] == "float16"
    assert T.Normalize(0.5, 0.5, dtype="float16").describe()["dtype"] == "float16"


def test_arguments_come_in_torchvisions_order() -> None:
    assert T.RandomCrop(32, 4, True, 7, "edge").describe() == {
        "op": "RandomCrop",
        "size": [32, 32],
        "padding": [4, 4, 4, 4],
        "pad_if_needed": True,
        "fill": [7.0],
        "padding_mode": "edge",
    }
    assert T.RandomErasing(0.1, (0.2, 0.3), (0.4, 0.5), 6).value == 6
    assert T.RandomResizedCrop(8, (0.2, 0.3), (0.4, 0.5)).ratio == (0.4, 0.5)
    assert T.RandomHorizontalFlip() == T.RandomHorizontalFlip(0.5)
    assert T.ToDtype("float32", True) == T.ToDtype("float32", scale=True)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([T.RandomCrop(40, padding=3)], "RandomCrop.size is 40x40 but the image is only 32x32"),
        (
            [T.Normalize(preset="mnist"), T.Normalize((0.5, 0.5), 0.5)],
            "Normalize.mean has 2 values",
        ),
        ([T.RandomErasing(value=(1, 2))], "RandomErasing.value has 2 values"),
        ([T.RandomErasing(value=0.5)], "RandomErasing.value must be an integer in 0 .. 255"),
        ([T.RandomCrop(32, 4, fill=-1)], "RandomCrop.fill must be an integer in 0 .. 255"),
        ([T.RandomCrop(32, 4, fill=(1, 2))], "RandomCrop.fill has 2 values"),
        ([T.RandomCrop], "is the class RandomCrop"),
        ([5], r"transforms\[0\] must be an op or a callable, got 5"),
    ],
)
def test_a_chain_that_cannot_work_is_refused_before_any_sample(
    ops: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        T.Chain(ops, (32, 32, 3))


def test_a_preset_of_another_channel_count_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Normalize.preset has 3 values .* 1 channels"):
        T.Chain([T.Normalize(preset="cifar10")], (28, 28, 1))
    T.Chain([T.Normalize(preset="mnist")], (28, 28, 3))


def test_an_image_too_small_for_its_crop_is_refused_when_it_comes() -> None:
    chain = T.Chain([T.RandomCrop(32), T.ToTensor()], None)
    with pytest.raises(ConfigError, match="32x32 but the image is only 20x40"):
        chain.apply_one(np.zeros((20, 40, 3), np.uint8), 0, 0, 1, 1)


def test_results_that_do_not_fit_the_slot_are_refused() -> None:
    chain = T.Chain([T.ToTensor()], None)
    image = np.zeros((8, 8, 3), np.uint8)
    for slot in (np.zeros((3, 8, 9), np.float32), np.zeros((3, 8, 8), np.float64)):
        with pytest.raises(ConfigError, match=r"make float32\[3, 8, 8\], but the slot is"):
            chain.apply_one(image, 0, 0, 1, 1, slot)


def test_images_that_are_none_are_refused() -> None:
    chain = T.Chain([T.ToTensor()], None)
    for image in (
        np.zeros((2, 2, 2, 2), np.uint8),
        np.zeros((8, 8), np.int64),
        np.zeros((0, 8, 3)),
    ):
        with pytest.raises(ConfigError, match="an image is"):
            chain.apply_one(image, 0, 0, 1, 1)


def test_bulk_checks_what_it_is_given() -> None:
    chain = T.Chain([T.ToTensor()], (8, 8, 3))
    images = np.zeros((5, 8, 8, 3), np.uint8)
    ids, positions = np.array([0, 4]), np.array([0, 1], np.uint64)
    out = np.zeros((2, 3, 8, 8), np.float32)
    chain.apply_bulk(images, ids, positions, 0, 1, 1, out)
    for bad, message in (
        ((images[:, :4], ids, positions, 0, 1, 1, out), "expected uint8"),
        ((images, np.array([0, 5]), positions, 0, 1, 1, out), "sample 1 of the chunk has id 5"),
        ((images, np.array([-1, 0]), positions, 0, 1, 1, out), "has id -1"),
        ((images, ids, positions + np.uint64(2**40), 0, 1, 1, out), "position 1099511627776"),
        ((images, ids, positions[:1], 0, 1, 1, out), "2 ids but 1 positions"),
        ((images, ids, positions, 2**32, 1, 1, out), "phase is 4294967296"),
        ((images, ids, positions, 0, 1, 0, out), "lanes is 0"),
        ((images, ids, positions, 0, 1, 1, out[:1]), "but the slot is"),
        ((images[:, ::-1], ids, positions, 0, 1, 1, out), "not contiguous"),
    ):
        with pytest.raises(ConfigError, match=message):
            chain.apply_bulk(*bad)
