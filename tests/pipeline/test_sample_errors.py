"""A sample that fails: who, where and why are told, nothing hangs, nothing is lost."""

import pickle
import sys
import threading

import numpy as np
import pytest
from PIL import Image

import pipeline
from pipeline import DataLoader, SampleError, datasets
from pipeline import transforms as T
from tests import helpers
from tests.helpers import Images, make, walk

pytestmark = pytest.mark.usefixtures("launcher")

HOW = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "mode": "fast"},
    {"num_workers": 0, "mode": "fast"},
    {"num_workers": 3, "worker_method": "thread", "mode": "fast"},
]
how = pytest.mark.parametrize("how", HOW, ids=lambda h: "-".join(str(v) for v in h.values()))
BAD, N = 13, 24


class Failing(Images):
    """Sample 13 fails as `failure` says, as long as `broken` is true here."""

    def __init__(self, failure, broken=None):
        super().__init__(N)
        self.failure = failure

    def __getitem__(self, i):
        if i == BAD:
            self.failure()
        return super().__getitem__(i)


class TwoArguments(Exception):
    def __init__(self, path, code):
        super().__init__(path, code)


class KeywordOnly(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")


class HoldsALock(Exception):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


class Base(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


def raising(make_error):
    def fail():
        raise make_error()

    return fail


FAILURES = {
    "value": (raising(lambda: ValueError("bad pixel 77")), ["ValueError", "bad pixel 77"]),
    "key": (raising(lambda: KeyError("x")), ["KeyError", "'x'"]),
    "two arguments": (raising(lambda: TwoArguments("a.png", 3)), ["TwoArguments", "a.png"]),
    "keyword only": (raising(lambda: KeywordOnly(code=4)), ["KeywordOnly", "code 4"]),
    "unpicklable": (raising(HoldsALock), ["HoldsALock", "locked"]),
    "BaseException": (raising(lambda: Base("base")), ["Base", "base"]),
    "exit": (lambda: sys.exit("leaving"), ["SystemExit", "leaving"]),
    "stop iteration": (raising(lambda: StopIteration("early")), ["StopIteration", "early"]),
    "surrogates": (raising(lambda: OSError("ma\udcf1ana.png")), ["OSError", "ana.png"]),
    "lambda": (lambda: 1 // 0, ["ZeroDivisionError", "division"]),
}


@how
@pytest.mark.parametrize("name", FAILURES)
def test_every_kind_of_exception_is_told_with_its_type_message_and_sample(how, name):
    failure, texts = FAILURES[name]
    with make(Failing(failure), **how) as loader:
        with pytest.raises(SampleError) as e:
            walk(loader)
        text = str(e.value)
        position = loader._order_of(0).ids(np.arange(N, dtype=np.uint64)).tolist().index(BAD)
        for part in (
            *texts,
            f"sample {BAD} (/data/0013.png)",
            "split=train",
            "epoch=0",
            f"position={position}",
            "worker=",
            f"sample_at(0, {position})",
        ):
            assert part in text, part
        assert e.value.fields["sample_id"] == BAD
        assert e.value.fields["position"] == position
        if how["num_workers"]:
            assert "Traceback" in text
            assert "in __getitem__" in text
        else:
            assert e.value.__cause__ is not None


@how
def test_the_one_item_call_of_the_message_shows_the_error_again(how):
    with make(Failing(FAILURES["value"][0]), **how) as loader:
        with pytest.raises(SampleError) as e:
            walk(loader)
        with pytest.raises(ValueError, match="bad pixel 77"):
            loader.sample_at(0, e.value.fields["position"])


@pytest.mark.parametrize("letter", ["x", "é", "𝄞", "\udcf1", "\n"])
def test_a_message_of_ten_million_characters_arrives_cut(letter):
    failure = raising(lambda: ValueError("begin" + letter * 10_000_000 + "end"))
    with make(Failing(failure), num_workers=1) as loader:
        with pytest.raises(SampleError) as e:
            walk(loader)
        text = str(e.value)
        assert "ValueError: begin" in text
        assert "characters left out" in text
        assert "end" in text
        assert len(text) < 4_000_000


def test_an_exception_that_cannot_be_printed_is_told_all_the_same():
    for how_ in HOW[:3]:
        loader = make(Failing(raising(Unprintable)), **how_)
        with loader, pytest.raises(SampleError, match=f"sample {BAD} "):
            walk(loader)


def test_the_error_can_be_pickled():
    import pickle

    with make(Failing(FAILURES["unpicklable"][0]), num_workers=1) as loader:
        with pytest.raises(SampleError) as e:
            walk(loader)
        again = pickle.loads(pickle.dumps(e.value))
        assert str(again) == str(e.value)
        assert again.fields == e.value.fields


# ---------------------------------------------------------------- where it can fail
def _folder(root, n=12):
    for i in range(n):
        path = root / f"class{i % 2}" / f"{i:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(helpers.image(i, 64, 48)).save(path, quality=95)
    return datasets.ImageFolder(root)


@how
def test_a_truncated_jpeg_is_named_with_its_path(how, tmp_path):
    data = _folder(tmp_path)
    path = tmp_path / "class1" / "05.jpg"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    transforms = [T.RandomCrop(32), T.Normalize(preset="imagenet")]
    with make(data, batch_size=3, transforms=transforms, **how) as loader:
        with pytest.raises(SampleError) as e:
            walk(loader)
        assert "class1/05.jpg" in str(e.value)
        assert e.value.fields["stage"] == "read" or "transform" in e.value.fields["stage"]


@how
@pytest.mark.parametrize("transforms", [[], [lambda sample: sample], [T.ToTensor()]])
def test_a_sample_of_another_shape_is_named_with_both_shapes(how, transforms):
    class Uneven(Images):
        def __getitem__(self, i):
            image, label = super().__getitem__(i)
            return (image[:, :10] if i == BAD else image), label

    with make(Uneven(N), shuffle=False, transforms=transforms, **how) as loader:
        with pytest.raises(SampleError) as e:
            walk(loader)
        assert f"sample {BAD} (/data/0013.png)" in str(e.value)
        assert "12, 10" in str(e.value) or "10]" in str(e.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x, y: (x, y, y), "3 elements"),
        (lambda x, y: {"x": x, "y": y}, "of type dict"),
        (lambda x, y: (x, None), "of type NoneType, which has no fixed size"),
        (lambda x, y: None, "of type NoneType"),
    ],
    ids=["more", "dict", "none", "nothing"],
)
def test_a_sample_of_another_kind_is_refused(change, text):
    class Odd(Images):
        def __getitem__(self, i):
            image, label = super().__getitem__(i)
            return change(image, label) if i == BAD else (image, label)

    for how_ in HOW[:4]:
        with make(Odd(N), shuffle=False, transforms=[], **how_) as loader:
            with pytest.raises(SampleError, match=text) as e:
                walk(loader)
            assert e.value.fields["sample_id"] == BAD
            assert e.value.fields["stage"] == "collate"


@how
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_exception_in_a_function_of_the_user_names_the_function(how, place):
    def broken(sample, stream):
        if sample[1] == BAD % 7 and int(np.asarray(sample[0]).size):
            raise RuntimeError("cannot augment")
        return sample

    transforms = [T.RandomHorizontalFlip(), T.RandomCrop(12, padding=2)]
    transforms.insert(place, broken)
    with make(Images(N), transforms=transforms, **how) as loader:
        with pytest.raises(SampleError, match=r"failed in transform .*broken: RuntimeError") as e:
            walk(loader)
        assert "cannot augment" in str(e.value)


@how
def test_the_first_sample_failing_is_told_like_any_other(how):
    def fail():
        raise ValueError("at once")

    class First(Images):
        def __getitem__(self, i):
            fail()

    with make(First(N), **how) as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match=r"at once[\s\S]*epoch=0 position=0"):
                walk(loader)
        assert loader.state_dict()["epoch"] == 0


