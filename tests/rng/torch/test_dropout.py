import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest

import rng
from rng import dropout as reference

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from rng.torch import Dropout, DropoutState, bind, dropout, dropout_mask, masks  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture(params=["numba", "torch"])
def way(request, monkeypatch):
    """Both the kernels and torch's operations, as on a device that has nothing else."""
    if request.param == "torch":
        monkeypatch.setattr(masks, "is_plain", lambda x: False)
    return request.param


def kept(n, p, step=3, first=0, name="fc1", seed=42):
    """bool[n] of the reference."""
    lead = first % 8
    bits = rng.dropout_mask(lead + n, p, seed, name, step, first=first - lead)
    return reference.unpack(bits, lead + n)[lead:]


def plain(x):
    return x.detach().to(torch.float64).numpy()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 8), (1, 4095), (2, 3, 4097), (40001,)])
@pytest.mark.parametrize(("p", "row"), [(0.1, 0), (0.5, 11), (0.0, 3), (1.0, 3), (1e-6, 0)])
def test_equals_the_reference(way, dtype, shape, p, row):
    state = DropoutState(seed=42, step=3, first_row=row)
    x = torch.linspace(-3, 3, int(np.prod(shape))).reshape(shape).to(dtype)
    got = dropout(x, p, state, "fc1")
    keep = kept(x.numel(), p, first=row * (x.numel() // shape[0])).reshape(shape)
    if dtype == torch.float64:
        t = reference.threshold(p)
        want = np.where(keep, x.numpy() * (0.0 if p == 1 else 1 / (1 - t / 65536)), 0.0)
        assert (got.numpy() == want).all()
    else:
        wide = x.to(torch.float32) * float(reference.scale_of(p))
        want = torch.where(torch.from_numpy(keep), wide, 0.0).to(dtype)
        assert torch.equal(got, want)
    assert got.dtype == dtype
    assert got.shape == x.shape
    packed = dropout_mask(shape, p, state, "fc1")
    assert (reference.unpack(packed.numpy(), x.numel()) == keep.ravel()).all()
    assert packed.numel() == (x.numel() + 7) // 8
    assert x.numel() % 8 == 0 or int(packed[-1]) >> x.numel() % 8 == 0


def test_the_counter_carries_at_2_to_the_32(way):
    row = (1 << 32) - 1  # of 8 columns: the last block before the carry
    x = torch.linspace(-3, 3, 24).reshape(3, 8)
    keep = kept(24, 0.5, first=8 * row)
    assert len({keep[a : a + 8].tobytes() for a in (0, 8, 16)}) == 3
    state = DropoutState(seed=42, step=3, first_row=row)
    assert ((dropout(x, 0.5, state, "fc1") != 0).numpy().ravel() == keep).all()
    assert (reference.unpack(dropout_mask(x.shape, 0.5, state, "fc1").numpy(), 24) == keep).all()


def test_large_tensors_are_shared_among_threads():
    x = torch.ones(3, (1 << 20) + 3)
    state = DropoutState(seed=42, step=3, first_row=5)
    keep = kept(x.numel(), 0.3, first=5 * x.shape[1])
    assert ((dropout(x, 0.3, state, "fc1") != 0).flatten().numpy() == keep).all()
    packed = dropout_mask(x.shape, 0.3, state, "fc1")
    assert (reference.unpack(packed.numpy(), x.numel()) == keep).all()


def test_dropped_elements_are_zero_where_x_is_inf_or_nan(way):
    for dtype in DTYPES:
        for value in (float("inf"), float("nan"), -float("inf")):
            x = torch.full((4, 100), value, dtype=dtype)
            out = dropout(x, 0.5, DropoutState(7), "a")
            keep = kept(400, 0.5, 0, 0, "a", 7).reshape(4, 100)
            assert (plain(out)[~keep] == 0).all()
            assert not np.isfinite(plain(out)[keep]).any()
            assert not dropout(x, 1.0, DropoutState(7), "a").any()


def test_probability_zero_keeps_every_bit(way):
    x = torch.randn(5, 9)
    assert torch.equal(dropout(x, 0.0, DropoutState(7), "a"), x)


@pytest.mark.parametrize("p", [0.1, 0.5, 1 - 2.0**-14])
def test_the_share_kept_is_one_minus_p(p):
    out = dropout(torch.ones(1000, 1000), p, DropoutState(3), "a")
    q = reference.threshold(p) / 65536
    share = (out != 0).double().mean().item()
    assert abs(share - (1 - q)) < 4 * (q * (1 - q) / 1e6) ** 0.5
    assert np.isfinite(out.max().item())


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("columns", [16, 33])
def test_a_row_has_its_mask_whoever_works_on_it(way, world, columns):
    x = torch.randn(23, columns)
    whole = dropout(x, 0.4, DropoutState(1, step=9), "a")
    cuts = [23 * r // world for r in range(world + 1)]
    parts = [
        dropout(x[a:b], 0.4, DropoutState(1, step=9, first_row=a), "a") for a, b in pairwise(cuts)
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_layouts_change_nothing(way):
    x = torch.randn(6, 5, 7)
    want = dropout(x, 0.5, DropoutState(1), "a")
    for y in (x.permute(2, 0, 1).contiguous().permute(1, 2, 0), x.repeat(1, 1, 2)[..., :7]):
        assert not y.is_contiguous()
        assert torch.equal(dropout(y, 0.5, DropoutState(1), "a"), want)
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    out = dropout(image, 0.5, DropoutState(1), "a")
    assert torch.equal(out, dropout(image.contiguous(), 0.5, DropoutState(1), "a"))
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_rows_without_elements_and_scalars(way):
    for shape in ((0, 5), (5, 0), (0,)):
        assert dropout(torch.empty(shape), 0.5, DropoutState(1), "a").shape == shape
        assert dropout_mask(shape, 0.5, DropoutState(1), "a").numel() == 0
    assert dropout(torch.tensor(1.0), 0.0, DropoutState(1), "a").item() == 1.0


# ---------------------------------------------------------------- backward
def test_the_backward_pass_has_the_same_mask(way):
    for dtype in DTYPES:
        x = torch.randn(5, 9, dtype=dtype, requires_grad=True)
        state = DropoutState(42, step=3, first_row=2)
        out = dropout(x, 0.4, state, "fc1")
        grad = torch.randn(5, 9, dtype=dtype)
        out.backward(grad)
        assert torch.equal(x.grad, dropout(grad, 0.4, state, "fc1"))
        # An expanded gradient, as that of a sum.
        y = x.detach().requires_grad_()
        dropout(y, 0.4, state, "fc1").sum().backward()
        assert torch.equal(y.grad, dropout(torch.ones(5, 9, dtype=dtype), 0.4, state, "fc1"))


def test_nothing_is_saved_for_the_backward_pass():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        dropout(torch.randn(5, 9, requires_grad=True), 0.4, DropoutState(1), "a")
    assert saved == []


def test_first_and_second_gradients_are_right(way):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    state = DropoutState(42)
    assert torch.autograd.gradcheck(lambda t: dropout(t, 0.4, state, "a"), x)
    assert torch.autograd.gradgradcheck(lambda t: dropout(t, 0.4, state, "a") ** 3, x)


def test_advancing_before_the_backward_pass_raises(way):
    for move in (lambda s: s.advance(), lambda s: s.seek(5), lambda s: s.seek(first_row=3)):
        state = DropoutState(1)
        out = dropout(torch.randn(3, 5, requires_grad=True), 0.4, state, "a")
        move(state)
        with pytest.raises(RuntimeError, match="moved since the forward pass"):
            out.sum().backward()


def block(x, state):
    return dropout(torch.relu(x @ x.T), 0.4, state, "a") @ x


def test_checkpoints_make_the_same_mask_again():
    grads = []
    for mode in ("plain", "recompute"):
        x = torch.linspace(-1, 1, 30).reshape(6, 5).requires_grad_()
        state = DropoutState(1, step=4)
        if mode == "plain":
            out = block(x, state)
        else:
            out = checkpoint(block, x, state, use_reentrant=False, preserve_rng_state=False)
        out.square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_advancing_before_a_checkpoint_is_recomputed_raises():
    state = DropoutState(1, step=4)
    x = torch.randn(6, 5, requires_grad=True)
    out = checkpoint(block, x, state, use_reentrant=False, preserve_rng_state=False)
    state.advance()
    with pytest.raises(RuntimeError, match="moved since the forward pass"):
        out.sum().backward()


def test_transformations_of_functions():
    state = DropoutState(1)
    x = torch.randn(3, 5)
    for function in (
        lambda v: dropout(v, 0.5, state, "a"),
        torch.func.grad(lambda v: dropout(v, 0.5, state, "a").sum()),
    ):
        with pytest.raises(RuntimeError, match=r"under torch\.vmap"):
            torch.func.vmap(function)(x)
    grad = torch.func.grad(lambda v: dropout(v, 0.5, state, "a").sum())(x)
    assert torch.equal(grad, dropout(torch.ones(3, 5), 0.5, state, "a"))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own import
def test_forward_mode_has_the_mask_too(way):
    from torch.autograd import forward_ad

    state, x, t = DropoutState(seed=42, step=3), torch.randn(3, 8), torch.randn(3, 8)
    want, want_t = dropout(x, 0.5, state, "fc1"), dropout(t, 0.5, state, "fc1")
    for leaf in (x, x.clone().requires_grad_()):
        with forward_ad.dual_level():
            got = forward_ad.unpack_dual(dropout(forward_ad.make_dual(leaf, t), 0.5, state, "fc1"))
            assert torch.equal(got.primal, want)
            assert torch.equal(got.tangent, want_t)
            assert forward_ad.unpack_dual(dropout(x, 0.5, state, "fc1")).tangent is None
    one = torch.func.jvp(lambda v: v * dropout(x, 0.5, state, "fc1"), (torch.ones(3, 8),), (t,))
    assert torch.equal(one[1], t * want)
    got, got_t = torch.func.jvp(lambda x: dropout(x, 0.5, state, "fc1"), (x,), (t,))
    assert torch.equal(got, want)
    assert torch.equal(got_t, want_t)


def test_steps_wrap_at_2_to_the_32(way):
    masks_of = []
    for step in (2, 2 + (1 << 32)):
        state = DropoutState(seed=42)
        state.seek(torch.tensor([step]))
        found = [dropout(torch.ones(3, 5, dtype=t), 0.5, state, "fc1") for t in DTYPES]
        masks_of.append([*found, dropout_mask((3, 5), 0.5, state, "fc1")])
    assert all(map(torch.equal, *masks_of))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bool, torch.complex64], ids=str
)
def test_a_state_does_not_seek_what_is_no_whole_number(dtype):
    state = DropoutState(seed=42, step=3, first_row=4)
    for name in ("step", "first_row"):
        with pytest.raises(TypeError, match=f"{name} must be an int or an int64 tensor"):
            state.seek(**{name: torch.ones(1, dtype=dtype)})
    state.seek(torch.tensor(5), torch.tensor([6], dtype=torch.int32))
    assert (state.step, state.first_row) == (5, 6)


def test_meta_and_fake_tensors():
    state = DropoutState(1, device="meta")
    assert dropout(torch.empty(3, 5, device="meta"), 0.5, state, "a").is_meta
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        state = DropoutState(1)
        assert dropout(torch.empty(3, 5), 0.5, state, "a").shape == (3, 5)
        assert dropout_mask((3, 5), 0.5, state, "a").shape == (2,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_equals_eager_also_backward(inductor, dtype):
    state = DropoutState(7, step=2, first_row=3)
    bits = []

    def step(x, scale):
        y = dropout(x * scale, 0.3, state, "a")
        return dropout(y, 0.2, state, "b") * 2 + x

    # Without the option inductor leaves out roundings to 16 bits between what it fuses.
    options = None if dtype == torch.float32 else {"emulate_precision_casts": True}
    for function in (step, torch.compile(step, fullgraph=True, options=options)):
        for move in (lambda: state.seek(2), lambda: state.seek(3), state.advance):
            move()
            x = torch.linspace(-3, 3, 77 * 5).reshape(5, 77).to(dtype).requires_grad_()
            out = function(x, 1.1)
            out.backward(torch.ones(5, 77, dtype=dtype))
            bits.append((out.detach(), x.grad))
    assert all(
        torch.equal(a, b)
        for u, v in zip(bits[:3], bits[3:], strict=True)
        for a, b in zip(u, v, strict=True)
    )
    assert not torch.equal(bits[0][0], bits[1][0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_a_compiled_pass_refuses_a_state_that_moved(inductor):
    state = DropoutState(7)
    step = torch.compile(lambda x: dropout(x, 0.3, state, "a") * 2, fullgraph=True)
    out = step(torch.randn(5, 77, requires_grad=True))
    state.advance()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ---------------------------------------------------------------- state
def test_steps_are_addresses_not_a_history(way):
    x = torch.ones(4, 50)
    state = DropoutState(7)
    by_step = []
    for _ in range(20):
        by_step.append(dropout(x, 0.5, state, "a"))
        state.advance()
    assert len({m.numpy().tobytes() for m in by_step}) == 20
    state.seek(11)
    assert torch.equal(dropout(x, 0.5, state, "a"), by_step[11])
    state.seek(torch.tensor(5))
    assert torch.equal(dropout(x, 0.5, state, "a"), by_step[5])
    assert torch.equal(dropout(x, 0.5, DropoutState(7, step=19), "a"), by_step[19])


def test_a_state_that_went_round_is_saved_and_resumed():
    state = DropoutState(3, step=(1 << 32) - 1)
    state.advance()
    other = DropoutState(4)
    other.load_state_dict(state.state_dict())
    assert (other.seed, other.step) == (3, 1 << 32)
    x = torch.ones(4, 50)
    assert torch.equal(dropout(x, 0.5, other, "a"), dropout(x, 0.5, DropoutState(3), "a"))


def test_a_state_is_saved_and_resumed_with_the_row_of_the_process_that_loads_it():
    state = DropoutState((1 << 64) - 3, step=5, first_row=64)
    saved = copy.deepcopy(state.state_dict())
    other = DropoutState(1, first_row=128)
    other.load_state_dict(saved)
    assert (other.seed, other.step, other.first_row) == ((1 << 64) - 3, 5, 128)
    assert other.key("a") == state.key("a")
    with pytest.raises(ValueError, match="seed, step"):
        other.set_extra_state(torch.zeros(3))


def test_states_out_of_range_raise():
    for call, kind in (
        (lambda: DropoutState(-1), ValueError),
        (lambda: DropoutState(1.5), TypeError),
        (lambda: DropoutState(1, step=1 << 32), ValueError),
        (lambda: DropoutState(1, first_row=-1), ValueError),
        (lambda: DropoutState(1).seek(-1), ValueError),
        (lambda: DropoutState(1).seek(1.0), TypeError),
        (lambda: dropout(torch.ones(2), 1.1, DropoutState(1), "a"), ValueError),
        (lambda: dropout(torch.ones(2), float("nan"), DropoutState(1), "a"), ValueError),
        (lambda: dropout(torch.ones(2, dtype=torch.int32), 0.5, DropoutState(1), "a"), TypeError),
        (lambda: dropout(torch.ones(2), 0.5, DropoutState(1), 7), TypeError),
        (lambda: dropout([1.0], 0.5, DropoutState(1), "a"), TypeError),
        (lambda: dropout(torch.ones(2), 0.5, DropoutState(1, "meta"), "a"), ValueError),
    ):
        with pytest.raises(kind):
            call()


def test_moving_a_model_moves_the_state_and_keeps_its_numbers():
    model = torch.nn.Sequential(Dropout(0.5))
    state = bind(model, DropoutState(7, step=3, first_row=4))
    model.to_empty(device="cpu")
    model.half().double()
    assert state.cell.dtype == torch.int64
    assert (state.step, state.first_row) == (3, 4)


# ---------------------------------------------------------------- layers
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(6, 8)
        self.drop = Dropout(0.5)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 8), Dropout(0.25)) for _ in range(2)
        )

    def forward(self, x):
        x = self.drop(self.fc1(x))
        for one in self.blocks:
            x = one(x)
        return x


def test_bind_names_the_layers_by_their_path():
    model = Net()
    state = bind(model, DropoutState(7))
    assert [m.name for m in model.modules() if isinstance(m, Dropout)] == [
        "drop",
        "blocks.0.1",
        "blocks.1.1",
    ]
    assert [k for k in model.state_dict() if "state" in k] == ["dropout_state._extra_state"]
    assert model.dropout_state is state
    wrapped = torch.nn.DataParallel(Net())
    bind(wrapped, DropoutState(7))
    assert wrapped.module.drop.name == "drop"
    twin = copy.deepcopy(model)
    assert twin.drop.state is twin.dropout_state is not state
    x = torch.randn(4, 6)
    assert torch.equal(model(x), twin(x))
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_a_pickled_model_has_its_state_once():
    model = Net()
    state = bind(model, DropoutState(7, step=3, first_row=2))
    other = pickle.loads(pickle.dumps(model))
    assert other.drop.state is other.dropout_state
    assert (other.dropout_state.step, other.dropout_state.first_row) == (3, 2)
    x = torch.randn(4, 6)
    assert torch.equal(model(x), other(x))
    state.advance()
    assert other.dropout_state.step == 3


def test_a_checkpoint_of_the_model_holds_the_step():
    model, other = Net(), Net()
    state, restored = bind(model, DropoutState(7)), bind(other, DropoutState(1))
    for _ in range(5):
        state.advance()
    other.load_state_dict(model.state_dict())
    assert (restored.seed, restored.step) == (7, 5)
    x = torch.randn(4, 6)
    assert torch.equal(model(x), other(x))


def test_layers_without_a_name_or_a_state_and_doubled_names_raise():
    with pytest.raises(RuntimeError, match="bind"):
        Dropout(0.5)(torch.ones(2))
    assert Dropout(0.5).eval()(torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="p must be"):
        Dropout(1.5)
    with pytest.raises(ValueError, match=r"no rng.torch.Dropout"):
        bind(torch.nn.Linear(2, 2), DropoutState(1))
    twice = torch.nn.Sequential(Dropout(0.1, name="a"), Dropout(0.1, name="a"))
    with pytest.raises(ValueError, match="two Dropout layers"):
        bind(twice, DropoutState(1))
    with pytest.raises(TypeError, match="bind needs"):
        bind(twice, 7)
    with pytest.raises(ValueError, match="attribute"):
        bind(Net(), DropoutState(1), name="fc1")


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        (None, TypeError, "name must be a str, got None"),
        (3, TypeError, "name must be a str, got 3"),
        ("", ValueError, "not empty"),
        ("a.b", ValueError, "without a dot"),
        ("fc1", ValueError, "an attribute 'fc1' already"),
        ("forward", ValueError, "an attribute 'forward' already"),
        ("reserved", ValueError, "an attribute 'reserved' already"),
        ("hidden", ValueError, "an attribute 'hidden' already"),
    ],
    ids=["none", "int", "empty", "dot", "module", "method", "parameter", "class"],
)
def test_a_name_that_the_model_cannot_give_to_the_state_is_refused(name, kind, text):
    class Reserving(Net):
        hidden = None

    model = Reserving()
    model.register_parameter("reserved", None)
    with pytest.raises(kind, match=text):
        bind(model, DropoutState(1), name=name)
    assert model.drop.state is None
    assert model.drop.name is None


