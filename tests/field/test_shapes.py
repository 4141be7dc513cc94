"""Cases from the field: odd shapes of datasets (H051 to H055)."""

import itertools

import numpy as np
import pytest
from PIL import Image

from pipeline import ConfigError, DatasetError, SampleError, datasets
from pipeline import transforms as T
from tests.helpers import Images, Numbers, make, walk

pytestmark = pytest.mark.usefixtures("launcher")
THREADS = {"worker_method": "thread"}


def test_h051_a_batch_that_can_never_fill_is_refused_at_once():
    with pytest.raises(ConfigError, match="5 samples do not fill one batch of 8"):
        make(Images(5), batch_size=8, drop_last=True)
    with pytest.raises(ConfigError, match="5 samples do not fill one batch of 6"):
        make(Images(5), batch_size=2, world_size=3, rank=1, drop_last=True)
    with make(Images(5), batch_size=8) as loader:
        assert len(loader) == 1
        assert [len(batch[0]) for batch in loader] == [5]


def test_h052_no_samples_are_an_epoch_without_batches_however_it_is_asked_for():
    for shuffle, workers, drop_last in itertools.product((False, True), (0, 2), (False, True)):
        how = {"shuffle": shuffle, "num_workers": workers, "drop_last": drop_last}
        with make(Images(0), **how) as loader:
            assert len(loader) == 0, how
            assert list(loader) == [], how
            assert list(loader) == [], how


def test_h052_a_folder_without_an_image_is_named_with_what_was_looked_for(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.gif").write_bytes(b"GIF89a")
    with pytest.raises(DatasetError) as e:
        datasets.ImageFolder(tmp_path)
    for part in (str(tmp_path), "cat", ".png, .jpg, .jpeg", ".gif"):
        assert part in str(e.value)


OPS = (
    T.RandomCrop(12, padding=2),
    T.RandomHorizontalFlip(p=1.0),
    T.Normalize(preset="cifar10", layout="HWC"),
    T.RandomErasing(p=1.0),
)


def _check_size(n, batch, drop_last, **how):
    with make(Images(n), batch_size=batch, drop_last=drop_last, transforms=OPS, **how) as loader:
        shapes, ids = [], []
        for images, labels in loader:
            shapes.append(images.shape)
            assert labels.shape == images.shape[:1]
            ids += loader.last.sample_ids.tolist()
        assert len(shapes) == len(loader)
    whole, rest = divmod(n, batch)
    sizes = [batch] * whole + [rest] * (rest > 0 and not drop_last)
    assert shapes == [(size, 12, 12, 3) for size in sizes]
    assert len(set(ids)) == len(ids) == sum(sizes)
    assert set(ids) <= set(range(n))


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_h053_every_size_keeps_its_first_dimension_and_covers_the_data(workers):
    how = {"num_workers": workers, **THREADS} if workers else {}
    for n, batch, drop_last in itertools.product(range(6), range(1, 7), (False, True)):
        if not (drop_last and 0 < n < batch):  # refused: H051
            _check_size(n, batch, drop_last, **how)


def test_h053_one_sample_is_a_batch_of_one_from_processes_too():
    _check_size(1, 1, False, num_workers=2)
    _check_size(5, 1, True, num_workers=2)


def test_h054_workers_share_batches_and_do_not_cut_their_own():
    found = []
    for how in [{"num_workers": n, **THREADS} for n in range(1, 7)] + [{"num_workers": 3}]:
        with make(Numbers(103), batch_size=10, transforms=[], **how) as loader:
            batches = [batch.tolist() for batch in loader]
        assert [len(batch) for batch in batches] == [10] * 10 + [3], how
        found.append(batches)
    assert all(batches == found[0] for batches in found)
    for n in (1, 6):
        how = {"num_workers": n, **THREADS}
        with make(Numbers(103), batch_size=10, drop_last=True, transforms=[], **how) as loader:
            assert [len(batch) for batch in loader] == [10] * 10


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}], ids=["inline", "processes"])
def test_h055_an_image_of_another_size_is_named_with_both_sizes(tmp_path, how):
    for i in range(6):
        size = (201, 299) if i == 2 else (200, 300)
        path = tmp_path / "a" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((*size, 3), i, np.uint8)).save(path)
    data = datasets.ImageFolder(tmp_path)
    with (
        make(data, shuffle=False, transforms=[], **how) as loader,
        pytest.raises(SampleError) as e,
    ):
        walk(loader)
    for part in ("sample 2 ", "2.png", "201, 299", "200, 300"):
        assert part in str(e.value)
    with make(data, shuffle=False, transforms=[T.Resize((40, 60))], **how) as loader:
        assert len(walk(loader)) == 6
