"""A folder of class folders of images, as torchvision's ImageFolder, for millions of files.

    root/cat/1.png   root/cat/more/2.jpg   root/dog/3.JPEG      cat -> 0, dog -> 1

Order, as torchvision's: class folders by the bytes of their names; inside a class the folder itself
and then its subfolders by the bytes of their paths; inside a folder the files by the bytes of their
names. So the order does not hang on the file system or the locale.

The table of paths is one array of bytes with offsets; sample i is
`blob[offsets[i] : offsets[i + 1]]`, a path below the root. Nothing in it is a Python object, and the
workers map it in place (`pipeline.transfer.shared`). Nothing stays open: a sample is one open, read, close.
"""

import logging
import operator
import os
import stat
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import PIL
from PIL import Image, features

from pipeline.datasets import common, jpeg, pixels
from pipeline.datasets.strings import text_at
from pipeline.errors import ConfigError, DatasetError
from pipeline.transfer import shared

_log = logging.getLogger("samebatch.datasets")

_SYSTEM_FILES = frozenset({b"thumbs.db", b"ehthumbs.db", b"desktop.ini", b"icon\r"})
_SYSTEM_FOLDERS = frozenset(
    {b"__macosx", b"@eadir", b"$recycle.bin", b"system volume information", b"lost+found"}
)


_Listed = tuple[bytes, list[tuple[bytes, int]]]  # a folder, its images and their sizes


@dataclass(frozen=True)
class Report:
    """What a scan found: known before the first sample is read. `str(report)` is one line.

    Attributes:
        root: the folder, printable.
        classes: the class names, printable, by label.
        counts: images of each class, by label.
        skipped: what was passed over, by reason.
        digest: of the sorted list of paths, sizes and labels.
    """

    root: str
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    skipped: dict[str, int]
    digest: str

    @property
    def items(self) -> int:
        """Images in all."""
        return sum(self.counts)

    @property
    def empty(self) -> tuple[str, ...]:
        """Classes without an image."""
        return tuple(c for c, n in zip(self.classes, self.counts, strict=True) if n == 0)

    def __str__(self) -> str:
        names = ", ".join(self.classes[:10]) + (", ..." if len(self.classes) > 10 else "")
        skipped = ", ".join(f"{n} {why}" for why, n in self.skipped.items()) or "nothing"
        empty = f"; {len(self.empty)} empty classes" if self.empty else ""
        return (
            f"{self.root}: {self.items} images in {len(self.classes)} classes ({names}){empty}; "
            f"skipped {skipped}; digest {self.digest}"
        )


