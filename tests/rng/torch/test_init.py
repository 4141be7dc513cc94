import copy
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from rng import init as reference

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rng.torch import fill, init  # noqa: E402

KINDS = {
    "normal_": ("normal", (0.5, 2.0)),
    "uniform_": ("uniform", (-1.0, 3.0)),
    "trunc_normal_": ("truncated_normal", (0.0, 1.0, -1.0, 2.0)),
    "xavier_normal_": ("xavier_normal", (2.0,)),
    "xavier_uniform_": ("xavier_uniform", ()),
    "kaiming_normal_": ("kaiming_normal", (0.1, "fan_out")),
    "kaiming_uniform_": ("kaiming_uniform", (0.0, "fan_in", "tanh")),
    "orthogonal_": ("orthogonal", (2.0,)),
}
DTYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}


@pytest.fixture(params=["numba", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(fill, "is_plain", lambda x: False)


def raw(x):
    x = x.detach().contiguous()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_rng_init_whole_and_in_boxes(way, kind, dtype):
    name, args = KINDS[kind]
    size = (6, 5, 7)
    want = getattr(reference, name)(size, 3, "w", *args, dtype=DTYPES[dtype])
    make = partial(getattr(init, kind), seed=3, name="w")
    assert raw(make(torch.empty(size, dtype=dtype), *args)) == want.tobytes()
    for box in (
        (slice(1, 4), slice(0, 5), slice(0, 7)),
        (slice(0, 6), slice(2, 4), slice(0, 7)),
        (slice(1, 5), slice(1, 5), slice(2, 6)),
    ):
        part = torch.empty(want[box].shape, dtype=dtype)
        assert (
            raw(make(part, *args, size=size, box=box)) == np.ascontiguousarray(want[box]).tobytes()
        )


def test_constants():
    for make, value in (
        (partial(init.constant_, val=0.3), 0.3),
        (init.zeros_, 0.0),
        (init.ones_, 1.0),
    ):
        for dtype in (*DTYPES, torch.int64):
            x = torch.full((3, 2), 7, dtype=dtype)
            assert make(x, seed=1, name="w") is x
            assert torch.equal(x, torch.full((3, 2), value, dtype=torch.float64).to(dtype))


def test_a_thousand_rows_by_any_number_of_ranks(way):
    whole = reference.normal((1000, 777), 1, "w")
    assert not (whole == reference.normal((1000, 777), 1, "v")).all()
    for world, axis in ((2, 0), (3, 0), (7, 0), (4, 1)):
        parts = []
        for r in range(world):
            n = (1000, 777)[axis]
            box = [slice(0, 1000), slice(0, 777)]
            box[axis] = slice(n * r // world, n * (r + 1) // world)
            part = torch.empty(whole[tuple(box)].shape)
            parts.append(init.normal_(part, seed=1, name="w", size=(1000, 777), box=box))
        assert (torch.cat(parts, axis).numpy() == whole).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtensors_on_any_mesh_hold_the_same_global_tensor(dtype):
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    size = (7, 11, 3)
    for rank in range(6):
        dist.init_process_group("fake", rank=rank, world_size=6, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2, 3))
            for placements in (
                (Shard(0), Shard(1)),
                (Shard(0), Shard(0)),
                (Replicate(), Shard(1)),
                (Shard(2), Shard(1)),
            ):
                split = partial(
                    distribute_tensor, device_mesh=mesh, placements=placements, src_data_rank=None
                )
                for kind in ("normal_", "kaiming_uniform_", "orthogonal_"):
                    make = partial(getattr(init, kind), seed=1, name="w")
                    want = split(make(torch.empty(size, dtype=dtype)))
                    got = make(split(torch.zeros(size, dtype=dtype)))
                    assert torch.equal(got.to_local(), want.to_local())
                    before = got._version
                    make(got)
                    assert got._version > before  # the DTensor's own, which autograd looks at
        finally:
            dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.embed = nn.Embedding(10, 6, padding_idx=2, device=device)
        self.conv = nn.Conv2d(3, 4, 3, device=device)
        self.norm = nn.BatchNorm2d(4, device=device)
        self.attention = nn.MultiheadAttention(6, 2, device=device)
        self.rnn = nn.LSTM(6, 5, device=device)
        self.head = nn.Linear(6, 10, device=device)
        self.head.weight = self.embed.weight


def test_a_model_from_the_meta_device_equals_one_from_memory():
    made, meta = init.materialize(Net(), 7), init.materialize(Net("meta"), 7)
    a, b = made.state_dict(), meta.state_dict()
    assert list(a) == list(b)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert meta.head.weight is meta.embed.weight
    assert not meta.embed.weight[2].any()
    assert (
        meta.conv.weight.detach().numpy()
        == reference.kaiming_uniform((4, 3, 3, 3), 7, "conv.weight", 5**0.5)
    ).all()
    assert meta.norm.running_var.tolist() == [1.0] * 4
    assert not meta.attention.out_proj.bias.any()
    wrapped = init.materialize(nn.DataParallel(Net("meta")), 7)
    assert torch.equal(wrapped.module.conv.weight, meta.conv.weight)
    half = init.materialize(copy.deepcopy(made).bfloat16(), 7)
    assert torch.equal(half.conv.weight, made.conv.weight.bfloat16())


def test_rules_come_first_and_what_has_none_is_named():
    rules = {"*.bias": init.ones_, nn.Linear: {"weight": partial(init.trunc_normal_, std=0.02)}}
    model = init.materialize(nn.Sequential(nn.Linear(3, 2, device="meta")), 7, rules)
    assert model[0].bias.tolist() == [1.0, 1.0]
    want = reference.truncated_normal((2, 3), 7, "0.weight", 0.0, 0.02)
    assert (model[0].weight.detach().numpy() == want).all()
    strange = nn.Linear(3, 2, device="meta")
    strange.scale = nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(ValueError, match="no rule for scale"):
        init.materialize(strange, 7)
    assert strange.weight.is_meta


@pytest.mark.parametrize("kind", [*KINDS, "zeros_"])
def test_autograd_notices_new_values(way, kind):
    x = torch.ones(4, 3, requires_grad=True)
    y = x * 1
    loss = (y * y).sum()
    getattr(init, kind)(y, seed=1, name="w")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"nosuch.*": init.zeros_}, r"'nosuch\.\*' fits no parameter"),
        ({"0.wieght": init.zeros_}, "'0.wieght' fits no parameter .* nearest: '0.weight'"),
        ({nn.Linear: {"wieght": init.zeros_}}, "'wieght' is no parameter .* nearest: 'weight'"),
        ({nn.Linear: lambda _: {"wieght": init.zeros_}}, "'wieght' is no parameter"),
        ({nn.Conv2d: {"weight": init.zeros_}}, "Conv2d.* fits no module"),
        ({(nn.Conv1d, nn.Conv2d): {"weight": init.zeros_}}, "fits no module"),
    ],
    ids=["pattern", "misspelt", "own-name", "function", "type", "types"],
)
def test_rules_that_fit_nothing_are_refused_before_anything_is_changed(rules, text):
    model = nn.Sequential(nn.Linear(3, 2, device="meta"), nn.ReLU())
    with pytest.raises(ValueError, match=text):
        init.materialize(model, 7, {"*.bias": init.ones_, **rules})
    assert all(p.is_meta for p in model.parameters())


