"""Every block of the README is run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def test_python_blocks_run_in_order_in_one_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks = [code for language, code in BLOCKS if language == "python"]
    assert len(blocks) >= 4
    namespace: dict[str, object] = {"__name__": "readme"}
    for code in blocks:
        exec(compile(code, "README.md", "exec"), namespace)
    for value in namespace.values():
        if hasattr(value, "worker_pids"):
            value.close()


def commands() -> list[str]:
    lines = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.strip()]


@pytest.mark.parametrize("line", commands())
def test_shell_lines_run(line: str, tmp_path: Path) -> None:
    words = line.split()
    if words[0] == "make":
        # `make demo` and `make test` install and would run this test again: they must exist.
        if shutil.which("make") is None:
            pytest.skip("no make here")
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    assert words[0] == "samebatch", line
    arguments = [w.replace("/tmp/", f"{tmp_path}/") for w in words[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^seed    7  0x0000000000000007$", done.stdout, re.M)
    assert re.search(r"digest [0-9a-f]{32}", done.stdout)


def test_named_test_files_exist() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(named) >= 3
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
