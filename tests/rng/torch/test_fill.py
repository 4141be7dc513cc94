from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import rng
from rng import address
from rng.stream import Stream

torch = pytest.importorskip("torch")

from rng.torch import fill  # noqa: E402

SIZES = [1, 2, 3, 4, 5, 4095, 4096, 4097, 40001]
KEY = address.mix64(7)
DTYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}
DRAWS = {
    "uniform": [(), (-1.5, 2.25), (0.0, 3.0), (1e-30, 1.0)],
    "normal": [(), (0.0, 0.02), (0.3, 1.7)],
    "truncated_normal": [(), (0.1, 1.0, -1.0, 2.0), (0.0, 0.02, -0.04, 0.04), (0, 1, -9, 9)],
}


def here(start=0):
    return Stream(KEY, address.site(address.USER, 3, 9), 12, start)


def bits(x):
    if isinstance(x, np.ndarray):
        return x.tobytes()
    x = x.contiguous()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy().tobytes()


def by_torch(monkeypatch):
    """Make the fills use torch's operations, as on a device that has nothing else."""
    monkeypatch.setattr(fill, "is_plain", lambda x: False)


@pytest.fixture(params=["numba", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        by_torch(monkeypatch)
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_equal_the_reference(way, name, dtype):
    for args in DRAWS[name]:
        for n in SIZES:
            for first in (0, 1, 6):
                want = getattr(here(), name)(np.empty(n, DTYPES[dtype]), *args, first=first)
                got = getattr(fill, name + "_")(
                    torch.empty(n, dtype=dtype), here(), *args, first=first
                )
                assert bits(got) == bits(want), (args, n, first)


@pytest.mark.parametrize("start", [(1 << 32) - 3, (1 << 64) - 10001])
def test_the_counter_carries(way, start):
    for name in DRAWS:
        want = getattr(here(start), name)(np.empty(40001, np.float32))
        assert bits(getattr(fill, name + "_")(torch.empty(40001), here(start))) == bits(want)


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.float32, torch.bfloat16, torch.int64], ids=str
)
def test_bernoulli_equals_the_reference(way, p, dtype):
    for n in SIZES:
        want = here().bernoulli(np.empty(n, np.uint8), p, first=5)
        got = fill.bernoulli_(torch.empty(n, dtype=dtype), here(), p, first=5)
        assert got.to(torch.uint8).numpy().tobytes() == want.tobytes()


def test_words_keep_their_bits(way):
    want = here().uint32(np.empty(4097, np.uint32), first=3)
    assert (fill.words_(torch.empty(4097, dtype=torch.int64), here(), 3).numpy() == want).all()
    got = fill.words_(torch.empty(4097, dtype=torch.int32), here(), 3)
    assert (got.numpy().view(np.uint32) == want).all()


