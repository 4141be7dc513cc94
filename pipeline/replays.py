"""Makes one batch of a run again, alone: from (epoch, step), from a line of its audit log, or from the
text of an error.
"""

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import audit
from pipeline.audit_reader import lines_of, positions_of
from pipeline.config import Config
from pipeline.engine import Batch, fingerprint_of
from pipeline.errors import AuditError, ConfigError
from pipeline.loader import DataLoader, from_config

# A batch is made alone, in this process, and nothing is written down.
ALONE: Mapping[str, Any] = {
    "loader.num_workers": 0, "loader.audit": None, "loader.timeout": None,
    "loader.multiprocessing_context": None,
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Which samples of which run.

    Attributes:
        epoch: which.
        positions: uint64[n]; None where a step is given.
        step: of the epoch; None where positions are given.
        seed, split: of the run; None: the configuration's.
        fingerprint: of the batch, from the log; None if it is not known.
        whole: whether the fingerprint is of all bytes.
    """

    epoch: int
    positions: npt.NDArray[np.uint64] | None = None
    step: int | None = None
    seed: int | None = None
    split: str | None = None
    fingerprint: str | None = None
    whole: bool = True


@dataclass(frozen=True)
class Replay:
    """A batch that was made again.

    Attributes:
        epoch: which.
        positions, sample_ids: uint64[n], int64[n].
        fields: {name: array [n, …]}.
        batch: as it was made, with what is not an array.
        digests: {name: u64[n]}, as in a log of all bytes; "rest" is text, or a batch that is whole.
    """

    epoch: int
    positions: npt.NDArray[np.uint64]
    sample_ids: npt.NDArray[np.int64]
    fields: Mapping[str, Any]
    batch: Batch
    digests: Mapping[str, npt.NDArray[np.uint64]]

    def fingerprint(self, whole: bool = True) -> str:
        """Return the batch's fingerprint, as the log has it."""
        return fingerprint_of(audit.Digest(whole=whole), self.batch)

    def agrees_with(self, facts: Facts) -> bool:
        """Return whether the log has the same fingerprint."""
        return facts.fingerprint == self.fingerprint(facts.whole)

    def compared_with(self, other: "Replay") -> str:
        """Return where two batches first differ, value by value."""
        if not np.array_equal(self.positions, other.positions):
            return "the two batches have other positions"
        for slot in range(len(self.positions)):
            for name, array in self.fields.items():
                a, b = np.asarray(array[slot]), np.asarray(other.fields[name][slot])
                if a.shape != b.shape or a.dtype != b.dtype:
                    return f"slot {slot} field {name}: {a.dtype}{list(a.shape)}, then {b.dtype}{list(b.shape)}"
                if a.tobytes() != b.tobytes():
                    return f"slot {slot} (position {self.positions[slot]}) {_values(name, a, b)}"
            mine, theirs = self.digests.get("rest"), other.digests.get("rest")
            if mine is not None and theirs is not None and mine[slot] != theirs[slot]:
                return f"slot {slot} (position {self.positions[slot]}): other text or objects"
        return "made again, the two batches are the same"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write fields, sample_ids and positions to an .npz file: whole or not at all."""
        target = Path(path)
        arrays: dict[str, Any] = {
            f"field_{n}" if n.isdecimal() else n: np.asarray(a) for n, a in self.fields.items()
        }
        fd, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(fd, "wb") as f:
                np.savez(f, sample_ids=self.sample_ids, positions=self.positions, **arrays)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _values(name: str, a: np.ndarray, b: np.ndarray) -> str:
    bits_a, bits_b = (x.reshape(-1).view(np.uint8).reshape(x.size, -1) for x in (a, b))
    differ = np.flatnonzero((bits_a != bits_b).any(axis=1))
    at = tuple(int(i) for i in np.unravel_index(differ[0], a.shape))
    return (
        f"field {name}{list(at)}: {a[at]!r}, then {b[at]!r}; "
        f"{len(differ)} of {a.size} values differ"
    )


def replay(
    loader: DataLoader, epoch: int, positions: npt.NDArray[np.uint64] | None = None, step: int = 0
) -> Replay:
    """Return a batch of a loader's, made here and now.

    Args:
        loader: any.
        epoch: which.
        positions: of the samples; None: those of `step`.
        step: of the epoch.

    Raises:
        IndexError: there is no such step or position.
        SampleError: a sample cannot be made: as it failed in the run.
    """
    if positions is None:
        positions = loader.positions_at(epoch, step)
    batch = loader.made_at(epoch, positions)
    digest = audit.Digest()
    fingerprint_of(digest, batch)
    names = loader.field_names()
    rows = audit.row_names(names, len(digest.last))
    return Replay(
        epoch, batch.positions, batch.ids, dict(zip(names, batch.arrays, strict=True)), batch,
        dict(zip(rows, digest.last, strict=True)),
    )  # fmt: skip


def loader_of(config: Config, facts: Facts) -> DataLoader:
    """Return the loader of a configuration, with the seed and split that the facts name."""
    if facts.seed is not None:
        config = dataclasses.replace(config, seed=facts.seed)
    if facts.split is not None:
        config = dataclasses.replace(
            config, loader=dataclasses.replace(config.loader, split=facts.split)
        )
    if config.seed is None:
        raise ConfigError(
            "the configuration has no seed, and a batch of a run without one cannot be made again",
            do="give the seed that the run logged: --set seed=…",
            field="seed",
        )
    return from_config(config)


def from_line(line: str) -> Facts:
    """Return what a "file:line" of an audit log tells of a batch.

    Raises:
        AuditError: there is no such line, or it tells of no batch.
    """
    path, _, number = line.rpartition(":")
    return _from_log(Path(path), lambda at, _: at == number)


def from_log(path: str | os.PathLike[str], epoch: int | None, step: int | None) -> Facts:
    """Return which samples a file tells of: an audit log, or the text of an error.

    Args:
        path: the file.
        epoch, step: which of a log's batches; None: the last one.

    Raises:
        AuditError: it tells of none.
    """
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as e:
        raise AuditError(f"{os.fspath(path)!r} cannot be read: {e.strerror}") from e
    found = from_error(text)
    if found is not None:
        return found
    return _from_log(
        Path(path),
        lambda _, f: (epoch is None or f["epoch"] == epoch) and (step is None or f["step"] == step),
    )


_WHERE = re.compile(r"\bsplit=(\S+) epoch=(\d+) position=(\d+) .*?\bseed=(\d+)")


def from_error(text: str) -> Facts | None:
    """Return which sample the text of a SampleError tells of; None if it is no such text.

    >>> from_error("  where: split=train epoch=2 position=13 step=3 slot=1 rank=0 seed=7").seed
    7
    """
    found = _WHERE.findall(text)
    if not found:
        return None
    split, epoch, position, seed = found[-1]
    return Facts(int(epoch), np.array([position], np.uint64), None, int(seed), split)


def _from_log(path: Path, wanted: Any) -> Facts:
    head: dict[str, Any] = {}
    batch = None
    for line, facts in lines_of(path, []):
        if "format" in facts:
            head = facts
        elif "fingerprint" in facts and wanted(line.rpartition(":")[2], facts):
            batch = facts, head
    if batch is None:
        raise AuditError(
            f"{str(path)!r} tells of no such batch, nor of a sample that failed",
            do="give an audit log and an --epoch and --step that it has, or the text of an error",
        )
    facts, head = batch
    return Facts(
        facts["epoch"], positions_of(facts), facts["step"], head.get("seed"), head.get("split"),
        facts["fingerprint"], bool(head.get("whole", True)),
    )  # fmt: skip


def described(made: Replay, name_of: Any) -> list[str]:
    """Return a line for each sample: slot, position, id, digests, name.

    Args:
        made: the batch.
        name_of: the dataset's name of a sample id.
    """
    lines = []
    for slot, (position, one) in enumerate(
        zip(made.positions.tolist(), made.sample_ids.tolist(), strict=True)
    ):
        digests = "  ".join(f"{n}={row[slot]:016x}" for n, row in made.digests.items())
        lines.append(
            f"slot {slot:<4} position {position:<8} sample {one:<8} {digests}  {name_of(one)}"
        )
    return lines
