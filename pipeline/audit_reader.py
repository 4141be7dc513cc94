"""Reads audit logs: the lines that `pipeline.audit.AuditLog` writes."""

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pipeline.audit import FORMAT, row_names
from pipeline.errors import AuditError

Side = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class LoggedBatch:
    """One batch, as a log tells of it.

    Attributes:
        epoch, rank, step, real, fingerprint: see `audit.AuditLog.batch`.
        positions, ids: uint64[n], int64[n]; ids is None where the log has no detail.
        digests: u64[F, n], likewise.
        fields: a digest of each field of the batch.
        line: "file:line".
    """

    epoch: int
    rank: int
    step: int
    real: int
    fingerprint: str
    positions: np.ndarray
    ids: np.ndarray | None
    digests: np.ndarray | None  # u64[F, n]
    fields: tuple[str, ...]
    line: str

    @property
    def lo(self) -> int:
        """The first position; 0 of an empty batch."""
        return int(self.positions[0]) if len(self.positions) else 0


@dataclass
class Log:
    """One run: its passes' first lines, its batches, and what is to be known about the files."""

    heads: list[dict[str, Any]] = field(default_factory=list)
    batches: list[LoggedBatch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def fields(self) -> list[list[Any]]:
        """Name, dtype, shape … and looked-at bytes of each field."""
        return list(self.heads[0]["fields"])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows of digests."""
        rows = max((len(one.fields) for one in self.batches), default=0)
        return row_names([str(f[0]) for f in self.fields], rows)

    @property
    def whole(self) -> bool:
        """Whether there is a digest of each sample."""
        return all(one.ids is not None for one in self.batches)


def logs_of(side: Side) -> list[Path]:
    """Return the files that a side names.

    Raises:
        AuditError: there are none.
    """
    given = [side] if isinstance(side, str | os.PathLike) else list(side)
    found: list[Path] = []
    for one in given:
        path = Path(one)
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.is_file())
        elif path.exists():
            found.append(path)
        else:
            found += sorted(Path(p) for p in glob.glob(os.fspath(one)))
    if not found:
        raise AuditError(f"there is no audit log {', '.join(repr(os.fspath(g)) for g in given)}")
    return found


def read(side: Side) -> Log:
    """Return the run that the logs of a side tell of.

    Raises:
        AuditError: one cannot be read, or there is no batch in them.
    """
    log = Log()
    for path in logs_of(side):
        for line, facts in lines_of(path, log.notes):
            if "format" in facts:
                if facts["format"] != FORMAT:
                    raise AuditError(
                        f"{line} has format {facts['format']!r}, expected {FORMAT!r}",
                        do="compare logs with the version that wrote them",
                    )
                log.heads.append(facts)
                continue
            try:
                log.batches.append(_batch(facts, line))
            except (KeyError, ValueError, TypeError) as e:
                raise AuditError(
                    f"{line} is no line of an audit log: {type(e).__name__}: {e}",
                    do="give files that were written with DataLoader(audit=...)",
                ) from e
    if not log.heads or not log.batches:
        names = ", ".join(map(str, logs_of(side)))
        raise AuditError(f"no batch was logged in {names}", do="give logs of a run that began")
    kinds = {json.dumps([h["fields"], h["whole"]]) for h in log.heads}
    if len(kinds) > 1:
        log.notes.append("the passes in it have different fields, or looked at different bytes")
    return log


def lines_of(path: Path, notes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("file:line", facts) of each whole line; tell in `notes` of those that are not.

    Raises:
        AuditError: the file cannot be read, has no whole line, or a line that was never one of a log.
    """
    good = 0
    try:
        with open(path, "rb") as f:
            for number, text in enumerate(f, 1):
                try:
                    facts = json.loads(text)
                except ValueError as e:
                    if text.strip() and not _cut_short(text, e):
                        raise AuditError(
                            f"{path}:{number} is no line of an audit log, being no line of JSON: "
                            f"{text[:60]!r}",
                            do="give the files as DataLoader(audit=...) wrote them",
                        ) from e
                    if text.strip():
                        notes.append(f"{path}:{number} was cut short ({len(text)} bytes)")
                    continue
                if not isinstance(facts, dict):
                    raise AuditError(f"{path}:{number} is no line of an audit log: {text[:60]!r}")
                good += 1
                yield f"{path}:{number}", facts
    except OSError as e:
        raise AuditError(f"the audit log {str(path)!r} cannot be read: {e.strerror}") from e
    if not good:
        raise AuditError(f"{str(path)!r} is no audit log: it has no line of JSON")


def _cut_short(text: bytes, e: ValueError) -> bool:
    """Return whether a line that is no JSON is the beginning of one: it fails where it ends."""
    line = text.rstrip(b"\r\n")
    if not line.startswith(b"{") or not isinstance(e, json.JSONDecodeError):
        return False
    rest = line[e.pos :]
    begun = e.msg.startswith("Unterminated string") or (len(rest) < 6 and "escape" in e.msg)
    return begun or any(word.startswith(rest) for word in (b"true", b"false", b"null", b"-"))


def positions_of(facts: Mapping[str, Any]) -> np.ndarray:
    """Return uint64[n], the positions in a line of a batch."""
    given = facts["positions"]
    if isinstance(given, str):
        return _numbers(given, facts["samples"])
    return np.arange(given[0], given[1], dtype=np.uint64)


def _numbers(text: str, n: int) -> np.ndarray:
    """Return uint64[n] of numbers that stand one after the other in equal shares of the text."""
    data = bytes.fromhex(text)
    width = len(data) // n if n else 1
    if width * n != len(data):
        raise ValueError(f"{len(data)} bytes for {n} samples")
    return np.frombuffer(data, f">u{width}").astype(np.uint64)


def _batch(facts: Mapping[str, Any], line: str) -> LoggedBatch:
    n = facts["samples"]
    digests = ids = None
    if "ids" in facts:
        ids = _numbers(facts["ids"], n).astype(np.int64)
        digests = np.array([_numbers(one, n) for one in facts["digests"]], np.uint64)
        names = tuple(xxhash.xxh3_64_hexdigest(row.tobytes()) for row in digests)
    else:
        names = tuple(facts["fields"])
    return LoggedBatch(
        facts["epoch"], facts["rank"], facts["step"], facts["real"], facts["fingerprint"],
        positions_of(facts), ids, digests, names, line,
    )  # fmt: skip


def positions_at(line: str) -> np.ndarray:
    """Return uint64[n], the positions of the batch in a "file:line" of a log.

    Raises:
        AuditError: there is no such line.
    """
    for at, facts in lines_of(Path(line.rpartition(":")[0]), []):
        if at == line and "positions" in facts:
            return positions_of(facts)
    raise AuditError(f"{line} is no line of a batch")