# ---------------------------------------------------------------- afterwards
@how
def test_after_a_failure_the_loader_goes_on_where_it_was_and_nothing_is_lost(how, tmp_path):
    repaired = tmp_path / "repaired"

    def fail():
        if not repaired.exists():
            raise ValueError("not yet")

    with make(Failing(fail), batch_size=2, **how) as loader:
        found = []
        for _ in range(3):  # it fails again and again, and never loses its place
            with pytest.raises(SampleError):  # noqa: PT012
                for batch in loader:
                    found += helpers.rows(loader, batch)
        state = loader.state_dict()
        assert state["epoch"] == 0
        repaired.write_text("")
        found += walk(loader)
        assert sorted(found) == sorted(walk(make(Images(N))))
        assert loader.epoch == 1
        assert sorted(walk(loader)) == sorted(_epoch(1))


def _epoch(epoch):
    loader = make(Images(N))
    loader.set_epoch(epoch)
    return walk(loader)


@how
def test_many_failures_at_once_hang_nothing(how):
    class Bad(Images):
        def __getitem__(self, i):
            if i % 3:
                raise ValueError(f"sample {i}")
            return super().__getitem__(i)

    with make(Bad(60), shuffle=False, batch_size=2, **how) as loader:
        for _ in range(5):
            with pytest.raises(SampleError, match=r"ValueError: sample \d"):
                walk(loader)


