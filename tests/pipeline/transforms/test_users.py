"""User callables in a chain, and the stream they get."""

from typing import Any

import numpy as np
import pytest

from pipeline import transforms as T
from pipeline.errors import ConfigError
from rng import address
from tests.pipeline.transforms import oracle

KEY, PHASE, LANES = 99, 2, 16
IMAGE = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)


def run(ops: list[Any], position: int = 21, image: np.ndarray = IMAGE) -> np.ndarray:
    return T.Chain(ops, None).apply_one(image, position, PHASE, KEY, LANES)


def stream(position: int = 21, op: int = 248) -> T.Stream:
    return T.Stream(position, PHASE, KEY, LANES, op)


def test_a_callable_gets_the_image_and_if_it_wants_the_stream() -> None:
    seen: list[Any] = []

    def plain(image: np.ndarray) -> np.ndarray:
        return image[::2]

    def drawn(image: np.ndarray, rng: T.Stream) -> np.ndarray:
        seen.append(rng.words(4).tolist())
        return image

    assert np.array_equal(run([plain]), IMAGE[::2])
    run([drawn, T.RandomHorizontalFlip(), drawn])
    at = oracle.Address(21, PHASE, KEY, LANES)
    assert seen == [at.block(248, 0, purpose=7), at.block(249, 0, purpose=7)]


def test_only_a_parameter_meant_for_it_gets_the_stream() -> None:
    def needs(image: Any, other: Any) -> Any: ...
    def named(image: Any, rng: Any = None) -> Any: ...
    def default(image: Any, sigma: float = 1.0) -> Any: ...
    def rest(image: Any, *more: Any) -> Any: ...
    def keyword(image: Any, *, rng: Any = None) -> Any: ...

    class Callable:
        def __call__(self, image: Any, rng: Any) -> Any: ...

    assert [T.takes_rng(f) for f in (needs, named, Callable())] == [True] * 3
    assert [T.takes_rng(f) for f in (default, rest, keyword, np.flipud, abs)] == [False] * 5


def test_a_callable_between_ops_changes_no_draw() -> None:
    ops = [T.RandomCrop(16), T.RandomHorizontalFlip(), T.ToTensor(), T.RandomErasing(0.9)]
    expected = run(ops)
    for place in range(len(ops) + 1):
        assert np.array_equal(run([*ops[:place], lambda a: a, *ops[place:]]), expected)


def test_float_images_take_the_same_values() -> None:
    ops = [T.RandomCrop(16, padding=2), T.Normalize(preset="cifar10"), T.RandomErasing(0.9)]
    for dtype in (np.float32, np.float64):
        assert np.array_equal(run([lambda a, d=dtype: a.astype(d), *ops]), run(ops))


def test_a_callable_sees_the_layout_it_stands_in() -> None:
    shapes: list[Any] = []

    def look(image: np.ndarray) -> np.ndarray:
        assert image.flags.c_contiguous
        assert image.flags.writeable
        shapes.append((image.shape, image.dtype.name))
        return image

    got = run([look, T.ToTensor(), look, T.RandomHorizontalFlip(1.0), T.ToLayout("HWC"), look])
    assert shapes == [
        ((20, 24, 3), "uint8"),
        ((3, 20, 24), "float32"),
        ((20, 24, 3), "float32"),
    ]
    assert np.array_equal(got, IMAGE[:, ::-1] / np.float32(255))


def test_a_callable_may_change_size_channels_and_type() -> None:
    assert run([lambda a: a[:, :, 0], T.ToTensor()]).shape == (1, 20, 24)
    assert run([lambda a: a[:5, :, :1].astype(np.float16)]).dtype == np.float16
    picture = pytest.importorskip("PIL.Image")
    assert np.array_equal(run([picture.fromarray]), IMAGE)


@pytest.mark.parametrize(
    "result", [None, "x", np.zeros(3), np.zeros((2, 2, 2, 2)), np.zeros((0, 4))]
)
def test_a_result_that_is_no_image_is_refused_by_name(result: Any) -> None:
    def broken(image: np.ndarray) -> Any:
        return result

    with pytest.raises(ConfigError, match=r"test_users.*broken returned"):
        run([broken])


