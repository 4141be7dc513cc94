import math

import numpy as np
import pytest

from rng import quality

QUICK = {k: v for k, v in quality.TESTS.items() if not k.startswith("plane")}


def test_our_words_pass_and_randu_falls_in_the_planes():
    table = quality.run(1 << 16, 5, {k: quality.SOURCES[k] for k in ("philox", "threefry")})
    assert min(p for row in table.values() for p in row.values()) > 1e-4
    planes = {"plane3": quality.TESTS["plane3"]}
    controls = quality.run(1 << 15, 5, quality.CONTROLS, planes)
    assert controls["RANDU"]["plane3"] < quality.FAIL
    assert controls["MT19937"]["plane3"] > 1e-4
    assert controls["PCG64"]["plane3"] > 1e-4


@pytest.mark.parametrize("source", [s for s in quality.SOURCES if s not in ("philox", "threefry")])
def test_every_address_field_walked_alone_gives_random_words(source):
    row = quality.run(1 << 15, 7, {source: quality.SOURCES[source]}, QUICK)[source]
    assert min(row.values()) > 1e-5


def test_each_test_sees_the_fault_it_looks_for():
    words = quality.SOURCES["philox"](3, 1 << 16)
    i = np.arange(words.size, dtype=np.uint32)
    faults = {
        "KS": words // np.uint32(2),
        "bytes": words | np.uint32(1),
        "low": words & ~np.uint32(1),
        "serial": np.repeat(words[::2], 2),
        "birthd": (i * np.uint32(2654435769)).astype(np.uint32),
        "collis": (i * np.uint32(2654435769)).astype(np.uint32),
        "rank": np.where(i % 32 == 31, np.roll(words, 1), words),
        "weight": np.where(i % 2 == 1, ~np.roll(words, 1), words),
        "plane5": np.repeat(words[::5], 5),
    }
    for test, bad in faults.items():
        assert quality.TESTS[test](words) > 1e-4, test
        assert quality.TESTS[test](bad.astype(np.uint32)) < quality.FAIL, test


def test_the_tail_of_chi_square():
    assert quality.chi2_tail(0, 5) == 1.0
    for x in (0.1, 1.0, 5.0, 20.0, 60.0):
        assert quality.chi2_tail(x, 2) == pytest.approx(math.exp(-x / 2), rel=1e-10)
        tail = math.erfc(math.sqrt(x / 2))
        assert quality.chi2_tail(x, 1) == pytest.approx(tail, rel=1e-9)
    assert quality.chi2_tail(293.2478, 255) == pytest.approx(0.05, rel=1e-4)


def test_the_page_of_plots_is_a_png(tmp_path):
    image = pytest.importorskip("PIL.Image")
    words = quality.SOURCES["philox"](1, 1 << 12)
    path = tmp_path / "page.png"
    quality.write_png(str(path), [quality.plots(words, 64)] * 2)
    with image.open(path) as page:
        assert page.size == (3 * 64, 2 * 64)
        page.load()


def test_too_few_words_raise():
    with pytest.raises(ValueError, match="at least"):
        quality.run(100, 1)
