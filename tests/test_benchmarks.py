"""The smallest run of the suite in benchmarks/, of ours alone, so that it cannot rot unseen."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import ROOT

SUITE = ROOT / "benchmarks"


def run(script, *arguments, **environment):
    command = [sys.executable, str(SUITE / script), *map(str, arguments)]
    there = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run(command, capture_output=True, text=True, env=there, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(*arguments, **environment):
    out = run("contender.py", "--quick", *arguments, **environment)
    return json.loads(out.split("RESULT ")[1])


def job(measure, result, peer="samebatch", work="W5", **more):
    return {
        "tier": "main", "measure": measure, "peer": peer, "work": work, "workers": 0, "round": 0,
        "result": result, **more,
    }  # fmt: skip


def test_a_contender_is_measured_and_reported(tmp_path):
    found = measured("--peer", "samebatch", "--work", "W5", "--workers", "0")
    assert found["rate"] > 0
    assert found["processes"] == 1
    slower = {**found, "rate": found["rate"] / 2}
    floors = {"memcpy: GB/s": 5.0}
    body = {
        "machine": {"cpu": "x", "cores": 2, "python": "3", "commit": "c", "date": "d",
                    "versions": {"torch": {"torch": "2.13.0"}}},
        "slow_ms": "20", "skipped": {"ffcv": "no compiler"}, "failed": {},
        "jobs": [job("rate", found), job("rate", slower, "torch_batch"), job("floors", floors),
                 job("bytes", {"batches": [[1, 2]]}), job("bytes", {"batches": [[1, 3]]}, workers=2),
                 job("resume", {"resume_s": 0.1, "ids_right": True, "bytes_right": None})],
    }  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps(body))
    run("report.py", tmp_path / "results.json", tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert "| W5: 4-byte items as they are |" in text
    assert "| 2.00 |" in text
    assert "| samebatch, W5 | 0, 2 | yes | **no** |" in text
    assert "* ffcv: no compiler" in text
    assert (tmp_path / "benchmarks.svg").read_text().startswith("<svg")


def test_a_state_after_nine_tenths_gives_the_next_batch(tmp_path):
    (tmp_path / "quick").mkdir()
    (np.arange(1 << 20) % 32_000).astype(np.uint16).tofile(tmp_path / "quick" / "tokens.bin")
    where = {"SAMEBATCH_BENCH_DATA": str(tmp_path)}
    arguments = ["--work", "W4", "--workers", "0", "--peer", "samebatch"]
    assert measured(*arguments, "--measure", "resume", **where)["bytes_right"] is True


@pytest.mark.parametrize("option", ["--help"])
def test_the_runner_starts_without_any_package(option):
    assert "--peers" in run("run.py", option)


def test_the_cost_of_a_dropout_call_is_measured(tmp_path):
    pytest.importorskip("torch")
    target = tmp_path / "dropout.json"
    out = run("dropout_overhead.py", "--quick", "--rounds", 1, "--out", target)
    assert "most: " in out
    body = json.loads(target.read_text())
    assert len(body["rows"]) == 12
    assert all(row["ours_us"] > 0 and row["torch_us"] > 0 for row in body["rows"])
    assert body["machine"]["versions"]["torch"]