@pytest.mark.parametrize("world", [3, 4, 5, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_pieces_of_any_number_of_ranks_are_the_pieces_of_the_whole(way, world, dtype):
    n = 10007
    whole = fill.normal_(torch.empty(n, dtype=dtype), here())
    cuts = [n * r // world for r in range(world + 1)]
    for a, b in pairwise(cuts):
        part = fill.normal_(torch.empty(b - a, dtype=dtype), here(), first=a)
        assert bits(part) == bits(whole[a:b])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_strides_change_no_number(way, dtype):
    want = bits(fill.normal_(torch.empty(35, 21, dtype=dtype), here()))
    for x in (
        torch.empty(35, 63, dtype=dtype)[:, ::3],
        torch.empty(21, 35, dtype=dtype).T,
        torch.empty(40, 23, dtype=dtype)[5:, 1:22],
        torch.empty(21, 5, 7, dtype=dtype).permute(1, 2, 0),
    ):
        assert bits(fill.normal_(x, here())) == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_a_wider_matrix(way, dtype):
    whole = fill.normal_(torch.empty(30, 77, dtype=dtype), here(), 0.5)
    place = fill.Place(KEY, here().c3, 12, 0, 4 * 77 + 13)
    out = torch.empty(9, 31, dtype=dtype)
    fill.fill_rows(out, fill.draws.normal(dtype, 0.5, 1.0), place, 77)
    assert bits(out) == bits(whole[4:13, 13:44])


def test_a_generator_reserves_its_blocks(way):
    a, b = rng.Generator(5), rng.Generator(5)
    for n in (1, 7, 100):
        assert bits(fill.normal_(torch.empty(n), a)) == bits(b.normal(n))
        assert bits(fill.uniform_(torch.empty(n, dtype=torch.float64), a)) == bits(
            b.uniform(n, dtype="float64")
        )
    assert a == b


def test_long_tensors_pass_through_in_parts(way, monkeypatch):
    monkeypatch.setattr(fill, "_CHUNK", 1000)
    for dtype in (torch.float32, torch.bfloat16):
        want = here().normal(np.empty((61, 101), DTYPES[dtype]), first=3)
        assert bits(fill.normal_(torch.empty(61, 101, dtype=dtype), here(), first=3)) == bits(want)
        part = torch.empty(61, 40, dtype=dtype)
        place = fill.Place(KEY, here().c3, 12, 0, 3 + 20)
        fill.fill_rows(part, fill.draws.normal(dtype, 0.0, 1.0), place, 101)
        assert bits(part) == bits(np.ascontiguousarray(want[:, 20:60]))


def test_leaves_that_require_gradients_are_filled():
    x = torch.nn.Parameter(torch.empty(5))
    assert fill.normal_(x, here()) is x
    assert x.requires_grad
    assert bits(x.detach()) == bits(here().normal(np.empty(5, np.float32)))


def test_meta_and_fake_tensors_are_left_alone():
    assert fill.normal_(torch.empty(5, device="meta"), here()).is_meta
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert fill.uniform_(torch.empty(5), here(), -1.0, 1.0).shape == (5,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_equals_eager(inductor, dtype):
    source = here()

    def make(x):
        fill.uniform_(x[0], source, -1.5, 2.25)
        fill.normal_(x[1], source, 0.3, 1.7, first=5)
        fill.truncated_normal_(x[2], source, first=3)
        fill.bernoulli_(x[3], source, 0.3)
        return x

    want = make(torch.empty(4, 1003, dtype=dtype))
    got = torch.compile(make, fullgraph=True)(torch.empty(4, 1003, dtype=dtype))
    assert bits(got) == bits(want)


def test_what_does_not_fit_raises():
    for call, kind, text in (
        (lambda: fill.normal_([0.0], here()), TypeError, "torch tensor"),
        (lambda: fill.normal_(torch.empty(2), 7), TypeError, "Stream or rng.Generator"),
        (lambda: fill.normal_(torch.empty(2, dtype=torch.int32), here()), ValueError, "bfloat16"),
        (lambda: fill.uniform_(torch.empty(2), here(), 1.0, 1.0), ValueError, "low < high"),
        (lambda: fill.words_(torch.empty(2), here()), ValueError, "int32 or int64"),
        (lambda: fill.normal_(torch.empty(2), here(), std=-1.0), ValueError, "std"),
        (lambda: fill.normal_(torch.empty(2), here(), first=-1), OverflowError, "positions"),
        (lambda: fill.normal_(torch.empty(9), here((1 << 64) - 2)), OverflowError, "positions"),
        (lambda: fill.normal_(torch.empty(2), rng.Generator(1), first=3), ValueError, "reserves"),
    ):
        with pytest.raises(kind, match=text):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autograd_notices_a_fill(way, dtype):
    for name in (*DRAWS, "bernoulli"):
        for part in (slice(None), slice(1, 3)):  # whole, and by a view
            x = torch.ones(5, dtype=dtype, requires_grad=True)
            y = x * 1
            loss = (y * y).sum()
            getattr(fill, name + "_")(y[part], here())
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    with torch.inference_mode():
        y = fill.normal_(torch.empty(5, dtype=dtype), here())
    assert y.is_inference()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_whose_elements_share_memory_are_refused(way, dtype):
    for name in (*DRAWS, "bernoulli"):
        call, source = getattr(fill, name + "_"), rng.Generator(7)
        with pytest.raises(ValueError, match="out is expanded"):
            call(torch.zeros(1, 4, dtype=dtype).expand(3, 4), source)
        with pytest.raises(TypeError, match="out must be a dense tensor"):
            call(torch.eye(3, dtype=dtype).to_sparse(), source)
        assert source.offset == 0  # no number is spent
        call(torch.zeros(1, 4, dtype=dtype).expand(1, 4), source)  # one row: nothing is shared


def test_leaves_are_filled_in_grad_mode_as_torchs_initialisers_do():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.zeros(5, dtype=dtype, requires_grad=True)
        with torch.enable_grad():
            assert fill.uniform_(x, here()).grad_fn is None
        assert x.is_leaf
        assert x.requires_grad
        assert x.any()
