import doctest

import pytest

from tests.helpers import ROOT

pytest.importorskip("torch")


def test_the_page_runs():
    failed, tried = doctest.testfile(str(ROOT / "docs" / "torch.md"), module_relative=False)
    assert tried > 10
    assert failed == 0
