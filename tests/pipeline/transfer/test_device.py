"""Device feeding on a device made of plain memory, whose copies come as late as they may."""

import collections
import dataclasses
import doctest
import gc
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pipeline  # noqa: E402
from pipeline.errors import ConfigError, SampleError, StateError  # noqa: E402
from pipeline.transfer.arena import Arena  # noqa: E402
from pipeline.transfer.device import Pinned, map_tensors, pin, to_device  # noqa: E402
from tests.helpers import ROOT, Images, Numbers, make  # noqa: E402


class Late:
    """A copy is made when its event is waited for on the host, and not a moment earlier.

    What the consumer's stream waits for is only noted: a batch that is delivered has its bytes once
    `used`, or an event after it, is finished. Memory that nobody references may not be read.
    """

    def __init__(self):
        self.queue = []  # (target, source) of copies not made yet; None where made
        self.made = 0
        self.handed = 0
        self.registered = {}
        self.refuse = ""
        self.fail_at = None

    def copy(self, tensor):
        if self.fail_at is not None and len(self.queue) >= self.fail_at:
            self.fail_at = None
            raise RuntimeError("no memory on the device")
        target = torch.full_like(tensor, 77)
        # A pointer, as a device has it: it keeps nothing alive.
        self.queue.append((target, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)))
        return target

    def mark(self):
        return len(self.queue)

    def hand_over(self, event, tensors):
        assert event >= self.handed
        self.handed = event
        assert all(isinstance(t, torch.Tensor) for t in tensors)

    def used(self):
        return self.handed

    def happened(self, event):
        return self.made >= event

    def finish(self, event):
        while self.made < event:
            target, at, dtype, shape = self.queue[self.made]
            nbytes = target.numel() * target.element_size()
            if nbytes:
                memory = (np.ctypeslib.ctypes.c_uint8 * nbytes).from_address(at)
                source = torch.frombuffer(memory, dtype=dtype).reshape(shape)
                target.copy_(source)
            self.queue[self.made] = None
            self.made += 1

    def register(self, address, nbytes):
        assert address not in self.registered
        if not self.refuse:
            self.registered[address] = nbytes
        return self.refuse

    def unregister(self, address):
        assert not [e for e in self.queue[self.made :] if self.within(e, address)]
        del self.registered[address]

    def within(self, entry, address):
        return address <= entry[1] < address + self.registered[address]


def host(loader, steps=None):
    found = []
    for step, batch in enumerate(loader, 1):
        found.append([a.tobytes() for a in batch])
        if step == steps:
            break
    return found


def bytes_of(batches):
    return [[t.numpy().tobytes() for t in batch] for batch in batches]


def collect(feeder, backend, steps=None):
    """The batches of a pass, read only at its end."""
    kept = []
    for step, batch in enumerate(feeder, 1):
        kept.append(batch)
        if step == steps:
            break
    backend.finish(backend.used())
    return bytes_of(kept)


def samples(batches):
    """The bytes of every single image, sorted."""
    size = 12 * 12 * 3 * 4
    images = [b[0] for b in batches]
    return sorted(one[at : at + size] for one in images for at in range(0, len(one), size))


WAYS = [
    {"num_workers": 0},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "worker_method": "thread", "mode": "fast"},
]


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("options", WAYS)
def test_bytes_on_the_device_are_the_arenas_and_slots_wait_for_their_copies(options, ahead):
    backend = Late()
    with make(Images(90), **options) as plain:
        want = host(plain) + host(plain)
    feeder = to_device(make(Images(90), **options), "cpu", ahead=ahead, backend=backend)
    with feeder:
        got = collect(feeder, backend) + collect(feeder, backend)
    if options.get("mode") == "fast":  # each sample once, whichever batch it came in
        assert samples(got) == samples(want)
    else:
        assert got == want
    assert backend.registered == {}


