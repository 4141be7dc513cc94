from tests.faults import table
from tests.helpers import ROOT


def test_the_table_in_the_documentation_is_the_one_that_is_tested():
    assert table.markdown() in (ROOT / "docs" / "faults.md").read_text()


def test_every_cell_has_an_outcome_with_a_text():
    for text, cells in table.TABLE.values():
        assert text
        assert list(cells) == list(table.MOMENTS)
        assert set(cells.values()) <= set(table.OUTCOMES)
