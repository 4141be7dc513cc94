"""The `samebatch` command.

samebatch run CONFIG [--set key=value] [--epochs N] [--state FILE]
samebatch bench [--workers N] [--rounds N] [--json FILE]
samebatch demo
samebatch quality [--only SOURCE] [--words N] [--long] [--png FILE]
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

import pipeline
from pipeline import state as states
from pipeline.audit import Digest
from pipeline.config import parse_override
from pipeline.errors import ConfigError, SamebatchError

_SAVE_S = 10.0  # a state is at most so old when the process is killed hard
_LINE_S = 10.0  # how often a plain line tells the speed


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

    run = commands.add_parser("run", help="iterate a configured loader and print its digests")
    run.add_argument("config", help="a TOML file, e.g. configs/digits.toml")
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key"
    )
    run.add_argument("--epochs", type=_count, help="epochs to run in all")
    run.add_argument("--state", help="resume from this file if it exists, and save to it")
    run.add_argument("--audit", help="append one line of JSON for each batch to this file")
    run.set_defaults(command=_run)

    demo = commands.add_parser("demo", help="the same training in many ways, with equal digests")
    demo.add_argument("--epochs", type=_count, default=6)
    demo.add_argument("--continue-from", help=argparse.SUPPRESS)
    demo.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    demo.set_defaults(command=_demo)

    bench = commands.add_parser("bench", help="measure the loader's speed on this machine")
    bench.set_defaults(command=_bench)
    if "bench" in argv:
        from pipeline import bench as speed

        speed.add_options(bench)

    text = "test the random words, and known generators beside them"
    quality = commands.add_parser("quality", help=text, description=f"{text.capitalize()}.")
    quality.set_defaults(command=_quality)
    if "quality" in argv:  # its options name its sources, which no other command has to load
        from rng import quality as battery

        battery.add_options(quality)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _demo(options: argparse.Namespace) -> int:
    from pipeline import demo

    if options.continue_from:
        return demo.continue_from(Path(options.continue_from), options.workers, options.epochs)
    return demo.main(options.epochs)


def _bench(options: argparse.Namespace) -> int:
    from pipeline import bench

    return bench.report(options.workers, options.rounds, options.quick, options.json)


def _quality(options: argparse.Namespace) -> int:
    from rng import quality

    return quality.report(options)


def _run(options: argparse.Namespace) -> int:
    overrides = dict(parse_override(text) for text in options.set)
    if options.audit:
        overrides["loader.audit"] = options.audit
    config = pipeline.load_config(options.config, overrides)
    epochs = options.epochs or config.run.epochs
    path = options.state or config.run.state
    if path and not os.access(Path(path).parent, os.W_OK):
        raise ConfigError(
            f"the state cannot be saved to {os.fspath(path)!r}: its folder does not exist or "
            "cannot be written",
            do="make the folder, or choose another with --state",
        )
    with pipeline.from_config(config) as loader:
        if path and Path(path).exists():
            loader.load_state_dict(states.load(path))
            at = loader.state_dict()
            print(f"resumed {path}: epoch {at['epoch']}, offset {at['offset']}")
        _print_head(loader, config)
        if loader.epoch >= epochs:
            print(f"nothing to do: {epochs} epochs are done")
        with _stop_on_sigterm():
            try:
                while loader.epoch < epochs:
                    _epoch(loader, path)
            finally:
                if path:
                    states.save(loader.state_dict(), path)
    return 0


def _print_head(loader: pipeline.DataLoader, config: pipeline.Config) -> None:
    kind = config.dataset.kind if config.dataset else "?"
    print(f"seed    {loader.seed}  0x{loader.seed:016x}")
    print(f"mode    {loader.mode}")
    print(
        f"data    {kind}, {len(loader.dataset)} samples, {len(loader)} batches of "
        f"{loader.batch_size}, {loader.num_workers} workers ({loader.worker_method})"
    )


def _epoch(loader: pipeline.DataLoader, path: str | os.PathLike[str] | None) -> None:
    """Iterate one epoch: a bar on a terminal, plain lines elsewhere; then its digests."""
    epoch, digest = loader.epoch, Digest()
    first = int(loader.state_dict()["offset"])
    began = saved = told = time.monotonic()
    with tqdm(
        total=len(loader.dataset) // loader.world_size,
        initial=first // loader.world_size,
        desc=f"epoch {epoch}",
        unit=" images",
        unit_scale=True,
        disable=not sys.stderr.isatty(),
        leave=False,
    ) as bar:
        for batch in loader:
            info = loader.last
            assert info is not None
            digest.add(_leaves(batch), info.sample_ids, info.positions)
            bar.update(len(info.sample_ids))
            now = time.monotonic()
            if path and now - saved > _SAVE_S:
                states.save(loader.state_dict(), path)
                saved = now
            if bar.disable and now - told > _LINE_S:
                print(f"epoch {epoch}  {digest.samples} images  {_rate(digest, now - began)}")
                told = now
    seconds = time.monotonic() - began
    part = f" from offset {first}" if first else ""
    print(
        f"epoch {epoch}{part}  {digest.samples} images  {_rate(digest, seconds)}  "
        f"digest {digest.chain}  set {digest.set}"
    )
    if path:
        states.save(loader.state_dict(), path)


def _rate(digest: Digest, seconds: float) -> str:
    return f"{digest.samples / max(seconds, 1e-9):,.0f} images/s"


def _leaves(batch: Any) -> list[Any]:
    """Return the arrays of a batch, in order."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, tuple | list):
        return [leaf for part in batch for leaf in _leaves(part)]
    return [batch.numpy() if hasattr(batch, "numpy") else batch]


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM (a preempted job) end the run like Ctrl-C, so that the state is saved."""

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
