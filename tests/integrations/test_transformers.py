"""transformers' Trainer with our loader: equal batches and weights after a resume."""

import json

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import pipeline.torch
from pipeline import ConfigError, StateError
from pipeline.integrations import StatefulTrainerCallback
from tests.integrations.common import on_ranks, weights

N, LENGTH, WORDS, BATCH, STEPS = 22, 6, 17, 4, 6

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Tokens:
    def __len__(self):
        return N

    def __getitem__(self, i):
        words = (np.arange(LENGTH, dtype=np.int64) * (i + 3) + i) % WORDS
        return {"input_ids": words, "labels": words.copy()}


def masked(sample, rng):
    """Another word in a place drawn at the sample's address."""
    words = sample["input_ids"].copy()
    words[rng.integers(0, LENGTH)] = 0
    return sample | {"input_ids": words}


class Ours(Trainer):
    """The one override that is needed. Remembers what it trained on."""

    def __init__(self, *args, workers=0, **more):
        super().__init__(*args, **more)
        self.workers, self.seen = workers, []

    def get_train_dataloader(self):
        self.loader = pipeline.torch.DataLoader(
            Tokens(), self.args.per_device_train_batch_size, shuffle=True, seed=self.args.seed,
            transforms=[masked], num_workers=self.workers,
        )  # fmt: skip
        return self.accelerator.prepare(self.loader)

    def training_step(self, model, inputs, *args, **more):
        self.seen.append(inputs["input_ids"].tolist())
        return super().training_step(model, inputs, *args, **more)


def model():
    torch.manual_seed(5)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=LENGTH,
            n_embd=8,
            n_layer=1,
            n_head=2,
            resid_pdrop=0.1,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def run(folder, resume=None, workers=0, callbacks=True, kind=Ours, **options):
    """Train two epochs; return (batches, bytes of the weights, the trainer)."""
    settings = {
        "num_train_epochs": 2, "per_device_train_batch_size": BATCH, "save_steps": 4, "seed": 11,
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no",
    } | options  # fmt: skip
    more = {"workers": workers} if kind is Ours else {}
    trainer = kind(
        model=model(),
        args=TrainingArguments(str(folder), **settings),
        callbacks=[StatefulTrainerCallback()] if callbacks else [],
        **more,
    )
    try:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    finally:
        if kind is Ours:
            trainer.loader.close()
    return trainer.seen if kind is Ours else None, weights(trainer.model), trainer


def expected(epochs=2, **options):
    arguments = {"batch_size": BATCH, "shuffle": True, "seed": 11, "transforms": [masked]}
    with pipeline.DataLoader(Tokens(), **arguments | options) as loader:
        return [batch["input_ids"].tolist() for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_train_takes_our_batches(tmp_path, workers):
    seen, _, _ = run(tmp_path, workers=workers)
    assert seen == expected()


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0), (0, 2)])
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path, before, after):
    whole, trained, _ = run(tmp_path / "a", workers=before)
    for step in (4, 8):  # in the middle of the first epoch and of the second
        rest, again, _ = run(tmp_path / "b", tmp_path / "a" / f"checkpoint-{step}", workers=after)
        assert rest == whole[step:]
        assert again == trained


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 1])
def test_it_goes_on_from_about_an_epochs_end(tmp_path, step):
    whole, trained, _ = run(tmp_path / "a", save_steps=step)
    rest, again, _ = run(tmp_path / "b", tmp_path / "a" / f"checkpoint-{step}", save_steps=step)
    assert rest == whole[step:]
    assert again == trained


def test_it_goes_on_between_accumulated_batches(tmp_path):
    options = {"gradient_accumulation_steps": 2, "save_steps": 2}
    whole, trained, _ = run(tmp_path / "a", **options)
    rest, again, _ = run(tmp_path / "b", tmp_path / "a" / "checkpoint-2", **options)
    assert rest == whole[4:]
    assert again == trained


def test_the_state_lies_in_trainer_state_json(tmp_path):
    run(tmp_path, max_steps=4)
    facts = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    state = facts["stateful_callbacks"]["StatefulTrainerCallback"]["attributes"]["loader_state"]
    assert (state["epoch"], state["offset"], state["seed"]) == (0, 4 * BATCH, 11)


def test_without_the_callback_a_resume_says_what_is_missing(tmp_path):
    run(tmp_path / "a", callbacks=False)
    with pytest.raises(ConfigError, match="StatefulTrainerCallback"):
        run(tmp_path / "b", tmp_path / "a" / "checkpoint-4", callbacks=False)


def test_a_checkpoint_without_our_state_is_refused(tmp_path):
    run(tmp_path / "a", callbacks=False)
    with pytest.raises(StateError, match="no state of the training loader"):
        run(tmp_path / "b", tmp_path / "a" / "checkpoint-4")


def test_a_loader_of_torch_is_refused(tmp_path):
    class Theirs(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(Tokens())

    with pytest.raises(StateError, match="has no state"):
        run(tmp_path, kind=Theirs)


# ---------------------------------------------------------------- ranks
def train_on_ranks(rank, world, folder):
    seen, trained, trainer = run(f"{folder}/a")
    assert type(trainer.loader) is pipeline.torch.DataLoader
    assert (trainer.loader.rank, trainer.loader.world_size) == (rank, world)
    rest, again, _ = run(f"{folder}/b", f"{folder}/a/checkpoint-4")
    assert rest == seen[4:]
    assert again == trained
    return [seen, trained.hex()]


def test_two_ranks_share_out_the_order_of_one_and_resume(tmp_path):
    (first, trained), (second, same) = on_ranks(
        __name__, "train_on_ranks", 2, tmp_path, initialises=False
    )
    steps = [a + b for a, b in zip(first, second, strict=True)]
    assert steps == expected(batch_size=2 * BATCH)
    assert trained == same
    # One process goes on with what two began.
    saved = tmp_path / "train_on_ranks-2" / "a" / "checkpoint-4"
    rest, _, _ = run(tmp_path / "one", saved, per_device_train_batch_size=2 * BATCH)
    assert rest == steps[4:]
