import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rng.torch import deterministic as det  # noqa: E402

GEOMETRIES = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 1},
    {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 17, "stride": 3, "padding": 8},  # more than 256 cells
    {"kernel_size": 2, "stride": 5, "ceil_mode": True},
]


def numbers(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def pooled(function, x, dy=None, **options):
    x = x.clone().requires_grad_()
    y = function(x, **options)
    y.backward(numbers(*y.shape, seed=2).to(y.dtype) if dy is None else dy)
    return y.detach(), x.grad


@pytest.mark.parametrize("options", GEOMETRIES)
def test_max_pool_equals_autograd_in_float64(options):
    x = numbers(2, 3, 19, 23, dtype=torch.float64)
    y, dx = pooled(det.max_pool2d, x, **options)
    want_y, want_dx = pooled(torch.nn.functional.max_pool2d, x, **options)
    assert torch.equal(y, want_y)
    torch.testing.assert_close(dx, want_dx, rtol=1e-13, atol=1e-13)


def oracle(x, dy, kernel, stride, padding):
    """The seed's rule in plain Python: one float32 accumulator a cell, windows in row order."""
    height, width = x.shape
    chosen = {}
    for oh in range(dy.shape[0]):
        for ow in range(dy.shape[1]):
            best, where = -math.inf, None
            for kh in range(kernel):
                for kw in range(kernel):
                    ih, iw = oh * stride - padding + kh, ow * stride - padding + kw
                    inside = 0 <= ih < height and 0 <= iw < width
                    if inside and (where is None or x[ih, iw] > best):
                        best, where = x[ih, iw], (ih, iw)
            chosen[oh, ow] = where
    dx = np.zeros_like(x)
    for ih in range(height):
        for iw in range(width):
            total = np.float32(0)
            for (oh, ow), where in sorted(chosen.items()):
                if where == (ih, iw):
                    total += dy[oh, ow]
            dx[ih, iw] = total
    return dx


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (5, 2, 2)])
def test_the_gradient_is_summed_in_row_order_and_ties_go_to_the_first(kernel, stride, padding):
    x = (numbers(9, 11) * 2).round()  # many ties
    options = {"kernel_size": kernel, "stride": stride, "padding": padding}
    shape = torch.nn.functional.max_pool2d(x[None], **options).shape
    dy = numbers(*shape, seed=3) * 1e3
    _, dx = pooled(det.max_pool2d, x[None], dy, **options)
    want = oracle(x.numpy(), dy[0].numpy(), kernel, stride, padding)
    assert dx[0].numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_gradient_is_rounded_once(dtype):
    x = torch.zeros(1, 1, 3, 3, dtype=dtype)
    x[0, 0, 1, 1] = 1.0  # chosen by all nine windows
    dy = (numbers(1, 1, 3, 3) + 10).to(dtype)
    _, dx = pooled(det.max_pool2d, x, dy, kernel_size=3, stride=1, padding=1)
    total = torch.zeros(())
    for value in dy.flatten():
        total = total + value.float()
    assert dx[0, 0, 1, 1] == total.to(dtype)
    assert dx.dtype == dtype


def test_infinite_gradients_stay_in_their_cells():
    x = torch.tensor([[[5.0, 1.0, 4.0, 2.0]]])
    _, dx = pooled(det.max_pool2d, x, torch.tensor([[[math.inf, math.nan]]]), kernel_size=(1, 2))
    assert dx[0, 0].tolist()[:2] == [math.inf, 0.0]
    assert math.isnan(dx[0, 0, 2])
    assert dx[0, 0, 3] == 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_threads_and_layouts_change_no_bit(layout):
    x = numbers(4, 8, 33, 31).to(memory_format=layout)
    threads = torch.get_num_threads()
    found = set()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            _, dx = pooled(det.max_pool2d, x, kernel_size=3, stride=2, padding=1)
            found.add((dx.contiguous().numpy().tobytes(), det.sum_of_squares(x).item()))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_the_module_is_torchs_with_this_backward_pass():
    module = det.MaxPool2d(3, stride=2, padding=1)
    assert isinstance(module, torch.nn.MaxPool2d)
    x = numbers(2, 9, 9)
    _, dx = pooled(module, x)
    assert torch.equal(dx, pooled(det.max_pool2d, x, kernel_size=3, stride=2, padding=1)[1])
    with pytest.raises(ValueError, match="return_indices"):
        det.MaxPool2d(2, return_indices=True)(x)
    with pytest.raises(TypeError, match="floating"):
        det.max_pool2d(torch.ones(1, 4, 4, dtype=torch.int32), 2)


