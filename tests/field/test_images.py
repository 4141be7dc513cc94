"""Cases from the field: odd images and files (H044 to H050)."""

import json
import logging
import os
import struct

import numpy as np
import pytest
from PIL import Image

from pipeline import SampleError, datasets
from pipeline import transforms as T
from tests.helpers import STORED, make, walk

pytestmark = pytest.mark.usefixtures("launcher")
WORKERS = [{}, {"num_workers": 4}, {"num_workers": 3, "worker_method": "thread"}]
RED, GREEN, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (255, 255, 255), (0, 0, 0)


def picture(seed=0, h=16, w=16):
    return np.random.default_rng(seed).integers(0, 256, (h, w, 3)).astype(np.uint8)


def only(folder, **options):
    """One batch of all images of a folder, in its order, without transforms."""
    data = datasets.ImageFolder(folder, **options)
    with make(data, batch_size=len(data), shuffle=False, transforms=[]) as loader:
        (batch,) = loader
    return batch[0]


@pytest.fixture
def folder(tmp_path):
    """The only class folder of `folder.parent`."""
    path = tmp_path / "root" / "a"
    path.mkdir(parents=True)
    return path


# ---------------------------------------------------------------- damaged files
DAMAGE = {
    3: lambda data: data[:-10],
    17: lambda data: data[: len(data) // 2],
    31: lambda data: data[:20],
    48: lambda data: b"",
    77: lambda data: b"this is a text and no image\n" * 20,
    90: lambda data: data[: len(data) // 4],
}


@pytest.fixture
def damaged(folder):
    """100 JPEG files, six of them damaged."""
    for i in range(100):
        path = folder / f"{i:03}.jpg"
        Image.fromarray(picture(i)).save(path)
        if i in DAMAGE:
            path.write_bytes(DAMAGE[i](path.read_bytes()))
    return folder.parent


def test_h044_a_damaged_file_is_named(damaged):
    for bad in DAMAGE:
        with (
            make(datasets.ImageFolder(damaged), sampler=[0, bad], shuffle=False) as loader,
            pytest.raises(SampleError) as e,
        ):
            list(loader)
        assert f"{bad:03}.jpg" in str(e.value)
        assert e.value.fields["sample_id"] == bad


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_h044_to_go_on_without_damaged_files_is_the_same_in_every_run(damaged, policy):
    def run(**how):
        with make(datasets.ImageFolder(damaged), on_error=policy, batch_size=8, **how) as loader:
            found = walk(loader)
            return found, sorted((f.sample_id, f.replaced_by) for f in loader.failures)

    found, failures = run()
    for how in WORKERS[1:]:
        assert run(**how) == (found, failures)
    assert {sample for sample, _ in failures} >= set(DAMAGE)
    good = set(range(100)) - set(DAMAGE)
    if policy == "skip":
        assert sorted(row[1] for row in found) == sorted(good)
    else:
        assert len(found) == 100  # the shape of every batch stays
        assert {row[1] for row in found} >= good

    with make(datasets.ImageFolder(damaged), on_error=policy, batch_size=8) as loader:
        first = walk(loader, 5)
        state = json.loads(json.dumps(loader.state_dict()))
    with make(datasets.ImageFolder(damaged), on_error=policy, batch_size=8) as loader:
        loader.load_state_dict(state)
        assert first + walk(loader) == found


# ---------------------------------------------------------------- what files hold
def test_h045_16_bits_become_8_by_a_shift(folder):
    ramp = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(ramp).save(folder / "1.png")
    Image.fromarray(ramp).save(folder / "2.tif")
    # Pillow writes little-endian files, so the big-endian one is written by hand.
    tags = [
        (256, 3, 256), (257, 3, 256), (258, 3, 16), (259, 3, 1), (262, 3, 1), (273, 4, 8),
        (277, 3, 1), (278, 3, 256), (279, 4, ramp.nbytes),
    ]  # fmt: skip
    data = ramp.astype(">u2").tobytes()
    entries = b"".join(
        struct.pack(">HHI", tag, kind, 1) + struct.pack(">I" if kind == 4 else ">HH", *value)
        for tag, kind, n in tags
        for value in [(n,) if kind == 4 else (n, 0)]
    )
    head = b"MM" + struct.pack(">HI", 42, 8 + len(data))
    directory = struct.pack(">H", len(tags)) + entries + bytes(4)
    (folder / "3.tif").write_bytes(head + data + directory)
    Image.fromarray(ramp.astype(np.int32)).save(folder / "4.tif")  # mode I
    for image in only(folder.parent, extensions=(".png", ".tif")):
        assert np.array_equal(image, np.repeat((ramp >> 8)[:, :, None], 3, axis=2))
        assert (image == 255).mean() < 0.01


def without_adobe_marker(data):
    """The JPEG without the segment that tells how its four colours are stored."""
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4]) :]


