"""Every block of docs/integrations.md is run, and the versions that it names are the ones installed."""

import re
from importlib.metadata import version

import pytest

for _name in ("lightning", "accelerate", "transformers", "torchdata", "jax"):
    pytest.importorskip(_name)

from accelerate.state import AcceleratorState, GradientState, PartialState

from tests.helpers import ROOT

TEXT = (ROOT / "docs" / "integrations.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```", part, re.M | re.S)
    for part in TEXT.split("\n## ")
}
SHARED = SECTIONS.pop("# With trainers and other libraries")


@pytest.mark.filterwarnings("ignore")  # of the trainers
@pytest.mark.parametrize("title", SECTIONS)
def test_each_sections_blocks_run(title):
    namespace = {"__name__": "docs"}
    assert SECTIONS[title]
    try:
        for code in (*SHARED, *SECTIONS[title]):
            exec(compile(code, "integrations.md", "exec"), namespace)
    finally:
        namespace.clear()  # a library may keep a class of the page, and thereby all of its globals
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        PartialState._reset_state()


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers", "torchdata", "jax"])
def test_the_page_names_the_releases_that_are_tested(name):
    """Another patch is the same release: a newer one on PyPI must not turn a build red."""
    release = version(name).rpartition(".")[0]
    assert re.search(rf"\| {re.escape(release)}\.\d+ \|", TEXT), version(name)
