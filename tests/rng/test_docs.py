import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "random-numbers.md"


def test_the_examples_of_the_page_run():
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 20
    assert found.failed == 0