# ---------------------------------------------------------------- sums
def tree(values):
    values = list(values)
    while len(values) & (len(values) - 1):
        values.append(0.0)
    while len(values) > 1:
        half = len(values) // 2
        values = [values[i] + values[half + i] for i in range(half)]
    return values[0]


def plain_sum(x):
    """The rule of the module in plain Python floats."""
    flat = [float(v) ** 2 for v in x.flatten().tolist()]
    blocks = [flat[i : i + det.BLOCK] for i in range(0, len(flat), det.BLOCK)]
    return tree(tree([*b, *[0.0] * (det.BLOCK - len(b))]) for b in blocks)


@pytest.mark.parametrize("n", [1, 2, 5, 8191, 8192, 8193, 40001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_sums_are_those_of_the_written_order(n, dtype):
    x = numbers(n).to(dtype)
    kept = x.clone()
    got = det.sum_of_squares(x)
    assert got.dtype == torch.float64
    assert got.item() == plain_sum(x)
    assert torch.equal(x, kept)
    exact = math.fsum(float(v) ** 2 for v in x.tolist())
    assert math.isclose(got.item(), exact, rel_tol=1e-14)


def test_the_order_in_which_blocks_finish_changes_no_bit(monkeypatch):
    x = numbers(9 * det.BLOCK + 17) * torch.logspace(-12, 12, 9 * det.BLOCK + 17)
    whole = det.block_sums(x)
    for seed in range(5):
        finished = torch.empty_like(whole)
        for b in torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed)).tolist():
            finished[b] = det.block_sums(x[b * det.BLOCK : (b + 1) * det.BLOCK])[0]
        assert torch.equal(finished, whole)
    total = det.sum_of_squares(x)
    monkeypatch.setattr(det, "_PIECE", 2 * det.BLOCK)  # nor how much is squared at once
    assert torch.equal(det.sum_of_squares(x), total)


def test_strides_do_not_matter_and_odd_inputs_are_clear():
    x = numbers(64, 48)
    assert det.sum_of_squares(x.t().contiguous().t()) == det.sum_of_squares(x)
    assert det.sum_of_squares(torch.empty(0)).item() == 0.0
    assert math.isnan(det.sum_of_squares(torch.tensor([1.0, math.nan])))
    assert det.sum_of_squares(torch.full((3,), 3e38)).item() == plain_sum(torch.full((3,), 3e38))
    with pytest.raises(TypeError, match="floating"):
        det.sum_of_squares(torch.ones(3, dtype=torch.int64))


def test_trust_ratios_follow_the_formula():
    w, g = numbers(300, 40), numbers(300, 40, seed=2) * 128
    options = {
        "trust_coefficient": 0.02,
        "weight_decay": 5e-4,
        "eps": 1e-6,
        "gradient_scale": 128.0,
    }
    got = det.trust_ratio(w, g, **options).item()
    nw, ng = (math.sqrt(math.fsum(float(v) ** 2 for v in t.flatten().tolist())) for t in (w, g))
    assert math.isclose(got, 0.02 * nw / (ng / 128 + 5e-4 * nw + 1e-6), rel_tol=1e-13)
    assert det.trust_ratio(w, torch.zeros_like(g)).item() == 1.0
    assert det.trust_ratio(torch.zeros_like(w), g).item() == 1.0
    assert det.trust_ratio(w, torch.full_like(g, math.nan)).item() == 1.0
    assert det.trust_ratio(w * 1e9, g * 1e-9).item() == 100.0
    layer = torch.nn.Linear(4, 3)
    layer.weight.grad = torch.ones_like(layer.weight)
    assert len(det.trust_ratios(layer.parameters())) == 1
    assert not det.trust_ratio(layer.weight, layer.weight.grad).requires_grad


def test_two_layers_of_lars_take_the_same_steps_for_any_threads():
    def run(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            w = numbers(100, 333).requires_grad_()
            for _ in range(3):
                (w * w * 0.5).sum().backward()
                with torch.no_grad():
                    ratio = det.trust_ratio(w, w.grad, weight_decay=1e-4)
                    w -= (0.1 * ratio).float() * w.grad
                w.grad = None
            return w.detach().numpy().tobytes()
        finally:
            torch.set_num_threads(before)

    assert run(1) == run(2)
