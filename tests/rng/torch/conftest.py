"""What the tests of rng.torch share."""

import warnings

import pytest


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
