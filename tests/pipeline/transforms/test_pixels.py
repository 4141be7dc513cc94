"""The chain against the oracle: any op in any order on any shape, one by one and in bulk."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import transforms as T
from pipeline.errors import ConfigError
from tests.pipeline.transforms import oracle

KEY, LANES, PHASE = 0x0123456789ABCDEF, 16, 6

sizes = st.one_of(st.integers(1, 40), st.tuples(st.integers(1, 40), st.integers(1, 40)))
chances = st.sampled_from([0.0, 0.5, 1.0, 1.0])
layouts = st.sampled_from(["CHW", "HWC"])
floats = st.sampled_from(["float32", "float16"])


def each(values: st.SearchStrategy[Any], channels: int) -> st.SearchStrategy[Any]:
    """One value, or one for each channel."""
    return st.one_of(values, st.tuples(*[values] * channels))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Any], tuple[int, int, int]]:
    """A chain that can work on images of a shape, and the shape."""
    shape = draw(st.integers(1, 45)), draw(st.integers(1, 45)), draw(st.sampled_from([1, 2, 3, 4]))
    fills = each(st.integers(0, 255), shape[2])
    now = list(shape[:2])  # the size so far, for crops that do not pad

    def crop() -> Any:
        if draw(st.booleans()):
            size = draw(st.integers(1, now[0])), draw(st.integers(1, now[1]))
            op: Any = T.RandomCrop(size)
        else:
            op = T.RandomCrop(
                draw(sizes),
                draw(st.one_of(st.none(), st.integers(0, 5), st.tuples(*[st.integers(0, 5)] * 4))),
                pad_if_needed=True,
                fill=draw(fills),
                padding_mode=draw(st.sampled_from(["constant", "constant", "constant", "edge"])),
            )
        now[:] = op.new_size(*now)
        return op

    def center() -> Any:
        op = T.CenterCrop(draw(sizes))
        now[:] = op.new_size(*now)
        return op

    def resize() -> Any:
        kind = draw(st.sampled_from([T.Resize, T.RandomResizedCrop]))
        op = kind(draw(sizes))
        now[:] = op.new_size(*now)
        return op

    def flip() -> Any:
        return draw(st.sampled_from([T.RandomHorizontalFlip, T.RandomVerticalFlip]))(draw(chances))

    def erase() -> Any:
        scale = draw(st.sampled_from([(0.02, 0.33), (0.3, 0.6)]))
        return T.RandomErasing(draw(chances), scale, value=draw(fills))

    def value() -> Any:
        kind = draw(st.integers(0, 3))
        if kind == 0:
            return T.ToDtype(draw(floats), draw(st.booleans()))
        if kind == 1:
            return T.ToTensor()
        if kind == 2:
            return T.ToLayout(draw(layouts))
        mean, std = each(st.floats(0, 1), shape[2]), each(st.floats(0.01, 1), shape[2])
        return T.Normalize(draw(mean), draw(std), dtype=draw(floats), layout=draw(layouts))

    def some(makers: list[Any], low: int, high: int) -> list[Any]:
        count = draw(st.integers(low, high))
        return [draw(st.sampled_from(makers))() for _ in range(count)]

    geometry = [crop, crop, center, flip, flip]
    if draw(st.booleans()):  # the usual order, which is fused
        ops = (
            some([resize], 0, 1) + some(geometry, 0, 4) + some([value], 0, 2) + some([erase], 0, 2)
        )
    else:  # any order; values before a resize are not possible
        ops = some([resize, *geometry, erase], 0, 3) + some([*geometry, erase, value], 1, 4)
    return ops, shape


def source(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()
    strides = []
    step = got.itemsize
    for length in reversed(got.shape):
        strides.insert(0, step)
        step *= length
    assert got.strides == tuple(strides)  # positive and C-ordered, axes of length 1 too


def check(ops: list[Any], shape: tuple[int, int, int]) -> None:
    images = source((3, *shape))
    positions = np.array([0, 5, 16, 17, 1000, 2**40 + 3], np.uint64)
    ids = np.arange(6) % 3
    chain = T.Chain(ops, shape)
    free = T.Chain(ops, None)
    expected = [
        oracle.apply(ops, images[i], oracle.Address(int(q), PHASE, KEY, LANES))
        for i, q in zip(ids, positions, strict=True)
    ]
    for i, q, wanted in zip(ids, positions, expected, strict=True):
        same(chain.apply_one(images[i], int(q), PHASE, KEY, LANES), wanted)
        same(free.apply_one(images[i], int(q), PHASE, KEY, LANES), wanted)
    assert chain.out_shape == expected[0].shape
    assert chain.out_dtype == expected[0].dtype
    if chain.bulk:
        out = np.zeros((6, *chain.out_shape), chain.out_dtype)
        chain.apply_bulk(images, ids, positions, PHASE, KEY, LANES, out)
        same(out, np.stack(expected))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_any_chain_on_any_shape_gives_the_oracles_bytes(
    case: tuple[list[Any], tuple[int, int, int]],
) -> None:
    check(*case)


CIFAR = [
    T.RandomCrop(32, padding=4),
    T.RandomHorizontalFlip(),
    T.Normalize(preset="cifar10"),
    T.RandomErasing(p=0.5),
]


@pytest.mark.parametrize(
    ("ops", "shape"),
    [
        (CIFAR, (32, 32, 3)),
        ([T.RandomCrop(28, padding=2), T.Normalize(preset="mnist")], (28, 28, 1)),
        ([*CIFAR[:2], T.ToTensor(), T.Normalize(preset="cifar10")], (32, 32, 3)),
        ([*CIFAR[:2], T.RandomErasing(p=1.0, value=(1, 2, 3)), CIFAR[2]], (32, 32, 3)),
        ([*CIFAR[:2], T.Normalize(preset="cifar10", dtype="float16")], (33, 47, 3)),
        ([T.RandomCrop(32, padding=4, fill=(9, 200, 31)), T.ToTensor()], (32, 32, 3)),
        ([T.ToTensor(), T.RandomCrop(20, padding=4)], (17, 19, 3)),
        ([T.ToTensor(), T.RandomCrop(20, padding=4, fill=0.25)], (17, 19, 3)),
        ([CIFAR[2], T.RandomCrop(30, padding=4), T.RandomErasing(1.0, value=-0.5)], (32, 32, 3)),
        ([T.Resize(20), T.CenterCrop(16), T.ToTensor()], (30, 41, 3)),
        ([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()], (37, 50, 3)),
        ([T.RandomCrop(200, padding=9), T.ToTensor()], (200, 200, 3)),
        ([T.RandomCrop((150, 300)), T.RandomVerticalFlip(1.0)], (200, 310, 4)),
        ([T.CenterCrop(70)], (5, 100, 3)),
        ([T.RandomErasing(1.0, value=9), T.RandomHorizontalFlip(1.0), T.ToTensor()], (20, 30, 3)),
        ([T.RandomErasing(1.0, value=9), T.RandomCrop(19), T.RandomErasing(1.0)], (20, 30, 3)),
        ([T.RandomCrop(17), T.RandomHorizontalFlip(1.0), T.RandomCrop(22, padding=6)], (20, 30, 3)),
        ([T.RandomCrop(22, padding=6), T.RandomVerticalFlip(1.0), T.RandomCrop(20)], (20, 30, 3)),
        ([T.RandomCrop(22, 6, fill=(9, 3, 3)), T.RandomCrop(20)], (20, 30, 3)),
        ([T.RandomCrop(22, 6, fill=(3, 3, 9)), T.RandomCrop(20)], (20, 30, 3)),
        (
            [T.RandomCrop(22, 6, fill=(9, 3)), T.Normalize((0.1, 0.2), 0.3, layout="HWC")],
            (20, 30, 2),
        ),
        ([T.RandomCrop(22, 6), T.Normalize((0.1, 0.2, 0.3, 0.4), 0.3, layout="HWC")], (20, 30, 4)),
        ([], (7, 9, 3)),
    ],
)
def test_usual_chains_give_the_oracles_bytes(ops: list[Any], shape: tuple[int, int, int]) -> None:
    check(ops, shape)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("std", [0.25, 1e-6, 3e4])
@pytest.mark.parametrize("scaled", [False, True])
def test_all_256_values_are_the_tables(
    channels: int, layout: str, dtype: str, std: float, scaled: bool
) -> None:
    # std 1e-6 overflows float16, 3e4 makes subnormals of it.
    ramp = np.repeat(np.arange(256, dtype=np.uint8), channels).reshape(1, 256, channels)
    ops: list[Any] = [T.ToTensor()] * scaled
    ops.append(T.Normalize(0.01, std, dtype=dtype, layout=layout))
    with np.errstate(over="ignore"):
        chain = T.Chain(ops, ramp.shape)
        got = chain.apply_one(ramp, 0, 0, 1, 1)
        wanted = oracle.apply(ops, ramp, oracle.Address(0, 0, 1, 1))
    same(got, wanted)


def test_a_batch_keeps_its_bytes() -> None:
    import hashlib

    images = ((np.arange(8 * 32 * 32 * 3) * 2654435761 % 2**32) >> 24).astype(np.uint8)
    chain = T.Chain(CIFAR, (32, 32, 3))
    out = np.zeros((64, 3, 32, 32), np.float32)
    ids, positions = np.arange(64) % 8, np.arange(64, dtype=np.uint64)
    chain.apply_bulk(images.reshape(8, 32, 32, 3), ids, positions, PHASE, KEY, LANES, out)
    assert (
        hashlib.blake2b(out.tobytes(), digest_size=16).hexdigest()
        == "9ef6eaa1592addf3970e4d2b1f88a37a"
    )


@pytest.mark.parametrize("shift", [0, 4, 64], ids=["aligned", "unaligned", "next line"])
@pytest.mark.parametrize("shape", [(32, 32, 3), (48, 64, 3), (30, 20, 3)], ids=str)
@pytest.mark.parametrize("first", [T.RandomCrop(16, padding=2), T.RandomResizedCrop(48)], ids=repr)
def test_writing_past_the_caches_changes_no_byte(
    shift: int, shape: tuple[int, int, int], first: Any
) -> None:
    images = source((40, *shape))
    ids, positions = np.arange(40) % 7, np.arange(40, dtype=np.uint64)
    for rest in ([*CIFAR[1:], T.RandomErasing(1.0)], [T.ToTensor()], [T.ToDtype("float16")], []):
        for layout in ("CHW", "HWC"):
            chain = T.Chain([first, *rest, T.ToLayout(layout)], shape)
            made = []
            for wanted in (False, True):
                chain.write_past_the_caches(wanted)
                count = 40 * int(np.prod(chain.out_shape))
                room = np.zeros(count * chain.out_dtype.itemsize + 256, np.uint8)
                begin = -room.ctypes.data % 64 + shift
                out = room[begin : begin + count * chain.out_dtype.itemsize]
                out = out.view(chain.out_dtype).reshape(40, *chain.out_shape)
                chain.apply_bulk(images, ids, positions, PHASE, KEY, LANES, out)
                made.append(out.tobytes())
                assert not room[:begin].any()
                assert not room[begin + out.nbytes :].any()
            assert made[0] == made[1]


def test_vector_code_computes_the_table_and_is_what_runs() -> None:
    from pipeline.transforms import fuse

    for ops in (CIFAR, [T.ToTensor()], [T.ToTensor(), CIFAR[2]], [T.ToDtype("float16")], []):
        chain = T.Chain(ops, (32, 32, 3))
        assert chain._values_of(3).mode != fuse.TABLE, ops


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from([1, 3]), st.booleans())
def test_nothing_outside_the_slot_is_touched(h: int, w: int, count: int, planar: bool) -> None:
    ops = [T.RandomHorizontalFlip(), T.ToLayout("CHW" if planar else "HWC")]
    chain = T.Chain(ops, (h, w, count))
    images = source((2, h, w, count))
    size = h * w * count
    room = np.full(64 + 2 * size + 64, 77, np.uint8)
    out = room[64 : 64 + 2 * size].reshape(2, *chain.out_shape)
    positions = np.array([3, 4], np.uint64)
    chain.apply_bulk(images, np.array([0, 1]), positions, 0, KEY, 16, out)
    assert (room[:64] == 77).all()
    assert (room[64 + 2 * size :] == 77).all()
    for i in range(2):
        same(out[i].copy(), oracle.apply(ops, images[i], oracle.Address(3 + i, 0, KEY, 16)))


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 40, 3), (40, 1, 3), (1, 1000, 1), (1000, 1, 3)])
def test_degenerate_images_work_and_keep_their_dimensions(shape: tuple[int, int, int]) -> None:
    check([T.RandomHorizontalFlip(1.0), T.ToTensor(), T.RandomErasing(1.0)], shape)
    check([T.RandomResizedCrop(8, ratio=(0.9, 1.1)), T.ToTensor()], shape)
    check([T.RandomCrop(4, padding=4), T.RandomVerticalFlip(1.0)], shape)


def test_a_grey_image_without_channel_axis_gets_one() -> None:
    image = source((9, 11, 1))
    chain = T.Chain([T.RandomHorizontalFlip(1.0), T.ToTensor()], None)
    same(
        chain.apply_one(image[:, :, 0], 3, 0, 1, 1),
        np.ascontiguousarray((image[:, ::-1] / np.float32(255)).transpose(2, 0, 1)),
    )


def test_one_sample_goes_straight_into_its_slot() -> None:
    chain = T.Chain(CIFAR, None)
    batch = np.zeros((4, 3, 32, 32), np.float32)
    image = source((32, 32, 3))
    got = chain.apply_one(image, 7, PHASE, KEY, LANES, batch[2])
    assert got.base is batch
    assert np.array_equal(batch[2], chain.apply_one(image, 7, PHASE, KEY, LANES))
    assert not batch[[0, 1, 3]].any()


def test_slots_that_are_not_contiguous_are_written_too() -> None:
    chain = T.Chain(CIFAR, (32, 32, 3))
    images = source((2, 32, 32, 3))
    wide = np.zeros((4, 3, 32, 40), np.float32)
    plain = np.zeros((2, 3, 32, 32), np.float32)
    arguments = (images, np.array([0, 1]), np.array([5, 6], np.uint64), PHASE, KEY, LANES)
    chain.apply_bulk(*arguments, wide[::2, :, :, :32])
    chain.apply_bulk(*arguments, plain)
    assert np.array_equal(wide[::2, :, :, :32], plain)
    assert not wide[1::2].any()
    assert not wide[:, :, :, 32:].any()


def test_source_images_are_never_written_to() -> None:
    image = source((32, 32, 3))
    image.flags.writeable = False
    before = image.copy()

    def spoil(array: np.ndarray) -> np.ndarray:
        array[:] = 0
        return array

    for ops in (CIFAR, [spoil, *CIFAR], [T.RandomErasing(1.0), T.RandomHorizontalFlip()]):
        T.Chain(ops, None).apply_one(image, 3, 0, 1, 16)
    assert np.array_equal(image, before)


def test_a_pillow_image_gives_the_bytes_of_its_array() -> None:
    from PIL import Image

    for count in (1, 3, 4):
        array = source((30, 40, count))
        picture = Image.fromarray(array[:, :, 0] if count == 1 else array)
        for ops in (
            [T.RandomResizedCrop(16), T.ToTensor()],
            [T.Resize((12, 14)), T.RandomHorizontalFlip()],
            [T.RandomCrop(20), T.ToTensor()],
            [T.RandomErasing(1.0), T.RandomHorizontalFlip()],
            [lambda a: a[:10, :10]],
            [],
        ):
            chain = T.Chain(ops, None)
            same(chain.apply_one(picture, 9, 1, 2, 4), chain.apply_one(array, 9, 1, 2, 4))


def test_usual_chains_run_in_bulk() -> None:
    for ops in (CIFAR, [T.RandomResizedCrop(24), *CIFAR[1:]], [T.Resize(9), T.CenterCrop(7)], []):
        assert T.Chain(ops, (32, 32, 3)).bulk, ops


def test_many_large_resized_samples_come_in_parts() -> None:
    ops = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    chain = T.Chain(ops, (40, 50, 3))
    images = source((2, 40, 50, 3))
    ids, positions = np.arange(16) % 2, np.arange(16, dtype=np.uint64)
    out = np.zeros((16, 224, 224, 3), np.uint8)
    chain.apply_bulk(images, ids, positions, PHASE, KEY, LANES, out)
    for q in range(16):
        same(out[q].copy(), chain.apply_one(images[q % 2], q, PHASE, KEY, LANES))
    with pytest.raises(ConfigError, match="sample 15 of the chunk has id 2"):
        chain.apply_bulk(images, np.r_[ids[:15], 2], positions, PHASE, KEY, LANES, out)


def test_a_pillow_image_of_another_mode_is_refused_by_name() -> None:
    from PIL import Image

    with pytest.raises(ConfigError, match="mode 'CMYK'"):
        T.Chain([], None).apply_one(Image.new("CMYK", (4, 4)), 0, 0, 1, 1)


def test_no_samples_are_no_work() -> None:
    chain = T.Chain(CIFAR, (32, 32, 3))
    none = np.zeros(0, np.int64)
    out = np.zeros((0, 3, 32, 32), np.float32)
    chain.apply_bulk(source((2, 32, 32, 3)), none, none.astype(np.uint64), 0, 1, 16, out)


def test_a_chain_travels_without_the_images_it_has_seen() -> None:
    import pickle

    chain = T.Chain(CIFAR, (32, 32, 3))
    images = source((50, 32, 32, 3))
    out = np.zeros((2, 2, 3, 32, 32), np.float32)
    arguments = (images, np.array([3, 4]), np.array([5, 6], np.uint64), PHASE, KEY, LANES)
    chain.apply_bulk(*arguments, out[0])
    data = pickle.dumps(chain)
    assert len(data) < 2000
    pickle.loads(data).apply_bulk(*arguments, out[1])
    assert np.array_equal(out[0], out[1])


def test_threads_may_share_a_chain() -> None:
    from concurrent.futures import ThreadPoolExecutor

    chain = T.Chain(CIFAR, (32, 32, 3))
    sets = [source((50, 32, 32, 3), seed) for seed in range(2)]
    out = np.zeros((2, 400, 3, 32, 32), np.float32)

    def work(part: int) -> None:
        images, slots = sets[part % 2], slice(part // 2 * 10, part // 2 * 10 + 10)
        positions = np.arange(slots.start, slots.stop, dtype=np.uint64)
        ids = positions.astype(np.int64) % 50
        chain.apply_bulk(images, ids, positions, PHASE, KEY, LANES, out[part % 2, slots])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(80)))
    for k in range(2):
        for q in range(0, 400, 37):
            expected = chain.apply_one(sets[k][q % 50], q, PHASE, KEY, LANES)
            assert np.array_equal(out[k, q], expected)