def test_buffers_are_pinned_once_and_unpinned_before_they_go():
    backend = Late()
    loader = make(Images(30), num_workers=2, worker_method="thread")
    feeder = to_device(loader, "cpu", backend=backend)
    for _ in range(3):
        collect(feeder, backend)
        assert len(backend.registered) == 1
    (address, nbytes), *_ = backend.registered.items()
    memory = loader.buffers
    assert (address, nbytes) == (memory.ctypes.data, memory.nbytes)
    loader.close()  # the user closes the loader itself: another engine in the next pass
    collect(feeder, backend)
    assert len(backend.registered) == 1
    assert next(iter(backend.registered)) == loader.buffers.ctypes.data
    feeder.close()
    assert backend.registered == {}


def test_without_permission_to_pin_it_warns_and_goes_on():
    backend = Late()
    backend.refuse = "out of memory"
    feeder = to_device(make(Images(20)), "cpu", backend=backend)
    with pytest.warns(RuntimeWarning, match=r"could not be pinned \(out of memory\)"):
        got = collect(feeder, backend)
    with make(Images(20)) as plain:
        assert got == host(plain)
    feeder.close()


# ---------------------------------------------------------------- states
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("options", WAYS[:2])
def test_states_count_what_was_delivered(options, ahead):
    backend = Late()
    with make(Images(30), **options) as plain:
        states, rows = [plain.state_dict()], []
        for batch in plain:
            rows.append([a.tobytes() for a in batch])
            states.append(plain.state_dict())
    with to_device(make(Images(30), **options), "cpu", ahead=ahead, backend=backend) as feeder:
        assert feeder.state_dict() == states[0]
        for step, _ in enumerate(feeder, 1):
            assert feeder.state_dict() == states[step]
        assert feeder.state_dict() == states[-1]
        for step in (3, 7, 0):
            feeder.load_state_dict(states[step])
            assert feeder.state_dict() == states[step]
            assert collect(feeder, backend) == rows[step:]


def test_a_state_loaded_during_a_pass_moves_the_running_iterator():
    backend = Late()
    with make(Images(30)) as plain:
        rows = host(plain)
    with to_device(make(Images(30)), "cpu", ahead=2, backend=backend) as feeder:
        batches = iter(feeder)
        next(batches)
        saved = feeder.state_dict()
        for _ in range(6):
            next(batches)  # the loader itself is at the end
        feeder.load_state_dict(saved)
        rest = list(batches)
        backend.finish(backend.used())
        assert bytes_of(rest) == rows[1:]
        with pytest.raises(StateError):
            feeder.load_state_dict({**saved, "seed": 8})


def test_a_pass_that_is_left_early_is_as_with_the_loader_alone():
    backend = Late()
    with make(Images(30)) as plain:
        host(plain, 3)
        state = plain.state_dict()
        second = host(plain)
    with to_device(make(Images(30)), "cpu", ahead=2, backend=backend) as feeder:
        collect(feeder, backend, 3)
        gc.collect()
        assert feeder.state_dict() == state  # not of what was copied ahead
        assert collect(feeder, backend) == second  # the next epoch
        feeder.set_epoch(0)
        assert feeder.epoch == 0
        first = iter(feeder)
        next(first)
        again = iter(feeder)
        next(again)
        with pytest.raises(StateError, match="superseded"):
            next(first)


def test_epoch_and_last_are_those_of_the_delivered_batch():
    backend = Late()
    with to_device(make(Images(8)), "cpu", backend=backend) as feeder:
        plain = make(Images(8))
        for _ in range(2):
            for _, _ in zip(plain, feeder, strict=True):
                assert feeder.epoch == plain.epoch
                assert feeder.last.positions.tolist() == plain.last.positions.tolist()
        assert feeder.epoch == 2
        assert feeder.seed == 7
        assert len(feeder) == 2
        want = plain.batch_at(1, 1)
        assert [t.numpy().tobytes() for t in feeder.batch_at(1, 1)] == [a.tobytes() for a in want]
        plain.close()


# ---------------------------------------------------------------- errors
class Faulty(Images):
    def __getitem__(self, i):
        if i == 10:
            raise ValueError("bad pixels")
        return super().__getitem__(i)


