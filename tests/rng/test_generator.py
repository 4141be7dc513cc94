import copy
import json
import logging
import math
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import rng

ROOT = Path(__file__).parents[2]


def test_the_state_is_seed_and_offset():
    g = rng.Generator(7)
    assert (g.seed, g.offset, g.get_state()) == (7, 0, (7, 0))
    assert [g.next_offset(3), g.next_offset(0), g.next_offset(2)] == [0, 3, 3]
    state = json.loads(json.dumps(g.get_state()))
    other = rng.Generator(0)
    other.set_state(*state)
    assert other == g
    assert other.next_offset(1) == 5
    assert other != g


def test_it_survives_json_and_pickle():
    g = rng.Generator(2**64 - 1, 2**63)
    for other in (rng.Generator.from_json(g.to_json()), pickle.loads(pickle.dumps(g))):
        assert other == g
        assert other.next_offset(1) == 2**63
    with pytest.raises(ValueError, match="seed and offset"):
        rng.Generator.from_json('{"seed": 1}')


def test_counts_are_ints_and_do_not_wrap():
    g = rng.Generator(1, 100)
    assert [g.next_offset(np.uint8(200)), g.next_offset(np.int64(1))] == [100, 300]
    assert json.loads(g.to_json()) == {"seed": 1, "offset": 301}
    for bad in (1.5, 1.0, True, math.nan, None, "1"):
        with pytest.raises(TypeError, match="count must be an int"):
            g.next_offset(bad)
    assert g.offset == 301
    with pytest.raises(TypeError, match="offset must be an int"):
        rng.Generator.from_json('{"seed": 1, "offset": 1.0}')


def test_copies_draw_alone():
    g = rng.Generator(5)
    g.normal(3)
    other = copy.deepcopy(g)
    assert (other.normal(3) == g.normal(3)).all()
    assert other == g
    other.set_state(6, 0)
    assert (other.normal(3) == rng.Generator(6).normal(3)).all()
    assert g.seed == 5


def test_eight_threads_reserve_disjoint_ranges_without_gaps():
    g = rng.Generator(1)
    taken = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def reserve(mine, count):
        start.wait()
        for _ in range(100_000):
            mine.append(g.next_offset(count))

    threads = [threading.Thread(target=reserve, args=(mine, i + 1)) for i, mine in enumerate(taken)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    ranges = sorted((first, i + 1) for i, mine in enumerate(taken) for first in mine)
    end = 0
    for first, count in ranges:
        assert first == end
        end = first + count
    assert g.offset == end == 100_000 * 36


def test_threads_that_draw_share_out_what_one_thread_would_draw():
    alone = rng.Generator(3)
    want = {alone.uint32(3).tobytes() for _ in range(2000)}
    g, got = rng.Generator(3), []
    threads = [
        threading.Thread(target=lambda: got.extend(g.uint32(3).tobytes() for _ in range(500)))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 2000
    assert set(got) == want


def test_importing_rng_loads_and_compiles_little():
    code = (
        "import sys, numba, rng; "
        "assert not {'torch', 'rng.stream', 'rng.tables', 'rng.quality'} & set(sys.modules); "
        "assert not rng.permute._fisher_yates.signatures; "
        "rng.dropout_mask, rng.init, rng.renaissance, rng.Stream, rng.BitGenerator; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_all_names_are_listed():
    assert set(rng.__all__) | {"dropout", "renaissance", "quality"} <= set(dir(rng))
    for name in rng.__all__:
        assert getattr(rng, name) is not None


def test_unknown_names_raise():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rng.nothing  # noqa: B018


def test_a_jump_is_a_reservation():
    assert rng.Generator(1).jump(10**15).next_offset(1) == 10**15


def test_the_default_generator_tells_whether_it_was_seeded(monkeypatch, caplog):
    monkeypatch.setattr(rng.generator, "_default", None)
    monkeypatch.setattr(rng.generator, "_default_seed", None)
    assert rng.default_seed() is None
    assert rng.default_generator() is rng.default_generator()
    assert rng.default_seed() is None
    rng.manual_seed(9).next_offset(4)
    assert rng.default_seed() == 9
    assert rng.default_generator().get_state() == (9, 4)
    rng.manual_seed(9)
    assert rng.default_generator().get_state() == (9, 0)
    with caplog.at_level(logging.INFO):
        seed = rng.auto_seed()
    assert rng.default_seed() == seed
    assert str(seed) in caplog.text


def test_out_of_range_raises_and_changes_nothing():
    g = rng.Generator(1, 2**64 - 10)
    for call, kind in (
        (lambda: g.next_offset(11), OverflowError),
        (lambda: g.next_offset(-1), ValueError),
        (lambda: g.set_state(-1, 0), ValueError),
        (lambda: g.set_state(0, 2**64), ValueError),
        (lambda: g.set_state(0.5, 0), TypeError),
        (lambda: g.set_state(0, "0"), TypeError),
        (lambda: rng.manual_seed(None), TypeError),
    ):
        with pytest.raises(kind):
            call()
    assert g.get_state() == (1, 2**64 - 10)
    assert g.next_offset(9) == 2**64 - 10
