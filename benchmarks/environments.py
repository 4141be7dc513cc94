"""A virtual environment for each peer, under `benchmarks/.venvs`; one that cannot be made says why.

python benchmarks/environments.py [NAME ...]
"""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = Path(__file__).resolve().parent / ".venvs"
_TORCH = "torch==2.13.0"  # pinned: the processor-only wheel where the index has one
_COMMON = ("numpy", "numba", "opencv-python-headless")
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "samebatch": (f"--editable={ROOT}", "opencv-python-headless"),
    "torch": (*_COMMON, "pillow", _TORCH, "torchdata"),
    "spdl": (*_COMMON, "spdl"),
    "grain": (*_COMMON, "grain"),
    "dali": (*_COMMON, "nvidia-dali-cuda130"),
    "ffcv": (*_COMMON, "pillow", _TORCH, "ffcv"),
    "streaming": ("numba", "opencv-python-headless", _TORCH, "mosaicml-streaming"),
    "litdata": (*_COMMON, _TORCH, "litdata"),
    "webdataset": (*_COMMON, _TORCH, "webdataset"),
}
_HINTS = {
    "ffcv": "it is built from source: apt-get install libopencv-dev libturbojpeg0-dev pkg-config g++",
}


def python(name: str) -> Path:
    """Return the interpreter of an environment."""
    return VENVS / name / "bin" / "python"


def make(name: str) -> str:
    """Make an environment unless it is there; return "" or why it cannot be had."""
    folder, wanted = VENVS / name, REQUIREMENTS[name]
    stamp = folder / "installed"
    asked = "\n".join(wanted) + (
        (ROOT / "pyproject.toml").read_text() if name == "samebatch" else ""
    )
    digest = hashlib.sha256(asked.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    print(f"environment {name}: {' '.join(wanted)}", flush=True)
    log = folder / "install.log"
    with log.open("w") as out:
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python(name)), "-m", "pip", "install", "--disable-pip-version-check", *wanted],
        ):
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
            if done.returncode:
                return f"cannot be installed: {_cause(log)}; {_HINTS.get(name, f'see {log}')}"
    stamp.write_text(digest)
    return ""


def _cause(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error:" in line or line.startswith("ERROR")]
    return (errors or lines or ["no output"])[0][:200]


def versions(name: str) -> dict[str, str]:
    """Return what is installed in an environment."""
    command = [str(python(name)), "-m", "pip", "freeze", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pairs = [line.split("==") for line in done.stdout.splitlines() if "==" in line]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or list(REQUIREMENTS):
        print(f"{chosen:12} {make(chosen) or 'ready'}", flush=True)