def test_rules_may_name_what_a_model_has_not_this_time():
    rules = {"*.bias": init.zeros_, nn.Linear: {"bias": init.ones_}, "*.running_mean": init.ones_}
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2))
    init.materialize(model, 7, rules)
    assert not model[1].running_mean.any()  # a buffer that has memory keeps its values


def test_parameters_whose_names_differ_by_a_wrapper_alone_are_refused():
    model = nn.Module()
    model.a = nn.Linear(3, 2, device="meta")
    model.module = nn.Module()
    model.module.a = nn.Linear(3, 2, device="meta")
    with pytest.raises(ValueError, match=r"two parameters have the name a\.weight, a\.bias"):
        init.materialize(model, 7)
    assert model.a.weight.is_meta
    model.module.a = model.a  # one layer, shared: one value
    init.materialize(model, 7)


def test_what_does_not_fit_raises():
    for call, kind in (
        (lambda: init.normal_([0.0], seed=1, name="w"), TypeError),
        (lambda: init.normal_(torch.empty(2), seed=1.5, name="w"), TypeError),
        (lambda: init.normal_(torch.empty(2), seed=1, name=b"w"), TypeError),
        (
            lambda: init.normal_(torch.empty(2), seed=1, name="w", size=(4,), box=(slice(3),)),
            ValueError,
        ),
        (lambda: init.kaiming_normal_(torch.empty(2), seed=1, name="w"), ValueError),
        (lambda: init.normal_(torch.empty(2, dtype=torch.int32), seed=1, name="w"), ValueError),
        (
            lambda: init.orthogonal_(torch.empty(2, 2, dtype=torch.int32), seed=1, name="w"),
            ValueError,
        ),
    ):
        with pytest.raises(kind):
            call()


FILLS = [
    "normal_",
    "uniform_",
    "trunc_normal_",
    "xavier_uniform_",
    "kaiming_normal_",
    "orthogonal_",
]


@pytest.mark.parametrize("kind", FILLS)
def test_tensors_whose_elements_share_memory_are_refused(kind):
    make = partial(getattr(init, kind), seed=1, name="w")
    with pytest.raises(ValueError, match="tensor is expanded"):
        make(torch.zeros(1, 4).expand(3, 4))
    with pytest.raises(TypeError, match="tensor must be a dense tensor"):
        make(torch.eye(3).to_sparse())
    assert init.ones_(torch.zeros(1, 4).expand(3, 4)).sum() == 12  # as torch: all are equal


