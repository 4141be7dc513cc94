"""Cases from the field: determinism and random numbers (H001 to H016)."""

import ast
import itertools
import os
import random
import sys
import tempfile
import time
import warnings

import numpy as np
import pytest

import pipeline
import rng
from pipeline import datasets
from pipeline import transforms as T
from rng import address
from tests import reference
from tests.field import cases
from tests.field.cases import Syn, fp, fp_of, make, syn
from tests.helpers import ROOT, Sleeps, python, walk

pytestmark = pytest.mark.usefixtures("launcher")
THREADS = {"worker_method": "thread"}


class Sleepy(Sleeps, Syn):
    """The cases' items, slowly."""


# ---------------------------------------------------------------- generators of the process
def _draw_everywhere(sample, stream):
    return {"numpy": np.random.rand(), "python": random.random(), "stream": stream.uniform()}


def _drawn(**how):
    """[{source: values}] of two epochs."""
    with make(syn(64), transforms=[_draw_everywhere], **how) as loader:
        passes = [list(loader) for _ in range(2)]
    return [{k: np.concatenate([b[k] for b in p]).tolist() for k in p[0]} for p in passes]


def test_h001_every_sample_of_every_epoch_has_draws_of_its_own():
    drawn = _drawn(num_workers=4)
    for source in ("numpy", "python", "stream"):
        first, second = (epoch[source] for epoch in drawn)
        assert len({*first, *second}) == 128, source
    assert drawn == _drawn(num_workers=4)
    assert drawn == _drawn(num_workers=0)


def _generators():
    torch = sys.modules.get("torch")
    name, keys, *rest = np.random.get_state()
    told = torch.random.get_rng_state().numpy().tobytes() if torch else b""
    return random.getstate(), (name, keys.tobytes(), *rest), told


@pytest.mark.parametrize(
    "how", [{}, {"num_workers": 2}, {"num_workers": 2, **THREADS}], ids=["0", "2", "2 threads"]
)
def test_h002_no_generator_of_the_process_is_read_or_written(how):
    pytest.importorskip("torch")
    before = _generators()
    with make(syn(64), **how) as loader:
        fp(loader)
        loader.state_dict()
    assert _generators() == before


def test_h002_a_validation_loader_in_between_changes_nothing_of_the_training():
    found = set()
    for passes in (0, 1, 5):
        with make(syn(64)) as train, make(syn(64), split="val", shuffle=False) as val:
            digests = []
            for _ in range(2):
                digests.append(fp(train))
                for _ in range(passes):
                    fp(val)
        found.add(tuple(digests))
    assert len(found) == 1


# ---------------------------------------------------------------- workers, threads, epochs
def test_h003_pixels_hang_on_the_sample_and_not_on_the_worker(tmp_path):
    data = datasets.ImageFolder(cases.files(tmp_path, range(200)))
    found = {fp_of(data), fp_of(data, num_workers=3)}
    found |= {fp_of(data, num_workers=n, **THREADS) for n in (1, 2, 5, 8)}
    assert len(found) == 1


def test_h004_prefetch_and_threads_only_decide_speed():
    expected = fp_of(Syn(64))
    for depth, threads in itertools.product((1, 2, 8), (1, 2, 4)):
        how = {"prefetch_factor": depth, "num_workers": threads, **THREADS}
        assert fp_of(Sleepy(64), **how) == expected, how


FROM_EPOCH_2 = """
from tests.field.cases import *
with make(syn(64)) as loader:
    loader.set_epoch(2)
    print(fp(loader))
"""


def test_h005_workers_that_persist_know_which_epoch_it_is():
    with make(syn(64), num_workers=2, persistent_workers=True) as loader:
        orders, pixels, third = [], [], ""
        for _ in range(3):
            found = walk(loader)
            orders.append([i for _, i, _ in found])
            pixels.append({(i, digest) for _, i, digest in found})
        assert all(sorted(order) == list(range(64)) for order in orders)
        for a, b in itertools.combinations(range(3), 2):
            assert orders[a] != orders[b]
            assert pixels[a] != pixels[b]
        loader.set_epoch(2)
        third = fp(loader)
    assert python(FROM_EPOCH_2).stdout.strip() == third


