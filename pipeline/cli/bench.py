"""`samebatch bench`."""

import argparse
from typing import Any


def add(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    bench = commands.add_parser("bench", help="measure the loader's speed on this machine")
    bench.set_defaults(command=command)
    if "bench" in argv:
        from pipeline import bench as speed

        speed.add_options(bench)


def command(options: argparse.Namespace) -> int:
    """Measure."""
    from pipeline import bench

    return bench.report(options.workers, options.rounds, options.quick, options.json)
