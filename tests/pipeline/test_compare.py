"""Two runs are compared, and the first difference is named."""

import json

import numpy as np
import pytest

import pipeline
from pipeline import AuditError, datasets
from pipeline import transforms as T
from tests.helpers import Images, images, make, walk

N = 21


class Changed(Images):
    """The same images, but one pixel of sample 13."""

    def __getitem__(self, i):
        pixels, label = super().__getitem__(i)
        if i == 13:
            pixels = pixels.copy()
            pixels[6, 6, 1] ^= 1
        return pixels, label


def run(path, dataset=None, epochs=2, **how):
    """Log a run; return the log's path."""
    with make(Images(N) if dataset is None else dataset, audit=path, **how) as loader:
        for _ in range(epochs):
            walk(loader)
    return path


@pytest.fixture
def log(tmp_path):
    return run(tmp_path / "plain")


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_workers": 2},
        {"batch_size": 5},
        {"mode": "fast", "num_workers": 2, "worker_method": "thread"},
        {"mode": "fast", "batch_size": 3},
    ],
    ids=["the same", "workers", "batch size", "fast mode", "fast mode, batch size"],
)
def test_equal_runs_are_equal(log, tmp_path, how):
    found = pipeline.verify(log, run(tmp_path / "b", **how))
    assert found
    assert found.samples == 2 * N
    assert str(found).startswith("equal: 42 samples compared")
    assert set(found.facts) == set(how) & {"mode", "batch_size"}


def test_the_first_differing_sample_is_named_with_batch_slot_and_field(log, tmp_path):
    plain = [T.ToTensor()]
    a = run(tmp_path / "a", transforms=plain)
    b = run(tmp_path / "b", Changed(N), transforms=plain)
    found = pipeline.verify(a, b)
    with make(Images(N), transforms=plain) as loader:
        at = [row[1] for row in walk(loader)].index(13)
    first = found.first
    assert (first.kind, first.epoch, first.position, first.fields) == ("bytes", 0, at, ("0",))
    assert (first.a.step, first.a.slot, first.a.sample_id) == (at // 4, at % 4, 13)
    assert first.a.digest != first.b.digest
    for text in (f"epoch 0 position {at} field 0", f"step {at // 4} slot {at % 4} sample 13"):
        assert text in str(found)
    assert json.loads(json.dumps(found.to_dict()))["equal"] is False


def test_another_seed_and_other_versions_are_told(log, tmp_path):
    other = run(tmp_path / "b", seed=8)
    text = other.read_text().replace('"numba": "', '"numba": "0.')
    other.write_text(text)
    found = pipeline.verify(log, other)
    assert found.first.kind == "sample"
    assert found.facts["seed"] == (7, 8)
    assert "versions.numba" in found.facts
    assert "seed: A has 7, B has 8" in str(found)


def test_the_logs_of_the_ranks_are_one_run(log, tmp_path):
    for rank in range(3):
        run(tmp_path / f"rank{rank}.jsonl", rank=rank, world_size=3, batch_size=2)
    for side in (str(tmp_path / "rank*.jsonl"), [tmp_path / f"rank{r}.jsonl" for r in range(3)]):
        assert pipeline.verify(log, side)
    found = pipeline.verify(log, [tmp_path / f"rank{r}.jsonl" for r in (0, 2)])
    assert found.first.kind == "missing"
    assert found.first.position == 2
    assert found.first.b is None


def test_a_resumed_run_is_the_whole_run(log, tmp_path):
    with make(Images(N), audit=tmp_path / "b") as loader:
        walk(loader, 2)
        state = loader.state_dict()
    with make(Images(N), batch_size=3, audit=tmp_path / "b") as loader:
        loader.load_state_dict(state)
        for _ in range(2):
            walk(loader)
    assert pipeline.verify(log, tmp_path / "b")


def test_batches_that_are_made_again_after_a_crash_count_once(log, tmp_path):
    with make(Images(N), audit=tmp_path / "b") as loader:
        walk(loader, 3)
    run(tmp_path / "b")
    assert pipeline.verify(log, tmp_path / "b")
    text = (tmp_path / "b").read_text().splitlines()
    again = json.loads(text[2])
    again["digests"][1] = "f" * len(again["digests"][1])
    (tmp_path / "b").write_text("\n".join([*text, json.dumps(again)]) + "\n")
    found = pipeline.verify(log, tmp_path / "b")
    assert (found.first.kind, found.first.position, found.first.fields) == ("repeated", 4, ("1",))


def test_a_shorter_run_differs_unless_only_what_both_have_is_compared(log, tmp_path):
    short = run(tmp_path / "b", epochs=1)
    found = pipeline.verify(log, short)
    assert (found.first.kind, found.first.epoch, found.first.position) == ("missing", 1, 0)
    assert pipeline.verify(log, short, common=True)
    lines = short.read_text().splitlines()
    short.write_text("\n".join(lines[:-2]) + "\n")
    found = pipeline.verify(log, short)
    assert (found.first.kind, found.first.epoch, found.first.position) == ("missing", 0, 16)
    assert pipeline.verify(short, log, common=True).samples == 16


def test_a_line_that_was_cut_short_is_a_note(log, tmp_path):
    other = tmp_path / "b"
    other.write_bytes(log.read_bytes()[:-40])
    found = pipeline.verify(log, other, common=True)
    assert found
    assert "was cut short" in found.notes[0]


@pytest.mark.parametrize("place", [1, -1], ids=["middle", "end"])
@pytest.mark.parametrize(
    "text", ["garbage", '{"epoch": oh no}', "\0\0\0"], ids=["words", "json", "nul"]
)
def test_a_line_that_was_never_one_of_a_log_is_an_error_with_its_number(log, tmp_path, place, text):
    lines = log.read_text().splitlines()
    lines[place] = text
    other = tmp_path / "b"
    other.write_text("\n".join(lines) + "\n")
    with pytest.raises(pipeline.AuditError, match=rf"b:{place % len(lines) + 1} is no line of an"):
        pipeline.verify(log, other)


def test_wherever_a_line_is_cut_it_is_a_note_and_no_error(log, tmp_path):
    lines = log.read_text().splitlines()
    other = tmp_path / "b"
    for end in range(1, len(lines[2])):
        other.write_text("\n".join([*lines[:2], lines[2][:end], *lines[3:]]) + "\n")
        assert "b:3 was cut short" in pipeline.verify(log, other).notes[0]


def test_other_fields_are_told_before_any_digest(log, tmp_path):
    other = run(tmp_path / "b", transforms=[T.Normalize(preset="cifar10", dtype="float16")])
    found = pipeline.verify(log, other)
    assert found.first.kind == "fields"
    assert found.first.fields == ("0", "0")
    assert "<f2" in str(found)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no audit log"),
        (b"", "no line of JSON"),
        (b"\x89PNG\r\n\x1a\n\x00\x01", "no line of JSON"),
        (b"[1, 2]\n", "no line of an audit log"),
        (b'{"epoch": 0}\n', "no line of an audit log"),
        (b'{"format": "samebatch-audit-9"}\n', "samebatch-audit-9"),
    ],
    ids=["none", "empty", "picture", "list", "other JSON", "other format"],
)
def test_what_is_no_log_is_an_error(log, tmp_path, content, expected):
    if content is not None:
        (tmp_path / "b").write_bytes(content)
    with pytest.raises(AuditError, match=expected):
        pipeline.verify(log, tmp_path / "b")


