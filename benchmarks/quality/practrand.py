"""Feed our words to PractRand's RNG_test, from 2**26 bytes up to --bytes of each source.

    python benchmarks/quality/practrand.py [--bytes 4GB] [--source NAME ...] [--program RNG_test]

The same by hand: samebatch quality --stdout "lanes in turn" | RNG_test stdin32 -tlmax 4GB

PractRand is by Doty-Humphrey (pracrand.sourceforge.net), built from source; version 0.95 was used. Where
there is no RNG_test this says so and does nothing (exit 0). The verdicts go to
benchmarks/results/practrand.txt.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["philox", "lanes in turn", "phase walked", "masks, next step", "masks, next layer"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", default="4GB", help="as RNG_test's -tlmax (default 4GB)")
    parser.add_argument("--source", action="append", help=f"default: {', '.join(SOURCES)}")
    parser.add_argument("--program", default="RNG_test")
    options = parser.parse_args()
    program = shutil.which(options.program)
    if program is None:
        print(f"no {options.program} on this machine: nothing was tested")
        return 0
    said, bad = [], 0
    for source in options.source or SOURCES:
        pour = [sys.executable, "-m", "rng.quality", "--stdout", source]
        with subprocess.Popen(pour, cwd=ROOT, stdout=subprocess.PIPE) as words:
            done = subprocess.run(
                [program, "stdin32", "-tlmin", "64MB", "-tlmax", options.bytes],
                stdin=words.stdout,
                capture_output=True,
                text=True,
                check=False,
            )
            if words.stdout:
                words.stdout.close()
        bad += "FAIL" in done.stdout or "length=" not in done.stdout
        said += [f"#### {source}", done.stdout.strip() or done.stderr.strip(), ""]
        print("\n".join(said[-3:]), flush=True)
    (ROOT / "benchmarks" / "results" / "practrand.txt").write_text("\n".join(said))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
