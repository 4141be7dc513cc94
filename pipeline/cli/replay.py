"""`samebatch replay CONFIG`: one batch of a run again, alone."""

import argparse
import sys
from typing import Any

from pipeline import datasets, replays
from pipeline.cli.options import add_config, config_of, from_zero
from pipeline.errors import ConfigError


def add(commands: Any, argv: list[str]) -> None:  # noqa: ARG001
    """Add the command."""
    text = "make one batch of a run again, alone; see the same bytes, or the same error"
    parser = commands.add_parser("replay", help=text, description=f"{text.capitalize()}.")
    add_config(parser)
    parser.add_argument("--epoch", type=from_zero, help="which epoch")
    parser.add_argument("--step", type=from_zero, help="which batch of the epoch")
    parser.add_argument("--position", type=from_zero, help="instead: one sample of the epoch")
    parser.add_argument("--slot", type=from_zero, help="explain this sample of the batch")
    parser.add_argument(
        "--log", metavar="FILE", help="take epoch and samples from an audit log, or an error's text"
    )
    parser.add_argument("-o", "--out", metavar="FILE.npz", help="save the batch")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Make the batch; print its ids and digests. Status 1 if it is not the one in the log."""
    facts = _facts(options)
    config = config_of(options, **{k.replace(".", "__"): v for k, v in replays.ALONE.items()})
    if options.log and facts.seed is not None and config.seed not in (None, facts.seed):
        print(f"the run's seed is {facts.seed}; the configuration's {config.seed} is not used")
    with replays.loader_of(config, facts) as loader:
        try:
            made = replays.replay(loader, facts.epoch, facts.positions, facts.step or 0)
        except IndexError as e:
            raise ConfigError(f"epoch {facts.epoch} has no such batch: {e}") from e
        step = "" if facts.step is None else f"  step {facts.step}"
        print(f"seed {loader.seed}  split {loader.split}  epoch {facts.epoch}{step}")
        lines = replays.described(made, lambda i: datasets.describe(loader.dataset, i))
        print("\n".join(lines))
        print(f"fingerprint {made.fingerprint()}")
        if options.slot is not None:
            if options.slot >= len(made.positions):
                raise ConfigError(
                    f"slot {options.slot} is not in this batch of {len(made.positions)} samples"
                )
            print(loader.explain(facts.epoch, position=int(made.positions[options.slot])))
    if options.out:
        made.save(options.out)
        print(f"saved {options.out}")
    if facts.fingerprint is None:
        return 0
    same = made.agrees_with(facts)
    text = "this is the batch in the log" if same else "this is NOT the batch in the log"
    print(f"{text}, whose fingerprint is {facts.fingerprint}", file=sys.stdout)
    return 0 if same else 1


def _facts(options: argparse.Namespace) -> replays.Facts:
    if options.log:
        return replays.from_log(options.log, options.epoch, options.step)
    given = options.step is not None, options.position is not None
    if options.epoch is None or given not in ((True, False), (False, True)):
        raise ConfigError(
            "which batch? replay needs --epoch and --step, or --epoch and --position, or --log",
            do="copy them from the error's text, or give a file with it as --log",
        )
    if options.position is None:
        return replays.Facts(options.epoch, step=options.step)
    import numpy as np

    return replays.Facts(options.epoch, np.array([options.position], np.uint64))
