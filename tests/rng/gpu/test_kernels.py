"""The Triton kernels in Triton's interpreter, against the numba functions."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import rng
from rng import address
from rng import dropout as reference
from rng.stream import Stream

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rng.torch import draws, fill  # noqa: E402

SIZES = [1, 2, 3, 4, 5, 4095, 4096, 4097, 40001]
KEY = address.mix64(7)
C3 = address.site(address.USER, 3, 9)
DTYPES = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}
DRAWS = [
    ("uniform", ()),
    ("uniform", (-1.5, 2.25)),
    ("uniform", (0.0, 3.0)),
    ("normal", ()),
    ("normal", (0.3, 1.7)),
    ("truncated_normal", (0.1, 1.0, -1.0, 2.0)),
    ("truncated_normal", (0.0, 1.0, -9.0, 9.0)),
]


def bits(x):
    if isinstance(x, torch.Tensor):
        x = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).contiguous().numpy()
    return x.tobytes()


def stream(start=0):
    return Stream(KEY, C3, 12, start)


def run(gpu, out, what, first=0, start=0, block=1024, rows=None):
    """Fill a tensor by the kernel: as one row, or as rows (count, columns, pitch, strides ...)."""
    place = fill.Place(KEY, C3, 12, start, first)
    table = draws.normal_table(torch.device("cpu"))
    gpu.fill_rows(out, table, what, place, *(rows or (1, out.numel(), 0, 0, 1)), block)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "args"), DRAWS)
def test_fills_equal_the_reference(gpu, name, args, dtype):
    what = getattr(draws, name)(
        dtype, *(args or {"uniform": (0.0, 1.0), "normal": (0.0, 1.0)}[name])
    )
    for n in SIZES:
        for first in (0, 3) if n in (1, 5, 4095) else (0,):
            want = getattr(stream(), name)(np.empty(n, DTYPES[dtype]), *args, first=first)
            assert bits(run(gpu, torch.empty(n, dtype=dtype), what, first)) == bits(want), (
                n,
                first,
            )


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64], ids=str)
def test_bernoulli_equals_the_reference(gpu, p, dtype):
    for n in SIZES:
        got = run(gpu, torch.empty(n, dtype=dtype), draws.bernoulli(p), 1)
        want = stream().bernoulli(np.empty(n, np.uint8), p, first=1)
        assert (got.numpy() == want).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_words_equal_the_reference(gpu, dtype):
    for n in SIZES:
        want = stream().uint32(np.empty(n, np.uint32), 3)
        got = run(gpu, torch.empty(n, dtype=dtype), draws.RAW, 3)
        assert (got.numpy().astype(np.uint32) == want).all()


@pytest.mark.parametrize("start", [(1 << 32) - 3, (1 << 64) - 10001])
@pytest.mark.parametrize("first", [0, 1, (1 << 32) - 5])
def test_the_counter_carries(gpu, start, first):
    if start + first // 4 + 2000 < 1 << 64:
        want = stream(start).uint32(np.empty(5000, np.uint32), first)
        got = run(gpu, torch.empty(5000, dtype=torch.int64), draws.RAW, first, start)
        assert (got.numpy() == want).all()
        got = run(gpu, torch.empty(5000, dtype=torch.int32), draws.RAW, first, start)
        assert (got.numpy().view(np.uint32) == want).all()


@pytest.mark.parametrize("block", [64, 512, 2048])
def test_the_grid_changes_no_bit(gpu, block):
    want = stream().normal(np.empty(9001, np.float32), first=5)
    got = run(gpu, torch.empty(9001), draws.normal(torch.float32, 0, 1), 5, block=block)
    assert bits(got) == bits(want)
    state = torch.tensor([3, 11])
    x = torch.linspace(-2, 2, 9 * 999).reshape(9, 999)
    want = by_reference(x, 0.3, 11 * 999)
    out = torch.empty_like(x)
    t = reference.threshold(0.3)
    gpu.dropout(x, out, state, 999, t, float(reference.scale_of(0.3)), layer_key(), block)
    assert torch.equal(out, want)
    mask = torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)
    gpu.mask(mask, state, x.numel(), 999, t, layer_key(), block)
    want = np.packbits(kept(x.numel(), 0.3, 11 * 999), bitorder="little")
    assert (mask.numpy() == want).all()


@pytest.mark.parametrize("world", [3, 4, 5, 7])
def test_the_pieces_of_any_number_of_ranks_are_the_pieces_of_the_whole(gpu, world):
    n = 10007
    want = stream().normal(np.empty(n, np.float32))
    cuts = [n * r // world for r in range(world + 1)]
    for a, b in pairwise(cuts):
        part = run(gpu, torch.empty(b - a), draws.normal(torch.float32, 0, 1), a)
        assert bits(part) == bits(want[a:b])


def test_strides_and_rows_of_a_wider_matrix(gpu):
    whole = stream().uniform(np.empty((40, 77), np.float32))
    what = draws.uniform(torch.float32, 0.0, 1.0)
    for step in (1, 3, 5):
        memory = torch.zeros(40, 77 * step + 2)
        run(gpu, memory, what, rows=(40, 77, 77, memory.stride(0), step))
        assert bits(memory[:, : 77 * step : step]) == bits(whole)
        assert not memory[:, 77 * step :].any()
    memory = torch.zeros(77, 40)  # a transposed one
    run(gpu, memory, what, rows=(40, 77, 77, 1, 40))
    assert bits(memory.T) == bits(whole)
    for column in (0, 4, 13):  # a shard of columns
        part = run(gpu, torch.empty(9, 31), what, 4 * 77 + column, rows=(9, 31, 77, 31, 1))
        assert bits(part) == bits(np.ascontiguousarray(whole[4:13, column : column + 31]))


def test_more_rows_than_a_grid_has_take_several_launches(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "ROWS", 4)
    whole = stream().uniform(np.empty((23, 9), np.float32))
    part = run(
        gpu, torch.empty(23, 5), draws.uniform(torch.float32, 0, 1), 2, rows=(23, 5, 9, 5, 1)
    )
    assert bits(part) == bits(np.ascontiguousarray(whole[:, 2:7]))


# ---------------------------------------------------------------- dropout
def layer_key():
    return address.named(address.mix64(42), "fc1")


def kept(n, p, first, step=3):
    lead = first % 8
    mask = rng.dropout_mask(lead + n, p, 42, "fc1", step, first=first - lead)
    return reference.unpack(mask, lead + n)[lead:]


def by_reference(x, p, first, step=3):
    keep = torch.from_numpy(kept(x.numel(), p, first, step)).reshape(x.shape)
    return torch.where(keep, x.float() * float(reference.scale_of(p)), 0.0).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
def test_dropout_equals_the_reference(gpu, dtype, p):
    t, scale = reference.threshold(p), float(reference.scale_of(p))
    for n in SIZES:
        for columns, row in ((n, 3), (8, (1 << 32) - 1)):
            x = torch.linspace(-2, 2, n).to(dtype)
            x[::7] = float("inf") if p else 1.0
            x[3::7] = float("nan") if p else 2.0
            out = torch.empty_like(x)
            with np.errstate(invalid="ignore"):  # the interpreter's 0 * inf, then not chosen
                gpu.dropout(x, out, torch.tensor([3, row]), columns, t, scale, layer_key(), 1024)
            want = by_reference(x, p, row * columns)
            assert torch.equal(out.isnan(), want.isnan())
            assert torch.equal(out.nan_to_num(9.0), want.nan_to_num(9.0)), (n, columns)


@pytest.mark.parametrize("p", [0.1, 1.0])
def test_masks_equal_the_reference(gpu, p):
    for n in SIZES:
        for columns, row in ((n, 3), (8, (1 << 32) - 1)):
            out = torch.full(((n + 7) // 8,), 0xAA, dtype=torch.uint8)
            cell = torch.tensor([3, row])
            gpu.mask(out, cell, n, columns, reference.threshold(p), layer_key(), 1024)
            want = np.packbits(kept(n, p, row * columns), bitorder="little")
            assert (out.numpy() == want).all()


@pytest.mark.parametrize("world", [3, 4, 5, 7])
def test_dropout_of_any_number_of_ranks_is_that_of_the_whole(gpu, world):
    rows, columns = 23, 77
    x = torch.linspace(-2, 2, rows * columns).reshape(rows, columns)
    t, scale = reference.threshold(0.3), float(reference.scale_of(0.3))
    whole = by_reference(x, 0.3, 5 * columns)
    for a, b in pairwise(rows * r // world for r in range(world + 1)):
        part, out = x[a:b].clone(), torch.empty(b - a, columns)
        cell = torch.tensor([3, 5 + a])
        gpu.dropout(part, out, cell, columns, t, scale, layer_key(), 1024)
        assert torch.equal(out, whole[a:b])
        mask = torch.empty((part.numel() + 7) // 8, dtype=torch.uint8)
        gpu.mask(mask, cell, part.numel(), columns, t, layer_key(), 1024)
        assert (
            reference.unpack(mask.numpy(), part.numel()) == (whole[a:b] != 0).numpy().ravel()
        ).all()


def test_the_last_step(gpu):
    x = torch.ones(999)
    out = torch.empty_like(x)
    step = (1 << 32) - 1
    t = reference.threshold(0.5)
    gpu.dropout(x, out, torch.tensor([step, 0]), 999, t, 2.0, layer_key(), 64)
    assert torch.equal(out, by_reference(x, 0.5, 0, step))
