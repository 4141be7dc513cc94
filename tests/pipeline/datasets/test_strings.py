import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import datasets
from pipeline.errors import ConfigError
from pipeline.transfer import shared

texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=30)


@given(texts, st.integers(-40, 40), st.integers(-40, 40), st.sampled_from([None, 1, 2, -1, -3]))
def test_it_is_a_list_of_strings_that_cannot_be_changed(given_texts, first, last, step):
    packed = datasets.PackedStrings(given_texts)
    assert len(packed) == len(given_texts)
    assert list(packed) == packed.tolist() == given_texts
    assert packed == given_texts
    assert packed[first:last:step] == given_texts[first:last:step]
    assert list(reversed(packed)) == given_texts[::-1]
    for i in (first, last):
        if -len(given_texts) <= i < len(given_texts):
            assert packed[i] == given_texts[i]
            assert packed[i] in packed
            assert packed.index(packed[i]) == given_texts.index(given_texts[i])
        else:
            with pytest.raises(IndexError, match=f"string {i} of {len(given_texts)}"):
                packed[i]


def test_numpy_indices_and_names_that_are_not_utf8_work():
    names = [os.fsdecode(b"ma\xf1ana"), "日本", "", "\U0001f600"]
    packed = datasets.PackedStrings(names)
    assert packed[np.int64(0)] == names[0]
    assert os.fsencode(packed[0]) == b"ma\xf1ana"
    assert packed == tuple(names)
    assert packed != names[:2]
    assert packed == datasets.PackedStrings(iter(names))
    assert packed != datasets.PackedStrings(["mañana", *names[1:]])


def test_what_is_no_string_is_refused_by_its_number():
    with pytest.raises(ConfigError, match=r"texts\[2\]: expected a string, got bytes"):
        datasets.PackedStrings(["a", "b", b"c"])
    with pytest.raises(ConfigError, match="got the string 'abc'"):
        datasets.PackedStrings("abc")


def test_it_pickles_and_stays_read_only():
    for n in (5, 100_000):  # in private and in shared memory
        packed = datasets.PackedStrings(f"{i:020}" for i in range(n))
        again = pickle.loads(pickle.dumps(packed))
        assert again == packed
        assert not again._blob.flags.writeable
        assert packed.nbytes == 20 * n + 8 * (n + 1)


def test_a_long_one_lies_in_shared_memory_and_gives_it_back():
    before = len(shared._known)
    descriptors = len(os.listdir("/proc/self/fd"))
    packed = datasets.PackedStrings(f"{i:020}" for i in range(100_000))
    assert len(shared._known) == before + 1
    assert packed[99_999] == f"{99_999:020}"
    del packed
    assert len(shared._known) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
