import importlib.util
import json
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def reference():
    """tests/reference.py, the plain-integer oracle."""
    if "samebatch_reference" not in sys.modules:
        spec = importlib.util.spec_from_file_location("samebatch_reference", TESTS / "reference.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["samebatch_reference"] = module
    return sys.modules["samebatch_reference"]


@pytest.fixture(scope="session")
def kat():
    """kat("name"): the known answers of tests/kat/name.json."""
    return lambda name: json.loads((TESTS / "kat" / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def inductor():
    """torch.compile with inductor; skips where C++ cannot be compiled, and for no other reason."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports
        try:
            torch.compile(lambda x: x + 1)(torch.ones(3))
        except RuntimeError as e:
            lines = str(e).splitlines()
            if type(e).__name__ != "InductorError" or not lines[0].startswith(
                ("InvalidCxxCompiler", "CppCompileError")
            ):
                raise
            pytest.skip(f"inductor needs a C++ compiler and Python's headers: {lines[0]}")
