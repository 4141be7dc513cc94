"""`samebatch demo`."""

import argparse
from pathlib import Path
from typing import Any

from pipeline.cli.options import count


def add(commands: Any, argv: list[str]) -> None:  # noqa: ARG001
    """Add the command."""
    demo = commands.add_parser("demo", help="the same training in many ways, with equal digests")
    demo.add_argument("--epochs", type=count, default=6)
    demo.add_argument("--continue-from", help=argparse.SUPPRESS)
    demo.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    demo.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Train in a dozen ways."""
    from pipeline import demo

    if options.continue_from:
        return demo.continue_from(Path(options.continue_from), options.workers, options.epochs)
    return demo.main(options.epochs)
