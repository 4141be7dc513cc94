"""Cases from the field: numbers on devices, dropout, graphs (H066 to H072), as far as a CPU goes.

The kernels for GPUs have the same bits in Triton's interpreter (tests/rng/gpu) and, where there is a
device, in benchmarks/gpu_check.py.
"""

import itertools

import numpy as np
import pytest

import rng
from rng import address, dropout
from rng.stream import Stream
from tests import reference

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from rng.torch import DropoutState, masks  # noqa: E402
from rng.torch import dropout as torch_dropout  # noqa: E402
from rng.torch import dropout_mask as torch_mask  # noqa: E402
from rng.torch import fill as torch_fill  # noqa: E402

KEY = address.mix64(7)
C3 = address.site(address.USER, 3, 9)


def stream(start=0):
    return Stream(KEY, C3, 12, start)


@pytest.fixture
def operations(monkeypatch):
    """torch's own integer operations, as on a device that has nothing else."""
    monkeypatch.setattr(masks, "is_plain", lambda x: False)
    monkeypatch.setattr(torch_fill, "is_plain", lambda x: False)


# ---------------------------------------------------------------- one algorithm, one mapping
@pytest.mark.parametrize("n", [1, 5, 1023, (1 << 20) + 3])
def test_h066_element_i_has_its_counter_however_the_work_is_cut(n):
    whole = stream().normal(np.empty(n, np.float32), threads=1)
    for threads in (2, 7):
        again = stream().normal(np.empty(n, np.float32), threads=threads)
        assert again.tobytes() == whole.tobytes()
    for parts in (2, 7, 108, 132):
        cuts = [n * k // parts for k in range(parts + 1)]
        pieces = [
            stream().normal(np.empty(b - a, np.float32), first=a)
            for a, b in itertools.pairwise(cuts)
        ]
        assert np.concatenate(pieces).tobytes() == whole.tobytes(), parts


def _places(count):
    """[(seed, first, n)], carries of the counter among them."""
    random = np.random.default_rng(1)
    for k in range(count):
        first = int(random.integers(0, 1 << 20)) + (k % 3 == 0) * ((1 << 34) - (1 << 19))
        yield int(random.integers(0, 1 << 63)), first, int(random.integers(1, 60))


def test_h067_plain_integers_kernels_and_torchs_operations_agree(operations):
    for seed, first, n in _places(200):
        here = Stream(address.mix64(seed), C3, 12, 0)
        words = here.uint32(np.empty(n, np.uint32), first)
        plain = [reference.stream_word(here.key, C3, 12, 0, first + i) for i in range(n)]
        assert words.tolist() == plain
        theirs = torch_fill.words_(torch.empty(n, dtype=torch.int64), here, first)
        assert theirs.tolist() == plain
        uniforms = here.uniform(np.empty(n, np.float32), first=first)
        assert uniforms.tolist() == [(word >> 8) * 2.0**-24 for word in plain]
        theirs = torch_fill.uniform_(torch.empty(n), here, first=first)
        assert theirs.numpy().tobytes() == uniforms.tobytes()
    for seed, first, n in _places(40):
        phase = first % (1 << 32)
        order = rng.permutation(n, seed=seed, phase=phase)
        assert order.tolist() == reference.permutation(address.mix64(seed), n, phase=phase)


def test_h067_masks_of_torch_and_numpy_agree(operations):
    for seed, first, n in _places(60):
        step = first % (1 << 31)
        state = DropoutState(seed=seed, step=step)
        kept = rng.dropout_mask(n, 0.3, seed, "fc1", step)
        assert torch_mask((1, n), 0.3, state, "fc1").numpy().tobytes() == kept.tobytes()
        ones = torch_dropout(torch.ones(1, n), 0.3, state, "fc1").numpy() != 0
        assert ones.ravel().tolist() == dropout.unpack(kept, n).tolist()


# ---------------------------------------------------------------- ends of intervals
ENDS = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFFFF]


def _values_of_words(words, name):
    """What torch's operations make of words; they have the kernels' bits (H067)."""
    what = getattr(torch_fill.draws, name)(torch.float32, 0.0, 1.0)
    given = torch.tensor(words, dtype=torch.int64)
    return torch_fill.draws.numbers(what, given).numpy()


