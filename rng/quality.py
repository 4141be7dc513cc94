"""A statistical self-test: our words, every address field walked alone, and known generators.

    samebatch quality [--only SOURCE] [--words N] [--seed S] [--long] [--png FILE] [--stdout SOURCE]

Each test gives a p-value, the chance of a value at least so extreme from true random words; FAIL
is below 1e-7 (hundreds of p-values stand in a table, so 1e-3 is no news). RANDU has to fail, at
the hyperplanes of Marsaglia: that shows the test can see. `--only` runs some of the sources, `--long`
takes sixteen times the words under eight seeds. `--stdout` writes one source's words without end, for PractRand (`RNG_test
stdin32`) or TestU01.

Source of the tests: Knuth, TAOCP 2, section 3.3; Marsaglia, "Random numbers fall mainly in the
planes" (PNAS 1968); Marsaglia, Tsang, "Some difficult-to-pass tests of randomness" (JSS 2002);
Blackman, Vigna, "Scrambled linear pseudorandom number generators" (TOMS 2021), section 8.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rng import address, dropout, page, philox, threefry
from rng.stream import Stream

Words = NDArray[np.uint32]
FAIL = 1e-7
LEAST = 1 << 15  # words that every test needs
DESCRIPTION = (
    "Test our random words, and known generators beside them; 1 if one fails that must not."
)


# ---------------------------------------------------------------- sources
def _counted(seed: int, fields: dict[str, Any], n: int) -> Words:
    """Return the words of blocks whose address fields are the arrays or numbers given."""
    blocks = -(-n // 4)
    columns = {"purpose": 7, "op": 0, "lane": 0, "phase": 0, "position": 0} | fields
    c = {k: np.broadcast_to(np.asarray(v, np.uint64), blocks) for k, v in columns.items()}
    u = np.uint64
    site = c["purpose"] << u(24) | c["op"] << u(16) | c["lane"]
    counters = [c["position"] & u(address.M32), c["position"] >> u(32), c["phase"], site]
    key = address.mix64(seed)
    words = philox.philox4x32(
        np.stack(counters, axis=1).astype(np.uint32), [key & address.M32, key >> 32]
    )
    return words.reshape(-1)[:n]


def _field(name: str, bits: int) -> Callable[[int, int], Words]:
    """Return a source that walks one field, and the position each time the field is through."""

    def source(seed: int, n: int) -> Words:
        i = np.arange(-(-n // 4), dtype=np.uint64)
        mask = np.uint64((1 << bits) - 1)
        return _counted(seed, {name: i & mask, "position": i >> np.uint64(bits)}, n)

    return source


def _seeds(seed: int, n: int) -> Words:
    blocks = -(-n // 4)
    keys = [address.mix64((seed + i) & address.M64) for i in range(blocks)]
    pairs = np.array([(k & address.M32, k >> 32) for k in keys], np.uint32)
    return philox.philox4x32(np.zeros((blocks, 4), np.uint32), pairs).reshape(-1)[:n]


def _lanes(seed: int, n: int) -> Words:
    """Return word after word of sixteen lanes in turn."""
    each = -(-n // 16)
    lanes = [
        _counted(seed, {"lane": w, "position": np.arange(-(-each // 4))}, each) for w in range(16)
    ]
    return np.stack(lanes, axis=1).reshape(-1)[:n]


def _masks(n: int, neighbour: Callable[[int, int], NDArray[np.uint8]]) -> Words:
    """Return the XOR of dropout masks of p = 1/2 that are neighbours."""
    bits = 1 << 16
    parts = [neighbour(bits, k) ^ neighbour(bits, k + 1) for k in range(-(-32 * n // bits))]
    return np.concatenate(parts).view("<u4")[:n].astype(np.uint32)


def _steps(seed: int, n: int) -> Words:
    return _masks(n, lambda bits, k: dropout.dropout_mask(bits, 0.5, seed, "a", k))


def _layers(seed: int, n: int) -> Words:
    return _masks(n, lambda bits, k: dropout.dropout_mask(bits, 0.5, seed, f"layer{k}", 0))


def _stream(seed: int, n: int) -> Words:
    words = Stream(address.mix64(seed), address.site(address.USER)).uint32(np.empty(n, np.uint32))
    return words.astype(np.uint32, copy=False)


def _threefry(seed: int, n: int) -> Words:
    counters = np.zeros((-(-n // 4), 4), np.uint32)
    counters[:, 0] = np.arange(len(counters))
    key = address.mix64(seed)
    return threefry.threefry4x32(counters, [key & address.M32, key >> 32, 0, 0]).reshape(-1)[:n]


def _randu(seed: int, n: int) -> Words:
    """RANDU, x = 65539 x mod 2**31: 31 bits, shifted up by one."""
    x, out = seed * 2 + 1, np.empty(n, np.uint32)
    for i in range(n):
        x = 65539 * x & 0x7FFFFFFF
        out[i] = x << 1
    return out


def _numpy(name: str) -> Callable[[int, int], Words]:
    def source(seed: int, n: int) -> Words:
        bits = getattr(np.random, name)(seed)  # noqa: TID251
        generator = np.random.Generator(bits)  # noqa: TID251
        return generator.integers(0, 1 << 32, n, dtype=np.uint32)

    return source


SOURCES: dict[str, Callable[[int, int], Words]] = {
    "philox": _stream,
    "threefry": _threefry,
    "phase walked": _field("phase", 32),
    "lane walked": _field("lane", 16),
    "op walked": _field("op", 8),
    "purpose walked": _field("purpose", 8),
    "position / 2**24": lambda seed, n: _counted(
        seed, {"position": np.arange(-(-n // 4), dtype=np.uint64) << np.uint64(24)}, n
    ),
    "seed walked": _seeds,
    "lanes in turn": _lanes,
    "masks, next step": _steps,
    "masks, next layer": _layers,
}
CONTROLS: dict[str, Callable[[int, int], Words]] = {
    "MT19937": _numpy("MT19937"),
    "PCG64": _numpy("PCG64"),
    "RANDU": _randu,
}


# ---------------------------------------------------------------- p-values
def chi2_tail(x: float, k: float) -> float:
    """Return P(chi-square of k degrees >= x): the regularised upper incomplete gamma function."""
    a, y = k / 2, x / 2
    if y <= 0:
        return 1.0
    front = math.exp(a * math.log(y) - y - math.lgamma(a))
    if y < a + 1:
        term = total = 1.0 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= y / n
            total += term
        return max(0.0, 1.0 - front * total)
    b = y + 1 - a
    c, d = 1e300, 1 / b
    h = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2
        d = 1 / (step * d + b)
        c = b + step / c
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return min(1.0, front * h)


def _chi2(observed: NDArray[Any], expected: Any) -> float:
    """Return the p-value of counts against expected counts, whose sums agree."""
    e = np.broadcast_to(expected, observed.shape)
    return chi2_tail(float(((observed - e) ** 2 / e).sum()), observed.size - 1)


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))


# ---------------------------------------------------------------- tests
def kolmogorov(words: Words) -> float:
    """Kolmogorov and Smirnov: the words as numbers in [0, 1)."""
    x = np.sort(words) * 2.0**-32
    n = x.size
    i = np.arange(n)
    d = max(float((x - i / n).max()), float(((i + 1) / n - x).max()))
    t = d * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    total = sum((1.0 if k % 2 else -1.0) * math.exp(-2 * k * k * t * t) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * total))


def frequency(words: Words) -> float:
    """Chi-square of all bytes."""
    count = np.bincount(words.view(np.uint8), minlength=256)
    return _chi2(count, words.size * 4 / 256)


def low_bits(words: Words) -> float:
    """Chi-square of the lowest byte alone."""
    return _chi2(np.bincount(words & np.uint32(255), minlength=256), words.size / 256)


def serial(words: Words) -> float:
    """Correlation at lags 1 ... 16, together."""
    x = words * 2.0**-32 - 0.5
    n = x.size
    z = [float((x[lag:] * x[:-lag]).sum()) * 12 / math.sqrt(n - lag) for lag in range(1, 17)]
    return chi2_tail(sum(v * v for v in z), 16)


def birthdays(words: Words) -> float:
    """Equal spacings among 512 birthdays in a year of 2**25 days: one expected."""
    m = words.size // 512 * 512
    days = np.sort((words[:m] >> np.uint32(7)).reshape(-1, 512).astype(np.int64), axis=1)
    gaps = np.sort(np.diff(days, axis=1), axis=1)
    equal = int((np.diff(gaps, axis=1) == 0).sum())
    expected = len(days) * 512**3 / 2.0**27
    return _two_sided((equal - expected) / math.sqrt(expected))


def collisions(words: Words) -> float:
    """Collisions of 2**14 balls in 2**20 urns."""
    balls, urns = 1 << 14, 1 << 20
    m = words.size // balls
    place = np.sort((words[: m * balls] >> np.uint32(12)).reshape(m, balls), axis=1)
    hit = int((np.diff(place, axis=1) == 0).sum())
    expected = m * (balls - urns + urns * (1 - 1 / urns) ** balls)
    return _two_sided((hit - expected) / math.sqrt(expected))


def matrix_rank(words: Words) -> float:
    """Ranks of 32 x 32 matrices over the field of two elements."""
    rows = words[: words.size // 32 * 32].reshape(-1, 32).copy()
    rank = np.zeros(len(rows), np.int64)
    index = np.arange(len(rows))
    for bit in range(32):
        has = (rows >> np.uint32(bit) & np.uint32(1)).astype(bool)
        has = np.logical_and(has, np.arange(32) >= rank[:, None])
        found = has.any(axis=1)
        pivot = np.where(found, has.argmax(axis=1), 0)
        place = np.where(found, rank, 0)
        top = rows[index, pivot]
        rows[index, pivot] = np.where(found, rows[index, place], top)
        rows[index, place] = np.where(found, top, rows[index, place])
        bits = (rows >> np.uint32(bit) & np.uint32(1)).astype(bool)
        clear = bits & (np.arange(32) > place[:, None]) & found[:, None]
        rows ^= np.where(clear, top[:, None], np.uint32(0))
        rank += found
    count = np.array([(rank == 32).sum(), (rank == 31).sum(), (rank <= 30).sum()])
    return _chi2(count, len(rows) * np.array([0.2887880951, 0.5775761902, 0.1336357147]))


def hamming(words: Words) -> float:
    """Weights of neighbouring words: independent, and as the binomial distribution has it."""
    weight = np.bitwise_count(words).astype(np.int64)
    bins = np.clip(weight, 13, 19) - 13
    p = np.zeros(7)
    for k in range(33):
        p[min(max(k, 13), 19) - 13] += math.comb(32, k) / 2.0**32
    pairs = bins[0 : bins.size // 2 * 2 : 2] * 7 + bins[1::2]
    count = np.bincount(pairs, minlength=49)
    return _chi2(count, pairs.size * np.outer(p, p).reshape(-1))


def hyperplanes(words: Words, dimensions: int) -> float:
    """Do points of that many successive words lie on few planes?

    For integer vectors a, the sum of a_i u_i is uniform modulo 1; planes make it pile up.
    """
    d = dimensions
    count = min(words.size // d, 4096 if words.size < 1 << 20 else 32_768)
    points = (words[: count * d] * 2.0**-32).reshape(-1, d)
    most = {3: 9, 4: 3}.get(d, 1)
    # exp(2 pi i a.u) is a product over the axes: of all vectors at once by one matrix product.
    power = np.exp(2j * math.pi * points[:, :, None] * np.arange(-most, most + 1))
    halves = []
    for axes in (range(d // 2), range(d // 2, d)):
        half = np.ones((count, 1), np.complex128)
        for axis in axes:
            half = (half[:, :, None] * power[:, axis, None, :]).reshape(count, -1)
        halves.append(half)
    sums = (np.abs(halves[0].T @ halves[1]) ** 2).reshape(-1)
    vectors = sums.size // 2  # a and -a are one, and 0, in the middle, is none
    best = float(sums[:vectors].max()) / count
    return -math.expm1(vectors * math.log1p(-math.exp(-max(best, 1e-9))))


TESTS: dict[str, Callable[[Words], float]] = {
    "KS": kolmogorov,
    "bytes": frequency,
    "low": low_bits,
    "serial": serial,
    "birthd": birthdays,
    "collis": collisions,
    "rank": matrix_rank,
    "weight": hamming,
} | {f"plane{d}": (lambda words, d=d: hyperplanes(words, d)) for d in range(3, 9)}  # type: ignore[misc]


def run(
    n: int,
    seed: int,
    sources: dict[str, Callable[[int, int], Words]] | None = None,
    tests: dict[str, Callable[[Words], float]] | None = None,
) -> dict[str, dict[str, float]]:
    """Return the p-value of each test on `n` words of each source.

    Raises:
        ValueError: n is below 2**15.
    """
    if n < LEAST:
        raise ValueError(f"the tests need at least {LEAST} words, got {n}")
    table = {}
    for name, source in (SOURCES | CONTROLS if sources is None else sources).items():
        words = source(seed, n)
        table[name] = {test: f(words) for test, f in (tests or TESTS).items()}
    return table


# ---------------------------------------------------------------- report
def _row(name: str, p: dict[str, float]) -> str:
    cells = [f"{v:8.4f}" if v >= 1e-4 else f"{v:8.0e}" for v in p.values()]
    failed = [test for test, v in p.items() if v < FAIL]
    return f"{name:18}{''.join(cells)}  {'FAIL ' + ' '.join(failed) if failed else 'pass'}"


def _at_least(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text, 0)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be in [{least}, {most}], got {value}")
        return value

    return number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `main` to a parser."""
    sources = [*SOURCES, *CONTROLS]
    parser.add_argument(
        "--only",
        metavar="SOURCE",
        choices=sources,
        action="append",
        help=f"run this source, and others so named: {', '.join(sources)}",
    )
    parser.add_argument(
        "--words",
        type=_at_least(LEAST, 1 << 40),
        default=1 << 18,
        help=f"words of each source, at least {LEAST} (default {1 << 18})",
    )
    parser.add_argument("--seed", type=_at_least(0, address.M64 - 7), default=1, help="default 1")
    parser.add_argument("--long", action="store_true", help="16 times the words, eight seeds")
    parser.add_argument("--png", metavar="FILE", help="write a page of plots")
    parser.add_argument(
        "--stdout",
        metavar="SOURCE",
        choices=sources,
        help="write words without end instead, for PractRand: | RNG_test stdin32",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the battery on the command's options; return 0 if all of ours pass and RANDU fails."""
    parser = argparse.ArgumentParser(prog="samebatch quality", description=DESCRIPTION)
    add_options(parser)
    return report(parser.parse_args(argv))


def report(options: argparse.Namespace) -> int:
    """Run the battery on parsed options; return 0 if all of ours pass and RANDU fails, else 1."""
    every = {**SOURCES, **CONTROLS}
    if options.stdout:
        return _pour(every[options.stdout], options.seed)
    sources = {name: every[name] for name in every if name in (options.only or every)}
    n = options.words * (16 if options.long else 1)
    seeds = range(options.seed, options.seed + (8 if options.long else 1))
    verdicts = dict.fromkeys(sources, "")
    good = True
    for seed in seeds:
        sys.stdout.write(f"p-values, {n} words of each source, seed {seed}\n")
        sys.stdout.write(" " * 18 + "".join(f"{t:>8}" for t in TESTS) + "\n")
        for name, source in sources.items():
            p = run(n, seed, {name: source})[name]
            sys.stdout.write(_row(name, p) + "\n")
            sys.stdout.flush()
            failed = [test for test, v in p.items() if v < FAIL]
            if failed or not verdicts[name]:
                verdicts[name] = f"fails {', '.join(failed)}" if failed else "passes"
            if name in SOURCES:
                good &= not failed
            elif name == "RANDU":
                good &= "plane3" in failed
    if options.png:
        drawn = {name: source(options.seed, 60_000) for name, source in sources.items()}
        page.write(options.png, drawn, verdicts)
        sys.stdout.write(f"{options.png}: a page of plots\n")
    sys.stdout.write("as it should be\n" if good else "NOT as it should be: see FAIL above\n")
    return 0 if good else 1


def _pour(source: Callable[[int, int], Words], seed: int) -> int:
    """Write words to standard output, 2**22 of each seed in turn, until the reader closes it."""
    try:
        while True:
            sys.stdout.buffer.write(source(seed & address.M64, 1 << 22).tobytes())
            seed += 1
    except BrokenPipeError:
        # Nothing more can be written: let the interpreter not try at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
