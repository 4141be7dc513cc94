import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import state as states
from pipeline.errors import StateError
from pipeline.state import State, load, save, short_digest
from tests.helpers import ROOT

STATE = State(
    stream_version=1, seed=7, split="train", epoch=3, offset=40, mode="fast", lanes=16,
    order="fisher_yates", streams="sample", length=100, dataset="abc", transforms="def",
    versions={"numba": "1", "pillow": "2"}, ahead=((44, 48), (60, 61)),
)  # fmt: skip


def test_a_state_survives_json():
    facts = json.loads(json.dumps(STATE.to_dict()))
    assert State.from_dict(facts) == STATE
    assert len(json.dumps(facts)) < 1024


def test_a_state_holds_only_plain_json():
    def plain(value):
        if isinstance(value, dict):
            return all(type(k) is str and plain(v) for k, v in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return type(value) in (int, str)

    assert plain(STATE.to_dict())


def test_what_is_not_set_is_left_out():
    facts = State(**{**vars(STATE), "ahead": ()}).to_dict()
    assert not {"ahead", "rank", "world_size", "overridden"} & set(facts)


@pytest.mark.parametrize("facts", [None, 3, [], "x", {}, {"format": "samebatch-state-0"}])
def test_something_else_is_no_state(facts):
    with pytest.raises(StateError, match="not a state of samebatch"):
        State.from_dict(facts)


def test_unknown_and_missing_fields_are_named():
    facts = STATE.to_dict()
    del facts["seed"]
    with pytest.raises(StateError, match=r"unknown fields \['more'\], missing fields \['seed'\]"):
        State.from_dict(facts | {"more": 1})


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3),
    st.lists(st.one_of(st.integers(-9, 200), st.text(max_size=2)), max_size=3),
    st.lists(st.lists(st.integers(-9, 200), max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip


@given(st.sampled_from(sorted(STATE.to_dict())), junk)
def test_a_damaged_field_is_a_state_error_or_harmless(name, value):
    facts = STATE.to_dict() | {name: value}
    try:
        found = State.from_dict(facts)
    except StateError:
        return
    assert json.dumps(found.to_dict())
    assert found.check(found) == ()
    assert 0 <= found.seed < 2**64
    assert 0 <= found.epoch < 2**31
    assert 0 <= found.offset <= found.length
    assert all(0 <= a < b for a, b in found.ahead)


@pytest.mark.parametrize(
    "name",
    [
        "stream_version",
        "seed",
        "split",
        "lanes",
        "order",
        "streams",
        "length",
        "dataset",
        "transforms",
    ],
)
def test_every_field_that_decides_bytes_is_compared(name):
    value = getattr(STATE, name)
    other = State(**{**vars(STATE), name: value + 100 if isinstance(value, int) else value + "x"})
    with pytest.raises(StateError) as e:
        STATE.check(other)
    assert f"{name}: the state has {value!r}, this loader {getattr(other, name)!r}" in str(e.value)
    assert f"allow=['{name}']" in str(e.value)
    assert STATE.check(other, allow=[name]) == (name,)


def test_what_decides_no_byte_is_not_compared():
    assert (
        STATE.check(State(**{**vars(STATE), "mode": "reproducible", "epoch": 0, "offset": 0})) == ()
    )


def test_allow_must_name_a_field_that_is_compared():
    with pytest.raises(StateError, match=r"no field that is compared: \['workers'\]"):
        STATE.check(STATE, allow=["workers"])


def test_a_fast_state_of_one_rank_is_not_for_another():
    mine = State(**{**vars(STATE), "rank": 0, "world_size": 2})
    other = State(**{**vars(STATE), "rank": 1, "world_size": 2})
    with pytest.raises(StateError, match=r"rank 0 of 2 .* cannot be loaded by rank 1 of 2"):
        mine.check(other)


def test_equal_values_have_equal_digests_whatever_the_order():
    assert short_digest({"a": 1, "b": [2, "ü"]}) == short_digest({"b": [2, "ü"], "a": 1})
    assert short_digest({"a": 1}) != short_digest({"a": 2})
    assert short_digest([]) == "71857576257465c7"


# ---------------------------------------------------------------- files
def test_a_file_gives_back_what_was_saved_and_nothing_else_is_there(tmp_path):
    path = tmp_path / "state.json"
    for epoch in range(3):
        facts = STATE.to_dict() | {"epoch": epoch}
        save(facts, path)
        assert load(path) == facts
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_a_damaged_file_is_never_taken_for_a_fresh_start(tmp_path):
    path = tmp_path / "state.json"
    save(STATE.to_dict(), path)
    whole = path.read_bytes()
    for n in (0, 1, 10, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:n])
        with pytest.raises(StateError, match=r"state\.json' is damaged"):
            load(path)
    for at in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert load(path) == STATE.to_dict()  # a blank, or the digits of nothing
        except StateError as e:
            assert "is damaged" in str(e)  # noqa: PT017
    for other in ("[]", "{}", '{"state": 3, "digest": "x"}', "null"):
        path.write_text(other)
        with pytest.raises(StateError, match="is damaged"):
            load(path)


def test_no_file_is_no_damaged_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "state.json")


def test_a_failed_save_leaves_the_old_state_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    save(STATE.to_dict(), path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(STATE.to_dict() | {"epoch": 9}, path)
    assert load(path)["epoch"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.kill
def test_a_kill_while_saving_leaves_the_old_or_the_new_state(tmp_path):
    path = tmp_path / "state.json"
    code = (
        "import sys\n"
        "from pipeline.state import save\n"
        "print('ready', flush=True)\n"
        "for epoch in range(10**6):\n"
        "    save({'epoch': epoch, 'text': 'x' * 3000}, sys.argv[1])\n"
        "    if epoch % 20 == 0: print(epoch, flush=True)\n"
    )
    for round_ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        told = [child.stdout.readline() for _ in range(3 + round_)][-1]
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        child.stdout.close()
        assert load(path)["epoch"] >= int(told)
