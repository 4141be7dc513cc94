"""Cases from the field: what one is told, and one sample alone (H076 to H078)."""

import re

import numpy as np
import pytest
from PIL import Image

from pipeline import SampleError, datasets
from pipeline import transforms as T
from tests.helpers import Images, leaves, make, walk

pytestmark = pytest.mark.usefixtures("launcher")
BAD, N, EPOCH = 13, 24, 2


class FailsInRead(Images):
    def __getitem__(self, i):
        if i == BAD:
            raise ValueError("not to be read")
        return super().__getitem__(i)


class TooSmall(Images):
    """Sample 13 is smaller than the crop."""

    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return (image[:4, :4] if i == BAD else image), label


class NoColours(Images):
    """Sample 13 has no three channels."""

    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return (image[:, :, :2] if i == BAD else image), label


def fails_in_a_function(sample):
    if np.array_equal(sample[0], Images(N)[BAD][0]):
        raise ValueError("not to be changed")
    return sample


def fails_in_collate(samples):
    raise ValueError(f"{len(samples)} samples not to be put together")


# What fails: (dataset, settings, stage, text of the cause).
FAILURES = {
    "read": (FailsInRead(N), {"transforms": []}, "read", "not to be read"),
    "function": (
        Images(N), {"transforms": [fails_in_a_function]}, "transform", "not to be changed",
    ),
    "crop": (TooSmall(N), {"transforms": [T.RandomCrop(8)]}, "transform", "8"),
    "normalize": (
        NoColours(N), {"transforms": [T.Normalize(preset="cifar10")]}, "transform", "channels",
    ),
    "collate": (
        Images(N), {"transforms": [], "collate_fn": fails_in_collate}, "collate",
        "not to be put together",
    ),
}  # fmt: skip
HOW = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("how", HOW, ids=["inline", "processes", "threads"])
def test_h076_an_error_says_which_sample_where_and_how_to_see_it_again(failure, how):
    data, settings, stage, cause = FAILURES[failure]
    with make(data, **settings, **how) as loader:
        loader.set_epoch(EPOCH)
        with pytest.raises(SampleError) as e:
            walk(loader)
        told, fields = str(e.value), e.value.fields
        sample, position = fields["sample_id"], fields["position"]
        if failure != "collate":
            assert sample == BAD
        assert cause in told
        assert stage in fields["stage"]
        for fact in (
            f"sample {sample} (/data/{sample:04d}.png)",
            f"epoch={EPOCH}", f"position={position}", "worker", fields["stage"],
        ):  # fmt: skip
            assert fact in told
        # A sample does not fail alone where it fails to go together with others.
        call, number = (
            ("sample_at", position) if stage != "collate" else ("batch_at", position // 4)
        )
        assert f"loader.{call}({EPOCH}, {number})" in told
        with pytest.raises(Exception, match=cause):
            getattr(loader, call)(EPOCH, number)


class Uneven(Images):
    """Sample 13 is of another size, which shows when it is put beside others."""

    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return (image[:, :10] if i == BAD else image), label


BATCHES = {
    "plain": {"batch_size": 5},
    "listed": {
        "batch_sampler": [[0, 1], [2, 3, 4, 5, 6], [7], [8, 9, 10, 11, BAD, 14], [15, 16]],
        "batch_size": 1,
        "shuffle": False,
    },
}


@pytest.mark.parametrize("batches", BATCHES)
def test_h076_the_call_that_is_told_makes_the_failing_batch(batches):
    with make(Uneven(N), transforms=[], **BATCHES[batches]) as loader:
        with pytest.raises(SampleError, match=f"sample {BAD} ") as e:
            walk(loader)
        epoch, step = re.search(r"loader\.batch_at\((\d+), (\d+)\)", str(e.value)).groups()
        with pytest.raises(SampleError, match=f"sample {BAD} "):
            loader.batch_at(int(epoch), int(step))


def test_h077_a_folder_is_summed_up_before_anything_is_read(tmp_path, caplog):
    for name in ("cat/A.JPG", "cat/c.png", "dog/b.Jpeg", ".ipynb_checkpoints/x.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(path, format="PNG")
    for name in ("cat/.DS_Store", "cat/._a.jpg", "dog/Thumbs.db"):
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    with caplog.at_level("INFO", "samebatch.datasets"):
        report = datasets.ImageFolder(tmp_path, allow_empty=True).report
    assert report.classes == ("cat", "dog", "empty")
    assert report.counts == (2, 1, 0)
    assert report.empty == ("empty",)
    assert report.items == 3
    assert report.skipped == {"hidden files": 2, "hidden folders": 1, "system files": 1}
    (line,) = [record.getMessage() for record in caplog.records]
    for part in ("3 images in 3 classes (cat, dog, empty)", "2 hidden files", report.digest):
        assert part in line
    assert "\n" not in line
    (tmp_path / "cat" / "d.png").write_bytes((tmp_path / "cat" / "c.png").read_bytes())
    assert datasets.ImageFolder(tmp_path, allow_empty=True).report.digest != report.digest


def test_h078_one_sample_is_what_the_loader_delivered():
    n = 120
    with make(Images(n), batch_size=16, num_workers=4) as loader:
        delivered = {
            (epoch, int(position)): ([leaf[s].tobytes() for leaf in leaves(batch)], int(sample))
            for epoch in range(3)
            for batch in loader
            for s, (position, sample) in enumerate(
                zip(loader.last.positions, loader.last.sample_ids, strict=True)
            )
        }
    assert len(delivered) == 3 * n
    with make(Images(n), batch_size=7) as alone:  # never iterated
        places = sorted(delivered)
        for k in np.random.default_rng(0).permutation(len(places))[:200]:
            epoch, position = places[k]
            sample = alone.sample_at(epoch, position)
            made = [np.asarray(leaf).tobytes() for leaf in leaves(sample)]
            assert made == delivered[epoch, position][0], (epoch, position)
