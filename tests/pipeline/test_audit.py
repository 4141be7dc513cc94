import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit import Digest
from tests.helpers import Images, make

IDS, POSITIONS = np.arange(4), np.arange(10, 14, dtype=np.uint64)
ARRAYS = [np.arange(24, dtype=np.float32).reshape(4, 6), np.array([1, 0, 1, 0])]


def fingerprint(arrays, ids, positions):
    return Digest().add(arrays, ids, positions)


def test_a_fingerprint_never_changes_between_versions_of_the_code():
    assert fingerprint(ARRAYS, IDS, POSITIONS) == "0a073112ca70587259effb743cb1af25"


@pytest.mark.parametrize(
    "change",
    [
        lambda a, i, p: ([a[0] + 1, a[1]], i, p),
        lambda a, i, p: ([a[0], a[1][::-1]], i, p),
        lambda a, i, p: ([a[0].reshape(4, 3, 2), a[1]], i, p),
        lambda a, i, p: ([a[0].view(np.int32), a[1]], i, p),
        lambda a, i, p: (a[:1], i, p),
        lambda a, i, p: (a, i[::-1], p),
        lambda a, i, p: (a, i, p + np.uint64(1)),
        lambda a, i, p: ([np.where(a[0] == 0, np.float32(-0.0), a[0]), a[1]], i, p),
    ],
    ids=["pixel", "label", "shape", "dtype", "fields", "ids", "positions", "minus zero"],
)
def test_everything_that_differs_changes_the_fingerprint(change):
    assert fingerprint(*change(ARRAYS, IDS, POSITIONS)) != fingerprint(ARRAYS, IDS, POSITIONS)


def test_how_an_array_lies_in_memory_changes_nothing():
    wide = np.zeros((4, 12), np.float32)
    wide[:, ::2] = ARRAYS[0]
    for array in (np.asfortranarray(ARRAYS[0]), wide[:, ::2]):
        assert fingerprint([array, ARRAYS[1]], IDS, POSITIONS) == fingerprint(
            ARRAYS, IDS, POSITIONS
        )


def _digest(order, cuts):
    digest = Digest()
    rows = np.arange(40, dtype=np.uint8).reshape(20, 2)
    for part in np.split(np.array(order), sorted(cuts)):
        digest.add([rows[part]], part, part.astype(np.uint64) + np.uint64(5))
    return digest


@given(st.permutations(range(20)), st.sets(st.integers(0, 20)))
def test_the_set_digest_is_the_same_for_any_order_and_any_batches(order, cuts):
    digest, plain = _digest(order, cuts), _digest(range(20), [])
    assert digest.set == plain.set
    assert digest.samples == plain.samples == 20
    assert digest.batches == len(cuts) + 1


def test_the_set_digest_tells_a_repeated_a_missing_and_an_exchanged_sample():
    plain = _digest(range(20), []).set
    for order in ([*range(19), 18], range(19), [*range(20), 0]):
        assert _digest(order, []).set != plain
    a, b = Digest(), Digest()
    rows = np.arange(4, dtype=np.uint8).reshape(2, 2)
    a.add([rows], np.array([0, 1]), np.array([0, 1], np.uint64))
    b.add([rows[::-1]], np.array([0, 1]), np.array([0, 1], np.uint64))
    assert a.set != b.set


def test_a_digest_goes_on_from_what_an_earlier_one_said():
    rows = np.arange(40, dtype=np.uint8).reshape(20, 2)
    ids = np.arange(20)
    first, whole = Digest(), _digest(range(20), [10])
    first.add([rows[:10]], ids[:10], ids[:10].astype(np.uint64) + np.uint64(5))
    second = Digest(first.chain, first.set)
    second.add([rows[10:]], ids[10:], ids[10:].astype(np.uint64) + np.uint64(5))
    assert (second.chain, second.set) == (whole.chain, whole.set)


def test_the_chain_tells_the_order_of_the_batches():
    assert _digest(range(20), [10]).chain != _digest([*range(10, 20), *range(10)], [10]).chain
    assert _digest(range(20), [10]).chain == _digest(range(20), [10]).chain
    assert Digest().chain == "0" * 32


def test_set_digests_of_the_ranks_add_up(tmp_path):
    parts = []
    for rank in range(2):
        loader = make(Images(21), rank=rank, world_size=2, audit=tmp_path / str(rank))
        for _ in loader:
            pass
        parts.append(int(loader.digest.set, 16))
    whole = make(Images(21), audit=tmp_path / "whole")
    for _ in whole:
        pass
    assert sum(parts) % (1 << 128) == int(whole.digest.set, 16)


def test_the_audit_file_has_one_line_for_each_batch(tmp_path):
    lines = []
    for name, how in (("a", {}), ("b", {"num_workers": 2, "worker_method": "thread"})):
        with make(Images(21), audit=tmp_path / name, **how) as loader:
            for _ in range(2):
                for _ in loader:
                    pass
        lines.append((tmp_path / name).read_text().splitlines())
    assert lines[0] == lines[1]
    facts = [json.loads(line) for line in lines[0]]
    assert [(f["epoch"], f["step"]) for f in facts] == [(e, s) for e in (0, 1) for s in range(6)]
    assert [f["offset"] for f in facts[:6]] == [4, 8, 12, 16, 20, 21]
    assert len({f["fingerprint"] for f in facts}) == 12
