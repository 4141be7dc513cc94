"""The resume point: a seed and an offset, and what proves that they still fit.

    (seed, split, epoch, offset) say where;   length, dataset, transforms, … say of what

Workers, prefetch, start method, batch size and world size are not in it: they never decide bytes.
In reproducible mode it is the same on every rank.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.errors import StateError

FORMAT = "samebatch-state-1"


def short_digest(value: Any) -> str:
    """Return 16 hex digits of a JSON-able value: equal values, equal digits, in any process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class State:
    """Where a loader is. Field names are those of the dict."""

    stream_version: int
    seed: int
    split: str
    epoch: int
    offset: int  # samples delivered in this epoch, by all ranks together
    mode: str
    lanes: int
    order: str
    streams: str
    length: int
    dataset: str  # fingerprint of its content
    transforms: str  # digest
    versions: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[tuple[int, int], ...] = ()  # fast mode: delivered beyond `offset`
    rank: int | None = None  # fast mode with several ranks only
    world_size: int | None = None
    batch_size: int | None = None  # fast mode with several ranks only
    overridden: tuple[str, ...] = ()  # differences the user allowed
    on_error: str | None = None  # "skip" or "substitute"
    failures: int | None = None  # samples skipped or replaced so far
    audit: tuple[str, ...] = ()  # chain and set digest of what was delivered, if there is a log
    listed: str | None = None  # digest of the order that a sampler gave, in the middle of an epoch

    def to_dict(self) -> dict[str, Any]:
        """Return small JSON-able facts."""
        facts: dict[str, Any] = {"format": FORMAT}
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and value != ():
                facts[one.name] = value
        facts["versions"] = dict(self.versions)
        if self.ahead:
            facts["ahead"] = [list(r) for r in self.ahead]
        for name in ("overridden", "audit"):
            if getattr(self, name):
                facts[name] = list(getattr(self, name))
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> "State":
        """Return the state that `to_dict` described.

        Raises:
            StateError: damaged, or of another format.
        """
        if not isinstance(facts, Mapping) or facts.get("format") != FORMAT:
            found = facts.get("format") if isinstance(facts, Mapping) else type(facts).__name__
            raise StateError(
                f"this is not a state of samebatch: format is {found!r}, expected {FORMAT!r}",
                do="give load_state_dict what state_dict returned",
            )
        facts = {name: value for name, value in facts.items() if value is not None}
        known = {one.name for one in fields(cls)}
        extra = sorted(set(facts) - known - {"format"})
        optional = {
            "versions",
            "ahead",
            "rank",
            "world_size",
            "batch_size",
            "overridden",
            "listed",
            "on_error",
            "failures",
            "audit",
        }
        missing = sorted(known - set(facts) - optional)
        if extra or missing:
            raise StateError(
                f"damaged state: unknown fields {extra}, missing fields {missing}",
                do="use an earlier state",
            )
        values = {name: facts[name] for name in known if name in facts}
        for name in ("stream_version", "seed", "epoch", "offset", "lanes", "length"):
            value = values[name]
            if not _whole(value) or value >= _LIMITS.get(name, 1 << 64):
                raise StateError(
                    f"damaged state: {name} is {value!r}, expected an int in its range"
                )
        for name in ("split", "mode", "order", "streams", "dataset", "transforms"):
            if not isinstance(values[name], str):
                raise StateError(f"damaged state: {name} is {values[name]!r}, expected text")
        for name in ("rank", "world_size", "failures"):
            if values.get(name) is not None and not _whole(values[name]):
                raise StateError(f"damaged state: {name} is {values[name]!r}, expected an int")
        values["ahead"] = _ranges(values.get("ahead", ()))
        values["overridden"] = _texts("overridden", values.get("overridden", ()))
        values["audit"] = _texts("audit", values.get("audit", ()))
        if values["audit"] and not all(re.fullmatch("[0-9a-f]{32}", d) for d in values["audit"]):
            raise StateError(f"damaged state: audit is {values['audit']!r}, expected two digests")
        versions = values.get("versions", {})
        if not isinstance(versions, Mapping):
            raise StateError(f"damaged state: versions is {versions!r}, expected a table")
        values["versions"] = dict(
            zip(versions, _texts("versions", [*versions.values()]), strict=True)
        )
        sampled = (
            "sampler:" in values["order"]
        )  # or of batches; may give more than the data set has
        if values["offset"] > values["length"] and not sampled:
            raise StateError(
                f"damaged state: offset {values['offset']} is beyond length {values['length']}"
            )
        return cls(**values)

    def check(self, now: "State", allow: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the fields that differ from a loader's and were allowed to.

        Args:
            now: the state of the loader that is to continue.
            allow: names of fields that may differ.

        Raises:
            StateError: a field that decides bytes differs; names each with both values.
        """
        allowed = set(allow)
        names = (
            "stream_version", "seed", "split", "lanes", "order", "streams", "length", "dataset",
            "transforms", "on_error",
        )  # fmt: skip
        unknown = allowed - set(names)
        if unknown:
            raise StateError(
                f"allow names no field that is compared: {sorted(unknown)}",
                do=f"choose from {', '.join(names)}",
            )
        share = (self.rank, self.world_size, self.batch_size)
        if self.ahead and share != (now.rank, now.world_size, now.batch_size):
            raise StateError(
                f"a fast-mode state of rank {self.rank} of {self.world_size} with batches of "
                f"{self.batch_size} cannot be loaded by rank {now.rank} of {now.world_size} with "
                f"batches of {now.batch_size}",
                do="save in reproducible mode to change the world size or its batch size",
            )
        different = [n for n in names if getattr(self, n) != getattr(now, n)]
        refused = [n for n in different if n not in allowed]
        if refused:
            lines = [
                f"{n}: the state has {_show(self, n)}, this loader {_show(now, n)}" for n in refused
            ]
            raise StateError(
                "the state does not fit this loader:\n    " + "\n    ".join(lines),
                do=f"make the loader as it was when the state was saved, or allow the difference: "
                f"load_state_dict(state, allow={refused!r})",
                different=refused,
            )
        return tuple(n for n in different if n in allowed)


_LIMITS = {"epoch": 1 << 31}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple((a, b) for a, b in value)
    except (TypeError, ValueError):
        pairs = ((0, 0),)
    if not all(_whole(a) and _whole(b) and a < b for a, b in pairs):
        raise StateError(f"damaged state: ahead is {value!r}, expected ranges [first, end]")
    return pairs


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise StateError(f"damaged state: {name} is {value!r}, expected texts")
    return tuple(value)


def _show(state: State, name: str) -> str:
    return repr(getattr(state, name))


def save(facts: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state to a JSON file: whole or not at all, also if the process is killed."""
    target = Path(path)
    text = json.dumps({"state": dict(facts), "digest": short_digest(dict(facts))}, indent=1)
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(fd, "w") as f:
            f.write(text + "\n")
            f.flush()
            os.fsync(f.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state in a file written by `save`.

    Raises:
        FileNotFoundError: there is none.
        StateError: it is damaged; a damaged file is never taken for a fresh start.
    """
    text = Path(path).read_bytes()
    try:
        content = json.loads(text)
        facts = content["state"]
        good = content["digest"] == short_digest(facts)
    except (ValueError, KeyError, TypeError) as e:
        raise StateError(
            f"the state file {os.fspath(path)!r} is damaged ({len(text)} bytes): {e}",
            do="use an earlier one, or delete it to start from the beginning",
        ) from e
    if not good:
        raise StateError(
            f"the state file {os.fspath(path)!r} is damaged: its digest does not match",
            do="use an earlier one, or delete it to start from the beginning",
        )
    return dict(facts)
