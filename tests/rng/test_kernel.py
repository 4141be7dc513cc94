"""The kernel cache: never stale, never in the way."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rng import kernel

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import rng
from rng import draw
print(draw.unit(0x80000000), draw.unit.stats.cache_hits and 1, draw.unit.stats.cache_misses and 1)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in ("rng", "pipeline"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=shutil.ignore_patterns("*.nbi", "*.nbc", "__pycache__"),
        )
    return tmp_path


def run(folder: Path, **environment: str) -> tuple[float, bool, bool, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, timeout=120,
        env={k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value, hits, misses = done.stdout.split()
    return float(value), hits == "1", misses == "1", done.stderr


def test_a_second_process_reads_what_the_first_compiled(copy: Path) -> None:
    value, hit, missed, said = run(copy)
    assert (value, hit, missed) == (0.5, False, True)
    assert "compiling kernels for this machine" in said
    value, hit, missed, said = run(copy)
    assert (value, hit, missed, said) == (0.5, True, False, "")


def test_a_change_in_an_imported_file_makes_the_cache_stale(copy: Path) -> None:
    run(copy)
    with open(copy / "rng" / "kernel.py", "a") as f:
        f.write("\n# changed\n")
    assert run(copy)[1:3] == (False, True)


@pytest.mark.parametrize("keep", [0, 0.5])
def test_damaged_cache_files_count_as_missing(copy: Path, keep: float) -> None:
    run(copy)
    files = list((copy / "rng").rglob("*.nb[ic]"))
    assert files
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * keep)])
    assert run(copy)[0] == 0.5
    assert run(copy)[1:3] == (True, False)


def test_another_folder_is_used_where_the_sources_cannot_be_written(
    copy: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "cache"
    assert run(copy, NUMBA_CACHE_DIR=str(elsewhere))[2]
    assert list(elsewhere.rglob("*.nbi"))
    assert not list((copy / "rng").rglob("*.nbi"))


def test_a_change_in_a_file_that_is_not_imported_leaves_the_cache(copy: Path) -> None:
    run(copy)
    with open(copy / "pipeline" / "loader.py", "a") as f:
        f.write("\n# changed\n")
    assert run(copy)[1:3] == (True, False)


def test_every_module_a_kernel_can_reach_is_part_of_its_stamp() -> None:
    """The import lines are read by a pattern; Python's own parser is the oracle."""
    for path in sorted([*ROOT.glob("rng/**/*.py"), *ROOT.glob("pipeline/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        wanted = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                wanted |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                wanted |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
        ours = {n for n in wanted if n and n.split(".")[0] in ("rng", "pipeline")}
        assert ours <= set(kernel._imports(name)), path
