import json
import random

import numpy as np
import pytest
import xxhash

from pipeline import ConfigError, datasets
from pipeline import transforms as T
from pipeline.explain import address_of
from rng import address, philox4x32
from tests.helpers import OPS, Images, images, make

pytestmark = pytest.mark.usefixtures("launcher")


def shifted(sample, rng):
    pixels, label = sample
    return np.roll(pixels, rng.integers(0, 5), axis=0), label


def plain(sample):
    return sample[0], sample[1] + random.randrange(1000)


def test_slot_and_position_name_the_same_sample_and_its_digest_is_the_delivered_ones():
    with make(Images(30), num_workers=2) as loader:
        batches = [(list(map(np.copy, b)), loader.last) for b in loader]
        (arrays, last) = batches[3]
        found = loader.explain(0, 3, 2)
        assert found == loader.explain(0, position=14)
        assert (found.position, found.sample_id) == (14, last.sample_ids[2])
        assert found.path == f"/data/{found.sample_id:04d}.png"
        assert (found.lane, found.n, found.phase, found.seed) == (14, 0, 0, 7)
        expected = [xxhash.xxh3_64_hexdigest(a[2].tobytes()) for a in arrays]
        assert list(found.digests.values()) == expected


def test_words_are_philoxs_at_the_counters_that_are_told():
    with make(Images(30), transforms=[shifted, *OPS]) as loader:
        found = loader.explain(5, position=29)
    key = np.array([found.key & 0xFFFFFFFF, found.key >> 32], np.uint32)
    blocks = 0
    for one in found.draws:
        for counter, words in zip(one.counters, one.words, strict=True):
            assert philox4x32(np.array(counter, np.uint32), key).tolist() == list(words)
            assert address_of(counter) == one.address
            blocks += 1
    assert blocks >= 4
    assert {one.address["purpose"] for one in found.draws if one.counters} == {
        address.AUGMENT, address.USER,
    }  # fmt: skip


def test_what_came_of_the_draws_is_what_the_pixels_show():
    ops = [T.RandomCrop(8, padding=2), T.RandomHorizontalFlip()]
    data = datasets.ArrayDataset(images(30), np.arange(30))
    with make(data, transforms=ops) as loader:
        for position in range(30):
            found = loader.explain(2, position=position)
            crop, flip = (one.result for one in found.draws)
            padded = np.pad(images(30)[found.sample_id], ((2, 2), (2, 2), (0, 0)))
            window = padded[crop["top"] : crop["top"] + 8, crop["left"] : crop["left"] + 8]
            expected = window[:, ::-1] if flip["flip"] else window
            assert np.array_equal(loader.sample_at(2, position)[0], expected)


def test_an_erasing_reads_up_to_the_attempt_that_counted():
    data = datasets.ArrayDataset(images(60), np.arange(60))
    with make(data, transforms=[T.RandomErasing(p=0.5)]) as loader:
        counts = set()
        for position in range(60):
            (one,) = loader.explain(0, position=position).draws
            assert len(one.words) == (2 + one.result["attempt"] if one.result["gate"] else 1)
            counts.add(len(one.words))
    assert {1, 2} <= counts


def test_functions_and_generators_are_told():
    with make(Images(30), transforms=[shifted, plain]) as loader:
        before = random.getstate()
        found = loader.explain(0, position=3)
        assert random.getstate() == before
        generators, stream, nothing = found.draws
        assert generators.op == "generators"
        assert {*generators.result} == {"numpy", "random", "torch"}
        assert stream.op.endswith("shifted")
        assert stream.address == {"purpose": 7, "op": 248, "lane": 3, "n": 0, "phase": 0}
        assert nothing.op.endswith("plain")
        assert nothing.address == {}
        text = str(found)
        for part in ("sample", "seed 7 = 0x0000000000000007", "shifted", "purpose=7 op=248"):
            assert part in text
        json.dumps(found.to_dict())


def test_what_there_is_not_is_an_error():
    with make(Images(30)) as loader:
        with pytest.raises(ConfigError, match="either"):
            loader.explain(0)
        with pytest.raises(ConfigError, match="either"):
            loader.explain(0, 1, position=3)
        for wrong in ({"step": 8}, {"step": 7, "slot": 2}, {"position": 30}, {"position": -1}):
            with pytest.raises(IndexError):
                loader.explain(0, **wrong)