@pytest.mark.parametrize("kind", [*FILLS, "zeros_"])
def test_leaves_are_initialised_in_grad_mode(kind):
    x = torch.ones(3, 4, requires_grad=True)
    with torch.enable_grad():
        assert getattr(init, kind)(x, seed=1, name="w").grad_fn is None
    assert x.is_leaf
    assert x.requires_grad
    assert not torch.equal(x, torch.ones(3, 4))


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([init.zeros_], "rules must be a mapping .* got .*list"),
        ((), "rules must be a mapping"),
        ("*.bias", "rules must be a mapping"),
        ({"*": 3}, r"rule '\*' must be an initialiser.* got 3"),
        ({"*": None}, r"rule '\*' must be an initialiser.* got None"),
        ({3: init.zeros_}, "rules: 3 is neither a pattern"),
        ({nn.Linear: 3}, "Linear.*must be {parameter's own name: initialiser}.* got 3"),
        ({nn.Linear: init.zeros_}, "got the initialiser zeros_. Do"),
        ({nn.Linear: {"weight": 3}}, "Linear.*'weight'.*must be an initialiser.* got 3"),
        ({nn.Linear: lambda _: {"weight": 3}}, "'weight'.*must be an initialiser"),
        ({nn.Linear: lambda _: 3}, "its function must return .* got 3"),
    ],
    ids=[
        "list",
        "tuple",
        "str",
        "int",
        "none",
        "key",
        "type",
        "fill",
        "table",
        "function",
        "result",
    ],
)
def test_rules_of_another_kind_are_refused_before_anything_is_changed(rules, text):
    model = nn.Sequential(nn.Linear(3, 2, device="meta"), nn.ReLU())
    with pytest.raises(TypeError, match=text):
        init.materialize(model, 7, rules)
    assert all(p.is_meta for p in model.parameters())


def test_tied_weights_have_the_name_and_the_rule_of_the_first_module():
    def make(flip):
        model = nn.Module()
        one, two = nn.Linear(4, 4, bias=False), nn.Embedding(4, 4)
        two.weight = one.weight
        for name in (
            ("b", "a") if flip else ("a", "b")
        ):  # the order of creation, not of the alphabet
            setattr(model, name, {"a": one, "b": two}[name])
        return init.materialize(model, 7, {"a.weight": init.normal_, "b.weight": init.uniform_})

    for flip, name, kind in ((False, "a", init.normal_), (True, "b", init.uniform_)):
        model = make(flip)
        assert model.a.weight is model.b.weight
        want = kind(torch.empty(4, 4), seed=7, name=f"{name}.weight")
        assert torch.equal(model.a.weight, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (-0.3, 0.1), (-0.0679366, 0.0679366)])
def test_no_cast_rounds_a_uniform_value_up_to_the_upper_bound(dtype, a, b):
    x = init.uniform_(torch.empty(300_000, dtype=dtype), a, b, seed=1, name="w").double()
    assert float(x.max()) < b


def test_orthogonal_values_are_rounded_once():
    half = init.orthogonal_(torch.empty(700, 700, dtype=torch.float16), seed=1, name="w")
    whole = reference.orthogonal((700, 700), 1, "w", dtype=np.float64)
    assert (half.numpy() == whole.astype(np.float16)).all()
    brain = init.orthogonal_(torch.empty(700, 700, dtype=torch.bfloat16), seed=1, name="w")
    fraction, exponent = np.frexp(whole)
    assert (brain.double().numpy() == np.ldexp(np.round(fraction * 256), exponent - 8)).all()
    x = torch.zeros(700, 700, dtype=torch.float64)
    assert (init.orthogonal_(x, seed=1, name="w").numpy() == whole).all()


def test_a_negative_view_is_filled():
    x = torch._neg_view(torch.zeros(8))
    assert torch.equal(
        init.normal_(x, seed=1, name="w"), init.normal_(torch.empty(8), seed=1, name="w")
    )


def test_dtensors_of_sums_and_dropout_of_dtensors_are_refused():
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Partial, Shard, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from rng import Generator
    from rng.torch import DropoutState, dropout

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        summed = DTensor.from_local(torch.zeros(4, 4), mesh, [Partial()])
        for kind in (*FILLS, "ones_"):
            with pytest.raises(ValueError, match="has the sum of what processes hold"):
                getattr(init, kind)(summed, seed=1, name="w")
        rows = DTensor.from_local(torch.ones(4, 4), mesh, [Shard(0)])
        for x in (rows, rows.clone().requires_grad_()):
            with pytest.raises(TypeError, match="dropout of a DTensor"):
                dropout(x, 0.5, DropoutState(1), "a")
        with pytest.raises(TypeError, match="out is a DTensor"):
            fill.normal_(rows, Generator(1))
    finally:
        dist.destroy_process_group()
