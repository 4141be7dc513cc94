"""Strict checks of tables against annotated signatures: the part of the configuration that knows
no key.

A table is checked against the parameters of a dataclass or a constructor, so that the keys, types
and choices of a file are those of the code and cannot drift from it. Nothing is converted but: an
int where a float is wanted, a list where a sequence is wanted, a path object where a path is wanted.
"""

import difflib
import inspect
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

import numpy as np

from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """`Annotated[int, Range(1)]`: low <= value, and value <= high if there is one."""

    low: float
    high: float | None = None

    def __contains__(self, value: float) -> bool:
        return value >= self.low and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        return f">= {self.low}" if self.high is None else f"in {self.low} .. {self.high}"


@dataclass(frozen=True)
class Field:
    """One key: its type as annotated, and whether it must be given."""

    name: str
    type: Any
    required: bool


def fields(target: Callable[..., Any]) -> dict[str, Field]:
    """Return the keys that `target` (a class or function) takes by name."""
    init: Any = vars(target).get("__init__", target) if isinstance(target, type) else target
    hints = typing.get_type_hints(init, include_extras=True)
    return {
        name: Field(name, hints.get(name, Any), parameter.default is parameter.empty)
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


class Mismatch(Exception):
    """A value that is not of a type."""


def convert(value: Any, wanted: Any) -> Any:
    """Return `value` as the type `wanted`.

    Raises:
        Mismatch: it is of another type or out of range.

    >>> convert([1, 2.5], Sequence[float])
    (1.0, 2.5)
    """
    origin, args = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        converted = convert(value, args[0])
        _require(all(converted in limit for limit in args[1:]))
        return converted
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, args)
    if origin is Literal:
        _require(any(value == choice and type(value) is type(choice) for choice in args))
        return value
    if origin in (tuple, list, Sequence):
        return _convert_list(value, origin, args)
    if wanted is float:
        _require(type(value) in (int, float) and abs(value) < 2**1023)  # so not nan either
        return float(value)
    if wanted in (bool, int, str):
        _require(type(value) is wanted)
    elif origin is os.PathLike or wanted is os.PathLike:
        _require(isinstance(value, os.PathLike))
        return os.fspath(value)
    elif origin is np.ndarray:
        _require(isinstance(value, np.ndarray))
    elif wanted is type(None):
        _require(value is None)
    return value


def _require(good: bool) -> None:
    if not good:
        raise Mismatch


def _convert_union(value: Any, arms: tuple[Any, ...]) -> Any:
    for arm in arms:
        try:
            return convert(value, arm)
        except Mismatch:
            continue
    raise Mismatch


def _convert_list(value: Any, origin: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    _require(isinstance(value, list | tuple))
    if origin is tuple and args[-1:] != (Ellipsis,):
        _require(len(value) == len(args))
        return tuple(convert(item, arm) for item, arm in zip(value, args, strict=True))
    return tuple(convert(item, args[0]) for item in value)


_NAMES = {int: "an int", float: "a number", bool: "true or false", str: "a string"}


def expected(wanted: Any) -> str:
    """Return the type in words.

    >>> expected(Annotated[int, Range(1)] | None)
    'an int >= 1'
    """
    origin, args = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return " ".join([expected(args[0]), *map(str, args[1:])])
    if origin in (typing.Union, types.UnionType):
        shown = [expected(arm) for arm in args if arm is not type(None)]
        return " or ".join(dict.fromkeys(text for text in shown if text))
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in args)
    if origin is tuple and args[-1:] != (Ellipsis,):
        return "[" + ", ".join(expected(arm) for arm in args) + "]"
    if origin in (tuple, list, Sequence):
        return f"a list, each {expected(args[0])}"
    if origin in (os.PathLike, np.ndarray):
        return ""  # stands beside str, and no file can hold an array
    return _NAMES.get(wanted, "a value")


@dataclass(frozen=True)
class Checker:
    """Checks tables of one configuration.

    Attributes:
        where: from the path of a field to where its value was written.
        known: every valid path of the configuration, for suggestions.
        values: from the choices of a field to its path, for suggestions ("fast" -> mode).
    """

    where: Callable[[str], str]
    known: tuple[str, ...]
    values: Mapping[str, str]

    def table(self, path: str, given: Any, keys: Mapping[str, Field]) -> dict[str, Any]:
        """Return the checked values of a table.

        Raises:
            ConfigError: not a table, an unknown key, a missing key, a value of another type.
        """
        if not isinstance(given, Mapping):
            self.fail(path, f"expected a table, got {given!r} ({type(given).__name__})")
        for key in given:
            if key not in keys:
                self.unknown(path, str(key), keys)
        for key, field in keys.items():
            if field.required and key not in given:
                self.fail(_join(path, key), f"missing; expected {expected(field.type)}")
        return {key: self.value(_join(path, key), v, keys[key].type) for key, v in given.items()}

    def value(self, path: str, given: Any, wanted: Any) -> Any:
        """Return the checked value of one field.

        Raises:
            ConfigError: a value of another type or out of range.
        """
        try:
            return convert(given, wanted)
        except Mismatch:
            do = _how_to_write(path, given, wanted)
            what = f"expected {expected(wanted)}, got {given!r} ({type(given).__name__})"
            self.fail(path, what, do=do, value=given)

    def unknown(self, path: str, key: str, keys: Iterable[str]) -> NoReturn:
        """Refuse a key, with the section it belongs to or the nearest valid one."""
        bad, here = _join(path, key), [_join(path, name) for name in keys]
        section = re.sub(r"\[\d+\]", "[]", path)
        others = [p for p in self.known if p.rpartition(".")[0] != section]
        elsewhere = [p for p in others if _last(p) == key]
        if elsewhere:
            places = " or ".join(
                p if "." in p else f"{p} (top level: above the first [table])" for p in elsewhere
            )
            self.fail(bad, f"unknown key here; nearest valid: {places}")
        near = _nearest(key, here) or _nearest(key, others)
        if near:
            self.fail(bad, f"unknown key; nearest valid: {near}")
        value = difflib.get_close_matches(key, self.values, 1, 0.7)
        if value:
            self.fail(bad, f'unknown key; nearest valid: {self.values[value[0]]} = "{value[0]}"')
        self.fail(bad, f"unknown key; valid here: {', '.join(here)}")

    def fail(self, path: str, what: str, do: str = "", **more: Any) -> NoReturn:
        """Raise the ConfigError of one field."""
        raise ConfigError(f"{path}: {what}", where=self.where(path), do=do, field=path, **more)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _nearest(key: str, paths: Iterable[str]) -> str | None:
    by_name = {_last(path): path for path in reversed(list(paths))}
    found = difflib.get_close_matches(key.lower(), by_name, 1, 0.7)
    return by_name[found[0]] if found else None


def _how_to_write(path: str, given: Any, wanted: Any) -> str:
    """Return how the value is written rightly, where that can be told."""
    if get_origin(wanted) is Literal:
        near = difflib.get_close_matches(str(given), map(str, get_args(wanted)), 1)
        return f'nearest valid: "{near[0]}"' if near else ""
    try:
        if isinstance(given, str):
            meant = tomllib.loads(f"v = {given}")["v"]
        elif isinstance(given, float) and given.is_integer():
            meant = int(given)
        else:
            return ""
        convert(meant, wanted)
    except (Mismatch, tomllib.TOMLDecodeError):
        return ""
    return f"write {_last(path)} = {str(meant).lower()}"
