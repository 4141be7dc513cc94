"""Rectangles of JPEG files against the whole image, as Pillow decodes it."""

import io
import sys
import threading

import numpy as np
import pytest
from PIL import Image

import pipeline
from pipeline import datasets
from pipeline import transforms as T
from pipeline.datasets import jpeg, pixels
from pipeline.errors import ConfigError, SampleError
from pipeline.recipe import Recipe, SampleFailure

built = pytest.mark.skipif(bool(jpeg.why_not()), reason=jpeg.why_not() or "built")
CHAIN = [
    T.RandomResizedCrop(24),
    T.RandomHorizontalFlip(),
    T.Normalize(preset="imagenet"),
    T.RandomErasing(p=0.5),
]


def picture(height, width, generator, mode="RGB"):
    """Smooth colours with detail: a photograph's codes, not those of noise."""
    few = generator.integers(0, 256, (-(-height // 3), -(-width // 3), 3), np.uint8)
    image = Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC)
    return image.convert(mode)


def encoded(image, **options):
    sink = io.BytesIO()
    image.save(sink, "JPEG", **options)
    return sink.getvalue()


def resampled(data, factors):
    """Say that the colours were sampled otherwise: the same codes mean another picture."""
    at = data.index(b"\xff\xc0") + 11
    return data[:at] + bytes([factors]) + data[at + 1 :]


# Name: (Pillow's options, sampling factors to say instead, what sides are multiples of)
KINDS = {
    "4:4:4": ({"subsampling": 0}, None, 1),
    "4:2:2": ({"subsampling": 1}, None, 1),
    "4:2:0": ({"subsampling": 2}, None, 1),
    "4:4:0": ({"subsampling": 1}, 0x12, 32),
    "4:1:1": ({"subsampling": 2}, 0x41, 32),
    "1:4": ({"subsampling": 2}, 0x14, 32),
    "RGB": ({"keep_rgb": True}, None, 1),
    "grey": ({"mode": "L"}, None, 1),
    "restarts": ({"restart_marker_blocks": 3}, None, 1),
    "many restarts": ({"restart_marker_blocks": 1, "subsampling": 1}, None, 1),
    "own codes": ({"optimize": True}, None, 1),
    "low": ({"quality": 5}, None, 1),
    "high": ({"quality": 100}, None, 1),
}


def some_file(kind, generator, most=100):
    options, factors, multiple = KINDS[kind]
    options = dict(options)
    height, width = (int(n) for n in generator.integers(1, most, 2))
    if multiple > 1:
        height = width = multiple * int(generator.integers(1, 4))
    image = picture(height, width, generator, options.pop("mode", "RGB"))
    data = encoded(image, **options)
    return data if factors is None else resampled(data, factors)


def some_box(height, width, generator):
    tall, wide = int(generator.integers(1, height + 1)), int(generator.integers(1, width + 1))
    top = int(generator.integers(0, height - tall + 1))
    return top, int(generator.integers(0, width - wide + 1)), tall, wide


# ---------------------------------------------------------------- rectangles
@built
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rectangle_is_cut_from_the_whole(kind, mode):
    generator = np.random.default_rng(sum(kind.encode()))
    for _ in range(60):
        data = some_file(kind, generator)
        file = jpeg.JpegFile.of(data, mode, turn=False)
        assert file is not None
        height, width, channels = file.shape
        whole = np.array(pixels.decode(data, mode)).reshape(height, width, channels)
        boxes = [some_box(height, width, generator) for _ in range(10)]
        for top, left, tall, wide in [*boxes, (0, 0, height, width)]:
            part = file.region(top, left, tall, wide)
            expected = whole[top : top + tall, left : left + wide]
            assert np.array_equal(part, expected), (kind, height, width, top, left, tall, wide)


@built
@pytest.mark.parametrize("kind", ["4:2:0", "4:2:2", "4:4:4", "restarts"])
def test_rectangles_of_large_images(kind):
    generator = np.random.default_rng(7)
    for height, width in ((375, 500), (501, 334), (64, 2000), (2000, 33)):
        data = encoded(picture(height, width, generator), **KINDS[kind][0])
        file = jpeg.JpegFile.of(data, "RGB", turn=False)
        assert file is not None
        whole = np.array(pixels.decode(data, "RGB"))
        for _ in range(30):
            top, left, tall, wide = some_box(height, width, generator)
            part = file.region(top, left, tall, wide)
            assert np.array_equal(part, whole[top : top + tall, left : left + wide])


@built
def test_what_is_not_a_plain_file_is_left_to_pillow():
    generator = np.random.default_rng(1)
    image = picture(40, 50, generator)
    plain = encoded(image)
    left = {
        "progressive": encoded(image, progressive=True),
        "four colours": encoded(image.convert("CMYK")),
        "an end cut off": plain[:-1],
        "bytes after the end": plain + b"\0",
        "no JPEG": b"\x89PNG" + plain,
        "nothing": b"",
        "a start only": plain[:30] + b"\xff\xd9",
    }
    assert jpeg.JpegFile.of(plain, "RGB", turn=False) is not None
    for name, data in left.items():
        assert jpeg.JpegFile.of(data, "RGB", turn=False) is None, name


@built
def test_a_turned_image_and_a_huge_one_are_left_to_pillow(monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = picture(40, 50, np.random.default_rng(1))
    turned = encoded(image, exif=exif)
    assert jpeg.JpegFile.of(turned, "RGB", turn=True) is None
    assert jpeg.JpegFile.of(turned, "RGB", turn=False) is not None
    assert jpeg.JpegFile.of(encoded(image), "RGB", turn=True) is not None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 50 - 1)
    assert jpeg.JpegFile.of(encoded(image), "RGB", turn=False) is None


@built
def test_a_box_outside_the_image_is_refused():
    file = jpeg.JpegFile.of(encoded(picture(40, 50, np.random.default_rng(1))), "RGB", turn=False)
    out = np.zeros((10, 10, 3), np.uint8)
    for box in ((31, 0, 10, 10), (0, 41, 10, 10), (65535, 0, 10, 10)):
        assert jpeg._region.decode(file._data, box, 3, out) is False
    for box in ((0, 0, 10, 9), (0, 0, 0, 10), (0, 65536, 10, 10)):
        with pytest.raises(ValueError, match="another size"):
            jpeg._region.decode(file._data, box, 3, out)


# ---------------------------------------------------------------- broken files
def damaged(generator, count):
    """Yield files that end as whole ones do, but were cut or changed inside."""
    kinds = [kind for kind in KINDS if kind not in ("4:4:0", "4:1:1", "1:4")]
    for _ in range(count):
        data = bytearray(some_file(str(generator.choice(kinds)), generator, 60))
        if generator.random() < 0.4:
            yield bytes(data[: int(generator.integers(2, len(data)))]) + b"\xff\xd9"
        else:
            for _ in range(int(generator.integers(1, 4))):
                data[int(generator.integers(2, len(data)))] = int(generator.integers(0, 256))
            yield bytes(data)


@built
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_damaged_file_gives_pillows_pixels_or_fails():
    generator = np.random.default_rng(3)
    same = failed = below = 0
    for data in damaged(generator, 1500):
        file = jpeg.JpegFile.of(data, "RGB", turn=False)
        if file is None or file.shape[0] * file.shape[1] > 1 << 20:
            continue
        height, width, _ = file.shape
        top, left, tall, wide = some_box(height, width, generator)
        try:
            whole = np.array(file.whole())[top : top + tall, left : left + wide]
        except OSError:
            whole = None
        try:
            part = file.region(top, left, tall, wide)
        except OSError:
            assert whole is None
            failed += 1
        else:
            below += whole is None  # the damage lies below the rectangle
            same += whole is not None
            assert whole is None or np.array_equal(part, whole)
    assert same > 300
    assert failed + below > 0


def test_a_truncated_file_fails_in_reading_with_every_decoder(tmp_path):
    data = encoded(picture(120, 160, np.random.default_rng(5)))
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "x.jpg"
    for end in [*range(2, len(data) - 1, 97), len(data) - 1]:
        path.write_bytes(data[:end])
        outcomes = []
        for decoder in ("auto", "pillow"):
            recipe = Recipe(datasets.ImageFolder(tmp_path, decoder=decoder), CHAIN, 7, 16)
            try:
                outcomes.append(recipe.sample(0, 0, 0)[0].tobytes())
            except SampleFailure as failure:
                outcomes.append((failure.stage, type(failure.__cause__)))
        assert outcomes[0] == outcomes[1], end
        assert isinstance(outcomes[0], bytes) or outcomes[0][0] == "read"


@built
def test_damage_that_is_found_late_fails_in_reading(tmp_path):
    (tmp_path / "a").mkdir()
    data = bytearray(encoded(picture(120, 160, np.random.default_rng(5))))
    at = data.index(b"\xff\xda")
    half = (at + len(data)) // 2
    path = tmp_path / "a" / "x.jpg"
    # A segment of no known kind inside the codes is an error that the library does not survive.
    path.write_bytes(bytes(data[:half]) + b"\xff\x02" * 4 + bytes(data[half:]))
    dataset = datasets.ImageFolder(tmp_path)
    if isinstance(outcome(dataset.decode, 0), np.ndarray):
        pytest.skip("this library survives it")
    transforms = [T.RandomResizedCrop(24, scale=(1.0, 1.0)), T.Normalize(preset="imagenet")]
    with (
        pipeline.DataLoader(dataset, 1, seed=1, transforms=transforms) as loader,
        pytest.raises(SampleError, match=r"x\.jpg.* failed in read: OSError"),
    ):
        next(iter(loader))


def outcome(call, *arguments):
    try:
        return np.array(call(*arguments))
    except OSError as error:
        return error


# ---------------------------------------------------------------- the folder
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    generator = np.random.default_rng(11)
    for i in range(40):
        path = root / "ab"[i % 2] / f"{i:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        height, width = (int(n) for n in generator.integers(30, 200, 2))
        mode = "CMYK" if i % 10 == 9 else "L" if i % 10 == 8 else "RGB"
        options = {"progressive": i % 7 == 6, "subsampling": i % 3} if mode == "RGB" else {}
        path.write_bytes(encoded(picture(height, width, generator, mode), **options))
    picture(90, 80, generator).save(root / "a" / "z.png")
    return root


def batches(folder, decoder, **options):
    dataset = datasets.ImageFolder(folder, decoder=decoder, mode=options.pop("mode", "RGB"))
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "transforms": CHAIN, **options}
    with pipeline.DataLoader(dataset, **options) as loader:
        return [(images.tobytes(), labels.tobytes()) for images, labels in loader]


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]
)
def test_every_decoder_gives_the_same_batches(folder, workers):
    expected = batches(folder, "pillow")
    assert batches(folder, "auto", **workers) == expected


