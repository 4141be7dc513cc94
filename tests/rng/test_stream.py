import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rng
from rng import fill, stream, tables

KEY, SITE = 0xBDD732262FEB6E95, 8 << 24
HERE = rng.Stream(KEY, SITE, 5, 1000)
WEIGHTS = [1.0, 0.0, 2.5, 4.0, 0.0]

# name -> dtype, arguments, words of a value
CASES = {
    "uint32": ("uint32", (), 1),
    "uint64": ("uint64", (), 2),
    "uniform": ("float32", (), 1),
    "uniform range": ("float32", (-1.5, 2.5), 1),
    "uniform double": ("float64", (), 2),
    "uniform double range": ("float64", (-1.5, 2.5), 2),
    "uniform half": ("float16", (0.0, 3.0), 1),
    "normal": ("float32", (), 1),
    "normal moved": ("float32", (3.0, 0.5), 1),
    "normal half": ("float16", (), 1),
    "truncated_normal": ("float32", (0.0, 1.0, -0.5, 1.0), 1),
    "lognormal": ("float32", (0.1, 0.7), 1),
    "exponential": ("float32", (2.0,), 1),
    "gumbel": ("float32", (), 1),
    "bernoulli": ("bool", (0.3,), 1),
    "bernoulli bytes": ("uint8", (0.3,), 1),
    "integers": ("int64", (-7, 20), 1),
    "integers wide": ("uint64", (5, 2**64 - 1), 2),
    "integers bytes": ("uint8", (3, 256), 1),
    "categorical": ("int64", (WEIGHTS,), 2),
}


def draw(case, n, first=0, where=HERE, **options):
    dtype, args, _ = CASES[case]
    out = options.pop("out", None)
    out = np.empty(n, dtype) if out is None else out
    return getattr(where, case.split()[0])(out, *args, first=first, **options)


@given(st.sampled_from(sorted(CASES)), st.integers(0, 1300), st.integers(0, 700))
@settings(max_examples=120)
def test_any_piece_is_the_piece_of_the_whole(case, n, first):
    assert draw(case, n, first).tobytes() == draw(case, 2000)[first : first + n].tobytes()


@pytest.mark.parametrize("case", CASES)
def test_threads_strides_and_order_change_nothing(case):
    n = 3 * (1 << 19) + 77 if case in ("normal", "uint64", "integers") else 5000
    want = draw(case, n, threads=1)
    assert draw(case, n, threads=3).tobytes() == want.tobytes()
    small = want[:60].reshape(3, 4, 5)
    for out in (
        np.empty((3, 4, 5), want.dtype, order="F"),
        np.empty((3, 4, 10), want.dtype)[..., ::2],
        np.empty((5, 4, 3), want.dtype).T,
        np.empty((3, 4, 5), want.dtype)[::-1],
    ):
        assert (draw(case, 0, out=out) == small).all()


def test_words_equal_the_reference(reference):
    want = [reference.stream_word(KEY, SITE, 5, 1000, i) for i in range(40)]
    assert draw("uint32", 40).tolist() == want
    assert draw("uniform", 40).tolist() == [(w >> 8) * 2.0**-24 for w in want]
    pairs = [want[i] | want[i + 1] << 32 for i in range(0, 40, 2)]
    assert draw("uint64", 20).tolist() == pairs
    assert draw("uniform double", 20).tolist() == [(x >> 11) * 2.0**-53 for x in pairs]
    threshold = round(0.3 * 2**32)
    assert draw("bernoulli", 40).tolist() == [w < threshold for w in want]


@given(
    st.one_of(
        st.integers(1, 1 << 16),
        st.integers(1 << 31, (1 << 32) + 2),
        st.integers((1 << 63) - 1, 1 << 64),
    ),
    st.integers(0, 9),
)
@settings(max_examples=60)
def test_integers_equal_the_reference_however_many_are_rejected(reference, n, first):
    here = rng.Stream(KEY, SITE, 0, 7)
    got = here.integers(np.empty(12, np.uint64), 0, n, first=first)
    assert got.tolist() == [reference.below(KEY, SITE, 7, first + i, n) for i in range(12)]