def test_the_last_state_that_is_bound_is_the_one_that_counts():
    model = Net()
    model.dropout_state = None  # a place kept free
    bind(model, DropoutState(1))
    state = bind(model, DropoutState(2))
    assert {m.state for m in model.modules() if isinstance(m, Dropout)} == {state}
    assert [k for k in model.state_dict() if "state" in k] == ["dropout_state._extra_state"]
    x = torch.randn(4, 6)
    bind(other := Net(), DropoutState(2))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))
    model.drop.attach(DropoutState(5))  # given to a layer, not held by the model
    assert bind(model, state) is model.drop.state


def test_no_state_is_left_behind_in_a_model():
    model = Net()
    old = bind(model, DropoutState(1))
    with pytest.raises(
        ValueError, match="'drop' has another state, which the model holds as 'drop"
    ):
        bind(model, DropoutState(2), name="other")
    assert model.drop.state is old
    outer = torch.nn.Sequential(model)
    with pytest.raises(ValueError, match=r"holds as '0\.dropout_state'"):
        bind(outer, DropoutState(2))
    assert bind(outer, old) is old
    del outer.dropout_state, model.dropout_state
    state = bind(outer, DropoutState(2))
    assert model.drop.state is state


@pytest.mark.parametrize(
    ("p", "kind"),
    [
        ("0.5", TypeError),
        (None, TypeError),
        (True, TypeError),
        (0.5j, TypeError),
        (torch.tensor(0.5), TypeError),
        (torch.tensor([0.1, 0.2]), TypeError),
        (float("nan"), ValueError),
        (-0.1, ValueError),
        (2, ValueError),
    ],
    ids=["str", "none", "bool", "complex", "tensor", "tensors", "nan", "negative", "two"],
)
def test_p_is_a_number_of_0_to_1(p, kind):
    state = DropoutState(1)
    for call in (
        lambda: dropout(torch.ones(2, 3), p, state, "a"),
        lambda: dropout_mask((2, 3), p, state, "a"),
        lambda: Dropout(p),
    ):
        with pytest.raises(kind, match="p must be"):
            call()
    x = torch.ones(2, 3)
    for same in (np.float64(0.5), np.float32(0.5)):
        assert torch.equal(dropout(x, same, state, "a"), dropout(x, 0.5, state, "a"))
    assert torch.equal(dropout(x, np.int64(0), state, "a"), x)


