"""The configuration: a TOML file, checked key by key, as frozen dataclasses.

    seed = 7                       top level: seed, mode
    mode = "reproducible"          or "fast"
    [dataset]                      kind, and the arguments of that dataset's constructor
    [loader]                       DataLoader's arguments
    [[transforms]]                 kind, and the arguments of that op; one table each, in order
    [run]                          what `samebatch run` does with the batches

The keys of [dataset] and [[transforms]] are read from the constructors (see `pipeline.schema`):
`pipeline.datasets` and `pipeline.transforms` are their documentation. Every error names the path of
the field, such as `transforms[3].p`.

A relative `dataset.root` (and `run.state`, `loader.audit`) is taken from the current directory, as
everywhere in a shell, not from the folder of the file; a leading `~` is the home folder.
"""

import dataclasses
import os
import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pipeline import datasets
from pipeline import transforms as ops
from pipeline.errors import ConfigError
from pipeline.schema import Checker, Field, Range, fields

DATASETS: dict[str, Callable[..., Any]] = {
    "digits": datasets.Digits,
    "mnist": datasets.MNIST,
    "fashion_mnist": datasets.FashionMNIST,
    "kmnist": datasets.KMNIST,
    "cifar10": datasets.CIFAR10,
    "cifar100": datasets.CIFAR100,
    "image_folder": datasets.ImageFolder,
    "token_windows": datasets.TokenWindows,
}
TRANSFORMS: dict[str, Callable[..., Any]] = {
    name: kind
    for name in ops.__all__
    if isinstance(kind := getattr(ops, name), type)
    and issubclass(kind, ops.Op)
    and kind is not ops.Op
}

Seed = Annotated[int, Range(0, 2**64 - 1)]
AtLeast0 = Annotated[int, Range(0)]
AtLeast1 = Annotated[int, Range(1)]


@dataclass(frozen=True)
class DatasetConfig:
    """[dataset]: a kind out of `DATASETS`, and its constructor's arguments as written."""

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TransformConfig:
    """One of [[transforms]]: a kind out of `TRANSFORMS`, and its arguments as written."""

    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoaderConfig:
    """[loader]: arguments of `pipeline.DataLoader`, with its names, meaning and defaults.

    `split` follows `dataset.split` where it is not given: "val" for "val" and "test".
    `prefetch_factor` counts only with workers, so that `num_workers = 0` alone turns them off.
    """

    batch_size: AtLeast1 = 1
    shuffle: bool | None = None
    num_workers: AtLeast0 = 0
    worker_method: Literal["process", "thread"] = "process"
    prefetch_factor: AtLeast1 | None = None
    drop_last: bool = False
    pin_memory: bool = False
    persistent_workers: bool = True
    timeout: Annotated[float, Range(0)] = 0
    multiprocessing_context: Literal["forkserver", "spawn", "fork", "thread"] | None = None
    split: str | None = None
    lanes: Annotated[int, Range(1, 65536)] = 16
    order: Literal["fisher_yates", "random_access"] = "fisher_yates"
    streams: Literal["sample"] = "sample"
    rank: AtLeast0 | None = None
    world_size: AtLeast1 | None = None
    tail: Literal["short", "even", "trim", "drop", "pad"] | None = None
    on_error: Literal["raise", "skip", "substitute"] = "raise"
    output: Literal["numpy", "torch", "jax"] = "numpy"
    audit: str | os.PathLike[str] | None = None
    audit_bytes: Literal["some", "all"] | None = None


