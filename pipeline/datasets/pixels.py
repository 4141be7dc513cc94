"""From what an image file holds to 8 bits and one number of channels.

    stored            RGB                          L
    1                 0 or 255, three times        0 or 255
    L, LA             the grey, three times        the grey
    P, PA             the palette's colour         its luma
    RGB, RGBA, RGBX   the colour                   (19595 R + 38470 G + 7471 B + 32768) >> 16
    CMYK              R = 255 - min(255, C + K)... luma of that
    I;16, I           value >> 8, three times      value >> 8

Alpha is dropped, not blended: pixels behind full transparency keep their stored colour. "I" (32 bits)
is taken as 16-bit values, as older Pillow opens 16-bit PNG; what lies outside is cut to 0..65535.
CMYK in JPEG is stored inverted, whether or not an Adobe marker says so (as Pillow, browsers and
TensorFlow take it).
"""

import io
from typing import Literal

import numpy as np
from PIL import Image, _imaging

from pipeline.datasets import exif
from pipeline.errors import DatasetError

# Pillow gives the memory of every image back to the system, page by page, and faults it in again for
# the next: a 500 x 375 JPEG took 1.30 ms, with a few blocks kept 0.83 ms. PILLOW_BLOCKS_MAX goes first.
if _imaging.get_blocks_max() == 0:
    _imaging.set_blocks_max(4)

_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BACK = _TURN | {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}


def decode(data: bytes, mode: Literal["RGB", "L"], *, turn: bool = False) -> Image.Image:
    """Return the image of a file's bytes, converted by the table above.

    Args:
        data: the whole file.
        mode: "RGB" or "L".
        turn: turn it by its Exif orientation; a broken or absent tag turns nothing.

    Raises:
        OSError: truncated or damaged data, from Pillow (which may raise other kinds too).
        DatasetError: pixels of floating point, for which there is no scale.
    """
    data, block = exif.split_jpeg(data)
    with Image.open(io.BytesIO(data)) as image:
        turned = image.format == "TIFF"  # Pillow's load() of TIFF turns it, asked or not
        if turned:
            tag = _tiff_orientation(image)
        else:
            tag = exif.orientation(block or image.info.get("exif"))
        image.load()
        converted = _to_mode(image, mode)
    if turn != turned and tag in _TURN:
        return converted.transpose((_TURN if turn else _BACK)[tag])
    return converted


def _to_mode(image: Image.Image, mode: Literal["RGB", "L"]) -> Image.Image:
    if image.mode.startswith("I"):
        wide = np.asarray(image)
        high = np.clip(wide, 0, 0xFFFF).astype(np.uint16) >> 8
        image = Image.fromarray(high.astype(np.uint8))
    elif image.mode == "F":
        raise DatasetError(
            "the image holds floating-point pixels (mode F), which have no scale to 8 bits",
            do="convert the file to 8 or 16 bits",
        )
    elif image.mode == "CMYK":
        image = image.convert("RGB")
    # Pillow warns when it drops the transparency of a palette; we mean to drop it.
    image.info.pop("transparency", None)
    return image if image.mode == mode else image.convert(mode)


def _tiff_orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # Pillow raises many kinds on broken tags
        return 1