def test_an_error_of_a_sample_comes_after_the_batches_before_it():
    backend = Late()
    plain = make(Faulty(24), shuffle=False)
    feeder = to_device(make(Faulty(24), shuffle=False), "cpu", ahead=3, backend=backend)
    for loader in (plain, feeder):
        got = []
        with pytest.raises(SampleError, match="bad pixels"):
            got.extend(loader)  # 8 samples are in order
        batches = iter(loader)
        with pytest.raises(SampleError):
            next(batches)
    assert feeder.state_dict() == plain.state_dict()
    assert feeder.state_dict()["offset"] == 8
    feeder.close()
    plain.close()


def test_after_a_failing_copy_nothing_is_lost():
    backend = Late()
    with make(Images(30)) as plain:
        rows = host(plain)
    with to_device(make(Images(30)), "cpu", ahead=2, backend=backend) as feeder:
        batches = iter(feeder)
        kept = [next(batches), next(batches)]
        state = feeder.state_dict()
        backend.fail_at = len(backend.queue)
        with pytest.raises(RuntimeError, match="no memory"):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)
        assert feeder.state_dict() == state
        rest = list(feeder)  # the pass is still due
        backend.finish(backend.used())
        assert bytes_of(kept + rest) == rows


class Interrupted(Images):
    armed = False

    def __getitem__(self, i):
        if self.armed and i == 13:
            self.armed = False
            raise KeyboardInterrupt
        return super().__getitem__(i)


def test_ctrl_c_loses_no_batch_that_was_copied_ahead():
    backend = Late()
    with make(Interrupted(24), shuffle=False) as plain:
        rows = host(plain)
    data = Interrupted(24)
    with to_device(make(data, shuffle=False), "cpu", ahead=2, backend=backend) as feeder:
        data.armed = True
        kept = []
        with pytest.raises(KeyboardInterrupt):
            kept.extend(feeder)
        backend.finish(backend.used())
        assert feeder.state_dict()["offset"] == 4 * len(kept)
        rest = list(feeder)
        backend.finish(backend.used())
        assert bytes_of(kept + rest) == rows


def test_threads_may_share_an_iterator():
    backend = Late()
    with to_device(make(Images(80)), "cpu", ahead=2, backend=backend) as feeder:
        batches, got = iter(feeder), []

        def pull():
            got.extend(batches)

        threads = [threading.Thread(target=pull) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        backend.finish(backend.used())
        with make(Images(80)) as plain:
            assert sorted(bytes_of(got)) == sorted(host(plain))


def test_the_host_runs_two_steps_ahead_at_most():
    backend = Late()
    with to_device(make(Images(80)), "cpu", backend=backend) as feeder:
        for step, _ in enumerate(feeder, 1):
            assert step - backend.made // 2 <= 3  # two tensors a batch


# ---------------------------------------------------------------- without CUDA
def test_without_cuda_batches_are_tensors_that_share_the_loaders_memory():
    loader = make(Images(12))
    with to_device(loader, "cpu") as feeder:
        for images, _ in feeder:
            start = loader.buffers.ctypes.data
            assert isinstance(images, torch.Tensor)
            assert start <= images.data_ptr() < start + loader.buffers.nbytes
        assert feeder.state_dict() == loader.state_dict()
    with make(Images(12), output="torch") as loader:
        assert len(list(to_device(loader, "cpu"))) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_warns_and_stays_on_the_cpu():
    with pytest.warns(RuntimeWarning, match="no CUDA device"):
        feeder = to_device(make(Images(4)), "cuda")
    assert feeder.device.type == "cpu"
    assert next(iter(feeder))[0].device.type == "cpu"
    feeder.close()
    with pytest.raises(ConfigError, match="CUDA"):
        pin(np.zeros(10))
    assert pipeline.to_device(make(Images(4))).device.type == "cpu"


def test_odd_arguments_are_refused():
    for ahead in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="ahead"):
            to_device([], "cpu", ahead=ahead)
    with pytest.raises(ConfigError, match="no device"):
        to_device([], "nonsense")


