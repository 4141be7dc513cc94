"""The promise, row by row: every byte of every batch is a function of (data, configuration, seed,
phase, position), and of nothing else.
"""

import functools
import itertools
import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

import pipeline
import rng
from tests import helpers
from tests.golden import make as golden
from tests.helpers import ROOT, Images, Slow, fingerprint, make, python, runs, wait_until, walk

pytestmark = pytest.mark.usefixtures("launcher")

N, BATCH = 53, 4


@functools.cache
def reference(epochs=2, **options):
    """The fingerprint that every other way of running must give."""
    with make(Images(N), batch_size=BATCH, **options) as loader:
        return fingerprint(loader, epochs)


@functools.cache
def by_position(n=N, epoch=0, **options):
    """[(position, id, digest)] of a whole epoch, in order."""
    with make(Images(n), **options) as loader:
        loader.set_epoch(epoch)
        return walk(loader)


# ---------------------------------------------------------------- workers, prefetch, start method
ALL_WAYS = list(itertools.product((0, 1, 2, 3, 5, 8), ("process", "thread"), (1, 2, 8)))
# Every worker count with both kinds, every prefetch with both kinds.
SOME_WAYS = [
    (0, "process", 1), (1, "process", 8), (1, "thread", 2), (2, "process", 2), (2, "thread", 1),
    (3, "process", 1), (3, "thread", 8), (5, "process", 2), (5, "thread", 1), (8, "process", 8),
    (8, "thread", 2),
]  # fmt: skip


def _same_bytes(workers, method, prefetch, **options):
    how = {"num_workers": workers, "worker_method": method}
    if workers:
        how["prefetch_factor"] = prefetch
    with make(Slow(N), batch_size=BATCH, **how, **options) as loader:
        assert fingerprint(loader, 2) == reference()


@pytest.mark.parametrize(("workers", "method", "prefetch"), SOME_WAYS)
def test_workers_their_kind_and_prefetch_change_no_byte(workers, method, prefetch):
    _same_bytes(workers, method, prefetch)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "method", "prefetch"), ALL_WAYS)
def test_all_workers_kinds_and_prefetches_change_no_byte(workers, method, prefetch):
    _same_bytes(workers, method, prefetch)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_the_start_method_changes_no_byte(method):
    _same_bytes(2, "process", 2, multiprocessing_context=method)


def test_a_rare_sample_that_is_very_slow_changes_no_byte():
    class Uneven(Images):
        def __getitem__(self, i):
            if i % 25 == 3:
                Slow(N, 200.0)[i]
            return super().__getitem__(i)

    with make(Uneven(N), batch_size=BATCH, num_workers=3) as loader:
        assert fingerprint(loader, 2) == reference()


def test_arrays_in_memory_give_the_bytes_of_the_same_samples_one_by_one():
    data = pipeline.datasets.ArrayDataset(helpers.images(N), np.arange(N) % 7)
    for how in ({}, {"num_workers": 2}, {"num_workers": 3, "worker_method": "thread"}):
        with make(data, batch_size=BATCH, **how) as loader:
            assert fingerprint(loader, 2) == reference()


def test_functions_of_the_user_draw_the_same_numbers_in_every_worker():
    def noise(sample, stream):
        x, y = sample
        return x + stream.integers(0, 9, x.shape).astype(np.uint8), y

    ways = [{}, {"num_workers": 3}, {"num_workers": 2, "worker_method": "thread"}]
    prints = set()
    for how in ways:
        with make(Slow(N, 1.0), transforms=[noise, *helpers.OPS], **how) as loader:
            prints.add(fingerprint(loader, 2))
    assert len(prints) == 1
    assert prints != {reference()}


@pytest.mark.parametrize("value", ["0", "1", "random"])
def test_the_hash_seed_of_python_changes_no_byte(value):
    code = (
        "from tests.helpers import *\n"
        f"with make(Images({N}), batch_size={BATCH}, num_workers=1) as loader:\n"
        "    print(fingerprint(loader, 2), loader.state_dict()['transforms'])\n"
    )
    print_, transforms = python(code, env={"PYTHONHASHSEED": value}).stdout.split()
    assert print_ == reference()
    assert transforms == make(Images(N)).state_dict()["transforms"]


def test_each_seed_split_epoch_and_lane_count_gives_other_bytes():
    changes = [{}, {"seed": 8}, {"split": "val"}, {"split": "probe"}, {"lanes": 4}]
    assert len({reference(**change) for change in changes}) == len(changes)
    assert by_position(epoch=0) != by_position(epoch=1)


