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

from typing import Literal

import numpy as np
from PIL import Image

from pipeline.errors import DatasetError

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


def convert(
    image: Image.Image, mode: Literal["RGB", "L"], *, apply_orientation: bool = False
) -> Image.Image:
    """Return `image` decoded and converted by the table above.

    Args:
        image: as `Image.open` gives it.
        mode: "RGB" or "L".
        apply_orientation: turn it by its Exif orientation; a broken or absent tag turns nothing.

    Raises:
        OSError: truncated or damaged data, from Pillow.
        DatasetError: pixels of floating point, for which there is no scale.
    """
    turned_by_pillow = image.format == "TIFF"  # its load() turns the pixels and drops the tag
    tag = _tiff_orientation(image) if turned_by_pillow else exif_orientation(image.info.get("exif"))
    image.load()
    converted = _to_mode(image, mode)
    if apply_orientation != turned_by_pillow and tag in _TURN:
        converted = converted.transpose((_TURN if apply_orientation else _BACK)[tag])
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


def exif_orientation(block: object) -> int:
    """Return the orientation tag 1..8 of an Exif block; 1 if there is none or it is broken.

    Read here, not by Pillow, whose reader warns about and stumbles over other broken tags.

    Source: Exif 2.3 (CIPA DC-008-2012), 4.5 and 4.6.4: a TIFF header, then the first directory.

    >>> exif_orientation(b"MM\\0*\\0\\0\\0\\x08\\0\\1\\x01\\x12\\0\\3\\0\\0\\0\\1\\0\\6\\0\\0")
    6
    """
    if not isinstance(block, bytes):
        return 1
    block = block.removeprefix(b"Exif\0\0")
    order: Literal["little", "big"] = "little" if block[:2] == b"II" else "big"

    def number(at: int, n: int) -> int:
        return int.from_bytes(block[at : at + n], order)

    if block[:2] not in (b"II", b"MM") or number(2, 2) != 42:
        return 1
    first = number(4, 4)
    for at in range(first + 2, first + 2 + 12 * number(first, 2), 12):
        if at + 12 > len(block):
            break
        if number(at, 2) == 0x0112 and number(at + 2, 2) == 3:
            value = number(at + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
