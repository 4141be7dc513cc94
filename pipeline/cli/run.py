"""`samebatch run`: iterate a configured loader, epoch after epoch; print digests, keep the state."""

import argparse
import contextlib
import os
import re
import shlex
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
from pipeline.cli.options import add_config, config_of, count
from pipeline.errors import ConfigError, SampleError

_SAVE_S = 10.0  # a state is at most so old when the process is killed hard
_LINE_S = 10.0  # how often a plain line tells the speed


def add(commands: Any, argv: list[str]) -> None:  # noqa: ARG001
    """Add the command."""
    run = commands.add_parser("run", help="iterate a configured loader and print its digests")
    add_config(run)
    run.add_argument("--epochs", type=count, help="epochs to run in all")
    run.add_argument("--state", help="resume from this file if it exists, and save to it")
    run.add_argument("--audit", help="append one line of JSON for each batch to this file")
    run.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Iterate epochs, save the state."""
    config = config_of(options, **({"loader__audit": options.audit} if options.audit else {}))
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
            except SampleError as e:
                raise _with_call(e, options) from e
            finally:
                if path:
                    states.save(loader.state_dict(), path)
    return 0


def _with_call(e: SampleError, options: argparse.Namespace) -> SampleError:
    """Return the error with the command that makes this sample again."""
    overrides = [text for text in options.set if text.partition("=")[0].strip() != "seed"]
    sets = "".join(f" --set {shlex.quote(text)}" for text in overrides)
    call = (
        f"samebatch replay {shlex.quote(str(options.config))} --epoch {e.fields['epoch']} "
        f"--position {e.fields['position']} --set seed={e.fields['seed']}{sets}"
    )
    do = re.sub(r"samebatch replay CONFIG .*? --set seed=\d+", lambda _: call, e.do)
    return SampleError(e.what, where=e.where, do=do, **e.fields)


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
