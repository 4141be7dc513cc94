"""Against the framework's own facts (tests/kat/renaissance.json) and the numba reference."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rng import renaissance as reference  # noqa: E402
from rng.torch import renaissance as seed_system  # noqa: E402

KAT = Path(__file__).parents[2] / "kat" / "renaissance.json"


@pytest.fixture(scope="module")
def facts():
    return json.loads(KAT.read_text())["dropout"]


def seed_tensor(seed):
    return torch.tensor(np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32))


def test_rank_seeds_rotations_uniforms_and_masks_are_the_frameworks(facts):
    for e in facts["v"]:
        s = seed_system.dropout_seed(int(e["global"]), e["rank"])
        assert str(seed_system.seed_of(s)) == e["seed"]
        rotated = []
        for want in e["rotated"]:
            assert str(seed_system.seed_of(seed_system.rotate_(s))) == want
            rotated.append(s.clone())
        for m in e["masks"]:
            if "uniform_bits" in m:
                u = seed_system.dropout_uniform(rotated[m["step"]], len(m["uniform_bits"]))
                assert [f"{b:08x}" for b in u.numpy().view(np.uint32)] == m["uniform_bits"]
                continue
            keep = seed_system.dropout_mask(rotated[m["step"]], len(m["keep"]), m["p"])
            assert "".join(map(str, keep.tolist())) == m["keep"]


def test_a_seed_of_zero_becomes_the_golden_constant(facts):
    s = seed_tensor(0)
    for want in facts["note"].split("rotation of zero: ")[1].split(","):
        assert seed_system.seed_of(seed_system.rotate_(s)) == int(want)


@pytest.mark.parametrize("seed", [0, 1, 42, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, 0xFFFFFFFF])
@pytest.mark.parametrize("n", [0, 1, 5, 40001])
def test_uniforms_equal_the_reference_also_where_the_counter_wraps(seed, n):
    got = seed_system.dropout_uniform(seed_tensor(seed), n).numpy()
    assert got.tobytes() == reference.dropout_uniform(seed, n).tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_forward_and_backward_use_the_rotated_mask_in_nhwc_order(dtype):
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[0, 0, 0] = torch.inf
    x.requires_grad_()
    s = seed_system.dropout_seed(42, 1)
    y = seed_system.dropout(x, 0.4, s)
    rotated = reference.rotate_dropout_seed(reference.dropout_rank_seed(42, 1))
    assert seed_system.seed_of(s) == rotated
    keep = reference.dropout_mask(rotated, x.numel(), 0.4).reshape(2, 5, 4, 3)
    keep = torch.from_numpy(keep.transpose(0, 3, 1, 2).copy()).bool()
    scale = float(np.float32(1) / (np.float32(1) - np.float32(0.4)))
    want = torch.where(keep, x.detach().float() * scale, 0.0).to(dtype)
    assert torch.equal(y, want)  # dropped elements are 0 where x is inf
    dy = torch.arange(x.numel()).reshape(x.shape).to(dtype)
    y.backward(dy)
    assert torch.equal(x.grad, torch.where(keep, dy.float() * scale, 0.0).to(dtype))


def test_layers_share_a_seed_that_is_saved_with_them_and_rests_in_evaluation():
    s = seed_system.dropout_seed(7)
    model = torch.nn.Sequential(seed_system.Dropout(0.5, s), seed_system.Dropout(0.5, s))
    x = torch.ones(3, 4)
    model(x)
    start = reference.dropout_rank_seed(7, 0)
    twice = reference.rotate_dropout_seed(reference.rotate_dropout_seed(start))
    assert seed_system.seed_of(s) == twice
    saved = {k: v.clone() for k, v in model.state_dict().items()}
    after = model(x)
    model.load_state_dict(saved)
    assert torch.equal(model(x), after)
    kept = seed_system.seed_of(s)
    model.eval()
    assert torch.equal(model(x), x)
    assert seed_system.seed_of(s) == kept
    assert "p=0.5" in str(model)


def test_odd_arguments_are_refused():
    s = seed_system.dropout_seed(7)
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\)"):
        seed_system.dropout(torch.ones(3), 1.0, s)
    with pytest.raises(ValueError, match="int32"):
        seed_system.dropout(torch.ones(3), 0.5, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeError, match="floating"):
        seed_system.dropout(torch.ones(3, dtype=torch.int32), 0.5, s)
    with pytest.raises(ValueError, match="n must be"):
        seed_system.dropout_uniform(s, -1)


def test_arguments_of_another_kind_are_refused_by_name():
    seed = torch.zeros(2, dtype=torch.int32)
    for p in ("0.5", None, torch.tensor(0.5)):
        with pytest.raises(TypeError, match="p must be a float"):
            seed_system.Dropout(p, seed)
    with pytest.raises(TypeError, match="seed must be a torch tensor"):
        seed_system.dropout(torch.ones(2), 0.5, 7)