@pytest.mark.parametrize(
    "transforms",
    [
        [T.RandomCrop(24, pad_if_needed=True), T.ToTensor()],
        [T.Resize(40), T.CenterCrop(32)],
        [lambda sample: (np.array(sample[0])[:24, :24], sample[1])],
        [T.RandomResizedCrop(16), lambda sample, rng: (sample[0][::-1], rng.uniform())],
    ],
)
def test_every_decoder_gives_the_same_batches_to_any_transforms(folder, transforms):
    options = {"transforms": transforms, "mode": "RGB"}
    assert batches(folder, "auto", **options) == batches(folder, "pillow", **options)


def test_without_the_extension_pillow_decodes(folder, monkeypatch):
    monkeypatch.setattr(jpeg, "why_not", lambda: "the extension is not built (test)")
    dataset = datasets.ImageFolder(folder)
    assert isinstance(dataset.source(0), Image.Image)
    with pytest.raises(ConfigError, match=r"decoder is 'region', but the extension is not built"):
        datasets.ImageFolder(folder, decoder="region")
    without = batches(folder, "auto")
    monkeypatch.undo()
    assert batches(folder, "auto") == without


@built
def test_the_decoder_can_be_chosen_and_decides_no_bytes(folder):
    given = [datasets.ImageFolder(folder, decoder=d) for d in ("auto", "pillow", "region")]
    late = [isinstance(one.source(0), jpeg.JpegFile) for one in given]
    assert late == [True, False, True]
    assert len({one.fingerprint() for one in given}) == 1
    assert len({str(one.versions()) for one in given}) == 1
    with pytest.raises(ConfigError, match="decoder"):
        datasets.ImageFolder(folder, decoder="opencv")


