import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rng import page, quality

ROOT = Path(__file__).parents[2]

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


def test_the_page_of_plots_shows_what_is_there(tmp_path):
    image = pytest.importorskip("PIL.Image")
    sources = {name: quality.CONTROLS[name](1, 20_000) for name in ("PCG64", "RANDU")}
    path = tmp_path / "page.png"
    page.write(str(path), sources, {"RANDU": "fails plane3"})
    with image.open(path) as drawn:
        assert drawn.size[0] > 1000
        assert len(drawn.getcolors()) > 20
    for name, lines in (("PCG64", False), ("RANDU", True)):
        planes = page.pictures(sources[name])[-1]
        assert ((planes == 255).all(axis=0).mean() > 0.7) == lines  # columns without any point
    middle = page.pictures(sources["PCG64"])[1]
    assert (middle[: middle.shape[0] // 4] == 255).all()  # no lag is beyond three deviations
    repeated = page.pictures(np.repeat(sources["PCG64"], 2))[1]
    assert not (repeated[: middle.shape[0] // 4] == 255).all()


def test_the_command_runs_some_sources(capsys, tmp_path):
    path = str(tmp_path / "page.png")
    options = ["--only", "philox", "--only", "RANDU", "--words", str(quality.LEAST), "--png", path]
    assert quality.main(options) == 0
    out = capsys.readouterr().out
    assert "FAIL" in next(line for line in out.splitlines() if line.startswith("RANDU"))
    assert "MT19937" not in out
    for bad in (["--words", "100"], ["--seed", "-1"], ["--only", "x"], ["--seed", "1.5"]):
        with pytest.raises(SystemExit):
            quality.main(bad)


def test_words_pour_out_until_the_reader_has_enough():
    code = (
        "import sys; from rng import quality; sys.exit(quality.main(['--stdout', 'lanes in turn']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        got = np.frombuffer(process.stdout.read(4000), "<u4")
        process.stdout.close()
        assert process.wait(60) == 0
    assert (got == quality.SOURCES["lanes in turn"](1, 1 << 22)[:1000]).all()


def test_too_few_words_raise():
    with pytest.raises(ValueError, match="at least"):
        quality.run(100, 1)
