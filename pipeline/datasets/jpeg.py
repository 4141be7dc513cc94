"""JPEG files that are decoded only where a transform looks.

RandomResizedCrop takes 44 % of an image on average. libjpeg-turbo can skip the rows above a rectangle
(their codes are still read), never transform the columns beside it, and stop below it: 40 % less time
for 500 x 375 pixels. The extension `_region` does that with the library that Pillow has in this process,
so the bytes are Pillow's own; it is built where a compiler and libjpeg's headers are, and everything
works without it.

A file that is not plain, or of which the library warns, is decoded by Pillow. Two things differ: damage
below the rectangle can go unseen, where Pillow would have raised; a file that does not end with the
end-of-image marker always is Pillow's, so truncated files raise as ever.

No maintained package offers this (looked for in November 2026): simplejpeg, PyTurboJPEG, imagecodecs
and Pillow itself decode whole files; nvImageCodec takes regions, at Pillow's speed for whole ones.
"""

import functools
from typing import Any, Literal

import numpy as np
from PIL import Image, _imaging

from pipeline.datasets import exif, pixels

_region: Any
try:
    from pipeline.datasets import _region
except ImportError as error:  # not built here
    _region, _MISSING = None, str(error)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
CHANNELS = {"RGB": 3, "L": 1}


@functools.cache
def why_not() -> str:
    """Return why rectangles cannot be decoded by themselves here; "" if they can.

    >>> why_not() == "" or "built" in why_not() or "JPEG library" in why_not()
    True
    """
    if _region is None:
        return f"the extension pipeline.datasets._region is not built ({_MISSING})"
    try:
        _region.bind(_imaging.__file__)
    except OSError as error:
        return f"Pillow cannot lend its JPEG library: {error}"
    return ""


class JpegFile:
    """The bytes of a JPEG file, as an image that is not decoded yet.

    Attributes:
        shape: (H, W, C) of what is decoded, C = 3 for mode "RGB" and 1 for "L".
    """

    __slots__ = ("_data", "_mode", "_stored", "shape")

    def __init__(
        self, data: bytes, mode: Literal["RGB", "L"], stored: tuple[int, int, int]
    ) -> None:
        self._data = data
        self._mode: Literal["RGB", "L"] = mode
        self._stored = stored
        self.shape = (stored[0], stored[1], CHANNELS[mode])

    @classmethod
    def of(cls, data: bytes, mode: Literal["RGB", "L"], *, turn: bool) -> "JpegFile | None":
        """Return the file, or None if it is to be decoded by Pillow.

        Args:
            data: the whole file.
            mode, turn: as for `pixels.decode`.
        """
        if why_not():
            return None
        stored = _region.shape(data)
        if stored is None or (turn and exif.orientation(exif.split_jpeg(data)[1]) != 1):
            return None
        most = Image.MAX_IMAGE_PIXELS  # Pillow warns or raises above it, as the user set it
        if most is not None and stored[0] * stored[1] > most:
            return None
        return cls(data, mode, stored)

    def region(self, top: int, left: int, height: int, width: int) -> Pixels:
        """Return a rectangle of the image: `u8[height, width, C]`, as if cut from the whole.

        Raises:
            Exception: the file is damaged (mostly OSError, as Pillow raises it).
        """
        channels = 1 if self._stored[2] == 1 and self._mode == "L" else 3
        out: Pixels = np.empty((height, width, channels), np.uint8)
        if not _region.decode(self._data, (top, left, height, width), channels, out):
            picture = self.whole().crop((left, top, left + width, top + height))
            return np.array(picture).reshape(height, width, self.shape[2])
        if channels > self.shape[2]:
            return np.array(Image.fromarray(out).convert("L"))[:, :, None]
        return out

    def whole(self) -> Image.Image:
        """Return the whole image, decoded by Pillow.

        Raises:
            Exception: the file is damaged (mostly OSError, as Pillow raises it).
        """
        return pixels.decode(self._data, self._mode)