# ---------------------------------------------------------------- batch size and world size
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 16, 53, 64])
def test_the_batch_size_changes_no_pixel_of_a_sample(batch):
    for how in ({}, {"num_workers": 2, "worker_method": "thread"}):
        with make(Images(N), batch_size=batch, **how) as loader:
            assert walk(loader) == by_position()


@pytest.mark.parametrize("batch", [1, 3, 4, 12])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_world_size_changes_nothing_of_the_global_sequence(world, batch):
    ranks = [
        make(Images(N), batch_size=batch, rank=r, world_size=world, num_workers=r % 2)
        for r in range(world)
    ]
    with ranks[0], ranks[-1]:
        merged = []
        for parts in itertools.zip_longest(*ranks):
            of_step = [row for r, part in enumerate(parts) for row in helpers.rows(ranks[r], part)]
            merged += of_step
        assert merged == by_position()
    for loader in ranks:
        loader.close()


def test_the_same_global_batch_on_other_worlds_is_the_same_batch():
    batches = []
    for world in (1, 2, 3, 4):
        ranks = [
            make(Images(N), batch_size=12 // world, rank=r, world_size=world) for r in range(world)
        ]
        batches.append(
            [
                [row for r, part in enumerate(parts) for row in helpers.rows(ranks[r], part)]
                for parts in zip(*ranks, strict=True)
            ]
        )
    assert all(other == batches[0] for other in batches)


# ---------------------------------------------------------------- resume
WAYS = [
    {"num_workers": 0},
    {"num_workers": 1, "batch_size": 3},
    {"num_workers": 2, "worker_method": "thread", "batch_size": 7},
    {"num_workers": 3, "prefetch_factor": 1},
    {"num_workers": 5, "worker_method": "thread", "batch_size": 1},
]
STEPS = -(-N // BATCH)


def _state_at(step, **options):
    with make(Images(N), **{"batch_size": BATCH} | options) as loader:
        found = walk(loader, steps=step)
        return found, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_resume_from_every_step_with_other_workers_and_batch_sizes(way):
    for step in range(STEPS):
        done, state = _state_at(step, **WAYS[(way + step) % 2] | {"batch_size": BATCH})
        how = WAYS[way]
        with make(Images(N), **how) as loader:
            loader.load_state_dict(state)
            assert done + walk(loader) == by_position()
            if step % 4 == 0:
                assert walk(loader) == by_position(epoch=1)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 3), (2, 1), (2, 3), (3, 4), (4, 1)])
