"""Draws: every one at its address, in a fixed range, exact and fair."""

import json
import math
from typing import Any

import numpy as np
import pytest

from pipeline import transforms as T
from pipeline.errors import ConfigError
from pipeline.transforms import draws, portable
from rng import address
from tests.pipeline.transforms import oracle

KEY, PHASE, LANES = address.mix64(2024), 4, 16
SHAPES = [(1, 1, 3), (1, 1000, 3), (1000, 1, 3), (224, 224, 3), (32, 32, 3)]


def explained(ops: list[Any], shape: tuple[int, int, int], position: int = 77) -> dict[int, Any]:
    chain = T.Chain(ops, None)
    return {e["number"]: e for e in chain.explain(shape, position, PHASE, KEY, LANES)}


# ---------------------------------------------------------------- addresses
def test_op_numbers_are_kind_and_occurrence() -> None:
    ops = [T.RandomCrop(4), T.RandomHorizontalFlip(), T.RandomCrop(2), T.ToTensor(), len, len]
    assert T.op_numbers(ops) == [8, 24, 9, 0, 248, 249]
    assert T.KINDS == {
        "RandomCrop": 1,
        "RandomResizedCrop": 2,
        "RandomHorizontalFlip": 3,
        "RandomErasing": 4,
        "RandomVerticalFlip": 5,
        "callable": 31,
    }


def test_a_ninth_op_of_a_kind_is_refused() -> None:
    T.Chain([T.RandomHorizontalFlip()] * 8)
    with pytest.raises(ConfigError, match=r"transforms\[8\].*8 RandomHorizontalFlip"):
        T.Chain([T.RandomHorizontalFlip()] * 9)
    with pytest.raises(ConfigError, match="8 functions"):
        T.Chain([lambda a: a] * 9)


def test_numbers_may_come_from_a_longer_list() -> None:
    image = np.arange(40 * 40 * 3).astype(np.uint8).reshape(40, 40, 3)
    crops = [T.RandomCrop(30), T.RandomCrop(20)]
    whole = T.Chain(crops).apply_one(image, 5, PHASE, KEY, LANES)
    first = T.Chain(crops[:1]).apply_one(image, 5, PHASE, KEY, LANES)
    second = T.Chain(crops[1:], numbers=[9]).apply_one(first, 5, PHASE, KEY, LANES)
    assert np.array_equal(whole, second)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_every_op_reads_a_fixed_range_whatever_the_branch(
    shape: tuple[int, int, int], p: float
) -> None:
    ops = [
        T.RandomResizedCrop(8, ratio=(0.9, 1.1)),
        T.RandomHorizontalFlip(p),
        T.RandomCrop(8, padding=2),
        T.RandomErasing(p),
    ]
    expected = {16: 10, 24: 1, 8: 1, 32: 11}
    found = explained(ops, shape)
    assert {n: len(e["counters"]) for n, e in found.items()} == expected
    for number, entry in found.items():
        for b, counter in enumerate(entry["counters"]):
            fields = address.decode(counter)
            assert fields["purpose"] == address.AUGMENT
            assert fields["op"] == number
            assert fields["lane"] == 77 % LANES
            assert fields["phase"] == PHASE
            assert fields["position"] == (77 // LANES) << 24 | b


def test_adding_or_removing_an_op_changes_no_other_ops_draws() -> None:
    flip, erase, crop = T.RandomHorizontalFlip(), T.RandomErasing(0.9), T.RandomCrop(32, 4)
    chains = [
        [crop, flip, erase],
        [crop, erase],
        [flip, crop, T.RandomVerticalFlip(), T.Normalize(preset="cifar10"), erase],
        [crop, flip, erase, T.RandomCrop(32, 2), T.RandomHorizontalFlip()],
    ]
    for position in range(40):
        seen: dict[int, Any] = {}
        for chain in chains:
            for number, entry in explained(chain, (32, 32, 3), position).items():
                assert seen.setdefault(number, entry) == entry


def test_another_images_size_leaves_the_draws_of_the_rest_alone() -> None:
    ops = [T.RandomResizedCrop(8), T.RandomHorizontalFlip()]
    before = [explained(ops, (60, 80, 3), q) for q in range(10)]
    shapes = [(60, 80, 3)] * 10
    shapes[5] = (1, 999, 3)
    after = [explained(ops, shape, q) for q, shape in enumerate(shapes)]
    assert [b == a for b, a in zip(before, after, strict=True)] == [q != 5 for q in range(10)]
    assert before[5][24] == after[5][24]


# ---------------------------------------------------------------- against the oracle
@pytest.mark.parametrize("position", [0, 15, 16, 16 * (2**32 + 5) + 3, 16 * 2**40 - 1])
@pytest.mark.parametrize("phase", [0, 2**32 - 1])
@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, KEY])
def test_corners_of_the_address_space(position: int, phase: int, key: int) -> None:
    at = oracle.Address(position, phase, key, 16)
    crop, erase = T.RandomCrop(5, padding=3), T.RandomErasing(1.0)
    got = T.Chain([crop, erase]).explain((9, 8, 1), position, phase, key, 16)
    assert got[0]["top"] == at.below(8, 0, 0, 0, 9 + 6 - 5 + 1)
    assert got[0]["left"] == at.below(8, 0, 1, 0, 8 + 6 - 5 + 1)
    rectangle = tuple(got[1][f] for f in ("top", "left", "height", "width"))
    assert rectangle == (oracle.erase_rectangle(at, 32, erase, 5, 5) or (0, 0, 0, 0))


