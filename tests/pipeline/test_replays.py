import re

import numpy as np
import pytest

import pipeline
from pipeline import AuditError, SampleError, replays
from tests.helpers import Images, make, walk

N = 21


class Broken(Images):
    def __getitem__(self, i):
        if i == 13:
            raise ValueError("bad pixel 77")
        return super().__getitem__(i)


def test_a_batch_is_made_again_from_a_line_of_the_log(tmp_path):
    path = tmp_path / "log"
    with make(Images(N), audit=path) as loader:
        batches = [list(map(np.copy, b)) for b in loader]
    with make(Images(N)) as loader:
        for step in range(6):
            facts = replays.from_log(path, 0, step)
            assert (facts.seed, facts.split, facts.step) == (7, "train", step)
            made = replays.replay(loader, facts.epoch, facts.positions)
            assert made.agrees_with(facts)
            for array, expected in zip(made.fields.values(), batches[step], strict=True):
                assert np.array_equal(array, expected)
    with make(Images(N), seed=8) as other:
        assert not replays.replay(other, 0, facts.positions).agrees_with(facts)


def test_without_a_step_the_last_batch_of_the_log_is_meant(tmp_path):
    with make(Images(N), audit=tmp_path / "log") as loader:
        walk(loader, 3)
    assert replays.from_log(tmp_path / "log", None, None).step == 2
    with pytest.raises(AuditError, match="no such batch"):
        replays.from_log(tmp_path / "log", 0, 5)
    with pytest.raises(AuditError, match="cannot be read"):
        replays.from_log(tmp_path / "nothing", 0, 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_errors_text_names_the_sample_and_the_error_comes_again(tmp_path, launcher, workers):
    del launcher
    with (
        make(Broken(N), num_workers=workers) as loader,
        pytest.raises(SampleError) as failed,
    ):
        walk(loader)
    (tmp_path / "error.txt").write_text(f"Traceback …\n{failed.value}\n")
    facts = replays.from_log(tmp_path / "error.txt", None, None)
    assert (facts.epoch, facts.seed, facts.split) == (0, 7, "train")
    assert facts.positions.tolist() == [failed.value.fields["position"]]
    assert re.search(
        rf"samebatch replay CONFIG --epoch 0 --position {facts.positions[0]} --set seed=7",
        failed.value.do,
    )
    with make(Broken(N)) as loader, pytest.raises(SampleError) as again:
        replays.replay(loader, facts.epoch, facts.positions)
    assert again.value.what == failed.value.what


def test_two_batches_are_compared_value_by_value():
    with make(Images(N)) as loader:
        one = replays.replay(loader, 0, step=1)
        same = replays.replay(loader, 0, step=1)
        assert one.compared_with(same) == "made again, the two batches are the same"
        same.fields["0"][2, 1, 3, 4] += 1
        text = one.compared_with(same)
    assert text.startswith("slot 2 (position 6) field 0[1, 3, 4]: ")
    assert text.endswith("1 of 432 values differ")


def test_a_saved_batch_is_whole(tmp_path):
    with make(Images(N)) as loader:
        made = replays.replay(loader, 0, step=5)
    made.save(tmp_path / "batch.npz")
    with np.load(tmp_path / "batch.npz") as saved:
        assert np.array_equal(saved["field_0"], made.fields["0"])
        assert saved["positions"].tolist() == [20]
        assert np.array_equal(saved["sample_ids"], made.sample_ids)
    assert [p.name for p in tmp_path.iterdir()] == ["batch.npz"]


def test_a_run_without_a_seed_cannot_be_made_again():
    config = pipeline.load_config("[dataset]\nkind = 'digits'\n")
    with pytest.raises(pipeline.ConfigError, match="seed"):
        replays.loader_of(config, replays.Facts(0, step=0))


class Texts(Images):
    def __getitem__(self, i):
        return {"image": super().__getitem__(i)[0], "name": f"{i:03d}", "label": i}


@pytest.mark.parametrize(
    "how",
    [
        {"transforms": []},
        {"collate_fn": list},
        {"batch_sampler": [[3, 4, 5], [1, 2], [0]], "batch_size": 1, "shuffle": False},
        {"batch_size": None, "shuffle": False},
    ],
    ids=["text", "collate_fn", "batch_sampler", "no batches"],
)
def test_batches_of_every_kind_are_logged_compared_and_made_again(tmp_path, how):
    for name in "ab":
        with make(Texts(N), audit=tmp_path / name, **how) as loader:
            for _ in loader:
                pass
    assert pipeline.verify(tmp_path / "a", tmp_path / "b")
    with make(Texts(N), **how) as loader:
        facts = replays.from_log(tmp_path / "a", 0, 1)
        assert replays.replay(loader, 0, facts.positions).agrees_with(facts)
        found = loader.explain(0, 1)
        assert found.position == facts.positions[0]


def test_text_that_differs_is_found(tmp_path):
    class Other(Texts):
        def __getitem__(self, i):
            return super().__getitem__(i) | ({"name": "x"} if i == 7 else {})

    for name, data in (("a", Texts(N)), ("b", Other(N))):
        with make(data, audit=tmp_path / name, shuffle=False) as loader:
            for _ in loader:
                pass
    found = pipeline.verify(tmp_path / "a", tmp_path / "b")
    assert (found.first.position, found.first.fields) == (7, ("rest",))