@dataclass(frozen=True)
class RunConfig:
    """[run]: how many epochs `samebatch run` makes, and the file that keeps its state."""

    epochs: AtLeast1 = 1
    state: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class Config:
    """A whole configuration, checked."""

    seed: Seed | None = None
    mode: Literal["reproducible", "fast"] = "reproducible"
    dataset: DatasetConfig | None = None
    loader: LoaderConfig = LoaderConfig()
    transforms: tuple[TransformConfig, ...] = ()
    run: RunConfig = RunConfig()
    source: str = "<text>"

    def loader_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments for `pipeline.DataLoader`, beside dataset and transforms."""
        table = {f.name: getattr(self.loader, f.name) for f in dataclasses.fields(self.loader)}
        if table["split"] is None:
            chosen = self.dataset.arguments.get("split") if self.dataset else None
            table["split"] = "val" if chosen in ("val", "test") else "train"
        if self.loader.num_workers == 0:
            # DataLoader refuses these, as torch does; they must not keep anybody from setting
            # num_workers to 0.
            for name, default in _FOR_WORKERS.items():
                if name in table:
                    table[name] = default
        return {"seed": self.seed, "mode": self.mode, **table}


_FOR_WORKERS = {"prefetch_factor": None, "multiprocessing_context": None, "timeout": 0.0}
_TOP = {
    name: kept
    for name, kept in fields(Config).items()
    if name in ("seed", "mode", "dataset", "loader", "transforms", "run")
}
_LOADER, _RUN = fields(LoaderConfig), fields(RunConfig)
_KIND = {"kind": Field("kind", str, True)}


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Return the checked configuration of a TOML file.

    Args:
        source: the path of a file; or TOML text (recognised by a newline, or by a "=" where the
            text does not end in ".toml"); or a mapping as `tomllib` gives it.
        overrides: values that replace those of the file: dotted keys (`{"loader.batch_size": 64,
            "transforms[3].p": 0.5}`), nested mappings (`{"loader": {"batch_size": 64}}`) or both;
            None goes back to the default.

    Raises:
        ConfigError: the file cannot be read or is not TOML; an unknown key; a missing one; a value
            of another type or out of range. The message names the path of the field.

    >>> load_config("seed = 7", {"loader.batch_size": 64}).loader.batch_size
    64
    """
    name, table = _read(source)
    changed: set[str] = set()
    for key, value in _dotted(overrides or {}):
        changed.add(_set(table, key, value))
    check = Checker(
        where=lambda path: "an override" if path in changed else name,
        known=tuple(known_paths()),
        values=dict.fromkeys(typing.get_args(_TOP["mode"].type), "mode"),
    )
    return _checked(table, check, name)


def parse_override(text: str) -> tuple[str, Any]:
    """Return key and value of "key=value", the value read as TOML, else taken as text.

    >>> parse_override("loader.batch_size=64"), parse_override("mode=fast")
    (('loader.batch_size', 64), ('mode', 'fast'))

    Raises:
        ConfigError: no "=" or no key.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key:
        raise ConfigError(
            f"override {text!r}: expected key=value", do="write it as loader.batch_size=64"
        )
    try:
        parsed = tomllib.loads(f"v = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    plain = parsed.keys() == {"v"} and isinstance(
        parsed["v"], bool | int | float | str | list | dict
    )
    return key, parsed["v"] if plain else value


def known_paths() -> list[str]:
    """Return the path of every key a configuration can have, sorted by section."""
    paths = list(_TOP)
    paths += [f"loader.{name}" for name in _LOADER] + [f"run.{name}" for name in _RUN]
    for section, kinds in (("dataset", DATASETS), ("transforms[]", TRANSFORMS)):
        names = {name: None for target in kinds.values() for name in fields(target)}
        paths += [f"{section}.{name}" for name in ("kind", *names)]
    return paths


def build_dataset(config: Config) -> Any:
    """Return the dataset of [dataset].

    Raises:
        ConfigError: there is no [dataset].
        DatasetError: its files are missing or damaged.
    """
    if config.dataset is None:
        kinds = ", ".join(DATASETS)
        raise ConfigError(
            "dataset: missing; expected a table",
            where=config.source,
            do=f"add [dataset] with kind = one of {kinds}, or pass your own dataset",
            field="dataset",
        )
    return DATASETS[config.dataset.kind](**config.dataset.arguments)


def build_transforms(config: Config) -> list[Any]:
    """Return the ops of [[transforms]], in order."""
    return [TRANSFORMS[op.kind](**op.arguments) for op in config.transforms]


# ---------------------------------------------------------------- reading
def _read(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the source, and its tables in a copy of their own."""
    if isinstance(source, Mapping):
        return "<mapping>", _copied(source)
    if isinstance(source, str) and _is_text(source):
        return "<text>", _parsed("<text>", source)
    path = Path(source).expanduser()
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 ({error})"
        raise ConfigError(
            f"cannot read the configuration {str(path)!r}: {reason}",
            where=f"the current directory is {str(Path.cwd())!r}",
            do="give the path of a TOML file",
        ) from error
    return str(path), _parsed(str(path), text)


