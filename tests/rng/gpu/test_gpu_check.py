"""benchmarks/gpu_check.py on the CPU, the kernels in Triton's interpreter: so that it works when a GPU comes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
SCRIPT = ROOT / "benchmarks" / "gpu_check.py"


@pytest.fixture
def script(gpu):
    """The module, whose kernels are those of the fixture."""
    from benchmarks import gpu_check

    with np.errstate(invalid="ignore"):  # the interpreter's 0 * inf, then not chosen
        yield gpu_check


@pytest.mark.parametrize(("part", "count"), [("bits", 35), ("graphs", 4), ("feeding", 2)])
def test_every_check_runs_and_holds(script, part, count):
    checks = script.run("cpu", [part], 0, 0, quick=True)["checks"]
    assert [check["name"] for check in checks if not check["ok"]] == []
    assert len(checks) == count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_compiled_graphs_are_checked(script, inductor):
    (check,) = script.run("cpu", ["compiled"], 0, 0, quick=True)["checks"]
    assert check["ok"], check["seen"]


def test_wrong_bits_are_found(script, gpu, monkeypatch):
    keys = gpu.round_keys
    monkeypatch.setattr(gpu, "round_keys", lambda key: keys(key ^ 1))
    checks = script.run("cpu", ["bits"], 0, 0, quick=True)["checks"]
    kernels = [c for c in checks if c["name"].startswith(("fill", "dropout kernel", "mask kernel"))]
    assert len(kernels) == 28
    assert [c["name"] for c in kernels if c["ok"]] == []
    assert all(c["seen"].startswith("differs: (") for c in kernels)
    assert [c["name"] for c in checks if not c["ok"] and c not in kernels] == []


def test_an_error_is_a_failed_check_and_the_other_parts_go_on(script, monkeypatch):
    from benchmarks.gpu_checks import graphs

    def broken(device, n):
        raise RuntimeError("an illegal memory access\nand more")

    monkeypatch.setattr(graphs, "checks", broken)
    found = script.run("cpu", ["graphs", "feeding"], 0, 0, quick=True)["checks"]
    assert [check["ok"] for check in found] == [False, True, True]
    assert found[0]["seen"] == "RuntimeError: an illegal memory access"


def test_speeds_are_measured_beside_torchs(script, capsys):
    rows = {row["row"]: row for row in script.run("cpu", ["speed"], 1 << 13, 2, True)["speed"]}
    assert rows["copy float32"]["GB/s"] > 0
    for name in ("uniform float32", "normal float32", "dropout bfloat16", "dropout float32"):
        assert rows[name]["us"] > 0
        assert rows[name]["torch_us"] > 0
        assert isinstance(rows[name]["met"], bool)
    assert rows["normal float32"]["ascend_us"] == 800
    out = capsys.readouterr().out
    assert all(name in out for name in rows)
    json.dumps(rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_without_cuda_it_says_so_and_ends_well(tmp_path):
    target = tmp_path / "none.json"
    command = [sys.executable, str(SCRIPT), "--out", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpu-check: skipped, torch" in done.stdout
    assert "finds no CUDA device" in done.stdout
    assert not target.exists()
