import json
import os
import re
import shlex
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
        while len(steps) < 3:
            facts = json.loads(lines.readline())
            steps += [facts["step"]] if "step" in facts else []  # the first line tells of the pass
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


# ---------------------------------------------------------------- verify and replay
def logged(path: Path, *more: str) -> str:
    command = ["run", CONFIG, "--epochs", "1", "--audit", str(path)]
    assert cli.main([*command, "--set", "loader.num_workers=0", *more]) == 0
    return str(path)


def test_verify_ends_with_0_for_equal_runs_1_for_others_and_2_for_what_is_no_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = logged(tmp_path / "a")
    b = logged(tmp_path / "b", "--set", "loader.batch_size=50", "--set", "loader.lanes=16")
    c = logged(tmp_path / "c", "--set", "transforms[1].mean=0.3")
    capsys.readouterr()
    assert cli.main(["verify", a, b]) == 0
    assert "equal: 1438 samples compared" in capsys.readouterr().out
    assert cli.main(["verify", a, c]) == 1
    out = capsys.readouterr().out
    assert "different: other bytes at epoch 0 position 0 field 0" in out
    assert "A: step 0 slot 0 sample" in out
    assert "transforms: A has" in out
    assert cli.main(["verify", a, c, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["first"]["fields"] == ["0"]
    for wrong in (str(tmp_path / "none"), CONFIG):
        assert cli.main(["verify", a, wrong]) == 2
        assert "AuditError" in capsys.readouterr().err


def test_verify_makes_the_differing_batch_again_from_both_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(Path(CONFIG).read_text().replace("mean = 0.2873", "mean = 0.3"))
    a = logged(tmp_path / "a")
    assert cli.main(["run", str(other), "--epochs", "1", "--audit", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    assert cli.main(["verify", a, str(tmp_path / "b"), "--detail", CONFIG, str(other)]) == 1
    out = capsys.readouterr().out
    assert f"A: the batch that {CONFIG} makes is the one in the log" in out
    assert f"B: the batch that {other} makes is the one in the log" in out
    assert re.search(r"slot 0 \(position 0\) field 0\[0, 0, 0\]: .* values differ", out)
    assert cli.main(["verify", a, str(tmp_path / "b"), "--detail", CONFIG, CONFIG]) == 1
    assert "B: the batch that" in (out := capsys.readouterr().out)
    assert "is not the one in the log" in out


def test_replay_makes_the_batch_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = logged(tmp_path / "a")
    capsys.readouterr()
    saved = tmp_path / "batch.npz"
    assert cli.main(["replay", CONFIG, "--log", a, "--step", "3", "-o", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "this is the batch in the log" in out
    assert len(re.findall(r"^slot \d+ +position \d+ +sample \d+", out, re.M)) == 64
    assert saved.exists()
    again = ["replay", CONFIG, "--epoch", "0", "--step", "3", "--slot", "5"]
    assert cli.main(again) == 0
    text = capsys.readouterr().out
    assert set(out.splitlines()[:65]) <= set(text.splitlines())
    assert "RandomCrop" in text
    assert "position 197" in text
    assert cli.main(["replay", CONFIG, "--log", a, "--set", "transforms[1].mean=0.3"]) == 1
    assert "NOT the batch in the log" in capsys.readouterr().out


def test_replay_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (
        [], ["--epoch", "0"], ["--step", "0"], ["--epoch", "0", "--step", "999"],
        ["--epoch", "0", "--step", "0", "--slot", "64"],
        ["--epoch", "0", "--step", "0", "--position", "1"],
    )  # fmt: skip
    for arguments in wrong:
        assert cli.main(["replay", CONFIG, *arguments]) == 1
        assert "ConfigError" in capsys.readouterr().err


def test_an_error_of_a_run_tells_the_command_that_shows_it_again(tmp_path: Path) -> None:
    from PIL import Image

    for i in range(6):
        path = tmp_path / "images" / f"c{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, i, i)).save(path)
    path.write_bytes(path.read_bytes()[:-30])
    config = tmp_path / "it's.toml"
    config.write_text(
        f'[dataset]\nkind = "image_folder"\nroot = "{tmp_path}/images"\n[loader]\nbatch_size = 2\n'
    )
    failed = run("run", str(config), "--set", "seed=5")
    assert failed.returncode == 1
    call = re.search(r"samebatch (replay .*? --set seed=5)", failed.stderr)
    assert call is not None
    again = run(*shlex.split(call[1]))
    assert again.returncode == 1
    assert failed.stderr.splitlines()[0] == again.stderr.splitlines()[0]
    (tmp_path / "error.txt").write_text(failed.stderr)
    more = run("replay", str(config), "--log", str(tmp_path / "error.txt"))
    assert failed.stderr.splitlines()[0] == more.stderr.splitlines()[0]