def test_h046_cmyk_has_the_right_colours(folder):
    colours = (RED, GREEN, WHITE, BLACK)
    for i, colour in enumerate(colours):
        path = folder / f"{i}.jpg"
        Image.new("CMYK", (16, 16), (*(255 - c for c in colour), 0)).save(path, quality=95)
        (folder / f"{i + 4}.jpg").write_bytes(without_adobe_marker(path.read_bytes()))
    wanted = np.array([*colours, *colours])[:, None, None]
    assert abs(only(folder.parent).astype(int) - wanted).max() <= 6
    data = datasets.ImageFolder(folder.parent)
    passes = []
    for how in WORKERS:
        with make(data, transforms=[T.RandomHorizontalFlip()], **how) as loader:
            passes.append(walk(loader))
    assert passes[0] == passes[1] == passes[2]


def test_h047_orientation_is_a_setting_and_part_of_the_digest(folder):
    upright = Image.fromarray(picture())
    stored = [upright if way is None else upright.transpose(way) for way in STORED.values()]
    for tag, image in zip(STORED, stored, strict=True):
        exif = Image.Exif()
        exif[0x0112] = tag
        image.save(folder / f"{tag}.png", exif=exif)
    upright.save(folder / "9.png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")  # a broken block
    applied = only(folder.parent, orientation="apply")
    ignored = only(folder.parent, orientation="ignore")
    assert all(np.array_equal(image, picture()) for image in applied)
    assert np.array_equal(ignored, np.stack([*map(np.asarray, stored), picture()]))
    prints = set()
    for orientation in ("apply", "ignore"):
        data = datasets.ImageFolder(folder.parent, orientation=orientation)
        with make(data) as loader:
            prints.add(loader.state_dict()["dataset"])
    assert len(prints) == 2


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_h048_files_of_every_kind_make_one_batch(folder, mode, channels):
    for i, kind in enumerate(("L", "LA", "1", "P", "RGB", "RGBA")):
        Image.fromarray(picture(i)).convert(kind).save(folder / f"{i}.png")
    Image.fromarray(picture(6)).convert("CMYK").save(folder / "6.jpg")
    Image.fromarray(np.full((16, 16), 4660, np.uint16)).save(folder / "7.png")
    batch = only(folder.parent, mode=mode)
    assert (batch.shape, batch.dtype) == ((8, 16, 16, channels), np.uint8)
    assert (batch[7] == 4660 >> 8).all()


# ---------------------------------------------------------------- folders and names
def messy(root):
    """The tree of case H049; return its root."""
    small = Image.fromarray(picture())
    for name in ("cat/A.JPG", "cat/c.png", "dog/b.Jpeg", ".ipynb_checkpoints/x.jpg"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        small.save(path, format="PNG")
    for name in ("cat/.DS_Store", "cat/._a.jpg", "dog/Thumbs.db", "dog/notes.txt"):
        (root / name).write_bytes(b"no image")
    (root / "empty").mkdir()
    return root


def test_h049_what_is_hidden_is_no_class_and_no_image(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "samebatch.datasets"):
        data = datasets.ImageFolder(messy(tmp_path), allow_empty=True)
    assert data.class_to_idx == {"cat": 0, "dog": 1, "empty": 2}
    assert [os.path.basename(data.path(i)) for i in range(len(data))] == [
        b"A.JPG", b"c.png", b"b.Jpeg",
    ]  # fmt: skip
    assert data.report.skipped == {
        "files of another extension (.txt)": 1,
        "hidden files": 2,
        "hidden folders": 1,
        "system files": 1,
    }
    assert str(data.report) in caplog.text
    with pytest.raises(ValueError, match="empty") as e:
        datasets.ImageFolder(tmp_path)
    assert "no image" in str(e.value)


NAMES = [b"\xf1", b"a\nb", b"a,b", b'a"b', b"-a", "🐈".encode(), "猫".encode(), b"x" * 251]


def test_h050_names_of_any_bytes_load_and_are_told(folder, caplog):
    image = folder.parent.parent / "x.png"
    Image.fromarray(picture()).save(image)
    for name in NAMES:
        with open(os.path.join(os.fsencode(folder), name + b".png"), "wb") as file:
            file.write(image.read_bytes())
    data = datasets.ImageFolder(folder.parent)
    assert len(data) == len(NAMES)
    for how in WORKERS[:2]:
        with make(data, transforms=[], **how) as loader:
            assert len(walk(loader)) == len(NAMES)
            json.dumps(loader.state_dict()).encode()
    for i in range(len(data)):
        os.truncate(data.path(i), 20)
    for how in WORKERS[:2]:
        with (
            caplog.at_level(logging.INFO),
            make(data, transforms=[], on_error="skip", **how) as loader,
            pytest.raises(SampleError) as e,
        ):
            list(loader)
        assert str(e.value).encode()
    for i in range(len(data)):
        with (
            make(data, sampler=[i], shuffle=False, transforms=[]) as loader,
            pytest.raises(SampleError) as e,
        ):
            list(loader)
        assert data.describe(i) in str(e.value)
        assert str(e.value).encode()
    caplog.text.encode()
