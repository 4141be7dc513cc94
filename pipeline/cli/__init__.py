"""The `samebatch` command.

samebatch run CONFIG [--set key=value] [--epochs N] [--state FILE] [--audit FILE]
samebatch verify A B [--common] [--detail CONFIG_A CONFIG_B] [--json]
samebatch replay CONFIG --epoch E --step S [--slot K] [--set key=value] [-o FILE.npz]
samebatch bench [--workers N] [--rounds N] [--json FILE]
samebatch demo
samebatch quality [--only SOURCE] [--words N] [--long] [--png FILE]

Each command is a module here: `add` names its options, `command` runs it.
"""

import argparse
import logging
import os
import sys

import pipeline
from pipeline.cli import bench, demo, quality, replay, run, verify
from pipeline.errors import SamebatchError

_COMMANDS = (run, verify, replay, bench, demo, quality)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0, 1 for an error, 130 for Ctrl-C."""
    parser = _parser(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        return int(options.command(options))
    except SamebatchError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        if isinstance(e, BrokenPipeError):
            # Somebody closed the pipe we print into, e.g. `| head`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "samebatch", description="A data loader that delivers the same batches every time."
    )
    parser.add_argument("--version", action="version", version=f"samebatch {pipeline.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for one in _COMMANDS:
        one.add(commands, argv)
    return parser