# ---------------------------------------------------------------- any loader, any container
Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Record:
    x: np.ndarray
    name: str


def test_containers_stay_and_what_is_no_tensor_is_untouched():
    words, other = ["a", "b"], object()
    default = collections.defaultdict(list, {"k": np.arange(3)})
    batch = {
        "pair": Pair(np.ones(2), 3),
        "list": [torch.zeros(2), (np.arange(2), None)],
        "words": words,
        "other": other,
        "text": np.array(["x", "y"]),
        "record": Record(np.zeros(1), "n"),
        "default": default,
    }
    got = map_tensors(batch, lambda t: t + 1)
    assert type(got["pair"]) is Pair
    assert got["pair"].x.tolist() == [2, 2]
    assert got["list"][0].tolist() == [1, 1]
    assert got["list"][1][0].tolist() == [1, 2]
    assert got["words"] is words
    assert got["other"] is other
    assert got["text"] is batch["text"]
    assert got["record"].x.tolist() == [1]
    assert got["default"]["k"].tolist() == [1, 2, 3]
    assert got["default"].default_factory is list
    assert default["k"].tolist() == [0, 1, 2]


def test_arrays_that_torch_cannot_share_are_copied():
    fixed = np.arange(3)
    fixed.flags.writeable = False
    got = map_tensors([fixed, np.arange(4)[::-1]], lambda t: t)
    assert [t.tolist() for t in got] == [[0, 1, 2], [3, 2, 1, 0]]


def test_any_iterable_of_batches_will_do():
    backend = Late()
    feeder = to_device([(np.full(3, i), str(i)) for i in range(5)], "cpu", backend=backend)
    got = list(feeder)
    backend.finish(backend.used())
    assert [(t.tolist(), s) for t, s in got] == [([i] * 3, str(i)) for i in range(5)]
    with pytest.raises(AttributeError):
        feeder.state_dict()
    feeder.close()
    with to_device(make(Numbers(5), transforms=[]), "cpu", backend=Late()) as numbers:
        assert len(list(numbers)) == 2


def test_an_arena_is_pinned_and_lives_until_it_is_not(monkeypatch):
    backend = Late()
    arena = Arena.create(8192, "test")
    pinned = pin(arena, backend)
    assert list(backend.registered.values()) == [8192]
    arena.close()
    assert pinned.memory[:4].tolist() == [0] * 4  # still mapped
    pinned.close()
    pinned.close()
    assert backend.registered == {}
    forgotten = Pinned(np.zeros(64, np.uint8), backend)
    assert backend.registered
    del forgotten
    gc.collect()
    assert backend.registered == {}
    with pytest.raises(ConfigError, match="contiguous"):
        pin(np.zeros((4, 4))[:, 1], backend)
    parents = pin(np.zeros(64), backend)
    monkeypatch.setattr("pipeline.transfer.device.os.getpid", lambda: 1)  # as in a forked child
    parents.close()
    assert backend.registered


def test_the_examples_of_the_page_run():
    found = doctest.testfile(str(ROOT / "docs" / "device.md"), module_relative=False)
    assert found.attempted > 5
    assert found.failed == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("options", WAYS[:2])
def test_on_a_real_device(options):
    with make(Images(90), **options) as plain:
        want = host(plain)
    loader = make(Images(90), **options)
    with to_device(loader, "cuda") as feeder:
        kept = list(feeder)
        assert torch.from_numpy(loader.buffers).is_pinned()
        assert [[t.cpu().numpy().tobytes() for t in b] for b in kept] == want
    assert not torch.from_numpy(np.zeros(8)).is_pinned()


@pytest.mark.parametrize("loader", [None, 7], ids=repr)
def test_what_has_no_batches_is_refused_by_name(loader):
    with pytest.raises(ConfigError, match="loader must be a loader"):
        to_device(loader, "cpu")
