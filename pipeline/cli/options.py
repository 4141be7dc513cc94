"""What several commands share: the configuration and its overrides, whole numbers."""

import argparse
from typing import Any

import pipeline
from pipeline.config import parse_override


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and --set."""
    parser.add_argument("config", help="a TOML file, e.g. configs/digits.toml")
    add_set(parser)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add --set."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key"
    )


def config_of(options: argparse.Namespace, **more: Any) -> pipeline.Config:
    """Return the configuration that CONFIG and --set name; `more` overrides them.

    Raises:
        ConfigError: as `load_config`.
    """
    overrides = dict(parse_override(text) for text in options.set)
    overrides |= {name.replace("__", "."): value for name, value in more.items()}
    return pipeline.load_config(options.config, overrides)


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def from_zero(text: str) -> int:
    """Return a whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value
