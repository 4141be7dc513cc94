"""`samebatch verify A B`: are two runs the same? Exit status 0 if so, 1 if not, 2 if nobody can tell."""

import argparse
import json
import sys
from typing import Any

import pipeline
from pipeline import replays
from pipeline.audit_reader import positions_at
from pipeline.compare import Comparison, verify
from pipeline.errors import SamebatchError


def add(commands: Any, argv: list[str]) -> None:  # noqa: ARG001
    """Add the command."""
    text = "compare the audit logs of two runs and name the first difference"
    parser = commands.add_parser("verify", help=text, description=f"{text.capitalize()}.")
    for name in ("a", "b"):
        parser.add_argument(
            name, metavar=name.upper(), help="a log, a folder of the ranks' logs, or a pattern"
        )
    parser.add_argument("--common", action="store_true", help="compare only what both runs have")
    parser.add_argument(
        "--detail",
        nargs=2,
        metavar=("CONFIG_A", "CONFIG_B"),
        help="make the first differing batch again from both configurations, and look at each value",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Compare; print what was found."""
    try:
        found = verify(options.a, options.b, common=options.common)
        print(json.dumps(found.to_dict()) if options.json else found)
        if options.detail and found.first is not None:
            _detail(options, found)
    except (SamebatchError, OSError) as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return 2
    return 0 if found else 1


def _detail(options: argparse.Namespace, found: Comparison) -> None:
    """Make the batch that differs again, as A and as B, and say whose log it agrees with."""
    first = found.first
    assert first is not None
    made = []
    for name, config, place in zip("AB", options.detail, (first.a, first.b), strict=True):
        if place is None:
            continue
        facts = replays.from_line(place.line)
        with replays.loader_of(pipeline.load_config(config, replays.ALONE), facts) as loader:
            again = replays.replay(loader, facts.epoch, positions_at(place.line))
        made.append(again)
        same = "is" if again.agrees_with(facts) else "is not"
        print(f"  {name}: the batch that {config} makes {same} the one in the log")
    if len(made) == 2:
        print(f"  {made[0].compared_with(made[1])}")
