"""Cases from the field: resume and state (H017 to H028)."""

import io
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline import datasets
from pipeline import state as states
from pipeline import transforms as T
from tests import helpers
from tests.field import cases
from tests.field.cases import BATCH, Syn, make, syn
from tests.helpers import rows, walk

pytestmark = pytest.mark.usefixtures("launcher")
THREADS = {"worker_method": "thread"}


def _epoch(n, epoch=0, **options):
    """Rows of one whole epoch, uninterrupted."""
    with make(Syn(n), **options) as loader:
        loader.set_epoch(epoch)
        return walk(loader)


def _resumed(data, state, steps=None, **options):
    """(rows, state afterwards) of a new loader that continues."""
    with make(data, **options) as loader:
        loader.load_state_dict(state)
        found = walk(loader, steps)
        return found, cases.copied(loader.state_dict())


# ---------------------------------------------------------------- positions
@pytest.mark.parametrize("n", [64, 70], ids=["divisible", "not divisible"])
def test_h017_the_end_of_an_epoch_is_the_start_of_the_next(n):
    with make(Syn(n)) as loader:
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
        after_the_last = cases.copied(loader.state_dict())
        assert next(batches, None) is None
        after_the_end = cases.copied(loader.state_dict())
    assert after_the_last == after_the_end
    assert (after_the_end["epoch"], after_the_end["offset"]) == (1, 0)
    for state in (after_the_last, after_the_end):
        found, then = _resumed(Syn(n), state)
        assert found == _epoch(n, 1)
        assert (then["epoch"], then["offset"]) == (2, 0)


def test_h018_a_second_and_third_resume_inside_an_epoch_are_not_shifted():
    n, stops = 100 * BATCH, (30, 40, 41, 97, 100)
    joined, state = [], {}
    for before, stop in itertools.pairwise((0, *stops)):
        found, state = _resumed(Syn(n), state, steps=stop - before)
        joined += found
        assert (state["epoch"], state["offset"]) == ((0, stop * BATCH) if stop < 100 else (1, 0))
    assert joined == _epoch(n)


def test_h019_a_resume_in_a_later_epoch_has_its_order_in_a_new_process():
    data = helpers.Images(70)
    with helpers.make(data) as loader:
        loader.set_epoch(2)
        done = walk(loader, steps=7)
        state = cases.copied(loader.state_dict())
        loader.set_epoch(0)
    with helpers.make(data) as loader:
        loader.set_epoch(2)
        whole = walk(loader)
    rest, after = helpers.resumed(state, n=70)
    assert done + rest == whole
    assert sorted(i for _, i, _ in done + rest) == list(range(70))
    assert after["epoch"] == 3


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 2, 8])
def test_h020_what_is_counted_is_what_was_delivered(workers, depth):
    n = 12 * BATCH
    whole = _epoch(n)
    for k in (0, 1, 5):
        with make(Syn(n), num_workers=workers, prefetch_factor=depth, **THREADS) as loader:
            batches = iter(loader)
            done = []
            for _ in range(k):
                batch = next(batches)
                done += rows(loader, batch)
            state = cases.copied(loader.state_dict())  # while workers make what comes next
        assert state["offset"] == k * BATCH
        rest, _ = _resumed(Syn(n), state)
        assert done + rest == whole


@pytest.mark.parametrize(
    "how",
    [{}, {"num_workers": 2, **THREADS}, {"num_workers": 2}],
    ids=["0", "2 threads", "2 persistent"],
)
def test_h021_a_state_loaded_after_the_start_takes_effect_at_once(how):
    n = 24 * BATCH
    whole = _epoch(n)
    _, state = _resumed(Syn(n), {}, steps=20)
    with make(Syn(n), **how) as loader:
        batches = iter(loader)
        next(batches)
        loader.load_state_dict(state)
        assert loader.state_dict()["offset"] == 20 * BATCH
        assert rows(loader, next(batches)) == whole[20 * BATCH : 21 * BATCH]
        assert loader.state_dict()["offset"] == 21 * BATCH
        rest = [row for batch in batches for row in rows(loader, batch)]
        assert rest == whole[21 * BATCH :]
        assert walk(loader) == _epoch(n, 1)  # and the workers that persist go on with the next