@pytest.mark.filterwarnings("ignore:.*beta state", "ignore:.*prototype stage")
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse().requires_grad_(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.nested.nested_tensor([x, x]),
        lambda x: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged),
    ],
    ids=["coo", "grad", "csr", "nested", "jagged"],
)
def test_dropout_of_what_is_not_dense_is_refused(make):
    with pytest.raises(TypeError, match="dropout needs a dense tensor x"):
        dropout(make(torch.eye(3)), 0.5, DropoutState(1), "a")


@pytest.mark.parametrize(
    ("size", "kind", "text"),
    [
        ((-1, 3), ValueError, "size must have ints of 0 or more"),
        ((-2, -3), ValueError, "size must have ints of 0 or more"),
        ((1 << 40, 1 << 40), ValueError, "less than 2"),
        ((2.5, 3), TypeError, "size must be an int, got 2.5"),
        ((True, 3), TypeError, "size must be an int, got True"),
        (5, TypeError, "size must be a sequence of ints, got 5"),
        ("12", TypeError, "size must be a sequence of ints, got '12'"),
        (None, TypeError, "size must be a sequence of ints, got None"),
    ],
    ids=["negative", "product", "huge", "float", "bool", "int", "str", "none"],
)
def test_a_mask_has_a_size_of_whole_numbers(size, kind, text):
    with pytest.raises(kind, match=text):
        dropout_mask(size, 0.5, DropoutState(1), "a")


