import json
import os
import pickle
import struct
import warnings

import numpy as np
import pytest
from PIL import Image

from pipeline import datasets
from pipeline.errors import ConfigError, DatasetError
from tests.helpers import STORED

RED, GREEN, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (255, 255, 255), (0, 0, 0)


def picture(h=6, w=4, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (h, w, 3)).astype(np.uint8)


def save(path, array=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture() if array is None else array).save(path, **options)
    return path


def names(data):
    return [os.fsdecode(data.path(i))[len(os.fsdecode(data._root)) + 1 :] for i in range(len(data))]


# ---------------------------------------------------------------- the list
def test_samples_are_pixels_and_the_label_of_their_folder(tmp_path):
    save(tmp_path / "dog" / "1.png", picture(seed=1))
    save(tmp_path / "cat" / "2.png", picture(seed=2))
    data = datasets.ImageFolder(tmp_path)
    assert data.classes == ["cat", "dog"]
    assert data.class_to_idx == {"cat": 0, "dog": 1}
    assert data.targets.tolist() == [0, 1]
    image, label = data[1]
    assert np.array_equal(image, picture(seed=1))
    assert image.flags.c_contiguous
    assert image.flags.writeable
    assert (type(label), label) == (int, 1)
    assert np.array_equal(data[-2][0], picture(seed=2))
    with pytest.raises(IndexError):
        data[2]


def reference(root, extensions):
    """torchvision's order: sorted(os.walk(class)), sorted names."""
    found = []
    for name in sorted(entry.name for entry in os.scandir(root) if entry.is_dir()):
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            found += [
                os.path.relpath(os.path.join(folder, file), root)
                for file in sorted(files)
                if file.lower().endswith(extensions)
            ]
    return found


def test_the_order_is_torchvisions_also_in_nested_folders(tmp_path):
    for name in ("a/b/1.png", "a/b-c/1.png", "a/b/d/0.png", "a/z.png", "a/B.png", "a/10.PNG"):
        save(tmp_path / name)
    for name in ("a b/x.png", "a-b/x.png", "Z/x.png", "é/x.png", "日/x.png", "a/é.png"):
        save(tmp_path / name)
    data = datasets.ImageFolder(tmp_path)
    assert names(data) == reference(tmp_path, (".png",))
    assert data.classes == ["Z", "a", "a b", "a-b", "é", "日"]


def test_the_order_in_which_files_were_made_does_not_matter(tmp_path):
    paths = [f"{c}/{i:03}.png" for c in "abc" for i in range(100)]
    small = save(tmp_path / "small.png", np.zeros((1, 1), np.uint8)).read_bytes()
    for root, order in (("one", paths), ("two", paths[::-1])):
        for path in order:
            (tmp_path / root / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / root / path).write_bytes(small)
    one, two = (datasets.ImageFolder(tmp_path / root) for root in ("one", "two"))
    assert names(one) == names(two) == paths
    assert one.class_to_idx == two.class_to_idx
    assert one.fingerprint() == two.fingerprint()
    assert one.report.digest == two.report.digest


def test_the_fingerprint_sees_every_change_of_the_list_and_of_the_settings(tmp_path):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        save(tmp_path / name)
    seen = [datasets.ImageFolder(tmp_path).fingerprint()]
    os.rename(tmp_path / "a/2.png", tmp_path / "a/4.png")
    seen.append(datasets.ImageFolder(tmp_path).fingerprint())
    os.rename(tmp_path / "a/4.png", tmp_path / "b/4.png")
    seen.append(datasets.ImageFolder(tmp_path).fingerprint())
    save(tmp_path / "b/4.png", picture(60, 40))
    seen.append(datasets.ImageFolder(tmp_path).fingerprint())
    (tmp_path / "b/4.png").unlink()
    seen.append(datasets.ImageFolder(tmp_path).fingerprint())
    seen.append(datasets.ImageFolder(tmp_path, mode="L").fingerprint())
    seen.append(datasets.ImageFolder(tmp_path, orientation="apply").fingerprint())
    assert len(set(seen)) == len(seen)
    assert datasets.ImageFolder(tmp_path, mode="L").settings() != {}


