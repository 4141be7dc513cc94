"""Compares audit logs: are two runs the same, and if not, where do they first differ?

    log ─▶ passes and batches ─▶ one row for each sample: (epoch, position) ─▶ id, digests, batch, slot

Rows are compared by position, so that runs with other batch sizes, world sizes (a log for each rank)
or in fast mode can be compared as well. Logs of long samples that were looked at in part
(`audit_bytes="some"`) have no rows: their batches are compared one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pipeline.audit_reader import Log, LoggedBatch, Side, read
from pipeline.errors import AuditError

_DECIDE = (
    "stream_version", "seed", "split", "lanes", "order", "streams", "length", "dataset", "transforms",
)  # fmt: skip
_SHAPE = ("mode", "batch_size", "world_size", "tail", "listed")


@dataclass(frozen=True)
class Place:
    """Where a sample or a batch stands in one of the two runs.

    Attributes:
        step, slot, rank: of the batch; slot is None where the log tells of whole batches only.
        sample_id: which sample; None likewise.
        digest: of the field, or the batch's fingerprint.
        line: "file:line" of the log.
    """

    step: int
    slot: int | None
    rank: int
    sample_id: int | None
    digest: str
    line: str


@dataclass(frozen=True)
class First:
    """The first difference.

    Attributes:
        kind: "bytes", "sample" (another sample stands there), "fields" (other names, dtypes or
            shapes), "missing" (one run does not have it), "repeated" (one run has it twice, with
            different bytes).
        epoch, position: where in the order; position is the batch's first where slots are not known.
        fields: names of the fields that differ; () if that is not known.
        a, b: where each run has it; None if it has not. Of "repeated", both are in the same run.
    """

    kind: str
    epoch: int
    position: int
    fields: tuple[str, ...]
    a: Place | None
    b: Place | None


@dataclass(frozen=True)
class Comparison:
    """What `verify` found; true if the runs are the same.

    Attributes:
        first: the first difference, or None.
        facts: what the runs were made with, where it differs: {name: (in A, in B)}.
        samples, batches: compared; 0 samples where the logs tell of whole batches only.
        covered: least share of a sample's bytes that the logs looked at, 0 .. 1.
        notes: what else is to be known, such as lines that were cut short.
    """

    first: First | None
    facts: Mapping[str, tuple[Any, Any]]
    samples: int
    batches: int
    covered: float
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.first is None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able facts."""
        return {**asdict(self), "equal": bool(self), "facts": dict(self.facts)}

    def __str__(self) -> str:
        lines = []
        if self.first is None:
            what = f"{self.samples} samples" if self.samples else f"{self.batches} batches"
            lines.append(f"equal: {what} compared")
        else:
            lines += _told(self.first)
        for name, (a, b) in self.facts.items():
            lines.append(f"  {name}: A has {a}, B has {b}")
        if self.covered < 1:
            lines.append(
                f"  {self.covered:.1%} of the bytes of the longest samples were looked at; "
                'audit_bytes="all" looks at all'
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _told(first: First) -> list[str]:
    texts = {
        "bytes": "other bytes",
        "sample": "another sample",
        "fields": "other fields",
        "missing": "not in both runs",
        "repeated": "made twice in one run, with different bytes",
    }
    field_ = f" field {', '.join(first.fields)}" if first.fields else ""
    lines = [
        f"different: {texts[first.kind]} at epoch {first.epoch} position {first.position}{field_}"
    ]
    names = ("A", "B") if first.kind != "repeated" else ("first", "then")
    for name, place in zip(names, (first.a, first.b), strict=True):
        if place is None:
            lines.append(f"  {name}: does not have it")
            continue
        slot = "" if place.slot is None else f" slot {place.slot} sample {place.sample_id}"
        rank = f" rank {place.rank}" if place.rank else ""
        lines.append(
            f"  {name}: step {place.step}{slot}{rank} digest {place.digest} ({place.line})"
        )
    return lines


def verify(a: Side, b: Side, *, common: bool = False) -> Comparison:
    """Return whether two runs delivered the same, and where they first differ.

    Args:
        a, b: audit logs: a file, a folder of them, a pattern (`"logs/rank*.jsonl"`), or a list of
            files. Several are the ranks of one run, or the parts of one that was resumed.
        common: compare only what both have; else a run that has less is different.

    Raises:
        AuditError: a log cannot be read, or the two looked at different bytes.
    """
    one, two = read(a), read(b)
    facts = _facts(one, two)
    notes = (*(f"A: {n}" for n in one.notes), *(f"B: {n}" for n in two.notes))
    fields = one.fields
    if one.names != two.names or [f[:-1] for f in fields] != [f[:-1] for f in two.fields]:
        names = tuple(
            str(f[0]) for f in (*fields, *two.fields) if f not in fields or f not in two.fields
        )
        first = First("fields", one.batches[0].epoch, one.batches[0].lo, names, None, None)
        shown = {"fields": ([f[:-1] for f in fields], [f[:-1] for f in two.fields])}
        return Comparison(first, {**facts, **shown}, 0, 0, 1.0, notes)
    if fields != two.fields:
        raise AuditError(
            "the two logs looked at different bytes of the samples: one at all, the other at some",
            do='make both with the same audit_bytes ("all" or "some")',
        )
    share = min([1.0, *(f[-1] / n for f in fields if (n := _nbytes(f)))])
    compare = _rows_differ if one.whole and two.whole else _batches_differ
    found, samples, batches = compare(one, two, common)
    return Comparison(found, facts, samples, batches, share, notes)


def _nbytes(entry: Sequence[Any]) -> int:
    count = int(np.prod(entry[2:-1], dtype=np.int64))
    return int(count * np.dtype(entry[1]).itemsize)


def _facts(one: Log, two: Log) -> dict[str, tuple[Any, Any]]:
    a, b = one.heads[0], two.heads[0]
    found = {n: (a.get(n), b.get(n)) for n in (*_DECIDE, *_SHAPE) if a.get(n) != b.get(n)}
    old, new = a.get("versions", {}), b.get("versions", {})
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            found[f"versions.{name}"] = old.get(name), new.get(name)
    return found


# ---------------------------------------------------------------- comparing samples
@dataclass(frozen=True)
class _Rows:
    """One epoch of one run: a row for each sample, sorted by position, the last one made counts."""

    batches: list[LoggedBatch]
    positions: np.ndarray
    ids: np.ndarray
    digests: np.ndarray  # u64[F, n]
    batch: np.ndarray
    slot: np.ndarray
    repeated: tuple[int, int, int] | None  # position, and the rows' places in what was read

    def place(self, row: int, names: Sequence[str], fields: Sequence[str]) -> Place:
        one = self.batches[self.batch[row]]
        shown = fields or names
        digest = " ".join(f"{self.digests[list(names).index(f), row]:016x}" for f in shown)
        slot, sample = int(self.slot[row]), int(self.ids[row])
        return Place(one.step, slot, one.rank, sample, digest, one.line)


def _rows(batches: list[LoggedBatch], fields: int) -> _Rows:
    reals = [one.real for one in batches]
    positions = np.concatenate([one.positions[: one.real] for one in batches])
    ids = np.concatenate([one.ids[: one.real] for one in batches if one.ids is not None])
    digests = np.concatenate(
        [one.digests[:, : one.real] for one in batches if one.digests is not None], axis=1
    ).reshape(fields, -1)
    batch = np.repeat(np.arange(len(batches)), reals)
    slot = np.concatenate([np.arange(real) for real in reals])
    order = np.argsort(positions, kind="stable")
    positions, ids, digests = positions[order], ids[order], digests[:, order]
    batch, slot = batch[order], slot[order]
    again = positions[1:] == positions[:-1]
    other = (digests[:, 1:] != digests[:, :-1]).any(axis=0) | (ids[1:] != ids[:-1])
    bad = np.flatnonzero(again & other)
    repeated = (int(positions[bad[0]]), int(bad[0]), int(bad[0]) + 1) if len(bad) else None
    if repeated:
        return _Rows(batches, positions, ids, digests, batch, slot, repeated)
    last = np.append(~again, [True])[: len(positions)]
    return _Rows(
        batches, positions[last], ids[last], digests[:, last], batch[last], slot[last], None
    )


def _by_epoch(log: Log) -> dict[int, list[LoggedBatch]]:
    found: dict[int, list[LoggedBatch]] = {}
    for one in log.batches:
        found.setdefault(one.epoch, []).append(one)
    return found


def _epochs(
    one: Log, two: Log, common: bool
) -> Iterator[tuple[int, list[LoggedBatch], list[LoggedBatch]]]:
    a, b = _by_epoch(one), _by_epoch(two)
    for epoch in sorted({*a, *b}):
        if not common or (epoch in a and epoch in b):
            yield epoch, a.get(epoch, []), b.get(epoch, [])


def _rows_differ(one: Log, two: Log, common: bool) -> tuple[First | None, int, int]:
    names = list(one.names)
    samples = batches = 0
    for epoch, left, right in _epochs(one, two, common):
        if not left or not right:
            return _missing(epoch, (left or right)[0], in_a=bool(left)), samples, batches
        a, b = _rows(left, len(names)), _rows(right, len(names))
        for rows in (a, b):
            if rows.repeated:
                return _made_twice(epoch, rows, names), samples, batches
        found = _first_row(epoch, a, b, names, common) or _other_batch(epoch, left, right, names)
        if found:
            return found, samples, batches
        samples += len(np.intersect1d(a.positions, b.positions))
        batches += min(len(left), len(right))
    return None, samples, batches


def _made_twice(epoch: int, rows: _Rows, names: list[str]) -> First:
    assert rows.repeated is not None
    position, i, k = rows.repeated
    fields = _other_fields(rows.digests[:, i], rows.digests[:, k], names)
    places = rows.place(i, names, fields), rows.place(k, names, fields)
    return First("repeated", epoch, position, fields, *places)


def _other_fields(a: np.ndarray, b: np.ndarray, names: list[str]) -> tuple[str, ...]:
    return tuple(name for name, differ in zip(names, (a != b).tolist(), strict=True) if differ)


def _first_row(epoch: int, a: _Rows, b: _Rows, names: list[str], common: bool) -> First | None:
    _, i, k = np.intersect1d(a.positions, b.positions, assume_unique=True, return_indices=True)
    differ = (a.digests[:, i] != b.digests[:, k]).any(axis=0) | (a.ids[i] != b.ids[k])
    at = np.flatnonzero(differ)[:1]
    only = np.setxor1d(a.positions, b.positions)[: 0 if common else 1]
    if len(only) and (not len(at) or only[0] < a.positions[i[at[0]]]):
        rows = a if only[0] in a.positions else b
        row = int(np.searchsorted(rows.positions, only[0]))
        place = rows.place(row, names, ())
        first = First("missing", epoch, int(only[0]), (), place, None)
        return first if rows is a else replace(first, a=None, b=place)
    if not len(at):
        return None
    left, right = int(i[at[0]]), int(k[at[0]])
    kind = "sample" if a.ids[left] != b.ids[right] else "bytes"
    fields = _other_fields(a.digests[:, left], b.digests[:, right], names)
    places = a.place(left, names, fields), b.place(right, names, fields)
    return First(kind, epoch, int(a.positions[left]), fields, *places)


# ---------------------------------------------------------------- comparing batches
def _keyed(batches: list[LoggedBatch]) -> dict[tuple[Any, ...], LoggedBatch]:
    """Return batches by their positions, sorted; a batch made again replaces the earlier one."""
    keyed = {(one.lo, len(one.positions), one.positions.tobytes()): one for one in batches}
    return dict(sorted(keyed.items()))


def _other_batch(
    epoch: int, left: list[LoggedBatch], right: list[LoggedBatch], names: list[str]
) -> First | None:
    """Return the first of the batches with the same positions that is not the same."""
    a, b = _keyed(left), _keyed(right)
    for key, one in a.items():
        two = b.get(key)
        if two is not None and one.fingerprint != two.fingerprint:
            fields = tuple(
                name for name, x, y in zip(names, one.fields, two.fields, strict=True) if x != y
            )
            return First("bytes", epoch, one.lo, fields, _whole(one), _whole(two))
    return None


def _whole(one: LoggedBatch) -> Place:
    return Place(one.step, None, one.rank, None, one.fingerprint, one.line)


def _missing(epoch: int, one: LoggedBatch, *, in_a: bool) -> First:
    place = _whole(one)
    return First("missing", epoch, one.lo, (), *((place, None) if in_a else (None, place)))


def _batches_differ(one: Log, two: Log, common: bool) -> tuple[First | None, int, int]:
    names = list(one.names)
    batches = 0
    for epoch, left, right in _epochs(one, two, common):
        if not left or not right:
            return _missing(epoch, (left or right)[0], in_a=bool(left)), 0, batches
        for side in (left, right):
            found = _twice(epoch, side, names)
            if found:
                return found, 0, batches
        a, b = _keyed(left), _keyed(right)
        both = [key for key in a if key in b]
        if not both or (not common and _cut_differently(a, b)):
            raise AuditError(
                f"epoch {epoch} was cut into other batches in A than in B, and the logs looked at "
                "some bytes of each batch only: they cannot be compared",
                do='log both with audit_bytes="all", which keeps a digest of each sample',
            )
        found = _other_batch(epoch, left, right, names)
        lonely = [] if common else sorted((k, k in a) for k in {*a} ^ {*b})
        if lonely and (found is None or lonely[0][0][0] < found.position):
            key, in_a = lonely[0]
            return _missing(epoch, (a if in_a else b)[key], in_a=in_a), 0, batches
        if found:
            return found, 0, batches
        batches += len(both)
    return None, 0, batches


def _twice(epoch: int, batches: list[LoggedBatch], names: list[str]) -> First | None:
    seen: dict[bytes, LoggedBatch] = {}
    for one in batches:
        key = one.positions.tobytes()
        before = seen.setdefault(key, one)
        if before.fingerprint != one.fingerprint:
            fields = tuple(
                n for n, x, y in zip(names, before.fields, one.fields, strict=True) if x != y
            )
            return First("repeated", epoch, one.lo, fields, _whole(before), _whole(one))
    return None


def _cut_differently(a: Mapping[Any, LoggedBatch], b: Mapping[Any, LoggedBatch]) -> bool:
    """Return whether batches of one run overlap others of the other without being the same."""
    none = np.empty(0, np.uint64)
    mine = np.concatenate([none, *(one.positions for key, one in a.items() if key not in b)])
    theirs = np.concatenate([none, *(one.positions for key, one in b.items() if key not in a)])
    return bool(len(np.intersect1d(mine, theirs)))
