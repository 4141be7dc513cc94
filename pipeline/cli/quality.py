"""`samebatch quality`."""

import argparse
from typing import Any


def add(commands: Any, argv: list[str]) -> None:
    """Add the command; its options name its sources, which no other command has to load."""
    text = "test the random words, and known generators beside them"
    quality = commands.add_parser("quality", help=text, description=f"{text.capitalize()}.")
    quality.set_defaults(command=command)
    if "quality" in argv:
        from rng import quality as battery

        battery.add_options(quality)


def command(options: argparse.Namespace) -> int:
    """Run the battery."""
    from rng import quality

    return quality.report(options)
