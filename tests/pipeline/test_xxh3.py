import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pipeline import xxh3


@given(st.integers(0, xxh3.MOST), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_rows_have_the_librarys_digests(nbytes, n, seed):
    data = np.random.default_rng(seed).integers(0, 256, (n, nbytes), np.uint8)
    out = np.empty(n, np.uint64)
    xxh3.rows(data, out)
    assert out.tolist() == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in data]


def test_every_length_has_the_librarys_digest():
    for nbytes in range(xxh3.MOST + 1):
        data = np.arange(3 * nbytes, dtype=np.uint8).reshape(3, nbytes)
        out = np.empty(3, np.uint64)
        xxh3.rows(data, out)
        assert out.tolist() == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in data]


def test_the_digest_of_lines_is_the_librarys_of_two_lines_of_the_row():
    n, nbytes = 50, 64 * 10 + 5
    data = np.random.default_rng(3).integers(0, 256, (n, nbytes), np.uint8)
    out = np.empty(n, np.uint64)
    xxh3.lines(data, np.arange(n), np.arange(n, dtype=np.uint64), out)
    for row, found in zip(data, out.tolist(), strict=True):
        lines = [row[64 * k : 64 * k + 64].tobytes() for k in range(10)]
        halves = {xxhash.xxh3_64_intdigest(a + b) for a in lines[:5] for b in lines[5:]}
        assert found in halves


def test_sums_do_not_depend_on_order_and_carry_into_the_high_word():
    ids = np.arange(1000)
    positions = ids.astype(np.uint64)
    digests = np.random.default_rng(1).integers(0, 2**63, (2, 1000)).astype(np.uint64)
    totals = []
    for order in (ids, ids[::-1]):
        total = np.zeros(2, np.uint64)
        for part in np.split(order, [300]):
            xxh3.add_up(ids[part], positions[part], np.ascontiguousarray(digests[:, part]), total)
        totals.append(total.tolist())
    assert totals[0] == totals[1]
    assert 100 < totals[0][1] < 900