def test_a_chain_with_callables_has_no_bulk_and_no_known_shape() -> None:
    chain = T.Chain([T.RandomCrop(16), lambda a: a], (32, 32, 3))
    assert not chain.bulk
    assert chain.out_shape is None
    assert T.Chain([lambda a: a, T.ToTensor()], (32, 32, 3)).out_dtype == np.float32
    with pytest.raises(ConfigError, match="apply_one"):
        chain.apply_bulk(IMAGE[None], *[np.zeros(1, np.int64)] * 2, 0, 0, 1, IMAGE[None])


# ---------------------------------------------------------------- the stream
def test_the_streams_numbers_come_from_its_words() -> None:
    w = stream().words(8)
    assert w.dtype == np.uint32
    blocks = [oracle.Address(21, PHASE, KEY, LANES).block(248, b, purpose=7) for b in range(2)]
    assert w.tolist() == blocks[0] + blocks[1]
    k = (int(w[0]) >> 5 << 26) + (int(w[1]) >> 6)
    assert stream().uniform() == k * 2.0**-53
    assert stream().uniform(-1, 3, 4)[0] == -1 + k * 2.0**-53 * 4
    assert stream().integers(10) == int(w[0]) * 10 >> 32
    assert stream().integers(-5, 5, (2, 3)).shape == (2, 3)


GOLDEN = ["0x1.c39fc82aba400p-3", 809, "-0x1.c8819a0000000p-4"]
GOLDEN_PERMUTATION = [3, 7, 6, 2, 4, 5, 1, 0]


def test_the_streams_numbers_are_kept_for_ever() -> None:
    s = stream()
    assert [s.uniform().hex(), s.integers(1000), s.normal().hex()] == GOLDEN
    assert s.permutation(8).tolist() == GOLDEN_PERMUTATION


def test_each_call_takes_new_blocks_and_single_numbers_are_plain() -> None:
    s = stream()
    values = [s.uniform(), s.uniform(), s.normal(), s.normal()]
    assert len(set(values)) == 4
    assert {type(v) for v in values} == {float}
    assert type(s.integers(7)) is int


def test_streams_of_other_samples_phases_and_callables_differ() -> None:
    first = stream().words(4).tolist()
    others = [
        T.Stream(22, PHASE, KEY, LANES, 248),
        T.Stream(21 + LANES, PHASE, KEY, LANES, 248),
        T.Stream(21, PHASE + 1, KEY, LANES, 248),
        T.Stream(21, PHASE, KEY + 1, LANES, 248),
        T.Stream(21, PHASE, KEY, LANES, 249),
    ]
    assert all(o.words(4).tolist() != first for o in others)


def test_the_streams_numbers_are_fair() -> None:
    s = stream()
    assert abs(s.uniform(size=40000).mean() - 0.5) < 0.006
    z = s.normal(2.0, 3.0, 40000)
    assert z.dtype == np.float64
    assert abs(z.mean() - 2.0) < 0.06
    assert abs(z.std() - 3.0) < 0.05
    counts = np.bincount(s.integers(0, 7, 35000), minlength=7)
    assert ((counts - 5000) ** 2 / 5000).sum() < 25
    wide = s.integers(0, 3 << 30, 20000)  # a quarter is drawn again
    assert abs(wide.mean() / (3 << 30) - 0.5) < 0.01
    first = [int(s.permutation(5)[0]) for _ in range(1000)]
    assert min(np.bincount(first, minlength=5)) > 150
    assert sorted(s.permutation(50).tolist()) == list(range(50))
    assert s.permutation(0).tolist() == []


def test_numpys_generator_is_seeded_by_the_address() -> None:
    a, b = stream().numpy().random(5), stream().numpy().random(5)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, stream(22).numpy().random(5))
    assert not np.array_equal(a, stream(op=249).numpy().random(5))


def test_the_streams_limits_are_checked() -> None:
    s = stream()
    for low, high in ((0, 0), (5, 3), (0, 2**32 + 1)):
        with pytest.raises(ValueError, match="integers needs"):
            s.integers(low, high)
    with pytest.raises(OverflowError, match="2\\*\\*26 words"):
        s.words((1 << 26) + 1)
    with pytest.raises(OverflowError):
        T.Stream(1 << 60, 0, 0, 1, 248)
    assert address.USER == 7
