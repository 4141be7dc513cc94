"""The oracle: generators, addresses and draws in slow, exact, plain Python integers.

Written from the papers and from DESIGN.md section 2, independently of the kernels; numpy and numba
are not used here.
"""

import hashlib

M32 = (1 << 32) - 1
M64 = (1 << 64) - 1

# ---------------------------------------------------------------- Random123
PHILOX_MULTIPLIERS = {
    (2, 32): (0xD256D193,),
    (4, 32): (0xD2511F53, 0xCD9E8D57),
    (2, 64): (0xD2B74407B1CE6E93,),
    (4, 64): (0xD2E7470EE14C6C93, 0xCA5A826395121157),
}
PHILOX_WEYL = {32: (0x9E3779B9, 0xBB67AE85), 64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}
THREEFRY_ROTATIONS = {
    32: ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20)),
    64: ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32)),
}
THREEFRY_PARITY = {32: 0x1BD11BDA, 64: 0x1BD11BDAA9FC1A22}


def philox(n, width, rounds, counter, key):
    mask = (1 << width) - 1
    multipliers = PHILOX_MULTIPLIERS[(n, width)]
    c, k = list(counter), list(key)
    for r in range(rounds):
        if r:
            k = [(k[i] + PHILOX_WEYL[width][i]) & mask for i in range(n // 2)]
        p0 = multipliers[0] * c[0]
        if n == 2:
            c = [(p0 >> width) ^ k[0] ^ c[1], p0 & mask]
        else:
            p1 = multipliers[1] * c[2]
            c = [(p1 >> width) ^ c[1] ^ k[0], p1 & mask, (p0 >> width) ^ c[3] ^ k[1], p0 & mask]
    return c


def threefry4(width, rounds, counter, key):
    mask = (1 << width) - 1
    parity = THREEFRY_PARITY[width]
    for k in key:
        parity ^= k
    schedule = [*key, parity]
    x = [(counter[i] + schedule[i]) & mask for i in range(4)]
    for r in range(rounds):
        for (a, b), turn in zip(
            ((0, 1), (2, 3)) if r % 2 == 0 else ((0, 3), (2, 1)),
            THREEFRY_ROTATIONS[width][r % 8],
            strict=True,
        ):
            x[a] = (x[a] + x[b]) & mask
            x[b] = (((x[b] << turn) | (x[b] >> (width - turn))) & mask) ^ x[a]
        if r % 4 == 3:
            s = r // 4 + 1
            x = [(x[i] + schedule[(s + i) % 5]) & mask for i in range(4)]
            x[3] = (x[3] + s) & mask
    return x


# ---------------------------------------------------------------- addresses
INIT, SHUFFLE, AUGMENT, DROPOUT, NOISE, SAMPLER, USER, GENERATOR = 1, 2, 3, 4, 5, 6, 7, 8
FOLD, NAME = 0xFE, 0xFF


def mix64(seed):
    z = (seed + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def unshift(y, s):
    x = y
    for _ in range(64 // s + 1):
        x = y ^ (x >> s)
    return x


def unmix64(key):
    """Inverse of mix64: its existence proves that two seeds never share a key."""
    z = (unshift(key, 31) * pow(0x94D049BB133111EB, -1, 1 << 64)) & M64
    z = (unshift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64)) & M64
    return (unshift(z, 30) - 0x9E3779B97F4A7C15) & M64


def counter(purpose, site, time, position):
    return [position & M32, position >> 32, time, (purpose << 24) | site]


def block(key, purpose, site, time, position):
    return philox(4, 32, 10, counter(purpose, site, time, position), [key & M32, key >> 32])


def word(key, purpose, site, time, i):
    """Word i of the stream whose position counts blocks."""
    return block(key, purpose, site, time, i // 4)[i % 4]


def fold_in(key, data):
    w = block(key, FOLD, 0, 0, data)
    return w[0] | (w[1] << 32)


def named(key, name):
    h = hashlib.blake2s(name.encode(), digest_size=15).digest()  # 120 bits
    position = int.from_bytes(h[:8], "little")
    time = int.from_bytes(h[8:12], "little")
    site = int.from_bytes(h[12:15], "little")
    w = block(key, NAME, site, time, position)
    return w[0] | (w[1] << 32)


# ---------------------------------------------------------------- draws
def bounded(key, site, time, i, n):
    """Exact, unbiased, addressed by i: two 64-bit tries a block, 256 blocks."""
    threshold = ((1 << 64) - n) % n
    for attempt in range(256):
        w = block(key, SHUFFLE, site, time, (i << 8) | attempt)
        for r in (w[0] | w[1] << 32, w[2] | w[3] << 32):
            if ((r * n) & M64) >= threshold:
                return (r * n) >> 64
    raise RuntimeError


def permutation(key, n, site=0, phase=0):
    a = list(range(n))
    for i in range(n - 1, 0, -1):
        j = bounded(key, site, phase, i, i + 1)
        a[i], a[j] = a[j], a[i]
    return a


def keep_bits(key, layer, step, n, p_drop, bits=16):
    """One keep bit an element: 128 / bits elements a block, thresholds of `bits` bits."""
    threshold = int(p_drop * (1 << bits) + 0.5)
    each = 128 // bits
    keep = []
    for i in range(n):
        w = block(key, DROPOUT, layer, step, i // each)
        whole = w[0] | w[1] << 32 | w[2] << 64 | w[3] << 96
        keep.append((whole >> (bits * (i % each)) & ((1 << bits) - 1)) >= threshold)
    return keep


def stream_word(key, c3, c2, start, i):
    position = start + i // 4
    counter_words = [position & M32, position >> 32, c2, c3]
    return philox(4, 32, 10, counter_words, [key & M32, key >> 32])[i % 4]


def normal(word, table):
    """(integer z, exponent): the magnitude of the normal number of a word is z * 2**exponent."""
    x = (2 * word + 1) & M32
    e = x.bit_length() - 1
    y = x << (31 - e)
    row = 16 * e + (y >> 27 & 15)
    t = (y << 5 & M32) >> 1
    c0, c1, c2, c3 = table[row]
    a = c2 + ((c3 * t) >> 32)
    a = c1 + ((a * t) >> 32)
    return c0 + ((a * t) >> 34), -31 if e == 31 else -28


def below(key, c3, start, i, n):
    """Exact integer in [0, n) number i of a stream: attempts as op; one word, or two above 2**32."""
    width = 32 if n <= 1 << 32 else 64
    for attempt in range(256):
        words = [
            stream_word(key, c3 + (attempt << 16), 0, start, i * width // 32 + j) for j in (0, 1)
        ]
        r = words[0] if width == 32 else words[0] | words[1] << 32
        if (r * n) % (1 << width) >= (1 << width) % n:
            break
    return r * n >> width