# ---------------------------------------------------------------- seeds, keys, streams
def test_h006_every_seed_of_64_bits_works_and_is_another():
    seeds = (0, 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1)
    orders = set()
    for seed in seeds:
        with make(syn(64), seed=seed) as loader:
            orders.add(tuple(i for _, i, _ in walk(loader)))
    assert len(orders) == len(seeds)


@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.5, "7", True], ids=repr)
def test_h006_other_seeds_are_refused_on_every_rank_at_once(bad):
    for rank in range(2):
        with pytest.raises(pipeline.ConfigError, match="seed must be an int in"):
            make(syn(64), seed=bad, rank=rank, world_size=2, num_workers=2)


def test_h006_an_index_beyond_32_bits_is_not_cut():
    far = (1 << 32) + 5
    with make(Syn(1 << 33), shuffle=False, transforms=[_draw_everywhere]) as loader:
        near_draws, far_draws = (loader.sample_at(0, i) for i in (5, far))
        assert all(near_draws[k] != far_draws[k] for k in near_draws)
    with make(Syn(1 << 33), shuffle=False) as loader:
        assert [loader.sample_at(0, i)[1] for i in (5, far)] == [5, far]
        assert loader.explain(0, position=far).sample_id == far
        loader.load_state_dict(loader.state_dict() | {"offset": far})
        assert [i for _, i, _ in walk(loader, steps=1)] == list(range(far, far + 16))


def test_h007_no_two_streams_meet():
    """The kind: keys of other lengths, and a value carried from one field into the next."""
    seeds = (42, 0, 1, 2, 3, 1 + (2 << 32), 2 << 32)
    small = (0, 1, 2, 3, 42)
    tuples = [
        (address.mix64(seed), address.site(purpose, op, lane), phase, position)
        for seed in seeds
        for purpose in (address.SHUFFLE, address.AUGMENT, address.USER)
        for op, lane, phase in itertools.product(small, repeat=3)
        for position in (*small, 1 << 32, (1 << 32) + 1, 1 << 40, 1 << 56)
    ]
    tuples += [(address.mix64(42), address.site(address.USER), 9, i) for i in range(30_000)]
    names = ("", "a", "b", "aa", "a/b", "a\0", "42", "fc1", "fc1.weight")
    tuples += [(address.named(address.mix64(s), n), 0, 0, 0) for s in seeds for n in names[1:]]
    tuples += [(address.fold_in(address.mix64(s), d), 0, 0, 0) for s in seeds for d in small]
    assert len(tuples) > 50_000
    counters = np.array([address_words(t) for t in tuples], np.uint32)
    keys = np.array([(k & 0xFFFFFFFF, k >> 32) for k, *_ in tuples], np.uint32)
    blocks = rng.philox4x32(counters, keys)
    assert len(np.unique(blocks, axis=0)) == len(tuples)


def address_words(where):
    _, site, phase, position = where
    return position & 0xFFFFFFFF, position >> 32, phase, site


HASH_SEED = """
import json
from tests.field.cases import *
with make(Syn(64), split="probe") as loader:
    print(fp(loader), json.dumps(loader.state_dict()))
"""


def test_h008_pythons_hash_seed_decides_nothing():
    with make(Syn(64), split="probe") as loader:
        expected = fp(loader), loader.state_dict()
    for value in ("0", "1", "12345", "random"):  # "random" is what unset means
        text, _, state = python(HASH_SEED, env={"PYTHONHASHSEED": value}).stdout.partition(" ")
        assert (text, cases.json.loads(state)) == expected


def test_h009_the_order_in_which_a_file_system_lists_decides_nothing(tmp_path):
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="field-") as other:
        one = datasets.ImageFolder(cases.files(tmp_path / "data", range(300)))
        two = datasets.ImageFolder(cases.files(f"{other}/data", reversed(range(300))))
        assert one.classes == two.classes
        with make(one) as a, make(two) as b:
            assert fp(a) == fp(b)
            assert a.state_dict() == b.state_dict()