class ImageFolder:
    """Samples are `(image u8[H, W, C], label)` from a folder of class folders.

    Every file gives the same number of channels, 3 for mode "RGB" and 1 for "L", whatever it holds:
    grey, palette, CMYK; alpha is dropped; 16-bit grey becomes 8-bit by `value >> 8`
    (see `pixels.convert`).

    Hidden files and folders (a leading dot), files of the system (Thumbs.db, __MACOSX, ...) and
    files of other extensions are passed over and counted in `report`, which is there before the
    first sample is read; it is also logged (logger "samebatch.datasets", level INFO).

    Changes of a file that keep its path and size go unseen by `fingerprint()`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        mode: Literal["RGB", "L"] = "RGB",
        orientation: Literal["ignore", "apply"] = "ignore",
        extensions: tuple[str, ...] = (".png", ".jpg", ".jpeg"),
        allow_empty: bool = False,
        decoder: Literal["auto", "pillow", "region"] = "auto",
    ) -> None:
        """Scan `root`; no image is opened.

        Args:
            root: the folder; a leading `~` is the home folder.
            mode: what every image is converted to.
            orientation: "ignore" gives the pixels as they are stored, as torchvision does; "apply"
                turns them by the Exif orientation tag (labels that tell of places, such as boxes,
                are then for turned images).
            extensions: ends of names that are images, in upper or lower case.
            allow_empty: keep a class folder without an image as a class with no sample, instead of
                an error (torchvision's argument and default).
            decoder: "region" decodes of a JPEG no more than a transform needs (see `jpeg`), "pillow"
                always all; "auto" is "region" where its extension was built. The bytes are the same.

        Raises:
            ConfigError: an argument that cannot be used; decoder="region" without its extension.
            DatasetError: no such folder, no class folder in it, no image in a class folder.
        """
        self.mode: Literal["RGB", "L"] = mode
        self.orientation: Literal["ignore", "apply"] = orientation
        common.check_choice("mode", mode, ("RGB", "L"))
        common.check_choice("orientation", orientation, ("ignore", "apply"))
        common.check_choice("decoder", decoder, ("auto", "pillow", "region"))
        if decoder == "region" and jpeg.why_not():
            raise ConfigError(
                f"decoder is 'region', but {jpeg.why_not()}",
                do="install a C compiler and libjpeg's headers (Debian: gcc libjpeg62-turbo-dev) and "
                "samebatch again; or use decoder='auto': the bytes are the same",
                field="decoder",
            )
        self.decoder: Literal["auto", "pillow", "region"] = decoder
        self.extensions = _checked_extensions(extensions)
        self._root = os.fsencode(os.path.expanduser(root))
        scan = _scanned(self._root, self.extensions)
        self.classes = [os.fsdecode(name) for name in scan.names]
        self._blob, self._offsets = shared.share(
            np.frombuffer(scan.blob, np.uint8), np.frombuffer(scan.ends, np.int64)
        )
        self._labels = np.repeat(np.arange(len(scan.names), dtype=np.int32), scan.counts)
        self.report = scan.report(self._blob, self._offsets, self._labels)
        _check_found(self.report, self.extensions, allow_empty)
        _log.info("%s", self.report)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name to label."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The labels of all samples, without reading an image."""
        return self._labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, i: int) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], int]:
        """Return the pixels `u8[H, W, C]` and the label of sample `i`.

        Raises:
            IndexError: `i` is not in [-len, len).
            Exception: the file cannot be read or decoded (mostly OSError, as Pillow raises it);
                `describe(i)` names the file.
        """
        image = np.array(self.decode(i))
        return (image if image.ndim == 3 else image[:, :, None]), self.label(i)

    def label(self, i: int) -> int:
        """Return the label of sample `i` without reading its file."""
        return int(self._labels[self._index(i)])

    def path(self, i: int) -> bytes:
        """Return the path of sample `i`, as the bytes the file system knows."""
        i = self._index(i)
        return os.path.join(self._root, text_at(self._blob, self._offsets, i))

    def decode(self, i: int) -> Image.Image:
        """Return sample `i` as a decoded Pillow image of mode `self.mode`.

        Raises:
            IndexError: `i` is not in [-len, len).
            Exception: the file cannot be read or decoded (mostly OSError, as Pillow raises it);
                `describe(i)` names the file.
        """
        return pixels.decode(self._read(i), self.mode, turn=self.orientation == "apply")

    def source(self, i: int) -> Image.Image | jpeg.JpegFile:
        """Return sample `i` as a JPEG that is not decoded yet if that can be, else as `decode` does.

        Raises:
            IndexError: `i` is not in [-len, len).
            Exception: the file cannot be read or decoded (mostly OSError, as Pillow raises it);
                `describe(i)` names the file.
        """
        data, turn = self._read(i), self.orientation == "apply"
        file = None if self.decoder == "pillow" else jpeg.JpegFile.of(data, self.mode, turn=turn)
        return pixels.decode(data, self.mode, turn=turn) if file is None else file

    def _read(self, i: int) -> bytes:
        """Return the bytes of a file: open, stat, one read, close."""
        fd = os.open(self.path(i), os.O_RDONLY | os.O_CLOEXEC)
        try:
            left = os.fstat(fd).st_size
            data = os.read(fd, left)
            while len(data) < left and (more := os.read(fd, left - len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    def describe(self, i: int) -> str:
        r"""Return the path of sample `i`, printable: bytes that are not UTF-8 show as `\xf1`."""
        return common.printable(self.path(i))

    def fingerprint(self) -> str:
        """Return a digest of the file list (paths, sizes, labels) and of mode and orientation."""
        return common.digest([self.report.digest.encode(), repr(self.settings()).encode()])

    def settings(self) -> dict[str, Any]:
        """Return the arguments that decide the pixels of a file."""
        return {"mode": self.mode, "orientation": self.orientation}

    def versions(self) -> dict[str, str]:
        """Return the versions of Pillow and its JPEG library: pixels can change with them."""
        turbo = features.version_feature("libjpeg_turbo")
        jpeg = f"turbo-{turbo}" if turbo else str(features.version_codec("jpg"))
        return {"pillow": PIL.__version__, "libjpeg": jpeg}

    def __repr__(self) -> str:
        root = common.printable(self._root)
        return f"ImageFolder({root!r}, {len(self)} images, {len(self.classes)} classes)"

    def _index(self, i: int) -> int:
        i, n = operator.index(i), len(self._labels)
        if not -n <= i < n:
            raise IndexError(f"sample {i} of {n}")
        return i % n


def _scanned(root: bytes, extensions: tuple[str, ...]) -> "_Scan":
    try:
        return _Scan(root, extensions)
    except OSError as error:
        name = error.filename if isinstance(error.filename, bytes) else root
        raise DatasetError(
            f"cannot read the folder {common.printable(name)!r}: {error.strerror}",
            where=f"root={common.printable(root)!r}, in {common.printable(os.getcwdb())!r}",
            do="give a folder of class folders: root/class/image.png",
            root=common.printable(root),
        ) from error


class _Scan:
    """One pass over the folders. Memory: the names of one class, beside the table that it makes."""

    def __init__(self, root: bytes, extensions: tuple[str, ...]) -> None:
        self.root = root
        self.blob = bytearray()
        self.ends = array("q", [0])
        self.sizes = array("q")
        self.counts: list[int] = []
        self.skipped: Counter[str] = Counter()
        self._suffixes = tuple(os.fsencode(e.lower()) for e in extensions)
        self.names, outside = self._list(root)
        self.skipped["outside a class folder"] += len(outside)
        for name in self.names:
            before = len(self.sizes)
            for folder, files in sorted(self._walk(name, (_identity(root),))):
                self._add(folder, files)
            self.counts.append(len(self.sizes) - before)

    def _walk(self, folder: bytes, parents: tuple[tuple[int, int], ...]) -> Iterator[_Listed]:
        """Yield `folder` and all below it, through links too, but not round in circles."""
        full = os.path.join(self.root, folder)
        here = _identity(full)
        if here in parents:
            self.skipped["links to a folder above"] += 1
            return
        below, files = self._list(full)
        yield folder, files
        for name in below:
            yield from self._walk(os.path.join(folder, name), (*parents, here))

    def _add(self, folder: bytes, files: list[tuple[bytes, int]]) -> None:
        for name, size in files:
            self.blob += os.path.join(folder, name)
            self.ends.append(len(self.blob))
            self.sizes.append(size)

    def _list(self, folder: bytes) -> tuple[list[bytes], list[tuple[bytes, int]]]:
        """Return the sorted names of folders, and of images with their sizes; count the rest."""
        folders: list[bytes] = []
        files: list[tuple[bytes, int]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    why = self._sort(entry, folders, files)
                except OSError:
                    why = "broken links"
                if why:
                    self.skipped[why] += 1
        return sorted(folders), sorted(files)

    def _sort(
        self, entry: "os.DirEntry[bytes]", folders: list[bytes], files: list[tuple[bytes, int]]
    ) -> str:
        """Put the entry where it belongs, or return why it is passed over."""
        name, lower = entry.name, entry.name.lower()
        if entry.is_dir():
            if name.startswith(b"."):
                return "hidden folders"
            if lower in _SYSTEM_FOLDERS:
                return "system folders"
            folders.append(name)
        elif name.startswith(b"."):
            return "hidden files"
        elif lower in _SYSTEM_FILES:
            return "system files"
        elif not lower.endswith(self._suffixes):
            return f"files of another extension ({_extension(lower)})"
        else:
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                return "not regular files"
            files.append((name, status.st_size))
        return ""

    def report(self, blob: Any, offsets: Any, labels: Any) -> Report:
        """Return the report; the digest covers paths, sizes, labels and class names."""
        names = b"\0".join(self.names)
        sizes = np.array(self.sizes, np.int64)
        little = [a.astype(a.dtype.newbyteorder("<"), copy=False) for a in (offsets, sizes, labels)]
        return Report(
            root=common.printable(self.root),
            classes=tuple(common.printable(name) for name in self.names),
            counts=tuple(self.counts),
            skipped={why: n for why, n in sorted(self.skipped.items()) if n},
            digest=common.digest([names, blob, *little]),
        )


def _identity(folder: bytes) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _extension(lower: bytes) -> str:
    end = os.path.splitext(lower)[1]
    return common.printable(end) if 1 < len(end) <= 8 else "none or long"


def _checked_extensions(extensions: Any) -> tuple[str, ...]:
    good = isinstance(extensions, tuple | list) and all(
        isinstance(end, str) and end.startswith(".") and len(end) > 1 for end in extensions
    )
    if not good or not extensions:
        what = f'extensions: expected a tuple such as (".png", ".jpg"), got {extensions!r}'
        raise ConfigError(what, field="extensions")
    return tuple(extensions)


def _check_found(report: Report, extensions: tuple[str, ...], allow_empty: bool) -> None:
    ends = ", ".join(extensions)
    passed = ", ".join(f"{n} {why}" for why, n in report.skipped.items()) or "nothing else"
    if not report.classes:
        raise DatasetError(
            f"no class folder in {report.root!r} (searched for {ends}; passed over: {passed})",
            do="put the images of each class into a folder of its own: root/class/image.png",
            root=report.root,
        )
    if report.empty and not allow_empty:
        names = ", ".join(report.empty[:10]) + (", ..." if len(report.empty) > 10 else "")
        raise DatasetError(
            f"{len(report.empty)} of {len(report.classes)} class folders of {report.root!r} have "
            f"no image with the extension {ends}: {names} (passed over: {passed})",
            do="remove them, name other extensions=(...), or pass allow_empty=True to keep them "
            "as classes without samples",
            root=report.root,
        )