def test_resume_from_every_step_on_another_world_size(before, after):
    for step in range(0, N // (3 * before) + 1):
        savers = [make(Images(N), batch_size=3, rank=r, world_size=before) for r in range(before)]
        done, states = [], []
        for saver in savers:
            done += walk(saver, steps=step)
            states.append(saver.state_dict())
        assert all(state == states[0] for state in states)
        assert sorted(done) == by_position()[: len(done)]
        loaders = [make(Images(N), rank=r, world_size=after) for r in range(after)]
        for loader in loaders:
            loader.load_state_dict(states[0])
        rest = []
        for parts in zip(*loaders, strict=True):
            for r, part in enumerate(parts):
                rest += helpers.rows(loaders[r], part)
        assert rest == by_position()[len(done) :]


@pytest.mark.parametrize(
    ("step", "how"),
    [(0, WAYS[1]), (5, WAYS[2]), (STEPS - 1, WAYS[3]), (STEPS, WAYS[0])],
)
def test_resume_in_a_fresh_process(step, how):
    done, state = _state_at(step)
    rest, after = helpers.resumed(state, n=N, **how)
    expected = by_position()[len(done) :] if step < STEPS else by_position(epoch=1)
    assert rest == expected
    assert after["epoch"] == (1 if step < STEPS else 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("step", range(STEPS + 1))
def test_resume_from_every_step_in_a_fresh_process(step, way):
    done, state = _state_at(step)
    rest, _ = helpers.resumed(state, n=N, **WAYS[way])
    assert rest == (by_position()[len(done) :] if step < STEPS else by_position(epoch=1))


def test_many_stops_at_many_places_change_nothing():
    choose = random.Random(5)  # which stops to try; no byte hangs on it
    for _ in range(12):
        found, state = [], {}
        while len(found) < 2 * N:
            how = choose.choice(WAYS)
            with make(Images(N), **how) as loader:
                loader.load_state_dict(state)
                found += walk(loader, steps=choose.randint(1, 9))
                state = json.loads(json.dumps(loader.state_dict()))
        assert found[: 2 * N] == by_position() + by_position(epoch=1)


def test_resume_in_a_later_epoch_continues_its_order_and_not_the_first_ones():
    with make(Images(N)) as loader:
        loader.set_epoch(2)
        done = walk(loader, steps=4)
        state = loader.state_dict()
    with make(Images(N), num_workers=2) as other:
        other.load_state_dict(state)
        assert done + walk(other) == by_position(epoch=2)
        assert other.epoch == 3


# ---------------------------------------------------------------- fast mode
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("method", ["process", "thread"])
def test_fast_mode_gives_each_sample_once_with_the_same_bytes(workers, method):
    how = {"num_workers": workers, "worker_method": method, "mode": "fast"}
    for batch in (1, 4, 60):
        with make(Slow(N, 2.0), batch_size=batch, **how) as loader:
            for epoch in range(2):
                sizes, found = [], []
                for one in loader:
                    sizes.append(len(one[1]))
                    found += helpers.rows(loader, one)
                assert sorted(found) == by_position(epoch=epoch)
                whole, rest = divmod(N, batch)
                assert sizes == [batch] * whole + [rest] * (rest > 0)


def test_the_set_digest_is_equal_in_both_modes(tmp_path):
    digests = set()
    for number, how in enumerate(
        (
            {},
            {"mode": "fast", "num_workers": 3},
            {"mode": "fast", "batch_size": 9},
            {"num_workers": 2},
        )
    ):
        with make(Slow(N, 2.0), audit=tmp_path / str(number), **how) as loader:
            for _ in loader:
                pass
            digests.add(loader.digest.set)
            assert loader.digest.samples == N
    assert len(digests) == 1


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("method", ["process", "thread"])
def test_fast_mode_resumes_from_every_step_with_each_sample_once(method, drop):
    how = {"num_workers": 3, "worker_method": method, "mode": "fast", "drop_last": drop}
    steps = N // BATCH if drop else STEPS
    expected = by_position()[: BATCH * steps if drop else N]
    for step in range(steps + 1):
        with make(Slow(N, 3.0), **how) as loader:
            done = walk(loader, steps=step)
            state = json.loads(json.dumps(loader.state_dict()))
        assert len(json.dumps(state)) < 4096
        with make(Slow(N, 1.0), **how | {"num_workers": 2}) as other:
            other.load_state_dict(state)
            if step == steps:
                assert (state["epoch"], state["offset"]) == (1, 0)
                continue
            again = walk(other, steps=1)
            state = json.loads(json.dumps(other.state_dict()))
        with make(Images(N), **how | {"num_workers": step % 2}) as third:
            third.load_state_dict(state)
            rest = walk(third) if state["epoch"] == 0 else []
        assert sorted(done + again + rest) == expected


def test_fast_mode_resumes_on_each_rank_with_each_sample_once():
    found = []
    for rank in range(2):
        how = {"num_workers": 2, "mode": "fast", "rank": rank, "world_size": 2, "batch_size": 3}
        with make(Slow(N, 3.0), **how) as loader:
            found += walk(loader, steps=3)
            state = loader.state_dict()
        with make(Images(N), **how) as other:
            other.load_state_dict(state)
            found += walk(other)
    assert sorted(found) == by_position()


def test_a_fast_state_resumes_in_reproducible_mode_and_the_other_way_round():
    for first, second in (("fast", "reproducible"), ("reproducible", "fast")):
        for step in (1, 4, 9):
            with make(Slow(N, 5.0), num_workers=3, mode=first, batch_size=1) as loader:
                done = walk(loader, steps=step)
                state = json.loads(json.dumps(loader.state_dict()))
            with make(Images(N), num_workers=2, mode=second) as other:
                other.load_state_dict(state)
                again = walk(other, steps=2)  # and once more, from the second one's state
                state = json.loads(json.dumps(other.state_dict()))
            with make(Images(N), mode=second) as third:
                third.load_state_dict(state)
                assert sorted(done + again + walk(third)) == by_position()
                assert third.epoch == 1


# ---------------------------------------------------------------- killed workers
def _walk_and_kill(loader, every, number=signal.SIGKILL):
    found, killed = [], 0
    for step, batch in enumerate(loader):
        found += helpers.rows(loader, batch)
        if step % every == every - 1:
            victims = list(_victims(loader))
            if victims:
                os.kill(victims[step % len(victims)], number)
                killed += 1
    return found, killed


def _victims(loader):
    """Workers that may be killed: a chunk whose third worker dies is given up as deadly."""
    engine = loader._engine
    loader.worker_pids()
    for worker, pid in engine.pool._pids.items():
        if runs(pid) and engine._kills.get(engine.station.holds(worker), 0) < 2:
            yield pid


@pytest.mark.kill
@pytest.mark.parametrize("mode", ["reproducible", "fast"])
@pytest.mark.parametrize("every", [1, 3])
def test_killed_workers_change_no_byte_and_lose_nothing(mode, every):
    with make(Slow(N, 4.0), num_workers=3, mode=mode) as loader:
        for epoch in range(2):
            found, killed = _walk_and_kill(loader, every)
            assert killed
            assert (sorted(found) if mode == "fast" else found) == by_position(epoch=epoch)


@pytest.mark.kill
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_the_way_a_worker_dies_does_not_matter(number):
    with make(Slow(N, 2.0), num_workers=2) as loader:
        found, _ = _walk_and_kill(loader, 4, number)
        assert found == by_position()


@pytest.mark.kill
def test_a_spawned_worker_is_replaced_too():
    with make(Slow(N, 2.0), num_workers=2, multiprocessing_context="spawn") as loader:
        iterator = iter(loader)
        found = helpers.rows(loader, next(iterator))
        assert wait_until(lambda: len(loader.worker_pids()) == 2, 60)
        os.kill(loader.worker_pids()[0], signal.SIGKILL)
        for batch in iterator:
            found += helpers.rows(loader, batch)
        assert found == by_position()


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reproducible", "fast"])
@pytest.mark.parametrize("round_", range(20))
def test_workers_killed_at_many_moments_change_no_byte(mode, round_):
    data = Slow(N, 1.0 + round_ % 5)
    with make(data, num_workers=1 + round_ % 4, batch_size=1 + round_ % 6, mode=mode) as loader:
        for epoch in range(2):
            every = 1 + round_ % 3
            found, _ = _walk_and_kill(loader, every)
            assert sorted(found) == by_position(epoch=epoch)


@pytest.mark.kill
@pytest.mark.parametrize("death", ["kill", "exit", "segfault"])
def test_a_sample_that_always_kills_its_worker_is_named(death):
    class Deadly(Images):
        def __getitem__(self, i):
            if i == 11:
                if death == "exit":
                    os._exit(3)
                os.kill(os.getpid(), signal.SIGKILL if death == "kill" else signal.SIGSEGV)
            return super().__getitem__(i)

    cause = {"kill": "SIGKILL", "exit": "exit status 3", "segfault": "SIGSEGV"}[death]
    with make(Deadly(N), shuffle=False, num_workers=2, batch_size=1) as loader:
        iterator = iter(loader)
        found = []
        with pytest.raises(pipeline.WorkerError) as e:  # noqa: PT012
            for batch in iterator:
                found += helpers.rows(loader, batch)
        assert e.value.fields["positions"] == [11]
        assert e.value.fields["sample_ids"] == [11]
        assert cause in str(e.value)
        assert "/data/0011.png" in str(e.value)
        assert found == by_position(shuffle=False)[: len(found)]
        # and the loader can go on behind it
        state = loader.state_dict()
        loader.load_state_dict(state | {"offset": 12})
        assert walk(loader) == by_position(shuffle=False)[12:]


@pytest.mark.kill
def test_a_launcher_that_is_killed_is_replaced(launcher):
    with make(Slow(N, 4.0), num_workers=2, multiprocessing_context="spawn") as loader:
        iterator = iter(loader)
        found = helpers.rows(loader, next(iterator))
        os.kill(loader._engine.pool._launcher._process.pid, signal.SIGKILL)
        for batch in iterator:
            found += helpers.rows(loader, batch)
        assert found == by_position()


# ---------------------------------------------------------------- the end of everything
ENDLESS = """
import os, sys
from tests.helpers import *
with make(Slow(1000, 5.0), batch_size=8, **{how!r}) as loader:
    told = False
    while True:
        for batch in loader:
            if not told and len(loader.worker_pids()) == 2:
                pool = loader._engine.pool
                print(*loader.worker_pids(), pool._launcher._process.pid,
                      pool._inbox.endpoint.removeprefix("ipc://"), flush=True)
                told = True
"""


def _endless(tmp_path, **how):
    code = ENDLESS.format(how={"num_workers": 2} | how)
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    line = child.stdout.readline().split()
    assert len(line) == 4, child.stderr.read()
    return child, [int(pid) for pid in line[:3]], line[3]


def _socket_open(name):
    with open("/proc/net/unix") as f:
        return name in f.read()


def _end(child):
    if child.poll() is None:
        child.kill()
    child.wait(30)
    child.stdout.close()
    child.stderr.close()


def _our_names() -> set[str]:
    """Names in /dev/shm that could be ours; other programs make some at any time."""
    return {name for name in os.listdir("/dev/shm") if "samebatch" in name}


@pytest.mark.kill
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_after_sigkill_of_the_loaders_process_nothing_is_left(method, tmp_path):
    shared = _our_names()
    child, pids, name = _endless(tmp_path, multiprocessing_context=method)
    try:
        assert _socket_open(name)
        child.kill()
        assert wait_until(lambda: not any(map(runs, pids)), 2.0)
        assert wait_until(lambda: not _socket_open(name), 2.0)
        assert list(tmp_path.iterdir()) == []
        assert _our_names() <= shared
    finally:
        _end(child)


@pytest.mark.kill
def test_after_sigkill_of_the_launcher_and_all_nothing_is_left(tmp_path):
    child, pids, name = _endless(tmp_path)
    try:
        os.killpg(child.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(map(runs, pids)), 2.0)
        assert wait_until(lambda: not _socket_open(name), 2.0)
        assert list(tmp_path.iterdir()) == []
    finally:
        _end(child)


@pytest.mark.kill
def test_ctrl_c_ends_with_one_keyboard_interrupt_and_nothing_left(tmp_path):
    child, pids, _name = _endless(tmp_path)
    try:
        os.killpg(child.pid, signal.SIGINT)
        assert wait_until(lambda: child.poll() is not None, 20.0)
        assert wait_until(lambda: not any(map(runs, pids)), 2.0)
        said = child.stderr.read()
        assert said.count("KeyboardInterrupt") == 1, said
        assert said.count("Traceback") == 1, said
        assert list(tmp_path.iterdir()) == []
    finally:
        _end(child)


@pytest.mark.kill
def test_ctrl_c_while_workers_start_ends_cleanly(tmp_path):
    code = (
        "from tests.helpers import *\n"
        "import pipeline.workers.pool as pool\n"
        "start = pool.ProcessPool.start\n"
        "def tell(self, worker):\n"
        "    start(self, worker)\n"
        "    print(self._launcher._process.pid, flush=True)\n"
        "pool.ProcessPool.start = tell\n"
        "with make(Slow(100), num_workers=2) as loader:\n"
        "    list(loader)\n"
        "    print('done', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        pid = int(child.stdout.readline())
        os.killpg(child.pid, signal.SIGINT)  # the launcher imports numba now
        assert wait_until(lambda: child.poll() is not None, 30.0)
        assert wait_until(lambda: not runs(pid), 2.0)
        said = child.stderr.read()
        assert said.count("KeyboardInterrupt") == 1, said
        assert said.count("Traceback") == 1, said
    finally:
        _end(child)


# ---------------------------------------------------------------- what is not ours
@pytest.mark.parametrize(
    "how", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str
)
def test_global_generators_are_never_touched(how):
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    torch_before = torch.random.get_rng_state() if torch else None
    with make(Images(N), **how) as loader:
        for _ in range(2):
            walk(loader)
    after = random.getstate(), np.random.get_state()
    assert before[0] == after[0]
    assert before[1][0] == after[1][0]
    assert np.array_equal(before[1][1], after[1][1])
    assert before[1][2:] == after[1][2:]
    if torch:
        assert torch.equal(torch_before, torch.random.get_rng_state())


def test_seeding_global_generators_changes_nothing():
    random.seed(99)
    np.random.seed(99)
    with make(Images(N), batch_size=BATCH) as loader:
        assert fingerprint(loader, 2) == reference()


# ---------------------------------------------------------------- golden
GOLDEN = json.loads((ROOT / "tests" / "golden" / f"v{rng.STREAM_VERSION}.json").read_text())


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    return golden.phases(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", GOLDEN["phases"])
@pytest.mark.parametrize(
    "how", [{}, {"num_workers": 2}, {"num_workers": 3, "worker_method": "thread"}], ids=str
)
def test_whole_phases_have_the_bytes_that_were_promised(phases, name, how):
    assert golden.digest(*phases[name], **how) == GOLDEN["phases"][name]


def test_every_golden_phase_is_tested(phases):
    assert list(phases) == list(GOLDEN["phases"])
    assert GOLDEN["stream_version"] == rng.STREAM_VERSION