def test_the_fingerprint_stays_the_same_across_releases(tmp_path):
    """Else states saved earlier would be refused."""
    for name, content in (("a/1.png", b"x"), ("a/b/2.jpg", b"yy"), ("c/3.PNG", b"")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    data = datasets.ImageFolder(tmp_path)
    assert data.report.digest == "8c37066317609580a5d030b0244120b7"
    assert data.fingerprint() == "814ad081eaa3065e5a3b737b2b062bf2"


def test_what_is_passed_over_is_counted_by_reason(tmp_path, caplog):
    save(tmp_path / "a" / "A.JPG")
    save(tmp_path / "b" / "b.Jpeg")
    save(tmp_path / "b" / "loose.png")
    (tmp_path / "empty").mkdir()
    save(tmp_path / ".ipynb_checkpoints" / "x.jpg")
    save(tmp_path / "a" / ".hidden" / "x.jpg")
    save(tmp_path / "a" / "__MACOSX" / "x.jpg")
    for name in (".DS_Store", "a/._A.jpg", "a/Thumbs.db", "a/x.webp", "a/y.webp", "README"):
        (tmp_path / name).write_bytes(b"x")
    save(tmp_path / "loose.png")
    (tmp_path / "a" / "gone.png").symlink_to("nowhere.png")
    (tmp_path / "a" / "self.png").symlink_to("self.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    with caplog.at_level("INFO", "samebatch.datasets"):
        data = datasets.ImageFolder(tmp_path, allow_empty=True)
    assert data.classes == ["a", "b", "empty"]
    assert names(data) == ["a/A.JPG", "b/b.Jpeg", "b/loose.png"]
    assert data.report.skipped == {
        "hidden files": 2,
        "hidden folders": 2,
        "system files": 1,
        "system folders": 1,
        "files of another extension (.webp)": 2,
        "files of another extension (none or long)": 1,
        "outside a class folder": 1,
        "broken links": 2,
        "links to a folder above": 1,
    }
    assert (data.report.items, data.report.counts, data.report.empty) == (3, (1, 2, 0), ("empty",))
    assert [record.message for record in caplog.records] == [str(data.report)]
    line = str(data.report)
    assert "3 images in 3 classes (a, b, empty)" in line
    assert data.report.digest in line
    assert "\n" not in line


def test_a_class_folder_without_an_image_is_an_error_that_names_it(tmp_path):
    save(tmp_path / "a" / "1.png")
    (tmp_path / "webps").mkdir()
    (tmp_path / "webps" / "x.webp").write_bytes(b"x")
    with pytest.raises(DatasetError, match=r"1 of 2 class folders .* webps .*\.webp") as caught:
        datasets.ImageFolder(tmp_path)
    assert "allow_empty=True" in str(caught.value)
    assert datasets.ImageFolder(tmp_path, allow_empty=True).classes == ["a", "webps"]


def test_no_folder_and_no_class_folder_are_errors_that_name_the_place(tmp_path):
    with pytest.raises(DatasetError, match=r"missing.*No such file"):
        datasets.ImageFolder(tmp_path / "missing")
    with pytest.raises(DatasetError, match="Not a directory"):
        datasets.ImageFolder(save(tmp_path / "file.png"))
    with pytest.raises(DatasetError) as caught:
        datasets.ImageFolder(tmp_path)
    for part in (str(tmp_path), ".png, .jpg, .jpeg", "1 outside a class folder"):
        assert part in str(caught.value)


def test_extensions_can_be_chosen(tmp_path):
    save(tmp_path / "a" / "1.BMP")
    save(tmp_path / "a" / "2.png")
    assert names(datasets.ImageFolder(tmp_path, extensions=(".bmp",))) == ["a/1.BMP"]
    for bad in (".png", (), ("png",), (1,)):
        with pytest.raises(ConfigError, match="extensions"):
            datasets.ImageFolder(tmp_path, extensions=bad)


@pytest.mark.parametrize("argument", ["mode", "orientation"])
def test_other_settings_are_refused(tmp_path, argument):
    with pytest.raises(ConfigError, match=argument):
        datasets.ImageFolder(tmp_path, **{argument: "RGBA"})


ODD = [b"ma\xf1ana", b"a\nb", b"a,b", b'it\'s "it"', b"-rf", "\U0001f600".encode(), "日本".encode()]
ODD += [b"n" * 251, b"\x7f\x01", b" "]


def test_names_of_any_bytes_load_print_and_encode(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"cl\xe9")
    os.mkdir(folder)
    content = save(tmp_path / "x.png").read_bytes()
    for name in ODD:
        with open(os.path.join(folder, name + b".png"), "wb") as file:
            file.write(content)
    data = datasets.ImageFolder(tmp_path)
    assert [os.path.basename(data.path(i)) for i in range(len(data))] == sorted(
        n + b".png" for n in ODD
    )
    for i in range(len(data)):
        assert data[i][0].shape == (6, 4, 3)
        text = data.describe(i)
        assert text.isprintable()
        text.encode("utf-8")
    told = json.dumps([data.report.__dict__, data.describe(0), data.fingerprint(), repr(data)])
    told.encode("utf-8")
    assert r"cl\xe9" in str(data.report)
    assert r"cl\xe9/ma\xf1ana.png" in " ".join(data.describe(i) for i in range(len(data)))


def test_the_table_of_paths_is_packed_and_pickles_out_of_band(tmp_path):
    for i in range(400):
        path = tmp_path / f"class_{i % 2}" / f"image_{i:06}.png"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    data = datasets.ImageFolder(tmp_path)
    buffers = []
    blob = pickle.dumps(data, 5, buffer_callback=buffers.append)
    assert len(blob) < 2000
    assert sum(len(b.raw()) for b in buffers) == 400 * (len("class_0/image_000000.png") + 8 + 4) + 8
    again = pickle.loads(blob, buffers=buffers)
    assert names(again) == names(data)
    assert again.fingerprint() == data.fingerprint()


def test_no_file_stays_open(tmp_path):
    save(tmp_path / "a" / "1.png")
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    data = datasets.ImageFolder(tmp_path)
    kept = [data.decode(0), data[0]]
    after = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    assert len(before) == len(after)
    assert len(kept) == 2


def test_versions_name_pillow_and_the_jpeg_library(tmp_path):
    save(tmp_path / "a" / "1.png")
    versions = datasets.versions(datasets.ImageFolder(tmp_path))
    assert versions.keys() == {"pillow", "libjpeg"}
    assert all(versions.values())


# ---------------------------------------------------------------- the pixels
def in_mode(mode):
    image = Image.fromarray(picture(8, 8))
    if mode == "I;16":
        return Image.fromarray((np.arange(64).reshape(8, 8) * 1000).astype(np.uint16))
    if mode == "P transparent":
        image = image.convert("P")
        image.info["transparency"] = bytes(range(256))
        return image
    return image.convert(mode)


MODES = ["L", "LA", "1", "P", "P transparent", "RGB", "RGBA", "I;16"]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_kind_of_image_gives_the_same_shape(tmp_path, mode):
    for kind in MODES:
        path = tmp_path / "a" / f"{kind.replace(';', '')}.png"
        path.parent.mkdir(exist_ok=True)
        image = in_mode(kind)
        image.save(path, **({"transparency": bytes(256)} if "transparent" in kind else {}))
    in_mode("CMYK").save(tmp_path / "a" / "CMYK.jpg")
    data = datasets.ImageFolder(tmp_path, mode=mode)
    assert len(data) == 9
    for i in range(len(data)):
        image, _ = data[i]
        assert image.shape == (8, 8, {"RGB": 3, "L": 1}[mode]), data.describe(i)
        assert image.dtype == np.uint8
        assert data.decode(i).mode == mode


def test_alpha_is_dropped_not_blended(tmp_path):
    rgba = np.dstack([picture(), np.zeros((6, 4), np.uint8)])
    save(tmp_path / "a" / "1.png", rgba)
    assert np.array_equal(datasets.ImageFolder(tmp_path)[0][0], picture())


@pytest.mark.parametrize("options", [{}, {"compression": "tiff_lzw"}])
@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<i4"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_16_bit_grey_is_shifted_not_clipped(tmp_path, dtype, mode, options):
    ramp = np.arange(65536).reshape(256, 256)
    (tmp_path / "a").mkdir()
    Image.fromarray(ramp.astype(dtype)).save(tmp_path / "a" / "1.tif", **options)
    if dtype == "<u2":
        Image.fromarray(ramp.astype(dtype)).save(tmp_path / "a" / "2.png")
    data = datasets.ImageFolder(tmp_path, mode=mode, extensions=(".png", ".tif"))
    for i in range(len(data)):
        image = data[i][0]
        assert np.array_equal(image, np.broadcast_to((ramp >> 8)[..., None], image.shape))


def test_floating_point_pixels_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "a" / "1.tiff")
    with pytest.raises(DatasetError, match="floating-point"):
        datasets.ImageFolder(tmp_path, extensions=(".tiff",))[0]


def without_adobe_marker(jpeg):
    at = jpeg.index(b"\xff\xee")
    (length,) = struct.unpack(">H", jpeg[at + 2 : at + 4])
    assert jpeg[at + 4 : at + 9] == b"Adobe"
    return jpeg[:at] + jpeg[at + 2 + length :]


@pytest.mark.parametrize("marker", [True, False])
@pytest.mark.parametrize("colour", [RED, GREEN, WHITE, BLACK])
def test_cmyk_jpegs_have_the_right_colours(tmp_path, colour, marker):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "1.jpg"
    cyan, magenta, yellow = (255 - c for c in colour)
    Image.new("CMYK", (16, 16), (cyan, magenta, yellow, 0)).save(path, quality=95)
    if not marker:
        path.write_bytes(without_adobe_marker(path.read_bytes()))
    image = datasets.ImageFolder(tmp_path)[0][0].astype(int)
    assert abs(image - np.array(colour)).max() <= 6


def stored(tag):
    image = Image.fromarray(picture())
    return image if STORED[tag] is None else image.transpose(STORED[tag])


@pytest.mark.parametrize("end", [".png", ".tif", ".webp"])
def test_orientation_is_applied_only_on_request(tmp_path, end):
    (tmp_path / "a").mkdir()
    for tag in STORED:
        exif = Image.Exif()
        exif[0x0112] = tag
        options = {"lossless": True, "exact": True} if end == ".webp" else {}
        stored(tag).save(tmp_path / "a" / f"{tag}{end}", exif=exif, **options)
    applied = datasets.ImageFolder(tmp_path, orientation="apply", extensions=(end,))
    ignored = datasets.ImageFolder(tmp_path, extensions=(end,))
    for i, tag in enumerate(STORED):
        assert np.array_equal(applied[i][0], picture()), tag
        assert np.array_equal(ignored[i][0], np.asarray(stored(tag))), tag


def exif_block(order, tag=0x0112, kind=3, value=6, entries=1):
    n = "<" if order == b"II" else ">"
    head = order + struct.pack(n + "HI", 42, 8) + struct.pack(n + "H", entries)
    return b"Exif\0\0" + head + struct.pack(n + "HHIHH", tag, kind, 1, value, 0) + bytes(4)


BROKEN = [
    b"Exif\0\0",
    b"Exif\0\0MM",
    b"Exif\0\0II*\0\xff\xff\xff\xff",
    b"Exif\0\0" + b"\xff" * 40,
    exif_block(b"MM")[:-8],
    exif_block(b"II", kind=2),
    exif_block(b"II", value=9),
    exif_block(b"MM", value=0),
    exif_block(b"MM", tag=0x0110, entries=60000),
]


def test_a_jpegs_orientation_is_read_in_both_byte_orders(tmp_path):
    for order in (b"II", b"MM"):
        save(tmp_path / "a" / f"{order.decode()}.jpg", picture(48, 32), exif=exif_block(order))
    data = datasets.ImageFolder(tmp_path, orientation="apply")
    assert [data[i][0].shape for i in range(2)] == [(32, 48, 3)] * 2


@pytest.mark.parametrize("orientation", ["ignore", "apply"])
@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_exif_block_fails_nothing(tmp_path, number, orientation):
    save(tmp_path / "a" / "1.jpg", picture(48, 32), exif=BROKEN[number])
    save(tmp_path / "a" / "2.png", picture(48, 32), exif=BROKEN[number])
    data = datasets.ImageFolder(tmp_path, orientation=orientation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [data[i][0].shape for i in range(2)] == [(48, 32, 3)] * 2


@pytest.mark.parametrize("end", ["jpg", "png"])
@pytest.mark.parametrize("damage", ["cut 10", "half", "header", "empty", "text", "zeros"])
def test_a_damaged_file_raises_and_is_named(tmp_path, damage, end):
    path = save(tmp_path / "a" / f"x.{end}", picture(64, 64))
    good = path.read_bytes()
    bad = {
        "cut 10": good[: -10 if end == "jpg" else -40],
        "half": good[: len(good) // 2],
        "header": good[:12],
        "empty": b"",
        "text": b"<html>404</html>",
        "zeros": bytes(1000),
    }
    path.write_bytes(bad[damage])
    data = datasets.ImageFolder(tmp_path)
    with pytest.raises((OSError, SyntaxError, ValueError)):
        data[0]
    assert data.describe(0) == str(path)


def test_a_vanished_file_raises_and_is_named(tmp_path):
    path = save(tmp_path / "a" / "x.png")
    data = datasets.ImageFolder(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"x\.png"):
        data[0]
