"""Checks of op arguments: each returns the value in its one canonical form or names the field."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from pipeline.errors import ConfigError

DTYPES = ("float32", "float16", "uint8")
LAYOUTS = ("CHW", "HWC")


def refuse(field: str, expected: str, value: Any) -> ConfigError:
    """Return the error for a value that a field cannot have."""
    return ConfigError(
        f"{field} must be {expected}, got {value!r} ({type(value).__name__})", field=field
    )


def _is_int(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def flag(field: str, value: Any) -> bool:
    """Return a bool."""
    if not isinstance(value, bool):
        raise refuse(field, "true or false", value)
    return value


def number(field: str, value: Any) -> float:
    """Return a finite float."""
    if not _is_number(value):
        raise refuse(field, "a finite number", value)
    return float(value)


def probability(field: str, value: Any) -> float:
    """Return a float in [0, 1]."""
    if not _is_number(value) or not 0.0 <= value <= 1.0:
        raise refuse(field, "a number in [0, 1]", value)
    return float(value)


def interval(field: str, value: Any, low: float, high: float = math.inf) -> tuple[float, float]:
    """Return (a, b) with low < a <= b <= high."""
    bound = "" if high == math.inf else f" <= {high:g}"
    expected = f"two numbers, {low:g} < low <= high{bound}"
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise refuse(field, expected, value)
    a, b = value
    if not _is_number(a) or not _is_number(b) or not low < a <= b <= high:
        raise refuse(field, expected, value)
    return float(a), float(b)


def size(field: str, value: Any) -> tuple[int, int]:
    """Return (height, width); one int means a square."""
    pair = (value, value) if _is_int(value) else value
    ok = isinstance(pair, Sequence) and not isinstance(pair, str)
    if ok and len(pair) == 1:
        pair = (pair[0], pair[0])
    if not ok or len(pair) != 2 or not all(_is_int(v) and 1 <= v < 1 << 24 for v in pair):
        raise refuse(field, "an int >= 1 or (height, width)", value)
    return int(pair[0]), int(pair[1])


def padding(field: str, value: Any) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) as torchvision reads an int, a pair or four ints."""
    expected = "an int >= 0, (left and right, top and bottom) or (left, top, right, bottom)"
    if value is None:
        return 0, 0, 0, 0
    sides = (value,) if _is_int(value) else value
    if not isinstance(sides, Sequence) or isinstance(sides, str):
        raise refuse(field, expected, value)
    if not all(_is_int(v) and 0 <= v < 1 << 24 for v in sides):
        raise refuse(field, expected, value)
    ints = [int(v) for v in sides]
    if len(ints) == 1:
        ints *= 4
    elif len(ints) == 2:
        ints *= 2
    if len(ints) != 4:
        raise refuse(field, expected, value)
    return ints[0], ints[1], ints[2], ints[3]


def channels(field: str, value: Any) -> tuple[float, ...]:
    """Return one finite float for all channels or one for each, as a tuple."""
    values = (value,) if isinstance(value, Real) else value
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise refuse(field, "a number, or one number for each channel", value)
    if not all(_is_number(v) for v in values):
        raise refuse(field, "a number, or one number for each channel", value)
    return tuple(float(v) for v in values)


def one_of(field: str, value: Any, allowed: Sequence[str]) -> str:
    """Return a string out of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise refuse(field, "one of " + ", ".join(repr(a) for a in allowed), value)
    return value


def dtype(field: str, value: Any) -> str:
    """Return the name of an image dtype, given as a name or as something numpy understands."""
    if not isinstance(value, str):
        try:
            value = np.dtype(value).name
        except TypeError:
            raise refuse(field, "one of " + ", ".join(DTYPES), value) from None
    return one_of(field, value, DTYPES)


def broadcast(field: str, values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Return one value for each of `count` channels."""
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise ConfigError(
            f"{field} has {len(values)} values but the image has {count} channels",
            do="give one number, or one for each channel",
            field=field,
        )
    return values
