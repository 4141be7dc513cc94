import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rng import Generator, address, dropout, dropout_mask


def test_known_answers(kat):
    for v in kat("addresses")["keep_bits16"]:
        mask = dropout.mask_from_key(
            32 * (v["word"] + 1),
            dropout.threshold(v["p"]),
            address.mix64(v["seed"]),
            v["layer"],
            v["step"],
        )
        assert int(mask.view("<u4")[v["word"]]) == int(v["mask"], 16)


@given(
    st.integers(0, 900),
    st.floats(0, 1),
    st.sampled_from((8, 16, 32)),
    st.integers(0, 100),
    st.integers(0, (1 << 32) - 1),
)
@settings(max_examples=40)
def test_equals_the_reference(reference, n, p, bits, eighths, step):
    key = reference.named(reference.mix64(3), "fc")
    got = dropout_mask(n, p, 3, "fc", step, bits, first=8 * eighths)
    want = reference.keep_bits(key, 0, step, 8 * eighths + n, p, bits)[8 * eighths :]
    assert dropout.unpack(got, n).tolist() == want
    assert got.size == (n + 7) // 8
    assert n % 8 == 0 or got[-1] >> n % 8 == 0


def test_zero_and_one_are_exact():
    for bits in (8, 16, 32):
        assert dropout.unpack(dropout_mask(1000, 0.0, 1, "a", 0, bits), 1000).all()
        assert not dropout.unpack(dropout_mask(1000, 1.0, 1, "a", 0, bits), 1000).any()
    x = np.array([1.0, np.inf, np.nan, -0.0], np.float32)
    assert dropout.dropout(x, 0.0, 1, "a", 0).tobytes() == x.tobytes()
    assert dropout.dropout(x, 1.0, 1, "a", 0).tolist() == [0.0] * 4


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_kept_is_one_minus_p(p):
    n = 400_000
    for bits in (8, 16, 32):
        kept = dropout.unpack(dropout_mask(n, p, 5, "a", 1, bits), n).sum()
        q = dropout.threshold(p, bits) / (1 << bits)
        assert abs(kept - n * (1 - q)) < 4 * np.sqrt(n * q * (1 - q))


def test_steps_names_and_seeds_give_unrelated_masks():
    n = 100_000
    masks = [
        dropout.unpack(dropout_mask(n, 0.5, seed, name, step), n)
        for seed in (1, 2)
        for name in ("a", "b")
        for step in (0, 1)
    ]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs((a == b).mean() - 0.5) < 0.01


def test_threads_and_out_change_no_bit():
    n = 3_000_001
    want = dropout_mask(n, 0.3, 1, "a", 7, threads=1)
    out = np.zeros_like(want)
    assert dropout_mask(n, 0.3, 1, "a", 7, threads=3, out=out) is out
    assert (out == want).all()


@given(st.integers(0, 300), st.sampled_from(("float32", "float16")), st.integers(0, 99))
@settings(max_examples=40)
def test_apply_scales_what_is_kept_and_zeroes_the_rest_even_inf_and_nan(n, dtype, step):
    x = np.linspace(-3, 70000, n).astype(dtype) if dtype == "float32" else np.linspace(-3, 3, n)
    x = x.astype(dtype)
    x[::7] = np.inf
    x[3::7] = np.nan
    keep = dropout.unpack(dropout_mask(n, 0.25, 1, "a", step), n)
    scale = dropout.scale_of(0.25)
    got = dropout.dropout(x, 0.25, 1, "a", step)
    want = np.where(keep, x.astype(np.float32) * scale, np.float32(0)).astype(dtype)
    assert got.tobytes() == want.tobytes()
    assert scale == np.float32(4 / 3)
    strided = np.repeat(x.reshape(-1, 1), 2, axis=1)[:, 0]
    mask = dropout_mask(n, 0.25, 1, "a", step)
    assert dropout.apply(strided, mask, scale).tobytes() == want.tobytes()
    assert dropout.apply(x, mask, scale, out=x) is x
    assert x.tobytes() == want.tobytes()