def test_a_subclass_that_decodes_otherwise_is_asked(folder):
    class Inverted(datasets.ImageFolder):
        def decode(self, i):
            return Image.fromarray(255 - np.array(super().decode(i)))

    recipe = Recipe(Inverted(folder), [T.RandomResizedCrop(24)], 7, 16)
    image = Inverted(folder)[3][0]
    plain = Recipe([(image, 0)], [T.RandomResizedCrop(24)], 7, 16)
    assert np.array_equal(recipe.sample(3, 5, 0)[0], plain.sample(0, 5, 0)[0])


def test_draws_are_explained_without_a_difference(folder):
    told = [
        Recipe(datasets.ImageFolder(folder, decoder=d), CHAIN, 7, 16).explain(3, 5, 1)
        for d in ("auto", "pillow")
    ]
    assert told[0] == told[1]


@built
def test_other_threads_run_while_a_rectangle_is_decoded():
    """With the lock held, the other thread would only see that all is over."""
    noise = np.random.default_rng(2).integers(0, 256, (3000, 4000, 3), np.uint8)
    file = jpeg.JpegFile.of(encoded(Image.fromarray(noise), quality=90), "RGB", turn=False)
    started, over, seen = threading.Event(), threading.Event(), []

    def watch():
        started.wait(60)
        seen.append(over.is_set())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so the lock changes hands only where it is given away
    try:
        for _ in range(5):  # a busy machine may wake the other one late
            watcher = threading.Thread(target=watch)
            watcher.start()
            started.set()
            file.region(0, 0, 3000, 4000)
            over.set()
            watcher.join(60)
            if not seen[-1]:
                break
            started.clear()
            over.clear()
    finally:
        sys.setswitchinterval(interval)
    assert not seen[-1]