def test_h022_a_state_knows_nothing_of_workers():
    n = 10 * BATCH
    done, state = _resumed(Syn(n), {}, steps=4, num_workers=3)
    assert not any("worker" in name or "prefetch" in name for name in state)
    whole = _epoch(n)
    for workers in (0, 1, 2, 5):
        rest, _ = _resumed(Syn(n), state, num_workers=workers, **THREADS)
        assert done + rest == whole


def _world(size, n, state, steps=None):
    """([the ids of each global batch], state of every rank) of `size` ranks together."""
    ranks = [
        make(Syn(n), batch_size=24 // size, rank=r, world_size=size, tail="drop")
        for r in range(size)
    ]
    for loader in ranks:
        loader.load_state_dict(state)
    found = [
        [row for r, part in enumerate(parts) for row in rows(ranks[r], part)]
        for parts in itertools.islice(zip(*ranks, strict=True), steps)
    ]
    after = [cases.copied(loader.state_dict()) for loader in ranks]
    for loader in ranks:
        loader.close()
    assert all(state == after[0] for state in after)
    return found, after[0]


def test_h023_another_number_of_machines_continues_the_same_global_batches():
    n = 24 * 11
    whole, _ = _world(1, n, {})
    done, state = _world(2, n, {}, steps=4)
    assert done == whole[:4]
    for size in (1, 3, 4, 6):
        rest, _ = _world(size, n, state)
        assert rest == whole[4:], size


def test_h024_each_sample_once_for_any_stops_workers_and_depths():
    whole = _epoch(101)
    choose = random.Random(24)  # which schedules to try; no byte hangs on it
    for _ in range(200):
        found, state = [], {}
        while len(found) < 101:
            how = {}
            if choose.random() < 0.3:
                how = {"num_workers": choose.choice((1, 2, 3)), **THREADS}
                how["prefetch_factor"] = choose.choice((1, 2, 8))
            more, state = _resumed(Syn(101), state, steps=choose.randint(0, 4), **how)
            found += more
        assert found == whole
        assert sorted(i for _, i, _ in found) == list(range(101))
        assert (state["epoch"], state["offset"]) == (1, 0)


# ---------------------------------------------------------------- what a state is
def _plain(value):
    if isinstance(value, dict):
        return all(type(k) is str and _plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return type(value) in (int, str)


@pytest.mark.parametrize("n", [10, 1 << 33])
@pytest.mark.parametrize("workers", [1, 16])
def test_h025_a_state_is_a_few_numbers_and_texts(n, workers):
    torch = pytest.importorskip("torch")
    with make(
        Syn(n), batch_size=2, order="random_access", num_workers=workers, **THREADS
    ) as loader:
        walk(loader, steps=3)
        state = loader.state_dict()
        assert _plain(state)
        assert len(json.dumps(state)) < 4096
        assert json.loads(json.dumps(state)) == state
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        assert torch.load(file, weights_only=True) == state
        assert state["offset"] == 6


def test_h025_a_state_of_fast_mode_is_small_too():
    with make(Syn(2000), batch_size=2, mode="fast", num_workers=16, **THREADS) as loader:
        for _ in zip(range(100), loader, strict=False):
            assert len(json.dumps(loader.state_dict())) < 4096


def test_h025_a_pass_of_fast_mode_needs_no_memory_for_the_samples_of_an_endless_set():
    how = {"mode": "fast", "order": "random_access", "num_workers": 2, **THREADS}
    with make(Syn(1 << 40), **how) as loader:  # a number for each would be 8 TiB
        found = walk(loader, steps=4)
        state = cases.copied(loader.state_dict())
        assert len(json.dumps(state)) < 4096
    assert len({i for _, i, _ in found}) == 4 * BATCH
    covered = set(range(state["offset"])).union(*(range(a, b) for a, b in state.get("ahead", [])))
    assert covered == {p for p, _, _ in found}


def test_h025_a_state_of_another_version_is_refused():
    with make(Syn(64)) as loader:
        state = loader.state_dict()
        with pytest.raises(pipeline.StateError, match="not a state of samebatch"):
            loader.load_state_dict(state | {"format": "samebatch-state-99"})
        with pytest.raises(pipeline.StateError, match="stream_version: the state has 99"):
            loader.load_state_dict(state | {"stream_version": 99})
        assert loader.state_dict() == state


def test_h026_a_damaged_file_is_never_taken_for_a_first_run(tmp_path):
    path = tmp_path / "run.json"
    _, state = _resumed(Syn(70), {}, steps=2)
    states.save(state, path)
    assert states.load(path) == state
    whole = path.read_bytes()
    content = len(whole.rstrip())
    for n in (0, 10, content - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(pipeline.StateError, match=r"run\.json' is damaged"):
            states.load(path)
    for at in range(content):
        if whole[at : at + 1].isspace():
            continue  # a blank between two words of JSON says nothing
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        with pytest.raises(pipeline.StateError, match=r"run\.json' is damaged"):
            states.load(path)


# ---------------------------------------------------------------- other data
def _removed(root):
    (Path(root) / "class1" / "00001.png").unlink()


def _renamed(root):
    (Path(root) / "class1" / "00001.png").rename(Path(root) / "class1" / "x0001.png")


def _labels_swapped(root):
    one, two = Path(root) / "class1" / "00001.png", Path(root) / "class2" / "00002.png"
    one.rename(two.parent / one.name)
    two.rename(Path(root) / "class1" / two.name)


def _continue_or_be_refused(saved, data, names, **options):
    """A resume is refused with both digests; with the override it goes on and says so."""
    with make(data, **options) as loader:
        now = loader.state_dict()
        with pytest.raises(pipeline.StateError) as e:
            loader.load_state_dict(saved)
        assert set(e.value.fields["different"]) == names
        for name in names:
            assert f"{name}: the state has {saved[name]!r}, this loader {now[name]!r}" in str(
                e.value
            )
            assert saved[name] != now[name]
        assert loader.state_dict() == now
        loader.load_state_dict(saved, allow=sorted(names))
        assert set(loader.state_dict()["overridden"]) == names
        assert loader.last is None
        walk(loader, steps=1)
        assert loader.last.positions[0] == saved["offset"]
        assert set(loader.state_dict()["overridden"]) == names


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (_removed, {"dataset", "length"}),
        (_renamed, {"dataset"}),
        (_labels_swapped, {"dataset"}),
    ],
    ids=["removed", "renamed", "labels swapped"],
)
def test_h027_changed_files_are_refused_with_both_digests(change, names, tmp_path):
    cases.files(tmp_path, range(40))
    _, saved = _resumed(datasets.ImageFolder(tmp_path), {}, steps=1)
    change(tmp_path)
    _continue_or_be_refused(saved, datasets.ImageFolder(tmp_path), names)


def test_h027_swapped_labels_of_arrays_are_refused_too():
    data = syn(40)
    _, saved = _resumed(data, {}, steps=1)
    labels = np.arange(40)
    labels[[3, 4]] = labels[[4, 3]]
    swapped = datasets.ArrayDataset(np.stack([cases.pixels(i) for i in range(40)]), labels)
    _continue_or_be_refused(saved, swapped, {"dataset"})


def test_h027_another_chance_of_an_op_is_refused():
    _, saved = _resumed(Syn(40), {}, steps=1)
    ops = [T.RandomHorizontalFlip(), T.RandomErasing(p=0.25)]
    _continue_or_be_refused(saved, Syn(40), {"transforms"}, transforms=ops)


# ---------------------------------------------------------------- no fast-forward
class Counted(Syn):
    """Which items were read."""

    def __init__(self, n):
        super().__init__(n)
        self.read = []

    def __getitem__(self, i):
        self.read.append(i)
        return super().__getitem__(i)


@pytest.mark.parametrize("order", ["sequential", "random_access"])
@pytest.mark.parametrize("workers", [0, 2])
def test_h028_a_resume_seeks_and_reads_only_what_it_delivers_and_prefetches(order, workers):
    n, at = 10**8, 9 * 10**7
    how = {"shuffle": True, "order": order} if order != "sequential" else {"shuffle": False}
    if workers:
        how |= {"num_workers": workers, "prefetch_factor": 1, **THREADS}
    read = {}
    for offset in (0, at):
        data = Counted(n)
        with make(data, **how) as loader:
            loader.load_state_dict(loader.state_dict() | {"offset": offset})
            found = walk(loader, steps=1)
            assert [p for p, _, _ in found] == list(range(offset, offset + BATCH))
        assert set(data.read) >= {i for _, i, _ in found}
        read[offset] = len(data.read)
        # One batch delivered, at most `prefetch` and the one being taken made ahead, one probe.
        most = BATCH + 1 if not workers else (workers * 3 + 2) * BATCH
        assert read[offset] <= most
    assert workers or read[0] == read[at]
