"""Feed our words to TestU01: SmallCrush, or on request Crush (an hour a source) and BigCrush.

    python benchmarks/quality/testu01.py [--battery small|medium|big] [--source NAME ...] [--prefix DIR]

The sources are those of `samebatch quality`; each is written by `samebatch quality --stdout` into
`testu01.c`, compiled here. Words come 2**22 under each seed, so seeds are tested along with streams.
A p-value outside [1e-3, 1 - 1e-3], which chance gives once in thirty batteries, has the source
tested again on other words; it fails if that happens four times, or beyond 1e-10.
Where TestU01 is not installed, or there is no C compiler, it says so and does nothing (exit 0).

TestU01 is by L'Ecuyer and Simard (TOMS 2007). Debian has it in its non-free section, as testu01-bin and
libtestu01-0-dev; its source builds anywhere:

    ./configure --prefix=DIR --disable-shared CFLAGS="-O2 -std=gnu89" && make && make install

then give `--prefix DIR` here. The summaries go to benchmarks/results/testu01_<battery>.txt.
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("testu01.c")
SOURCES = ["philox", "philox reversed", "lanes in turn", "masks, next step", "masks, next layer"]
SUSPICIOUS = 3
MEANING = {0: "passed", 1: "FAILED", SUSPICIOUS: "suspicious, so repeated on other words"}


def build(folder: Path, prefix: str | None) -> Path | None:
    """Compile the driver; None where there is no compiler or no TestU01."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    program = folder / "testu01"
    where = ["/usr/include/testu01"] if prefix is None else [f"{prefix}/include"]
    options = [f"-I{path}" for path in where] + ([f"-L{prefix}/lib"] if prefix else [])
    command = [compiler, "-O2", "-o", str(program), *options, str(DRIVER)]
    libraries = ["-ltestu01", "-lprobdist", "-lmylib", "-lm"]
    done = subprocess.run([*command, *libraries], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.splitlines()[0], file=sys.stderr)
        return None
    return program


def run(program: Path, source: str, battery: str, seed: int) -> tuple[int, str]:
    """Return the driver's exit status and the battery's summary."""
    name = source.removesuffix(" reversed")
    pour = [sys.executable, "-m", "rng.quality", "--stdout", name, "--seed", str(seed)]
    reversal = ["reversed"] if name != source else []
    with subprocess.Popen(pour, cwd=ROOT, stdout=subprocess.PIPE) as words:
        command = [str(program), source, battery, *reversal]
        done = subprocess.run(
            command, stdin=words.stdout, capture_output=True, text=True, check=False
        )
        if words.stdout:
            words.stdout.close()
    found = re.search(r"=+ Summary results of .*", done.stdout, re.DOTALL)
    return done.returncode, found[0].rstrip() if found else done.stdout[-2000:] + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--battery", choices=["small", "medium", "big"], default="small")
    parser.add_argument("--source", action="append", help=f"default: {', '.join(SOURCES)}")
    parser.add_argument("--prefix", help="where TestU01 was installed, if not by the system")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder), options.prefix)
        if program is None:
            print("no C compiler or no TestU01 on this machine: nothing was tested")
            return 0
        bad, said = 0, [f"TestU01, battery {options.battery}, seed {options.seed}"]
        said.append(f"{platform.machine()}, Python {platform.python_version()}")
        for source in options.source or SOURCES:
            for attempt in range(4):
                seed = options.seed + attempt * 1_000_000
                began = time.monotonic()
                status, summary = run(program, source, options.battery, seed)
                seconds = time.monotonic() - began
                head = f"#### {source}, seed {seed}: {MEANING.get(status, status)}, {seconds:.0f} s"
                said += ["", head, summary]
                print("\n".join(said[-3:]), flush=True)
                if status != SUSPICIOUS:
                    break
            bad += status != 0
    target = ROOT / "benchmarks" / "results" / f"testu01_{options.battery}.txt"
    target.write_text("\n".join(said) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
