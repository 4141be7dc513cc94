import json

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pipeline import datasets
from pipeline.audit import AuditLog, Digest, sample_digests
from pipeline.errors import ConfigError
from tests.helpers import Images, images, make, walk

IDS, POSITIONS = np.arange(4), np.arange(10, 14, dtype=np.uint64)
ARRAYS = [np.arange(24, dtype=np.float32).reshape(4, 6), np.array([1, 0, 1, 0])]


def parsed(path):
    """(lines of passes, lines of batches) of a log."""
    facts = [json.loads(line) for line in path.read_text().splitlines()]
    return [f for f in facts if "format" in f], [f for f in facts if "format" not in f]


def fingerprint(arrays, ids, positions):
    return Digest().add(arrays, ids, positions)


def test_a_fingerprint_never_changes_between_versions_of_the_code():
    assert fingerprint(ARRAYS, IDS, POSITIONS) == "8327b21780fe651dbb498e7d92fcffb4"


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
    heads, facts = parsed(tmp_path / "a")
    assert [h["epoch"] for h in heads] == [0, 1]
    assert [(f["epoch"], f["step"]) for f in facts] == [(e, s) for e in (0, 1) for s in range(6)]
    assert [f["offset"] for f in facts[:6]] == [4, 8, 12, 16, 20, 21]
    assert len({f["fingerprint"] for f in facts}) == 12


# ---------------------------------------------------------------- digests of samples
@pytest.mark.parametrize("nbytes", [1, 8, 100, 240, 241, 5000])
def test_a_digest_is_the_librarys_of_the_fields_bytes(nbytes):
    array = np.arange(7 * nbytes, dtype=np.int64).astype(np.uint8).reshape(7, nbytes)
    found = sample_digests([array], np.arange(7), np.arange(7, dtype=np.uint64))
    expected = [xxhash.xxh3_64_intdigest(row.tobytes()) for row in array]
    assert found.tolist() == [expected]


def test_text_beside_the_arrays_counts_as_one_more_field():
    ids, positions = np.arange(3), np.arange(3, dtype=np.uint64)
    digest = Digest()
    one = digest.add([ids], ids, positions, [["a"], ["b"], ["a"]])
    assert digest.last.shape == (2, 3)
    assert digest.last[1, 0] == digest.last[1, 2] != digest.last[1, 1]
    assert one != Digest().add([ids], ids, positions, [["a"], ["b"], ["c"]])


def test_a_batch_of_a_collate_fn_has_one_digest():
    ids, positions = np.arange(3), np.arange(3, dtype=np.uint64)
    digest = Digest()
    one = digest.add_whole({"x": [1, "a"]}, ids, positions)
    assert len(set(digest.last.tolist()[0])) == 1
    assert one == Digest().add_whole({"x": [1, "a"]}, ids, positions)
    assert one != Digest().add_whole({"x": [1, "b"]}, ids, positions)


def test_some_bytes_of_long_samples_are_spread_and_the_ends_of_lines_count():
    ids, positions = np.arange(200), np.arange(200, dtype=np.uint64)
    zeros = np.zeros((200, 4096), np.uint8)
    before = sample_digests([zeros], ids, positions, whole=False)
    hit = np.zeros(64, int)
    for line in range(64):
        changed = zeros.copy()
        changed[:, 64 * line + 63] = 1
        after = sample_digests([changed], ids, positions, whole=False)
        hit[line] = (after != before).sum()
    assert hit.sum() == 2 * 200  # two lines of each sample
    assert hit.min() > 0
    assert hit[:32].sum() == hit[32:].sum() == 200  # one in each half


def test_short_samples_are_always_looked_at_whole():
    ids, positions = np.arange(4), np.arange(4, dtype=np.uint64)
    array = np.arange(4 * 2048, dtype=np.int64).astype(np.uint8).reshape(4, 2048)
    assert (
        sample_digests([array], ids, positions, whole=False).tolist()
        == sample_digests([array], ids, positions).tolist()
    )


# ---------------------------------------------------------------- the log
def test_the_first_line_of_a_pass_says_what_decides_its_bytes(tmp_path):
    with make(Images(21), audit=tmp_path / "a") as loader:
        walk(loader)
        state = loader.state_dict()
    (head,), _ = parsed(tmp_path / "a")
    for name in ("seed", "split", "lanes", "order", "length", "dataset", "transforms", "mode"):
        assert head[name] == state[name]
    assert head["versions"]["numba"] == state["versions"]["numba"]
    assert (head["rank"], head["world_size"], head["batch_size"]) == (0, 1, 4)
    assert head["fields"] == [["0", "<f4", 3, 12, 12, 1728], ["1", "<i8", 8]]


def test_digests_in_the_log_are_those_of_the_samples(tmp_path):
    with make(Images(21), audit=tmp_path / "a") as loader:
        batches = [(list(map(np.copy, b)), loader.last.sample_ids) for b in loader]
    _, lines = parsed(tmp_path / "a")
    for line, (arrays, ids) in zip(lines, batches, strict=True):
        expected = [
            "".join(xxhash.xxh3_64_hexdigest(sample.tobytes()) for sample in array)
            for array in arrays
        ]
        assert line["digests"] == expected
        assert line["ids"] == "".join(f"{i:08x}" for i in ids)


