"""Every case from the field has a test that bears its number, or names the ones that it has elsewhere."""

import ast
import re
from pathlib import Path

from tests.helpers import ROOT

LAST = 78
HERE = Path(__file__).parent


def _functions(path):
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


def _tables():
    """{case: [test]} of every `COVERED` in this folder."""
    found = {}
    for path in sorted(HERE.glob("covered_*.py")):
        for node in ast.parse(path.read_text()).body:
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            if any(getattr(t, "id", None) == "COVERED" for t in targets):
                table = ast.literal_eval(node.value)
                assert not found.keys() & table.keys()
                found |= table
    return found


def _named():
    """Cases that a test function of this folder is named after."""
    names = {name for path in HERE.glob("test_*.py") for name in _functions(path)}
    return {m[1].upper() for name in names if (m := re.match(r"test_(h\d{3})_", name))}


def test_every_case_has_a_test():
    assert {f"H{i:03d}" for i in range(1, LAST + 1)} - _named() - _tables().keys() == set()


def test_the_tests_that_are_named_elsewhere_exist():
    for case, tests in _tables().items():
        assert re.fullmatch(r"H\d{3}", case), case
        assert tests, case
        for test in tests:
            path, _, name = test.partition("[")[0].partition("::")
            assert name in _functions(ROOT / path), test


def test_the_page_tells_every_case_and_its_tests():
    told = {}
    for line in (ROOT / "docs" / "field-cases.md").read_text().splitlines():
        if m := re.match(r"\| (H\d{3}) \|", line):
            assert m[1] not in told, m[1]
            told[m[1]] = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
    assert told.keys() >= _named() | _tables().keys()
    for case, tests in told.items():
        assert tests, case
        for path, name in tests:
            assert name in _functions(ROOT / path), (case, path, name)