def test_masks_of_no_and_of_one_element():
    state = DropoutState(42, step=3, first_row=5)
    for size in ((0,), (0, 4), (4, 0), (0, 0)):
        assert dropout_mask(size, 0.5, state, "a").tolist() == []
    one = dropout_mask((), 0.5, state, "a")
    assert one.tolist() == dropout_mask((1, 1), 0.5, state, "a").tolist()
    assert bool(one[0]) == bool(dropout(torch.tensor(1.0), 0.5, state, "a"))
    with pytest.raises(TypeError, match=r"state must be an rng\.torch\.DropoutState"):
        dropout_mask((2, 3), 0.5, None, "a")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_negative_views_keep_their_sign(dtype):
    state = DropoutState(42, step=3)
    x = torch._neg_view(torch.ones(4, 8, dtype=dtype))
    assert torch.equal(dropout(x, 0.5, state, "fc1"), -dropout(-x, 0.5, state, "fc1"))


def test_a_seek_that_raises_moves_nothing():
    state = DropoutState(1, step=2, first_row=3)
    for bad in ({"first_row": -1}, {"first_row": torch.ones(2, dtype=torch.int64)}):
        with pytest.raises(ValueError, match="first_row must be"):
            state.seek(step=9, **bad)
    assert (state.step, state.first_row) == (2, 3)
    for extra in (torch.tensor([True, False]), torch.tensor([1j, 2]), torch.tensor([1.0, 2.0])):
        with pytest.raises(ValueError, match="the state of dropout is int64"):
            state.set_extra_state(extra)