def test_h010_every_order_is_equally_likely():
    draws = 600_000
    counts = np.zeros(27, int)
    out = np.empty(3, np.uint32)
    key = address.mix64(10)
    for phase in range(draws):
        rng.permutation_from_key(3, key, phase, out=out)
        counts[int(out[0]) * 9 + int(out[1]) * 3 + int(out[2])] += 1
    seen = counts[counts > 0]
    assert len(seen) == 6
    p = 1 / 6
    assert np.abs(seen - draws * p).max() <= 4 * np.sqrt(draws * p * (1 - p))


@pytest.mark.parametrize("n", [2, 4, 5, 8, 16])
def test_h010_an_element_stays_in_its_place_as_often_as_chance_says(n):
    draws = 20_000
    orders = np.stack([rng.permutation(n, seed=seed) for seed in range(draws)])
    stays = (orders == np.arange(n)).sum(axis=0)
    p = 1 / n
    assert np.abs(stays - draws * p).max() <= 4 * np.sqrt(draws * p * (1 - p))


def test_h011_threads_of_kernels_draw_what_plain_integers_say():
    """Our kernels are made of LLVM's instructions and do not run without the compiler: instead of
    that, the oracle in plain Python must give the same words.
    """
    key, site = address.mix64(11), address.site(address.USER, 1, 2)
    stream = rng.Stream(key, site, 3, (1 << 32) - 2)
    expected = [reference.stream_word(key, site, 3, (1 << 32) - 2, i) for i in range(40)]
    words = set()
    for threads in (1, 2, 4):
        many = stream.uint32(np.empty(1 << 18, np.uint32), threads=threads)
        assert many[:40].tolist() == expected
        words.add(many.tobytes())
    assert len(words) == 1