def test_what_does_not_fit_raises():
    mask = np.zeros(2, np.uint8)
    for call, words in (
        (lambda: dropout_mask(8, 1.1, 1, "a", 0), "p must be"),
        (lambda: dropout_mask(8, float("nan"), 1, "a", 0), "p must be"),
        (lambda: dropout_mask(-1, 0.5, 1, "a", 0), "n must be"),
        (lambda: dropout_mask(8, 0.5, 1, "a", 0, first=4), "multiple of 8"),
        (lambda: dropout_mask(8, 0.5, 1, "a", 0, bits=24), "bits must be"),
        (lambda: dropout_mask(8, 0.5, 1, "a", 0, out=mask), "out must be"),
        (lambda: dropout.unpack(mask, 17), "fewer than 17"),
        (lambda: dropout.apply(np.zeros(17, np.float32), mask, 1.0), "17 bits"),
        (lambda: dropout.apply(np.zeros(8), mask, 1.0), "float32 or float16"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    frozen = np.zeros(1, np.uint8)
    frozen.flags.writeable = False
    for call in (
        lambda: dropout_mask(8, 0.5, 1, "a", 0, out=frozen),
        lambda: dropout_mask(8, 0.0, 1, "a", 0, threads=0),
        lambda: dropout.mask_from_key(8, (1 << 16) + 1, 0, 0, 0),
        lambda: dropout.mask_from_key(8, -1, 0, 0, 0),
        lambda: dropout.mask_from_key(8, 1, 1 << 64, 0, 0),
        lambda: dropout.unpack(mask, -1),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    for call in (
        lambda: dropout_mask(8.5, 0.5, 1, "a", 0),
        lambda: dropout_mask(True, 0.5, 1, "a", 0),
        lambda: dropout_mask(8, 0.5, 1, "a", 1.5),
        lambda: dropout_mask(8, 0.5, 1, "a", 0, bits=16.0),
        lambda: dropout_mask(8, 0.5, 1, "a", 0, first=8.0),
        lambda: dropout_mask(8, 0.5, 1, None, 0),
        lambda: dropout.apply(np.zeros(8, np.float32), [255], 1.0),
        lambda: dropout.apply(np.zeros(8, np.float32), mask, 1.0, out=[0.0] * 8),
    ):
        with pytest.raises(TypeError, match="must be"):
            call()
    with pytest.raises(OverflowError, match="phase"):
        dropout_mask(8, 0.5, 1, "a", 1 << 32)
    with pytest.raises(OverflowError, match="elements"):
        dropout_mask(16, 0.5, 1, "a", 0, first=(1 << 64) - 8)


def test_small_floats_of_numpy_do_not_round_the_threshold():
    for p in (np.float16(0.1), np.float32(0.1), np.float64(0.1)):
        for bits in (8, 16, 32):
            assert dropout.threshold(p, bits) == dropout.threshold(float(p), bits)


def test_chances_that_round_to_zero_or_one_keep_or_drop_all_and_scale_alike():
    for bits in (8, 16):
        assert (dropout.threshold(1e-6, bits), dropout.scale_of(1e-6, bits)) == (0, 1.0)
        assert (dropout.threshold(1 - 1e-6, bits), dropout.scale_of(1 - 1e-6, bits)) == (
            1 << bits,
            0,
        )
        assert dropout.scale_of(1 - 2.0**-bits, bits) == 1 << bits


@pytest.mark.parametrize("shift", [-8, -1, 1, 8, 100])
def test_out_may_overlap_x_or_the_mask(shift):
    n = 500
    memory = np.arange(n + 200, dtype=np.float32)
    mask = dropout_mask(n, 0.5, 1, "a", 0)
    want = dropout.apply(memory[100 : 100 + n].copy(), mask, 2.0)
    x, out = memory[100 : 100 + n], memory[100 + shift :][:n]
    assert (dropout.apply(x, mask, 2.0, out=out) == want).all()
    x = np.arange(100, 100 + n, dtype=np.float32)
    assert (dropout.apply(x, mask, 2.0, out=x[::-1]) == want).all()
    out = np.empty(n, np.float32)
    inside = out.view(np.uint8)[40 : 40 + mask.size]
    inside[:] = mask
    x = np.arange(100, 100 + n, dtype=np.float32)
    assert (dropout.apply(x, inside, 2.0, out=out) == want).all()


@pytest.mark.parametrize("p", ["0.5", None, True, 0.5j, [0.5]], ids=repr)
def test_p_that_is_no_number_is_refused(p):
    for call in (
        lambda: dropout_mask(8, p, 1, "a", 0),
        lambda: Generator(1).bernoulli(8, p),
    ):
        with pytest.raises(TypeError, match="p must be a float"):
            call()