@how
def test_a_failure_in_a_later_epoch_names_that_epoch(how):
    with make(Failing(FAILURES["value"][0]), **how) as loader:
        loader.set_epoch(41)
        with pytest.raises(SampleError, match="epoch=41"):
            walk(loader)


def test_a_failing_sample_in_fast_mode_is_told_although_other_batches_are_full():
    gate = threading.Event()

    class Late(Images):
        def __getitem__(self, i):
            if i == 0:
                gate.wait(60)
                raise ValueError("late")
            return super().__getitem__(i)

    options = {"num_workers": 3, "worker_method": "thread", "mode": "fast"}
    loader = DataLoader(Late(40), batch_size=2, sampler=[1, 0, *range(2, 40)], **options)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    gate.set()
    with pytest.raises(SampleError, match="late"):
        list(iterator)
    loader.close()


def test_every_error_of_ours_survives_pickling():
    import pickle

    for kind in (
        pipeline.ConfigError, pipeline.DatasetError, pipeline.SampleError, pipeline.StateError,
        pipeline.WorkerError, pipeline.InternalError,
    ):  # fmt: skip
        error = kind("what", where="there", do="this", number=3)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert str(again) == "what\n  where: there\n  do: this"
        assert again.fields == {"number": 3}
        assert isinstance(again, pipeline.SamebatchError)


class Torn(Exception):
    """An exception of the user's, with arguments of its own."""

    def __init__(self, path, offset):
        super().__init__(f"{path} is torn at {offset}")


class Demanding(Exception):
    def __new__(cls, *args):
        if len(args) != 3:
            raise TypeError("three arguments, please")
        return super().__new__(cls, *args)


RAISED = {
    "key": (lambda: KeyError("x"), KeyError),
    "file": (lambda: FileNotFoundError(2, "gone", "a.png"), OSError),
    "text": (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ValueError),
    "own": (lambda: Torn("a.png", 7), Torn),
    "stop": (StopIteration, RuntimeError),
    "demanding": (lambda: Demanding(1, 2, 3), RuntimeError),
    "exit": (lambda: SystemExit(3), RuntimeError),
}


@pytest.mark.parametrize(("raised", "kind"), RAISED.values(), ids=RAISED.keys())
@pytest.mark.parametrize("how_", HOW[:2], ids=str)
def test_the_error_is_of_the_type_that_was_raised_too(raised, kind, how_):
    class Bad(Images):
        def __getitem__(self, i):
            if i == BAD:
                raise raised()
            return super().__getitem__(i)

    with make(Bad(N), shuffle=False, transforms=[], **how_) as loader:
        with pytest.raises(kind) as e:
            walk(loader)
        assert isinstance(e.value, SampleError)
        assert str(e.value).startswith(f"sample {BAD} (")
        again = pickle.loads(pickle.dumps(e.value))
        assert (str(again), isinstance(again, kind)) == (str(e.value), True)