@pytest.mark.parametrize("shape", [*SHAPES, (3, 3, 1), (2, 7, 3), (500, 375, 3)])
@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (0.9, 1.1), (3.0, 4.0), (0.01, 0.02)])
def test_boxes_and_rectangles_are_the_oracles(
    shape: tuple[int, int, int], ratio: tuple[float, float]
) -> None:
    crop = T.RandomResizedCrop(8, ratio=ratio)
    erase = T.RandomErasing(0.7, scale=(0.1, 1.0), ratio=ratio)
    height, width, _ = shape
    for q in range(60):
        at = oracle.Address(q, PHASE, KEY, LANES)
        got = explained([crop], shape, q)[16]
        box = tuple(got[f] for f in ("top", "left", "height", "width"))
        assert box == oracle.resized_box(at, 16, crop, height, width)
        assert 0 <= box[0] <= height - box[2]
        assert 0 <= box[1] <= width - box[3]
        got = explained([erase], shape, q)[32]
        rectangle = tuple(got[f] for f in ("top", "left", "height", "width"))
        found = oracle.erase_rectangle(at, 32, erase, height, width)
        assert rectangle == (found or (0, 0, 0, 0))
        assert got["erase"] == (found is not None)


def test_an_image_that_nothing_fits_gets_the_centred_fallback() -> None:
    got = explained([T.RandomResizedCrop(8, scale=(0.9, 1.0), ratio=(0.9, 1.1))], (1, 1000, 3))[16]
    assert got["fallback"]
    assert (got["top"], got["left"], got["height"], got["width"]) == (0, 499, 1, 1)
    got = explained([T.RandomResizedCrop(8, scale=(0.9, 1.0))], (1000, 100, 3))[16]
    assert got["fallback"]
    assert (got["top"], got["left"], got["height"], got["width"]) == (433, 0, 133, 100)