@pytest.mark.parametrize("mode", ["reproducible", "fast"])
def test_a_resumed_run_goes_on_with_the_chain_in_the_same_file(tmp_path, mode):
    with make(Images(21), mode=mode, audit=tmp_path / "whole") as loader:
        walk(loader)
        whole = loader.digest.chain, loader.digest.set
    with make(Images(21), mode=mode, audit=tmp_path / "parts") as loader:
        walk(loader, 3)
        state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 1024
    with make(Images(21), mode=mode, audit=tmp_path / "parts") as loader:
        loader.load_state_dict(state)
        walk(loader)
        assert (loader.digest.chain, loader.digest.set) == whole
    ends = [parsed(tmp_path / name)[1][-1] for name in ("whole", "parts")]
    assert ends[0]["chain"] == ends[1]["chain"]
    assert len(parsed(tmp_path / "parts")[0]) == 2


def test_the_next_epoch_begins_a_chain(tmp_path):
    with make(Images(21), audit=tmp_path / "a") as loader:
        walk(loader)
        assert "audit" not in loader.state_dict()
        walk(loader)
    with make(Images(21), audit=tmp_path / "b") as loader:
        loader.set_epoch(1)
        walk(loader)
    assert parsed(tmp_path / "a")[1][-1]["chain"] == parsed(tmp_path / "b")[1][-1]["chain"]


def test_a_state_of_several_ranks_has_no_chain(tmp_path):
    states = []
    for rank in range(2):
        with make(Images(21), rank=rank, world_size=2, audit=tmp_path / str(rank)) as loader:
            walk(loader, 1)
            states.append(loader.state_dict())
    assert states[0] == states[1]


def test_a_line_that_was_cut_short_is_closed_before_the_next(tmp_path):
    path = tmp_path / "a"
    with make(Images(21), audit=path) as loader:
        walk(loader, 2)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with make(Images(21), audit=path) as loader:
        walk(loader, 1)
    lines = path.read_text().splitlines()
    with pytest.raises(ValueError, match="line 1"):
        json.loads(lines[2])
    assert [("format" in json.loads(line)) for line in lines[:2] + lines[3:]] == [
        True, False, True, False,
    ]  # fmt: skip


def test_a_batch_that_cannot_be_logged_is_not_delivered_and_the_chain_does_not_have_it(tmp_path):
    with make(Images(21), audit=tmp_path / "whole") as loader:
        walk(loader)
        whole = loader.digest.chain
    with make(Images(21), audit=tmp_path / "a") as loader:
        batches = iter(loader)
        next(batches)
        loader._audit.close()  # as if the file system had failed
        with pytest.raises(OSError, match="descriptor"):
            next(batches)
        assert loader.state_dict()["offset"] == 4
        assert len(walk(loader)) == 17
        assert loader.digest.chain == whole


def test_a_log_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    loader = make(Images(21), audit=tmp_path / "missing" / "log")
    with pytest.raises(ConfigError, match=r"missing/log"):
        next(iter(loader))


def test_a_shared_file_has_whole_lines_of_every_rank(tmp_path):
    loaders = [make(Images(21), rank=rank, world_size=3, audit=tmp_path / "a") for rank in range(3)]
    for _ in zip(*map(iter, loaders), strict=True):
        pass
    heads, lines = parsed(tmp_path / "a")
    assert sorted(h["rank"] for h in heads) == [0, 1, 2]
    assert sorted((f["step"], f["rank"]) for f in lines) == [
        (s, r) for s in (0, 1) for r in range(3)
    ]
    for loader in loaders:
        loader.close()


def test_long_samples_made_in_bulk_are_looked_at_in_part_unless_all_is_asked_for(tmp_path):
    data = datasets.ArrayDataset(images(9, height=32, width=32), np.arange(9))
    for name, how in (("some", {}), ("all", {"audit_bytes": "all"})):
        with make(data, transforms=[], audit=tmp_path / name, **how) as loader:
            walk(loader)
    (head,), lines = parsed(tmp_path / "some")
    assert [f[-1] for f in head["fields"]] == [128, 8]
    assert all(len(line["fields"]) == 2 and "digests" not in line for line in lines)
    (head,), lines = parsed(tmp_path / "all")
    assert [f[-1] for f in head["fields"]] == [3072, 8]
    assert "digests" in lines[0]
    with pytest.raises(ConfigError, match="audit_bytes"):
        make(data, audit_bytes="none")


def test_a_log_keeps_no_descriptor_open_between_passes(tmp_path):
    with make(Images(8), audit=tmp_path / "a") as loader:
        walk(loader)
        assert loader._audit._fd == -1
        walk(loader, 1)
    assert loader._audit._fd == -1


def test_positions_that_do_not_follow_one_another_are_listed(tmp_path):
    log = AuditLog(tmp_path / "a", whole=True)
    log.begin({"epoch": 0, "rank": 0})
    digest = Digest()
    positions = np.array([3, 1, 2**33], np.uint64)
    print_ = digest.add([np.arange(3)], np.arange(3), positions)
    log.batch(0, 3, 3, np.arange(3), positions, print_, digest)
    log.close()
    (line,) = parsed(tmp_path / "a")[1]
    assert line["positions"] == f"{3:016x}{1:016x}{2**33:016x}"
    assert line["ids"] == "000000000000000100000002"
