"""exp and log from + - * / alone: the same bits on every machine, compiler and libm.

Both are plain Python (configuration time) and `exp` is also a kernel: an `@njit` function and its
`py_func` do the same float64 operations in the same order. Errors stay below 2 ulp for the
arguments used here (aspect ratios), which is tested against 50 decimal digits.

Source: the usual argument reductions (exp: x = k ln 2 + r, |r| <= 0.347; log: x = m 2**e,
m in [0.707, 1.414), atanh series), ln 2 split in two as in Cody and Waite, "Software Manual for
the Elementary Functions" (1980).
"""

import math

from rng.kernel import kernel

LN2_HIGH = 0.693147180369123816490  # the first 33 bits of ln 2
LN2_LOW = 1.90821492927058770002e-10  # the rest
INVERSE_LN2 = 1.44269504088896338700
ROOT_HALF = 0.70710678118654752440


@kernel
def exp(x: float) -> float:
    """Return e**x for |x| < 700.

    >>> exp(0.0), exp(1.0) == exp.py_func(1.0)
    (1.0, True)
    """
    k = int(x * INVERSE_LN2 + 0.5) if x >= 0.0 else -int(0.5 - x * INVERSE_LN2)
    r = (x - float(k) * LN2_HIGH) - float(k) * LN2_LOW
    total = 1.0
    for i in range(14, 0, -1):  # Horner form of the sum of r**i / i!
        total = 1.0 + r * total / float(i)
    for _ in range(k):
        total *= 2.0
    for _ in range(-k):
        total *= 0.5
    return total


def log(x: float) -> float:
    """Return the natural logarithm of a finite x > 0. Not for kernels.

    >>> log(1.0), log(8.0)
    (0.0, 2.0794415416798357)
    """
    m, e = math.frexp(x)  # exact
    if m < ROOT_HALF:
        m, e = m * 2.0, e - 1
    f = (m - 1.0) / (m + 1.0)
    square = f * f
    total = 0.0
    for i in range(25, 1, -2):  # Horner form of the sum of f**(i-1) / i, i odd
        total = square * (total + 1.0 / i)
    series = 2.0 * f + 2.0 * f * total
    return e * LN2_HIGH + (series + e * LN2_LOW)