def test_h068_a_uniform_number_is_below_one_for_every_word():
    from rng.draw import unit

    ours = np.array([unit(word) for word in ENDS])
    theirs = _values_of_words(ENDS, "uniform")
    assert theirs.dtype == np.float32
    assert ours.tolist() == theirs.tolist() == [(word >> 8) * 2.0**-24 for word in ENDS]
    assert (ours >= 0).all()
    assert (ours < 1).all()
    assert (np.diff(ours) >= 0).all()
    assert ours.astype(np.float32).max() == np.float32(1 - 2.0**-24)


def test_h069_a_normal_number_is_finite_for_every_word():
    values = _values_of_words(ENDS, "normal")
    assert np.isfinite(values).all()
    assert abs(values).max() < 6.7
    assert np.signbit(values).tolist() == [True] * 3 + [False] * 4
    drawn = np.empty(1 << 22, np.float32)
    for part in range(3):
        stream().normal(drawn, first=part << 22)
        assert np.isfinite(drawn).all()
        assert abs(drawn).max() < 6.7


def test_h070_the_ends_of_dropout_are_exact():
    n = 1_000_000
    ones = np.ones(n, np.float32)
    for bits, p in itertools.product((16, 32), (0.0, 2.0**-32, 0.1, 0.5, 1 - 2.0**-24, 1.0)):
        out = dropout.dropout(ones, p, 7, "fc1", 3, bits)
        scale = dropout.scale_of(p, bits)
        dropped = dropout.threshold(p, bits) / (1 << bits)  # p as it is quantised
        assert np.isfinite(out).all(), (bits, p)
        assert set(np.unique(out).tolist()) <= {0.0, float(scale)}
        kept, spread = np.count_nonzero(out), np.sqrt(n * dropped * (1 - dropped))
        assert abs(kept - n * (1 - dropped)) <= 4 * spread, (bits, p)
        if dropped < 1:
            assert scale == np.float32(1 / (1 - dropped))
    assert (dropout.dropout(ones, 0.0, 7, "fc1", 3) == 1).all()
    assert not dropout.dropout(np.full(n, np.inf, np.float32), 1.0, 7, "fc1", 3).any()
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="p must be in"):
            dropout.dropout(ones, p, 7, "fc1", 3)
        with pytest.raises(ValueError, match="p"):
            torch_dropout(torch.ones(2, 2), p, DropoutState(seed=7), "fc1")


# ---------------------------------------------------------------- masks of steps
def _mask(state, name="fc1"):
    return torch_mask((8, 64), 0.5, state, name).numpy().tobytes()


def test_h071_a_mask_is_a_function_of_its_step_and_not_of_what_was_called():
    state = DropoutState(seed=7)
    found = []
    for _ in range(100):
        found.append(_mask(state))
        state.advance()
    assert len(set(found)) == 100
    assert _mask(DropoutState(seed=7, step=50)) == found[50]
    for _ in range(1000):
        _mask(state)
    state.seek(50)
    assert _mask(state) == found[50]
    resumed = DropoutState(seed=0)
    saved = DropoutState(seed=7, step=50).state_dict()
    resumed.load_state_dict(saved)
    assert _mask(resumed) == found[50]
    assert _mask(state, "fc2") != found[50]
    other_rank = DropoutState(seed=7, step=50, first_row=8)
    assert _mask(other_rank) != found[50]


def _recorded(seed, p, name):
    """A step recorded once as a graph of operations on (x, cell), as a capture records it."""
    key = DropoutState(seed=seed).key(name)

    def step(x, cell):
        out = masks.apply(x, masks.threshold(p), cell, key)
        cell[:1].add_(1)
        return out

    cell = torch.tensor([0, 0])
    graph = make_fx(step)(torch.ones(8, 64), cell)
    assert any("dropout" in str(node.target) for node in graph.graph.nodes)
    return graph


def test_h072_a_recorded_step_reads_its_number_from_memory(operations):
    x = torch.linspace(-1, 1, 8 * 64).reshape(8, 64)
    one, two = _recorded(7, 0.5, "fc1"), _recorded(8, 0.3, "fc2")
    cell_one, cell_two = torch.tensor([0, 0]), torch.tensor([40, 3])
    seen = set()
    for k in range(5):  # two graphs, one after the other
        first, second = one(x, cell_one), two(x, cell_two)
        want = torch_dropout(x, 0.5, DropoutState(seed=7, step=k), "fc1")
        assert torch.equal(first, want)
        want = torch_dropout(x, 0.3, DropoutState(seed=8, step=40 + k, first_row=3), "fc2")
        assert torch.equal(second, want)
        seen.add(first.numpy().tobytes())
    assert len(seen) == 5
    assert (cell_one.tolist(), cell_two.tolist()) == ([5, 0], [45, 3])