# ---------------------------------------------------------------- long samples, made in bulk
LONG = [T.RandomHorizontalFlip(), T.Normalize(preset="cifar10")]


def big(change=()):
    pixels = images(40, height=32, width=32)
    for i in change:
        pixels[i] ^= 255
    return datasets.ArrayDataset(pixels, np.arange(40))


def test_batches_of_long_samples_are_compared_as_wholes(tmp_path):
    a = run(tmp_path / "a", big(), batch_size=8, transforms=LONG)
    assert pipeline.verify(
        a, run(tmp_path / "b", big(), batch_size=8, transforms=LONG, num_workers=2)
    )
    found = pipeline.verify(a, run(tmp_path / "c", big([11]), batch_size=8, transforms=LONG))
    first = found.first
    with make(big(), batch_size=8, transforms=LONG) as loader:
        at = [row[1] for row in walk(loader)].index(11)
    assert (first.kind, first.epoch, first.a.step, first.a.slot) == ("bytes", 0, at // 8, None)
    assert first.fields == ("0",)
    assert found.covered == 128 / 12288
    assert "of the bytes of the longest samples" in str(found)


def test_what_looked_at_other_bytes_cannot_be_compared(tmp_path):
    a = run(tmp_path / "a", big(), batch_size=8, transforms=LONG)
    b = run(tmp_path / "b", big(), batch_size=8, transforms=LONG, audit_bytes="all")
    with pytest.raises(AuditError, match="audit_bytes"):
        pipeline.verify(a, b)
    c = run(tmp_path / "c", big(), batch_size=5, transforms=LONG)
    with pytest.raises(AuditError, match="other batches"):
        pipeline.verify(a, c)


def test_a_missing_batch_of_long_samples_is_told(tmp_path):
    a = run(tmp_path / "a", big(), batch_size=8, transforms=LONG)
    lines = a.read_text().splitlines()
    (tmp_path / "b").write_text("\n".join(lines[:3] + lines[4:]) + "\n")
    found = pipeline.verify(a, tmp_path / "b")
    assert (found.first.kind, found.first.position, found.first.b) == ("missing", 16, None)
    assert pipeline.verify(a, tmp_path / "b", common=True)