def test_a_rejected_word_is_drawn_again_at_its_own_address() -> None:
    u = np.uint64
    count = 3 << 30  # a quarter of all words is rejected
    redrawn = 0
    for q in range(200):
        at = oracle.Address(q, PHASE, KEY, LANES)
        site = u(address.site(address.AUGMENT, 8, q % LANES))
        k0, k1 = u(KEY & address.M32), u(KEY >> 32)
        top, left = draws.crop_corner(count, count, u(q // LANES), u(PHASE), site, k0, k1)
        assert top == at.below(8, 0, 0, 0, count)
        assert left == at.below(8, 0, 1, 0, count)
        redrawn += at.block(8, 0)[0] * count // 2**32 != top
    assert 20 < redrawn < 80


def test_rounding_is_half_to_even_as_pythons() -> None:
    for x in [0.0, 0.49999999999999994, 0.5, 1.5, 2.5, 3.5, 4.500000001, 1e6 + 0.5, 2.0**52 + 1]:
        assert draws.round_even(x) == round(x)


# ---------------------------------------------------------------- exp and log
def test_portable_exp_and_log_agree_with_50_digits() -> None:
    from decimal import Decimal, getcontext

    getcontext().prec = 50
    for x in np.random.default_rng(1).uniform(-8, 8, 2000).tolist():
        exact = Decimal(x).exp()
        got = portable.exp(x)
        assert got == portable.exp.py_func(x)
        assert abs(Decimal(got) - exact) < 2 * Decimal(math.ulp(float(exact)))
        y = math.exp(x)
        assert abs(Decimal(portable.log(y)) - Decimal(y).ln()) < Decimal("4e-16") * max(
            1, abs(int(x))
        )
    assert portable.exp(0.0) == 1.0
    assert portable.log(1.0) == 0.0


def test_portable_exp_and_log_keep_their_bits() -> None:
    assert portable.exp(0.1).hex() == "0x1.1aec7b35a00d4p+0"
    assert portable.log(0.3).hex() == "-0x1.34378fcbda721p+0"
    assert portable.log(3.3).hex() == "0x1.31a4e7240c777p+0"


# ---------------------------------------------------------------- statistics
def many(ops: list[Any], n: int, height: int = 32, width: int = 32) -> tuple[Any, Any]:
    steps = T.Chain(ops, (height, width, 3))._tail_steps
    geo = np.empty((n, draws.GEO), np.int64)
    erased = np.empty((n, steps.erasings, draws.RECTANGLE), np.int64)
    u = np.uint64
    positions = np.arange(n, dtype=np.uint64)
    draws.draw_samples(
        positions, u(PHASE), u(KEY), u(LANES), steps.ints, steps.floats, height, width, geo, erased
    )
    return geo, erased


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_crop_places_are_uniform() -> None:
    geo, _ = many([T.RandomCrop(32, padding=4)], 81 * 500)
    top, left = geo[:, draws.SHIFT_Y] + 4, geo[:, draws.SHIFT_X] + 4
    counts = np.bincount(top * 9 + left, minlength=81)
    assert counts.size == 81
    assert 45 < chi_square(counts) < 130  # 80 degrees of freedom: mean 80, deviation 12.6


def test_flips_come_at_their_rate_and_independently() -> None:
    n = 40000
    geo, _ = many([T.RandomHorizontalFlip(0.3), T.RandomVerticalFlip(0.5)], n)
    x, y = geo[:, draws.FLIP_X] < 0, geo[:, draws.FLIP_Y] < 0
    assert abs(x.mean() - 0.3) < 4 * math.sqrt(0.21 / n)
    assert abs(y.mean() - 0.5) < 4 * math.sqrt(0.25 / n)
    assert abs(np.corrcoef(x, y)[0, 1]) < 4 / math.sqrt(n)
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 4 / math.sqrt(n)


def test_erasing_comes_at_its_rate_with_its_area() -> None:
    n = 20000
    _, erased = many([T.RandomErasing(0.25)], n, 320, 320)
    attempt, area = erased[:, 0, draws.ATTEMPT], erased[:, 0, draws.TALL] * erased[:, 0, draws.WIDE]
    assert abs((attempt >= 0).mean() - 0.25) < 4 * math.sqrt(0.1875 / n)
    share = area[attempt == 0] / (320 * 320)
    assert abs(share.mean() - 0.175) < 0.005
    assert share.min() > 0.019
    assert share.max() < 0.332


def test_p_of_0_and_1_are_exact() -> None:
    for p in (0.0, 1.0):
        geo, erased = many([T.RandomHorizontalFlip(p), T.RandomErasing(p)], 5000)
        assert ((geo[:, draws.FLIP_X] < 0) == bool(p)).all()
        assert ((erased[:, 0, draws.ATTEMPT] >= 0) == bool(p)).all()


# ---------------------------------------------------------------- descriptions
def test_descriptions_are_json_and_canonical() -> None:
    def describe(*ops: Any) -> str:
        return json.dumps(T.Chain(list(ops)).describe(), sort_keys=True)

    assert describe(T.RandomCrop(32, 4)) == describe(T.RandomCrop([32, 32], padding=(4, 4, 4, 4)))
    preset = T.Normalize(preset="cifar10")
    assert describe(preset) == describe(T.Normalize(*T.PRESETS["cifar"]))
    assert describe(preset) != describe(T.Normalize(preset="cifar10", layout="HWC"))
    assert describe(T.Resize(32)) != describe(T.Resize((32, 32)))
    assert (
        describe(oracle.apply)
        == '[{"name": "tests.pipeline.transforms.oracle.apply", "op": "callable"}]'
    )


def test_explain_is_json_and_names_every_draw() -> None:
    ops = [
        T.RandomCrop(32, 4),
        abs,
        T.RandomHorizontalFlip(1.0),
        T.ToTensor(),
        T.RandomErasing(1.0),
    ]
    found = T.Chain(ops).explain((32, 32, 3), 7, PHASE, KEY, LANES)
    assert [e["op"] for e in found] == [
        "RandomCrop",
        "builtins.abs",
        "RandomHorizontalFlip",
        "RandomErasing",
    ]
    assert found[2]["flip"] is True
    json.dumps(found)