def _is_text(source: str) -> bool:
    return "\n" in source or ("=" in source and not source.endswith(".toml"))


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", where=name) from error


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def _dotted(overrides: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in overrides.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        flat += _dotted(value, path) if isinstance(value, Mapping) else [(path, value)]
    return flat


def _set(table: dict[str, Any], key: str, value: Any) -> str:
    """Put `value` at the dotted `key`; return the key as error messages write it."""
    parts = re.sub(r"\[(\d+)\]", r".\1", key).split(".")
    path = ""
    at: Any = table
    for i, name in enumerate(parts):
        part: str | int = name
        last = i == len(parts) - 1
        if isinstance(at, list):
            path = f"{path}[{name}]"
            if not name.isdecimal() or int(name) >= len(at):
                _bad_override(path, f"there are {len(at)} of them, numbered from 0")
            part = int(name)
        elif isinstance(at, dict):
            path = f"{path}.{name}" if path else name
        else:
            _bad_override(path, f"is {at!r}, which has no {name!r} inside")
        if not last:
            at = at.setdefault(part, {}) if isinstance(at, dict) else at[part]
        elif value is None:
            at.pop(part, None) if isinstance(at, dict) else at.pop(part)
        else:
            at[part] = _copied(value)
    return path


def _bad_override(path: str, what: str) -> typing.NoReturn:
    raise ConfigError(f"{path}: {what}", where="an override", field=path)


# ---------------------------------------------------------------- checking
def _checked(table: dict[str, Any], check: Checker, name: str) -> Config:
    for key in table:
        if key not in _TOP:
            check.unknown("", key, _TOP)
    values: dict[str, Any] = {
        key: check.value(key, table[key], _TOP[key].type)
        for key in ("seed", "mode")
        if key in table
    }
    loader = LoaderConfig(**check.table("loader", table.get("loader", {}), _LOADER))
    _check_ranks(loader, check)
    given = table.get("transforms", [])
    if not isinstance(given, list):
        check.fail("transforms", f"expected a list of tables, got {given!r}", do=_HOW)
    transforms = tuple(_transform(f"transforms[{i}]", op, check) for i, op in enumerate(given))
    if "dataset" in table:
        kind, arguments = _kind("dataset", table["dataset"], DATASETS, check)
        values["dataset"] = DatasetConfig(kind, arguments)
    run = RunConfig(**check.table("run", table.get("run", {}), _RUN))
    return Config(**values, loader=loader, transforms=transforms, run=run, source=name)


_HOW = 'write a table [[transforms]] with kind = "..." for each op, in order'


def _kind(
    path: str, given: Any, kinds: Mapping[str, Callable[..., Any]], check: Checker
) -> tuple[str, dict[str, Any]]:
    """Return the kind of a table, and its other values checked against that kind's signature."""
    if not isinstance(given, Mapping):
        check.fail(path, f"expected a table, got {given!r} ({type(given).__name__})")
    kind = given.get("kind")
    if kind is None:
        check.fail(f"{path}.kind", f"missing; expected one of {', '.join(kinds)}")
    literal: Any = Literal
    check.value(f"{path}.kind", kind, literal[tuple(kinds)])
    arguments = check.table(path, given, _KIND | fields(kinds[kind]))
    return arguments.pop("kind"), arguments


def _transform(path: str, given: Any, check: Checker) -> TransformConfig:
    kind, arguments = _kind(path, given, TRANSFORMS, check)
    try:
        TRANSFORMS[kind](**arguments)
    except ConfigError as error:  # ranges are checked by the op itself
        named = str(error.fields.get("field", "")).rpartition(".")[2]
        at = f"{path}.{named}" if named in arguments else path
        check.fail(at, error.what, do=error.do)
    return TransformConfig(kind, arguments)


def _check_ranks(loader: LoaderConfig, check: Checker) -> None:
    rank, world_size = loader.rank, loader.world_size
    if rank is not None and world_size is not None and rank >= world_size:
        check.fail("loader.rank", f"expected an int below world_size = {world_size}, got {rank}")
