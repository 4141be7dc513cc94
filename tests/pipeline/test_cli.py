import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import cli

ROOT = Path(__file__).parent.parent.parent
CONFIG = str(ROOT / "configs" / "digits.toml")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def digests(text: str) -> list[tuple[str, str]]:
    return re.findall(r"digest ([0-9a-f]{32})  set ([0-9a-f]{32})", text)


def test_run_prints_seed_mode_and_the_same_digests_for_any_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["run", CONFIG, "--epochs", "2", "--set", "loader.num_workers=0"]) == 0
    first = capsys.readouterr().out
    assert "seed    7  0x0000000000000007" in first
    assert "mode    reproducible" in first
    assert cli.main(["run", CONFIG, "--epochs", "2", "--set", "loader.num_workers=3"]) == 0
    assert digests(capsys.readouterr().out) == digests(first)
    assert len(set(digests(first))) == 2


def test_fast_mode_has_the_same_set_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", CONFIG, "--set", "loader.num_workers=0"]) == 0
    first = digests(capsys.readouterr().out)
    assert cli.main(["run", CONFIG, "--set", "mode=fast"]) == 0
    fast = digests(capsys.readouterr().out)
    assert [s for _, s in fast] == [s for _, s in first]


def test_unknown_key_is_refused_with_the_nearest_one() -> None:
    done = run("run", CONFIG, "--set", "loader.shufle=true")
    assert done.returncode == 1
    assert "loader.shufle" in done.stderr
    assert "loader.shuffle" in done.stderr
    assert "Traceback" not in done.stderr


def test_state_is_saved_and_resumed(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    done = run("run", CONFIG, "--epochs", "1", "--state", str(state))
    assert done.returncode == 0, done.stderr
    saved = json.loads(state.read_text())["state"]
    assert (saved["epoch"], saved["offset"]) == (1, 0)
    more = run("run", CONFIG, "--epochs", "2", "--state", str(state))
    assert "resumed" in more.stdout
    whole = run("run", CONFIG, "--epochs", "2")
    assert digests(more.stdout) == digests(whole.stdout)[1:]
    again = run("run", CONFIG, "--epochs", "2", "--state", str(state))
    assert "nothing to do" in again.stdout


@pytest.mark.kill
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_saves_where_it_is_and_goes_on(tmp_path: Path, number: int) -> None:
    state, audit = tmp_path / "state.json", tmp_path / "audit.jsonl"
    os.mkfifo(audit)  # the run blocks on its first batch until somebody reads
    command = [sys.executable, "-m", "pipeline.cli", "run", CONFIG, "--state", str(state)]
    arguments = ["--epochs", "1000", "--audit", str(audit)]
    process = subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with open(audit) as lines:
        steps: list[int] = []
        while len(steps) < 3:  # the run opens and closes the file for each batch
            line = lines.readline()
            steps += [json.loads(line)["step"]] if line else []
        process.send_signal(number)
        lines.read()
    out, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGPIPE, 141, 1), (out, err)
    saved = json.loads(state.read_text())["state"]
    assert saved["offset"] > 0 or saved["epoch"] > 0
    audit.unlink()
    epochs = str(saved["epoch"] + 1)
    rest = run("run", CONFIG, "--epochs", epochs, "--state", str(state))
    assert rest.returncode == 0, rest.stderr


def test_damaged_state_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text('{"state": {')
    done = run("run", CONFIG, "--state", str(state))
    assert done.returncode == 1
    assert "damaged" in done.stderr


def test_quality_runs_the_battery_on_the_sources_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.png"
    few = ["--words", "32768", "--png", str(page)]
    assert cli.main(["quality", "--only", "masks, next step", "--only", "RANDU", *few]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^masks, next step .* pass$", out, re.M)
    assert re.search(r"^RANDU .* FAIL .*plane3", out, re.M)
    assert page.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit) as ended:
        cli.main(["quality", "--help"])
    assert ended.value.code == 0
    assert "--stdout SOURCE" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["quality", "--words", "1"])
    assert ended.value.code == 2


def test_a_state_that_cannot_be_saved_is_refused_before_anything_runs() -> None:
    done = run("run", CONFIG, "--state", "/nonexistent/state.json")
    assert done.returncode == 1
    assert "/nonexistent/state.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert "epoch" not in done.stdout
