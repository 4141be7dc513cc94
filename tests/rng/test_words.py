import numpy as np
import pytest

import rng


def test_every_random123_vector_of_our_generators(kat):
    seen = 0
    for v in kat("random123")["vectors"]:
        function = {"philox4x32": rng.philox4x32, "threefry4x32": rng.threefry4x32}.get(v["name"])
        if function is None:
            continue
        counter, key = ([int(w, 16) for w in v[field]] for field in ("ctr", "key"))
        assert [f"0x{w:08x}" for w in function(counter, key, v["rounds"])] == v["expected"]
        seen += 1
    assert seen == 15


def test_the_reference_gives_the_random123_vectors(kat, reference):
    for v in kat("random123")["vectors"]:
        name, n, width = v["name"][:-4], int(v["name"][-4]), int(v["name"][-2:])
        counter, key = ([int(w, 16) for w in v[field]] for field in ("ctr", "key"))
        if name == "philox":
            got = reference.philox(n, width, v["rounds"], counter, key)
        elif n == 4:
            got = reference.threefry4(width, v["rounds"], counter, key)
        else:
            continue
        assert got == [int(w, 16) for w in v["expected"]], v["name"]


@pytest.mark.parametrize(("function", "words"), [(rng.philox4x32, 2), (rng.threefry4x32, 4)])
def test_counters_and_keys_broadcast(function, words):
    counters = np.arange(24, dtype=np.uint32).reshape(2, 3, 4)
    keys = np.arange(3 * words, dtype=np.uint32).reshape(3, words)
    got = function(counters, keys)
    assert got.shape == (2, 3, 4)
    for i in range(2):
        for j in range(3):
            assert (got[i, j] == function(counters[i, j], keys[j])).all()
    assert (function(counters, keys[1])[1, 1] == got[1, 1]).all()
    assert function(np.empty((0, 4), np.uint32), keys[0]).shape == (0, 4)


def test_words_out_of_range_raise():
    for call in (
        lambda: rng.philox4x32([0, 0, 0], [0, 0]),
        lambda: rng.philox4x32([0, 0, 0, 0], [0, 0, 0]),
        lambda: rng.philox4x32([0, 0, 0, -1], [0, 0]),
        lambda: rng.philox4x32([0, 0, 0, 1 << 32], [0, 0]),
        lambda: rng.philox4x32([0, 0, 0, 0.5], [0, 0]),
        lambda: rng.philox4x32([0, 0, 0, 0], [0, 0], rounds=17),
        lambda: rng.threefry4x32([0, 0, 0, 0], [0, 0, 0, 0], rounds=-1),
    ):
        with pytest.raises(ValueError, match=r"must|rounds"):
            call()


@pytest.mark.parametrize("block", [rng.philox4x32, rng.threefry4x32])
@pytest.mark.parametrize("rounds", [1.5, 10.0, True, None])
def test_rounds_must_be_an_int(block, rounds):
    key = [0] * (2 if block is rng.philox4x32 else 4)
    with pytest.raises(TypeError, match="rounds must be an int"):
        block([0] * 4, key, rounds=rounds)
    assert (block([1] * 4, key, rounds=np.int8(7)) == block([1] * 4, key, rounds=7)).all()
