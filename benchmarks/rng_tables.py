"""How far are the integer tables of `rng.tables` from the functions they stand for, over all words?

    python benchmarks/rng_tables.py [exponential|gumbel ...] [--share 1]

The values come from the kernel that fills arrays; the truth is computed in float64. Printed for
each half: the largest error in ulp where the value is at least 1/16, the largest absolute error
below, and how often a value is out of order with its neighbour's.
`--make DIR` writes the exponential's and the Gumbel's tables anew (float64 and long double).
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rng import fill, tables

CHUNK = 1 << 22


def values(words, table):
    made, zero = words.copy(), np.uint64(0)
    real = np.array([0.0, 1.0, 0.0])
    size, upper = np.uint64(made.size), np.uint64(table.upper)
    fill._transform(
        made, zero, size, fill.INVERSE, real, zero, zero, table.rows, upper, table.scales
    )
    return made.view(np.float32)


def truth(name, words):
    """The exact value, in float64, of u = (w + 1/2) / 2**32 or, in the upper half, its mirror."""
    x = (2.0 * words.astype(np.float64) + 1) % 2.0**32 / 2.0**33
    upper = words[0] >> 31
    exponential = -np.log1p(-x) if upper else -np.log(x)
    return exponential if name == "exponential" else -np.log(exponential)


def check(name, share):
    table = getattr(tables, name.upper())
    for half in (0, 1):
        worst, below, largest, disorder, last = 0.0, 0.0, 0.0, 0, None
        for first in range(0, int(2**31 * share), CHUNK):
            words = np.arange(first, first + CHUNK, dtype=np.uint32) + np.uint32(half << 31)
            got, want = values(words, table).astype(np.float64), truth(name, words)
            error = np.abs(got - want)
            size = np.abs(want)
            ulp = np.ldexp(1.0, np.frexp(size)[1] - 24)
            big = size >= 1 / 16
            if big.any():
                worst = max(worst, float((error / ulp)[big].max()))
            if not big.all():
                below = max(below, float(error[~big].max()))
            largest = max(largest, float(np.abs(got).max()))
            step = np.diff(got if last is None else np.concatenate([[last], got]))
            rising = want[-1] > want[0]
            disorder += int((step < 0).sum() if rising else (step > 0).sum())
            last = got[-1]
        print(
            f"{name} half {half}: {worst:.4f} ulp, {below:.3g} below 1/16, "
            f"largest {largest:.6f}, out of order {disorder}",
            flush=True,
        )


def row(f, scale, e, r):
    """The four coefficients of a row: cubic at Chebyshev's points, then centred as computed."""
    long = np.longdouble
    k = np.arange(64)
    tau = ((1 - np.cos((2 * k + 1) * np.pi / 128)) / 2).astype(long)
    y = f(long(2) ** e * (1 + (r + tau) / 16) / long(2) ** 33) * long(scale)
    c = np.polynomial.chebyshev.chebfit((2 * tau - 1).astype(float), (y - y[0]).astype(float), 3)
    s = np.polynomial.Polynomial(np.polynomial.chebyshev.cheb2poly(c))(
        np.polynomial.Polynomial([-1, 2])
    ).coef
    c1, c2, c3 = round(s[1] * 8), round(s[2] * 16), round(s[3] * 32)
    t = (tau * long(2**31)).astype(np.int64)
    a = c1 + ((c2 + ((c3 * t) >> 32)) * t >> 32)
    rest = y - ((a * t) >> 34).astype(long)
    return [int(np.rint((rest.max() + rest.min()) / 2)), c1, c2, c3]


def make(directory):
    halves = {
        "exponential": ((lambda x: -np.log(x), 2.0**26), (lambda x: -np.log1p(-x), 2.0**31)),
        "gumbel": (
            (lambda x: -np.log(-np.log(x)), 2.0**29),
            (lambda x: -np.log(-np.log1p(-x)), 2.0**26),
        ),
    }
    for name, parts in halves.items():
        rows = [row(f, scale, e, r) for f, scale in parts for e in range(32) for r in range(16)]
        made = np.array(rows, np.int32)
        np.save(Path(directory) / f"{name}.npy", made)
        print(name, "equal to rng.tables:", (made == getattr(tables, name.upper()).rows).all())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["exponential", "gumbel"])
    parser.add_argument("--share", type=float, default=1.0, help="of each half's words")
    parser.add_argument("--make", metavar="DIR")
    options = parser.parse_args()
    if options.make:
        make(options.make)
        return
    for name in options.names:
        check(name, options.share)


if __name__ == "__main__":
    main()
