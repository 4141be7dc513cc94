import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rng import address

U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))


def test_keys_blocks_and_names_equal_the_known_answers(kat, reference):
    vectors = kat("addresses")
    for v in vectors["keys"]:
        assert address.mix64(int(v["seed"], 16)) == int(v["key"], 16)
    for v in vectors["blocks"]:
        at = address.counter(
            v["purpose"], v["site"] >> 16, v["site"] & 0xFFFF, v["time"], int(v["pos"], 16)
        )
        assert list(at) == [int(w, 16) for w in v["ctr"]]
        key = address.mix64(int(v["seed"], 16))
        assert [f"0x{w:08x}" for w in address._block(key, at)] == v["out"]
    for v in vectors["fold_in"]:
        assert address.fold_in(address.mix64(int(v["seed"])), int(v["data"], 16)) == int(
            v["key"], 16
        )
    for v in vectors["named"]:
        assert address.named(address.mix64(int(v["seed"])), v["name"]) == int(v["key"], 16)


@given(U8, U8, U16, U32, U64)
def test_decode_is_the_inverse_of_counter(purpose, op, lane, phase, position):
    words = address.counter(purpose, op, lane, phase, position)
    assert all(0 <= w < 1 << 32 for w in words)
    assert address.decode(words) == {
        "purpose": purpose,
        "op": op,
        "lane": lane,
        "phase": phase,
        "position": position,
    }


@given(U64)
def test_mix64_is_a_bijection(reference, seed):
    assert reference.unmix64(address.mix64(seed)) == seed
    assert address.unmix64(address.mix64(seed)) == seed


@given(st.integers(0, (1 << 40) - 1), st.integers(0, (1 << 24) - 1))
def test_sample_positions_do_not_alias(n, block):
    position = address.sample_position(n, block)
    assert (position >> 24, position & 0xFFFFFF) == (n, block)


@pytest.mark.parametrize(
    ("field", "bits"), [("purpose", 8), ("op", 8), ("lane", 16), ("phase", 32), ("position", 64)]
)
def test_a_field_out_of_range_raises(field, bits):
    fields = {"purpose": 1}
    address.counter(**fields | {field: (1 << bits) - 1})
    for bad in (-1, 1 << bits):
        with pytest.raises(OverflowError, match=field):
            address.counter(**fields | {field: bad})


def test_positions_out_of_range_raise():
    for call in (
        lambda: address.sample_position(1 << 40),
        lambda: address.sample_position(0, 1 << 24),
        lambda: address.attempt_position(1 << 56),
        lambda: address.attempt_position(0, 256),
        lambda: address.sample_position(-1),
    ):
        with pytest.raises(OverflowError, match="must be in"):
            call()


def test_numbers_of_numpy_do_not_wrap():
    for kind in (np.uint8, np.int8, np.int32, np.uint64):
        assert address.site(kind(7), kind(3), kind(100)) == address.site(7, 3, 100)
        assert address.sample_position(kind(100), kind(5)) == address.sample_position(100, 5)
        assert address.attempt_position(kind(100), kind(5)) == address.attempt_position(100, 5)
        assert address.counter(3, phase=kind(9), position=kind(11)) == address.counter(
            3, 0, 0, 9, 11
        )
        assert address.fold_in(kind(7), kind(9)) == address.fold_in(7, 9)
        assert address.named(kind(7), "a") == address.named(7, "a")


@pytest.mark.parametrize("bad", [True, np.True_, 1.0, math.nan, "1", None])
def test_a_field_must_be_an_int(bad):
    address.named(1, "a")  # in the cache: 1, 1.0 and True are one key of a dict
    for call in (
        lambda: address.site(bad),
        lambda: address.site(1, bad),
        lambda: address.site(1, 0, bad),
        lambda: address.counter(1, phase=bad),
        lambda: address.counter(1, position=bad),
        lambda: address.sample_position(bad),
        lambda: address.attempt_position(0, bad),
        lambda: address.decode((0, 0, 0, bad)),
        lambda: address.fold_in(bad, 1),
        lambda: address.fold_in(1, bad),
        lambda: address.named(bad, "a"),
    ):
        with pytest.raises(TypeError, match="must be an int"):
            call()


def test_keys_and_names_out_of_range_raise():
    for key in (-1, 1 << 64):
        for call in (lambda: address.fold_in(key, 0), lambda: address.named(key, "a")):  # noqa: B023
            with pytest.raises(ValueError, match="key must be in"):
                call()
    with pytest.raises(OverflowError, match="position"):
        address.fold_in(0, 1 << 64)
    with pytest.raises(OverflowError, match="word"):
        address.decode((1 << 32, 0, 0, 0))
    for name in (None, b"a", 1):
        with pytest.raises(TypeError, match="name must be a str"):
            address.named(0, name)


def test_a_seed_must_be_an_int_of_64_bits():
    for bad in (True, 1.0, "1", None):
        with pytest.raises(TypeError):
            address.mix64(bad)
    for bad in (-1, 1 << 64):
        with pytest.raises(ValueError, match="2\\*\\*64"):
            address.mix64(bad)