def test_h011_no_compiled_function_calls_a_generator_that_it_owns():
    looked_at = 0
    for path in [*(ROOT / "rng").rglob("*.py"), *(ROOT / "pipeline").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            marks = " ".join(ast.unparse(d) for d in node.decorator_list)
            if "kernel" not in marks and "jit" not in marks:
                continue
            looked_at += 1
            assert "parallel" not in marks, f"{path}: {node.name}"
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                name = ast.unparse(call.func)
                assert "random" not in name, f"{path}: {node.name}"
                assert "prange" not in name, f"{path}: {node.name}"
    assert looked_at > 20


# One epoch of SYN(257), flip and erase on. It never changes for STREAM_VERSION 1, whatever numpy.
GOLDEN = "3a8fb9cef1e62a9632178a0353e884545be7a44c3fc0204f32b079a72ac55eb5"


def test_h012_a_seed_means_the_same_in_every_release():
    words = rng.philox4x32(
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    )
    assert [hex(w) for w in words] == ["0xd16cfe09", "0x94fdcceb", "0x5001e420", "0x24126ea1"]
    with make(syn(257)) as loader:
        assert fp(loader) == GOLDEN
        assert loader.state_dict()["stream_version"] == rng.STREAM_VERSION == 1


# ---------------------------------------------------------------- what an op draws
SIZES = {"1x1": (1, 1), "1x1000": (1, 1000), "1000x1": (1000, 1), "224x224": (224, 224)}


class Sized(Syn):
    """The same images, but one may have another size."""

    def __init__(self, n, sizes):
        super().__init__(n)
        self.sizes = sizes

    def __getitem__(self, i):
        h, w = self.sizes.get(i, (40, 40))
        return np.full((h, w, 3), i, np.uint8), i


def test_h013_an_op_draws_from_one_fixed_range_whatever_the_image_and_the_branch():
    """Attempt k has block k of the op's own address: a retry takes nothing from anybody."""
    read, results = {}, {}
    for p in (0.0, 0.5, 1.0):
        ops = [T.RandomResizedCrop(8, ratio=(0.9, 1.1)), T.RandomErasing(p=p)]
        for name, size in SIZES.items():
            with make(Sized(12, {5: size}), transforms=ops, shuffle=False) as loader:
                for draws in loader.explain(0, position=5).draws:
                    if not draws.counters:  # how code of the user would be seeded
                        continue
                    read.setdefault(draws.op, []).append((draws.counters, draws.words))
                    results[draws.op, name] = draws.result
    assert len(read) == 2
    for op, blocks in read.items():
        longest = max(blocks, key=lambda b: len(b[0]))
        assert 1 <= len(longest[0]) <= 11, op
        for counters, words in blocks:
            assert counters == longest[0][: len(counters)], op
            assert words == longest[1][: len(words)], op
    # Nothing fits into 1x1000: the documented centred fallback, after ten attempts.
    fallback = results["RandomResizedCrop", "1x1000"]
    assert (fallback["fallback"], fallback["attempt"]) == (True, 10)
    assert (fallback["left"], fallback["height"], fallback["width"]) == (499, 1, 1)


def test_h013_another_size_of_one_image_changes_no_other():
    ops = [T.RandomResizedCrop(8, ratio=(0.9, 1.1)), T.RandomErasing(p=0.5)]
    found = []
    for size in SIZES.values():
        with make(Sized(12, {5: size}), transforms=ops, shuffle=False) as loader:
            found.append([row for row in walk(loader) if row[1] != 5])
    assert len(found[0]) == 11
    assert all(one == found[0] for one in found)


def test_h014_counters_carry_at_every_word():
    key = address.mix64(14)
    key_words = key & 0xFFFFFFFF, key >> 32

    def block(n):
        counter = [(n >> s) & 0xFFFFFFFF for s in (0, 32, 64, 96)]
        return rng.philox4x32(counter, key_words).tolist()

    for border in (1 << 32, 1 << 64, 1 << 96, 1 << 128):
        for n in range(border - 2, border + 3):
            n %= 1 << 128
            words = [(n >> s) & 0xFFFFFFFF for s in (0, 32, 64, 96)]
            assert block(n) == reference.philox(4, 32, 10, words, key_words)
    assert block(1 << 32) != block(0)
    # Streams count in the lower two words; beyond them is another phase's address: refused.
    start = (1 << 32) - 2
    made = rng.Stream(key, 0, 0, start).uint32(np.empty(20, np.uint32))
    assert made.reshape(5, 4).tolist() == [block(start + i) for i in range(5)]
    last = rng.Stream(key, 0, 0, (1 << 64) - 2)
    made = last.uint32(np.empty(8, np.uint32))
    assert made.reshape(2, 4).tolist() == [block((1 << 64) - 2), block((1 << 64) - 1)]
    with pytest.raises(OverflowError):
        last.uint32(np.empty(9, np.uint32))


def test_h015_lossless_files_give_the_bytes_of_the_arrays_whatever_decodes_them(tmp_path):
    cases.files(tmp_path, range(40), classes=1)
    folder, memory = datasets.ImageFolder(tmp_path), syn(40)
    with make(folder) as a, make(memory) as b:
        for (x, _), (y, _) in zip(a, b, strict=True):
            assert x.tobytes() == y.tobytes()


def test_h015_another_decoder_is_told_once_and_goes_on(tmp_path):
    data = datasets.ImageFolder(cases.files(tmp_path, range(40)))
    with make(data) as loader:
        whole = walk(loader)
        loader.set_epoch(0)
        done = walk(loader, steps=1)
        state = cases.copied(loader.state_dict())
    assert "pillow" in state["versions"]
    state["versions"]["pillow"] = "1.0.faked"
    with make(data) as loader:
        with pytest.warns(UserWarning, match=r"pillow 1\.0\.faked -> ") as told:
            loader.load_state_dict(state)
        assert len(told) == 1
        with warnings.catch_warnings():  # this is the strict way: any program may choose it
            warnings.simplefilter("error")
            with (
                make(data) as strict,
                pytest.raises(UserWarning, match="decoded pixels may differ"),
            ):
                strict.load_state_dict(state)
        assert done + walk(loader) == whole


class Uneven(Syn):
    """One item in a hundred takes a hundred times as long."""

    def __getitem__(self, i):
        time.sleep(0.05 if i % 100 == 37 else 0.0005)
        return super().__getitem__(i)


def test_h016_slow_items_change_no_byte_and_fast_mode_has_the_same_samples():
    with make(Syn(300)) as loader:
        expected = walk(loader)
    how = {"num_workers": 3, **THREADS}
    with make(Uneven(300), **how) as loader:
        assert walk(loader) == expected
    with make(Uneven(300), mode="fast", **how) as loader:
        found = walk(loader)
    assert sorted((i, d) for _, i, d in found) == sorted((i, d) for _, i, d in expected)