def _values(words, table):
    """The float32 values of any words: the kernel itself, at words of our choice."""
    made = np.resize(np.asarray(words, np.uint32), -(-len(words) // 8) * 8)
    zero, real = np.uint64(0), np.array([0.0, 1.0, 0.0])
    size = np.uint64(made.size)
    fill._transform(
        made,
        zero,
        size,
        fill.INVERSE,
        real,
        zero,
        zero,
        table.rows,
        table.upper,
        table.scales,
    )
    return made.view(np.float32)[: len(words)]


CORNERS = [0, 1, 2, 3, 7, 8, 1 << 30, (1 << 30) - 1, (1 << 31) - 1, 1 << 31, (1 << 31) + 1]
CORNERS += [w ^ 0xFFFFFFFF for w in CORNERS] + [1 << k for k in range(32)]


def test_normals_equal_the_known_answers_and_the_reference(kat, reference):
    vectors = kat("addresses")["icdf"]
    got = _values([int(v["word"], 16) for v in vectors], tables.NORMAL).view(np.uint32)
    assert [f"0x{b:08x}" for b in got] == [v["float32_bits"] for v in vectors]
    table = kat("normal")["table"]
    assert tables.NORMAL.rows.tolist() == table
    words = CORNERS + draw("uint32", 2000).tolist()
    for word, value in zip(words, _values(words, tables.NORMAL), strict=True):
        z, exponent = reference.normal(word, table)
        want = np.float32(z) * np.float32(2.0**exponent)
        assert (value, np.signbit(value)) == (want if word >> 31 else -want, not word >> 31)


def _u(words):
    """(u, 1 - u) in float64, both exact, for u = the word's place in (0, 1)."""
    half = [((2 * w + 1) % (1 << 32)) / 2.0**33 for w in words]
    low = np.array([h if w < 1 << 31 else 1 - h for w, h in zip(words, half, strict=True)])
    high = np.array([1 - h if w < 1 << 31 else h for w, h in zip(words, half, strict=True)])
    return low, high


@pytest.mark.parametrize("name", ["exponential", "gumbel"])
def test_the_tables_are_within_1_1_ulp_of_the_function(name):
    words = CORNERS + draw("uint32", 20_000).tolist()
    low, high = _u(words)
    exponential = np.where(low < 0.5, -np.log(low), -np.log1p(-high))
    want = exponential if name == "exponential" else -np.log(exponential)
    got = _values(words, getattr(tables, name.upper())).astype(np.float64)
    ulp = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    allowed = np.where(np.abs(want) >= 1 / 16, 1.1 * ulp, 6e-9)
    assert (np.abs(got - want) <= allowed).all()


def test_lognormal_is_the_exponential_of_the_normal():
    z = draw("normal", 5000).astype(np.float64)
    want = np.exp(0.1 + 0.7 * z)
    assert (np.abs(draw("lognormal", 5000) / want - 1) < 6.1e-8).all()
    assert HERE.lognormal(np.empty(9, np.float32), 800.0, 0.0).tolist() == [math.inf] * 9
    assert HERE.lognormal(np.empty(9, np.float32), -800.0, 0.0).tolist() == [0.0] * 9


def _fits(values, cdf):
    """Kolmogorov-Smirnov at the level 0.001, seeds fixed."""
    x = np.sort(np.asarray(values, np.float64))
    f = np.array([cdf(v) for v in x])
    i = np.arange(1, x.size + 1)
    distance = max((i / x.size - f).max(), (f - (i - 1) / x.size).max())
    return distance * math.sqrt(x.size) < 1.95


def _phi(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


@pytest.mark.parametrize(
    ("case", "cdf"),
    [
        ("uniform", lambda x: x),
        ("uniform double range", lambda x: (x + 1.5) / 4),
        ("normal", _phi),
        ("normal moved", lambda x: _phi((x - 3) / 0.5)),
        ("truncated_normal", lambda x: (_phi(x) - _phi(-0.5)) / (_phi(1) - _phi(-0.5))),
        ("lognormal", lambda x: _phi((math.log(x) - 0.1) / 0.7)),
        ("exponential", lambda x: 1 - math.exp(-x / 2)),
        ("gumbel", lambda x: math.exp(-math.exp(-x))),
    ],
)
def test_the_distribution_is_the_one_named(case, cdf):
    assert _fits(draw(case, 20_000), cdf)


def test_integers_and_categories_come_as_often_as_they_should():
    n = 200_000
    count = np.bincount(draw("integers", n) + 7, minlength=27)
    assert ((count - n / 27) ** 2 / (n / 27)).sum() < 54.1  # 26 degrees, p = 0.001
    count = np.bincount(draw("categorical", n), minlength=5)
    want = n * np.array(WEIGHTS) / 7.5
    assert count[1] == count[4] == 0
    assert ((count - want)[[0, 2, 3]] ** 2 / want[[0, 2, 3]]).sum() < 13.8
    assert abs(draw("bernoulli", n).mean() - 0.3) < 0.004


def test_the_open_end_never_comes():
    high = np.nextafter(np.float32(1), np.float32(2))
    assert (HERE.uniform(np.empty(1000, np.float32), 1.0, float(high)) == 1.0).all()
    x = HERE.uniform(np.empty(100_000, np.float32), 1.0, 2.0)
    assert x.max() < 2.0
    assert x.min() >= 1.0
    for dtype, low, high in (("float16", 0.0, 1.0), ("float16", 1.0, 2.0), ("float32", 16.0, 17.0)):
        x = HERE.uniform(np.empty(200_000, dtype), low, high)
        assert low <= x.min()
        assert x.max() < high
    tiny = np.nextafter(1.0, 2.0)
    assert (HERE.uniform(np.empty(1000), 1.0, tiny) == 1.0).all()


def test_chances_zero_and_one_are_exact():
    for dtype in (np.bool_, np.uint8, np.float32):
        assert not HERE.bernoulli(np.empty(1000, dtype), 0.0).any()
        assert (HERE.bernoulli(np.empty(1000, dtype), 1.0) == 1).all()


@pytest.mark.parametrize(
    ("mean", "std", "low", "high"),
    [
        (0, 1, -2, 2),
        (1, 0.5, 1, 1.2),
        (0, 1, 4, 5),
        (0, 0.02, -0.04, 0.04),
        (3, 0, 2, 4),
        (0, 1, 5.5, math.inf),
    ],
)
def test_truncated_normals_stay_inside(mean, std, low, high):
    x = HERE.truncated_normal(np.empty(20_000, np.float32), mean, std, low, high)
    assert low <= float(x.min())
    assert float(x.max()) <= high
    first, last = stream.normal_ranks(None, float(mean), float(std), float(low), float(high))
    assert first == 0 or float(stream._normal_at(first - 1, mean, std)) < low
    assert last == 2**32 - 1 or float(stream._normal_at(last + 1, mean, std)) > high


def test_parameters_out_of_range_raise():
    f, i = np.empty(3, np.float32), np.empty(3, np.int8)
    frozen = np.empty(3, np.float32)
    frozen.flags.writeable = False
    for call in (
        lambda: HERE.uniform(f, 1.0, 1.0),
        lambda: HERE.uniform(f, 2.0, 1.0),
        lambda: HERE.uniform(f, -3e38, 3e38),
        lambda: HERE.uniform(f, 0.0, math.nan),
        lambda: HERE.uniform(frozen),
        lambda: HERE.uniform(f, threads=0),
        lambda: HERE.normal(f, 0.0, -1.0),
        lambda: HERE.normal(f, math.inf),
        lambda: HERE.gumbel(f, 0.0, math.nan),
        lambda: HERE.truncated_normal(f, 0.0, 1.0, 7.0, 8.0),
        lambda: HERE.truncated_normal(f, 0.0, 1.0, 2.0, 1.0),
        lambda: HERE.bernoulli(f, 1.5),
        lambda: HERE.integers(i, 5, 5),
        lambda: HERE.integers(i, 0, 129),
        lambda: HERE.integers(f, 0, 5),
        lambda: rng.Stream(KEY, SITE | 1 << 16).integers(i, 0, 5),
        lambda: rng.Stream(KEY, 7 << 24).integers(i, 0, 5),
        lambda: HERE.uniform(np.empty(3, np.float16), 0.0, 1e6),
        lambda: HERE.uniform(i, 0, 5),
        lambda: HERE.normal(np.empty(3, np.complex64)),
        lambda: HERE.bernoulli(np.empty(3, "U4")),
        lambda: HERE.bernoulli(frozen, 1.0),
        lambda: HERE.bernoulli(f, 1.0, threads=0),
        lambda: HERE.categorical(i, np.ones(300)),
        lambda: HERE.categorical(f, [1.0]),
        lambda: HERE.uniform(np.lib.stride_tricks.as_strided(f, (3,), (0,))),
        lambda: HERE.categorical(i, []),
        lambda: HERE.categorical(i, [0.0, 0.0]),
        lambda: HERE.categorical(i, [1.0, -1.0]),
        lambda: HERE.categorical(i, [1.0, math.inf]),
    ):
        with pytest.raises(ValueError, match=r"must|needs|lies"):
            call()
    end = rng.Stream(KEY, SITE, 0, np.uint64(2**64 - 1))
    end.uint32(np.empty(4, np.uint32))
    with pytest.raises(OverflowError, match="2\\*\\*64"):
        end.uint32(np.empty(5, np.uint32))


@pytest.mark.parametrize(
    "fields",
    [(-1, 0), (1 << 64, 0), (0, 1 << 32), (0, 0, 1 << 32), (0, 0, 0, 1 << 64), (0, 0, -1, 0)],
)
def test_no_field_of_a_stream_wraps(fields):
    with pytest.raises(OverflowError, match="must be in"):
        rng.Stream(*fields)
    with pytest.raises(TypeError, match="must be an int"):
        rng.Stream(0, 0, 0, 1.5)


def test_numbers_of_numpy_are_numbers():
    same = rng.Stream(np.uint64(KEY), np.int64(SITE), np.uint8(5), np.int16(1000))
    assert same == HERE
    first = np.uint8(250)
    got = same.uint32(np.empty(300, np.uint32), first=first)
    assert (got == HERE.uint32(np.empty(300, np.uint32), first=250)).all()
    for bad in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="must be an int"):
            HERE.uint32(np.empty(3, np.uint32), first=bad)
        with pytest.raises(TypeError, match="must be an int"):
            HERE.integers(np.empty(3, np.int64), 0, bad)
    with pytest.raises(TypeError, match="numpy array"):
        HERE.uniform([0.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("low", "high"),
    [
        *[(0.0, 1.0), (0.0, 0.3), (-0.3, 0.0), (-2.0, -1.0), (100.0, 100.7), (-1e-7, 1e-7)],
        *[(0.0, 1e-45), (-3.3e38, -1e38), (-8e307, 8e307), (1.0, np.nextafter(1.0, 2.0))],
    ],
)
def test_no_type_rounds_up_to_the_open_end(dtype, low, high):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    made = np.empty(20_000, dtype)
    with np.errstate(all="ignore"):
        a, b = (float(np.array(x).astype(np.float32).astype(dtype)) for x in (low, high))
    if dtype == "float64":
        a, b = low, high
    try:
        HERE.uniform(made, low, high)
    except ValueError:
        assert not (a < b and math.isfinite(b - a))  # nothing of this type is in the range
        return
    assert a <= float(made.min())
    assert float(made.max()) < high


def test_a_half_stays_inside_the_range_it_was_truncated_to():
    x = HERE.truncated_normal(np.empty(50_000, np.float16), 0.0, 1.0, -0.3, 0.3)
    assert float(x.min()) >= -0.3
    assert float(x.max()) <= 0.3
    same = HERE.truncated_normal(np.empty(5000, np.float32)).astype(np.float16)
    assert (HERE.truncated_normal(np.empty(5000, np.float16)) == same).all()


def test_a_half_that_overflows_is_inf_without_a_warning():
    assert np.isinf(HERE.normal(np.empty(99, np.float16), 0.0, 1e6)).any()
    assert np.isinf(HERE.lognormal(np.empty(99, np.float16), 20.0)).all()


def test_what_numpy_does_about_rounding_changes_nothing():
    def all_of_them():
        g = rng.Generator(3)
        return [
            g.uniform(99, -1e-42, 1e-42),
            g.uniform(99, 0.0, 1e-7, dtype="float16"),
            g.uniform(99, 0.0, 1e-320, dtype="float64"),
            g.normal(99, 0.0, 1e-40),
            g.normal(99, 3e38, 3e38),
            g.truncated_normal(99, 0.0, 1e-40, -1e-40, 1e-40),
            g.lognormal(99, -90.0, 3.0, dtype="float16"),
            g.categorical(99, [1e-320, 1.0, 1e300]),
            g.bernoulli(99, 1e-320),
            rng.init.orthogonal((5, 5), 1, "w", 1e-45),
            rng.init.xavier_uniform((9, 9), 1, "w", dtype="float16"),
            rng.renaissance.normal_pairs(1, 0, 999),
            rng.renaissance.fill_uniform(g, 99, 0.0, 1e-44),
            rng.dropout.apply(np.full(9, 1e-40, np.float32), np.full(2, 255, np.uint8), 1e-3),
        ]

    stream.uniform_parts.cache_clear()
    stream.normal_ranks.cache_clear()
    with np.errstate(all="raise"):
        strict = all_of_them()
    assert [x.tobytes() for x in strict] == [x.tobytes() for x in all_of_them()]


def test_memory_that_is_not_aligned_or_swapped_gets_the_same_numbers():
    want = HERE.normal(np.empty(100, np.float32))
    for out in (np.empty(401, np.uint8)[1:].view(np.float32), np.empty(100, ">f4")):
        assert (HERE.normal(out) == want).all()


@pytest.mark.parametrize("case", ["uniform", "uniform double", "normal", "uint64"])
def test_where_an_array_begins_changes_nothing(case):
    want = draw(case, 3000)
    memory = np.empty(100 + want.nbytes, np.uint8)
    for shift in (*range(0, 68, 4), 1, 2, 17):
        out = memory[shift : shift + want.nbytes].view(want.dtype)
        assert draw(case, 0, out=out).tobytes() == want.tobytes()
        assert draw(case, 0, first=3, out=out[3:]).tobytes() == draw(case, 2997, 3).tobytes()


# ---------------------------------------------------------------- the generator's methods
def test_a_call_that_raises_has_reserved_nothing():
    g, f, frozen = rng.Generator(1), np.empty(3, np.float32), np.empty(3, np.float32)
    frozen.flags.writeable = False
    for call in (
        lambda: g.uniform(3, 2.0, 1.0),
        lambda: g.uniform(3, dtype="int32"),
        lambda: g.normal(3, std=-1.0),
        lambda: g.normal(out=frozen),
        lambda: g.normal(3, out=np.empty(4, np.float32)),
        lambda: g.truncated_normal(3, 0.0, 1.0, 9.0, 10.0),
        lambda: g.bernoulli(3, 2.0),
        lambda: g.exponential(3, threads=0),
        lambda: g.integers(3, 5, 5),
        lambda: g.integers(3, 0.0, 5),
        lambda: g.categorical(3, [-1.0]),
        lambda: g.choice([]),
        lambda: g.choice(2.5),
        lambda: g.permutation(-1),
        lambda: g.permutation(2.0),
        lambda: g.sample(3, 4),
        lambda: g.uniform(out=f.tolist()),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
        assert g.offset == 0


def test_the_generator_draws_at_its_offset():
    g = rng.Generator(42)
    here = rng.Stream(g.key, rng.address.site(rng.address.GENERATOR))
    assert (g.uniform(5) == here.uniform(np.empty(5, np.float32))).all()
    assert g.offset == 2
    later = rng.Stream(g.key, here.c3, 0, 2)
    assert (g.normal((2, 3), 1.0) == later.normal(np.empty((2, 3), np.float32), 1.0)).all()
    assert g.offset == 4
    for call, blocks in (
        (lambda: g.uint32(4), 1),
        (lambda: g.uint64(4), 2),
        (lambda: g.uniform(4, dtype="float64"), 2),
        (lambda: g.truncated_normal(9), 3),
        (lambda: g.lognormal(()), 1),
        (lambda: g.exponential(8), 2),
        (lambda: g.gumbel(8), 2),
        (lambda: g.bernoulli(8, 0.1), 2),
        (lambda: g.integers(8, 0, 10), 2),
        (lambda: g.integers(8, 0, 10**12), 4),
        (lambda: g.random_int(1, 6), 1),
        (lambda: g.categorical(3, WEIGHTS), 2),
        (lambda: g.choice(10), 1),
        (lambda: g.permutation(100), 1),
        (lambda: g.sample(100, 7), 1),
        (lambda: g.normal(0), 0),
    ):
        before = g.offset
        call()
        assert g.offset - before == blocks
    out = np.empty((2, 2), np.float64)
    assert g.uniform(out=out) is out
    with pytest.raises(ValueError, match="shape"):
        g.uniform(3, out=out)


def test_choices_and_samples():
    g = rng.Generator(1)
    assert set(g.choice(list("abc"), 100).tolist()) == set("abc")
    assert set(g.choice(np.eye(3), 50, weights=[1, 0, 1]).argmax(1).tolist()) == {0, 2}
    assert g.choice(5) in range(5)
    assert 1 <= g.random_int(1, 6) <= 6
    assert g.random_int(-(2**63), 2**63 - 1) is not None
    with pytest.raises(ValueError, match="weights"):
        g.choice(3, 2, weights=[1.0])
    for n, k in ((0, 0), (1, 1), (1000, 1000), (10**15, 1000), (50, 3)):
        some = g.sample(n, k)
        assert len(set(some.tolist())) == k
        assert all(0 <= x < n for x in some.tolist())
    assert g.random_int(np.int8(127), np.int8(127)) == 127
    with pytest.raises(ValueError, match="k must be"):
        g.sample(3, 4)


def test_a_sample_is_the_end_of_the_permutation():
    whole = rng.permutation_from_key(500, 9, 3)
    for k in (0, 1, 2, 100, 500):
        assert (rng.permute.sample_from_key(500, k, 9, 3) == whole[::-1][:k]).all()
