"""The page of plots that `samebatch quality --png` writes: four small pictures of each source.

    words      how often each of 64 equal ranges comes, in standard deviations
    lags       correlation of a word with the one 1 ... 32 places on, in standard deviations
    next word  a word (across) and the next one (up): a point each
    planes     three words in a row as a point in space, seen along the planes that RANDU falls on

The grey bands are three standard deviations, where 997 of 1000 values of random words lie. Pillow
draws it, and is imported when it is needed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Picture = NDArray[np.uint8]

_SIDE = 150
_GAP = 10
_TITLE = 20
_INK, _BAND, _PAPER, _FRAME = 40, 220, 255, 160
_REACH = 6.0  # standard deviations that a plot shows


def _points(x: Any, y: Any) -> Picture:
    """Return a picture of points in the unit square, y upwards: the denser the darker."""
    count = np.histogram2d(1 - y, x, bins=_SIDE, range=((0, 1), (0, 1)))[0]
    mean = max(count.mean(), 1e-9)
    picture: Picture = (_PAPER - np.minimum(count / mean * 70, _PAPER - 20)).astype(np.uint8)
    return picture


def _bars(deviations: NDArray[Any]) -> Picture:
    """Return bars from the middle line, on a band of three standard deviations."""
    picture = np.full((_SIDE, _SIDE), _PAPER, np.uint8)
    middle, unit = _SIDE // 2, _SIDE / 2 / _REACH
    picture[round(middle - 3 * unit) : round(middle + 3 * unit)] = _BAND
    wide = _SIDE // len(deviations)
    left = (_SIDE - wide * len(deviations)) // 2
    for i, deviation in enumerate(np.clip(deviations, -_REACH, _REACH)):
        end = round(middle - deviation * unit)
        columns = slice(left + i * wide, left + (i + 1) * wide - (wide > 2))
        picture[min(middle, end) : max(middle, end) + 1, columns] = _INK
    return picture


def _words(u: NDArray[np.float64]) -> Picture:
    count, expected = np.bincount((u * 64).astype(np.int64), minlength=64), u.size / 64
    return _bars((count - expected) / np.sqrt(expected * 63 / 64))


def _lags(u: NDArray[np.float64]) -> Picture:
    x, n = u - 0.5, u.size
    sums = [12 * float((x[lag:] * x[:-lag]).sum()) / np.sqrt(n - lag) for lag in range(1, 33)]
    return _bars(np.array(sums, np.float64))


def _next(u: NDArray[np.float64]) -> Picture:
    return _points(u[:-1], u[1:])


def _planes(u: NDArray[np.float64]) -> Picture:
    x, y, z = u[:-2], u[1:-1], u[2:]
    return _points((9 * x - 6 * y + z + 6) / 16, z)


PICTURES: dict[str, Callable[[NDArray[np.float64]], Picture]] = {
    "words": _words,
    "lags 1-32": _lags,
    "next word": _next,
    "planes": _planes,
}


def pictures(words: Words) -> list[Picture]:
    """Return the pictures of some words: u8[side, side] each, 0 black ... 255 white."""
    u = words[:60_000].astype(np.float64) * 2.0**-32
    return [draw(u) for draw in PICTURES.values()]


def write(path: str, sources: Mapping[str, Words], verdicts: Mapping[str, str]) -> None:
    """Write the page as a PNG file: a row for each source, in two columns of rows.

    Args:
        path: of the file.
        sources: at least three words of each, by name.
        verdicts: what to say beside the name, such as the tests that failed.

    Raises:
        ImportError: Pillow is not installed.
        OSError: the file cannot be written.
    """
    from PIL import Image, ImageDraw, ImageFont

    rows = -(-len(sources) // 2)
    wide = len(PICTURES) * (_SIDE + _GAP) + 2 * _GAP
    head, high = 70, _SIDE + _TITLE + 2 * _GAP
    page = Image.new("L", (2 * wide + _GAP, head + rows * high + _GAP), _PAPER)
    pen = ImageDraw.Draw(page)
    large, small = ImageFont.load_default(20), ImageFont.load_default(13)
    pen.text((2 * _GAP, _GAP), "Random words, looked at", fill=0, font=large)
    note = (
        "words, lags: bars in standard deviations, grey within 3.    next word: u[i+1] over u[i].    "
        "planes: u[i+2] over 9u[i] - 6u[i+1] + u[i+2], where RANDU falls into lines."
    )
    pen.text((2 * _GAP, _GAP + 26), note, fill=60, font=small)
    for i, (name, words) in enumerate(sources.items()):
        left, top = 2 * _GAP + i // rows * wide, head + i % rows * high
        said = f"{name}   {verdicts.get(name, '')}"
        pen.text((left, top), said, fill=0, font=small)
        for k, (title, picture) in enumerate(zip(PICTURES, pictures(words), strict=True)):
            x, y = left + k * (_SIDE + _GAP), top + _TITLE
            page.paste(Image.fromarray(picture), (x, y))
            pen.rectangle((x - 1, y - 1, x + _SIDE, y + _SIDE), outline=_FRAME)
            if i % rows == 0:
                pen.text((x, head - 18), title, fill=60, font=small)
    page.save(path, format="PNG", optimize=True)