def test_another_seed_gives_other_masks_from_then_on():
    state, x = DropoutState(1), torch.ones(4, 8)
    dropout(x, 0.5, state, "a")
    state.seed = 2
    assert torch.equal(dropout(x, 0.5, state, "a"), dropout(x, 0.5, DropoutState(2), "a"))
    with pytest.raises(ValueError, match="seed"):
        state.seed = -1
    assert state.seed == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_beyond_2_to_the_63_are_refused(dtype):
    for row, columns in ((1 << 61, 4), (1 << 62, 2), ((1 << 63) - 1, 8)):
        state = DropoutState(1, first_row=row)
        with pytest.raises(OverflowError, match=r"first_row .* must be in \[0, 2\*\*63\)"):
            dropout(torch.ones(1, columns, dtype=dtype), 0.5, state, "a")
        with pytest.raises(OverflowError, match="first_row"):
            dropout_mask((1, columns), 0.5, state, "a")


@pytest.mark.parametrize("row", [(1 << 60) + 1, (1 << 61) - 2], ids=["odd", "last"])
def test_large_rows_have_one_mask_by_either_way(row, monkeypatch):
    state, x = DropoutState(1, first_row=row), torch.ones(2, 4)
    want = dropout(x, 0.5, state, "a")
    monkeypatch.setattr(masks, "is_plain", lambda x: False)
    assert torch.equal(dropout(x, 0.5, state, "a"), want)
