"""Imports the libraries once, before tests count their warnings: theirs are not ours to mend.

Run by `make test-integrations`. Each file skips what is not installed.
"""

import importlib
import importlib.util
import warnings

import pytest

_LIBRARIES = (
    "torch", "torch.distributed.checkpoint", "lightning.pytorch", "accelerate", "transformers",
    "torchdata.stateful_dataloader", "jax",
)  # fmt: skip

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for _name in _LIBRARIES:
        if importlib.util.find_spec(_name.partition(".")[0]):
            importlib.import_module(_name)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch, launcher):
    """Trainers write logs and checkpoints into the current folder; none may ask a hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
